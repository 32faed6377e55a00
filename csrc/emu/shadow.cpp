#include "emu/shadow.h"

#include "emu/block.h"

namespace dfc {
namespace emu {

uint32_t ReaderPool::take() {
  uint32_t index;
  if (free_.empty()) {
    index = static_cast<uint32_t>(readers_.size() / warps_);
    readers_.resize(readers_.size() + warps_);
  } else {
    index = free_.back();
    free_.pop_back();
  }
  for (size_t w = 0; w < warps_; ++w) at(index)[w].lanes = 0;
  return index;
}

uint32_t ReaderPool::copy_of(uint32_t index) {
  const uint32_t copy = take();
  for (size_t w = 0; w < warps_; ++w) at(copy)[w] = at(index)[w];
  return copy;
}

namespace {

[[noreturn]] void race(const char* what, const Lane& lane, int other, Place place, Site site) {
  const std::string who = other == kAsyncThread ? "a bulk copy" : "thread " + std::to_string(other);
  fail_of(lane.tid, site, "race: %s of %s%llu with %s (nothing orders them)", what, place.memory,
          static_cast<unsigned long long>(place.offset), who.c_str());
}

void forget_readers(Cell& cell) {
  if (cell.read.tid == kSeveral) block->readers.give_back(cell.read.step);
  cell.read = Mark{};
}

void add_to_several(Cell& cell, const Mark& mark) {
  WarpReaders& own = block->readers.at(cell.read.step)[mark.tid >> 5];
  if (own.epoch != mark.epoch) {
    own.epoch = mark.epoch;
    own.lanes = 0;
  }
  own.lanes |= 1u << (mark.tid & 31);
  own.steps[static_cast<size_t>(mark.tid & 31)] = mark.step;
}

// Earlier readers that are before this one need no place of their own: who comes after it comes after them.
void note_reader(Cell& cell, const Lane& lane) {
  const Mark mark = mark_of(lane);
  if (cell.read.tid != kSeveral) {
    if (cell.read.tid == kNobody || is_before(cell.read, lane)) {
      cell.read = mark;
      return;
    }
    const Mark first = cell.read;
    cell.read = Mark{0, block->readers.take(), kSeveral};
    add_to_several(cell, first);
  }
  add_to_several(cell, mark);
}

// A reader that is not ordered before `lane`, or kNobody.
int unordered_reader(const Cell& cell, const Lane& lane) {
  if (cell.read.tid == kNobody) return kNobody;
  if (cell.read.tid != kSeveral) return is_before(cell.read, lane) ? kNobody : cell.read.tid;
  const WarpReaders* readers = block->readers.at(cell.read.step);
  const Warp& own = warp_of(lane);
  for (size_t w = 0; w < block->readers.num_warps(); ++w) {
    const bool mine = w == static_cast<size_t>(lane.warp());
    if (mine ? readers[w].epoch < own.epoch : own.known.ordered.epochs[w] >= readers[w].epoch) continue;
    for (uint32_t lanes = readers[w].lanes; lanes; lanes &= lanes - 1) {
      const auto other = static_cast<size_t>(__builtin_ctz(lanes));
      const Mark mark{readers[w].epoch, readers[w].steps[other], static_cast<int16_t>(w * 32 + other)};
      if (!is_before(mark, lane)) return mark.tid;
    }
  }
  return kNobody;
}

void check_write_before(const Cell& cell, const char* what, const Lane& lane, Place place, Site site) {
  if (cell.write.tid != kNobody && !is_before(cell.write, lane)) race(what, lane, cell.write.tid, place, site);
}

void check_readers_before(const Cell& cell, const char* what, const Lane& lane, Place place, Site site) {
  const int other = unordered_reader(cell, lane);
  if (other != kNobody) race(what, lane, other, place, site);
}

void read_cell(Cell& cell, const Lane& lane, Place place, Site site) {
  if (cell.atomic) {
    check_readers_before(cell, "read after atomic", lane, place, site);
    forget_readers(cell);
    cell.atomic = false;
  } else {
    check_write_before(cell, "read after write", lane, place, site);
  }
  note_reader(cell, lane);
}

void write_cell(Cell& cell, const Lane& lane, Place place, Site site) {
  check_write_before(cell, "write after write", lane, place, site);
  check_readers_before(cell, cell.atomic ? "write after atomic" : "write after read", lane, place, site);
  overwrite(cell, mark_of(lane));
}

void atomic_cell(Cell& cell, const Lane& lane, Place place, Site site) {
  if (!cell.atomic) {
    check_write_before(cell, "atomic after write", lane, place, site);
    check_readers_before(cell, "atomic after read", lane, place, site);
    overwrite(cell, mark_of(lane));
  }
  cell.write = mark_of(lane);
  cell.atomic = true;
  note_reader(cell, lane);
}

}  // namespace

void overwrite(Cell& cell, const Mark& writer) {
  forget_readers(cell);
  cell.write = writer;
  cell.in_flight = kNobody;
  cell.initialised = true;
  cell.atomic = false;
}

void touch_cell(Cell& cell, Touch touch, const Lane& lane, Place place, Site site) {
  const auto offset = static_cast<unsigned long long>(place.offset);
  if (cell.in_flight >= 0) {
    fail_of(lane.tid, site, "%s of %s%llu while an asynchronous copy of thread %d to it is in flight (missing wait)",
            touch == Touch::kRead ? "read" : "write", place.memory, offset, cell.in_flight);
  }
  if (touch != Touch::kWrite && !cell.initialised) {
    fail_of(lane.tid, site, "read of uninitialised %s%llu", place.memory, offset);
  }
  if (touch == Touch::kRead) return read_cell(cell, lane, place, site);
  if (touch == Touch::kWrite) return write_cell(cell, lane, place, site);
  atomic_cell(cell, lane, place, site);
}

void split(Granule& granule, int shift) {
  auto next = std::make_unique<Split>();
  next->shift = shift;
  for (uint32_t i = 0; i < kGranuleBytes >> shift; ++i) {
    const Split* now = granule.split.get();
    const Cell& from = now == nullptr ? granule.whole : now->cells[(i << shift) >> now->shift];
    next->cells[i] = from;
    if (from.read.tid == kSeveral) next->cells[i].read.step = block->readers.copy_of(from.read.step);
  }
  granule.split = std::move(next);
}

}  // namespace emu
}  // namespace dfc
