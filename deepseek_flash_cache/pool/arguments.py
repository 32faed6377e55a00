"""What is an acceptable number? One check for every argument of the pool."""

from __future__ import annotations

import operator


def require_int(name: str, value: int, low: int, high: int | None = None, hint: str = "") -> int:
    """Return ``value`` as an int, or raise ValueError naming the argument, the value and the accepted range.

    ``high`` is inclusive; None means unbounded. ``hint`` ends the message with what the bound stands for.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if number < low or (high is not None and number > high):
        accepted = f"at least {low}" if high is None else f"in [{low}, {high}]"
        raise ValueError(f"{name} must be an integer {accepted}{hint and f' ({hint})'}, got {value!r}")
    return number
