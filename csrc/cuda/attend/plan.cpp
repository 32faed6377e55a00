#include "cuda/attend/plan.h"

#include <climits>

#include "cuda/attend/args.h"

namespace dfc {

namespace {

constexpr float kLog2e = 1.44269504088896341f;
constexpr int kMostDecodeRows = 32;       // packed rows of a sequence that decode serves in a mixed batch
constexpr int kMostBlocksPerSm = 3;       // of the decode kernel; registers allow no more
constexpr int kReservedShared = 1024;     // bytes per block that the driver keeps for itself

struct Served {
  int head_size, head_size_v;
  bool block64, block32, fp8;
};
constexpr Served kServed[] = {
    {64, 64, true, true, true},    {96, 96, false, true, false}, {128, 128, true, true, true},
    {192, 128, true, true, false}, {256, 256, true, true, true},
};

const char* type_name(Dtype dtype) {
  static const char* const names[kNumDtypes] = {"fp32", "fp16", "bf16", "e4m3", "e5m2"};
  return names[static_cast<int>(dtype)];
}

AttendSizes decode_sizes_of(const Layout& layout) {
  const LayoutSpec& spec = layout.spec;
  return decode_sizes(static_cast<int>(spec.head_size), static_cast<int>(spec.head_size_v),
                      static_cast<int>(spec.block_size), static_cast<int>(spec.item_bytes));
}

AttendSizes prefill_sizes_of(const Layout& layout) {
  const LayoutSpec& spec = layout.spec;
  return prefill_sizes(static_cast<int>(spec.head_size), static_cast<int>(spec.head_size_v),
                       static_cast<int>(spec.block_size), static_cast<int>(spec.item_bytes));
}

int decode_grid(const Layout& layout, const DeviceFacts& facts) {
  const int fit = (facts.shared_limit + kReservedShared) / (decode_sizes_of(layout).shared_bytes() + kReservedShared);
  return facts.sm_count * (fit < 1 ? 1 : fit > kMostBlocksPerSm ? kMostBlocksPerSm : fit);
}

Offset partial_slots(const Layout& layout, const DeviceFacts& facts) { return Offset{2} * decode_grid(layout, facts); }

void place_partials(const AttendParams& params, void* workspace, const DeviceFacts& facts, AttendArgs& args) {
  const Offset rows = partial_slots(params.storage.layout, facts) * kDecodeRows;
  args.partial_out = static_cast<float*>(workspace);
  args.partial_maximum = args.partial_out + rows * params.storage.layout.spec.head_size_v;
  args.partial_sum = args.partial_maximum + rows;
}

AttendArgs make_args(const AttendParams& params, void* workspace, const DeviceFacts& facts) {
  AttendArgs args{};
  args.layout = params.storage.layout;
  args.layout.spec.zorder = args.layout.spec.zorder && args.layout.spec.extent > 1;  // one order with extent 1
  args.query = static_cast<const char*>(params.query);
  args.query_token_stride = params.query_token_stride * 2;
  args.query_head_stride = params.query_head_stride * 2;
  args.cache = static_cast<const char*>(params.cache);
  args.block_table = params.block_table;
  args.table_stride = params.table_stride;
  args.cu_seqlens_q = params.cu_seqlens_q;
  args.kv_lens = params.kv_lens;
  args.sinks = params.sinks;
  args.out = static_cast<char*>(params.out);
  args.out_token_stride = params.out_token_stride * 2;
  args.out_head_stride = params.out_head_stride * 2;
  args.lse = params.lse;
  args.total = static_cast<int32_t>(params.total);
  args.batch = static_cast<int32_t>(params.batch);
  args.num_heads = static_cast<int32_t>(params.num_heads);
  args.group = static_cast<int32_t>(params.num_heads / params.storage.layout.spec.num_kv_heads);
  args.causal = params.causal;
  args.window_left = static_cast<int32_t>(params.window_left);
  args.window_right = static_cast<int32_t>(params.window_right);
  const float scale = params.softmax_scale * params.k_scale;
  args.scale = params.softcap > 0 ? scale / params.softcap : scale * kLog2e;
  args.softcap = params.softcap * kLog2e;
  args.v_scale = params.v_scale;
  args.decode_blocks = decode_grid(params.storage.layout, facts);
  place_partials(params, workspace, facts, args);
  return args;
}

bool is_aligned(const void* address, Offset token_stride, Offset head_stride) {
  const auto misaligned = [](Offset bytes) { return bytes % kChunkBytes != 0; };
  return !misaligned(static_cast<Offset>(reinterpret_cast<uintptr_t>(address))) && !misaligned(token_stride) &&
         !misaligned(head_stride);
}

int launch(const std::string& kernel, unsigned x, unsigned y, const AttendSizes& sizes, const AttendArgs& args,
           Launcher& launcher, void* stream, Status& status) {
  const Launch one{
      kernel.c_str(), {x, y, 1},  static_cast<unsigned>(sizes.threads()), static_cast<unsigned>(sizes.shared_bytes()),
      &args,          sizeof args};
  return launcher.launch(one, stream, status);
}

}  // namespace

const char* why_no_attend_kernel(const Storage& storage, Dtype query) {
  const LayoutSpec& spec = storage.layout.spec;
  if (spec.format != TileFormat::kSwizzle) return "its tiles are for CPU pools; CUDA kernels read swizzled ones";
  if (query != Dtype::kFp16 && query != Dtype::kBf16) return "queries must be fp16 or bf16";
  if (!is_fp8(storage.dtype) && storage.dtype != query) return "the query must have the pool's type";
  for (const Served& served : kServed) {
    if (served.head_size != spec.head_size || served.head_size_v != spec.head_size_v) continue;
    if (!(spec.block_size == 64 ? served.block64 : served.block32)) return "not compiled for this block size";
    if (is_fp8(storage.dtype) && !(served.fp8 && spec.block_size == 64)) return "not compiled for fp8 of these sizes";
    return nullptr;
  }
  return "not compiled for these head sizes";
}

AttendKernels attend_kernels(const Storage& storage, Dtype query) {
  const LayoutSpec& spec = storage.layout.spec;
  std::string sizes = "d" + std::to_string(spec.head_size);
  if (spec.head_size_v != spec.head_size) sizes += "v" + std::to_string(spec.head_size_v);
  const std::string block = "b" + std::to_string(spec.block_size), q = type_name(query);
  const std::string tail = q + "_" + type_name(storage.dtype) + "_" + sizes + "_" + block;
  return AttendKernels{"attend_decode_" + tail, "attend_prefill_" + tail, "attend_combine_" + q + "_" + block};
}

Offset attend_workspace_bytes(const AttendParams& params, const DeviceFacts& facts) {
  const Layout& layout = params.storage.layout;
  return partial_slots(layout, facts) * kDecodeRows * (layout.spec.head_size_v + 2) * Offset{sizeof(float)};
}

int attend_cuda(const AttendParams& params, void* workspace, Launcher& launcher, void* stream, Status& status) {
  const Layout& layout = params.storage.layout;
  if (const char* reason = why_no_attend_kernel(params.storage, params.query_dtype)) {
    return fail(status, kUnsupported, "attend: %s", reason);
  }
  if (params.total == 0) return kOk;
  AttendArgs args = make_args(params, workspace, launcher.facts);
  const bool aligned = is_aligned(args.query, args.query_token_stride, args.query_head_stride) &&
                       is_aligned(args.out, args.out_token_stride, args.out_head_stride);
  if (!aligned) return fail(status, kUnsupported, "attend: query and out must start at multiples of 16 bytes");
  if (params.total * params.num_heads > INT_MAX) return fail(status, kUnsupported, "attend: more than 2^31 rows");
  const AttendKernels kernels = attend_kernels(params.storage, params.query_dtype);
  const bool short_rows = params.max_seqlen_q > 0 && params.max_seqlen_q * args.group <= kMostDecodeRows;
  const bool decode_only = short_rows || (params.max_seqlen_q == 0 && params.total == params.batch);
  args.most_decode_rows = decode_only ? INT_MAX : kMostDecodeRows;
  const auto blocks = static_cast<unsigned>(args.decode_blocks);
  if (int code = launch(kernels.decode, blocks, 1, decode_sizes_of(layout), args, launcher, stream, status)) {
    return code;
  }
  if (!decode_only) {
    const AttendSizes sizes = prefill_sizes_of(layout);
    const auto tiles = static_cast<unsigned>(ceil_div(params.total * args.group, sizes.rows()) + params.batch);
    const auto heads = static_cast<unsigned>(layout.spec.num_kv_heads);
    if (int code = launch(kernels.prefill, tiles, heads, sizes, args, launcher, stream, status)) return code;
  }
  const Launch combine{kernels.combine.c_str(), {blocks, 1, 1}, kCombineThreads, 0, &args, sizeof args};
  return launcher.launch(combine, stream, status);
}

}  // namespace dfc
