"""Cubins: what is built, when it is built again, and what the compilers make of the kernels."""

import json
import re
import struct
from pathlib import Path

import pytest

from tests.cuda import tools
from tests.cuda.tools import compilers, cubin_facts, cubins

QUICK = ("append_bytes", "append_fp16_e4m3", "unpack", "copy_blocks")


def one_of_each() -> list[str]:
    """One instance of every attention kernel, the one with the shortest name, and every storage kernel."""
    chosen: dict[str, str] = {}
    for name in sorted(cubins.kernels(), key=lambda name: (len(name), name)):
        family = re.match(r"attend_(decode_bulk|[a-z]+)|\w+", name)
        assert family is not None
        chosen.setdefault(family[0], name)
    return list(chosen.values())


class Recorder:
    """A compiler that writes what it is asked instead of compiling."""

    version = "recorder 1"

    def __init__(self, failing: str = ""):
        self.asked, self.failing = [], failing

    def compile(self, kernel: str, arch: str, target: Path) -> str:
        self.asked.append(f"{kernel}.{arch}")
        if kernel == self.failing:
            raise compilers.CompileError(f"{kernel}: no")
        target.write_text(kernel)
        return "Used 7 registers"


@pytest.fixture
def records(tmp_path, monkeypatch):
    monkeypatch.setattr(cubins, "RECORDS", tmp_path / "records")
    return tmp_path


JOBS = [cubins.Job("unpack", "80"), cubins.Job("unpack", "90a")]


def test_only_what_is_not_current_is_built(records):
    compiler, folder = Recorder(), records / "cubins"
    first = cubins.build(folder, JOBS, compiler)
    assert compiler.asked == ["unpack.80", "unpack.90a"]
    assert sorted(path.name for path in folder.iterdir()) == ["unpack.sm_80.cubin", "unpack.sm_90a.cubin"]
    second = cubins.build(folder, JOBS, compiler)
    assert len(compiler.asked) == 2 and [one.log for one in second] == [one.log for one in first]
    (folder / "unpack.sm_80.cubin").unlink()
    cubins.build(folder, JOBS, compiler)
    assert compiler.asked[2:] == ["unpack.80"]
    compiler.version = "recorder 2"
    cubins.build(folder, JOBS, compiler)
    assert compiler.asked[3:] == ["unpack.80", "unpack.90a"]


def test_cubins_of_other_sources_are_removed(records, monkeypatch):
    folder = records / "cubins"
    cubins.build(folder, JOBS, Recorder())
    (folder / "gone.sm_80.cubin").write_text("of no known source")
    assert cubins.remove_stale(folder) == ["gone.sm_80.cubin"]
    monkeypatch.setattr(cubins, "source_digest", lambda: "changed")
    assert cubins.remove_stale(folder) == [job.file for job in JOBS]


def test_a_failure_leaves_no_cubin_and_keeps_the_others(records):
    built = cubins.build(records / "cubins", [*JOBS, cubins.Job("copy_blocks", "80")], Recorder("copy_blocks"))
    assert [one.failure for one in built] == ["", "", "copy_blocks: no"]
    assert len(list((records / "cubins").iterdir())) == 2


def test_architectures(monkeypatch):
    monkeypatch.setenv("DFC_CUDA_ARCHS", "sm_80, 90a")
    assert cubins.archs() == ("80", "90a")
    monkeypatch.setenv("DFC_CUDA_ARCHS", "ampere")
    with pytest.raises(compilers.CompileError, match="DFC_CUDA_ARCHS: ampere is not accepted"):
        cubins.archs()
    capabilities = ("8.0", "8.6", "8.9", "9.0", "10.3", "12.1", "13.0")
    assert [cubins.arch_of_device(at) for at in capabilities] == ["80", "86", "89", "90a", "100", "120", "130"]


def test_kernels_with_bulk_copies_are_built_for_sm_90_and_later():
    jobs = cubins.jobs_for(["attend_decode_bulk_x", "unpack"], ("89", "90a"))
    assert [job.file for job in jobs] == [
        "attend_decode_bulk_x.sm_90a.cubin",
        "unpack.sm_89.cubin",
        "unpack.sm_90a.cubin",
    ]


def test_a_compiler_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(compilers.CompileError, match="DFC_CUDA_COMPILER: clang is not accepted"):
        compilers.chosen("clang")
    monkeypatch.setattr(compilers.shutil, "which", lambda name: None)
    monkeypatch.setattr(compilers, "_nvrtc_library", lambda: None)
    monkeypatch.delenv("NVCC", raising=False)
    with pytest.raises(compilers.CompileError, match="no CUDA compiler: install the CUDA toolkit or set NVCC"):
        compilers.chosen()


def test_occupancy():
    """Against NVIDIA's occupancy calculator: registers, threads and shared memory each as the limit."""
    assert cubin_facts.occupancy("80", 168, 128, 0) == 3
    assert cubin_facts.occupancy("80", 32, 256, 0) == 8
    assert cubin_facts.occupancy("80", 32, 256, 65536) == 2
    assert cubin_facts.occupancy("86", 32, 256, 0) == 6
    assert cubin_facts.occupancy("90a", 32, 32, 0) == 32
    assert cubin_facts.occupancy("75", 32, 32, 0) == 0


def elf(name: bytes, content: bytes) -> bytes:
    """A 64-bit ELF file with one section and the table of section names."""
    names = b"\0" + name + b"\0.names\0"
    header = struct.Struct("<IIQQQQIIQQ")
    table = 64 + len(content) + len(names)
    start = b"\x7fELF".ljust(40, b"\0") + struct.pack("<Q10xHHH", table, header.size, 3, 2)
    sections = [(0, 64, 0), (1, 64, len(content)), (2 + len(name), 64 + len(content), len(names))]
    headers = b"".join(header.pack(at, 1, 0, 0, offset, size, 0, 0, 1, 0) for at, offset, size in sections)
    return start.ljust(64, b"\0") + content + names + headers


def test_sections_of_a_cubin():
    assert cubin_facts.section(elf(b".nv.constant3", b"12345678"), ".nv.constant3") == b"12345678"
    assert cubin_facts.section(elf(b".text", b"12345678"), ".nv.constant3") == b""


# With a compiler


def compiled(name: str, kernel: str, arch: str, folder: Path) -> dict[str, int]:
    target = folder / f"{kernel}.sm_{arch}.cubin"
    log = tools.compiler(name).compile(kernel, arch, target)
    return cubin_facts.facts(target, arch, log)


@pytest.mark.parametrize("kernel", QUICK)
def test_storage_kernels_use_no_local_memory(kernel, tmp_path):
    tools.need_disassembler()
    row = compiled("", kernel, "80", tmp_path)
    assert not cubin_facts.uses_local_memory(row), row
    assert row["threads"] == 256 and row["blocks_per_sm"] >= 4 and row["registers"] <= 64


@pytest.mark.slow
@pytest.mark.parametrize("kernel", one_of_each())
def test_nvrtc_makes_what_nvcc_makes(kernel, tmp_path):
    tools.need_disassembler()
    arch = "90a" if "_bulk" in kernel else "80"
    nvcc, nvrtc = (compiled(name, kernel, arch, tmp_path) for name in ("nvcc", "nvrtc"))
    assert not cubin_facts.uses_local_memory(nvrtc)
    assert abs(nvcc["registers"] - nvrtc["registers"]) <= 0.15 * nvcc["registers"] + 4
    for name in ("HMMA", "LDSM", "LDGSTS", "threads", "dynamic_shared"):
        assert nvcc[name] == nvrtc[name], name


def test_a_report_fails_on_spills(tmp_path):
    report = pytest.importorskip("cuda_report")
    row = {"kernel": "k", "arch": "80", "seconds": 0.5, **dict.fromkeys((*report.COLUMNS, "stack", "local"), 0)}
    console, target = report.Console(file=(tmp_path / "text").open("w")), tmp_path / "report.json"
    assert report.report([row], [], 1.0, target, console) == 0
    assert report.report([row], ["k: no"], 1.0, target, console) == 1
    assert report.report([{**row, "STL": 2}], [], 1.0, target, console) == 1
    assert json.loads(target.read_text())["local"] == ["k for sm_80"]
