// Kernels without a fault: data[i] of 64 threads must come out as tests/emu/test_selftest.py says, on every schedule.
#pragma once

#include "emu/selftest/kernels.h"

SELFTEST(good_reverse) {
  dev::sts<uint32_t>(dev::tid() * 4, dev::ldg<uint32_t>(p.in + dev::tid()));
  dev::sync_block();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>((63 - dev::tid()) * 4));
}

SELFTEST(good_neighbour) {
  dev::sts<uint32_t>(dev::tid() * 4, dev::tid());
  dev::sync_warp();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>((dev::tid() ^ 1) * 4));
}

SELFTEST(good_own_copy) {
  dev::cp_async16(dev::tid() * 16, p.in + dev::tid() * 4);
  dev::cp_async_commit();
  dev::cp_async_wait<0>();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(dev::tid() * 16));
}

SELFTEST(good_zero_fill) {
  dev::cp_async16(dev::tid() * 16, p.in + dev::tid() * 4, 8);
  dev::cp_async_commit();
  dev::cp_async_wait<0>();
  dev::stg<uint32_t>(p.data + dev::tid(),
                     dev::lds<uint32_t>(dev::tid() * 16 + 4) + dev::lds<uint32_t>(dev::tid() * 16 + 8));
}

SELFTEST(good_two_stages) {
  for (int stage = 0; stage < 2; ++stage) {
    dev::cp_async16(stage * 1024 + dev::tid() * 16, p.in + stage * 256 + dev::tid() * 4);
    dev::cp_async_commit();
  }
  dev::cp_async_wait<1>();
  dev::sync_block();
  const uint32_t first = dev::lds<uint32_t>((63 - dev::tid()) * 16);
  dev::cp_async_wait<0>();
  dev::sync_block();
  dev::stg<uint32_t>(p.data + dev::tid(), first + dev::lds<uint32_t>(1024 + (63 - dev::tid()) * 16));
}

SELFTEST(good_votes) {
  const uint32_t odd = dev::ballot(dev::tid() & 1);
  const bool one = dev::any(dev::lane() == 5), every = dev::all(dev::lane() < 31);
  const int up = dev::shfl_up(dev::lane(), 3), from = dev::shfl(dev::lane(), 7);
  dev::stg<uint32_t>(p.data + dev::tid(),
                     (odd & 0xff) + (one ? 1000u : 0u) + (every ? 5000u : 0u) + up * 10000u + from * 1000000u);
}

// Warp 1 hands to warp 0 through a named barrier that warp 1 does not wait at.
SELFTEST(good_named_barrier) {
  if (dev::warp() == 1) {
    dev::sts<uint32_t>(dev::lane() * 4, dev::lane() + 7);
    dev::arrive_named(1, 64);
  } else {
    dev::sync_named(1, 64);
    dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>((31 - dev::lane()) * 4));
  }
}

// The last block to arrive adds up what the others left.
SELFTEST(good_last_block) {
  dev::stg<uint32_t>(p.data + 1024 + dev::block_x() * 64 + dev::tid(), dev::block_x() + 1);
  dev::fence_device();
  dev::sync_block();
  if (dev::tid() == 0) dev::sts<uint32_t>(0, dev::atomic_add(p.counter, 1) == dev::grid_x() - 1);
  dev::sync_block();
  if (!dev::lds<uint32_t>(0)) return;
  dev::fence_device();
  uint32_t sum = 0;
  for (int b = 0; b < dev::grid_x(); ++b) sum += dev::ldg_coherent<uint32_t>(p.data + 1024 + b * 64 + dev::tid());
  dev::stg<uint32_t>(p.data + dev::tid(), sum);
}

SELFTEST(good_shared_counter) {
  if (dev::tid() == 0) dev::sts<uint32_t>(0, 0);
  dev::sync_block();
  dev::atomic_add_shared(0, dev::tid());
  dev::sync_block();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint32_t>(0));
}

// A x identity by mma, from shared memory by ldmatrix: fragment maps that do not fit each other do not give A back.
SELFTEST(good_matrix) {
  for (int i = 0; i < 4; ++i) {
    const int element = dev::tid() * 4 + i, row = element / 16, column = element % 16;
    const float value = row < 16 ? static_cast<float>(element % 16 + row) : 0.0f;
    float unused, narrow;
    dev::F16::unpack2(dev::F16::pack2(value, 0), narrow, unused);
    dev::sts<uint16_t>(element * 2, static_cast<uint16_t>(dev::F16::pack2(narrow, 0)));
    dev::sts<uint16_t>(1024 + element * 2, static_cast<uint16_t>(dev::F16::pack2(row == column ? 1.0f : 0.0f, 0)));
  }
  dev::sync_block();
  uint32_t a[4], b[4];
  const int row = dev::lane() & 15, half = dev::lane() >> 4;
  dev::ldmatrix_x4<false>(a, row * 32 + half * 16);
  dev::ldmatrix_x4<true>(b, 1024 + row * 32 + half * 16);
  for (int n = 0; n < 2; ++n) {
    float c[4] = {};
    dev::F16::mma(c, a, b[2 * n], b[2 * n + 1]);
    const int g = dev::lane() / 4, t = dev::lane() % 4 * 2;
    if (dev::warp() == 0) {
      for (int i = 0; i < 4; ++i)
        dev::stg<uint32_t>(p.data + (g + i / 2 * 8) * 16 + n * 8 + t + i % 2, static_cast<uint32_t>(c[i]));
    }
  }
}

// Two threads share every word.
SELFTEST(good_bytes) {
  dev::sts<uint8_t>(dev::tid(), static_cast<uint8_t>(dev::tid()));
  dev::sts<uint16_t>(64 + dev::tid() * 2, static_cast<uint16_t>(dev::tid()));
  dev::sync_block();
  const uint32_t i = 63 - dev::tid();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::lds<uint8_t>(i) + dev::lds<uint16_t>(64 + i * 2));
}

// A row that ends with the buffer: no more than `bytes` are read.
SELFTEST(good_last_bytes) {
  dev::cp_async16(dev::tid() * 16, p.in + 4092, dev::tid() < 32 ? 16 : 0);
  dev::cp_async16(1024 + dev::tid() * 16, p.in + 4096, 0);
  dev::cp_async_commit();
  dev::cp_async_wait<0>();
  dev::stg<uint32_t>(p.data + dev::tid(),
                     dev::lds<uint32_t>(dev::tid() * 16 + 12) + dev::lds<uint32_t>(1024 + dev::tid() * 16));
}

// The last block leaves the counter as it was, for the next launch.
SELFTEST(good_reset_counter) {
  if (dev::tid() != 0) return;
  dev::fence_device();
  if (dev::atomic_add(p.counter, 1) != dev::grid_x() - 1) return;
  dev::fence_device();
  dev::stg<int32_t>(p.counter, 0);
  dev::stg<uint32_t>(p.data, 1);
}

// Warp 1 fills, warp 0 takes; two named barriers say which turn it is.
SELFTEST(good_named_turns) {
  uint32_t sum = 0;
  for (int i = 0; i < 4; ++i) {
    if (dev::tid() >= 32) {
      if (i > 0) dev::sync_named(2, 64);
      dev::sts<uint32_t>(dev::lane() * 4, dev::lane() + i);
      dev::arrive_named(1, 64);
    } else {
      dev::sync_named(1, 64);
      sum += dev::lds<uint32_t>((31 - dev::lane()) * 4);
      if (i < 3) dev::arrive_named(2, 64);
    }
  }
  dev::stg<uint32_t>(p.data + dev::tid(), sum);
}

// Threads of a block exchange through global memory.
SELFTEST(good_global_exchange) {
  dev::stg<uint32_t>(p.data + 64 + dev::tid(), dev::tid());
  dev::sync_block();
  dev::stg<uint32_t>(p.data + dev::tid(), dev::ldg_coherent<uint32_t>(p.data + 64 + 63 - dev::tid()));
}
