// Host side of the storage operations: shapes -> launches. Pointers are device pointers and are never followed; the
// grids depend on shapes alone, so that a CUDA graph can replay them.
#pragma once

#include <string>

#include "cuda/host/launcher.h"
#include "cuda/storage/args.h"

namespace dfc {

// The kernel that appends `source` rows to a pool of this kind; null: there is none.
const char* append_kernel(const Storage& storage, Dtype source);

// Of several rows for one slot any may win; a slot outside the pool is skipped.
int append_cuda(const AppendParams& params, Launcher& launcher, void* stream, Status& status);

// A gate: the kernel CloseGroups<Gate> of instances.def by name, and the bytes of Gate::Args.
struct GateLaunch {
  std::string kernel, args;
};

// Also calls the gate for every group of tokens that the rows complete, in a second launch.
int append_gated_cuda(const AppendParams& params, const GateLaunch& gate, Launcher& launcher, void* stream,
                      Status& status);

int unpack_cuda(const UnpackParams& params, Launcher& launcher, void* stream, Status& status);

// Memory that copy_blocks_cuda needs besides its arguments: pools that overlap may name a page as source and target.
Offset copy_workspace_bytes(const CopyParams& params);
// All pages are read before any is written, as everywhere. Pairs outside the pools are skipped.
int copy_blocks_cuda(const CopyParams& params, void* workspace, Launcher& launcher, void* stream, Status& status);

}  // namespace dfc
