"""Settings for the whole suite."""

import os

# Threads that wait must not spin: with a second process on the machine a spinning OpenMP team slows a matmul tenfold.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
