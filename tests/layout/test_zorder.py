"""The Z-order curve on any rectangle: a bijection with an inverse, Morton order on squares, and one in C++ to match."""

import pytest

from deepseek_flash_cache import ops
from deepseek_flash_cache.layout import zorder_cell, zorder_rank

GRIDS = [(rows, columns) for rows in (1, 2, 3, 4, 5, 7, 8, 13) for columns in (1, 2, 3, 4, 6, 8, 9, 16)]
LARGE = [(1, 10**6), (16384, 9), (1000, 1), (2**20, 2**20)]


def morton(row: int, column: int) -> int:
    return sum(((row >> bit & 1) << (2 * bit + 1)) | ((column >> bit & 1) << (2 * bit)) for bit in range(21))


@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_cells_follow_in_morton_order(rows, columns):
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    in_order = sorted(cells, key=lambda cell: morton(*cell))
    assert [zorder_cell(rank, rows, columns) for rank in range(len(cells))] == in_order
    assert [zorder_rank(*cell, rows, columns) for cell in in_order] == list(range(len(cells)))


@pytest.mark.parametrize(("rows", "columns"), GRIDS + LARGE)
@pytest.mark.skipif(ops._C is None, reason="the extension is not built")
def test_cpp_agrees(rows, columns):
    count = rows * columns
    for rank in range(count) if count <= 256 else (0, 1, count // 3, count // 2 + 1, count - 2, count - 1):
        cell = zorder_cell(rank, rows, columns)
        assert ops._C.zorder_cell(rank, rows, columns) == cell
        assert ops._C.zorder_rank(*cell, rows, columns) == zorder_rank(*cell, rows, columns) == rank


@pytest.mark.parametrize("cell", [(-1, 0), (0, -1), (3, 0), (0, 5)])
def test_cells_outside_are_refused(cell):
    with pytest.raises(ValueError, match="outside the 3 x 5 grid"):
        zorder_rank(*cell, 3, 5)


@pytest.mark.parametrize("rank", [-1, 15])
def test_ranks_outside_are_refused(rank):
    with pytest.raises(ValueError, match=r"outside \[0, 15\)"):
        zorder_cell(rank, 3, 5)
