// One instance of the attention kernels: types, sizes, how warps share a tile of rows, and where things lie in shared
// memory.
#pragma once

#include "cuda/attend/args.h"
#include "dev/dev.h"

namespace dfc {

template <class T>
struct StoredType {  // of the cache
  static constexpr bool kFp8 = false;
  static constexpr int kBytes = 2;
};
template <>
struct StoredType<dev::E4M3> {
  static constexpr bool kFp8 = true;
  static constexpr int kBytes = 1;
};
template <>
struct StoredType<dev::E5M2> {
  static constexpr bool kFp8 = true;
  static constexpr int kBytes = 1;
};

template <class T>
constexpr bool kIsBfloat = false;
template <>
constexpr bool kIsBfloat<dev::BF16> = true;

// Rows of `columns` elements as tiles of kRows rows lie in shared memory, byte for byte as in the pool.
template <int kRows_, int kColumns, int kItemBytes, int kRowBytes_>
struct Tiles {
  static constexpr int kRows = kRows_, kRowBytes = kRowBytes_;
  static constexpr int kChunksPerRow = kRowBytes / 16;  // of one tile
  static constexpr int kCount = (kColumns * kItemBytes + kRowBytes - 1) / kRowBytes;
  static constexpr uint32_t kTileBytes = kRows * kRowBytes;
  static constexpr uint32_t kBytes = kCount * kTileBytes;

  // Of 16-byte chunk `chunk` of a row, counted over all tiles.
  static DEV uint32_t offset(int row, int chunk) {
    const int key = kRowBytes == 128 ? row & 7 : (row >> 1) & 3;
    const int place = (chunk % kChunksPerRow) ^ key;
    return static_cast<uint32_t>(chunk / kChunksPerRow) * kTileBytes +
           static_cast<uint32_t>(row * kRowBytes + place * 16);
  }
};

template <class Query_, class Stored_, int kHeadSize_, int kHeadSizeV_, int kBlock_, bool kPrefill>
struct AttendConfig {
  using Query = Query_;
  using Stored = Stored_;
  using Type = StoredType<Stored>;
  static constexpr bool kBfloat = kIsBfloat<Query>;
  static constexpr int kHeadSize = kHeadSize_, kHeadSizeV = kHeadSizeV_, kBlock = kBlock_;
  static constexpr AttendSizes kSizes = kPrefill ? prefill_sizes(kHeadSize, kHeadSizeV, kBlock, Type::kBytes)
                                                 : decode_sizes(kHeadSize, kHeadSizeV, kBlock, Type::kBytes);
  static constexpr int kKeyWarps = kSizes.key_warps, kColumnWarps = kSizes.column_warps;
  static constexpr int kThreads = kSizes.threads(), kRows = kSizes.rows();
  static constexpr int kKeys = kBlock / kKeyWarps;            // of one warp
  static constexpr int kColumns = kHeadSizeV / kColumnWarps;  // of one warp
  static constexpr int kQueryRowBytes = kHeadSize * 2 % 128 == 0 ? 128 : 64;
  using KeyTiles = Tiles<kBlock, kHeadSize, Type::kBytes, kSizes.row_bytes()>;
  using ValueTiles = Tiles<kBlock, kHeadSizeV, Type::kBytes, kSizes.row_bytes()>;
  using QueryTiles = Tiles<kRows, kHeadSize, 2, kQueryRowBytes>;
  static constexpr int kStages = kSizes.stages(), kSharedBytes = kSizes.shared_bytes();
  static constexpr uint32_t kStageBytes = kSizes.stage_bytes();
  static constexpr uint32_t kQueryOffset = kStages * kStageBytes;
  static constexpr uint32_t kMergeSums = kSizes.merge_sums();

  static_assert(KeyTiles::kBytes + ValueTiles::kBytes == kStageBytes, "sizes.h and the tiles agree");
  static_assert(kKeys % 16 == 0 && kColumns % 16 == 0 && kHeadSize % 16 == 0, "whole mma fragments");
};

template <class Query, class Stored, int kHeadSize, int kHeadSizeV, int kBlock>
using DecodeConfig = AttendConfig<Query, Stored, kHeadSize, kHeadSizeV, kBlock, false>;
template <class Query, class Stored, int kHeadSize, int kHeadSizeV, int kBlock>
using PrefillConfig = AttendConfig<Query, Stored, kHeadSize, kHeadSizeV, kBlock, true>;

// Accumulators of one warp: output of 16 rows x kColumns, and of each of a thread's two rows maximum and sum.
template <class C>
struct Accumulator {
  float out[C::kColumns / 8][4];
  float maximum[2], sum[2];  // base 2; the sum is this thread's share until `finish`

  DEV void clear() {
#pragma unroll
    for (int i = 0; i < C::kColumns / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[i][e] = 0.0f;
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      maximum[e] = -INFINITY;
      sum[e] = 0.0f;
    }
  }
};

// Which part of a tile a thread has.
template <class C>
struct WarpPlace {
  int lane, row_warp, key_warp, column_warp;

  static DEV WarpPlace here() {
    const int warp = dev::warp();
    return WarpPlace{dev::lane(), warp / (C::kKeyWarps * C::kColumnWarps), warp / C::kColumnWarps % C::kKeyWarps,
                     warp % C::kColumnWarps};
  }
  // Row of the tile of accumulator half e.
  DEV int row(int e) const { return row_warp * 16 + (lane >> 2) + 8 * e; }
  DEV int quad() const { return lane & 3; }
};

// Two neighbouring columns of the output. fp8 tiles bring the columns of an mma in another order, see values.h.
struct Pair {
  int column;
  float low, high;
};

template <class C>
DEV Pair output_pair(const Accumulator<C>& acc, const WarpPlace<C>& place, int i, int e) {
  const int first = place.column_warp * C::kColumns;
  if constexpr (C::Type::kFp8) {
    const int chunk = i / 2, j = i % 2;
    return Pair{first + 16 * chunk + 4 * place.quad() + 2 * j, acc.out[2 * chunk][2 * e + j],
                acc.out[2 * chunk + 1][2 * e + j]};
  } else {
    return Pair{first + 8 * i + 2 * place.quad(), acc.out[i][2 * e], acc.out[i][2 * e + 1]};
  }
}

}  // namespace dfc
