"""A5 and A6 on plain rows: zero lengths neither crash nor leave garbage; rows before the first key are out 0, LSE -inf.

flash-attention PR 2470 "Fix the crash when seqlen_k=0", #1713; FlashInfer PR 353/440, #4452.
"""

import pytest
import torch

from deepseek_flash_cache.attention import fa2
from tests.attention.reference import ragged_attention
from tests.fixtures import assert_close

LENS = {
    "no keys at all": ((1, 3), (0, 0)),
    "some without keys": ((2, 1, 3), (0, 64, 3)),
    "a sequence without queries": ((150, 0, 150), (100, 100, 100)),
    "no queries": ((0, 0), (5, 0)),
    "no sequences": ((), ()),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", LENS)
def test_varlen(name, causal):
    q_lens, k_lens = LENS[name]
    starts, owned = (torch.tensor([0, *lens]).cumsum(0).int() for lens in LENS[name])
    q = torch.randn(sum(q_lens), 4, 64)
    keys, values = ([torch.randn(n, 2, 64) for n in k_lens] for _ in range(2))
    key, value = (torch.cat([torch.zeros(0, 2, 64), *part]) for part in (keys, values))
    got = fa2.flash_attn_varlen_func(q, key, value, starts, owned, 150, 100, causal=causal, return_attn_probs=True)
    out, lse = (
        ragged_attention(q, keys, values or [torch.zeros(0, 2, 64)], starts, causal=causal) if k_lens else (q, None)
    )
    assert_close(got[0], out.double())
    assert lse is None or assert_close(got[1], lse, torch.float32) is None


@pytest.mark.parametrize("q_len, k_len", [(0, 5), (5, 0), (0, 0)])
def test_fixed(q_len, k_len):
    q, k = torch.randn(2, q_len, 4, 64), torch.randn(2, k_len, 2, 64)
    out, lse, _ = fa2.flash_attn_func(q, k, k, return_attn_probs=True)
    assert out.shape == q.shape and (out == 0).all()
    assert lse.shape == (2, 4, q_len) and (lse == -torch.inf).all()
    assert fa2.flash_attn_func(q[:0], k[:0], k[:0]).shape == (0, q_len, 4, 64)


def test_five_queries_on_two_keys():
    q, k = torch.randn(1, 5, 4, 64), torch.randn(1, 2, 4, 64)
    out, lse, _ = fa2.flash_attn_func(q, k, k, causal=True, return_attn_probs=True)
    assert (out[:, :3] == 0).all() and (lse[..., :3] == -torch.inf).all()
    assert (out[:, 3:] != 0).any(-1).all() and lse[..., 3:].isfinite().all()
