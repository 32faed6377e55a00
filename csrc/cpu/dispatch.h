// Chooses the ISA level once per process: the best one the machine has, or what DFC_CPU_ISA says.
#pragma once

#include "api/status.h"
#include "cpu/kernels.h"

namespace dfc {

// Levels of this build that this machine can run, best last; returns their number.
int usable_levels(const Kernels* const** levels);

// Null, with `status` filled, if DFC_CPU_ISA names a level that is unknown or that this machine lacks.
const Kernels* chosen_kernels(Status& status);

// Overrides the choice for this process; null restores it. For tests that compare levels.
int force_level(const char* name, Status& status);

}  // namespace dfc
