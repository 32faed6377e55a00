"""One layer of a `FlashCache`, as transformers sees it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from deepseek_flash_cache import ops
from deepseek_flash_cache.engines.transformers.ragged import require_tokens_in_order

if TYPE_CHECKING:
    from deepseek_flash_cache.engines.transformers.cache import FlashCache


class CachedKeys:
    """What `FlashLayer.update` returns in place of the keys: the layer that has them, and the new ones.

    Only the attention function ``dfc`` understands it. Any other would see just the new tokens and answer wrongly,
    so every other use is refused.
    """

    def __init__(self, layer: FlashLayer, new: Tensor) -> None:
        self.layer = layer
        self.new = new

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_foreign_attention()

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse_foreign_attention()


def _refuse_foreign_attention() -> NoReturn:
    raise ValueError(
        "attn_implementation: FlashCache works only with 'dfc'; call model.set_attn_implementation('dfc') first"
    )


class FlashLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's view of a `FlashCache`: counts columns, and appends when attention knows the padding."""

    is_sliding = False
    is_croppable = True
    is_compileable = False
    supports_early_init = False

    def __init__(self, cache: FlashCache, index: int) -> None:
        super().__init__()
        self.is_initialized = True
        self._cache = weakref.ref(cache)
        self.index = index
        self.columns = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[CachedKeys, Tensor]:
        """Takes the new keys and values to the attention function, which knows which of them are padding."""
        self.columns += key_states.shape[2]
        return CachedKeys(self, key_states), value_states

    def attend(
        self,
        query: Tensor,
        keys: CachedKeys,
        value: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        options: dict[str, Any],
    ) -> Tensor:
        """Append the new tokens to the pool and attend to the whole history. [B, Q, H, Dv]."""
        cache = self._cache()
        assert cache is not None, "the cache outlives its layers' calls: transformers holds it"
        step = cache.step(self, keys.new, attention_mask, position_ids)
        if options["window_left"] >= 0:
            require_tokens_in_order(step.is_left_padded)
        pool = cache.pool_for(keys.new)
        layout, tensor = pool.layouts[self.index], pool.tensors[self.index]
        rows = step.rows
        ops.append(rows.pack(keys.new), rows.pack(value), tensor, step.slot_mapping, layout)
        result = ops.attend(
            rows.pack(query), tensor, step.block_table, step.cu_seqlens_q, step.kv_lens, layout, **options
        )
        if self.index == len(cache.layers) - 1:
            cache.finish(step)
        return rows.unpack(result.out)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the pool is there."""

    def get_seq_length(self, *args: Any) -> int:
        return self.columns

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        # transformers 4.x passes the tensor of cache positions, 5.x the query length
        length = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.columns + length, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in transformers 4.x

    def offload(self) -> NoReturn:
        raise ValueError("offloading: not served by FlashCache; its memory is the pool's, sized when it is made")

    prefetch = offload
