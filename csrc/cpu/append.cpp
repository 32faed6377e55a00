// append: new rows into their slots. Work is split over (head, part), never over rows, so that of several rows for one
// slot the last wins.
#include "api/checks.h"
#include "api/operations.h"
#include "cpu/fp8.h"
#include "cpu/rows.h"

namespace dfc {

namespace {

constexpr Offset kParallelBytes = Offset{1} << 18;  // below this a parallel region costs more than it gains
constexpr Offset kMaxRowColumns = 1024;             // checked by the layout

float to_float(const char* source, Dtype dtype, Offset index) {
  if (dtype == Dtype::kFp32) return reinterpret_cast<const float*>(source)[index];
  const uint32_t bits = reinterpret_cast<const uint16_t*>(source)[index];
  if (dtype == Dtype::kBf16) return bits_float(bits << 16);
  const uint32_t sign = (bits & 0x8000) << 16;
  if ((bits & 0x7c00) == 0x7c00) return bits_float(sign | 0x7f800000 | (bits & 0x3ff) << 13);
  const float size = bits_float((bits & 0x7fff) << 13) * bits_float(239u << 23);  // 2^112 corrects the exponent bias
  return bits_float(sign | float_bits(size));
}

void quantise(const char* source, Dtype dtype, float scale, const Fp8Format& format, Offset columns, char* target) {
  for (Offset i = 0; i < columns; ++i) {
    target[i] = static_cast<char>(to_fp8(to_float(source, dtype, i) / scale, format));
  }
}

void append_part(const AppendParams& params, Part part, Offset head) {
  const Storage& storage = params.storage;
  const Layout& layout = storage.layout;
  const Rows& rows = part == Part::kKey ? params.key : params.value;
  const float scale = part == Part::kKey ? params.k_scale : params.v_scale;
  const Offset source_bytes = is_fp8(params.source) ? 1 : params.source == Dtype::kFp32 ? 4 : 2;
  const Fp8Format& format = storage.dtype == Dtype::kFp8E4m3 ? kE4m3 : kE5m2;
  const auto slot_of = [&](Offset i) { return params.slots ? params.slots[i] : i; };
  char quantised[kMaxRowColumns];
  for (Offset i = 0; i < params.num_slots; ++i) {
    const Offset slot = slot_of(i);
    if (slot < 0) continue;
    const char* row = rows.data + (i * rows.token_stride + head * rows.head_stride) * source_bytes;
    if (is_fp8(storage.dtype)) {
      quantise(row, params.source, scale, format, layout.columns(part), quantised);
      row = quantised;
    }
    char* run = static_cast<char*>(params.cache) + layout.run_offset(slot / layout.page_tokens, head);
    const Offset token = slot % layout.page_tokens;
    const bool whole_pair = layout.is_paired(part) && token % 2 == 0 && i + 1 < params.num_slots;
    if (whole_pair && slot_of(i + 1) == slot + 1) {
      store_row_pair(storage, part, token, row, row + rows.token_stride * source_bytes, run);
      ++i;
    } else {
      store_row(storage, part, token, row, run);
    }
  }
}

}  // namespace

int append(const AppendParams& params, Status& status) {
  if (int code = check_slots(params, status)) return code;
  const LayoutSpec& spec = params.storage.layout.spec;
  const Offset row_bytes = (spec.head_size + spec.head_size_v) * spec.item_bytes;
  const bool parallel = params.num_slots * spec.num_kv_heads * row_bytes > kParallelBytes;
  const int units = static_cast<int>(2 * spec.num_kv_heads);
#pragma omp parallel for schedule(dynamic) num_threads(params.threads) if (parallel)
  for (int unit = 0; unit < units; ++unit) {
    append_part(params, unit % 2 ? Part::kValue : Part::kKey, unit / 2);
  }
  return kOk;
}

}  // namespace dfc
