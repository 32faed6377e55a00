"""What is refused: a ValueError with flash-attention's name, the value and what is accepted; nothing is written."""

import re

import pytest
import torch

from deepseek_flash_cache.attention import PagedKV, fa2, fa3, vllm
from deepseek_flash_cache.layout import Layout
from tests.fixtures import empty_cache, raw

Q, K = torch.randn(2, 3, 4, 64), torch.randn(2, 70, 2, 64)
FLAT_Q, FLAT_K = Q.flatten(0, 1), K.flatten(0, 1)
STARTS, STARTS_K = torch.tensor([0, 3, 6]).int(), torch.tensor([0, 70, 140]).int()
ONE = torch.ones(1)
POOL = PagedKV(empty_cache(Layout(torch.float32, 2, 64, 64), 4, 0), Layout(torch.float32, 2, 64, 64))
TABLE = torch.tensor([[0, 1], [2, 3]]).int()


def refused(message, function, *arguments, **keywords):
    with pytest.raises(ValueError) as caught:
        function(*arguments, **keywords)
    assert re.search(message, str(caught.value)), str(caught.value)


FIXED = {
    "fa2 dropout": (fa2, {"dropout_p": 0.1}, r"^dropout_p: 0.1 is not accepted; it must be 0.0: inference only"),
    "fa2 alibi": (
        fa2,
        {"alibi_slopes": ONE},
        r"^alibi_slopes: tensor of shape \(1,\) is not accepted; it must be None",
    ),
    "window": (fa2, {"window_size": (1, 2, 3)}, r"^window_size: \(1, 2, 3\)"),
    "softcap": (fa2, {"softcap": -1.0}, r"^softcap: -1.0"),
    "scale": (fa2, {"softmax_scale": float("nan")}, r"^softmax_scale: nan"),
    "fa3 qv": (fa3, {"qv": Q}, r"^qv: tensor of shape"),
    "fa3 chunks": (fa3, {"attention_chunk": 64}, r"^attention_chunk: 64 is not accepted; it must be 0"),
    "fa3 q_descale": (fa3, {"q_descale": ONE}, r"^q_descale: tensor"),
    "fa3 k_descale": (fa3, {"k_descale": ONE}, r"^k_descale: tensor of shape \(1,\).*descales belong to fp8"),
    "q shape": (fa2, {"q": FLAT_Q}, r"^q shape: \(6, 4, 64\) is not accepted; it must be \[batch, seqlen, nheads"),
    "k batch": (fa2, {"k": K[:1], "v": K[:1]}, r"^k batch: 1 is not accepted; it must be 2"),
    "v tokens": (fa2, {"v": K[:, :69]}, r"^v shape: \(2, 69, 2, 64\)"),
    "v dtype": (fa2, {"v": K.half()}, r"^v dtype: torch.float16"),
    "k columns": (fa2, {"k": K[..., :32]}, r"^q shape: \(6, 4, 64\).*\[tokens, 4, 32\]"),
    "q heads": (fa2, {"q": torch.randn(2, 3, 3, 64)}, r"^q heads: 3 is not accepted; it must be a positive multiple"),
    "q dtype": (fa2, {"q": Q.double()}, r"^q dtype: torch.float64"),
    "pool without a table": (fa2, {"k": POOL, "v": POOL}, r"^k shape: PagedKV"),
}


@pytest.mark.parametrize("name", FIXED)
def test_fixed(name):
    module, changes, message = FIXED[name]
    refused(message, module.flash_attn_func, **{"q": Q, "k": K, "v": K} | changes)


VARLEN = {
    "cu_seqlens_q": ({"cu_seqlens_q": torch.tensor([0, 3, 7]).int()}, r"^cu_seqlens_q: \[0, 3, 7\]"),
    "cu_seqlens_k": ({"cu_seqlens_k": torch.tensor([0, 70, 141]).int()}, r"^cu_seqlens_k: \[0, 70, 141\]"),
    "int64": ({"cu_seqlens_k": STARTS_K.long()}, r"^cu_seqlens_k dtype: torch.int64"),
    "one is missing": ({"cu_seqlens_k": None}, r"^cu_seqlens_k shape: NoneType is not accepted"),
    "pool without a table": ({"k": POOL, "v": POOL}, r"^k: PagedKV is not accepted; it must be a tensor"),
    "pool and a tensor": ({"k": POOL, "block_table": TABLE}, r"^v: Tensor is not accepted; it must be None or the"),
    "table is too short": (
        {"k": POOL, "v": POOL, "block_table": TABLE[:, :1]},
        r"^cu_seqlens_k\[0\]: 70 is not accepted; it must be in \[0, 64\], what block_table can hold",
    ),
}


@pytest.mark.parametrize("name", VARLEN)
def test_varlen(name):
    changes, message = VARLEN[name]
    arguments = {"q": FLAT_Q, "k": FLAT_K, "v": FLAT_K, "cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS_K}
    refused(message, fa2.flash_attn_varlen_func, **arguments | changes, max_seqlen_q=3, max_seqlen_k=70)


def test_fa3_varlen():
    arguments = FLAT_Q, FLAT_K, FLAT_K, STARTS, STARTS_K, 3, 70
    refused(r"^seqused_q: tensor of shape \(2,\)", fa3.flash_attn_varlen_func, *arguments, seqused_q=STARTS[1:])
    used = torch.tensor([71, 2]).int()
    refused(r"^seqused_k\[0\]: 71 is not", fa3.flash_attn_varlen_func, *arguments, seqused_k=used)


VLLM = {
    "q_v": FLAT_Q,
    "dropout_p": 0.5,
    "alibi_slopes": ONE,
    "output_scale": ONE,
    "mask_mod": max,
    "cp_world_size": 2,
    "cp_rank": 1,
    "cp_tot_seqused_k": ONE,
    "q_descale": ONE,
    "v_descale": ONE,
}


@pytest.mark.parametrize("name", VLLM)
def test_vllm(name):
    arguments = FLAT_Q, FLAT_K, FLAT_K, 3, STARTS, 70, STARTS_K
    refused(rf"^{name}: ", vllm.flash_attn_varlen_func, *arguments, **{name: VLLM[name]})


def test_vllm_lengths():
    used = torch.tensor([70, 70]).int()
    for lengths in ({}, {"cu_seqlens_k": STARTS_K, "seqused_k": used}, {"seqused_k": used}):
        refused(
            r"^cu_seqlens_k, seqused_k: ", vllm.flash_attn_varlen_func, FLAT_Q, FLAT_K, FLAT_K, 3, STARTS, 70, **lengths
        )


NEW = torch.randn(2, 3, 2, 64)
LENS = torch.tensor([60, 2]).int()
CACHE = {
    "no room": (
        {"cache_seqlens": torch.tensor([68, 2]).int()},
        r"^cache_seqlens \+ new keys\[0\]: 71 is not accepted; it must be in \[0, 70\]",
    ),
    "negative": ({"cache_seqlens": torch.tensor([60, -1]).int()}, r"^cache_seqlens\[1\]: -1 is not.*at least 0"),
    "int64": ({"cache_seqlens": LENS.long()}, r"^cache_seqlens dtype: torch.int64"),
    "no lengths": ({"cache_seqlens": None}, r"^cache_seqlens: None is not accepted; it must be given"),
    "v is missing": ({"v": None}, r"^v shape: NoneType"),
    "new keys": ({"k": NEW[..., :32]}, r"^k shape: \(2, 3, 2, 32\)"),
    "new type": ({"k": NEW.half()}, r"^k dtype: torch.float16 is not accepted; it must be torch.float32, as the cache"),
    "batch index": ({"cache_batch_idx": torch.tensor([0, 2]).int()}, r"^cache_batch_idx\[1, 0\]: 2 is not.*\[0, 2\)"),
    "padding": ({"cache_leftpad": torch.tensor([61, 0]).int()}, r"^cache_seqlens\[0\]: 60 is not.*at least 61"),
    "one of two tables": ({"rotary_cos": torch.ones(99, 32)}, r"^rotary_cos, rotary_sin: one of them"),
    "angles": (
        {"rotary_cos": torch.ones(62, 32), "rotary_sin": torch.ones(62, 32)},
        r"^rotary_cos positions: 62 is not accepted; it must be more than 62",
    ),
    "alibi": ({"alibi_slopes": ONE}, r"^alibi_slopes"),
    "queries": ({"q": torch.randn(2, 3, 3, 64)}, r"^q heads: 3"),
    "index and table": (
        {"cache_batch_idx": LENS, "block_table": TABLE},
        r"^cache_batch_idx: tensor is not accepted; it must be None together with block_table",
    ),
    "window": ({"window_size": 3.5}, r"^window_size: 3.5"),
}


@pytest.mark.parametrize("name", CACHE)
def test_kvcache(name):
    changes, message = CACHE[name]
    caches = K.clone(), K.clone()
    arguments = {"q": Q, "k_cache": caches[0], "v_cache": caches[1], "k": NEW, "v": NEW, "cache_seqlens": LENS}
    refused(message, fa2.flash_attn_with_kvcache, **arguments | changes)
    assert all(torch.equal(cache, K) for cache in caches)


POOLED = {
    "table entry": (
        {"page_table": torch.tensor([[0, 9], [2, 3]]).int(), "cache_seqlens": LENS + 2},
        r"^page_table\[0, 1\]: 9 is not accepted; it must be in \[0, 4\)",
    ),
    "padding entry": ({"page_table": torch.tensor([[-1, 1], [2, 3]]).int()}, r"^page_table\[0, 0\]: -1"),
    "no table": ({"page_table": None}, r"^page_table: None is not accepted; it must be a table of pages"),
    "int64 table": ({"page_table": TABLE.long()}, r"^page_table dtype: torch.int64"),
    "left padding": ({"cache_leftpad": LENS}, r"^cache_leftpad: tensor of shape \(2,\)"),
    "new type": ({"k": NEW.half(), "v": NEW.half()}, r"^k dtype: torch.float16"),
    "descale": ({"k_descale": ONE}, r"^k_descale: tensor.*a PagedKV has scales of its own"),
    "rotary without keys": (
        {"k": None, "v": None, "rotary_cos": ONE},
        r"^rotary_cos: tensor is not accepted; it must be None without new keys",
    ),
}


@pytest.mark.parametrize("name", POOLED)
def test_pool(name):
    changes, message = POOLED[name]
    before = raw(POOL.tensor).clone()
    arguments = {"q": Q, "k_cache": POOL, "v_cache": POOL, "k": NEW, "v": NEW, "cache_seqlens": LENS}
    refused(message, fa3.flash_attn_with_kvcache, **arguments | {"page_table": TABLE} | changes)
    assert torch.equal(raw(POOL.tensor), before)


def test_packed():
    refused(r"^qkv shape: \(2, 3, 2, 4, 64\)", fa2.flash_attn_qkvpacked_func, torch.randn(2, 3, 2, 4, 64))
    refused(r"^num_heads_q: None", fa3.flash_attn_qkvpacked_func, torch.randn(2, 3, 8, 64))
    refused(r"^tensor shape", PagedKV, torch.zeros(3), Layout(torch.float32, 2, 64, 64))
