// attend on the CPU: cut the work into units, run them, combine what long sequences split. Where the cuts lie depends
// on the shapes alone, never on the number of threads, so results are bit-equal for any number.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "api/checks.h"
#include "api/operations.h"
#include "cpu/dispatch.h"

namespace dfc {

namespace {

constexpr Offset kChunkKeys = 512;              // least keys per unit where a sequence has a single row tile
constexpr Offset kMaxChunks = 32;               // per row tile: partial results must not grow with the history
constexpr Offset kParallelWork = Offset{1} << 18;  // multiply-adds below which one thread is faster

struct Plan {
  std::vector<Unit> units;
  std::vector<Offset> chunks;  // of a unit that starts a split row tile; 1: not split; 0: not the first chunk
  Offset partial_rows = 0, most_rows = 0, work = 0;
};

void plan_row_tile(const AttendParams& params, Unit unit, Offset tiles, Offset q_len, Offset group, Plan& plan) {
  const Offset kv_len = params.kv_lens[unit.sequence];
  const Offset last = (unit.row_begin + unit.row_count - 1) / group;
  const KeyRange first_row = visible_keys(params, q_len, kv_len, unit.row_begin / group);
  const Offset begin = first_row.begin, end = larger(begin, visible_keys(params, q_len, kv_len, last).end);
  const Offset chunk_keys = kChunkKeys * larger(1, ceil_div(end, kChunkKeys * kMaxChunks));
  const Offset first_chunk = begin / chunk_keys, last_chunk = ceil_div(end, chunk_keys);
  const bool split = tiles == 1 && last_chunk - first_chunk > 1;
  const LayoutSpec& spec = params.storage.layout.spec;
  plan.work += unit.row_count * (end - begin) * (spec.head_size + spec.head_size_v);
  plan.most_rows = larger(plan.most_rows, unit.row_count);
  unit.partial = -1;
  if (!split) {
    unit.key_begin = begin;
    unit.key_end = end;
    plan.units.push_back(unit);
    plan.chunks.push_back(1);
    return;
  }
  for (Offset chunk = first_chunk; chunk < last_chunk; ++chunk) {
    unit.key_begin = larger(begin, chunk * chunk_keys);
    unit.key_end = smaller(end, (chunk + 1) * chunk_keys);
    unit.partial = plan.partial_rows;
    plan.partial_rows += unit.row_count;
    plan.units.push_back(unit);
    plan.chunks.push_back(chunk == first_chunk ? last_chunk - first_chunk : 0);
  }
}

Plan make_plan(const AttendParams& params) {
  Plan plan;
  const Offset kv_heads = params.storage.layout.spec.num_kv_heads;
  const Offset group = params.num_heads / kv_heads;
  for (Offset b = 0; b < params.batch; ++b) {
    const Offset q_len = params.cu_seqlens_q[b + 1] - params.cu_seqlens_q[b];
    const Offset tiles = ceil_div(q_len * group, kRowTile);
    for (Offset tile = tiles - 1; tile >= 0; --tile) {  // with a causal mask the last tiles take longest
      for (Offset head = 0; head < kv_heads; ++head) {
        Unit unit{};
        unit.sequence = b;
        unit.kv_head = head;
        unit.row_begin = tile * kRowTile;
        unit.row_count = smaller(kRowTile, q_len * group - unit.row_begin);
        plan_row_tile(params, unit, tiles, q_len, group, plan);
      }
    }
  }
  return plan;
}

// Memory that a thread keeps between calls, so that a decode step does not fault pages in again and again.
class Memory {
 public:
  char* reserve(Offset bytes) {
    if (bytes <= size_) return data_.get();
    const auto rounded = static_cast<size_t>(ceil_div(bytes, kAlignment) * kAlignment);
    data_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)));
    size_ = data_ ? bytes : 0;
    return data_.get();
  }

  void release_above(Offset bytes) {
    if (size_ <= bytes) return;
    data_.reset();
    size_ = 0;
  }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  std::unique_ptr<char, Free> data_;
  Offset size_ = 0;
};

thread_local Memory scratch_memory, partial_memory;
constexpr Offset kKeptBytes = Offset{8} << 20;

// Rows of the query that belong to no sequence: out = 0, LSE = -inf.
void clear_rest(const AttendParams& params) {
  const size_t item = params.query_dtype == Dtype::kFp32 ? 4 : 2;
  const auto row_bytes = static_cast<size_t>(params.storage.layout.spec.head_size_v) * item;
  for (Offset token = params.cu_seqlens_q[params.batch]; token < params.total; ++token) {
    for (Offset head = 0; head < params.num_heads; ++head) {
      const Offset offset = token * params.out_token_stride + head * params.out_head_stride;
      std::memset(static_cast<char*>(params.out) + offset * static_cast<Offset>(item), 0, row_bytes);
      if (params.lse != nullptr) params.lse[head * params.total + token] = -__builtin_inff();
    }
  }
}

bool place_partials(const Plan& plan, Offset width, Partials& partials) {
  const Offset floats = plan.partial_rows * (width + 2);
  char* memory = partial_memory.reserve(larger(1, floats) * Offset{sizeof(float)});
  partials.accumulator = reinterpret_cast<float*>(memory);
  partials.maximum = partials.accumulator + plan.partial_rows * width;
  partials.sum = partials.maximum + plan.partial_rows;
  partials.width = width;
  return memory != nullptr;
}

int run(const AttendParams& params, const Plan& plan, const Kernels& kernels, Status& status) {
  Partials partials{};
  const auto attend_unit = kernels.attend_unit[static_cast<int>(params.storage.dtype)];
  const Offset scratch_bytes = kernels.scratch_bytes(params, plan.most_rows);
  const bool parallel = params.threads > 1 && plan.units.size() > 1 && plan.work > kParallelWork;
  const auto count = static_cast<Offset>(plan.units.size());
  bool enough = place_partials(plan, kernels.accumulator_width(params.storage.layout), partials);
#pragma omp parallel num_threads(params.threads) if (parallel)
  {
    char* scratch = scratch_memory.reserve(scratch_bytes);
    if (scratch == nullptr) {
#pragma omp atomic write
      enough = false;
    }
#pragma omp barrier
    bool run_units;
#pragma omp atomic read
    run_units = enough;
    if (run_units) {
#pragma omp for schedule(dynamic)
      for (Offset i = 0; i < count; ++i) attend_unit(params, plan.units[static_cast<size_t>(i)], partials, scratch);
#pragma omp for schedule(dynamic)
      for (Offset i = 0; i < count; ++i) {
        const auto place = static_cast<size_t>(i);
        if (plan.chunks[place] > 1) kernels.combine(params, plan.units[place], partials, plan.chunks[place]);
      }
    }
  }
  partial_memory.release_above(kKeptBytes);
  if (!enough) return fail(status, kOutOfMemory, "attend: no memory for %zu units of work", plan.units.size());
  clear_rest(params);
  return kOk;
}

}  // namespace

int attend(const AttendParams& params, Status& status) {
  if (int code = check_ragged(params, status)) return code;
  const Kernels* kernels = chosen_kernels(status);
  if (kernels == nullptr) return status.code;
  if (params.storage.layout.spec.format == TileFormat::kSwizzle)
    return fail(status, kUnsupported, "attend: swizzled tiles are for CUDA pools");
  try {
    return run(params, make_plan(params), *kernels, status);
  } catch (const std::bad_alloc&) {
    return fail(status, kOutOfMemory, "attend: no memory to plan the work");
  }
}

}  // namespace dfc
