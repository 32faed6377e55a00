"""Tenant ("org_1", "2345") and tenant ("org_12345", "") got the same salt, their fields being concatenated.

Public report: tinfoil confidential-model-router, pull request 386.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deepseek_flash_cache.pool import BlockPool, block_keys
from tests.pool.support import BLOCK, compute, identity, prompt

tenants = st.lists(st.text(max_size=3), max_size=3).map(tuple)


@pytest.mark.parametrize("other", [("org_12345", ""), ("org_12345",), ("org_1", "2345", ""), ("", "org_1", "2345")])
def test_no_hit_between_tenants_whose_fields_concatenate_equally(other: tuple[str, ...]) -> None:
    pool, tokens = BlockPool(8, BLOCK), prompt(BLOCK + 1)
    mine = identity(tenant=("org_1", "2345"))
    compute(pool, tokens, mine)
    assert compute(pool, tokens, identity(tenant=other)) == 0
    assert compute(pool, tokens, mine) == BLOCK


@given(tenants, tenants)
def test_different_tenants_have_different_keys(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assume(one != other)
    first, second = (next(block_keys(identity(tenant=tenant), [1, 2], 2)) for tenant in (one, other))
    assert first != second


def test_a_field_cannot_pass_for_another_field() -> None:
    keys = {
        next(block_keys(who, [1, 2], 2))
        for who in (identity(tenant=("a",)), identity(mode="a"), identity(layout_id="a"), identity(model_digest=b"a"))
    }
    assert len(keys) == 4


def test_a_bare_string_is_not_a_tenant() -> None:
    with pytest.raises(ValueError, match="tenant must be a tuple of str, got 'org_1'"):
        identity(tenant="org_1")
