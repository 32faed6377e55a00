"""What a cubin says of its kernel: registers, memory, instructions, and how many blocks fit on an SM.

cuobjdump and nvdisasm come from NVIDIA's toolkit or the package index (nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm).
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Instructions that are counted: tensor cores, loads of operands from shared memory, asynchronous copies, local memory
MNEMONICS = ("HMMA", "HGMMA", "LDSM", "LDGSTS", "UBLKCP", "LDL", "STL")


@dataclass(frozen=True)
class Limits:
    """Of one SM, from the table of compute capabilities in NVIDIA's programming guide."""

    warps: int
    blocks: int
    shared: int  # bytes
    registers: int = 65536


LIMITS = {
    "80": Limits(64, 32, 164 << 10),
    "86": Limits(48, 16, 100 << 10),
    "89": Limits(48, 24, 100 << 10),
    "90": Limits(64, 32, 228 << 10),
    "100": Limits(64, 32, 228 << 10),
    "120": Limits(48, 24, 100 << 10),
}
RESERVED_SHARED = 1024  # per block, by the system
REGISTER_UNIT = 256  # registers are handed to warps in such units


def occupancy(arch: str, registers: int, threads: int, shared: int) -> int:
    """Blocks that fit on one SM; 0 for an architecture without known limits."""
    limits = LIMITS.get(arch.rstrip("af"))
    if limits is None:
        return 0
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = limits.registers // 4 // per_warp * 4 // warps  # an SM has four parts, a warp stays in one
    by_shared = limits.shared // (shared + RESERVED_SHARED)
    return min(limits.blocks, limits.warps // warps, by_registers, by_shared)


def tool(name: str) -> Path | None:
    """A program of the toolkit: of the packages, else of the PATH."""
    packaged = (Path(entry) / "nvidia" / "cu13" / "bin" / name for entry in sys.path)
    found = next((path for path in packaged if path.exists()), None) or shutil.which(name)
    return None if found is None else Path(found)


def missing_tools() -> str:
    """Which program is missing and how to get it; empty if none is."""
    lacking = [name for name in ("cuobjdump", "nvdisasm") if tool(name) is None]
    names = " ".join(f"nvidia-cuda-{name}" for name in lacking)
    return f"{' and '.join(lacking)} not found: pip install {names}" if lacking else ""


def _dump(option: str, cubin: Path) -> str:
    program, disassembler = tool("cuobjdump"), tool("nvdisasm")
    if program is None or disassembler is None:
        raise RuntimeError(missing_tools())
    path = os.pathsep.join([str(disassembler.parent), os.environ.get("PATH", "")])
    command = [str(program), option, str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PATH": path}).stdout


def section(cubin: bytes, wanted: str) -> bytes:
    """A section of a 64-bit ELF file; empty if there is none of that name."""
    start, size, count, names = struct.unpack_from("<Q10xHHH", cubin, 0x28)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    strings = headers[names][4]
    for name, _, _, _, offset, length in headers:
        end = cubin.index(b"\0", strings + name)
        if cubin[strings + name : end].decode() == wanted:
            return cubin[offset : offset + length]
    return b""


def facts(cubin: Path, arch: str, log: str = "") -> dict[str, int]:
    """All that is reported of one cubin; `log` is what the assembler said, the only source for spills."""
    usage = {
        name: int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", _dump("-res-usage", cubin))
    }
    code = _dump("-sass", cubin)
    plan = section(cubin.read_bytes(), ".nv.constant3")
    threads, dynamic = struct.unpack("<2i", plan[:8]) if len(plan) >= 8 else (0, 0)
    blocks = occupancy(arch, usage["REG"], threads, usage["SHARED"] + dynamic) if threads else 0
    return {
        "registers": usage["REG"],
        "stack": usage["STACK"],
        "local": usage["LOCAL"],
        "shared": usage["SHARED"],
        "dynamic_shared": dynamic,
        "threads": threads,
        "blocks_per_sm": blocks,
        "spills": sum(map(int, re.findall(r"(\d+) bytes spill", log))),
        **{name: len(re.findall(rf"\b{name}\b", code)) for name in MNEMONICS},
    }


def uses_local_memory(row: dict[str, int]) -> bool:
    return any(row[name] for name in ("spills", "stack", "local", "LDL", "STL"))
