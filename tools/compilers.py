"""nvcc and NVRTC as one interface: compile one kernel of csrc/cuda/instances.def for one architecture.

NVRTC comes from the package index (nvidia-cuda-nvrtc-cu12 and nvidia-cuda-runtime-cu12), so that cubins can be built
for drivers older than the nvcc at hand, or without any toolkit.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "csrc" / "cuda" / "instances.cu"


class CompileError(RuntimeError):
    """The compiler's own words."""


class Compiler(Protocol):
    @property
    def version(self) -> str:
        """Name and version: part of what decides whether a cubin is current."""

    def compile(self, kernel: str, arch: str, target: Path) -> str:
        """Writes the cubin and returns what the assembler said of it. CompileError if there is none."""


def chosen(wish: str = "") -> Compiler:
    """The compiler that `wish` or DFC_CUDA_COMPILER names, else nvcc, else NVRTC. CompileError if it is not there."""
    wish = wish or os.environ.get("DFC_CUDA_COMPILER", "")
    if wish not in ("", "nvcc", "nvrtc"):
        raise CompileError(f"DFC_CUDA_COMPILER: {wish} is not accepted; it must be nvcc or nvrtc")
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if wish != "nvrtc" and nvcc:
        return Nvcc(nvcc)
    library = _nvrtc_library()
    if wish != "nvcc" and library:
        return Nvrtc(library)
    raise CompileError(
        "no CUDA compiler: install the CUDA toolkit or set NVCC to its nvcc, or pip install nvidia-cuda-nvrtc-cu12"
        " nvidia-cuda-runtime-cu12"
    )


def _options(kernel: str, arch: str) -> list[str]:
    extra = os.environ.get("DFC_CUDA_FLAGS", "").split()
    return ["-std=c++17", f"-I{ROOT / 'csrc'}", f"-DDFC_ONLY_{kernel}=DFC_THIS", *extra]


@dataclass(frozen=True)
class Nvcc:
    path: str

    @property
    def version(self) -> str:
        said = subprocess.run([self.path, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"V(\d+\.\d+\.\d+)", said)
        return f"nvcc {found[1] if found else 'unknown'}"

    def compile(self, kernel: str, arch: str, target: Path) -> str:
        # -arch=sm_90a would compile for plain compute_90 as well, where instructions of 90a are errors
        machine = f"-gencode=arch=compute_{arch},code=sm_{arch}"
        command = [self.path, "-cubin", machine, "-O3", "-Xptxas=-v", *_options(kernel, arch), str(SOURCE)]
        done = subprocess.run([*command, "-o", str(target)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CompileError(f"{kernel} for sm_{arch}:\n{done.stderr.strip()}")
        return done.stderr


# NVRTC


def _packages(*parts: str) -> list[Path]:
    """The folders of NVIDIA's wheels that are there: nvidia/<part>."""
    folders = [Path(entry) / "nvidia" for entry in sys.path]
    return [folder / part for folder in folders for part in parts if (folder / part).is_dir()]


def _nvrtc_library() -> Path | None:
    folders = [folder / "lib" for folder in _packages("cuda_nvrtc", "cu13")]
    return next((path for folder in folders for path in sorted(folder.glob("libnvrtc.so.*"))), None)


@dataclass(frozen=True)
class Nvrtc:
    library: Path

    @property
    def _api(self) -> ctypes.CDLL:
        api = ctypes.CDLL(str(self.library))
        api.nvrtcGetErrorString.restype = ctypes.c_char_p
        return api

    @property
    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._api.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"nvrtc {major.value}.{minor.value}"

    def compile(self, kernel: str, arch: str, target: Path) -> str:
        api, program = self._api, ctypes.c_void_p()
        headers = [f"-I{folder / 'include'}" for folder in _packages("cuda_runtime", "cu13")]
        options = [f"-arch=sm_{arch}", "--ptxas-options=-v", *headers, *_options(kernel, arch)]
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        text = SOURCE.read_bytes()
        api.nvrtcCreateProgram(ctypes.byref(program), text, SOURCE.name.encode(), 0, None, None)
        try:
            code = api.nvrtcCompileProgram(program, len(options), words)
            log = self._text(api, program, "ProgramLog").decode(errors="replace").rstrip("\0")
            if code != 0:
                raise CompileError(f"{kernel} for sm_{arch}: {api.nvrtcGetErrorString(code).decode()}\n{log}")
            target.write_bytes(self._text(api, program, "CUBIN"))
            return log
        finally:
            api.nvrtcDestroyProgram(ctypes.byref(program))

    @staticmethod
    def _text(api: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(api, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(api, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw
