// One call of attend as an input describes it: over a pool, ragged rows or pages of plain rows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/operations.h"
#include "fuzz/exact_attend.h"
#include "fuzz/memory.h"
#include "fuzz/pool_layout.h"

namespace dfc {
namespace fuzz {

enum class Keys { kPool, kRagged, kPages };

class AttendCase {
 public:
  AttendCase(Keys kind, Input& input);

  // Makes one value wrong that the call must refuse; false if this case has none of the chosen kind.
  bool spoil(Input& input);

  std::string kind(bool refused) const;

  AttendParams params{};
  Mask mask{};
  Numbers numbers;
  KeyRows row_of;
  std::unique_ptr<StridedRows> query, out;
  Buffer lse;

 private:
  Keys kind_;
  Random random_;
  std::unique_ptr<PoolLayout> pool_layout_;
  std::unique_ptr<StridedRows> key_, value_;
  Offset page_tokens_ = 0, num_pages_ = 0, group_ = 1;
  std::vector<int32_t> q_lens_, kv_lens_, first_;
  Buffer cache_, table_, starts_, lengths_, first_keys_, key_starts_, sinks_;

  void choose_sizes(Input& input);
  void choose_lengths(Input& input);
  void choose_mask(Input& input);
  void place_ragged(Input& input);
  void place_pages(Input& input);
  void find_seen_keys();
  void write_pool(Input& input);
  void write_plain(Input& input);
  void append_rows(const std::vector<Offset>& places, Input& input);
  void make_query(Input& input);
  Offset place_of(Offset b, Offset key) const;
  Offset num_places() const { return num_pages_ * page_tokens_; }
  Range range() const;
};

}  // namespace fuzz
}  // namespace dfc
