"""One thread budget with torch: a loop of {matmul, attend} against the sum of both alone.

Two OpenMP runtimes, or waiting threads that spin, show here as a pair that costs more than its parts.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from deepseek_flash_cache import ops
from deepseek_flash_cache.layout import Layout

CASES = ((1, 1024), (8, 4096))


def contenders(batch: int, kv_len: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A bf16 matmul of a decode step and attention over `batch` histories of `kv_len` tokens, 32/8 heads of 128."""
    layout = Layout(torch.bfloat16, 8, 128, 128, tile_format="paired")
    pages = batch * -(-kv_len // layout.page_tokens)
    cache = torch.zeros(layout.cache_shape(pages), dtype=torch.bfloat16)
    table = torch.randperm(pages).int().view(batch, -1)
    query = torch.randn(batch, 32, 128).bfloat16()
    starts, lengths = torch.arange(batch + 1).int(), torch.full((batch,), kv_len).int()
    left, right = torch.randn(64, 2048).bfloat16(), torch.randn(2048, 2048).bfloat16()
    arguments = (query, cache, table, starts, lengths, layout)
    return lambda: torch.mm(left, right), lambda: ops.attend(*arguments, softmax_scale=0.1)


def seconds(function: Callable[[], Any], rounds: int) -> float:
    """Median time of a call after the first."""
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def measure(batch: int, kv_len: int, threads: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    matmul, attend = contenders(batch, kv_len)

    def pair() -> None:
        matmul()
        attend()

    mm_s, attend_s, pair_s = (seconds(function, rounds) for function in (matmul, attend, pair))
    numbers = {"matmul_ms": 1e3 * mm_s, "attend_ms": 1e3 * attend_s, "pair_ms": 1e3 * pair_s}
    return {"batch": batch, "kv_len": kv_len, "threads": threads, **numbers, "ratio": pair_s / (mm_s + attend_s)}


@click.command()
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--rounds", default=100, show_default=True, type=click.IntRange(5))
def main(json_path: Path | None, rounds: int) -> None:
    """Print the pair's time over the sum of its parts, with one thread and with all."""
    counts = sorted({1, torch.get_num_threads()})
    rows = [measure(batch, kv_len, threads, rounds) for batch, kv_len in CASES for threads in counts]
    table = Table("batch", "context", "threads", "matmul ms", "attend ms", "pair ms", "pair / sum")
    for row in rows:
        times = (f"{row[key]:.2f}" for key in ("matmul_ms", "attend_ms", "pair_ms"))
        table.add_row(str(row["batch"]), str(row["kv_len"]), str(row["threads"]), *times, f"{row['ratio']:.2f}")
    Console().print(table)
    if json_path is not None:
        json_path.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
