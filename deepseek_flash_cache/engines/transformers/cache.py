"""`FlashCache`: a transformers `Cache` whose layers live in our block pool."""

from __future__ import annotations

import weakref
from collections.abc import Sequence as Rows
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from deepseek_flash_cache.cache import KVPool
from deepseek_flash_cache.config import LayoutPolicy
from deepseek_flash_cache.engines.transformers.layer import FlashLayer
from deepseek_flash_cache.engines.transformers.models import model_shape, text_config
from deepseek_flash_cache.engines.transformers.step import Step, append_rows
from deepseek_flash_cache.pool import Adapter, CacheIdentity, Sequence


class FlashCache(Cache):  # type: ignore[misc]
    """A KV cache in block-interleaved pages for `model.generate(..., past_key_values=FlashCache(model.config))`.

    Padding is never stored. Beams share blocks and copy on write; rejected speculative tokens are rolled back. With
    a shared `pool`, `adopt_prefix` reuses what earlier caches computed and `commit` publishes answers for later turns.

    Parameters
    ----------
    config : PretrainedConfig
        `model.config`. ValueError, by name, for a model that is not served.
    pool : KVPool, optional
        From `model_pool(model)`, to share memory and prefixes between caches. Without it the cache makes a private
        pool at the first forward, with `policy` and at most a quarter of the free memory.
    policy : LayoutPolicy, optional
        Block sizes and tile order of the private pool.
    memory_bytes : int, optional
        Size of the private pool.
    tenant, adapter : optional
        Who may share prefixes, and the active LoRA adapter's content digest and scale; see `CacheIdentity`.

    Use as a context manager, or call `free`; a cache that is garbage collected gives its blocks back too.
    """

    def __init__(
        self,
        config: Any,
        pool: KVPool | None = None,
        *,
        policy: LayoutPolicy | None = None,
        memory_bytes: int | None = None,
        tenant: tuple[str, ...] = (),
        adapter: Adapter | None = None,
    ) -> None:
        self.config = text_config(config)
        super().__init__(layers=[FlashLayer(self, index) for index in range(self.config.num_hidden_layers)])
        self.pool = pool
        self._policy, self._memory_bytes = policy, memory_bytes
        self._tenant, self._adapter = tenant, adapter
        self._prompts: list[list[int]] = []
        self._column_mask: Tensor | None = None  # bool [B, columns]: which columns hold tokens
        self._step: Step | None = None
        self.sequences: list[Sequence] = []
        self._finalizer = weakref.finalize(self, _abandon_all, self.sequences)

    # The pool and its sequences

    def pool_for(self, states: Tensor) -> KVPool:
        """The pool, made for the dtype and device of `states` if there is none yet."""
        if self.pool is None:
            shape = model_shape(self.config, states.dtype)
            self.pool = KVPool.allocate(shape, self._policy, memory_bytes=self._memory_bytes, device=states.device)
        return self.pool

    def _open(self, batch: int) -> None:
        assert self.pool is not None
        identity = CacheIdentity(self.pool.layout_id, self.pool.model_digest, self._adapter, self._tenant)
        self.sequences.extend(self.pool.blocks.open(identity) for _ in range(batch))

    def _columns(self) -> int:
        columns: int = max(layer.columns for layer in self.layers)
        return columns

    def step(self, layer: FlashLayer, keys: Tensor, attention_mask: Tensor | None) -> Step:
        """Where this forward's tokens go; made by the first layer, reused by the others.

        PoolExhausted, with nothing kept, if the tokens do not fit.
        """
        batch, _, columns, _ = keys.shape
        if self._step is not None and self._step.end == layer.columns and self._step.columns == columns:
            return self._step
        pool = self.pool_for(keys)
        if not self.sequences:
            self._open(batch)
        mask = self._mask(batch, layer.columns, attention_mask, keys.device)
        try:
            self._step = append_rows(pool, self.sequences, mask, columns)
        except Exception:
            layer.columns -= columns
            raise
        self._column_mask = mask
        return self._step

    def _mask(self, batch: int, end: int, attention_mask: Tensor | None, device: torch.device) -> Tensor:
        """bool [batch, end] for all columns, checked against what the rows hold already."""
        mask = attention_mask
        if mask is None:
            mask = torch.ones(batch, end, dtype=torch.bool, device=device)
        if batch != len(self.sequences) or mask.shape != (batch, end):
            expected = f"[{len(self.sequences)}, {end}]"
            shape = tuple(mask.shape)
            raise ValueError(f"attention_mask: shape {shape} does not fit this cache; it must be {expected}")
        known = self._column_mask
        if known is not None and not torch.equal(mask[:, : known.shape[1]], known):
            raise ValueError("attention_mask: the columns already in the cache changed; they must stay as they were")
        return mask

    # Prefix reuse

    def adopt_prefix(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> int:
        """Attach what the pool already holds of a left-padded batch of prompts. Call it once, before `generate`.

        input_ids, attention_mask : [batch, columns]. Returns the number of prompt tokens that need not be computed,
        over all rows. `generate` computes all rows from one column on, so a row may compute tokens again that it
        shares; they are not stored again. The prompts are published once computed. ValueError if the cache is in use
        or has no shared pool.
        """
        if self.pool is None or self.sequences:
            state = "is in use already" if self.sequences else "has no pool; pass pool=model_pool(model)"
            raise ValueError(f"cache: {state}; adopt_prefix works on a new FlashCache with a shared pool")
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        if not bool((mask[:, :-1] <= mask[:, 1:]).all() and mask[:, -1].all()):
            raise ValueError("attention_mask: must be left-padded (zeros, then ones up to the last column)")
        self._open(input_ids.shape[0])
        self._prompts = [ids[valid].tolist() for ids, valid in zip(input_ids, mask, strict=True)]
        paddings = (~mask).sum(dim=1).tolist()
        rows = zip(self.sequences, self._prompts, paddings, strict=True)
        start = min(padding + sequence.adopt_prefix(prompt) for sequence, prompt, padding in rows)
        for layer in self.layers:
            layer.columns = start
        self._column_mask = mask[:, :start]
        return int(self._column_mask.sum())

    def publish_prompt(self) -> None:
        """Publish the full blocks of the prompts given to `adopt_prefix`, as far as all layers have computed them."""
        for sequence, prompt in zip(self.sequences, self._prompts, strict=False):
            sequence.commit(prompt[: sequence.num_tokens])
        if all(s.num_tokens >= len(p) for s, p in zip(self.sequences, self._prompts, strict=False)):
            self._prompts = []

    def commit(self, sequences: Rows[Rows[int]]) -> None:
        """Publish computed tokens for later turns: one list of token ids per row, without padding, from position 0.

        Ids past what is computed (the last generated token) are left out.
        """
        if len(sequences) != len(self.sequences):
            raise ValueError(f"sequences: {len(sequences)} rows given, the cache holds {len(self.sequences)}")
        for row, token_ids in zip(self.sequences, sequences, strict=True):
            row.commit(token_ids[: row.num_tokens])

    # What generate does to a cache

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last `-tokens_to_remove` columns of every row; a positive value is the length to keep (4.x)."""
        columns = self._columns()
        removed = -tokens_to_remove if tokens_to_remove <= 0 else columns - tokens_to_remove
        removed = min(max(removed, 0), columns)
        if removed == 0 or self._column_mask is None:
            return
        self._column_mask = self._column_mask[:, : columns - removed]
        for sequence, length in zip(self.sequences, self._column_mask.sum(dim=1).tolist(), strict=True):
            sequence.rollback(max(0, sequence.num_tokens - length))
        self._step = None
        for layer in self.layers:
            layer.columns -= removed

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes old row `beam_idx[i]`; beams with a common past share its blocks."""
        self._select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices` (integers or a bool mask)."""
        self._select(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times, blocks shared."""
        self._select(torch.arange(len(self.sequences)).repeat_interleave(repeats))

    def _select(self, indices: Tensor) -> None:
        if not self.sequences:
            return
        old, taken = list(self.sequences), set()
        self.sequences.clear()
        for index in indices.tolist():
            self.sequences.append(old[index].fork() if index in taken else old[index])
            taken.add(index)
        _free_all([sequence for index, sequence in enumerate(old) if index not in taken])
        self._prompts = [self._prompts[index] for index in indices.tolist()] if self._prompts else []
        if self._column_mask is not None:
            self._column_mask = self._column_mask[indices.to(self._column_mask.device)]
        self._step = None

    def fork(self) -> FlashCache:
        """A second cache with the same past; blocks are shared and copied on write."""
        other = FlashCache(self.config, self.pool, tenant=self._tenant, adapter=self._adapter)
        other.sequences.extend(sequence.fork() for sequence in self.sequences)
        other._column_mask = self._column_mask
        for layer in other.layers:
            layer.columns = self._columns()
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> FlashCache:
        return self.fork()

    def reset(self) -> None:
        """Give all blocks back; the cache can be used again."""
        _free_all(self.sequences)
        self.sequences.clear()
        self._prompts, self._column_mask, self._step = [], None, None
        for layer in self.layers:
            layer.columns = 0

    free = reset

    def __enter__(self) -> FlashCache:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.free()


def _abandon_all(sequences: list[Sequence]) -> None:
    for sequence in sequences:
        sequence.abandon()


def _free_all(sequences: list[Sequence]) -> None:
    for sequence in sequences:
        sequence.free()
