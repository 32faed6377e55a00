// Pieces of attend on one step of up to kStepKeys keys: where the keys lie, their scores, the running softmax.
#pragma once

#include "cpu/math.h"
#include "cpu/products.h"

namespace dfc {
namespace DFC_ISA {

constexpr Offset kDirectRows = 6;  // up to here keys are read row by row, above they are transposed once for all rows
constexpr Offset kMaxColumns = 1024;  // of a head's row, checked by the layout

// Memory of one unit. Everything is a multiple of kAlignment bytes.
struct Scratch {
  float* q;  // [rows, depth], scaled
  float* scores;  // [rows, kStepKeys], then weights
  float* output;  // [rows, width]
  float* sum;  // [rows, kLanes], to be added up at the end
  float* maximum;  // [rows], base-2 logarithm
  float* alpha;  // [rows], factor of the previous output
  float* ones;  // [rows]
  float* keys;  // transposed [depth, kStepKeys], or kLanes rows as in a tile
  float* values;  // [kStepKeys, width]
  float* weights;  // [rows, kStepKeys] of 16-bit weights
  Offset floats;

  DFC_HOST_DEVICE static Scratch place(float* start, const Layout& layout, Offset rows, Offset width) {
    Scratch scratch{};
    const Offset depth = layout.k_tiles * layout.tile_columns;
    Offset used = 0;
    const auto take = [&](Offset count) __attribute__((always_inline)) {
      float* place = start + used;
      used += ceil_div(count, 16) * 16;
      return place;
    };
    scratch.q = take(rows * depth);
    scratch.scores = take(rows * kStepKeys);
    scratch.output = take(rows * width);
    scratch.sum = take(rows * kLanes);
    scratch.maximum = take(rows);
    scratch.alpha = take(rows);
    scratch.ones = take(rows);
    scratch.keys = take(depth * kStepKeys);
    scratch.values = take(kStepKeys * width);
    scratch.weights = take(rows * kStepKeys / 2);
    scratch.floats = used;
    return scratch;
  }
};

// The part of a step that lies in one token block: keys [first, last) of the step, of which key `base` is row 0.
template <class T>
struct Block {
  const typename T::Item* run;
  const Offset* k_tile;  // elements from `run` to each column tile
  const Offset* v_tile;
  Offset base, first, last;
};

template <class T>
DFC_INLINE Block<T> find_block(const AttendParams& params, const Unit& unit, Offset step, Offset base) {
  const Layout& layout = params.storage.layout;
  const Offset size = layout.spec.block_size;
  const Offset token = step + base;
  const Offset page = params.block_table[unit.sequence * params.table_stride + token / layout.page_tokens];
  const Offset token_block = token % layout.page_tokens / size;
  Block<T> block;
  const char* run = static_cast<const char*>(params.cache) + layout.run_offset(page, unit.kv_head);
  block.run = reinterpret_cast<const typename T::Item*>(run);
  block.k_tile = params.storage.k_tile + token_block * layout.k_tiles;
  block.v_tile = params.storage.v_tile + token_block * layout.v_tiles;
  block.base = base;
  block.first = larger(base, unit.key_begin - step);
  block.last = smaller(base + size, unit.key_end - step);
  return block;
}

// The one or two blocks of a step that hold keys of the unit; returns how many.
template <class T>
DFC_INLINE int find_blocks(const AttendParams& params, const Unit& unit, Offset step, Block<T> (&blocks)[2]) {
  const Offset size = params.storage.layout.spec.block_size;
  int count = 0;
  for (Offset base = 0; base < kStepKeys; base += size) {
    if (step + base >= unit.key_end || step + base + size <= unit.key_begin) continue;
    blocks[count++] = find_block<T>(params, unit, step, base);
  }
  return count;
}

// keys[d, key of the step] of the groups of kLanes keys that hold [block.first, block.last).
template <class T>
static void transpose_keys(const Layout& layout, const Block<T>& block, float* keys) {
  for (Offset first = block.first / kLanes * kLanes; first < block.last; first += kLanes) {
    for (Offset column = 0; column < layout.spec.head_size; column += kLanes) {
      const Offset tile = block.k_tile[column / layout.tile_columns];
      const auto* source = block.run + tile + (first - block.base) * layout.tile_columns + column % layout.tile_columns;
      Vec square[kLanes];
      DFC_UNROLL16 for (int i = 0; i < kLanes; ++i) square[i] = T::load(source + i * layout.tile_columns);
      transpose(square);
      DFC_UNROLL16 for (int i = 0; i < kLanes; ++i) store(keys + (column + i) * kStepKeys + first, square[i]);
    }
  }
}

// kLanes keys as fp32 rows: where they are if the storage is fp32, else widened to `wide`. Sets `tile` as dot_keys
// wants.
DFC_INLINE const float* widen_keys(const Layout&, const Block<Fp32>& block, Offset row, float*, const Offset** tile) {
  *tile = block.k_tile;
  return block.run + row;
}

template <class T>
DFC_INLINE const float* widen_keys(const Layout& layout, const Block<T>& block, Offset row, float* wide,
                                   const Offset** tile) {
  const Offset square = kLanes * layout.tile_columns;
  for (Offset t = 0; t < layout.k_tiles; ++t) {
    const auto* source = block.run + block.k_tile[t] + row;
    for (Offset i = 0; i < square; i += kLanes) store(wide + t * square + i, T::load(source + i));
  }
  (void)tile;
  return wide;
}

// Scores of few rows, straight from the tiles. head_size is a multiple of kLanes.
template <class T>
static void score_directly(const Layout& layout, const Block<T>& block, Offset rows, const Scratch& scratch) {
  const Offset depth = layout.spec.head_size, columns = layout.tile_columns;
  Offset wide_tiles[kMaxColumns / 16];
  for (Offset t = 0; t < layout.k_tiles; ++t) wide_tiles[t] = t * kLanes * columns;
  for (Offset first = block.first / kLanes * kLanes; first < block.last; first += kLanes) {
    const Offset* tile = wide_tiles;
    const float* keys = widen_keys(layout, block, (first - block.base) * columns, scratch.keys, &tile);
    for (Offset r = 0; r < rows; ++r) {
      store(scratch.scores + r * kStepKeys + first, dot_keys(scratch.q + r * depth, depth, keys, tile, columns));
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

}  // namespace DFC_ISA
}  // namespace dfc
