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
from deepseek_flash_cache.engines.transformers.models import (
    config_digest,
    model_shape,
    require_fixed_positions,
    require_served,
)
from deepseek_flash_cache.engines.transformers.ragged import is_left_padded
from deepseek_flash_cache.engines.transformers.step import Step, append_rows, counts_from_zero
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
        From `model_pool(model)`, to share memory and prefixes between caches; ValueError if it is another model's.
        Without it the cache makes a private pool at the first forward, with `policy` and at most a quarter of the
        free memory.
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
        require_served(config)
        if pool is not None and pool.config_digest not in (b"", config_digest(config)):
            raise ValueError("pool: belongs to another model than config; make one with model_pool(model)")
        super().__init__(layers=[FlashLayer(self, index) for index in range(config.num_hidden_layers)])
        self.config, self.pool = config, pool
        self._policy, self._memory_bytes = policy, memory_bytes  # what a private pool is made with
        self._tenant, self._adapter = tenant, adapter
        self.sequences: list[Sequence] = []
        self._clear()
        self._finalizer = weakref.finalize(self, _abandon_all, self.sequences)

    def _clear(self) -> None:
        self._prompts: list[list[int]] = []  # to be published once computed
        self._computed: list[int] = []  # tokens of each row that all layers have
        self._mask: Tensor | None = None  # bool [B, columns]: which columns hold tokens
        self._step: Step | None = None
        self._counts_from_zero = True  # are all tokens at the positions that the prefix index assumes?
        self._set_columns(0)

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
        self._computed = [0] * batch

    def _columns(self) -> int:
        columns: int = max(layer.columns for layer in self.layers)
        return columns

    def _set_columns(self, columns: int) -> None:
        for layer in self.layers:
            layer.columns = columns

    # One forward pass

    def step(self, layer: FlashLayer, keys: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None) -> Step:
        """Where this forward's tokens go; made by the first layer, reused by the others.

        PoolExhausted if the tokens do not fit, ValueError for a mask or positions that do not fit what is cached; the
        cache is then as it was before the forward.
        """
        columns = keys.shape[2]
        if self._step is not None and self._step.end == layer.columns and self._step.columns == columns:
            return self._step
        try:
            self._step = self._make_step(keys, layer.columns, attention_mask, position_ids)
        except Exception:
            layer.columns -= columns
            if self._mask is None:  # the first forward of this cache: its rows were opened for nothing
                self.reset()
            raise
        self._mask = self._step.mask
        return self._step

    def _make_step(self, keys: Tensor, end: int, attention_mask: Tensor | None, position_ids: Tensor | None) -> Step:
        batch, _, columns, _ = keys.shape
        pool = self.pool_for(keys)
        mask = self._full_mask(batch, end, attention_mask, keys.device)
        if not self.sequences:
            self._open(batch)
        own_places = counts_from_zero(position_ids, mask, columns)
        if not own_places and any(row.num_committed for row in self.sequences):
            raise ValueError(
                "position_ids: do not count the tokens of each row from 0, as the reused prefix does; pass those that "
                "generate makes from the attention mask, or do not call adopt_prefix"
            )
        step = append_rows(pool, self.sequences, mask, columns)
        self._counts_from_zero &= own_places  # others are never published
        return step

    def _full_mask(self, batch: int, end: int, attention_mask: Tensor | None, device: torch.device) -> Tensor:
        """bool [batch, end] for all columns, checked against what the rows hold already."""
        mask, rows = attention_mask, len(self.sequences) or batch
        if mask is None:
            mask = torch.ones(batch, end, dtype=torch.bool, device=device)
        if batch != rows or mask.shape != (batch, end):
            shape, expected = tuple(mask.shape), f"[{rows}, {end}]"
            raise ValueError(f"attention_mask: shape {shape} does not fit this cache; it must be {expected}")
        known = self._mask
        if known is not None and not torch.equal(mask[:, : known.shape[1]], known):
            raise ValueError("attention_mask: the columns already in the cache changed; they must stay as they were")
        return mask

    def finish(self, step: Step) -> None:
        """All layers have this step's tokens: they count as computed, and registered prompts are published."""
        self._computed = [max(*pair) for pair in zip(self._computed, step.kv_lens.tolist(), strict=True)]
        if self._prompts and self._counts_from_zero:
            for row, prompt, computed in zip(self.sequences, self._prompts, self._computed, strict=True):
                row.commit(prompt[: max(computed, row.num_committed)])
        if all(computed >= len(prompt) for computed, prompt in zip(self._computed, self._prompts, strict=False)):
            self._prompts = []

    # Prefix reuse

    def adopt_prefix(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> int:
        """Attach what the pool already holds of a left-padded batch of prompts. Call it once, before `generate`.

        input_ids, attention_mask : [batch, columns]. Returns the number of prompt tokens that need not be computed,
        over all rows. `generate` computes all rows from one column on, so a row may compute tokens again that it
        shares; they are not stored again. The prompts are published once computed. ValueError if the cache is in use
        or has no shared pool, or if the model's keys depend on more than tokens and positions.
        """
        require_fixed_positions(self.config)
        if self.pool is None or self.sequences:
            state = "is in use already" if self.sequences else "has no pool; pass pool=model_pool(model)"
            raise ValueError(f"cache: {state}; adopt_prefix works on a new FlashCache with a shared pool")
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        if not is_left_padded(mask) or not bool(mask[:, -1].all()):
            raise ValueError("attention_mask: must be left-padded (zeros, then ones up to the last column)")
        self._open(input_ids.shape[0])
        self._prompts = [ids[valid].tolist() for ids, valid in zip(input_ids, mask, strict=True)]
        paddings = (~mask).sum(dim=1).tolist()
        self._computed = [row.adopt_prefix(prompt) for row, prompt in zip(self.sequences, self._prompts, strict=True)]
        start = min(padding + adopted for padding, adopted in zip(paddings, self._computed, strict=True))
        self._set_columns(start)
        self._mask = mask[:, :start]
        return int(self._mask.sum())

    def commit(self, sequences: Rows[Rows[int]]) -> None:
        """Publish computed tokens for later turns: one list of token ids per row, without padding, from position 0.

        What `generate` returned for a row may be given whole: the last token, which no layer has seen, is left out.
        ValueError for other ids than were computed, as far as numbers tell (rows with padding are too long).
        """
        require_fixed_positions(self.config)
        if len(sequences) != len(self.sequences):
            raise ValueError(f"sequences: {len(sequences)} rows given, the cache holds {len(self.sequences)}")
        for index, (token_ids, computed) in enumerate(zip(sequences, self._computed, strict=True)):
            if len(token_ids) > computed + 1:
                most = f"at most {computed + 1} are accepted: {computed} computed ones without padding, and the last"
                raise ValueError(f"sequences[{index}]: {len(token_ids)} token ids given; {most}")
        if not self._counts_from_zero:
            raise ValueError("position_ids: of this cache's tokens did not count from 0, so they cannot be reused")
        for row, token_ids, computed in zip(self.sequences, sequences, self._computed, strict=True):
            row.commit(token_ids[:computed])

    # What generate does to a cache

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last `-tokens_to_remove` columns of every row; a positive value is the length to keep (4.x)."""
        columns = self._columns()
        removed = -tokens_to_remove if tokens_to_remove <= 0 else columns - tokens_to_remove
        removed = min(max(removed, 0), columns)
        if removed == 0 or self._mask is None:
            return
        self._mask = self._mask[:, : columns - removed]
        lengths = self._mask.sum(dim=1).tolist()
        for row, length in zip(self.sequences, lengths, strict=True):
            row.rollback(max(0, row.num_tokens - length))
        self._computed = [min(pair) for pair in zip(self._computed, lengths, strict=True)]
        self._prompts = [prompt[:length] for prompt, length in zip(self._prompts, lengths, strict=False)]
        self._step = None
        self._set_columns(columns - removed)

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
        old, chosen = list(self.sequences), indices.tolist()
        if any(not -len(old) <= index < len(old) for index in chosen):
            raise ValueError(f"indices: {chosen} are not all in [{-len(old)}, {len(old)}), the cache's rows")
        chosen = [index % len(old) for index in chosen]
        firsts = {index: place for place, index in reversed(list(enumerate(chosen)))}
        self.sequences[:] = [old[i] if firsts[i] == place else old[i].fork() for place, i in enumerate(chosen)]
        _free_all([row for index, row in enumerate(old) if index not in firsts])
        self._prompts = [self._prompts[index] for index in chosen] if self._prompts else []
        self._computed = [self._computed[index] for index in chosen]
        if self._mask is not None:
            self._mask = self._mask[torch.tensor(chosen, device=self._mask.device)]
        self._step = None

    def fork(self) -> FlashCache:
        """A second cache with the same past; blocks are shared and copied on write."""
        other = FlashCache(
            self.config,
            self.pool,
            policy=self._policy,
            memory_bytes=self._memory_bytes,
            tenant=self._tenant,
            adapter=self._adapter,
        )
        other.sequences.extend(row.fork() for row in self.sequences)
        other._prompts, other._computed, other._mask = list(self._prompts), list(self._computed), self._mask
        other._counts_from_zero = self._counts_from_zero
        other._set_columns(self._columns())
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> FlashCache:
        return self.fork()

    def reset(self) -> None:
        """Give all blocks back; the cache can be used again."""
        _free_all(self.sequences)
        self.sequences.clear()
        self._clear()

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
