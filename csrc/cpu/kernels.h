// What the ISA-specific code offers to the rest, and what it is told. One build of kernels.cpp per ISA level, each in
// its own namespace and free of std templates: a weak symbol compiled with AVX-512 must never serve the portable path.
#pragma once

#include "api/params.h"

namespace dfc {

// Rows of one (sequence, kv head) that share a pass over the keys [key_begin, key_end). Rows are packed: packed row r
// is head r % group of query token r / group, so K and V are read once for all heads of a group.
struct Unit {
  Offset sequence, kv_head;
  Offset row_begin, row_count;
  Offset key_begin, key_end;
  Offset partial;  // index of the first row in the partial results, -1: the unit writes the final result
};

// Query token and head of a packed row.
struct RowPlace {
  Offset token, head;
};

DFC_HOST_DEVICE RowPlace place_of(const AttendParams& params, const Unit& unit, Offset row) {
  const Offset group = params.num_heads / params.storage.layout.spec.num_kv_heads;
  return RowPlace{params.cu_seqlens_q[unit.sequence] + row / group, unit.kv_head * group + row % group};
}

// Elements from the start of the query to a packed row.
DFC_HOST_DEVICE Offset query_offset(const AttendParams& params, const Unit& unit, Offset row) {
  const RowPlace place = place_of(params, unit, row);
  return place.token * params.query_token_stride + place.head * params.query_head_stride;
}

// Row results of a unit before they are combined with those of the other chunks of keys. Base-2 logarithms.
struct Partials {
  float* maximum;      // [rows]
  float* sum;          // [rows]
  float* accumulator;  // [rows, width]
  Offset width;
};

constexpr Offset kRowTile = 96;    // packed rows per unit
constexpr Offset kStepKeys = 64;   // keys per softmax step
constexpr Offset kAlignment = 64;  // bytes, of scratch memory

struct SparseKernels;  // cpu/sparse/kernels.h

struct Kernels {
  const char* name;
  Offset (*accumulator_width)(const Layout& layout);
  Offset (*scratch_bytes)(const AttendParams& params, Offset rows);
  // Indexed by the storage dtype. `scratch` is aligned to kAlignment and holds scratch_bytes.
  void (*attend_unit[kNumDtypes])(const AttendParams&, const Unit&, const Partials&, char* scratch);
  // Combines `chunks` partial results of a unit's rows, `row_count` apart, into the final result. Uses chunk 0's place.
  void (*combine)(const AttendParams&, const Unit&, const Partials&, Offset chunks);
  const SparseKernels* sparse;
};

// Token range and key window of a packed row; everything about masks is here.
struct KeyRange {
  Offset begin, end;
};

DFC_HOST_DEVICE KeyRange visible_keys(const AttendParams& params, Offset q_len, Offset kv_len, Offset token) {
  const Offset position = kv_len - q_len + token;
  Offset begin = 0, end = kv_len;
  if (params.window_left >= 0) begin = larger(0, position - params.window_left);
  if (params.causal) {
    end = smaller(end, position + 1);
  } else if (params.window_right >= 0) {
    end = smaller(end, position + params.window_right + 1);
  }
  return KeyRange{begin, larger(begin, end)};
}

}  // namespace dfc
