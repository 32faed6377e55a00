"""The order of tiles on a grid of (token block, column tile): plain rows or the Z-order (Morton) curve.

Z-order is defined for any rectangle: walk the smallest enclosing power-of-two square in Morton order (column
bit below row bit) and leave out the cells outside the rectangle. Rank and cell are found by descending the
quadtree, so neither needs a table and the CUDA mirror needs no memory.
Source of the curve: G. M. Morton, "A computer oriented geodetic data base", IBM, 1966.
"""

from typing import Literal

TileOrder = Literal["row", "zorder"]


def zorder_rank(row: int, column: int, rows: int, columns: int) -> int:
    """Position of cell (row, column) along the Z-order curve of a `rows` x `columns` grid.

    Raises ValueError if the cell lies outside the grid.
    """
    if not (0 <= row < rows and 0 <= column < columns):
        raise ValueError(f"cell: ({row}, {column}) is outside the {rows} x {columns} grid")
    rank, top, left, half = 0, 0, 0, _enclosing_square(rows, columns) // 2
    while half:
        lower, right = row >= top + half, column >= left + half
        rank += sum(_quadrant_areas(top, left, half, rows, columns)[: 2 * lower + right])
        top, left, half = top + half * lower, left + half * right, half // 2
    return rank


def zorder_cell(rank: int, rows: int, columns: int) -> tuple[int, int]:
    """The (row, column) at position `rank` of the curve: the inverse of `zorder_rank`.

    Raises ValueError if `rank` is not in [0, rows * columns).
    """
    if not 0 <= rank < rows * columns:
        raise ValueError(f"rank: {rank} is outside [0, {rows * columns}) of the {rows} x {columns} grid")
    top, left, half = 0, 0, _enclosing_square(rows, columns) // 2
    while half:
        quadrant = 0
        for area in _quadrant_areas(top, left, half, rows, columns):
            if rank < area:
                break
            rank, quadrant = rank - area, quadrant + 1
        top, left, half = top + half * (quadrant >> 1), left + half * (quadrant & 1), half // 2
    return top, left


def _enclosing_square(rows: int, columns: int) -> int:
    return 1 << (max(rows, columns) - 1).bit_length()


def _quadrant_areas(top: int, left: int, half: int, rows: int, columns: int) -> tuple[int, int, int, int]:
    """Cells of the rectangle in the four quadrants of the square at (top, left) with side 2 * half, in curve order."""
    height = _overlap(rows, top, half), _overlap(rows, top + half, half)
    width = _overlap(columns, left, half), _overlap(columns, left + half, half)
    return height[0] * width[0], height[0] * width[1], height[1] * width[0], height[1] * width[1]


def _overlap(length: int, start: int, size: int) -> int:
    return min(max(length - start, 0), size)
