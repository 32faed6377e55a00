// Global memory: only registered buffers, aligned, and no exchange between blocks of a launch without an atomic and
// fences. Blocks run one after another here; on a GPU they do not, so what one writes another may read only if
//
//   writer: writes, fence_device(), atomic_add(counter)      reader: atomic_add(counter), fence_device(), ldg_coherent
//
// orders them. Within a block accesses must be ordered as those of shared memory. Only buffers that are registered as
// writable are watched for races.
#pragma once

#include "emu/block.h"

namespace dfc {
namespace emu {

// Checks an access of the current thread, of a power of two of bytes, and traces it.
void check_global(const void* place, uint32_t bytes, AccessKind kind, Site site);
// ldg may come from a cache that this launch's writes do not reach.
void check_read_only(const void* place, uint32_t bytes, Site site);
// `bytes` at a place that is aligned to 16 are read.
void check_copy_source(const void* place, uint32_t bytes, Site site);
void check_bulk(const void* place, size_t bytes, Site site);
int atomic_add(int32_t* target, int value, Site site);
void fence_device();

void register_buffer(const void* start, size_t bytes, const char* name, bool writable);
void clear_buffers();
void begin_launch();  // forgets who wrote what

}  // namespace emu
}  // namespace dfc
