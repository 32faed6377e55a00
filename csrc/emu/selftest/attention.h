// Attention of 16 query rows over the keys of one head, as kernels for GPUs do it: the block's warps share tiles of 64
// keys, two of them in flight, and merge their parts at the end. For the tests, and to measure the emulator with.
#pragma once

#include "emu/selftest/kernels.h"

namespace selftest {

constexpr int kHead = 128, kTile = 64, kWarps = 4, kRows = 16;
constexpr int kRowBytes = kHead * 2, kTileBytes = kTile * kRowBytes, kChunks = kRowBytes / 16;
constexpr uint32_t kQuery = 4 * kTileBytes, kAttentionShared = kQuery + kRows * kRowBytes;
constexpr uint32_t kMaxima = kWarps * kRows * kHead * 4, kSums = kMaxima + kWarps * kRows * 4;  // over the tiles

DEV uint32_t swizzled(uint32_t row, uint32_t chunk) { return row * kRowBytes + ((chunk ^ (row & 7)) << 4); }

struct AttentionArgs {
  const char *q, *k, *v;  // [16, 128], [num_keys, 128] fp16
  float* out;             // [16, 128]
  float scale;            // with log2(e)
  int num_keys;
};

class Attention {
 public:
  DEV explicit Attention(const AttentionArgs& args) : args_(args), warp_(dev::warp()), lane_(dev::lane()) {}

  DEV void run() {
    load_rows(kQuery, args_.q, kRows, kRows);
    load_tile(0);
    const int tiles = (args_.num_keys + kTile - 1) / kTile;
    for (int tile = 0; tile < tiles; ++tile) {
      load_tile(tile + 1);
      dev::cp_async_wait<1>();
      dev::sync_block();
      step(tile);
      dev::sync_block();
    }
    dev::cp_async_wait<0>();
    dev::sync_block();
    merge();
  }

 private:
  DEV void load_rows(uint32_t target, const char* source, int valid, int rows) {
    for (int i = dev::tid(); i < rows * kChunks; i += kWarps * 32) {
      const int row = i / kChunks, chunk = i % kChunks;
      dev::cp_async16(target + swizzled(row, chunk), source + row * kRowBytes + chunk * 16, row < valid ? 16 : 0);
    }
  }

  DEV void load_tile(int tile) {
    const uint32_t target = (tile & 1) * 2 * kTileBytes;
    const int left = args_.num_keys - tile * kTile;
    if (left > 0) {
      load_rows(target, args_.k + int64_t{tile} * kTileBytes, left, kTile);
      load_rows(target + kTileBytes, args_.v + int64_t{tile} * kTileBytes, left, kTile);
    }
    dev::cp_async_commit();
  }

  // Scores of 16 rows and the 16 keys of this warp.
  DEV void scores(float (&s)[2][4], uint32_t keys) {
    for (int k = 0; k < kHead / 16; ++k) {
      uint32_t a[4], b[4];
      dev::ldmatrix_x4<false>(a, kQuery + swizzled(lane_ & 15, 2 * k + (lane_ >> 4)));
      const uint32_t row = warp_ * 16 + (lane_ & 7) + (lane_ >> 4) * 8;
      dev::ldmatrix_x4<false>(b, keys + swizzled(row, 2 * k + (lane_ >> 3 & 1)));
      dev::F16::mma(s[0], a, b[0], b[1]);
      dev::F16::mma(s[1], a, b[2], b[3]);
    }
  }

  DEV void step(int tile) {
    const uint32_t keys = (tile & 1) * 2 * kTileBytes;
    float s[2][4] = {};
    scores(s, keys);
    const int first = tile * kTile + warp_ * 16 + lane_ % 4 * 2;
    uint32_t weights[4];
    for (int half = 0; half < 2; ++half) {
      float top = max_[half];
      for (int i = 0; i < 4; ++i) {
        float& score = s[i / 2][half * 2 + i % 2];
        score = first + i / 2 * 8 + i % 2 < args_.num_keys ? score * args_.scale : -1e30f;
        top = dev::max(top, score);
      }
      top = dev::max(top, dev::shfl_xor(top, 1));
      top = dev::max(top, dev::shfl_xor(top, 2));
      const float shrink = dev::exp2(max_[half] - top);
      max_[half] = top;
      sum_[half] *= shrink;
      for (int i = 0; i < 4; ++i) {
        float& score = s[i / 2][half * 2 + i % 2];
        score = dev::exp2(score - top);
        sum_[half] += score;
      }
      for (auto& column : out_) {
        column[half * 2] *= shrink;
        column[half * 2 + 1] *= shrink;
      }
    }
    for (int i = 0; i < 4; ++i) weights[i] = dev::F16::pack2(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
    for (int n = 0; n < kHead / 16; ++n) {
      uint32_t b[4];
      dev::ldmatrix_x4<true>(b, keys + kTileBytes + swizzled(warp_ * 16 + (lane_ & 15), 2 * n + (lane_ >> 4)));
      dev::F16::mma(out_[2 * n], weights, b[0], b[1]);
      dev::F16::mma(out_[2 * n + 1], weights, b[2], b[3]);
    }
  }

  DEV void merge() {
    for (int half = 0; half < 2; ++half) {
      const int row = lane_ / 4 + half * 8;
      float sum = sum_[half] + dev::shfl_xor(sum_[half], 1);
      sum += dev::shfl_xor(sum, 2);
      if (lane_ % 4 == 0) {
        dev::sts<float>(kMaxima + (warp_ * kRows + row) * 4, max_[half]);
        dev::sts<float>(kSums + (warp_ * kRows + row) * 4, sum);
      }
      for (int n = 0; n < kHead / 8; ++n) {
        for (int i = 0; i < 2; ++i) {
          dev::sts<float>(((warp_ * kRows + row) * kHead + n * 8 + lane_ % 4 * 2 + i) * 4, out_[n][half * 2 + i]);
        }
      }
    }
    dev::sync_block();
    for (int i = dev::tid(); i < kRows * kHead; i += kWarps * 32) {
      const int row = i / kHead;
      float top = -1e30f, sum = 0, value = 0;
      for (int w = 0; w < kWarps; ++w) top = dev::max(top, dev::lds<float>(kMaxima + (w * kRows + row) * 4));
      for (int w = 0; w < kWarps; ++w) {
        const float share = dev::exp2(dev::lds<float>(kMaxima + (w * kRows + row) * 4) - top);
        sum += share * dev::lds<float>(kSums + (w * kRows + row) * 4);
        value += share * dev::lds<float>((w * kRows * kHead + i) * 4);
      }
      dev::stg<float>(args_.out + i, value / sum);
    }
  }

  const AttentionArgs& args_;
  const int warp_, lane_;
  float out_[kHead / 8][4] = {};
  float max_[2] = {-1e30f, -1e30f}, sum_[2] = {};
};

}  // namespace selftest
