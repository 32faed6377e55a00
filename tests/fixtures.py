"""One hostile cache for every kernel test, and an attention in float64 that shares no code with the specification.

Hostile means: shuffled physical blocks, NaN (or any chosen filling) in every slot that must not be read, garbage in the
tails of the block table, a table that is a view of a wider one, and key, value and query rows that are strided views.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepseek_flash_cache import spec
from deepseek_flash_cache.layout import Layout

RAGGED_LENS = (0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000)
HEAD_SIZES = ((32, 32), (64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128), (256, 256))
GROUPS = (1, 4, 8)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, *FP8)
# Storage types with every tile format each may have
KINDS = [(dtype, tile_format) for dtype in DTYPES for tile_format in ("linear", "swizzle")] + [
    (torch.bfloat16, "paired")
]
RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
NAN, ZERO = -1, 0  # raw fillings: all bits set is a NaN in every storage type
HUGE = 2**31 - 1

# Rounding of the output type, plus fp32 accumulation in another order than float64 (measured below 4e-6).
TOLERANCE = {torch.float32: (2e-5, 1e-5), torch.float16: (1e-4, 2**-10), torch.bfloat16: (1e-4, 2**-7)}


def layout_of(
    dtype: torch.dtype = torch.float32, kv_heads: int = 2, head_sizes: tuple[int, int] = (64, 64), **options: object
) -> Layout:
    wide = all(size % 64 == 0 for size in head_sizes)
    options.setdefault("block_size", 64 if wide else 32)
    return Layout(dtype, kv_heads, *head_sizes, **options)  # type: ignore[arg-type]


def compute_dtype(layout: Layout) -> torch.dtype:
    return torch.bfloat16 if layout.dtype in FP8 else layout.dtype


def empty_cache(layout: Layout, num_blocks: int, filling: int = NAN) -> Tensor:
    raw = torch.full(layout.cache_shape(num_blocks), filling, dtype=torch.int32)
    return raw.to(RAW[layout.dtype.itemsize]).view(layout.dtype)


def raw(tensor: Tensor) -> Tensor:
    """The bits, to compare NaN with NaN."""
    return tensor.contiguous().view(RAW[tensor.element_size()])


def strided_rows(tokens: int, heads: int, columns: int, dtype: torch.dtype, random: torch.Generator) -> Tensor:
    """[tokens, heads, columns] with gaps of NaN between tokens and heads."""
    wide = torch.full((tokens, heads + 1, columns + 8), math.nan, dtype=dtype)
    view = wide[:, :heads, :columns]
    view.copy_(torch.randn(view.shape, generator=random))
    return view


@dataclass
class HostileCache:
    layout: Layout
    query: Tensor  # [T, H, D]
    cache: Tensor
    block_table: Tensor  # int32 [B, 5 or more], not contiguous
    cu_seqlens_q: Tensor
    kv_lens: Tensor
    keys: list[Tensor]  # per sequence [L, Hkv, D], float64, what the cache holds
    values: list[Tensor]
    scales: dict[str, float]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.query, self.cache, self.block_table, self.cu_seqlens_q, self.kv_lens


def hostile_cache(
    layout: Layout,
    kv_lens: tuple[int, ...] = RAGGED_LENS,
    q_lens: tuple[int, ...] | None = None,  # default: mixed, some longer than the history
    group: int = 4,
    filling: int = NAN,
    seed: int = 0,
    scales: dict[str, float] | None = None,
) -> HostileCache:
    random = torch.Generator().manual_seed(seed)
    q_lens = q_lens or tuple((1, 3, 40, 17)[i % 4] for i in range(len(kv_lens)))
    dtype, scales = compute_dtype(layout), scales or {"k_scale": 1.0, "v_scale": 1.0}
    needed = [-(-length // layout.page_tokens) for length in kv_lens]
    blocks = torch.randperm(sum(needed) + 3, generator=random).flip(0).int()
    cache = empty_cache(layout, len(blocks), filling)
    table = torch.full((len(kv_lens), max(needed) + 7), HUGE, dtype=torch.int32)[:, : max(needed) + 2]
    table[:, 1::2] = -1
    keys, values, first = [], [], 0
    for b, (length, count) in enumerate(zip(kv_lens, needed, strict=True)):
        table[b, :count] = blocks[first : first + count]
        first += count
        key = strided_rows(length, layout.num_kv_heads, layout.head_size, dtype, random)
        value = strided_rows(length, layout.num_kv_heads, layout.head_size_v, dtype, random)
        spec.append(key, value, cache, slots_of(table[b], length, layout), layout, **scales)
        keys.append(spec.stored(key, layout.dtype, scales["k_scale"]).double() * scales["k_scale"])
        values.append(spec.stored(value, layout.dtype, scales["v_scale"]).double() * scales["v_scale"])
    starts = torch.tensor([0, *q_lens]).cumsum(0).int()
    query = strided_rows(sum(q_lens), layout.num_kv_heads * group, layout.head_size, dtype, random)
    return HostileCache(layout, query, cache, table, starts, torch.tensor(kv_lens).int(), keys, values, scales)


def slots_of(block_row: Tensor, length: int, layout: Layout) -> Tensor:
    token = torch.arange(length)
    return block_row[token // layout.page_tokens].long() * layout.page_tokens + token % layout.page_tokens


def exact_attention(
    case: HostileCache,
    softmax_scale: float,
    causal: bool = True,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """out [T, H, Dv] and LSE [H, T] in float64, one sequence and head at a time."""
    heads = case.query.shape[1]
    out = torch.zeros(*case.query.shape[:2], case.layout.head_size_v, dtype=torch.float64)
    lse = torch.full((heads, len(out)), -math.inf, dtype=torch.float64)
    for b, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        rows = slice(int(case.cu_seqlens_q[b]), int(case.cu_seqlens_q[b + 1]))
        q_len, kv_len = rows.stop - rows.start, len(keys)
        position = torch.arange(kv_len - q_len, kv_len)[:, None]
        key_index = torch.arange(kv_len)[None, :]
        hidden = key_index > position + (0 if causal else window_right if window_right >= 0 else kv_len + q_len)
        hidden |= (key_index < position - window_left) & (window_left >= 0)
        for head in range(heads):
            kv_head = head * keys.shape[1] // heads
            logits = case.query[rows, head].double() @ keys[:, kv_head].T * softmax_scale
            logits = (softcap * torch.tanh(logits / softcap) if softcap else logits).masked_fill(hidden, -math.inf)
            lse[head, rows] = torch.logsumexp(logits, 1)
            sink = torch.full((q_len, 1), -math.inf if sinks is None else float(sinks[head]), dtype=torch.float64)
            weights = torch.softmax(torch.cat([logits, sink], 1), 1)[:, :-1]
            out[rows, head] = torch.where(hidden.all(1, keepdim=True), 0.0, weights) @ values[:, kv_head]
    return out, lse


def assert_close(got: Tensor, exact: Tensor, dtype: torch.dtype | None = None, atol: float = 0.0) -> None:
    least, rtol = TOLERANCE[dtype or got.dtype]
    atol = max(atol, least)
    torch.testing.assert_close(got.double(), exact, atol=atol, rtol=rtol)
