"""Compiles csrc/cuda/instances.def into deepseek_flash_cache/cubins/<kernel>.sm_XX.cubin, one file per kernel and
architecture. Needs neither torch nor the package. Used by setup.py and cuda_report.py; by hand:

    python tools/cubins.py [--archs 80,90a] [--kernels REGEX] [--compiler nvcc|nvrtc]

Settings: DFC_CUDA_ARCHS, DFC_CUDA_COMPILER, DFC_CUDA_FLAGS, NVCC, MAX_JOBS. What is current is not compiled again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from compilers import ROOT, CompileError, Compiler, chosen

ARCHS = ("80", "86", "89", "90a", "100", "120")
FOLDER = ROOT / "deepseek_flash_cache" / "cubins"
RECORDS = ROOT / "build" / "cubins"
INSTANCES = ROOT / "csrc" / "cuda" / "instances.def"
SOURCES = ("csrc/cuda", "csrc/dev", "csrc/layout", "csrc/api/params.h")


@dataclass(frozen=True)
class Job:
    kernel: str
    arch: str

    @property
    def file(self) -> str:
        return f"{self.kernel}.sm_{self.arch}.cubin"


@dataclass(frozen=True)
class Built:
    job: Job
    seconds: float  # 0: it was current
    log: str  # of the assembler
    failure: str = ""


# What to build


def kernels(pattern: str = "") -> list[str]:
    """Names of instances.def in which `pattern` is found."""
    text = re.sub(r"//.*", "", INSTANCES.read_text())
    return [name for name in re.findall(r"DFC_INSTANCE\(\s*(\w+)\s*,", text) if re.search(pattern, name)]


def archs() -> tuple[str, ...]:
    """What DFC_CUDA_ARCHS names ("80,90a"), else all. CompileError for what is no architecture."""
    asked = re.split(r"[,;\s]+", os.environ.get("DFC_CUDA_ARCHS", "").strip())
    names = tuple(name.removeprefix("sm_") for name in asked if name)
    for name in names:
        if not re.fullmatch(r"\d{2,3}[af]?", name):
            raise CompileError(f"DFC_CUDA_ARCHS: {name} is not accepted; it must be like {','.join(ARCHS)}")
    return names or ARCHS


def arch_of_device(capability: str) -> str:
    """What a device of this compute capability ("8.6") is best served by."""
    number = int(capability.replace(".", ""))
    known = {int(name.rstrip("a")): name for name in ARCHS}
    served = [at for at in known if at // 10 == number // 10 and at <= number]
    return known[max(served)] if served else str(number)


def archs_of_this_machine() -> tuple[str, ...]:
    """Architectures of the GPUs of this machine; empty without any."""
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    found = re.findall(r"^\d+\.\d+$", said.stdout, re.MULTILINE) if said.returncode == 0 else []
    return tuple(sorted({arch_of_device(capability) for capability in found if int(capability.split(".")[0]) >= 8}))


# How


@lru_cache(maxsize=1)
def source_digest() -> str:
    digest = hashlib.sha256()
    paths = (
        path for name in SOURCES for path in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])
    )
    for path in sorted(path for path in paths if path.suffix in (".h", ".cu", ".def")):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def key_of(compiler: Compiler) -> str:
    """Equal for builds that give the same cubins."""
    return f"{source_digest()} {compiler.version} {os.environ.get('DFC_CUDA_FLAGS', '')}".strip()


def record_of(folder: Path, job: Job) -> Path:
    """Where the key and the assembler's log of a cubin in `folder` are kept: not in the package."""
    place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
    return RECORDS / place / f"{job.file}.json"


def build_one(compiler: Compiler, key: str, folder: Path, job: Job) -> Built:
    record, target = record_of(folder, job), folder / job.file
    if target.exists() and record.exists():
        known = json.loads(record.read_text())
        if known["key"] == key:
            return Built(job, 0.0, known["log"])
    target.unlink(missing_ok=True)
    partial = target.with_suffix(f".{os.getpid()}.part")
    started = time.perf_counter()
    try:
        log = compiler.compile(job.kernel, job.arch, partial)
    except CompileError as error:
        partial.unlink(missing_ok=True)
        return Built(job, time.perf_counter() - started, "", str(error))
    os.replace(partial, target)
    record.write_text(json.dumps({"key": key, "log": log}))
    return Built(job, time.perf_counter() - started, log)


def build(
    folder: Path,
    jobs: Iterable[Job],
    compiler: Compiler,
    workers: int = 1,
    progress: Callable[[Built], None] = lambda built: None,
) -> list[Built]:
    """Compiles what is not current, `workers` at a time. Failures are in the results."""
    jobs = list(jobs)
    folder.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        record_of(folder, job).parent.mkdir(parents=True, exist_ok=True)
    key = key_of(compiler)

    def one(job: Job) -> Built:
        built = build_one(compiler, key, folder, job)
        progress(built)
        return built

    with ThreadPoolExecutor(max(1, workers)) as pool:
        return list(pool.map(one, jobs))


def remove_stale(folder: Path = FOLDER) -> list[str]:
    """Removes cubins of other sources: their kernels may take other arguments than this build passes."""
    removed = []
    for path in sorted(folder.glob("*.cubin")):
        kernel, _, arch = path.name.removesuffix(".cubin").rpartition(".sm_")
        record = record_of(folder, Job(kernel, arch))
        if not record.exists() or not json.loads(record.read_text())["key"].startswith(source_digest()):
            path.unlink()
            removed.append(path.name)
    return removed


def jobs_for(names: Iterable[str], architectures: Iterable[str]) -> list[Job]:
    """Kernels that use instructions of sm_90 are compiled for it and later only: their names end in _bulk."""
    wanted = [Job(name, arch) for name in names for arch in architectures]
    return [job for job in wanted if not ("_bulk" in job.kernel and int(job.arch.rstrip("af")) < 90)]


def summary(failures: list[str]) -> str:
    """The first failure whole, the names of some others: one mistake usually fails everything."""
    others = [text.split(":", 1)[0] for text in failures[1:]]
    more = f"\nand {len(others)} more: {', '.join(others[:4])}{', ...' if len(others) > 4 else ''}"
    return failures[0] + (more if others else "")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the CUDA kernels.")
    parser.add_argument("--archs", default="", help="for instance 80,90a; default: DFC_CUDA_ARCHS, else all")
    parser.add_argument("--kernels", default="", help="a regular expression; default: all")
    parser.add_argument("--compiler", default="", help="nvcc or nvrtc; default: DFC_CUDA_COMPILER, else what is there")
    asked = parser.parse_args()
    if asked.archs:
        os.environ["DFC_CUDA_ARCHS"] = asked.archs
    try:
        compiler, jobs = chosen(asked.compiler), jobs_for(kernels(asked.kernels), archs())
    except CompileError as error:
        print(error, file=sys.stderr)
        return 2
    built = build(FOLDER, jobs, compiler, int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1))
    failures = [one.failure for one in built if one.failure]
    new = [one.seconds for one in built if one.seconds]
    print(f"{compiler.version}: {len(built)} cubins, {len(new)} compiled in {sum(new):.1f} s, {len(failures)} failed")
    if failures:
        print(summary(failures), file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
