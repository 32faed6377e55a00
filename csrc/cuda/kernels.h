// All kernels that instances.def names.
#pragma once

#include "dev/dev.h"  // first: NVRTC has its integer types from there
//
#include "cuda/attend/decode.h"
#include "cuda/attend/prefill.h"
#include "cuda/storage/addresses.h"
#include "cuda/storage/append.h"
#include "cuda/storage/copy.h"

namespace dfc {

// Kernel::kSharedBytes, the dynamic shared memory that host code asks for; 0 for kernels that have no such constant.
template <class Kernel>
DFC_HOST_DEVICE constexpr int shared_bytes_of(decltype(Kernel::kSharedBytes)*) {
  return static_cast<int>(Kernel::kSharedBytes);
}
template <class Kernel>
DFC_HOST_DEVICE constexpr int shared_bytes_of(...) {
  return 0;
}
template <class Kernel>
constexpr int kSharedBytesOf = shared_bytes_of<Kernel>(nullptr);

}  // namespace dfc
