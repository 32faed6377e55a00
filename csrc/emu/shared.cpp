#include "emu/shared.h"

namespace dfc {
namespace emu {

namespace {

constexpr const char* kMemory = "shared memory +";

Granule& granule_at(uint64_t index) { return block->granules[index]; }

void check_place(uint32_t offset, uint32_t bytes, uint32_t alignment, Site site, int tid) {
  if (uint64_t{offset} + bytes > block->shared_bytes) {
    fail_of(tid, site, "shared memory out of bounds: +%u..%llu of %zu bytes", offset,
            static_cast<unsigned long long>(uint64_t{offset} + bytes), block->shared_bytes);
  }
  if (offset % alignment) {
    fail_of(tid, site, "misaligned access of shared memory +%u: must be a multiple of %u", offset, alignment);
  }
}

void check_fenced(const Cell& cell, const Lane& lane, uint64_t offset, Site site) {
  const Mark& mark = cell.write;
  if (mark.tid == kNobody || mark.tid == kAsyncThread || is_fenced(mark, lane)) return;
  fail_of(lane.tid, site, "bulk copy over shared memory +%llu, written by thread %d without fence_async() between",
          static_cast<unsigned long long>(offset), mark.tid);
}

}  // namespace

uint8_t* access_shared(uint32_t offset, uint32_t bytes, Touch touch, Site site, int tid) {
  check_place(offset, bytes, bytes, site, tid);
  if (options.detect_races) {
    const Lane& lane = block->lanes[static_cast<size_t>(tid)];
    for_cells(offset, bytes, granule_at,
              [&](Cell& cell, uint64_t at) { touch_cell(cell, touch, lane, Place{kMemory, at}, site); });
  }
  return block->shared + offset;
}

uint8_t* begin_copy(uint32_t offset, uint32_t bytes, bool by_unit, Site site, int tid) {
  check_place(offset, bytes, 16, site, tid);
  if (!options.detect_races) return block->shared + offset;
  const Lane& lane = block->lanes[static_cast<size_t>(tid)];
  for_cells(offset, bytes, granule_at, [&](Cell& cell, uint64_t at) {
    const Cell before = cell;
    touch_cell(cell, Touch::kWrite, lane, Place{kMemory, at}, site);
    if (by_unit) check_fenced(before, lane, at, site);
    cell.in_flight = static_cast<int16_t>(tid);
  });
  return block->shared + offset;
}

void land_copy(uint32_t offset, uint32_t bytes, const Mark& writer) {
  if (!options.detect_races) return;
  for_cells(offset, bytes, granule_at, [&](Cell& cell, uint64_t) { overwrite(cell, writer); });
}

bool is_visible(uint32_t offset) {
  if (!options.detect_races) return true;
  bool visible = true;
  for_cells(offset, 8, granule_at, [&](const Cell& cell, uint64_t) {
    visible = visible && (cell.write.tid == kNobody || is_before(cell.write, *current));
  });
  return visible;
}

}  // namespace emu
}  // namespace dfc
