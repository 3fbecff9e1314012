// What the tests of the block-scaling kernels share: levels, memory that ends at pages that fault, odd inputs.
// Layout: runs of any length at any address, blocks of any size, tiles of any shape.
// Trick: outputs of every level are compared with the scalar one's, and with what surrounds them.
#ifndef DLFP4_TESTS_KERNELS_BLOCK_SUPPORT_H_
#define DLFP4_TESTS_KERNELS_BLOCK_SUPPORT_H_

#include <math.h>

#include "support.h"

#include "blocks/kernels.h"
#include "codecs/plan.h"
#include "host/level.h"
#include "rules/formats.h"
#include "rules/scaling.h"

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
  each_codec_level([](const char *name) { levels[num_levels++] = {name, &block_kernels(current_level())}; });
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
  const auto scalar = kernel_of(block_kernels(scalar_level()));
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

int64_t bytes_of(int source) { return kTypes[kSourceRows[source]].bits / 8; }

const char *name_of_source(int source) { return dlfp4_dtypes[kSourceRows[source]].name; }
const char *name_of_element(int element) { return dlfp4_dtypes[kElementRows[element]].name; }
int bits_of_element(int element) { return kTypes[kElementRows[element]].bits; }

// The elements of the least run of whole bytes.
int64_t group_of_bits(int bits) { return bits == 4 ? 2 : bits == 6 ? 4 : 1; }
int64_t group_of(int element) { return group_of_bits(bits_of_element(element)); }

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

int any_mantissa() {
  const int mantissas[] = {7, 10, 23};
  return mantissas[random_below(3)];
}

BlockMode some_mode(int rounding) {
  return {static_cast<dlfp4_rounding>(rounding),
          random_below(4) == 0,
          any_mantissa(),
          random_below(3) ? -0.0f : 0.0f,
          random_bits(),
          random_bits(),
          static_cast<uint64_t>(1 + random_below(100))};
}

// --- The program -----------------------------------------------------------------------------

// The tests' main: `test_all` at every level that this machine runs.
int run_at_every_level(void (*test_all)()) {
  return run([test_all] {
    collect_levels();
    test_all();
  });
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_TESTS_KERNELS_BLOCK_SUPPORT_H_
