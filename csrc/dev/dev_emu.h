// The device layer on the emulator (csrc/emu). Every access carries the file and line it was made from. Included by
// dev.h.
#pragma once

#include <cmath>
#include <cstring>

#include "emu/async.h"
#include "emu/global.h"
#include "emu/numbers.h"
#include "emu/shared.h"
#include "emu/warp.h"

#define DEV inline
#define HOSTDEV inline
#define DEV_KERNEL(max_threads, min_blocks) void
#define DEV_SITE dfc::emu::Site site = dfc::emu::Site::here()

namespace dev {

namespace emu = dfc::emu;

// Threads

inline int tid() { return emu::current->tid; }
inline int lane() { return emu::current->lane(); }
inline int warp(DEV_SITE) { return emu::warp_number(site); }
inline int block_x() { return emu::block->x; }
inline int block_y() { return emu::block->y; }
inline int block_z() { return emu::block->z; }
inline int grid_x() { return static_cast<int>(emu::grid.x); }
inline int grid_y() { return static_cast<int>(emu::grid.y); }
inline int grid_z() { return static_cast<int>(emu::grid.z); }
inline int block_threads() { return emu::block->num_threads; }

inline void sync_block(DEV_SITE) { emu::sync_block(site); }
inline void sync_warp(DEV_SITE) { emu::sync_warp(site); }
inline void sync_named(int id, int threads, DEV_SITE) { emu::sync_named(id, threads, site); }
inline void arrive_named(int id, int threads, DEV_SITE) { emu::arrive_named(id, threads, site); }

// Warp collectives

template <class T>
T shfl_xor(T value, int mask, DEV_SITE) {
  return emu::shuffle("shfl_xor", emu::shuffle_xor, value, mask, site);
}
template <class T>
T shfl(T value, int source_lane, DEV_SITE) {
  return emu::shuffle("shfl", emu::shuffle_index, value, source_lane, site);
}
template <class T>
T shfl_up(T value, int delta, DEV_SITE) {
  return emu::shuffle("shfl_up", emu::shuffle_up, value, delta, site);
}
inline uint32_t ballot(bool predicate, DEV_SITE) {
  emu::Vote vote{predicate, 0};
  emu::collective("ballot", emu::ballot, &vote, site);
  return vote.result;
}
inline bool any(bool predicate, DEV_SITE) { return ballot(predicate, site) != 0; }
inline bool all(bool predicate, DEV_SITE) { return ballot(!predicate, site) == 0; }

// Numbers

inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }
inline float rcp(float x) { return 1.0f / x; }
inline float tanh(float x) { return std::tanh(x); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float bits_float(uint32_t x) {
  float value;
  std::memcpy(&value, &x, sizeof value);
  return value;
}
inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(bytes >> (8 * (selector >> 4 * i & 7)) & 0xff) << 8 * i;
  return result;
}

// Global memory

template <class T>
T ldg_coherent(const void* source, DEV_SITE) {
  emu::check_global(source, sizeof(T), emu::AccessKind::kGlobalLoad, site);
  T value;
  std::memcpy(&value, source, sizeof value);
  return value;
}
template <class T>
T ldg(const void* source, DEV_SITE) {
  emu::check_read_only(source, sizeof(T), site);
  return ldg_coherent<T>(source, site);
}
template <class T>
void stg(void* target, T value, DEV_SITE) {
  emu::check_global(target, sizeof(T), emu::AccessKind::kGlobalStore, site);
  std::memcpy(target, &value, sizeof value);
}
inline int atomic_add(int32_t* target, int value, DEV_SITE) { return emu::atomic_add(target, value, site); }
inline void fence_device() { emu::fence_device(); }

// Shared memory

template <class T>
T lds(uint32_t offset, DEV_SITE) {
  T value;
  std::memcpy(&value, emu::access_shared(offset, sizeof(T), emu::Touch::kRead, site, tid()), sizeof value);
  emu::trace_access(emu::AccessKind::kSharedLoad, offset, sizeof(T), site);
  return value;
}
template <class T>
void sts(uint32_t offset, T value, DEV_SITE) {
  std::memcpy(emu::access_shared(offset, sizeof(T), emu::Touch::kWrite, site, tid()), &value, sizeof value);
  emu::trace_access(emu::AccessKind::kSharedStore, offset, sizeof(T), site);
}
inline uint32_t atomic_add_shared(uint32_t offset, uint32_t value, DEV_SITE) {
  uint8_t* place = emu::access_shared(offset, sizeof value, emu::Touch::kAtomic, site, tid());
  emu::trace_access(emu::AccessKind::kSharedAtomic, offset, sizeof value, site);
  uint32_t before;
  std::memcpy(&before, place, sizeof before);
  const uint32_t after = before + value;
  std::memcpy(place, &after, sizeof after);
  return before;
}
template <bool kTranspose>
void ldmatrix_x4(uint32_t (&r)[4], uint32_t offset, DEV_SITE) {
  emu::MatrixLoad call{r, offset, site};
  emu::collective(kTranspose ? "ldmatrix.trans" : "ldmatrix",
                  kTranspose ? emu::load_matrix_transposed : emu::load_matrix, &call, site);
}

// Asynchronous copies

inline void cp_async16(uint32_t offset, const void* source, int bytes = 16, DEV_SITE) {
  emu::copy_async(offset, source, bytes, site);
}
inline void cp_async_commit() { emu::commit_async(); }
template <int kPending>
void cp_async_wait() {
  emu::wait_async(kPending);
}
inline void mbar_init(uint32_t offset, int count, DEV_SITE) { emu::init_mbarrier(offset, count, site); }
inline void mbar_arrive(uint32_t offset, DEV_SITE) { emu::arrive_mbarrier(offset, 0, site); }
inline void mbar_arrive_tx(uint32_t offset, int bytes, DEV_SITE) { emu::arrive_mbarrier(offset, bytes, site); }
inline void mbar_wait(uint32_t offset, int parity, DEV_SITE) { emu::wait_mbarrier(offset, parity, site); }
inline void bulk_g2s(uint32_t offset, const void* source, int bytes, uint32_t mbar, DEV_SITE) {
  emu::copy_bulk(offset, source, bytes, mbar, site);
}
inline void fence_async() { emu::fence_proxy(*emu::current); }

// Element types

struct F16 {
  static uint32_t pack2(float low, float high) {
    return emu::float_to_half(low) | static_cast<uint32_t>(emu::float_to_half(high)) << 16;
  }
  static void unpack2(uint32_t pair, float& low, float& high) {
    low = emu::half_to_float(static_cast<uint16_t>(pair));
    high = emu::half_to_float(static_cast<uint16_t>(pair >> 16));
  }
  static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, DEV_SITE) {
    emu::MatrixMultiply call{c, a, b0, b1, site};
    emu::collective("mma.f16", emu::multiply_half, &call, site);
  }
};

struct BF16 {
  static uint32_t pack2(float low, float high) {
    return emu::float_to_bfloat(low) | static_cast<uint32_t>(emu::float_to_bfloat(high)) << 16;
  }
  static void unpack2(uint32_t pair, float& low, float& high) {
    low = emu::bfloat_to_float(static_cast<uint16_t>(pair));
    high = emu::bfloat_to_float(static_cast<uint16_t>(pair >> 16));
  }
  static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, DEV_SITE) {
    emu::MatrixMultiply call{c, a, b0, b1, site};
    emu::collective("mma.bf16", emu::multiply_bfloat, &call, site);
  }
};

struct Fp8 {
  static uint32_t to_half2(uint16_t pair, const emu::SmallFloat& format) {
    return F16::pack2(emu::widen(pair & 0xff, format), emu::widen(pair >> 8, format));
  }
  static uint32_t to_bfloat2(uint16_t pair, const emu::SmallFloat& format) {
    return BF16::pack2(emu::widen(pair & 0xff, format), emu::widen(pair >> 8, format));
  }
  static uint16_t from_floats(float low, float high, const emu::SmallFloat& format) {
    const int pair = emu::narrow(low, format, true) | emu::narrow(high, format, true) << 8;
    return static_cast<uint16_t>(pair);
  }
};

struct E4M3 {
  static uint32_t to_half2(uint16_t pair) { return Fp8::to_half2(pair, emu::kE4m3); }
  static uint32_t to_bfloat2(uint16_t pair) { return Fp8::to_bfloat2(pair, emu::kE4m3); }
  static uint16_t from_floats(float low, float high) { return Fp8::from_floats(low, high, emu::kE4m3); }
};

struct E5M2 {
  static uint32_t to_half2(uint16_t pair) { return Fp8::to_half2(pair, emu::kE5m2); }
  static uint32_t to_bfloat2(uint16_t pair) { return Fp8::to_bfloat2(pair, emu::kE5m2); }
  static uint16_t from_floats(float low, float high) { return Fp8::from_floats(low, high, emu::kE5m2); }
};

}  // namespace dev
