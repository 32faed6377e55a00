"""Builds the C++ operations, and GPU code: for this machine's GPUs, or what DFC_CUDA and DFC_CUDA_ARCHS ask for.

Settings: MAX_JOBS, CXX, DFC_CUDA=0 (no GPU code) or 1 (all architectures), and those of tools/cubins.py.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent / "tools"))  # a build back end does not run in the project's folder
import cubins
from compilers import CompileError, chosen

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
CUDA_SOURCES = [  # host code: launches kernels, needs no CUDA to be built
    "csrc/cuda/host/cubins.cpp",
    "csrc/cuda/host/driver_api.cpp",
    "csrc/cuda/host/driver_launcher.cpp",
    "csrc/cuda/host/emulator_launcher.cpp",
    "csrc/cuda/attend/plan.cpp",
    "csrc/cuda/storage/plan.cpp",
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
        build_cubins(self.inplace, self.build_lib)

    def build_extension(self, ext: Extension) -> None:
        import pybind11

        includes = [str(ROOT / "csrc"), pybind11.get_include(), *self.compiler.include_dirs]
        levels = list(ISA_FLAGS) if X86 else ["portable"]
        defines = [("DFC_X86", "1")] if X86 else []
        jobs = [(source, "common", [], defines) for source in [*SOURCES, *CUDA_SOURCES]]
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
        self.compiler.link_shared_object(objects, target, extra_postargs=["-fopenmp", "-ldl"], target_lang="c++")


def wanted_archs() -> tuple[str, ...]:
    """All with DFC_CUDA=1, those that DFC_CUDA_ARCHS names, else those of this machine's GPUs; none with DFC_CUDA=0."""
    wish = os.environ.get("DFC_CUDA", "")
    if wish == "0":
        return ()
    if wish == "1" or os.environ.get("DFC_CUDA_ARCHS"):
        return cubins.archs()
    return cubins.archs_of_this_machine()


def build_cubins(inplace: bool, build_lib: str) -> None:
    """Cubins in the source tree, where they stay current, and a copy in what is packaged."""
    cubins.remove_stale()
    archs = wanted_archs()
    if archs:
        try:
            built = cubins.build(cubins.FOLDER, cubins.jobs_for(cubins.kernels(), archs), chosen(), max_jobs())
            failures = [one.failure for one in built if one.failure]
        except CompileError as error:
            failures = [str(error)]
        if failures and (os.environ.get("DFC_CUDA") == "1" or os.environ.get("DFC_CUDA_ARCHS")):
            raise RuntimeError("GPU code was asked for and cannot be built\n" + cubins.summary(failures))
        if failures:
            print(f"warning: no GPU code: {cubins.summary(failures)}", file=sys.stderr)
    if not inplace:
        target = Path(build_lib) / PACKAGE / "cubins"
        shutil.rmtree(target, ignore_errors=True)  # build_py may have found stale ones
        if cubins.FOLDER.is_dir():
            shutil.copytree(cubins.FOLDER, target, ignore=shutil.ignore_patterns("*.part"))


setup(
    ext_modules=[Extension(f"{PACKAGE}._C", sources=[*SOURCES, *CUDA_SOURCES, *KERNELS])],
    cmdclass={"build_ext": BuildNative},
)
