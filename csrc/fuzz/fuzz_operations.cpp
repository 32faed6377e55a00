// The fuzz target, for clang's libFuzzer or for driver.cpp: one input is one call of one operation on buffers of
// exactly the needed size. Results are compared with plain definitions, refused calls must not have written anything.
#include <string>

#include "cpu/dispatch.h"
#include "fuzz/targets.h"

using namespace dfc;

fuzz::Call fuzz::last_call;

namespace {

// Mostly the best ISA level of this machine, sometimes one of the others.
void choose_level(fuzz::Input& input) {
  const Kernels* const* levels;
  const int64_t count = usable_levels(&levels);
  const int64_t wish = input.below(8);
  Status status;
  force_level(levels[wish < count - 1 ? wish : count - 1]->name, status);
  fuzz::expect(status.code == kOk, status.message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const int64_t operation = input.below(8);
  choose_level(input);
  if (operation == 4)
    fuzz_attend(fuzz::Keys::kRagged, input);
  else if (operation == 5)
    fuzz_attend(fuzz::Keys::kPages, input);
  else if (operation == 6)
    fuzz_rows(input);
  else if (operation == 7)
    fuzz_copies(input);
  else
    fuzz_attend(fuzz::Keys::kPool, input);
  return 0;
}
