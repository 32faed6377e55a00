"""Registers the operations with torch.library under `dfc`.

Each has a schema, a fake implementation (torch.compile), the compiled implementations for CPUs and CUDA devices and,
for every other device, the specification.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepseek_flash_cache.ops import cuda, native, reference

_library = torch.library.Library("dfc", "DEF")


def _register_fake(name: str, fake: Callable[..., Any]) -> None:
    """torch 2.4 says register_fake, 2.2 impl_abstract; 2.1 takes a Meta kernel."""
    register = getattr(torch.library, "register_fake", None) or getattr(torch.library, "impl_abstract", None)
    if register is None:
        _library.impl(name, fake, "Meta")
    else:
        register(f"dfc::{name}")(fake)


def register(
    schema: str, cpu: Callable[..., Any], gpu: Callable[..., Any], elsewhere: Callable[..., Any], fake: Any = None
) -> None:
    """One operation under `dfc`: its implementations on CPUs, on CUDA devices and on all others."""
    name = schema.split("(", 1)[0]

    def shapes(*arguments: Any) -> Any:
        if len({a.device for a in arguments if isinstance(a, Tensor)}) > 1:
            elsewhere(*arguments)  # one meta tensor brings the call here; the checks refuse it
        return fake(*arguments) if fake else None

    _library.define(schema)
    _library.impl(name, cpu, "CPU")
    _library.impl(name, gpu, "CUDA")
    _library.impl(name, elsewhere, "CompositeExplicitAutograd")
    _register_fake(name, shapes)


def _register(schema: str, fake: Any = None) -> None:
    name = schema.split("(", 1)[0]
    register(schema, getattr(native, name), getattr(cuda, name), getattr(reference, name), fake)


_SCALES = "str layout, float k_scale, float v_scale"
_MASK = (
    "float softmax_scale, bool causal, int window_left, int window_right, float softcap, float k_scale, float v_scale"
)
_register(f"append(Tensor key, Tensor value, Tensor(a!) cache, Tensor slot_mapping, {_SCALES}) -> ()")
_register(
    "attend(Tensor query, Tensor cache, Tensor block_table, Tensor cu_seqlens_q, Tensor kv_lens, Tensor? sinks,"
    f" str layout, {_MASK}, int top_tokens, Tensor(a!) out, Tensor(b!)? lse, Tensor(c!)? entropy,"
    " Tensor(d!)? top_mass, int max_seqlen_q=0) -> ()"
)
_register(
    "attend_linear(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor? kv_lens,"
    f" Tensor? sinks, {_MASK}, Tensor(a!) out, Tensor(b!)? lse) -> ()"
)
_register(
    "attend_pages(Tensor query, Tensor key, Tensor value, Tensor block_table, Tensor cu_seqlens_q, Tensor kv_lens,"
    f" Tensor? first_keys, Tensor? sinks, {_MASK}, Tensor(a!) out, Tensor(b!)? lse) -> ()"
)
_register(f"pack(Tensor key, Tensor value, {_SCALES}) -> Tensor", reference.empty_pages)
_register(
    "unpack(Tensor pages, int length, str layout) -> (Tensor, Tensor)",
    reference.empty_rows,
)
_register("copy_blocks(Tensor source, Tensor(a!) target, Tensor pairs, str layout) -> ()")
