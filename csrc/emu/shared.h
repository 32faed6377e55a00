// Shared memory of the running block: bounds, alignment, initialisation and races.
#pragma once

#include "emu/block.h"

namespace dfc {
namespace emu {

// Where `bytes` at `offset` lie, after all checks; as thread `tid`. Accesses of less than 2 bytes are not modelled.
const uint8_t* read_shared(uint32_t offset, uint32_t bytes, uint32_t alignment, Site site, int tid);
uint8_t* write_shared(uint32_t offset, uint32_t bytes, uint32_t alignment, Site site, int tid);

// A 4-byte atomic of the current thread: never a race with another atomic, always one with a plain access.
uint8_t* atomic_shared(uint32_t offset, Site site);

// The target of an asynchronous copy that thread `tid` issues: written, and in flight until `land`.
uint8_t* begin_copy(uint32_t offset, uint32_t bytes, Site site, int tid);
// What a copy brought counts as written by `tid` now, or by the unit for bulk copies at `async_clock`.
void land_cp_async(uint32_t offset, uint32_t bytes, int tid);
void land_bulk(uint32_t offset, uint32_t bytes, uint32_t async_clock);

// Is what `cell` last held ordered before thread `tid` now?
bool write_is_visible(const Cell& cell, int tid);

}  // namespace emu
}  // namespace dfc
