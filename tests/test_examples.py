"""The programs of examples/ run and show what they promise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marks import needs_smollm2

pytest.importorskip("transformers", minversion="4.56")
pytestmark = [pytest.mark.slow, pytest.mark.model, needs_smollm2]
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_requests_share_the_system_prompt():
    run = subprocess.run(
        [sys.executable, EXAMPLES / "shared_system_prompt.py"], capture_output=True, text=True, check=False, timeout=200
    )
    assert run.returncode == 0, run.stderr
    hits = [int(number) for number in re.findall(r"\[(\d+) of \d+ prompt tokens", run.stdout)]
    assert hits[0] == 0 and min(hits[1:]) >= 64
