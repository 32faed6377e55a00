// Memory of exactly the size an operation may touch, so that AddressSanitizer sees every access beyond it.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "fuzz/input.h"
#include "fuzz/numbers.h"

namespace dfc {
namespace fuzz {

constexpr int kNan = 0xff;  // as every byte: a NaN in every storage type

class Buffer {
 public:
  Buffer() = default;

  // Starts `shift` bytes after what the allocator aligned. Of no size: null, as torch gives it.
  Buffer(Offset bytes, Offset shift, int filling) : bytes_(static_cast<size_t>(bytes)), shift_(shift) {
    if (bytes == 0) return;
    memory_.reset(new char[static_cast<size_t>(shift + bytes)]);
    std::memset(data(), filling, bytes_);
  }

  template <class T>
  explicit Buffer(const std::vector<T>& items) : Buffer(static_cast<Offset>(items.size() * sizeof(T)), 0, 0) {
    if (bytes_ > 0) std::memcpy(data(), items.data(), bytes_);
  }

  char* data() const { return memory_ ? memory_.get() + shift_ : nullptr; }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }

  std::vector<char> copy() const { return std::vector<char>(data(), data() + bytes_); }

  bool equals(const std::vector<char>& other) const {
    return other.size() == bytes_ && (bytes_ == 0 || std::memcmp(other.data(), data(), bytes_) == 0);
  }

 private:
  size_t bytes_ = 0;
  Offset shift_ = 0;
  std::unique_ptr<char[]> memory_;
};

// [pages, tokens, heads, columns] with gaps, or with heads outside tokens; ends with its last element.
struct StridedRows {
  Dtype dtype;
  Offset pages, tokens, heads, columns;
  Offset token_stride, head_stride, page_stride;
  Buffer memory;

  StridedRows(Dtype type, Offset num_pages, Offset num_tokens, Offset num_heads, Offset num_columns, Input& input)
      : dtype(type), pages(num_pages), tokens(num_tokens), heads(num_heads), columns(num_columns) {
    const Offset gap = input.one_in(2) ? input.below(9) : 0;
    const bool heads_outside = input.one_in(4);
    token_stride = heads_outside ? columns + gap : heads * (columns + gap) + gap;
    head_stride = heads_outside ? larger(1, tokens) * (columns + gap) : columns + gap;
    page_stride = heads * larger(1, tokens) * (columns + gap) + larger(1, tokens) * gap;
    const bool empty = pages * tokens == 0;
    const Offset elements = empty ? 0 : element(pages - 1, tokens - 1, heads - 1) + columns;
    const Offset shift = input.one_in(2) ? input.below(16) : 0;
    memory = Buffer(elements * item_bytes(dtype), shift * item_bytes(dtype), kNan);
  }

  Offset element(Offset page, Offset token, Offset head) const {
    return page * page_stride + token * token_stride + head * head_stride;
  }

  char* row(Offset page, Offset token, Offset head) const {
    return memory.data() + element(page, token, head) * item_bytes(dtype);
  }

  Rows rows() const { return Rows{memory.data(), token_stride, head_stride}; }

  void fill(Offset page, Offset token, Range range, Random& random) {
    for (Offset head = 0; head < heads; ++head) {
      char* target = row(page, token, head);
      for (Offset i = 0; i < columns; ++i) put_bits(dtype, target, i, random_bits(dtype, range, random));
    }
  }
};

}  // namespace fuzz
}  // namespace dfc
