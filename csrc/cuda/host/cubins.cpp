#include "cuda/host/cubins.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace dfc {

std::string CubinArch::text() const { return "sm_" + std::to_string(number) + (exact ? "a" : ""); }

Cubins::Cubins(const std::string& given) : folder(given) {
  std::error_code none;  // a folder that is not there holds no files
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    const size_t dot = name.find(".sm_"), end = name.rfind(".cubin");
    if (dot == std::string::npos || end == std::string::npos || end < dot) continue;
    char* rest = nullptr;
    const auto number = static_cast<int>(std::strtol(name.c_str() + dot + 4, &rest, 10));
    const std::string letter(static_cast<const char*>(rest), name.c_str() + end);
    if (number > 0 && letter.size() <= 1) archs_[name.substr(0, dot)].push_back(CubinArch{number, !letter.empty()});
  }
  for (auto& [kernel, archs] : archs_) {
    std::sort(archs.begin(), archs.end(), [](const CubinArch& a, const CubinArch& b) { return a.number < b.number; });
  }
}

std::string Cubins::path(const std::string& kernel, int device) const {
  const auto found = archs_.find(kernel);
  if (found == archs_.end()) return "";
  const CubinArch* best = nullptr;
  for (const CubinArch& arch : found->second) {
    if (!arch.runs_on(device)) continue;
    const bool better =
        best == nullptr || arch.exact > best->exact || (arch.exact == best->exact && arch.number > best->number);
    if (better) best = &arch;
  }
  return best == nullptr ? "" : folder + "/" + kernel + "." + best->text() + ".cubin";
}

std::string Cubins::built(const std::string& kernel) const {
  const auto found = archs_.find(kernel);
  if (found == archs_.end()) return "none";
  std::string text;
  for (const CubinArch& arch : found->second) text += (text.empty() ? "" : ", ") + arch.text();
  return text;
}

}  // namespace dfc
