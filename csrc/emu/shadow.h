// What is known of memory while a block runs: for every piece who wrote it last, who has read it since, and whether it
// holds anything. A piece is 16 bytes until smaller accesses split it.
#pragma once

#include <memory>

#include "emu/order.h"
#include "emu/trace.h"

namespace dfc {
namespace emu {

constexpr uint32_t kGranuleBytes = 16;

enum class Touch { kRead, kWrite, kAtomic };

struct Cell {
  Mark write;
  Mark read;                      // kSeveral: `step` is an index of the block's ReaderPool
  int16_t in_flight = kNobody;    // thread whose asynchronous copy has not landed
  bool initialised = false;
  bool atomic = false;            // touched by atomics since the last plain access; `read` has them all
};

struct Split {
  int shift;       // pieces of 1 << shift bytes
  Cell cells[16];  // the first 16 >> shift are used
};

struct Granule {
  Cell whole;
  std::unique_ptr<Split> split;
};

// Readers of a piece that more than one thread has read: for each warp the lanes of its last epoch.
struct WarpReaders {
  uint32_t epoch = 0, lanes = 0;
  std::array<uint32_t, 32> steps;
};

class ReaderPool {
 public:
  explicit ReaderPool(size_t warps) : warps_(warps) {}
  uint32_t take();
  uint32_t copy_of(uint32_t index);
  void give_back(uint32_t index) { free_.push_back(index); }
  WarpReaders* at(uint32_t index) { return &readers_[index * warps_]; }
  size_t num_warps() const { return warps_; }

 private:
  size_t warps_;
  std::vector<WarpReaders> readers_;
  std::vector<uint32_t> free_;
};

// How messages name a place.
struct Place {
  const char* memory;  // "shared memory +"
  uint64_t offset;
};

// Reports what is wrong with an access of `lane`, and takes note of it.
void touch_cell(Cell& cell, Touch touch, const Lane& lane, Place place, Site site);
// Makes `lane` the writer of what a copy brought.
void overwrite(Cell& cell, const Mark& writer);

void split(Granule& granule, int shift);

// Calls action(cell, offset) for every piece of [offset, offset + bytes), which is aligned to `bytes` or to granules.
template <class At, class Action>
void for_cells(uint64_t offset, uint64_t bytes, At granule_at, Action action) {
  for (uint64_t at = offset; at < offset + bytes;) {
    Granule& granule = granule_at(at / kGranuleBytes);
    const auto begin = static_cast<uint32_t>(at % kGranuleBytes);
    const uint64_t left = offset + bytes - at;
    const uint32_t size = left < kGranuleBytes - begin ? static_cast<uint32_t>(left) : kGranuleBytes - begin;
    if (size < kGranuleBytes) {
      const int shift = __builtin_ctz(size | begin);
      if (granule.split == nullptr || granule.split->shift > shift) split(granule, shift);
    }
    if (granule.split == nullptr) {
      action(granule.whole, at);
    } else {
      const int shift = granule.split->shift;
      for (uint32_t i = begin >> shift; i < (begin + size) >> shift; ++i) {
        action(granule.split->cells[i], at - begin + (uint64_t{i} << shift));
      }
    }
    at += size;
  }
}

}  // namespace emu
}  // namespace dfc
