// Kernels through the CUDA driver.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cuda/host/cubins.h"
#include "cuda/host/driver_api.h"
#include "cuda/host/launcher.h"

namespace dfc {

namespace {

constexpr int kOldestArch = 80;
constexpr int kJetsons[] = {53, 62, 72, 87};  // other memory and other drivers, never tried

// Makes the device's primary context, which is torch's, current while it lives. Usually it is current already.
class Current {
 public:
  Current(const DriverApi& api, cu::Context wanted, Status& status) : api_(api) {
    cu::Context now = nullptr;
    if (check_driver(api, api.get_current(&now), "cuCtxGetCurrent", status) || now == wanted) return;
    pushed_ = check_driver(api, api.push_current(wanted), "cuCtxPushCurrent", status) == kOk;
  }
  ~Current() {
    cu::Context popped;
    if (pushed_) api_.pop_current(&popped);
  }
  Current(const Current&) = delete;

 private:
  const DriverApi& api_;
  bool pushed_ = false;
};

// A module may be loaded while a stream is captured: loading enqueues nothing that the graph would have to replay.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const DriverApi& api) : api_(api) { api_.exchange_capture_mode(&mode_); }
  ~RelaxedCapture() { api_.exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;

 private:
  const DriverApi& api_;
  int mode_ = cu::kCaptureRelaxed;
};

class DriverLauncher : public Launcher {
 public:
  DriverLauncher(const DriverApi& api, cu::Context context, const std::string& folder, const DeviceFacts& facts)
      : Launcher(facts), api_(api), context_(context), cubins_(folder) {}

  int find(const char* kernel, Status& status) override {
    if (!cubins_.path(kernel, facts.arch).empty()) return kOk;
    return fail(status, kUnsupported,
                "no GPU code of %s for sm_%d; built: %s; build it with: make cuda DFC_CUDA_ARCHS=%d", kernel,
                facts.arch, cubins_.built(kernel).c_str(), facts.arch);
  }

  int launch(const Launch& launch, void* stream, Status& status) override {
    const Current current(api_, context_, status);
    if (status.code != kOk) return status.code;
    cu::Function function = nullptr;
    if (int code = loaded(launch, function, status)) return code;
    void* parameters[] = {const_cast<void*>(launch.args)};
    const unsigned* grid = launch.grid;
    const cu::Result result = api_.launch(function, grid[0], grid[1], grid[2], launch.threads, 1, 1,
                                          launch.shared_bytes, stream, parameters, nullptr);
    return result == 0 ? kOk : check_driver(api_, result, launch.kernel, status);
  }

 private:
  const DriverApi api_;
  const cu::Context context_;
  const Cubins cubins_;
  std::mutex mutex_;
  std::unordered_map<std::string, cu::Function> functions_;  // by kernel; modules stay loaded

  int loaded(const Launch& launch, cu::Function& function, Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = functions_.find(launch.kernel);
    if (found != functions_.end()) {
      function = found->second;
      return kOk;
    }
    if (int code = find(launch.kernel, status)) return code;
    if (int code = load(launch.kernel, function, status)) return code;
    if (int code = check_argument(launch, function, status)) return code;
    functions_.emplace(launch.kernel, function);
    return kOk;
  }

  int load(const char* kernel, cu::Function& function, Status& status) {
    const std::string path = cubins_.path(kernel, facts.arch);
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (image.empty()) return fail(status, kUnsupported, "%s: cannot be read", path.c_str());
    const RelaxedCapture relaxed(api_);
    cu::Module module = nullptr;
    int code = check_driver(api_, api_.load_module(&module, image.data()), path.c_str(), status);
    if (code == kOk) code = check_driver(api_, api_.get_function(&function, module, kernel), kernel, status);
    return code == kOk ? allow_shared(kernel, function, status) : code;
  }

  // Blocks may ask for all the shared memory there is; a launch says how much it needs.
  int allow_shared(const char* kernel, cu::Function function, Status& status) {
    int fixed = 0;
    int code = check_driver(api_, api_.function_attribute(&fixed, cu::kFunctionSharedBytes, function), kernel, status);
    if (code != kOk) return code;
    const int most = facts.shared_limit - fixed;
    return check_driver(api_, api_.set_function_attribute(function, cu::kFunctionMaxDynamicShared, most), kernel,
                        status);
  }

  // A cubin of another version of the argument would be given bytes that it reads as something else.
  int check_argument(const Launch& launch, cu::Function function, Status& status) {
    size_t offset = 0, bytes = 0;
    if (api_.parameter_info == nullptr || api_.parameter_info(function, 0, &offset, &bytes) != 0) return kOk;
    if (bytes == launch.args_bytes) return kOk;
    return fail(status, kDeviceFailed,
                "%s: the cubin takes an argument of %zu bytes, this build passes %zu; run: make cuda", launch.kernel,
                bytes, launch.args_bytes);
  }
};

int ask_device(const DriverApi& api, cu::Device device, DeviceFacts& facts, Status& status) {
  int major = 0, minor = 0;
  const struct {
    int attribute;
    int* value;
  } questions[] = {{cu::kAttributeSmCount, &facts.sm_count},
                   {cu::kAttributeMajor, &major},
                   {cu::kAttributeMinor, &minor},
                   {cu::kAttributeSharedLimit, &facts.shared_limit}};
  for (const auto& question : questions) {
    const cu::Result result = api.device_attribute(question.value, question.attribute, device);
    if (int code = check_driver(api, result, "cuDeviceGetAttribute", status)) return code;
  }
  facts.arch = 10 * major + minor;
  return kOk;
}

}  // namespace

int refuse_device(int device, int arch, Status& status) {
  for (int jetson : kJetsons) {
    if (arch != jetson) continue;
    return fail(status, kUnsupported, "GPU %d is a Jetson (sm_%d), which is not served", device, arch);
  }
  if (arch >= kOldestArch) return kOk;
  return fail(status, kUnsupported, "GPU %d is an sm_%d; sm_%d is the oldest that is served", device, arch,
              kOldestArch);
}

std::unique_ptr<Launcher> open_driver(const std::string& library, int ordinal, const std::string& folder,
                                      Status& status) {
  DriverApi api{};
  DeviceFacts facts{};
  cu::Device device = 0;
  cu::Context context = nullptr;
  if (open_driver_api(library, api, status)) return nullptr;
  if (check_driver(api, api.init(0), "cuInit", status)) return nullptr;
  if (check_driver(api, api.device_get(&device, ordinal), "cuDeviceGet", status)) return nullptr;
  if (ask_device(api, device, facts, status) || refuse_device(ordinal, facts.arch, status)) return nullptr;
  if (check_driver(api, api.retain_primary(&context, device), "cuDevicePrimaryCtxRetain", status)) return nullptr;
  return std::make_unique<DriverLauncher>(api, context, folder, facts);
}

}  // namespace dfc
