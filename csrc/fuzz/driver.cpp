// Runs the fuzz target where there is no libFuzzer: every input of a corpus, then inputs mutated from them.
//
//   fuzz CORPUS [RUNS [SEED]]        CORPUS is a folder or one file; exit code 1 on a mismatch
//   fuzz --make-corpus FOLDER        writes the corpus of tests/fuzz
//
// The input that runs lies in <program>.input, so it is there after an error report of a sanitizer too; run it alone by
// giving it as CORPUS.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "fuzz/input.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;
using dfc::fuzz::last_call;
using dfc::fuzz::Random;
using Bytes = std::vector<uint8_t>;

constexpr size_t kMostBytes = 400;

Bytes read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

void write_file(const fs::path& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

std::vector<fs::path> corpus_files(const fs::path& corpus) {
  if (!fs::is_directory(corpus)) return {corpus};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(corpus)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string running;  // name of the input that runs

void say_which() {
  std::printf("%s failed\n", running.c_str());
  std::fflush(stdout);
}

bool run(const Bytes& input, const std::string& name, const fs::path& place) {
  running = name + ", kept in " + place.string() + ",";
  write_file(place, input);
  try {
    LLVMFuzzerTestOneInput(input.data(), input.size());
    return true;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    say_which();
    return false;
  }
}

void mutate_once(Bytes& bytes, const Bytes& other, Random& random) {
  const auto size = static_cast<int64_t>(bytes.size());
  const auto place = size > 0 ? static_cast<size_t>(random.below(size)) : 0;
  const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(place);
  const int64_t kind = random.below(8);
  if (size == 0 || (kind == 0 && bytes.size() < kMostBytes)) {
    bytes.insert(at, static_cast<uint8_t>(random.next()));
  } else if (kind == 1) {
    bytes.erase(at);
  } else if (kind == 2) {
    *at = static_cast<uint8_t>(*at ^ 1 << random.below(8));
  } else if (kind == 3) {
    *at = static_cast<uint8_t>(*at + random.below(9) - 4);
  } else if (kind == 4 && place < other.size()) {
    std::copy(other.begin() + static_cast<std::ptrdiff_t>(place),
              other.begin() + static_cast<std::ptrdiff_t>(std::min(other.size(), bytes.size())), at);
  } else {
    *at = static_cast<uint8_t>(random.next());
  }
}

Bytes mutated(const std::vector<Bytes>& corpus, Random& random) {
  const auto any = [&]() -> const Bytes& { return corpus[random.next() % corpus.size()]; };
  Bytes bytes = any();
  for (int64_t i = random.below(12); i >= 0; --i) mutate_once(bytes, any(), random);
  if (bytes.size() > 1 && random.below(2) == 0) bytes[1] = static_cast<uint8_t>(random.next());  // the ISA level
  return bytes;
}

// Random inputs, one for each kind of call.
int make_corpus(const char* program, const fs::path& folder) {
  fs::create_directories(folder);
  Random random(1);
  std::map<std::string, Bytes> found;
  for (int n = 0; n < 4000; ++n) {
    Bytes bytes(static_cast<size_t>(100 + random.below(60)));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next());
    bytes[1] = 7;  // the best ISA level
    if (!run(bytes, "new input", std::string(program) + ".input")) return 1;
    if (last_call.size > 3) found.emplace(last_call.kind, bytes);
  }
  for (auto& [kind, bytes] : found) {
    std::string name = kind;
    std::replace(name.begin(), name.end(), ' ', '-');
    write_file(folder / name, bytes);
  }
  return 0;
}

int fuzz(const char* program, const fs::path& folder, long runs, unsigned long seed) {
  const auto start = std::chrono::steady_clock::now();
  const fs::path place = std::string(program) + ".input";
  std::vector<Bytes> corpus;
  std::set<std::string> kinds;
  for (const fs::path& file : corpus_files(folder)) {
    corpus.push_back(read_file(file));
    if (!run(corpus.back(), file.string(), place)) return 1;
    kinds.insert(last_call.kind);
  }
  std::printf("%zu inputs of %s\n", corpus.size(), folder.c_str());
  if (corpus.empty()) return 1;
  Random random(seed);
  for (long i = 1; i <= runs; ++i) {
    if (!run(mutated(corpus, random), "mutated input " + std::to_string(i), place)) return 1;
    kinds.insert(last_call.kind);
    if (i % 500 == 0) std::printf("%ld mutated inputs\n", i);
    std::fflush(stdout);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("passed: %zu inputs and %ld mutated from them with seed %lu, %zu kinds of calls, %.1f s\n", corpus.size(),
              runs, seed, kinds.size(), seconds.count());
  fs::remove(place);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_set_death_callback(say_which);
#endif
  if (count == 3 && std::string(arguments[1]) == "--make-corpus") {
    return make_corpus(arguments[0], arguments[2]);
  }
  if (count < 2 || count > 4 || !fs::exists(arguments[1])) {
    std::fprintf(stderr, "usage: %s CORPUS [RUNS [SEED]] | --make-corpus FOLDER\n", arguments[0]);
    return 2;
  }
  const long runs = count > 2 ? std::strtol(arguments[2], nullptr, 10) : 0;
  const unsigned long seed = count > 3 ? std::strtoul(arguments[3], nullptr, 10) : 1;
  return fuzz(arguments[0], arguments[1], runs, seed);
}
