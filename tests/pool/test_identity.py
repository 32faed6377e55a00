"""The key recipe, and what an identity accepts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from deepseek_flash_cache.pool import Adapter, CacheIdentity, ImageSpan, block_keys
from tests.pool.support import identity

VECTOR = CacheIdentity(
    "bicl-1", b"model", Adapter(b"adapter", 0.5), ("org", "user"), "sgm budget=2", (ImageSpan(1, 3, b"image"),)
)  # fmt: skip
PROGRAM = (
    f"from deepseek_flash_cache.pool import *;print(next(block_keys({VECTOR!r}, [1, -200, -200, 2**40], 4)).hex())"
)


def test_the_keys_are_the_published_vector() -> None:
    """Public fault D26: a router must compute the same keys. A change here needs a new scheme name."""
    key = next(block_keys(VECTOR, [1, -200, -200, 2**40], 4))
    assert key.hex() == "6e406abcee385bb01ae96796c4c5f4a904dc7fec3101c035a19786756d144da4"


@pytest.mark.parametrize("seed", ["0", "1"])
def test_keys_do_not_depend_on_the_process(seed: str) -> None:
    """Public fault C7: https://github.com/LMCache/LMCache/issues/2535 (PYTHONHASHSEED)."""
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True, text=True
    )
    assert printed.stdout.strip() == next(block_keys(VECTOR, [1, -200, -200, 2**40], 4)).hex()


def test_short_of_a_block_there_is_no_key() -> None:
    assert list(block_keys(identity(), [], 4)) == list(block_keys(identity(), [1, 2, 3], 4)) == []
    assert len(list(block_keys(identity(), [1, 2, 3, 4], 4))) == 1


def test_a_key_names_the_whole_history() -> None:
    one, other = (list(block_keys(identity(), [first, 2, 3, 4], 2)) for first in (1, 9))
    assert one[0] != other[0] and one[1] != other[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: identity(layout_id=""), "layout_id must be a non-empty str"),
        (lambda: identity(mode=None), "mode must be a non-empty str"),
        (lambda: identity(model_digest="text"), "model_digest must be a non-empty bytes digest"),
        (lambda: identity(adapter="name"), "adapter must be an Adapter or None"),
        (lambda: identity(tenant=(1,)), "tenant must be a tuple of str"),
        (lambda: identity(images=(b"digest",)), "images must be a tuple of ImageSpan"),
        (lambda: Adapter("name"), r"adapter\.digest must be a non-empty bytes digest"),
        (lambda: ImageSpan(3, 3, b"d"), r"0 <= start < end .* got \[3, 3\)"),
        (lambda: ImageSpan(-1, 3, b"d"), "image span must satisfy"),
        (lambda: ImageSpan(0, 3, b""), "image digest must be a non-empty bytes digest"),
        (lambda: list(block_keys(identity(), ["a"], 1)), "token_ids must be integers"),
        (lambda: list(block_keys(identity(), [2**63], 1)), "token_ids must be integers"),
    ],
)
def test_bad_arguments_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
