#include "emu/registry.h"

#include <map>

namespace dfc {
namespace emu {

namespace {

std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> all;
  return all;
}

}  // namespace

Registration::Registration(const char* name, const Kernel& kernel) { kernels()[name] = kernel; }

const Kernel* find_kernel(const std::string& name) {
  const auto found = kernels().find(name);
  return found == kernels().end() ? nullptr : &found->second;
}

std::string kernel_names() {
  std::string names;
  for (const auto& entry : kernels()) names += entry.first + "\n";
  return names;
}

}  // namespace emu
}  // namespace dfc
