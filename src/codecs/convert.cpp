// dlfp4_host_convert: checks its arguments, finds the contiguous runs and hands them to kernels.
// Layout: any two views of one shape.
// Trick: everything but long runs on whole bytes is gathered, converted and scattered in blocks.
#include <string.h>

#include "host/level.h"
#include "host/threads.h"
#include "plan.h"
#include "rules/numerics.h"
#include "rules/walk.h"

namespace dlfp4 {
namespace {

constexpr int64_t kGrain = 1 << 16;  // elements worth a thread
constexpr int64_t kLongRow = 64;     // elements worth a kernel call
constexpr int64_t kBlock = 512;      // elements gathered at a time
constexpr int kMaxCodeBytes = 16;

struct ConvertCall {
  Plan plan;      // whole runs, as they lie in memory
  Plan gathered;  // blocks of unpacked codes
  const uint8_t *src;
  uint8_t *dst;
  Mode mode;
  const Walk *walk;
  bool part;  // other elements may lie in the last byte
};

// --- Arguments -------------------------------------------------------------------------------

bool is_mode(const dlfp4_convert_options *options, Mode *mode) {
  *mode = {DLFP4_NEAREST_EVEN, true, 0, 0};
  if (!options) return true;
  if (!is_rounding(options->rounding)) return false;
  *mode = {options->rounding, options->saturate != 0, options->seed, 0};
  return true;
}

// --- Runs ------------------------------------------------------------------------------------

const uint8_t *at(const uint8_t *data, Operand operand, int64_t element) {
  return data + element * spacing(operand) / 8;
}

uint8_t *at(uint8_t *data, Operand operand, int64_t element) {
  return const_cast<uint8_t *>(at(static_cast<const uint8_t *>(data), operand, element));
}

Mode mode_from(const ConvertCall &call, int64_t element) {
  Mode mode = call.mode;
  mode.first = static_cast<uint64_t>(element);
  return mode;
}

void convert_run(const void *context, int64_t first, int64_t last) {
  const ConvertCall &call = *static_cast<const ConvertCall *>(context);
  run_plan(call.plan, at(call.src, call.plan.src, first), at(call.dst, call.plan.dst, first), last - first,
           mode_from(call, first));
}

void convert_gathered(const ConvertCall &call, Cursor *src, Cursor *dst, int64_t first, int64_t last) {
  alignas(64) uint8_t codes[kBlock * kMaxCodeBytes];
  alignas(64) uint8_t converted[kBlock * kMaxCodeBytes];
  for (int64_t element = first; element < last; element += kBlock) {
    const int64_t count = last - element < kBlock ? last - element : kBlock;
    gather(call.plan.src, call.src, src, codes, count);
    run_plan(call.gathered, codes, converted, count, mode_from(call, element));
    scatter(call.plan.dst, call.dst, dst, converted, count);
  }
}

void convert_strided(const void *context, int64_t first, int64_t last) {
  const ConvertCall &call = *static_cast<const ConvertCall *>(context);
  Cursor src = cursor_at(*call.walk, kSrc, first), dst = cursor_at(*call.walk, kDst, first);
  convert_gathered(call, &src, &dst, first, last);
}

// Elements that fill whole bytes on both sides, as packed groups do (of 4, of 2 or of 1).
int64_t in_whole_bytes(int64_t elements) { return elements & ~int64_t{3}; }

void convert_rows(const void *context, int64_t first_row, int64_t last_row) {
  const ConvertCall &call = *static_cast<const ConvertCall *>(context);
  const int64_t extent = call.walk->extent[call.walk->ndim - 1];
  const int64_t body = in_whole_bytes(extent);
  const int64_t first = first_row * extent, last = last_row * extent;
  Cursor src = cursor_at(*call.walk, kSrc, first), dst = cursor_at(*call.walk, kDst, first);
  for (int64_t element = first; element < last; element += extent) {
    run_plan(call.plan, at(call.src, call.plan.src, src.offset), at(call.dst, call.plan.dst, dst.offset), body,
             mode_from(call, element));
    advance(&src, body);
    advance(&dst, body);
    convert_gathered(call, &src, &dst, element + body, element + extent);
  }
}

// One thread writes packed elements if threads could share a byte of them. In row-major order they share none.
int64_t strided_grain(const ConvertCall &call) {
  return call.plan.dst.packed && !is_row_major(*call.walk, kDst) ? call.walk->size : kGrain;
}

// --- Rows of columns -------------------------------------------------------------------------

// Rows of the result whose elements lie far apart, as those of a transposed matrix, each a neighbour of the next row's.
// Tiles of both are read by cache lines: far apart often means in the same few places of a cache.
constexpr int64_t kTileRows = 64, kTileBytes = 1 << 15, kLeastRows = 8, kLeastColumns = 16;

int64_t item_of(const ConvertCall &call) { return spacing(call.plan.src) / 8; }
int64_t tiles_along(const Walk &walk, int dim) { return (walk.extent[dim] + kTileRows - 1) / kTileRows; }

// The dimension of these rows, or -1 if elements do not lie so.
int find_rows_of_columns(const ConvertCall &call) {
  const Walk &walk = *call.walk;
  const int last = walk.ndim - 1;
  const bool to_bytes = !call.plan.dst.packed || (rows_start_on_bytes(walk, kDst, call.plan.dst) &&
                                                  in_whole_bytes(walk.extent[last]) == walk.extent[last]);
  if (call.plan.src.packed || walk.stride[kDst][last] != 1 || !to_bytes || walk.extent[last] < kLeastColumns) return -1;
  for (int dim = 0; dim < last; ++dim)
    if (walk.stride[kSrc][dim] == 1 && walk.extent[dim] >= kLeastRows) return dim;
  return -1;
}

// Columns as rows, kTileBytes / kTileRows apart.
template <int kItem>
void turn_items(const uint8_t *src, int64_t step, int64_t rows, int64_t columns, uint8_t *tile) {
  for (int64_t c = 0; c < columns; ++c, src += step * kItem, tile += kItem)
    for (int64_t r = 0; r < rows; ++r) memcpy(tile + r * (kTileBytes / kTileRows), src + r * kItem, kItem);
}

void turn(int64_t item, const uint8_t *src, int64_t step, int64_t rows, int64_t columns, uint8_t *tile) {
  if (item == 1) return turn_items<1>(src, step, rows, columns, tile);
  if (item == 2) return turn_items<2>(src, step, rows, columns, tile);
  if (item == 4) return turn_items<4>(src, step, rows, columns, tile);
  if (item == 8) return turn_items<8>(src, step, rows, columns, tile);
  turn_items<16>(src, step, rows, columns, tile);
}

// Where some rows start: in memory, and in row-major order, in which the next row is `next` elements on.
struct RowRange {
  int64_t count, src, dst, element, next;
};

RowRange find_rows(const Walk &walk, int dim, int64_t tile) {
  const int64_t first = tile % tiles_along(walk, dim) * kTileRows, left = walk.extent[dim] - first;
  RowRange rows = {left < kTileRows ? left : kTileRows, 0, 0, 0, 0};
  int64_t number = walk.extent[walk.ndim - 1];
  tile /= tiles_along(walk, dim);
  for (int k = walk.ndim - 2; k >= 0; --k) {
    const int64_t index = k == dim ? first : tile % walk.extent[k];
    if (k == dim)
      rows.next = number;
    else
      tile /= walk.extent[k];
    rows.src += index * walk.stride[kSrc][k];
    rows.dst += index * walk.stride[kDst][k];
    rows.element += index * number;
    number *= walk.extent[k];
  }
  return rows;
}

void convert_tiles(const void *context, int64_t first, int64_t last_tile) {
  alignas(64) uint8_t tile[kTileBytes];
  const ConvertCall &call = *static_cast<const ConvertCall *>(context);
  const Walk &walk = *call.walk;
  const int dim = find_rows_of_columns(call), last = walk.ndim - 1;
  const int64_t item = item_of(call), columns = kTileBytes / kTileRows / item, step = walk.stride[kSrc][last];
  for (int64_t number = first; number < last_tile; ++number) {
    const RowRange rows = find_rows(walk, dim, number);
    for (int64_t c = 0; c < walk.extent[last]; c += columns) {
      const int64_t left = walk.extent[last] - c, count = left < columns ? left : columns;
      turn(item, call.src + (rows.src + c * step) * item, step, rows.count, count, tile);
      for (int64_t r = 0; r < rows.count; ++r)
        run_plan(call.plan, tile + r * (kTileBytes / kTileRows),
                 at(call.dst, call.plan.dst, rows.dst + r * walk.stride[kDst][dim] + c), count,
                 mode_from(call, rows.element + r * rows.next + c));
    }
  }
}

// --- All -------------------------------------------------------------------------------------

void convert_strided_all(const ConvertCall &call) {
  const Walk &walk = *call.walk;
  const int64_t extent = walk.extent[walk.ndim - 1];
  const bool rows = extent >= kLongRow && has_contiguous_rows(walk) && rows_start_on_bytes(walk, kSrc, call.plan.src) &&
                    rows_start_on_bytes(walk, kDst, call.plan.dst);
  const int dim = rows ? -1 : find_rows_of_columns(call);
  if (rows)
    parallel_for_tiles(walk.size / extent, (kGrain + extent - 1) / extent, convert_rows, &call);
  else if (dim >= 0)
    parallel_for_tiles(walk.size / extent / walk.extent[dim] * tiles_along(walk, dim),
                       (kGrain / kTileRows + extent - 1) / extent, convert_tiles, &call);
  else
    parallel_for(walk.size, strided_grain(call), convert_strided, &call);
}

void convert_elements(const ConvertCall &call) {
  if (is_run(*call.walk))
    parallel_for(call.walk->size, kGrain, convert_run, &call);
  else
    convert_strided_all(call);
}

// The last byte of packed codes without gaps may have spare bits: zeros, or bits of other elements.
void convert_all(const ConvertCall &call) {
  const int64_t bits = call.walk->size * dlfp4_dtypes[call.plan.dst.row].bits;
  if (!call.plan.dst.packed || bits % 8 == 0 || !is_dense(*call.walk, kDst)) return convert_elements(call);
  const uint8_t spare = static_cast<uint8_t>(0xFF << bits % 8);
  const uint8_t beside = call.part ? call.dst[bits / 8] & spare : 0;
  convert_elements(call);
  call.dst[bits / 8] = static_cast<uint8_t>((call.dst[bits / 8] & ~spare) | beside);
}

}  // namespace
}  // namespace dlfp4

extern "C" {

dlfp4_status dlfp4_host_convert(const dlfp4_view *src, const dlfp4_view *dst, const dlfp4_convert_options *options) {
  using namespace dlfp4;
  const int level = current_level();
  if (level < 0) return DLFP4_E_ISA;
  Operand from, to;
  if (!find_operand(*src, &from) || !find_operand(*dst, &to)) return DLFP4_E_DTYPE;
  if (!are_convertible(from, to)) return DLFP4_E_DTYPE;
  Mode mode;
  if (!is_mode(options, &mode)) return DLFP4_E_OPTION;
  if (mode.rounding == DLFP4_UPWARD && kTypes[to.row].specials != DLFP4_E8M0) return DLFP4_E_OPTION;
  Walk walk;
  if (!collapse(*src, *dst, &walk)) return DLFP4_E_SHAPE;
  if (walk.size == 0) return DLFP4_OK;
  const Operand plain_from = {from.row, false}, plain_to = {to.row, false};
  convert_all({make_plan(level, from, to, mode), make_plan(level, plain_from, plain_to, mode),
               static_cast<const uint8_t *>(src->data), static_cast<uint8_t *>(dst->data), mode, &walk,
               dst->part != 0});
  return DLFP4_OK;
}

float dlfp4_host_narrow(double number) {
  float narrowed = 0;
  dlfp4::compute([&] { narrowed = static_cast<float>(number); });
  return narrowed;
}
}
