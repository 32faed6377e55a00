// One block of threads while it runs. Threads are fibers; one of them runs at a time, and switches happen only where a
// thread waits or, with a seed, where a collective ends.
//
// Order between threads is a happens-before relation by vector clocks, one component per warp: what a warp did before
// its clock was taken over by another warp (at a barrier) is ordered before what that warp does next. Within a warp
// `sync_epoch` counts the points that order its lanes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "emu/emu.h"
#include "emu/fiber.h"
#include "emu/trace.h"

namespace dfc {
namespace emu {

constexpr int kMaxWarps = 32;
constexpr int kAsyncUnit = kMaxWarps;  // the unit that performs bulk copies has a clock of its own

using Clock = std::array<uint32_t, kMaxWarps + 1>;

inline void join(Clock& into, const Clock& other) {
  for (size_t i = 0; i < into.size(); ++i) into[i] = into[i] < other[i] ? other[i] : into[i];
}

enum class State { kReady, kWaits, kAtBarrier, kDone };

struct AsyncCopy {
  uint32_t target;
  const void* source;
  int bytes;   // read from the source; the rest of `span` is zeros
  int span;
  bool landed;
};

struct Lane {
  int tid = 0;
  Fiber fiber;
  State state = State::kReady;
  const char* wait_name = "";
  Site wait_site{};
  const void* waits_for = nullptr;          // an mbarrier or a named barrier
  std::vector<AsyncCopy> open;              // cp.async not committed yet
  std::deque<std::vector<AsyncCopy>> groups;  // committed, the oldest first
  std::vector<Access> accesses;             // since the last rendezvous of the warp, for the trace

  int lane() const { return tid & 31; }
  int warp() const { return tid >> 5; }
};

using CollectiveFunction = void (*)(void** arguments);

struct Collective {
  uint32_t arrived = 0;
  CollectiveFunction function = nullptr;
  const char* name = "";
  Site site{};
  void* arguments[32] = {};
};

struct Warp {
  uint32_t members = 0, ready = 0;  // bits of lanes
  Collective collective;
  Clock clock{};
  uint32_t sync_epoch = 1;
};

struct NamedBarrier {
  int threads = 0, arrived = 0;
  Clock clock{};
};

struct MBarrier {
  int expected = 0, pending = 0;
  int64_t transactions = 0;
  uint32_t phase = 0;
  Clock clock{};
  std::vector<AsyncCopy> copies;
};

// What is known of two bytes of shared memory.
struct Cell {
  uint32_t write_clock = 0, write_epoch = 0;
  uint32_t read_clock = 0, read_epoch = 0;
  int16_t writer = -1, write_warp = -1;  // thread; kAsyncUnit for what a bulk copy brought
  int16_t reader = -1, read_warp = -1;   // kManyWarps: read_clock is an index of Block::readers
  int16_t in_flight = -1;                // thread whose asynchronous copy has not landed
  bool initialised = false;
  bool atomic = false;  // last written by an atomic
};

struct Readers {
  std::array<uint32_t, kMaxWarps> clock{}, epoch{};
  std::array<int16_t, kMaxWarps> reader{};
};

struct Block {
  std::string kernel;
  int x = 0, y = 0, z = 0, index = 0;
  int num_threads = 0, num_warps = 0, done = 0, at_barrier = 0;
  Site barrier_site{};
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  uint8_t* shared = nullptr;
  size_t shared_bytes = 0;
  std::vector<Cell> cells;
  std::vector<Readers> readers;
  std::map<uint32_t, MBarrier> mbarriers;
  std::array<NamedBarrier, 16> named{};
  uint32_t async_clock = 1;
  Fiber main;
  void (*run)(const void*) = nullptr;
  const void* args = nullptr;
  bool failed = false;
};

struct Grid {
  unsigned x, y, z;
};

struct Failure {
  std::string message;
};

extern Block* block;      // the running one
extern Lane* current;     // the running thread; null outside kernels
extern Grid grid;         // of the launch
extern dfc_emu_options options;

uint32_t random_bits();
void seed_random(uint64_t seed);

// Ends the launch with a message that names the thread and the place.
[[noreturn]] __attribute__((format(printf, 2, 3))) void fail(Site site, const char* format, ...);

// Marks the current thread as waiting and runs others until something makes it ready.
void wait_here(State state, const char* name, Site site, const void* what = nullptr);
void make_ready(Lane& lane);
// With a seed: sometimes lets another warp go first.
void maybe_preempt();

// Runs `prepared` to its end; throws Failure.
void run_block(Block& prepared);

inline Warp& warp_of(const Lane& lane) { return block->warps[static_cast<size_t>(lane.warp())]; }

}  // namespace emu
}  // namespace dfc
