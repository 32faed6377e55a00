// The Python module deepseek_flash_cache._C. Pointers arrive as integers: no torch headers, so one build serves every
// torch version. ops.py is the only caller and has checked shapes, dtypes and strides.
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "api/operations.h"
#include "cpu/dispatch.h"

namespace py = pybind11;
using namespace dfc;

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

// A layout as Python holds it: the plain struct and its tables of tile starts.
class PyLayout {
 public:
  PyLayout(int dtype, Offset heads, Offset head_size, Offset head_size_v, Offset block_size, Offset extent, bool zorder,
           int format) {
    constexpr Offset item_bytes[kNumDtypes] = {4, 2, 2, 1, 1};
    const bool valid = dtype >= 0 && dtype < kNumDtypes && heads > 0 && extent > 0 && head_size > 0 &&
                       head_size <= 1024 && head_size_v > 0 && head_size_v <= 1024 &&
                       (block_size == 32 || block_size == 64) && head_size * item_bytes[dtype] % kChunkBytes == 0 &&
                       head_size_v * item_bytes[dtype] % kChunkBytes == 0;
    if (!valid || format < 0 || format > 2)
      throw py::value_error("layout: these sizes are not accepted; build it from deepseek_flash_cache.layout");
    const LayoutSpec spec{item_bytes[dtype], heads,  head_size, head_size_v,
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

void py_append(const PyLayout& layout, Address key, Offset key_token, Offset key_head, Address value,
               Offset value_token, Offset value_head, int source, Address cache, Offset num_blocks, Address slots,
               Offset num_slots, float k_scale, float v_scale, int threads) {
  AppendParams params{};
  params.storage = layout.storage;
  params.key = rows_at(key, key_token, key_head);
  params.value = rows_at(value, value_token, value_head);
  params.source = static_cast<Dtype>(source);
  params.cache = reinterpret_cast<void*>(cache);
  params.num_blocks = num_blocks;
  params.slots = reinterpret_cast<const int64_t*>(slots);
  params.num_slots = num_slots;
  params.k_scale = k_scale;
  params.v_scale = v_scale;
  params.threads = threads;
  Status status;
  {
    py::gil_scoped_release unlocked;
    append(params, status);
  }
  require_ok(status);
}

void py_unpack(const PyLayout& layout, Address pages, Address key, Address value, Offset length, int threads) {
  const LayoutSpec& spec = layout.storage.layout.spec;
  UnpackParams params{};
  params.storage = layout.storage;
  params.pages = reinterpret_cast<const void*>(pages);
  params.key = rows_at(key, spec.num_kv_heads * spec.head_size, spec.head_size);
  params.value = rows_at(value, spec.num_kv_heads * spec.head_size_v, spec.head_size_v);
  params.length = length;
  params.threads = threads;
  Status status;
  {
    py::gil_scoped_release unlocked;
    unpack(params, status);
  }
  require_ok(status);
}

void py_copy_blocks(const PyLayout& layout, Address source, Offset source_blocks, Address target, Offset target_blocks,
                    Address pairs, Offset num_pairs, int threads) {
  const CopyParams params{layout.storage.layout.page_bytes,
                          reinterpret_cast<const void*>(source),
                          source_blocks,
                          reinterpret_cast<void*>(target),
                          target_blocks,
                          reinterpret_cast<const int64_t*>(pairs),
                          num_pairs,
                          threads};
  Status status;
  {
    py::gil_scoped_release unlocked;
    copy_blocks(params, status);
  }
  require_ok(status);
}

void py_attend(const PyLayout& layout, int query_dtype, Address query, Offset query_token, Offset query_head,
               Offset total, Offset num_heads, Address cache, Offset num_blocks, Address block_table,
               Offset table_stride, Offset max_blocks, Offset batch, Address cu_seqlens_q, Address kv_lens,
               Address sinks, float softmax_scale, bool causal, Offset window_left, Offset window_right, float softcap,
               float k_scale, float v_scale, Address out, Offset out_token, Offset out_head, Address lse, int threads) {
  AttendParams params{};
  params.storage = layout.storage;
  params.query = reinterpret_cast<const void*>(query);
  params.query_dtype = static_cast<Dtype>(query_dtype);
  params.query_token_stride = query_token;
  params.query_head_stride = query_head;
  params.total = total;
  params.num_heads = num_heads;
  params.cache = reinterpret_cast<const void*>(cache);
  params.num_blocks = num_blocks;
  params.block_table = reinterpret_cast<const int32_t*>(block_table);
  params.table_stride = table_stride;
  params.max_blocks = max_blocks;
  params.batch = batch;
  params.cu_seqlens_q = reinterpret_cast<const int32_t*>(cu_seqlens_q);
  params.kv_lens = reinterpret_cast<const int32_t*>(kv_lens);
  params.sinks = reinterpret_cast<const float*>(sinks);
  params.softmax_scale = softmax_scale;
  params.causal = causal;
  params.window_left = window_left;
  params.window_right = window_right;
  params.softcap = softcap;
  params.k_scale = k_scale;
  params.v_scale = v_scale;
  params.out = reinterpret_cast<void*>(out);
  params.out_token_stride = out_token;
  params.out_head_stride = out_head;
  params.lse = reinterpret_cast<float*>(lse);
  params.threads = threads;
  Status status;
  {
    py::gil_scoped_release unlocked;
    attend(params, status);
  }
  require_ok(status);
}

void fill_element_offsets(const PyLayout& self, const std::string& part_name, Address target) {
  const Layout& layout = self.storage.layout;
  const Part part = part_named(part_name);
  auto* offsets = reinterpret_cast<int64_t*>(target);
  for (Offset token = 0; token < layout.page_tokens; ++token) {
    for (Offset column = 0; column < layout.columns(part); ++column) {
      *offsets++ = layout.element_offset(part, token, column);
    }
  }
}

Offset checked_rank(Offset row, Offset column, Offset rows, Offset columns) {
  const bool inside = 0 <= row && row < rows && 0 <= column && column < columns;
  if (!inside) throw py::value_error("cell: outside the grid");
  return zorder_rank(Cell{row, column}, rows, columns);
}

py::tuple checked_cell(Offset rank, Offset rows, Offset columns) {
  if (rows < 1 || columns < 1 || rank < 0 || rank >= rows * columns) throw py::value_error("rank: outside the grid");
  const Cell cell = zorder_cell(rank, rows, columns);
  return py::make_tuple(cell.row, cell.column);
}

std::string isa() {
  Status status;
  const Kernels* kernels = chosen_kernels(status);
  require_ok(status);
  return kernels->name;
}

std::vector<std::string> level_names() {
  const Kernels* const* levels;
  const int count = usable_levels(&levels);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(levels[i]->name);
  return names;
}

void define_layout(py::module_& m) {
  const auto size = [](Offset Layout::* field) {
    return [field](const PyLayout& self) { return self.storage.layout.*field; };
  };
  py::class_<PyLayout>(m, "Layout")
      .def(py::init<int, Offset, Offset, Offset, Offset, Offset, bool, int>(), py::arg("dtype"),
           py::arg("num_kv_heads"), py::arg("head_size"), py::arg("head_size_v"), py::arg("block_size"),
           py::arg("extent"), py::arg("zorder"), py::arg("format"))
      .def_property_readonly("row_bytes", size(&Layout::row_bytes))
      .def_property_readonly("tile_columns", size(&Layout::tile_columns))
      .def_property_readonly("tile_elements", size(&Layout::tile_elements))
      .def_property_readonly("k_tiles", size(&Layout::k_tiles))
      .def_property_readonly("v_tiles", size(&Layout::v_tiles))
      .def_property_readonly("page_tokens", size(&Layout::page_tokens))
      .def_property_readonly("head_elements", size(&Layout::head_elements))
      .def_property_readonly("page_bytes", size(&Layout::page_bytes))
      .def("tile_rank",
           [](const PyLayout& self, const std::string& part, Offset token_block, Offset column_tile) {
             return self.storage.layout.tile_rank(part_named(part), token_block, column_tile);
           })
      .def("element_offset",
           [](const PyLayout& self, const std::string& part, Offset token, Offset column) {
             return self.storage.layout.element_offset(part_named(part), token, column);
           })
      .def("byte_offset",
           [](const PyLayout& self, Offset block, Offset head, const std::string& part, Offset token, Offset column) {
             return self.storage.layout.byte_offset(block, head, part_named(part), token, column);
           })
      .def("fill_element_offsets", &fill_element_offsets,
           "Writes element_offset of every (token, column) of a part to int64 [page_tokens, columns] at an address.");
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Compiled CPU operations of deepseek-flash-cache; call them through deepseek_flash_cache.ops.";
  define_layout(m);
  m.def("zorder_rank", &checked_rank);
  m.def("zorder_cell", &checked_cell);
  m.def("append", &py_append);
  m.def("unpack", &py_unpack);
  m.def("copy_blocks", &py_copy_blocks);
  m.def("attend", &py_attend);
  m.def("isa", &isa, "Name of the ISA level in use. ValueError if DFC_CPU_ISA names one that is not usable.");
  m.def("isa_levels", [] {
    py::list names;
    for (const std::string& name : level_names()) names.append(name);
    return names;
  });
  m.def("force_isa", [](const std::string& name) {
    Status status;
    force_level(name.c_str(), status);
    require_ok(status);
  });
}
