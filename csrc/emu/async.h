// Asynchronous copies to shared memory: cp.async groups, and bulk copies that complete on an mbarrier. A copy lands at
// its issue or as late as it may: kernels must be right in both cases. Until then the target is poisoned.
#pragma once

#include <string>

#include "emu/block.h"

namespace dfc {
namespace emu {

void copy_async(uint32_t offset, const void* source, int bytes, Site site);
void commit_async();
void wait_async(size_t pending);

void init_mbarrier(uint32_t offset, int count, Site site);
void arrive_mbarrier(uint32_t offset, int bytes, Site site);
void wait_mbarrier(uint32_t offset, int parity, Site site);
void copy_bulk(uint32_t offset, const void* source, int bytes, uint32_t mbarrier, Site site);

// Lands a bulk copy that is in flight; false if none is.
bool finish_bulk_copy();
// What is wrong at the end of the block: copies that nobody waited for. Empty if nothing.
std::string copies_left();

}  // namespace emu
}  // namespace dfc
