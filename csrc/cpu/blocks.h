// Where the keys and values of a step lie: in the tiles of a pool, or in plain rows outside one. Also the memory of a
// unit.
#pragma once

#include "cpu/kernels.h"
#include "cpu/vec.h"

namespace dfc {
namespace DFC_ISA {

static_assert(kPlainBlockRows <= kStepKeys, "gathered rows of a block fit the scratch memory of a step");

// Memory of one unit. Everything is a multiple of kAlignment bytes.
struct Scratch {
  float* q;  // [rows, depth], scaled
  float* scores;  // [rows, kStepKeys], then weights
  float* output;  // [rows, width]
  float* sum;  // [rows, kLanes], to be added up at the end
  float* maximum;  // [rows], base-2 logarithm
  float* alpha;  // [rows], factor of the previous output
  float* ones;  // [rows]
  float* keys;  // transposed [depth, kStepKeys], or kLanes rows as in a tile
  float* values;  // [kStepKeys, width]
  float* weights;  // [rows, kStepKeys] of 16-bit weights
  float* gathered_keys;  // [kStepKeys, tile_columns] of plain rows that cannot be read where they are, as stored
  float* gathered_values;
  Offset floats;

  DFC_HOST_DEVICE static Scratch place(float* start, const AttendParams& params, Offset rows, Offset width) {
    Scratch scratch{};
    const Layout& layout = params.storage.layout;
    const Offset depth = layout.k_tiles * layout.tile_columns;
    const Offset gathered = params.plain ? kStepKeys * layout.tile_columns : 0;
    Offset used = 0;
    const auto take = [&](Offset count) __attribute__((always_inline)) {
      float* place = start + used;
      used += ceil_div(count, 16) * 16;
      return place;
    };
    scratch.q = take(rows * depth);
    scratch.scores = take(rows * kStepKeys);
    scratch.output = take(rows * width);
    scratch.sum = take(rows * kLanes);
    scratch.maximum = take(rows);
    scratch.alpha = take(rows);
    scratch.ones = take(rows);
    scratch.keys = take(depth * kStepKeys);
    scratch.values = take(kStepKeys * width);
    scratch.weights = take(rows * kStepKeys / 2);
    scratch.gathered_keys = take(gathered);
    scratch.gathered_values = take(gathered);
    scratch.floats = used;
    return scratch;
  }
};

// The part of a step that lies in one token block: keys [first, last) of the step, of which key `base` is row 0.
template <class T>
struct Block {
  const typename T::Item* keys;  // row 0
  const typename T::Item* values;
  Offset key_stride, value_stride;  // elements between rows
  const Offset* k_tile;  // elements from a row's start to each of its column tiles
  const Offset* v_tile;
  Offset base, first, last;
};

template <class T>
DFC_INLINE const typename T::Item* plain_row(const Rows& rows, Offset page_stride, Offset page, Offset row,
                                             Offset head) {
  const auto* data = reinterpret_cast<const typename T::Item*>(rows.data);
  return data + page * page_stride + row * rows.token_stride + head * rows.head_stride;
}

// Copies keys [block.first, block.last) and their values to scratch memory, one by one from wherever they are.
template <class T>
static void gather_block(const AttendParams& params, const Unit& unit, const Scratch& scratch, Offset token,
                         Block<T>& block) {
  using Item = typename T::Item;
  const Layout& layout = params.storage.layout;
  const PlainRows& rows = params.rows;
  const int32_t* table = params.block_table + unit.sequence * params.table_stride;
  auto* keys = reinterpret_cast<Item*>(scratch.gathered_keys);
  auto* values = reinterpret_cast<Item*>(scratch.gathered_values);
  block.keys = keys;
  block.values = values;
  block.key_stride = block.value_stride = layout.tile_columns;
  Offset page = (token + block.first - block.base) / layout.page_tokens;
  Offset row = (token + block.first - block.base) % layout.page_tokens;
  for (Offset i = block.first - block.base; i < block.last - block.base; ++i) {
    const Item* key = plain_row<T>(rows.key, rows.key_page_stride, table[page], row, unit.kv_head);
    const Item* value = plain_row<T>(rows.value, rows.value_page_stride, table[page], row, unit.kv_head);
    std::memcpy(keys + i * layout.tile_columns, key, static_cast<size_t>(layout.spec.head_size) * sizeof(Item));
    std::memcpy(values + i * layout.tile_columns, value, static_cast<size_t>(layout.spec.head_size_v) * sizeof(Item));
    if (++row < layout.page_tokens) continue;
    row = 0;
    ++page;
  }
}

// Plain rows are read where they are, if the kernel can read whole groups of kLanes rows and whole vectors of columns
// without leaving their page.
template <class T>
DFC_INLINE Block<T> find_plain_block(const AttendParams& params, const Unit& unit, const Scratch& scratch, Offset step,
                                     Offset base) {
  const Layout& layout = params.storage.layout;
  const PlainRows& rows = params.rows;
  const Offset token = (rows.first == nullptr ? 0 : rows.first[unit.sequence]) + step + base;
  Block<T> block;
  block.k_tile = params.storage.k_tile;
  block.v_tile = params.storage.v_tile;
  block.base = base;
  block.first = larger(base, unit.key_begin - step);
  block.last = smaller(base + layout.spec.block_size, unit.key_end - step);
  const Offset row = token % layout.page_tokens, page = token / layout.page_tokens;
  const Offset row_end = row + ceil_div(block.last - base, kLanes) * kLanes;
  const bool whole_vectors = layout.spec.head_size % kLanes == 0 && layout.spec.head_size_v % kLanes == 0;
  if (!whole_vectors || row_end > layout.page_tokens) {
    gather_block(params, unit, scratch, token, block);
    return block;
  }
  const Offset place = params.block_table[unit.sequence * params.table_stride + page];
  block.keys = plain_row<T>(rows.key, rows.key_page_stride, place, row, unit.kv_head);
  block.values = plain_row<T>(rows.value, rows.value_page_stride, place, row, unit.kv_head);
  block.key_stride = rows.key.token_stride;
  block.value_stride = rows.value.token_stride;
  return block;
}

template <class T>
DFC_INLINE Block<T> find_block(const AttendParams& params, const Unit& unit, const Scratch& scratch, Offset step,
                               Offset base) {
  if (params.plain) return find_plain_block<T>(params, unit, scratch, step, base);
  const Layout& layout = params.storage.layout;
  const Offset size = layout.spec.block_size;
  const Offset token = step + base;
  const Offset page = params.block_table[unit.sequence * params.table_stride + token / layout.page_tokens];
  const Offset token_block = token % layout.page_tokens / size;
  Block<T> block;
  const char* run = static_cast<const char*>(params.cache) + layout.run_offset(page, unit.kv_head);
  block.keys = block.values = reinterpret_cast<const typename T::Item*>(run);
  block.key_stride = block.value_stride = layout.tile_columns;
  block.k_tile = params.storage.k_tile + token_block * layout.k_tiles;
  block.v_tile = params.storage.v_tile + token_block * layout.v_tiles;
  block.base = base;
  block.first = larger(base, unit.key_begin - step);
  block.last = smaller(base + size, unit.key_end - step);
  return block;
}

// Where each vector of V columns of a block starts, in its row 0.
template <class T>
DFC_INLINE void find_columns(const Layout& layout, const Block<T>& block, Offset width,
                             const typename T::Item** columns) {
  for (Offset column = 0; column < width; column += kLanes) {
    const Offset tile = block.v_tile[column / layout.tile_columns];
    columns[column / kLanes] = block.values + tile + column % layout.tile_columns * kValueStep<T>;
  }
}

// The one or two blocks of a step that hold keys of the unit; returns how many.
template <class T>
DFC_INLINE int find_blocks(const AttendParams& params, const Unit& unit, const Scratch& scratch, Offset step,
                           Block<T> (&blocks)[2]) {
  const Offset size = params.storage.layout.spec.block_size;
  int count = 0;
  for (Offset base = 0; base < kStepKeys; base += size) {
    if (step + base >= unit.key_end || step + base + size <= unit.key_begin) continue;
    blocks[count++] = find_block<T>(params, unit, scratch, step, base);
  }
  return count;
}

// K and V of the step after this one, where they are one contiguous run; null elsewhere and at the end.
template <class T>
DFC_INLINE const char* next_run(const AttendParams& params, const Unit& unit, const Scratch& scratch, Offset step) {
  const Layout& layout = params.storage.layout;
  const bool contiguous = !params.plain && layout.page_tokens == kStepKeys;
  if (!contiguous || step + kStepKeys >= params.kv_lens[unit.sequence]) return nullptr;
  return reinterpret_cast<const char*>(find_block<T>(params, unit, scratch, step + kStepKeys, 0).keys);
}

// Quarter `quarter` of the next run, in address order: the hardware's stream prefetcher joins in. Fetched in the order
// of use (K and V tiles in turn) it does not, and decode is slower than without any prefetch.
DFC_INLINE void prefetch_quarter(const Layout& layout, const char* run, Offset quarter) {
  const Offset bytes = layout.head_elements * layout.spec.item_bytes / (kStepKeys / kLanes);
  for (Offset i = 0; i < bytes; i += 64) __builtin_prefetch(run + quarter * bytes + i, 0, 2);
}

}  // namespace DFC_ISA
}  // namespace dfc
