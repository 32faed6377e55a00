// The device layer on a GPU: CUDA built-ins and PTX (ISA 8.0 and newer, sm_80 and newer). Included by dev.h only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define DEV __device__ __forceinline__
#define HOSTDEV __host__ __device__ __forceinline__
#define DEV_KERNEL(max_threads, min_blocks) __global__ void __launch_bounds__(max_threads, min_blocks)

extern __shared__ __align__(1024) uint8_t dev_shared_memory[];

namespace dev {

constexpr uint32_t kAllLanes = 0xffffffffu;

// Threads

DEV int tid() { return static_cast<int>(threadIdx.x); }
DEV int lane() { return static_cast<int>(threadIdx.x & 31); }
DEV int warp() { return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x >> 5), 0); }  // in a uniform register
DEV int block_x() { return static_cast<int>(blockIdx.x); }
DEV int block_y() { return static_cast<int>(blockIdx.y); }
DEV int block_z() { return static_cast<int>(blockIdx.z); }
DEV int grid_x() { return static_cast<int>(gridDim.x); }
DEV int grid_y() { return static_cast<int>(gridDim.y); }
DEV int grid_z() { return static_cast<int>(gridDim.z); }
DEV int block_threads() { return static_cast<int>(blockDim.x); }

DEV void sync_block() { __syncthreads(); }
DEV void sync_warp() { __syncwarp(); }
// Named barriers 1..15; `threads` counts whole warps. arrive_named does not wait.
DEV void sync_named(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEV void arrive_named(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Warp collectives: all 32 lanes take part

template <class T>
DEV T shfl_xor(T value, int mask) {
  return __shfl_xor_sync(kAllLanes, value, mask);
}
template <class T>
DEV T shfl(T value, int source_lane) {
  return __shfl_sync(kAllLanes, value, source_lane);
}
template <class T>
DEV T shfl_up(T value, int delta) {
  return __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(delta));
}
DEV uint32_t ballot(bool predicate) { return __ballot_sync(kAllLanes, predicate); }
DEV bool any(bool predicate) { return __any_sync(kAllLanes, predicate); }
DEV bool all(bool predicate) { return __all_sync(kAllLanes, predicate); }

// Numbers

DEV float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float rcp(float x) { return __frcp_rn(x); }
DEV float tanh(float x) { return tanhf(x); }  // not tanh.approx: its 11 bits are too few for a softcap
DEV float max(float a, float b) { return fmaxf(a, b); }
DEV uint32_t float_bits(float x) { return __float_as_uint(x); }
DEV float bits_float(uint32_t x) { return __uint_as_float(x); }
// Bytes of two words picked by the nibbles of `selector`, as prmt.b32.
DEV uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }

// Global memory. ldg reads what no thread of this launch writes.

template <class T>
DEV T ldg(const void* source) {
  return __ldg(static_cast<const T*>(source));
}
template <>
DEV u64x ldg<u64x>(const void* source) {
  const uint2 v = __ldg(static_cast<const uint2*>(source));
  return u64x{v.x, v.y};
}
template <>
DEV u128 ldg<u128>(const void* source) {
  u128 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(source));
  return v;
}
template <class T>
DEV T ldg_coherent(const void* source) {
  return *static_cast<const volatile T*>(source);
}
template <>
DEV u64x ldg_coherent<u64x>(const void* source) {
  u64x v;
  asm volatile("ld.volatile.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(source) : "memory");
  return v;
}
template <>
DEV u128 ldg_coherent<u128>(const void* source) {
  u128 v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source)
               : "memory");
  return v;
}
template <class T>
DEV void stg(void* target, T value) {
  *static_cast<T*>(target) = value;
}
DEV int atomic_add(int32_t* target, int value) { return atomicAdd(target, value); }
DEV void fence_device() { __threadfence(); }

// Shared memory

DEV uint32_t shared_address(uint32_t offset) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(dev_shared_memory)) + offset;
}
template <class T>
DEV T lds(uint32_t offset) {
  return *reinterpret_cast<const T*>(dev_shared_memory + offset);
}
template <class T>
DEV void sts(uint32_t offset, T value) {
  *reinterpret_cast<T*>(dev_shared_memory + offset) = value;
}
DEV uint32_t atomic_add_shared(uint32_t offset, uint32_t value) {
  return atomicAdd(reinterpret_cast<uint32_t*>(dev_shared_memory + offset), value);
}

// Four 8x8 tiles of 16-bit elements; lane i gives the address of row i % 8 of tile i / 8.
template <bool kTranspose>
DEV void ldmatrix_x4(uint32_t (&r)[4], uint32_t offset) {
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(offset))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(offset))
                 : "memory");
  }
}

// Asynchronous copies. `bytes` of the 16 are read, the rest are zeros; with 0 the source is not touched.

DEV void cp_async16(uint32_t offset, const void* source, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(offset)), "l"(source),
               "r"(bytes)
               : "memory");
}
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
DEV void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#if __CUDA_ARCH__ >= 900
DEV void mbar_init(uint32_t offset, int count) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(shared_address(offset)),
      "r"(count)
      : "memory");
}
DEV void mbar_arrive(uint32_t offset) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(shared_address(offset))
               : "memory");
}
DEV void mbar_arrive_tx(uint32_t offset, int bytes) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(shared_address(offset)),
      "r"(bytes)
      : "memory");
}
DEV void mbar_wait(uint32_t offset, int parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "wait_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait_%=; }" ::"r"(shared_address(offset)),
      "r"(parity)
      : "memory");
}
// One contiguous copy of a multiple of 16 bytes; completes `bytes` of the barrier's transaction count.
DEV void bulk_g2s(uint32_t offset, const void* source, int bytes, uint32_t mbar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(offset)),
               "l"(source), "r"(bytes), "r"(shared_address(mbar))
               : "memory");
}
// Makes this thread's ordinary accesses of shared memory visible to bulk copies that follow.
DEV void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif

// Element types. mma: C[16, 8] += A[16, 16] . B[16, 8], fp32 accumulators.

#define DEV_MMA_16816(type)                                           \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "         \
               "{%0,%1,%2,%3};"                                       \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

struct F16 {
  static DEV uint32_t pack2(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  static DEV void unpack2(uint32_t pair, float& low, float& high) {
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    low = both.x;
    high = both.y;
  }
  static DEV void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { DEV_MMA_16816("f16"); }
};

struct BF16 {
  static DEV uint32_t pack2(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  static DEV void unpack2(uint32_t pair, float& low, float& high) {
    low = __uint_as_float(pair << 16);
    high = __uint_as_float(pair & 0xffff0000u);
  }
  static DEV void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { DEV_MMA_16816("bf16"); }
};

#undef DEV_MMA_16816

// fp8 in pairs, the low byte first. Conversions to fp8 round to nearest even and saturate to the largest finite value.
template <__nv_fp8_interpretation_t kKind>
struct Fp8 {
  static DEV uint32_t to_half2(uint16_t pair) {
    const __half2_raw both = __nv_cvt_fp8x2_to_halfraw2(pair, kKind);
    return *reinterpret_cast<const uint32_t*>(&both);
  }
  static DEV uint32_t to_bfloat2(uint16_t pair) {
    float low, high;
    F16::unpack2(to_half2(pair), low, high);
    return BF16::pack2(low, high);
  }
  static DEV uint16_t from_floats(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(float2{low, high}, __NV_SATFINITE, kKind);
  }
};
using E4M3 = Fp8<__NV_E4M3>;
using E5M2 = Fp8<__NV_E5M2>;

}  // namespace dev
