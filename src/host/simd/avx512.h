// Loading, spreading, looking up, packing and storing 64 codes at a time, for the AVX-512 kernels alone.
// Layout: a vector of 64 codes, one a byte; in memory one a byte or packed, 2, 4 or 6 bits each.
// Trick: a byte permutation brings a qword the bytes of its eight codes, one multishift spreads them.
#ifndef DLFP4_SRC_HOST_SIMD_AVX512_H_
#define DLFP4_SRC_HOST_SIMD_AVX512_H_

// gcc 12 takes the undefined values of its own header for uninitialized ones.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>
#include <stdint.h>

#include "lanes.h"

#define DLFP4_INLINE __attribute__((always_inline))

namespace dlfp4 {
namespace {

constexpr int kCodes = 64;  // elements a step

// How many of a step's elements there are: all, or the `count` of the last step, from 1 to 63.
struct Whole {};
struct Part {
  int64_t count;
};

__mmask64 first_bytes(int64_t count) {
  const uint32_t kept = count <= 0 ? 0 : count < 64 ? static_cast<uint32_t>(count) : 64;
  return _bzhi_u64(~0ull, kept);
}

// --- Constant vectors ------------------------------------------------------------------------

struct Constant {
  alignas(64) uint8_t byte[64];
};

template <class Function>
constexpr Constant make_constant(Function byte_at) {
  Constant constant = {};
  for (int i = 0; i < 64; ++i) constant.byte[i] = static_cast<uint8_t>(byte_at(i));
  return constant;
}

inline __m512i load(const Constant &constant) { return _mm512_load_si512(constant.byte); }

// --- The instruction set ---------------------------------------------------------------------

struct Avx512 : PlainMemory {
  static constexpr int kCodes = dlfp4::kCodes;
  template <int Bits>
  static constexpr bool kStreams = Bits % 4 == 0;  // others do not fill vectors
  static void fence() { _mm_sfence(); }

  // The processor's own prefetcher stops where a page ends.
  template <int Bytes, int kAhead>
  static void prefetch(const uint8_t *src) {
    for (int line = 0; line < Bytes; line += 64)
      _mm_prefetch(reinterpret_cast<const char *>(reinterpret_cast<uintptr_t>(src) + kAhead + line), _MM_HINT_T0);
  }

  template <class V>
  static V load_part(const void *src, int64_t bytes) {
    if constexpr (sizeof(V) == 16)
      return reinterpret_cast<V>(_mm_maskz_loadu_epi8(static_cast<__mmask16>(first_bytes(bytes)), src));
    if constexpr (sizeof(V) == 64) return reinterpret_cast<V>(_mm512_maskz_loadu_epi8(first_bytes(bytes), src));
  }
  template <class V>
  static void store_part(void *dst, V vector, int64_t bytes) {
    if constexpr (sizeof(V) == 16)
      _mm_mask_storeu_epi8(dst, static_cast<__mmask16>(first_bytes(bytes)), reinterpret_cast<__m128i>(vector));
    else
      _mm512_mask_storeu_epi8(dst, first_bytes(bytes), reinterpret_cast<__m512i>(vector));
  }

  // By masks: what was stored as whole vectors can be loaded at once.
  static void read_part(uint8_t *dst, const uint8_t *src, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64)
      _mm512_store_si512(dst + i, _mm512_maskz_loadu_epi8(first_bytes(bytes - i), src + i));
  }
  static void write_part(uint8_t *dst, const uint8_t *src, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64)
      _mm512_mask_storeu_epi8(dst + i, first_bytes(bytes - i), _mm512_load_si512(src + i));
  }

  using U32 = uint32_t __attribute__((vector_size(64)));
  using I32 = int32_t __attribute__((vector_size(64)));
  using U16 = uint16_t __attribute__((vector_size(64)));
  using HalfU16 = uint16_t __attribute__((vector_size(32)));
  using F32 = __m512;
};

// --- Loading and spreading -------------------------------------------------------------------

// Which code is where in a vector: in order, or so that unpacklo and unpackhi of bytes, which work within lanes, give
// words in order.
enum Order { kInOrder, kForWords };

constexpr int code_at(Order order, int byte) {
  const int lane = byte / 16, half = byte / 8 % 2;
  return order == kInOrder ? byte : 8 * lane + 32 * half + byte % 8;
}

// Byte i of a qword's first `Bits` bytes, which hold its eight codes; the others are not used.
template <int Bits, Order kOrder>
constexpr Constant kBytesOfCodes = make_constant([](int i) {
  return Bits == 8 ? code_at(kOrder, i) : code_at(kOrder, i / 8 * 8) * Bits / 8 + (i % 8 < Bits ? i % 8 : 0);
});

template <int Bits>
constexpr Constant kShifts = make_constant([](int i) { return i % 8 * Bits; });

// Asks for the lines that the steps of a page from here read.
template <int Bytes>
void prefetch(const uint8_t *src, Whole) {
  Avx512::prefetch<Bytes, 4096>(src);
}

template <int Bytes>
void prefetch(const uint8_t *, Part) {}

template <int Bits>
__m512i load_bytes(const uint8_t *src, Whole) {
  if constexpr (Bits == 8) return _mm512_loadu_si512(src);
  if constexpr (Bits == 6) return _mm512_maskz_loadu_epi8(0xFFFFFFFFFFFF, src);
  if constexpr (Bits == 4) return _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(src)));
  if constexpr (Bits == 2) return _mm512_zextsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i *>(src)));
}

template <int Bits>
__m512i load_bytes(const uint8_t *src, Part part) {
  return _mm512_maskz_loadu_epi8(first_bytes((part.count * Bits + 7) / 8), src);
}

// The codes' bits above the lowest `Bits` are noise.
template <int Bits, Order kOrder, class Share>
__m512i load_codes(const uint8_t *src, Share share) {
  const __m512i bytes = load_bytes<Bits>(src, share);
  if constexpr (Bits == 8 && kOrder == kInOrder) {
    return bytes;
  } else {
    const __m512i gathered = _mm512_permutexvar_epi8(load(kBytesOfCodes<Bits, kOrder>), bytes);
    return Bits == 8 ? gathered : _mm512_multishift_epi64_epi8(load(kShifts<Bits>), gathered);
  }
}

// The same of a run that is read alone, for which the page ahead is asked. Of two runs at once this made sums slower.
template <int Bits, Order kOrder, class Share>
__m512i load_run(const uint8_t *src, Share share) {
  prefetch<8 * Bits>(src, share);
  return load_codes<Bits, kOrder>(src, share);
}

template <int Bits>
__m512i clear_noise(__m512i codes) {
  return _mm512_and_si512(codes, _mm512_set1_epi8((1 << Bits) - 1));
}

// --- Looking up ------------------------------------------------------------------------------

// A table of bytes in registers. With 64 entries a code's bits above the lowest six are ignored; with 128 the highest.
template <int Size>
struct Lookup {
  __m512i part[Size / 64];

  explicit Lookup(const uint8_t *table) {
    for (int i = 0; i < Size / 64; ++i) part[i] = _mm512_loadu_si512(table + 64 * i);
  }

  __m512i operator()(__m512i codes) const {
    if constexpr (Size == 64) return _mm512_permutexvar_epi8(codes, part[0]);
    if constexpr (Size == 128) return _mm512_permutex2var_epi8(part[0], codes, part[1]);
    if constexpr (Size == 256)
      return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), _mm512_permutex2var_epi8(part[0], codes, part[1]),
                                    _mm512_permutex2var_epi8(part[2], codes, part[3]));
  }
};

// --- Packing and storing ---------------------------------------------------------------------

template <int Bytes, int Group>
constexpr Constant kFirstOfGroups = make_constant([](int i) { return i / Bytes * Group + i % Bytes; });

// Two clean codes a word.
template <int Bits>
__m512i join_pairs(__m512i codes) {
  return _mm512_maddubs_epi16(codes, _mm512_set1_epi16(1 | 1 << (8 + Bits)));
}

// Four clean codes a dword.
template <int Bits>
__m512i join_fours(__m512i codes) {
  return _mm512_madd_epi16(join_pairs<Bits>(codes), _mm512_set1_epi32(1 | 1 << (16 + 2 * Bits)));
}

// Clean codes, packed into the vector's first 8 * Bits bytes.
template <int Bits>
__m512i pack(__m512i codes) {
  if constexpr (Bits == 8)
    return codes;
  else if constexpr (Bits == 4)
    return _mm512_permutexvar_epi8(load(kFirstOfGroups<1, 2>), join_pairs<4>(codes));
  else
    return _mm512_permutexvar_epi8(load(kFirstOfGroups<Bits / 2, 4>), join_fours<Bits>(codes));
}

inline void store_vector(uint8_t *dst, __m512i vector, bool streams) {
  if (streams)
    _mm512_stream_si512(reinterpret_cast<__m512i *>(dst), vector);
  else
    _mm512_storeu_si512(dst, vector);
}

inline void store_half(uint8_t *dst, __m512i vector, bool streams) {
  __m256i *const to = reinterpret_cast<__m256i *>(dst);
  if (streams)
    _mm256_stream_si256(to, _mm512_castsi512_si256(vector));
  else
    _mm256_storeu_si256(to, _mm512_castsi512_si256(vector));
}

inline void store_quarter(uint8_t *dst, __m128i vector) { _mm_storeu_si128(reinterpret_cast<__m128i *>(dst), vector); }

template <int Bits>
void store_bytes(uint8_t *dst, __m512i packed, bool streams) {
  if constexpr (Bits == 8) store_vector(dst, packed, streams);
  if constexpr (Bits == 6)
    store_half(dst, packed, false), store_quarter(dst + 32, _mm512_extracti32x4_epi32(packed, 2));
  if constexpr (Bits == 4) store_half(dst, packed, streams);
  if constexpr (Bits == 2) store_quarter(dst, _mm512_castsi512_si128(packed));
}

// Clean codes in order.
template <int Bits>
void store_codes(uint8_t *dst, __m512i codes, bool streams) {
  store_bytes<Bits>(dst, pack<Bits>(codes), streams);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_HOST_SIMD_AVX512_H_
