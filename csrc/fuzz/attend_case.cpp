#include "fuzz/attend_case.h"

#include <algorithm>
#include <climits>
#include <numeric>

namespace dfc {
namespace fuzz {

namespace {

constexpr Offset kMostWork = 1500000;          // multiply-adds of the definition
constexpr Offset kMostPoolBytes = Offset{3} << 20;
constexpr int32_t kUnusedEntries[] = {INT_MAX, -1, INT_MIN, 12345};

const Offset kOneTile = 0;

}  // namespace

AttendCase::AttendCase(Keys kind, Input& input) : kind_(kind), random_(input.random()) {
  choose_sizes(input);
  choose_lengths(input);
  choose_mask(input);
  if (kind_ == Keys::kRagged)
    place_ragged(input);
  else
    place_pages(input);
  starts_ = Buffer([&] {
    std::vector<int32_t> starts(1);
    for (const int32_t length : q_lens_) starts.push_back(starts.back() + length);
    return starts;
  }());
  lengths_ = Buffer(kv_lens_);
  params.batch = static_cast<Offset>(q_lens_.size());
  params.cu_seqlens_q = starts_.as<int32_t>();
  params.kv_lens = lengths_.as<int32_t>();
  find_seen_keys();
  if (kind_ == Keys::kPool)
    write_pool(input);
  else
    write_plain(input);
  make_query(input);
}

void AttendCase::choose_sizes(Input& input) {
  group_ = input.one_in(4) ? input.between(1, 20) : input.pick({1, 2, 4, 8});
  if (kind_ == Keys::kPool) {
    pool_layout_ = std::make_unique<PoolLayout>(input);
    params.storage = pool_layout_->storage;
    page_tokens_ = params.storage.layout.page_tokens;
  } else {
    static const Offset usual[] = {64, 128, 80, 32, 1, 3, 20, 96, 256};
    const auto dtype = static_cast<Dtype>(input.below(kNumDtypes));
    LayoutSpec spec{};
    spec.item_bytes = item_bytes(dtype);
    spec.num_kv_heads = input.between(1, 3);
    spec.head_size = input.one_in(3) ? input.between(1, 200) : input.pick(usual);
    spec.head_size_v = input.one_in(2) ? input.between(1, 200) : spec.head_size;
    spec.block_size = kPlainBlockRows;
    spec.extent = 1;
    page_tokens_ = input.between(1, 150);
    params.storage = Storage{make_row_layout(spec, page_tokens_), dtype, &kOneTile, &kOneTile};
    params.plain = true;
  }
  params.num_heads = params.storage.layout.spec.num_kv_heads * group_;
  params.threads = static_cast<int>(input.between(1, 2));
  params.k_scale = params.v_scale = 1.0f;
  if (!is_fp8(params.storage.dtype)) return;
  params.k_scale = input.pick({1.0f, 0.5f, 2.7f, 0.01f});
  params.v_scale = input.pick({1.0f, 0.5f, 2.7f, 0.01f});
}

void AttendCase::choose_lengths(Input& input) {
  const LayoutSpec& spec = params.storage.layout.spec;
  const Offset batch = input.below(6);
  const Offset page_bytes = pool_layout_ ? params.storage.layout.page_bytes : 0;
  Offset pool_bytes = 0;
  for (Offset b = 0; b < batch; ++b) {
    Offset kv_len = input.one_in(8) ? input.below(1300) : input.below(301);
    if (input.one_in(4)) kv_len = kv_len / 32 * 32 + input.below(3) - 1;
    kv_len = larger(0, kv_len);
    if (page_bytes > 0) {
      const Offset room = larger(0, kMostPoolBytes - pool_bytes) / page_bytes;
      kv_len = smaller(kv_len, room * page_tokens_);
      pool_bytes += ceil_div(kv_len, page_tokens_) * page_bytes;
    }
    const Offset q_len = input.one_in(2) ? 1 : input.one_in(3) ? input.below(301) : input.below(20);
    const Offset per_row = (kv_len + 1) * params.num_heads * (spec.head_size + spec.head_size_v);
    const Offset most_rows = kMostWork / larger(1, batch) / per_row;
    q_lens_.push_back(static_cast<int32_t>(smaller(q_len, larger(1, most_rows))));
    kv_lens_.push_back(static_cast<int32_t>(kv_len));
  }
}

void AttendCase::choose_mask(Input& input) {
  mask.causal = !input.one_in(3);
  mask.window_left = input.one_in(3) ? input.pick({0, 1, 7, 31, 32, 63, 64, 65, 200, INT_MAX}) : -1;
  mask.window_right = input.one_in(3) ? input.pick({0, 1, 7, 31, 32, 63, 64, 65, 200, INT_MAX}) : -1;
  params.causal = mask.causal;
  params.window_left = mask.window_left;
  params.window_right = mask.window_right;
  params.softcap = input.one_in(4) ? input.pick({30.0f, 1.0f, 0.001f, 1e6f}) : 0.0f;
  const auto depth = static_cast<double>(params.storage.layout.spec.head_size);
  params.softmax_scale = input.pick({static_cast<float>(1 / std::sqrt(depth)), 0.5f, 0.0f, -0.3f});
  if (!input.one_in(4)) return;
  std::vector<float> sinks(static_cast<size_t>(params.num_heads));
  for (float& sink : sinks) sink = static_cast<float>(random_.below(64)) / 8.0f - 4.0f;
  if (input.one_in(4)) sinks[0] = input.pick({-INFINITY, 90.0f, -90.0f});
  sinks_ = Buffer(sinks);
  params.sinks = sinks_.as<float>();
}

// Every sequence owns as many rows as it uses, or more.
void AttendCase::place_ragged(Input& input) {
  static const int32_t only_page = 0;
  std::vector<int32_t> starts(1);
  for (const int32_t length : kv_lens_) {
    first_.push_back(starts.back());
    const Offset unused = input.one_in(2) ? input.below(40) : 0;
    starts.push_back(starts.back() + length + static_cast<int32_t>(unused));
  }
  page_tokens_ = starts.back() + (input.one_in(4) ? input.below(40) : 0);
  num_pages_ = 1;
  params.storage.layout.page_tokens = page_tokens_;
  key_starts_ = Buffer(starts);
  params.rows.first = params.rows.cu_seqlens_k = key_starts_.as<int32_t>();
  params.num_blocks = params.max_blocks = 1;
  params.block_table = &only_page;
}

// Shuffled pages; a sequence may start with the pages of the one before it. Unused table entries are out of range.
void AttendCase::place_pages(Input& input) {
  const bool offsets = kind_ == Keys::kPages && input.one_in(3), share = input.one_in(4);
  std::vector<Offset> counts;
  for (const int32_t length : kv_lens_) {
    first_.push_back(offsets ? static_cast<int32_t>(input.below(2 * page_tokens_)) : 0);
    counts.push_back(ceil_div(first_.back() + length, page_tokens_));
  }
  const Offset needed = std::accumulate(counts.begin(), counts.end(), Offset{0});
  num_pages_ = needed + input.below(3);
  std::vector<int32_t> pages(static_cast<size_t>(num_pages_));
  std::iota(pages.begin(), pages.end(), 0);
  random_.shuffle(pages);
  Offset width = input.below(3);
  for (const Offset count : counts) width = larger(width, count + (offsets ? 2 : 0));
  const Offset stride = width + input.below(3);
  std::vector<int32_t> table(counts.size() * static_cast<size_t>(stride));
  for (int32_t& entry : table) entry = kUnusedEntries[random_.below(4)];
  size_t next = 0;
  for (size_t b = 0; b < counts.size(); ++b) {
    int32_t* row = table.data() + b * static_cast<size_t>(stride);
    for (Offset i = first_[b] / page_tokens_; i < counts[b]; ++i) row[i] = pages[next++];
    if (share && b > 0 && counts[b] > 1 && counts[b - 1] > 1 && !offsets) row[0] = row[-stride];
  }
  if (!table.empty()) table.resize(table.size() - static_cast<size_t>(stride - width));  // ends with the last entry
  table_ = Buffer(table);
  params.block_table = table_.as<int32_t>();
  params.table_stride = stride;
  params.max_blocks = width;
  params.num_blocks = num_pages_;
  if (offsets) first_keys_ = Buffer(first_);
  params.rows.first = first_keys_.as<int32_t>();
}

Offset AttendCase::place_of(Offset b, Offset key) const {
  const Offset token = first_[static_cast<size_t>(b)] + key;
  const Offset page = params.block_table[b * params.table_stride + token / page_tokens_];
  return page * page_tokens_ + token % page_tokens_;
}

void AttendCase::find_seen_keys() {
  for (Offset b = 0; b < params.batch; ++b) {
    const Offset q_len = q_lens_[static_cast<size_t>(b)], kv_len = kv_lens_[static_cast<size_t>(b)];
    std::vector<Offset> rows(static_cast<size_t>(kv_len), -1);
    for (Offset j = 0; j < kv_len; ++j) {
      bool seen = false;
      for (Offset i = 0; i < q_len && !seen; ++i) seen = mask.shows(q_len, kv_len, i, j);
      if (seen) rows[static_cast<size_t>(j)] = place_of(b, j);  // its place for now, see write_*
    }
    row_of.push_back(rows);
  }
}

}  // namespace fuzz
}  // namespace dfc
