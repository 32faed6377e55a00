#include "emu/block.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

std::string deadlock_text() {
  std::string text = block->kernel + ": DEADLOCK in block (" + std::to_string(block->x) + "," +
                     std::to_string(block->y) + "," + std::to_string(block->z) + "):";
  for (const Lane& lane : block->lanes) {
    if (lane.state == State::kDone) continue;
    if (text.size() > 600) return text + " ...";
    text += " thread " + std::to_string(lane.tid) + " at " + lane.wait_name + " " + base_name(lane.wait_site.file) +
            ":" + std::to_string(lane.wait_site.line) + ";";
  }
  return text;
}

void release_block_barrier() {
  Clock joined{};
  for (const Warp& warp : block->warps) join(joined, warp.clock);
  for (size_t w = 0; w < block->warps.size(); ++w) {
    Warp& warp = block->warps[w];
    warp.clock = joined;
    ++warp.clock[w];
    ++warp.sync_epoch;
    if (options.trace) flush_trace(*block, static_cast<int>(w));
  }
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
    if (alive == 0) return switch_to(nullptr);
    if (block->at_barrier == alive) {
      release_block_barrier();
      continue;
    }
    record_failure(deadlock_text());
  }
}

void check_copies_waited() {
  if (!current->open.empty()) fail(Site{"", 0}, "ends with cp.async that were never committed");
  for (const auto& group : current->groups) {
    if (!group.empty()) fail(Site{"", 0}, "ends with cp.async in flight (missing wait)");
  }
}

void thread_entry() {
  enter_fiber();
  try {
    block->run(block->args);
    check_copies_waited();
  } catch (const Failure& failure) {
    record_failure(failure.message);
  }
  current->state = State::kDone;
  warp_of(*current).ready &= ~(1u << current->lane());
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

void fail(Site site, const char* format, ...) {
  char what[512], text[768];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  const int tid = current ? current->tid : -1;
  std::snprintf(text, sizeof text, "%s: block (%d,%d,%d) thread %d (warp %d lane %d) %s:%d: %s", block->kernel.c_str(),
                block->x, block->y, block->z, tid, tid >> 5, tid & 31, base_name(site.file), site.line, what);
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
  if (options.seed != 0 && (random_bits() & 255) < kPreemptOf256) run_next();
}

void run_block(Block& prepared) {
  block = &prepared;
  block->num_warps = (block->num_threads + 31) / 32;
  block->lanes.resize(static_cast<size_t>(block->num_threads));
  block->warps.resize(static_cast<size_t>(block->num_warps));
  reserve_stacks(block->lanes.size());
  for (int tid = 0; tid < block->num_threads; ++tid) {
    Lane& lane = block->lanes[static_cast<size_t>(tid)];
    lane.tid = tid;
    prepare(lane.fiber, static_cast<size_t>(tid), thread_entry);
    Warp& warp = warp_of(lane);
    warp.members |= 1u << lane.lane();
    warp.ready = warp.members;
    warp.clock[static_cast<size_t>(lane.warp())] = 1;
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
