// Attention in double precision, key by key as the definition says it. Shares nothing with the code under test.
#pragma once

#include <vector>

#include "api/params.h"

namespace dfc {
namespace fuzz {

struct Mask {
  bool causal;
  Offset window_left, window_right;

  // Does query row `row` of a sequence see key `key`?
  bool shows(Offset q_len, Offset kv_len, Offset row, Offset key) const {
    const Offset position = kv_len - q_len + row;
    if (causal && key > position) return false;
    if (window_left >= 0 && key < position - window_left) return false;
    return causal || window_right < 0 || key <= position + window_right;
  }
};

// Numbers of the keys and values that some query sees, [rows, kv heads, columns].
struct Numbers {
  std::vector<double> keys, values;
};

// Where key j of sequence b is in Numbers: row_of[b][j]; -1 if no query sees it.
using KeyRows = std::vector<std::vector<Offset>>;

struct Exact {
  double lse, longest_logit;       // what |logit| can reach before rounding: sum over columns of |q| |k|
  std::vector<double> out, size;   // size: weighted sum of |v|, what rounding errors are relative to
};

// One query row [head_size] of head `head`, row `row` of sequence `b`.
Exact exact_row(const AttendParams& params, const Mask& mask, const Numbers& numbers, const KeyRows& row_of, Offset b,
                Offset row, Offset head, const std::vector<double>& query);

}  // namespace fuzz
}  // namespace dfc
