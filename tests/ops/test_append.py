"""append in C++ writes the same bytes as the specification, and no others."""

import pytest
import torch

from deepseek_flash_cache import ops, spec
from tests.fixtures import FP8, KINDS, compute_dtype, empty_cache, layout_of, raw, strided_rows

LAYOUTS = [
    layout_of(dtype, 3, sizes, extent=extent, tile_order=order, tile_format=tile_format)
    for dtype, tile_format in KINDS
    for sizes in ((64, 64), (80, 112), (192, 128))
    for extent, order in ((1, "row"), (4, "zorder"))
]


def appended(append, layout, slots, key, value, **scales):
    cache = empty_cache(layout, 3)
    append(key, value, cache, slots, layout, **scales)
    return raw(cache)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.id)
def test_same_bytes_as_the_specification(layout):
    random = torch.Generator().manual_seed(1)
    dtype = compute_dtype(layout)
    key = strided_rows(40, 3, layout.head_size, dtype, random)
    value = strided_rows(40, 3, layout.head_size_v, dtype, random)
    slots = torch.randperm(3 * layout.page_tokens, generator=random)[:40]
    slots[::7] = -1
    slots[5] = slots[20] = slots[33]  # the last row wins
    scales = {"k_scale": 0.03, "v_scale": 2.5} if layout.dtype in FP8 else {}
    results = [appended(append, layout, slots, key, value, **scales) for append in (ops.append, spec.append)]
    assert torch.equal(*results)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.id)
def test_neighbours_repeats_and_gaps(layout):
    """Rows that fill a pair of slots are written together: order and skips must not change what is there."""
    slots = torch.tensor([0, 1, 2, 3, 3, -1, 6, 7, 5, 4, 9, 10, 10, 11, layout.page_tokens - 1, layout.page_tokens])
    random = torch.Generator().manual_seed(4)
    dtype = compute_dtype(layout)
    key = strided_rows(len(slots), 3, layout.head_size, dtype, random)
    value = strided_rows(len(slots), 3, layout.head_size_v, dtype, random)
    assert torch.equal(*[appended(append, layout, slots, key, value) for append in (ops.append, spec.append)])


@pytest.mark.parametrize("storage", FP8, ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_fp8_rounding_is_that_of_the_specification(storage, source):
    """Every 16-bit pattern, and fp32 values around every rounding boundary."""
    if source == torch.float32:
        codes = torch.arange(256, dtype=torch.uint8).view(storage).float()
        middle = (codes[:-1] + codes[1:]) / 2
        values = torch.cat([codes, middle, torch.nextafter(middle, middle + 1), torch.nextafter(middle, middle - 1)])
        values = torch.cat([values, values * 1.0001, torch.tensor([1e38, -1e38, torch.inf, -torch.inf, 1e-40])])
    else:
        values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(source)
    values = torch.cat([values, values.new_zeros(-len(values) % 64)])
    rows = values.view(-1, 1, 64)
    layout = layout_of(storage, 1)
    for scale in (1.0, 0.3, 7.0):
        pages = ops.pack(rows, rows, layout, scale, scale)
        key, _ = ops.unpack(pages, len(rows), layout)
        assert torch.equal(raw(key), raw(spec.stored(rows, storage, scale)))


def test_no_rows():
    layout = layout_of()
    rows, slots = torch.zeros(0, 2, 64), torch.zeros(0, dtype=torch.int64)
    assert (appended(ops.append, layout, slots, rows, rows) == -1).all()


def test_a_large_append_is_the_same_with_any_number_of_threads():
    layout = layout_of(torch.bfloat16, 4)
    key = torch.randn(4000, 4, 64).bfloat16()
    slots = torch.randint(0, 3 * 64, (4000,))
    threads, results = torch.get_num_threads(), []
    for count in (1, 3):
        torch.set_num_threads(count)
        results.append(appended(ops.append, layout, slots, key, key))
    torch.set_num_threads(threads)
    assert torch.equal(*results)
    assert torch.equal(results[0], appended(spec.append, layout, slots, key, key))


def test_strided_slots():
    layout = layout_of()
    rows = torch.randn(5, 2, 64)
    slots = torch.tensor([3, 0, 9, 0, 70, 0, 1, 0, 2, 0])[::2]
    results = [appended(append, layout, slots, rows, rows) for append in (ops.append, spec.append)]
    assert torch.equal(*results)
