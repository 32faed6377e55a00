#include "api/checks.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <vector>

namespace dfc {

using Long = long long;

int fail(Status& status, Code code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(status.message, sizeof status.message, format, arguments);
  va_end(arguments);
  status.code = code;
  return code;
}

int check_slots(const AppendParams& params, Status& status) {
  if (params.slots == nullptr) return kOk;
  const Offset limit = params.num_blocks * params.storage.layout.page_tokens;
  for (Offset i = 0; i < params.num_slots; ++i) {
    const Long slot = params.slots[i];
    if (slot >= -1 && slot < limit) continue;
    return fail(status, kInvalidValue, "slot_mapping[%lld]: %lld is not accepted; it must be -1 or in [0, %lld)",
                Long{i}, slot, Long{limit});
  }
  return kOk;
}

static int check_pair_column(const CopyParams& params, int column, const char* name, Offset limit, Status& status) {
  for (Offset i = 0; i < params.num_pairs; ++i) {
    const Long block = params.pairs[2 * i + column];
    if (block >= 0 && block < limit) continue;
    return fail(status, kInvalidValue,
                "pairs[%lld] %s block: %lld is not accepted; it must be in [0, %lld), the %s pool", Long{i}, name,
                block, Long{limit}, name);
  }
  return kOk;
}

int check_pairs(const CopyParams& params, Status& status) {
  if (int code = check_pair_column(params, 0, "source", params.source_blocks, status)) return code;
  if (int code = check_pair_column(params, 1, "target", params.target_blocks, status)) return code;
  std::vector<int64_t> targets(static_cast<size_t>(params.num_pairs));
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = params.pairs[2 * i + 1];
  std::sort(targets.begin(), targets.end());
  const auto twice = std::adjacent_find(targets.begin(), targets.end());
  if (twice == targets.end()) return kOk;
  return fail(status, kInvalidValue, "pairs target blocks: %lld twice is not accepted; it must be distinct",
              Long{*twice});
}

struct Starts {  // cu_seqlens_q or cu_seqlens_k
  const char* name;
  const int32_t* starts;
  Offset rows;
  const char* rows_name;
};

static int check_starts(const AttendParams& params, const Starts& what, Status& status) {
  const int32_t* starts = what.starts;
  bool ordered = starts[0] == 0 && starts[params.batch] <= what.rows;
  for (Offset b = 0; b < params.batch; ++b) ordered = ordered && starts[b] <= starts[b + 1];
  if (ordered) return kOk;
  char text[120] = "";
  size_t used = 0;
  for (Offset b = 0; b <= params.batch && used < sizeof text - 20; ++b) {
    used += static_cast<size_t>(std::snprintf(text + used, sizeof text - used, b ? ", %d" : "%d", starts[b]));
  }
  return fail(status, kInvalidValue,
              "%s: [%s] is not accepted; it must be 0 first, never decreasing, at most %lld (the %s rows)", what.name,
              text, Long{what.rows}, what.rows_name);
}

static int check_ragged_keys(const AttendParams& params, Status& status) {
  const int32_t* starts = params.rows.cu_seqlens_k;
  const Starts what{"cu_seqlens_k", starts, params.storage.layout.page_tokens, "key"};
  if (int code = check_starts(params, what, status)) return code;
  for (Offset b = 0; b < params.batch; ++b) {
    const Offset kv_len = params.kv_lens[b], owned = starts[b + 1] - starts[b];
    if (kv_len >= 0 && kv_len <= owned) continue;
    return fail(status, kInvalidValue,
                "kv_lens[%lld]: %lld is not accepted; it must be in [0, %lld], the rows cu_seqlens_k gives it", Long{b},
                Long{kv_len}, Long{owned});
  }
  return kOk;
}

int check_ragged(const AttendParams& params, Status& status) {
  const Starts queries{"cu_seqlens_q", params.cu_seqlens_q, params.total, "query"};
  if (int code = check_starts(params, queries, status)) return code;
  if (params.plain && params.rows.cu_seqlens_k != nullptr) return check_ragged_keys(params, status);
  const Offset page_tokens = params.storage.layout.page_tokens;
  const Offset table_tokens = params.max_blocks * page_tokens;
  for (Offset b = 0; b < params.batch; ++b) {
    const Offset kv_len = params.kv_lens[b];
    const Offset first = params.plain && params.rows.first != nullptr ? params.rows.first[b] : 0;
    if (first < 0 || first > table_tokens) {
      return fail(status, kInvalidValue,
                  "first_keys[%lld]: %lld is not accepted; it must be in [0, %lld], what block_table can hold", Long{b},
                  Long{first}, Long{table_tokens});
    }
    const Offset capacity = table_tokens - first;
    if (kv_len < 0 || kv_len > capacity) {
      return fail(status, kInvalidValue,
                  "kv_lens[%lld]: %lld is not accepted; it must be in [0, %lld], what block_table can hold", Long{b},
                  Long{kv_len}, Long{capacity});
    }
    if (kv_len == 0) continue;  // no page is read, not even the one that first lies in
    const int32_t* row = params.block_table + b * params.table_stride;
    for (Offset i = first / page_tokens; i < ceil_div(first + kv_len, page_tokens); ++i) {
      if (row[i] >= 0 && row[i] < params.num_blocks) continue;
      return fail(status, kInvalidValue,
                  "block_table[%lld, %lld]: %d is not accepted; it must be in [0, %lld), the pool's blocks", Long{b},
                  Long{i}, row[i], Long{params.num_blocks});
    }
  }
  return kOk;
}

}  // namespace dfc
