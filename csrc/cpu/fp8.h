// fp32 -> fp8 with round to nearest even; |x| above the largest finite value saturates, NaN stays NaN with its sign.
// Bit-equal to torch's clamp + cast. Compiled once, for any machine (the ISA kernels only read fp8).
#pragma once

#include <cstdint>
#include <cstring>

namespace dfc {

inline uint32_t float_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float bits_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Fp8Format {
  int mantissa_bits, bias;
  float largest;
  uint8_t nan;
};

constexpr Fp8Format kE4m3{3, 7, 448.0f, 0x7f};
constexpr Fp8Format kE5m2{2, 15, 57344.0f, 0x7f};

inline uint8_t to_fp8(float value, const Fp8Format& format) {
  const uint32_t bits = float_bits(value);
  const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  float size = bits_float(bits & 0x7fffffff);
  if (size != size) return static_cast<uint8_t>(sign | format.nan);
  if (size > format.largest) size = format.largest;
  const int drop = 23 - format.mantissa_bits;
  const float smallest_normal = bits_float(static_cast<uint32_t>(128 - format.bias) << 23);
  if (size < smallest_normal) {
    // Adding 2^23 units of the smallest subnormal makes the FPU round to that unit.
    const float magic = bits_float(static_cast<uint32_t>(127 + 23 + 1 - format.bias - format.mantissa_bits) << 23);
    return static_cast<uint8_t>(sign | (float_bits(size + magic) - float_bits(magic)));
  }
  uint32_t rounded = float_bits(size);
  rounded += ((1u << (drop - 1)) - 1) + (rounded >> drop & 1);
  rounded -= static_cast<uint32_t>(127 - format.bias) << 23;
  return static_cast<uint8_t>(sign | rounded >> drop);
}

}  // namespace dfc
