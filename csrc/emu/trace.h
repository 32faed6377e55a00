// Where accesses are made, and what they cost a GPU: sectors and lines of global memory, wavefronts of shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>

#include "emu/emu.h"

namespace dfc {
namespace emu {

struct Site {
  const char* file = "";
  int line = 0, column = 0;

  // As a default argument: the place of the call, however deep the defaults are nested. With the column two calls on
  // one line are told apart.
  static Site here(std::source_location at = std::source_location::current()) {
    return Site{at.file_name(), static_cast<int>(at.line()), static_cast<int>(at.column())};
  }
};

inline bool operator==(const Site& a, const Site& b) {
  return a.line == b.line && a.column == b.column && a.file == b.file;
}

enum class AccessKind : uint8_t {
  kGlobalLoad,
  kGlobalStore,
  kSharedLoad,
  kSharedStore,
  kMatrixLoad,
  kCopySource,  // cp.async, global side
  kCopyTarget,  // cp.async, shared side
  kBulkCopy,    // global side
  kAtomic,
  kSharedAtomic,
  kBulkTarget,
};

struct Access {
  uint64_t address;
  Site site;
  uint32_t bytes;
  AccessKind kind;
};

struct Block;

// Adds an access of the current thread, or of thread `tid`.
void trace_access(AccessKind kind, uint64_t address, uint32_t bytes, Site site, int tid = -1);
// Groups what the lanes of a warp did since its last rendezvous into requests: the k-th access of a site by each lane.
void flush_trace(Block& block, int warp);
std::string trace_json();
size_t trace_requests(const dfc_emu_request** first);
void clear_trace();

}  // namespace emu
}  // namespace dfc
