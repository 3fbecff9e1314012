// The AVX-512 level: which conversions it has a kernel for. The kernels are in the headers that it alone includes.
// Layout: runs, packed or one code a byte, against codes or floats; 64 elements a step, the last ones under a mask.
// Trick: the rows are made of dtypes.def's, as the kernels are of the formats' constants.
#include <utility>

#include "avx512_decode.h"
#include "avx512_encode.h"
#include "avx512_floats.h"
#include "avx512_recode.h"
#include "host/simd/avx512.h"
#include "table.h"

namespace dlfp4 {
namespace {

constexpr bool is_sub_byte(int row) { return kFormats[row].bits < 8; }

template <int Src, bool kSrcPacked, int Dst, bool kDstPacked, class Table>
constexpr void add_row(Table *rows) {
  constexpr Operand kSrc = {Src, kSrcPacked}, kDst = {Dst, kDstPacked};
  if constexpr (is_low(Src) && is_wide(Dst) && !kDstPacked)
    rows->add(kSrc, kDst, wide_modes<Src, Dst>(), decode_rows<Src, kSrcPacked, Dst>);
  else if constexpr (is_wide(Src) && is_wide(Dst) && converts_through_float32(Src, Dst))
    rows->add(kSrc, kDst, wide_modes<Src, Dst>(), float_rows<Src, Dst>);
  else if constexpr (is_wide(Src) && is_low(Dst) && !kSrcPacked)
    rows->add(kSrc, kDst, kFixedModes, encode_rows<Src, Dst, kDstPacked>);
  else if constexpr (is_low(Src) && is_low(Dst) && Src != Dst)
    rows->add(kSrc, kDst, kFixedModes, recode_rows<Src, kSrcPacked, Dst, kDstPacked>);
  else if constexpr (Src == Dst && !kSrcPacked && kDstPacked)
    rows->add(kSrc, kDst, kAnyMode, copy_codes<8, kFormats[Src].bits>);
  else if constexpr (Src == Dst && kSrcPacked && !kDstPacked)
    rows->add(kSrc, kDst, kAnyMode, copy_codes<kFormats[Src].bits, 8>);
}

template <int Src, int Dst, class Table>
constexpr void add_pair(Table *rows) {
  add_row<Src, false, Dst, false>(rows);
  if constexpr (is_sub_byte(Src)) add_row<Src, true, Dst, false>(rows);
  if constexpr (is_sub_byte(Dst)) add_row<Src, false, Dst, true>(rows);
  if constexpr (is_sub_byte(Src) && is_sub_byte(Dst)) add_row<Src, true, Dst, true>(rows);
}

template <int Src, class Table, int... Dst>
constexpr void add_source(Table *rows, std::integer_sequence<int, Dst...>) {
  (add_pair<Src, Dst>(rows), ...);
}

template <int Size, int... Src>
constexpr Rows<Size> make_rows(std::integer_sequence<int, Src...> all_rows) {
  Rows<Size> rows = {};
  (add_source<Src>(&rows, all_rows), ...);
  return rows;
}

constexpr std::make_integer_sequence<int, DLFP4_NUM_DTYPES> kAllRows = {};
constexpr int kMostRows = 4 * DLFP4_NUM_DTYPES * DLFP4_NUM_DTYPES;
constexpr Rows kRows = make_rows<make_rows<kMostRows>(kAllRows).size>(kAllRows);

}  // namespace

void add_avx512_codecs(CodecKernels *kernels) { kernels->add(kRows.row, kRows.size); }

}  // namespace dlfp4
