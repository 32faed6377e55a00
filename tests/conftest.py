"""Settings for the whole suite."""

import os

from hypothesis import settings

# Threads that wait must not spin: with a second process on the machine a spinning OpenMP team slows a matmul tenfold.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shared machine may take any time for an example; no test depends on how long it was.
settings.register_profile("dfc", deadline=None)
settings.load_profile("dfc")
