"""Tiny random models of every served kind, and the real SmolLM2."""

from __future__ import annotations

from typing import Any

import pytest

transformers = pytest.importorskip("transformers", minversion="4.56")
import torch  # noqa: E402

from deepseek_flash_cache.engines.transformers import ATTENTION_NAME, FlashCache, cache_argument  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # wide enough that greedy tokens vary
    "tie_word_embeddings": False,  # tied, a random model repeats its input
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 198,
}
WINDOW = 24
EXTRA: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-mha": {"num_key_value_heads": 4},
    "llama-mqa": {"num_key_value_heads": 1},
    "mistral": {"sliding_window": WINDOW},
    "mixtral": {"sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    "qwen3": {},
    "phi3": {"sliding_window": WINDOW},
    "gemma": {},
    "gemma2": {"sliding_window": WINDOW, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": WINDOW, "query_pre_attn_scalar": 16},
    "gpt_oss": {"sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
}


def tiny_model(name: str, **overrides: Any) -> Any:
    """A random fp32 model. Weights depend on the arguments only."""
    config = transformers.AutoConfig.for_model(name.partition("-")[0], **SIZES | EXTRA[name] | overrides)
    # Stock attention that computes everything the model asks for: sdpa knows neither softcap nor sinks
    stock = "eager" if name in ("gemma2", "gpt_oss") else "sdpa"
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=stock, dtype=torch.float32)
    return model.eval()


def prompts(lengths: tuple[int, ...] = (33, 5, 70), seed: int = 1) -> dict[str, torch.Tensor]:
    """A left-padded batch of random token ids."""
    generator = torch.Generator().manual_seed(seed)
    columns = max(lengths)
    mask = torch.arange(columns)[None, :] >= columns - torch.tensor(lengths)[:, None]
    ids = torch.randint(2, 198, mask.shape, generator=generator) * mask
    return {"input_ids": ids, "attention_mask": mask.long()}


def generate(model: Any, inputs: dict[str, torch.Tensor], cache: FlashCache | None = None, **options: Any) -> Any:
    """Greedy tokens: with the stock cache and attention, or with ours when `cache` is given."""
    stock = model.config._attn_implementation
    arguments = {"max_new_tokens": 40, "do_sample": False} | options
    if cache is None:
        return model.generate(**inputs, **arguments)
    model.set_attn_implementation(ATTENTION_NAME)
    try:
        return model.generate(**inputs, **arguments, **cache_argument(model, cache))
    finally:
        model.set_attn_implementation(stock)
