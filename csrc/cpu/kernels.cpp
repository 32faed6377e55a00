// attend for one unit, built once per ISA level in the namespace DFC_ISA. No std templates and no exceptions here:
// see kernels.h. fp32 throughout; K and V are widened as they are read.
#include "cpu/kernels.h"

#include "cpu/bf16_steps.h"
#include "cpu/steps.h"

namespace dfc {
namespace DFC_ISA {

static Offset scratch_bytes(const AttendParams& params, Offset rows) {
  const Offset width = accumulator_width(params.storage.layout);
  return Scratch::place(nullptr, params, rows, width).floats * Offset{sizeof(float)};
}

// Rows

template <class T>
static void widen_row(const void* source, Offset offset, Offset count, float factor, float* target) {
  const auto* row = static_cast<const typename T::Item*>(source) + offset;
  Offset i = 0;
  for (; i + kLanes <= count; i += kLanes) store(target + i, T::load(row + i) * factor);
  if (i == count) return;
  float tail[kLanes];
  store(tail, load_some<T>(row + i, count - i) * factor);
  std::memcpy(target + i, tail, static_cast<size_t>(count - i) * sizeof(float));
}

static void load_query(const AttendParams& params, const Unit& unit, float factor, float* q) {
  const Offset depth = params.storage.layout.spec.head_size;
  for (Offset r = 0; r < unit.row_count; ++r, q += depth) {
    const Offset offset = query_offset(params, unit, unit.row_begin + r);
    if (params.query_dtype == Dtype::kFp32) widen_row<Fp32>(params.query, offset, depth, factor, q);
    if (params.query_dtype == Dtype::kFp16) widen_row<Fp16>(params.query, offset, depth, factor, q);
    if (params.query_dtype == Dtype::kBf16) widen_row<Bf16>(params.query, offset, depth, factor, q);
  }
}

static void write_output(const AttendParams& params, Offset offset, const float* row, float factor) {
  const Offset count = params.storage.layout.spec.head_size_v;
  if (params.query_dtype == Dtype::kFp32) {
    float* out = static_cast<float*>(params.out) + offset;
    for (Offset i = 0; i < count; ++i) out[i] = row[i] * factor;
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(params.out) + offset;
  const bool half = params.query_dtype == Dtype::kFp16;
  for (Offset i = 0; i < count; ++i) out[i] = half ? narrow_half(row[i] * factor) : narrow_bf16(row[i] * factor);
}

// The result of packed row `row` from its maximum (base-2 logarithm), sum of weights and weighted V. `sum` is 0 only
// for a row that sees no key: out = 0, LSE = -inf.
static void finish_row(const AttendParams& params, const Unit& unit, Offset row, float maximum, float sum,
                       const float* output) {
  const auto [token, head] = place_of(params, unit, row);
  float total = sum;
  if (params.sinks != nullptr) total += __builtin_exp2f(params.sinks[head] * kLog2e - maximum);
  const float factor = sum == 0.0f ? 0.0f : params.v_scale / total;
  write_output(params, token * params.out_token_stride + head * params.out_head_stride, output, factor);
  if (params.lse == nullptr) return;
  const float lse = sum == 0.0f ? -__builtin_inff() : (maximum + __builtin_log2f(sum)) * kLn2;
  params.lse[head * params.total + token] = lse;
}

// Keys and values

struct ScoreRows {
  const Scratch& scratch;
  Offset depth, first, last;
  template <int M>
  DFC_HOST_DEVICE void call(Offset row) const {
    multiply_keys<M>(scratch.q + row * depth, depth, scratch.keys, first, last, scratch.scores + row * kStepKeys);
  }
};

template <class T>
struct ValueRows {
  const Scratch& scratch;
  const Values<T>& values;
  const float* alpha;
  Offset width;
  template <int M>
  DFC_HOST_DEVICE void call(Offset row) const {
    add_values<T, M>(scratch.scores + row * kStepKeys, values, alpha + row, scratch.output + row * width, width);
  }
};

// V of a block as columns of vectors, counted from key 0 of the step. Rows outside the block are never read.
template <class T>
static void add_block(const Layout& layout, const Block<T>& block, const Scratch& scratch, Offset rows,
                      const float* alpha) {
  const Offset width = accumulator_width(layout);
  const typename T::Item* columns[kMaxColumns / kLanes];
  find_columns(layout, block, width, columns);
  const Values<T> values{columns, block.value_stride, block.base, block.first, block.last};
  if (rows <= kRows || sizeof(typename T::Item) == sizeof(float)) {
    return for_row_tiles(rows, ValueRows<T>{scratch, values, alpha, width});
  }
  const float* wide[kMaxColumns / kLanes];
  for (Offset vector = 0; vector < width / kLanes; ++vector) {
    float* target = scratch.values + vector * kLanes;
    wide[vector] = target;
    for (Offset key = block.first; key < block.last; ++key) {
      store(target + key * width, load_value<T>(columns[vector], key - block.base, block.value_stride));
    }
  }
  const Values<Fp32> widened{wide, width, 0, block.first, block.last};
  for_row_tiles(rows, ValueRows<Fp32>{scratch, widened, alpha, width});
}

template <class T>
static void attend_step(const AttendParams& params, const Unit& unit, Offset step, const Scratch& scratch) {
  const Layout& layout = params.storage.layout;
  const Offset rows = unit.row_count, depth = layout.spec.head_size;
  const bool direct = rows <= kDirectRows && depth % kLanes == 0;
  Block<T> blocks[2];
  const int count = find_blocks(params, unit, scratch, step, blocks);
  const char* next = direct ? next_run<T>(params, unit, scratch, step) : nullptr;
  for (int i = 0; i < count; ++i) {
    if (direct) score_directly(layout, blocks[i], rows, next, scratch);
    if (!direct) transpose_keys(layout, blocks[i], scratch.keys);
  }
  if (!direct) for_row_tiles(rows, ScoreRows{scratch, depth, blocks[0].first, blocks[count - 1].last});
  softmax_step(params, unit, step, scratch);
  for (int i = 0; i < count; ++i) add_block(layout, blocks[i], scratch, rows, i == 0 ? scratch.alpha : scratch.ones);
}

template <class T>
static void attend_unit(const AttendParams& params, const Unit& unit, const Partials& partials, char* memory) {
  const Offset width = accumulator_width(params.storage.layout);
  const Scratch scratch = Scratch::place(reinterpret_cast<float*>(memory), params, unit.row_count, width);
  std::memset(scratch.output, 0, static_cast<size_t>(unit.row_count * width) * sizeof(float));
  std::memset(scratch.sum, 0, static_cast<size_t>(unit.row_count * kLanes) * sizeof(float));
  for (Offset r = 0; r < unit.row_count; ++r) {
    scratch.maximum[r] = -__builtin_inff();
    scratch.ones[r] = 1.0f;
  }
  const float scale = params.softmax_scale * params.k_scale;
  const float factor = params.softcap > 0 ? scale / params.softcap : scale * kLog2e;
  const Offset first = unit.key_begin / kStepKeys * kStepKeys;
  if (uses_dot_products<T>(params)) {
    copy_query(params, unit, scratch);
    for (Offset step = first; step < unit.key_end; step += kStepKeys) {
      attend_pairs_step(params, unit, step, factor, scratch);
    }
  } else {
    load_query(params, unit, factor, scratch.q);
    for (Offset step = first; step < unit.key_end; step += kStepKeys) attend_step<T>(params, unit, step, scratch);
  }
  for (Offset r = 0; r < unit.row_count; ++r) {
    const float sum = sum_lanes(load(scratch.sum + r * kLanes));
    const float* output = scratch.output + r * width;
    if (unit.partial < 0) {
      finish_row(params, unit, unit.row_begin + r, scratch.maximum[r], sum, output);
      continue;
    }
    const Offset place = unit.partial + r;
    partials.maximum[place] = scratch.maximum[r];
    partials.sum[place] = sum;
    std::memcpy(partials.accumulator + place * width, output, static_cast<size_t>(width) * sizeof(float));
  }
}

static void combine(const AttendParams& params, const Unit& unit, const Partials& partials, Offset chunks) {
  for (Offset r = 0; r < unit.row_count; ++r) {
    const Offset first = unit.partial + r, end = first + chunks * unit.row_count;
    float maximum = -__builtin_inff(), sum = 0.0f;
    for (Offset i = first; i < end; i += unit.row_count) {
      maximum = partials.maximum[i] > maximum ? partials.maximum[i] : maximum;
    }
    const float base = maximum == -__builtin_inff() ? 0.0f : maximum;
    float* output = partials.accumulator + first * partials.width;
    for (Offset i = first; i < end; i += unit.row_count) {
      const float weight = __builtin_exp2f(partials.maximum[i] - base);
      // A chunk whose scores were all NaN has maximum -inf and sum NaN: its weight must not hide it.
      sum += partials.sum[i] == partials.sum[i] ? partials.sum[i] * weight : partials.sum[i];
      const float* part = partials.accumulator + i * partials.width;
      for (Offset d = 0; d < partials.width; ++d) output[d] = (i == first ? 0.0f : output[d]) + part[d] * weight;
    }
    finish_row(params, unit, unit.row_begin + r, maximum, sum, output);
  }
}

static void attend_bf16(const AttendParams& params, const Unit& unit, const Partials& partials, char* memory) {
  const bool paired = params.storage.layout.spec.format == TileFormat::kPaired;
  (paired ? attend_unit<Bf16Paired> : attend_unit<Bf16>)(params, unit, partials, memory);
}

extern const SparseKernels sparse_kernels;
extern const Kernels kernels;
const Kernels kernels = {
    DFC_ISA_NAME,  accumulator_width,
    scratch_bytes, {attend_unit<Fp32>, attend_unit<Fp16>, attend_bf16, attend_unit<E4m3>, attend_unit<E5m2>},
    combine,       &sparse_kernels,
};

}  // namespace DFC_ISA
}  // namespace dfc
