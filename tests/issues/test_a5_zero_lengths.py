"""A5: a crash or a garbage LSE at length zero.

flash-attention PR 2470 "Fix the crash when seqlen_k=0"; FlashInfer PR 353/440 (empty KV); flash-attention #1713.
"""

import pytest
import torch

from deepseek_flash_cache import ops, spec
from tests.fixtures import assert_close, exact_attention, hostile_cache, layout_of

CASES = {
    "no history at all": ((0, 0), (1, 3)),
    "some without history": ((0, 64, 3), (2, 1, 3)),
    "a sequence without queries": ((100, 100, 100), (150, 0, 150)),
    "no queries": ((5, 0), (0, 0)),
}


@pytest.mark.parametrize("implementation", [ops, spec], ids=["ops", "spec"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_empty_rows_are_zero_and_the_others_exact(name, causal, implementation):
    case = hostile_cache(layout_of(), *CASES[name])
    options = {"return_lse": True} if implementation is ops else {}
    got = implementation.attend(*case.tensors, case.layout, softmax_scale=0.125, causal=causal, **options)
    out, lse = exact_attention(case, 0.125, causal)
    assert_close(got.out, out)
    assert_close(got.lse, lse, torch.float32)


def test_an_empty_row_reads_no_page_even_if_it_starts_in_the_middle_of_one():
    pages = torch.zeros(1, 16, 1, 64)
    options = {"softmax_scale": 1.0, "first_keys": torch.tensor([5]).int()}
    table, starts, lengths = torch.tensor([[-1]]).int(), torch.tensor([0, 1]).int(), torch.zeros(1).int()
    for implementation in (ops, spec):
        out = implementation.attend_pages(torch.ones(1, 1, 64), pages, pages, table, starts, lengths, **options).out
        assert out.abs().max() == 0
