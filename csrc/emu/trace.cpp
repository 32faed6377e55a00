#include "emu/trace.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "emu/block.h"

namespace dfc {
namespace emu {

namespace {

constexpr uint64_t kSectorBytes = 32, kLineBytes = 128, kBankBytes = 4, kBanks = 32;
const char* const kKindNames[] = {"global load",   "global store",    "shared load",     "shared store",
                                  "ldmatrix",      "cp.async source", "cp.async target", "bulk copy",
                                  "global atomic", "shared atomic",   "bulk copy target"};

struct Totals {
  uint64_t requests = 0, lanes = 0, bytes = 0, sectors = 0, lines = 0, wavefronts = 0, ideal = 0;
};

using SiteKey = std::tuple<std::string, int, int, AccessKind, uint32_t>;  // file, line, column, kind, bytes per lane
std::map<SiteKey, Totals> totals;
std::vector<dfc_emu_request> requests;

bool is_shared(AccessKind kind) {
  return kind == AccessKind::kSharedLoad || kind == AccessKind::kSharedStore || kind == AccessKind::kMatrixLoad ||
         kind == AccessKind::kCopyTarget || kind == AccessKind::kSharedAtomic;
}

std::vector<uint64_t> addresses_of(const dfc_emu_request& request, uint32_t lanes) {
  std::vector<uint64_t> addresses;
  for (int lane = 0; lane < 32; ++lane) {
    if (request.lanes & lanes & 1u << lane) addresses.push_back(request.address[lane]);
  }
  return addresses;
}

uint64_t pieces(const std::vector<uint64_t>& addresses, uint32_t bytes, uint64_t size) {
  std::set<uint64_t> distinct;
  for (uint64_t address : addresses) {
    for (uint64_t i = address / size; i <= (address + bytes - 1) / size; ++i) distinct.insert(i);
  }
  return distinct.size();
}

// Words of different rows of one bank take a wavefront each; the same word serves all lanes that ask for it.
uint64_t bank_rows(const std::vector<uint64_t>& addresses, uint32_t bytes) {
  std::set<uint64_t> words;
  for (uint64_t address : addresses) {
    for (uint64_t at = address; at < address + bytes; at += kBankBytes) words.insert(at / kBankBytes);
  }
  uint64_t in_bank[kBanks] = {};
  for (uint64_t word : words) ++in_bank[word % kBanks];
  return *std::max_element(in_bank, in_bank + kBanks);
}

// All banks together move 128 bytes: wide accesses are served in groups of neighbouring lanes.
void count_wavefronts(const dfc_emu_request& request, Totals& sum) {
  const uint32_t group = request.bytes >= 16 ? 8 : request.bytes == 8 ? 16 : 32;
  const uint32_t first = group == 32 ? ~0u : (1u << group) - 1;
  for (uint32_t begin = 0; begin < 32; begin += group) {
    const auto addresses = addresses_of(request, first << begin);
    if (addresses.empty()) continue;
    sum.wavefronts += bank_rows(addresses, request.bytes);
    ++sum.ideal;
  }
}

void account(const dfc_emu_request& request) {
  const auto kind = static_cast<AccessKind>(request.kind);
  const auto addresses = addresses_of(request, ~0u);
  Totals& sum = totals[SiteKey{request.file, request.line, request.column, kind, request.bytes}];
  ++sum.requests;
  sum.lanes += addresses.size();
  sum.bytes += addresses.size() * request.bytes;
  if (is_shared(kind)) return count_wavefronts(request, sum);
  if (kind == AccessKind::kBulkTarget) return;  // its schedule is the unit's own
  sum.sectors += pieces(addresses, request.bytes, kSectorBytes);
  sum.lines += pieces(addresses, request.bytes, kLineBytes);
}

dfc_emu_request request_of(const Access& access, const Block& of, int warp) {
  dfc_emu_request request{};
  request.file = access.site.file;
  request.line = access.site.line;
  request.column = access.site.column;
  request.kind = static_cast<int32_t>(access.kind);
  request.bytes = access.bytes;
  request.block = of.index;
  request.warp = warp;
  return request;
}

}  // namespace

void trace_access(AccessKind kind, uint64_t address, uint32_t bytes, Site site, int tid) {
  if (!options.trace) return;
  Lane& lane = tid < 0 ? *current : block->lanes[static_cast<size_t>(tid)];
  lane.accesses.push_back(Access{address, site, bytes, kind});
}

void flush_trace(Block& of, int warp) {
  using Key = std::tuple<const char*, int, int, AccessKind, uint32_t>;
  std::map<std::pair<Key, int>, size_t> index;
  std::vector<dfc_emu_request> found;
  const size_t first = static_cast<size_t>(warp) * 32;
  for (size_t i = first; i < std::min(first + 32, of.lanes.size()); ++i) {
    std::map<Key, int> count;
    for (const Access& access : of.lanes[i].accesses) {
      const Key key{access.site.file, access.site.line, access.site.column, access.kind, access.bytes};
      const auto [entry, added] = index.try_emplace({key, count[key]++}, found.size());
      if (added) found.push_back(request_of(access, of, warp));
      dfc_emu_request& request = found[entry->second];
      request.lanes |= 1u << (i - first);
      request.address[i - first] = access.address;
    }
    of.lanes[i].accesses.clear();
  }
  for (const dfc_emu_request& request : found) account(request);
  if (options.trace >= 2) requests.insert(requests.end(), found.begin(), found.end());
}

std::string trace_json() {
  std::string text = "[";
  for (const auto& [key, sum] : totals) {
    const auto& [file, line, column, kind, bytes] = key;
    char entry[768];
    std::snprintf(entry, sizeof entry,
                  "%s{\"file\": \"%s\", \"line\": %d, \"column\": %d, \"kind\": \"%s\", \"bytes_per_lane\": %u, "
                  "\"requests\": %llu, \"lanes\": %llu, \"bytes\": %llu, \"sectors\": %llu, \"lines\": %llu, "
                  "\"wavefronts\": %llu, \"ideal_wavefronts\": %llu}",
                  text.size() > 1 ? ",\n" : "", file.c_str(), line, column, kKindNames[static_cast<int>(kind)], bytes,
                  static_cast<unsigned long long>(sum.requests), static_cast<unsigned long long>(sum.lanes),
                  static_cast<unsigned long long>(sum.bytes), static_cast<unsigned long long>(sum.sectors),
                  static_cast<unsigned long long>(sum.lines), static_cast<unsigned long long>(sum.wavefronts),
                  static_cast<unsigned long long>(sum.ideal));
    text += entry;
  }
  return text + "]";
}

size_t trace_requests(const dfc_emu_request** first) {
  *first = requests.data();
  return requests.size();
}

void clear_trace() {
  totals.clear();
  requests.clear();
}

}  // namespace emu
}  // namespace dfc
