// The argument of the attention kernels, and the sizes that host planning and kernels share. Plain data without device
// code.
#pragma once

#include "cuda/attend/sizes.h"

namespace dfc {

// Strides in bytes. Rows of a sequence are packed: row r is head r % group of query token r / group, so that K and V
// are read once for all heads of a kv head.
struct AttendArgs {
  Layout layout;
  const char* query;  // [total, num_heads, head_size]
  Offset query_token_stride, query_head_stride;
  const char* cache;
  const int32_t* block_table;  // [batch, any]
  Offset table_stride;
  const int32_t* cu_seqlens_q;  // [batch + 1]
  const int32_t* kv_lens;       // [batch]
  const float* sinks;           // [num_heads] or null
  char* out;                    // [total, num_heads, head_size_v]
  Offset out_token_stride, out_head_stride;
  float* lse;  // [num_heads, total] or null
  int32_t total, batch, num_heads, group;
  int32_t causal, window_left, window_right;
  int32_t most_decode_rows;  // sequences with at most as many packed rows are the decode kernel's, others the prefill's
  float scale;  // of q.k: base-2 logits, or what tanh takes if there is a softcap
  float softcap;  // times log2(e); 0: none
  float v_scale;
  // Results of key ranges that do not cover a row's whole history, two slots per block of the decode kernel:
  float* partial_out;  // [slots, kDecodeRows, head_size_v], not normalised
  float* partial_maximum;  // [slots, kDecodeRows], base-2
  float* partial_sum;  // [slots, kDecodeRows]
  int32_t decode_blocks;  // grid of the decode kernel
};

constexpr int kLeastDecodeUnits = 2;  // key blocks that are worth a thread block of their own
constexpr int kCombineThreads = 128;

}  // namespace dfc
