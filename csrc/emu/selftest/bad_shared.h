// Faults in the use of shared memory: missing barriers, places that hold nothing or do not exist. One fault for each
// kernel.
#pragma once

#include "emu/selftest/kernels.h"

SELFTEST(bad_no_sync_block) {
  dev::sts<uint32_t>(dev::tid() * 4, dev::tid());
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>((63 - dev::tid()) * 4));
}

SELFTEST(bad_no_sync_block_initialised) {
  dev::sts<uint32_t>(dev::tid() * 4, 0);
  dev::sync_block();
  dev::sts<uint32_t>(dev::tid() * 4, dev::tid());
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>((63 - dev::tid()) * 4));
}

SELFTEST(bad_overwrite_while_read) {
  dev::sts<uint32_t>(dev::tid() * 4, dev::tid());
  dev::sync_block();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>((63 - dev::tid()) * 4));
  dev::sts<uint32_t>(dev::tid() * 4, 1);
}

SELFTEST(bad_overwrite_read_by_many) {
  if (dev::tid() == 0) dev::sts<uint32_t>(0, 5);
  dev::sync_block();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(0));
  if (dev::tid() == 40) dev::sts<uint32_t>(0, 6);
}

SELFTEST(bad_no_sync_warp) {
  dev::sts<uint32_t>(dev::tid() * 4, 0);
  dev::sync_warp();
  dev::sts<uint32_t>(dev::tid() * 4, dev::tid());
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>((dev::tid() ^ 1) * 4));
}

SELFTEST(bad_two_writers) {
  dev::sts<uint32_t>(0, dev::tid());
  dev::sync_block();
}

SELFTEST(bad_uninitialised) { dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(dev::tid() * 4)); }

SELFTEST(bad_shared_bounds) { dev::sts<uint32_t>(dev::tid() * 4 + 4096 - 252, 1); }

SELFTEST(bad_shared_alignment) { dev::sts<u128>(dev::tid() * 16 + 8, u128{}); }

SELFTEST(bad_shared_lost_update) {
  if (dev::tid() == 0) dev::sts<uint32_t>(0, 0);
  dev::sync_block();
  dev::sts<uint32_t>(0, dev::lds<uint32_t>(0) + 1);
}

SELFTEST(bad_atomic_read_early) {
  if (dev::tid() == 0) dev::sts<uint32_t>(0, 0);
  dev::sync_block();
  dev::atomic_add_shared(0, 1);
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(0));
}

SELFTEST(bad_two_writers_of_a_byte) {
  dev::sts<uint8_t>(dev::tid() / 2, 1);
  dev::sync_block();
}

// Bytes of a word that was read as a whole.
SELFTEST(bad_byte_of_a_word) {
  dev::sts<uint32_t>(dev::tid() * 4, 0);
  dev::sync_block();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(dev::tid() * 4));
  dev::sts<uint8_t>((dev::tid() ^ 1) * 4 + 3, 1);
}
