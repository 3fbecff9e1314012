// The AVX-512 level's kernels for products, for processors that have VNNI and BF16 too.
// Layout: as in product_kernels.h.
// Trick: rows are made of dtypes.def's, as the kernels are of the formats' constants.
#include <type_traits>
#include <utility>

#include "avx512_block_dots.h"
#include "avx512_dots.h"
#include "avx512_lines.h"
#include "avx512_tiles.h"

namespace dlfp4 {
namespace {

constexpr bool has_vectors_of_integers(int row) {
  return is_integer(row) && kFormats[row].bits >= 4 && row != DLFP4_uint8;
}

template <int Row>
constexpr void add_sums(ProductKernels *kernels) {
  constexpr int kBits = kFormats[Row].bits;
  if constexpr (has_vectors_of_integers(Row)) {
    kernels->sum_integers[Row][0] = sum_bytes<Row, 8>;
    if constexpr (kBits == 4) kernels->sum_integers[Row][1] = sum_nibbles<Row>;
    if constexpr (kBits == 6) kernels->sum_integers[Row][1] = sum_bytes<Row, 6>;
  }
  if constexpr (is_summed_as_float(Row) && kBits == 8) kernels->sum_floats[Row] = sum_float8<Row>;
}

template <int... Row>
constexpr ProductKernels make_kernels(std::integer_sequence<int, Row...>) {
  ProductKernels kernels = {};
  (add_sums<Row>(&kernels), ...);
  kernels.sum_floats[DLFP4_bfloat16] = sum_bfloat16;
  kernels.sum_floats[DLFP4_float16] = sum_float16;
  kernels.sum_floats[DLFP4_float32] = sum_float32;
  kernels.sum_blocks[DLFP4_TWO_LEVEL] = sum_two_level;
  kernels.sum_blocks[DLFP4_POWER] = sum_power;
  kernels.tiles = make_tiles(std::make_integer_sequence<int, DLFP4_NUM_DTYPES>());
  kernels.lines = make_lines(std::make_integer_sequence<int, DLFP4_NUM_DTYPES>());
  kernels.sum_scaled[element_of(DLFP4_float6_e2m3fn)] = sum_scaled<DLFP4_float6_e2m3fn>;
  kernels.sum_scaled[element_of(DLFP4_float6_e3m2fn)] = sum_scaled<DLFP4_float6_e3m2fn>;
  kernels.sum_scaled[element_of(DLFP4_float8_e4m3fn)] = sum_scaled<DLFP4_float8_e4m3fn>;
  kernels.sum_scaled[element_of(DLFP4_float8_e5m2)] = sum_scaled<DLFP4_float8_e5m2>;
  return kernels;
}

}  // namespace

extern const ProductKernels avx512_products;
const ProductKernels avx512_products = make_kernels(std::make_integer_sequence<int, DLFP4_NUM_DTYPES>());

}  // namespace dlfp4
