// One stack and saved registers per emulated thread. Below every stack lies a page that nothing may touch.
#pragma once

#include <cstddef>

namespace dfc {
namespace emu {

struct Fiber {
  void* saved = nullptr;  // stack pointer, or a ucontext_t off x86-64
};

// Memory for `count` fibers; kept between calls.
void reserve_stacks(size_t count);
// Makes fiber `index` start in `entry`, which must never return.
void prepare(Fiber& fiber, size_t index, void (*entry)());
// Leaves `from` and goes on in `to`. `to_index` is the fiber's, or -1 for the thread that runs them; `leaving` says
// that `from` will not be resumed.
void switch_fiber(Fiber& from, Fiber& to, long to_index, bool leaving);
// First thing in `entry`.
void enter_fiber();
void release(Fiber& fiber);

}  // namespace emu
}  // namespace dfc
