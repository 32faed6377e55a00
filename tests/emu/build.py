"""Builds libraries of emulated kernels: the emulator of csrc/emu and the kernels of some sources, compiled by g++.

    python tests/emu/build.py            builds build/emu/libdfc_emu.so, every kernel of csrc/cuda/instances.def

Objects are used again while they are current.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "emu"
CXX = os.environ.get("CXX", "g++")
FLAGS = [
    "-std=c++20",  # std::source_location; that kernels are C++17 is for nvcc to check
    "-O2",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-ftls-model=initial-exec",
    "-fno-omit-frame-pointer",
    "-fstack-clash-protection",  # a large frame must not step over the guard page
]
WARNINGS = ["-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-unused-parameter", "-Wno-psabi"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
KERNELS = "csrc/cuda/instances.cu"
SELFTEST = ("csrc/emu/selftest/selftest.cpp",)
SELFTEST_PROGRAM = (*SELFTEST, "csrc/emu/selftest/main.cpp")


def machine_flags() -> list[str]:
    """x86-64-v3 has the fp16 conversions; elsewhere the emulator does them itself."""
    return ["-march=x86-64-v3"] if os.uname().machine in ("x86_64", "amd64") else []


def is_current(target: Path) -> bool:
    """Newer than everything that the compiler read for it."""
    read = target.with_suffix(".d")
    if not target.exists() or not read.exists():
        return False
    sources = [Path(word) for word in read.read_text().replace("\\\n", " ").split()[1:]]
    return all(path.exists() and path.stat().st_mtime < target.stat().st_mtime for path in sources)


def compile_one(root: Path, source: str, flags: Sequence[str]) -> Path:
    """The object of one source; one folder for each set of flags, so that libraries share the emulator's objects."""
    key = hashlib.sha256(" ".join([CXX, *flags]).encode()).hexdigest()[:12]
    target = root / "build" / "emu" / "objects" / key / (source.replace("/", "_") + ".o")
    if is_current(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [CXX, *flags, "-MMD", "-MF", str(target.with_suffix(".d")), "-x", "c++", "-c", str(root / source)]
    replace(target, command)
    return target


def replace(target: Path, command: Sequence[str]) -> None:
    """Runs a compiler that writes `target`; who else builds or has it open keeps a whole file."""
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    run([*command, "-o", str(draft)])
    draft.replace(target)


def build(
    name: str,
    sources: Sequence[str] = (KERNELS,),
    *,
    root: Path = ROOT,
    flags: Sequence[str] = (),
    sanitize: bool = False,
    program: bool = False,
) -> Path:
    """lib<name>.so of the emulator and `sources` (paths below `root`), built if it is not current; or a `program`.

    `root` may be the parent of a changed copy of the repository's csrc folder.
    """
    sanitizers = SANITIZE if sanitize else []
    everything = [*FLAGS, *machine_flags(), *WARNINGS, *sanitizers, *flags, f"-I{root / 'csrc'}"]
    emulator = sorted(str(path.relative_to(root)) for path in (root / "csrc" / "emu").glob("*.cpp"))
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda source: compile_one(root, source, everything), [*sources, *emulator]))
    target = root / "build" / "emu" / (name if program else f"lib{name}.so")
    if not target.is_file() or target.stat().st_mtime <= max(path.stat().st_mtime for path in objects):
        kind = [] if program else ["-shared"]
        replace(target, [CXX, *kind, *sanitizers, *map(str, objects), "-lpthread"])
    return target


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    print(build("dfc_emu"))
