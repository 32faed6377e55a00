// The arguments of the storage kernels. Plain data without device code, so that host planning includes it too.
#pragma once

#include "api/params.h"

namespace dfc {

// Rows of key or value outside the pool: [rows, heads, columns]. Strides in bytes: the copying kernels know no dtype.
struct RowBytes {
  char* data;
  Offset row_stride, head_stride;
};

// One token's K and V of all heads, cut into the 16-byte chunks that a pool stores: first the key of every head, then
// the value of every head. A thread owns one chunk of the token, so that neighbours read and write neighbours.
struct TokenChunks {
  uint32_t key, value;  // of one head
  uint32_t key_end;     // num_kv_heads * key: chunks from here on are of the value
  uint32_t total;
};

struct AppendArgs {
  Layout layout;
  char* cache;
  Offset num_slots;      // that the pool has
  const int64_t* slots;  // [num_rows]; null: row i goes to slot i
  Offset num_rows;
  RowBytes key, value;
  TokenChunks chunks;
  float k_scale, v_scale;
  int aligned;  // every chunk of a source starts at a multiple of 16 bytes
};

struct UnpackArgs {
  Layout layout;
  const char* pages;
  Offset num_rows;
  RowBytes key, value;  // written
  TokenChunks chunks;
};

// A pair whose target page is also the source of another pair must wait until that one has been read. It goes through
// `staging`: the first launch fills it, the second empties it. All other pairs are copied by the first launch.
struct CopyArgs {
  const char* source;
  char* target;
  char* staging;  // [num_pairs] pages; null: the pools do not overlap
  const int64_t* pairs;
  Offset num_pairs, page_bytes, source_blocks, target_blocks;
  int stage_all;  // the pools overlap, but are not the same: their page numbers cannot be compared
  int second;
};

// After append, for gates that summarise groups of tokens. The gate's own arguments follow in CloseArgs.
struct CloseHead {
  Layout layout;
  const char* cache;
  Offset num_slots;
  const int64_t* slots;
  Offset num_rows;
  Offset group_tokens;  // a divisor of page_tokens
};

template <class Gate>
struct CloseArgs {
  CloseHead head;
  typename Gate::Args gate;
  static_assert(alignof(typename Gate::Args) <= alignof(CloseHead), "host code joins the two as bytes");
};

constexpr int kStorageThreads = 256;     // of a block at most
constexpr int kCloseThreads = 128;
constexpr int kCopyChunksPerThread = 4;  // in flight
constexpr Offset kCopySliceBytes = Offset{kStorageThreads} * kCopyChunksPerThread * kChunkBytes;

DFC_HOST_DEVICE constexpr TokenChunks token_chunks(const Layout& layout) {
  TokenChunks chunks{};
  chunks.key = static_cast<uint32_t>(layout.spec.head_size * layout.spec.item_bytes / kChunkBytes);
  chunks.value = static_cast<uint32_t>(layout.spec.head_size_v * layout.spec.item_bytes / kChunkBytes);
  chunks.key_end = static_cast<uint32_t>(layout.spec.num_kv_heads) * chunks.key;
  chunks.total = static_cast<uint32_t>(layout.spec.num_kv_heads) * (chunks.key + chunks.value);
  return chunks;
}

}  // namespace dfc
