// The AVX-512 kernels of block scaling as a table, for avx512.cpp alone.
// Layout: as in kernels.h.
// Trick: null where the scalar kernel does as well: stochastic rounding, scales that are floats in memory.
#include <utility>

#include "avx512_decode.h"
#include "avx512_encode.h"
#include "avx512_scales.h"
#include "avx512_turns.h"
#include "kernels.h"

namespace dlfp4 {
namespace {

template <int Rounding, int From, int To>
void add_encoders(BlockKernels *kernels) {
  kernels->encode[Rounding][From][To] = encode_blocks<Rounding, kSourceRows[From], kElementRows[To]>;
  kernels->encode_across[Rounding][From][To] = encode_across<Rounding, kSourceRows[From], kElementRows[To]>;
}

template <int From, int To>
void add_elements(BlockKernels *kernels) {
  add_encoders<DLFP4_NEAREST_EVEN, From, To>(kernels);
  add_encoders<DLFP4_NEAREST_AWAY, From, To>(kernels);
  add_encoders<DLFP4_TOWARD_ZERO, From, To>(kernels);
  kernels->decode[To][From] = decode_blocks<kElementRows[To], kSourceRows[From]>;
  kernels->decode_across[To][From] = decode_across<kElementRows[To], kSourceRows[From]>;
}

template <int From, int... To>
void add_floats(BlockKernels *kernels, std::integer_sequence<int, To...>) {
  kernels->find_largest[From] = find_largest<kSourceRows[From]>;
  kernels->join_largest[From] = join_largest<kSourceRows[From]>;
  (add_elements<From, To>(kernels), ...);
}

template <int... Bits>
void add_turns(BlockKernels *kernels) {
  ((kernels->pack_across[Bits] = pack_lines<Bits>), ...);
  ((kernels->unpack_across[Bits] = unpack_lines<Bits>), ...);
}

// A kind of scale is found and read alike, whatever the elements and their number; of two levels there is the one type
// that NVFP4 has.
constexpr void add_scales(int key, BlockKernels *kernels) {
  const BlockKey of = kBlockKeys[key];
  if (of.kind == DLFP4_LARGEST) kernels->find_scales[key] = find_float_scales;
  if (of.kind == DLFP4_POWER) {
    kernels->find_scales[key] = find_powers;
    kernels->decode_scales[key] = decode_powers;
  }
  if (of.kind == DLFP4_TWO_LEVEL && of.scale == DLFP4_float8_e4m3fn) {
    kernels->find_scales[key] = find_two_level;
    kernels->decode_scales[key] = decode_two_level;
  }
}

template <int... From, int... To>
void add_block_kernels(BlockKernels *kernels, std::integer_sequence<int, From...>,
                       std::integer_sequence<int, To...> elements) {
  (add_floats<From>(kernels, elements), ...);
  add_turns<4, 6, 8>(kernels);
  for (int key = 0; key < kNumKeys; ++key) add_scales(key, kernels);
}

}  // namespace

void add_avx512_blocks(BlockKernels *kernels) {
  add_block_kernels(kernels, std::make_integer_sequence<int, kNumSources>(),
                    std::make_integer_sequence<int, kNumElements>());
}

}  // namespace dlfp4
