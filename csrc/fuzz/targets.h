// One operation each; they throw Mismatch.
#pragma once

#include "fuzz/attend_case.h"

namespace dfc {
namespace fuzz {

void fuzz_attend(Keys kind, Input& input);
void fuzz_rows(Input& input);  // append and unpack
void fuzz_copies(Input& input);

}  // namespace fuzz
}  // namespace dfc
