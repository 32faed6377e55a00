// What Python hands to the operations of sparse decode, see deepseek_flash_cache/spec/selection.py.
#pragma once

#include "api/params.h"
#include "api/status.h"

namespace dfc {

constexpr Offset kSinkTokens = 16;    // of a sequence's first tokens, always selected
constexpr Offset kRecentTokens = 64;  // of its last

// Side data of the gate `sketch2`, uint8 [num_blocks, heads, groups per page, record]; see gates/sketch2.py.
struct Sketches {
  uint8_t* data;

  DFC_HOST_DEVICE static Offset record_bytes(const Layout& layout) { return 20 * layout.spec.head_size; }

  DFC_HOST_DEVICE uint8_t* record(const Layout& layout, Offset block, Offset head, Offset group) const {
    const Offset groups = layout.page_tokens / kGroupTokens;
    return data + ((block * layout.spec.num_kv_heads + head) * groups + group) * record_bytes(layout);
  }
};

struct SummariseParams {
  Storage storage;
  const void* cache;
  Offset num_blocks;
  Sketches sketches;
  const int64_t* slots;  // [num_slots]; a group is summarised if its last slot is among them
  Offset num_slots;
  float k_scale;
  int threads;
};

struct ScoreParams {
  Storage storage;
  const void* query;  // [batch, heads, head_size]
  Dtype query_dtype;
  Offset query_token_stride, query_head_stride;
  Offset batch, num_heads;
  const void* cache;
  Offset num_blocks;
  Sketches sketches;
  const int32_t* block_table;  // [batch, max_blocks]
  Offset table_stride, max_blocks;
  const int32_t* kv_lens;  // [batch]
  float softmax_scale, softcap, k_scale;
  float* mass;  // [batch, kv heads, mass_stride]
  Offset mass_stride;
  int threads;
};

struct SelectParams {
  const float* mass;  // [batch, kv heads, mass_stride]
  Offset mass_stride, batch, num_kv_heads;
  const int32_t* kv_lens;    // [batch]
  const int32_t* budgets;    // [batch]
  const bool* protect;       // [batch, mass_stride] or null
  int32_t* tokens;           // [batch, kv heads, width]
  Offset width;
  int32_t* counts;           // [batch, kv heads]
  float* missed_mass;        // [batch, kv heads]
  bool* fell_back;           // [batch, kv heads]
  int threads;
};

int summarise(const SummariseParams& params, Status& status);
int score(const ScoreParams& params, Status& status);
int select(const SelectParams& params, Status& status);

}  // namespace dfc
