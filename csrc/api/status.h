// Result of an API call: a code and a message for the user. Nothing throws across the API, nothing ever exits.
#pragma once

namespace dfc {

enum Code : int {
  kOk = 0,
  kInvalidValue = 1,  // an argument's value is not accepted; nothing was written
  kOutOfMemory = 2,
  kUnsupported = 3,  // this build has no implementation; ops uses the specification instead
  kDeviceFailed = 4,  // the CUDA driver or the emulator reported an error
};

struct Status {
  int code = kOk;
  char message[256] = "";
};

// Fills `status` with a formatted message and returns `code`.
__attribute__((format(printf, 3, 4))) int fail(Status& status, Code code, const char* format, ...);

}  // namespace dfc
