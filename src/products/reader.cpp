// Reads what is multiplied: runs of a line's codes, scales and values, however they lie.
// Trick: a plain tensor's lines may start at any bit, as elements of a packed tensor do.
#include "reader.h"

#include <math.h>
#include <string.h>

#include "codecs/plan.h"
#include "host/level.h"
#include "rules/numerics.h"
#include "rules/sums.h"

namespace dlfp4 {
namespace {

int64_t line_number(const Reader &reader, int64_t line) { return reader.lines->first + line * reader.lines->step; }

int64_t element_at(const Reader &reader, int64_t line, int64_t position) {
  const dlfp4_blocks &blocks = reader.lines->blocks;
  return line_number(reader, line) * blocks.strides[0] + position * step_of(blocks);
}

void gather_packed(const uint8_t *data, int64_t first, int64_t step, int bits, int64_t count, uint8_t *codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = packed_code(data, first + i * step, bits);
}

// Elements that lie in order to those of another type, or to one a byte.
void convert_run(const Reader &reader, bool packed, int row, const uint8_t *src, int64_t count, uint8_t *dst) {
  const Operand from = {static_cast<uint8_t>(reader.row), packed}, to = {static_cast<uint8_t>(row), false};
  const Mode mode = {DLFP4_NEAREST_EVEN, true, 0, 0};
  run_plan(make_plan(reader.level, from, to, mode), src, dst, count, mode);
}

// What sums are multiplied with: scales of the whole tensor.
double factor_of(const dlfp4_lines &lines, bool is_whole) {
  float stored = 1;
  if (is_whole) memcpy(&stored, lines.blocks.scales, sizeof(stored));
  return widen(lines.decode) * widen(stored);
}

LineFactors line_factors(const dlfp4_blocks &blocks, bool is_line) {
  if (is_line) return {static_cast<const float *>(blocks.scales), 1, blocks.scale_strides[0]};
  return {blocks.decodes, blocks.decode_lines, 1};
}

dlfp4_status describe_elements(const dlfp4_lines &lines, Reader *reader) {
  if (lines.format < 0) {
    reader->row = dlfp4_find_dtype(lines.code, lines.bits);
    reader->packed = lines.bits < 8 && !lines.padded;
    return reader->row < 0 ? DLFP4_E_DTYPE : DLFP4_OK;
  }
  if (!find_format(lines.format, &reader->format)) return DLFP4_E_OPTION;
  if (lines.blocks.layout < 0 || lines.blocks.layout >= DLFP4_NUM_LAYOUTS) return DLFP4_E_OPTION;
  reader->row = reader->format.row->element;
  reader->packed = reader->format.bits < 8;
  reader->scaled = true;
  if (!has_known_offsets(lines.blocks, reader->format)) return DLFP4_E_OPTION;
  return is_addressable(lines.blocks, reader->format, 2) ? DLFP4_OK : DLFP4_E_SHAPE;
}

void prefetch_run(const uint8_t *src, int64_t bytes) {
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(src + byte);
}

// Where the scales of a line lie in order, from a block's on; null where they do not.
const uint8_t *find_stored_scales(const Reader &reader, int64_t line, int64_t block) {
  const Scales &scales = reader.scales;
  if (scales.layout != DLFP4_LAYOUT_linear || scales.step != 1) return nullptr;
  return scales.data + (line_number(reader, line) / scales.lines_per_row * scales.stride + block) * scales.bytes;
}

// Values of blocks, at most kMostRead of them.
void read_blocks(const Reader &reader, int64_t line, int64_t first, int64_t count, Source type, uint8_t *values) {
  constexpr int64_t kMostBlocks = kMostRead / 16 + 1;
  float scales[kMostBlocks], offsets[kMostBlocks];
  uint8_t buffer[kMostRead];
  bool not_finite = read_scales(reader, line, first, count, scales);
  const dlfp4_blocks &blocks = reader.lines->blocks;
  const int64_t block = first / reader.format.block;
  if (blocks.offsets)
    not_finite |= load_offsets(blocks, line_number(reader, line), block,
                               divide_up(first + count, reader.format.block) - block, offsets);
  const uint8_t *codes = find_codes(reader, line, first);
  if (!codes) codes = read_codes(reader, line, first, count, buffer);
  const BlockKernels &kernels = not_finite ? *reader.scalar : *reader.blocks;
  if (blocks.offsets)
    return kernels.decode_affine[reader.format.element][type](codes, count, reader.format.block,
                                                              {scales, offsets, has_biases(blocks)}, values);
  kernels.decode[reader.format.element][type](codes, count, reader.format.block, scales, values);
}

}  // namespace

double widen(float value) {
  const uint32_t magnitude = bits_of(value) & 0x7FFFFFFF;
  const auto widened = static_cast<double>(value);
  return magnitude >> 23 ? widened : copysign(magnitude * 0x1p-149, widened);
}

dlfp4_status make_reader(const dlfp4_lines &lines, int level, Reader *reader) {
  reader->lines = &lines;
  reader->level = level;
  reader->blocks = &block_kernels(level);
  reader->scalar = &block_kernels(scalar_level());
  reader->scaled = false;
  const dlfp4_status status = describe_elements(lines, reader);
  if (status != DLFP4_OK) return status;
  const bool is_whole = reader->scaled && reader->format.whole;
  const bool is_line = reader->scaled && reader->format.line && !reader->format.integers;
  reader->factor = factor_of(lines, is_whole);
  reader->of_lines = line_factors(lines.blocks, is_line);
  reader->scaled = reader->scaled && !is_whole && !is_line;
  if (reader->scaled) reader->scales = make_scales(lines.blocks, reader->format);
  return DLFP4_OK;
}

double factor_of_line(const Reader &reader, int64_t line) {
  const LineFactors &factors = reader.of_lines;
  if (!factors.data) return 1;
  float factor;  // of any alignment
  memcpy(&factor, factors.data + line_number(reader, line) / factors.lines * factors.stride, sizeof(factor));
  return widen(factor);
}

bool is_value(const Reader &reader) {
  return reader.scaled || is_summed_as_float(reader.row) || (is_integer(reader.row) && is_float(kTypes[reader.row]));
}

int bits_in_memory(const Reader &reader) { return spacing({static_cast<uint8_t>(reader.row), reader.packed}); }

const uint8_t *find_codes(const Reader &reader, int64_t line, int64_t first) {
  const int64_t bit = element_at(reader, line, first) * bits_in_memory(reader);
  if (step_of(reader.lines->blocks) != 1 || bit % 8 != 0) return nullptr;
  return static_cast<const uint8_t *>(reader.lines->blocks.data) + bit / 8;
}

const uint8_t *read_codes(const Reader &reader, int64_t line, int64_t first, int64_t count, uint8_t *buffer) {
  const uint8_t *const found = find_codes(reader, line, first);
  const uint8_t *const data = static_cast<const uint8_t *>(reader.lines->blocks.data);
  const int64_t element = element_at(reader, line, first), step = step_of(reader.lines->blocks);
  if (found && !reader.packed) return found;
  if (found) {
    convert_run(reader, true, reader.row, found, count, buffer);
  } else if (reader.packed) {
    gather_packed(data, element, step, dlfp4_dtypes[reader.row].bits, count, buffer);
  } else {
    const int64_t item = bits_in_memory(reader) / 8;
    gather_items(data + element * item, step, item, count, buffer);
  }
  return buffer;
}

void prefetch_codes(const Reader &reader, int64_t line, int64_t first, int64_t count) {
  const uint8_t *const codes = find_codes(reader, line, first);
  if (codes) prefetch_run(codes, count * bits_in_memory(reader) / 8);
}

void prefetch_scales(const Reader &reader, int64_t line, int64_t count) {
  const uint8_t *const stored = reader.scaled ? find_stored_scales(reader, line, 0) : nullptr;
  if (stored) prefetch_run(stored, divide_up(count, reader.format.block) * reader.scales.bytes);
}

const uint8_t *read_stored_scales(const Reader &reader, int64_t line, int64_t first, int64_t count, uint8_t *buffer) {
  const int64_t block = first / reader.format.block;
  const uint8_t *const stored = find_stored_scales(reader, line, block);
  if (stored) return stored;
  load_scales(reader.scales, line_number(reader, line), block, divide_up(first + count, reader.format.block) - block,
              buffer);
  return buffer;
}

bool read_scales(const Reader &reader, int64_t line, int64_t first, int64_t count, float *scales) {
  alignas(64) uint8_t buffer[(kMostRead / 16 + 1) * sizeof(float)];
  const int64_t blocks = divide_up(first + count, reader.format.block) - first / reader.format.block;
  const uint8_t *const stored = read_stored_scales(reader, line, first, count, buffer);
  return reader.blocks->decode_scales[reader.format.key](stored, blocks, 1, scales);
}

void read_values(const Reader &reader, int64_t line, int64_t first, int64_t count, Source type, uint8_t *values) {
  const auto read = reader.scaled ? read_blocks : read_elements;
  read(reader, line, first, count, type, values);
}

void read_elements(const Reader &reader, int64_t line, int64_t first, int64_t count, Source type, uint8_t *values) {
  alignas(64) uint8_t buffer[kMostRead * sizeof(float)];
  const uint8_t *const codes = read_codes(reader, line, first, count, buffer);
  convert_run(reader, false, kSourceRows[type], codes, count, values);
}

void read_line(const Reader &reader, int64_t line, int64_t first, int64_t count, int64_t depth, Source type,
               uint8_t *values) {
  const int64_t item = type == kFromFloat32 ? 4 : 2;
  for (int64_t done = 0; done < count; done += kMostRead)
    read_values(reader, line, first + done, least(kMostRead, count - done), type, values + done * item);
  memset(values + count * item, 0, static_cast<size_t>((depth - count) * item));
}

}  // namespace dlfp4
