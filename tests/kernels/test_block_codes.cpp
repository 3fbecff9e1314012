// Checks how the block-scaling kernels of every level encode and decode elements, against the scalar ones, bit for bit.
// Layout: see block_support.h.
// Trick: see block_support.h.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for these
#endif

#include "block_support.h"

namespace dlfp4 {
namespace {

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
  const uint64_t codes = low_bits(magnitude_bits(kTypes[row]));
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

void name_rows(int bits, int64_t rows, int64_t count, int64_t pitch, int64_t stride) {
  snprintf(context, sizeof(context), "%d bits, %ld rows of %ld, pitch %ld, stride %ld", bits, static_cast<long>(rows),
           static_cast<long>(count), static_cast<long>(pitch), static_cast<long>(stride));
}

void check_pack(int bits, int64_t rows, int64_t count, int64_t pitch, int64_t gap) {
  const int64_t line = rows * bits / 8, stride = line + gap;
  const int64_t src_bytes = rows && count ? (rows - 1) * pitch + count : 0;
  const int64_t dst_bytes = rows && count ? (count - 1) * stride + line : 0;
  const uint8_t *const codes = fill_bytes(codes_memory, src_bytes, kAtEnd, bits);
  uint8_t *const dst = place(result_memory, dst_bytes, kAtEnd);
  name_rows(bits, rows, count, pitch, stride);
  compare(
      "pack_across", {Output(result_memory, dst, dst_bytes)},
      [=](const BlockKernels &kernels) { return kernels.pack_across[bits]; },
      [=](auto kernel) { return kernel(codes, pitch, rows, count, dst, stride), true; });
}

void test_pack(int bits) {
  const int64_t group = group_of_bits(bits);
  for (int64_t count = 0; count <= 200; ++count)
    check_pack(bits, 16 * (1 + random_below(9)), count, count + random_below(20), random_below(40));
  for (int64_t rows = 0; rows <= 300; rows += group)
    check_pack(bits, rows, 1 + random_below(200), 200 + random_below(20), random_below(40));
  for (int64_t rows : {16, 32, 64, 128})
    for (int64_t count : {16, 64, 127, 128}) check_pack(bits, rows, count, 128, 0);
}

void check_unpack(int bits, int64_t rows, int64_t count, int64_t pitch, int64_t gap) {
  const int64_t line = (rows * bits + 7) / 8, stride = line + gap;
  const int64_t src_bytes = count ? (count - 1) * stride + line : 0;
  const int64_t codes_bytes = rows && count ? (rows - 1) * pitch + count : 0;
  const uint8_t *const src = fill_bytes(codes_memory, src_bytes, kAtEnd, 8);
  uint8_t *const codes = place(result_memory, codes_bytes, kAtEnd);
  name_rows(bits, rows, count, pitch, stride);
  compare(
      "unpack_across", {Output(result_memory, codes, codes_bytes)},
      [=](const BlockKernels &kernels) { return kernels.unpack_across[bits]; },
      [=](auto kernel) { return kernel(src, stride, rows, count, codes, pitch), true; });
}

void test_unpack(int bits) {
  for (int64_t count = 0; count <= 200; ++count)
    check_unpack(bits, 16 * (1 + random_below(9)), count, count + random_below(20), random_below(40));
  for (int64_t rows = 0; rows <= 300; ++rows)
    check_unpack(bits, rows, 1 + random_below(200), 200 + random_below(20), random_below(40));
  for (int64_t rows : {8, 16, 32, 64, 128})
    for (int64_t count : {16, 64, 127, 128}) check_unpack(bits, rows, count, 128, 0);
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

// Of integers, with zero points or biases; all finite, as drivers see to.
void check_decode_affine(int element, int to, int64_t count, Place at) {
  static float by[2][4096];
  for (float &scale : by[0]) scale = static_cast<float>(random_below(1 << 20)) / 1024 - 300;
  const bool has_biases = random_below(2);
  for (float &offset : by[1])
    offset = static_cast<float>(has_biases ? random_below(1 << 16) : random_below(256)) / (has_biases ? 7 : 1) - 100;
  const Affine affine = {by[0], by[1], has_biases};
  const int64_t block = int64_t{32} << random_below(4), bytes = (count * bits_of_element(element) + 7) / 8;
  uint8_t *const dst = place(result_memory, count * bytes_of(to), at);
  const uint8_t *const packed = fill_bytes(codes_memory, bytes, at, 8);
  snprintf(context, sizeof(context), "%s -> %s, %ld elements, blocks of %ld, biases %d", name_of_element(element),
           name_of_source(to), static_cast<long>(count), static_cast<long>(block), has_biases);
  compare(
      "decode_affine", {Output(result_memory, dst, count * bytes_of(to))},
      [=](const BlockKernels &kernels) { return kernels.decode_affine[element][to]; },
      [=](auto kernel) { return kernel(packed, count, block, affine, dst), true; });
  const uint8_t *const codes = fill_bytes(codes_memory, count, at, 4);
  compare(
      "decode_affine_across", {Output(result_memory, dst, count * bytes_of(to))},
      [=](const BlockKernels &kernels) { return kernels.decode_affine_across[element][to]; },
      [=](auto kernel) { return kernel(codes, count, affine, dst), true; });
}

void test_decode_affine(int element, int to) {
  if (!is_block_integer(kTypes[kElementRows[element]])) return;
  for (int64_t count = 0; count <= 300; ++count)
    for (Place at : {kAtEnd, kAtBegin}) check_decode_affine(element, to, count, at);
  for (int round = 0; round < 50; ++round) check_decode_affine(element, to, 4000, kAtEnd);
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
  test_decode_affine(element, to);
}

// --- All of it -------------------------------------------------------------------------------

void test_all() {
  for (int rounding : {DLFP4_NEAREST_EVEN, DLFP4_NEAREST_AWAY, DLFP4_TOWARD_ZERO, DLFP4_NEAREST_ZERO, DLFP4_STOCHASTIC})
    for (int source = 0; source < kNumSources; ++source)
      for (int element = 0; element < kNumElements; ++element) test_encode({rounding, source, element});
  for (int bits : {4, 6, 8}) test_pack(bits), test_unpack(bits);
  for (int element = 0; element < kNumElements; ++element)
    for (int to = 0; to < kNumSources; ++to) test_decode(element, to);
}

}  // namespace
}  // namespace dlfp4

int main() { return dlfp4::run_at_every_level(dlfp4::test_all); }
