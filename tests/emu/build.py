"""Builds libraries of emulated kernels: the emulator of csrc/emu and the kernels of some sources, compiled by g++.

    python tests/emu/build.py            builds build/emu/libdfc_emu.so, every kernel of csrc/cuda/instances.def

Objects are used again while they are current.
"""

from __future__ import annotations

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
]
WARNINGS = ["-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-unused-parameter", "-Wno-psabi"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
KERNELS = "csrc/cuda/instances.cu"
SELFTEST = ("csrc/emu/selftest/selftest.cpp",)


def machine_flags() -> list[str]:
    """x86-64-v3 has the fp16 conversions; elsewhere the emulator does them itself."""
    return ["-march=x86-64-v3"] if os.uname().machine in ("x86_64", "amd64") else []


def newest(*folders: Path) -> float:
    return max(path.stat().st_mtime for folder in folders for path in folder.rglob("*") if path.is_file())


def build(
    name: str,
    sources: Sequence[str] = (KERNELS,),
    *,
    root: Path = ROOT,
    flags: Sequence[str] = (),
    sanitize: bool = False,
) -> Path:
    """lib<name>.so of the emulator and `sources` (paths below `root`), built if it is not current.

    `root` may be a changed copy of the repository's csrc folder's parent.
    """
    folder = root / "build" / "emu" / name
    folder.mkdir(parents=True, exist_ok=True)
    emulator = sorted(str(path.relative_to(root)) for path in (root / "csrc" / "emu").glob("*.cpp"))
    everything = [*FLAGS, *machine_flags(), *WARNINGS, *(SANITIZE if sanitize else []), *flags, f"-I{root / 'csrc'}"]
    needs = newest(*(root / "csrc" / part for part in ("emu", "dev", "cuda", "layout", "api")))

    def compile_one(source: str) -> Path:
        target = folder / (source.replace("/", "_") + ".o")
        if not target.exists() or target.stat().st_mtime <= needs:
            run([CXX, *everything, "-x", "c++", "-c", str(root / source), "-o", str(target)])
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, [*sources, *emulator]))
    library = folder.parent / f"lib{name}.so"
    if not library.exists() or library.stat().st_mtime <= max(path.stat().st_mtime for path in objects):
        run([CXX, "-shared", *(SANITIZE if sanitize else []), *map(str, objects), "-o", str(library), "-lpthread"])
    return library


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    print(build("dfc_emu"))
