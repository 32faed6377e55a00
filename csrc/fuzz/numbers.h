// Storage types, plainly: one number at a time, in double precision. Shares nothing with the code under test.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "api/params.h"
#include "fuzz/input.h"

namespace dfc {
namespace fuzz {

struct Format {
  Offset bytes;
  int exponent_bits, mantissa_bits;
  bool infinities;
};

inline const Format& format_of(Dtype dtype) {
  static constexpr Format formats[kNumDtypes] = {
      {4, 8, 23, true}, {2, 5, 10, true}, {2, 8, 7, true}, {1, 4, 3, false}, {1, 5, 2, true}};
  return formats[static_cast<int>(dtype)];
}

inline const char* name_of(Dtype dtype) {
  static constexpr const char* names[kNumDtypes] = {"fp32", "fp16", "bf16", "fp8e4m3", "fp8e5m2"};
  return names[static_cast<int>(dtype)];
}

inline Offset item_bytes(Dtype dtype) { return format_of(dtype).bytes; }

inline uint32_t get_bits(Dtype dtype, const char* row, Offset index) {
  uint32_t bits = 0;
  const Offset bytes = item_bytes(dtype);
  std::memcpy(&bits, row + index * bytes, static_cast<size_t>(bytes));  // little-endian machines
  return bits;
}

inline void put_bits(Dtype dtype, char* row, Offset index, uint32_t bits) {
  const Offset bytes = item_bytes(dtype);
  std::memcpy(row + index * bytes, &bits, static_cast<size_t>(bytes));
}

// Put together as the bits of a double: std::ldexp would take a third of the time of the whole run.
inline double value_of(Dtype dtype, uint32_t bits) {
  const Format& format = format_of(dtype);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const uint32_t fraction = bits & ((1u << format.mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> format.mantissa_bits & ((1u << format.exponent_bits) - 1));
  const double sign = bits >> (format.exponent_bits + format.mantissa_bits) & 1 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - format.mantissa_bits);
  if (exponent == (1 << format.exponent_bits) - 1) {
    const bool nan = fraction == (1u << format.mantissa_bits) - 1 || (format.infinities && fraction != 0);
    if (nan || format.infinities) return std::copysign(nan ? NAN : INFINITY, sign);
  }
  const uint64_t size = static_cast<uint64_t>(exponent - bias + 1023) << 52 | static_cast<uint64_t>(fraction)
                                                                                  << (52 - format.mantissa_bits);
  double value;
  std::memcpy(&value, &size, sizeof value);
  return sign * value;
}

inline double value_at(Dtype dtype, const char* row, Offset index) {
  return value_of(dtype, get_bits(dtype, row, index));
}

// Powers of two that bound random numbers.
struct Range {
  int least, most;
};

inline uint32_t random_bits(Dtype dtype, Range range, Random& random) {
  const Format& format = format_of(dtype);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const auto bits = static_cast<uint32_t>(random.next() >> 32);
  const uint32_t fraction = bits & ((1u << format.mantissa_bits) - 1);
  const auto drawn = static_cast<int>(random.below(range.most - range.least)) + range.least + bias;
  const int highest = (1 << format.exponent_bits) - 2;  // neither NaN nor infinity in any type
  const auto exponent = static_cast<uint32_t>(std::min(highest, std::max(0, drawn)));
  const uint32_t sign = bits >> 31 << (format.exponent_bits + format.mantissa_bits);
  return sign | exponent << format.mantissa_bits | fraction;
}

// Positive fp8 numbers are in the order of their codes.
inline const std::vector<double>& fp8_numbers(Dtype dtype) {
  static const auto numbers = [](Dtype type, uint32_t largest) {
    std::vector<double> values;
    for (uint32_t code = 0; code <= largest; ++code) values.push_back(value_of(type, code));
    return values;
  };
  static const std::vector<double> e4m3 = numbers(Dtype::kFp8E4m3, 0x7e), e5m2 = numbers(Dtype::kFp8E5m2, 0x7b);
  return dtype == Dtype::kFp8E4m3 ? e4m3 : e5m2;
}

// The fp8 number nearest to `value`, of two equally near the even one; too large becomes the largest.
inline uint32_t nearest_fp8(Dtype dtype, float value) {
  const std::vector<double>& numbers = fp8_numbers(dtype);
  const uint32_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | 0x7f;
  const double size = std::fabs(static_cast<double>(value));
  const auto above = std::upper_bound(numbers.begin(), numbers.end(), size);
  const auto code = static_cast<uint32_t>(above - numbers.begin()) - 1;
  if (above == numbers.end()) return sign | code;
  const double from_below = size - numbers[code], to_above = *above - size;
  const bool stay = from_below < to_above || (from_below == to_above && code % 2 == 0);
  return sign | (stay ? code : code + 1);
}

}  // namespace fuzz
}  // namespace dfc
