// The two matrix products of attention, in fp32, on register tiles of M rows x N vectors.
#pragma once

#include "cpu/kernels.h"
#include "cpu/vec.h"

namespace dfc {
namespace DFC_ISA {

// 6 x 4 accumulators leave room in 32 registers (AVX-512), 6 x 2 in 16.
constexpr int kRows = 6;
constexpr int kVectors = kLanes == 16 ? 4 : 2;

#define DFC_UNROLL _Pragma("GCC unroll 8")
#define DFC_UNROLL16 _Pragma("GCC unroll 16")

// scores[M, kStepKeys] = q[M, depth] . keys[depth, kStepKeys], for keys [first, last) rounded out to register tiles.
template <int M>
static void multiply_keys(const float* q, Offset depth, const float* keys, Offset first, Offset last, float* scores) {
  constexpr Offset panel = kVectors * kLanes;
  for (Offset column = first / panel * panel; column < last; column += panel) {
    Vec sum[M][kVectors] = {};
    for (Offset d = 0; d < depth; ++d) {
      Vec key[kVectors];
      DFC_UNROLL for (int n = 0; n < kVectors; ++n) key[n] = load(keys + d * kStepKeys + column + n * kLanes);
      DFC_UNROLL for (int m = 0; m < M; ++m) {
        DFC_UNROLL for (int n = 0; n < kVectors; ++n) sum[m][n] += q[m * depth + d] * key[n];
      }
    }
    DFC_UNROLL for (int m = 0; m < M; ++m) {
      DFC_UNROLL for (int n = 0; n < kVectors; ++n) store(scores + m * kStepKeys + column + n * kLanes, sum[m][n]);
    }
  }
}

// Rows of V for keys [first, last) of a step: vector j of key i is load_value(columns[j], i - base, stride).
template <class T>
struct Values {
  const typename T::Item* const* columns;
  Offset stride, base, first, last;
};

// out[M, N vectors] = out * alpha + weights[M, first..last) . V
template <class T, int M, int N>
static void add_panel(const float* weights, const Values<T>& values, Offset vector, const float* alpha, float* out,
                      Offset width) {
  Vec sum[M][N];
  const typename T::Item* source[N];
  DFC_UNROLL for (int n = 0; n < N; ++n) source[n] = values.columns[vector + n];
  DFC_UNROLL for (int m = 0; m < M; ++m) {
    DFC_UNROLL for (int n = 0; n < N; ++n) sum[m][n] = load(out + m * width + (vector + n) * kLanes) * alpha[m];
  }
  for (Offset key = values.first; key < values.last; ++key) {
    Vec value[N];
    DFC_UNROLL for (int n = 0; n < N; ++n) value[n] = load_value<T>(source[n], key - values.base, values.stride);
    DFC_UNROLL for (int m = 0; m < M; ++m) {
      DFC_UNROLL for (int n = 0; n < N; ++n) sum[m][n] += weights[m * kStepKeys + key] * value[n];
    }
  }
  DFC_UNROLL for (int m = 0; m < M; ++m) {
    DFC_UNROLL for (int n = 0; n < N; ++n) store(out + m * width + (vector + n) * kLanes, sum[m][n]);
  }
}

template <class T, int M>
static void add_values(const float* weights, const Values<T>& values, const float* alpha, float* out, Offset width) {
  Offset vector = 0;
  for (; vector + kVectors <= width / kLanes; vector += kVectors) {
    add_panel<T, M, kVectors>(weights, values, vector, alpha, out, width);
  }
  for (; vector < width / kLanes; ++vector) add_panel<T, M, 1>(weights, values, vector, alpha, out, width);
}

// Calls function(rows as a compile-time constant, first row) for register tiles that cover `rows`.
template <class Function>
DFC_INLINE void for_row_tiles(Offset rows, const Function& function) {
  Offset row = 0;
  for (; row + kRows <= rows; row += kRows) function.template call<kRows>(row);
  switch (rows - row) {
    case 1:
      return function.template call<1>(row);
    case 2:
      return function.template call<2>(row);
    case 3:
      return function.template call<3>(row);
    case 4:
      return function.template call<4>(row);
    case 5:
      return function.template call<5>(row);
    default:
      return;
  }
}

// kLanes keys as fp32 rows: column tile t of key i lies at data + tile[t] + i * stride.
struct WideKeys {
  const float* data;
  const Offset* tile;
  Offset stride, tile_columns;
};

// Scores of one query row with kLanes keys. The depth is a multiple of kLanes.
DFC_INLINE Vec dot_keys(const float* q, Offset depth, const WideKeys& keys) {
  const Offset* tile = keys.tile;
  Vec sums[kLanes] = {};
  for (Offset first = 0; first < depth; first += keys.tile_columns, ++tile) {
    const Offset columns = smaller(keys.tile_columns, depth - first);
    const float* data = keys.data + *tile;
    for (Offset column = 0; column < columns; column += kLanes) {
      const Vec query = load(q + first + column);
      DFC_UNROLL16 for (int i = 0; i < kLanes; ++i) sums[i] += query * load(data + i * keys.stride + column);
    }
  }
  return sum_rows(sums);
}

}  // namespace DFC_ISA
}  // namespace dfc
