// The heaviest tokens of each (sequence, kv head): a radix search for the weight of the last one, then one pass in
// order.
#include <cstring>
#include <vector>

#include "cpu/sparse/params.h"

namespace dfc {

namespace {

// Ranks as integers: masses are not negative, so their bits sort as they do. Protected tokens come before all masses
// (at most 1), the first and last tokens before those.
constexpr uint32_t kProtectedRank = 0x7f000000;
constexpr uint32_t kForcedRank = 0x7f000001;
constexpr uint32_t kLargestRank = 0x7f800000;  // infinity; a NaN is larger

struct Digit {
  int shift, bits;
};
constexpr Digit kDigits[] = {{20, 11}, {9, 11}, {0, 9}};

// The count-th largest of `ranks`, all below 2^31.
uint32_t rank_of_last(const std::vector<uint32_t>& ranks, Offset count, std::vector<uint32_t>& left) {
  const uint32_t* values = ranks.data();
  size_t size = ranks.size();
  uint32_t prefix = 0;
  for (const Digit digit : kDigits) {
    uint32_t histogram[2048] = {};
    const uint32_t mask = (1u << digit.bits) - 1;
    for (size_t i = 0; i < size; ++i) ++histogram[values[i] >> digit.shift & mask];
    uint32_t bin = mask;
    for (; histogram[bin] < static_cast<uint32_t>(count); --bin) count -= histogram[bin];
    prefix |= bin << digit.shift;
    if (digit.shift == 0) break;
    left.resize(ranks.size());
    size_t kept = 0;
    for (size_t i = 0; i < size; ++i) {
      left[kept] = values[i];  // in place from the second digit on: kept never passes i
      kept += values[i] >> digit.shift == prefix >> digit.shift;
    }
    values = left.data();
    size = kept;
  }
  return prefix;
}

struct Memory {
  std::vector<uint32_t> ranks, left;
};

bool rank_tokens(const SelectParams& params, Offset sequence, const float* mass, Offset kv_len, Memory& memory) {
  memory.ranks.resize(static_cast<size_t>(kv_len));
  uint32_t* ranks = memory.ranks.data();
  std::memcpy(ranks, mass, static_cast<size_t>(kv_len) * sizeof(float));
  uint32_t largest = 0;
  for (Offset i = 0; i < kv_len; ++i) {
    ranks[i] &= 0x7fffffff;
    largest = ranks[i] > largest ? ranks[i] : largest;
  }
  if (largest > kLargestRank) return false;
  if (params.protect != nullptr) {
    const bool* protect = params.protect + sequence * params.mass_stride;
    for (Offset i = 0; i < kv_len; ++i) ranks[i] = protect[i] ? kProtectedRank : ranks[i];
  }
  for (Offset i = 0; i < kSinkTokens; ++i) ranks[i] = kForcedRank;
  for (Offset i = kv_len - kRecentTokens; i < kv_len; ++i) ranks[i] = kForcedRank;
  return true;
}

void select_head(const SelectParams& params, Offset sequence, Offset head, Memory& memory) {
  const Offset row = sequence * params.num_kv_heads + head, kv_len = params.kv_lens[sequence];
  const Offset count = larger(params.budgets[sequence], kSinkTokens + kRecentTokens);
  const float* mass = params.mass + row * params.mass_stride;
  int32_t* tokens = params.tokens + row * params.width;
  params.missed_mass[row] = 0.0f;
  params.fell_back[row] = false;
  params.counts[row] = static_cast<int32_t>(kv_len);
  Offset used = 0;
  if (count < kv_len) {
    params.fell_back[row] = !rank_tokens(params, sequence, mass, kv_len, memory);
  }
  if (count < kv_len && !params.fell_back[row]) {
    const uint32_t* ranks = memory.ranks.data();
    const uint32_t last = rank_of_last(memory.ranks, count, memory.left);
    Offset equal = count;  // how many of the lightest rank fit
    for (Offset i = 0; i < kv_len; ++i) equal -= ranks[i] > last;
    double kept = 0.0;
    for (Offset i = 0; i < kv_len; ++i) {
      const bool tie = ranks[i] == last && equal > 0;
      equal -= tie;
      if (ranks[i] <= last && !tie) continue;
      tokens[used++] = static_cast<int32_t>(i);
      kept += mass[i];
    }
    params.counts[row] = static_cast<int32_t>(used);
    params.missed_mass[row] = static_cast<float>(kept < 1.0 ? 1.0 - kept : 0.0);
  }
  for (; used < params.width; ++used) tokens[used] = -1;
}

}  // namespace

int select(const SelectParams& params, Status& status) {
  for (Offset b = 0; b < params.batch; ++b) {
    const Offset count = larger(params.budgets[b], kSinkTokens + kRecentTokens);
    if (params.kv_lens[b] < 0 || params.kv_lens[b] > params.mass_stride) {
      return fail(status, kInvalidValue, "kv_lens[%lld]: %d is not accepted; it must be in [0, %lld], the scores given",
                  static_cast<long long>(b), params.kv_lens[b], static_cast<long long>(params.mass_stride));
    }
    if (count < params.kv_lens[b] && count > params.width) {
      return fail(status, kInvalidValue,
                  "budgets[%lld]: %d is not accepted; it must be at most %lld, the width asked for",
                  static_cast<long long>(b), params.budgets[b], static_cast<long long>(params.width));
    }
  }
  const Offset tasks = params.batch * params.num_kv_heads;
#pragma omp parallel num_threads(params.threads) if (tasks > 1 && tasks * params.mass_stride > 16384)
  {
    static thread_local Memory memory;
#pragma omp for schedule(dynamic)
    for (Offset task = 0; task < tasks; ++task) {
      select_head(params, task / params.num_kv_heads, task % params.num_kv_heads, memory);
    }
  }
  return kOk;
}

}  // namespace dfc
