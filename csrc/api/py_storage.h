// append, unpack and copy_blocks as Python calls them: the parameters, whichever implementation takes them.
#pragma once

#include "api/py_layout.h"

namespace dfc {
namespace {

AppendParams append_params(const PyLayout& layout, Address key, Offset key_token, Offset key_head, Address value,
                           Offset value_token, Offset value_head, int source, Address cache, Offset num_blocks,
                           Address slots, Offset num_slots, float k_scale, float v_scale, int threads) {
  AppendParams params{};
  params.storage = layout.storage;
  params.key = rows_at(key, key_token, key_head);
  params.value = rows_at(value, value_token, value_head);
  params.source = static_cast<Dtype>(source);
  params.cache = reinterpret_cast<void*>(cache);
  params.num_blocks = num_blocks;
  params.slots = reinterpret_cast<const int64_t*>(slots);
  params.num_slots = num_slots;
  params.k_scale = k_scale;
  params.v_scale = v_scale;
  params.threads = threads;
  return params;
}

UnpackParams unpack_params(const PyLayout& layout, Address pages, Address key, Address value, Offset length,
                           int threads) {
  const LayoutSpec& spec = layout.storage.layout.spec;
  UnpackParams params{};
  params.storage = layout.storage;
  params.pages = reinterpret_cast<const void*>(pages);
  params.key = rows_at(key, spec.num_kv_heads * spec.head_size, spec.head_size);
  params.value = rows_at(value, spec.num_kv_heads * spec.head_size_v, spec.head_size_v);
  params.length = length;
  params.threads = threads;
  return params;
}

CopyParams copy_params(const PyLayout& layout, Address source, Offset source_blocks, Address target,
                       Offset target_blocks, Address pairs, Offset num_pairs, int threads) {
  return CopyParams{layout.storage.layout.page_bytes,
                    reinterpret_cast<const void*>(source),
                    source_blocks,
                    reinterpret_cast<void*>(target),
                    target_blocks,
                    reinterpret_cast<const int64_t*>(pairs),
                    num_pairs,
                    threads};
}

// Runs call(status) without Python's lock and raises what it reports.
template <typename Call>
void run_unlocked(const Call& call) {
  Status status;
  {
    py::gil_scoped_release unlocked;
    call(status);
  }
  require_ok(status);
}

// binds a function that makes parameters of its arguments to an operation of the CPU
template <auto Operation, typename Params, typename... Arguments>
auto on_cpu(Params (*make)(Arguments...)) {
  return [make](Arguments... arguments) {
    const Params params = make(arguments...);
    run_unlocked([&](Status& status) { Operation(params, status); });
  };
}

}  // namespace
}  // namespace dfc
