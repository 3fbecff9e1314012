// The largest magnitudes of blocks along a line, for the AVX-512 kernels alone.
// Layout: floats in order; magnitudes of 16 blocks in a vector.
// Trick: sixteen blocks are transposed while they are halved: four steps leave a block's largest magnitude in its
// dword.
#ifndef DLFP4_SRC_BLOCKS_AVX512_LARGEST_H_
#define DLFP4_SRC_BLOCKS_AVX512_LARGEST_H_

#include "codecs/avx512_floats.h"
#include "vector_scales.h"

namespace dlfp4 {
namespace {

constexpr int kLanes = 16;  // dwords of a vector
constexpr Constant kLanesTransposed = make_constant([](int i) { return i % 4 ? 0 : i / 4 % 4 * 4 + i / 16; });

// Of pairs of blocks, one in each half of a vector, the largest dword of each block.
template <class Items>
Items join_pairs_of_blocks(const Items (&pairs)[8]) {
  const auto join = [](__m512i a, __m512i b) { return larger(reinterpret_cast<Items>(a), reinterpret_cast<Items>(b)); };
  __m512i twos[8], fours[4], eights[2];
  for (int i = 0; i < 8; ++i) twos[i] = reinterpret_cast<__m512i>(pairs[i]);
  for (int i = 0; i < 4; ++i)
    fours[i] = reinterpret_cast<__m512i>(join(_mm512_shuffle_i32x4(twos[2 * i], twos[2 * i + 1], 0x88),
                                              _mm512_shuffle_i32x4(twos[2 * i], twos[2 * i + 1], 0xDD)));
  for (int i = 0; i < 2; ++i)
    eights[i] = reinterpret_cast<__m512i>(join(_mm512_unpacklo_epi64(fours[2 * i], fours[2 * i + 1]),
                                               _mm512_unpackhi_epi64(fours[2 * i], fours[2 * i + 1])));
  const __m512 low = _mm512_castsi512_ps(eights[0]), high = _mm512_castsi512_ps(eights[1]);
  const Items sixteen = join(_mm512_castps_si512(_mm512_shuffle_ps(low, high, 0x88)),
                             _mm512_castps_si512(_mm512_shuffle_ps(low, high, 0xDD)));
  return reinterpret_cast<Items>(_mm512_permutexvar_epi32(load(kLanesTransposed), reinterpret_cast<__m512i>(sixteen)));
}

// Two blocks, one in each half.
template <class Of, int Block>
typename Of::Items load_pair_of_blocks(const uint8_t *src) {
  using Items = typename Of::Items;
  if constexpr (Block < Of::kItems) {
    return Of::load(src);
  } else {
    const __m512i a = reinterpret_cast<__m512i>(Of::load_largest(src, Block));
    const __m512i b = reinterpret_cast<__m512i>(Of::load_largest(src + Block * Of::kBytes, Block));
    return larger(reinterpret_cast<Items>(_mm512_shuffle_i32x4(a, b, 0x44)),
                  reinterpret_cast<Items>(_mm512_shuffle_i32x4(a, b, 0xEE)));
  }
}

// The largest magnitudes of whole sixteens of blocks; returns how many elements these are.
template <class Of, int Block>
int64_t find_sixteens(const uint8_t *src, int64_t count, uint32_t *amax) {
  constexpr int kBytes = Block * Of::kBytes;
  int64_t first = 0;
  for (; count - first >= kLanes * Block; first += kLanes * Block, src += kLanes * kBytes, amax += kLanes) {
    typename Of::Items pairs[8];
    for (int i = 0; i < 8; ++i) pairs[i] = load_pair_of_blocks<Of, Block>(src + 2 * i * kBytes);
    store_lanes(amax, Of::widen(Of::join_halves(join_pairs_of_blocks(pairs))));
  }
  return first;
}

template <class Isa, int Src>
void find_largest(const uint8_t *src, int64_t count, int64_t block, uint32_t *amax) {
  using Of = Magnitudes<Isa, Src>;
  int64_t first = 0;
  if (block == 16) first = find_sixteens<Of, 16>(src, count, amax);
  if (block == 32) first = find_sixteens<Of, 32>(src, count, amax);
  if (block == 128) first = find_sixteens<Of, 128>(src, count, amax);
  amax += first / block;
  for (; first < count; first += block, ++amax) {
    const int64_t elements = count - first < block ? count - first : block;
    const auto largest = Of::join_halves(Of::load_largest_of_any(src + first * Of::kBytes, elements));
    const __m512i widened = reinterpret_cast<__m512i>(Of::widen(largest));
    *amax = _mm512_reduce_max_epu32(widened);
  }
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_AVX512_LARGEST_H_
