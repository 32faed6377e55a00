"""Padded batches as ragged ones: transformers pads rows to equal length, the kernels take them packed."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor


def is_left_padded(mask: Tensor) -> bool:
    """Are all rows of a bool [batch, columns] mask padding first, then tokens?"""
    return bool((mask[:, :-1] <= mask[:, 1:]).all())


def require_tokens_in_order(in_order: bool) -> None:
    """ValueError if a window would count differently in columns, as stock attention does, and in tokens, as we do."""
    if not in_order:
        raise ValueError(
            "attention_mask: a sliding window is served only over left-padded rows; got holes or right padding"
        )


class RaggedBatch:
    """Which columns of a padded batch hold tokens.

    Parameters
    ----------
    mask : bool Tensor [batch, columns]
        True where there is a token. Any pattern; the order of tokens in a row is kept.
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self.is_full = bool(mask.all())

    @cached_property
    def lengths(self) -> Tensor:
        """int32 [batch]: tokens per row."""
        return self.mask.sum(dim=1, dtype=torch.int32)

    @cached_property
    def cu_seqlens(self) -> Tensor:
        """int32 [batch + 1]."""
        ends = self.lengths.cumsum(0, dtype=torch.int32)
        return torch.cat([ends.new_zeros(1), ends])

    def pack(self, states: Tensor) -> Tensor:
        """[batch, heads, columns, size] -> [tokens, heads, size]."""
        if self.is_full and states.shape[2] == 1:  # a decode step, by one view
            return states.squeeze(2)
        rows = states.transpose(1, 2)
        return rows.flatten(0, 1) if self.is_full else rows[self.mask]

    def unpack(self, rows: Tensor) -> Tensor:
        """[tokens, heads, size] -> [batch, columns, heads, size], zeros where there is no token."""
        batch, columns = self.mask.shape
        if self.is_full:
            return rows.view(batch, columns, *rows.shape[1:])
        padded = rows.new_zeros(batch, columns, *rows.shape[1:])
        padded[self.mask] = rows
        return padded
