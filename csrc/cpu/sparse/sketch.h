// Records of the 2-bit key sketch: writing one. The format is defined in deepseek_flash_cache/sparse/gates/sketch2.py.
#pragma once

#include "cpu/rows.h"
#include "cpu/sparse/kernels.h"
#include "cpu/vec.h"

namespace dfc {
namespace DFC_ISA {

constexpr Offset kSketchChannels = 16;  // per dword of codes
constexpr Offset kSketchTokens = 16;    // neighbouring dwords
constexpr float kMaxCode = 3.0f;

// Bit where the code of channel `channel` of its sixteen lies.
DFC_INLINE uint32_t code_shift(Offset channel) { return static_cast<uint32_t>(8 * (channel % 4) + 2 * (channel / 4)); }

// Nearest integer, ties to even, for |x| < 2^22.
DFC_INLINE Vec round_even(Vec x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

DFC_INLINE Vec load_halves(const uint8_t* source) { return widen_half(read_as<Halves>(source)); }

static Offset summarise_floats(const Layout& layout) { return 2 * layout.spec.head_size * kGroupTokens; }

// K of `kGroupTokens` tokens from `token` of a head's run on: rows [kGroupTokens, depth], then keys [depth,
// kGroupTokens].
template <class T>
static void load_group(const Storage& storage, const char* run, Offset token, float factor, float* rows, float* keys) {
  const Offset depth = storage.layout.spec.head_size;
  typename T::Item row[1024];
  for (Offset i = 0; i < kGroupTokens; ++i) {
    load_row(storage, Part::kKey, token + i, run, reinterpret_cast<char*>(row));
    for (Offset c = 0; c < depth; c += kLanes) store(rows + i * depth + c, T::load(row + c) * factor);
  }
  for (Offset i = 0; i < kGroupTokens; i += kLanes) {
    for (Offset c = 0; c < depth; c += kLanes) {
      Vec square[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) square[lane] = load(rows + (i + lane) * depth + c);
      transpose(square);
      for (int lane = 0; lane < kLanes; ++lane) store(keys + (c + lane) * kGroupTokens + i, square[lane]);
    }
  }
}

struct Bounds {
  uint16_t least, scale;  // fp16
  bool finite;
};

DFC_INLINE Bounds channel_bounds(const float* key) {
  Vec low = load(key), high = low, finite = {};
  for (Offset i = 0; i < kGroupTokens; i += kLanes) {
    const Vec value = load(key + i);
    low = value < low ? value : low;
    high = value > high ? value : high;
    finite += value * 0.0f;  // NaN from the first NaN or infinity on
  }
  const float largest = max_lane(high), smallest = -max_lane(-low);
  const Bounds bounds{narrow_half(smallest), narrow_half((largest - smallest) / kMaxCode), true};
  const auto is_finite = [](uint16_t half) { return (half & 0x7c00) != 0x7c00; };
  const bool known = sum_lanes(finite) == 0.0f;
  return Bounds{bounds.least, bounds.scale, known && is_finite(bounds.least) && is_finite(bounds.scale)};
}

DFC_INLINE float half_float(uint16_t half) { return widen_half(Halves{} + half)[0]; }

// The dwords of kLanes tokens and 16 channels.
DFC_INLINE Bits channel_codes(const float* keys, const uint16_t* least, const uint16_t* scale) {
  Bits dwords = {};
  for (Offset c = 0; c < kSketchChannels; ++c) {
    const float step = half_float(scale[c]);
    const float inverse = step > 0 ? 1.0f / step : 0.0f;
    Vec code = round_even((load(keys + c * kGroupTokens) - half_float(least[c])) * inverse);
    code = code > 0.0f ? code : Vec{};  // NaN too
    code = code < kMaxCode ? code : Vec{} + kMaxCode;
    dwords |= __builtin_convertvector(code, Bits) << code_shift(c);
  }
  return dwords;
}

template <class T>
static void summarise(const SummariseParams& params, Offset block, Offset head, Offset group, float* scratch) {
  const Layout& layout = params.storage.layout;
  const Offset depth = layout.spec.head_size;
  float* keys = scratch + kGroupTokens * depth;
  const char* run = static_cast<const char*>(params.cache) + layout.run_offset(block, head);
  load_group<T>(params.storage, run, group * kGroupTokens, params.k_scale, scratch, keys);
  uint16_t least[1024], scale[1024];
  bool finite = true;
  for (Offset c = 0; c < depth; ++c) {
    const Bounds bounds = channel_bounds(keys + c * kGroupTokens);
    least[c] = bounds.least;
    scale[c] = bounds.finite ? bounds.scale : uint16_t{0};
    finite = finite && bounds.finite;
  }
  // Keys that fp16 cannot bound have no sketch: a NaN makes every score of this head NaN, and the row reads all.
  if (!finite) {
    for (Offset c = 0; c < depth; ++c) least[c] = 0x7e00;
  }
  uint8_t* record = params.sketches.record(layout, block, head, group);
  std::memcpy(record, least, static_cast<size_t>(2 * depth));
  std::memcpy(record + 2 * depth, scale, static_cast<size_t>(2 * depth));
  uint8_t* codes = record + 4 * depth;
  for (Offset i = 0; i < kGroupTokens; i += kLanes) {
    for (Offset c = 0; c < depth; c += kSketchChannels) {
      const Bits dwords = finite ? channel_codes(keys + c * kGroupTokens + i, least + c, scale + c) : Bits{};
      const Offset place = (i / kSketchTokens * depth + c) * kSketchTokens / kSketchChannels + i % kSketchTokens;
      std::memcpy(codes + 4 * place, &dwords, sizeof dwords);
    }
  }
}

}  // namespace DFC_ISA
}  // namespace dfc
