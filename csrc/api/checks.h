// Checks of values, before anything is written. The wording is that of spec.
#pragma once

#include "api/params.h"
#include "api/status.h"

namespace dfc {

int check_slots(const AppendParams& params, Status& status);
int check_pairs(const CopyParams& params, Status& status);
int check_ragged(const AttendParams& params, Status& status);

}  // namespace dfc
