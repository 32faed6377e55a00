// Where accesses are made, and what they cost a GPU: sectors and lines of global memory, wavefronts of shared memory.
#pragma once

#include <cstdint>
#include <string>

namespace dfc {
namespace emu {

struct Site {
  const char* file;
  int line;

  // As a default argument: the place of the call, however deep the defaults are nested.
  static Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return Site{file, line}; }
};

inline bool operator==(const Site& a, const Site& b) { return a.line == b.line && a.file == b.file; }

enum class AccessKind : uint8_t {
  kGlobalLoad,
  kGlobalStore,
  kSharedLoad,
  kSharedStore,
  kMatrixLoad,
  kCopySource,  // cp.async, global side
  kCopyTarget,  // cp.async, shared side
  kBulkCopy,
  kAtomic,
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
void clear_trace();

}  // namespace emu
}  // namespace dfc
