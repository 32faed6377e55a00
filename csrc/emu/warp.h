// What the lanes of a warp do together, and barriers of a block.
#pragma once

#include <cstring>

#include "emu/block.h"

namespace dfc {
namespace emu {

// Waits until all lanes of the warp have called it; the last one runs `function` on the arguments of all 32 lanes (null
// for lanes the block does not have). Lanes that come with another function or from another place are an error, and so
// are lanes that have ended.
void collective(const char* name, CollectiveFunction function, void* argument, Site site);

int warp_number(Site site);
void sync_warp(Site site);
void sync_block(Site site);
void sync_named(int id, int threads, Site site);
void arrive_named(int id, int threads, Site site);

// Shuffles of 32-bit values
struct Shuffle {
  uint32_t value, result;
  int operand;  // mask, lane or distance
};
void shuffle_xor(void** arguments);
void shuffle_index(void** arguments);
void shuffle_up(void** arguments);

struct Vote {
  bool predicate;
  uint32_t result;
};
void ballot(void** arguments);

struct MatrixLoad {
  uint32_t* result;
  uint32_t offset;
  Site site;
};
void load_matrix(void** arguments);
void load_matrix_transposed(void** arguments);

struct MatrixMultiply {
  float* c;
  const uint32_t* a;
  uint32_t b0, b1;
  Site site;
};
void multiply_half(void** arguments);
void multiply_bfloat(void** arguments);

template <class T>
T shuffle(const char* name, CollectiveFunction function, T value, int operand, Site site) {
  static_assert(sizeof(T) == 4, "shuffles move 32-bit values");
  Shuffle call{0, 0, operand};
  std::memcpy(&call.value, &value, sizeof value);
  collective(name, function, &call, site);
  std::memcpy(&value, &call.result, sizeof value);
  return value;
}

}  // namespace emu
}  // namespace dfc
