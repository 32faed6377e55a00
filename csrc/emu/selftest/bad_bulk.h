// Faults in the use of bulk copies and mbarriers. One fault for each kernel.
#pragma once

#include "emu/selftest/kernels.h"

SELFTEST(bad_bulk_no_wait) {
  if (dev::tid() == 0) {
    dev::mbar_init(2048, 1);
    dev::mbar_arrive_tx(2048, 1024);
    dev::bulk_g2s(0, p.in, 1024, 2048);
  }
  dev::sync_block();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(dev::tid() * 4));
  dev::mbar_wait(2048, 0);
}

SELFTEST(bad_bulk_init_not_visible) {
  if (dev::tid() == 0) dev::mbar_init(2048, 64);
  dev::mbar_arrive(2048);
  dev::mbar_wait(2048, 0);
}

// Fills a buffer again without waiting until all have read it.
SELFTEST(bad_bulk_overwrite) {
  if (dev::tid() == 0) {
    dev::mbar_init(2048, 1);
    dev::mbar_arrive_tx(2048, 1024);
    dev::bulk_g2s(0, p.in, 1024, 2048);
  }
  dev::sync_block();
  dev::mbar_wait(2048, 0);
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>((63 - dev::tid()) * 4));
  if (dev::tid() == 0) {
    dev::mbar_arrive_tx(2048, 1024);
    dev::bulk_g2s(0, p.in + 256, 1024, 2048);
  }
  dev::mbar_wait(2048, 1);
}

SELFTEST(bad_bulk_wrong_bytes) {
  if (dev::tid() == 0) {
    dev::mbar_init(2048, 1);
    dev::mbar_arrive_tx(2048, 2048);
    dev::bulk_g2s(0, p.in, 1024, 2048);
  }
  dev::sync_block();
  dev::mbar_wait(2048, 0);
}

SELFTEST(bad_too_many_arrivals) {
  if (dev::tid() == 0) {
    dev::mbar_init(2048, 1);
    dev::mbar_arrive_tx(2048, 1024);
    dev::mbar_arrive(2048);
  }
}

// A ring of one buffer whose consumers do not say that they are done.
SELFTEST(bad_bulk_no_empty_arrival) {
  constexpr uint32_t full = 2048, empty = 2056;
  if (dev::tid() == 0) {
    dev::mbar_init(full, 1);
    dev::mbar_init(empty, 2);
  }
  dev::sync_block();
  for (int i = 0; i < 2; ++i) {
    if (dev::tid() == 0) {
      if (i > 0) dev::mbar_wait(empty, 0);
      dev::mbar_arrive_tx(full, 1024);
      dev::bulk_g2s(0, p.in, 1024, full);
    }
    dev::mbar_wait(full, i & 1);
    dev::stg<uint32_t>(p.data + i * 64 + dev::tid(), dev::lds<uint32_t>(dev::tid() * 4));
  }
}

// Lane 0 says for all that they are done, before they are.
SELFTEST(bad_bulk_empty_without_sync_warp) {
  constexpr uint32_t full = 2048, empty = 2056;
  if (dev::tid() == 0) {
    dev::mbar_init(full, 1);
    dev::mbar_init(empty, 2);
  }
  dev::sync_block();
  for (int i = 0; i < 2; ++i) {
    if (dev::tid() == 0) {
      if (i > 0) dev::mbar_wait(empty, 0);
      dev::mbar_arrive_tx(full, 1024);
      dev::bulk_g2s(0, p.in, 1024, full);
    }
    dev::mbar_wait(full, i & 1);
    dev::stg<uint32_t>(p.data + i * 64 + dev::tid(), dev::lds<uint32_t>((63 - dev::tid()) * 4));
    if (dev::lane() == 0) dev::mbar_arrive(empty);
  }
}

SELFTEST(bad_bulk_one_lane_waits) {
  if (dev::tid() == 0) {
    dev::mbar_init(2048, 1);
    dev::mbar_arrive_tx(2048, 1024);
    dev::bulk_g2s(0, p.in, 1024, 2048);
  }
  dev::sync_block();
  if (dev::lane() == 0) dev::mbar_wait(2048, 0);
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(dev::tid() * 4));
}

SELFTEST(bad_bulk_wrong_parity) {
  if (dev::tid() == 0) {
    dev::mbar_init(2048, 1);
    dev::mbar_arrive_tx(2048, 1024);
    dev::bulk_g2s(0, p.in, 1024, 2048);
  }
  dev::sync_block();
  dev::mbar_wait(2048, 1);
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(dev::tid() * 4));
}

// What threads wrote may be on its way when the copy goes over it.
SELFTEST(bad_bulk_no_fence) {
  dev::sts<uint32_t>(dev::tid() * 4, 0);
  if (dev::tid() == 0) dev::mbar_init(2048, 1);
  dev::sync_block();
  if (dev::tid() == 0) {
    dev::mbar_arrive_tx(2048, 256);
    dev::bulk_g2s(0, p.in, 256, 2048);
  }
  dev::mbar_wait(2048, 0);
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(dev::tid() * 4));
}

SELFTEST(bad_bulk_exit_in_flight) {
  if (dev::tid() == 0) {
    dev::mbar_init(2048, 1);
    dev::mbar_arrive_tx(2048, 1024);
    dev::bulk_g2s(0, p.in, 1024, 2048);
  }
}

SELFTEST(bad_bulk_bounds) {
  if (dev::tid() == 0) {
    dev::mbar_init(2048, 1);
    dev::mbar_arrive_tx(2048, 1024);
    dev::bulk_g2s(0, p.in + 4096 - 252, 1024, 2048);
    dev::mbar_wait(2048, 0);
  }
}
