#include "emu/async.h"

#include <cstring>

#include "emu/global.h"
#include "emu/shared.h"

namespace dfc {
namespace emu {

namespace {

constexpr int kMaxTransactionBytes = (1 << 20) - 1;

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

AsyncCopy issue(uint32_t offset, const void* source, int bytes, int span, bool by_unit, Site site) {
  uint8_t* target = begin_copy(offset, static_cast<uint32_t>(span), by_unit, site, current->tid);
  std::memset(target, 0xff, static_cast<size_t>(span));
  return AsyncCopy{offset, source, bytes, span, false};
}

MBarrier& mbarrier_at(uint32_t offset, Site site) {
  const auto found = block->mbarriers.find(offset);
  if (found == block->mbarriers.end()) fail(site, "no mbarrier was initialised at shared memory +%u", offset);
  if (!is_visible(offset)) {
    fail(site, "race: the mbarrier at shared memory +%u is used before its initialisation is visible", offset);
  }
  return found->second;
}

void complete_phase(MBarrier& barrier) {
  if (barrier.pending > 0 || barrier.transactions != 0) return;
  const Mark unit{block->async_epoch, 0, kAsyncThread};
  for (const AsyncCopy& copy : barrier.copies) land_copy(copy.target, static_cast<uint32_t>(copy.span), unit);
  barrier.unwaited = !barrier.copies.empty();
  barrier.copies.clear();
  barrier.gathered.ordered.epochs[kAsyncUnit] = block->async_epoch++;
  barrier.completed = barrier.gathered;
  barrier.pending = barrier.expected;
  ++barrier.phase;
  for (Lane& lane : block->lanes) {
    if (lane.waits_for == &barrier) make_ready(lane);
  }
}

void finish(MBarrier& barrier, AsyncCopy copy) {
  land(copy);
  barrier.copies.push_back(copy);
  barrier.transactions -= copy.bytes;
  complete_phase(barrier);
}

}  // namespace

void copy_async(uint32_t offset, const void* source, int bytes, Site site) {
  if (bytes < 0 || bytes > 16) fail(site, "cp.async of %d bytes: must be 0 to 16", bytes);
  if (bytes > 0) check_copy_source(source, static_cast<uint32_t>(bytes), site);
  trace_access(AccessKind::kCopyTarget, offset, 16, site);
  AsyncCopy copy = issue(offset, source, bytes, 16, false, site);
  if (lands_at_issue()) land(copy);
  current->open.push_back(copy);
}

void commit_async() {
  current->groups.push_back(std::move(current->open));
  current->open.clear();
}

void wait_async(size_t pending) {
  while (current->groups.size() > pending) {
    for (AsyncCopy& copy : current->groups.front()) {
      land(copy);
      land_copy(copy.target, 16, mark_of(*current));
    }
    current->groups.pop_front();
  }
}

void init_mbarrier(uint32_t offset, int count, Site site) {
  if (count < 1) fail(site, "mbarrier count %d: must be at least 1", count);
  std::memset(access_shared(offset, 8, Touch::kWrite, site, current->tid), 0, 8);
  MBarrier barrier;
  barrier.expected = barrier.pending = count;
  block->mbarriers[offset] = barrier;
}

void arrive_mbarrier(uint32_t offset, int bytes, Site site) {
  if (bytes < 0 || bytes > kMaxTransactionBytes) fail(site, "mbarrier transaction of %d bytes: too many", bytes);
  MBarrier& barrier = mbarrier_at(offset, site);
  if (barrier.pending <= 0) fail(site, "mbarrier at shared memory +%u: more arrivals than its count", offset);
  release_lane(*current, barrier.gathered);
  barrier.transactions += bytes;
  --barrier.pending;
  complete_phase(barrier);
}

void wait_mbarrier(uint32_t offset, int parity, Site site) {
  MBarrier& barrier = mbarrier_at(offset, site);
  while (static_cast<int>(barrier.phase & 1) == parity) wait_here(State::kWaits, "mbarrier", site, &barrier);
  acquire_lane(*current, barrier.completed);
  barrier.unwaited = false;
}

void copy_bulk(uint32_t offset, const void* source, int bytes, uint32_t mbarrier, Site site) {
  if (bytes <= 0 || bytes % 16) fail(site, "bulk copy of %d bytes: must be a positive multiple of 16", bytes);
  check_bulk(source, static_cast<size_t>(bytes), site);
  trace_access(AccessKind::kBulkTarget, offset, static_cast<uint32_t>(bytes), site);
  MBarrier& barrier = mbarrier_at(mbarrier, site);
  barrier.site = site;
  const AsyncCopy copy = issue(offset, source, bytes, bytes, true, site);
  if (lands_at_issue()) return finish(barrier, copy);
  block->bulk_in_flight.push_back(BulkCopy{mbarrier, copy});
}

bool finish_bulk_copy() {
  if (block->bulk_in_flight.empty()) return false;
  const BulkCopy next = block->bulk_in_flight.front();
  block->bulk_in_flight.pop_front();
  finish(block->mbarriers.at(next.mbarrier), next.copy);
  return true;
}

std::string copies_left() {
  for (const auto& [offset, barrier] : block->mbarriers) {
    const bool in_flight = !block->bulk_in_flight.empty() || !barrier.copies.empty();
    if (!in_flight && !barrier.unwaited) continue;
    return "ends with bulk copies in flight (missing wait), the last to mbarrier +" + std::to_string(offset) +
           " at line " + std::to_string(barrier.site.line);
  }
  return "";
}

}  // namespace emu
}  // namespace dfc
