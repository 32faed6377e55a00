"""The specification behind the operations' schemas: for every device without compiled code, and for shapes alone."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from torch import Tensor

from deepseek_flash_cache import checks, spec
from deepseek_flash_cache.layout import Layout


def _with_layout(function: Callable[..., Any], layout_at: int) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        return function(*arguments[:layout_at], Layout.parse(arguments[layout_at]), *arguments[layout_at + 1 :])

    return run


append = _with_layout(spec.append, 4)
pack = _with_layout(spec.pack, 2)
unpack = _with_layout(spec.unpack, 2)
copy_blocks = _with_layout(spec.copy_blocks, 3)


# Attention: arguments in the order of the schemas

_MASK = "softmax_scale causal window_left window_right softcap k_scale v_scale"
_arguments: Any = namedtuple  # mypy wants literal names
_KEYWORDS = ("sinks", *_MASK.split())
Attend = _arguments(
    "Attend",
    f"query cache block_table cu_seqlens_q kv_lens sinks layout {_MASK} top_tokens out lse entropy top_mass"
    " max_seqlen_q",
    defaults=(0,),
)
AttendLinear = _arguments("AttendLinear", f"query key value cu_seqlens_q cu_seqlens_k kv_lens sinks {_MASK} out lse")
AttendPages = _arguments(
    "AttendPages", f"query key value block_table cu_seqlens_q kv_lens first_keys sinks {_MASK} out lse"
)


def _keywords(a: Any) -> dict[str, Any]:
    return {name: getattr(a, name) for name in _KEYWORDS}


def _write(a: Any, result: spec.Attention) -> None:
    """Copies the results to where the caller wants them; the inputs are checked by then."""
    checks.check_results(a.query, a.out, a.lse, result.out.shape[2])
    for name in ("out", "lse", "entropy", "top_mass"):
        target, source = getattr(a, name, None), getattr(result, name)
        if target is not None and source is not None:
            target.copy_(source)


def attend(*arguments: Any) -> None:
    a = Attend(*arguments)
    layout = Layout.parse(a.layout)
    tensors = a.query, a.cache, a.block_table, a.cu_seqlens_q, a.kv_lens
    _write(a, spec.attend(*tensors, layout, **_keywords(a), top_tokens=a.top_tokens))


def attend_linear(*arguments: Any) -> None:
    a = AttendLinear(*arguments)
    tensors = a.query, a.key, a.value, a.cu_seqlens_q, a.cu_seqlens_k, a.kv_lens
    _write(a, spec.attend_linear(*tensors, **_keywords(a)))


def attend_pages(*arguments: Any) -> None:
    a = AttendPages(*arguments)
    tensors = a.query, a.key, a.value, a.block_table, a.cu_seqlens_q, a.kv_lens, a.first_keys
    _write(a, spec.attend_pages(*tensors, **_keywords(a)))


# Results without their values


def empty_pages(key: Tensor, value: Tensor, layout: str, *scales: float) -> Tensor:
    """What `pack` returns."""
    parsed = Layout.parse(layout)
    return key.new_empty(parsed.cache_shape(-(-key.shape[0] // parsed.page_tokens)), dtype=parsed.dtype)


def empty_rows(pages: Tensor, length: int, layout: str) -> tuple[Tensor, Tensor]:
    """What `unpack` returns."""
    heads, sizes = Layout.parse(layout).num_kv_heads, (Layout.parse(layout).head_size, Layout.parse(layout).head_size_v)
    return pages.new_empty(length, heads, sizes[0]), pages.new_empty(length, heads, sizes[1])
