// unpack and copy_blocks: bytes move, nothing is computed.
#pragma once

#include "cuda/storage/place.h"

namespace dfc {

// The rows of consecutive pages, as stored, into rows whose chunks start at multiples of 16 bytes.
struct Unpack {
  using Args = UnpackArgs;
  static constexpr int kThreads = kStorageThreads, kMinBlocks = 4;

  static DEV void run(const Args& args) {
    const uint32_t rank = chunk_rank();
    if (rank >= args.chunks.total) return;
    const Chunk chunk = chunk_at(args.chunks, rank);
    const RowBytes& rows = chunk.part == Part::kKey ? args.key : args.value;
    char* target = rows.data + chunk.head * rows.head_stride + Offset{chunk.index} * kChunkBytes;
    for_each_row(args.num_rows, [&](Offset row) {
      const u128 stored = dev::ldg<u128>(args.pages + chunk_place(args.layout, row, chunk));
      dev::stg<u128>(target + row * rows.row_stride, stored);
    });
  }
};

// Whole pages. grid.y deals pairs, grid.x slices of a page. Pairs that name a page outside their pool are skipped.
struct CopyBlocks {
  using Args = CopyArgs;
  static constexpr int kThreads = kStorageThreads, kMinBlocks = 4;

  // Does another pair read the page that this one writes? Every warp finds out for itself; the answer is uniform.
  static DEV bool must_wait(const Args& args, Offset pair, Offset target) {
    if (args.stage_all) return true;
    for (Offset first = 0; first < args.num_pairs; first += 32) {
      const Offset other = first + dev::lane();
      const bool reads = other < args.num_pairs && other != pair && dev::ldg<int64_t>(args.pairs + 2 * other) == target;
      if (dev::any(reads)) return true;
    }
    return false;
  }

  static DEV void copy_slice(const char* from, char* to, Offset page_bytes) {
    const Offset first = Offset{dev::block_x()} * kCopySliceBytes + dev::tid() * kChunkBytes;
    u128 held[kCopyChunksPerThread];
#pragma unroll
    for (int i = 0; i < kCopyChunksPerThread; ++i) {
      const Offset at = first + i * Offset{kThreads} * kChunkBytes;
      if (at < page_bytes) held[i] = dev::ldg_coherent<u128>(from + at);
    }
#pragma unroll
    for (int i = 0; i < kCopyChunksPerThread; ++i) {
      const Offset at = first + i * Offset{kThreads} * kChunkBytes;
      if (at < page_bytes) dev::stg<u128>(to + at, held[i]);
    }
  }

  static DEV void run(const Args& args) {
    for_each_row(args.num_pairs, [&](Offset pair) {
      const Offset source = dev::ldg<int64_t>(args.pairs + 2 * pair);
      const Offset target = dev::ldg<int64_t>(args.pairs + 2 * pair + 1);
      const bool inside = 0 <= source && source < args.source_blocks && 0 <= target && target < args.target_blocks;
      if (!inside) return;
      const char* from = args.source + source * args.page_bytes;
      char* to = args.target + target * args.page_bytes;
      if (from == to) return;
      const bool waits = args.staging != nullptr && must_wait(args, pair, target);
      char* staged = waits ? args.staging + pair * args.page_bytes : to;
      if (!args.second) copy_slice(from, staged, args.page_bytes);
      if (args.second && waits) copy_slice(staged, to, args.page_bytes);
    });
  }
};

}  // namespace dfc
