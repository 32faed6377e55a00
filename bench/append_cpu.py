"""Writing new keys and values on the CPU: ours against vLLM's operation and a plain copy of the same bytes, in turn."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from attention_cpu import load_vllm
from rich.console import Console
from rich.table import Table

from deepseek_flash_cache import ops
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.memory import allocate

BLOCKS = 512
SHAPES = ((8, 128), (3, 64))
BATCHES = {
    "1 token": torch.tensor([64 * 7 + 5]),
    "32 sequences x 1": torch.arange(32) * 64 * 11 + 5,
    "512 in a row": torch.arange(512) + 640,
}


def contenders(kv_heads: int, head_size: int, slots: torch.Tensor, vllm: Any) -> dict[str, Callable[[], Any]]:
    """The same bf16 rows into the same slots, as callables without arguments."""
    layout = Layout(torch.bfloat16, kv_heads, head_size, head_size, tile_format="paired")
    cache = allocate(layout.cache_shape(BLOCKS), torch.bfloat16, "cpu").zero_()
    key, value = torch.randn(2, len(slots), kv_heads, head_size).bfloat16()
    rows, copied = torch.stack([key, value]), torch.empty(2, len(slots), kv_heads, head_size, dtype=torch.bfloat16)
    runs = {"ours": lambda: ops.append(key, value, cache, slots, layout), "copy": lambda: copied.copy_(rows)}
    if vllm is not None:
        pool = torch.zeros(BLOCKS, kv_heads, 128, head_size, dtype=torch.bfloat16)
        caches, isa = pool.chunk(2, dim=2), "amx" if torch.cpu._is_amx_tile_supported() else "vec"
        store = vllm.cpu_attn_reshape_and_cache
        runs["vllm"] = lambda: store(key, value, *caches, slots, isa, 1.0, 1.0, "auto")
    return runs


def measure(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Times of all contenders, one after another, round by round, after some that are not counted."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 10):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return {name: values[10:] for name, values in times.items()}


@click.command()
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--vllm-library", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rounds", default=300, show_default=True, type=click.IntRange(5))
def main(json_path: Path | None, vllm_library: Path | None, rounds: int) -> None:
    """Print microseconds and the median ratio of vLLM's time to ours, one thread."""
    torch.set_num_threads(1)
    console = Console()
    vllm, rows = load_vllm(vllm_library, console), []
    for kv_heads, head_size in SHAPES:
        for name, slots in BATCHES.items():
            times = measure(contenders(kv_heads, head_size, slots, vllm), rounds)
            row: dict[str, Any] = {f"{run}_us": 1e6 * statistics.median(values) for run, values in times.items()}
            if vllm is not None:
                pairs = zip(times["ours"], times["vllm"], strict=True)
                row["ratio"] = statistics.median(theirs / mine for mine, theirs in pairs)
            rows.append({"case": f"{name}, {kv_heads} heads of {head_size}"} | row)
    table = Table(*rows[0], title="append, bf16, one thread; ratio: vLLM's time / ours")
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:.2f}" for value in row.values()))
    console.print(table)
    if json_path is not None:
        json_path.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
