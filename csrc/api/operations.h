// The operations. Each checks all values before it writes anything and returns a Code; see status.h.
#pragma once

#include "api/params.h"
#include "api/status.h"

namespace dfc {

int append(const AppendParams& params, Status& status);
int unpack(const UnpackParams& params, Status& status);
int copy_blocks(const CopyParams& params, Status& status);
int attend(const AttendParams& params, Status& status);

}  // namespace dfc
