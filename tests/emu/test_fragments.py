"""Which lane holds which element: ldmatrix and mma against the formulas of the PTX manual, written down once more here.

The emulator scatters registers into matrices; here every element is looked up by its row and column.
"""

import ctypes

import pytest
import torch

from tests.emu.build import SELFTEST, build
from tests.emu.emulator import Emulator

TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


class Args(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("data", "in", "counter")]


@pytest.fixture(scope="module")
def emulator():
    return Emulator(build("dfc_selftest", SELFTEST))


def probe(emulator, kernel, given):
    data, counter = torch.zeros(4096, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    emulator.configure()
    emulator.clear_buffers()
    emulator.launch(kernel, (1, 1, 1), 64, 4096, Args(data.data_ptr(), given.data_ptr(), counter.data_ptr()))
    return data[:128].view(32, 4)


def place_in_a(row, column):
    """(lane, register, half) of element (row, column) of the 16 x 16 operand."""
    return row % 8 * 4 + column % 8 // 2, row // 8 + column // 8 * 2, column % 2


def place_in_b(row, column):
    """The same of the 16 x 8 operand."""
    return column * 4 + row % 8 // 2, row // 8, row % 2


def place_in_c(row, column):
    """(lane, register) of element (row, column) of the 16 x 8 accumulator."""
    return row % 8 * 4 + column // 2, row // 8 * 2 + column % 2


def packed(matrix, place, registers):
    halves = torch.zeros(32, registers, 2, dtype=matrix.dtype)
    for row in range(matrix.shape[0]):
        for column in range(matrix.shape[1]):
            halves[place(row, column)] = matrix[row, column]
    return halves.view(torch.int32).squeeze(-1)


def accumulators(matrix):
    registers = torch.zeros(32, 4)
    for row in range(16):
        for column in range(8):
            registers[place_in_c(row, column)] = matrix[row, column]
    return registers


@pytest.mark.parametrize("name", TYPES)
def test_mma_multiplies_the_matrices_whose_elements_lie_where_the_manual_says(emulator, name):
    generator = torch.Generator().manual_seed(1)
    a, b, c = (torch.randint(-8, 9, size, generator=generator).float() for size in ((16, 16), (16, 8), (16, 8)))
    parts = (
        packed(a.to(TYPES[name]), place_in_a, 4),
        packed(b.to(TYPES[name]), place_in_b, 2),
        accumulators(c).view(torch.int32),
    )
    given = torch.cat(parts, 1).contiguous()
    found = probe(emulator, f"probe_mma_{name}", given).view(torch.float32)
    assert torch.equal(found, accumulators(c + a @ b))


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_gives_every_lane_two_neighbours_of_a_row_or_of_a_column(emulator, transposed):
    tiles = torch.arange(4 * 8 * 8, dtype=torch.int16).view(4, 8, 8)
    found = probe(emulator, "probe_ldmatrix_trans" if transposed else "probe_ldmatrix", tiles.view(torch.int32))
    seen = tiles.transpose(1, 2) if transposed else tiles
    lane = torch.arange(32)
    for register in range(4):
        expected = torch.stack([seen[register, lane // 4, lane % 4 * 2 + half] for half in (0, 1)], -1)
        assert torch.equal(found[:, register].contiguous().view(torch.int16).view(32, 2), expected)
