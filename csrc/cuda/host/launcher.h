// How host code starts a kernel: through the CUDA driver, or through the emulator. One interface, so that the tests run
// the same planning code without a GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "api/status.h"

namespace dfc {

// What planning may depend on. Never a value that lies in device memory.
struct DeviceFacts {
  int sm_count;
  int arch;  // 10 * major + minor of the compute capability
  int shared_limit;  // bytes of dynamic shared memory that one block may ask for
};

struct Launch {
  const char* kernel;  // a name of instances.def
  unsigned grid[3];
  unsigned threads;
  unsigned shared_bytes;
  const void* args;  // the kernel's one argument, copied at once
  size_t args_bytes;
};

class Launcher {
 public:
  explicit Launcher(const DeviceFacts& device) : facts(device) {}
  virtual ~Launcher() = default;
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Is there code of this kernel for the device? If not: kUnsupported, and `status` says what is missing.
  virtual int find(const char* kernel, Status& status) = 0;
  // Enqueues the kernel on `stream` and returns; kOk or a code with a message.
  virtual int launch(const Launch& launch, void* stream, Status& status) = 0;

  const DeviceFacts facts;
};

// kOk if GPUs of this architecture are served; else kUnsupported, and `status` says why not.
int refuse_device(int device, int arch, Status& status);

// The CUDA driver, opened from `library` (libcuda.so.1), for one device. Kernels come from
// <folder>/<kernel>.sm_XX.cubin and are loaded when they are first launched. Null and a message where there is no
// driver or the device is not served.
std::unique_ptr<Launcher> open_driver(const std::string& library, int device, const std::string& folder,
                                      Status& status);

// The emulator of csrc/emu, opened from `library`. It runs kernels at once and has no streams.
std::unique_ptr<Launcher> open_emulator(const std::string& library, const DeviceFacts& facts, Status& status);

}  // namespace dfc
