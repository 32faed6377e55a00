// Conformance kernel: device code reports the address of every element of one page, for comparison with Python
// (tests/layout/test_cuda_layout.py). Output: K [heads, page_tokens, head_size], then V [heads, page_tokens,
// head_size_v].
#include "layout/layout.h"

extern "C" __global__ void dfc_layout_addresses(dfc::LayoutSpec spec, dfc::Offset block, int64_t* addresses) {
  const dfc::Layout layout = dfc::make_layout(spec);
  const dfc::Offset rows = spec.num_kv_heads * layout.page_tokens;
  const dfc::Offset k_count = rows * spec.head_size;
  const dfc::Offset total = k_count + rows * spec.head_size_v;
  const dfc::Offset threads = dfc::Offset{gridDim.x} * blockDim.x;
  for (dfc::Offset i = dfc::Offset{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += threads) {
    const dfc::Part part = i < k_count ? dfc::Part::kKey : dfc::Part::kValue;
    const dfc::Offset index = i < k_count ? i : i - k_count;
    const dfc::Offset columns = layout.columns(part);
    const dfc::Offset row = index / columns;
    const dfc::Offset head = row / layout.page_tokens;
    addresses[i] = layout.byte_offset(block, head, part, row % layout.page_tokens, index % columns);
  }
}
