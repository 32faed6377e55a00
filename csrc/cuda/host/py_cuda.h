// The CUDA operations as Python calls them: a launcher, a stream, then what the CPU operation takes. Included by
// binding.cpp.
#pragma once

#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <string>

#include "api/py_attend.h"
#include "api/py_storage.h"
#include "cuda/attend/plan.h"
#include "cuda/host/launcher.h"
#include "cuda/storage/plan.h"

namespace dfc {
namespace {

using SharedLauncher = std::shared_ptr<Launcher>;

// Raises NotImplementedError with the reason where there is nothing to launch with.
SharedLauncher opened(std::unique_ptr<Launcher> launcher, const Status& status) {
  if (launcher) return SharedLauncher(std::move(launcher));
  if (status.code != kUnsupported) require_ok(status);
  PyErr_SetString(PyExc_NotImplementedError, status.message);
  throw py::error_already_set();
}

SharedLauncher py_open_driver(const std::string& library, int device, const std::string& folder) {
  Status status;
  auto launcher = open_driver(library, device, folder, status);
  return opened(std::move(launcher), status);
}

SharedLauncher py_open_emulator(const std::string& library, int sm_count, int arch, int shared_limit) {
  Status status;
  auto launcher = open_emulator(library, DeviceFacts{sm_count, arch, shared_limit}, status);
  return opened(std::move(launcher), status);
}

// Why the launcher has no code for a kernel; empty if it has.
std::string py_missing(Launcher& launcher, const std::string& kernel) {
  Status status;
  return launcher.find(kernel.c_str(), status) == kOk ? "" : status.message;
}

std::string py_refused_device(int device, int arch) {
  Status status;
  return refuse_device(device, arch, status) == kOk ? "" : status.message;
}

// Binds a function that makes parameters of its arguments to an operation of the GPU.
template <auto Operation, typename Params, typename... Arguments>
auto on_cuda(Params (*make)(Arguments...)) {
  return [make](Launcher& launcher, Address stream, Arguments... arguments) {
    const Params params = make(arguments...);
    run_unlocked([&](Status& status) { Operation(params, launcher, reinterpret_cast<void*>(stream), status); });
  };
}

// append, then a gate: the name of its kernel and the bytes of its arguments.
template <typename... Arguments>
auto append_gated(AppendParams (*make)(Arguments...)) {
  return [make](Launcher& launcher, Address stream, const std::string& kernel, const std::string& gate_args,
                Arguments... arguments) {
    const AppendParams params = make(arguments...);
    const GateLaunch gate{kernel, gate_args};
    run_unlocked(
        [&](Status& status) { append_gated_cuda(params, gate, launcher, reinterpret_cast<void*>(stream), status); });
  };
}

// For an operation that needs memory of its own: the caller asks for its size first.
template <auto Operation, typename Params, typename... Arguments>
auto on_cuda_with_workspace(Params (*make)(Arguments...)) {
  return [make](Launcher& launcher, Address stream, Address workspace, Arguments... arguments) {
    const Params params = make(arguments...);
    run_unlocked([&](Status& status) {
      Operation(params, reinterpret_cast<void*>(workspace), launcher, reinterpret_cast<void*>(stream), status);
    });
  };
}

template <typename... Arguments>
auto copy_workspace(CopyParams (*make)(Arguments...)) {
  return [make](Arguments... arguments) { return copy_workspace_bytes(make(arguments...)); };
}

template <typename... Arguments>
auto attend_workspace(AttendParams (*make)(Arguments...)) {
  return [make](const Launcher& launcher, Arguments... arguments) {
    return attend_workspace_bytes(make(arguments...), launcher.facts);
  };
}

// As for the CPU, after a hint: the most query rows of a sequence.
AttendParams cuda_attend_params(Offset max_seqlen_q, const PyLayout& layout, Address cache, Offset num_blocks,
                                const PyTable& table, const PyQuery& query, const PySequences& sequences,
                                const PyMask& mask, float k_scale, float v_scale, const PyResults& results) {
  AttendParams params =
      pool_attend_params(layout, cache, num_blocks, table, query, sequences, mask, k_scale, v_scale, results);
  params.max_seqlen_q = max_seqlen_q;
  return params;
}

// Why kernels do not serve attention over pools of this layout; empty if they do.
std::string py_why_no_attend(Launcher& launcher, const PyLayout& layout, int query) {
  const auto dtype = static_cast<Dtype>(query);
  if (const char* reason = why_no_attend_kernel(layout.storage, dtype)) return reason;
  const AttendKernels kernels = attend_kernels(layout.storage, dtype);
  for (const std::string& kernel : {kernels.decode, kernels.prefill, kernels.combine}) {
    if (std::string reason = py_missing(launcher, kernel); !reason.empty()) return reason;
  }
  return "";
}

// One launch with a caller's argument, for kernels that no operation calls.
void py_launch(Launcher& launcher, Address stream, const std::string& kernel, std::array<unsigned, 3> grid,
               unsigned threads, unsigned shared_bytes, const std::string& args) {
  const Launch launch{kernel.c_str(), {grid[0], grid[1], grid[2]}, threads, shared_bytes, args.data(), args.size()};
  run_unlocked([&](Status& status) { launcher.launch(launch, reinterpret_cast<void*>(stream), status); });
}

void define_cuda(py::module_& m) {
  py::class_<Launcher, SharedLauncher>(m, "Launcher")
      .def_property_readonly("sm_count", [](const Launcher& self) { return self.facts.sm_count; })
      .def_property_readonly("arch", [](const Launcher& self) { return self.facts.arch; })
      .def_property_readonly("shared_limit", [](const Launcher& self) { return self.facts.shared_limit; })
      .def("missing", &py_missing, py::arg("kernel"), "Why there is no code for a kernel; empty if there is.");
  m.def("open_driver", &py_open_driver, py::arg("library"), py::arg("device"), py::arg("folder"));
  m.def("open_emulator", &py_open_emulator, py::arg("library"), py::arg("sm_count"), py::arg("arch"),
        py::arg("shared_limit"));
  m.def("refused_device", &py_refused_device, py::arg("device"), py::arg("arch"));
  m.def("append_kernel", [](const PyLayout& layout, int source) {
    const char* name = append_kernel(layout.storage, static_cast<Dtype>(source));
    return std::string(name ? name : "");
  });
  m.def("cuda_append", on_cuda<&append_cuda>(append_params));
  m.def("cuda_append_gated", append_gated(append_params));
  m.def("cuda_unpack", on_cuda<&unpack_cuda>(unpack_params));
  m.def("cuda_copy_blocks", on_cuda_with_workspace<&copy_blocks_cuda>(copy_params));
  m.def("cuda_copy_workspace", copy_workspace(copy_params));
  m.def("cuda_attend", on_cuda_with_workspace<&attend_cuda>(cuda_attend_params));
  m.def("cuda_attend_workspace", attend_workspace(pool_attend_params));
  m.def("why_no_attend", &py_why_no_attend);
  m.def("cuda_launch", &py_launch);
}

}  // namespace
}  // namespace dfc
