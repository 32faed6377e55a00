// One block of threads while it runs. Threads are fibers; one of them runs at a time, and switches happen only where a
// thread waits or, with a seed, where a collective ends. Which accesses are ordered does not depend on the schedule
// that was run: see order.h.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "emu/emu.h"
#include "emu/fiber.h"
#include "emu/order.h"
#include "emu/shadow.h"
#include "emu/trace.h"

namespace dfc {
namespace emu {

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
  std::vector<Access> accesses;               // since the last rendezvous of the warp, for the trace
  uint32_t step = 1;
  std::unique_ptr<Knowledge> learnt;  // by this lane alone, since the last point that orders the warp

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
  uint32_t members = 0, ready = 0, ended = 0;  // bits of lanes
  Collective collective;
  Knowledge known;
  uint32_t epoch = 1;
};

struct NamedBarrier {
  int threads = 0, arrived = 0;
  uint32_t generation = 0, waiting = 0;  // waiting: bits of warps
  Knowledge gathered;
};

struct MBarrier {
  int expected = 0, pending = 0;
  int64_t transactions = 0;
  uint32_t phase = 0;
  Knowledge gathered, completed;  // of arrivals so far, of those that completed a phase
  std::vector<AsyncCopy> copies;  // of this phase
  bool unwaited = false;          // a phase with copies has completed, and nobody has waited for it
  Site site{};                    // of the last copy
};

struct BulkCopy {
  uint32_t mbarrier;
  AsyncCopy copy;
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
  std::vector<Granule> granules;
  std::unordered_map<uint64_t, Granule> global_granules;
  ReaderPool readers{1};
  std::map<uint32_t, MBarrier> mbarriers;
  std::array<NamedBarrier, 16> named{};
  std::deque<BulkCopy> bulk_in_flight;
  uint32_t async_epoch = 1;
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
[[noreturn]] __attribute__((format(printf, 3, 4))) void fail_of(int tid, Site site, const char* format, ...);

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
