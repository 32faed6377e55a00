// attend as Python calls it: over a pool, over ragged rows, over pages of plain rows. Included by binding.cpp.
#pragma once

#include <tuple>
#include <vector>

#include "api/py_layout.h"

namespace dfc {
namespace {

using PyRows = std::tuple<Address, Offset, Offset>;                 // address, strides of tokens and heads
using PyQuery = std::tuple<int, PyRows, Offset, Offset>;            // dtype, rows, tokens, heads
using PyTable = std::tuple<Address, Offset, Offset>;                // address, stride, entries per sequence
using PySequences = std::tuple<Offset, Address, Address>;           // batch, cu_seqlens_q, kv_lens
using PyMask = std::tuple<float, bool, Offset, Offset, float, Address>;  // scale, causal, window, softcap, sinks
using PyResults = std::tuple<PyRows, Address, int>;                 // out, lse, threads

Rows rows_of(const PyRows& rows) { return rows_at(std::get<0>(rows), std::get<1>(rows), std::get<2>(rows)); }

// What every kind of attention shares; where keys and values lie is left to the caller.
AttendParams attend_params(const PyQuery& query, const PySequences& sequences, const PyMask& mask, float k_scale,
                           float v_scale, const PyResults& results) {
  AttendParams params{};
  Rows rows = rows_of(std::get<1>(query));
  params.query_dtype = static_cast<Dtype>(std::get<0>(query));
  params.query = rows.data;
  params.query_token_stride = rows.token_stride;
  params.query_head_stride = rows.head_stride;
  std::tie(std::ignore, std::ignore, params.total, params.num_heads) = query;
  params.batch = std::get<0>(sequences);
  params.cu_seqlens_q = reinterpret_cast<const int32_t*>(std::get<1>(sequences));
  params.kv_lens = reinterpret_cast<const int32_t*>(std::get<2>(sequences));
  Address sinks;
  std::tie(params.softmax_scale, params.causal, params.window_left, params.window_right, params.softcap, sinks) = mask;
  params.sinks = reinterpret_cast<const float*>(sinks);
  params.k_scale = k_scale;
  params.v_scale = v_scale;
  rows = rows_of(std::get<0>(results));
  params.out = rows.data;
  params.out_token_stride = rows.token_stride;
  params.out_head_stride = rows.head_stride;
  params.lse = reinterpret_cast<float*>(std::get<1>(results));
  params.threads = std::get<2>(results);
  return params;
}

void set_table(AttendParams& params, const PyTable& table) {
  params.block_table = reinterpret_cast<const int32_t*>(std::get<0>(table));
  params.table_stride = std::get<1>(table);
  params.max_blocks = std::get<2>(table);
}

void run_attend(const AttendParams& params) {
  Status status;
  {
    py::gil_scoped_release unlocked;
    attend(params, status);
  }
  require_ok(status);
}

AttendParams pool_attend_params(const PyLayout& layout, Address cache, Offset num_blocks, const PyTable& table,
                                const PyQuery& query, const PySequences& sequences, const PyMask& mask, float k_scale,
                                float v_scale, const PyResults& results) {
  AttendParams params = attend_params(query, sequences, mask, k_scale, v_scale, results);
  params.storage = layout.storage;
  params.cache = reinterpret_cast<const void*>(cache);
  params.num_blocks = num_blocks;
  set_table(params, table);
  return params;
}

using PyPlainRows = std::tuple<PyRows, PyRows, int, Offset, Offset, Offset>;  // key, value, dtype, heads, columns

void set_rows(AttendParams& params, const PyPlainRows& rows, Offset page_tokens) {
  static const Offset one_tile = 0;
  LayoutSpec spec{};
  int dtype;
  std::tie(std::ignore, std::ignore, dtype, spec.num_kv_heads, spec.head_size, spec.head_size_v) = rows;
  spec.item_bytes = item_bytes(dtype);
  spec.block_size = kPlainBlockRows;
  spec.extent = 1;
  params.storage = Storage{make_row_layout(spec, page_tokens), static_cast<Dtype>(dtype), &one_tile, &one_tile};
  params.plain = true;
  params.rows.key = rows_of(std::get<0>(rows));
  params.rows.value = rows_of(std::get<1>(rows));
}

// Ragged rows: `num_rows` rows in all. Without kv_lens a sequence uses all the rows that cu_seqlens_k gives it.
void py_attend_linear(const PyPlainRows& rows, Offset num_rows, Address cu_seqlens_k, const PyQuery& query,
                      const PySequences& sequences, const PyMask& mask, float k_scale, float v_scale,
                      const PyResults& results) {
  static const int32_t only_page = 0;
  AttendParams params = attend_params(query, sequences, mask, k_scale, v_scale, results);
  set_rows(params, rows, num_rows);
  const auto* starts = reinterpret_cast<const int32_t*>(cu_seqlens_k);
  params.rows.first = params.rows.cu_seqlens_k = starts;
  params.num_blocks = params.max_blocks = 1;
  params.block_table = &only_page;
  std::vector<int32_t> lengths;
  if (params.kv_lens == nullptr) {
    for (Offset b = 0; b < params.batch; ++b) {
      lengths.push_back(static_cast<int32_t>(Offset{starts[b + 1]} - starts[b]));
    }
    params.kv_lens = lengths.data();
  }
  run_attend(params);
}

using PyPages = std::tuple<Offset, Offset, Offset, Offset>;  // number, tokens of one, strides of key and value pages

void py_attend_pages(const PyPlainRows& rows, const PyPages& pages, const PyTable& table, Address first_keys,
                     const PyQuery& query, const PySequences& sequences, const PyMask& mask, float k_scale,
                     float v_scale, const PyResults& results) {
  AttendParams params = attend_params(query, sequences, mask, k_scale, v_scale, results);
  Offset page_tokens;
  std::tie(params.num_blocks, page_tokens, params.rows.key_page_stride, params.rows.value_page_stride) = pages;
  set_rows(params, rows, page_tokens);
  set_table(params, table);
  params.rows.first = reinterpret_cast<const int32_t*>(first_keys);
  run_attend(params);
}

}  // namespace
}  // namespace dfc
