"""A KV-cache manager and attention kernels for LLM serving. Importing the package imports nothing heavy."""

from __future__ import annotations

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("deepseek-flash-cache")
