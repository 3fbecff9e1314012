// The AVX-512 level's kernels for products, for processors that have VNNI and BF16 too.
// Layout: as in kernels.h.
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
  return is_integer(row) && kTypes[row].bits >= 4 && row != DLFP4_uint8;
}

template <int Row>
void add_sums(ProductKernels *kernels) {
  constexpr int kBits = kTypes[Row].bits;
  if constexpr (has_vectors_of_integers(Row)) {
    kernels->sum_integers[Row][0] = sum_bytes<Row, 8>;
    if constexpr (kBits == 4) kernels->sum_integers[Row][1] = sum_nibbles<Row>;
    if constexpr (kBits == 6) kernels->sum_integers[Row][1] = sum_bytes<Row, 6>;
  }
  if constexpr (is_summed_as_float(Row) && kBits == 8) kernels->sum_floats[Row] = sum_float8<Row>;
}

// What is here for FP4 is for NVFP4's blocks and MXFP4's; others are left to AVX2, as are sums of FP4 by float32
// scales.
template <int Key>
void add_block_sums(ProductKernels *kernels) {
  constexpr BlockKey kKey = kBlockKeys[Key];
  if constexpr (kTypes[kKey.element].bits >= 6 && kKey.length >= 32) kernels->sum_scaled[Key] = sum_scaled<Key>;
  if constexpr (is_fp4(kKey, DLFP4_float8_e4m3fn, 16)) kernels->sum_blocks[Key] = sum_two_level;
  if constexpr (is_fp4(kKey, DLFP4_float8_e8m0fnu, 32)) kernels->sum_blocks[Key] = sum_power;
}

template <int... Row, int... Key>
void add_kernels(ProductKernels *kernels, std::integer_sequence<int, Row...> rows,
                 std::integer_sequence<int, Key...> keys) {
  (add_sums<Row>(kernels), ...);
  kernels->sum_floats[DLFP4_bfloat16] = sum_bfloat16;
  kernels->sum_floats[DLFP4_float16] = sum_float16;
  kernels->sum_floats[DLFP4_float32] = sum_float32;
  (add_block_sums<Key>(kernels), ...);
  add_tiles(&kernels->tiles, rows, keys);
  add_lines(&kernels->lines, rows, keys);
}

}  // namespace

void add_avx512_bf16_products(ProductKernels *kernels) {
  add_kernels(kernels, std::make_integer_sequence<int, DLFP4_NUM_DTYPES>(),
              std::make_integer_sequence<int, kNumKeys>());
}

}  // namespace dlfp4
