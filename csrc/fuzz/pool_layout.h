// Decodes any layout that deepseek_flash_cache.layout accepts.
#pragma once

#include <string>
#include <vector>

#include "api/params.h"
#include "fuzz/input.h"
#include "fuzz/numbers.h"

namespace dfc {
namespace fuzz {

class PoolLayout {
 public:
  explicit PoolLayout(Input& input) {
    const auto dtype = static_cast<Dtype>(input.below(kNumDtypes));
    LayoutSpec spec{};
    spec.item_bytes = item_bytes(dtype);
    spec.num_kv_heads = input.between(1, 3);
    spec.head_size = head_size(spec.item_bytes, input);
    spec.head_size_v = input.one_in(2) ? head_size(spec.item_bytes, input) : spec.head_size;
    const bool whole_tiles = spec.head_size % 64 == 0 && spec.head_size_v % 64 == 0;
    spec.block_size = whole_tiles && !input.one_in(3) ? 64 : 32;
    spec.extent = input.between(1, 5);
    spec.zorder = input.one_in(2);
    const Offset format = input.below(4);
    spec.format = format == 3 ? TileFormat::kSwizzle : TileFormat::kLinear;
    if (dtype == Dtype::kBf16 && (format == 1 || format == 2)) spec.format = TileFormat::kPaired;
    storage.dtype = dtype;
    storage.layout = make_layout(spec);
    storage.k_tile = fill(k_tile_, Part::kKey);
    storage.v_tile = fill(v_tile_, Part::kValue);
  }
  PoolLayout(const PoolLayout&) = delete;

  Storage storage{};

  std::string name() const {
    const TileFormat format = storage.layout.spec.format;
    if (format == TileFormat::kSwizzle) return "swizzle";
    return name_of(storage.dtype) + std::string(format == TileFormat::kPaired ? " paired" : "");
  }

 private:
  std::vector<Offset> k_tile_, v_tile_;

  static Offset head_size(Offset item, Input& input) {
    static const Offset usual[] = {64, 128, 64, 32, 80, 96, 112, 192, 256, 576};
    const Offset step = kChunkBytes / item;
    return input.one_in(3) ? step * input.between(1, 20) : input.pick(usual) / step * step;
  }

  const Offset* fill(std::vector<Offset>& table, Part part) {
    const Layout& layout = storage.layout;
    for (Offset block = 0; block < layout.spec.extent; ++block) {
      for (Offset tile = 0; tile < layout.column_tiles(part); ++tile) {
        table.push_back(layout.tile_rank(part, block, tile) * layout.tile_elements);
      }
    }
    return table.data();
  }
};

}  // namespace fuzz
}  // namespace dfc
