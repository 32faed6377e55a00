#include "emu/trace.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

#include "emu/block.h"

namespace dfc {
namespace emu {

namespace {

constexpr uint64_t kSectorBytes = 32, kLineBytes = 128, kBankBytes = 4, kBanks = 32;
const char* const kKindNames[] = {"global load",     "global store",    "shared load", "shared store", "ldmatrix",
                                  "cp.async source", "cp.async target", "bulk copy",   "atomic"};

struct Totals {
  uint64_t requests = 0, lanes = 0, bytes = 0, sectors = 0, lines = 0, wavefronts = 0, ideal = 0;
};

using SiteKey = std::tuple<std::string, int, AccessKind, uint32_t>;  // file, line, kind, bytes per lane
std::map<SiteKey, Totals> totals;

bool is_shared(AccessKind kind) {
  return kind == AccessKind::kSharedLoad || kind == AccessKind::kSharedStore || kind == AccessKind::kMatrixLoad ||
         kind == AccessKind::kCopyTarget;
}

uint64_t pieces(const std::vector<uint64_t>& addresses, uint32_t bytes, uint64_t size) {
  std::set<uint64_t> distinct;
  for (uint64_t address : addresses) {
    for (uint64_t i = address / size; i <= (address + bytes - 1) / size; ++i) distinct.insert(i);
  }
  return distinct.size();
}

// Lanes that one wavefront can serve: all banks together move 128 bytes.
size_t lanes_per_phase(uint32_t bytes) { return bytes >= 16 ? 8 : bytes == 8 ? 16 : 32; }

uint64_t wavefronts(const std::vector<uint64_t>& addresses, uint32_t bytes) {
  const size_t phase = lanes_per_phase(bytes);
  uint64_t total = 0;
  for (size_t begin = 0; begin < addresses.size(); begin += phase) {
    std::set<uint64_t> words;
    for (size_t i = begin; i < std::min(addresses.size(), begin + phase); ++i) {
      for (uint64_t at = addresses[i]; at < addresses[i] + bytes; at += kBankBytes) words.insert(at / kBankBytes);
    }
    uint64_t in_bank[kBanks] = {};
    for (uint64_t word : words) ++in_bank[word % kBanks];
    total += *std::max_element(in_bank, in_bank + kBanks);
  }
  return total;
}

void account(const SiteKey& key, const std::vector<uint64_t>& addresses) {
  const AccessKind kind = std::get<2>(key);
  const uint32_t bytes = std::get<3>(key);
  Totals& sum = totals[key];
  ++sum.requests;
  sum.lanes += addresses.size();
  sum.bytes += addresses.size() * bytes;
  if (is_shared(kind)) {
    sum.wavefronts += wavefronts(addresses, bytes);
    sum.ideal += (addresses.size() + lanes_per_phase(bytes) - 1) / lanes_per_phase(bytes);
  } else {
    sum.sectors += pieces(addresses, bytes, kSectorBytes);
    sum.lines += pieces(addresses, bytes, kLineBytes);
  }
}

}  // namespace

void trace_access(AccessKind kind, uint64_t address, uint32_t bytes, Site site, int tid) {
  if (!options.trace) return;
  Lane& lane = tid < 0 ? *current : block->lanes[static_cast<size_t>(tid)];
  lane.accesses.push_back(Access{address, site, bytes, kind});
}

void flush_trace(Block& of, int warp) {
  std::map<std::pair<SiteKey, int>, std::vector<uint64_t>> requests;
  const size_t first = static_cast<size_t>(warp) * 32;
  for (size_t i = first; i < std::min(first + 32, of.lanes.size()); ++i) {
    std::map<SiteKey, int> count;
    for (const Access& access : of.lanes[i].accesses) {
      const SiteKey key{access.site.file, access.site.line, access.kind, access.bytes};
      requests[{key, count[key]++}].push_back(access.address);
    }
    of.lanes[i].accesses.clear();
  }
  for (const auto& [key, addresses] : requests) account(key.first, addresses);
}

std::string trace_json() {
  std::string text = "[";
  for (const auto& [key, sum] : totals) {
    const auto& [file, line, kind, bytes] = key;
    char entry[640];
    std::snprintf(entry, sizeof entry,
                  "%s{\"file\": \"%s\", \"line\": %d, \"kind\": \"%s\", \"bytes_per_lane\": %u, \"requests\": %llu, "
                  "\"lanes\": %llu, \"bytes\": %llu, \"sectors\": %llu, \"lines\": %llu, \"wavefronts\": %llu, "
                  "\"ideal_wavefronts\": %llu}",
                  text.size() > 1 ? ",\n" : "", file.c_str(), line, kKindNames[static_cast<int>(kind)], bytes,
                  static_cast<unsigned long long>(sum.requests), static_cast<unsigned long long>(sum.lanes),
                  static_cast<unsigned long long>(sum.bytes), static_cast<unsigned long long>(sum.sectors),
                  static_cast<unsigned long long>(sum.lines), static_cast<unsigned long long>(sum.wavefronts),
                  static_cast<unsigned long long>(sum.ideal));
    text += entry;
  }
  return text + "]";
}

void clear_trace() { totals.clear(); }

}  // namespace emu
}  // namespace dfc
