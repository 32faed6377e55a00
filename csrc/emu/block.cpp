#include "emu/block.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "emu/async.h"

namespace dfc {
namespace emu {

Block* block = nullptr;
Lane* current = nullptr;
Grid grid{1, 1, 1};
dfc_emu_options options{0, kDfcEmuLazy, 1, 0};

namespace {

constexpr uint32_t kPreemptOf256 = 64;
std::string first_failure;

uint64_t random_state = 1;

const char* base_name(const char* file) {
  const char* slash = std::strrchr(file, '/');
  return slash == nullptr ? file : slash + 1;
}

void record_failure(const std::string& message) {
  if (!block->failed) first_failure = message;
  block->failed = true;
}

void switch_to(Lane* next) {
  Lane* from = current;
  current = next;
  const bool leaving = from != nullptr && from->state == State::kDone;
  switch_fiber(from ? from->fiber : block->main, next ? next->fiber : block->main, next ? next->tid : -1, leaving);
}

std::string block_name() {
  return block->kernel + ": block (" + std::to_string(block->x) + "," + std::to_string(block->y) + "," +
         std::to_string(block->z) + ")";
}

std::string place_text(Site site) {
  return site.line == 0 ? "" : std::string(base_name(site.file)) + ":" + std::to_string(site.line);
}

std::string deadlock_text() {
  std::string text = block_name() + " DEADLOCK:";
  for (const Lane& lane : block->lanes) {
    if (lane.state == State::kDone) continue;
    if (text.size() > 600) return text + " ...";
    text += " thread " + std::to_string(lane.tid) + " at " + lane.wait_name + " " + place_text(lane.wait_site) + ";";
  }
  return text;
}

void release_block_barrier() {
  order_block();
  for (size_t w = 0; w < block->warps.size() && options.trace; ++w) flush_trace(*block, static_cast<int>(w));
  for (Lane& lane : block->lanes) {
    if (lane.state == State::kAtBarrier) make_ready(lane);
  }
  block->at_barrier = 0;
}

// A warp with a ready lane, or -1. The present one unless a seed says otherwise.
int choose_warp(int present) {
  const bool keep = block->warps[static_cast<size_t>(present)].ready != 0;
  const bool move = options.seed != 0 && (random_bits() & 255) < kPreemptOf256;
  if (keep && !move) return present;
  const int start = options.seed ? static_cast<int>(random_bits() % static_cast<uint32_t>(block->num_warps)) : present;
  for (int i = 0; i < block->num_warps; ++i) {
    const int warp = (start + i) % block->num_warps;
    if (block->warps[static_cast<size_t>(warp)].ready) return warp;
  }
  return -1;
}

int choose_lane(int warp) {
  const uint32_t ready = block->warps[static_cast<size_t>(warp)].ready;
  uint32_t later = ready;
  if (current != nullptr && current->warp() == warp) {
    const uint32_t after = ready & ~((2u << current->lane()) - 1);
    later = after ? after : ready;
  }
  return __builtin_ctz(later);
}

// Runs another thread; returns when the current one is resumed. In the main thread: when the block has ended.
void run_next() {
  for (;;) {
    if (block->failed) return switch_to(nullptr);
    const int warp = choose_warp(current ? current->warp() : 0);
    if (warp >= 0) {
      Lane* next = &block->lanes[static_cast<size_t>(warp * 32 + choose_lane(warp))];
      if (next != current) switch_to(next);
      return;
    }
    const int alive = block->num_threads - block->done;
    if (alive == 0) {
      const std::string left = copies_left();
      if (!left.empty()) record_failure(block_name() + ": " + left);
      return switch_to(nullptr);
    }
    if (block->at_barrier == alive) {
      release_block_barrier();
    } else if (!finish_bulk_copy()) {
      record_failure(deadlock_text());
    }
  }
}

void check_copies_waited() {
  if (!current->open.empty()) fail(Site{}, "ends with cp.async that were never committed");
  for (const auto& group : current->groups) {
    if (!group.empty()) fail(Site{}, "ends with cp.async in flight (missing wait)");
  }
}

// A lane that ends leaves collectives of its warp for ever incomplete.
void check_nobody_waits() {
  const Collective& meeting = warp_of(*current).collective;
  if (meeting.arrived == 0) return;
  fail(Site{}, "ended while other lanes of its warp are at %s %s", meeting.name, place_text(meeting.site).c_str());
}

void thread_entry() {
  enter_fiber();
  try {
    block->run(block->args);
    check_copies_waited();
    check_nobody_waits();
  } catch (const Failure& failure) {
    record_failure(failure.message);
  }
  current->state = State::kDone;
  warp_of(*current).ready &= ~(1u << current->lane());
  warp_of(*current).ended |= 1u << current->lane();
  ++block->done;
  run_next();
  std::abort();  // a thread that has ended is never resumed
}

}  // namespace

uint32_t random_bits() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return static_cast<uint32_t>(random_state >> 32);
}

void seed_random(uint64_t seed) { random_state = seed * 0x9E3779B97F4A7C15ull + 88172645463325252ull; }

static std::string failure_text(int tid, Site site, const char* format, va_list arguments) {
  char what[512];
  std::vsnprintf(what, sizeof what, format, arguments);
  const std::string place = place_text(site);
  return block_name() + " thread " + std::to_string(tid) + " (warp " + std::to_string(tid >> 5) + " lane " +
         std::to_string(tid & 31) + ") " + place + (place.empty() ? "" : ": ") + what;
}

void fail(Site site, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const std::string text = failure_text(current->tid, site, format, arguments);
  va_end(arguments);
  throw Failure{text};
}

void fail_of(int tid, Site site, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const std::string text = failure_text(tid, site, format, arguments);
  va_end(arguments);
  throw Failure{text};
}

void wait_here(State state, const char* name, Site site, const void* what) {
  current->state = state;
  current->wait_name = name;
  current->wait_site = site;
  current->waits_for = what;
  warp_of(*current).ready &= ~(1u << current->lane());
  run_next();
  if (block->failed) throw Failure{first_failure};
}

void make_ready(Lane& lane) {
  lane.state = State::kReady;
  lane.waits_for = nullptr;
  warp_of(lane).ready |= 1u << lane.lane();
}

void maybe_preempt() {
  if (options.seed == 0 || (random_bits() & 255) >= kPreemptOf256) return;
  if (options.lazy_async == kDfcEmuRandom) finish_bulk_copy();
  run_next();
}

void run_block(Block& prepared) {
  block = &prepared;
  block->num_warps = (block->num_threads + 31) / 32;
  block->lanes.resize(static_cast<size_t>(block->num_threads));
  block->warps.resize(static_cast<size_t>(block->num_warps));
  block->readers = ReaderPool(block->warps.size());
  reserve_stacks(block->lanes.size());
  for (int tid = 0; tid < block->num_threads; ++tid) {
    Lane& lane = block->lanes[static_cast<size_t>(tid)];
    lane.tid = tid;
    prepare(lane.fiber, static_cast<size_t>(tid), thread_entry);
    Warp& warp = warp_of(lane);
    warp.members |= 1u << lane.lane();
    warp.ready = warp.members;
  }
  current = nullptr;
  run_next();
  if (options.trace) {
    for (int warp = 0; warp < block->num_warps; ++warp) flush_trace(*block, warp);
  }
  for (Lane& lane : block->lanes) release(lane.fiber);
  release(block->main);
  block = nullptr;
  if (prepared.failed) throw Failure{first_failure};
}

}  // namespace emu
}  // namespace dfc
