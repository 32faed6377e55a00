"""Every address of every layout: a bijection, the same in C++, exact beyond 32 bits, and where the design says."""

import itertools

import pytest
import torch

from deepseek_flash_cache import ops
from deepseek_flash_cache.layout import Layout
from tests.fixtures import KINDS

needs_binary = pytest.mark.skipif(ops._C is None, reason="the extension is not built")
SIZES = [(64, 64), (128, 128), (192, 128), (576, 512), (256, 64)]
NARROW = [(32, 32), (80, 80), (96, 96), (112, 112), (16, 48), (576, 512), (64, 64)]
SHAPES = [(64, *sizes) for sizes in SIZES] + [(32, *sizes) for sizes in NARROW]
PARTS = ("k", "v")


def layouts(block_size, head_size, head_size_v, extents=(1, 2, 4, 5)):
    for (dtype, tile_format), order, extent in itertools.product(KINDS, ("row", "zorder"), extents):
        yield Layout(dtype, 2, head_size, head_size_v, block_size, extent, order, tile_format)


def cpp_index(layout: Layout, part: str) -> torch.Tensor:
    index = torch.empty(layout.page_tokens, layout.columns(part), dtype=torch.int64)
    ops._compiled(layout.id).fill_element_offsets(part, index.data_ptr())
    return index


@needs_binary
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cpp_and_python_agree_on_every_address(shape):
    for layout in layouts(*shape):
        mirror = ops._compiled(layout.id)
        for name in ("row_bytes", "tile_columns", "tile_elements", "k_tiles", "v_tiles", "page_tokens", "page_bytes"):
            assert getattr(mirror, name) == getattr(layout, name), (layout.id, name)
        for part in PARTS:
            assert torch.equal(layout.head_index(part), cpp_index(layout, part)), (layout.id, part)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_element_has_its_own_place(shape):
    for layout in layouts(*shape, extents=(1, 4)):
        index = torch.cat([layout.head_index(part).flatten() for part in PARTS])
        assert len(index.unique()) == len(index), layout.id
        assert index.min() >= 0 and index.max() < layout.head_elements, layout.id


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_index_is_made_of_single_addresses(shape):
    for layout in itertools.islice(layouts(*shape), 0, None, 3):
        for part in PARTS:
            index = layout.head_index(part)
            for token, column in ((0, 0), (layout.page_tokens - 1, layout.columns(part) - 1), (17, 9)):
                assert layout.element_offset(part, token, column) == index[token, column], layout.id


@needs_binary
@pytest.mark.parametrize("tile_format", ["linear", "swizzle"])
def test_addresses_beyond_32_bits(tile_format):
    layout = Layout(torch.bfloat16, 8, 128, 128, tile_format=tile_format)
    mirror = ops._compiled(layout.id)
    for block in (32767, 32768, 65536, 2**31, 2**40):
        for place in ((0, "k", 0, 0), (7, "v", 63, 127), (3, "k", 5, 70)):
            assert mirror.byte_offset(block, *place) == layout.byte_offset(block, *place)
    assert layout.byte_offset(65536, 0, "k", 0, 0) == 65536 * 8 * 64 * 2 * 128 * 2 > 2**32


def test_a_linear_bf16_page_lies_as_documented():
    layout = Layout(torch.bfloat16, 8, 128, 128)
    assert layout.head_elements * 2 == 32 << 10  # 2 K tiles and 2 V tiles of 8 KB
    assert layout.byte_offset(0, 0, "k", 1, 0) == 128
    assert layout.byte_offset(0, 0, "k", 0, 64) == 8192
    assert layout.byte_offset(0, 0, "v", 0, 0) == 2 * 8192
    assert layout.byte_offset(0, 1, "k", 0, 0) == 4 * 8192


def test_swizzled_rows_spread_over_all_banks():
    """The 8 chunks of one column in 8 consecutive rows fall into 8 different 16-byte groups of a 128-byte line."""
    layout = Layout(torch.bfloat16, 1, 64, 64, tile_format="swizzle")
    for column in range(0, 64, 8):
        assert {layout.byte_offset(0, 0, "k", row, column) // 16 % 8 for row in range(8)} == set(range(8))


@pytest.mark.parametrize("layout", [next(layouts(*shape)) for shape in SHAPES], ids=lambda layout: layout.id)
def test_an_id_names_its_layout(layout):
    assert Layout.parse(layout.id) == layout
