"""What flash-attention's arguments may say here: refusals by name, and the options that every function shares."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from deepseek_flash_cache.checks import FP8_DTYPES, require

Options = dict[str, Any]  # keywords of ops.attend, ops.attend_linear and ops.attend_pages


def only(name: str, value: object, neutral: object, why: str) -> None:
    """Refuses `value` unless it is the one value under which the argument does nothing."""
    if value is neutral or (not isinstance(value, Tensor) and value == neutral):
        return
    shown = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else value
    require(False, name, shown, f"{neutral}: {why}")


def options(
    q: Tensor,
    softmax_scale: float | None,
    causal: bool,
    window_size: Sequence[int] | None,
    softcap: float,
    sinks: Tensor | None = None,
) -> Options:
    require(isinstance(q, Tensor) and q.dim() >= 3, "q", type(q).__name__, "a tensor [..., nheads, headdim]")
    trains = torch.is_grad_enabled() and q.requires_grad
    require(not trains, "q requires_grad", True, "False: inference only; call it under torch.no_grad()")
    left, right = _window(window_size)
    return {
        "softmax_scale": q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale),
        "causal": bool(causal),
        "window_left": left,
        "window_right": right,
        "softcap": float(softcap or 0.0),
        "sinks": sinks,
    }


def _window(window_size: Sequence[int] | None) -> tuple[int, int]:
    """Negative sizes are no limit."""
    if window_size is None:
        return -1, -1
    pair = (
        isinstance(window_size, Sequence)
        and len(window_size) == 2
        and all(isinstance(size, int) for size in window_size)
    )
    require(pair, "window_size", window_size, "two integers (left, right), -1 for no limit")
    return max(window_size[0], -1), max(window_size[1], -1)


def descale(name: str, value: Tensor | None, stored: Tensor) -> float:
    """FA3's factors [batch, nheads_k] of fp8 keys or values as the one factor that the kernels take."""
    if value is None:
        return 1.0
    fp8 = stored.dtype in FP8_DTYPES
    require(fp8, name, f"tensor of shape {tuple(value.shape)}", f"None for {stored.dtype}; descales belong to fp8")
    factors = value.float().unique().tolist()
    require(len(factors) == 1, name, factors, "the same factor for every sequence and head")
    return float(factors[0])


def last_contiguous(tensor: Any) -> Any:
    """As flash-attention does: a copy only if the columns are not contiguous."""
    strided = isinstance(tensor, Tensor) and tensor.dim() > 0 and tensor.stride(-1) != 1
    return tensor.contiguous() if strided else tensor


def check_dims(name: str, tensor: Any, *dims: str) -> None:
    right = isinstance(tensor, Tensor) and tensor.dim() == len(dims)
    shown = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
    require(right, f"{name} shape", shown, f"[{', '.join(dims)}]")


@contextmanager
def renamed(names: dict[str, str]) -> Any:
    """A ValueError of an operation names flash-attention's argument instead of ours."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        for ours, theirs in names.items():
            if text.startswith((f"{ours} ", f"{ours}[", f"{ours}:")):
                raise ValueError(theirs + text[len(ours) :]) from None
        raise
