#include "cpu/dispatch.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace dfc {

#define DFC_DECLARE_LEVEL(level) \
  namespace level {              \
  extern const Kernels kernels;  \
  }
DFC_DECLARE_LEVEL(isa_portable)
#ifdef DFC_X86
DFC_DECLARE_LEVEL(isa_avx2)
DFC_DECLARE_LEVEL(isa_avx512)
DFC_DECLARE_LEVEL(isa_avx512_bf16)
#endif

namespace {

struct Usable {
  const Kernels* levels[4];
  int count = 0;

  Usable() {
    levels[count++] = &isa_portable::kernels;
#ifdef DFC_X86
    __builtin_cpu_init();
    // What each level is compiled for, see ISA_FLAGS in setup.py.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    if (avx2) levels[count++] = &isa_avx2::kernels;
    if (avx2 && avx512) levels[count++] = &isa_avx512::kernels;
    const bool bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    if (avx2 && avx512 && bf16) levels[count++] = &isa_avx512_bf16::kernels;
#endif
  }
};

const Usable& usable() {
  static const Usable levels;
  return levels;
}

std::atomic<const Kernels*> forced{nullptr};

const Kernels* find(const char* argument, const char* name, Status& status) {
  char accepted[64] = "";
  for (int i = 0; i < usable().count; ++i) {
    const Kernels* level = usable().levels[i];
    if (std::strcmp(level->name, name) == 0) return level;
    std::strcat(std::strcat(accepted, i ? ", " : ""), level->name);
  }
  fail(status, kInvalidValue, "%s: %.80s is not accepted; it must be one of %s, which this machine can run", argument,
       name, accepted);
  return nullptr;
}

}  // namespace

int usable_levels(const Kernels* const** levels) {
  *levels = usable().levels;
  return usable().count;
}

const Kernels* chosen_kernels(Status& status) {
  if (const Kernels* kernels = forced.load(std::memory_order_relaxed)) return kernels;
  static const char* const wish = std::getenv("DFC_CPU_ISA");
  if (wish != nullptr && *wish != '\0') return find("DFC_CPU_ISA", wish, status);
  return usable().levels[usable().count - 1];
}

int force_level(const char* name, Status& status) {
  const Kernels* kernels = *name == '\0' ? nullptr : find("isa", name, status);
  if (status.code == kOk) forced.store(kernels);
  return status.code;
}

}  // namespace dfc
