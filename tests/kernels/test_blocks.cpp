// Checks the block-scaling kernels of every level that this machine runs against the scalar ones, bit for bit.
// Layout: runs of any length at any address, blocks of any size, tiles of any shape.
// Trick: outputs are compared with what surrounds them, and end, like inputs, at pages that fault.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for blocks
#endif

#include <math.h>

#include "support.h"

#include "cpu/block_kernels.h"
#include "cpu/dispatch.h"
#include "formats.h"
#include "scaling.h"

namespace dlfp4 {
namespace {

// --- Levels ----------------------------------------------------------------------------------

struct Candidate {
  const char *name;
  const BlockKernels *kernels;
};

Candidate levels[8];
int num_levels;
char context[256];  // of the call that is compared

void collect_levels() {
  each_level([](const char *name) { levels[num_levels++] = {name, &block_kernels(current_level())}; });
}

// --- Memory ----------------------------------------------------------------------------------

Guarded floats_memory, codes_memory, factors_memory, stored_memory, result_memory;
uint8_t images[2][Guarded::kBytes + 128];

constexpr uint32_t kSignBit = 0x80000000;

enum Place { kAtEnd, kAtBegin };

uint8_t *place(const Guarded &memory, int64_t bytes, Place at) {
  return at == kAtEnd ? memory.end - bytes : memory.begin;
}

// What a kernel writes, with up to 64 bytes on each side.
struct Output {
  uint8_t *first;
  uint8_t *last;

  Output(const Guarded &memory, const void *data, int64_t bytes)
      : first(const_cast<uint8_t *>(static_cast<const uint8_t *>(data))), last(first + bytes) {
    first -= first - memory.begin < 64 ? first - memory.begin : 64;
    last += memory.end - last < 64 ? memory.end - last : 64;
  }
  size_t size() const { return static_cast<size_t>(last - first); }
};

// Calls the kernel of every level that has one of its own, and compares what it returns and writes.
template <class KernelOf, class Call>
void compare(const char *test, std::initializer_list<Output> outputs, KernelOf kernel_of, Call call) {
  const auto scalar = kernel_of(scalar_block_kernels());
  bool known = false, expected = false;
  for (int i = 0; i < num_levels; ++i) {
    const auto kernel = kernel_of(*levels[i].kernels);
    if (kernel == scalar) continue;
    if (!known) {
      for (const Output &output : outputs) memset(output.first, 0xA5, output.size());
      expected = call(scalar);
      int number = 0;
      for (const Output &output : outputs) memcpy(images[number++], output.first, output.size());
      known = true;
    }
    for (const Output &output : outputs) memset(output.first, 0xA5, output.size());
    bool good = call(kernel) == expected;
    int number = 0;
    for (const Output &output : outputs) good &= memcmp(output.first, images[number++], output.size()) == 0;
    char detail[512];
    if (!good) snprintf(detail, sizeof(detail), "%s, %s", levels[i].name, context);
    check(good, test, good ? "" : detail);
  }
}

// --- Inputs ----------------------------------------------------------------------------------

int64_t bytes_of(int source) { return kFormats[kSourceRows[source]].bits / 8; }

const char *name_of_source(int source) { return dlfp4_dtypes[kSourceRows[source]].name; }
const char *name_of_element(int element) { return dlfp4_dtypes[kElementRows[element]].name; }
int bits_of_element(int element) { return kFormats[kElementRows[element]].bits; }

// The elements of the least run of whole bytes.
int64_t group_of(int element) { return bits_of_element(element) == 4 ? 2 : bits_of_element(element) == 6 ? 4 : 1; }

// A block that the kernels must take for `count` elements.
int64_t some_block(int64_t count) {
  const int64_t blocks[] = {16, 32, 48, 64, 128, 272, count > 0 ? count : 1, count + 1, int64_t{1} << 62};
  return blocks[random_below(9)];
}

int64_t number_of_blocks(int64_t count, int64_t block) { return count / block + (count % block != 0); }

// Finite floats of any magnitude; many are powers of two, many halfway between two bfloat16 or float16.
float some_factor() {
  const uint32_t bits = static_cast<uint32_t>(random_bits());
  const uint32_t shapes[] = {bits, bits & 0xFF800000, (bits & 0xFFFF0000) | 0x8000, (bits & 0xFFFFE000) | 0x1000};
  const uint32_t shape = shapes[random_below(4)] + static_cast<uint32_t>(random_below(3) - 1) * (bits & 1);
  switch (random_below(16)) {
    case 0:
      return 0;
    case 1:
      return float_of(shape & 0x807FFFFF);
    case 2:
      return kLargestFloat;
    case 3:
    case 4:
      return float_of(shape & 0x7F800000) < kLargestFloat ? float_of(shape & 0x7F800000) : 1;
    default:  // between 2^-32 and 2^32
      return float_of((shape & 0x807FFFFF) | static_cast<uint32_t>(95 + random_below(64)) << 23);
  }
}

float *fill_factors(int64_t count, Place at) {
  float *const factors = reinterpret_cast<float *>(place(factors_memory, 4 * count, at));
  const float same = some_factor();
  const bool differ = random_below(4) != 0;
  for (int64_t i = 0; i < count; ++i) {
    const float factor = differ ? some_factor() : same;
    memcpy(factors + i, &factor, sizeof(factor));
  }
  return factors;
}

uint8_t *fill_floats(int source, int element, int64_t count, Place at) {
  uint8_t *const floats = place(floats_memory, count * bytes_of(source), at);
  fill({kSourceRows[source], false}, kElementRows[element], floats, count);
  return floats;
}

uint8_t *fill_bytes(const Guarded &memory, int64_t bytes, Place at, int kept_bits) {
  uint8_t *const data = place(memory, bytes, at);
  for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(random_bits() & low_bits(kept_bits));
  return data;
}

BlockMode some_mode(int rounding) {
  return {static_cast<dlfp4_rounding>(rounding), random_below(3) ? -0.0f : 0.0f, random_bits(), random_bits(),
          static_cast<uint64_t>(1 + random_below(100))};
}

// --- Largest magnitudes ----------------------------------------------------------------------

void check_find_largest(int source, const uint8_t *src, int64_t count, int64_t block, Place at) {
  const int64_t blocks = number_of_blocks(count, block);
  uint32_t *const amax = reinterpret_cast<uint32_t *>(place(result_memory, 4 * blocks, at));
  snprintf(context, sizeof(context), "%s, %ld elements, blocks of %ld, place %d", name_of_source(source),
           static_cast<long>(count), static_cast<long>(block), at);
  compare(
      "find_largest", {Output(result_memory, amax, 4 * blocks)},
      [=](const BlockKernels &kernels) { return kernels.find_largest[source]; },
      [=](auto kernel) { return kernel(src, count, block, amax), true; });
}

void check_join_largest(int source, const uint8_t *src, int64_t count, uint8_t *result) {
  fill({DLFP4_float32, false}, DLFP4_float8_e4m3fn, stored_memory.begin, count);
  for (int64_t i = 0; i < count; ++i) stored_memory.begin[4 * i + 3] &= 0x7F;
  uint32_t *const amax = reinterpret_cast<uint32_t *>(result);
  snprintf(context, sizeof(context), "%s, %ld elements", name_of_source(source), static_cast<long>(count));
  compare(
      "join_largest", {Output(result_memory, amax, 4 * count)},
      [=](const BlockKernels &kernels) { return kernels.join_largest[source]; },
      [=](auto kernel) {
        memcpy(amax, stored_memory.begin, static_cast<size_t>(4 * count));
        return kernel(src, count, amax), true;
      });
}

// Mostly of one magnitude, or with a single element that counts.
void calm(int source, uint8_t *floats, int64_t count) {
  const int64_t bytes = bytes_of(source);
  if (count == 0) return;
  for (int64_t i = 1; i < count; ++i) memcpy(floats + i * bytes, floats, static_cast<size_t>(bytes));
  fill({kSourceRows[source], false}, DLFP4_float8_e4m3fn, floats + random_below(count) * bytes, 1);
}

void test_largest(int source) {
  for (int64_t count = 0; count <= 200; ++count) {
    for (Place at : {kAtEnd, kAtBegin}) {
      uint8_t *const src = fill_floats(source, kE4m3, count, at);
      if (random_below(2)) calm(source, src, count);
      for (int64_t block : {int64_t{16}, int64_t{32}, int64_t{48}, int64_t{128}, some_block(count)})
        check_find_largest(source, src, count, block, at);
      check_join_largest(source, src, count, place(result_memory, 4 * count, at));
    }
  }
  for (int round = 0; round < 100; ++round) {
    const int64_t count = random_below(round < 90 ? 2400 : 9000);
    uint8_t *const src = fill_floats(source, kE4m3, count + 64, kAtBegin) + round % 64;
    if (random_below(4)) calm(source, src, count);
    for (int64_t block : {16, 32, 48, 128, 2048}) check_find_largest(source, src, count, block, kAtEnd);
    check_join_largest(source, src, count, result_memory.begin + 4 * random_below(16));
  }
}

// Every float of 16 bits as a block, and as an element of one.
void test_all_halves(int source) {
  if (bytes_of(source) != 2) return;
  const int64_t count = 1 << 16;
  for (int64_t i = 0; i < count; ++i) memcpy(floats_memory.begin + 2 * i, &i, 2);
  for (int64_t i = 0; i < count; i += 4096) {
    check_join_largest(source, floats_memory.begin + 2 * i, 4096, result_memory.begin);
    check_find_largest(source, floats_memory.begin + 2 * i, 4096, 16, kAtBegin);
  }
  memset(floats_memory.begin, 0, 32 * count);
  for (int64_t i = 0; i < count; ++i) memcpy(floats_memory.begin + 32 * i + i % 16 * 2, &i, 2);
  for (int64_t i = 0; i < count; i += 128)
    check_find_largest(source, floats_memory.begin + 32 * i, 2048, i & 128 ? 16 : 32, kAtBegin);
}

// --- Scales ----------------------------------------------------------------------------------

void check_find_scales(const ScaleRule &rule, int kind, const uint32_t *amax, int64_t count, Place at) {
  const int64_t bytes = (kind == DLFP4_LARGEST ? 4 : 1) * count;
  uint8_t *const stored = place(stored_memory, bytes, at);
  float *const multipliers = reinterpret_cast<float *>(place(result_memory, 4 * count, at));
  compare(
      "find_scales", {Output(stored_memory, stored, bytes), Output(result_memory, multipliers, 4 * count)},
      [=](const BlockKernels &kernels) { return kernels.find_scales[kind]; },
      [=](auto kernel) { return kernel(rule, amax, count, stored, multipliers); });
}

ScaleRule rule_of(int format, float tensor_decode) {
  const Format element = kFormats[dlfp4_formats[format].element];
  const TensorScale tensor = scale_given(tensor_decode);
  ScaleRule rule = {};
  rule.exponent = largest_exponent(element);
  rule.largest = largest_float_bits(element);
  rule.encode = tensor.encode;
  rule.decode = tensor.decode;
  rule.sixth = tensor.encode * kSixth;
  rule.unit = 1 / tensor.encode;
  return rule;
}

// Magnitudes `step` apart, then those next to every power of two.
void sweep_magnitudes(const ScaleRule &rule, int kind, uint32_t step) {
  constexpr int64_t kChunk = 1 << 16;
  uint32_t *const amax = reinterpret_cast<uint32_t *>(factors_memory.begin);
  uint64_t next = 0;
  while (next < kSignBit) {
    int64_t count = 0;
    for (; count < kChunk && next < kSignBit; next += step) amax[count++] = static_cast<uint32_t>(next);
    check_find_scales(rule, kind, amax, count, kAtEnd);
  }
  int64_t count = 0;
  for (uint32_t exponent = 0; exponent < 256; ++exponent)
    for (uint32_t fraction = 0; fraction < 1 << 23; fraction += 1 << 18)
      for (uint32_t near = 0; near < 3; ++near) amax[count++] = ((exponent << 23 | fraction) + near - 1) & 0x7FFFFFFF;
  check_find_scales(rule, kind, amax, count, kAtEnd);
}

// Every length, most without and some with a block that is not finite.
void test_scale_lengths(ScaleRule rule, int kind) {
  for (int64_t count = 0; count <= 200; ++count) {
    for (Place at : {kAtEnd, kAtBegin}) {
      uint32_t *const amax = reinterpret_cast<uint32_t *>(place(factors_memory, 4 * count, at));
      const uint32_t below = random_below(3) ? kNotFinite : kSignBit;
      for (int64_t i = 0; i < count; ++i) amax[i] = random_below(9) ? static_cast<uint32_t>(random_below(below)) : 0;
      rule.zero_scale = static_cast<uint32_t>(random_below(256));
      snprintf(context, sizeof(context), "kind %d, %ld scales", kind, static_cast<long>(count));
      check_find_scales(rule, kind, amax, count, at);
    }
  }
}

void test_two_level() {
  const float scales[] = {1, 0.37f, 448, 1e-3f, 3e-36f, 1.2e-38f, 1e-40f, 1e30f, 3e38f, 0, -0.5f, INFINITY};
  int number = 0;
  for (float scale : scales) {
    const ScaleRule rule = rule_of(DLFP4_FORMAT_nvfp4, scale);
    test_scale_lengths(rule, DLFP4_TWO_LEVEL);
    snprintf(context, sizeof(context), "two levels, a tensor scale of %g", static_cast<double>(scale));
    sweep_magnitudes(rule, DLFP4_TWO_LEVEL, number++ < 2 ? 251 : 4093);
  }
}

// The exponent that is left of a magnitude, as the formats' papers state each rule: without a number to add.
uint32_t exponent_by_rule(dlfp4_scale_rule rule, int element, uint32_t magnitude) {
  const uint32_t exponent = magnitude >> 23, fraction = magnitude & 0x7FFFFF;
  const double largest = value_of_code(element, largest_finite_code(kFormats[element]));
  const double significand = 1 + ldexp(fraction, -23);  // as that of a normal number, below 2^-126 too
  switch (rule) {
    case DLFP4_SCALE_RCEIL:
      return exponent + (fraction > (bits_of(static_cast<float>(largest)) & 0x7FFFFF));
    case DLFP4_SCALE_CEIL:
      return exponent + (fraction != 0);
    case DLFP4_SCALE_EVEN:
      return exponent + (significand + ldexp(0.5, -kFormats[element].mantissa) >= 2);
    default:
      return exponent;
  }
}

void check_carry(dlfp4_scale_rule rule, int element, uint32_t magnitude) {
  const uint32_t carry = carry_of_power(rule, largest_float_bits(kFormats[element]), kFormats[element].mantissa);
  const uint32_t found = (magnitude + carry) >> 23, expected = exponent_by_rule(rule, element, magnitude);
  if (found != expected)
    snprintf(context, sizeof(context), "%s, scale rule %d, magnitude %08x: %u, not %u", dlfp4_dtypes[element].name,
             rule, magnitude, found, expected);
  check(found == expected, "carry_of_power", context);
}

// With every exponent: no fraction, the largest value's, and the least that rounds up; then any magnitudes.
void test_carry(int format) {
  if (dlfp4_formats[format].kind != DLFP4_POWER) return;
  const int element = dlfp4_formats[format].element;
  const uint32_t of_largest = largest_float_bits(kFormats[element]) & 0x7FFFFF;
  const uint32_t rounds_up = (1u << 23) - (1u << (22 - kFormats[element].mantissa));
  for (dlfp4_scale_rule rule : {DLFP4_SCALE_FLOOR, DLFP4_SCALE_RCEIL, DLFP4_SCALE_CEIL, DLFP4_SCALE_EVEN}) {
    for (uint32_t exponent = 0; exponent < 256; ++exponent)
      for (uint32_t fraction : {0u, of_largest, rounds_up})
        for (uint32_t near = 0; near < 3; ++near) {
          const uint32_t magnitude = (exponent << 23 | fraction) + near - 1;
          if (magnitude < kNotFinite) check_carry(rule, element, magnitude);
        }
    for (int64_t below : {int64_t{1} << 23, int64_t{kNotFinite}})  // subnormal, finite
      for (int round = 0; round < 3000; ++round) check_carry(rule, element, static_cast<uint32_t>(random_below(below)));
  }
}

void test_powers(int format) {
  if (dlfp4_formats[format].kind != DLFP4_POWER) return;
  for (dlfp4_scale_rule power : {DLFP4_SCALE_FLOOR, DLFP4_SCALE_RCEIL, DLFP4_SCALE_CEIL, DLFP4_SCALE_EVEN}) {
    ScaleRule rule = rule_of(format, 1);
    rule.carry = carry_of_power(power, rule.largest, kFormats[dlfp4_formats[format].element].mantissa);
    rule.zero_scale = 127;
    test_scale_lengths(rule, DLFP4_POWER);
    snprintf(context, sizeof(context), "%s, scale rule %d", dlfp4_formats[format].name, power);
    sweep_magnitudes(rule, DLFP4_POWER, format == DLFP4_FORMAT_mxfp4 ? 251 : 1021);
  }
}

void test_float_scales(int format) {
  if (dlfp4_formats[format].kind != DLFP4_LARGEST) return;
  for (float least : {0.0f, 1e-12f, 1e-45f, 2.0f, INFINITY}) {
    for (bool pow2 : {false, true}) {
      ScaleRule rule = rule_of(format, 1);
      rule.least = bits_of(least);
      rule.pow2 = pow2;
      test_scale_lengths(rule, DLFP4_LARGEST);
      snprintf(context, sizeof(context), "%s, pow2 %d, at least %g", dlfp4_formats[format].name, pow2,
               static_cast<double>(least));
      sweep_magnitudes(rule, DLFP4_LARGEST, 65521);
    }
  }
}

void check_decode_scales(int kind, const uint8_t *stored, int64_t count, float decode, Place at) {
  float *const scales = reinterpret_cast<float *>(place(result_memory, 4 * count, at));
  snprintf(context, sizeof(context), "kind %d, %ld scales, a tensor scale of %g", kind, static_cast<long>(count),
           static_cast<double>(decode));
  compare(
      "decode_scales", {Output(result_memory, scales, 4 * count)},
      [=](const BlockKernels &kernels) { return kernels.decode_scales[kind]; },
      [=](auto kernel) { return kernel(stored, count, decode, scales); });
}

void test_decode_scales() {
  const float decodes[] = {1, 0.37f, 3e-40f, 1.5e-45f, 3e38f, 0, -2, INFINITY};
  for (int kind : {DLFP4_TWO_LEVEL, DLFP4_POWER, DLFP4_LARGEST}) {
    const int64_t bytes = kind == DLFP4_LARGEST ? 4 : 1;
    for (float decode : decodes) {
      for (int64_t i = 0; i < 256; ++i) stored_memory.begin[i] = static_cast<uint8_t>(i);
      check_decode_scales(kind, stored_memory.begin, 256 / bytes, decode, kAtEnd);
      for (int64_t i = 0; i < 256; ++i) check_decode_scales(kind, stored_memory.begin + i, 1, decode, kAtBegin);
      for (int64_t count = 0; count <= 200; ++count)
        for (Place at : {kAtEnd, kAtBegin})
          check_decode_scales(kind, fill_bytes(stored_memory, count * bytes, at, random_below(2) ? 6 : 8), count,
                              decode, at);
    }
  }
}

// --- Encoding --------------------------------------------------------------------------------

struct Encoding {
  int rounding, source, element;
};

void check_encode(const Encoding &e, const uint8_t *src, int64_t count, int64_t block, const float *multipliers,
                  uint8_t *dst) {
  const BlockMode mode = some_mode(e.rounding);
  const int64_t bytes = count * bits_of_element(e.element) / 8;
  snprintf(context, sizeof(context), "%s -> %s, rounding %d, %ld elements, blocks of %ld, zero %g",
           name_of_source(e.source), name_of_element(e.element), e.rounding, static_cast<long>(count),
           static_cast<long>(block), static_cast<double>(mode.zero));
  compare(
      "encode", {Output(result_memory, dst, bytes)},
      [=](const BlockKernels &kernels) { return kernels.encode[e.rounding][e.source][e.element]; },
      [=](auto kernel) { return kernel(src, count, block, multipliers, dst, mode), true; });
}

void check_encode_across(const Encoding &e, const uint8_t *src, int64_t count, const float *multipliers,
                         uint8_t *codes) {
  const BlockMode mode = some_mode(e.rounding);
  snprintf(context, sizeof(context), "%s -> %s, rounding %d, %ld elements, zero %g", name_of_source(e.source),
           name_of_element(e.element), e.rounding, static_cast<long>(count), static_cast<double>(mode.zero));
  compare(
      "encode_across", {Output(result_memory, codes, count)},
      [=](const BlockKernels &kernels) { return kernels.encode_across[e.rounding][e.source][e.element]; },
      [=](auto kernel) { return kernel(src, count, multipliers, codes, mode), true; });
}

void test_encode_lengths(const Encoding &e) {
  const int64_t group = group_of(e.element);
  for (int64_t count = 0; count <= 200; ++count) {
    for (Place at : {kAtEnd, kAtBegin}) {
      const uint8_t *const src = fill_floats(e.source, e.element, count, at);
      check_encode_across(e, src, count, fill_factors(count, at), place(result_memory, count, at));
      const int64_t block = some_block(count), bytes = count * bits_of_element(e.element) / 8;
      const float *const multipliers = fill_factors(number_of_blocks(count, block), at);
      if (count % group == 0) check_encode(e, src, count, block, multipliers, place(result_memory, bytes, at));
    }
  }
}

void test_encode_offsets(const Encoding &e) {
  for (int64_t offset = 0; offset < 64; ++offset) {
    const int64_t count = (64 + random_below(200)) / 4 * 4, block = some_block(count), other = random_below(64);
    const uint8_t *const src = fill_floats(e.source, e.element, count + 64, kAtBegin);
    check_encode(e, src + offset, count, block, fill_factors(number_of_blocks(count, block), kAtEnd),
                 result_memory.begin + other);
    check_encode_across(e, src + other, count, fill_factors(count, kAtEnd), result_memory.begin + offset);
  }
  const int64_t count = 5000;
  for (int64_t block : {16, 32, 48, 128, 2048, 8192})
    check_encode(e, fill_floats(e.source, e.element, count, kAtEnd), count, block,
                 fill_factors(number_of_blocks(count, block), kAtEnd), result_memory.begin);
}

// Numbers whose products with a multiplier lie at, or next to, a value of the element type or the midpoint of two.
int64_t fill_boundaries(const Encoding &e, float multiplier, uint8_t *floats) {
  const int row = kElementRows[e.element], source_row = kSourceRows[e.source];
  const uint64_t codes = low_bits(magnitude_bits(kFormats[row]));
  int64_t count = 0;
  for (uint64_t code = 0; code < codes; ++code) {
    const double low = value_of_code(row, code), high = value_of_code(row, code + 1);
    for (double point : {low, low + (high - low) / 2})
      for (int64_t near = -2; near <= 2; ++near)
        for (int64_t sign : {1, -1}) {
          const uint64_t bits = code_of_value(source_row, static_cast<double>(sign) * point / multiplier);
          const uint64_t float_bits = bits + static_cast<uint64_t>(near);
          memcpy(floats + count++ * bytes_of(e.source), &float_bits, static_cast<size_t>(bytes_of(e.source)));
        }
  }
  return count / 4 * 4;
}

void test_boundaries(const Encoding &e) {
  const float scales[] = {1, 0.25f, 1024, 1.0f / 3, 7.3f, 2.9e-39f, 1.7e38f, 5.5e-20f};
  for (float multiplier : scales) {
    const int64_t count = fill_boundaries(e, multiplier, floats_memory.begin);
    for (int64_t i = 0; i < count; ++i) memcpy(factors_memory.begin + 4 * i, &multiplier, sizeof(multiplier));
    const float *const factors = reinterpret_cast<float *>(factors_memory.begin);
    check_encode(e, floats_memory.begin, count, count, factors, result_memory.begin);
    check_encode(e, floats_memory.begin, count, 32, factors, result_memory.begin);
    check_encode_across(e, floats_memory.begin, count, factors, result_memory.begin);
  }
}

void test_encode_halves(const Encoding &e) {
  if (bytes_of(e.source) != 2 || e.rounding == DLFP4_STOCHASTIC) return;
  const int64_t count = 1 << 16;
  for (int64_t i = 0; i < count; ++i) memcpy(floats_memory.begin + 2 * i, &i, 2);
  for (float multiplier : {1.0f, 0.3f, 3e-3f, 1e5f})
    check_encode(e, floats_memory.begin, count, count, &multiplier, result_memory.begin);
}

void test_encode(const Encoding &e) {
  test_encode_lengths(e);
  test_encode_offsets(e);
  test_boundaries(e);
  test_encode_halves(e);
}

// --- Packing across lines --------------------------------------------------------------------

void check_pack(int element, int64_t rows, int64_t count, int64_t pitch, int64_t gap) {
  const int bits = bits_of_element(element);
  const int64_t line = rows * bits / 8, stride = line + gap;
  const int64_t src_bytes = rows && count ? (rows - 1) * pitch + count : 0;
  const int64_t dst_bytes = rows && count ? (count - 1) * stride + line : 0;
  const uint8_t *const codes = fill_bytes(codes_memory, src_bytes, kAtEnd, bits);
  uint8_t *const dst = place(result_memory, dst_bytes, kAtEnd);
  snprintf(context, sizeof(context), "%s, %ld rows of %ld, pitch %ld, stride %ld", name_of_element(element),
           static_cast<long>(rows), static_cast<long>(count), static_cast<long>(pitch), static_cast<long>(stride));
  compare(
      "pack_across", {Output(result_memory, dst, dst_bytes)},
      [=](const BlockKernels &kernels) { return kernels.pack_across[element]; },
      [=](auto kernel) { return kernel(codes, pitch, rows, count, dst, stride), true; });
}

void test_pack(int element) {
  const int64_t group = group_of(element);
  for (int64_t count = 0; count <= 200; ++count)
    check_pack(element, 16 * (1 + random_below(9)), count, count + random_below(20), random_below(40));
  for (int64_t rows = 0; rows <= 300; rows += group)
    check_pack(element, rows, 1 + random_below(200), 200 + random_below(20), random_below(40));
  for (int64_t rows : {16, 32, 64, 128})
    for (int64_t count : {16, 64, 127, 128}) check_pack(element, rows, count, 128, 0);
}

void check_unpack(int element, int64_t rows, int64_t count, int64_t pitch, int64_t gap) {
  const int bits = bits_of_element(element);
  const int64_t line = (rows * bits + 7) / 8, stride = line + gap;
  const int64_t src_bytes = count ? (count - 1) * stride + line : 0;
  const int64_t codes_bytes = rows && count ? (rows - 1) * pitch + count : 0;
  const uint8_t *const src = fill_bytes(codes_memory, src_bytes, kAtEnd, 8);
  uint8_t *const codes = place(result_memory, codes_bytes, kAtEnd);
  snprintf(context, sizeof(context), "%s, %ld rows of %ld, pitch %ld, stride %ld", name_of_element(element),
           static_cast<long>(rows), static_cast<long>(count), static_cast<long>(pitch), static_cast<long>(stride));
  compare(
      "unpack_across", {Output(result_memory, codes, codes_bytes)},
      [=](const BlockKernels &kernels) { return kernels.unpack_across[element]; },
      [=](auto kernel) { return kernel(src, stride, rows, count, codes, pitch), true; });
}

void test_unpack(int element) {
  for (int64_t count = 0; count <= 200; ++count)
    check_unpack(element, 16 * (1 + random_below(9)), count, count + random_below(20), random_below(40));
  for (int64_t rows = 0; rows <= 300; ++rows)
    check_unpack(element, rows, 1 + random_below(200), 200 + random_below(20), random_below(40));
  for (int64_t rows : {8, 16, 32, 64, 128})
    for (int64_t count : {16, 64, 127, 128}) check_unpack(element, rows, count, 128, 0);
}

// --- Decoding --------------------------------------------------------------------------------

void check_decode(int element, int to, const uint8_t *src, int64_t count, int64_t block, const float *scales,
                  uint8_t *dst) {
  snprintf(context, sizeof(context), "%s -> %s, %ld elements, blocks of %ld", name_of_element(element),
           name_of_source(to), static_cast<long>(count), static_cast<long>(block));
  compare(
      "decode", {Output(result_memory, dst, count * bytes_of(to))},
      [=](const BlockKernels &kernels) { return kernels.decode[element][to]; },
      [=](auto kernel) { return kernel(src, count, block, scales, dst), true; });
}

void check_decode_across(int element, int to, const uint8_t *codes, int64_t count, const float *scales, uint8_t *dst) {
  snprintf(context, sizeof(context), "%s -> %s, %ld elements", name_of_element(element), name_of_source(to),
           static_cast<long>(count));
  compare(
      "decode_across", {Output(result_memory, dst, count * bytes_of(to))},
      [=](const BlockKernels &kernels) { return kernels.decode_across[element][to]; },
      [=](auto kernel) { return kernel(codes, count, scales, dst), true; });
}

void test_decode_lengths(int element, int to) {
  for (int64_t count = 0; count <= 200; ++count) {
    for (Place at : {kAtEnd, kAtBegin}) {
      const int64_t block = some_block(count), bytes = (count * bits_of_element(element) + 7) / 8;
      uint8_t *const dst = place(result_memory, count * bytes_of(to), at);
      check_decode(element, to, fill_bytes(codes_memory, bytes, at, 8), count, block,
                   fill_factors(number_of_blocks(count, block), at), dst);
      check_decode_across(element, to, fill_bytes(codes_memory, count, at, 8), count, fill_factors(count, at), dst);
    }
  }
}

void test_decode_offsets(int element, int to) {
  for (int64_t offset = 0; offset < 64; ++offset) {
    const int64_t count = 64 + random_below(200), block = some_block(count), other = random_below(64);
    const uint8_t *const codes = fill_bytes(codes_memory, 400, kAtBegin, 8);
    check_decode(element, to, codes + offset, count, block, fill_factors(number_of_blocks(count, block), kAtEnd),
                 result_memory.begin + other);
    check_decode_across(element, to, codes + other, count, fill_factors(count, kAtEnd), result_memory.begin + offset);
  }
  const int64_t count = 5000;
  for (int64_t block : {16, 32, 48, 128, 2048, 8192})
    check_decode(element, to, fill_bytes(codes_memory, count, kAtEnd, 8), count, block,
                 fill_factors(number_of_blocks(count, block), kAtEnd), result_memory.begin);
}

// Every code with many scales.
void test_decode_codes(int element, int to) {
  constexpr int64_t kRounds = 400;
  for (int64_t i = 0; i < 256 * kRounds; ++i) codes_memory.begin[i] = static_cast<uint8_t>(i);
  for (int64_t i = 0; i < kRounds; ++i) {
    const float scale = some_factor();
    for (int64_t k = 0; k < 256; ++k) memcpy(factors_memory.begin + 4 * (256 * i + k), &scale, sizeof(scale));
  }
  const float *const scales = reinterpret_cast<float *>(factors_memory.begin);
  check_decode_across(element, to, codes_memory.begin, 256 * kRounds, scales, result_memory.begin);
}

void test_decode(int element, int to) {
  test_decode_lengths(element, to);
  test_decode_offsets(element, to);
  test_decode_codes(element, to);
}

// --- All of it -------------------------------------------------------------------------------

void test_all() {
  for (int source = 0; source < kNumSources; ++source) test_largest(source);
  for (int source = 0; source < kNumSources; ++source) test_all_halves(source);
  test_two_level();
  for (int format = 0; format < DLFP4_NUM_FORMATS; ++format) test_carry(format), test_powers(format);
  for (int format : {DLFP4_FORMAT_fp8_1x128, DLFP4_FORMAT_fp8_1x128_e5m2}) test_float_scales(format);
  test_decode_scales();
  for (int rounding = 0; rounding < kNumRoundings; ++rounding)
    for (int source = 0; source < kNumSources; ++source)
      for (int element = 0; element < kNumElements; ++element) test_encode({rounding, source, element});
  for (int element = 0; element < kNumElements; ++element) test_pack(element), test_unpack(element);
  for (int element = 0; element < kNumElements; ++element)
    for (int to = 0; to < kNumSources; ++to) test_decode(element, to);
}

}  // namespace
}  // namespace dlfp4

int main() {
  if (!dlfp4_isa()) {
    printf("DLFP4_ISA names a level that is not there\n");
    return 2;
  }
  dlfp4::collect_levels();
  dlfp4::test_all();
  return dlfp4::report();
}
