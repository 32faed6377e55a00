"""The tests find the faults that matter: each mutant of the kernels fails, by the detector or by its results."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from deepseek_flash_cache import ops, spec
from tests.cuda.harness import LAZY, emulated
from tests.cuda.test_attend import FP16, Case, layout
from tests.emu.build import ROOT, build
from tests.emu.emulator import Emulator, EmulatorError

ATTEND = "csrc/cuda/attend/"
# name: file, what is replaced (a regular expression that occurs once), by what
MUTANTS = {
    "missing barrier before a stage is overwritten": (
        "tile.h", r"dev::sync_block\(\);  // the stage that is filled next is read no more", "",
    ),
    "missing barrier behind the keys": ("tile.h", r"dev::sync_block\(\);  // keys", ""),
    "missing barrier behind the values": ("tile.h", r"dev::sync_block\(\);  // values", ""),
    "missing wait for the keys": ("tile.h", r"cp_async_wait<2 \* kAhead \+ 1>", "cp_async_wait<2 * kAhead + 3>"),
    "missing wait for the values": ("tile.h", r"cp_async_wait<2 \* kAhead>", "cp_async_wait<2 * kAhead + 1>"),
    "missing barrier in the merge": (
        "merge.h",
        r"dev::sync_block\(\);(\n#pragma unroll\n  for \(int e = 0; e < 2; \+\+e\) \{\n    const int row)",
        r"\1",
    ),
    "wrong swizzle": ("config.h", r"row & 7 : \(row >> 1\) & 3", "row & 3 : (row >> 1) & 1"),
    "window one too short": ("rows.h", r"position - args\.window_left", "position - args.window_left + 1"),
    "window one too long": ("rows.h", r"position - args\.window_left", "position - args.window_left - 1"),
    "causal mask off by one": ("rows.h", r"smaller\(end, position \+ 1\)", "smaller(end, position + 2)"),
    "dropped split": ("decode.h", r"(float sum = 0\.0f, low.*?)share <= last_share", r"\1share < last_share"),
    "wrong slot of a split": ("decode.h", r"share == first_share \? 1 : 0", "share == first_share ? 0 : 1"),
    "values past the end not zeroed": ("load.h", r"row < rows\.end", "true"),
    "rescaling forgotten": ("values.h", r"acc\.sum\[e\] \*= shrink;", ""),
    "sink without its maximum": ("merge.h", r"kLog2e - maximum\)", "kLog2e)"),
    "odd columns of fp8 values": ("values.h", "0x7531u", "0x6420u"),
}  # fmt: skip


def mutant_library(folder: Path, name: str) -> Path:
    file, pattern, replacement = MUTANTS[name]
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    source = folder / ATTEND / file
    text, count = re.subn(pattern, replacement, source.read_text(), flags=re.DOTALL)
    assert count == 1, f"{name}: the pattern occurs {count} times in {file}"
    source.write_text(text)
    instances = folder / "csrc/cuda/instances.def"
    kept = [
        line
        for line in instances.read_text().splitlines()
        if re.search(r"fp16_(fp16|e4m3)_d128_b64|combine_fp16_b64", line)
    ]
    instances.write_text("\n".join(kept) + "\n")
    return build("mutant", root=folder)


def reuse_emulator(folder: Path) -> None:
    """The emulator is not what is changed: its objects are taken over."""
    objects = folder / "build/emu/mutant"
    objects.mkdir(parents=True)
    for path in build("dfc_emu").parent.joinpath("dfc_emu").glob("csrc_emu_*.o"):
        shutil.copyfile(path, objects / path.name)


CASES = [
    Case(layout(FP16, 128), FP16, 4, [1, 1, 3, 70], [1000, 130, 64, 333], options={"window_left": 200}),
    Case(layout(FP16, 128), FP16, 2, [1, 1], [1000, 130], rest=0, options={"sinks": torch.tensor([1.0, -1, 5, 2])}),
    Case(layout(torch.float8_e4m3fn, 128), FP16, 2, [1, 70], [129, 130], rest=0),
]


def fails(emulator) -> bool:
    for seed in (1, 2):
        for case in CASES:
            try:
                with emulated(seed=seed, completion=LAZY, sm_count=5, emulator=emulator):
                    found = case.run(ops.attend, return_lse=True)
            except EmulatorError:
                return True
            expected = case.run(spec.attend)
            equal = torch.allclose(found.out.float(), expected.out.float(), atol=2e-3, rtol=2e-3)
            if not equal or not torch.allclose(found.lse, expected.lse, atol=1e-4):
                return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(name, tmp_path):
    assert fails(Emulator(mutant_library(tmp_path, name)))


@pytest.mark.slow
def test_the_original_lives(tmp_path, monkeypatch):
    monkeypatch.setitem(MUTANTS, "none", ("tile.h", "#pragma once", "#pragma once"))
    assert not fails(Emulator(mutant_library(tmp_path, "none")))
