"""The block-size policy: what auto picks, that a model's layers agree, and that a misfit is refused by name."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepseek_flash_cache.config import BLOCK_SIZE_CHOICES, LayoutPolicy, ModelShape
from deepseek_flash_cache.layout import Layout, fitting_block_sizes
from deepseek_flash_cache.layout.page import DTYPE_NAMES

HEAD_SIZES = st.integers(1, 40).map(lambda sixteens: 16 * sixteens)  # whole 16-byte chunks in every dtype
SHAPES = st.builds(
    ModelShape,
    num_layers=st.integers(1, 6),
    num_kv_heads=st.integers(1, 8),
    head_size=HEAD_SIZES,
    context_length=st.integers(1, 200_000),
    dtype=st.sampled_from(list(DTYPE_NAMES)),
    head_size_v=st.none() | HEAD_SIZES,
)


def model(context_length=8192, head_size=128, head_size_v=None, dtype=torch.bfloat16):
    return ModelShape(4, 8, head_size, context_length, dtype, head_size_v)


def sizes(policy, shape):
    return [(layout.block_size, layout.extent) for layout in policy.layouts(shape)]


def test_auto_gives_long_contexts_64_row_tiles_except_in_the_first_layers():
    assert sizes(LayoutPolicy(), model()) == [(32, 2), (32, 2), (64, 1), (64, 1)]


@pytest.mark.parametrize(("context_length", "page_tokens"), [(1, 32), (1024, 32), (1025, 64), (131_072, 64)])
def test_auto_gives_short_contexts_32_token_pages(context_length, page_tokens):
    assert LayoutPolicy().page_tokens(model(context_length)) == page_tokens


@pytest.mark.parametrize(("head_size", "head_size_v"), [(96, None), (128, 96), (80, 128), (16, 16)])
def test_auto_gives_head_sizes_not_divisible_by_64_32_row_tiles(head_size, head_size_v):
    assert set(sizes(LayoutPolicy(), model(8192, head_size, head_size_v))) == {(32, 2)}


def test_the_thresholds_of_auto_are_configuration():
    policy = LayoutPolicy(short_context=100, shallow_layers=0)
    assert sizes(policy, model(context_length=101)) == [(64, 1)] * 4
    assert sizes(policy, model(context_length=100)) == [(32, 1)] * 4


@pytest.mark.parametrize("block_size", [32, 64])
@pytest.mark.parametrize("context_length", [1, 8192])
def test_an_explicit_size_that_fits_is_used_everywhere(block_size, context_length):
    assert sizes(LayoutPolicy(block_size), model(context_length)) == [(block_size, 1)] * 4


@pytest.mark.parametrize(("head_size", "head_size_v"), [(96, None), (128, 96)])
def test_an_explicit_size_that_does_not_fit_is_refused_naming_those_that_do(head_size, head_size_v):
    with pytest.raises(ValueError, match=r"block_size: 64 does not fit head sizes .*96; choose one of auto, 32$"):
        LayoutPolicy(64).layouts(model(8192, head_size, head_size_v))


@pytest.mark.parametrize("block_size", [0, 16, 48, 128, "64", None])
def test_an_unknown_block_size_is_refused_at_construction(block_size):
    with pytest.raises(ValueError, match=r"block_size: .* is not accepted; choose one of auto, 32, 64$"):
        LayoutPolicy(block_size)


def test_the_policy_passes_tile_order_and_format_on():
    layout = LayoutPolicy(tile_order="zorder", tile_format="swizzle").layouts(model())[0]
    assert (layout.tile_order, layout.tile_format) == ("zorder", "swizzle")


@pytest.mark.parametrize(
    ("dtype", "device", "tile_format"),
    [(torch.float32, "cpu", "linear"), (torch.bfloat16, "cpu", "paired"), (torch.bfloat16, "cuda", "swizzle")],
)
def test_auto_picks_the_tile_format_of_the_device(dtype, device, tile_format):
    layouts = LayoutPolicy().layouts(model(dtype=dtype), device)
    assert {layout.tile_format for layout in layouts} == {tile_format}


def test_one_layer_is_answered_without_making_all():
    deep = ModelShape(10**9, 8, 128, 8192, torch.bfloat16)
    assert LayoutPolicy().layer_layout(deep, 10**9 - 1) == LayoutPolicy().layouts(model())[-1]


@given(SHAPES, st.sampled_from(BLOCK_SIZE_CHOICES))
def test_all_layers_of_a_model_share_one_page_size(shape, block_size):
    policy = LayoutPolicy(block_size)
    fitting = fitting_block_sizes(shape.head_size, shape.value_size)
    if block_size not in ("auto", *fitting):
        with pytest.raises(ValueError, match="block_size"):
            policy.layouts(shape)
        return
    layouts = policy.layouts(shape)
    assert len(layouts) == shape.num_layers
    assert {layout.page_tokens for layout in layouts} == {policy.page_tokens(shape)}
    assert all(layout.block_size in fitting for layout in layouts)
    assert all(Layout.parse(layout.id) == layout for layout in layouts)


@given(SHAPES)
def test_no_bytes_are_lost_beyond_the_last_column_tile(shape):
    for layout in LayoutPolicy().layouts(shape):
        for tiles, columns in ((layout.k_tiles, layout.head_size), (layout.v_tiles, layout.head_size_v)):
            assert 0 <= tiles * layout.tile_columns - columns < layout.tile_columns
        if layout.block_size == 64:
            assert layout.page_bytes == layout.page_tokens * layout.num_kv_heads * shape.dtype.itemsize * (
                layout.head_size + layout.head_size_v
            )
