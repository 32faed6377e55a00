#include "emu/order.h"

#include <algorithm>

#include "emu/block.h"

namespace dfc {
namespace emu {

void Past::add(const Past& other) {
  for (size_t i = 0; i < epochs.size(); ++i) epochs[i] = std::max(epochs[i], other.epochs[i]);
  if (steps.size() < other.steps.size()) steps.resize(other.steps.size());
  for (size_t i = 0; i < other.steps.size(); ++i) steps[i] = std::max(steps[i], other.steps[i]);
}

void Past::add_step(size_t tid, uint32_t step) {
  if (steps.size() <= tid) steps.resize(block->lanes.size());
  steps[tid] = std::max(steps[tid], step);
}

namespace {

size_t index_of(const Lane& lane) { return static_cast<size_t>(lane.tid); }
size_t warp_index(const Lane& lane) { return static_cast<size_t>(lane.warp()); }

template <class Do>
void for_lanes(size_t warp, Do action) {
  const size_t end = std::min((warp + 1) * 32, block->lanes.size());
  for (size_t i = warp * 32; i < end; ++i) action(block->lanes[i]);
}

// What single lanes learnt becomes known to the warp.
void gather(size_t warp) {
  Warp& own = block->warps[warp];
  for_lanes(warp, [&](Lane& lane) {
    if (lane.learnt == nullptr) return;
    own.known.add(*lane.learnt);
    lane.learnt.reset();
  });
}

}  // namespace

Mark mark_of(const Lane& lane) { return Mark{warp_of(lane).epoch, lane.step, static_cast<int16_t>(lane.tid)}; }

bool is_before(const Mark& mark, const Lane& lane) {
  if (mark.tid == lane.tid) return true;
  const Warp& own = warp_of(lane);
  if (mark.tid >> 5 == lane.warp() && mark.epoch < own.epoch) return true;
  return own.known.ordered.has(mark) || (lane.learnt != nullptr && lane.learnt->ordered.has(mark));
}

bool is_fenced(const Mark& mark, const Lane& lane) {
  return warp_of(lane).known.fenced.has(mark) || (lane.learnt != nullptr && lane.learnt->fenced.has(mark));
}

void order_warp(size_t warp) {
  gather(warp);
  ++block->warps[warp].epoch;
}

void order_block() {
  Knowledge all;
  for (size_t w = 0; w < block->warps.size(); ++w) {
    gather(w);
    all.add(block->warps[w].known);
  }
  all.ordered.steps.clear();  // the epochs say more
  for (size_t w = 0; w < block->warps.size(); ++w) all.ordered.epochs[w] = block->warps[w].epoch;
  for (Warp& warp : block->warps) {
    warp.known = all;
    ++warp.epoch;
  }
}

void release_lane(Lane& lane, Knowledge& into) {
  const Warp& own = warp_of(lane);
  into.add(own.known);
  if (lane.learnt != nullptr) into.add(*lane.learnt);
  uint32_t& epoch = into.ordered.epochs[warp_index(lane)];
  epoch = std::max(epoch, own.epoch - 1);
  into.ordered.add_step(index_of(lane), lane.step);
  ++lane.step;
}

void release_warp(size_t warp, Knowledge& into) {
  gather(warp);
  Warp& own = block->warps[warp];
  into.add(own.known);
  into.ordered.epochs[warp] = own.epoch++;
}

void acquire_lane(Lane& lane, const Knowledge& from) {
  if (lane.learnt == nullptr) lane.learnt = std::make_unique<Knowledge>();
  lane.learnt->add(from);
}

void acquire_warp(size_t warp, const Knowledge& from) { block->warps[warp].known.add(from); }

void fence_proxy(Lane& lane) {
  Knowledge before;
  release_lane(lane, before);
  if (lane.learnt == nullptr) lane.learnt = std::make_unique<Knowledge>();
  lane.learnt->fenced.add(before.ordered);
}

}  // namespace emu
}  // namespace dfc
