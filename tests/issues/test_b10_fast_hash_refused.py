"""A fast non-cryptographic hash lets one tenant build a prompt that collides with another's.

Public report: https://github.com/vllm-project/vllm/pull/29163 (review).
"""

from __future__ import annotations

import pytest

from deepseek_flash_cache.pool import BlockPool


@pytest.mark.parametrize("name", ["xxh", "builtin", "", "SHA256", None])
def test_refused_at_construction_naming_what_is_accepted(name: str) -> None:
    with pytest.raises(ValueError, match=rf"hash must be one of \('sha256',\), got {name!r}"):
        BlockPool(8, 64, hash=name)


def test_sha256_is_accepted() -> None:
    BlockPool(8, 64, hash="sha256")
