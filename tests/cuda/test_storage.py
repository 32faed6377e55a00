"""append, pack, unpack and copy_blocks in CUDA kernels store the same bytes as the specification."""

import pytest
import torch

from deepseek_flash_cache import ops, spec
from tests.cuda.harness import EAGER, LAZY, emulated
from tests.fixtures import DTYPES, FP8, compute_dtype, empty_cache, layout_of, raw, strided_rows
from tests.ops.test_copies import PAIRS, numbered_pool

SHAPES = (((64, 64), 1, "row"), ((80, 112), 4, "zorder"), ((192, 128), 2, "zorder"), ((256, 256), 4, "row"))
LAYOUTS = [
    layout_of(dtype, 3, sizes, extent=extent, tile_order=order, tile_format=tile_format)
    for dtype in DTYPES
    for sizes, extent, order in SHAPES
    for tile_format in ("swizzle", "linear")
]
LAYOUTS += [layout_of(torch.float16, 2, (128, 128), block_size=32, tile_format="swizzle")]
LAYOUTS += [layout_of(torch.bfloat16, 1, (576, 512), tile_format="swizzle")]


def same(got, want, dtype):
    """Equal bytes; fp8 NaN may differ in sign: the hardware's conversion has one NaN."""
    if dtype in FP8:
        numbers = got.float().nan_to_num(1e30), want.float().nan_to_num(1e30)
        return torch.equal(*numbers)
    return torch.equal(raw(got), raw(want))


def appended(append, layout, slots, key, value, **scales):
    cache = empty_cache(layout, 3)
    append(key, value, cache, slots, layout, **scales)
    return cache


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.id)
def test_append_is_that_of_the_specification(layout):
    random = torch.Generator().manual_seed(1)
    dtype = compute_dtype(layout)
    key = strided_rows(40, layout.num_kv_heads, layout.head_size, dtype, random)
    value = strided_rows(40, layout.num_kv_heads, layout.head_size_v, dtype, random)
    slots = torch.randperm(3 * layout.page_tokens, generator=random)[:38]
    slots[::7] = -1
    scales = {"k_scale": 0.03, "v_scale": 2.5} if layout.dtype in FP8 else {}
    want = appended(spec.append, layout, slots, key, value, **scales)
    for seed, completion, sm_count in ((0, LAZY, 132), (5, EAGER, 1)):
        with emulated(seed, completion, sm_count=sm_count) as emulation:
            assert emulation.backend("append", layout) == "CUDA (sm_90)"
            got = appended(ops.append, layout, slots, key, value, **scales)
        assert same(got, want, layout.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, *FP8], ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_rows_at_odd_addresses(dtype, source):
    """Strides that are no multiple of 16 bytes: the rows are read element by element."""
    layout = layout_of(dtype, 2, (64, 128), tile_format="swizzle")
    if dtype not in FP8 and source != dtype:
        pytest.skip("16-bit pools take rows of their own dtype")
    wide = torch.randn(9, 2 * 65 + 3, generator=torch.Generator().manual_seed(2)).to(source)
    key = wide.as_strided((9, 2, 64), (133, 65, 1), 1)
    value = torch.randn(9, 2, 129).to(source)[:, :, 1:]
    slots = torch.arange(60, 69)
    want = appended(spec.append, layout, slots, key, value)
    with emulated():
        assert same(appended(ops.append, layout, slots, key, value), want, dtype)


@pytest.mark.parametrize("storage", FP8, ids=str)
@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16], ids=str)
def test_every_16_bit_pattern_is_rounded_to_fp8_like_the_specification(storage, source):
    values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(source).view(-1, 4, 256)
    layout = layout_of(storage, 4, (256, 256), tile_format="swizzle")
    for scale in (1.0, 0.3):
        with emulated(races=False):
            pages = ops.pack(values, values, layout, scale, scale)
        key, value = spec.unpack(pages, len(values), layout)
        for got in (key, value):
            assert same(got, spec.stored(values, storage, scale), storage)


def test_fp32_values_around_every_rounding_boundary():
    for storage in FP8:
        codes = torch.arange(256, dtype=torch.uint8).view(storage).float()
        middle = (codes[:-1] + codes[1:]) / 2
        near = [codes, middle, torch.nextafter(middle, middle + 1), torch.nextafter(middle, middle - 1)]
        values = torch.cat([*near, torch.tensor([1e38, -1e38, torch.inf, -torch.inf, 1e-40])])
        rows = torch.cat([values, values.new_zeros(-len(values) % 64)]).view(-1, 1, 64)
        layout = layout_of(storage, 1, tile_format="swizzle")
        with emulated():
            pages = ops.pack(rows, rows, layout, 0.7, 1.0)
        key, value = spec.unpack(pages, len(rows), layout)
        assert same(key, spec.stored(rows, storage, 0.7), storage)
        assert same(value, spec.stored(rows, storage, 1.0), storage)


def test_slots_outside_the_pool_are_skipped():
    """Nothing can be raised on the device. The emulator refuses any access outside the pool."""
    layout = layout_of(torch.float16, tile_format="swizzle")
    key = torch.randn(6, 2, 64).half()
    slots = torch.tensor([3 * 64, -2, 5, 2**40, -(2**62), 3 * 64 - 1])
    want = appended(spec.append, layout, torch.where((slots < 192) & (slots >= 0), slots, -1), key, key)
    with emulated():
        assert same(appended(ops.append, layout, slots, key, key), want, layout.dtype)


def test_rows_that_share_a_slot_leave_one_of_them_in_every_chunk():
    """Rows that pad a batch of a CUDA graph all write to the block that nobody reads."""
    layout = layout_of(torch.float16, tile_format="swizzle")
    rows = torch.arange(1.0, 6.0)[:, None, None].expand(5, 2, 64).half().contiguous()
    with emulated(seed=3, races=False):  # that several blocks write the same bytes is what this is about
        cache = appended(ops.append, layout, torch.zeros(5, dtype=torch.int64), rows, rows)
    key, value = spec.unpack(cache, 64, layout)
    for part in (key, value):
        chunks = part[0].view(2, 8, 8)
        assert bool((chunks == chunks[..., :1]).all()) and bool(((chunks >= 1) & (chunks <= 5)).all())
        assert bool(part[1:].isnan().all())


def test_no_rows():
    layout = layout_of(torch.float16, tile_format="swizzle")
    rows, slots = torch.zeros(0, 2, 64).half(), torch.zeros(0, dtype=torch.int64)
    with emulated():
        assert (raw(appended(ops.append, layout, slots, rows, rows)) == -1).all()


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [0, 1, 64, 65, 300])
def test_pack_and_unpack(length, dtype, whole):
    layout = layout_of(dtype, 2, (192, 128), tile_order="zorder", extent=2, tile_format="swizzle")
    layout = layout.whole(length) if whole else layout
    random = torch.Generator().manual_seed(2)
    key = strided_rows(length, 2, 192, compute_dtype(layout), random)
    value = strided_rows(length, 2, 128, compute_dtype(layout), random)
    with emulated(seed=length):
        pages = ops.pack(key, value, layout)
        rows = ops.unpack(pages, length, layout)
    assert torch.equal(raw(pages), raw(spec.pack(key, value, layout)))
    for got, want in zip(rows, spec.unpack(pages, length, layout), strict=True):
        assert torch.equal(raw(got), raw(want))


@pytest.mark.parametrize("same_pool", [True, False])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", [0, 7])
def test_copy_blocks_reads_all_pages_before_it_writes(name, same_pool, seed):
    layout = layout_of(torch.bfloat16, 3, (192, 128), tile_format="swizzle")
    pairs = torch.tensor(PAIRS[name], dtype=torch.int64).view(-1, 2)
    results = []
    for copy in (ops.copy_blocks, spec.copy_blocks):
        source = numbered_pool(layout, 7)
        target = source if same_pool else numbered_pool(layout, 7, 100)
        if copy is ops.copy_blocks:
            with emulated(seed):
                copy(source, target, pairs, layout)
        else:
            copy(source, target, pairs, layout)
        results.append(raw(target).clone())
    assert torch.equal(*results)


def test_many_pairs_of_one_pool_in_any_order():
    layout = layout_of(torch.float16, 1, tile_format="swizzle")
    random = torch.Generator().manual_seed(4)
    targets = torch.randperm(90, generator=random)[:70]
    pairs = torch.stack([torch.randint(0, 90, (70,), generator=random), targets], 1)
    got, want = numbered_pool(layout, 90), numbered_pool(layout, 90)
    with emulated(seed=1):
        ops.copy_blocks(got, got, pairs, layout)
    spec.copy_blocks(want, want, pairs, layout)
    assert torch.equal(raw(got), raw(want))


def test_copy_between_overlapping_views_of_one_pool():
    layout = layout_of(torch.bfloat16, tile_format="swizzle")
    pool = numbered_pool(layout, 6)
    with emulated():
        ops.copy_blocks(pool[:4], pool[1:], torch.tensor([[0, 0], [1, 1], [2, 2]]), layout)
    assert raw(pool)[:, 0, 0, 0, 0].tolist() == [0, 0, 1, 2, 4, 5]


def test_pairs_outside_the_pools_are_skipped():
    layout = layout_of(torch.bfloat16, tile_format="swizzle")
    pool = numbered_pool(layout, 4)
    with emulated():
        ops.copy_blocks(pool, pool, torch.tensor([[0, 4], [-1, 1], [2**40, 2], [1, 3]]), layout)
    assert raw(pool)[:, 0, 0, 0, 0].tolist() == [0, 1, 2, 1]


def test_every_lane_moves_16_bytes_and_whole_sectors():
    layout = layout_of(torch.float16, 4, (128, 128), tile_format="swizzle")
    key = torch.randn(70, 4, 128).half()
    with emulated(trace=True) as emulation:
        pages = ops.pack(key, key, layout)
        ops.unpack(pages, 70, layout)
        ops.copy_blocks(pages, pages, torch.tensor([[0, 1]]), layout)
        sites = emulation.trace()
    wide = [site for site in sites if site["bytes_per_lane"] == 16]
    assert {site["kind"] for site in wide} == {"global load", "global store"}
    for site in wide:
        assert site["bytes"] == 32 * site["sectors"], site
