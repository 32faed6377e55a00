// Kernels with bulk copies that have no fault. They need sm_90 on a GPU.
#pragma once

#include "emu/selftest/kernels.h"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// One thread keeps a ring of two bulk copies full, all consume.
SELFTEST(good_bulk_ring) {
  constexpr uint32_t full = 2048, empty = 2064;
  if (dev::tid() == 0) {
    for (int s = 0; s < 2; ++s) {
      dev::mbar_init(full + 8 * s, 1);
      dev::mbar_init(empty + 8 * s, 2);  // one arrival a warp
    }
  }
  dev::sync_block();
  uint32_t sum = 0;
  for (int i = 0; i < 6; ++i) {
    const uint32_t s = i % 2, round = i / 2;
    if (dev::tid() == 0) {
      if (round > 0) dev::mbar_wait(empty + 8 * s, (round - 1) & 1);
      dev::mbar_arrive_tx(full + 8 * s, 1024);
      dev::bulk_g2s(s * 1024, p.in + 256 * i, 1024, full + 8 * s);
    }
    dev::mbar_wait(full + 8 * s, round & 1);
    sum += dev::lds<uint32_t>(s * 1024 + (63 - dev::tid()) * 4);
    dev::sync_warp();
    if (dev::lane() == 0) dev::mbar_arrive(empty + 8 * s);
  }
  dev::stg<uint32_t>(p.data + dev::tid(), sum);
}

// Every thread says itself that it has read; all read the same word.
SELFTEST(good_bulk_all_arrive) {
  constexpr uint32_t full = 2048, empty = 2056;
  if (dev::tid() == 0) {
    dev::mbar_init(full, 1);
    dev::mbar_init(empty, 64);
  }
  dev::sync_block();
  uint32_t sum = 0;
  for (int i = 0; i < 3; ++i) {
    if (dev::tid() == 0) {
      if (i > 0) dev::mbar_wait(empty, (i - 1) & 1);
      dev::mbar_arrive_tx(full, 64);
      dev::bulk_g2s(0, p.in + 64 * i, 64, full);
    }
    dev::mbar_wait(full, i & 1);
    sum += dev::lds<uint32_t>(4);
    dev::mbar_arrive(empty);
  }
  dev::stg<uint32_t>(p.data + dev::tid(), sum);
}

SELFTEST(good_bulk_over_writes) {
  dev::sts<uint32_t>(dev::tid() * 4, dev::tid());
  if (dev::tid() == 0) dev::mbar_init(2048, 1);
  dev::fence_async();
  dev::sync_block();
  if (dev::tid() == 0) {
    dev::mbar_arrive_tx(2048, 128);
    dev::bulk_g2s(0, p.in + 100, 128, 2048);
  }
  dev::mbar_wait(2048, 0);
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(dev::tid() * 4));
}

#endif
