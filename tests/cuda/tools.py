"""The modules of tools/, which are no package: setup.py finds them by path, and so do the tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import compilers as compilers
import cubin_facts as cubin_facts
import cubins as cubins


def compiler(name: str = "") -> compilers.Compiler:
    """The compiler of this name, or any; skips the test where there is none."""
    try:
        return compilers.chosen(name)
    except compilers.CompileError as error:
        pytest.skip(str(error))


def need_disassembler() -> None:
    if cubin_facts.missing_tools():
        pytest.skip(cubin_facts.missing_tools())
