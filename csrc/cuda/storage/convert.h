// From a source's rows to the 16-byte chunks that a pool stores. Convert::chunk(source, aligned, scale) reads
// kSourceBytes bytes.
#pragma once

#include "cuda/storage/args.h"
#include "dev/dev.h"

namespace dfc {

// 16 bytes from anywhere: whole, or element by element where the source's strides do not allow that.
template <class Element>
DEV u128 load_chunk(const char* source, bool aligned) {
  if (aligned) return dev::ldg<u128>(source);
  constexpr int kPerWord = 4 / sizeof(Element);
  uint32_t words[4];
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    words[word] = 0;
#pragma unroll
    for (int i = 0; i < kPerWord; ++i) {
      const uint32_t element = dev::ldg<Element>(source + (word * kPerWord + i) * sizeof(Element));
      words[word] |= element << (i * 8 * sizeof(Element) % 32);
    }
  }
  return u128{words[0], words[1], words[2], words[3]};
}

// Storage in the dtype of the source: bytes move. Every such dtype has 2 or 4 bytes.
struct SameBytes {
  static constexpr int kSourceBytes = 16;
  static DEV u128 chunk(const char* source, bool aligned, float) { return load_chunk<uint16_t>(source, aligned); }
};

// Eight values of a source as floats.
template <class Format>
struct HalfSource {
  static constexpr int kBytes = 2;
  static DEV void load8(const char* source, bool aligned, float (&values)[8]) {
    const u128 chunk = load_chunk<uint16_t>(source, aligned);
    Format::unpack2(chunk.x, values[0], values[1]);
    Format::unpack2(chunk.y, values[2], values[3]);
    Format::unpack2(chunk.z, values[4], values[5]);
    Format::unpack2(chunk.w, values[6], values[7]);
  }
};

struct FloatSource {
  static constexpr int kBytes = 4;
  static DEV void load8(const char* source, bool aligned, float (&values)[8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u128 chunk = load_chunk<uint32_t>(source + 16 * half, aligned);
      values[4 * half] = dev::bits_float(chunk.x);
      values[4 * half + 1] = dev::bits_float(chunk.y);
      values[4 * half + 2] = dev::bits_float(chunk.z);
      values[4 * half + 3] = dev::bits_float(chunk.w);
    }
  }
};

// fp8 storage: row / scale, rounded to nearest even and saturated; NaN stays NaN. A true division, as everywhere.
template <class Source, class Fp8>
struct Quantise {
  static constexpr int kSourceBytes = 16 * Source::kBytes;
  static DEV u128 chunk(const char* source, bool aligned, float scale) {
    uint32_t words[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float values[8];
      Source::load8(source + 8 * half * Source::kBytes, aligned, values);
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] /= scale;
#pragma unroll
      for (int word = 0; word < 2; ++word) {
        const uint32_t low = Fp8::from_floats(values[4 * word], values[4 * word + 1]);
        const uint32_t high = Fp8::from_floats(values[4 * word + 2], values[4 * word + 3]);
        words[2 * half + word] = low | high << 16;
      }
    }
    return u128{words[0], words[1], words[2], words[3]};
  }
};

}  // namespace dfc
