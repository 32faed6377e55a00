// The self-test as a program, for sanitizers and for a debugger:
//
//   emu_selftest                  all kernels, seeds 0 to 4, all completion modes: good ones pass, bad ones fail
//   emu_selftest KERNEL [SEED]    one kernel, and what the emulator says
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <vector>

#include "emu/emu.h"
#include "emu/selftest/attention.h"

namespace {

constexpr size_t kWords = 4096;

struct Buffers {
  std::vector<uint32_t> data = std::vector<uint32_t>(kWords), in = std::vector<uint32_t>(kWords);
  // Alone in its allocation, so that AddressSanitizer sees what goes beyond it.
  std::unique_ptr<int32_t> counter = std::make_unique<int32_t>(0);

  Buffers() {
    for (size_t i = 0; i < kWords; ++i) in[i] = static_cast<uint32_t>(i);
    dfc_emu_clear_buffers();
    dfc_emu_register_buffer(data.data(), kWords * 4, "data", 1);
    dfc_emu_register_buffer(in.data(), kWords * 4, "in", 0);
    dfc_emu_register_buffer(counter.get(), 4, "counter", 1);
  }
  SelftestArgs args() { return SelftestArgs{data.data(), in.data(), counter.get()}; }
};

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

bool launch(const std::string& kernel) {
  Buffers buffers;
  const SelftestArgs args = buffers.args();
  // With three blocks most kernels would write the same bytes; those that are about blocks need them.
  const bool blocks = kernel.find("block") != std::string::npos || kernel.find("counter") != std::string::npos ||
                      kernel == "bad_no_fence" || kernel == "bad_lost_update" || kernel == "bad_no_reader_fence" ||
                      kernel == "bad_plain_and_atomic";
  const bool in_one = kernel == "good_shared_counter" || kernel == "bad_lost_update_in_a_block" ||
                      kernel.find("sync_block") != std::string::npos;
  const unsigned grid[3] = {blocks && !in_one ? 3u : 1u, 1, 1};
  return dfc_emu_launch(kernel.c_str(), grid, 64, 4096, &args, sizeof args) == 0;
}

// Attention with keys that all are equal: the output is the mean of the values.
bool attend() {
  constexpr int kKeys = 130;
  std::vector<uint32_t> q(16 * 64), k(kKeys * 64), v(kKeys * 64);
  std::vector<float> out(16 * 128);
  for (int key = 0; key < kKeys; ++key) {
    for (int i = 0; i < 64; ++i) {
      v[static_cast<size_t>(key * 64 + i)] = dev::F16::pack2(static_cast<float>(key % 2), static_cast<float>(i));
    }
  }
  dfc_emu_clear_buffers();
  const auto bytes = [](const std::vector<uint32_t>& of) { return reinterpret_cast<const char*>(of.data()); };
  const selftest::AttentionArgs args{bytes(q), bytes(k), bytes(v), out.data(), 1.0f, kKeys};
  const unsigned grid[3] = {1, 1, 1};
  if (dfc_emu_launch("attention", grid, 128, selftest::kAttentionShared, &args, sizeof args)) return false;
  return std::fabs(out[0] - 0.5f) < 1e-3f && std::fabs(out[2 * 63 + 1] - 63.0f) < 1e-2f;
}

int run_all() {
  std::istringstream names(dfc_emu_kernels());
  int wrong = 0, runs = 0;
  for (std::string kernel; names >> kernel;) {
    if (starts_with(kernel, "probe_")) continue;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      for (int completion : {kDfcEmuEager, kDfcEmuLazy, kDfcEmuRandom}) {
        const dfc_emu_options options{seed, completion, 1, 2};
        dfc_emu_configure(&options);
        const bool passed = kernel == "attention" ? attend() : launch(kernel);
        dfc_emu_clear_trace();
        ++runs;
        if (passed == !starts_with(kernel, "bad_")) continue;
        ++wrong;
        std::printf("%s, seed %d, completion %d: %s\n", kernel.c_str(), static_cast<int>(seed), completion,
                    passed ? "passes" : dfc_emu_message());
      }
    }
  }
  std::printf("%d runs, %d not as they must be\n", runs, wrong);
  return wrong ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return run_all();
  const dfc_emu_options options{argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 0, kDfcEmuLazy, 1, 0};
  dfc_emu_configure(&options);
  const bool passed = launch(argv[1]);
  std::printf("%s\n", passed ? "passes" : dfc_emu_message());
  return passed ? 0 : 1;
}
