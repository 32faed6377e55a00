"""The gates by name. A new method is one class here: see `Gate` for what it has to say."""

from __future__ import annotations

from deepseek_flash_cache.checks import require
from deepseek_flash_cache.sparse.gates.base import GROUP_TOKENS, Gate, History
from deepseek_flash_cache.sparse.gates.literal import LiteralGate
from deepseek_flash_cache.sparse.gates.mean import MeanGate
from deepseek_flash_cache.sparse.gates.oracle import OracleGate
from deepseek_flash_cache.sparse.gates.sketch2 import Sketch2Gate

GATES: dict[str, Gate] = {gate.name: gate for gate in (Sketch2Gate(), MeanGate(), LiteralGate(), OracleGate())}


def gate_named(name: str) -> Gate:
    """ValueError for a name that no gate has."""
    require(name in GATES, "gate", name, f"one of {', '.join(GATES)}")
    return GATES[name]


__all__ = [
    "GATES",
    "GROUP_TOKENS",
    "Gate",
    "History",
    "LiteralGate",
    "MeanGate",
    "OracleGate",
    "Sketch2Gate",
    "gate_named",
]
