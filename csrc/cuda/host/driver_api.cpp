#include "cuda/host/driver_api.h"

#include <dlfcn.h>

namespace dfc {

namespace {

struct Symbol {
  const char* name;
  void** target;
  bool required;
};

template <class F>
Symbol symbol(const char* name, F*& target, bool required = true) {
  return Symbol{name, reinterpret_cast<void**>(&target), required};
}

}  // namespace

int open_driver_api(const std::string& library, DriverApi& api, Status& status) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays open: its threads outlive any caller
  if (handle == nullptr) {
    return fail(status, kUnsupported, "no CUDA driver: %s", dlerror());
  }
  const Symbol symbols[] = {
      symbol("cuInit", api.init),
      symbol("cuDeviceGet", api.device_get),
      symbol("cuDeviceGetAttribute", api.device_attribute),
      symbol("cuDevicePrimaryCtxRetain", api.retain_primary),
      symbol("cuCtxGetCurrent", api.get_current),
      symbol("cuCtxPushCurrent_v2", api.push_current),
      symbol("cuCtxPopCurrent_v2", api.pop_current),
      symbol("cuModuleLoadData", api.load_module),
      symbol("cuModuleGetFunction", api.get_function),
      symbol("cuFuncGetAttribute", api.function_attribute),
      symbol("cuFuncSetAttribute", api.set_function_attribute),
      symbol("cuLaunchKernel", api.launch),
      symbol("cuGetErrorString", api.error_string),
      symbol("cuThreadExchangeStreamCaptureMode", api.exchange_capture_mode),
      symbol("cuFuncGetParamInfo", api.parameter_info, false),
  };
  for (const Symbol& wanted : symbols) {
    *wanted.target = dlsym(handle, wanted.name);
    if (*wanted.target != nullptr || !wanted.required) continue;
    return fail(status, kUnsupported, "the CUDA driver %s is too old: it has no %s", library.c_str(), wanted.name);
  }
  return kOk;
}

int check_driver(const DriverApi& api, cu::Result result, const char* doing, Status& status) {
  if (result == 0) return kOk;
  const char* text = nullptr;
  if (api.error_string(result, &text) != 0 || text == nullptr) text = "unknown error";
  constexpr cu::Result kDriverOutOfMemory = 2;
  const Code code = result == kDriverOutOfMemory ? kOutOfMemory : kDeviceFailed;
  return fail(status, code, "CUDA, %s: %s (error %d)", doing, text, result);
}

}  // namespace dfc
