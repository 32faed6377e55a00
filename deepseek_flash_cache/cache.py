"""The KV pool of one model: one tensor per layer, one block pool for all layers, one layout per layer.

A block id means the same page in every layer, so one block table serves the whole model.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepseek_flash_cache import ops
from deepseek_flash_cache.config import LayoutPolicy, ModelShape
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.memory import allocate
from deepseek_flash_cache.pool import BlockPool

DEFAULT_MEMORY_SHARE = 0.25


@dataclass(frozen=True)
class KVPool:
    """All KV memory of one model.

    Parameters
    ----------
    layouts : list of Layout
        One per layer, all with equal `page_tokens`.
    tensors : list of Tensor
        One per layer: [num_blocks, num_kv_heads, k_tiles + v_tiles, block_size, tile_columns].
    blocks : BlockPool
        Who owns which block; its `block_size` is the layouts' `page_tokens`.
    model_digest : bytes
        32 bytes that stand for the weights. Blocks are reused only under an equal digest.
    config_digest : bytes
        Stands for the configuration of the only model that may use this pool; empty: the caller takes care.
    """

    layouts: Sequence[Layout]
    tensors: Sequence[Tensor]
    blocks: BlockPool
    model_digest: bytes = field(default_factory=lambda: os.urandom(32))
    config_digest: bytes = b""

    @staticmethod
    def allocate(
        shape: ModelShape,
        policy: LayoutPolicy | None = None,
        *,
        num_blocks: int | None = None,
        memory_bytes: int | None = None,
        device: torch.device | str = "cpu",
        watermark: int = 0,
        model_digest: bytes | None = None,
        config_digest: bytes = b"",
    ) -> KVPool:
        """Reserve `num_blocks` blocks, or as many as fit `memory_bytes` (default: a quarter of the free memory).

        On Linux CPUs the memory is committed when a block is first written. ValueError if not even one block fits,
        if both sizes are given, or if the policy does not fit the model.
        """
        layouts = (policy or LayoutPolicy()).layouts(shape, device)
        block_bytes = sum(layout.page_bytes for layout in layouts)
        if num_blocks is None:
            memory_bytes = default_memory_bytes(device) if memory_bytes is None else memory_bytes
            num_blocks = memory_bytes // block_bytes
        elif memory_bytes is not None:
            raise ValueError(f"memory_bytes: {memory_bytes} given together with num_blocks {num_blocks}; give one")
        if num_blocks < 1:
            size = f"{memory_bytes} bytes" if memory_bytes is not None else f"num_blocks {num_blocks}"
            raise ValueError(f"memory_bytes: {size} holds no block; one block takes {block_bytes} bytes")
        tensors = [allocate(layout.cache_shape(num_blocks), layout.dtype, device) for layout in layouts]
        blocks = BlockPool(num_blocks, layouts[0].page_tokens, watermark=watermark)
        return KVPool(layouts, tensors, blocks, model_digest or os.urandom(32), config_digest)

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    @property
    def layout_id(self) -> str:
        """The layers' layouts as one text, runs counted: part of every block's identity."""
        runs = itertools.groupby(layout.id for layout in self.layouts)
        return "+".join(f"{len(list(run))}x{layout_id}" for layout_id, run in runs)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return sum(layout.page_bytes for layout in self.layouts)

    @property
    def reserved_bytes(self) -> int:
        return self.blocks.num_blocks * self.block_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of blocks that some sequence holds."""
        return self.blocks.num_used * self.block_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of blocks that more than one sequence holds, each counted once."""
        return self.blocks.num_shared * self.block_bytes

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target) in every layer: copy-on-write."""
        if pairs:
            index = torch.tensor(pairs, dtype=torch.int64, device=self.device)
            for tensor, layout in zip(self.tensors, self.layouts, strict=True):
                ops.copy_blocks(tensor, tensor, index, layout)


def default_memory_bytes(device: torch.device | str) -> int:
    """A quarter of what is free on the device now."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * DEFAULT_MEMORY_SHARE)
    return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * DEFAULT_MEMORY_SHARE)
