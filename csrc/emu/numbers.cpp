#include "emu/numbers.h"

#include <cmath>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace dfc {
namespace emu {

namespace {

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint16_t largest_finite(const SmallFloat& format) {
  const int all = (1 << (format.exponent_bits + format.mantissa_bits)) - 1;
  const int infinity = all - ((1 << format.mantissa_bits) - 1);
  return static_cast<uint16_t>(format.has_infinity ? infinity - 1 : all - 1);
}

}  // namespace

float widen(uint16_t bits, const SmallFloat& format) {
  const int size = format.exponent_bits + format.mantissa_bits;
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = bits >> format.mantissa_bits & ((1 << format.exponent_bits) - 1);
  const float sign = bits >> size & 1 ? -1.0f : 1.0f;
  const int top = (1 << format.exponent_bits) - 1;
  if (exponent == top && format.has_infinity) return sign * (mantissa ? NAN : INFINITY);
  if (!format.has_infinity && (bits & ((1 << size) - 1)) == (1 << size) - 1) return NAN;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), 1 - format.bias - format.mantissa_bits);
  const float fraction = static_cast<float>(mantissa + (1 << format.mantissa_bits));
  return sign * std::ldexp(fraction, exponent - format.bias - format.mantissa_bits);
}

uint16_t narrow(float value, const SmallFloat& format, bool saturate) {
  const int size = format.exponent_bits + format.mantissa_bits;
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 1 << size : 0);
  const int all = (1 << size) - 1;
  if (std::isnan(value)) return static_cast<uint16_t>(saturate || !format.has_infinity ? all : all | sign);
  const uint16_t largest = largest_finite(format);
  const float magnitude = std::fabs(value);
  int exponent;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(exponent - 1), 2^exponent)
  const int lowest = 1 - format.bias;
  const int unit = (exponent - 1 < lowest ? lowest : exponent - 1) - format.mantissa_bits;
  const float rounded =
      std::isinf(magnitude) ? magnitude : std::ldexp(std::nearbyint(std::ldexp(magnitude, -unit)), unit);
  if (rounded > widen(largest, format)) {
    if (saturate) return static_cast<uint16_t>(largest | sign);
    return static_cast<uint16_t>((format.has_infinity ? largest + 1 : all) | sign);
  }
  if (rounded == 0) return sign;
  std::frexp(rounded, &exponent);
  if (exponent - 1 < lowest) {
    return static_cast<uint16_t>(static_cast<int>(std::ldexp(rounded, format.mantissa_bits - lowest)) | sign);
  }
  const int mantissa = static_cast<int>(std::ldexp(rounded, format.mantissa_bits - (exponent - 1)));
  const int biased = exponent - 1 + format.bias;
  return static_cast<uint16_t>((biased << format.mantissa_bits | (mantissa - (1 << format.mantissa_bits))) | sign);
}

#if defined(__F16C__)

float half_to_float(uint16_t bits) { return _cvtsh_ss(bits); }
uint16_t float_to_half(float value) { return _cvtss_sh(value, 0); }
#else
float half_to_float(uint16_t bits) { return widen(bits, kHalf); }
uint16_t float_to_half(float value) { return narrow(value, kHalf, false); }
#endif

float bfloat_to_float(uint16_t bits) { return float_of(uint32_t{bits} << 16); }

uint16_t float_to_bfloat(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace emu
}  // namespace dfc
