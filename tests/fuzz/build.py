"""Builds the fuzz target with AddressSanitizer and UndefinedBehaviorSanitizer, then runs it.

    python tests/fuzz/build.py [RUNS [SEED]]

Runs every file of tests/fuzz/corpus and RUNS inputs mutated from them; the exit code is 0 if all pass. The sources and
the compiler flags of each ISA level are those of setup.py; objects in build/fuzz are used again while they are current.
"""

from __future__ import annotations

import ast
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "fuzz"
CORPUS = Path(__file__).resolve().parent / "corpus"
CXX = os.environ.get("CXX", "g++")
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS = ["-std=c++17", "-g1", "-fopenmp", "-Wall", "-Wextra", "-Wconversion", "-Wno-psabi", "-Icsrc"]
ENVIRONMENT = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}


@dataclass(frozen=True)
class Job:
    source: str
    name: str
    flags: list[str]
    needs: float  # time of the newest file it is made from


def missing_tools() -> str:
    """Why the target cannot be built here; empty if it can."""
    command = [CXX, *SANITIZE, "-fopenmp", "-x", "c++", "-", "-o", os.devnull]
    try:
        done = subprocess.run(command, input="int main() {}", capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"{CXX} is missing"
    return "" if done.returncode == 0 else f"{CXX} has no sanitizers: {done.stderr.strip()[-200:]}"


def setup_constants() -> dict[str, Any]:
    """The constants of setup.py that are plain values."""
    found: dict[str, Any] = {}
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def newest(paths: Iterable[Path]) -> float:
    return max(path.stat().st_mtime for path in paths)


def jobs() -> list[Job]:
    """The longest first."""
    settings = setup_constants()
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    defines = ["-DDFC_X86=1"] if x86 else []
    files = [path for path in (ROOT / "csrc").rglob("*") if path.is_file()]
    fuzz = [path for path in files if path.parent.name == "fuzz"]
    build_time = newest([ROOT / "setup.py", Path(__file__)])
    all_time = max(build_time, newest(files))
    code_time = max(build_time, newest(set(files) - set(fuzz)))
    found: list[Job] = []
    for level, flags in settings["ISA_FLAGS"].items():
        names = [f"-DDFC_ISA=isa_{level}", f'-DDFC_ISA_NAME="{level}"', "-O1", *SANITIZE, *flags]
        if x86 or level == "portable":
            for source, own in settings["KERNELS"].items():
                folder = Path(source).parent.name  # two files are named kernels.cpp
                found.insert(0, Job(source, f"{folder}_kernels_{level}", [*defines, *names, *own], code_time))
    for path in sorted(fuzz):
        if path.suffix == ".cpp":  # the definitions: optimised, since most of the time goes there
            found.append(Job(str(path), path.stem, [*defines, "-O2", "-fsanitize=address"], all_time))
    for source in settings["SOURCES"]:
        if not source.endswith("binding.cpp"):
            found.append(Job(source, Path(source).stem, [*defines, "-O1", *SANITIZE], code_time))
    return found


def compiled(job: Job) -> str:
    target = FOLDER / f"{job.name}.o"
    if not target.exists() or target.stat().st_mtime < job.needs:
        partial = f"{target}.{os.getpid()}"
        subprocess.run([CXX, *FLAGS, *job.flags, "-c", job.source, "-o", partial], cwd=ROOT, check=True)
        os.replace(partial, target)
    return str(target)


def build() -> Path:
    """The program. CalledProcessError if the compiler fails; it says why on standard error."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        objects = list(pool.map(compiled, jobs()))
    program = FOLDER / "fuzz"
    subprocess.run([CXX, *SANITIZE, "-fopenmp", *objects, "-o", str(program)], check=True)
    return program


def run(program: Path, runs: int, seed: int = 1) -> int:
    command = [str(program), str(CORPUS), str(runs), str(seed)]
    return subprocess.run(command, env={**os.environ, **ENVIRONMENT}, check=False).returncode


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]] or [0]
    sys.exit(run(build(), *numbers))
