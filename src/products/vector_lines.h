// A line times few rows of float32, as far as it is the same for every vector.
// Layout: codes as they lie, packed below 8 bits; floats in order; a step's elements are four vectors.
// Trick: what is decoded stays in registers for four rows.
#ifndef DLFP4_SRC_PRODUCTS_VECTOR_LINES_H_
#define DLFP4_SRC_PRODUCTS_VECTOR_LINES_H_

#include <type_traits>

#include "vector_dots.h"

namespace dlfp4 {
namespace {

// Calls call(how many, the first) for all rows, at most four at a time.
template <class Call>
void in_fours(int64_t rows, Call call) {
  const int64_t whole = rows / 4 * 4;
  for (int64_t first = 0; first < whole; first += 4) call(std::integral_constant<int, 4>(), first);
  if (rows - whole == 3) call(std::integral_constant<int, 3>(), whole);
  if (rows - whole == 2) call(std::integral_constant<int, 2>(), whole);
  if (rows - whole == 1) call(std::integral_constant<int, 1>(), whole);
}

// One row alone has a sum for each of a step's four vectors: two would wait for each other.
template <class Isa, int kRows>
struct RowSums {
  using F32 = typename Isa::F32;
  static constexpr int kSums = kRows == 1 ? 4 : 2, kLanes = sizeof(F32) / sizeof(float);
  F32 of[kRows][kSums] = {};

  // Vector i of a step times the rows' floats there; x is where the step starts.
  DLFP4_ALWAYS_INLINE void add(int i, F32 values, const float *x, int64_t pitch) {
    for (int r = 0; r < kRows; ++r)
      of[r][i % kSums] = Isa::multiply_add(values, load_lanes<F32>(x + r * pitch + kLanes * i), of[r][i % kSums]);
  }

  void add_to(double *totals) const {
    for (int r = 0; r < kRows; ++r) {
      F32 sum = of[r][0];
      for (int i = 1; i < kSums; ++i) sum = sum + of[r][i];
      totals[r * kColumns] += add_lanes(sum);
    }
  }
};

// --- Decoded lines ---------------------------------------------------------------------------

template <class Isa>
void multiply_float_lines(const float *line, const float *x, int64_t pitch, int64_t count, int64_t rows,
                          double *totals) {
  static_assert(kFloatStep % Isa::kCodes == 0, "whole steps");
  in_fours(rows, [&](auto some, int64_t row) {
    RowSums<Isa, some()> sums;
    for (int64_t k = 0; k < count; k += Isa::kCodes)
      for (int i = 0; i < 4; ++i)
        sums.add(i, load_lanes<typename Isa::F32>(line + k + sums.kLanes * i), x + row * pitch + k, pitch);
    sums.add_to(totals + row * kColumns);
  });
}

// --- Codes -----------------------------------------------------------------------------------

// Calls step(src, position) for `Elements` codes of `Bits` at a time, the last ones followed by zeros.
template <int Elements, int Bits, class Step>
DLFP4_ALWAYS_INLINE inline void in_steps_of_line(const uint8_t *codes, int64_t count, Step step) {
  constexpr int kBytes = Elements * Bits / 8;
  int64_t first = 0;
  for (; count - first >= Elements; first += Elements, codes += kBytes) step(codes, first);
  if (first == count) return;
  uint8_t last[kBytes] = {};
  copy_codes(last, codes, (count - first) * Bits);
  step(last, first);
}

// A step's elements in order. Isa has what load_factors names, and decode<Row>(src) for those of at most 8 bits.
template <class Isa, int Row>
DLFP4_ALWAYS_INLINE inline typename Isa::Factors load_in_order(const uint8_t *src) {
  if constexpr (kTypes[Row].bits > 8)
    return Isa::template load_wide<Row>(src);
  else
    return Isa::template decode<Row>(src);
}

// Elements are multiplied by their scales before x, as where lines are decoded first: both sum the same numbers.
template <class Isa, int Row>
void multiply_codes(const uint8_t *codes, const float *scales, int64_t block, const float *x, int64_t pitch,
                    int64_t count, int64_t rows, double *totals) {
  using F32 = typename Isa::F32;
  constexpr int kLeastBlock = 16;
  const int shift = __builtin_ctzll(static_cast<uint64_t>(block));
  in_fours(rows, [&](auto some, int64_t row) {
    RowSums<Isa, some()> sums;
    in_steps_of_line<Isa::kCodes, kTypes[Row].bits>(
        codes, count, [&](const uint8_t *src, int64_t first) DLFP4_ALWAYS_INLINE {
          const auto line = load_in_order<Isa, Row>(src);
          for (int i = 0; i < 4; ++i) {
            const int64_t position = first + i * sums.kLanes / kLeastBlock * kLeastBlock;
            sums.add(i, line.part[i] * splat<F32>(scales[position >> shift]), x + row * pitch + first, pitch);
          }
        });
    sums.add_to(totals + row * kColumns);
  });
}

// Lines of float32 need no decoding.
template <class Isa, int Row>
void add_codes(LineKernels *kernels) {
  constexpr bool kIsFourOrSix = is_integer(Row) && is_float(kTypes[Row]);
  if constexpr (kIsFourOrSix || (is_summed_as_float(Row) && Row != DLFP4_float32))
    kernels->multiply_codes[Row] = multiply_codes<Isa, Row>;
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_VECTOR_LINES_H_
