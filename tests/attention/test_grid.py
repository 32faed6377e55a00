"""Every function against SDPA in float64 over seeded random cases: shapes, masks, strides, storage, zero lengths."""

import random

import pytest
import torch

from deepseek_flash_cache import spec
from deepseek_flash_cache.attention import PagedKV, fa2, fa3, vllm
from deepseek_flash_cache.layout import Layout
from tests.attention.reference import ragged_attention
from tests.fixtures import assert_close, empty_cache, slots_of, strided_rows

CASES = 120
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Case:
    """One random draw; `hostile` tensors have gaps of NaN between rows and heads."""

    def __init__(self, seed: int):
        draw = random.Random(seed)
        self.random = torch.Generator().manual_seed(seed)
        self.draw = draw
        self.dtype = draw.choice(DTYPES)
        self.kv_heads, self.group = draw.choice((1, 2, 3)), draw.choice((1, 2, 7))
        self.heads = self.kv_heads * self.group
        self.columns, self.columns_v = draw.choice(((64, 64), (128, 128), (80, 80), (48, 16), (192, 128), (20, 36)))
        self.batch = draw.choice((1, 2, 5))
        self.q_lens = [draw.choice((0, 1, 2, 5, 33, 70)) for _ in range(self.batch)]
        self.k_lens = [draw.choice((0, 1, 3, 63, 64, 65, 130)) for _ in range(self.batch)]
        self.options = {
            "causal": draw.random() < 0.5,
            "window_size": draw.choice(((-1, -1), (-1, -1), (0, 0), (5, -1), (-1, 3), (40, 20))),
            "softcap": draw.choice((0.0, 0.0, 2.0, 30.0)),
            "softmax_scale": draw.choice((None, 0.3)),
        }

    def rows(self, tokens, heads, columns):
        return strided_rows(tokens, heads, columns, self.dtype, self.random)

    def ragged(self):
        """q, and K, V as lists."""
        q = self.rows(sum(self.q_lens), self.heads, self.columns)
        keys = [self.rows(n, self.kv_heads, self.columns) for n in self.k_lens]
        values = [self.rows(n, self.kv_heads, self.columns_v) for n in self.k_lens]
        return q, keys, values

    def expected(self, q, keys, values, q_lens=None, **more):
        return ragged_attention(q, keys, values, starts_of(q_lens or self.q_lens), **self.options, **more)


def starts_of(lens):
    return torch.tensor([0, *lens]).cumsum(0).int()


def paged(rows, page_size, table, num_blocks):
    """Pages of NaN that hold the rows of each sequence where its table says."""
    pages = rows[0].new_full((num_blocks, page_size, *rows[0].shape[1:]), torch.nan)
    for b, part in enumerate(rows):
        for i in range(len(part)):
            pages[table[b, i // page_size], i % page_size] = part[i]
    return pages


def shuffled_table(case, page_size):
    count = max(1, max(-(-n // page_size) for n in case.k_lens))
    blocks = torch.randperm(case.batch * count + 2, generator=case.random).int()
    return blocks[: case.batch * count].view(case.batch, count), len(blocks)


@pytest.mark.parametrize("seed", range(CASES))
def test_varlen(seed):
    case = Case(seed)
    q, keys, values = case.ragged()
    out, lse = case.expected(q, keys, values)
    cu_q, cu_k = starts_of(case.q_lens), starts_of(case.k_lens)
    key, value = strided(torch.cat(keys)), strided(torch.cat(values))
    got = fa2.flash_attn_varlen_func(q, key, value, cu_q, cu_k, 70, 130, **case.options, return_attn_probs=True)
    assert got[2] is None
    assert_close(got[0], out)
    assert_close(got[1], lse, torch.float32)
    other = fa3.flash_attn_varlen_func(q, key, value, cu_q, cu_k, 70, 130, **case.options, return_attn_probs=True)
    assert torch.equal(other[0], got[0]) and torch.equal(other[1], got[1])
    other = vllm.flash_attn_varlen_func(q, key, value, 70, cu_q, 130, cu_k, **case.options, return_softmax_lse=True)
    assert torch.equal(other[0], got[0]) and torch.equal(other[1], got[1])


def with_unused_rows(rows):
    return torch.cat((rows, rows.new_full((4, *rows.shape[1:]), torch.nan)))


def strided(rows):
    """The same values in a tensor with gaps of NaN."""
    wide = rows.new_full((rows.shape[0], rows.shape[1] + 1, rows.shape[2] + 3), torch.nan)
    wide[:, 1:, 3:] = rows
    return wide[:, 1:, 3:]


@pytest.mark.parametrize("seed", range(CASES, CASES + 40))
def test_unused_rows_of_a_sequence(seed):
    case = Case(seed)
    q, keys, values = case.ragged()
    out, lse = case.expected(q, keys, values)
    key, value = (
        torch.cat([torch.cat((k, k.new_full((4, *k.shape[1:]), torch.nan))) for k in p]) for p in (keys, values)
    )
    owned, used = starts_of([n + 4 for n in case.k_lens]), torch.tensor(case.k_lens).int()
    ragged = starts_of(case.q_lens), owned, 70, 134, None, used
    got = fa3.flash_attn_varlen_func(q, key, value, *ragged, **case.options, return_attn_probs=True)
    assert_close(got[0], out)
    assert_close(got[1], lse, torch.float32)


@pytest.mark.parametrize("seed", range(CASES))
def test_fixed_lengths(seed):
    case = Case(seed)
    q_len, k_len = case.q_lens[0], case.k_lens[0]
    q = case.rows(case.batch * q_len, case.heads, case.columns).unflatten(0, (case.batch, q_len))
    key, value = (
        case.rows(case.batch * k_len, case.kv_heads, columns).unflatten(0, (case.batch, k_len))
        for columns in (case.columns, case.columns_v)
    )
    out, lse = case.expected(q.flatten(0, 1), list(key), list(value), [q_len] * case.batch)
    got = fa2.flash_attn_func(q, key, value, **case.options, return_attn_probs=True)
    assert_close(got[0].flatten(0, 1), out)
    assert got[1].shape == (case.batch, case.heads, q_len)
    assert_close(got[1].transpose(0, 1).flatten(1), lse, torch.float32)
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, key, value)]
    assert torch.equal(fa3.flash_attn_func(*heads_first, **case.options), got[0])


@pytest.mark.parametrize("page_size", [1, 16, 48, 64, 256])
@pytest.mark.parametrize("seed", range(10))
def test_pages_of_plain_rows(seed, page_size):
    case = Case(seed)
    q, keys, values = case.ragged()
    out, lse = case.expected(q, keys, values)
    table, num_blocks = shuffled_table(case, page_size)
    caches = [paged(part, page_size, table, num_blocks) for part in (keys, values)]
    cu_q, cu_k = starts_of(case.q_lens), starts_of(case.k_lens)
    got = fa2.flash_attn_varlen_func(
        q, *caches, cu_q, cu_k, 70, 130, **case.options, return_attn_probs=True, block_table=table
    )
    assert_close(got[0], out)
    assert_close(got[1], lse, torch.float32)
    lens = torch.tensor(case.k_lens).int()
    given = torch.empty_like(got[0])
    other = vllm.flash_attn_varlen_func(
        q, *caches, 70, cu_q, 130, seqused_k=lens, block_table=table, out=given, **case.options
    )
    assert other is given and torch.equal(other, got[0])
    other = fa3.flash_attn_with_kvcache(
        q, *caches, cache_seqlens=lens, page_table=table, cu_seqlens_q=cu_q, max_seqlen_q=70, **case.options
    )
    assert torch.equal(other, got[0])


@pytest.mark.parametrize("seed", range(30))
def test_our_pool(seed):
    case = Case(seed)
    if case.columns % 64:
        case.columns = case.columns_v = 64
    q, keys, values = case.ragged()
    out, lse = case.expected(q, keys, values)
    layout = Layout(case.dtype, case.kv_heads, case.columns, case.columns_v, extent=case.draw.choice((1, 2)))
    table, num_blocks = shuffled_table(case, layout.page_tokens)
    cache = empty_cache(layout, num_blocks)
    for b, (key, value) in enumerate(zip(keys, values, strict=True)):
        spec.append(key, value, cache, slots_of(table[b], len(key), layout), layout)
    pool, cu_q, cu_k = PagedKV(cache, layout), starts_of(case.q_lens), starts_of(case.k_lens)
    got = fa2.flash_attn_varlen_func(
        q, pool, pool, cu_q, cu_k, 70, 130, **case.options, return_attn_probs=True, block_table=table
    )
    assert_close(got[0], out)
    assert_close(got[1], lse, torch.float32)
    lens = torch.tensor(case.k_lens).int()
    other = vllm.flash_attn_varlen_func(q, pool, None, 70, cu_q, 130, seqused_k=lens, block_table=table, **case.options)
    assert torch.equal(other, got[0])


def test_packed_tensors_are_read_where_they_are():
    qkv = torch.randn(2, 9, 3, 4, 32)
    q, k, v = (part.contiguous() for part in qkv.unbind(2))
    expected = fa2.flash_attn_func(q, k, v, causal=True)
    assert torch.equal(fa2.flash_attn_qkvpacked_func(qkv, causal=True), expected)
    assert torch.equal(fa3.flash_attn_qkvpacked_func(qkv, causal=True), expected)
    assert torch.equal(fa2.flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True), expected)
    grouped = torch.cat((q, k[:, :, :2], v[:, :, :2]), dim=2)
    expected_grouped = fa2.flash_attn_func(q, k[:, :, :2], v[:, :, :2], causal=True)
    assert torch.equal(fa3.flash_attn_qkvpacked_func(grouped, causal=True, num_heads_q=4), expected_grouped)
    flat, starts = qkv.flatten(0, 1), torch.tensor([0, 9, 18]).int()
    got = fa2.flash_attn_varlen_qkvpacked_func(flat, starts, 9, causal=True)
    assert torch.equal(got, expected.flatten(0, 1))
    got = fa2.flash_attn_varlen_kvpacked_func(q.flatten(0, 1), flat[:, 1:], starts, starts, 9, 9, causal=True)
    assert torch.equal(got, expected.flatten(0, 1))


def test_sinks_of_the_vllm_fork():
    case = Case(3)
    case.options |= {"softcap": 0.0}
    q, keys, values = case.ragged()
    sinks = torch.linspace(-2, 2, case.heads)
    out, _ = case.expected(q, keys, values, sinks=sinks)
    cu_q, cu_k = starts_of(case.q_lens), starts_of(case.k_lens)
    got = vllm.flash_attn_varlen_func(
        q, torch.cat(keys), torch.cat(values), 70, cu_q, 130, cu_k, **case.options, s_aux=sinks
    )
    assert_close(got, out)


def test_fp8_keys_with_descales():
    q = torch.randn(2, 3, 4, 64).bfloat16()
    key, value = (torch.randn(2, 70, 2, 64).to(torch.float8_e4m3fn) for _ in range(2))
    got = fa3.flash_attn_func(
        q, key, value, k_descale=torch.full((2, 2), 0.5), v_descale=torch.full((2, 2), 3.0), causal=True
    )
    rows = [(x.float() * factor).bfloat16() for x, factor in ((key, 0.5), (value, 3.0))]
    torch.testing.assert_close(got, fa3.flash_attn_func(q, *rows, causal=True), atol=0.05, rtol=0.02)


def test_inference_under_no_grad():
    q = torch.randn(1, 2, 2, 16, requires_grad=True)
    with torch.no_grad():
        fa2.flash_attn_func(q, q, q)
    with pytest.raises(ValueError, match="q requires_grad: True is not accepted; it must be False: inference only"):
        fa2.flash_attn_func(q, q, q)
