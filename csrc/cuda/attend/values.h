// Online softmax over the scores of one block, then O += P V on tensor cores.
#pragma once

#include "cuda/attend/scores.h"

namespace dfc {

// Takes a block's logits into the running softmax; the scores become weights. (FlashAttention-2, arXiv 2307.08691.)
template <class C>
DEV void softmax(Scores<C>& scores, Accumulator<C>& acc) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    float top = acc.maximum[e];
#pragma unroll
    for (int i = 0; i < C::kKeys / 8; ++i) {
      top = dev::max(top, dev::max(scores.value[i][2 * e], scores.value[i][2 * e + 1]));
    }
    top = dev::max(top, dev::shfl_xor(top, 1));
    top = dev::max(top, dev::shfl_xor(top, 2));
    const float base = top == -INFINITY ? 0.0f : top;  // no key seen yet: every weight is 0, not NaN
    const float shrink = dev::exp2(acc.maximum[e] - base);
    acc.maximum[e] = top;
    acc.sum[e] *= shrink;
#pragma unroll
    for (int i = 0; i < C::kColumns / 8; ++i) {
      acc.out[i][2 * e] *= shrink;
      acc.out[i][2 * e + 1] *= shrink;
    }
#pragma unroll
    for (int i = 0; i < C::kKeys / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = scores.value[i][2 * e + j];
        score = dev::exp2(score - base);
        acc.sum[e] += score;
      }
    }
  }
}

// fp8: ldmatrix.trans moves pairs of bytes, so a lane gets columns 2g and 2g+1 of two keys in one register. Taken apart
// they are operands of two mma, one of the even and one of the odd columns of sixteen.
template <class C>
DEV void multiply_values(const WarpPlace<C>& place, uint32_t stage, const Scores<C>& scores, Accumulator<C>& acc) {
  const int row = place.lane & 7, matrix = place.lane >> 3;
  constexpr int kChunkColumns = 16 / C::Type::kBytes;
  const int first_chunk = place.column_warp * C::kColumns / kChunkColumns;
#pragma unroll
  for (int k = 0; k < C::kKeys / 16; ++k) {
    const float (*p)[4] = &scores.value[2 * k];
    const uint32_t weights[4] = {C::Query::pack2(p[0][0], p[0][1]), C::Query::pack2(p[0][2], p[0][3]),
                                 C::Query::pack2(p[1][0], p[1][1]), C::Query::pack2(p[1][2], p[1][3])};
    const int key = place.key_warp * C::kKeys + k * 16 + (matrix & 1) * 8 + row;
#pragma unroll
    for (int n = 0; n < C::kColumns / kChunkColumns; n += 2) {
      uint32_t v[4];
      dev::ldmatrix_x4<true>(v,
                             stage + C::KeyTiles::kBytes + C::ValueTiles::offset(key, first_chunk + n + (matrix >> 1)));
      if constexpr (C::Type::kFp8) {
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk) {
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const uint32_t pick = odd ? 0x7531u : 0x6420u;  // bytes 1, 3 or 0, 2 of both registers
            const uint32_t both = dev::permute_bytes(v[2 * chunk], v[2 * chunk + 1], pick);
            C::Query::mma(acc.out[2 * (n + chunk) + odd], weights, widen_pair<C>(both), widen_pair<C>(both >> 16));
          }
        }
      } else {
        C::Query::mma(acc.out[n], weights, v[0], v[1]);
        C::Query::mma(acc.out[n + 1], weights, v[2], v[3]);
      }
    }
  }
}

}  // namespace dfc
