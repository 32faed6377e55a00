// The order of tiles on a grid of (token block, column tile). Mirror of deepseek_flash_cache/layout/zorder.py, which
// explains the curve. Neither direction needs a table, so device code needs no memory for it.
#pragma once

#if !defined(__CUDACC_RTC__)  // NVRTC has no standard headers; dev/dev.h, included first, has the types
#include <cstdint>
#endif

// Always inlined: the CPU kernels are built once per ISA level, and an out-of-line copy built with AVX-512 could be
// picked by the linker for the portable path.
#ifdef __CUDACC__
#define DFC_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DFC_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace dfc {

// Every offset, stride and size is 64-bit by type: block_id * page_bytes passes 32 bits in real pools.
using Offset = int64_t;

struct Cell {
  Offset row, column;
};

DFC_HOST_DEVICE constexpr Offset ceil_div(Offset value, Offset step) { return (value + step - 1) / step; }

DFC_HOST_DEVICE constexpr Offset smaller(Offset a, Offset b) { return a < b ? a : b; }

DFC_HOST_DEVICE constexpr Offset larger(Offset a, Offset b) { return a > b ? a : b; }

// How much of [start, start + size) lies in [0, length).
DFC_HOST_DEVICE constexpr Offset overlap(Offset length, Offset start, Offset size) {
  return smaller(larger(length - start, 0), size);
}

DFC_HOST_DEVICE constexpr Offset enclosing_square(Offset rows, Offset columns) {
  Offset side = 1;
  while (side < larger(rows, columns)) side *= 2;
  return side;
}

// Cells of the rectangle in quadrant `index` (curve order) of the square at (top, left) with side 2 * half.
DFC_HOST_DEVICE constexpr Offset quadrant_area(int index, Cell corner, Offset half, Offset rows, Offset columns) {
  const Offset top = corner.row + (index >> 1) * half;
  const Offset left = corner.column + (index & 1) * half;
  return overlap(rows, top, half) * overlap(columns, left, half);
}

// Position of a cell along the curve. The cell must lie in the grid.
DFC_HOST_DEVICE constexpr Offset zorder_rank(Cell cell, Offset rows, Offset columns) {
  Offset rank = 0;
  Cell corner{0, 0};
  for (Offset half = enclosing_square(rows, columns) / 2; half > 0; half /= 2) {
    const int lower = cell.row >= corner.row + half;
    const int right = cell.column >= corner.column + half;
    for (int i = 0; i < 2 * lower + right; ++i) rank += quadrant_area(i, corner, half, rows, columns);
    corner.row += half * lower;
    corner.column += half * right;
  }
  return rank;
}

// The cell at `rank` of the curve: the inverse of zorder_rank. `rank` must be in [0, rows * columns).
DFC_HOST_DEVICE constexpr Cell zorder_cell(Offset rank, Offset rows, Offset columns) {
  Cell corner{0, 0};
  for (Offset half = enclosing_square(rows, columns) / 2; half > 0; half /= 2) {
    int quadrant = 0;
    for (; quadrant < 3; ++quadrant) {
      const Offset area = quadrant_area(quadrant, corner, half, rows, columns);
      if (rank < area) break;
      rank -= area;
    }
    corner.row += half * (quadrant >> 1);
    corner.column += half * (quadrant & 1);
  }
  return corner;
}

}  // namespace dfc
