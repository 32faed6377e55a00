"""`dfc generate`: text from a model through the cache, streamed as it comes."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from deepseek_flash_cache.commands.loading import DTYPES, chat_text, load_model
from deepseek_flash_cache.config import BLOCK_SIZE_CHOICES, BlockSize, LayoutPolicy


@click.command()
@click.option("--model", "name", default="smollm2", show_default=True, help="A Hugging Face folder or id, or smollm2.")
@click.option("--prompt", required=True, help="What to say; put through the model's chat template if it has one.")
@click.option("--raw", is_flag=True, help="Give the prompt to the model as it is.")
@click.option("--max-new-tokens", default=128, show_default=True, type=click.IntRange(1), help="Stop here.")
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0), help="0 is greedy.")
@click.option(
    "--dtype", default="fp32", show_default=True, type=click.Choice(list(DTYPES)), help="Of weights and cache."
)
@click.option(
    "--block-size",
    default="auto",
    show_default=True,
    type=click.Choice(list(map(str, BLOCK_SIZE_CHOICES))),
    help="Rows of a tile; see dfc layout.",
)
@click.option("--stock", is_flag=True, help="Use the stock cache instead of ours, to compare.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def generate(name: str, prompt: str, raw: bool, dtype: str, stock: bool, as_json: bool, **options: Any) -> None:
    """Generate text from a model through the cache."""
    if not prompt:
        raise ValueError("prompt: '' is not accepted; it must be at least one character")
    from transformers import TextStreamer

    model, tokenizer = load_model(name, DTYPES[dtype])
    text = prompt if raw else chat_text(tokenizer, prompt)
    inputs = tokenizer(text, return_tensors="pt").to(model.device)
    cache = None if stock else _flash_cache(model, options["block_size"])
    streamer = None if as_json else TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    started = time.perf_counter()
    output = model.generate(**inputs, **_arguments(model, cache, options), streamer=streamer)
    seconds = time.perf_counter() - started
    new_tokens = output[0, inputs["input_ids"].shape[1] :]
    report = {
        "model": name,
        "cache": "stock" if cache is None else cache.pool.layout_id,
        "prompt_tokens": inputs["input_ids"].shape[1],
        "new_tokens": len(new_tokens),
        "seconds": seconds,  # prompt and new tokens
        "tokens_per_s": len(new_tokens) / seconds,
        "kv_bytes_used": None if cache is None else cache.pool.used_bytes,
        "text": tokenizer.decode(new_tokens, skip_special_tokens=True),
    }
    if as_json:
        click.echo(json.dumps(report))
    else:
        _print_summary(report)


def _flash_cache(model: Any, block_size: str) -> Any:
    from deepseek_flash_cache.engines.transformers import ATTENTION_NAME, FlashCache

    model.set_attn_implementation(ATTENTION_NAME)
    size: BlockSize = "auto" if block_size == "auto" else 32 if block_size == "32" else 64
    return FlashCache(model.config, policy=LayoutPolicy(size))


def _arguments(model: Any, cache: Any, options: dict[str, Any]) -> dict[str, Any]:
    from deepseek_flash_cache.engines.transformers import cache_argument

    temperature = options["temperature"]
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    return {"max_new_tokens": options["max_new_tokens"], **sampling, **cache_argument(model, cache)}


def _print_summary(report: dict[str, Any]) -> None:
    used = report["kv_bytes_used"]
    memory = "" if used is None else f", {used / 2**20:.1f} MiB of KV in use"
    speed = f"{report['seconds']:.2f} s, prompt included: {report['tokens_per_s']:.1f} per second"
    click.echo(f"[{report['new_tokens']} tokens in {speed}{memory}]", err=True)
