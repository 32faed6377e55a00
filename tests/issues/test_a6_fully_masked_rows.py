"""A6: finite LSE for fully masked rows when there are more queries than keys; it contaminates a later merge.

FlashInfer #4452 "finite LSE for fully masked rows when qo_len > kv_len".
"""

import pytest
import torch

from deepseek_flash_cache import ops, spec
from tests.fixtures import hostile_cache, layout_of


@pytest.mark.parametrize("sinks", [None, torch.ones(4)], ids=["no sinks", "sinks"])
@pytest.mark.parametrize("implementation", [ops, spec], ids=["ops", "spec"])
def test_rows_before_the_first_key(implementation, sinks):
    case = hostile_cache(layout_of(kv_heads=1), (2,), (5,))
    options = {"return_lse": True} if implementation is ops else {}
    got = implementation.attend(*case.tensors, case.layout, softmax_scale=0.125, sinks=sinks, **options)
    assert (got.out[:3] == 0).all()
    assert (got.lse[:, :3] == -torch.inf).all()
    assert got.lse[:, 3:].isfinite().all()
    assert (got.out[3:] != 0).any(dim=-1).all()


def merged(first, second):
    """Two partial results of the same rows as one: the usual merge by LSE."""
    lse = torch.logaddexp(first.lse, second.lse)
    weights = [torch.exp(part.lse - lse).nan_to_num(0.0).T[..., None] for part in (first, second)]
    return first.out * weights[0] + second.out * weights[1], lse


def test_an_empty_part_is_neutral_in_a_merge():
    layout = layout_of(kv_heads=1)
    full = hostile_cache(layout, (70,), (5,))
    empty = hostile_cache(layout, (0,), (5,))
    some, none = (
        ops.attend(*case.tensors, layout, softmax_scale=0.125, causal=False, return_lse=True) for case in (full, empty)
    )
    out, lse = merged(none, some)
    assert torch.equal(out, some.out) and torch.equal(lse, some.lse)
    out, lse = merged(none, none)
    assert (out == 0).all() and (lse == -torch.inf).all()
