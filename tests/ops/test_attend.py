"""attend in C++ against float64, on hostile caches, for every mask, shape, storage type and ISA level."""

import pytest
import torch

from deepseek_flash_cache import ops, spec
from tests.fixtures import (
    DTYPES,
    FP8,
    GROUPS,
    HEAD_SIZES,
    KINDS,
    ZERO,
    HostileCache,
    assert_close,
    exact_attention,
    hostile_cache,
    layout_of,
    raw,
)

pytestmark = pytest.mark.skipif(ops._C is None, reason="the extension is not built")
LEVELS = ops._C.isa_levels() if ops._C else []
SHORT_LENS = (0, 1, 33, 64, 129, 300)

MASKS = {
    "causal": {},
    "full": {"causal": False},
    "window": {"window_left": 70},
    "narrow window": {"window_left": 0},
    "two-sided window": {"causal": False, "window_left": 20, "window_right": 30},
    "right window": {"causal": False, "window_right": 0},
    "softcap": {"softcap": 3.0},
    "softcap that hardly caps": {"softcap": 1e5},
    "sinks": {"sinks": torch.linspace(-3, 30, 8)},
    "sinks, softcap, window": {"sinks": torch.linspace(-3, 3, 8), "softcap": 20.0, "window_left": 5},
}


@pytest.fixture(params=LEVELS)
def level(request):
    ops._C.force_isa(request.param)
    yield request.param
    ops._C.force_isa("")


def attend(case: HostileCache, **options):
    scale = case.layout.head_size**-0.5
    return ops.attend(*case.tensors, case.layout, softmax_scale=scale, return_lse=True, **case.scales, **options)


# Bf16 dot products round the weights too: 2^-9 of each, added up over V of size 1 (measured below 3e-3).
PAIRED_ATOL = 6e-3


def check(case: HostileCache, **options) -> None:
    got = attend(case, **options)
    out, lse = exact_attention(case, case.layout.head_size**-0.5, **options)
    assert_close(got.out, out, atol=PAIRED_ATOL if case.layout.tile_format == "paired" else 0.0)
    assert_close(got.lse, lse, torch.float32)


def paired(head_sizes: tuple[int, int] = (64, 64), **options):
    return layout_of(torch.bfloat16, head_sizes=head_sizes, tile_format="paired", **options)


@pytest.mark.parametrize("mask", MASKS)
def test_masks(level, mask):
    check(hostile_cache(layout_of()), **MASKS[mask])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_storage_types(level, dtype):
    scales = {"k_scale": 0.04, "v_scale": 1.7} if dtype in FP8 else None
    check(hostile_cache(layout_of(dtype), SHORT_LENS, scales=scales))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_sizes", [*HEAD_SIZES, (24, 40), (576, 512)], ids=str)
def test_head_sizes(level, head_sizes, dtype):
    check(hostile_cache(layout_of(dtype, 1, head_sizes), SHORT_LENS))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("head_sizes", HEAD_SIZES, ids=str)
@pytest.mark.slow
def test_paired_tiles(level, head_sizes, mask):
    check(hostile_cache(paired(head_sizes)), **MASKS[mask])


@pytest.mark.parametrize("rows", [1, 4, 5, 97])
@pytest.mark.parametrize("pages", [{"block_size": 32}, {"block_size": 32, "extent": 2}, {"extent": 4}], ids=str)
def test_paired_rows_and_pages(level, pages, rows):
    check(hostile_cache(paired((128, 128), **pages), (700,), (rows,)), window_left=333)


def test_paired_tiles_serve_other_query_types(level):
    case = hostile_cache(paired(), SHORT_LENS)
    case.query = case.query.float()
    check(case)


@pytest.mark.parametrize("tile_order", ["row", "zorder"])
@pytest.mark.parametrize("extent", [1, 2, 4])
@pytest.mark.parametrize("block_size", [32, 64])
def test_pages(tile_order, extent, block_size):
    layout = layout_of(head_sizes=(192, 128), block_size=block_size, extent=extent, tile_order=tile_order)
    check(hostile_cache(layout))


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13, 96, 97, 200])
@pytest.mark.parametrize("group", GROUPS)
def test_packed_rows(level, group, rows):
    check(hostile_cache(layout_of(kv_heads=1), (250,), (rows,), group))


@pytest.mark.parametrize("query_dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_fp8_storage_serves_any_query_type(query_dtype):
    case = hostile_cache(layout_of(torch.float8_e4m3fn), SHORT_LENS)
    case.query = case.query.to(query_dtype)
    check(case)


def test_long_histories_are_cut_into_chunks(level):
    check(hostile_cache(layout_of(kv_heads=1), (5000, 1024, 1025, 2048), (1, 2, 3, 1)))
    check(hostile_cache(layout_of(kv_heads=1), (5000, 3000), (1, 2)), window_left=1500)


@pytest.mark.slow
def test_very_long_histories_are_cut_into_few_chunks():
    check(hostile_cache(layout_of(kv_heads=1), (40_000, 16_385), (1, 1)))


def test_results_do_not_depend_on_the_number_of_threads():
    case = hostile_cache(layout_of(), (4000, 1000, 65), (1, 100, 3))
    threads = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(attend(case))
    torch.set_num_threads(threads)
    for other in results[1:]:
        assert torch.equal(raw(results[0].out), raw(other.out))
        assert torch.equal(raw(results[0].lse), raw(other.lse))


@pytest.mark.parametrize(("dtype", "tile_format"), [kind for kind in KINDS if kind[1] != "swizzle"], ids=str)
@pytest.mark.parametrize("head_sizes", [(80, 80), (96, 96)], ids=str)
@pytest.mark.parametrize("mask", ["causal", "two-sided window", "sinks, softcap, window"])
@pytest.mark.slow
def test_unread_slots_never_change_a_bit(level, mask, head_sizes, dtype, tile_format):
    layout = layout_of(dtype, head_sizes=head_sizes, tile_format=tile_format)
    results = [attend(hostile_cache(layout, SHORT_LENS, filling=f), **MASKS[mask]) for f in (-1, ZERO)]
    assert torch.equal(raw(results[0].out), raw(results[1].out))
    assert torch.equal(raw(results[0].lse), raw(results[1].lse))


def test_keys_before_the_window_are_never_read():
    case = hostile_cache(layout_of(), (200,), (2,))
    before = attend(case, window_left=60)
    nan = torch.full((100, 2, 64), torch.nan)
    spec.append(nan, nan, case.cache, case.block_table[0, 0].long() * 64 + torch.arange(64), case.layout)
    spec.append(nan, nan, case.cache, case.block_table[0, 1].long() * 64 + torch.arange(64), case.layout)
    assert torch.equal(before.out, attend(case, window_left=60).out)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_specification(dtype):
    case = hostile_cache(layout_of(dtype), SHORT_LENS)
    got = attend(case)
    expected = spec.attend(*case.tensors, case.layout, softmax_scale=0.125)
    assert_close(got.out, expected.out.double())
    assert_close(got.lse, expected.lse.double(), torch.float32)


@pytest.mark.parametrize("tile_format", ["linear", "swizzle"])
def test_statistics_and_swizzled_pools_use_the_specification(tile_format):
    case = hostile_cache(layout_of(tile_format=tile_format), SHORT_LENS)
    expected = spec.attend(*case.tensors, case.layout, softmax_scale=0.125, top_tokens=8)
    got = attend(case, top_tokens=8)
    for name in ("out", "lse", "entropy", "top_mass"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name


def test_weights_are_exact_over_the_whole_range(level):
    """exp2: with V = 1 for key 1 and 0 for key 0, out is a logistic function of the score's difference."""
    layout = layout_of(kv_heads=1)
    cache = torch.zeros(layout.cache_shape(1))
    key, value = torch.zeros(2, 1, 64), torch.zeros(2, 1, 64)
    key[1, 0, 0] = value[1, 0, 0] = 1
    ops.append(key, value, cache, torch.arange(2), layout)
    query = torch.zeros(1001, 1, 64)
    query[:, 0, 0] = torch.linspace(-80, 80, 1001)
    starts, lens = torch.arange(1002).int(), torch.full((1001,), 2).int()
    table = torch.zeros(1001, 1, dtype=torch.int32)
    got = ops.attend(query, cache, table, starts, lens, layout, softmax_scale=1.0)
    expected = torch.sigmoid(query[:, 0, 0].double())
    # The score itself is rounded to fp32 in base 2: 80 / ln 2 = 115, half a unit of which is 4e-6.
    torch.testing.assert_close(got.out[:, 0, 0].double(), expected, rtol=6e-6, atol=1e-37)


def test_rows_of_no_sequence_are_cleared():
    case = hostile_cache(layout_of(), (65,), (3,))
    case.query = torch.cat([case.query, torch.full_like(case.query, torch.nan)])
    got = attend(case)
    assert (got.out[3:] == 0).all()
    assert (got.lse[:, 3:] == -torch.inf).all()


def test_out_may_be_a_strided_view():
    case = hostile_cache(layout_of(), SHORT_LENS)
    wide = torch.full((case.query.shape[0], 9, 72), 7.0)
    got = attend(case, out=wide[:, :8, :64])
    assert torch.equal(got.out, attend(case).out)
    assert (wide[:, 8] == 7).all() and (wide[:, :, 64:] == 7).all()


def test_nothing_at_all():
    case = hostile_cache(layout_of(), (64,), (1,))
    table, none = torch.zeros(0, 0, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    got = ops.attend(
        case.query[:0], case.cache, table, torch.zeros(1, dtype=torch.int32), none, case.layout, softmax_scale=1.0
    )
    assert got.out.shape == (0, 8, 64)
