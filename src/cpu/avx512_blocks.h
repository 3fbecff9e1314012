// The AVX-512 kernels of block scaling as a table, for avx512.cpp alone.
// Layout: as in block_kernels.h.
// Trick: null where the scalar kernel does as well: stochastic rounding, scales that are floats in memory.
#ifndef DLFP4_SRC_CPU_AVX512_BLOCKS_H_
#define DLFP4_SRC_CPU_AVX512_BLOCKS_H_

#include <utility>

#include "avx512_block_decode.h"
#include "avx512_block_encode.h"
#include "avx512_block_scales.h"
#include "avx512_block_turn.h"
#include "block_kernels.h"

namespace dlfp4 {
namespace {

template <int Rounding, int From, int To>
constexpr void add_encoders(BlockKernels *kernels) {
  kernels->encode[Rounding][From][To] = encode_blocks<Rounding, kSourceRows[From], kElementRows[To]>;
  kernels->encode_across[Rounding][From][To] = encode_across<Rounding, kSourceRows[From], kElementRows[To]>;
}

template <int From, int To>
constexpr void add_elements(BlockKernels *kernels) {
  add_encoders<DLFP4_NEAREST_EVEN, From, To>(kernels);
  add_encoders<DLFP4_NEAREST_AWAY, From, To>(kernels);
  add_encoders<DLFP4_TOWARD_ZERO, From, To>(kernels);
  kernels->decode[To][From] = decode_blocks<kElementRows[To], kSourceRows[From]>;
  kernels->decode_across[To][From] = decode_across<kElementRows[To], kSourceRows[From]>;
}

template <int From, int... To>
constexpr void add_floats(BlockKernels *kernels, std::integer_sequence<int, To...>) {
  kernels->find_largest[From] = find_largest<kSourceRows[From]>;
  kernels->join_largest[From] = join_largest<kSourceRows[From]>;
  (add_elements<From, To>(kernels), ...);
}

template <int... From, int... To>
constexpr BlockKernels make_blocks(std::integer_sequence<int, From...>, std::integer_sequence<int, To...> elements) {
  BlockKernels kernels = {};
  (add_floats<From>(&kernels, elements), ...);
  ((kernels.pack_across[To] = pack_lines<kFormats[kElementRows[To]].bits>), ...);
  ((kernels.unpack_across[To] = unpack_lines<kFormats[kElementRows[To]].bits>), ...);
  kernels.find_scales[DLFP4_TWO_LEVEL] = find_two_level;
  kernels.find_scales[DLFP4_POWER] = find_powers;
  kernels.find_scales[DLFP4_LARGEST] = find_float_scales;
  kernels.decode_scales[DLFP4_TWO_LEVEL] = decode_two_level;
  kernels.decode_scales[DLFP4_POWER] = decode_powers;
  return kernels;
}

constexpr BlockKernels kBlocks =
    make_blocks(std::make_integer_sequence<int, kNumSources>(), std::make_integer_sequence<int, kNumElements>());

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CPU_AVX512_BLOCKS_H_
