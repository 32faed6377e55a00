"""Runs the CUDA implementations of the operations on CPU tensors, their kernels in the emulator of csrc/emu.

    with emulated(seed=3, sm_count=7):
        ops.append(...)     # the code of ops/cuda.py, csrc/cuda/*/plan.cpp and the kernels

Every tensor that an operation is given or makes is registered with the emulator: kernels may touch nothing else,
and may write only what the operation's schema says is written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from deepseek_flash_cache import ops
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.ops import cuda
from tests.emu import build
from tests.emu.emulator import EAGER as EAGER
from tests.emu.emulator import LAZY, Emulator, EmulatorError
from tests.emu.emulator import RANDOM as RANDOM

SHARED_LIMITS = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}

READS_MEMORY = (torch.ops.aten._local_scalar_dense, torch.ops.aten.equal, torch.ops.aten.nonzero)


@lru_cache(maxsize=8)
def emulator_with(name: str = "dfc_emu", *more_sources: str) -> Emulator:
    """The emulator with every kernel of instances.def and those of `more_sources`; skips the test where there is no
    compiler to build it."""
    if ops._C is None:
        pytest.skip("the extension is not built")
    if shutil.which(build.CXX) is None:
        pytest.skip(f"{build.CXX} was not found")
    return Emulator(build.build(name, (build.KERNELS, *more_sources)))


@lru_cache(maxsize=256)
def open_launcher(path: str, sm_count: int, arch: int) -> Any:
    return ops._C.open_emulator(path, sm_count, arch, SHARED_LIMITS[arch])


@dataclass
class Buffers:
    """What kernels may touch during one operation."""

    emulator: Emulator
    spans: list[tuple[int, int, str, bool]] = field(default_factory=list)  # start, end, name, writable

    def add(self, tensor: Any, name: str, writable: bool) -> None:
        if not isinstance(tensor, Tensor) or tensor.numel() == 0:
            return
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        start, end = tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
        apart = []
        for span in self.spans:  # one memory may be several arguments, such as a pool copied within itself
            if span[0] < end and start < span[1]:
                start, end, writable = min(start, span[0]), max(end, span[1]), writable or span[3]
            else:
                apart.append(span)
        self.spans = [*apart, (start, end, name, writable)]
        self.register()

    def register(self) -> None:
        self.emulator.clear_buffers()
        for start, end, name, writable in self.spans:
            self.emulator.register_memory(name, start, end - start, writable)


class _Made(TorchDispatchMode):
    """Registers what an implementation makes itself: results, contiguous copies, workspaces."""

    def __init__(self, buffers: Buffers) -> None:
        super().__init__()
        self.buffers = buffers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads = func.overloadpacket in READS_MEMORY
        assert not reads, f"{func}: a CUDA implementation may not read device memory, a graph could not capture it"
        made = func(*args, **(kwargs or {}))
        self.buffers.add(made, "workspace", True)
        return made


class _Emulated(TorchDispatchMode):
    """Sends the operations of `dfc` to the CUDA implementations, whatever device their tensors are on."""

    def __init__(self, emulator: Emulator) -> None:
        super().__init__()
        self.emulator = emulator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "dfc":
            return func(*args, **(kwargs or {}))
        buffers = Buffers(self.emulator)
        for value, argument in zip(args, func._schema.arguments, strict=False):
            writable = argument.alias_info is not None and argument.alias_info.is_write
            buffers.add(value, argument.name, writable)
        try:
            with _Made(buffers):
                return getattr(cuda, func._schema.name.removeprefix("dfc::"))(*args, **(kwargs or {}))
        except RuntimeError as error:
            whole = self.emulator.message  # what the operation raises is cut after 255 characters
            raise EmulatorError(whole) if whole.startswith(str(error)[:200]) else error from None
        finally:
            self.emulator.clear_buffers()


@dataclass(frozen=True)
class Emulation:
    """What `emulated` gives: the launcher, and what the kernels did."""

    launcher: Any
    emulator: Emulator

    def backend(self, op: str, layout: Layout) -> str:
        """What serves an operation here: "CUDA ..." or "spec ..." with the reason."""
        return cuda.backend(op, torch.device("cuda", 0), layout)

    def trace(self) -> list[dict[str, Any]]:
        """Accesses by place in the source; needs trace=True. See dfc_emu_trace."""
        return self.emulator.trace()


@contextmanager
def emulated(
    seed: int = 0,
    completion: int = LAZY,
    races: bool = True,
    trace: bool = False,
    sm_count: int = 132,
    arch: int = 90,
    emulator: Emulator | None = None,
) -> Iterator[Emulation]:
    """Within it the operations run as on a CUDA device of `arch` with `sm_count` SMs.

    `seed` orders blocks and warps, `completion` says when asynchronous copies land; see csrc/emu/emu.h. `emulator` is
    another one than that of instances.def.
    """
    emulator = emulator or emulator_with()
    emulator.clear_trace()
    emulator.configure(seed, completion, races, trace)
    before, cuda.emulator = cuda.emulator, open_launcher(str(emulator.path), sm_count, arch)
    try:
        with _Emulated(emulator):
            yield Emulation(cuda.emulator, emulator)
    finally:
        cuda.emulator = before
