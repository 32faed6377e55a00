// One tile of rows over a range of key blocks: the loop of both kernels.
//
// Each block is two groups of asynchronous copies, keys then values. With two stages the next block is on its way while
// this one is multiplied; with one, values arrive under the scores.
#pragma once

#include "cuda/attend/load.h"
#include "cuda/attend/merge.h"
#include "cuda/attend/values.h"

namespace dfc {

template <class C>
DEV void attend_blocks(const AttendArgs& args, const RowTile& tile, const WarpPlace<C>& place, int begin, int end,
                       Accumulator<C>& acc) {
  constexpr int kAhead = C::kStages - 1;
  if (begin >= end) return;  // rows that see no key
  const Visible visible = visible_to(args, tile, place);
  load_query<C>(args, tile);  // joins the first group
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_block<C>(args, tile, begin + i, end);
  for (int block = begin; block < end; ++block) {
    const uint32_t stage = static_cast<uint32_t>(block % C::kStages) * C::kStageBytes;
    dev::sync_block();  // the stage that is filled next is read no more
    load_block<C>(args, tile, block + kAhead, end);
    dev::cp_async_wait<2 * kAhead + 1>();
    dev::sync_block();  // keys
    Scores<C> scores;
    multiply_keys(place, stage, scores);
    finish_scores(args, place, visible, block, scores);
    softmax(scores, acc);
    dev::cp_async_wait<2 * kAhead>();
    dev::sync_block();  // values
    multiply_values(place, stage, scores, acc);
  }
  dev::cp_async_wait<0>();
  add_lanes(acc);
}

// The result of blocks [begin, end) of a tile goes to partial slot `slot`, or is final if it is -1.
template <class C>
DEV void attend_tile(const AttendArgs& args, const RowTile& tile, int begin, int end, int64_t slot) {
  const WarpPlace<C> place = WarpPlace<C>::here();
  Accumulator<C> acc;
  acc.clear();
  attend_blocks<C>(args, tile, place, begin, end, acc);
  if constexpr (C::kKeyWarps > 1) {
    share_outputs(place, acc);
    write_merged<C>(args, tile, slot);
    dev::sync_block();  // before another tile reuses the memory
  } else {
    write_rows(args, tile, place, acc);
  }
}

}  // namespace dfc
