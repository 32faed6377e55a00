// Kernels through the emulator of csrc/emu, for tests on machines without a GPU.
#include <dlfcn.h>

#include "cuda/host/launcher.h"

namespace dfc {

namespace {

struct EmulatorApi {
  int (*launch)(const char* kernel, const unsigned grid[3], unsigned threads, unsigned shared_bytes, const void* args,
                size_t args_bytes);
  const char* (*message)();
};

class EmulatorLauncher : public Launcher {
 public:
  EmulatorLauncher(const EmulatorApi& api, const DeviceFacts& facts) : Launcher(facts), api_(api) {}

  // The library holds every instance; an unknown name fails at its launch.
  int find(const char*, Status&) override { return kOk; }

  int launch(const Launch& launch, void*, Status& status) override {
    if (launch.shared_bytes > static_cast<unsigned>(facts.shared_limit)) {
      return fail(status, kDeviceFailed, "%s: %u bytes of shared memory, the device has %d", launch.kernel,
                  launch.shared_bytes, facts.shared_limit);
    }
    const int failed =
        api_.launch(launch.kernel, launch.grid, launch.threads, launch.shared_bytes, launch.args, launch.args_bytes);
    return failed ? fail(status, kDeviceFailed, "%s", api_.message()) : static_cast<int>(kOk);
  }

 private:
  const EmulatorApi api_;
};

}  // namespace

std::unique_ptr<Launcher> open_emulator(const std::string& library, const DeviceFacts& facts, Status& status) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  EmulatorApi api{};
  if (handle != nullptr) {
    *reinterpret_cast<void**>(&api.launch) = dlsym(handle, "dfc_emu_launch");
    *reinterpret_cast<void**>(&api.message) = dlsym(handle, "dfc_emu_message");
  }
  if (api.launch != nullptr && api.message != nullptr) return std::make_unique<EmulatorLauncher>(api, facts);
  fail(status, kUnsupported, "no emulator: %s (%s)", library.c_str(), handle ? "not an emulator" : dlerror());
  return nullptr;
}

}  // namespace dfc
