"""How many tokens a row may read.

Sparsity counts all bytes: s = 0.65 means that selected K and V and what the scoring read are 35 % of dense K and V.
"""

from __future__ import annotations

from deepseek_flash_cache.checks import require

FLOOR_TOKENS = 256  # below it short contexts lose the passages that a question asks for
MAX_SPARSITY = 0.82  # the 2-bit sketch leaves 10 % of the tokens there, the last point that kept retrieval working


def check_sparsity(sparsity: float, name: str = "sparsity_ratio") -> None:
    """ValueError unless 0 <= sparsity <= MAX_SPARSITY."""
    reason = "beyond it no rule kept what a question asks for" if sparsity > MAX_SPARSITY else "a share of the KV bytes"
    require(0.0 <= sparsity <= MAX_SPARSITY, name, sparsity, f"in [0, {MAX_SPARSITY}]: {reason}")


def token_budget(kv_len: int, sparsity: float, scoring_share: float, floor: int = FLOOR_TOKENS) -> int:
    """Tokens to select out of `kv_len`, forced ones included; kv_len or more means: read all, do not even score.

    scoring_share : bytes that scoring reads over bytes of dense K and V, see `Gate.scoring_share`.
    """
    check_sparsity(sparsity)
    if sparsity == 0.0:
        return kv_len
    return max(floor, int((1.0 - sparsity - scoring_share) * kv_len))
