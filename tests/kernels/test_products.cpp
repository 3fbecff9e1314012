// Checks dlfp4_host_vecdot, dlfp4_host_matmul and dlfp4_host_grouped_matmul at every level that this machine runs
// against sums in float64. Layout: every type, packed and padded, and every format; runs of any length that end at a
// page which faults. Trick: values are decoded by numerics.h; where sums are exact they must be equal, elsewhere within
// the bound.
#include <math.h>

#include <vector>

#include "products/kernels.h"
#include "rules/formats.h"
#include "rules/scaling.h"
#include "support.h"

namespace dlfp4 {
namespace {

const char *level_name;
Guarded a_memory, b_memory, a_scale_memory, b_scale_memory, result_memory;

void report(bool good, const char *test, const char *name, int64_t rows, int64_t columns, int64_t length) {
  char detail[256];
  snprintf(detail, sizeof(detail), "%s, %s, %ld x %ld of %ld elements", level_name, name, static_cast<long>(rows),
           static_cast<long>(columns), static_cast<long>(length));
  check(good, test, detail);
}

// --- Operands --------------------------------------------------------------------------------

// Lines of one length with their values in float64.
struct Side {
  dlfp4_lines lines;
  std::vector<double> values;
};

double value_of(int row, uint64_t code) {
  const ElementType f = kTypes[row];
  if (is_float(f)) return value_of_code(row, code);
  const bool negative = dlfp4_dtypes[row].code == 0 && code >> (f.bits - 1) & 1;
  return static_cast<double>(code & low_bits(f.bits)) - (negative ? ldexp(1, f.bits) : 0);
}

void fill_with_noise(uint8_t *data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(random_bits());
}

// Floats whose products neither overflow nor vanish, with a NaN or an infinity now and then where asked for.
uint64_t moderate_code(int row, bool specials) {
  const uint64_t noise = random_bits();
  const uint64_t special = special_code(row);
  if (specials && random_below(40) == 0 && !isfinite(value_of(row, special))) return special;
  if (kTypes[row].bits <= 8) {
    const double value = value_of(row, noise);
    return isfinite(value) ? noise : 0;
  }
  return code_of_value(row, ldexp(static_cast<double>(noise % 4001) - 2000, static_cast<int>(random_below(12)) - 10));
}

Side plain_side(Guarded *memory, Type type, int64_t lines, int64_t length, bool specials) {
  Side side = {};
  const int64_t bytes = bytes_for(type, lines * length);
  uint8_t *const data = memory->end - bytes;
  const dlfp4_dtype_row &row = dlfp4_dtypes[type.row];
  fill_with_noise(data, bytes);
  for (int64_t i = 0; i < lines * length; ++i) {
    if (!is_sub_byte(type.row)) {
      const uint64_t bits = row.specials == DLFP4_NONE ? random_bits() : moderate_code(type.row, specials);
      Code code = {};
      memcpy(code.byte, &bits, sizeof(bits));
      put_element(type, data, i, code);
    }
    uint64_t bits;
    memcpy(&bits, get_element(type, data, i).byte, sizeof(bits));
    side.values.push_back(value_of(type.row, bits));
  }
  side.lines.blocks = {};
  side.lines.blocks.data = data;
  side.lines.blocks.strides[0] = side.lines.blocks.strides[1] = 1;
  side.lines.blocks.length = length;
  side.lines.format = -1;
  side.lines.code = row.code;
  side.lines.bits = row.bits;
  side.lines.padded = row.bits < 8 && !type.packed;
  side.lines.decode = 1;
  side.lines.step = length;
  return side;
}

// The code of a scale that is NaN.
uint32_t nan_scale(int row) { return row == DLFP4_float32 ? kFloatNan : encode_scale(kTypes[row], kFloatNan); }

uint32_t moderate_scale(int row, bool specials) {
  if (specials && random_below(60) == 0) return nan_scale(row);
  if (row == DLFP4_float32) return bits_of(static_cast<float>(random_below(1000)) / 64);
  if (row == DLFP4_float8_e8m0fnu) return static_cast<uint32_t>(random_below(30)) + 112;
  return static_cast<uint32_t>(random_below(static_cast<int64_t>(largest_finite_code(kTypes[row])) + 1));
}

// `length` elements of a format's lines, stored in whole blocks with scales scale_of(i); what lies beyond them is
// noise.
template <class ScaleOf>
Side scaled_side(Guarded *memory, Guarded *scale_memory, int number, int64_t lines, int64_t length, bool specials,
                 ScaleOf scale_of) {
  const dlfp4_format_row &format = dlfp4_formats[number];
  const Type type = {format.element, true};
  const int64_t block = format.length ? format.length : length + 1, group = format.repeats ? 1 : format.lines;
  const int64_t unit = format.length ? format.length : 2;  // elements of whole bytes
  const int64_t stored = is_sub_byte(type.row) ? (length + unit - 1) / unit * unit : length;
  const int64_t blocks = format.length ? (stored + block - 1) / block : 1, item = dlfp4_dtypes[format.scale].bits / 8;
  const int64_t scale_lines = format.lines ? (lines + group - 1) / group : 1;  // of a whole tensor one
  Side side = plain_side(memory, type, lines, stored, specials);
  uint8_t *const scales = scale_memory->end - scale_lines * blocks * item;
  for (int64_t i = 0; i < scale_lines * blocks; ++i) {
    const uint32_t scale = scale_of(i);
    memcpy(scales + i * item, &scale, static_cast<size_t>(item));
  }
  side.lines.blocks.strides[0] = stored;
  side.lines.blocks.scales = scales;
  side.lines.blocks.scale_strides[0] = blocks;
  side.lines.blocks.scale_strides[1] = 1;
  side.lines.format = number;
  side.lines.step = 1;
  side.lines.decode = format.kind == DLFP4_TWO_LEVEL ? 0.0625f : 1.0f;
  std::vector<double> values;
  for (int64_t i = 0; i < lines * length; ++i) {
    uint32_t scale = 0;
    const int64_t line = i / length, k = i % length;
    const int64_t at = format.lines ? line / group * blocks + k / block : 0;
    memcpy(&scale, scales + at * item, static_cast<size_t>(item));
    const float of_block = decode_scale(kTypes[format.scale], scale);
    const auto worth = static_cast<double>(of_block * side.lines.decode);
    values.push_back(side.values[static_cast<size_t>(line * stored + k)] * worth);
  }
  side.values = values;
  return side;
}

Side scaled_side(Guarded *memory, Guarded *scale_memory, int number, int64_t lines, int64_t length, bool specials) {
  const int scale = dlfp4_formats[number].scale;
  return scaled_side(memory, scale_memory, number, lines, length, specials,
                     [=](int64_t) { return moderate_scale(scale, specials); });
}

// --- Comparison ------------------------------------------------------------------------------

// The result of line i of a by line j of b.
bool is_within_bound(const Side &a, int64_t i, const Side &b, int64_t j, int64_t length, double got) {
  double sum = 0, magnitudes = 0;
  for (int64_t k = 0; k < length; ++k) {
    const double product =
        a.values[static_cast<size_t>(i * length + k)] * b.values[static_cast<size_t>(j * length + k)];
    sum += product;
    magnitudes += fabs(product);
  }
  if (isnan(sum)) return isnan(got);
  if (isinf(sum)) return got == sum;
  return fabs(got - sum) <= static_cast<double>(length + 1) * ldexp(magnitudes, -24) + ldexp(1, -120);
}

bool is_exact(const Side &a, const Side &b, int64_t length, double got) {
  double sum = 0;
  for (int64_t k = 0; k < length; ++k) sum += a.values[static_cast<size_t>(k)] * b.values[static_cast<size_t>(k)];
  return got == static_cast<double>(static_cast<float>(sum));
}

// --- Dots ------------------------------------------------------------------------------------

void check_dot(const Side &a, const Side &b, int64_t length, bool exact, const char *name) {
  float got = -1;
  const dlfp4_status status = dlfp4_host_vecdot(&a.lines, &b.lines, 1, length, &got, 1);
  const bool right = exact ? is_exact(a, b, length, static_cast<double>(got))
                           : is_within_bound(a, 0, b, 0, length, static_cast<double>(got));
  report(status == DLFP4_OK && right, "dot", name, 1, 1, length);
}

int64_t length_numbered(int number) { return number <= 140 ? number : number * 37 + random_below(64); }

void test_plain(int row, bool packed) {
  const Type type = {row, packed};
  const bool exact = dlfp4_dtypes[row].specials == DLFP4_NONE || dlfp4_dtypes[row].specials == DLFP4_FINITE;
  for (int number = 0; number < 170; ++number) {
    const int64_t length = length_numbered(number);
    const Side a = plain_side(&a_memory, type, 1, length, number % 3 == 0);
    check_dot(a, plain_side(&b_memory, type, 1, length, false), length, exact, name_of(type));
  }
}

bool has_dots(int row) {
  const dlfp4_dtype_row &type = dlfp4_dtypes[row];
  if (type.specials == DLFP4_NONE) return type.code <= 1 && type.bits <= 8;
  return type.specials != DLFP4_E8M0 && type.bits <= 32;
}

void test_plain_dots() {
  for (int row = 0; row < DLFP4_NUM_DTYPES; ++row) {
    if (!has_dots(row)) continue;
    test_plain(row, false);
    if (is_sub_byte(row)) test_plain(row, true);
  }
}

void test_scaled_dots() {
  const Type bfloat = {DLFP4_bfloat16, false};
  for (int number = 0; number < DLFP4_NUM_FORMATS; ++number)
    for (int round = 1; round < 60; ++round) {
      const int64_t length = round < 40 ? 16 * round : random_below(6000);
      const Side a = scaled_side(&a_memory, &a_scale_memory, number, 1, length, round % 3 == 0);
      check_dot(a, scaled_side(&b_memory, &b_scale_memory, number, 1, length, false), length, false,
                dlfp4_formats[number].name);
      check_dot(a, plain_side(&b_memory, bfloat, 1, length, false), length, false, dlfp4_formats[number].name);
    }
}

// Scales at the ends of float8_e8m0fnu and float8_e4m3fn, whose product is near 1 or vanishes; and one of many that is
// NaN or negative.
void test_far_scales() {
  const uint8_t powers[][2] = {{250, 6}, {6, 250}, {254, 0}, {0, 254}, {0, 250}, {1, 140}, {2, 2}, {127, 127}};
  const uint8_t magnitudes[][2] = {{0x7E, 0x01}, {0x01, 0x7E}, {0x00, 0x7E}, {0x81, 0x7E}, {0xFE, 0xC0}, {0x38, 0x38}};
  for (int number = 0; number < DLFP4_NUM_FORMATS; ++number) {
    const int scale = dlfp4_formats[number].scale;
    if (scale != DLFP4_float8_e8m0fnu && scale != DLFP4_float8_e4m3fn) continue;
    for (int round = 0; round < 48; ++round) {
      const uint8_t *const pair = scale == DLFP4_float8_e8m0fnu ? powers[round % 8] : magnitudes[round % 6];
      const int64_t blocks = 1 + random_below(40), length = blocks * dlfp4_formats[number].length;
      const int64_t with_nan = round % 5 == 4 ? random_below(blocks) : -1;
      const uint32_t nan = nan_scale(scale);
      const Side a =
          scaled_side(&a_memory, &a_scale_memory, number, 1, length, false, [=](int64_t) { return uint32_t{pair[0]}; });
      const Side b = scaled_side(&b_memory, &b_scale_memory, number, 1, length, false,
                                 [=](int64_t i) { return i == with_nan ? nan : uint32_t{pair[1]}; });
      check_dot(a, b, length, false, dlfp4_formats[number].name);
    }
  }
}

// 2^26 elements of the largest value: the sum is exact, and far beyond 32 bits.
void test_no_wrap() {
  constexpr int64_t kLength = 1 << 26;
  const int rows[] = {DLFP4_float4_e2m1fn, DLFP4_float6_e2m3fn, DLFP4_float6_e3m2fn, DLFP4_int8, DLFP4_uint4};
  const uint8_t codes[] = {0x77, 0, 0, 0x80, 0xFF};
  std::vector<uint8_t> data(static_cast<size_t>(kLength));
  for (size_t i = 0; i < 5; ++i) {
    const Type type = {rows[i], true};
    const uint64_t largest = is_float(kTypes[rows[i]]) ? largest_finite_code(kTypes[rows[i]]) : codes[i];
    const uint64_t four = largest * 0x41041;  // of 6 bits each
    for (int64_t byte = 0; byte < bytes_for(type, kLength); ++byte)
      data[static_cast<size_t>(byte)] =
          kTypes[rows[i]].bits == 6 ? static_cast<uint8_t>(four >> 8 * (byte % 3)) : codes[i];
    Side side = plain_side(&a_memory, type, 1, 0, false);
    side.lines.blocks.data = data.data();
    side.lines.blocks.length = kLength;
    float got = 0;
    dlfp4_host_vecdot(&side.lines, &side.lines, 1, kLength, &got, 1);
    const double value = value_of(rows[i], largest & low_bits(kTypes[rows[i]].bits));
    report(static_cast<double>(got) == value * value * kLength, "no wrap", name_of(type), 1, 1, kLength);
  }
}

// --- Matrices --------------------------------------------------------------------------------

// The memory that a product asks for, full of NaN, and what lies behind it, which has to stay as it was.
class Workspace {
 public:
  explicit Workspace(int64_t bytes) : size_(static_cast<size_t>(bytes)), memory_(size_ + 4096, 0xFF) {}

  void *data() { return memory_.data(); }

  bool was_enough() const {
    for (size_t i = size_; i < memory_.size(); ++i)
      if (memory_[i] != 0xFF) return false;
    return true;
  }

 private:
  size_t size_;
  std::vector<uint8_t> memory_;
};

bool multiply(const Side &a, const Side &b, int64_t rows, int64_t columns, int64_t length, dlfp4_activation activation,
              float *result) {
  const dlfp4_matrix matrix = {result, rows, columns, {columns, 1}, 2, 32};
  const dlfp4_matmul_options options = {activation, 1.0f};
  const int64_t bytes = dlfp4_host_matmul_workspace(&a.lines, &b.lines, length, &matrix, &options);
  if (bytes < 0) return false;
  Workspace workspace(bytes);
  const auto status = dlfp4_host_matmul(&a.lines, &b.lines, length, &matrix, &options, workspace.data());
  return status == DLFP4_OK && workspace.was_enough();
}

void check_result(const Side &a, const Side &b, int64_t rows, int64_t columns, int64_t length,
                  dlfp4_activation activation, const char *test, const char *name) {
  float *const result = reinterpret_cast<float *>(result_memory.end) - rows * columns;
  memset(result, 0xFF, static_cast<size_t>(rows * columns) * sizeof(float));
  bool right = multiply(a, b, rows, columns, length, activation, result);
  for (int64_t i = 0; right && i < rows; ++i)
    for (int64_t j = 0; right && j < columns; ++j)
      right = is_within_bound(a, i, b, j, length, static_cast<double>(result[i * columns + j]));
  report(right, test, name, rows, columns, length);
}

void check_matmul(const Side &a, const Side &b, int64_t rows, int64_t columns, int64_t length, const char *name) {
  check_result(a, b, rows, columns, length, DLFP4_ACTIVATION_EXACT, "matmul", name);
}

void test_matmuls() {
  const Type plain[] = {
      {DLFP4_float32, false}, {DLFP4_bfloat16, false}, {DLFP4_float16, false}, {DLFP4_float8_e4m3fn, false}};
  for (int number = 0; number < DLFP4_NUM_FORMATS; ++number)
    for (int round = 0; round < 24; ++round) {
      const int64_t rows = 1 + random_below(round % 3 ? 9 : 230), columns = 1 + random_below(70);
      const int64_t length = round % 5 ? 16 * random_below(40) : random_below(2300);
      const Side b = scaled_side(&b_memory, &b_scale_memory, number, columns, length, round % 6 == 1);
      const char *name = dlfp4_formats[number].name;
      check_matmul(plain_side(&a_memory, plain[round % 4], rows, length, round % 6 == 2), b, rows, columns, length,
                   name);
      const int other = round % 2 ? number : static_cast<int>(random_below(DLFP4_NUM_FORMATS));
      check_matmul(scaled_side(&a_memory, &a_scale_memory, other, rows, length, round % 6 == 3), b, rows, columns,
                   length, name);
    }
}

// As many columns as tiles of several panels need, also where the last has fewer.
void test_wide_matmuls() {
  dlfp4_set_num_threads(1);
  for (int number = 0; number < DLFP4_NUM_FORMATS; ++number) {
    const int64_t rows = 13 + random_below(40), columns = 500 + random_below(150), length = 900 + random_below(1300);
    const Type type = {number % 2 ? DLFP4_float16 : DLFP4_bfloat16, false};
    const Side b = scaled_side(&b_memory, &b_scale_memory, number, columns, length, number % 3 == 0);
    check_matmul(plain_side(&a_memory, type, rows, length, false), b, rows, columns, length,
                 dlfp4_formats[number].name);
  }
  dlfp4_set_num_threads(0);
}

bool is_fp4_format(int number) { return is_fp4(key_of_row(dlfp4_formats[number])); }

// FP4 by FP4, blocks of either side in those of the other or as long, from one row to more than lines serve.
void test_fp4_matmuls() {
  for (int of_a = 0; of_a < DLFP4_NUM_FORMATS; ++of_a)
    for (int of_b = 0; of_b < DLFP4_NUM_FORMATS; ++of_b)
      for (int round = 0; is_fp4_format(of_a) && is_fp4_format(of_b) && round < 30; ++round) {
        const int64_t rows = 1 + round % 15 * 2, columns = 1 + random_below(round % 3 ? 40 : 90);
        const int64_t length = round % 2 ? 16 * random_below(150) : random_below(2300);
        const Side b = scaled_side(&b_memory, &b_scale_memory, of_b, columns, length, round % 5 == 1);
        const Side a = scaled_side(&a_memory, &a_scale_memory, of_a, rows, length, round % 5 == 2);
        check_matmul(a, b, rows, columns, length, dlfp4_formats[of_b].name);
      }
}

// Scales of which one alone times a sum leaves float32, by lines of few rows and by panels.
void test_far_matmul(int number, int round) {
  const uint8_t powers[][2] = {{20, 250}, {250, 20}, {0, 254}, {254, 0}, {30, 245}, {200, 10}};
  const uint8_t *const pair = powers[round % 6];
  const int64_t rows = round % 5 ? 1 + random_below(6) : 25 + random_below(9), columns = round % 2 ? 3 : 70;
  const int64_t blocks = 1 + random_below(40), length = blocks * dlfp4_formats[number].length;
  const int64_t with_nan = round % 4 ? -1 : random_below(rows);
  const auto of_a = [=](int64_t i) { return i / blocks == with_nan ? 0xFF : uint32_t{pair[0]}; };
  const Side a = scaled_side(&a_memory, &a_scale_memory, number, rows, length, false, of_a);
  const Side b = scaled_side(&b_memory, &b_scale_memory, number, columns, length, false,
                             [=](int64_t) { return uint32_t{pair[1]}; });
  check_matmul(a, b, rows, columns, length, "far scales");
}

void test_far_matmuls() {
  for (int number = 0; number < DLFP4_NUM_FORMATS; ++number)
    for (int round = 0; round < 60; ++round) {
      const dlfp4_format_row &row = dlfp4_formats[number];
      if (is_fp4_format(number) && row.kind == DLFP4_POWER && row.lines == 1) test_far_matmul(number, round);
    }
}

// Noise beyond the length that would be infinite, times its scale.
void test_noise_beyond() {
  constexpr int64_t kLength = 31, kColumns = 5;
  for (int64_t rows = 1; rows < 40; ++rows) {
    Side a = plain_side(&a_memory, {DLFP4_float32, false}, rows, kLength, false);
    Side b = scaled_side(&b_memory, &b_scale_memory, DLFP4_FORMAT_mxfp4, kColumns, kLength, false,
                         [](int64_t) { return uint32_t{254}; });
    float *const x = static_cast<float *>(a.lines.blocks.data);
    uint8_t *const codes = static_cast<uint8_t *>(b.lines.blocks.data);
    for (int64_t i = 0; i < rows * kLength; ++i) {
      x[i] = ldexpf(static_cast<float>(i % 7 - 3), -100);
      a.values[static_cast<size_t>(i)] = static_cast<double>(x[i]);
    }
    for (int64_t i = 0; i < kColumns * 16; ++i) codes[i] = i % 16 == 15 ? 0x71 : 0x11;
    b.values.assign(static_cast<size_t>(kColumns * kLength), ldexp(1, 126));
    check_matmul(a, b, rows, kColumns, kLength, "noise beyond");
  }
}

// Both sides without scales, by few rows and by more than few.
void test_plain_matmuls() {
  for (int row = 0; row < DLFP4_NUM_DTYPES; ++row) {
    if (!has_dots(row) || !is_float(kTypes[row])) continue;
    for (int round = 0; round < 40; ++round) {
      const Type type = {row, is_sub_byte(row) && round % 2}, bfloat = {DLFP4_bfloat16, false};
      const int64_t rows = 1 + random_below(14), columns = 1 + random_below(40), length = random_below(round * 20 + 2);
      const Side b = plain_side(&b_memory, type, columns, length, round % 4 == 1);
      check_matmul(plain_side(&a_memory, round % 3 ? bfloat : type, rows, length, round % 4 == 2), b, rows, columns,
                   length, name_of(type));
    }
  }
}

// Rounds each 32 values of a row to integers, with one scale; a block that is not finite is NaN.
void round_values(Side *side, int64_t rows, int64_t length) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t first = 0; first < length; first += 32) {
      double *const block = &side->values[static_cast<size_t>(i * length + first)];
      const int64_t count = length - first < 32 ? length - first : 32;
      float largest = 0;
      bool finite = true;
      for (int64_t k = 0; k < count; ++k) {
        finite = finite && isfinite(block[k]);
        largest = fmaxf(largest, static_cast<float>(fabs(block[k])));
      }
      for (int64_t k = 0; k < count; ++k) {
        const float rounded = largest > 0 ? rintf(static_cast<float>(block[k]) * (127 / largest)) : 0;
        block[k] = finite ? static_cast<double>(rounded) * static_cast<double>(largest) / 127 : NAN;
      }
    }
}

void test_rounded_activations() {
  for (int number = 0; number < DLFP4_NUM_FORMATS; ++number)
    for (int round = 0; is_fp4_format(number) && round < 60; ++round) {
      const Type type = {round % 2 ? DLFP4_float32 : DLFP4_bfloat16, false};
      const int64_t rows = 1 + random_below(round % 4 ? 9 : 40), columns = 1 + random_below(70);
      const int64_t length = round % 3 ? 16 * random_below(100) : random_below(1700);
      Side a = plain_side(&a_memory, type, rows, length, round % 6 == 1);
      const Side b = scaled_side(&b_memory, &b_scale_memory, number, columns, length, round % 6 == 2);
      round_values(&a, rows, length);
      check_result(a, b, rows, columns, length, DLFP4_ACTIVATION_INT8, "int8 activations", dlfp4_formats[number].name);
    }
}

// --- Experts ---------------------------------------------------------------------------------

struct Routing {
  std::vector<int64_t> ends, lines, places;
  std::vector<float> weights;
};

// Experts of which some have no rows and one may have most, any lines of `lines`, and sums in `places` rows.
Routing random_routing(int64_t experts, int64_t rows, int64_t lines, int64_t places) {
  Routing routing = {};
  int64_t end = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t most = random_below(3) == 0 ? rows - end : 12;
    if (random_below(4)) end += random_below((most < rows - end ? most : rows - end) + 1);
    routing.ends.push_back(end);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const bool is_routed = i < end;  // others are not to be read
    routing.lines.push_back(is_routed ? random_below(lines) : INT64_MAX / 2);
    routing.places.push_back(is_routed ? random_below(places) : INT64_MIN / 2);
    routing.weights.push_back(is_routed ? static_cast<float>(random_below(2001) - 1000) / 1024 : NAN);
  }
  return routing;
}

// What dlfp4_host_matmul makes of each row, in a product of as many rows as its expert has; zeros beyond them.
std::vector<float> multiply_each(const Side &a, const Side &b, int64_t columns, int64_t length,
                                 const Routing &routing) {
  std::vector<float> each(routing.lines.size() * static_cast<size_t>(columns)), all;
  int64_t first = 0;
  for (size_t e = 0; e < routing.ends.size(); ++e) {
    Side own = b;
    own.lines.first = static_cast<int64_t>(e) * columns * b.lines.step;
    const int64_t last = routing.ends[e];
    all.resize(static_cast<size_t>((last - first) * columns));
    for (int64_t i = first; i < last; ++i) {
      Side line = a;
      line.lines.first = routing.lines[static_cast<size_t>(i)] * a.lines.step;
      line.lines.step = 0;
      multiply(line, own, last - first, columns, length, DLFP4_ACTIVATION_EXACT, all.data());
      memcpy(&each[static_cast<size_t>(i * columns)], &all[static_cast<size_t>((i - first) * columns)],
             static_cast<size_t>(columns) * sizeof(float));
    }
    first = last;
  }
  return each;
}

bool multiply_groups(const Side &a, const Side &b, const dlfp4_groups &groups, const dlfp4_matrix &result,
                     int64_t length) {
  const dlfp4_matmul_options options = {DLFP4_ACTIVATION_EXACT, 1.0f};
  const int64_t bytes = dlfp4_host_grouped_matmul_workspace(&a.lines, &b.lines, length, &groups, &result, &options);
  if (bytes < 0) return false;
  Workspace workspace(bytes);
  const auto status =
      dlfp4_host_grouped_matmul(&a.lines, &b.lines, length, &groups, &result, &options, workspace.data());
  return status == DLFP4_OK && workspace.was_enough();
}

bool are_same(const float *got, const std::vector<float> &expected) {
  for (size_t i = 0; i < expected.size(); ++i)
    if (bits_of(got[i]) != bits_of(expected[i]) && !(isnan(got[i]) && isnan(expected[i]))) return false;
  return true;
}

void check_groups(const Side &a, const Side &b, int64_t experts, int64_t lines, int64_t columns, int64_t length,
                  const char *name) {
  const int64_t rows = 1 + random_below(60), places = 1 + random_below(20);
  const Routing routing = random_routing(experts, rows, lines, places);
  const std::vector<float> each = multiply_each(a, b, columns, length, routing);
  dlfp4_groups groups = {rows,    experts, columns * b.lines.step, routing.ends.data(), routing.lines.data(),
                         nullptr, nullptr};
  float *result = reinterpret_cast<float *>(result_memory.end) - rows * columns;
  memset(result, 0xFF, static_cast<size_t>(rows * columns) * sizeof(float));
  bool right = multiply_groups(a, b, groups, {result, rows, columns, {columns, 1}, 2, 32}, length);
  report(right && are_same(result, each), "experts", name, rows, columns, length);

  std::vector<float> sums(static_cast<size_t>(places * columns));
  for (int64_t i = 0; i < routing.ends.back(); ++i)
    for (int64_t c = 0; c < columns; ++c)
      sums[static_cast<size_t>(routing.places[static_cast<size_t>(i)] * columns + c)] +=
          routing.weights[static_cast<size_t>(i)] * each[static_cast<size_t>(i * columns + c)];
  groups.scatter = routing.places.data();
  groups.weights = routing.weights.data();
  result = reinterpret_cast<float *>(result_memory.end) - places * columns;
  memset(result, 0xFF, static_cast<size_t>(places * columns) * sizeof(float));
  right = multiply_groups(a, b, groups, {result, places, columns, {columns, 1}, 2, 32}, length);
  report(right && are_same(result, sums), "sums of experts", name, places, columns, length);
}

void test_experts() {
  const Type plain[] = {{DLFP4_float32, false}, {DLFP4_bfloat16, false}, {DLFP4_float16, false}};
  for (int number = 0; number < DLFP4_NUM_FORMATS; ++number)
    for (int round = 0; round < 8; ++round) {
      const int64_t experts = 1 + random_below(6), columns = 128 * (1 + random_below(2)), lines = 1 + random_below(50);
      const int64_t length = round % 3 ? 32 * random_below(12) : random_below(700);
      const char *name = dlfp4_formats[number].name;
      const Side b = scaled_side(&b_memory, &b_scale_memory, number, experts * columns, length, round % 5 == 1);
      check_groups(plain_side(&a_memory, plain[round % 3], lines, length, round % 5 == 2), b, experts, lines, columns,
                   length, name);
      check_groups(scaled_side(&a_memory, &a_scale_memory, number, lines, length, round % 5 == 3), b, experts, lines,
                   columns, length, name);
    }
}

// --- Threads, errors -------------------------------------------------------------------------

void test_threads() {
  constexpr int64_t kLength = 700001;
  const Type e4m3 = {DLFP4_float8_e4m3fn, false};
  const Side a = plain_side(&a_memory, e4m3, 1, kLength, false), b = plain_side(&b_memory, e4m3, 1, kLength, false);
  float results[3];
  for (int threads = 1; threads <= 3; ++threads) {
    dlfp4_set_num_threads(threads);
    dlfp4_host_vecdot(&a.lines, &b.lines, 1, kLength, &results[threads - 1], 1);
  }
  dlfp4_set_num_threads(0);
  report(results[0] == results[1] && results[0] == results[2], "threads", "float8_e4m3fn", 1, 1, kLength);
}

void test_errors() {
  level_name = "any level";
  float result;
  const Side f32 = plain_side(&a_memory, {DLFP4_float32, false}, 1, 4, false);
  const Side int8 = plain_side(&b_memory, {DLFP4_int8, false}, 1, 4, false);
  const Side e8m0 = plain_side(&b_scale_memory, {DLFP4_float8_e8m0fnu, false}, 1, 4, false);
  check(dlfp4_host_vecdot(&f32.lines, &int8.lines, 1, 4, &result, 1) == DLFP4_E_DTYPE, "errors", "float by integer");
  check(dlfp4_host_vecdot(&e8m0.lines, &e8m0.lines, 1, 4, &result, 1) == DLFP4_E_DTYPE, "errors", "scales");
  check(dlfp4_host_vecdot(&f32.lines, &f32.lines, 1, 5, &result, 1) == DLFP4_E_SHAPE, "errors", "too short");
  check(dlfp4_host_vecdot(&int8.lines, &int8.lines, 1, 0, &result, 1) == DLFP4_OK && result == 0, "errors", "nothing");
  check(!multiply(f32, int8, 1, 1, 4, DLFP4_ACTIVATION_EXACT, &result), "errors", "matmul of integers");
  check(!multiply(f32, f32, 1, 1, 4, DLFP4_ACTIVATION_INT8, &result), "errors", "int8 without FP4");
  const int64_t ends[] = {1, 0}, beyond[] = {0, 2};
  const dlfp4_matrix one = {&result, 1, 1, {1, 1}, 2, 32};
  check(!multiply_groups(f32, f32, {1, 2, 0, ends, nullptr, nullptr, nullptr}, one, 4), "errors", "ends that decrease");
  check(!multiply_groups(f32, f32, {1, 2, 0, beyond, nullptr, nullptr, nullptr}, one, 4), "errors", "ends beyond rows");
  check(!multiply_groups(f32, f32, {1, 1, 0, ends, nullptr, ends, nullptr}, one, 4), "errors", "sums without weights");
  check(!multiply_groups(f32, f32, {2, 1, 0, ends, nullptr, nullptr, nullptr}, one, 4), "errors", "a result of less");
}

void test_level(const char *name) {
  level_name = name;
  test_plain_dots();
  test_scaled_dots();
  test_far_scales();
  test_no_wrap();
  test_matmuls();
  test_wide_matmuls();
  test_plain_matmuls();
  test_fp4_matmuls();
  test_far_matmuls();
  test_noise_beyond();
  test_rounded_activations();
  test_experts();
  test_threads();
  printf("%s: %ld checks, %ld failures\n", name, checks, failures);
}

}  // namespace
}  // namespace dlfp4

int main() {
  return dlfp4::run([] {
    dlfp4::test_errors();
    dlfp4::each_level(dlfp4::test_level);
  });
}
