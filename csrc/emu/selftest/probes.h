// Kernels that show single operations to the tests: fragment maps of ldmatrix and mma, and conversions of numbers.
#pragma once

#include "emu/selftest/kernels.h"

namespace selftest {

// in: for each lane four registers of A, two of B and four of C; data: four registers of the product for each lane.
template <class Type>
DEV void multiply(const SelftestArgs& p) {
  const uint32_t* in = p.in + dev::lane() * 10;
  uint32_t a[4], b[2];
  float c[4];
  for (int i = 0; i < 4; ++i) a[i] = dev::ldg<uint32_t>(in + i);
  for (int i = 0; i < 2; ++i) b[i] = dev::ldg<uint32_t>(in + 4 + i);
  for (int i = 0; i < 4; ++i) c[i] = dev::ldg<float>(in + 6 + i);
  Type::mma(c, a, b[0], b[1]);
  if (dev::tid() >= 32) return;
  for (int i = 0; i < 4; ++i) dev::stg<float>(p.data + dev::lane() * 4 + i, c[i]);
}

template <bool kTranspose>
DEV void load_matrix(const SelftestArgs& p) {
  dev::sts<uint64_t>(dev::tid() * 8, dev::ldg<uint64_t>(p.in + dev::tid() * 2));
  dev::sync_block();
  uint32_t r[4];
  dev::ldmatrix_x4<kTranspose>(r, dev::lane() * 16);
  if (dev::tid() >= 32) return;
  for (int i = 0; i < 4; ++i) dev::stg<uint32_t>(p.data + dev::lane() * 4 + i, r[i]);
}

DEV int element() { return dev::block_x() * 64 + dev::tid(); }

// in[i]: 16 bits; data: both halves as floats
template <class Type>
DEV void widen(const SelftestArgs& p) {
  float low, high;
  Type::unpack2(dev::ldg<uint32_t>(p.in + element()), low, high);
  dev::stg<float>(p.data + 2 * element(), low);
  dev::stg<float>(p.data + 2 * element() + 1, high);
}

template <class Type>
DEV void narrow(const SelftestArgs& p) {
  const float x = dev::ldg<float>(p.in + element());
  dev::stg<uint32_t>(p.data + element(), Type::pack2(x, -x));
}

template <class Type>
DEV void widen_fp8(const SelftestArgs& p) {
  const auto pair = static_cast<uint16_t>(dev::ldg<uint32_t>(p.in + element()));
  dev::stg<uint32_t>(p.data + 2 * element(), Type::to_half2(pair));
  dev::stg<uint32_t>(p.data + 2 * element() + 1, Type::to_bfloat2(pair));
}

template <class Type>
DEV void narrow_fp8(const SelftestArgs& p) {
  const float x = dev::ldg<float>(p.in + element());
  dev::stg<uint32_t>(p.data + element(), Type::from_floats(x, -x));
}

}  // namespace selftest

SELFTEST(probe_mma_f16) { selftest::multiply<dev::F16>(p); }
SELFTEST(probe_mma_bf16) { selftest::multiply<dev::BF16>(p); }
SELFTEST(probe_ldmatrix) { selftest::load_matrix<false>(p); }
SELFTEST(probe_ldmatrix_trans) { selftest::load_matrix<true>(p); }
SELFTEST(probe_widen_f16) { selftest::widen<dev::F16>(p); }
SELFTEST(probe_widen_bf16) { selftest::widen<dev::BF16>(p); }
SELFTEST(probe_narrow_f16) { selftest::narrow<dev::F16>(p); }
SELFTEST(probe_narrow_bf16) { selftest::narrow<dev::BF16>(p); }
SELFTEST(probe_widen_e4m3) { selftest::widen_fp8<dev::E4M3>(p); }
SELFTEST(probe_widen_e5m2) { selftest::widen_fp8<dev::E5M2>(p); }
SELFTEST(probe_narrow_e4m3) { selftest::narrow_fp8<dev::E4M3>(p); }
SELFTEST(probe_narrow_e5m2) { selftest::narrow_fp8<dev::E5M2>(p); }

// More local variables than the stack of an emulated thread holds.
SELFTEST(probe_stack) {
  volatile char large[400 << 10];
  large[0] = static_cast<char>(dev::ldg<uint32_t>(p.in));
  for (uint32_t i = 0; i < sizeof large; i += 1024) large[i] = large[0];
  dev::stg<uint32_t>(p.data, static_cast<uint32_t>(large[sizeof large - 1024]));
}
