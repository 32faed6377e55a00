"""`dfc demo`: a real model generates the same text through the stock cache and through ours."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from deepseek_flash_cache.commands.output import STDOUT, OutputFile

if TYPE_CHECKING:
    from torch import Tensor

    from deepseek_flash_cache.cache import KVPool

SYSTEM = (
    "You are a helpful assistant who answers briefly and clearly. You use plain English. You write short sentences. "
    "You give the answer first and then the reason. You are polite and honest. You know a lot about science, history, "
    "nature and numbers. You help people of every age, at school, at home and at work, and you explain hard words when "
    "you use them. You always stay on the topic of the question, and you end when the question is answered."
)
QUESTIONS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue during the day.",
    "What do bees make, and why is it good for us?",
    "Write one sentence about the sea.",
)
LEGEND = """\
cache     ours: nothing is in the pool yet, and rows computed at the same time
          each store their own blocks, equal or not, so nothing is shared.
          ours, again: the same prompts once more. This run need not compute all
          of them, stock and the first run do: mind that when comparing speed.
equal     new tokens that equal the stock cache's. In fp32 all must. In bf16
          both caches round, and after a near tie a text goes on differently.
hits      prompt tokens found in the pool and not computed again.
reserved  the capacity; memory is committed when a block is first written.
used      blocks that rows hold at the end; shared: those of several rows."""
RUNS = ("stock", "ours", "ours, again")


@dataclass(frozen=True)
class Run:
    """One generation of the whole batch. Bytes are what the cache held at the end."""

    dtype: str
    cache: str
    tokens_equal: int
    new_tokens: int
    prefix_hit_tokens: int
    kv_bytes_reserved: int
    kv_bytes_used: int
    kv_bytes_shared: int
    tokens_per_s: float


@click.command()
@click.option("--json", "json_path", type=OutputFile(allow_dash=True), help="Also write FILE (- for stdout).")
@click.option("--model", "name", default="smollm2", show_default=True, help="A Hugging Face folder or id, or smollm2.")
@click.option("--max-new-tokens", default=48, show_default=True, type=click.IntRange(1), help="Of each answer.")
def demo(json_path: Path | None, name: str, max_new_tokens: int) -> None:
    """Generate text with the stock cache and with ours, and compare tokens, memory and speed."""
    console = Console(stderr=json_path == STDOUT, highlight=False)
    runs: list[Run] = []
    texts: list[str] = []
    for dtype in ("fp32", "bf16"):
        with console.status(f"{dtype}: loading {name}"):
            bench = Bench(name, dtype, max_new_tokens)
        for cache in RUNS:
            with console.status(f"{dtype}: generating with the cache: {cache}"):
                runs.append(bench.run(cache))
            console.print(f"{dtype}, {cache}: {runs[-1].new_tokens} tokens at {runs[-1].tokens_per_s:.1f} per second")
        texts = texts or bench.texts()
    _print(console, runs, texts)
    report = _report(name, runs, texts)
    if json_path is not None:
        document = json.dumps(report, indent=2)
        click.echo(document) if json_path == STDOUT else json_path.write_text(document + "\n")
    if not report["tokens_equal"]:
        evidence = "the output of dfc demo --json -" if json_path in (None, STDOUT) else json_path
        raise click.ClickException(f"fp32 tokens differ from the stock cache's; please report this with {evidence}")


class Bench:
    """One model in one dtype, one batch of ragged prompts, and a pool that outlives the single run."""

    def __init__(self, name: str, dtype: str, max_new_tokens: int) -> None:
        from deepseek_flash_cache.commands.loading import DTYPES, chat_text, load_model

        self.dtype, self.max_new_tokens = dtype, max_new_tokens
        self.model, self.tokenizer = load_model(name, DTYPES[dtype])
        prompts = [chat_text(self.tokenizer, question, SYSTEM) for question in QUESTIONS]
        self.inputs = self.tokenizer(prompts, return_tensors="pt", padding=True).to(self.model.device)
        self.pool = self._make_pool()
        self.expected: Tensor | None = None
        self._warm_up()

    def run(self, cache: str) -> Run:
        return self._stock() if cache == "stock" else self._ours(cache)

    def texts(self) -> list[str]:
        assert self.expected is not None
        answers: list[str] = self.tokenizer.batch_decode(self._new(self.expected), skip_special_tokens=True)
        return [answer.strip() for answer in answers]

    def _make_pool(self) -> KVPool:
        """Room for two runs, as the second finds the first one's prompts, and for one block more per row."""
        from deepseek_flash_cache.config import LayoutPolicy
        from deepseek_flash_cache.engines.transformers import model_pool, model_shape

        page_tokens = LayoutPolicy().page_tokens(model_shape(self.model.config, self.model.dtype))
        lengths = (self.inputs["attention_mask"].sum(dim=1) + self.max_new_tokens).tolist()
        blocks = sum(-(-length // page_tokens) for length in lengths)
        return model_pool(self.model, num_blocks=2 * blocks + len(lengths))

    def _warm_up(self) -> None:
        """The first calls pay for start-up. Ours publishes nothing here, so that the first run finds nothing."""
        from deepseek_flash_cache.engines.transformers import ATTENTION_NAME, FlashCache, cache_argument

        self.model.generate(**self.inputs, max_new_tokens=2, do_sample=False)
        self.model.set_attn_implementation(ATTENTION_NAME)
        with FlashCache(self.model.config, self.pool) as cache:
            arguments = cache_argument(self.model, cache)
            self.model.generate(**self.inputs, **arguments, max_new_tokens=2, do_sample=False)

    def _stock(self) -> Run:
        from transformers import DynamicCache

        from deepseek_flash_cache.engines.transformers import cache_argument

        self.model.set_attn_implementation("sdpa")
        cache = DynamicCache()
        self.expected, speed = self._generate(**cache_argument(self.model, cache))
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        return self._result("stock", self.expected, speed, 0, (held, held, 0))

    def _ours(self, label: str) -> Run:
        from deepseek_flash_cache.engines.transformers import ATTENTION_NAME, FlashCache, cache_argument

        self.model.set_attn_implementation(ATTENTION_NAME)
        with FlashCache(self.model.config, self.pool) as cache:
            hits = cache.adopt_prefix(**self.inputs)
            output, speed = self._generate(**cache_argument(self.model, cache))
            held = (self.pool.reserved_bytes, self.pool.used_bytes, self.pool.shared_bytes)
        return self._result(label, output, speed, hits, held)

    def _generate(self, **cache: Any) -> tuple[Tensor, float]:
        started = time.perf_counter()
        output = self.model.generate(**self.inputs, **cache, max_new_tokens=self.max_new_tokens, do_sample=False)
        seconds = time.perf_counter() - started
        return output, self._count(output) / seconds

    def _new(self, output: Tensor) -> Tensor:
        return output[:, self.inputs["input_ids"].shape[1] :]

    def _count(self, output: Tensor) -> int:
        return int((self._new(output) != self.tokenizer.pad_token_id).sum())

    def _result(self, cache: str, output: Tensor, speed: float, hits: int, held: tuple[int, int, int]) -> Run:
        assert self.expected is not None
        new, expected = self._new(output), self._new(self.expected)
        real = expected != self.tokenizer.pad_token_id
        columns = min(new.shape[1], expected.shape[1])
        equal = int((new[:, :columns] == expected[:, :columns])[real[:, :columns]].sum())
        return Run(self.dtype, cache, equal, int(real.sum()), hits, *held, speed)


def _print(console: Console, runs: list[Run], texts: list[str]) -> None:
    console.print()
    for question, text in zip(QUESTIONS, texts, strict=True):
        console.print(f"[bold]{question}[/bold]\n  {text}")
    columns = ("dtype", "cache", "equal", "hits", "reserved", "used", "shared", "tokens/s")
    table = Table(*columns, title="4 ragged prompts, one system prompt; KV reserved, used and shared in MiB")
    for run in runs:
        sizes = (run.kv_bytes_reserved, run.kv_bytes_used, run.kv_bytes_shared)
        table.add_row(
            run.dtype,
            run.cache,
            f"{run.tokens_equal}/{run.new_tokens}",
            str(run.prefix_hit_tokens),
            *(f"{size / 2**20:.1f}" for size in sizes),
            f"{run.tokens_per_s:.1f}",
        )
    console.print(table)
    console.print(LEGEND)


def _report(name: str, runs: list[Run], texts: list[str]) -> dict[str, Any]:
    stock, first, again = (run for run in runs if run.dtype == "fp32")
    return {  # ours: the second run, which finds the first one's prompts; ours_cold: the first
        "model": name,
        "text": texts,
        "tokens_equal": all(run.tokens_equal == run.new_tokens for run in (first, again)),
        "kv_bytes": {"stock": stock.kv_bytes_used, "ours": again.kv_bytes_used, "ours_cold": first.kv_bytes_used},
        "prefix_hit_tokens": again.prefix_hit_tokens,
        "tokens_per_s": {
            "stock": stock.tokens_per_s,
            "ours": again.tokens_per_s,
            "ours_cold": first.tokens_per_s,
        },
        "runs": [asdict(run) for run in runs],
    }
