#include "emu/async.h"

#include <cstring>

#include "emu/global.h"
#include "emu/shared.h"

namespace dfc {
namespace emu {

namespace {

bool lands_at_issue() {
  if (options.lazy_async == kDfcEmuRandom) return random_bits() & 1;
  return options.lazy_async == kDfcEmuEager;
}

void land(AsyncCopy& copy) {
  if (copy.landed) return;
  std::memcpy(block->shared + copy.target, copy.source, static_cast<size_t>(copy.bytes));
  std::memset(block->shared + copy.target + copy.bytes, 0, static_cast<size_t>(copy.span - copy.bytes));
  copy.landed = true;
}

AsyncCopy issue(uint32_t offset, const void* source, int bytes, int span, Site site) {
  uint8_t* target = begin_copy(offset, static_cast<uint32_t>(span), site, current->tid);
  std::memset(target, 0xff, static_cast<size_t>(span));
  AsyncCopy copy{offset, source, bytes, span, false};
  if (lands_at_issue()) land(copy);
  return copy;
}

MBarrier& mbarrier_at(uint32_t offset, Site site) {
  const auto found = block->mbarriers.find(offset);
  if (found == block->mbarriers.end()) fail(site, "no mbarrier was initialised at shared memory +%u", offset);
  if (options.detect_races && !write_is_visible(block->cells[offset / 2], current->tid)) {
    fail(site, "race: the mbarrier at shared memory +%u is used before its initialisation is visible", offset);
  }
  return found->second;
}

void complete_phase(MBarrier& barrier) {
  if (barrier.pending > 0 || barrier.transactions != 0) return;
  for (AsyncCopy& copy : barrier.copies) {
    land(copy);
    land_bulk(copy.target, static_cast<uint32_t>(copy.span), block->async_clock);
  }
  barrier.clock[kAsyncUnit] = block->async_clock++;
  barrier.copies.clear();
  barrier.pending = barrier.expected;
  ++barrier.phase;
  for (Lane& lane : block->lanes) {
    if (lane.waits_for == &barrier) make_ready(lane);
  }
}

}  // namespace

void copy_async(uint32_t offset, const void* source, int bytes, Site site) {
  if (bytes < 0 || bytes > 16) fail(site, "cp.async of %d bytes: must be 0 to 16", bytes);
  if (bytes > 0) check_global(source, 16, AccessKind::kCopySource, site);
  trace_access(AccessKind::kCopyTarget, offset, 16, site);
  current->open.push_back(issue(offset, source, bytes, 16, site));
}

void commit_async() {
  current->groups.push_back(std::move(current->open));
  current->open.clear();
}

void wait_async(size_t pending) {
  while (current->groups.size() > pending) {
    for (AsyncCopy& copy : current->groups.front()) {
      land(copy);
      land_cp_async(copy.target, 16, current->tid);
    }
    current->groups.pop_front();
  }
}

void init_mbarrier(uint32_t offset, int count, Site site) {
  if (count < 1) fail(site, "mbarrier count %d: must be at least 1", count);
  std::memset(write_shared(offset, 8, 8, site, current->tid), 0, 8);
  MBarrier barrier;
  barrier.expected = barrier.pending = count;
  block->mbarriers[offset] = barrier;
}

void arrive_mbarrier(uint32_t offset, int bytes, Site site) {
  MBarrier& barrier = mbarrier_at(offset, site);
  if (barrier.pending <= 0) fail(site, "mbarrier at shared memory +%u: more arrivals than its count", offset);
  Warp& warp = warp_of(*current);
  join(barrier.clock, warp.clock);
  ++warp.clock[static_cast<size_t>(current->warp())];
  barrier.transactions += bytes;
  --barrier.pending;
  complete_phase(barrier);
}

void wait_mbarrier(uint32_t offset, int parity, Site site) {
  MBarrier& barrier = mbarrier_at(offset, site);
  while (static_cast<int>(barrier.phase & 1) == parity) wait_here(State::kWaits, "mbarrier", site, &barrier);
  Warp& warp = warp_of(*current);
  const auto own = static_cast<size_t>(current->warp());
  const uint32_t clock = warp.clock[own];
  join(warp.clock, barrier.clock);
  warp.clock[own] = clock;
}

void copy_bulk(uint32_t offset, const void* source, int bytes, uint32_t mbarrier, Site site) {
  if (bytes <= 0 || bytes % 16) fail(site, "bulk copy of %d bytes: must be a positive multiple of 16", bytes);
  check_bulk(source, static_cast<size_t>(bytes), site);
  MBarrier& barrier = mbarrier_at(mbarrier, site);
  barrier.copies.push_back(issue(offset, source, bytes, bytes, site));
  barrier.transactions -= bytes;
  complete_phase(barrier);
}

}  // namespace emu
}  // namespace dfc
