#include "fuzz/exact_attend.h"

#include <algorithm>
#include <cmath>

namespace dfc {
namespace fuzz {

Exact exact_row(const AttendParams& params, const Mask& mask, const Numbers& numbers, const KeyRows& row_of, Offset b,
                Offset row, Offset head, const std::vector<double>& query) {
  const LayoutSpec& spec = params.storage.layout.spec;
  const Offset kv_head = head / (params.num_heads / spec.num_kv_heads);
  const Offset q_len = params.cu_seqlens_q[b + 1] - params.cu_seqlens_q[b], kv_len = params.kv_lens[b];
  std::vector<double> logits;
  std::vector<const double*> values;
  double largest = -INFINITY, longest = 0;
  for (Offset j = 0; j < kv_len; ++j) {
    if (!mask.shows(q_len, kv_len, row, j)) continue;
    const Offset place = row_of[static_cast<size_t>(b)][static_cast<size_t>(j)] * spec.num_kv_heads + kv_head;
    const double* key = numbers.keys.data() + place * spec.head_size;
    double sum = 0, reach = 0;
    for (Offset i = 0; i < spec.head_size; ++i) {
      const double product = query[static_cast<size_t>(i)] * key[i];
      sum += product;
      reach += std::fabs(product);
    }
    const double scale = static_cast<double>(params.softmax_scale) * params.k_scale;
    const double softcap = params.softcap;
    const double logit = softcap > 0 ? softcap * std::tanh(sum * scale / softcap) : sum * scale;
    longest = std::max(longest, reach * std::fabs(scale));
    largest = std::max(largest, logit);
    logits.push_back(logit);
    values.push_back(numbers.values.data() + place * spec.head_size_v);
  }
  const auto columns = static_cast<size_t>(spec.head_size_v);
  Exact exact{-INFINITY, longest, std::vector<double>(columns), std::vector<double>(columns)};
  if (logits.empty()) return exact;
  double total = 0;
  for (const double logit : logits) total += std::exp(logit - largest);
  exact.lse = largest + std::log(total);
  if (params.sinks != nullptr) total += std::exp(static_cast<double>(params.sinks[head]) - largest);
  for (size_t n = 0; n < logits.size(); ++n) {
    const double weight = std::exp(logits[n] - largest) / total * params.v_scale;
    for (size_t d = 0; d < columns; ++d) {
      exact.out[d] += weight * values[n][d];
      exact.size[d] += std::fabs(weight * values[n][d]);
    }
  }
  return exact;
}

}  // namespace fuzz
}  // namespace dfc
