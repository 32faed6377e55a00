"""HySparse: query-aware sparse decode. A gate scores the history, and only the tokens that matter are read.

    gates/     how a token's weight is estimated, and the side data that takes
    budget     how many tokens a row may read
    policy     which layers of which requests are sparse, and how much
    guard      when a request reads too little: more budget, or all of it

What the operations do with them is specified in `spec.selection`.
"""

from deepseek_flash_cache.sparse.budget import FLOOR_TOKENS, MAX_SPARSITY, token_budget
from deepseek_flash_cache.sparse.gates import GATES, Gate, gate_named
from deepseek_flash_cache.sparse.guard import Guard, Level
from deepseek_flash_cache.sparse.policy import LayerRange, RequestPlan, SparsePolicy, SparseRequest

__all__ = [
    "FLOOR_TOKENS",
    "GATES",
    "MAX_SPARSITY",
    "Gate",
    "Guard",
    "LayerRange",
    "Level",
    "RequestPlan",
    "SparsePolicy",
    "SparseRequest",
    "gate_named",
    "token_budget",
]
