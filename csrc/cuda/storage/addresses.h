// Conformance kernel: device code reports the byte offset of every element of one page, for comparison with Python
// (tests/layout/test_cuda_layout.py). Output: K [heads, page_tokens, head_size], then V [heads, page_tokens,
// head_size_v].
#pragma once

#include "cuda/storage/args.h"
#include "dev/dev.h"

namespace dfc {

struct AddressArgs {
  LayoutSpec spec;
  Offset block;
  int64_t* addresses;
};

struct LayoutAddresses {
  using Args = AddressArgs;
  static constexpr int kThreads = 256, kMinBlocks = 1;

  static DEV void run(const Args& args) {
    const Layout layout = make_layout(args.spec);
    const Offset rows = args.spec.num_kv_heads * layout.page_tokens;
    const Offset k_count = rows * args.spec.head_size;
    const Offset total = k_count + rows * args.spec.head_size_v;
    const Offset step = Offset{dev::grid_x()} * dev::block_threads();
    for (Offset i = Offset{dev::block_x()} * dev::block_threads() + dev::tid(); i < total; i += step) {
      const Part part = i < k_count ? Part::kKey : Part::kValue;
      const Offset index = i < k_count ? i : i - k_count;
      const Offset columns = layout.columns(part);
      const Offset row = index / columns;
      const Offset head = row / layout.page_tokens;
      dev::stg<int64_t>(args.addresses + i,
                        layout.byte_offset(args.block, head, part, row % layout.page_tokens, index % columns));
    }
  }
};

}  // namespace dfc
