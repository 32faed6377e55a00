// A libcuda.so.1 that writes down what it is asked, for tests of the launcher. One device; its capability and what
// fails are set by the test.
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>

namespace {
std::string diary;
int capability = 90, sm_count = 132, shared_limit = 232448;
int capture_mode = 1;
size_t argument_bytes = 0;  // 0: unknown
char failing[64] = "";
void* primary = reinterpret_cast<void*>(0x1000);
void* current = nullptr;
constexpr int kInvalidImage = 200;

template <class... Values>
int note(const char* name, const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  diary += std::string(name) + text + "\n";
  return std::strcmp(name, failing) == 0 ? kInvalidImage : 0;
}
}  // namespace

extern "C" {

const char* fake_diary() { return diary.c_str(); }
void fake_reset(int new_capability, int has_context, size_t new_argument_bytes, const char* what_fails) {
  diary.clear();
  capability = new_capability;
  current = has_context ? primary : nullptr;
  argument_bytes = new_argument_bytes;
  std::snprintf(failing, sizeof failing, "%s", what_fails);
}

int cuInit(unsigned flags) { return note("cuInit", " %u", flags); }
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return note("cuDeviceGet", " %d", ordinal);
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 16   ? sm_count
           : attribute == 75 ? capability / 10
           : attribute == 76 ? capability % 10
                             : shared_limit;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = primary;
  return note("cuDevicePrimaryCtxRetain", " %d", device);
}
int cuCtxGetCurrent(void** context) {
  *context = current;
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  current = context;
  return note("cuCtxPushCurrent", " %p", context);
}
int cuCtxPopCurrent_v2(void** context) {
  *context = current;
  current = nullptr;
  return note("cuCtxPopCurrent", "");
}
int cuModuleLoadData(void** module, const void* image) {
  *module = reinterpret_cast<void*>(0x2000);
  return note("cuModuleLoadData", " %.16s mode %d", static_cast<const char*>(image), capture_mode);
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = reinterpret_cast<void*>(0x3000);
  return note("cuModuleGetFunction", " %p %s", module, name);
}
int cuFuncGetAttribute(int* value, int attribute, void*) {
  *value = attribute == 1 ? 1024 : 0;
  return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  return note("cuFuncSetAttribute", " %p %d %d", function, attribute, value);
}
int cuFuncGetParamInfo(void*, size_t index, size_t* offset, size_t* bytes) {
  *offset = 0;
  *bytes = argument_bytes;
  return index == 0 && argument_bytes > 0 ? 0 : 1;
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** parameters, void**) {
  return note("cuLaunchKernel", " %p grid %u %u %u block %u %u %u shared %u stream %p argument %.5s", function, x, y, z,
              bx, by, bz, shared, stream, static_cast<const char*>(parameters[0]));
}
int cuGetErrorString(int, const char** text) {
  *text = "device kernel image is invalid";
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  const int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return 0;
}
}
