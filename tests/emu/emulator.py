"""The emulator's C ABI (csrc/emu/emu.h) from Python."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import torch

EAGER, LAZY, RANDOM = 0, 1, 2


class Options(ctypes.Structure):
    _fields_ = [(name, kind) for name, kind in (("seed", ctypes.c_uint64),)] + [
        (name, ctypes.c_int) for name in ("lazy_async", "detect_races", "trace")
    ]


class EmulatorError(RuntimeError):
    """A launch failed; the text names kernel, thread and place."""


class Emulator:
    """A library of emulated kernels."""

    def __init__(self, library: Path) -> None:
        self.path = library
        self._library = ctypes.CDLL(str(library))
        for name in ("message", "trace", "kernels"):
            getattr(self._library, f"dfc_emu_{name}").restype = ctypes.c_char_p
        self.configure()

    def configure(self, seed: int = 0, completion: int = LAZY, detect_races: bool = True, trace: bool = False) -> None:
        options = Options(seed, completion, detect_races, trace)
        self._library.dfc_emu_configure(ctypes.byref(options))

    def register(self, name: str, tensor: torch.Tensor, writable: bool = True) -> None:
        storage = tensor.untyped_storage()
        self.register_memory(name, storage.data_ptr(), storage.nbytes(), writable)

    def register_memory(self, name: str, start: int, size: int, writable: bool) -> None:
        place = ctypes.c_void_p(start)
        self._library.dfc_emu_register_buffer(place, ctypes.c_size_t(size), name.encode(), int(writable))

    def clear_buffers(self) -> None:
        self._library.dfc_emu_clear_buffers()

    def launch(self, kernel: str, grid: tuple[int, int, int], threads: int, shared_bytes: int, args: Any) -> None:
        """`args` is a ctypes.Structure. EmulatorError if the launch fails."""
        sizes = (ctypes.c_uint * 3)(*grid)
        size = ctypes.c_size_t(ctypes.sizeof(args))
        code = self._library.dfc_emu_launch(kernel.encode(), sizes, threads, shared_bytes, ctypes.byref(args), size)
        if code:
            raise EmulatorError(self.message)

    @property
    def message(self) -> str:
        return str(self._library.dfc_emu_message().decode())

    @property
    def kernels(self) -> list[str]:
        return self._library.dfc_emu_kernels().decode().split()

    def trace(self) -> list[dict[str, Any]]:
        return json.loads(self._library.dfc_emu_trace().decode())

    def clear_trace(self) -> None:
        self._library.dfc_emu_clear_trace()
