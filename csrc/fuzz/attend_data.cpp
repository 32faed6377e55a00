// The second half of AttendCase: keys, values and queries, and values that must be refused.
#include <algorithm>
#include <climits>
#include <iterator>

#include "fuzz/attend_case.h"

namespace dfc {
namespace fuzz {

namespace {

void add_numbers(const char* row, Dtype dtype, Offset columns, std::vector<double>& numbers) {
  for (Offset i = 0; i < columns; ++i) numbers.push_back(value_at(dtype, row, i));
}

// Places that are seen -> rows in order of the places; row_of then counts rows.
std::vector<Offset> number_rows(KeyRows& row_of) {
  std::vector<Offset> places;
  for (const auto& rows : row_of)
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(places), [](Offset place) { return place >= 0; });
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  for (auto& rows : row_of) {
    for (Offset& row : rows) {
      if (row >= 0) row = std::lower_bound(places.begin(), places.end(), row) - places.begin();
    }
  }
  return places;
}

}  // namespace

Range AttendCase::range() const { return params.storage.dtype == Dtype::kFp8E4m3 ? Range{-6, 2} : Range{-5, 2}; }

void AttendCase::write_pool(Input& input) {
  const Offset shift = input.one_in(2) ? input.below(64) * item_bytes(params.storage.dtype) : 0;
  cache_ = Buffer(params.num_blocks * params.storage.layout.page_bytes, shift, kNan);
  params.cache = cache_.data();
  append_rows(number_rows(row_of), input);
}

// Writes seen slots in shuffled order; some rows are skipped (slot -1), some overwritten by a later one.
void AttendCase::append_rows(const std::vector<Offset>& places, Input& input) {
  const LayoutSpec& spec = params.storage.layout.spec;
  const Dtype dtype = params.storage.dtype;
  const auto source = is_fp8(dtype) ? static_cast<Dtype>(input.below(3)) : dtype;
  std::vector<Offset> order(places.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<Offset>(i);
  random_.shuffle(order);
  std::vector<int64_t> slots;
  for (const Offset row : order) {
    if (random_.below(8) == 0) slots.push_back(-1);
    if (random_.below(8) == 0) slots.push_back(places[static_cast<size_t>(order[0])]);
    slots.push_back(places[static_cast<size_t>(row)]);
  }
  if (!order.empty()) slots.push_back(places[static_cast<size_t>(order[0])]);
  const auto count = static_cast<Offset>(slots.size());
  StridedRows key(source, 1, count, spec.num_kv_heads, spec.head_size, input);
  StridedRows value(source, 1, count, spec.num_kv_heads, spec.head_size_v, input);
  const auto total = places.size() * static_cast<size_t>(spec.num_kv_heads);
  numbers.keys.resize(total * static_cast<size_t>(spec.head_size));
  numbers.values.resize(total * static_cast<size_t>(spec.head_size_v));
  const auto keep = [&](const StridedRows& rows, Offset i, size_t place, float scale, std::vector<double>& kept) {
    double* target = kept.data() + static_cast<Offset>(place) * rows.heads * rows.columns;
    for (Offset head = 0; head < rows.heads; ++head) {
      const char* row = rows.row(0, i, head);
      for (Offset d = 0; d < rows.columns; ++d) {
        const double number = value_at(source, row, d);
        const float scaled = static_cast<float>(number) / scale;
        *target++ = is_fp8(dtype) ? value_of(dtype, nearest_fp8(dtype, scaled)) : number;
      }
    }
  };
  for (Offset i = 0; i < count; ++i) {
    const int64_t slot = slots[static_cast<size_t>(i)];
    if (slot < 0) continue;  // its row stays NaN
    key.fill(0, i, range(), random_);
    value.fill(0, i, range(), random_);
    const auto place = static_cast<size_t>(std::lower_bound(places.begin(), places.end(), slot) - places.begin());
    keep(key, i, place, params.k_scale, numbers.keys);
    keep(value, i, place, params.v_scale, numbers.values);
  }
  const Buffer mapping(slots);
  const AppendParams append_params{params.storage, key.rows(),        value.rows(),          source,
                                   cache_.data(),  params.num_blocks, mapping.as<int64_t>(), count,
                                   params.k_scale, params.v_scale,    params.threads};
  Status status;
  expect(append(append_params, status) == kOk, std::string("append refused: ") + status.message);
}

void AttendCase::write_plain(Input& input) {
  const LayoutSpec& spec = params.storage.layout.spec;
  const Dtype dtype = params.storage.dtype;
  key_ = std::make_unique<StridedRows>(dtype, num_pages_, page_tokens_, spec.num_kv_heads, spec.head_size, input);
  value_ = std::make_unique<StridedRows>(dtype, num_pages_, page_tokens_, spec.num_kv_heads, spec.head_size_v, input);
  params.rows.key = key_->rows();
  params.rows.value = value_->rows();
  params.rows.key_page_stride = key_->page_stride;
  params.rows.value_page_stride = value_->page_stride;
  for (const Offset place : number_rows(row_of)) {
    const Offset page = place / page_tokens_, row = place % page_tokens_;
    key_->fill(page, row, range(), random_);
    value_->fill(page, row, range(), random_);
    for (Offset head = 0; head < spec.num_kv_heads; ++head) {
      add_numbers(key_->row(page, row, head), dtype, spec.head_size, numbers.keys);
      add_numbers(value_->row(page, row, head), dtype, spec.head_size_v, numbers.values);
    }
  }
}

void AttendCase::make_query(Input& input) {
  const LayoutSpec& spec = params.storage.layout.spec;
  params.query_dtype = static_cast<Dtype>(input.below(3));
  if (!input.one_in(3) && !is_fp8(params.storage.dtype)) params.query_dtype = params.storage.dtype;
  const Offset used = params.cu_seqlens_q[params.batch];
  params.total = used + (input.one_in(4) ? input.below(5) : 0);
  query = std::make_unique<StridedRows>(params.query_dtype, 1, params.total, params.num_heads, spec.head_size, input);
  out = std::make_unique<StridedRows>(params.query_dtype, 1, params.total, params.num_heads, spec.head_size_v, input);
  const int peaked = input.one_in(4) ? 3 : 0;
  for (Offset i = 0; i < used; ++i) query->fill(0, i, Range{-5 + peaked, 1 + peaked}, random_);
  params.query = query->memory.data();
  params.query_token_stride = query->token_stride;
  params.query_head_stride = query->head_stride;
  params.out = out->memory.data();
  params.out_token_stride = out->token_stride;
  params.out_head_stride = out->head_stride;
  if (input.one_in(3)) return;
  lse = Buffer(params.total * params.num_heads * Offset{sizeof(float)}, 0, kNan);
  params.lse = lse.as<float>();
}

std::string AttendCase::kind(bool refused) const {
  static const char* const names[] = {"attend ", "attend_linear ", "attend_pages "};
  const std::string keys = pool_layout_ ? pool_layout_->name() : name_of(params.storage.dtype);
  return names[static_cast<int>(kind_)] + (refused ? "refused" : keys);
}

bool AttendCase::spoil(Input& input) {
  static const int32_t lengths[] = {-1, INT_MIN, INT_MAX};
  if (params.batch == 0) return false;
  const Offset b = input.below(params.batch);
  const Offset what = input.below(4);
  const Offset first = first_[static_cast<size_t>(b)], length = kv_lens_[static_cast<size_t>(b)];
  const Offset room =
      kind_ == Keys::kRagged ? params.rows.cu_seqlens_k[b + 1] - first : params.max_blocks * page_tokens_ - first;
  if (what == 0) {
    lengths_.as<int32_t>()[b] = input.one_in(2) ? static_cast<int32_t>(room + 1) : input.pick(lengths);
    return true;
  }
  if (what == 1) {  // cu_seqlens_q
    const Offset place = input.below(params.batch + 1);
    starts_.as<int32_t>()[place] = place == 0 || input.one_in(2) ? -1 : static_cast<int32_t>(params.total + 1);
    return true;
  }
  if (kind_ == Keys::kRagged) {  // cu_seqlens_k
    const Offset place = input.below(params.batch + 1);
    const bool below = place == 0 || input.one_in(2);
    key_starts_.as<int32_t>()[place] = below ? -1 : static_cast<int32_t>(page_tokens_ + 1);
    return true;
  }
  if (what == 2 && params.rows.first != nullptr) {
    const auto past = static_cast<int32_t>(params.max_blocks * page_tokens_ + 1);
    first_keys_.as<int32_t>()[b] = input.one_in(2) ? past : input.pick(lengths);
    return true;
  }
  if (length == 0) return false;
  const Offset page = first / page_tokens_;
  const Offset entry = page + input.below(ceil_div(first + length, page_tokens_) - page);
  const int32_t entries[] = {static_cast<int32_t>(params.num_blocks), -1, INT_MIN, INT_MAX};
  table_.as<int32_t>()[b * params.table_stride + entry] = input.pick(entries);
  return true;
}

}  // namespace fuzz
}  // namespace dfc
