// Block scaling, once for all vectors: floats times multipliers to codes, codes times scales to floats; the table.
// Layout: as in kernels.h; the instruction set's steps, of four vectors of floats.
// Trick: a step's factor is one for each 16 elements, or one for each element; the codecs do the rest.
#ifndef DLFP4_SRC_BLOCKS_VECTOR_H_
#define DLFP4_SRC_BLOCKS_VECTOR_H_

#include <utility>

#include "changes.h"
#include "host/simd/lanes.h"
#include "kernels.h"
#include "rules/numerics.h"
#include "vector_errors.h"
#include "vector_floats.h"
#include "vector_hadamard.h"
#include "vector_scales.h"
#include "vector_turns.h"

namespace dlfp4 {
namespace {

// --- Factors ---------------------------------------------------------------------------------

// Those of blocks of 16 << shift elements each, or of one block of `count`.
template <class Isa>
struct BlockFactors {
  using F32 = typename Isa::F32;
  static constexpr int kParts = 1;     // vectors of factors that a vector of elements takes
  static constexpr int kAhead = 4096;  // elements to prefetch: two runs of quantize.cpp, the next of which is there
  const float *factors;
  int shift;

  BlockFactors(const float *of_blocks, int64_t block, int64_t count)
      : factors(of_blocks), shift(block >= count ? 62 : __builtin_ctzll(static_cast<uint64_t>(block)) - 4) {}

  // Of the vector `part` of the step that begins with element `first`.
  F32 operator()(int64_t first, int part) const {
    constexpr int kLanes = sizeof(F32) / 4;
    return splat<F32>(factors[(first / 16 + part * kLanes / 16) >> shift]);
  }

  // Of a step of `count` elements, from element `first` on; for the rest of the step as well.
  BlockFactors of_rest(int64_t first, int64_t count, float *buffer) const {
    for (int64_t i = 0; 16 * i < count; ++i) buffer[i] = factors[(first / 16 + i) >> shift];
    return BlockFactors(buffer, 16, Isa::kCodes);
  }
};

// A factor for each element.
template <class Isa>
struct ElementFactors {
  using F32 = typename Isa::F32;
  static constexpr int kParts = 1;
  static constexpr int kAhead = 0;  // what comes next is for the caller to know
  const float *factors;

  F32 operator()(int64_t first, int part) const {
    constexpr int kLanes = sizeof(F32) / 4;
    return load_lanes<F32>(factors + first + part * kLanes);
  }

  ElementFactors of_rest(int64_t first, int64_t count, float *buffer) const {
    Isa::read_part(reinterpret_cast<uint8_t *>(buffer), reinterpret_cast<const uint8_t *>(factors + first), 4 * count);
    return {buffer};
  }
};

// What integers become values by, each part as above.
template <class Isa, class Factors>
struct AffineFactors {
  static constexpr int kParts = 2;
  Factors scales, offsets;

  AffineFactors of_rest(int64_t first, int64_t count, float *buffer) const {
    return {scales.of_rest(first, count, buffer), offsets.of_rest(first, count, buffer + Isa::kCodes)};
  }
};

// Calls run(first, count, factors) for blocks of 16, 32, 64 ... elements, or a single one, at once; else for each
// block.
template <class Isa, class Run>
void in_runs_of_blocks(int64_t count, int64_t block, const float *factors, Run run) {
  if (block >= count || (block & (block - 1)) == 0)
    return run(int64_t{0}, count, BlockFactors<Isa>(factors, block, count));
  for (int64_t first = 0; first < count; first += block, ++factors) {
    const int64_t elements = least(block, count - first);
    run(first, elements, BlockFactors<Isa>(factors, block, elements));
  }
}

// Calls run(src, count, factors, dst) for all whole steps, and for a step in memory of its own that ends in zeros.
template <class Isa, int SrcBits, int DstBits, class Factors, class Run>
void in_whole_steps(const uint8_t *src, int64_t count, const Factors &factors, uint8_t *dst, Run run) {
  constexpr int64_t kCodes = Isa::kCodes;
  const int64_t whole = count / kCodes * kCodes, rest = count - whole;
  run(src, whole, factors, dst);
  if (rest == 0) return;
  StepMemory<kCodes, SrcBits> from = {};
  StepMemory<kCodes, DstBits> to;
  alignas(64) float buffer[Factors::kParts * kCodes] = {};
  Isa::read_part(from.byte, src + whole * SrcBits / 8, (rest * SrcBits + 7) / 8);
  run(from.byte, kCodes, factors.of_rest(whole, rest, buffer), to.byte);
  Isa::write_part(dst + whole * DstBits / 8, to.byte, rest * DstBits / 8);
}

// --- Encoding --------------------------------------------------------------------------------

// Whole steps, of which Isa::load_floats<Src> and Isa::store_codes<Bits> are as in codecs/vector.h.
template <class Isa, int Src, int DstBits, class Encoder, class Factors>
__attribute__((noinline)) void encode_whole(const Encoder &encoder, const uint8_t *src, int64_t count, Factors factors,
                                            uint8_t *dst, const BlockMode &mode) {
  using F32 = typename Isa::F32;
  using Scales = BlockScales<Isa>;
  constexpr int kSrcBytes = kTypes[Src].bits / 8;
  const Encoder codes_of = encoder;
  const F32 zero = splat<F32>(mode.zero);
  const bool divides = mode.divides;
  const int mantissa = mode.mantissa;
  for (int64_t first = 0; first < count; first += Isa::kCodes) {
    if constexpr (Factors::kAhead > 0)
      Isa::template prefetch<Isa::kCodes * kSrcBytes, Factors::kAhead * kSrcBytes>(src + first * kSrcBytes);
    auto floats = Isa::template load_floats<Src>(src + first * kSrcBytes);
    if (__builtin_expect(divides, 0))
      for (int i = 0; i < 4; ++i)
        floats.part[i] = Scales::narrow_quotients(floats.part[i] / factors(first, i), mantissa) + zero;
    else
      for (int i = 0; i < 4; ++i) floats.part[i] = floats.part[i] * factors(first, i) + zero;
    Isa::template store_codes<DstBits>(dst + first * DstBits / 8, codes_of(floats), false);
  }
}

// Isa::encoder<Dst, Rounding>() makes codes of a step's floats, and saturates.
template <class Isa, int Rounding, int Src, int Dst, int DstBits, class Factors>
void encode_scaled(const uint8_t *src, int64_t count, const Factors &all_factors, uint8_t *dst, const BlockMode &mode) {
  const auto encoder = Isa::template encoder<Dst, Rounding>();
  in_whole_steps<Isa, kTypes[Src].bits, DstBits>(
      src, count, all_factors, dst, [&](const uint8_t *from, int64_t elements, const Factors &factors, uint8_t *to) {
        encode_whole<Isa, Src, DstBits>(encoder, from, elements, factors, to, mode);
      });
}

template <class Isa, int Rounding, int Src, int Dst>
void encode_blocks(const uint8_t *src, int64_t count, int64_t block, const float *multipliers, uint8_t *dst,
                   const BlockMode &mode) {
  constexpr int kSrcBytes = kTypes[Src].bits / 8, kBits = kTypes[Dst].bits;
  in_runs_of_blocks<Isa>(count, block, multipliers, [&](int64_t first, int64_t elements, const auto &factors) {
    encode_scaled<Isa, Rounding, Src, Dst, kBits>(src + first * kSrcBytes, elements, factors, dst + first * kBits / 8,
                                                  mode);
  });
}

template <class Isa, int Rounding, int Src, int Dst>
void encode_across_lines(const uint8_t *src, int64_t count, const float *multipliers, uint8_t *codes,
                         const BlockMode &mode) {
  encode_scaled<Isa, Rounding, Src, Dst, 8>(src, count, ElementFactors<Isa>{multipliers}, codes, mode);
}

// --- Decoding --------------------------------------------------------------------------------

// A NaN that is not an element's own has one pattern, whatever sign the processor gave it.
template <class Isa>
typename Isa::F32 clear_new_nans(typename Isa::F32 products, typename Isa::F32 elements) {
  const auto nan = reinterpret_cast<typename Isa::F32>(splat<typename Isa::U32>(kFloatNan));
  return ((products != products) & (elements == elements)) ? nan : products;
}

// Whole steps. Isa::Elements<Src, SrcBits> makes floats of the codes of one.
template <class Isa, int Src, int SrcBits, int Dst, class Factors>
__attribute__((noinline)) void decode_whole(const uint8_t *src, int64_t count, Factors factors, uint8_t *dst) {
  constexpr bool kHasInfinities = kTypes[Src].specials == DLFP4_IEEE;
  const typename Isa::template Elements<Src, SrcBits> floats_of;
  for (int64_t first = 0; first < count; first += Isa::kCodes) {
    auto floats = floats_of(src + first * SrcBits / 8);
    for (int i = 0; i < 4; ++i) {
      const typename Isa::F32 product = floats.part[i] * factors(first, i);
      floats.part[i] = kHasInfinities ? clear_new_nans<Isa>(product, floats.part[i]) : product;
    }
    store_floats<Isa, Dst>(dst + first * (kTypes[Dst].bits / 8), floats);
  }
}

template <class Isa, int Src, int SrcBits, int Dst, class Factors>
void decode_scaled(const uint8_t *src, int64_t count, const Factors &all_factors, uint8_t *dst) {
  in_whole_steps<Isa, SrcBits, kTypes[Dst].bits>(src, count, all_factors, dst,
                                                 decode_whole<Isa, Src, SrcBits, Dst, Factors>);
}

template <class Isa, int Src, int Dst>
void decode_blocks(const uint8_t *src, int64_t count, int64_t block, const float *scales, uint8_t *dst) {
  constexpr int kBits = kTypes[Src].bits, kDstBytes = kTypes[Dst].bits / 8;
  in_runs_of_blocks<Isa>(count, block, scales, [&](int64_t first, int64_t elements, const auto &factors) {
    decode_scaled<Isa, Src, kBits, Dst>(src + first * kBits / 8, elements, factors, dst + first * kDstBytes);
  });
}

template <class Isa, int Src, int Dst>
void decode_across_lines(const uint8_t *codes, int64_t count, const float *scales, uint8_t *dst) {
  decode_scaled<Isa, Src, 8, Dst>(codes, count, ElementFactors<Isa>{scales}, dst);
}

// Of integers with zero points or biases: decoded_with of scaling.h. All factors are finite, so no NaN comes up.
template <class Isa, int Src, int SrcBits, int Dst, bool kBiases, class Factors>
__attribute__((noinline)) void decode_affine_whole(const uint8_t *src, int64_t count, AffineFactors<Isa, Factors> by,
                                                   uint8_t *dst) {
  const typename Isa::template Elements<Src, SrcBits> floats_of;
  for (int64_t first = 0; first < count; first += Isa::kCodes) {
    auto floats = floats_of(src + first * SrcBits / 8);
    for (int i = 0; i < 4; ++i) {
      const typename Isa::F32 scale = by.scales(first, i), offset = by.offsets(first, i);
      floats.part[i] = kBiases ? floats.part[i] * scale + offset : (floats.part[i] - offset) * scale;
    }
    store_floats<Isa, Dst>(dst + first * (kTypes[Dst].bits / 8), floats);
  }
}

template <class Isa, int Src, int SrcBits, int Dst, class Factors>
void decode_affine_steps(const uint8_t *src, int64_t count, const AffineFactors<Isa, Factors> &by, bool are_biases,
                         uint8_t *dst) {
  const auto whole = are_biases ? decode_affine_whole<Isa, Src, SrcBits, Dst, true, Factors>
                                : decode_affine_whole<Isa, Src, SrcBits, Dst, false, Factors>;
  in_whole_steps<Isa, SrcBits, kTypes[Dst].bits>(src, count, by, dst, whole);
}

// Blocks of integers are powers of two, or whole lines.
template <class Isa, int Src, int Dst>
void decode_affine_blocks(const uint8_t *src, int64_t count, int64_t block, const Affine &by, uint8_t *dst) {
  using Factors = BlockFactors<Isa>;
  const AffineFactors<Isa, Factors> factors = {Factors(by.scales, block, count), Factors(by.offsets, block, count)};
  decode_affine_steps<Isa, Src, kTypes[Src].bits, Dst>(src, count, factors, by.are_biases, dst);
}

template <class Isa, int Src, int Dst>
void decode_affine_across_lines(const uint8_t *codes, int64_t count, const Affine &by, uint8_t *dst) {
  using Factors = ElementFactors<Isa>;
  const AffineFactors<Isa, Factors> factors = {Factors{by.scales}, Factors{by.offsets}};
  decode_affine_steps<Isa, Src, 8, Dst>(codes, count, factors, by.are_biases, dst);
}

// --- The table -------------------------------------------------------------------------------

// Integers that are rounded to otherwise than to nearest even are left to the scalar level.
template <class Isa, int From, int To>
void add_integers(BlockKernels *kernels) {
  constexpr int kFrom = kSourceRows[From], kTo = kElementRows[To], kCodes = encoded_row(kTo);
  if constexpr (Isa::kEncodesIntegers) {
    kernels->encode[DLFP4_NEAREST_EVEN][From][To] = encode_blocks<Isa, DLFP4_NEAREST_EVEN, kFrom, kCodes>;
    kernels->encode_across[DLFP4_NEAREST_EVEN][From][To] = encode_across_lines<Isa, DLFP4_NEAREST_EVEN, kFrom, kCodes>;
  }
  kernels->decode_affine[To][From] = decode_affine_blocks<Isa, kTo, kFrom>;
  kernels->decode_affine_across[To][From] = decode_affine_across_lines<Isa, kTo, kFrom>;
}

template <class Isa, int From, int To, int... Rounding>
void add_elements(BlockKernels *kernels, std::integer_sequence<int, Rounding...>) {
  constexpr int kFrom = kSourceRows[From], kTo = kElementRows[To];
  if constexpr (is_float(kTypes[kTo])) {
    ((kernels->encode[Rounding][From][To] = encode_blocks<Isa, Rounding, kFrom, kTo>), ...);
    ((kernels->encode_across[Rounding][From][To] = encode_across_lines<Isa, Rounding, kFrom, kTo>), ...);
  } else {
    add_integers<Isa, From, To>(kernels);
  }
  kernels->decode[To][From] = decode_blocks<Isa, kTo, kFrom>;
  kernels->decode_across[To][From] = decode_across_lines<Isa, kTo, kFrom>;
}

// Stochastic rounding is left to the scalar level.
template <class Isa, int From, int... To>
void add_floats(BlockKernels *kernels, std::integer_sequence<int, To...>) {
  using Fixed =
      std::integer_sequence<int, DLFP4_NEAREST_EVEN, DLFP4_NEAREST_AWAY, DLFP4_TOWARD_ZERO, DLFP4_NEAREST_ZERO>;
  kernels->find_largest[From] = Isa::template Largest<kSourceRows[From]>::find;
  kernels->join_largest[From] = Isa::template Largest<kSourceRows[From]>::join;
  kernels->sum_errors[DLFP4_NEAREST_EVEN][From] = Errors<Isa, kSourceRows[From]>::sum;
  kernels->add_errors[DLFP4_NEAREST_EVEN][From] = Errors<Isa, kSourceRows[From]>::add;
  add_rotations<Isa, From>(kernels);
  (add_elements<Isa, From, To>(kernels, Fixed()), ...);
}

template <class Isa, int... Bits>
void add_turns(BlockKernels *kernels) {
  ((kernels->pack_across[Bits] = pack_lines<Isa, Bits>), ...);
  ((kernels->unpack_across[Bits] = unpack_lines<Isa, Bits>), ...);
}

// A kind of scale is found and read alike, whatever the elements and their number. float32 scales need no decoding. Of
// two-level scales vectors take the type of NVFP4; the scalar level takes others.
template <class Isa>
constexpr void add_scales(int key, BlockKernels *kernels) {
  using Scales = BlockScales<Isa>;
  const BlockKey of = kBlockKeys[key];
  const bool integers = is_block_integer(kTypes[of.element]);
  if (of.kind == DLFP4_LARGEST)
    kernels->find_scales[key] = integers ? Scales::find_integer_scales : Scales::find_float_scales;
  if (of.kind == DLFP4_POWER) {
    kernels->find_scales[key] = Scales::find_powers;
    kernels->decode_scales[key] = Scales::decode_powers;
  }
  if (of.kind == DLFP4_TWO_LEVEL && of.scale == DLFP4_float8_e4m3fn) {
    kernels->find_scales[key] = Scales::find_two_level;
    kernels->find_scales_of_lines[key] = Scales::find_two_level_of_lines;
    kernels->decode_scales[key] = Scales::decode_two_level;
  }
}

template <class Isa, int... From, int... To>
void add_block_kernels(BlockKernels *kernels, std::integer_sequence<int, From...>,
                       std::integer_sequence<int, To...> elements) {
  (add_floats<Isa, From>(kernels, elements), ...);
  for (int key = 0; key < kNumKeys; ++key) add_scales<Isa>(key, kernels);
  add_changes(kernels);
}

template <class Isa>
void add_block_kernels(BlockKernels *kernels) {
  add_block_kernels<Isa>(kernels, std::make_integer_sequence<int, kNumSources>(),
                         std::make_integer_sequence<int, kNumElements>());
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_VECTOR_H_
