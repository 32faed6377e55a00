// summarise and score on the CPU: checks, then one task per (group, kv head) or per (sequence, kv head).
#include <cstddef>
#include <cstdint>
#include <vector>

#include "api/checks.h"
#include "cpu/dispatch.h"
#include "cpu/sparse/kernels.h"

namespace dfc {

using std::size_t;

namespace {

int check_slots(const SummariseParams& params, Status& status) {
  AppendParams slots{};
  slots.storage = params.storage;
  slots.num_blocks = params.num_blocks;
  slots.slots = params.slots;
  slots.num_slots = params.num_slots;
  return check_slots(slots, status);
}

int check_sequences(const ScoreParams& params, Status& status) {
  std::vector<int32_t> starts(static_cast<size_t>(params.batch + 1));
  for (size_t i = 0; i < starts.size(); ++i) starts[i] = static_cast<int32_t>(i);
  AttendParams ragged{};
  ragged.storage = params.storage;
  ragged.cu_seqlens_q = starts.data();
  ragged.total = ragged.batch = params.batch;
  ragged.kv_lens = params.kv_lens;
  ragged.block_table = params.block_table;
  ragged.table_stride = params.table_stride;
  ragged.max_blocks = params.max_blocks;
  ragged.num_blocks = params.num_blocks;
  return check_ragged(ragged, status);
}

std::vector<Offset> full_groups(const SummariseParams& params) {
  std::vector<Offset> groups;
  for (Offset i = 0; i < params.num_slots; ++i) {
    const Offset slot = params.slots[i];
    if (slot >= 0 && slot % kGroupTokens == kGroupTokens - 1) groups.push_back(slot / kGroupTokens);
  }
  return groups;
}

}  // namespace

int summarise(const SummariseParams& params, Status& status) {
  if (int code = check_slots(params, status)) return code;
  const Kernels* kernels = chosen_kernels(status);
  if (kernels == nullptr) return status.code;
  const Layout& layout = params.storage.layout;
  const std::vector<Offset> groups = full_groups(params);
  const Offset heads = layout.spec.num_kv_heads, per_page = layout.page_tokens / kGroupTokens;
  const auto tasks = static_cast<Offset>(groups.size()) * heads;
  if (tasks == 0) return kOk;
  const auto write = kernels->sparse->summarise[static_cast<int>(params.storage.dtype)];
  const auto floats = static_cast<size_t>(kernels->sparse->summarise_floats(layout));
#pragma omp parallel num_threads(params.threads) if (tasks > 8)
  {
    std::vector<float> scratch(floats);
#pragma omp for schedule(static)
    for (Offset task = 0; task < tasks; ++task) {
      const Offset group = groups[static_cast<size_t>(task / heads)];
      write(params, group / per_page, task % heads, group % per_page, scratch.data());
    }
  }
  return kOk;
}

int score(const ScoreParams& params, Status& status) {
  if (int code = check_sequences(params, status)) return code;
  const Kernels* kernels = chosen_kernels(status);
  if (kernels == nullptr) return status.code;
  const Offset heads = params.storage.layout.spec.num_kv_heads, tasks = params.batch * heads;
  Offset longest = 0, total = 0;
  for (Offset b = 0; b < params.batch; ++b) {
    longest = larger(longest, params.kv_lens[b]);
    total += params.kv_lens[b];
  }
  const auto run = kernels->sparse->score[static_cast<int>(params.storage.dtype)];
  const auto floats = static_cast<size_t>(kernels->sparse->score_floats(params, longest));
#pragma omp parallel num_threads(params.threads) if (tasks > 1 && total * heads > 4096)
  {
    static thread_local std::vector<float> scratch;
    if (scratch.size() < floats) scratch.resize(floats);
#pragma omp for schedule(dynamic)
    for (Offset task = 0; task < tasks; ++task) {
      if (params.kv_lens[task / heads] > 0) run(params, task / heads, task % heads, scratch.data());
    }
  }
  return kOk;
}

}  // namespace dfc
