"""Device code agrees with Python on every address: in the emulator, and on the GPU where there is one."""

import ctypes

import pytest
import torch

from deepseek_flash_cache import ops
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.ops.binary import FORMAT_CODES
from tests.cuda import harness, tools

LAYOUTS = [
    Layout(torch.bfloat16, 2, 128, 128, tile_format="swizzle"),
    Layout(torch.float32, 3, 192, 64, 64, 4, "zorder"),
    Layout(torch.float8_e4m3fn, 1, 576, 512, 64, 2, "zorder", "swizzle"),
    Layout(torch.float16, 2, 80, 112, 32, 5, "zorder", "swizzle"),
]
BLOCK = 65536  # addresses beyond 32 bits


class LayoutSpec(ctypes.Structure):
    """csrc/layout/layout.h"""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("item", "heads", "head_size", "head_size_v", "block_size", "extent")),
        ("zorder", ctypes.c_bool),
        ("format", ctypes.c_int),
    ]


class AddressArgs(ctypes.Structure):
    """csrc/cuda/storage/addresses.h"""

    _fields_ = [("spec", LayoutSpec), ("block", ctypes.c_int64), ("addresses", ctypes.c_void_p)]


def expected_addresses(layout: Layout) -> torch.Tensor:
    parts = []
    for part in ("k", "v"):
        runs = (BLOCK * layout.num_kv_heads + torch.arange(layout.num_kv_heads)) * layout.head_elements
        parts.append((runs[:, None, None] + layout.head_index(part)).flatten() * layout.dtype.itemsize)
    return torch.cat(parts)


def launch(launcher: object, layout: Layout, addresses: torch.Tensor, stream: int = 0) -> None:
    sizes = (layout.num_kv_heads, layout.head_size, layout.head_size_v, layout.block_size, layout.extent)
    spec = LayoutSpec(layout.dtype.itemsize, *sizes, layout.tile_order == "zorder", FORMAT_CODES[layout.tile_format])
    args = bytes(AddressArgs(spec, BLOCK, addresses.data_ptr()))
    ops._C.cuda_launch(launcher, stream, "layout_addresses", (64, 1, 1), 256, 0, args)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.id)
def test_addresses_of_device_code(layout):
    expected = expected_addresses(layout)
    addresses = torch.full_like(expected, -1)
    with harness.emulated() as emulation:
        launch(emulation.launcher, layout, addresses)
    assert torch.equal(addresses, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.id)
def test_addresses_on_the_gpu(layout, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU, or torch was built without CUDA")
    major, minor = torch.cuda.get_device_capability()
    job = tools.cubins.Job("layout_addresses", tools.cubins.arch_of_device(f"{major}.{minor}"))
    tools.compiler().compile(job.kernel, job.arch, tmp_path / job.file)
    expected = expected_addresses(layout)
    addresses = torch.full_like(expected, -1, device="cuda")
    launcher = ops._C.open_driver(ops.cuda.DRIVER, 0, str(tmp_path))
    launch(launcher, layout, addresses, torch.cuda.current_stream().cuda_stream)
    assert torch.equal(addresses.cpu(), expected)
