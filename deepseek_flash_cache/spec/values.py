"""Checks of values that the operations of attention share: offsets, lengths and table entries."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

from deepseek_flash_cache.checks import require


def checked_starts(name: str, cu_seqlens: Tensor, total: int, rows: str) -> list[int]:
    """`cu_seqlens` as a list, if it cuts `total` rows into sequences."""
    starts: list[int] = cu_seqlens.tolist()
    ordered = starts[0] == 0 and all(a <= b for a, b in pairwise(starts)) and starts[-1] <= total
    require(ordered, name, starts, f"0 first, never decreasing, at most {total} (the {rows} rows)")
    return starts


def check_owned(lengths: list[int], starts: list[int]) -> None:
    """No sequence uses more rows than `starts` gives it."""
    for b, (length, (start, end)) in enumerate(zip(lengths, pairwise(starts), strict=True)):
        inside = 0 <= length <= end - start
        require(inside, f"kv_lens[{b}]", length, f"in [0, {end - start}], the rows cu_seqlens_k gives it")


def check_table(
    block_table: Tensor, first_keys: list[int], lengths: list[int], num_blocks: int, page_tokens: int
) -> None:
    """Keys [first, first + length) of every sequence lie in pages that exist."""
    room = block_table.shape[1] * page_tokens
    for b, (first, kv_len) in enumerate(zip(first_keys, lengths, strict=True)):
        require(0 <= first <= room, f"first_keys[{b}]", first, f"in [0, {room}], what block_table can hold")
        left = room - first
        require(0 <= kv_len <= left, f"kv_lens[{b}]", kv_len, f"in [0, {left}], what block_table can hold")
        used = range(first // page_tokens, -(-(first + kv_len) // page_tokens)) if kv_len else ()
        for index in used:
            block = int(block_table[b, index])
            inside = 0 <= block < num_blocks
            require(inside, f"block_table[{b}, {index}]", block, f"in [0, {num_blocks}), the pool's blocks")
