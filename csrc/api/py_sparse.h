// The operations of sparse decode as Python calls them. Included by binding.cpp.
#pragma once

#include "api/py_attend.h"
#include "cpu/sparse/params.h"

namespace dfc {
namespace {

void py_summarise(const PyLayout& layout, Address cache, Offset num_blocks, Address sketches, Address slots,
                  Offset num_slots, float k_scale, int threads) {
  const SummariseParams params{layout.storage,
                               reinterpret_cast<const void*>(cache),
                               num_blocks,
                               Sketches{reinterpret_cast<uint8_t*>(sketches)},
                               reinterpret_cast<const int64_t*>(slots),
                               num_slots,
                               k_scale,
                               threads};
  Status status;
  {
    py::gil_scoped_release unlocked;
    summarise(params, status);
  }
  require_ok(status);
}

void py_score(const PyLayout& layout, Address cache, Offset num_blocks, Address sketches, const PyTable& table,
              Address kv_lens, const PyQuery& query, float softmax_scale, float softcap, float k_scale, Address mass,
              Offset mass_stride, int threads) {
  ScoreParams params{};
  params.storage = layout.storage;
  const Rows rows = rows_of(std::get<1>(query));
  params.query_dtype = static_cast<Dtype>(std::get<0>(query));
  params.query = rows.data;
  params.query_token_stride = rows.token_stride;
  params.query_head_stride = rows.head_stride;
  std::tie(std::ignore, std::ignore, params.batch, params.num_heads) = query;
  params.cache = reinterpret_cast<const void*>(cache);
  params.num_blocks = num_blocks;
  params.sketches = Sketches{reinterpret_cast<uint8_t*>(sketches)};
  Address entries;
  std::tie(entries, params.table_stride, params.max_blocks) = table;
  params.block_table = reinterpret_cast<const int32_t*>(entries);
  params.kv_lens = reinterpret_cast<const int32_t*>(kv_lens);
  params.softmax_scale = softmax_scale;
  params.softcap = softcap;
  params.k_scale = k_scale;
  params.mass = reinterpret_cast<float*>(mass);
  params.mass_stride = mass_stride;
  params.threads = threads;
  Status status;
  {
    py::gil_scoped_release unlocked;
    score(params, status);
  }
  require_ok(status);
}

using PyMass = std::tuple<Address, Offset, Offset, Offset>;             // address, stride, sequences, kv heads
using PySelection = std::tuple<Address, Offset, Address, Address, Address>;  // tokens, width, counts, missed, fell_back

void py_select(const PyMass& mass, Address kv_lens, Address budgets, Address protect, const PySelection& selection,
               int threads) {
  SelectParams params{};
  Address scores, tokens, counts, missed, fell_back;
  std::tie(scores, params.mass_stride, params.batch, params.num_kv_heads) = mass;
  std::tie(tokens, params.width, counts, missed, fell_back) = selection;
  params.mass = reinterpret_cast<const float*>(scores);
  params.kv_lens = reinterpret_cast<const int32_t*>(kv_lens);
  params.budgets = reinterpret_cast<const int32_t*>(budgets);
  params.protect = reinterpret_cast<const bool*>(protect);
  params.tokens = reinterpret_cast<int32_t*>(tokens);
  params.counts = reinterpret_cast<int32_t*>(counts);
  params.missed_mass = reinterpret_cast<float*>(missed);
  params.fell_back = reinterpret_cast<bool*>(fell_back);
  params.threads = threads;
  Status status;
  {
    py::gil_scoped_release unlocked;
    select(params, status);
  }
  require_ok(status);
}

}  // namespace
}  // namespace dfc
