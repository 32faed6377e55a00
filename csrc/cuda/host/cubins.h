// Which cubin of a folder serves a kernel on a device.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace dfc {

// An architecture as files are named: sm_80, sm_90a. One with a letter runs on exactly that compute capability; one
// without on every later minor version of the same major version.
struct CubinArch {
  int number;
  bool exact;

  bool runs_on(int device) const { return exact ? number == device : number / 10 == device / 10 && number <= device; }
  std::string text() const;
};

// The files <kernel>.sm_XX.cubin of a folder, listed once.
class Cubins {
 public:
  explicit Cubins(const std::string& folder);

  // The file to load; empty if none runs on the device.
  std::string path(const std::string& kernel, int device) const;
  // What there is of a kernel, for messages: "sm_80, sm_90a" or "none".
  std::string built(const std::string& kernel) const;

  const std::string folder;

 private:
  std::map<std::string, std::vector<CubinArch>> archs_;
};

}  // namespace dfc
