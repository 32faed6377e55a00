// instances.def -> kernels. With -DDFC_ONLY_<name>=DFC_THIS nvcc compiles that one, without any none; the emulator
// registers all. `dfc_plan` is for tools/cuda_report.py: threads and dynamic shared memory of a block.
#include "cuda/kernels.h"

#if defined(__CUDACC__)

#define DFC_THIS ~, 1  // moves a 1 into the second place
#define DFC_SECOND_(first, second, ...) second
#define DFC_SECOND(...) DFC_SECOND_(__VA_ARGS__, 0, ~)
#define DFC_CHOOSE_0(name, ...)
#define DFC_CHOOSE_1(name, ...)                                                                              \
  extern "C" __constant__ const int dfc_plan[2] = {__VA_ARGS__::kThreads, dfc::kSharedBytesOf<__VA_ARGS__>}; \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::kThreads, __VA_ARGS__::kMinBlocks)               \
      name(const __grid_constant__ __VA_ARGS__::Args args) {                                                 \
    __VA_ARGS__::run(args);                                                                                  \
  }
#define DFC_CHOOSE_(flag) DFC_CHOOSE_##flag
#define DFC_CHOOSE(flag) DFC_CHOOSE_(flag)
#define DFC_INSTANCE(name, ...) DFC_CHOOSE(DFC_SECOND(DFC_ONLY_##name))(name, __VA_ARGS__)

#else

#include "emu/registry.h"

#define DFC_INSTANCE(name, ...) \
  static const dfc::emu::Registration register_##name(#name, dfc::emu::kernel_of<__VA_ARGS__>());

#endif

using namespace dfc;

#include "cuda/instances.def"
