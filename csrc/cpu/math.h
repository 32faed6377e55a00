// exp2 and tanh on vectors.
#pragma once

#include "cpu/vec.h"

namespace dfc {
namespace DFC_ISA {

constexpr float kLog2e = 1.44269504088896341f;
constexpr float kLn2 = 0.69314718055994531f;

// 2^x for x <= 127. Zero below 2^-126, NaN for NaN; relative error below 2e-7 elsewhere.
// Coefficients: Cephes exp2f (S. Moshier), minimax on [-1/2, 1/2].
DFC_INLINE Vec exp2(Vec x) {
  const Vec shifted = x + 0x1.8p23f;  // the low mantissa bits now hold x rounded to an integer
  const Vec r = x - (shifted - 0x1.8p23f);
  Vec p = r * 1.535336188319500e-4f + 1.339887440266574e-3f;
  p = p * r + 9.618437357674640e-3f;
  p = p * r + 5.550332471162809e-2f;
  p = p * r + 2.402264791363012e-1f;
  p = p * r + 6.931472028550421e-1f;
  p = p * r + 1.0f;
  const Vec scaled = (Vec)((Bits)p + ((Bits)shifted << 23));
  return x >= -126.0f ? scaled : (x < -126.0f ? Vec{} : x);
}

// Relative error below 1e-6: near 0 by a polynomial, since a softcap multiplies what 1 - 2 / (e^2x + 1) would lose.
// Coefficients: Cephes tanhf (S. Moshier), for |x| < 0.625.
DFC_INLINE Vec tanh(Vec x) {
  const Vec square = x * x;
  Vec p = square * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * square + -5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square + -3.33332819422e-1f;
  const Vec small = x + x * square * p;
  const Ints is_small = square < 0.625f * 0.625f;
  x = x > 15.0f ? Vec{} + 15.0f : x;
  x = x < -15.0f ? Vec{} - 15.0f : x;
  return is_small ? small : 1.0f - 2.0f / (exp2(x * (2 * kLog2e)) + 1.0f);
}

}  // namespace DFC_ISA
}  // namespace dfc
