// Kernels by name.
#pragma once

#include <cstddef>
#include <string>

namespace dfc {
namespace emu {

struct Kernel {
  void (*run)(const void* args);
  size_t args_bytes;
  unsigned max_threads;
};

// K: a kernel type as csrc/cuda/instances.def describes it.
template <class K>
Kernel kernel_of() {
  const auto run = [](const void* args) { K::run(*static_cast<const typename K::Args*>(args)); };
  return Kernel{run, sizeof(typename K::Args), static_cast<unsigned>(K::kThreads)};
}

struct Registration {
  Registration(const char* name, const Kernel& kernel);
};

const Kernel* find_kernel(const std::string& name);
std::string kernel_names();

}  // namespace emu
}  // namespace dfc
