// Shared memory of the running block: bounds, alignment, initialisation and races.
#pragma once

#include "emu/block.h"

namespace dfc {
namespace emu {

// Where `bytes` (a power of two) at `offset` lie, after all checks of an access of thread `tid`.
uint8_t* access_shared(uint32_t offset, uint32_t bytes, Touch touch, Site site, int tid);

// The target of an asynchronous copy that thread `tid` issues: written, and in flight until `land`. `by_unit`: by the
// unit for bulk copies, which sees ordinary writes only behind a proxy fence.
uint8_t* begin_copy(uint32_t offset, uint32_t bytes, bool by_unit, Site site, int tid);
// What a copy brought counts as written by `writer`.
void land_copy(uint32_t offset, uint32_t bytes, const Mark& writer);

// Is what was last written at `offset` ordered before the current thread?
bool is_visible(uint32_t offset);

}  // namespace emu
}  // namespace dfc
