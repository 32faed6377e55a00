"""The shared library itself: code of one ISA level must not serve another."""

import re
import shutil
import subprocess

import pytest

from deepseek_flash_cache import ops

pytestmark = pytest.mark.skipif(
    ops._C is None or shutil.which("nm") is None or shutil.which("objdump") is None,
    reason="needs the built extension and binutils",
)


def output(*command: str) -> str:
    return subprocess.run([*command, ops._C.__file__], capture_output=True, text=True, check=True).stdout


def functions_with_wide_registers() -> set[str]:
    """Demangled names of functions that use zmm or ymm registers."""
    found, name = set(), ""
    for line in output("objdump", "-d", "-C", "--no-show-raw-insn").splitlines():
        if match := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            name = match[1]
        elif "%zmm" in line or "%ymm" in line:
            found.add(name)
    return found


def test_wide_registers_appear_only_in_their_level():
    wide = functions_with_wide_registers()
    assert any("isa_avx512" in name for name in wide) or "avx512" not in ops._C.isa_levels()
    assert [name for name in wide if "isa_avx512" not in name and "isa_avx2" not in name] == []


def test_no_weak_symbol_of_a_level():
    """A weak symbol could be merged with another level's; kernels.cpp defines local ones only."""
    symbols = [line.split(maxsplit=2) for line in output("nm", "-C").splitlines()]
    weak = [parts[-1] for parts in symbols if len(parts) == 3 and parts[1] in "WVu"]
    assert [name for name in weak if "isa_" in name] == []


def test_openmp_is_linked_by_soname():
    assert "libgomp.so.1" in output("objdump", "-p")
