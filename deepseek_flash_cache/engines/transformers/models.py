"""Which models this engine serves, and what their configuration says about the cache."""

from __future__ import annotations

import hashlib
import inspect
import json
from typing import TYPE_CHECKING, Any

import torch

from deepseek_flash_cache.cache import KVPool
from deepseek_flash_cache.config import LayoutPolicy, ModelShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Every entry is tested against the stock cache, token by token (tests/engines/transformers).
SUPPORTED_MODELS = (
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "llama",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen3",
)


def require_served(config: Any) -> None:
    """ValueError, by name, for a model this engine does not serve; models around a served one (vision) are others."""
    if config.model_type not in SUPPORTED_MODELS:
        raise ValueError(
            f"config.model_type: {config.model_type!r} is not served by the dfc cache; "
            f"served are {', '.join(SUPPORTED_MODELS)}. Use the stock cache and attn_implementation='sdpa'."
        )


def require_fixed_positions(config: Any) -> None:
    """ValueError if rotary frequencies change with the length: then equal tokens do not mean equal keys."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [settings, *(value for value in settings.values() if isinstance(value, dict))]
    kinds = {kind for part in nested for kind in (part.get("rope_type"), part.get("type"))}
    if moving := kinds & {"dynamic", "longrope"}:
        raise ValueError(f"config: rope_type {moving} depends on the length, so prefixes cannot be reused")


def config_digest(config: Any) -> bytes:
    """SHA-256 of what a configuration says about the model, without how and from where it was loaded."""
    volatile = ("_attn_implementation", "_name_or_path", "transformers_version", "torch_dtype", "dtype")
    settings = {name: value for name, value in config.to_dict().items() if name not in volatile}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).digest()


def model_shape(config: Any, dtype: torch.dtype) -> ModelShape:
    """The cache shape of a transformers configuration whose K and V are stored as `dtype`."""
    require_served(config)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return ModelShape(config.num_hidden_layers, num_kv_heads, head_size, config.max_position_embeddings, dtype)


def model_digest(model: PreTrainedModel) -> bytes:
    """SHA-256 over configuration and every weight: equal only for models that compute equal K and V."""
    digest = hashlib.sha256(config_digest(model.config))
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def model_pool(
    model: PreTrainedModel,
    policy: LayoutPolicy | None = None,
    *,
    num_blocks: int | None = None,
    memory_bytes: int | None = None,
    dtype: torch.dtype | None = None,
) -> KVPool:
    """A pool that many `FlashCache`s of `model` share, so that equal prefixes are computed once.

    `dtype` is the storage type (default: the model's). The weights are read once to name the model; create a new
    pool after changing them.
    """
    shape = model_shape(model.config, dtype or model.dtype)
    return KVPool.allocate(
        shape,
        policy,
        num_blocks=num_blocks,
        memory_bytes=memory_bytes,
        device=model.device,
        model_digest=model_digest(model),
        config_digest=config_digest(model.config),
    )


def cache_argument(model: PreTrainedModel, cache: Any) -> dict[str, Any]:
    """`cache` under the name that this version's `forward` and `generate` know it by."""
    parameters = inspect.signature(type(model).forward).parameters
    return {"cache" if "cache" in parameters else "past_key_values": cache}
