"""Hugging Face transformers (4.56 to 5.x): the attention function ``dfc`` and the cache `FlashCache`.

Importing this module registers ``dfc``::

    from deepseek_flash_cache.engines.transformers import FlashCache

    model.set_attn_implementation("dfc")
    with FlashCache(model.config) as cache:
        model.generate(**inputs, past_key_values=cache)
"""

from transformers import AttentionInterface, AttentionMaskInterface

from deepseek_flash_cache.engines.transformers.attention import dfc_attention, dfc_mask
from deepseek_flash_cache.engines.transformers.cache import FlashCache
from deepseek_flash_cache.engines.transformers.models import (
    SUPPORTED_MODELS,
    cache_argument,
    model_digest,
    model_pool,
    model_shape,
)

ATTENTION_NAME = "dfc"

AttentionInterface.register(ATTENTION_NAME, dfc_attention)
AttentionMaskInterface.register(ATTENTION_NAME, dfc_mask)

__all__ = [
    "ATTENTION_NAME",
    "SUPPORTED_MODELS",
    "FlashCache",
    "cache_argument",
    "dfc_attention",
    "dfc_mask",
    "model_digest",
    "model_pool",
    "model_shape",
]
