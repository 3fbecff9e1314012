// A step of floats to memory, for all vectors.
// Layout: four vectors in order, as float32 or rounded to nearest even to 16 bits.
#ifndef DLFP4_SRC_BLOCKS_VECTOR_FLOATS_H_
#define DLFP4_SRC_BLOCKS_VECTOR_FLOATS_H_

#include "host/simd/lanes.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

// A NaN must have no payload in its lower half.
template <class Isa, int Dst, class Floats>
void store_floats(uint8_t *dst, const Floats &floats) {
  using F32 = typename Isa::F32;
  if constexpr (Dst == DLFP4_float32) {
    for (int i = 0; i < 4; ++i) store_lanes(dst + i * sizeof(F32), floats.part[i]);
  } else {
    for (int i = 0; i < 4; i += 2)
      store_lanes(dst + i / 2 * sizeof(F32), Isa::template round_to_words<Dst>(floats.part[i], floats.part[i + 1]));
  }
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_VECTOR_FLOATS_H_
