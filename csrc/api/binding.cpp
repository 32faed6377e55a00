// The Python module deepseek_flash_cache._C. Pointers arrive as integers: no torch headers, so one build serves every
// torch version. The package ops is the only caller and has checked shapes, dtypes and strides.
#include "api/py_attend.h"
#include "api/py_layout.h"
#include "api/py_sparse.h"
#include "cpu/dispatch.h"

using namespace dfc;

namespace {

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
  m.def("attend_linear", &py_attend_linear);
  m.def("attend_pages", &py_attend_pages);
  m.def("summarise", &py_summarise);
  m.def("score", &py_score);
  m.def("select", &py_select);
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
