// Host side of attend: shapes -> launches. The grids depend on shapes and the device alone; lengths stay on the device.
#pragma once

#include "api/params.h"
#include "cuda/host/launcher.h"

namespace dfc {

// Why there is no kernel for pools of this kind and this query; null: there is one, if its code is there.
const char* why_no_attend_kernel(const Storage& storage, Dtype query);

// The kernels that serve a pool.
struct AttendKernels {
  std::string decode, prefill, combine;
};
AttendKernels attend_kernels(const Storage& storage, Dtype query);

// Memory for partial results: 2 slots of 16 rows per block of the decode grid.
Offset attend_workspace_bytes(const AttendParams& params, const DeviceFacts& facts);

// Decode and prefill kernels share a batch by the lengths of its sequences; a batch with as many rows as sequences is
// decode's alone. `query` and `out` must lie at multiples of 16 bytes with such strides.
int attend_cuda(const AttendParams& params, void* workspace, Launcher& launcher, void* stream, Status& status);

}  // namespace dfc
