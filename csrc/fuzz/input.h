// What a fuzz input decodes into: choices from its bytes, data from a generator that a few of the bytes seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace dfc {
namespace fuzz {

// An operation gave a wrong result. libFuzzer reports it as an uncaught exception, driver.cpp catches it.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw Mismatch(what);
}

// What an input turned out to be; for the corpus and for driver.cpp to count.
struct Call {
  std::string kind;
  int64_t size = 0;  // rows of the result
};
extern Call last_call;

// splitmix64
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

  int64_t below(int64_t count) { return static_cast<int64_t>(next() % static_cast<uint64_t>(count)); }

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[next() % i]);
  }

 private:
  uint64_t state_;
};

// Reads choices one after another. Past the end every choice is 0, so any byte string is a valid input.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}

  int64_t below(int64_t count) {
    const int64_t low = byte();
    return (count > 256 ? low + 256 * byte() : low) % count;
  }

  int64_t between(int64_t least, int64_t most) { return least + below(most - least + 1); }

  bool one_in(int64_t count) { return below(count) == count - 1; }

  template <class T, size_t N>
  T pick(const T (&choices)[N]) {
    return choices[below(N)];
  }

  Random random() {
    const int64_t low = below(1 << 16);
    return Random(static_cast<uint64_t>(low + (below(1 << 16) << 16)));
  }

 private:
  const uint8_t *data_, *end_;

  int64_t byte() { return data_ < end_ ? *data_++ : 0; }
};

}  // namespace fuzz
}  // namespace dfc
