"""Builds the C++ operations, and GPU code where nvcc is found. Settings: MAX_JOBS, DFC_CUDA=0/1, CXX, NVCC."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
PACKAGE = "deepseek_flash_cache"
SOURCES = [
    "csrc/api/binding.cpp",
    "csrc/api/checks.cpp",
    "csrc/cpu/append.cpp",
    "csrc/cpu/attend.cpp",
    "csrc/cpu/copy.cpp",
    "csrc/cpu/dispatch.cpp",
    "csrc/cpu/sparse/scoring.cpp",
    "csrc/cpu/sparse/select.cpp",
]
KERNELS = {  # built once per ISA level, see csrc/cpu/kernels.h
    "csrc/cpu/kernels.cpp": [],
    "csrc/cpu/sparse/kernels.cpp": ["-ffp-contract=off"],  # an FMA would round codes and weights differently
}
ISA_FLAGS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    "avx512_bf16": ["-march=x86-64-v4", "-mprefer-vector-width=512", "-mavx512bf16", "-mavx512vnni"],
}
X86 = platform.machine().lower() in ("x86_64", "amd64")
# No debug sections and no GNU-unique symbols: two builds loaded in one process must not share statics.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wno-psabi",
    "-g0",
]
GPU_ARCHITECTURES = ("80", "90a", "120")
BYTES_PER_JOB = 2 << 30


def max_jobs() -> int:
    """Parallel compilers: MAX_JOBS, else what cores and free memory allow (2 GiB each)."""
    if os.environ.get("MAX_JOBS"):
        return max(1, int(os.environ["MAX_JOBS"]))
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, memory // BYTES_PER_JOB))


class BuildNative(build_ext):
    """Compiles every object in parallel, links the extension, then compiles the cubins."""

    def run(self) -> None:
        super().run()
        build_cubins((ROOT if self.inplace else Path(self.build_lib)) / PACKAGE / "cubins")

    def build_extension(self, ext: Extension) -> None:
        import pybind11

        includes = [str(ROOT / "csrc"), pybind11.get_include(), *self.compiler.include_dirs]
        levels = list(ISA_FLAGS) if X86 else ["portable"]
        defines = [("DFC_X86", "1")] if X86 else []
        jobs = [(source, "common", [], defines) for source in SOURCES]
        for level in levels:
            names = [("DFC_ISA", f"isa_{level}"), ("DFC_ISA_NAME", f'"{level}"')]
            jobs += [
                (source, level, [*ISA_FLAGS[level], *flags], [*defines, *names]) for source, flags in KERNELS.items()
            ]

        def compile_one(job: tuple[str, str, list[str], list[tuple[str, str]]]) -> list[str]:
            source, folder, flags, macros = job
            output = os.path.join(self.build_temp, folder)
            return self.compiler.compile(
                [source], output_dir=output, macros=macros, include_dirs=includes, extra_postargs=[*FLAGS, *flags]
            )

        jobs.sort(key=lambda job: job[0] not in KERNELS)  # the longest first
        with ThreadPoolExecutor(max_jobs()) as pool:
            objects = [path for paths in pool.map(compile_one, jobs) for path in paths]
        target = self.get_ext_fullpath(ext.name)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        # -fopenmp needs libgomp.so.1 by SONAME: ops/binary.py imports torch first, so torch's copy serves both.
        self.compiler.link_shared_object(objects, target, extra_postargs=["-fopenmp"], target_lang="c++")


def build_cubins(folder: Path) -> None:
    """csrc/cuda/*.cu -> <folder>/<name>.sm_XX.cubin. Without nvcc nothing happens, unless DFC_CUDA=1 asks for it."""
    wish = os.environ.get("DFC_CUDA", "")
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if wish == "0" or (nvcc is None and wish != "1"):
        return
    if nvcc is None:
        raise RuntimeError("DFC_CUDA=1: nvcc was not found; install the CUDA toolkit or set NVCC to its path")
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
    jobs = [(source, arch) for source in sources for arch in GPU_ARCHITECTURES]

    def compile_one(job: tuple[Path, str]) -> str:
        source, arch = job
        target = folder / f"{source.stem}.sm_{arch}.cubin"
        command = [nvcc, "-cubin", f"-arch=sm_{arch}", "-std=c++17", "-O3", f"-I{ROOT / 'csrc'}", str(source)]
        done = subprocess.run([*command, "-o", str(target)], capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else f"{source.name} for sm_{arch}:\n{done.stderr.strip()}"

    with ThreadPoolExecutor(max_jobs()) as pool:
        failures = [text for text in pool.map(compile_one, jobs) if text]
    if failures and wish == "1":
        raise RuntimeError("DFC_CUDA=1: nvcc failed\n" + "\n".join(failures))
    for text in failures:
        print(f"warning: no GPU code: {text}", file=sys.stderr)


setup(
    ext_modules=[Extension(f"{PACKAGE}._C", sources=[*SOURCES, *KERNELS])],
    cmdclass={"build_ext": BuildNative},
)
