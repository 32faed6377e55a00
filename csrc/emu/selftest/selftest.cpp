// The self-test of the emulator as one library: tests/emu/test_selftest.py says what each kernel must do.
#include "emu/selftest/attention.h"
#include "emu/selftest/good.h"
#include "emu/selftest/good_bulk.h"
#include "emu/selftest/probes.h"

#if !defined(__CUDACC__)  // a GPU must not run these
#include "emu/selftest/bad_bulk.h"
#include "emu/selftest/bad_copies.h"
#include "emu/selftest/bad_global.h"
#include "emu/selftest/bad_shared.h"
#include "emu/selftest/bad_warp.h"
#endif

#if defined(__CUDACC__)
extern "C" __global__ void attention(const selftest::AttentionArgs args) { selftest::Attention(args).run(); }
#else
struct attention {
  using Args = selftest::AttentionArgs;
  static constexpr int kThreads = 128, kMinBlocks = 1;
  static void run(const Args& args) { selftest::Attention(args).run(); }
};
static const dfc::emu::Registration register_attention("attention", dfc::emu::kernel_of<attention>());
#endif
