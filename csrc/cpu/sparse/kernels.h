// The ISA-specific code of sparse decode; built once per level, like cpu/kernels.h, and under the same rules.
#pragma once

#include "cpu/sparse/params.h"

namespace dfc {

struct SparseKernels {
  // Writes the record of one full group: tokens [first, first + 64) of page `block`. Indexed by the storage dtype.
  void (*summarise[kNumDtypes])(const SummariseParams&, Offset block, Offset head, Offset group, float* scratch);
  Offset (*summarise_floats)(const Layout& layout);
  // Writes the mass of one (sequence, kv head).
  void (*score[kNumDtypes])(const ScoreParams&, Offset sequence, Offset head, float* scratch);
  Offset (*score_floats)(const ScoreParams& params, Offset kv_len);
};

}  // namespace dfc
