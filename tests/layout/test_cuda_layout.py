"""Device code agrees with Python on every address. Compiles wherever nvcc is; launches where a GPU is."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from deepseek_flash_cache.layout import Layout

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.fixture(scope="module")
def compiler() -> str:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc was not found")
    return nvcc


def compile_cubin(nvcc: str, arch: str, folder: Path) -> Path:
    target = folder / f"layout_addresses.{arch}.cubin"
    source = ROOT / "csrc" / "cuda" / "layout_addresses.cu"
    subprocess.run(
        [nvcc, "-cubin", f"-arch={arch}", "-std=c++17", f"-I{ROOT / 'csrc'}", source, "-o", target], check=True
    )
    return target


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_the_layout_compiles_for_gpus(compiler, arch, tmp_path):
    assert compile_cubin(compiler, arch, tmp_path).stat().st_size > 0


def expected_addresses(layout: Layout) -> torch.Tensor:
    parts = []
    for part in ("k", "v"):
        runs = (BLOCK * layout.num_kv_heads + torch.arange(layout.num_kv_heads)) * layout.head_elements
        parts.append((runs[:, None, None] + layout.head_index(part)).flatten() * layout.dtype.itemsize)
    return torch.cat(parts)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.id)
def test_device_addresses(compiler, layout, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU, or torch was built without CUDA")
    major, minor = torch.cuda.get_device_capability()
    cubin = compile_cubin(compiler, f"sm_{major}{minor}", tmp_path)
    expected = expected_addresses(layout)
    addresses = torch.full_like(expected, -1, device="cuda")
    launch(cubin, layout, addresses)
    assert torch.equal(addresses.cpu(), expected)


def launch(cubin: Path, layout: Layout, addresses: torch.Tensor) -> None:
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(driver, name)(*arguments)
        assert code == 0, f"{name} failed with CUDA error {code}"

    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), cubin.read_bytes())
    call("cuModuleGetFunction", ctypes.byref(function), module, b"dfc_layout_addresses")
    sizes = (layout.num_kv_heads, layout.head_size, layout.head_size_v, layout.block_size, layout.extent)
    flags = layout.tile_order == "zorder", ("linear", "paired", "swizzle").index(layout.tile_format)
    values = (
        LayoutSpec(layout.dtype.itemsize, *sizes, *flags),
        ctypes.c_int64(BLOCK),
        ctypes.c_void_p(addresses.data_ptr()),
    )
    pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    call("cuLaunchKernel", function, 64, 1, 1, 256, 1, 1, 0, stream, pointers, None)
    torch.cuda.synchronize()
    call("cuModuleUnload", module)
