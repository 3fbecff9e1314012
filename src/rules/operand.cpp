// Which row of dtypes.def a DLPack type is.
#include "operand.h"

namespace dlfp4 {
namespace {

constexpr int kMaxCode = 32, kMaxBits = 128;
#define DLFP4_DTYPE(name, code, bits, exponent, mantissa, bias, specials)                                      \
  static_assert(code < kMaxCode && bits <= kMaxBits && (bits == 6 || (bits >= 2 && (bits & (bits - 1)) == 0)), \
                "tables and copies know no such code or width: " #name);
#include "dtypes.def"
#undef DLFP4_DTYPE

struct RowsOfTypes {
  int8_t row[kMaxCode][kMaxBits + 1];
};

constexpr RowsOfTypes make_rows_of_types() {
  RowsOfTypes rows = {};
  for (auto &of_code : rows.row)
    for (int8_t &row : of_code) row = -1;
#define DLFP4_DTYPE(name, code, bits, exponent, mantissa, bias, specials) rows.row[code][bits] = DLFP4_##name;
#include "dtypes.def"
#undef DLFP4_DTYPE
  return rows;
}

constexpr RowsOfTypes kRowsOfTypes = make_rows_of_types();

}  // namespace

bool find_operand(const dlfp4_view &view, Operand *operand) {
  const int row = dlfp4_find_dtype(view.code, view.bits);
  *operand = {static_cast<uint8_t>(row), view.bits < 8 && !view.padded};
  return row >= 0;
}

}  // namespace dlfp4

int dlfp4_find_dtype(uint8_t code, uint8_t bits) {
  using namespace dlfp4;
  return code < kMaxCode && bits <= kMaxBits ? kRowsOfTypes.row[code][bits] : -1;
}
