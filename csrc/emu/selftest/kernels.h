// What every kernel of the self-test takes, and how it is registered. With nvcc the same kernels become `__global__`
// functions of their names.
#pragma once

#include "dev/dev.h"

struct SelftestArgs {
  uint32_t* data;      // [4096]
  const uint32_t* in;  // [4096], read-only; in[i] = i
  int32_t* counter;    // [1]
};

// The body of a kernel of 64 threads.
#if defined(__CUDACC__)
#define SELFTEST(kernel)                                                       \
  static DEV void run_##kernel(const SelftestArgs& p);                         \
  extern "C" __global__ void kernel(const SelftestArgs p) { run_##kernel(p); } \
  static DEV void run_##kernel([[maybe_unused]] const SelftestArgs& p)
#else
#include "emu/registry.h"

#define SELFTEST(kernel)                                                                         \
  struct kernel {                                                                                \
    using Args = SelftestArgs;                                                                   \
    static constexpr int kThreads = 128, kMinBlocks = 1;                                         \
    static inline void run(const SelftestArgs& p);                                               \
  };                                                                                             \
  static const dfc::emu::Registration register_##kernel(#kernel, dfc::emu::kernel_of<kernel>()); \
  inline void kernel::run([[maybe_unused]] const SelftestArgs& p)
#endif
