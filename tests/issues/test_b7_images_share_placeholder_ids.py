"""Two images have the same placeholder token ids, and a 16-bit hash of their content collided.

Public reports: https://github.com/LMCache/LMCache/issues/4086, /3301, /690; ATOM pull request 1358.
"""

from __future__ import annotations

import hashlib

import pytest

from deepseek_flash_cache.pool import BlockPool, CacheIdentity, ImageSpan
from tests.pool.support import BLOCK, compute, identity, prompt

TOKENS = [*prompt(BLOCK), *[-200] * 80, *prompt(BLOCK)]  # text, an image over blocks 1 and 2, text
DIGEST = hashlib.sha256(b"image").digest()


def with_image(digest: bytes | None, start: int = BLOCK, end: int = BLOCK + 80) -> CacheIdentity:
    return identity(images=(ImageSpan(start, end, digest),))


@pytest.mark.parametrize("bit", [0, 100, 239])  # all outside the last 16
def test_one_bit_of_the_digest_decides(bit: int) -> None:
    pool = BlockPool(16, BLOCK)
    other = bytearray(DIGEST)
    other[bit // 8] ^= 1 << bit % 8
    compute(pool, TOKENS, with_image(DIGEST))
    assert compute(pool, TOKENS, with_image(bytes(other))) == BLOCK, "only the block before the image is shared"
    assert compute(pool, TOKENS, with_image(DIGEST)) == 3 * BLOCK


def test_without_a_digest_blocks_from_the_image_on_are_not_cached() -> None:
    pool = BlockPool(16, BLOCK)
    for _ in range(2):
        compute(pool, TOKENS, with_image(None))
    assert pool.num_cached == 1
    assert compute(pool, TOKENS, with_image(None)) == BLOCK
    assert compute(pool, TOKENS, with_image(None, start=BLOCK - 1)) == 0


def test_the_place_of_an_image_decides() -> None:
    pool = BlockPool(16, BLOCK)
    compute(pool, TOKENS, with_image(DIGEST))
    assert compute(pool, TOKENS, with_image(DIGEST, start=BLOCK + 1)) == BLOCK


def test_images_are_one_set_whatever_their_order() -> None:
    one, two = ImageSpan(0, 4, b"1"), ImageSpan(4, 9, b"2")
    assert identity(images=(one, two)) == identity(images=(two, one))
    with pytest.raises(ValueError, match="overlap"):
        identity(images=(one, ImageSpan(3, 5, b"2")))


def test_images_that_could_be_read_only_once_are_refused():
    """Own finding: a generator was consumed by the check, and then there were no images."""
    spans = (ImageSpan(start, start + 4, b"digest-%d" % start) for start in (0, 8))
    with pytest.raises(ValueError, match="images must be a tuple"):
        CacheIdentity("layout", b"model" * 4, images=spans)
