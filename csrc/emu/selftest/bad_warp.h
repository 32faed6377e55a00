// Faults in what threads do together: collectives that not all lanes reach, barriers that do not fit. One fault for
// each kernel.
#pragma once

#include "emu/selftest/kernels.h"

SELFTEST(bad_divergent_matrix) {
  uint32_t r[4];
  dev::sts<u128>(dev::tid() * 16, u128{});
  dev::sync_block();
  if (dev::lane() < 16) dev::ldmatrix_x4<false>(r, dev::lane() * 16);
}

SELFTEST(bad_divergent_shuffle) {
  float x = 1;
  if (dev::lane() < 16)
    x = dev::shfl_xor(x, 1);
  else
    x = dev::shfl_xor(x, 2);
  dev::stg<uint32_t>(p.data + dev::tid(), static_cast<uint32_t>(x));
}

SELFTEST(bad_early_exit) {
  if (dev::lane() == 3) return;
  dev::stg<uint32_t>(p.data + dev::tid(), static_cast<uint32_t>(dev::shfl_xor(1.0f, 1)));
}

SELFTEST(bad_divergent_barrier) {
  if (dev::warp() == 0)
    dev::sync_block();
  else
    dev::sync_block();
}

SELFTEST(bad_named_count) {
  if (dev::warp() == 0)
    dev::sync_named(1, 64);
  else
    dev::sync_named(1, 32);
}

SELFTEST(bad_named_alone) {
  if (dev::warp() == 0) dev::sync_named(1, 64);
}

SELFTEST(bad_named_no_order) {
  if (dev::warp() == 1) {
    dev::arrive_named(1, 64);
    dev::sts<uint32_t>(dev::lane() * 4, 7);
  } else {
    dev::sync_named(1, 64);
    dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>((31 - dev::lane()) * 4));
  }
}

SELFTEST(bad_barriers_on_one_line) {
  // clang-format off
  if (dev::warp() == 0) dev::sync_block(); else dev::sync_block();
  // clang-format on
}

SELFTEST(bad_shuffles_on_one_line) {
  const int x = dev::lane() < 7 ? dev::shfl_xor(1, 1) : dev::shfl_xor(2, 1);
  dev::stg<uint32_t>(p.data + dev::tid(), x);
}

SELFTEST(bad_divergent_named_barrier) {
  if (dev::lane() < 16) dev::sync_named(1, 64);
  dev::sync_warp();
}

// The number of the warp comes from a shuffle, so that it lies in a uniform register.
SELFTEST(bad_divergent_warp_number) {
  if (dev::lane() < 16) dev::stg<uint32_t>(p.data + dev::tid(), dev::warp());
}
