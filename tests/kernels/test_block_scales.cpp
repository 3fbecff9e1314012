// Checks how the block-scaling kernels of every level find and read scales, against the scalar ones, bit for bit.
// Layout: see block_support.h.
// Trick: see block_support.h.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for these
#endif

#include "block_support.h"

namespace dlfp4 {
namespace {

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

// Of rows that begin `step` elements apart.
void check_join_largest(int source, const uint8_t *src, int64_t step, int64_t rows, int64_t count, uint8_t *result) {
  fill({DLFP4_float32, false}, DLFP4_float8_e4m3fn, stored_memory.begin, count);
  for (int64_t i = 0; i < count; ++i) stored_memory.begin[4 * i + 3] &= 0x7F;
  uint32_t *const amax = reinterpret_cast<uint32_t *>(result);
  snprintf(context, sizeof(context), "%s, %ld rows of %ld elements", name_of_source(source), static_cast<long>(rows),
           static_cast<long>(count));
  compare(
      "join_largest", {Output(result_memory, amax, 4 * count)},
      [=](const BlockKernels &kernels) { return kernels.join_largest[source]; },
      [=](auto kernel) {
        memcpy(amax, stored_memory.begin, static_cast<size_t>(4 * count));
        return kernel(src, step * bytes_of(source), rows, count, amax), true;
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
      uint8_t *const src = fill_floats(source, element_of(DLFP4_float8_e4m3fn), count, at);
      if (random_below(2)) calm(source, src, count);
      for (int64_t block : {int64_t{16}, int64_t{32}, int64_t{48}, int64_t{128}, some_block(count)})
        check_find_largest(source, src, count, block, at);
      const int64_t rows = 1 + random_below(5), in_row = count / rows;
      check_join_largest(source, src, in_row, rows, in_row, place(result_memory, 4 * in_row, at));
    }
  }
  for (int round = 0; round < 100; ++round) {
    const int64_t count = random_below(round < 90 ? 2400 : 9000);
    uint8_t *const src = fill_floats(source, element_of(DLFP4_float8_e4m3fn), count + 64, kAtBegin) + round % 64;
    if (random_below(4)) calm(source, src, count);
    for (int64_t block : {16, 32, 48, 128, 2048}) check_find_largest(source, src, count, block, kAtEnd);
    check_join_largest(source, src, count, 1, count, result_memory.begin + 4 * random_below(16));
  }
}

// Every float of 16 bits as a block, and as an element of one.
void test_all_halves(int source) {
  if (bytes_of(source) != 2) return;
  const int64_t count = 1 << 16;
  for (int64_t i = 0; i < count; ++i) memcpy(floats_memory.begin + 2 * i, &i, 2);
  for (int64_t i = 0; i < count; i += 4096) {
    check_join_largest(source, floats_memory.begin + 2 * i, 4096, 1, 4096, result_memory.begin);
    check_find_largest(source, floats_memory.begin + 2 * i, 4096, 16, kAtBegin);
  }
  memset(floats_memory.begin, 0, 32 * count);
  for (int64_t i = 0; i < count; ++i) memcpy(floats_memory.begin + 32 * i + i % 16 * 2, &i, 2);
  for (int64_t i = 0; i < count; i += 128)
    check_find_largest(source, floats_memory.begin + 32 * i, 2048, i & 128 ? 16 : 32, kAtBegin);
}

// --- Scales ----------------------------------------------------------------------------------

int64_t bytes_of_scale(int key) { return kTypes[kBlockKeys[key].scale].bits / 8; }

const char *name_of_key(int key) {
  const BlockKey &of = kBlockKeys[key];
  static char name[80];
  snprintf(name, sizeof(name), "%s by %s, blocks of %ld", dlfp4_dtypes[of.element].name, dlfp4_dtypes[of.scale].name,
           static_cast<long>(of.length));
  return name;
}

void check_find_scales(const ScaleRule &rule, int key, const uint32_t *amax, int64_t count, Place at) {
  const int64_t bytes = bytes_of_scale(key) * count;
  uint8_t *const stored = place(stored_memory, bytes, at);
  float *const multipliers = reinterpret_cast<float *>(place(result_memory, 4 * count, at));
  compare(
      "find_scales", {Output(stored_memory, stored, bytes), Output(result_memory, multipliers, 4 * count)},
      [=](const BlockKernels &kernels) { return kernels.find_scales[key]; },
      [=](auto kernel) { return kernel(rule, amax, count, stored, multipliers); });
}

uint32_t largest_of(int row) { return float_of_magnitude(kTypes[row], largest_finite_code(kTypes[row])); }

ScaleRule rule_of(int key, float tensor_decode) {
  ScaleRule rule = {};
  set_types(&rule, kTypes[kBlockKeys[key].element], kTypes[kBlockKeys[key].scale], 0);
  set_scale(&rule, scale_given(tensor_decode));
  rule.mantissa = rule.scale_mantissa = 23;  // others of scales are for the scalar level
  return rule;
}

// Magnitudes `step` apart, then those next to every power of two.
void sweep_magnitudes(const ScaleRule &rule, int key, uint32_t step) {
  constexpr int64_t kChunk = 1 << 16;
  uint32_t *const amax = reinterpret_cast<uint32_t *>(factors_memory.begin);
  uint64_t next = 0;
  while (next < kSignBit) {
    int64_t count = 0;
    for (; count < kChunk && next < kSignBit; next += step) amax[count++] = static_cast<uint32_t>(next);
    check_find_scales(rule, key, amax, count, kAtEnd);
  }
  int64_t count = 0;
  for (uint32_t exponent = 0; exponent < 256; ++exponent)
    for (uint32_t fraction = 0; fraction < 1 << 23; fraction += 1 << 18)
      for (uint32_t near = 0; near < 3; ++near) amax[count++] = ((exponent << 23 | fraction) + near - 1) & 0x7FFFFFFF;
  check_find_scales(rule, key, amax, count, kAtEnd);
}

// Every length, most without and some with a block that is not finite.
void test_scale_lengths(ScaleRule rule, int key) {
  for (int64_t count = 0; count <= 200; ++count) {
    for (Place at : {kAtEnd, kAtBegin}) {
      uint32_t *const amax = reinterpret_cast<uint32_t *>(place(factors_memory, 4 * count, at));
      const uint32_t below = random_below(3) ? kFloatInfinity : kSignBit;
      for (int64_t i = 0; i < count; ++i) amax[i] = random_below(9) ? static_cast<uint32_t>(random_below(below)) : 0;
      const bool has_nan = kBlockKeys[key].kind == DLFP4_TWO_LEVEL;  // a code that no recipe can store
      rule.zero_scale = static_cast<uint32_t>(random_below(has_nan ? 127 : 256));
      rule.least_code = random_below(2) ? static_cast<uint32_t>(random_below(100)) : 0;
      snprintf(context, sizeof(context), "%s, %ld scales", name_of_key(key), static_cast<long>(count));
      check_find_scales(rule, key, amax, count, at);
    }
  }
}

void test_two_level(int key) {
  const float scales[] = {1, 0.37f, 448, 1e-3f, 3e-36f, 1.2e-38f, 1e-40f, 1e30f, 3e38f, 0, -0.5f, INFINITY};
  int number = 0;
  for (float scale : scales) {
    const ScaleRule rule = rule_of(key, scale);
    test_scale_lengths(rule, key);
    snprintf(context, sizeof(context), "%s, a tensor scale of %g", name_of_key(key), static_cast<double>(scale));
    sweep_magnitudes(rule, key, number++ < 2 ? 251 : 4093);
  }
}

// Of lines with tensor scales of their own, in the same three orders and either way.
void test_scales_of_lines(int key) {
  for (dlfp4_scale_order order : {DLFP4_GLOBAL_FIRST, DLFP4_BLOCK_FIRST, DLFP4_INPUT_TYPE})
    for (bool divides : {false, true})
      for (int64_t count = 0; count <= 80; ++count) {
        ScaleRule rule = rule_of(key, 1);
        rule.order = order;
        rule.divides = divides;
        uint32_t *const amax = reinterpret_cast<uint32_t *>(factors_memory.begin);
        float *const first = reinterpret_cast<float *>(place(floats_memory, 12 * count, kAtEnd));
        for (int64_t i = 0; i < count; ++i) {
          amax[i] = random_below(9) ? static_cast<uint32_t>(random_below(kSignBit)) : 0;
          set_scale(&rule, scale_given(float_of(static_cast<uint32_t>(random_below(kFloatInfinity)))));
          first[i] = rule.first, first[count + i] = rule.second, first[2 * count + i] = rule.unit;
        }
        const TensorScales scales = {first, first + count, first + 2 * count};
        uint8_t *const stored = place(stored_memory, count, kAtEnd);
        float *const multipliers = reinterpret_cast<float *>(place(result_memory, 4 * count, kAtEnd));
        snprintf(context, sizeof(context), "%s, order %d, divides %d, %ld lines", name_of_key(key), order, divides,
                 static_cast<long>(count));
        compare(
            "find_scales_of_lines",
            {Output(stored_memory, stored, count), Output(result_memory, multipliers, 4 * count)},
            [=](const BlockKernels &kernels) { return kernels.find_scales_of_lines[key]; },
            [&](auto kernel) { return kernel(rule, scales, amax, count, stored, multipliers); });
      }
}

// All orders of operations, of inputs of every type.
void test_orders(int key) {
  for (dlfp4_scale_order order : {DLFP4_GLOBAL_FIRST, DLFP4_BLOCK_FIRST, DLFP4_INPUT_TYPE})
    for (bool divides : {false, true})
      for (int source : kSourceRows)
        for (float scale : {1.0f, 0.37f, 3e-36f, 1e30f}) {
          ScaleRule rule = rule_of(key, scale);
          rule.order = order;
          rule.divides = divides;
          rule.mantissa = order == DLFP4_INPUT_TYPE ? kTypes[source].mantissa : 23;
          set_scale(&rule, scale_given(scale));
          test_scale_lengths(rule, key);
          snprintf(context, sizeof(context), "%s, order %d, divides %d, from %s, a tensor scale of %g",
                   name_of_key(key), order, divides, dlfp4_dtypes[source].name, static_cast<double>(scale));
          sweep_magnitudes(rule, key, 16381);
        }
}

// The exponent that is left of a magnitude, as the formats' papers state each rule: without a number to add.
uint32_t exponent_by_rule(dlfp4_scale_rule rule, int element, uint32_t magnitude) {
  const uint32_t exponent = magnitude >> 23, fraction = magnitude & 0x7FFFFF;
  const double largest = value_of_code(element, largest_finite_code(kTypes[element]));
  const double significand = 1 + ldexp(fraction, -23);  // as that of a normal number, below 2^-126 too
  switch (rule) {
    case DLFP4_SCALE_RCEIL:
      return exponent + (fraction > (bits_of(static_cast<float>(largest)) & 0x7FFFFF));
    case DLFP4_SCALE_CEIL:
      return exponent + (fraction != 0);
    case DLFP4_SCALE_EVEN:
      return exponent + (significand + ldexp(0.5, -kTypes[element].mantissa) >= 2);
    default:
      return exponent;
  }
}

void check_carry(dlfp4_scale_rule rule, int element, uint32_t magnitude) {
  const uint32_t carry = carry_of_power(rule, largest_of(element), kTypes[element].mantissa);
  const uint32_t found = (magnitude + carry) >> 23, expected = exponent_by_rule(rule, element, magnitude);
  if (found != expected)
    snprintf(context, sizeof(context), "%s, scale rule %d, magnitude %08x: %u, not %u", dlfp4_dtypes[element].name,
             rule, magnitude, found, expected);
  check(found == expected, "carry_of_power", context);
}

// With every exponent: no fraction, the largest value's, and the least that rounds up; then any magnitudes.
void test_carry(int element) {
  const uint32_t of_largest = largest_of(element) & 0x7FFFFF;
  const uint32_t rounds_up = (1u << 23) - (1u << (22 - kTypes[element].mantissa));
  for (dlfp4_scale_rule rule : {DLFP4_SCALE_FLOOR, DLFP4_SCALE_RCEIL, DLFP4_SCALE_CEIL, DLFP4_SCALE_EVEN}) {
    for (uint32_t exponent = 0; exponent < 256; ++exponent)
      for (uint32_t fraction : {0u, of_largest, rounds_up})
        for (uint32_t near = 0; near < 3; ++near) {
          const uint32_t magnitude = (exponent << 23 | fraction) + near - 1;
          if (magnitude < kFloatInfinity) check_carry(rule, element, magnitude);
        }
    for (int64_t below : {int64_t{1} << 23, int64_t{kFloatInfinity}})  // subnormal, finite
      for (int round = 0; round < 3000; ++round) check_carry(rule, element, static_cast<uint32_t>(random_below(below)));
  }
}

void test_powers(int key) {
  for (dlfp4_scale_rule power : {DLFP4_SCALE_FLOOR, DLFP4_SCALE_RCEIL, DLFP4_SCALE_CEIL, DLFP4_SCALE_EVEN}) {
    ScaleRule rule = rule_of(key, 1);
    rule.carry = carry_of_power(power, rule.largest, kTypes[kBlockKeys[key].element].mantissa);
    rule.zero_scale = 127;
    rule.least = random_below(2) ? bits_of(1e-4f) : 0;
    test_scale_lengths(rule, key);
    snprintf(context, sizeof(context), "%s, scale rule %d", name_of_key(key), power);
    sweep_magnitudes(rule, key, kBlockKeys[key].element == DLFP4_float4_e2m1fn ? 251 : 1021);
  }
}

void test_float_scales(int key) {
  for (float least : {0.0f, 1e-12f, 1e-45f, 2.0f, INFINITY}) {
    for (bool pow2 : {false, true}) {
      ScaleRule rule = rule_of(key, 1);
      rule.least = bits_of(least);
      rule.pow2 = pow2;
      test_scale_lengths(rule, key);
      snprintf(context, sizeof(context), "%s, pow2 %d, at least %g", name_of_key(key), pow2,
               static_cast<double>(least));
      sweep_magnitudes(rule, key, 65521);
      rule.divides = true;
      sweep_magnitudes(rule, key, 65521);
      rule.order = DLFP4_INPUT_TYPE;
      for (int mantissa : {7, 10, 23}) {
        rule.mantissa = mantissa;
        test_scale_lengths(rule, key);
        snprintf(context, sizeof(context), "%s, quotients of %d bits, at least %g", name_of_key(key), mantissa,
                 static_cast<double>(least));
        sweep_magnitudes(rule, key, 65521);
      }
    }
  }
}

void check_decode_scales(int key, const uint8_t *stored, int64_t count, float decode, Place at) {
  float *const scales = reinterpret_cast<float *>(place(result_memory, 4 * count, at));
  snprintf(context, sizeof(context), "%s, %ld scales, a tensor scale of %g", name_of_key(key), static_cast<long>(count),
           static_cast<double>(decode));
  compare(
      "decode_scales", {Output(result_memory, scales, 4 * count)},
      [=](const BlockKernels &kernels) { return kernels.decode_scales[key]; },
      [=](auto kernel) { return kernel(stored, count, decode, scales); });
}

void test_decode_scales(int key) {
  const float decodes[] = {1, 0.37f, 3e-40f, 1.5e-45f, 3e38f, 0, -2, INFINITY};
  const int64_t bytes = bytes_of_scale(key);
  for (float decode : decodes) {
    for (int64_t i = 0; i < 256; ++i) stored_memory.begin[i] = static_cast<uint8_t>(i);
    check_decode_scales(key, stored_memory.begin, 256 / bytes, decode, kAtEnd);
    for (int64_t i = 0; i < 256; ++i) check_decode_scales(key, stored_memory.begin + i, 1, decode, kAtBegin);
    for (int64_t count = 0; count <= 200; ++count)
      for (Place at : {kAtEnd, kAtBegin})
        check_decode_scales(key, fill_bytes(stored_memory, count * bytes, at, random_below(2) ? 6 : 8), count, decode,
                            at);
  }
}

// --- All of it -------------------------------------------------------------------------------

// The first key of those that kernels of scales cannot tell apart.
bool is_first(int key) {
  for (int other = 0; other < key; ++other)
    if (kBlockKeys[other].element == kBlockKeys[key].element && kBlockKeys[other].scale == kBlockKeys[key].scale)
      return false;
  return true;
}

void test_key(int key) {
  if (!is_first(key)) return;
  test_decode_scales(key);
  switch (kBlockKeys[key].kind) {
    case DLFP4_TWO_LEVEL:
      test_orders(key);
      test_scales_of_lines(key);
      return test_two_level(key);
    case DLFP4_POWER:
      return test_carry(kBlockKeys[key].element), test_powers(key);
    default:
      return test_float_scales(key);
  }
}

void test_all() {
  for (int source = 0; source < kNumSources; ++source) test_largest(source);
  for (int source = 0; source < kNumSources; ++source) test_all_halves(source);
  for (int key = 0; key < kNumKeys; ++key) test_key(key);
}

}  // namespace
}  // namespace dlfp4

int main() { return dlfp4::run_at_every_level(dlfp4::test_all); }
