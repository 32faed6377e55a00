#include "emu/global.h"

#include <unordered_map>

namespace dfc {
namespace emu {

namespace {

struct Buffer {
  size_t bytes;
  std::string name;
  bool writable, written;
};

std::map<uintptr_t, Buffer> buffers;

// Who touched bytes of an aligned 16-byte granule in this launch. A stamp counts the fences of its block.
struct Touch {
  int block;
  uint32_t stamp;
  uint16_t mask;
  bool write;
};
std::unordered_map<uintptr_t, std::vector<Touch>> touched;

struct History {
  uint32_t stamp = 1;
  std::map<int, uint32_t> seen, pending;  // block -> stamp up to which its accesses are ordered before ours
};
std::unordered_map<int, History> histories;
std::unordered_map<uintptr_t, std::map<int, uint32_t>> released;  // through each counter

void merge(std::map<int, uint32_t>& into, const std::map<int, uint32_t>& other) {
  for (const auto& [who, stamp] : other) {
    uint32_t& known = into[who];
    known = known < stamp ? stamp : known;
  }
}

Buffer* buffer_of(uintptr_t place, size_t bytes, const char* what, Site site) {
  if (buffers.empty()) return nullptr;
  auto found = buffers.upper_bound(place);
  const bool before_all = found == buffers.begin();
  if (!before_all) --found;
  const auto start = found->first;
  if (before_all || place + bytes > start + found->second.bytes) {
    fail(site, "global %s out of bounds: %zu bytes at %p, nearest buffer '%s', %lld bytes from its start (it has %zu)",
         what, bytes, reinterpret_cast<void*>(place), found->second.name.c_str(),
         static_cast<long long>(place) - static_cast<long long>(start), found->second.bytes);
  }
  return &found->second;
}

bool ordered_before_us(const Touch& touch) {
  const auto& seen = histories[block->index].seen;
  const auto known = seen.find(touch.block);
  return known != seen.end() && known->second >= touch.stamp;
}

void note(uintptr_t place, uint32_t bytes, bool write, Site site) {
  const uintptr_t granule = place & ~uintptr_t{15};
  const auto mask = static_cast<uint16_t>(((1u << bytes) - 1) << (place & 15));
  std::vector<Touch>& touches = touched[granule];
  bool known = false;
  for (Touch& touch : touches) {
    if (touch.block == block->index) {
      if (touch.write != write || touch.stamp != histories[block->index].stamp) continue;
      touch.mask |= mask;
      known = true;
      continue;
    }
    if (!(touch.mask & mask) || (!touch.write && !write) || ordered_before_us(touch)) continue;
    fail(site, "race between blocks: %s of bytes that block %d %s in this launch, without fence and atomic between",
         write ? "write" : "read", touch.block, touch.write ? "wrote" : "read");
  }
  if (!known) touches.push_back(Touch{block->index, histories[block->index].stamp, mask, write});
}

bool is_write(AccessKind kind) { return kind == AccessKind::kGlobalStore || kind == AccessKind::kAtomic; }

}  // namespace

void check_global(const void* pointer, uint32_t bytes, AccessKind kind, Site site) {
  const auto place = reinterpret_cast<uintptr_t>(pointer);
  const bool write = is_write(kind);
  const char* what = write ? "store" : "load";
  if (place % bytes) fail(site, "misaligned global %s: %p must be a multiple of %u", what, pointer, bytes);
  Buffer* buffer = buffer_of(place, bytes, what, site);
  trace_access(kind, place, bytes, site);
  if (buffer == nullptr) return;
  if (write && !buffer->writable) fail(site, "global store to read-only buffer '%s'", buffer->name.c_str());
  if (kind == AccessKind::kAtomic || !options.detect_races || !buffer->writable) return;
  buffer->written = buffer->written || write;
  note(place, bytes, write, site);
}

void check_read_only(const void* pointer, uint32_t bytes, Site site) {
  const auto place = reinterpret_cast<uintptr_t>(pointer);
  const Buffer* buffer = buffer_of(place, bytes, "load", site);
  if (buffer == nullptr || !buffer->written || !options.detect_races) return;
  const auto found = touched.find(place & ~uintptr_t{15});
  if (found == touched.end()) return;
  const auto mask = static_cast<uint16_t>(((1u << bytes) - 1) << (place & 15));
  for (const Touch& touch : found->second) {
    if (touch.write && (touch.mask & mask)) fail(site, "ldg of bytes that this launch writes: use ldg_coherent");
  }
}

void check_bulk(const void* pointer, size_t bytes, Site site) {
  const auto place = reinterpret_cast<uintptr_t>(pointer);
  if (place % 16) fail(site, "misaligned bulk copy: %p must be a multiple of 16", pointer);
  buffer_of(place, bytes, "bulk copy", site);
  trace_access(AccessKind::kBulkCopy, place, static_cast<uint32_t>(bytes), site);
}

int atomic_add(int32_t* target, int value, Site site) {
  check_global(target, sizeof *target, AccessKind::kAtomic, site);
  History& own = histories[block->index];
  auto& through = released[reinterpret_cast<uintptr_t>(target)];
  merge(own.pending, through);
  // What we did before our last fence, and what we know of others, is handed on.
  through[block->index] = own.stamp - 1;
  merge(through, own.seen);
  const int before = *target;
  *target = before + value;
  return before;
}

void fence_device() {
  History& own = histories[block->index];
  ++own.stamp;
  merge(own.seen, own.pending);
}

void register_buffer(const void* start, size_t bytes, const char* name, bool writable) {
  buffers[reinterpret_cast<uintptr_t>(start)] = Buffer{bytes, name, writable, false};
}

void clear_buffers() { buffers.clear(); }

void begin_launch() {
  touched.clear();
  histories.clear();
  released.clear();
  for (auto& entry : buffers) entry.second.written = false;
}

}  // namespace emu
}  // namespace dfc
