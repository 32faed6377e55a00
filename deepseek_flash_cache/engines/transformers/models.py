"""Which models this engine serves, and what their configuration says about the cache."""

from __future__ import annotations

import hashlib
import inspect
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


def text_config(config: Any) -> Any:
    """The decoder's configuration. ValueError, by name, for a model this engine does not serve."""
    config = config.get_text_config(decoder=True)
    if config.model_type not in SUPPORTED_MODELS or getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"config.model_type: {config.model_type!r} is not served by the dfc cache; "
            f"served are {', '.join(SUPPORTED_MODELS)}. Use the stock cache and attn_implementation='sdpa'."
        )
    return config


def model_shape(config: Any, dtype: torch.dtype) -> ModelShape:
    """The cache shape of a transformers configuration whose K and V are stored as `dtype`."""
    config = text_config(config)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return ModelShape(config.num_hidden_layers, num_kv_heads, head_size, config.max_position_embeddings, dtype)


def model_digest(model: PreTrainedModel) -> bytes:
    """SHA-256 over configuration and every weight: equal only for models that compute equal K and V."""
    digest = hashlib.sha256(model.config.to_json_string(use_diff=False).encode())
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
    digest = model_digest(model)
    return KVPool.allocate(
        shape, policy, num_blocks=num_blocks, memory_bytes=memory_bytes, device=model.device, model_digest=digest
    )


def cache_argument(model: PreTrainedModel, cache: Any) -> dict[str, Any]:
    """`cache` under the name that this version's `forward` and `generate` know it by."""
    parameters = inspect.signature(type(model).forward).parameters
    return {"cache" if "cache" in parameters else "past_key_values": cache}
