"""Builds the cubins and prints what the compiler made of each kernel; exits with 1 if one spills or uses local memory.

    python tools/cuda_report.py [--archs 80,90a] [--kernels REGEX] [--compiler nvcc|nvrtc] [--json PATH]

Without --archs: DFC_CUDA_ARCHS, else all. Writes build/cuda_report.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cubins
from compilers import ROOT, CompileError, chosen
from cubin_facts import MNEMONICS, facts, missing_tools, uses_local_memory

COLUMNS = {
    "registers": "regs",
    "shared": "shared",
    "dynamic_shared": "dyn. shared",
    "spills": "spills",
    "threads": "threads",
    "blocks_per_sm": "blocks/SM",
    **{name: name for name in MNEMONICS},
}
Row = dict[str, Any]


def workers() -> int:
    return int(os.environ.get("MAX_JOBS") or len(os.sched_getaffinity(0)))


def build(folder: Path, jobs: list[cubins.Job], wish: str, console: Console) -> tuple[list[cubins.Built], float]:
    """The cubins and the seconds it took. CompileError where there is no compiler."""
    compiler = chosen(wish)
    started = time.perf_counter()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"{compiler.version}, {len(jobs)} cubins", total=len(jobs))
        built = cubins.build(folder, jobs, compiler, workers(), lambda _: progress.advance(task))
    return built, time.perf_counter() - started


def facts_of(folder: Path, one: cubins.Built) -> Row:
    """Read from the cubin once: disassembling takes a quarter of a second."""
    record = cubins.record_of(folder, one.job)
    known = json.loads(record.read_text())
    if "facts" not in known:
        known["facts"] = facts(folder / one.job.file, one.job.arch, one.log)
        record.write_text(json.dumps(known))
    return dict(known["facts"])


def rows_of(folder: Path, built: list[cubins.Built]) -> list[Row]:
    good = [one for one in built if not one.failure]
    with ThreadPoolExecutor(workers()) as pool:
        found = list(pool.map(lambda one: facts_of(folder, one), good))
    return [
        {"kernel": one.job.kernel, "arch": one.job.arch, "seconds": round(one.seconds, 2), **row}
        for one, row in zip(good, found, strict=True)
    ]


def table_of(rows: list[Row]) -> Table:
    table = Table("kernel", "sm", title="What the compiler made of each kernel", box=None, padding=(0, 1, 0, 0))
    for title in COLUMNS.values():
        table.add_column(title, justify="right")
    for row in rows:
        style = "bold red" if uses_local_memory(row) else None
        table.add_row(row["kernel"], row["arch"], *(str(row[name] or "") for name in COLUMNS), style=style)
    return table


def report(rows: list[Row], failures: list[str], seconds: float, target: Path, console: Console) -> int:
    """Prints, writes `target`, and returns the exit code."""
    console.print(table_of(rows))
    bad = [f"{row['kernel']} for sm_{row['arch']}" for row in rows if uses_local_memory(row)]
    compiled = [row for row in rows if row["seconds"]]
    console.print(f"\n{len(rows)} cubins, {len(compiled)} compiled now, {seconds:.1f} s")
    if failures:
        console.print(f"failed: {cubins.summary(failures)}", markup=False)
    for text in bad:
        console.print(f"spills or uses local memory: {text}", markup=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"seconds": seconds, "cubins": rows, "failures": failures, "local": bad}, indent=1))
    return 1 if failures or bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the CUDA kernels and report on them.")
    parser.add_argument("--archs", default="")
    parser.add_argument("--kernels", default="")
    parser.add_argument("--compiler", default="")
    parser.add_argument("--json", default=str(ROOT / "build" / "cuda_report.json"))
    asked = parser.parse_args()
    if asked.archs:
        os.environ["DFC_CUDA_ARCHS"] = asked.archs
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 180)
    try:
        cubins.remove_stale()
        jobs = cubins.jobs_for(cubins.kernels(asked.kernels), cubins.archs())
        if missing_tools():
            raise CompileError(missing_tools())
        built, seconds = build(cubins.FOLDER, jobs, asked.compiler, console)
    except CompileError as error:
        console.print(str(error), markup=False)
        return 2
    failures = [one.failure for one in built if one.failure]
    return report(rows_of(cubins.FOLDER, built), failures, seconds, Path(asked.json), console)


if __name__ == "__main__":
    sys.exit(main())
