#include "emu/global.h"

#include <unordered_map>

namespace dfc {
namespace emu {

namespace {

struct Buffer {
  size_t bytes;
  std::string name, memory;  // memory: how messages begin that name a place in it
  bool writable, written;
};

std::map<uintptr_t, Buffer> buffers;

// Which bytes of an aligned 16-byte granule a block has touched in this launch. A stamp counts the fences of its block.
struct BlockTouch {
  int block;
  uint32_t stamp;
  uint16_t mask;
  Touch touch;
};
std::unordered_map<uintptr_t, std::vector<BlockTouch>> touched;

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

Touch touch_of(AccessKind kind) {
  if (kind == AccessKind::kAtomic) return Touch::kAtomic;
  return kind == AccessKind::kGlobalStore ? Touch::kWrite : Touch::kRead;
}

const char* verb(Touch touch) { return touch == Touch::kRead ? "read" : touch == Touch::kWrite ? "write" : "atomic"; }

uint16_t mask_of(uintptr_t place, uint32_t bytes) {
  return static_cast<uint16_t>(((1u << bytes) - 1) << (place % kGranuleBytes));
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

void check_between_blocks(uintptr_t place, uint32_t bytes, Touch touch, Site site) {
  const History& own = histories[block->index];
  const uint16_t mask = mask_of(place, bytes);
  // who acquires through an atomic is behind that atomic itself, though no fence follows it
  const uint32_t stamp = touch == Touch::kAtomic ? own.stamp - 1 : own.stamp;
  std::vector<BlockTouch>& touches = touched[place / kGranuleBytes];
  bool known = false;
  for (BlockTouch& other : touches) {
    if (other.block == block->index) {
      if (other.touch != touch || other.stamp != stamp) continue;
      other.mask |= mask;
      known = true;
      continue;
    }
    if (!(other.mask & mask) || (other.touch == touch && touch != Touch::kWrite)) continue;
    const auto seen = own.seen.find(other.block);
    if (seen != own.seen.end() && seen->second >= other.stamp) continue;
    fail(site,
         "race between blocks: %s of bytes of which block %d did a %s in this launch, without fence and atomic "
         "between",
         verb(touch), other.block, verb(other.touch));
  }
  if (!known) touches.push_back(BlockTouch{block->index, stamp, mask, touch});
}

Granule& granule_at(uint64_t index) {
  Granule& granule = block->global_granules[index];
  if (granule.split == nullptr) granule.whole.initialised = true;
  return granule;
}

void check_races(uintptr_t place, uint32_t bytes, Touch touch, Buffer& buffer, uintptr_t start, Site site) {
  if (!options.detect_races || !buffer.writable) return;
  buffer.written = buffer.written || touch != Touch::kRead;
  for (uintptr_t at = place; at < place + bytes; at += kGranuleBytes) {
    const uintptr_t left = place + bytes - at;
    check_between_blocks(at, left < kGranuleBytes ? static_cast<uint32_t>(left) : kGranuleBytes, touch, site);
  }
  for_cells(place, bytes, granule_at, [&](Cell& cell, uint64_t at) {
    touch_cell(cell, touch, *current, Place{buffer.memory.c_str(), at - start}, site);
  });
}

void check_access(uintptr_t place, uint32_t bytes, AccessKind kind, Site site) {
  const Touch touch = touch_of(kind);
  const char* what = touch == Touch::kRead ? "load" : "store";
  Buffer* buffer = buffer_of(place, bytes, what, site);
  trace_access(kind, place, bytes, site);
  if (buffer == nullptr) return;
  if (touch != Touch::kRead && !buffer->writable) {
    fail(site, "global store to read-only buffer '%s'", buffer->name.c_str());
  }
  check_races(place, bytes, touch, *buffer, std::prev(buffers.upper_bound(place))->first, site);
}

}  // namespace

void check_global(const void* pointer, uint32_t bytes, AccessKind kind, Site site) {
  const auto place = reinterpret_cast<uintptr_t>(pointer);
  if (place % bytes) {
    fail(site, "misaligned global %s: %p must be a multiple of %u", touch_of(kind) == Touch::kRead ? "load" : "store",
         pointer, bytes);
  }
  check_access(place, bytes, kind, site);
}

void check_copy_source(const void* pointer, uint32_t bytes, Site site) {
  const auto place = reinterpret_cast<uintptr_t>(pointer);
  if (place % 16) fail(site, "misaligned cp.async source: %p must be a multiple of 16", pointer);
  check_access(place, bytes, AccessKind::kCopySource, site);
}

void check_read_only(const void* pointer, uint32_t bytes, Site site) {
  const auto place = reinterpret_cast<uintptr_t>(pointer);
  const Buffer* buffer = buffer_of(place, bytes, "load", site);
  if (buffer == nullptr || !buffer->written || !options.detect_races) return;
  const auto found = touched.find(place / kGranuleBytes);
  if (found == touched.end()) return;
  for (const BlockTouch& other : found->second) {
    if (other.touch != Touch::kRead && (other.mask & mask_of(place, bytes))) {
      fail(site, "ldg of bytes that this launch writes: use ldg_coherent");
    }
  }
}

void check_bulk(const void* pointer, size_t bytes, Site site) {
  const auto place = reinterpret_cast<uintptr_t>(pointer);
  if (place % 16) fail(site, "misaligned bulk copy: %p must be a multiple of 16", pointer);
  check_access(place, static_cast<uint32_t>(bytes), AccessKind::kBulkCopy, site);
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
  maybe_preempt();
  return before;
}

void fence_device() {
  History& own = histories[block->index];
  ++own.stamp;
  merge(own.seen, own.pending);
}

void register_buffer(const void* start, size_t bytes, const char* name, bool writable) {
  const std::string memory = std::string("buffer '") + name + "' +";
  buffers[reinterpret_cast<uintptr_t>(start)] = Buffer{bytes, name, memory, writable, false};
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
