"""Configuration: what a model needs of a cache, and which tiles each layer gets.

The article behind this project warns that a wrong block size leaks memory. Here the policy picks one that fits,
and an explicit value that does not fit is refused before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from deepseek_flash_cache.layout import Layout, TileFormat, TileOrder, fitting_block_sizes

BlockSize = Literal["auto", 32, 64]
BLOCK_SIZE_CHOICES: tuple[BlockSize, ...] = ("auto", 32, 64)


@dataclass(frozen=True)
class ModelShape:
    """The part of a model's configuration that decides its KV cache.

    `context_length` is the longest sequence that will be served, in tokens; `head_size_v` defaults to `head_size`.
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    context_length: int
    dtype: torch.dtype
    head_size_v: int | None = None

    @property
    def value_size(self) -> int:
        return self.head_size if self.head_size_v is None else self.head_size_v


@dataclass(frozen=True)
class LayoutPolicy:
    """Chooses a `Layout` for every layer of a model.

    All layers of a model share one block table, so all have pages of the same number of tokens; a layer with
    32-row tiles in a pool of 64-token pages holds two blocks per page (extent 2).

    Parameters
    ----------
    block_size : "auto", 32 or 64
        "auto": 32 x 32 tiles for contexts up to `short_context` tokens, for the first `shallow_layers` layers and
        for head sizes not divisible by 64; 64 x 64 tiles otherwise (the article's rule).
    short_context : int
        Longest context, in tokens, that "auto" serves with 32-token pages.
    shallow_layers : int
        Number of first layers that "auto" gives 32-row tiles.
    tile_format : "auto", "linear", "paired" or "swizzle"
        "auto": what the device's kernels read fastest: "paired" for bf16 on CPUs, "swizzle" on GPUs, else "linear".
    """

    block_size: BlockSize = "auto"
    short_context: int = 1024
    shallow_layers: int = 2
    tile_order: TileOrder = "row"
    tile_format: TileFormat | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.block_size not in BLOCK_SIZE_CHOICES:
            raise ValueError(
                f"block_size: {self.block_size!r} is not accepted; choose one of {_listed(BLOCK_SIZE_CHOICES)}"
            )

    def page_tokens(self, shape: ModelShape) -> int:
        """Tokens per page, the same in every layer: 32 for short contexts or an explicit 32, else 64."""
        if self.block_size == "auto":
            return 32 if shape.context_length <= self.short_context else 64
        return self.block_size

    def layer_block_size(self, shape: ModelShape, layer: int) -> int:
        """Rows of layer `layer`'s tiles. ValueError if an explicit block size does not fit the model."""
        fitting = fitting_block_sizes(shape.head_size, shape.value_size)
        if self.block_size == "auto":
            small = layer < self.shallow_layers or 64 not in fitting
            return 32 if small else self.page_tokens(shape)
        if self.block_size not in fitting:
            raise ValueError(
                f"block_size: {self.block_size} does not fit head sizes {shape.head_size}/{shape.value_size}; "
                f"choose one of {_listed(('auto', *fitting))}"
            )
        return self.block_size

    def layouts(self, shape: ModelShape, device: torch.device | str = "cpu") -> list[Layout]:
        """One layout per layer, all with equal `page_tokens`, for pools on `device`."""
        return [self.layer_layout(shape, layer, device) for layer in range(shape.num_layers)]

    def layer_layout(self, shape: ModelShape, layer: int, device: torch.device | str = "cpu") -> Layout:
        """The layout of one layer."""
        size = self.layer_block_size(shape, layer)
        extent = self.page_tokens(shape) // size
        return self._layout(shape, size, extent, self._tile_format(shape, torch.device(device)))

    def _tile_format(self, shape: ModelShape, device: torch.device) -> TileFormat:
        if self.tile_format != "auto":
            return self.tile_format
        if device.type == "cuda":
            return "swizzle"
        return "paired" if shape.dtype == torch.bfloat16 else "linear"

    def _layout(self, shape: ModelShape, block_size: int, extent: int, tile_format: TileFormat) -> Layout:
        return Layout(
            shape.dtype,
            shape.num_kv_heads,
            shape.head_size,
            shape.value_size,
            block_size,
            extent,
            self.tile_order,
            tile_format,
        )


def _listed(choices: Iterable[object]) -> str:
    return ", ".join(map(str, choices))
