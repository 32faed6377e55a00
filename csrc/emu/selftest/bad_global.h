// Faults in the use of global memory, within a block and between blocks. One fault for each kernel.
#pragma once

#include "emu/selftest/kernels.h"

SELFTEST(bad_global_bounds) { dev::stg<uint32_t>(p.data + dev::tid() + 4096, 1); }

SELFTEST(bad_global_alignment) { dev::ldg<u128>(p.in + 1); }

SELFTEST(bad_read_only) { dev::stg<uint32_t>(const_cast<uint32_t*>(p.in) + dev::tid(), 1); }

SELFTEST(bad_stale_read) {
  dev::stg<uint32_t>(p.data + dev::tid(), 1);
  dev::sync_block();
  dev::stg<uint32_t>(p.data + 64 + dev::tid(), dev::ldg<uint32_t>(p.data + dev::tid()));
}

SELFTEST(bad_blocks_write_the_same) { dev::stg<uint32_t>(p.data + dev::tid(), dev::block_x()); }

SELFTEST(bad_no_fence) {
  dev::stg<uint32_t>(p.data + 1024 + dev::block_x() * 64 + dev::tid(), 1);
  dev::sync_block();
  if (dev::tid() == 0) dev::sts<uint32_t>(0, dev::atomic_add(p.counter, 1) == dev::grid_x() - 1);
  dev::sync_block();
  if (!dev::lds<uint32_t>(0)) return;
  dev::fence_device();
  uint32_t sum = 0;
  for (int b = 0; b < dev::grid_x(); ++b) sum += dev::ldg_coherent<uint32_t>(p.data + 1024 + b * 64 + dev::tid());
  dev::stg<uint32_t>(p.data + dev::tid(), sum);
}

// Every block counts by hand.
SELFTEST(bad_lost_update) {
  if (dev::tid() == 0) dev::stg<int32_t>(p.counter, dev::ldg_coherent<int32_t>(p.counter) + 1);
}

// Two warps of a block count by hand.
SELFTEST(bad_lost_update_in_a_block) {
  if (dev::lane() == 0) dev::stg<int32_t>(p.counter, dev::ldg_coherent<int32_t>(p.counter) + 1);
}

SELFTEST(bad_no_sync_global) {
  dev::stg<uint32_t>(p.data + dev::tid(), dev::tid());
  dev::sync_warp();
  dev::stg<uint32_t>(p.data + 64 + dev::tid(), dev::ldg_coherent<uint32_t>(p.data + 63 - dev::tid()));
}

// All blocks but the first count atomically.
SELFTEST(bad_plain_and_atomic) {
  if (dev::tid() != 0) return;
  if (dev::block_x() == 0)
    dev::stg<int32_t>(p.counter, 1);
  else
    dev::atomic_add(p.counter, 1);
}

// The reader has no fence behind its atomic.
SELFTEST(bad_no_reader_fence) {
  dev::stg<uint32_t>(p.data + 1024 + dev::block_x() * 64 + dev::tid(), 1);
  dev::fence_device();
  dev::sync_block();
  if (dev::tid() == 0) dev::sts<uint32_t>(0, dev::atomic_add(p.counter, 1) == dev::grid_x() - 1);
  dev::sync_block();
  if (!dev::lds<uint32_t>(0)) return;
  uint32_t sum = 0;
  for (int b = 0; b < dev::grid_x(); ++b) sum += dev::ldg_coherent<uint32_t>(p.data + 1024 + b * 64 + dev::tid());
  dev::stg<uint32_t>(p.data + dev::tid(), sum);
}
