// A vector of kLanes floats per ISA level, and reading every storage type into it. GCC/Clang vector extensions, with
// intrinsics only for the fp16 conversions. Included by kernels.cpp only, which sets DFC_ISA (a namespace name).
#pragma once

#include <cstdint>
#include <cstring>

#include "api/params.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace dfc {
namespace DFC_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#define DFC_INTERLEAVE_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define DFC_INTERLEAVE_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#define DFC_INTERLEAVE_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define DFC_INTERLEAVE_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
constexpr int kLanes = 4;
#define DFC_INTERLEAVE_LOW 0, 4, 1, 5
#define DFC_INTERLEAVE_HIGH 2, 6, 3, 7
#endif

#define DFC_INLINE static inline __attribute__((always_inline))

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Bits __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

#if defined(__clang__)
#define DFC_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define DFC_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

DFC_INLINE Vec interleave_low(Vec a, Vec b) { return DFC_SHUFFLE(a, b, DFC_INTERLEAVE_LOW); }
DFC_INLINE Vec interleave_high(Vec a, Vec b) { return DFC_SHUFFLE(a, b, DFC_INTERLEAVE_HIGH); }

template <class To, class From>
DFC_INLINE To read_as(const From* source) {
  To result;
  std::memcpy(&result, source, sizeof result);
  return result;
}

DFC_INLINE Vec load(const float* source) { return read_as<Vec>(source); }
DFC_INLINE void store(float* target, Vec value) { std::memcpy(target, &value, sizeof value); }
DFC_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }  // b where a is NaN

DFC_INLINE Ints lane_index() {
  Ints index;
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  return index;
}

DFC_INLINE float max_lane(Vec v) {
  for (int i = 1; i < kLanes; i *= 2) v = max(interleave_low(v, v), interleave_high(v, v));
  return v[0];
}

DFC_INLINE float sum_lanes(Vec v) {
  for (int i = 1; i < kLanes; i *= 2) v = interleave_low(v, v) + interleave_high(v, v);
  return v[0];
}

// Lane i of the result is the sum of the lanes of rows[i].
DFC_INLINE Vec sum_rows(Vec (&rows)[kLanes]) {
#pragma GCC unroll 8
  for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) {
      rows[i] = interleave_low(rows[i], rows[i + half]) + interleave_high(rows[i], rows[i + half]);
    }
  }
  return rows[0];
}

// log2(kLanes) rounds of perfect shuffles of a kLanes x kLanes square.
DFC_INLINE void transpose(Vec (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int round = 1; round < kLanes; round *= 2) {
    Vec next[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = interleave_low(rows[i], rows[i + kLanes / 2]);
      next[2 * i + 1] = interleave_high(rows[i], rows[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
}

// Storage types. `load` widens kLanes elements exactly.

struct Fp32 {
  using Item = float;
  DFC_INLINE Vec load(const Item* source) { return DFC_ISA::load(source); }
};

struct Bf16 {
  using Item = uint16_t;
  DFC_INLINE Vec load(const Item* source) {
    return (Vec)(__builtin_convertvector(read_as<Halves>(source), Bits) << 16);
  }
};

DFC_INLINE Vec widen_half(Halves half) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_cvtph_ps(0xffff, (__m256i)half);
#elif defined(__F16C__)
  return (Vec)_mm256_cvtph_ps((__m128i)half);
#else
  const Bits bits = __builtin_convertvector(half, Bits);
  const Bits size = (bits & 0x7fff) << 13;
  const Bits scaled = (Bits)((Vec)size * 0x1p112f);  // corrects the exponent bias, subnormals included
  return (Vec)(((bits & 0x7c00) == 0x7c00 ? size | 0x7f800000 : scaled) | (bits & 0x8000) << 16);
#endif
}

struct Fp16 {
  using Item = uint16_t;
  DFC_INLINE Vec load(const Item* source) { return widen_half(read_as<Halves>(source)); }
};

struct E5m2 {  // the upper byte of an fp16
  using Item = uint8_t;
  DFC_INLINE Vec load(const Item* source) {
    return widen_half(__builtin_convertvector(read_as<Bytes>(source), Halves) << 8);
  }
};

struct E4m3 {
  using Item = uint8_t;
  DFC_INLINE Vec load(const Item* source) {
    const Bits bits = __builtin_convertvector(read_as<Bytes>(source), Bits);
    const Bits size = bits & 0x7f;
    const Bits scaled = (Bits)((Vec)(size << 20) * 0x1p120f);
    return (Vec)((size == 0x7f ? Bits{} + 0x7fc00000u : scaled) | (bits & 0x80) << 24);
  }
};

// Bf16 in "paired" tiles: in V, rows 2i and 2i + 1 are interleaved, so a column takes two places.
struct Bf16Paired : Bf16 {};

// Elements from one column of a V tile row to the next.
template <class T>
constexpr Offset kValueStep = 1;
template <>
constexpr Offset kValueStep<Bf16Paired> = 2;

// kLanes columns of row `row` of V; `column` is where the first lies in row 0 of the tile.
template <class T>
DFC_INLINE Vec load_value(const typename T::Item* column, Offset row, Offset stride) {
  return T::load(column + row * stride);
}

template <>
inline __attribute__((always_inline)) Vec load_value<Bf16Paired>(const uint16_t* column, Offset row, Offset stride) {
  const Bits pair = read_as<Bits>(column + row / 2 * 2 * stride);
  return (Vec)(row % 2 ? pair & 0xffff0000u : pair << 16);
}

template <class T>
DFC_INLINE Vec load_some(const typename T::Item* source, Offset count) {  // count < kLanes; the rest is zero
  typename T::Item padded[kLanes] = {};
  std::memcpy(padded, source, static_cast<size_t>(count) * sizeof padded[0]);
  return T::load(padded);
}

// Writing outputs, round to nearest even.

DFC_INLINE uint16_t narrow_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

DFC_INLINE uint16_t narrow_half(float value) {
#if defined(__F16C__)
  return _cvtss_sh(value, 0);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (size >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (size < 0x38800000) {  // subnormal: let the FPU round to units of 2^-24
    const float rounded = __builtin_fabsf(value) + 0.5f;
    std::memcpy(&bits, &rounded, sizeof bits);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
#endif
}

}  // namespace DFC_ISA
}  // namespace dfc
