"""What `dfc doctor` asks of the machine itself: `/proc`, the CUDA driver, the compilers, the installed packages."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

# Level of the instruction set -> the flags of /proc/cpuinfo that it needs.
ISA_LEVELS = {
    "AVX2": ("avx2", "fma", "f16c"),
    "AVX-512": ("avx512f", "avx512bw", "avx512vl", "avx512dq"),
    "AVX-512 BF16": ("avx512_bf16",),
    "AVX-512 FP16": ("avx512_fp16",),
    "AMX BF16": ("amx_tile", "amx_bf16"),
}

Facts = dict[str, Any]


def machine() -> Facts:
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


def gpus() -> list[Facts]:
    """Name, compute capability and memory of every NVIDIA GPU that the driver shows; empty without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    return [_gpu(driver, ordinal) for ordinal in range(count.value)]


def _gpu(driver: ctypes.CDLL, ordinal: int) -> Facts:
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


def python_headers() -> str | None:
    """The path of Python.h, which the C++ extension is built with, or None where it is not installed."""
    path = Path(sysconfig.get_path("include")) / "Python.h"
    return str(path) if path.exists() else None


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
