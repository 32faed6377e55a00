// The end of a tile: sums over lanes and key warps, then the final result or a partial one.
#pragma once

#include "cuda/attend/config.h"
#include "cuda/attend/rows.h"

namespace dfc {

constexpr float kLog2e = 1.44269504088896341f;
constexpr float kLn2 = 0.69314718055994531f;

// Where a row's result goes, and its factor.
struct Result {
  char* out;  // null: the row is not part of the tile
  float factor;
};

// The final result of a row from its maximum (base 2) and sum; `sum` is 0 only where no key is seen.
DEV Result final_result(const AttendArgs& args, const RowTile& tile, int row, float maximum, float sum,
                        bool write_lse) {
  if (row >= tile.num_rows) return Result{nullptr, 0.0f};
  const int token = tile.sequence.first_token + tile.token(args, row), head = tile.head(args, row);
  float total = sum;
  if (args.sinks != nullptr) total += dev::exp2(dev::ldg<float>(args.sinks + head) * kLog2e - maximum);
  if (args.lse != nullptr && write_lse) {
    const float lse = sum == 0.0f ? -INFINITY : (maximum + dev::log2(sum)) * kLn2;
    dev::stg<float>(args.lse + int64_t{head} * args.total + token, lse);
  }
  char* out = args.out + token * args.out_token_stride + head * args.out_head_stride;
  return Result{out, sum == 0.0f ? 0.0f : args.v_scale / total};
}

DEV float* partial_row(const AttendArgs& args, int64_t slot, int row) {
  return args.partial_out + (slot * kDecodeRows + row) * args.layout.spec.head_size_v;
}

DEV void write_partial_sums(const AttendArgs& args, int64_t slot, int row, float maximum, float sum) {
  dev::stg<float>(args.partial_maximum + slot * kDecodeRows + row, maximum);
  dev::stg<float>(args.partial_sum + slot * kDecodeRows + row, sum);
}

// Sums of the four lanes that share a row.
template <class C>
DEV void add_lanes(Accumulator<C>& acc) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    acc.sum[e] += dev::shfl_xor(acc.sum[e], 1);
    acc.sum[e] += dev::shfl_xor(acc.sum[e], 2);
  }
}

// Column of a row of the merge buffer: rotated so that the eight rows of a store lie in different banks.
template <class C>
DEV uint32_t merge_offset(int key_warp, int row, int column) {
  const int rotated = column ^ (row & 3) * 8;
  return static_cast<uint32_t>(((key_warp * C::kRows + row) * C::kHeadSizeV + rotated) * 4);
}

template <class C>
DEV uint32_t sums_offset(int key_warp, int row) {
  return C::kMergeSums + static_cast<uint32_t>((key_warp * C::kRows + row) * 8);
}

// Maximum over all key warps, and the sum relative to it.
template <class C>
DEV void merge_sums(int row, float& maximum, float& sum) {
  maximum = -INFINITY;
  sum = 0.0f;
#pragma unroll
  for (int w = 0; w < C::kKeyWarps; ++w) {
    maximum = dev::max(maximum, dev::bits_float(dev::lds<u64x>(sums_offset<C>(w, row)).x));
  }
  const float base = maximum == -INFINITY ? 0.0f : maximum;
#pragma unroll
  for (int w = 0; w < C::kKeyWarps; ++w) {
    const u64x part = dev::lds<u64x>(sums_offset<C>(w, row));
    sum += dev::bits_float(part.y) * dev::exp2(dev::bits_float(part.x) - base);
  }
}

// Leaves each key warp's output in shared memory, scaled to the common maximum.
template <class C>
DEV void share_outputs(const WarpPlace<C>& place, const Accumulator<C>& acc) {
  dev::sync_block();  // the loop's tiles are read no more
  if (place.quad() == 0 && place.column_warp == 0) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const u64x part{dev::float_bits(acc.maximum[e]), dev::float_bits(acc.sum[e])};
      dev::sts<u64x>(sums_offset<C>(place.key_warp, place.row(e)), part);
    }
  }
  dev::sync_block();
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = place.row(e);
    float maximum, sum;
    merge_sums<C>(row, maximum, sum);
    const float factor = dev::exp2(acc.maximum[e] - (maximum == -INFINITY ? 0.0f : maximum));
#pragma unroll
    for (int i = 0; i < C::kColumns / 8; ++i) {
      const Pair pair = output_pair(acc, place, i, e);
      dev::sts<u64x>(merge_offset<C>(place.key_warp, row, pair.column),
                     u64x{dev::float_bits(pair.low * factor), dev::float_bits(pair.high * factor)});
    }
  }
  dev::sync_block();
}

// Adds up what share_outputs left and writes it, four columns a thread.
template <class C>
DEV void write_merged(const AttendArgs& args, const RowTile& tile, int64_t slot) {
  constexpr int kQuads = C::kHeadSizeV / 4;
  for (int i = dev::tid(); i < C::kRows * kQuads; i += C::kThreads) {
    const int row = i / kQuads, column = i % kQuads * 4;
    float maximum, sum;
    merge_sums<C>(row, maximum, sum);
    float total[4] = {};
#pragma unroll
    for (int w = 0; w < C::kKeyWarps; ++w) {
      const u128 part = dev::lds<u128>(merge_offset<C>(w, row, column));
      total[0] += dev::bits_float(part.x);
      total[1] += dev::bits_float(part.y);
      total[2] += dev::bits_float(part.z);
      total[3] += dev::bits_float(part.w);
    }
    if (slot >= 0) {
      const u128 words{dev::float_bits(total[0]), dev::float_bits(total[1]), dev::float_bits(total[2]),
                       dev::float_bits(total[3])};
      dev::stg<u128>(partial_row(args, slot, row) + column, words);
      if (column == 0) write_partial_sums(args, slot, row, maximum, sum);
      continue;
    }
    const Result result = final_result(args, tile, row, maximum, sum, column == 0);
    if (result.out == nullptr) continue;
    const u64x words{C::Query::pack2(total[0] * result.factor, total[1] * result.factor),
                     C::Query::pack2(total[2] * result.factor, total[3] * result.factor)};
    dev::stg<u64x>(result.out + column * 2, words);
  }
}

// Without key warps a warp holds whole rows: written from registers.
template <class C>
DEV void write_rows(const AttendArgs& args, const RowTile& tile, const WarpPlace<C>& place, const Accumulator<C>& acc) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const bool first = place.quad() == 0 && place.column_warp == 0;
    const Result result = final_result(args, tile, place.row(e), acc.maximum[e], acc.sum[e], first);
    if (result.out == nullptr) continue;
#pragma unroll
    for (int i = 0; i < C::kColumns / 8; ++i) {
      const Pair pair = output_pair(acc, place, i, e);
      dev::stg<uint32_t>(result.out + pair.column * 2,
                         C::Query::pack2(pair.low * result.factor, pair.high * result.factor));
    }
  }
}

}  // namespace dfc
