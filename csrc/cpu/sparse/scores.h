// Estimated attention of a query to every token, from the records of full groups and the exact keys of the open one.
//
// The query side is rounded to 8 bits per group, so that a group is 2-bit codes times 8-bit weights: integers, exact in
// every implementation. est = constant + step * sum(weights * codes).
#pragma once

#include "cpu/math.h"
#include "cpu/sparse/sketch.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace dfc {
namespace DFC_ISA {

constexpr int kScoreRows = 4;  // heads that share a pass over the codes
constexpr Offset kPrefetchGroups = 4;  // how far ahead records are fetched
constexpr int kGroupVectors = static_cast<int>(kGroupTokens) / kLanes;

// One (sequence, kv head) while it is scored. Logits are base 2.
struct HeadScores {
  Offset group_heads, depth;
  float* query;  // [group_heads, depth], scaled
  float* weights;  // [kScoreRows, depth], integers; with VNNI depth bytes per row
  float* powers;  // [token groups, group_heads, kGroupTokens], 2^(logit - reference)
  float* references;  // [token groups, group_heads], the running maximum when powers were taken
  float* maximum;  // [group_heads], running
  float* sum;  // [group_heads, kLanes], of powers, relative to `maximum`
  Offset floats;

  DFC_HOST_DEVICE static HeadScores place(float* start, Offset group_heads, Offset depth, Offset kv_len) {
    HeadScores scores{};
    const Offset groups = ceil_div(kv_len, kGroupTokens);
    Offset used = 0;
    const auto take = [&](Offset count) __attribute__((always_inline)) {
      float* place = start + used;
      used += ceil_div(count, 16) * 16;
      return place;
    };
    scores.group_heads = group_heads;
    scores.depth = depth;
    scores.query = take(group_heads * depth);
    scores.weights = take(kScoreRows * depth);
    scores.powers = take(groups * group_heads * kGroupTokens);
    scores.references = take(groups * group_heads);
    scores.maximum = take(group_heads);
    scores.sum = take(group_heads * kLanes);
    scores.floats = used;
    return scores;
  }
};

static Offset score_floats(const ScoreParams& params, Offset kv_len) {
  const LayoutSpec& spec = params.storage.layout.spec;
  return HeadScores::place(nullptr, params.num_heads / spec.num_kv_heads, spec.head_size, kv_len).floats;
}

// Takes the logits of one token group and query head into the running softmax.
DFC_INLINE void take_logits(const HeadScores& scores, Offset group, Offset head, Vec (&logits)[kGroupVectors]) {
  Vec top = logits[0];
  DFC_UNROLL16 for (int v = 1; v < kGroupVectors; ++v) top = max(top, logits[v]);
  const float largest = max_lane(top);
  if (largest > scores.maximum[head]) {
    const Vec shrink = exp2(Vec{} + (scores.maximum[head] - largest));
    store(scores.sum + head * kLanes, load(scores.sum + head * kLanes) * shrink);
    scores.maximum[head] = largest;
  }
  Vec sum = load(scores.sum + head * kLanes);
  float* powers = scores.powers + (group * scores.group_heads + head) * kGroupTokens;
  DFC_UNROLL16 for (int v = 0; v < kGroupVectors; ++v) {
    const Vec power = exp2(logits[v] - scores.maximum[head]);
    store(powers + v * kLanes, power);
    sum += power;
  }
  store(scores.sum + head * kLanes, sum);
  scores.references[group * scores.group_heads + head] = scores.maximum[head];
}

// From q.k to base-2 logits.
struct Scaling {
  float factor, softcap;

  explicit Scaling(const ScoreParams& params) : softcap(params.softcap) {
    factor = softcap > 0 ? params.softmax_scale / softcap : params.softmax_scale * kLog2e;
  }
  DFC_HOST_DEVICE Vec logits(Vec products) const {
    const Vec scaled = products * factor;
    return softcap > 0 ? tanh(scaled) * (softcap * kLog2e) : scaled;
  }
};

struct Affine {  // of integer sums
  float constant, step;
};

// The 8-bit weights of one query head for one record, and what turns their sums into logits.
DFC_INLINE Affine make_weights(const float* query, Offset depth, const uint8_t* record, float* weights) {
  Vec largest = {}, constant = {}, scaled_sum = {}, weight_sum = {};
  for (Offset c = 0; c < depth; c += kLanes) {
    const Vec q = load(query + c), scaled = q * load_halves(record + 2 * (depth + c));
    constant += q * load_halves(record + 2 * c);
    scaled_sum += scaled;
    largest = max(largest, scaled < 0.0f ? -scaled : scaled);
    store(weights + c, scaled);
  }
  const float top = max_lane(largest);
  const float to_weights = top > 0 ? 127.0f / top : 0.0f;
  for (Offset c = 0; c < depth; c += kLanes) {
    const Vec weight = round_even(load(weights + c) * to_weights);
    weight_sum += weight;
    store(weights + c, weight);
  }
  const float step = top / 127.0f;
  // Codes average 1.5: charging the rounding errors of the weights there removes their bias.
  return Affine{sum_lanes(constant + 1.5f * (scaled_sum - step * weight_sum)), step};
}

#if defined(__AVX512VNNI__)
using Weight = int8_t;
typedef int8_t Narrow __attribute__((vector_size(kLanes)));
DFC_INLINE void narrow_weights(const float* weights, Offset depth, Weight* narrow) {
  for (Offset c = 0; c < depth; c += kLanes) {
    const Narrow bytes = __builtin_convertvector(__builtin_convertvector(load(weights + c), Ints), Narrow);
    std::memcpy(narrow + c, &bytes, sizeof bytes);
  }
}
#else
using Weight = float;
DFC_INLINE void narrow_weights(const float* weights, Offset depth, Weight* narrow) {
  if (narrow != weights) std::memcpy(narrow, weights, static_cast<size_t>(depth) * sizeof(Weight));
}
#endif

// sums[M][64 tokens] = weights . codes, as floats that hold integers.
template <int M>
DFC_INLINE void multiply_codes(const uint8_t* codes, const Weight* weights, Offset depth, const char* next,
                               Vec (&sums)[M][kGroupVectors]) {
#if defined(__AVX512VNNI__)
  __m512i total[M][kGroupVectors] = {};
  for (Offset c = 0; c < depth; c += kSketchChannels) {
    if (next != nullptr) {
      DFC_UNROLL for (int line = 0; line < 5; ++line) __builtin_prefetch(next + (c / 16 * 5 + line) * 64, 0, 2);
    }
    Bits words[kGroupVectors];
    DFC_UNROLL for (int v = 0; v < kGroupVectors; ++v) words[v] = read_as<Bits>(codes + 4 * (v * depth + c));
    DFC_UNROLL for (int j = 0; j < 4; ++j) {
      Bits code[kGroupVectors];
      DFC_UNROLL for (int v = 0; v < kGroupVectors; ++v) code[v] = words[v] >> 2 * j & 0x03030303u;
      DFC_UNROLL for (int m = 0; m < M; ++m) {
        int four;
        std::memcpy(&four, weights + m * depth + c + 4 * j, sizeof four);
        const __m512i weight = _mm512_set1_epi32(four);
        DFC_UNROLL for (int v = 0; v < kGroupVectors; ++v) {
          total[m][v] = _mm512_dpbusd_epi32(total[m][v], (__m512i)code[v], weight);
        }
      }
    }
  }
  DFC_UNROLL for (int m = 0; m < M; ++m) {
    DFC_UNROLL for (int v = 0; v < kGroupVectors; ++v) sums[m][v] = __builtin_convertvector((Ints)total[m][v], Vec);
  }
#else
  (void)next;
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < kGroupVectors; ++v) sums[m][v] = Vec{};
  }
  for (int v = 0; v < kGroupVectors; ++v) {
    const Offset token = v * kLanes;
    const uint8_t* place = codes + 4 * (token / kSketchTokens * depth + token % kSketchTokens);
    for (Offset c = 0; c < depth; c += kSketchChannels, place += 4 * kSketchTokens) {
      const Bits words = read_as<Bits>(place);
      for (Offset i = 0; i < kSketchChannels; ++i) {
        const Vec code = __builtin_convertvector(words >> code_shift(i) & 3u, Vec);
        for (int m = 0; m < M; ++m) sums[m][v] += weights[m * depth + c + i] * code;
      }
    }
  }
#endif
}

template <int M>
static void score_heads(const HeadScores& scores, Offset group, Offset first, const uint8_t* record, const char* next,
                        const Scaling& scaling) {
  const Offset depth = scores.depth;
  alignas(64) float wide[1024];
  Weight* weights = reinterpret_cast<Weight*>(scores.weights);
  Affine affine[M];
  for (int m = 0; m < M; ++m) {
    affine[m] = make_weights(scores.query + (first + m) * depth, depth, record, wide);
    narrow_weights(wide, depth, weights + m * depth);
  }
  Vec sums[M][kGroupVectors];
  multiply_codes<M>(record + 4 * depth, weights, depth, next, sums);
  DFC_UNROLL for (int m = 0; m < M; ++m) {
    DFC_UNROLL16 for (int v = 0; v < kGroupVectors; ++v) {
      sums[m][v] = scaling.logits(affine[m].constant + affine[m].step * sums[m][v]);
    }
    take_logits(scores, group, first + m, sums[m]);
  }
}

static void score_group(const HeadScores& scores, Offset group, const uint8_t* record, const char* next,
                        const Scaling& scaling) {
  Offset head = 0;
  for (; head + kScoreRows <= scores.group_heads; head += kScoreRows, next = nullptr) {
    score_heads<kScoreRows>(scores, group, head, record, next, scaling);
  }
  for (; head < scores.group_heads; ++head, next = nullptr) {
    score_heads<1>(scores, group, head, record, next, scaling);
  }
}

// mass[token] = mean over the query heads of their softmax.
static void finish_mass(const HeadScores& scores, Offset kv_len, float* mass) {
  const Offset heads = scores.group_heads;
  for (Offset group = 0; group * kGroupTokens < kv_len; ++group) {
    alignas(64) float total[kGroupTokens];
    for (Offset i = 0; i < kGroupTokens; i += kLanes) store(total + i, Vec{});
    for (Offset head = 0; head < heads; ++head) {
      const float shift = scores.references[group * heads + head] - scores.maximum[head];
      const float all = sum_lanes(load(scores.sum + head * kLanes)) * static_cast<float>(heads);
      const Vec factor = exp2(Vec{} + shift) / all;
      const float* powers = scores.powers + (group * heads + head) * kGroupTokens;
      for (Offset i = 0; i < kGroupTokens; i += kLanes) store(total + i, load(total + i) + load(powers + i) * factor);
    }
    const Offset count = smaller(kGroupTokens, kv_len - group * kGroupTokens);
    std::memcpy(mass + group * kGroupTokens, total, static_cast<size_t>(count) * sizeof(float));
  }
}

}  // namespace DFC_ISA
}  // namespace dfc
