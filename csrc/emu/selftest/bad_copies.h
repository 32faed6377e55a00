// Faults in the use of asynchronous copies. One fault for each kernel.
#pragma once

#include "emu/selftest/kernels.h"

SELFTEST(bad_no_wait) {
  dev::cp_async16(dev::tid() * 16, p.in + dev::tid() * 4);
  dev::cp_async_commit();
  dev::sync_block();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(dev::tid() * 16));
  dev::cp_async_wait<0>();
}

SELFTEST(bad_wait_without_sync) {
  dev::cp_async16(dev::tid() * 16, p.in + dev::tid() * 4);
  dev::cp_async_commit();
  dev::cp_async_wait<0>();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>((63 - dev::tid()) * 16));
}

SELFTEST(bad_wait_off_by_one) {
  for (int stage = 0; stage < 2; ++stage) {
    dev::cp_async16(stage * 1024 + dev::tid() * 16, p.in + dev::tid() * 4);
    dev::cp_async_commit();
  }
  dev::cp_async_wait<1>();
  dev::sync_block();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(1024 + dev::tid() * 16));
  dev::cp_async_wait<0>();
}

SELFTEST(bad_exit_in_flight) {
  dev::cp_async16(dev::tid() * 16, p.in + dev::tid() * 4);
  dev::cp_async_commit();
}

SELFTEST(bad_never_committed) { dev::cp_async16(dev::tid() * 16, p.in + dev::tid() * 4); }

SELFTEST(bad_copy_over_reads) {
  dev::sts<u128>(dev::tid() * 16, u128{});
  dev::sync_block();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>((63 - dev::tid()) * 16));
  dev::cp_async16(dev::tid() * 16, p.in + dev::tid() * 4);
  dev::cp_async_commit();
  dev::cp_async_wait<0>();
}

SELFTEST(bad_copy_bounds) {
  dev::cp_async16(dev::tid() * 16, p.in + 4096 - 4 * dev::tid());
  dev::cp_async_commit();
  dev::cp_async_wait<0>();
}

SELFTEST(bad_copy_alignment) {
  dev::cp_async16(dev::tid() * 16, p.in + 1, 4);
  dev::cp_async_commit();
  dev::cp_async_wait<0>();
}
