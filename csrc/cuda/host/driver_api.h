// The part of the CUDA driver API that the launcher calls, resolved with dlsym: neither the build nor a machine without
// a GPU needs CUDA. Types and numbers are those of cuda.h, which are stable by NVIDIA's promise.
#pragma once

#include <cstddef>
#include <string>

#include "api/status.h"

namespace dfc {

namespace cu {

using Result = int;
using Device = int;
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;

constexpr int kAttributeSmCount = 16, kAttributeMajor = 75, kAttributeMinor = 76, kAttributeSharedLimit = 97;
constexpr int kFunctionSharedBytes = 1, kFunctionMaxDynamicShared = 8;
constexpr int kCaptureRelaxed = 2;

}  // namespace cu

struct DriverApi {
  cu::Result (*init)(unsigned);
  cu::Result (*device_get)(cu::Device*, int);
  cu::Result (*device_attribute)(int*, int, cu::Device);
  cu::Result (*retain_primary)(cu::Context*, cu::Device);
  cu::Result (*get_current)(cu::Context*);
  cu::Result (*push_current)(cu::Context);
  cu::Result (*pop_current)(cu::Context*);
  cu::Result (*load_module)(cu::Module*, const void*);
  cu::Result (*get_function)(cu::Function*, cu::Module, const char*);
  cu::Result (*function_attribute)(int*, int, cu::Function);
  cu::Result (*set_function_attribute)(cu::Function, int, int);
  cu::Result (*launch)(cu::Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cu::Stream,
                       void**, void**);
  cu::Result (*error_string)(cu::Result, const char**);
  cu::Result (*exchange_capture_mode)(int*);
  cu::Result (*parameter_info)(cu::Function, size_t, size_t*, size_t*);  // null before CUDA 12.4
};

// Opens the driver and fills `api`; kUnsupported and a message where there is none.
int open_driver_api(const std::string& library, DriverApi& api, Status& status);

// kOk, or a code and what the driver calls the error.
int check_driver(const DriverApi& api, cu::Result result, const char* doing, Status& status);

}  // namespace dfc
