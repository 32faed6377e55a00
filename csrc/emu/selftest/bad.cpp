// Kernels with one fault each, which the emulator must find on every schedule. The test says which words it expects.
#include "emu/registry.h"
#include "emu/selftest/kernels.h"

using dev::tid;

SELFTEST(bad_no_sync_block) {
  dev::sts<uint32_t>(tid() * 4, tid());
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>((63 - tid()) * 4));
}

SELFTEST(bad_no_sync_block_initialised) {
  dev::sts<uint32_t>(tid() * 4, 0);
  dev::sync_block();
  dev::sts<uint32_t>(tid() * 4, tid());
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>((63 - tid()) * 4));
}

SELFTEST(bad_overwrite_while_read) {
  dev::sts<uint32_t>(tid() * 4, tid());
  dev::sync_block();
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>((63 - tid()) * 4));
  dev::sts<uint32_t>(tid() * 4, 1);
}

SELFTEST(bad_overwrite_read_by_many) {
  if (tid() == 0) dev::sts<uint32_t>(0, 5);
  dev::sync_block();
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>(0));
  if (tid() == 40) dev::sts<uint32_t>(0, 6);
}

SELFTEST(bad_no_sync_warp) {
  dev::sts<uint32_t>(tid() * 4, 0);
  dev::sync_warp();
  dev::sts<uint32_t>(tid() * 4, tid());
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>((tid() ^ 1) * 4));
}

SELFTEST(bad_two_writers) {
  dev::sts<uint32_t>(0, tid());
  dev::sync_block();
}

SELFTEST(bad_uninitialised) { dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>(tid() * 4)); }
SELFTEST(bad_shared_bounds) { dev::sts<uint32_t>(tid() * 4 + 4096 - 252, 1); }
SELFTEST(bad_shared_alignment) { dev::sts<u128>(tid() * 16 + 8, u128{}); }
SELFTEST(bad_global_bounds) { dev::stg<uint32_t>(p.data + tid() + 4096, 1); }
SELFTEST(bad_global_alignment) { dev::ldg<u128>(p.in + 1); }
SELFTEST(bad_read_only) { dev::stg<uint32_t>(const_cast<uint32_t*>(p.in) + tid(), 1); }
SELFTEST(bad_stale_read) {
  dev::stg<uint32_t>(p.data + tid(), 1);
  dev::sync_block();
  dev::stg<uint32_t>(p.data + 64 + tid(), dev::ldg<uint32_t>(p.data + tid()));
}

SELFTEST(bad_divergent_matrix) {
  uint32_t r[4];
  dev::sts<u128>(tid() * 16, u128{});
  dev::sync_block();
  if (dev::lane() < 16) dev::ldmatrix_x4<false>(r, dev::lane() * 16);
}

SELFTEST(bad_divergent_shuffle) {
  float x = 1;
  if (dev::lane() < 16)
    x = dev::shfl_xor(x, 1);
  else
    x = dev::shfl_xor(x, 2);
  dev::stg<uint32_t>(p.data + tid(), static_cast<uint32_t>(x));
}

SELFTEST(bad_early_exit) {
  if (dev::lane() == 3) return;
  dev::stg<uint32_t>(p.data + tid(), static_cast<uint32_t>(dev::shfl_xor(1.0f, 1)));
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
    dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>((31 - dev::lane()) * 4));
  }
}

SELFTEST(bad_no_wait) {
  dev::cp_async16(tid() * 16, p.in + tid() * 4);
  dev::cp_async_commit();
  dev::sync_block();
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>(tid() * 16));
  dev::cp_async_wait<0>();
}

SELFTEST(bad_wait_without_sync) {
  dev::cp_async16(tid() * 16, p.in + tid() * 4);
  dev::cp_async_commit();
  dev::cp_async_wait<0>();
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>((63 - tid()) * 16));
}

SELFTEST(bad_wait_off_by_one) {
  for (int stage = 0; stage < 2; ++stage) {
    dev::cp_async16(stage * 1024 + tid() * 16, p.in + tid() * 4);
    dev::cp_async_commit();
  }
  dev::cp_async_wait<1>();
  dev::sync_block();
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>(1024 + tid() * 16));
  dev::cp_async_wait<0>();
}

SELFTEST(bad_exit_in_flight) {
  dev::cp_async16(tid() * 16, p.in + tid() * 4);
  dev::cp_async_commit();
}

SELFTEST(bad_never_committed) { dev::cp_async16(tid() * 16, p.in + tid() * 4); }

SELFTEST(bad_bulk_no_wait) {
  if (tid() == 0) {
    dev::mbar_init(2048, 1);
    dev::mbar_arrive_tx(2048, 1024);
    dev::bulk_g2s(0, p.in, 1024, 2048);
  }
  dev::sync_block();
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>(tid() * 4));
  dev::mbar_wait(2048, 0);
}

SELFTEST(bad_bulk_init_not_visible) {
  if (tid() == 0) dev::mbar_init(2048, 64);
  dev::mbar_arrive(2048);
  dev::mbar_wait(2048, 0);
}

// Fills a buffer again without waiting until all have read it.
SELFTEST(bad_bulk_overwrite) {
  if (tid() == 0) {
    dev::mbar_init(2048, 1);
    dev::mbar_arrive_tx(2048, 1024);
    dev::bulk_g2s(0, p.in, 1024, 2048);
  }
  dev::sync_block();
  dev::mbar_wait(2048, 0);
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>((63 - tid()) * 4));
  if (tid() == 0) {
    dev::mbar_arrive_tx(2048, 1024);
    dev::bulk_g2s(0, p.in + 256, 1024, 2048);
  }
  dev::mbar_wait(2048, 1);
}

SELFTEST(bad_bulk_wrong_bytes) {
  if (tid() == 0) {
    dev::mbar_init(2048, 1);
    dev::mbar_arrive_tx(2048, 2048);
    dev::bulk_g2s(0, p.in, 1024, 2048);
  }
  dev::sync_block();
  dev::mbar_wait(2048, 0);
}

SELFTEST(bad_too_many_arrivals) {
  if (tid() == 0) {
    dev::mbar_init(2048, 1);
    dev::mbar_arrive_tx(2048, 1024);
    dev::mbar_arrive(2048);
  }
}

SELFTEST(bad_blocks_write_the_same) { dev::stg<uint32_t>(p.data + tid(), dev::block_x()); }

SELFTEST(bad_no_fence) {
  dev::stg<uint32_t>(p.data + 1024 + dev::block_x() * 64 + tid(), 1);
  dev::sync_block();
  if (tid() == 0) dev::sts<uint32_t>(0, dev::atomic_add(p.counter, 1) == dev::grid_x() - 1);
  dev::sync_block();
  if (!dev::lds<uint32_t>(0)) return;
  dev::fence_device();
  uint32_t sum = 0;
  for (int b = 0; b < dev::grid_x(); ++b) sum += dev::ldg_coherent<uint32_t>(p.data + 1024 + b * 64 + tid());
  dev::stg<uint32_t>(p.data + tid(), sum);
}

// Every block counts by hand.
SELFTEST(bad_lost_update) {
  if (tid() == 0) dev::stg<int32_t>(p.counter, dev::ldg_coherent<int32_t>(p.counter) + 1);
}

SELFTEST(bad_shared_lost_update) {
  if (tid() == 0) dev::sts<uint32_t>(0, 0);
  dev::sync_block();
  dev::sts<uint32_t>(0, dev::lds<uint32_t>(0) + 1);
}

SELFTEST(bad_atomic_read_early) {
  if (tid() == 0) dev::sts<uint32_t>(0, 0);
  dev::sync_block();
  dev::atomic_add_shared(0, 1);
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>(0));
}
