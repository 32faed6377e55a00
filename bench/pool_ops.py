"""Block operations per second of the pool, on one core.

    python bench/pool_ops.py [--seconds 0.5] [--json out.json]

A block operation is one block allocated, adopted or freed through the public Sequence API. Prompt lengths are
drawn between 64 and 8192 tokens. The best of five runs counts: the others measure the machine's other work.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from deepseek_flash_cache.pool import BlockPool, CacheIdentity

BLOCK = 64
IDENTITY = CacheIdentity("bicl-bench", b"model")
Step = Callable[[], int]  # does some work, returns how many operations it was


@dataclass
class Result:
    workload: str
    unit: str
    per_second: float


def lengths(count: int = 256) -> Iterator[int]:
    """Prompt lengths, log-uniform in [64, 8192], the same in every run, without end."""
    drawn = [int(64 * 128 ** random.Random(seed).random()) for seed in range(count)]
    while True:
        yield from drawn


def allocate_and_free() -> Step:
    pool, prompts = BlockPool(16384, BLOCK), lengths()

    def step() -> int:
        sequence = pool.open(IDENTITY)
        sequence.append(next(prompts))
        blocks = len(sequence.block_table)
        sequence.free()
        return 2 * blocks

    return step


def interleaved() -> Step:
    """64 sequences live at once; the oldest ends when a new one comes, so free blocks are scattered."""
    pool, prompts, live = BlockPool(16384, BLOCK), lengths(), []

    def step() -> int:
        sequence = pool.open(IDENTITY)
        sequence.append(next(prompts))
        live.append(sequence)
        operations = len(sequence.block_table)
        if len(live) > 64:
            oldest = live.pop(0)
            operations += len(oldest.block_table)
            oldest.free()
        return operations

    return step


def publish_and_evict() -> Step:
    """Every prompt is published (one SHA-256 per block) and evicts an older one: 256 of them do not fit."""
    pool = BlockPool(1024, BLOCK)
    prompts = itertools.cycle([[i, *range(size - 1)] for i, size in enumerate(itertools.islice(lengths(), 256))])

    def step() -> int:
        prompt = next(prompts)
        sequence = pool.open(IDENTITY)
        sequence.append(len(prompt))
        sequence.commit(prompt)
        blocks = len(sequence.block_table)
        sequence.free()
        return 2 * blocks

    return step


def adopt() -> Step:
    """A prompt of 4096 tokens whose 64 blocks are all found (one SHA-256 per block)."""
    pool, prompt = BlockPool(16384, BLOCK), list(range(4097))
    with pool.open(IDENTITY) as sequence:
        sequence.append(len(prompt))
        sequence.commit(prompt)

    def step() -> int:
        sequence = pool.open(IDENTITY)
        blocks = sequence.adopt_prefix(prompt) // BLOCK
        sequence.free()
        return 2 * blocks

    return step


def decode(commit: bool) -> Step:
    """32 sequences get one token each per step, until they hold 4096 tokens and start over."""
    pool = BlockPool(4096, BLOCK)
    batch = [pool.open(IDENTITY) for _ in range(32)]

    def step() -> int:
        for sequence in batch:
            if sequence.num_tokens == 4096:
                sequence.rollback(4096)
            sequence.append(1)
            if commit:
                sequence.commit_next((7,))
        return len(batch)

    return step


WORKLOADS: list[tuple[str, str, Callable[[], Step]]] = [
    ("append a prompt, free", "block operations", allocate_and_free),
    ("the same, 64 sequences interleaved", "block operations", interleaved),
    ("append, commit (publish), free, evict", "block operations", publish_and_evict),
    ("adopt a cached prompt, free", "block operations", adopt),
    ("append one token (decode)", "tokens", lambda: decode(False)),
    ("append and commit one token", "tokens", lambda: decode(True)),
]


def rate(step: Step, seconds: float) -> float:
    operations, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        operations += step()
    return operations / (time.perf_counter() - start)


def measure(seconds: float) -> list[Result]:
    return [
        Result(name, unit, max(rate(step, seconds / 5) for _ in range(5)))
        for name, unit, make in WORKLOADS
        for step in [make()]
    ]


def show(results: list[Result]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("workload", "unit", title=f"Block pool, blocks of {BLOCK} tokens, one core")
    table.add_column("per second", justify="right")
    for result in results:
        table.add_row(result.workload, result.unit, f"{result.per_second:,.0f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="per workload (default 0.5)")
    parser.add_argument("--json", metavar="PATH", help="also write the results there")
    arguments = parser.parse_args()
    if arguments.seconds <= 0:
        parser.error(f"--seconds must be above 0, got {arguments.seconds}")
    results = measure(arguments.seconds)
    show(results)
    if arguments.json:
        report = {"python": platform.python_version(), "block_size": BLOCK, "results": [asdict(r) for r in results]}
        with open(arguments.json, "w") as file:
            json.dump(report, file, indent=2)


if __name__ == "__main__":
    main()
