// Products one element at a time: the oracle of all levels' kernels.
// Layout: as in kernels.h.
// Sums of integers have 64 bits; products and sums of floats are float64.
#include <utility>

#include "blocks/scalar.h"
#include "kernels.h"
#include "rules/numerics.h"
#include "rules/sums.h"
#include "scalar_tiles.h"

namespace dlfp4 {
namespace {

// --- Elements --------------------------------------------------------------------------------

// What each code is worth, in the type's units.
template <int Row>
struct IntegerTable {
  int16_t value[1 << kTypes[Row].bits];
};

template <int Row>
constexpr IntegerTable<Row> make_integer_table() {
  IntegerTable<Row> table = {};
  for (int code = 0; code < 1 << kTypes[Row].bits; ++code)
    table.value[code] = static_cast<int16_t>(integer_of(Row, static_cast<uint64_t>(code)));
  return table;
}

template <int Row>
struct FloatTable {
  uint32_t bits[1 << (kTypes[Row].bits <= 8 ? kTypes[Row].bits : 1)];
};

template <int Row>
constexpr FloatTable<Row> make_float_table() {
  FloatTable<Row> table = {};
  for (uint64_t code = 0; code < sizeof(table.bits) / sizeof(*table.bits); ++code)
    table.bits[code] = static_cast<uint32_t>(
        convert(kTypes[Row], kTypes[DLFP4_float32], code, {DLFP4_NEAREST_EVEN, false}, {0, 0, 0}));
  return table;
}

// Element `index` of a run that is packed where its type is below 8 bits.
template <int Row>
double value_at(const uint8_t *src, int64_t index) {
  if constexpr (kTypes[Row].bits > 8) {
    return load_float<Row>(src, index);
  } else {
    static constexpr FloatTable<Row> kTable = make_float_table<Row>();
    return float_of(kTable.bits[packed_code(src, index, kTypes[Row].bits)]);
  }
}

// --- Sums ------------------------------------------------------------------------------------

template <int Row, bool kPacked>
int64_t sum_integers(const uint8_t *a, const uint8_t *b, int64_t count) {
  static constexpr IntegerTable<Row> kTable = make_integer_table<Row>();
  constexpr int kBits = kTypes[Row].bits, kMask = (1 << kBits) - 1;
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (kPacked)
      sum += int64_t{kTable.value[packed_code(a, i, kBits)]} * kTable.value[packed_code(b, i, kBits)];
    else
      sum += int64_t{kTable.value[a[i] & kMask]} * kTable.value[b[i] & kMask];
  }
  return sum;
}

template <int Row>
double sum_floats(const uint8_t *a, const uint8_t *b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += value_at<Row>(a, i) * value_at<Row>(b, i);
  return sum;
}

template <int Key>
double sum_scaled(const uint8_t *a, const uint8_t *b, int64_t count, const float *scales) {
  constexpr int kRow = kBlockKeys[Key].element;
  constexpr int64_t kBlock = kBlockKeys[Key].length;
  double sum = 0;
  for (int64_t first = 0; first < count; first += kBlock, ++scales) {
    const int64_t last = count - first < kBlock ? count : first + kBlock;
    double of_block = 0;
    for (int64_t i = first; i < last; ++i) of_block += value_at<kRow>(a, i) * value_at<kRow>(b, i);
    sum += of_block * *scales;
  }
  return sum;
}

template <int Key>
double sum_blocks(const uint8_t *a, const uint8_t *a_scales, const uint8_t *b, const uint8_t *b_scales, int64_t count) {
  constexpr int64_t kBlock = kBlockKeys[Key].length;
  constexpr ElementType kScale = kTypes[kBlockKeys[Key].scale];
  double sum = 0;
  for (int64_t block = 0; block < count / kBlock; ++block) {
    const int64_t at = block * kBlock / 2;
    const auto of_block = static_cast<double>(sum_integers<DLFP4_float4_e2m1fn, true>(a + at, b + at, kBlock)) / 4;
    const double scale = decode_scale(kScale, a_scales[block]);
    sum += of_block * (scale * static_cast<double>(decode_scale(kScale, b_scales[block])));
  }
  return sum;
}

// --- The table -------------------------------------------------------------------------------

template <int Row>
void add_sums(ProductKernels *kernels) {
  if constexpr (is_integer(Row)) {
    kernels->sum_integers[Row][0] = sum_integers<Row, false>;
    if constexpr (kTypes[Row].bits < 8) kernels->sum_integers[Row][1] = sum_integers<Row, true>;
  }
  if constexpr (is_summed_as_float(Row)) kernels->sum_floats[Row] = sum_floats<Row>;
}

template <int Key>
void add_block_sums(ProductKernels *kernels) {
  if constexpr (sums_elements(kBlockKeys[Key])) kernels->sum_scaled[Key] = sum_scaled<Key>;
  if constexpr (is_fp4(kBlockKeys[Key])) kernels->sum_blocks[Key] = sum_blocks<Key>;
}

template <int... Row, int... Key>
void add_product_kernels(ProductKernels *kernels, std::integer_sequence<int, Row...>,
                         std::integer_sequence<int, Key...> keys) {
  (add_sums<Row>(kernels), ...);
  (add_block_sums<Key>(kernels), ...);
  add_tiles(&kernels->tiles, keys);
  kernels->lines.multiply_floats = multiply_float_rows;
  kernels->lines.most_float_rows = 8;
}

}  // namespace

void add_scalar_products(ProductKernels *kernels) {
  add_product_kernels(kernels, std::make_integer_sequence<int, DLFP4_NUM_DTYPES>(),
                      std::make_integer_sequence<int, kNumKeys>());
}

}  // namespace dlfp4
