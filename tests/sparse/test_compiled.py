"""The compiled operations of sparse decode against the specification, on every ISA level."""

import math

import pytest
import torch

from deepseek_flash_cache import spec
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.ops import sparse as ops
from deepseek_flash_cache.ops.binary import _C
from deepseek_flash_cache.sparse import gate_named
from deepseek_flash_cache.spec import selection
from tests.sparse.pools import make_pool

pytestmark = pytest.mark.skipif(_C is None, reason="the C++ extension is not built")
GATE = gate_named("sketch2")
LENGTHS = [1, 63, 64, 65, 127, 128, 129, 300, 1000]
LAYOUTS = [
    Layout(torch.float32, 2, 64, 64),
    Layout(torch.float32, 2, 80, 80, 32, 2),
    Layout(torch.bfloat16, 2, 128, 128, tile_format="paired"),
    Layout(torch.bfloat16, 1, 192, 128, 64, 2, "zorder"),
    Layout(torch.float16, 3, 96, 96, 32, 2, "zorder", "swizzle"),
    Layout(torch.float16, 1, 256, 256, 64, 4),
    Layout(torch.float8_e4m3fn, 2, 128, 128),
]


@pytest.fixture(params=_C.isa_levels() if _C else [])
def isa(request):
    _C.force_isa(request.param)
    yield request.param
    _C.force_isa("")


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.id)
def test_records_are_equal_byte_for_byte(isa, layout):
    pool = make_pool(layout, LENGTHS, GATE, k_scale=0.5 if layout.dtype.itemsize == 1 else 1.0)
    side = torch.full_like(pool.side, 255)
    ops.summarise(pool.cache, side, pool.slots, layout, "sketch2", pool.k_scale)
    assert torch.equal(side, pool.side)


@pytest.mark.parametrize("spoil", [math.nan, math.inf, -math.inf, 1e6])
def test_spoiled_heads_are_marked(isa, spoil):
    layout = LAYOUTS[0]
    pool = make_pool(layout, [128], GATE)
    row = torch.randn(1, 2, 64)
    row[0, 1, 7] = spoil
    spec.append(row, row, pool.cache, pool.slots[5:6], layout)
    ops.summarise(pool.cache, pool.side, pool.slots, layout, "sketch2")
    mass = ops.score(torch.randn(1, 4, 64), *pool.arguments, layout, "sketch2", 128, softmax_scale=0.1)
    assert mass[0].isnan().all(dim=-1).tolist() == [False, True]
    assert not mass[0, 0].isnan().any()
    chosen = ops.select(mass, pool.kv_lens, torch.tensor([100], dtype=torch.int32), 100)
    assert chosen.fell_back.tolist() == [[False, True]]
    assert chosen.counts.tolist() == [[100, 128]]


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.id)
def test_scores_equal_the_specification(isa, layout, group, softcap):
    pool = make_pool(layout, LENGTHS, GATE, k_scale=0.5 if layout.dtype.itemsize == 1 else 1.0)
    dtype = torch.bfloat16 if layout.dtype.itemsize == 1 else layout.dtype
    query = torch.randn(len(LENGTHS), group * layout.num_kv_heads, layout.head_size).to(dtype)
    options = {"softmax_scale": 0.3, "softcap": softcap, "k_scale": pool.k_scale}
    expected = selection.score(query, *pool.arguments, layout, GATE, **options)
    found = ops.score(query, *pool.arguments, layout, "sketch2", 1000, **options)
    for b, length in enumerate(LENGTHS):
        torch.testing.assert_close(found[b, :, :length], expected[b, :, :length], rtol=3e-4, atol=1e-9)


def test_the_cache_may_hold_anything_past_the_end(isa):
    layout = LAYOUTS[2]
    pool = make_pool(layout, LENGTHS, GATE)
    query = torch.randn(len(LENGTHS), 8, 128).bfloat16()
    mass = ops.score(query, *pool.arguments, layout, "sketch2", 1000, softmax_scale=0.1)
    for b, length in enumerate(LENGTHS):
        assert not mass[b, :, :length].isnan().any()


@pytest.mark.parametrize("seed", range(20))
def test_selection_equals_the_specification(seed):
    generator = torch.Generator().manual_seed(seed)
    lens = torch.randint(1, 700, (5,), generator=generator, dtype=torch.int32)
    mass = torch.rand(5, 3, 700, generator=generator) ** 20
    if seed % 3 == 0:
        mass = (mass * 4).round() / 4  # many ties
    if seed % 5 == 0:
        mass[:] = 0.0
    if seed % 4 == 0:
        mass[2, 1, 0] = math.nan
    mass /= mass.nan_to_num().sum(dim=-1, keepdim=True).clamp(min=1.0)
    for b, length in enumerate(lens):
        mass[b, :, length:] = math.nan  # is not read
    budgets = torch.randint(1, 400, (5,), generator=generator, dtype=torch.int32)
    protect = torch.rand(5, 700, generator=generator) < 0.05 if seed % 2 else None
    expected = selection.select(mass, lens, budgets, 400, protect)
    found = ops.select(mass, lens, budgets, 400, protect)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.counts, expected.counts)
    assert torch.equal(found.fell_back, expected.fell_back)
    torch.testing.assert_close(found.missed_mass, expected.missed_mass, atol=1e-5, rtol=0)


def test_threads_do_not_change_scores():
    layout = LAYOUTS[2]
    pool = make_pool(layout, LENGTHS, GATE)
    query, results, threads = torch.randn(len(LENGTHS), 8, 128).bfloat16(), [], torch.get_num_threads()
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        results.append(ops.score(query, *pool.arguments, layout, "sketch2", 1000, softmax_scale=0.1))
    torch.set_num_threads(threads)
    for b, length in enumerate(LENGTHS):
        assert all(torch.equal(results[0][b, :, :length], other[b, :, :length]) for other in results[1:])


def test_a_table_entry_outside_the_pool_is_refused():
    layout = LAYOUTS[0]
    pool = make_pool(layout, [100], GATE)
    pool.table[0, 1] = 99
    with pytest.raises(ValueError, match=r"block_table\[0, 1\]"):
        ops.score(torch.randn(1, 2, 64), *pool.arguments, layout, "sketch2", 100, softmax_scale=0.1)
