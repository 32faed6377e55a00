"""flash_attn_with_kvcache: append in place at cache_seqlens, then attend; fixed caches, pages, our pool, rotary."""

import pytest
import torch

from deepseek_flash_cache import ops
from deepseek_flash_cache.attention import PagedKV, fa2, fa3
from deepseek_flash_cache.layout import Layout
from tests.attention.reference import attention
from tests.fixtures import assert_close, empty_cache, raw

LENS = (5, 0, 64, 100)
SIZE = 130
HEADS, KV_HEADS, COLUMNS = 4, 2, 64


class Setup:
    """A cache with room, NaN past every sequence, and new tokens."""

    def __init__(self, new=3, q_len=3, dtype=torch.float32, lens=LENS, seed=0):
        random = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=random).to(dtype)

        batch = len(lens)
        self.lens = torch.tensor(lens).int()
        self.q = draw(batch, q_len, HEADS, COLUMNS)
        self.k, self.v = draw(batch, new, KV_HEADS, COLUMNS), draw(batch, new, KV_HEADS, COLUMNS)
        self.history = [[draw(n, KV_HEADS, COLUMNS) for n in lens] for _ in range(2)]

    def fixed(self, rows=None):
        """[batch, SIZE, ...] caches; or of `rows` sequences, ours in reversed order at the end."""
        caches = []
        for part in self.history:
            cache = torch.full((rows or len(part), SIZE, KV_HEADS, COLUMNS), torch.nan, dtype=self.q.dtype)
            for b, history in enumerate(part):
                cache[(rows - 1 - b) if rows else b, : len(history)] = history
            caches.append(cache)
        return caches

    def pages(self, page_size):
        table = torch.randperm(len(self.lens) * -(-SIZE // page_size) + 1).int()[1:].view(len(self.lens), -1)
        caches = []
        for part in self.history:
            pages = torch.full((table.numel() + 1, page_size, KV_HEADS, COLUMNS), torch.nan, dtype=self.q.dtype)
            for b, history in enumerate(part):
                for i, row in enumerate(history):
                    pages[table[b, i // page_size], i % page_size] = row
            caches.append(pages)
        return caches, table

    def pool(self, layout):
        table = torch.randperm(len(self.lens) * 3 + 1).int()[1:].view(len(self.lens), 3)
        cache = empty_cache(layout, table.numel() + 1)
        for b, (key, value) in enumerate(zip(*self.history, strict=True)):
            token = torch.arange(len(key))
            ops.append(key, value, cache, table[b][token // 64].long() * 64 + token % 64, layout)
        return PagedKV(cache, layout), table

    def expected(self, new=True, **options):
        """out [B, S, H, D], LSE [B, H, S], and what K of each sequence must be afterwards."""
        added = self.expected_keys(new)
        results = [attention(q, k, v, **options) for q, k, v in zip(self.q, *added, strict=True)]
        return torch.stack([out for out, _ in results]), torch.stack([lse for _, lse in results]), added[0]

    def expected_keys(self, new=True):
        both = zip(self.history, (self.k, self.v), strict=True)
        return [[torch.cat((h, x)) if new else h for h, x in zip(part, rows, strict=True)] for part, rows in both]


MASKS = [{"causal": True}, {"causal": False}, {"causal": True, "window_size": (20, 0), "softcap": 5.0}]


@pytest.mark.parametrize("options", MASKS, ids=str)
@pytest.mark.parametrize("q_len, new", [(1, 1), (3, 3), (2, 5), (4, 0)])
def test_fixed_cache(q_len, new, options):
    case = Setup(new, q_len)
    caches = case.fixed()
    arguments = {"cache_seqlens": case.lens, "return_softmax_lse": True, **options}
    got = fa2.flash_attn_with_kvcache(case.q, *caches, case.k, case.v, **arguments)
    out, lse, keys = case.expected(**options)
    assert_close(got[0], out)
    assert_close(got[1], lse, torch.float32)
    for b, key in enumerate(keys):
        assert torch.equal(caches[0][b, : len(key)], key) and caches[0][b, len(key) :].isnan().all()
    again = fa3.flash_attn_with_kvcache(case.q, *case.fixed(), case.k, case.v, **arguments)
    assert torch.equal(again[0], got[0]) and torch.equal(again[1], got[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype):
    case = Setup(dtype=dtype)
    got = fa2.flash_attn_with_kvcache(case.q, *case.fixed(), case.k, case.v, cache_seqlens=case.lens, causal=True)
    assert_close(got, case.expected(causal=True)[0])


def test_without_new_keys():
    case = Setup()
    caches = case.fixed()
    before = [raw(cache).clone() for cache in caches]
    got = fa2.flash_attn_with_kvcache(case.q, *caches, cache_seqlens=case.lens, causal=True, return_softmax_lse=True)
    out, lse, _ = case.expected(new=False, causal=True)
    assert_close(got[0], out)
    assert_close(got[1], lse, torch.float32)
    assert all(torch.equal(raw(cache), old) for cache, old in zip(caches, before, strict=True))


def test_lengths_as_a_number_or_none():
    case = Setup(lens=(100, 100))
    caches = case.fixed()
    expected = case.expected(new=False)[0]
    assert_close(fa2.flash_attn_with_kvcache(case.q, *caches, cache_seqlens=100), expected)
    assert_close(fa2.flash_attn_with_kvcache(case.q, *(cache[:, :100] for cache in caches)), expected)


def test_batch_indices():
    case = Setup()
    caches = case.fixed(rows=7)
    index = torch.tensor([6, 5, 4, 3]).int()
    arguments = {"cache_seqlens": case.lens, "cache_batch_idx": index, "causal": True}
    got = fa2.flash_attn_with_kvcache(case.q, *caches, case.k, case.v, **arguments)
    out, _, keys = case.expected(causal=True)
    assert_close(got, out)
    for b, key in enumerate(keys):
        assert torch.equal(caches[0][6 - b, : len(key)], key)
    assert caches[0][:3].isnan().all()


@pytest.mark.parametrize("page_size", [1, 16, 64, 100])
def test_pages_of_plain_rows(page_size):
    case = Setup()
    caches, table = case.pages(page_size)
    arguments = {"cache_seqlens": case.lens, "causal": True}
    got = fa3.flash_attn_with_kvcache(case.q, *caches, case.k, case.v, page_table=table, **arguments)
    assert_close(got, case.expected(causal=True)[0])
    again = fa2.flash_attn_with_kvcache(
        case.q, *caches, block_table=table, **arguments | {"cache_seqlens": case.lens + 3}
    )
    assert torch.equal(again, got)


@pytest.mark.parametrize("options", MASKS, ids=str)
def test_our_pool(options):
    case = Setup()
    pool, table = case.pool(Layout(torch.float32, KV_HEADS, COLUMNS, COLUMNS))
    arguments = {"cache_seqlens": case.lens, "return_softmax_lse": True, **options}
    got = fa2.flash_attn_with_kvcache(case.q, pool, pool, case.k, case.v, block_table=table, **arguments)
    out, lse, _ = case.expected(**options)
    assert_close(got[0], out)
    assert_close(got[1], lse, torch.float32)


def test_our_pool_in_fp8():
    case = Setup(dtype=torch.bfloat16)
    layout = Layout(torch.float8_e4m3fn, KV_HEADS, COLUMNS, COLUMNS)
    pool, table = case.pool(layout)
    scaled = PagedKV(empty_cache(layout, 20), layout, k_scale=0.02, v_scale=0.02)
    got = fa3.flash_attn_with_kvcache(case.q, pool, None, case.k, case.v, page_table=table, cache_seqlens=case.lens)
    torch.testing.assert_close(got.double(), case.expected()[0], atol=0.15, rtol=0.1)
    empty = torch.zeros(4).int()
    got = fa3.flash_attn_with_kvcache(case.q, scaled, None, case.k, case.v, page_table=table, cache_seqlens=empty)
    exact = [attention(*rows)[0] for rows in zip(case.q, case.k, case.v, strict=True)]
    torch.testing.assert_close(got.double(), torch.stack(exact), atol=0.15, rtol=0.1)


def test_left_padding():
    case = Setup(lens=(5, 20, 64, 100))
    padding = torch.tensor([2, 0, 64, 33]).int()
    caches = case.fixed()
    for cache in caches:
        for b, first in enumerate(padding):
            cache[b, :first] = torch.nan
    arguments = {"cache_seqlens": case.lens, "cache_leftpad": padding, "causal": True}
    got = fa2.flash_attn_with_kvcache(case.q, *caches, case.k, case.v, **arguments)
    case.history = [[rows[first:] for rows, first in zip(part, padding, strict=True)] for part in case.history]
    assert_close(got, case.expected(causal=True)[0])


def test_ragged_queries_and_new_keys():
    """FA3: cu_seqlens_q and cu_seqlens_k_new."""
    case = Setup(new=4, q_len=4)
    counts = [4, 1, 0, 2]
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    q, k, v = (torch.cat([rows[:n] for rows, n in zip(x, counts, strict=True)]) for x in (case.q, case.k, case.v))
    got = fa3.flash_attn_with_kvcache(
        q, *case.fixed(), k, v, cache_seqlens=case.lens, cu_seqlens_q=starts, cu_seqlens_k_new=starts, max_seqlen_q=4,
        causal=True, return_softmax_lse=True,
    )  # fmt: skip
    for b, n in enumerate(counts):
        keys, values = (torch.cat((h[b], x[b, :n])) for h, x in zip(case.history, (case.k, case.v), strict=True))
        out, lse = attention(case.q[b, :n], keys, values, causal=True)
        assert_close(got[0][starts[b] : starts[b + 1]], out)
        assert_close(got[1][:, starts[b] : starts[b + 1]], lse, torch.float32)


def turned(rows, positions, angles, interleaved):
    """Rotary by complex numbers: rows [..., S, H, D], angles [positions, rotary_dim / 2]."""
    half = angles.shape[1]
    turn = torch.polar(torch.ones_like(angles), angles)[positions][..., None, :]
    part = rows[..., : 2 * half].double()
    first, second = (part[..., 0::2], part[..., 1::2]) if interleaved else (part[..., :half], part[..., half:])
    result = torch.complex(first, second) * turn
    part = (
        torch.stack((result.real, result.imag), -1).flatten(-2)
        if interleaved
        else torch.cat((result.real, result.imag), -1)
    )
    return torch.cat((part, rows[..., 2 * half :].double()), -1).to(rows.dtype)


@pytest.mark.parametrize("options", [{"causal": True}, {"window_size": (30, 30)}, {}], ids=str)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("rotary_dim", [32, 64])
def test_rotary(rotary_dim, interleaved, options):
    case = Setup()
    angles = torch.rand(SIZE, rotary_dim // 2, dtype=torch.float64) * 6
    caches = case.fixed()
    tables = {"rotary_cos": angles.cos().float(), "rotary_sin": angles.sin().float()}
    rotary = {**tables, "rotary_interleaved": interleaved}
    got = fa2.flash_attn_with_kvcache(case.q, *caches, case.k, case.v, cache_seqlens=case.lens, **rotary, **options)
    places = case.lens.long()[:, None] + torch.arange(3)
    case.k = turned(case.k, places, angles, interleaved)
    case.q = turned(case.q, places if options else places[:, :1].expand(4, 3), angles, interleaved)
    out, _, keys = case.expected(**options)
    torch.testing.assert_close(got.double(), out, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(caches[0][3, 100:103], keys[3][100:], atol=1e-5, rtol=1e-4)


def test_rotary_seqlens_take_the_place_of_cache_seqlens():
    case = Setup()
    angles = torch.rand(300, 32)
    rotary = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "causal": True}
    common = case.q, *case.fixed(), case.k, case.v
    moved = fa3.flash_attn_with_kvcache(*common, cache_seqlens=case.lens, rotary_seqlens=case.lens, **rotary)
    assert torch.equal(moved, fa3.flash_attn_with_kvcache(*common, cache_seqlens=case.lens, **rotary))
    other = fa3.flash_attn_with_kvcache(*common, cache_seqlens=case.lens, rotary_seqlens=case.lens + 9, **rotary)
    assert not torch.equal(moved, other)
