// The GPU as kernels see it. Two back ends with one interface: the real one (dev_cuda.h, PTX) and an emulator that runs
// the same source on the CPU and watches every access (dev_emu.h).
//
// Kernels touch memory and threads through namespace dev only: shared memory by byte offset (lds, sts, ldmatrix_x4,
// cp_async16, bulk_g2s), global memory by ldg and stg. No `__shared__`, no asm, no dereferenced pointers.
#pragma once

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
// NVRTC has no standard headers
#define INFINITY __int_as_float(0x7f800000)
#define INT64_MAX 0x7fffffffffffffffll
#else
#include <cstddef>
#include <cstdint>
#endif

// Plain data of 8 and 16 bytes, one access each.
struct alignas(8) u64x {
  uint32_t x, y;
};
struct alignas(16) u128 {
  uint32_t x, y, z, w;
};

#if defined(__CUDACC__)
#include "dev/dev_cuda.h"
#else
#include "dev/dev_emu.h"
#endif
