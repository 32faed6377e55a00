"""The attention kernels against the specification, in the emulator: every feature, type and size, on hostile pools."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from deepseek_flash_cache import ops, spec
from deepseek_flash_cache.layout import Layout
from tests.cuda.harness import EAGER, LAZY, RANDOM, emulated

BF16, FP16, E4M3, E5M2 = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2
LENGTHS = (0, 1, 63, 64, 65, 127, 128, 129, 1000)
STALE = 123456789  # what the table holds where it must not be read
TOLERANCE = {FP16: 2e-3, BF16: 1.6e-2}  # absolute, on unit normals: an ulp of the largest results


def layout(dtype, head_size, head_size_v=None, block_size=64, extent=1, order="row", heads=2):
    return Layout(dtype, heads, head_size, head_size_v or head_size, block_size, extent, order, "swizzle")


@dataclass
class Case:
    """A batch over a pool whose pages are shuffled and whose unwritten slots are NaN."""

    layout: Layout
    query_dtype: torch.dtype
    group: int
    q_lens: list[int]
    kv_lens: list[int]
    seed: int = 0
    rest: int = 2  # rows of the query that belong to no sequence
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        self.generator = torch.Generator().manual_seed(self.seed)
        self.options = {"softmax_scale": self.layout.head_size**-0.5, **self.options}
        pages = [-(-length // self.layout.page_tokens) for length in self.kv_lens]
        free = torch.randperm(sum(pages) + 2, generator=self.generator).int()
        self.cache = torch.full(self.layout.cache_shape(len(free)), torch.nan).to(self.layout.dtype)
        self.table = torch.full((len(pages), max(pages) + 1), STALE, dtype=torch.int32)
        for b, count in enumerate(pages):
            self.table[b, :count], free = free[:count], free[count:]
            self.fill(b, self.kv_lens[b])
        self.cu_seqlens_q = torch.tensor([0, *torch.tensor(self.q_lens).cumsum(0)], dtype=torch.int32)
        total = int(self.cu_seqlens_q[-1]) + self.rest
        self.query = self.normal(total, self.group * self.layout.num_kv_heads, self.layout.head_size)

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.generator).to(self.query_dtype)

    def fill(self, b, length):
        token, size = torch.arange(length), self.layout.page_tokens
        slots = self.table[b].long()[token // size] * size + token % size
        heads, scales = self.layout.num_kv_heads, [self.options.get(name, 1.0) for name in ("k_scale", "v_scale")]
        rows = self.normal(length, heads, self.layout.head_size), self.normal(length, heads, self.layout.head_size_v)
        spec.append(*rows, self.cache, slots, self.layout, *scales)

    def run(self, attend, **more):
        lens = torch.tensor(self.kv_lens, dtype=torch.int32)
        arguments = self.query, self.cache, self.table, self.cu_seqlens_q, lens, self.layout
        return attend(*arguments, **self.options, **more)


def check(case, seed=1, completion=LAZY, sm_count=7, arch=90):
    expected = case.run(spec.attend)
    with emulated(seed=seed, completion=completion, sm_count=sm_count, arch=arch) as emulation:
        assert emulation.backend("attend", case.layout).startswith("CUDA")
        found = case.run(ops.attend, return_lse=True)
    tolerance = TOLERANCE[case.query_dtype]
    torch.testing.assert_close(found.out.float(), expected.out.float(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found.lse, expected.lse, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("completion", [EAGER, LAZY, RANDOM])
@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("group", [1, 4, 8, 16])
def test_all_lengths_in_one_batch(dtype, group, completion):
    heads = 2 if group < 8 else 1
    q_lens = [1, 1, 5, 64, 1, 3, 70, 1, 2]
    case = Case(layout(dtype, 128, heads=heads), dtype, group, q_lens, list(LENGTHS), seed=group)
    for seed in (1, 2, 3):
        check(case, seed, completion)


SIZES = [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)]
POOLS = [
    *(layout(dtype, *size, block, heads=1) for dtype in (FP16, BF16) for size in SIZES for block in (64, 32)
      if (size[0] % 64 == 0 or block == 32)),
    *(layout(dtype, size, heads=1) for dtype in (E4M3, E5M2) for size in (64, 128, 256)),
    *(layout(FP16, 128, None, block, extent, order)
      for block in (64, 32) for extent in (2, 4) for order in ("row", "zorder")),
]  # fmt: skip


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.id)
@pytest.mark.parametrize("decode", [True, False], ids=["decode", "mixed"])
def test_every_pool_that_is_served(pool, decode):
    kv_lens = [0, 1, 64, 65, 130, 200, 33]
    q_lens = [1] * 7 if decode else [0, 1, 64, 40, 1, 100, 2]
    for dtype in (FP16, BF16) if pool.dtype.itemsize == 1 else (pool.dtype,):
        scales = {"k_scale": 0.5, "v_scale": 2.0} if pool.dtype.itemsize == 1 else {}
        check(Case(pool, dtype, 3, q_lens, kv_lens, rest=0 if decode else 3, options=scales))


FEATURES = {
    "not causal": {"causal": False},
    "window": {"window_left": 70},
    "window of one": {"window_left": 0},
    "window both sides": {"causal": False, "window_left": 40, "window_right": 5},
    "window to the right": {"causal": False, "window_right": 0},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": torch.linspace(-2, 3, 8)},
    "all": {"window_left": 90, "softcap": 5.0, "sinks": torch.linspace(-2, 3, 8)},
}


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("sm_count", [1, 7, 132])
@pytest.mark.parametrize("decode", [True, False], ids=["decode", "mixed"])
def test_every_feature(feature, sm_count, decode):
    kv_lens = [0, 1, 64, 129, 300, 500, 64]
    q_lens = [1] * 7 if decode else [1, 1, 64, 3, 100, 1, 70]
    case = Case(layout(FP16, 64), FP16, 4, q_lens, kv_lens, rest=0 if decode else 1, options=FEATURES[feature])
    check(case, seed=sm_count, sm_count=sm_count)


@pytest.mark.parametrize("seed", range(60))
def test_random_batches(seed):
    generator = torch.Generator().manual_seed(1000 + seed)

    def pick(values):
        return values[int(torch.randint(len(values), (1,), generator=generator))]

    pool, batch = pick(POOLS), pick([1, 2, 5, 33])
    kv_lens = [pick([0, 1, 17, 63, 64, 65, 130]) if batch > 5 else pick([*LENGTHS[:-1], 333]) for _ in range(batch)]
    q_lens = [min(pick([0, 1, 1, 1, 2, 7, 66]), 7 if batch > 5 else 66) for _ in range(batch)]
    options = dict(pick(list(FEATURES.values())))
    group = pick([1, 2, 5, 8])
    if "sinks" in options:
        options["sinks"] = torch.randn(group * pool.num_kv_heads, generator=generator)
    dtype = pick([FP16, BF16]) if pool.dtype.itemsize == 1 else pool.dtype
    case = Case(pool, dtype, group, q_lens, kv_lens, seed=seed, rest=pick([0, 1, 9]), options=options)
    check(case, seed, pick([EAGER, LAZY, RANDOM]), pick([1, 3, 20, 132]), pick([80, 90]))


def test_splits_do_not_change_results_beyond_rounding():
    case = Case(layout(FP16, 128), FP16, 4, [1, 1], [1000, 130], rest=0)
    results = []
    for sm_count in (1, 2, 5, 40):
        with emulated(sm_count=sm_count):
            results.append(case.run(ops.attend).out.float())
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, atol=1e-3, rtol=0)


def test_the_order_of_blocks_does_not_change_a_bit():
    case = Case(layout(BF16, 128), BF16, 4, [1, 1, 40], [1000, 130, 64], rest=0)
    results = []
    for seed in (0, 1, 2):
        with emulated(seed=seed, completion=RANDOM, sm_count=5):
            results.append(case.run(ops.attend).out)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_nan_that_a_row_sees_is_not_hidden():
    case = Case(layout(FP16, 128), FP16, 1, [1, 1], [1000, 130], rest=0)
    row = torch.full((1, 2, 128), torch.nan, dtype=FP16)
    spec.append(row, row, case.cache, case.table[0, :1].long() * 64 + 5, case.layout)
    with emulated(sm_count=7):
        out = case.run(ops.attend).out
    assert out[0].isnan().all()
    assert not out[1].isnan().any()


def test_strided_queries_and_results():
    case = Case(layout(FP16, 64), FP16, 2, [1, 3, 70], [10, 64, 130], rest=0)
    wide = case.normal(len(case.query), 4, 3 * 64)
    case.query = wide[:, :, 64:128]  # as of a fused q | k | v projection
    out = torch.full((len(wide), 4, 128), 7.0, dtype=FP16)
    expected = case.run(spec.attend).out
    with emulated():
        case.run(ops.attend, out=out[:, :, :64])
    torch.testing.assert_close(out[:, :, :64], expected, atol=2e-3, rtol=2e-3)
    assert (out[:, :, 64:] == 7).all()


def test_rows_that_do_not_start_at_chunks():
    case = Case(layout(FP16, 64), FP16, 2, [1, 3, 70], [10, 64, 130], rest=0)
    case.query = torch.nn.functional.pad(case.query, (1, 0))[:, :, 1:]
    out = torch.zeros(*case.query.shape[:2], 65, dtype=FP16)[:, :, 1:]
    expected = case.run(spec.attend).out
    with emulated():
        case.run(ops.attend, out=out)
    torch.testing.assert_close(out, expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(
    ("pool", "dtype", "reason"),
    [
        (layout(FP16, 80, block_size=32), FP16, "head sizes"),
        (layout(torch.float32, 64), torch.float32, "fp16 or bf16"),
        (layout(E4M3, 192, 128), FP16, "fp8 of these sizes"),
        (Layout(FP16, 1, 64, 64), FP16, "CPU pools"),
    ],
)
def test_what_has_no_kernel_is_served_by_the_specification(pool, dtype, reason):
    case = Case(pool, dtype, 2, [1, 2], [10, 70], rest=0)
    with emulated() as emulation:
        assert reason in emulation.backend("attend", pool)
        found = case.run(ops.attend)
    assert torch.equal(found.out, case.run(spec.attend).out)
