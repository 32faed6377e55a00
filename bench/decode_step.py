"""One decode step of a real model: our cache against transformers' `DynamicCache` with sdpa, in one run.

Contenders alternate step by step; the ratio is the median over pairs (below 1: ours is faster).
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from deepseek_flash_cache.commands.loading import DTYPES, load_model
from deepseek_flash_cache.config import LayoutPolicy
from deepseek_flash_cache.engines.transformers import ATTENTION_NAME, FlashCache, cache_argument

CASES = ((1, 128), (1, 1024), (1, 4096), (8, 1024), (8, 4096))


@click.command()
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", "name", default="smollm2", show_default=True)
@click.option("--dtype", default="fp32", show_default=True, type=click.Choice(list(DTYPES)))
@click.option("--steps", default=15, show_default=True, type=click.IntRange(3))
def main(json_path: Path | None, name: str, dtype: str, steps: int) -> None:
    """Print and store the ratio of step times, ours over stock, per batch and context."""
    model, _ = load_model(name, DTYPES[dtype])
    rows = [measure(model, batch, context, steps) for batch, context in track(CASES, "decode steps", transient=True)]
    table = Table("batch", "context", "stock ms", "ours ms", "ours / stock", title=f"{name}, {dtype}, one decode step")
    for row in rows:
        cells = (row["batch"], row["context"], *(f"{row[key]:.1f}" for key in ("stock_ms", "ours_ms")))
        table.add_row(*map(str, cells), f"{row['ratio']:.2f}")
    Console().print(table)
    if json_path is not None:
        json_path.write_text(json.dumps({"model": name, "dtype": dtype, "rows": rows}, indent=2) + "\n")


@torch.inference_mode()
def measure(model: Any, batch: int, context: int, steps: int) -> dict[str, Any]:
    """Times of `steps` alternating steps after one that is not counted."""
    from transformers import DynamicCache

    ids = torch.randint(10, model.config.vocab_size, (1, context), generator=torch.Generator().manual_seed(0))
    stock, ours = DynamicCache(), FlashCache(model.config, policy=LayoutPolicy(64))
    contenders = (("sdpa", stock), (ATTENTION_NAME, ours))
    for attention, cache in contenders:
        model.set_attn_implementation(attention)
        model(ids, logits_to_keep=1, **cache_argument(model, cache))
        cache.batch_repeat_interleave(batch)
    pairs = [[step(model, batch, *contender) for contender in contenders] for _ in range(steps + 1)][1:]
    ours.free()
    stock_s, ours_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / theirs for theirs, mine in pairs)
    return {"batch": batch, "context": context, "stock_ms": 1e3 * stock_s, "ours_ms": 1e3 * ours_s, "ratio": ratio}


def step(model: Any, batch: int, attention: str, cache: Any) -> float:
    """Seconds of one forward pass of one token per row."""
    model.set_attn_implementation(attention)
    token = torch.full((batch, 1), 100)
    started = time.perf_counter()
    model(token, **cache_argument(model, cache))
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
