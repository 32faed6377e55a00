// unpack and copy_blocks: bytes move, nothing is computed.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "api/checks.h"
#include "api/operations.h"
#include "cpu/rows.h"

namespace dfc {

namespace {

void unpack_part(const UnpackParams& params, Part part, Offset head) {
  const Layout& layout = params.storage.layout;
  const Rows& rows = part == Part::kKey ? params.key : params.value;
  for (Offset token = 0; token < params.length; ++token) {
    const Offset page = token / layout.page_tokens;
    const char* run = static_cast<const char*>(params.pages) + layout.run_offset(page, head);
    char* row = rows.data + (token * rows.token_stride + head * rows.head_stride) * layout.spec.item_bytes;
    load_row(params.storage, part, token % layout.page_tokens, run, row);
  }
}

bool pools_overlap(const CopyParams& params) {
  const char* source = static_cast<const char*>(params.source);
  const char* target = static_cast<const char*>(params.target);
  return source < target + params.target_blocks * params.page_bytes &&
         target < source + params.source_blocks * params.page_bytes;
}

// May a page be written while another pair still has to read it? Only a whole shared pool is looked at closely.
bool needs_staging(const CopyParams& params) {
  if (!pools_overlap(params)) return false;
  if (params.source != params.target) return true;
  std::vector<int64_t> sources(static_cast<size_t>(params.num_pairs));
  for (size_t i = 0; i < sources.size(); ++i) sources[i] = params.pairs[2 * i];
  std::sort(sources.begin(), sources.end());
  for (Offset i = 0; i < params.num_pairs; ++i) {
    if (std::binary_search(sources.begin(), sources.end(), params.pairs[2 * i + 1])) return true;
  }
  return false;
}

// One direction of a copy: from pool to staging, from staging to pool, or from pool to pool.
void copy_pages(const CopyParams& params, const char* source, bool source_is_pool, char* target, bool target_is_pool) {
  const bool parallel = params.num_pairs * params.page_bytes > Offset{1} << 20;
  const Offset bytes = params.page_bytes;
#pragma omp parallel for schedule(static) num_threads(params.threads) if (parallel)
  for (Offset i = 0; i < params.num_pairs; ++i) {
    const Offset from = source_is_pool ? params.pairs[2 * i] : i;
    const Offset to = target_is_pool ? params.pairs[2 * i + 1] : i;
    std::memmove(target + to * bytes, source + from * bytes, static_cast<size_t>(bytes));
  }
}

}  // namespace

int unpack(const UnpackParams& params, Status&) {
  const LayoutSpec& spec = params.storage.layout.spec;
  const Offset row_bytes = (spec.head_size + spec.head_size_v) * spec.item_bytes;
  const bool parallel = params.length * spec.num_kv_heads * row_bytes > Offset{1} << 18;
  const int units = static_cast<int>(2 * spec.num_kv_heads);
#pragma omp parallel for schedule(dynamic) num_threads(params.threads) if (parallel)
  for (int unit = 0; unit < units; ++unit) {
    unpack_part(params, unit % 2 ? Part::kValue : Part::kKey, unit / 2);
  }
  return kOk;
}

int copy_blocks(const CopyParams& params, Status& status) {
  if (int code = check_pairs(params, status)) return code;
  const char* source = static_cast<const char*>(params.source);
  char* target = static_cast<char*>(params.target);
  if (!needs_staging(params)) {
    copy_pages(params, source, true, target, true);
    return kOk;
  }
  const auto bytes = static_cast<size_t>(params.num_pairs * params.page_bytes);
  const std::unique_ptr<char[]> staging(new (std::nothrow) char[bytes]);
  if (!staging) return fail(status, kOutOfMemory, "copy_blocks: no memory to stage %zu bytes", bytes);
  copy_pages(params, source, true, staging.get(), false);
  copy_pages(params, staging.get(), false, target, true);
  return kOk;
}

}  // namespace dfc
