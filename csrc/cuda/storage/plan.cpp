#include "cuda/storage/plan.h"

namespace dfc {

namespace {

constexpr Offset kMostGridY = 65535;
constexpr Offset kBlocksPerSm = 32;  // rows beyond this many blocks go round: a thread's chunk is found once

constexpr Offset round_up(Offset value, Offset step) { return ceil_div(value, step) * step; }

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kChunkBytes == 0; }

bool is_aligned(const RowBytes& rows) {
  return is_aligned(rows.data) && rows.row_stride % kChunkBytes == 0 && rows.head_stride % kChunkBytes == 0;
}

int require_aligned(const char* name, const void* address, Status& status) {
  if (is_aligned(address)) return kOk;
  return fail(status, kInvalidValue, "%s: address %p is not accepted; it must be a multiple of 16", name, address);
}

RowBytes in_bytes(const Rows& rows, Offset item) {
  return RowBytes{rows.data, rows.token_stride * item, rows.head_stride * item};
}

Offset item_bytes(Dtype dtype) { return dtype == Dtype::kFp32 ? 4 : is_fp8(dtype) ? 1 : 2; }

// The layout as a kernel gets it. Both tile orders are one with extent 1, and the row order needs no search.
Layout for_kernel(Layout layout) {
  layout.spec.zorder = layout.spec.zorder && layout.spec.extent > 1;
  return layout;
}

// One thread per chunk of a token along x, rows along y.
template <class Args>
Launch over_rows(const char* kernel, const Args& args, const DeviceFacts& facts) {
  const Offset threads = smaller(Offset{kStorageThreads}, round_up(args.chunks.total, 32));
  const Offset columns = ceil_div(args.chunks.total, threads);
  const Offset most_rows = smaller(kMostGridY, larger(1, kBlocksPerSm * facts.sm_count / columns));
  const Offset rows = smaller(args.num_rows, most_rows);
  return Launch{kernel,
                {static_cast<unsigned>(columns), static_cast<unsigned>(rows), 1},
                static_cast<unsigned>(threads),
                0,
                &args,
                sizeof args};
}

}  // namespace

const char* append_kernel(const Storage& storage, Dtype source) {
  if (storage.layout.is_paired(Part::kValue) || is_fp8(source)) return nullptr;
  if (!is_fp8(storage.dtype)) return source == storage.dtype ? "append_bytes" : nullptr;
  static const char* const names[2][3] = {{"append_fp32_e4m3", "append_fp16_e4m3", "append_bf16_e4m3"},
                                          {"append_fp32_e5m2", "append_fp16_e5m2", "append_bf16_e5m2"}};
  return names[storage.dtype == Dtype::kFp8E5m2][static_cast<int>(source)];
}

int append_cuda(const AppendParams& params, Launcher& launcher, void* stream, Status& status) {
  const Layout& layout = params.storage.layout;
  const char* kernel = append_kernel(params.storage, params.source);
  if (kernel == nullptr) return fail(status, kUnsupported, "append: no kernel for this layout and source");
  if (params.num_slots == 0) return kOk;
  constexpr Offset kMostTokenBlocks = (Offset{1} << 32) - 1;  // what place_of can count
  const Offset blocks = params.num_blocks * layout.spec.extent;
  if (blocks > kMostTokenBlocks) return fail(status, kUnsupported, "append: the pool has too many blocks");
  if (int code = require_aligned("cache", params.cache, status)) return code;
  AppendArgs args{};
  args.layout = for_kernel(layout);
  args.cache = static_cast<char*>(params.cache);
  args.num_slots = params.num_blocks * layout.page_tokens;
  args.slots = params.slots;
  args.num_rows = params.num_slots;
  args.key = in_bytes(params.key, item_bytes(params.source));
  args.value = in_bytes(params.value, item_bytes(params.source));
  args.chunks = token_chunks(layout);
  args.k_scale = params.k_scale;
  args.v_scale = params.v_scale;
  args.aligned = is_aligned(args.key) && is_aligned(args.value);
  return launcher.launch(over_rows(kernel, args, launcher.facts), stream, status);
}

int append_gated_cuda(const AppendParams& params, const GateLaunch& gate, Launcher& launcher, void* stream,
                      Status& status) {
  if (int code = append_cuda(params, launcher, stream, status)) return code;
  if (params.num_slots == 0) return kOk;
  const Layout& layout = params.storage.layout;
  CloseHead head{};
  head.layout = for_kernel(layout);
  head.cache = static_cast<const char*>(params.cache);
  head.num_slots = params.num_blocks * layout.page_tokens;
  head.slots = params.slots;
  head.num_rows = params.num_slots;
  head.group_tokens = smaller(kGroupTokens, layout.page_tokens);
  std::string args(reinterpret_cast<const char*>(&head), sizeof head);
  args += gate.args;
  const auto heads = static_cast<unsigned>(layout.spec.num_kv_heads);
  const auto rows = static_cast<unsigned>(smaller(params.num_slots, kMostGridY));
  const Launch launch{gate.kernel.c_str(), {heads, rows, 1}, kCloseThreads, 0, args.data(), args.size()};
  return launcher.launch(launch, stream, status);
}

int unpack_cuda(const UnpackParams& params, Launcher& launcher, void* stream, Status& status) {
  const Layout& layout = params.storage.layout;
  if (layout.is_paired(Part::kValue)) return fail(status, kUnsupported, "unpack: no kernel for paired tiles");
  if (params.length == 0) return kOk;
  if (int code = require_aligned("pages", params.pages, status)) return code;
  UnpackArgs args{};
  args.layout = for_kernel(layout);
  args.pages = static_cast<const char*>(params.pages);
  args.num_rows = params.length;
  args.key = in_bytes(params.key, layout.spec.item_bytes);
  args.value = in_bytes(params.value, layout.spec.item_bytes);
  args.chunks = token_chunks(layout);
  const bool aligned = is_aligned(args.key) && is_aligned(args.value);
  if (!aligned) return fail(status, kUnsupported, "unpack: rows must start at multiples of 16 bytes");
  return launcher.launch(over_rows("unpack", args, launcher.facts), stream, status);
}

static bool pools_overlap(const CopyParams& params) {
  const char* source = static_cast<const char*>(params.source);
  const char* target = static_cast<const char*>(params.target);
  return source < target + params.target_blocks * params.page_bytes &&
         target < source + params.source_blocks * params.page_bytes;
}

Offset copy_workspace_bytes(const CopyParams& params) {
  return pools_overlap(params) ? params.num_pairs * params.page_bytes : 0;
}

int copy_blocks_cuda(const CopyParams& params, void* workspace, Launcher& launcher, void* stream, Status& status) {
  if (params.num_pairs == 0) return kOk;
  if (int code = require_aligned("source", params.source, status)) return code;
  if (int code = require_aligned("target", params.target, status)) return code;
  const bool overlap = pools_overlap(params);
  CopyArgs args{};
  args.source = static_cast<const char*>(params.source);
  args.target = static_cast<char*>(params.target);
  args.staging = overlap ? static_cast<char*>(workspace) : nullptr;
  args.pairs = params.pairs;
  args.num_pairs = params.num_pairs;
  args.page_bytes = params.page_bytes;
  args.source_blocks = params.source_blocks;
  args.target_blocks = params.target_blocks;
  args.stage_all = params.source != params.target;
  const unsigned grid[3] = {static_cast<unsigned>(ceil_div(params.page_bytes, kCopySliceBytes)),
                            static_cast<unsigned>(smaller(params.num_pairs, kMostGridY)), 1};
  for (args.second = 0; args.second <= (overlap ? 1 : 0); ++args.second) {
    const Launch launch{"copy_blocks", {grid[0], grid[1], 1}, kStorageThreads, 0, &args, sizeof args};
    if (int code = launcher.launch(launch, stream, status)) return code;
  }
  return kOk;
}

}  // namespace dfc
