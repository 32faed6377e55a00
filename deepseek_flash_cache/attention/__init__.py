"""Functions compatible with flash-attention, on plain tensors and on the pool: see docs/attention.md.

FA2's are here; `fa3` and `vllm` hold those whose parameter lists differ.
"""

from deepseek_flash_cache.attention import fa2, fa3, vllm
from deepseek_flash_cache.attention.fa2 import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from deepseek_flash_cache.attention.paged import PagedKV

__all__ = [
    "PagedKV",
    "fa2",
    "fa3",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "vllm",
]
