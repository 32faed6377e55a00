// Which accesses of a block come before which: a happens-before relation by vector clocks.
//
// An access is marked with its thread, the epoch of its warp and the step of its thread. A warp's epoch grows at points
// that order all its lanes (__syncwarp, __syncthreads, bar.sync); a thread's step grows when it alone hands on what it
// did (mbarrier arrival, bar.arrive, proxy fence). What somebody knows to lie behind is, for every warp, an epoch up to
// which all accesses do, and for single threads a step up to which theirs do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dfc {
namespace emu {

constexpr size_t kMaxWarps = 32;
constexpr size_t kAsyncUnit = kMaxWarps;  // the unit that performs bulk copies: has an epoch as warps have
constexpr int16_t kNobody = -1, kSeveral = -2, kAsyncThread = static_cast<int16_t>(kAsyncUnit * 32);

struct Mark {
  uint32_t epoch = 0, step = 0;
  int16_t tid = kNobody;
};

// A set of accesses that is closed under "before".
struct Past {
  std::array<uint32_t, kMaxWarps + 1> epochs{};
  std::vector<uint32_t> steps;  // by thread; empty: none

  bool has(const Mark& mark) const {
    const auto tid = static_cast<size_t>(mark.tid);
    return epochs[tid / 32] >= mark.epoch || (tid < steps.size() && steps[tid] >= mark.step);
  }
  void add(const Past& other);
  void add_step(size_t tid, uint32_t step);
};

// `ordered`: before us. `fenced`: before us, with a fence that makes it visible to bulk copies between.
struct Knowledge {
  Past ordered, fenced;

  void add(const Knowledge& other) {
    ordered.add(other.ordered);
    fenced.add(other.fenced);
  }
};

struct Lane;

Mark mark_of(const Lane& lane);
// Is the access `mark` ordered before the next one of `lane`?
bool is_before(const Mark& mark, const Lane& lane);
bool is_fenced(const Mark& mark, const Lane& lane);

// Points that order. A single thread's release goes with a step, the others with a new epoch of the warp.
void order_warp(size_t warp);  // all lanes of a warp with each other
void order_block();  // all threads with each other
void release_lane(Lane& lane, Knowledge& into);  // what the lane did, and what it knows
void release_warp(size_t warp, Knowledge& into);  // the same for all lanes; orders them, too
void acquire_lane(Lane& lane, const Knowledge& from);
void acquire_warp(size_t warp, const Knowledge& from);
void fence_proxy(Lane& lane);

}  // namespace emu
}  // namespace dfc
