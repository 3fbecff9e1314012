// The frame of a level whose kernels do a fixed number of elements a step: the walk over a run, the table of rows.
// Layout: runs as in kernels.h.
// Trick: the last elements are a step in memory of its own, so that kernels need no other code for them.
#ifndef DLFP4_SRC_CODECS_VECTOR_H_
#define DLFP4_SRC_CODECS_VECTOR_H_

#include <stdint.h>
#include <string.h>

#include <utility>

#include "host/simd/lanes.h"
#include "table.h"

namespace dlfp4 {
namespace {

// --- The table -------------------------------------------------------------------------------

constexpr bool is_sub_byte(int row) { return kFormats[row].bits < 8; }

template <class Kernels, int Low, bool kPacked, int Wide, class Table>
constexpr void add_codes(Table *rows) {
  constexpr Operand kLow = {Low, kPacked}, kWide = {Wide, false};
  if constexpr (holds_exactly(kFormats[Wide], kFormats[Low]))
    rows->add(kLow, kWide, kAnyMode, Kernels::template decode<Low, kPacked, Wide>);
  rows->add(kWide, kLow, kNearestEven, Kernels::template encode<Wide, Low, kPacked>);
}

template <class Kernels, int Src, bool kSrcPacked, int Dst, class Table>
constexpr void add_recodes(Table *rows) {
  rows->add({Src, kSrcPacked}, {Dst, false}, kFixedModes, Kernels::template recode<Src, kSrcPacked, Dst, false>);
  if constexpr (is_sub_byte(Dst))
    rows->add({Src, kSrcPacked}, {Dst, true}, kFixedModes, Kernels::template recode<Src, kSrcPacked, Dst, true>);
}

template <class Kernels, int Row, int Other, class Table>
constexpr void add_pair(Table *rows) {
  if constexpr (is_low(Row) && is_wide(Other)) {
    add_codes<Kernels, Row, false, Other>(rows);
    if constexpr (is_sub_byte(Row)) add_codes<Kernels, Row, true, Other>(rows);
  }
  if constexpr (is_low(Row) && is_low(Other) && Row != Other) {
    add_recodes<Kernels, Row, false, Other>(rows);
    if constexpr (is_sub_byte(Row)) add_recodes<Kernels, Row, true, Other>(rows);
  }
  if constexpr (is_wide(Row) && is_wide(Other) && converts_through_float32(Row, Other))
    rows->add({Row, false}, {Other, false}, wide_modes<Row, Other>(), Kernels::template convert<Row, Other>);
}

template <class Kernels, int Row, class Table, int... Other>
constexpr void add_type(Table *rows, std::integer_sequence<int, Other...>) {
  if constexpr (is_sub_byte(Row)) {
    rows->add({Row, false}, {Row, true}, kAnyMode, Kernels::template pack<kFormats[Row].bits>);
    rows->add({Row, true}, {Row, false}, kAnyMode, Kernels::template unpack<kFormats[Row].bits>);
  }
  (add_pair<Kernels, Row, Other>(rows), ...);
}

template <class Kernels, int Size, int... Row>
constexpr Rows<Size> make_rows(std::integer_sequence<int, Row...> all_rows) {
  Rows<Size> rows = {};
  (add_type<Kernels, Row>(&rows, all_rows), ...);
  return rows;
}

// `Kernels` has the templates that are named here, functions in the sense of Kernel.
template <class Kernels>
constexpr auto make_rows() {
  constexpr std::make_integer_sequence<int, DLFP4_NUM_DTYPES> kAllRows = {};
  constexpr int kMostRows = 4 * DLFP4_NUM_DTYPES * DLFP4_NUM_DTYPES;
  return make_rows<Kernels, make_rows<Kernels, kMostRows>(kAllRows).size>(kAllRows);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_VECTOR_H_
