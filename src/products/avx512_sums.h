// Sums of matrix products in vectors of AVX-512: scaled, added to totals, rows a few at a time.
// Layout: rows and totals as in kernels.h.
// Trick: what the kernels for AMX need too, which the tiles of avx512_tiles.h would bring a second time.
#ifndef DLFP4_SRC_PRODUCTS_AVX512_SUMS_H_
#define DLFP4_SRC_PRODUCTS_AVX512_SUMS_H_

#include <stdint.h>

#include "host/simd/avx512.h"
#include "kernels.h"

namespace dlfp4 {
namespace {

constexpr int kLanes = 16;  // lines whose dwords make a vector
constexpr int kHalves = static_cast<int>(kColumns) / kLanes;

inline void add_to(double *totals, __m512 sums) {
  _mm512_storeu_pd(totals, _mm512_add_pd(_mm512_loadu_pd(totals), _mm512_cvtps_pd(_mm512_castps512_ps256(sums))));
  _mm512_storeu_pd(totals + 8,
                   _mm512_add_pd(_mm512_loadu_pd(totals + 8), _mm512_cvtps_pd(_mm512_extractf32x8_ps(sums, 1))));
}

// sum + blocks * a * b. The smaller scale goes first: what powers make is exact then, or finite. The order of the
// operands keeps NaN of either.
DLFP4_INLINE inline __m512 add_scaled(__m512 blocks, __m512 a, __m512 b, __m512 sum) {
  return _mm512_fmadd_ps(_mm512_mul_ps(blocks, _mm512_min_ps(a, b)), _mm512_max_ps(b, a), sum);
}

// Calls function<rows>(first row) for runs of about equal length that make up all rows, of at most kMost.
template <int kMost, class Call>
DLFP4_INLINE inline void in_runs_of_rows(int64_t rows, Call call) {
  const int64_t runs = (rows + kMost - 1) / kMost;
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t first = rows * run / runs;
    call(first, rows * (run + 1) / runs - first);
  }
}

inline BfloatRows rows_from(const BfloatRows &x, int64_t first) {
  return {x.values + first * x.pitch, x.scales + first * x.block_pitch, x.pitch, x.block_pitch};
}

inline IntegerRows rows_from(const IntegerRows &x, int64_t first) {
  return {x.values + first * x.pitch, x.corrections + first * x.block_pitch, x.scales + first * x.block_pitch, x.pitch,
          x.block_pitch};
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_AVX512_SUMS_H_
