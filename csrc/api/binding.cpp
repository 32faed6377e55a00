// The Python module deepseek_flash_cache._C. Pointers arrive as integers: no torch headers, so one build serves every
// torch version. The package ops is the only caller and has checked shapes, dtypes and strides.
#include "api/py_attend.h"
#include "api/py_layout.h"
#include "api/py_sparse.h"
#include "api/py_storage.h"
#include "cpu/dispatch.h"
#include "cuda/host/py_cuda.h"

using namespace dfc;

namespace {

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
  m.doc() = "Compiled operations of deepseek-flash-cache; call them through deepseek_flash_cache.ops.";
  define_layout(m);
  m.def("zorder_rank", &checked_rank);
  m.def("zorder_cell", &checked_cell);
  m.def("append", on_cpu<&append>(append_params));
  m.def("unpack", on_cpu<&unpack>(unpack_params));
  m.def("copy_blocks", on_cpu<&copy_blocks>(copy_params));
  m.def("attend", on_cpu<&attend>(pool_attend_params));
  m.def("attend_linear", &py_attend_linear);
  m.def("attend_pages", &py_attend_pages);
  define_cuda(m);
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
