// Scoring and summarising, built once per ISA level in the namespace DFC_ISA; see cpu/kernels.h for the rules.
#include "cpu/sparse/kernels.h"

#include "cpu/products.h"
#include "cpu/sparse/scores.h"

namespace dfc {
namespace DFC_ISA {

template <class T>
static void widen_query(const void* query, Offset offset, Offset depth, float* target) {
  const auto* row = static_cast<const typename T::Item*>(query) + offset;
  for (Offset c = 0; c < depth; c += kLanes) store(target + c, T::load(row + c));
}

static void load_query(const ScoreParams& params, Offset sequence, Offset head, const HeadScores& scores) {
  for (Offset g = 0; g < scores.group_heads; ++g) {
    const Offset place = head * scores.group_heads + g;
    const Offset offset = sequence * params.query_token_stride + place * params.query_head_stride;
    float* row = scores.query + g * scores.depth;
    if (params.query_dtype == Dtype::kFp32) widen_query<Fp32>(params.query, offset, scores.depth, row);
    if (params.query_dtype == Dtype::kFp16) widen_query<Fp16>(params.query, offset, scores.depth, row);
    if (params.query_dtype == Dtype::kBf16) widen_query<Bf16>(params.query, offset, scores.depth, row);
  }
}

// The open group, whose tokens have no record: exact logits.
template <class T>
static void score_open_group(const ScoreParams& params, const HeadScores& scores, Offset sequence, Offset head,
                             Offset group) {
  const Layout& layout = params.storage.layout;
  const Offset first = group * kGroupTokens, count = params.kv_lens[sequence] - first;
  const Offset page = params.block_table[sequence * params.table_stride + first / layout.page_tokens];
  const char* run = static_cast<const char*>(params.cache) + layout.run_offset(page, head);
  typename T::Item row[1024];
  const Scaling scaling(params);
  alignas(64) float key[1024], logits[kScoreRows][kGroupTokens];
  for (Offset begin = 0; begin < scores.group_heads; begin += kScoreRows) {
    const Offset heads = smaller(kScoreRows, scores.group_heads - begin);
    for (Offset i = 0; i < kGroupTokens; ++i) {
      for (Offset g = 0; g < heads; ++g) logits[g][i] = -__builtin_inff();
      if (i >= count) continue;
      load_row(params.storage, Part::kKey, (first + i) % layout.page_tokens, run, reinterpret_cast<char*>(row));
      for (Offset c = 0; c < scores.depth; c += kLanes) store(key + c, T::load(row + c) * params.k_scale);
      for (Offset g = 0; g < heads; ++g) {
        Vec sum = {};
        const float* query = scores.query + (begin + g) * scores.depth;
        for (Offset c = 0; c < scores.depth; c += kLanes) sum += load(query + c) * load(key + c);
        logits[g][i] = sum_lanes(sum);
      }
    }
    for (Offset g = 0; g < heads; ++g) {
      Vec values[kGroupVectors];
      for (int v = 0; v < kGroupVectors; ++v) {
        const Vec value = load(logits[g] + v * kLanes);
        values[v] = value == -__builtin_inff() ? value : scaling.logits(value);
      }
      take_logits(scores, group, begin + g, values);
    }
  }
}

template <class T>
static void score(const ScoreParams& params, Offset sequence, Offset head, float* scratch) {
  const Layout& layout = params.storage.layout;
  const LayoutSpec& spec = layout.spec;
  const Offset kv_len = params.kv_lens[sequence];
  const HeadScores scores = HeadScores::place(scratch, params.num_heads / spec.num_kv_heads, spec.head_size, kv_len);
  const Scaling scaling(params);
  load_query(params, sequence, head, scores);
  for (Offset g = 0; g < scores.group_heads; ++g) {
    scores.maximum[g] = -__builtin_inff();
    store(scores.sum + g * kLanes, Vec{});
  }
  const Offset closed = kv_len / kGroupTokens;
  const auto record_of = [&](Offset group) __attribute__((always_inline)) {
    const Offset token = group * kGroupTokens;
    const Offset page = params.block_table[sequence * params.table_stride + token / layout.page_tokens];
    return params.sketches.record(layout, page, head, token % layout.page_tokens / kGroupTokens);
  };
  // The open group first: recent tokens are heavy, so the running maximum starts high.
  if (closed * kGroupTokens < kv_len) score_open_group<T>(params, scores, sequence, head, closed);
  for (Offset group = 0; group < closed; ++group) {
    const Offset ahead = group + kPrefetchGroups;
    const char* next = ahead < closed ? reinterpret_cast<const char*>(record_of(ahead)) : nullptr;
    score_group(scores, group, record_of(group), next, scaling);
  }
  finish_mass(scores, kv_len, params.mass + (sequence * spec.num_kv_heads + head) * params.mass_stride);
}

extern const SparseKernels sparse_kernels;
const SparseKernels sparse_kernels = {
    {summarise<Fp32>, summarise<Fp16>, summarise<Bf16>, summarise<E4m3>, summarise<E5m2>},
    summarise_floats,
    {score<Fp32>, score<Fp16>, score<Bf16>, score<E4m3>, score<E5m2>},
    score_floats,
};

}  // namespace DFC_ISA
}  // namespace dfc
