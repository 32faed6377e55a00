// append, unpack and copy_blocks: compared bit for bit.
#include <climits>
#include <numeric>

#include "fuzz/targets.h"

namespace dfc {
namespace fuzz {

namespace {

constexpr Offset kMostBytes = Offset{1} << 20;

// Bits of any kind, NaN and infinities too.
void fill_any(StridedRows& rows, Random& random) {
  for (Offset token = 0; token < rows.tokens; ++token) {
    for (Offset head = 0; head < rows.heads; ++head) {
      for (Offset i = 0; i < rows.columns; ++i) {
        const bool usual = random.below(2) == 0;
        const auto bits =
            usual ? random_bits(rows.dtype, Range{-12, 12}, random) : static_cast<uint32_t>(random.next());
        put_bits(rows.dtype, rows.row(0, token, head), i, bits);
      }
    }
  }
}

uint32_t stored_bits(Dtype dtype, const StridedRows& rows, Offset token, Offset head, Offset column, float scale) {
  const char* row = rows.row(0, token, head);
  if (!is_fp8(dtype)) return get_bits(dtype, row, column);
  return nearest_fp8(dtype, static_cast<float>(value_at(rows.dtype, row, column)) / scale);
}

struct RowsCase {
  AppendParams params{};
  StridedRows key, value;
  std::vector<int64_t> slots;
  Buffer cache, mapping;

  const StridedRows& rows(Part part) const { return part == Part::kKey ? key : value; }
};

// What each byte of the pool must be: writes element by element to where layout.h says it lies.
std::vector<char> exact_pool(const RowsCase& test) {
  const Layout& layout = test.params.storage.layout;
  const Dtype dtype = test.params.storage.dtype;
  std::vector<char> pool = test.cache.copy();
  for (size_t i = 0; i < test.slots.size(); ++i) {
    const int64_t slot = test.slots[i];
    if (slot < 0) continue;
    for (const Part part : {Part::kKey, Part::kValue}) {
      const float scale = part == Part::kKey ? test.params.k_scale : test.params.v_scale;
      for (Offset head = 0; head < layout.spec.num_kv_heads; ++head) {
        for (Offset column = 0; column < layout.columns(part); ++column) {
          const Offset place =
              layout.byte_offset(slot / layout.page_tokens, head, part, slot % layout.page_tokens, column);
          const uint32_t bits = stored_bits(dtype, test.rows(part), static_cast<Offset>(i), head, column, scale);
          put_bits(dtype, pool.data() + place, 0, bits);
        }
      }
    }
  }
  return pool;
}

void check_unpack(const Storage& storage, const Buffer& pages, Offset length, int threads) {
  const Layout& layout = storage.layout;
  const LayoutSpec& spec = layout.spec;
  const Offset columns[] = {spec.head_size, spec.head_size_v};
  const Buffer rows[] = {Buffer(length * spec.num_kv_heads * columns[0] * spec.item_bytes, 0, 0),
                         Buffer(length * spec.num_kv_heads * columns[1] * spec.item_bytes, 0, 0)};
  UnpackParams params{storage, pages.data(), {}, {}, length, threads};
  params.key = Rows{rows[0].data(), spec.num_kv_heads * columns[0], columns[0]};
  params.value = Rows{rows[1].data(), spec.num_kv_heads * columns[1], columns[1]};
  Status status;
  expect(unpack(params, status) == kOk, "unpack refused");
  for (const Part part : {Part::kKey, Part::kValue}) {
    const auto which = static_cast<size_t>(part);
    for (Offset token = 0; token < length; ++token) {
      for (Offset head = 0; head < spec.num_kv_heads; ++head) {
        for (Offset i = 0; i < columns[which]; ++i) {
          const Offset place =
              layout.byte_offset(token / layout.page_tokens, head, part, token % layout.page_tokens, i);
          const uint32_t got =
              get_bits(storage.dtype, rows[which].data(), (token * spec.num_kv_heads + head) * columns[which] + i);
          expect(got == get_bits(storage.dtype, pages.data() + place, 0), "unpack: a wrong element");
        }
      }
    }
  }
}

}  // namespace

void fuzz_rows(Input& input) {
  Random random = input.random();
  const PoolLayout layout(input);
  const Layout& sizes = layout.storage.layout;
  const LayoutSpec& spec = sizes.spec;
  const Dtype dtype = layout.storage.dtype;
  const Offset blocks = smaller(input.below(4), kMostBytes / sizes.page_bytes);
  const Offset row_bytes = spec.num_kv_heads * (spec.head_size + spec.head_size_v) * spec.item_bytes;
  const Offset num_slots = blocks * sizes.page_tokens;
  const Offset count = smaller(input.below(301), kMostBytes / 4 / row_bytes);
  const auto source = is_fp8(dtype) ? static_cast<Dtype>(input.below(3)) : dtype;
  const bool pack = input.one_in(4) && count <= num_slots;
  RowsCase test{{},
                StridedRows(source, 1, count, spec.num_kv_heads, spec.head_size, input),
                StridedRows(source, 1, count, spec.num_kv_heads, spec.head_size_v, input),
                std::vector<int64_t>(static_cast<size_t>(count)),
                Buffer(blocks * sizes.page_bytes, input.below(64) * spec.item_bytes, kNan),
                {}};
  fill_any(test.key, random);
  fill_any(test.value, random);
  for (size_t i = 0; i < test.slots.size(); ++i)
    test.slots[i] = pack ? static_cast<int64_t>(i) : random.below(num_slots + 1) - 1;
  test.mapping = Buffer(test.slots);
  const float scales[] = {1.0f, 0.5f, 2.7f, 0.01f};
  const float k_scale = is_fp8(dtype) ? input.pick(scales) : 1.0f, v_scale = is_fp8(dtype) ? input.pick(scales) : 1.0f;
  test.params = AppendParams{layout.storage,
                             test.key.rows(),
                             test.value.rows(),
                             source,
                             test.cache.data(),
                             blocks,
                             pack ? nullptr : test.mapping.as<int64_t>(),
                             count,
                             k_scale,
                             v_scale,
                             static_cast<int>(input.between(1, 2))};
  const bool spoiled = input.one_in(5) && !pack && count > 0;
  last_call = Call{"append " + (spoiled ? "refused" : layout.name()), num_slots > 0 ? count : 0};
  auto expected = test.cache.copy();
  if (spoiled)
    test.mapping.as<int64_t>()[input.below(count)] = input.pick({num_slots, Offset{-2}, INT64_MIN, INT64_MAX});
  else
    expected = exact_pool(test);
  Status status;
  const int code = append(test.params, status);
  expect(code == (spoiled ? kInvalidValue : kOk), "append: a wrong code");
  expect(test.cache.equals(expected), spoiled ? "append: refused, and yet it wrote" : "append: a wrong pool");
  check_unpack(layout.storage, test.cache, num_slots == 0 ? 0 : input.below(num_slots + 1), test.params.threads);
}

void fuzz_copies(Input& input) {
  Random random = input.random();
  const Offset page = 16 * input.between(1, 2000);
  const Offset most = larger(1, kMostBytes / page);
  const Offset blocks = smaller(input.below(40), most), others = smaller(input.below(40), most);
  // One memory for both pools: the same pool, overlapping pools, or one after the other.
  const Offset start = input.one_in(2) ? 0 : input.one_in(2) ? input.below(blocks + 1) : blocks;
  Buffer memory(larger(blocks, start + others) * page, 0, 0);
  for (Offset i = 0; i + 8 <= larger(blocks, start + others) * page; i += 8) {
    const uint64_t bits = random.next();
    std::memcpy(memory.data() + i, &bits, sizeof bits);
  }
  std::vector<int64_t> targets(static_cast<size_t>(others));
  std::iota(targets.begin(), targets.end(), 0);
  random.shuffle(targets);
  if (others > 0) targets.resize(static_cast<size_t>(input.below(others + 1)));
  if (blocks == 0) targets.clear();
  std::vector<int64_t> pairs;
  for (const int64_t target : targets) {
    pairs.push_back(random.below(blocks));
    pairs.push_back(target);
  }
  auto expected = memory.copy();
  const auto before = expected;
  const bool spoiled = input.one_in(4) && !targets.empty();
  last_call = Call{spoiled ? "copy_blocks refused" : "copy_blocks", static_cast<int64_t>(targets.size())};
  for (size_t i = 0; i < targets.size() && !spoiled; ++i) {
    const auto from = before.begin() + pairs[2 * i] * page;
    std::copy(from, from + page, expected.begin() + (start + targets[i]) * page);
  }
  if (spoiled && targets.size() > 1 && input.one_in(3)) {
    pairs.back() = pairs[1];
  } else if (spoiled) {
    const size_t place = static_cast<size_t>(input.below(static_cast<int64_t>(pairs.size())));
    pairs[place] = input.pick({place % 2 ? others : blocks, Offset{-1}, INT64_MIN, INT64_MAX});
  }
  const Buffer list(pairs);
  const CopyParams params{page,
                          memory.data(),
                          blocks,
                          memory.data() ? memory.data() + start * page : nullptr,
                          others,
                          list.as<int64_t>(),
                          static_cast<Offset>(targets.size()),
                          static_cast<int>(input.between(1, 2))};
  Status status;
  const int code = copy_blocks(params, status);
  expect(code == (spoiled ? kInvalidValue : kOk), "copy_blocks: a wrong code");
  expect(memory.equals(expected), spoiled ? "copy_blocks: refused, and yet it wrote" : "copy_blocks: wrong pages");
}

}  // namespace fuzz
}  // namespace dfc
