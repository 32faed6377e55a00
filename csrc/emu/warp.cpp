#include "emu/warp.h"

#include "emu/numbers.h"
#include "emu/shared.h"

namespace dfc {
namespace emu {

void collective(const char* name, CollectiveFunction function, void* argument, Site site) {
  Warp& warp = warp_of(*current);
  Collective& meeting = warp.collective;
  if (warp.ended) fail(site, "%s of a warp whose lane %d has ended", name, __builtin_ctz(warp.ended));
  if (meeting.arrived == 0) {
    meeting.function = function;
    meeting.name = name;
    meeting.site = site;
    std::memset(meeting.arguments, 0, sizeof meeting.arguments);
  }
  if (meeting.function != function || !(meeting.site == site)) {
    fail(site, "divergent warp: %s here (column %d), %s at line %d (column %d) in other lanes", name, site.column,
         meeting.name, meeting.site.line, meeting.site.column);
  }
  const int lane = current->lane();
  meeting.arguments[lane] = argument;
  meeting.arrived |= 1u << lane;
  if (meeting.arrived != warp.members) return wait_here(State::kWaits, name, site);
  function(meeting.arguments);
  meeting.arrived = 0;
  const size_t first = static_cast<size_t>(current->warp()) * 32;
  for (size_t i = 0; i < 32 && first + i < block->lanes.size(); ++i) make_ready(block->lanes[first + i]);
  if (options.trace) flush_trace(*block, current->warp());
  maybe_preempt();
}

// Shuffles. Lanes that the block does not have give the caller its own value back, as the hardware leaves it undefined.

template <class Source>
static void shuffle_all(void** arguments, Source source) {
  for (int lane = 0; lane < 32; ++lane) {
    auto* call = static_cast<Shuffle*>(arguments[lane]);
    if (call == nullptr) continue;
    const int from = source(lane, call->operand);
    const bool known = from >= 0 && from < 32 && arguments[from] != nullptr;
    call->result = known ? static_cast<Shuffle*>(arguments[from])->value : call->value;
  }
}

void shuffle_xor(void** arguments) {
  shuffle_all(arguments, [](int lane, int mask) { return lane ^ mask; });
}
void shuffle_index(void** arguments) {
  shuffle_all(arguments, [](int, int source) { return source & 31; });
}
void shuffle_up(void** arguments) {
  shuffle_all(arguments, [](int lane, int delta) { return lane - delta; });
}

void ballot(void** arguments) {
  uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (arguments[lane] != nullptr && static_cast<Vote*>(arguments[lane])->predicate) bits |= 1u << lane;
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (arguments[lane] != nullptr) static_cast<Vote*>(arguments[lane])->result = bits;
  }
}

static void check_full(const char* name, Site site) {
  if (warp_of(*current).members != ~0u) fail(site, "%s of a warp of fewer than 32 lanes", name);
}

// ldmatrix: lane i addresses row i % 8 of matrix i / 8; lane i receives elements 2 * (i % 4), + 1 of row i / 4, or,
// transposed, rows 2 * (i % 4), + 1 of column i / 4.
static void load_matrices(void** arguments, bool transposed) {
  const int first = current->warp() * 32;
  check_full("ldmatrix", static_cast<const MatrixLoad*>(arguments[current->lane()])->site);
  for (int m = 0; m < 4; ++m) {
    uint16_t matrix[8][8];
    for (int row = 0; row < 8; ++row) {
      const auto* call = static_cast<const MatrixLoad*>(arguments[m * 8 + row]);
      const int tid = first + m * 8 + row;
      std::memcpy(matrix[row], access_shared(call->offset, 16, Touch::kRead, call->site, tid), 16);
      trace_access(AccessKind::kMatrixLoad, call->offset, 16, call->site, tid);
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4 * 2;
      const uint32_t low = transposed ? matrix[t][g] : matrix[g][t];
      const uint32_t high = transposed ? matrix[t + 1][g] : matrix[g][t + 1];
      static_cast<MatrixLoad*>(arguments[lane])->result[m] = low | high << 16;
    }
  }
}

void load_matrix(void** arguments) { load_matrices(arguments, false); }
void load_matrix_transposed(void** arguments) { load_matrices(arguments, true); }

// mma.m16n8k16: register i of A holds rows g + 8 * (i % 2), columns t + 8 * (i / 2) and + 1; register i of B rows
// t + 8 * i and + 1 of column g; accumulators row g + 8 * (i / 2), column t + i % 2; g = lane / 4, t = 2 * (lane % 4).
template <float (*kWiden)(uint16_t)>
static void multiply(void** arguments) {
  float a[16][16], b[16][8], c[16][8];
  check_full("mma", static_cast<const MatrixMultiply*>(arguments[current->lane()])->site);
  const auto low = [](uint32_t pair) { return kWiden(static_cast<uint16_t>(pair)); };
  const auto high = [](uint32_t pair) { return kWiden(static_cast<uint16_t>(pair >> 16)); };
  for (int lane = 0; lane < 32; ++lane) {
    const auto* call = static_cast<const MatrixMultiply*>(arguments[lane]);
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      a[g + i % 2 * 8][t + i / 2 * 8] = low(call->a[i]);
      a[g + i % 2 * 8][t + i / 2 * 8 + 1] = high(call->a[i]);
      c[g + i / 2 * 8][t + i % 2] = call->c[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[t + i * 8][g] = low(i ? call->b1 : call->b0);
      b[t + i * 8 + 1][g] = high(i ? call->b1 : call->b0);
    }
  }
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) {
      for (int j = 0; j < 8; ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto* call = static_cast<MatrixMultiply*>(arguments[lane]);
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) call->c[i] = c[g + i / 2 * 8][t + i % 2];
  }
}

void multiply_half(void** arguments) { multiply<half_to_float>(arguments); }
void multiply_bfloat(void** arguments) { multiply<bfloat_to_float>(arguments); }

// Barriers

static void order_lanes(void**) { order_warp(static_cast<size_t>(current->warp())); }

void sync_warp(Site site) { collective("__syncwarp", order_lanes, nullptr, site); }

static void nothing(void**) {}

int warp_number(Site site) {
  collective("warp()", nothing, nullptr, site);
  return current->warp();
}

void sync_block(Site site) {
  if (block->at_barrier == 0) block->barrier_site = site;
  if (!(block->barrier_site == site)) {
    fail(site,
         "__syncthreads reached at different places: here (column %d), and at line %d (column %d) in other threads",
         site.column, block->barrier_site.line, block->barrier_site.column);
  }
  ++block->at_barrier;
  wait_here(State::kAtBarrier, "__syncthreads", site);
}

namespace {

struct BarrierCall {
  int id, threads;
  bool waits;
  Site site;
  uint32_t generation;
};

NamedBarrier& checked_barrier(const BarrierCall& call) {
  if (call.id < 1 || call.id > 15) fail(call.site, "named barrier %d: must be 1 to 15", call.id);
  if (call.threads <= 0 || call.threads % 32 || call.threads > (block->num_threads + 31) / 32 * 32) {
    fail(call.site, "named barrier %d: %d threads are not whole warps of this block", call.id, call.threads);
  }
  NamedBarrier& barrier = block->named[static_cast<size_t>(call.id)];
  if (barrier.arrived == 0) barrier.threads = call.threads;
  if (barrier.threads != call.threads) {
    fail(call.site, "named barrier %d: %d threads here, %d in other threads", call.id, call.threads, barrier.threads);
  }
  return barrier;
}

void release_waiters(NamedBarrier& barrier) {
  for (uint32_t warps = barrier.waiting; warps; warps &= warps - 1) {
    acquire_warp(static_cast<size_t>(__builtin_ctz(warps)), barrier.gathered);
  }
  for (Lane& lane : block->lanes) {
    if (lane.waits_for == &barrier) make_ready(lane);
  }
  barrier.arrived = 0;
  barrier.waiting = 0;
  barrier.gathered = Knowledge{};
  ++barrier.generation;
}

// As the hardware has it a warp arrives as a whole, and counts as 32 threads.
void arrive_as_warp(void** arguments) {
  const auto& call = *static_cast<const BarrierCall*>(arguments[current->lane()]);
  NamedBarrier& barrier = checked_barrier(call);
  for (int lane = 0; lane < 32; ++lane) {
    auto* other = static_cast<BarrierCall*>(arguments[lane]);
    if (other == nullptr) continue;
    if (other->id != call.id || other->threads != call.threads) fail(call.site, "named barrier: lanes disagree");
    other->generation = barrier.generation;
  }
  const auto warp = static_cast<size_t>(current->warp());
  if (call.waits) {
    barrier.waiting |= 1u << warp;
    release_warp(warp, barrier.gathered);
  } else {
    for (size_t i = warp * 32; i < warp * 32 + 32 && i < block->lanes.size(); ++i) {
      release_lane(block->lanes[i], barrier.gathered);
    }
  }
  barrier.arrived += 32;
  if (barrier.arrived >= barrier.threads) release_waiters(barrier);
}

}  // namespace

void sync_named(int id, int threads, Site site) {
  BarrierCall call{id, threads, true, site, 0};
  collective("bar.sync", arrive_as_warp, &call, site);
  NamedBarrier& barrier = block->named[static_cast<size_t>(id)];
  while (barrier.generation == call.generation) wait_here(State::kWaits, "named barrier", site, &barrier);
}

void arrive_named(int id, int threads, Site site) {
  BarrierCall call{id, threads, false, site, 0};
  collective("bar.arrive", arrive_as_warp, &call, site);
}

}  // namespace emu
}  // namespace dfc
