// What Python hands to the operations: raw pointers, strides in elements, 64-bit sizes. No torch types.
// Shapes, dtypes and strides were checked by ops (checks.py); values are checked by api/checks.cpp.
#pragma once

#include "layout/layout.h"

namespace dfc {

enum class Dtype : int { kFp32 = 0, kFp16 = 1, kBf16 = 2, kFp8E4m3 = 3, kFp8E5m2 = 4 };

constexpr int kNumDtypes = 5;
constexpr Offset kGroupTokens = 64;     // tokens that one record of a gate's side data stands for
constexpr Offset kPlainBlockRows = 64;  // plain rows are attended in blocks of as many

DFC_HOST_DEVICE constexpr bool is_fp8(Dtype dtype) { return dtype == Dtype::kFp8E4m3 || dtype == Dtype::kFp8E5m2; }

// A layout with its storage type and a table of where each tile starts.
struct Storage {
  Layout layout;
  Dtype dtype;
  const Offset* k_tile;  // [extent, k_tiles] elements from the start of a head's run
  const Offset* v_tile;  // [extent, v_tiles]

  DFC_HOST_DEVICE const Offset* tile(Part part) const { return part == Part::kKey ? k_tile : v_tile; }
};

struct Rows {                       // key or value: [tokens, heads, columns], columns contiguous
  char* data;
  Offset token_stride, head_stride;
};

struct AppendParams {
  Storage storage;
  Rows key, value;                  // dtype `source`
  Dtype source;
  void* cache;                      // [num_blocks, page]
  Offset num_blocks;
  const int64_t* slots;             // [num_slots]; null: row i goes to slot i (pack)
  Offset num_slots;
  float k_scale, v_scale;
  int threads;
};

struct UnpackParams {
  Storage storage;
  const void* pages;
  Rows key, value;                  // written, storage dtype
  Offset length;
  int threads;
};

struct CopyParams {
  Offset page_bytes;
  const void* source;
  Offset source_blocks;
  void* target;
  Offset target_blocks;
  const int64_t* pairs;             // [num_pairs, 2]: source page, target page
  Offset num_pairs;
  int threads;
};

// Keys and values outside a pool: pages [num_blocks, page_tokens, heads, columns] of rows with any strides. A ragged
// tensor is one page; a cache with a fixed length per sequence has one page per sequence.
struct PlainRows {
  Rows key, value;                  // page 0; dtype of the storage
  Offset key_page_stride, value_page_stride;
  const int32_t* first;             // [batch] row of the sequence's pages that holds key 0; null: 0
  const int32_t* cu_seqlens_k;      // [batch + 1], ragged tensor: `first` and the rows a sequence owns; else null
};

struct AttendParams {
  Storage storage;
  bool plain;                       // keys and values are in `rows`, not in `cache`
  PlainRows rows;
  const void* query;                // [total, heads, head_size]
  Dtype query_dtype;
  Offset query_token_stride, query_head_stride;
  Offset total, num_heads;
  const void* cache;
  Offset num_blocks;
  const int32_t* block_table;       // [batch, max_blocks]
  Offset table_stride, max_blocks, batch;
  const int32_t* cu_seqlens_q;      // [batch + 1]
  Offset max_seqlen_q;              // most query rows of a sequence, 0: unknown; a wrong one costs time only
  const int32_t* kv_lens;           // [batch]
  const float* sinks;               // [heads] or null
  float softmax_scale, softcap, k_scale, v_scale;
  bool causal;
  Offset window_left, window_right;  // -1: no limit
  void* out;                        // [total, heads, head_size_v], dtype of the query
  Offset out_token_stride, out_head_stride;
  float* lse;                       // [heads, total] or null
  int threads;
};

}  // namespace dfc
