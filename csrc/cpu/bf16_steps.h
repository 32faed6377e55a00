// attend on paired bf16 tiles with AVX512_BF16: one instruction multiplies two bf16 pairs per lane and adds in fp32.
// K and V are read as they are stored; the weights are rounded to bf16, as on matrix units.
#pragma once

#include "cpu/steps.h"

namespace dfc {
namespace DFC_ISA {

#if defined(__AVX512BF16__)

// May this call take the dot-product path? Queries must be bf16 and heads whole 64-byte lines.
template <class T>
DFC_INLINE bool uses_dot_products(const AttendParams&) {
  return false;
}
template <>
inline __attribute__((always_inline)) bool uses_dot_products<Bf16Paired>(const AttendParams& params) {
  return params.query_dtype == Dtype::kBf16 && params.storage.layout.spec.head_size % (2 * kLanes) == 0;
}

DFC_INLINE Vec dot(Vec sum, Bits a, Bits b) { return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }

DFC_INLINE uint16_t* query_pairs(const Scratch& scratch) { return reinterpret_cast<uint16_t*>(scratch.q); }
DFC_INLINE uint32_t* key_pairs(const Scratch& scratch) { return reinterpret_cast<uint32_t*>(scratch.keys); }
DFC_INLINE uint16_t* weight_pairs(const Scratch& scratch) { return reinterpret_cast<uint16_t*>(scratch.weights); }

static void copy_query(const AttendParams& params, const Unit& unit, const Scratch& scratch) {
  const Offset depth = params.storage.layout.spec.head_size;
  for (Offset r = 0; r < unit.row_count; ++r) {
    const auto* source = static_cast<const uint16_t*>(params.query) + query_offset(params, unit, unit.row_begin + r);
    std::memcpy(query_pairs(scratch) + r * depth, source, static_cast<size_t>(depth) * sizeof *source);
  }
}

// Scores

// sums[i] += query . key row i for one tile's part of the depth, line after line as they lie in memory.
DFC_INLINE void dot_lines(const uint16_t* query, const uint16_t* tile, Offset columns, Offset used,
                          Vec (&sums)[kLanes]) {
  constexpr Offset kLine = 2 * kLanes;  // bf16 per 64 bytes
  if (used == 2 * kLine) {
    const Bits low = read_as<Bits>(query), high = read_as<Bits>(query + kLine);
    DFC_UNROLL16 for (int i = 0; i < kLanes; ++i) {
      sums[i] = dot(sums[i], low, read_as<Bits>(tile + i * columns));
      sums[i] = dot(sums[i], high, read_as<Bits>(tile + i * columns + kLine));
    }
    return;
  }
  const Bits line = read_as<Bits>(query);
  DFC_UNROLL16 for (int i = 0; i < kLanes; ++i) sums[i] = dot(sums[i], line, read_as<Bits>(tile + i * columns));
}

constexpr Offset kFewRows = 16;  // up to here lines are read once per row, above they are transposed once for all rows

// Few rows: kLanes keys at a time, straight from the tiles, summed across lanes at the end.
DFC_INLINE void score_lines(const Layout& layout, const Block<Bf16Paired>& block, Offset rows, float factor,
                            const char* next, const Scratch& scratch) {
  const Offset depth = layout.spec.head_size, columns = layout.tile_columns;
  for (Offset first = block.first / kLanes * kLanes; first < block.last; first += kLanes) {
    if (next != nullptr) prefetch_quarter(layout, next, first / kLanes);
    const uint16_t* keys = block.keys + (first - block.base) * columns;
    for (Offset r = 0; r < rows; ++r) {
      Vec sums[kLanes] = {};
      for (Offset column = 0; column < depth; column += columns) {
        const uint16_t* query = query_pairs(scratch) + r * depth + column;
        dot_lines(query, keys + block.k_tile[column / columns], columns, smaller(columns, depth - column), sums);
      }
      store(scratch.scores + r * kStepKeys + first, sum_rows(sums) * factor);
    }
  }
}

// Many rows: key pairs as [depth / 2, kStepKeys], so that a query pair meets kLanes keys at once.
static void transpose_pairs(const Layout& layout, const Block<Bf16Paired>& block, uint32_t* pairs) {
  const Offset columns = layout.tile_columns;
  for (Offset first = block.first / kLanes * kLanes; first < block.last; first += kLanes) {
    const uint16_t* keys = block.keys + (first - block.base) * columns;
    for (Offset column = 0; column < layout.spec.head_size; column += 2 * kLanes) {
      const uint16_t* line = keys + block.k_tile[column / columns] + column % columns;
      Vec square[kLanes];
      DFC_UNROLL16 for (int i = 0; i < kLanes; ++i) square[i] = read_as<Vec>(line + i * columns);
      transpose(square);
      DFC_UNROLL16 for (int i = 0; i < kLanes; ++i) {
        std::memcpy(pairs + (column / 2 + i) * kStepKeys + first, &square[i], sizeof square[i]);
      }
    }
  }
}

struct ScorePairs {
  const Scratch& scratch;
  Offset depth;
  float factor;
  template <int M>
  DFC_HOST_DEVICE void call(Offset row) const {
    constexpr int kCount = static_cast<int>(kStepKeys) / kLanes;
    const uint16_t* query = query_pairs(scratch) + row * depth;
    const uint32_t* keys = key_pairs(scratch);
    Vec sum[M][kCount] = {};
    for (Offset d = 0; d < depth; d += 2, keys += kStepKeys) {
      Bits key[kCount];
      DFC_UNROLL for (int n = 0; n < kCount; ++n) key[n] = read_as<Bits>(keys + n * kLanes);
      DFC_UNROLL for (int m = 0; m < M; ++m) {
        const Bits q = Bits{} + read_as<uint32_t>(query + m * depth + d);
        DFC_UNROLL for (int n = 0; n < kCount; ++n) sum[m][n] = dot(sum[m][n], q, key[n]);
      }
    }
    float* scores = scratch.scores + row * kStepKeys;
    DFC_UNROLL for (int m = 0; m < M; ++m) {
      DFC_UNROLL for (int n = 0; n < kCount; ++n) store(scores + m * kStepKeys + n * kLanes, sum[m][n] * factor);
    }
  }
};

DFC_INLINE void score_pairs(const AttendParams& params, const Unit& unit, Offset step, float factor,
                            const Block<Bf16Paired>* blocks, int count, const Scratch& scratch) {
  const Layout& layout = params.storage.layout;
  const bool few = unit.row_count <= kFewRows;
  const char* next = few ? next_run<Bf16Paired>(params, unit, scratch, step) : nullptr;
  for (int i = 0; i < count; ++i) {
    if (few) score_lines(layout, blocks[i], unit.row_count, factor, next, scratch);
    if (!few) transpose_pairs(layout, blocks[i], key_pairs(scratch));
  }
  if (!few) for_row_tiles(unit.row_count, ScorePairs{scratch, layout.spec.head_size, factor});
}

// Weighted sums

struct AddPairs {
  const Scratch& scratch;
  const Values<Bf16Paired>& values;
  const float* alpha;
  Offset width;

  template <int M>
  DFC_HOST_DEVICE void call(Offset row) const {
    Offset vector = 0;
    for (; vector + kVectors <= width / kLanes; vector += kVectors) panel<M, kVectors>(row, vector);
    for (; vector < width / kLanes; ++vector) panel<M, 1>(row, vector);
  }

  // A pair of which only one key belongs to the block is cut with a mask: the other may hold anything, 0 * NaN is NaN.
  template <int M, int N>
  __attribute__((always_inline)) void panel(Offset row, Offset vector) const {
    const uint16_t* weights = weight_pairs(scratch) + row * kStepKeys;
    float* out = scratch.output + row * width + vector * kLanes;
    Vec sum[M][N];
    DFC_UNROLL for (int m = 0; m < M; ++m) {
      DFC_UNROLL for (int n = 0; n < N; ++n) sum[m][n] = load(out + m * width + n * kLanes) * alpha[row + m];
    }
    const auto add = [&](Offset key, uint32_t mask) __attribute__((always_inline)) {
      Bits value[N];
      DFC_UNROLL for (int n = 0; n < N; ++n) {
        value[n] = read_as<Bits>(values.columns[vector + n] + (key - values.base) * values.stride) & mask;
      }
      DFC_UNROLL for (int m = 0; m < M; ++m) {
        const Bits weight = Bits{} + read_as<uint32_t>(weights + m * kStepKeys + key);
        DFC_UNROLL for (int n = 0; n < N; ++n) sum[m][n] = dot(sum[m][n], weight, value[n]);
      }
    };
    const Offset whole_first = (values.first + 1) / 2 * 2, whole_last = values.last / 2 * 2;
    if (values.first % 2) add(values.first - 1, 0xffff0000u);
    for (Offset key = whole_first; key < whole_last; key += 2) add(key, 0xffffffffu);
    if (values.last % 2 && values.last > whole_first) add(values.last - 1, 0x0000ffffu);
    DFC_UNROLL for (int m = 0; m < M; ++m) {
      DFC_UNROLL for (int n = 0; n < N; ++n) store(out + m * width + n * kLanes, sum[m][n]);
    }
  }
};

DFC_INLINE void round_weights(Offset rows, const Scratch& scratch) {
  for (Offset i = 0; i < rows * kStepKeys; i += 2 * kLanes) {
    const Vec low = load(scratch.scores + i), high = load(scratch.scores + i + kLanes);
    const __m512bh pair = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    std::memcpy(weight_pairs(scratch) + i, &pair, sizeof pair);
  }
}

DFC_INLINE void add_pairs(const Layout& layout, const Block<Bf16Paired>* blocks, int count, Offset rows,
                          const Scratch& scratch) {
  const Offset width = accumulator_width(layout);
  round_weights(rows, scratch);
  for (int i = 0; i < count; ++i) {
    const Block<Bf16Paired>& block = blocks[i];
    const uint16_t* columns[kMaxColumns / kLanes];
    find_columns(layout, block, width, columns);
    const Values<Bf16Paired> values{columns, block.value_stride, block.base, block.first, block.last};
    for_row_tiles(rows, AddPairs{scratch, values, i == 0 ? scratch.alpha : scratch.ones, width});
  }
}

// Its parts are inlined: with the blocks in memory, stores of scores would force them to be read again and again.
static void attend_pairs_step(const AttendParams& params, const Unit& unit, Offset step, float factor,
                              const Scratch& scratch) {
  Block<Bf16Paired> blocks[2];
  const int count = find_blocks(params, unit, scratch, step, blocks);
  score_pairs(params, unit, step, factor, blocks, count, scratch);
  softmax_step(params, unit, step, scratch);
  add_pairs(params.storage.layout, blocks, count, unit.row_count, scratch);
}

#else

template <class T>
DFC_INLINE bool uses_dot_products(const AttendParams&) {
  return false;
}
DFC_INLINE void copy_query(const AttendParams&, const Unit&, const Scratch&) {}
DFC_INLINE void attend_pairs_step(const AttendParams&, const Unit&, Offset, float, const Scratch&) {}

#endif

}  // namespace DFC_ISA
}  // namespace dfc
