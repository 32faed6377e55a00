// What every kernel of the self-test takes, and how it is registered.
#pragma once

#include "dev/dev.h"

struct SelftestArgs {
  uint32_t* data;      // [4096]
  const uint32_t* in;  // [4096], read-only; in[i] = i
  int32_t* counter;    // [1]
};

// A kernel of 64 threads.
#define SELFTEST(kernel)                                                                         \
  struct kernel {                                                                                \
    using Args = SelftestArgs;                                                                   \
    static constexpr int kThreads = 128, kMinBlocks = 1;                                         \
    static inline void run(const SelftestArgs& p);                                               \
  };                                                                                             \
  static const dfc::emu::Registration register_##kernel(#kernel, dfc::emu::kernel_of<kernel>()); \
  inline void kernel::run(const SelftestArgs& p)
