// Conversions exactly as the hardware does them: to nearest, ties to even; to fp8 saturating to the largest finite
// value.
#pragma once

#include <cstdint>

namespace dfc {
namespace emu {

struct SmallFloat {  // of at most 16 bits
  int exponent_bits, mantissa_bits, bias;
  bool has_infinity;  // e4m3 has none: all bits set is its only NaN
};

constexpr SmallFloat kHalf{5, 10, 15, true};
constexpr SmallFloat kE5m2{5, 2, 15, true};
constexpr SmallFloat kE4m3{4, 3, 7, false};

float widen(uint16_t bits, const SmallFloat& format);
// `saturate`: values too large become the largest finite one, infinities too.
uint16_t narrow(float value, const SmallFloat& format, bool saturate);

float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bfloat_to_float(uint16_t bits);
uint16_t float_to_bfloat(float value);

}  // namespace emu
}  // namespace dfc
