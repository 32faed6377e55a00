"""Who serves an operation on a CUDA device, and what is said where it is the specification."""

import pytest
import torch

from deepseek_flash_cache import ops
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.ops import cuda
from tests.cuda.harness import emulated
from tests.fixtures import assert_close, exact_attention, hostile_cache, layout_of

SWIZZLED = layout_of(torch.bfloat16, tile_format="swizzle")


@pytest.mark.parametrize("op", ["append", "pack", "unpack", "copy_blocks"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("tile_format", ["linear", "swizzle"])
def test_storage_is_served_for_every_dtype(op, dtype, tile_format):
    with emulated(arch=89) as emulation:
        assert emulation.backend(op, layout_of(dtype, tile_format=tile_format)) == "CUDA (sm_89)"


@pytest.mark.parametrize(
    ("op", "layout", "reason"),
    [
        ("append", layout_of(torch.bfloat16, tile_format="paired"), "paired tiles are for CPU pools"),
        ("attend", layout_of(torch.bfloat16), "its tiles are for CPU pools"),
        ("attend", layout_of(torch.float32, tile_format="swizzle"), "queries must be fp16 or bf16"),
        ("attend", layout_of(torch.float16, 2, (80, 112), tile_format="swizzle"), "not compiled for these head sizes"),
        ("attend_linear", SWIZZLED, "no CUDA kernel reads keys outside a pool yet"),
        ("attend_pages", SWIZZLED, "no CUDA kernel reads keys outside a pool yet"),
    ],
)
def test_the_reason_for_the_specification(op: str, layout: Layout, reason: str):
    with emulated() as emulation:
        assert emulation.backend(op, layout).startswith(f"spec (PyTorch): {reason}")


def test_paired_pools_are_still_served_and_that_they_are_slow_is_said_once(monkeypatch):
    layout = layout_of(torch.bfloat16, tile_format="paired")
    rows = torch.randn(5, 2, 64).bfloat16()
    monkeypatch.setattr(cuda, "_said", set())
    with emulated(), pytest.warns(UserWarning, match="specification of pack on cpu: paired tiles") as said:
        key, value = ops.unpack(ops.pack(rows, rows, layout), 5, layout)
    assert len(said) == 1
    assert torch.equal(key, rows) and torch.equal(value, rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_driver_the_reason_is_that():
    text = ops.backend("append", "cuda", SWIZZLED)
    assert text.startswith("spec (PyTorch): ") and ("no CUDA driver" in text or ops._C is None)


def test_devices_that_are_not_served():
    if ops._C is None:
        pytest.skip("the extension is not built")
    assert cuda.refusal(1, "7.0") == "GPU 1 is an sm_70; sm_80 is the oldest that is served"
    assert cuda.refusal(0, "8.7") == "GPU 0 is a Jetson (sm_87), which is not served"
    assert cuda.refusal(0, "12.1") == ""


@pytest.mark.filterwarnings("ignore:running the plain PyTorch specification")
def test_wrong_shapes_are_refused_before_a_launch():
    rows = torch.randn(5, 2, 64).bfloat16()
    cache = torch.zeros(SWIZZLED.cache_shape(1), dtype=torch.bfloat16)
    with emulated():
        with pytest.raises(ValueError, match="slot_mapping length: 6 is not accepted"):
            ops.append(rows, rows, cache, torch.arange(6), SWIZZLED)
        with pytest.raises(ValueError, match=r"key dtype: torch\.int32"):
            ops.append(rows.int(), rows.int(), cache, torch.arange(5), SWIZZLED)
        with pytest.raises(ValueError, match="k_scale"):
            ops.pack(rows, rows, SWIZZLED, 0.5)
        with pytest.raises(ValueError, match="length: 65 is not accepted"):
            ops.unpack(cache, 65, SWIZZLED)
        with pytest.raises(ValueError, match=r"pairs dtype"):
            ops.copy_blocks(cache, cache, torch.zeros(1, 2), SWIZZLED)


@pytest.mark.parametrize("hint", [0, 1, 3, 1000])
def test_a_wrong_hint_of_the_query_lengths_costs_time_only(hint):
    case = hostile_cache(layout_of(torch.float16, tile_format="swizzle"), (0, 70, 129), (1, 3, 40))
    with emulated(sm_count=2):
        got = ops.attend(*case.tensors, case.layout, softmax_scale=0.12, max_seqlen_q=hint)
    assert_close(got.out, exact_attention(case, 0.12)[0], atol=2e-3)
