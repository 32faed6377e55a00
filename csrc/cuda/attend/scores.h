// Scores of one block: S = Q K^T on tensor cores, then scale, softcap and mask.
#pragma once

#include "cuda/attend/config.h"
#include "cuda/attend/rows.h"

namespace dfc {

template <class C>
struct Scores {
  float value[C::kKeys / 8][4];  // column 8 * i + 2 * quad + e % 2 of the warp's keys, row half e / 2
};

// Two fp8 of a fragment as two of the query's type.
template <class C>
DEV uint32_t widen_pair(uint32_t pair) {
  const auto bytes = static_cast<uint16_t>(pair);
  if constexpr (C::Type::kFp8) {
    return C::kBfloat ? C::Stored::to_bfloat2(bytes) : C::Stored::to_half2(bytes);
  } else {
    return pair;
  }
}

// fp8: ldmatrix moves 16 bytes, so a lane gets four neighbouring columns 4t..4t+3 of a key where an mma wants 2t, 2t+1
// and 2t+8, 2t+9. The sum over columns does not care for their order, if the query's columns are permuted alike.
template <class C>
DEV void multiply_keys(const WarpPlace<C>& place, uint32_t stage, Scores<C>& scores) {
  constexpr int kSteps = C::kHeadSize / 16;
#pragma unroll
  for (int i = 0; i < C::kKeys / 8; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores.value[i][e] = 0.0f;
  }
  const int row = place.lane & 7, matrix = place.lane >> 3;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    uint32_t q[4];
    dev::ldmatrix_x4<false>(q, C::kQueryOffset + C::QueryTiles::offset(place.row_warp * 16 + (matrix & 1) * 8 + row,
                                                                       2 * k + (matrix >> 1)));
    if constexpr (C::Type::kFp8) {
      // Four groups of 8 keys at a time, one chunk of 16 columns: what one mma step over columns takes.
#pragma unroll
      for (int n = 0; n < C::kKeys / 32; ++n) {
        uint32_t keys[4];
        const int key = place.key_warp * C::kKeys + n * 32 + matrix * 8 + row;
        dev::ldmatrix_x4<false>(keys, stage + C::KeyTiles::offset(key, k));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          C::Query::mma(scores.value[4 * n + j], q, widen_pair<C>(keys[j]), widen_pair<C>(keys[j] >> 16));
        }
      }
      if constexpr (C::kKeys % 32 != 0) {
        uint32_t keys[4];  // the last 16 keys, twice
        const int key = place.key_warp * C::kKeys + C::kKeys - 16 + (matrix & 1) * 8 + row;
        dev::ldmatrix_x4<false>(keys, stage + C::KeyTiles::offset(key, k));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          C::Query::mma(scores.value[C::kKeys / 8 - 2 + j], q, widen_pair<C>(keys[j]), widen_pair<C>(keys[j] >> 16));
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < C::kKeys / 16; ++n) {
        uint32_t keys[4];
        const int key = place.key_warp * C::kKeys + n * 16 + (matrix >> 1) * 8 + row;
        dev::ldmatrix_x4<false>(keys, stage + C::KeyTiles::offset(key, 2 * k + (matrix & 1)));
        C::Query::mma(scores.value[2 * n], q, keys[0], keys[1]);
        C::Query::mma(scores.value[2 * n + 1], q, keys[2], keys[3]);
      }
    }
  }
}

// What each of a thread's two rows sees; nothing for rows past the tile.
struct Visible {
  KeyRange keys[2];
};

template <class C>
DEV Visible visible_to(const AttendArgs& args, const RowTile& tile, const WarpPlace<C>& place) {
  Visible visible{};
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = place.row(e);
    if (row < tile.num_rows) visible.keys[e] = visible_keys(args, tile.sequence, tile.token(args, row));
  }
  return visible;
}

// Base-2 logits; -inf for keys that a row does not see.
template <class C>
DEV void finish_scores(const AttendArgs& args, const WarpPlace<C>& place, const Visible& visible, int block,
                       Scores<C>& scores) {
  const int first = block * C::kBlock + place.key_warp * C::kKeys + 2 * place.quad();
#pragma unroll
  for (int i = 0; i < C::kKeys / 8; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = first + 8 * i + (e & 1);
      const KeyRange& keys = visible.keys[e >> 1];
      float logit = scores.value[i][e] * args.scale;
      if (args.softcap > 0.0f) logit = dev::tanh(logit) * args.softcap;
      scores.value[i][e] = key >= keys.begin && key < keys.end ? logit : -INFINITY;
    }
  }
}

}  // namespace dfc
