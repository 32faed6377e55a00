"""Appends beside the computation: on a CUDA stream of their own, ordered by events.

A layer's K and V are ready long before its pool is read by the next step; writing them need not hold up the layers that
follow. `AppendStream.append` waits for the work that produced the rows, nothing after it; `wait` makes the reader's
stream wait for every append so far.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from deepseek_flash_cache import ops
from deepseek_flash_cache.checks import require
from deepseek_flash_cache.layout import Layout


class Streams(Protocol):
    """What is needed of torch.cuda; tests give another one."""

    def new(self) -> Any: ...
    def current(self) -> Any: ...
    def event(self) -> Any: ...
    def use(self, stream: Any) -> AbstractContextManager[Any]: ...
    def keep(self, tensor: Tensor, stream: Any) -> None: ...


class CudaStreams:
    """torch's streams of one device."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)

    def new(self) -> Any:
        return torch.cuda.Stream(self._device)

    def current(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def event(self) -> Any:
        return torch.cuda.Event()

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """The allocator may not give the tensor's memory to the computing stream while `stream` still reads it."""
        tensor.record_stream(stream)


class AppendStream:
    """Runs `ops.append` on a stream of its own.

    Parameters
    ----------
    device : torch.device or str
        Where the pool is.
    streams : Streams, optional
        Where streams and events come from; by default torch's.
    """

    def __init__(self, device: torch.device | str, streams: Streams | None = None) -> None:
        self._streams = CudaStreams(device) if streams is None else streams
        self._stream = self._streams.new()
        self._ready, self._done = self._streams.event(), self._streams.event()
        self._pending = False

    def append(
        self,
        key: Tensor,
        value: Tensor,
        cache: Tensor,
        slot_mapping: Tensor,
        layout: Layout,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        *,
        reused_tokens: int = 0,
    ) -> None:
        """`ops.append`, after what the current stream has been given so far and beside what it is given next.

        The first `reused_tokens` rows belong to blocks that the pool holds already, of a prefix that was computed
        before; they are neither read nor written again. The rows must not be overwritten before `wait`.
        """
        fits = 0 <= reused_tokens <= slot_mapping.shape[0]
        require(fits, "reused_tokens", reused_tokens, f"in [0, {slot_mapping.shape[0]}], the rows to append")
        if reused_tokens == slot_mapping.shape[0]:
            return
        rows = key[reused_tokens:], value[reused_tokens:], cache, slot_mapping[reused_tokens:]
        self._ready.record(self._streams.current())
        self._stream.wait_event(self._ready)
        with self._streams.use(self._stream):
            ops.append(*rows, layout, k_scale, v_scale)
        for tensor in rows:
            self._streams.keep(tensor, self._stream)
        self._done.record(self._stream)
        self._pending = True

    def wait(self) -> None:
        """The current stream's next work, such as `ops.attend`, runs after every append so far."""
        if self._pending:
            self._streams.current().wait_event(self._done)
            self._pending = False
