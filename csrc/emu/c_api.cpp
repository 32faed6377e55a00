#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "emu/block.h"
#include "emu/emu.h"
#include "emu/global.h"
#include "emu/registry.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#define DFC_EXPORT extern "C" __attribute__((visibility("default")))

namespace dfc {
namespace emu {

namespace {

constexpr size_t kSharedAlignment = 1024, kRedZone = 1024;

std::string message, answer;

// Shared memory of one block: poisoned with NaNs, and under ASan with a red zone behind it.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : bytes_((bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment) {
    data_ = static_cast<uint8_t*>(std::aligned_alloc(kSharedAlignment, bytes_ + kRedZone));
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(data_ + bytes, bytes_ + kRedZone - bytes);
#endif
    std::memset(data_, 0xff, bytes);
  }
  ~SharedMemory() {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(data_, bytes_ + kRedZone);
#endif
    std::free(data_);
  }
  SharedMemory(const SharedMemory&) = delete;
  uint8_t* data() { return data_; }

 private:
  size_t bytes_;
  uint8_t* data_;
};

std::vector<unsigned> block_order(unsigned count) {
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0u);
  if (options.seed == 0) return order;
  for (unsigned i = count; i > 1; --i) std::swap(order[i - 1], order[random_bits() % i]);
  return order;
}

void run_grid(const std::string& name, const Kernel& kernel, unsigned threads, size_t shared_bytes, const void* args) {
  begin_launch();
  seed_random(options.seed);
  for (unsigned index : block_order(grid.x * grid.y * grid.z)) {
    Block next;
    SharedMemory shared(shared_bytes);
    next.kernel = name;
    next.index = static_cast<int>(index);
    next.x = static_cast<int>(index % grid.x);
    next.y = static_cast<int>(index / grid.x % grid.y);
    next.z = static_cast<int>(index / grid.x / grid.y);
    next.num_threads = static_cast<int>(threads);
    next.shared = shared.data();
    next.shared_bytes = shared_bytes;
    if (options.detect_races) next.granules.resize(shared_bytes / kGranuleBytes + 1);
    next.run = kernel.run;
    next.args = args;
    run_block(next);
  }
}

std::string launch_error(const std::string& name, const Kernel* kernel, const unsigned* size, unsigned threads,
                         size_t args_bytes) {
  if (kernel == nullptr) return name + ": no such kernel in this library";
  if (args_bytes != kernel->args_bytes) {
    return name + ": takes " + std::to_string(kernel->args_bytes) + " bytes of arguments, not " +
           std::to_string(args_bytes);
  }
  if (threads == 0 || threads > kernel->max_threads) {
    return name + ": " + std::to_string(threads) + " threads; it was compiled for 1 to " +
           std::to_string(kernel->max_threads);
  }
  const bool fits = size[0] > 0 && size[1] > 0 && size[2] > 0 && size[1] < 65536 && size[2] < 65536;
  return fits ? "" : name + ": a grid of no blocks, or of more than 65535 in y or z";
}

}  // namespace

}  // namespace emu
}  // namespace dfc

using namespace dfc::emu;

DFC_EXPORT void dfc_emu_configure(const dfc_emu_options* wanted) { options = *wanted; }

DFC_EXPORT int dfc_emu_launch(const char* name, const unsigned size[3], unsigned threads, unsigned shared_bytes,
                              const void* args, size_t args_bytes) {
  const Kernel* kernel = find_kernel(name);
  message = launch_error(name, kernel, size, threads, args_bytes);
  if (!message.empty()) return 1;
  grid = Grid{size[0], size[1], size[2]};
  try {
    run_grid(name, *kernel, threads, shared_bytes, args);
  } catch (const Failure& failure) {
    message = failure.message;
    return 1;
  }
  return 0;
}

DFC_EXPORT const char* dfc_emu_message() { return message.c_str(); }

DFC_EXPORT void dfc_emu_register_buffer(const void* start, size_t bytes, const char* name, int writable) {
  register_buffer(start, bytes, name, writable != 0);
}

DFC_EXPORT void dfc_emu_clear_buffers() { clear_buffers(); }

DFC_EXPORT const char* dfc_emu_trace() {
  answer = trace_json();
  return answer.c_str();
}

DFC_EXPORT size_t dfc_emu_trace_requests(const dfc_emu_request** first) { return trace_requests(first); }

DFC_EXPORT void dfc_emu_clear_trace() { clear_trace(); }

DFC_EXPORT const char* dfc_emu_kernels() {
  answer = kernel_names();
  return answer.c_str();
}
