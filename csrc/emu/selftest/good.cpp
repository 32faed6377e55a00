// Kernels without a fault: data[i] of 64 threads must come out as tests/emu/test_selftest.py says, on every schedule.
#include "emu/registry.h"
#include "emu/selftest/kernels.h"

using dev::tid;

SELFTEST(good_reverse) {
  dev::sts<uint32_t>(tid() * 4, dev::ldg<uint32_t>(p.in + tid()));
  dev::sync_block();
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>((63 - tid()) * 4));
}

SELFTEST(good_neighbour) {
  dev::sts<uint32_t>(tid() * 4, tid());
  dev::sync_warp();
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>((tid() ^ 1) * 4));
}

SELFTEST(good_own_copy) {
  dev::cp_async16(tid() * 16, p.in + tid() * 4);
  dev::cp_async_commit();
  dev::cp_async_wait<0>();
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>(tid() * 16));
}

SELFTEST(good_zero_fill) {
  dev::cp_async16(tid() * 16, p.in + tid() * 4, 8);
  dev::cp_async_commit();
  dev::cp_async_wait<0>();
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>(tid() * 16 + 4) + dev::lds<uint32_t>(tid() * 16 + 8));
}

SELFTEST(good_two_stages) {
  for (int stage = 0; stage < 2; ++stage) {
    dev::cp_async16(stage * 1024 + tid() * 16, p.in + stage * 256 + tid() * 4);
    dev::cp_async_commit();
  }
  dev::cp_async_wait<1>();
  dev::sync_block();
  const uint32_t first = dev::lds<uint32_t>((63 - tid()) * 16);
  dev::cp_async_wait<0>();
  dev::sync_block();
  dev::stg<uint32_t>(p.data + tid(), first + dev::lds<uint32_t>(1024 + (63 - tid()) * 16));
}

// One thread keeps a ring of two bulk copies full, all consume.
SELFTEST(good_bulk_ring) {
  constexpr uint32_t full = 2048, empty = 2064;
  if (tid() == 0) {
    for (int s = 0; s < 2; ++s) {
      dev::mbar_init(full + 8 * s, 1);
      dev::mbar_init(empty + 8 * s, 2);  // one arrival a warp
    }
  }
  dev::sync_block();
  uint32_t sum = 0;
  for (int i = 0; i < 6; ++i) {
    const uint32_t s = i % 2, round = i / 2;
    if (tid() == 0) {
      if (round > 0) dev::mbar_wait(empty + 8 * s, (round - 1) & 1);
      dev::mbar_arrive_tx(full + 8 * s, 1024);
      dev::bulk_g2s(s * 1024, p.in + 256 * i, 1024, full + 8 * s);
    }
    dev::mbar_wait(full + 8 * s, round & 1);
    sum += dev::lds<uint32_t>(s * 1024 + (63 - tid()) * 4);
    dev::sync_warp();
    if (dev::lane() == 0) dev::mbar_arrive(empty + 8 * s);
  }
  dev::stg<uint32_t>(p.data + tid(), sum);
}

SELFTEST(good_votes) {
  const uint32_t odd = dev::ballot(tid() & 1);
  const bool one = dev::any(dev::lane() == 5), every = dev::all(dev::lane() < 31);
  const int up = dev::shfl_up(dev::lane(), 3), from = dev::shfl(dev::lane(), 7);
  dev::stg<uint32_t>(p.data + tid(),
                     (odd & 0xff) + (one ? 1000u : 0u) + (every ? 5000u : 0u) + up * 10000u + from * 1000000u);
}

// Warp 1 hands to warp 0 through a named barrier that warp 1 does not wait at.
SELFTEST(good_named_barrier) {
  if (dev::warp() == 1) {
    dev::sts<uint32_t>(dev::lane() * 4, dev::lane() + 7);
    dev::arrive_named(1, 64);
  } else {
    dev::sync_named(1, 64);
    dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>((31 - dev::lane()) * 4));
  }
}

// The last block to arrive adds up what the others left.
SELFTEST(good_last_block) {
  dev::stg<uint32_t>(p.data + 1024 + dev::block_x() * 64 + tid(), dev::block_x() + 1);
  dev::fence_device();
  dev::sync_block();
  if (tid() == 0) dev::sts<uint32_t>(0, dev::atomic_add(p.counter, 1) == dev::grid_x() - 1);
  dev::sync_block();
  if (!dev::lds<uint32_t>(0)) return;
  dev::fence_device();
  uint32_t sum = 0;
  for (int b = 0; b < dev::grid_x(); ++b) sum += dev::ldg_coherent<uint32_t>(p.data + 1024 + b * 64 + tid());
  dev::stg<uint32_t>(p.data + tid(), sum);
}

SELFTEST(good_shared_counter) {
  if (tid() == 0) dev::sts<uint32_t>(0, 0);
  dev::sync_block();
  dev::atomic_add_shared(0, tid());
  dev::sync_block();
  dev::stg<uint32_t>(p.data + tid(), dev::lds<uint32_t>(0));
}

// A x identity by mma, from shared memory by ldmatrix: fragment maps that do not fit each other do not give A back.
SELFTEST(good_matrix) {
  for (int i = 0; i < 4; ++i) {
    const int element = tid() * 4 + i, row = element / 16, column = element % 16;
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
