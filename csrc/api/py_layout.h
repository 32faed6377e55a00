// A layout as Python holds it, and the conversions that every binding needs. Included by binding.cpp.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "api/operations.h"

namespace py = pybind11;

namespace dfc {
namespace {

using Address = uintptr_t;

void require_ok(const Status& status) {
  if (status.code == kInvalidValue) throw py::value_error(status.message);
  if (status.code == kOutOfMemory) throw std::bad_alloc();
  if (status.code != kOk) throw std::runtime_error(status.message);
}

Part part_named(const std::string& name) {
  if (name != "k" && name != "v") throw py::value_error("part: " + name + " is not accepted; it must be 'k' or 'v'");
  return name == "k" ? Part::kKey : Part::kValue;
}

Offset item_bytes(int dtype) {
  constexpr Offset bytes[kNumDtypes] = {4, 2, 2, 1, 1};
  return bytes[dtype];
}

// A layout as Python holds it: the plain struct and its tables of tile starts.
class PyLayout {
 public:
  PyLayout(int dtype, Offset heads, Offset head_size, Offset head_size_v, Offset block_size, Offset extent, bool zorder,
           int format) {
    const bool valid = dtype >= 0 && dtype < kNumDtypes && heads > 0 && extent > 0 && head_size > 0 &&
                       head_size <= 1024 && head_size_v > 0 && head_size_v <= 1024 &&
                       (block_size == 32 || block_size == 64) && head_size * item_bytes(dtype) % kChunkBytes == 0 &&
                       head_size_v * item_bytes(dtype) % kChunkBytes == 0;
    if (!valid || format < 0 || format > 2)
      throw py::value_error("layout: these sizes are not accepted; build it from deepseek_flash_cache.layout");
    const LayoutSpec spec{item_bytes(dtype), heads,  head_size, head_size_v,
                          block_size,        extent, zorder,    static_cast<TileFormat>(format)};
    storage.layout = make_layout(spec);
    storage.dtype = static_cast<Dtype>(dtype);
    storage.k_tile = fill(k_tile_, Part::kKey);
    storage.v_tile = fill(v_tile_, Part::kValue);
  }
  PyLayout(const PyLayout&) = delete;

  Storage storage{};

 private:
  std::vector<Offset> k_tile_, v_tile_;

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

Rows rows_at(Address data, Offset token_stride, Offset head_stride) {
  return Rows{reinterpret_cast<char*>(data), token_stride, head_stride};
}

}  // namespace
}  // namespace dfc
