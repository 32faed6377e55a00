// The emulator as the outside sees it: a C ABI, so that the library of emulated kernels can be opened at run time.
// Not for several threads at once. Every function but dfc_emu_launch returns at once and cannot fail.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum dfc_emu_completion { kDfcEmuEager = 0, kDfcEmuLazy = 1, kDfcEmuRandom = 2 };

struct dfc_emu_options {
  uint64_t seed;     // of the order of blocks and warps; 0: in order, without preemption
  int lazy_async;    // asynchronous copies land at their issue (0), at the wait for them (1), or either (2)
  int detect_races;  // of shared memory within a block and of global memory between blocks
  int trace;         // 1: add up accesses, see dfc_emu_trace; 2: keep every request as well
};

void dfc_emu_configure(const dfc_emu_options* options);

// Runs all blocks. 0, or 1 with a message that names the kernel, the thread, file and line.
int dfc_emu_launch(const char* kernel, const unsigned grid[3], unsigned threads, unsigned shared_bytes,
                   const void* args, size_t args_bytes);
const char* dfc_emu_message();

// Once any buffer is registered, an access of global memory outside all of them is an error.
void dfc_emu_register_buffer(const void* start, size_t bytes, const char* name, int writable);
void dfc_emu_clear_buffers();

// What the launches since the last clear did, as a JSON list: one object per (file, line, kind, bytes per lane) with
// requests, lanes, bytes, and sectors and lines (global) or wavefronts and ideal wavefronts (shared).
const char* dfc_emu_trace();
void dfc_emu_clear_trace();

// One memory instruction of one warp.
struct dfc_emu_request {
  const char* file;
  int32_t line, column, kind;  // kind: 0 global load, 1 global store, 2 shared load, 3 shared store, 4 ldmatrix,
                               // 5 cp.async source, 6 cp.async target, 7 bulk copy source, 8 global atomic,
                               // 9 shared atomic, 10 bulk copy target
  uint32_t bytes;  // of each lane
  uint32_t lanes;  // bits of those that took part
  int32_t block, warp;
  uint64_t address[32];  // of each lane; an offset if shared
};
// Those of launches with trace = 2 since the last clear. Valid until the next launch.
size_t dfc_emu_trace_requests(const dfc_emu_request** first);

// Names of the kernels in this library, one per line.
const char* dfc_emu_kernels();
}
