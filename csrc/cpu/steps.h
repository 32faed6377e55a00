// Pieces of attend on one step of up to kStepKeys keys: their scores, the running softmax.
#pragma once

#include "cpu/blocks.h"
#include "cpu/math.h"
#include "cpu/products.h"

namespace dfc {
namespace DFC_ISA {

constexpr Offset kDirectRows = 6;  // up to here keys are read row by row, above they are transposed once for all rows
constexpr Offset kMaxColumns = 1024;  // of a head's row, checked by the layout

DFC_INLINE Offset accumulator_width(const Layout& layout) { return ceil_div(layout.spec.head_size_v, kLanes) * kLanes; }

// keys[d, key of the step] of the groups of kLanes keys that hold [block.first, block.last).
template <class T>
static void transpose_keys(const Layout& layout, const Block<T>& block, float* keys) {
  for (Offset first = block.first / kLanes * kLanes; first < block.last; first += kLanes) {
    for (Offset column = 0; column < layout.spec.head_size; column += kLanes) {
      const Offset tile = block.k_tile[column / layout.tile_columns];
      const auto* source = block.keys + tile + (first - block.base) * block.key_stride + column % layout.tile_columns;
      Vec square[kLanes];
      DFC_UNROLL16 for (int i = 0; i < kLanes; ++i) square[i] = T::load(source + i * block.key_stride);
      transpose(square);
      DFC_UNROLL16 for (int i = 0; i < kLanes; ++i) store(keys + (column + i) * kStepKeys + first, square[i]);
    }
  }
}

// The kLanes keys from row `row` of the block on: where they are if the storage is fp32, else widened to `wide`, where
// `wide_tile` says where column tiles start.
DFC_INLINE WideKeys widen_keys(const Layout& layout, const Block<Fp32>& block, Offset row, float*, const Offset*) {
  return WideKeys{block.keys + row * block.key_stride, block.k_tile, block.key_stride, layout.tile_columns};
}

template <class T>
DFC_INLINE WideKeys widen_keys(const Layout& layout, const Block<T>& block, Offset row, float* wide,
                               const Offset* wide_tile) {
  const Offset columns = layout.tile_columns;
  for (Offset t = 0; t < layout.k_tiles; ++t) {
    const auto* source = block.keys + block.k_tile[t] + row * block.key_stride;
    const Offset used = smaller(columns, layout.spec.head_size - t * columns);
    for (Offset i = 0; i < kLanes; ++i) {
      float* target = wide + wide_tile[t] + i * columns;
      for (Offset c = 0; c < used; c += kLanes) store(target + c, T::load(source + i * block.key_stride + c));
    }
  }
  return WideKeys{wide, wide_tile, columns, columns};
}

// Scores of few rows, straight from the tiles. head_size is a multiple of kLanes.
template <class T>
static void score_directly(const Layout& layout, const Block<T>& block, Offset rows, const char* next,
                           const Scratch& scratch) {
  const Offset depth = layout.spec.head_size;
  Offset wide_tile[kMaxColumns / 16];
  for (Offset t = 0; t < layout.k_tiles; ++t) wide_tile[t] = t * kLanes * layout.tile_columns;
  for (Offset first = block.first / kLanes * kLanes; first < block.last; first += kLanes) {
    if (next != nullptr) prefetch_quarter(layout, next, first / kLanes);
    const WideKeys keys = widen_keys(layout, block, first - block.base, scratch.keys, wide_tile);
    for (Offset r = 0; r < rows; ++r) {
      store(scratch.scores + r * kStepKeys + first, dot_keys(scratch.q + r * depth, depth, keys));
    }
  }
}

// One row's scores become weights 2^(score - maximum). Keys outside [range.begin, range.end) of the step count as -inf;
// they are replaced, not added to, so that whatever an unread slot holds is gone. Leaves the change of the maximum
// in *change: the factor of what was summed before is 2^change.
DFC_INLINE void update_softmax(float* scores, KeyRange range, float softcap, float* maximum, float* sum,
                               float* change) {
  constexpr int kCount = static_cast<int>(kStepKeys) / kLanes;
  constexpr float kMasked = -__builtin_inff();
  Vec score[kCount];
  Vec peak = Vec{} + *maximum;
  const int begin = static_cast<int>(larger(range.begin, 0)), end = static_cast<int>(smaller(range.end, kStepKeys));
  const Ints lanes = lane_index();
  DFC_UNROLL16 for (int i = 0; i < kCount; ++i) {
    score[i] = load(scores + i * kLanes);
    if (softcap > 0) score[i] = tanh(score[i]) * softcap;
    const Ints key = lanes + i * kLanes;
    score[i] = (key >= begin) & (key < end) ? score[i] : Vec{} + kMasked;
    peak = max(score[i], peak);
  }
  const float raised = max_lane(peak);
  const float base = raised == kMasked ? 0.0f : raised;
  Vec total = Vec{};
  DFC_UNROLL16 for (int i = 0; i < kCount; ++i) {
    score[i] = exp2(score[i] - base);
    total += score[i];
    store(scores + i * kLanes, score[i]);
  }
  *change = *maximum - base;
  *maximum = raised;
  store(sum, load(sum) * exp2(Vec{} + *change) + total);
}

// scores -> weights, for the keys of one step; scratch.alpha is the factor of what was summed before.
static void softmax_step(const AttendParams& params, const Unit& unit, Offset step, const Scratch& scratch) {
  const Offset group = params.num_heads / params.storage.layout.spec.num_kv_heads;
  const Offset kv_len = params.kv_lens[unit.sequence];
  const Offset q_len = params.cu_seqlens_q[unit.sequence + 1] - params.cu_seqlens_q[unit.sequence];
  for (Offset r = 0; r < unit.row_count; ++r) {
    const KeyRange visible = visible_keys(params, q_len, kv_len, (unit.row_begin + r) / group);
    const KeyRange range{larger(visible.begin, unit.key_begin) - step, smaller(visible.end, unit.key_end) - step};
    update_softmax(scratch.scores + r * kStepKeys, range, params.softcap * kLog2e, scratch.maximum + r,
                   scratch.sum + r * kLanes, scratch.alpha + r);
  }
  for (Offset r = 0; r < unit.row_count; r += kLanes) store(scratch.alpha + r, exp2(load(scratch.alpha + r)));
}

}  // namespace DFC_ISA
}  // namespace dfc
