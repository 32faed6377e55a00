// How an instance of the attention kernels is cut over warps, and the shared memory that takes: one owner for kernels
// and host planning.
#pragma once

#include "layout/layout.h"

namespace dfc {

constexpr int kDecodeRows = 16;   // packed rows of a decode tile: one mma
constexpr int kPrefillRows = 64;  // of a prefill tile
constexpr int kStageLimit = 99 * 1024;  // bytes of shared memory that every GPU from sm_80 on gives a block

struct AttendSizes {
  int head_size, head_size_v, block, item_bytes;
  int row_warps, key_warps, column_warps;

  DFC_HOST_DEVICE constexpr int threads() const { return 32 * row_warps * key_warps * column_warps; }
  DFC_HOST_DEVICE constexpr int rows() const { return 16 * row_warps; }
  DFC_HOST_DEVICE constexpr int row_bytes() const {
    return static_cast<int>(tile_row_bytes(block, Offset{head_size} * item_bytes, Offset{head_size_v} * item_bytes));
  }
  DFC_HOST_DEVICE constexpr int part_bytes(int columns) const {
    return static_cast<int>(ceil_div(Offset{columns} * item_bytes, row_bytes())) * block * row_bytes();
  }
  DFC_HOST_DEVICE constexpr int stage_bytes() const { return part_bytes(head_size) + part_bytes(head_size_v); }
  DFC_HOST_DEVICE constexpr int query_bytes() const { return rows() * head_size * 2; }
  // Two where they fit: one block of keys and values arrives while another is multiplied.
  DFC_HOST_DEVICE constexpr int stages() const { return 2 * stage_bytes() + query_bytes() <= kStageLimit ? 2 : 1; }
  DFC_HOST_DEVICE constexpr int loop_bytes() const { return stages() * stage_bytes() + query_bytes(); }
  // After the loop the key warps merge: outputs in fp32, then maximum and sum of every row.
  DFC_HOST_DEVICE constexpr int merge_rows() const { return key_warps > 1 ? key_warps * rows() : 0; }
  DFC_HOST_DEVICE constexpr int merge_sums() const { return merge_rows() * head_size_v * 4; }
  DFC_HOST_DEVICE constexpr int shared_bytes() const {
    const int merge = merge_sums() + merge_rows() * 8;
    return loop_bytes() > merge ? loop_bytes() : merge;
  }
};

// Row warps share the rows, key warps the keys of a block, column warps the columns of V (they compute the same scores:
// 16 rows of 256 columns do not fit one warp's registers).
DFC_HOST_DEVICE constexpr AttendSizes decode_sizes(int head_size, int head_size_v, int block, int item_bytes) {
  const bool narrow = block == 32 || head_size_v > 192;
  return AttendSizes{head_size, head_size_v, block, item_bytes, 1, narrow ? 2 : 4, narrow ? 2 : 1};
}

DFC_HOST_DEVICE constexpr AttendSizes prefill_sizes(int head_size, int head_size_v, int block, int item_bytes) {
  return AttendSizes{head_size, head_size_v, block, item_bytes, kPrefillRows / 16, 1, head_size_v > 192 ? 2 : 1};
}

}  // namespace dfc
