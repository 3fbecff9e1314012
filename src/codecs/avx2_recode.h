// Between types of at most 8 bits, for the AVX2 kernels alone.
// Layout: codes one a byte or packed, on both sides; 32 a step.
// Trick: every sixteen codes of a table are looked up by the lowest four bits, the other bits choose among what is
// found.
#ifndef DLFP4_SRC_CODECS_AVX2_RECODE_H_
#define DLFP4_SRC_CODECS_AVX2_RECODE_H_

#include "host/simd/avx2.h"
#include "vector_recode.h"

namespace dlfp4 {
namespace {

// What each of `Size` codes becomes; higher bits are ignored.
template <int Size>
struct Table {
  __m256i part[Size / 16];

  explicit Table(const uint8_t *codes) {
    for (int i = 0; i < Size / 16; ++i) part[i] = _mm256_broadcastsi128_si256(load_16_bytes(codes + 16 * i));
  }

  // Among kCount parts from kFirst on. vpblendvb looks at a byte's highest bit.
  template <int kFirst, int kCount>
  DLFP4_ALWAYS_INLINE __m256i find(__m256i codes, __m256i low) const {
    if constexpr (kCount == 1) {
      return _mm256_shuffle_epi8(part[kFirst], low);
    } else {
      constexpr int kToHighest = kCount == 2 ? 3 : kCount == 4 ? 2 : kCount == 8 ? 1 : 0;
      return _mm256_blendv_epi8(find<kFirst, kCount / 2>(codes, low), find<kFirst + kCount / 2, kCount / 2>(codes, low),
                                _mm256_slli_epi16(codes, kToHighest));
    }
  }

  DLFP4_ALWAYS_INLINE __m256i operator()(__m256i codes) const {
    return find<0, Size / 16>(codes, _mm256_and_si256(codes, all_bytes(15)));
  }
};

struct Avx2Recode {
  static constexpr int kCodes = dlfp4::kCodes;

  template <int Size>
  using Table = dlfp4::Table<Size>;

  template <int Bits>
  static __m256i load(const uint8_t *src) {
    return load_codes<Bits, 1>(src);
  }

  template <int Bits>
  static void store(uint8_t *dst, __m256i codes) {
    store_codes<Bits>(dst, codes);
  }
};

template <int Bits>
void pack_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_steps<kCodes, 8, Bits>(src, dst, count, [](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
    store_codes<Bits>(to, clear_noise<Bits>(load_codes<8, 1>(from)));
  });
}

template <int Bits>
void unpack_codes(const uint8_t *src, uint8_t *dst, int64_t count, const Mode &) {
  in_steps<kCodes, Bits, 8>(src, dst, count, [](const uint8_t *from, uint8_t *to) DLFP4_ALWAYS_INLINE {
    store_codes<8>(to, load_codes<Bits, 1>(from));
  });
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_AVX2_RECODE_H_
