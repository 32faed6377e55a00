// Asynchronous copies to shared memory: cp.async groups, and bulk copies that complete on an mbarrier. A copy lands at
// its issue, or at the wait for it: kernels must be right in both cases. Until then the target is poisoned.
#pragma once

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

}  // namespace emu
}  // namespace dfc
