"""The compiled extension, if there is one; the only import of it. See `native` for who calls it."""

from __future__ import annotations

import os
import warnings
from functools import lru_cache
from typing import Any

import torch  # before _C, so that both use torch's OpenMP runtime

from deepseek_flash_cache.layout import Layout

BUILD_COMMAND = "make build (or: pip install -e .)"

_C: Any = None
why_no_binary = "DFC_FORCE_SPEC=1"
if os.environ.get("DFC_FORCE_SPEC") != "1":
    try:
        from deepseek_flash_cache import _C  # type: ignore[attr-defined, no-redef, unused-ignore]
    except ImportError as error:
        why_no_binary = f"deepseek_flash_cache._C cannot be imported ({error}); build it with {BUILD_COMMAND}"
        warnings.warn(f"running the plain PyTorch specification, which is slow: {why_no_binary}", stacklevel=2)

# Numbers of csrc/api/params.h and csrc/layout/tile.h
FORMAT_CODES = {"linear": 0, "paired": 1, "swizzle": 2}
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}


@lru_cache(maxsize=1024)
def compiled(layout_id: str) -> Any:
    """The `_C.Layout` that mirrors `Layout.parse(layout_id)`."""
    layout = Layout.parse(layout_id)
    sizes = (layout.num_kv_heads, layout.head_size, layout.head_size_v, layout.block_size, layout.extent)
    zorder, tile_format = layout.tile_order == "zorder", FORMAT_CODES[layout.tile_format]
    return _C.Layout(DTYPE_CODES[layout.dtype], *sizes, zorder, tile_format)
