#include "emu/shared.h"

namespace dfc {
namespace emu {

namespace {

constexpr uint32_t kCellBytes = 2;
constexpr int16_t kManyWarps = -2, kManyLanes = -2;

[[noreturn]] void race(Site site, const char* what, uint32_t cell, int other) {
  fail(site, "race: %s of shared memory +%u with thread %d (no barrier between)", what, cell * kCellBytes, other);
}

bool same_warp_ordered(uint32_t epoch, int tid) {
  return epoch < block->warps[static_cast<size_t>(tid >> 5)].sync_epoch;
}

bool read_is_ordered(int reader_warp, uint32_t clock, uint32_t epoch, int tid) {
  if (reader_warp == tid >> 5) return same_warp_ordered(epoch, tid);
  return block->warps[static_cast<size_t>(tid >> 5)].clock[static_cast<size_t>(reader_warp)] >= clock;
}

void check_readers(const Cell& cell, uint32_t index, Site site, int tid) {
  if (cell.read_warp >= 0) {
    const bool own = cell.reader == tid;
    if (!own && !read_is_ordered(cell.read_warp, cell.read_clock, cell.read_epoch, tid)) {
      race(site, "write after read", index, cell.reader);
    }
  }
  if (cell.read_warp != kManyWarps) return;
  const Readers& readers = block->readers[cell.read_clock];
  for (int warp = 0; warp < block->num_warps; ++warp) {
    const auto w = static_cast<size_t>(warp);
    if (readers.clock[w] == 0 || readers.reader[w] == tid) continue;
    if (!read_is_ordered(warp, readers.clock[w], readers.epoch[w], tid))
      race(site, "write after read", index, warp * 32);
  }
}

void note_read(Cell& cell, int tid) {
  const auto warp = static_cast<int16_t>(tid >> 5);
  const Warp& own = block->warps[static_cast<size_t>(warp)];
  const uint32_t clock = own.clock[static_cast<size_t>(warp)], epoch = own.sync_epoch;
  if (cell.read_warp == -1 || cell.read_warp == warp) {
    const bool others = cell.read_warp == warp && cell.read_epoch == epoch && cell.reader != tid;
    cell.reader = others ? kManyLanes : static_cast<int16_t>(tid);
    cell.read_warp = warp;
    cell.read_clock = clock;
    cell.read_epoch = epoch;
    return;
  }
  if (cell.read_warp >= 0) {
    Readers readers{};
    const auto first = static_cast<size_t>(cell.read_warp);
    readers.clock[first] = cell.read_clock;
    readers.epoch[first] = cell.read_epoch;
    readers.reader[first] = cell.reader;
    block->readers.push_back(readers);
    cell.read_warp = kManyWarps;
    cell.read_clock = static_cast<uint32_t>(block->readers.size() - 1);
  }
  Readers& readers = block->readers[cell.read_clock];
  const auto w = static_cast<size_t>(warp);
  const bool others = readers.clock[w] != 0 && readers.epoch[w] == epoch && readers.reader[w] != tid;
  readers.reader[w] = others ? kManyLanes : static_cast<int16_t>(tid);
  readers.clock[w] = clock;
  readers.epoch[w] = epoch;
}

void note_write(Cell& cell, int tid) {
  const auto warp = static_cast<int16_t>(tid >> 5);
  const Warp& own = block->warps[static_cast<size_t>(warp)];
  cell.writer = static_cast<int16_t>(tid);
  cell.write_warp = warp;
  cell.write_clock = own.clock[static_cast<size_t>(warp)];
  cell.write_epoch = own.sync_epoch;
  cell.reader = cell.read_warp = -1;
  cell.initialised = true;
  cell.atomic = false;
}

void touch(uint32_t offset, uint32_t bytes, bool write, Site site, int tid) {
  for (uint32_t i = offset / kCellBytes; i < (offset + bytes) / kCellBytes; ++i) {
    Cell& cell = block->cells[i];
    if (cell.in_flight >= 0) {
      fail(site, "%s of shared memory +%u while an asynchronous copy of thread %d to it is in flight (missing wait)",
           write ? "write" : "read", i * kCellBytes, cell.in_flight);
    }
    if (!write && !cell.initialised) fail(site, "read of uninitialised shared memory +%u", i * kCellBytes);
    if (!write_is_visible(cell, tid)) race(site, write ? "write after write" : "read after write", i, cell.writer);
    if (write) {
      check_readers(cell, i, site, tid);
      note_write(cell, tid);
    } else {
      note_read(cell, tid);
    }
  }
}

uint8_t* checked(uint32_t offset, uint32_t bytes, uint32_t alignment, bool write, Site site, int tid) {
  if (uint64_t{offset} + bytes > block->shared_bytes) {
    fail(site, "shared memory out of bounds: +%u..%u of %zu bytes", offset, offset + bytes, block->shared_bytes);
  }
  if (offset % alignment)
    fail(site, "misaligned access of shared memory +%u: must be a multiple of %u", offset, alignment);
  if (bytes < kCellBytes) fail(site, "single bytes of shared memory are not modelled");
  if (options.detect_races) touch(offset, bytes, write, site, tid);
  return block->shared + offset;
}

}  // namespace

bool write_is_visible(const Cell& cell, int tid) {
  if (cell.write_warp < 0 || cell.writer == tid) return true;
  if (cell.write_warp == tid >> 5) return same_warp_ordered(cell.write_epoch, tid);
  const Warp& own = block->warps[static_cast<size_t>(tid >> 5)];
  return own.clock[static_cast<size_t>(cell.write_warp)] >= cell.write_clock;
}

const uint8_t* read_shared(uint32_t offset, uint32_t bytes, uint32_t alignment, Site site, int tid) {
  return checked(offset, bytes, alignment, false, site, tid);
}

uint8_t* write_shared(uint32_t offset, uint32_t bytes, uint32_t alignment, Site site, int tid) {
  return checked(offset, bytes, alignment, true, site, tid);
}

uint8_t* atomic_shared(uint32_t offset, Site site) {
  const bool known = options.detect_races && uint64_t{offset} + 4 <= block->shared_bytes;
  Cell* cells = known ? &block->cells[offset / kCellBytes] : nullptr;
  if (known && !cells[0].initialised) fail(site, "atomic on uninitialised shared memory +%u", offset);
  for (int i = 0; known && i < 2; ++i) {
    if (cells[i].atomic) cells[i].writer = static_cast<int16_t>(current->tid);  // atomics are ordered among themselves
  }
  uint8_t* place = checked(offset, 4, 4, true, site, current->tid);
  for (int i = 0; known && i < 2; ++i) cells[i].atomic = true;
  return place;
}

uint8_t* begin_copy(uint32_t offset, uint32_t bytes, Site site, int tid) {
  uint8_t* place = checked(offset, bytes, 16, true, site, tid);
  if (!options.detect_races) return place;
  for (uint32_t i = offset / kCellBytes; i < (offset + bytes) / kCellBytes; ++i) {
    block->cells[i].in_flight = static_cast<int16_t>(tid);
  }
  return place;
}

void land_cp_async(uint32_t offset, uint32_t bytes, int tid) {
  if (!options.detect_races) return;
  for (uint32_t i = offset / kCellBytes; i < (offset + bytes) / kCellBytes; ++i) {
    block->cells[i].in_flight = -1;
    note_write(block->cells[i], tid);
  }
}

void land_bulk(uint32_t offset, uint32_t bytes, uint32_t async_clock) {
  if (!options.detect_races) return;
  for (uint32_t i = offset / kCellBytes; i < (offset + bytes) / kCellBytes; ++i) {
    Cell& cell = block->cells[i];
    cell.in_flight = -1;
    cell.writer = -1;
    cell.write_warp = kAsyncUnit;
    cell.write_clock = async_clock;
  }
}

}  // namespace emu
}  // namespace dfc
