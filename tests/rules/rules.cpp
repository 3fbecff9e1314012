// The rules of src/rules as functions over arrays, which the tests beside this file call by ctypes.
// Layout: codes and significands are uint64, floats are float32; a row is one of dtypes.def, by its number.
// Trick: rules of headers and, beside it, a few files are all that it calls, so that a changed rule is compiled in
// seconds.
#include <stdint.h>
#include <string.h>

#include <initializer_list>

#include "host/simd/floats.h"
#include "rules/block_keys.h"
#include "rules/changes.h"
#include "rules/grid.h"
#include "rules/hadamard.h"
#include "rules/layouts.h"
#include "rules/matrix.h"
#include "rules/numerics.h"
#include "rules/operand.h"
#include "rules/scaling.h"
#include "rules/sums.h"
#include "rules/walk.h"

namespace {

// What `make_rule` of blocks/scales.cpp takes of a format and a recipe, and the scale of the whole tensor.
struct Options {
  int32_t element, scale, scale_rule, order, divides, pow2, mantissa, scale_mantissa, chooses;
  uint32_t zero_scale, least_code;
  float eps, largest_scale;
  float encode, decode, largest;
};

dlfp4::ScaleRule rule_of(const Options &o) {
  dlfp4::ScaleRule rule = {};
  rule.zero_scale = o.zero_scale;
  rule.least_code = o.least_code;
  rule.least = dlfp4::bits_of(o.eps);
  rule.pow2 = o.pow2 != 0;
  rule.divides = o.divides != 0;
  rule.order = static_cast<dlfp4_scale_order>(o.order);
  rule.chooses = static_cast<dlfp4_four_over_six>(o.chooses);
  rule.mantissa = o.mantissa;
  rule.scale_mantissa = o.scale_mantissa;
  dlfp4::set_types(&rule, dlfp4::kTypes[o.element], dlfp4::kTypes[o.scale], o.largest_scale);
  rule.divides |= rule.of_integers;
  dlfp4::set_scale(&rule, {o.encode, o.decode, o.largest});
  rule.carry = dlfp4::carry_of_power(static_cast<dlfp4_scale_rule>(o.scale_rule), rule.largest,
                                     dlfp4::kTypes[o.element].mantissa);
  return rule;
}

dlfp4_format_row row_of(const int64_t *numbers) {
  dlfp4_format_row row = {};
  row.element = static_cast<uint8_t>(numbers[0]), row.scale = static_cast<uint8_t>(numbers[1]);
  row.kind = static_cast<uint8_t>(numbers[2]), row.repeats = static_cast<uint8_t>(numbers[3]);
  row.lines = static_cast<int32_t>(numbers[4]), row.length = static_cast<int32_t>(numbers[5]);
  return row;
}

dlfp4::BlockKey key_of(const int64_t *numbers) {
  return {static_cast<int>(numbers[0]), static_cast<int>(numbers[1]), static_cast<int>(numbers[2]), numbers[3]};
}

void write_key(const dlfp4::BlockKey &key, int64_t *numbers) {
  numbers[0] = key.element, numbers[1] = key.scale, numbers[2] = key.kind, numbers[3] = key.length;
}

struct Lanes {  // for what is written for every vector
  typedef uint32_t U32 __attribute__((vector_size(16)));
  typedef float F32 __attribute__((vector_size(16)));
};

dlfp4::FormatInfo format_of(int number) {
  dlfp4::FormatInfo format = {};
  dlfp4::find_format(number, &format);
  return format;
}

template <int Rounding, int Row = 0>
void encode_magnitudes(int row, const dlfp4::EncodeRule &rule, const float *floats, int64_t count, uint8_t *codes) {
  if constexpr (Row < DLFP4_NUM_DTYPES) {
    if (row != Row) return encode_magnitudes<Rounding, Row + 1>(row, rule, floats, count, codes);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = dlfp4::bits_of(floats[i]);
      const Lanes::U32 lanes = {bits, bits, bits, bits};
      codes[i] = static_cast<uint8_t>(dlfp4::encode_magnitudes<Lanes, Row, Rounding>(lanes, rule)[0]);
    }
  }
}

}  // namespace

extern "C" {

using namespace dlfp4;

// Of the structs that the tests have in ctypes, in their order.
int64_t rule_size_of(int which) {
  const size_t sizes[] = {sizeof(dlfp4_view),   sizeof(Walk),   sizeof(dlfp4_matrix), sizeof(Lines),
                          sizeof(dlfp4_blocks), sizeof(Scales), sizeof(Options),      sizeof(dlfp4_layout_row)};
  return static_cast<int64_t>(sizes[which]);
}

// --- numerics.h ------------------------------------------------------------------------------

const char *rule_row(int row) { return row < DLFP4_NUM_DTYPES ? dlfp4_dtypes[row].name : nullptr; }

void rule_convert(int from, int to, int rounding, int saturate, uint64_t seed, const uint64_t *codes, int64_t count,
                  uint64_t *results) {
  const Round round = {static_cast<dlfp4_rounding>(rounding), saturate != 0};
  for (int64_t i = 0; i < count; ++i)
    results[i] = convert(kTypes[from], kTypes[to], codes[i], round, draw_of(seed, static_cast<uint64_t>(i)));
}

// In the order of the members of Value.
void rule_decode(int row, uint64_t code, uint64_t *significand, int *exponent, int *negative, int *kind) {
  const Value value = decode(kTypes[row], code);
  *significand = value.significand, *exponent = value.exponent, *negative = value.negative, *kind = value.kind;
}

uint32_t rule_philox(uint64_t seed, uint64_t block, uint32_t depth, int word) {
  return philox(seed, block, depth).word[word];
}

// Codes of magnitudes, as fast encoders find them; and of NaN and infinity without a sign, then with one. Returns the
// shift, which those of AVX-512 read.
uint32_t rule_encode(int row, int rounding, int saturate, const float *floats, int64_t count, uint8_t *codes,
                     uint8_t *specials) {
  const EncodeRule rule = make_encode_rule(kTypes[row], {static_cast<dlfp4_rounding>(rounding), saturate != 0});
  for (const Special &special : {rule.nan, rule.infinity}) {
    *specials++ = special.base;
    *specials++ = special.base ^ special.flip;
  }
  if (rounding == DLFP4_NEAREST_EVEN) encode_magnitudes<DLFP4_NEAREST_EVEN>(row, rule, floats, count, codes);
  if (rounding == DLFP4_NEAREST_AWAY) encode_magnitudes<DLFP4_NEAREST_AWAY>(row, rule, floats, count, codes);
  if (rounding == DLFP4_NEAREST_ZERO) encode_magnitudes<DLFP4_NEAREST_ZERO>(row, rule, floats, count, codes);
  if (rounding == DLFP4_TOWARD_ZERO) encode_magnitudes<DLFP4_TOWARD_ZERO>(row, rule, floats, count, codes);
  return rule.shift;
}

// The draw of an element whose first word is given.
int rule_rounds_up(uint64_t significand, int drop, int rounding, uint64_t seed, uint64_t index, uint32_t first) {
  const uint64_t kept = drop < 64 ? significand >> drop : 0;
  return rounds_up(significand, drop, kept, static_cast<dlfp4_rounding>(rounding), {seed, index, first});
}

uint64_t rule_low_bits(int count) { return low_bits(count); }
int rule_holds_exactly(int to, int from) { return holds_exactly(kTypes[to], kTypes[from]); }
int rule_is_low(int row) { return is_low(row); }
int rule_is_block_integer(int row) { return is_block_integer(kTypes[row]); }
int rule_smallest_normal_exponent(int row) { return smallest_normal_exponent(kTypes[row]); }
int rule_largest_exponent(int row) { return largest_exponent(kTypes[row]); }
uint64_t rule_largest_finite_code(int row) { return largest_finite_code(kTypes[row]); }
uint32_t rule_float_of_magnitude(int row, uint64_t code) { return float_of_magnitude(kTypes[row], code); }

// --- scaling.h -------------------------------------------------------------------------------

float rule_narrowed(float value, int mantissa) { return narrowed(value, mantissa); }

int rule_is_decode_scale(float value) { return is_decode_scale(value); }

// The scale of a whole tensor: 0 of two levels, 1 of one level, 2 that was given.
void rule_tensor_scale(const Options *options, int kind, float magnitude, float *encode, float *decode,
                       float *largest) {
  const ScaleRule rule = rule_of(*options);
  const TensorScale scale = kind == 0   ? two_level_scale(rule, magnitude)
                            : kind == 1 ? ::largest_scale(rule, bits_of(magnitude))
                                        : scale_given(magnitude);
  *encode = scale.encode, *decode = scale.decode, *largest = scale.largest;
}

float rule_whole(const Options *options) { return rule_of(*options).whole; }

// Scales of blocks by their magnitudes: `kind` is a dlfp4_scale_kind; `fours` asks for the candidate of four over six.
void rule_blocks(const Options *options, int kind, int fours, const float *magnitudes, int64_t count, uint32_t *stored,
                 float *multipliers) {
  ScaleRule rule = rule_of(*options);
  if (fours != 0) rule = rule_of_four(rule);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(magnitudes[i]);
    const BlockScale scale = kind == DLFP4_TWO_LEVEL ? two_level_block(rule, kTypes[options->scale], bits)
                             : kind == DLFP4_POWER   ? power_block(rule, bits)
                                                     : largest_block(rule, bits);
    stored[i] = scale.stored, multipliers[i] = scale.multiplier;
  }
}

float rule_decode_scale(int row, uint32_t stored) { return decode_scale(kTypes[row], stored); }

float rule_error(const Options *options, float element, float scale, float value) {
  return error_of(rule_of(*options), element, scale, value);
}

int rule_has_usual_errors(const Options *options) { return has_usual_errors(rule_of(*options)); }

float rule_scaled(float value, float factor, int divides, int mantissa, float zero) {
  return scaled(value, factor, divides != 0, mantissa, zero);
}

float rule_decoded(float element, float scale) { return decoded(element, scale); }

float rule_decoded_with(float element, float scale, float zero, float bias) {
  return decoded_with(element, scale, {zero, bias});
}

float rule_decoded_without(float element, float scale) { return decoded_with(element, scale, kNoOffset); }

uint32_t rule_middle() { return kMiddle; }

float rule_zero_point(uint32_t code, int bits, int is_signed) { return zero_point_of(code, bits, is_signed != 0); }

// --- layouts.h -------------------------------------------------------------------------------

const dlfp4_layout_row *rule_layout(int layout) {
  return layout < DLFP4_NUM_LAYOUTS ? &dlfp4_layouts[layout] : nullptr;
}

int64_t rule_scale_offset(int layout, int64_t i, int64_t j, int64_t pitch) {
  return dlfp4_scale_offset(layout, i, j, pitch);
}

int64_t rule_weight_offset(int64_t i, int64_t j, int64_t columns) { return dlfp4_offset_aiter_weight(i, j, columns); }

// --- dtypes.h, operand.h ---------------------------------------------------------------------

int rule_find_dtype(uint8_t code, uint8_t bits) { return dlfp4_find_dtype(code, bits); }

// Its row, or -1, and whether it is packed.
int rule_find_operand(const dlfp4_view *view, int *packed) {
  Operand operand;
  const bool found = find_operand(*view, &operand);
  *packed = operand.packed;
  return found ? operand.row : -1;
}

int rule_spacing(int row, int packed) { return spacing({static_cast<uint8_t>(row), packed != 0}); }

int rule_is_rounding(int number) {
  dlfp4_rounding field;
  memcpy(&field, &number, sizeof(field));  // as a C caller's, of any value
  return is_rounding(field);
}

void rule_copy_codes(uint8_t *dst, const uint8_t *src, int64_t bits) { copy_codes(dst, src, bits); }

// --- block_keys.h: keys and rows of formats.def as numbers, in the order of their members ----

void rule_format(int number, int64_t *row) {
  const dlfp4_format_row &of = dlfp4_formats[number];
  row[0] = of.element, row[1] = of.scale, row[2] = of.kind, row[3] = of.repeats, row[4] = of.lines, row[5] = of.length;
}

int rule_number_of_formats() { return DLFP4_NUM_FORMATS; }
int rule_number_of_elements() { return kNumElements; }
int rule_number_of_keys() { return kNumKeys; }
int rule_element(int place) { return kElementRows[place]; }
void rule_key(int place, int64_t *key) { write_key(kBlockKeys[place], key); }
void rule_key_of_row(const int64_t *row, int64_t *key) { write_key(key_of_row(row_of(row)), key); }
int rule_are_equal_keys(const int64_t *a, const int64_t *b) { return key_of(a) == key_of(b); }
int rule_place_of_key(const int64_t *key) { return place_of_key(key_of(key)); }
int rule_source_of(int row) { return source_of(row); }
int rule_element_of(int row) { return element_of(row); }
int rule_encoded_row(int row) { return encoded_row(row); }
int rule_is_element(int row) { return is_element(kTypes[row]); }
int rule_is_integer_row(const int64_t *row) { return is_integer_row(row_of(row)); }
int rule_is_integer_block(const int64_t *row) { return is_integer_block(row_of(row)); }
int rule_is_block(const int64_t *row) { return is_block(row_of(row)); }
int rule_is_scale(const int64_t *row) { return is_scale(row_of(row)); }

// --- matrix.h --------------------------------------------------------------------------------

int64_t rule_at(int64_t item, int64_t line_stride, int64_t step, int64_t line, int64_t position) {
  Lines x = {};
  uint8_t memory[1 << 12];
  x.data = memory, x.item = item, x.line_stride = line_stride, x.step = step;
  return at(x, line, position) - memory;
}

int64_t rule_line_at(int bits, int64_t line_stride, int64_t step, int64_t line, int64_t position) {
  FormatInfo format = {};
  dlfp4_blocks blocks = {};
  uint8_t memory[1 << 12];
  format.bits = bits;
  blocks.data = memory, blocks.strides[0] = line_stride, blocks.strides[1] = step;
  return line_at(blocks, format, line, position) - memory;
}

float rule_decode_of_line(float *decodes, int64_t decode_lines, float decode, int64_t line) {
  dlfp4_blocks blocks = {};
  blocks.decodes = decodes, blocks.decode_lines = decode_lines;
  return decode_of_line(blocks, decode, line);
}

int rule_make_lines(const dlfp4_matrix *matrix, int along_columns, Lines *lines) {
  return make_lines(*matrix, along_columns ? kAlongColumns : kAlongRows, lines);
}

// In the order of the members of FormatInfo; of its row the place.
// Each file that includes formats.h has a table of its own.
int number_of(const dlfp4_format_row &row) {
  int number = 0;
  while (strcmp(dlfp4_formats[number].name, row.name) != 0) ++number;
  return number;
}

int rule_find_format(int number, int64_t *info) {
  FormatInfo of = {dlfp4_formats};
  const bool found = find_format(number, &of);
  const int64_t members[] = {number_of(*of.row), of.element, of.key,  of.bits,     of.scale_bytes, of.block,
                             of.group,           of.whole,   of.line, of.integers, of.number};
  memcpy(info, members, sizeof(members));
  return found;
}

void rule_make_scales(int format, const dlfp4_blocks *blocks, Scales *scales) {
  *scales = make_scales(*blocks, format_of(format));
}

int rule_are_one_line(int format, const dlfp4_blocks *blocks, const dlfp4_matrix *matrix) {
  const FormatInfo of = format_of(format);
  Lines floats;
  make_lines(*matrix, kAlongRows, &floats);
  return are_one_line(*blocks, make_scales(*blocks, of), floats, of);
}

void rule_store_scales(const Scales *scales, int64_t line, int64_t block, int64_t count, const uint8_t *stored) {
  store_scales(*scales, line, block, count, stored);
}

void rule_load_scales(const Scales *scales, int64_t line, int64_t block, int64_t count, uint8_t *stored) {
  load_scales(*scales, line, block, count, stored);
}

void rule_store_scales_across(const Scales *scales, int64_t line, int64_t block, int64_t count, const uint8_t *stored) {
  store_scales_across(*scales, line, count, block, stored);
}

void rule_load_scales_across(const Scales *scales, int64_t line, int64_t block, int64_t count, uint8_t *stored) {
  load_scales_across(*scales, line, count, block, stored);
}

int rule_load_offsets(const dlfp4_blocks *blocks, int64_t line, int64_t block, int64_t count, float *offsets) {
  return load_offsets(*blocks, line, block, count, offsets);
}

int rule_load_offsets_across(const dlfp4_blocks *blocks, int64_t line, int64_t block, int64_t count, float *offsets) {
  return load_offsets_across(*blocks, line, count, block, offsets);
}

int rule_has_known_offsets(int format, const dlfp4_blocks *blocks) {
  return has_known_offsets(*blocks, format_of(format));
}

int rule_can_set_offsets(int format, const dlfp4_blocks *blocks) { return can_set_offsets(*blocks, format_of(format)); }

int rule_has_whole_blocks(int format, int64_t length) { return has_whole_blocks(format_of(format), length); }

int rule_is_addressable(int format, const dlfp4_blocks *blocks, int64_t lines) {
  return is_addressable(*blocks, format_of(format), lines);
}

void rule_gather_items(const uint8_t *src, int64_t step, int64_t item, int64_t count, uint8_t *dst) {
  gather_items(src, step, item, count, dst);
}

void rule_scatter_items(const uint8_t *src, int64_t step, int64_t item, int64_t count, uint8_t *dst) {
  scatter_items(src, item, count, dst, step);
}

int64_t rule_divide_up(int64_t count, int64_t size) { return divide_up(count, size); }
int64_t rule_round_up(int64_t value, int64_t multiple) { return round_up(value, multiple); }
int rule_log2_of(int64_t power) { return log2_of(power); }
int64_t rule_least(int64_t a, int64_t b) { return dlfp4::least(a, b); }  // not that of lanes.h

// --- walk.h ----------------------------------------------------------------------------------

int rule_collapse(const dlfp4_view *src, const dlfp4_view *dst, Walk *walk) { return collapse(*src, *dst, walk); }
int rule_has_contiguous_rows(const Walk *walk) { return has_contiguous_rows(*walk); }
int rule_is_run(const Walk *walk) { return is_run(*walk); }
int rule_is_row_major(const Walk *walk, int side) { return is_row_major(*walk, static_cast<Side>(side)); }
int rule_is_dense(const Walk *walk, int side) { return is_dense(*walk, static_cast<Side>(side)); }

int rule_rows_start_on_bytes(const Walk *walk, int side, int row, int packed) {
  return rows_start_on_bytes(*walk, static_cast<Side>(side), {static_cast<uint8_t>(row), packed != 0});
}

// `count` elements from `element` on, at most `step` at once, from and to bytes of their own.
void rule_gather(const Walk *walk, int side, int row, int packed, const uint8_t *data, int64_t element, int64_t step,
                 uint8_t *codes, int64_t count) {
  const Operand operand = {static_cast<uint8_t>(row), packed != 0};
  Cursor cursor = cursor_at(*walk, static_cast<Side>(side), element);
  for (int64_t done = 0; done < count; done += step)
    gather(operand, data, &cursor, codes + done * (spacing({operand.row, false}) / 8),
           dlfp4::least(step, count - done));
}

void rule_scatter(const Walk *walk, int side, int row, int packed, uint8_t *data, int64_t element, int64_t step,
                  const uint8_t *codes, int64_t count) {
  const Operand operand = {static_cast<uint8_t>(row), packed != 0};
  Cursor cursor = cursor_at(*walk, static_cast<Side>(side), element);
  for (int64_t done = 0; done < count; done += step)
    scatter(operand, data, &cursor, codes + done * (spacing({operand.row, false}) / 8),
            dlfp4::least(step, count - done));
}

// --- sums.h, hadamard.h, changes.h, grid.h ---------------------------------------------------

int rule_is_integer(int row) { return is_integer(row); }
int rule_is_summed_as_float(int row) { return is_summed_as_float(row); }
int rule_unit(int row) { return unit_of(row); }
int rule_integer(int row, uint64_t code) { return integer_of(row, code); }
int rule_are_between(uint8_t least, uint8_t most, const uint8_t *bytes, int64_t count) {
  return are_between(least, most, bytes, count);
}
int rule_are_far(const float *scales, int64_t count) { return are_far(scales, count); }
int rule_are_plain_powers(const uint8_t *scales, int64_t count) { return are_plain_powers(scales, count); }
int rule_quarter_bias() { return kQuarterBias; }

void rule_rotate(float *sixteen, uint32_t rotation) { rotate(sixteen, rotation); }
void rule_rotate_back(float *sixteen, uint32_t rotation) { rotate_back(sixteen, rotation); }

uint32_t rule_change(float before, float after) { return change_of(before, after); }
uint32_t rule_finite_magnitude(float value) { return finite_magnitude(value); }
double rule_square_of_error(float exact, float decoded) { return square_of_error(exact, decoded); }
double rule_relative_change(float change, float size) { return relative_change(change, size); }

int rule_is_grid(int64_t rows, int64_t columns, int64_t lines, int64_t length) {
  return is_grid({rows, columns, lines, length});
}

void rule_grid_size(int64_t rows, int64_t columns, int64_t lines, int64_t length, int64_t *down, int64_t *along) {
  const GridSize size = size_of({rows, columns, lines, length});
  *down = size.down, *along = size.along;
}
}
