"""Which layers of which requests are sparse, and how much: the operator's defaults, a request's wishes, the limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

import torch

from deepseek_flash_cache.checks import FP8_DTYPES, require
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.pool.identity import DENSE
from deepseek_flash_cache.sparse.budget import FLOOR_TOKENS, check_sparsity, token_budget
from deepseek_flash_cache.sparse.gates import Gate, gate_named

Mode = Literal["dense", "sparse"]
MODES: tuple[Mode, ...] = ("dense", "sparse")
DENSE_LAYERS = 2  # layers 0 and 1 attend flatly: sparse they cost accuracy, and save little
DENSE_BELOW_TOKENS = 768  # shorter histories are read faster than they are scored
_RANGE = re.compile(r"(\d+)(?:-(\d+))?:(dense|0?\.\d+|[01](?:\.0*)?)")


@dataclass(frozen=True)
class LayerRange:
    """Layers first..last, both included, at one sparsity; 0 is dense."""

    first: int
    last: int
    sparsity: float

    @classmethod
    def parse(cls, text: str) -> tuple[LayerRange, ...]:
        """`0-1:dense,2-29:0.65` as ranges. ValueError names the part that cannot be read."""
        return tuple(cls._parse_one(part.strip()) for part in text.split(",") if part.strip())

    @classmethod
    def _parse_one(cls, part: str) -> LayerRange:
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ValueError(f"layers: {part!r} is not accepted; write ranges such as 0-1:dense,2-29:0.65")
        first, last = int(found[1]), int(found[2] or found[1])
        sparsity = 0.0 if found[3] == "dense" else float(found[3])
        require(first <= last, "layers", part, "a range whose first layer is not behind its last")
        check_sparsity(sparsity, "layers")
        return cls(first, last, sparsity)


@dataclass(frozen=True)
class SparseRequest:
    """What one request asks for; None leaves it to the operator's defaults.

    `enable_sg` asks for the structure-aware mode, which protects tokens at syntax boundaries of code.
    """

    mode: Mode | None = None
    sparsity_ratio: float | None = None
    layers: tuple[LayerRange, ...] | None = None
    enable_sg: bool | None = None

    def __post_init__(self) -> None:
        require(self.mode is None or self.mode in MODES, "mode", self.mode, f"one of {', '.join(MODES)}")
        if self.sparsity_ratio is not None:
            check_sparsity(self.sparsity_ratio)


@dataclass(frozen=True)
class RequestPlan:
    """What a request gets: a gate, and one sparsity per layer (0: dense)."""

    gate: Gate
    sparsity: tuple[float, ...]
    enable_sg: bool = False
    dense_below: int = DENSE_BELOW_TOKENS
    floor: int = FLOOR_TOKENS

    @property
    def is_dense(self) -> bool:
        return not any(self.sparsity)

    @property
    def mode(self) -> str:
        """What K and V are computed under, for block identities: equal texts may share blocks."""
        if self.is_dense:
            return DENSE
        runs = ",".join(f"{a}-{b}:{s:g}" for a, b, s in _runs(self.sparsity))
        return f"{self.gate.kind}:{runs};{self.dense_below};{self.floor};{'sg' if self.enable_sg else ''}"

    def budget(self, layer: int, kv_len: int, layout: Layout, factor: float = 1.0) -> int:
        """Tokens that a decode row of this request reads in `layer`; kv_len: all. `factor` is the guard's."""
        sparsity = self.sparsity[layer]
        if sparsity == 0.0 or kv_len < self.dense_below:
            return kv_len
        wanted = token_budget(kv_len, sparsity, self.gate.scoring_share(layout), self.floor)
        return int(min(kv_len, wanted * factor))


def _runs(values: tuple[float, ...]) -> list[tuple[int, int, float]]:
    """(first, last, value) of the runs of equal neighbours."""
    starts = [i for i, value in enumerate(values) if i == 0 or values[i - 1] != value]
    ends = [*(start - 1 for start in starts[1:]), len(values) - 1]
    return [(start, end, values[start]) for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class SparsePolicy:
    """The operator's side. `plan` turns a request into what it gets.

    Parameters
    ----------
    num_layers : int
        Layers of the model.
    sparsity_ratio : float
        Default of the sparse layers; 0 serves all requests dense unless they ask otherwise.
    layers : tuple of LayerRange, optional
        Default ranges. Without them layers 0 and 1 are dense and all others sparse.
    gate : str
        Name of the gate, see `GATES`.
    enable_sg : bool
        Default of the structure-aware mode.
    dense_below, floor : int
        Histories shorter than `dense_below` tokens are read whole; never fewer than `floor` tokens are read.
    allow_quantised : bool
        Serve sparse on fp8 KV or INT4 weights. Both errors add up, so it is refused unless asked for.
    """

    num_layers: int
    sparsity_ratio: float = 0.0
    layers: tuple[LayerRange, ...] | None = None
    gate: str = "sketch2"
    enable_sg: bool = False
    dense_below: int = DENSE_BELOW_TOKENS
    floor: int = FLOOR_TOKENS
    allow_quantised: bool = False
    _gate: Gate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self.num_layers > 0, "num_layers", self.num_layers, "at least 1")
        check_sparsity(self.sparsity_ratio)
        for name in ("dense_below", "floor"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "a number of tokens")
        object.__setattr__(self, "_gate", gate_named(self.gate))
        self._check_ranges(self.layers or ())

    def plan(self, request: SparseRequest | None = None) -> RequestPlan:
        """What `request` gets. ValueError for layers that the model does not have."""
        request = request or SparseRequest()
        sparsity = self.sparsity_ratio if request.sparsity_ratio is None else request.sparsity_ratio
        enable_sg = self.enable_sg if request.enable_sg is None else request.enable_sg
        if request.mode == "dense":
            sparsities = (0.0,) * self.num_layers
        elif request.layers is not None:
            sparsities = self._of_ranges(request.layers)
        elif self.layers is not None and request.sparsity_ratio is None:
            sparsities = self._of_ranges(self.layers)
        else:
            sparsities = tuple(0.0 if i < DENSE_LAYERS else sparsity for i in range(self.num_layers))
        return RequestPlan(self._gate, sparsities, enable_sg, self.dense_below, self.floor)

    def _check_ranges(self, ranges: tuple[LayerRange, ...]) -> None:
        for part in ranges:
            accepted = f"below {self.num_layers}, the model's number of layers"
            require(part.last < self.num_layers, "layers", f"{part.first}-{part.last}", accepted)

    def _of_ranges(self, ranges: tuple[LayerRange, ...]) -> tuple[float, ...]:
        """Layers in no range are dense; later ranges win."""
        self._check_ranges(ranges)
        sparsities = [0.0] * self.num_layers
        for part in ranges:
            sparsities[part.first : part.last + 1] = [part.sparsity] * (part.last + 1 - part.first)
        return tuple(sparsities)

    def require_layout(self, layout: Layout) -> None:
        """ValueError, with the fix, if pools of this layout cannot be served sparse."""
        reason = self._gate.unsupported(layout)
        if reason:
            raise ValueError(f"layout: {layout.id} cannot be sparse with gate {self.gate}: {reason}")
        self.require_precision(layout.dtype)

    def require_precision(self, kv_dtype: torch.dtype, weight_bits: int = 16) -> None:
        """ValueError for fp8 KV or weights of fewer than 8 bits, unless `allow_quantised`."""
        if self.allow_quantised:
            return
        fix = "serve dense, or set allow_quantised (the errors of quantisation and selection add up)"
        require(kv_dtype not in FP8_DTYPES, "kv cache dtype", kv_dtype, f"16 or 32 bits with sparse decode; {fix}")
        require(weight_bits >= 8, "weight bits", weight_bits, f"8 or more with sparse decode; {fix}")
