"""`dfc doctor`: devices, compilers and versions, what will be used and why, and what is missing.

Everything is asked of the machine itself (`/proc`, the CUDA driver, the compilers); heavy packages are asked for
their version only. torch is imported, since the operations need it.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

OPERATIONS = ("append", "attend", "score", "select", "pack", "unpack", "copy_blocks")
PACKAGES = ("deepseek-flash-cache", "torch", "transformers", "vllm", "text-generation-server")
# Level of the instruction set -> the flags of /proc/cpuinfo that it needs.
ISA_LEVELS = {
    "AVX2": ("avx2", "fma", "f16c"),
    "AVX-512": ("avx512f", "avx512bw", "avx512vl", "avx512dq"),
    "AVX-512 BF16": ("avx512_bf16",),
    "AVX-512 FP16": ("avx512_fp16",),
    "AMX BF16": ("amx_tile", "amx_bf16"),
}
OLDEST_TRANSFORMERS = (4, 56)

Report = dict[str, Any]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Show devices, compilers and versions, what will be used and why, and what is missing.

    Exits with 0 if the CPU path works and with 1 if it does not.
    """
    report = examine()
    if as_json:
        click.echo(json.dumps(report))
    else:
        _print(report)
    ctx.exit(0 if report["cpu_works"] else 1)


def examine() -> Report:
    """All that `dfc doctor` reports, as JSON-ready values."""
    _, cpu_failure = _attempt(check_cpu)
    served, _ = _attempt(operations)
    report: Report = {
        "machine": machine(),
        "gpus": gpus(),
        "compilers": {"g++": compiler_version("g++"), "nvcc": compiler_version("nvcc")},
        "versions": {"python": platform.python_version(), **{name: package_version(name) for name in PACKAGES}},
        "cpu_works": cpu_failure is None,
        "cpu_failure": cpu_failure,
        "operations": served or {},
    }
    report["missing"] = missing(report)
    return report


# The machine


def machine() -> Report:
    """Processor, instruction set levels, cores, memory and huge pages; "unknown" for what is not to be found."""
    cpuinfo = _read("/proc/cpuinfo")
    flags = set(_field(cpuinfo, "flags").split())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _field(cpuinfo, "model name") or platform.machine(),
        "isa": [level for level, needs in ISA_LEVELS.items() if flags.issuperset(needs)],
        "cores": cores,
        "memory_gib": _gib(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "huge_pages": huge_pages(),
    }


def huge_pages() -> str:
    """The kernel's transparent huge page setting: always, madvise, never or unknown."""
    setting = re.search(r"\[(\w+)\]", _read("/sys/kernel/mm/transparent_hugepage/enabled"))
    return setting[1] if setting else "unknown"


def gpus() -> list[Report]:
    """Name, compute capability and memory of every NVIDIA GPU that the driver shows; empty without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    return [_gpu(driver, ordinal) for ordinal in range(count.value)]


def _gpu(driver: ctypes.CDLL, ordinal: int) -> Report:
    device, name, memory = ctypes.c_int(0), ctypes.create_string_buffer(256), ctypes.c_size_t(0)
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        value = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    return {
        "name": name.value.decode(),
        "capability": ".".join(map(str, capability)),
        "memory_gib": _gib(memory.value),
    }


def compiler_version(command: str) -> str | None:
    """The version that `command --version` prints, or None where there is no such command."""
    if shutil.which(command) is None:
        return None
    said = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", said)
    return version[0] if version else "unknown"


def package_version(name: str) -> str | None:
    """The version of an installed distribution, or None. Imports nothing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def _gib(size: int) -> float:
    return round(size / 2**30, 1)


# The operations


def check_cpu() -> None:
    """Write three tokens on the CPU and attend to them; ValueError if the result is not torch's own attention."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from deepseek_flash_cache import ops
    from deepseek_flash_cache.layout import Layout

    layout = Layout(torch.float32, 1, 64, 64)
    rows = torch.arange(3 * 64, dtype=torch.float32).sin().view(3, 1, 64)
    cache = torch.zeros(layout.cache_shape(1))
    ops.append(rows, rows, cache, torch.arange(3), layout)
    table, starts, lengths = (torch.tensor(values, dtype=torch.int32) for values in ([[0]], [0, 3], [3]))
    attention = ops.attend(rows, cache, table, starts, lengths, layout, softmax_scale=64**-0.5)
    heads = rows.transpose(0, 1)
    expected = scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(0, 1)
    if not torch.allclose(attention.out, expected, atol=1e-4):
        raise ValueError("attention on the CPU differs from torch's")


def operations() -> dict[str, dict[str, str]]:
    """For every device and operation: the implementation that serves it, and why."""
    import torch

    from deepseek_flash_cache import ops
    from deepseek_flash_cache.layout import Layout

    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    layout = Layout(torch.bfloat16, 8, 128, 128)
    present = [name for name in OPERATIONS if hasattr(ops, name)]
    return {device: {name: str(ops.backend(name, device, layout)) for name in present} for device in devices}


def _attempt(action: Callable[[], Any]) -> tuple[Any, str | None]:
    """The result of `action` and why it failed: a doctor reports a failure instead of dying of it."""
    try:
        return action(), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


# What is missing


def missing(report: Report) -> list[dict[str, str]]:
    """What the machine lacks, what for, and the command that gets it."""
    versions, compilers = report["versions"], report["compilers"]
    cuda_torch = versions["torch"] is None or _attempt(_torch_cuda)[0] is not None
    package = Path(__file__).parent.parent
    lacks = [
        (versions["torch"] is None, "torch", "everything", "pip install torch"),
        (compilers["g++"] is None, "g++", "building the CPU kernels", "sudo apt-get install g++"),
        (not list(package.glob("_C.*")), "compiled CPU kernels", "speed: the specification runs instead", "make build"),
        (
            _older(versions["transformers"], OLDEST_TRANSFORMERS),
            f"transformers >= {'.'.join(map(str, OLDEST_TRANSFORMERS))}",
            "the transformers engine and `dfc demo`",
            "pip install 'deepseek-flash-cache[transformers,demo]'",
        ),
    ]
    if report["gpus"]:
        built = compilers["nvcc"] is not None or list(package.rglob("*.cubin"))
        lacks += [
            (not cuda_torch, "torch with CUDA", "the GPU: this torch is a CPU build", "pip install --upgrade torch"),
            (not built, "nvcc", "building the CUDA kernels", "sudo apt-get install nvidia-cuda-toolkit && make build"),
        ]
    return [{"what": what, "needed_for": use, "fix": fix} for lacking, what, use, fix in lacks if lacking]


def _torch_cuda() -> str | None:
    import torch

    return torch.version.cuda


def _older(version: str | None, oldest: tuple[int, ...]) -> bool:
    return version is None or tuple(map(int, re.findall(r"\d+", version)[: len(oldest)])) < oldest


# Text


def _print(report: Report) -> None:
    console = Console(highlight=False)
    machine, failure = report["machine"], report["cpu_failure"]
    facts = {
        "CPU": f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB",
        "instruction sets": ", ".join(machine["isa"]) or "none of AVX2, AVX-512, AMX",
        "huge pages": machine["huge_pages"],
        "GPUs": "; ".join(_gpu_text(gpu) for gpu in report["gpus"]) or "none",
        **{name: version or "not found" for name, version in report["compilers"].items()},
        **{name: version or "not installed" for name, version in report["versions"].items()},
        "CPU path": "works" if failure is None else f"does not work: {failure}",
    }
    console.print(_table("This machine", facts))
    for device, served in report["operations"].items():
        console.print(_table(f"\nWhat serves each operation on {device}", served))
    console.print("\nMissing" if report["missing"] else "\nNothing is missing.")
    for lack in report["missing"]:  # no table: a command is to be copied whole
        line = f"{lack['what']}, needed for {lack['needed_for']}:\n    {lack['fix']}"
        console.print(line, soft_wrap=True, markup=False)


def _gpu_text(gpu: Report) -> str:
    return f"{gpu['name']}, compute capability {gpu['capability']}, {gpu['memory_gib']} GiB"


def _table(title: str, rows: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, text in rows.items():
        table.add_row(escape(name), escape(text))
    return table
