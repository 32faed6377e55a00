"""One forward pass: where its tokens are written and what its queries read. Shared by all layers."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from deepseek_flash_cache.cache import KVPool
from deepseek_flash_cache.engines.transformers.ragged import RaggedBatch, is_left_padded
from deepseek_flash_cache.pool import PoolExhausted, Sequence


@dataclass(frozen=True)
class Step:
    """Arguments of `append` and `attend` for one forward pass."""

    mask: Tensor  # bool [B, all columns so far, this step's included]
    rows: RaggedBatch  # this step's columns
    slot_mapping: Tensor  # int64 [tokens]
    block_table: Tensor  # int32 [B, max_blocks]
    kv_lens: Tensor  # int32 [B]

    @property
    def end(self) -> int:
        return self.mask.shape[1]

    @cached_property
    def is_left_padded(self) -> bool:
        return is_left_padded(self.mask)

    @property
    def columns(self) -> int:
        return self.rows.mask.shape[1]

    @property
    def cu_seqlens_q(self) -> Tensor:
        return self.rows.cu_seqlens


def counts_from_zero(position_ids: Tensor | None, mask: Tensor, columns: int) -> bool:
    """Do the position ids of the last `columns` columns count every row's tokens from 0? Unknown ones do not.

    mask : bool [B, all columns so far]. Only such tokens' K may be reused at the same place of another sequence.
    """
    if position_ids is None:
        return False
    rank = (mask.long().cumsum(1) - 1)[:, mask.shape[1] - columns :]
    return bool(((position_ids == rank) | ~mask[:, mask.shape[1] - columns :]).all())


def append_rows(pool: KVPool, sequences: Rows[Sequence], mask: Tensor, columns: int) -> Step:
    """Give every row slots for its tokens of the last `columns` columns, copying shared blocks first.

    mask : bool [B, all columns so far]. Tokens that a row adopted from the prefix index but that are computed again,
    because another row needs the column, are not written again: their slot is -1.
    PoolExhausted if the tokens of all rows do not fit; every row is then as it was.
    """
    rows = RaggedBatch(mask[:, mask.shape[1] - columns :])
    kv_lens = mask.sum(dim=1, dtype=torch.int32)
    slots: list[int] = []
    copies: list[tuple[int, int]] = []
    grown: list[tuple[Sequence, int]] = []
    try:
        for sequence, length, count in zip(sequences, kv_lens.tolist(), rows.lengths.tolist(), strict=True):
            new = max(0, length - sequence.num_tokens)
            appended = sequence.append(new)
            grown.append((sequence, new))
            slots += [-1] * (count - new) + appended.slots
            copies += appended.copies
    except PoolExhausted:
        pool.copy(copies)
        for sequence, new in grown:
            sequence.rollback(new)
        raise
    pool.copy(copies)
    slot_mapping = torch.tensor(slots, dtype=torch.int64, device=pool.device)
    return Step(mask, rows, slot_mapping, _block_table(sequences, pool.device), kv_lens)


def _block_table(sequences: Rows[Sequence], device: torch.device) -> Tensor:
    """int32 [B, max_blocks]; short rows are filled with -1, which is never read."""
    width = max(len(sequence.block_table) for sequence in sequences)
    table = [sequence.block_table + [-1] * (width - len(sequence.block_table)) for sequence in sequences]
    return torch.tensor(table, dtype=torch.int32, device=device)
