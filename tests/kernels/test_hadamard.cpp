// Checks the Hadamard kernels of every level against the scalar ones, bit for bit, and those against float64.
// Layout: see block_support.h; rows of any pitch across lines.
// Trick: see block_support.h.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for these
#endif

#include "block_support.h"
#include "rules/hadamard.h"

namespace dlfp4 {
namespace {

uint32_t some_rotation() { return kIsRotated | (static_cast<uint32_t>(random_bits()) & 0xFFFF); }

void name_run(const char *kernel, int source, int64_t count, int64_t pitch) {
  snprintf(context, sizeof(context), "%s, %s, %ld elements, pitch %ld", kernel, name_of_source(source),
           static_cast<long>(count), static_cast<long>(pitch));
}

float *result_floats(int64_t count, Place at) { return reinterpret_cast<float *>(place(result_memory, 4 * count, at)); }

void check_along(int source, int64_t count, Place at) {
  const uint32_t rotation = some_rotation();
  const uint8_t *const src = fill_floats(source, element_of(DLFP4_float8_e5m2), count, at);
  float *const dst = result_floats(count, at);
  name_run("along", source, count, 0);
  compare(
      "rotate", {Output(result_memory, dst, 4 * count)},
      [=](const BlockKernels &kernels) { return kernels.rotate[source]; },
      [=](auto kernel) { return kernel(src, count, rotation, dst), true; });
}

void check_along_back(int target, int64_t count, Place at) {
  const uint32_t rotation = some_rotation();
  const float *const src =
      reinterpret_cast<float *>(fill_floats(kFromFloat32, element_of(DLFP4_float8_e5m2), count, at));
  uint8_t *const dst = place(result_memory, count * bytes_of(target), at);
  name_run("along, back", target, count, 0);
  compare(
      "rotate_back", {Output(result_memory, dst, count * bytes_of(target))},
      [=](const BlockKernels &kernels) { return kernels.rotate_back[target]; },
      [=](auto kernel) { return kernel(src, count, rotation, dst), true; });
}

// The last row ends where memory does.
void check_across(int source, int64_t count, int64_t gap, Place at) {
  const uint32_t rotation = some_rotation();
  const int64_t pitch = count + gap, floats = (kRotatedLength - 1) * pitch + count;
  const uint8_t *const src = fill_floats(source, element_of(DLFP4_float8_e5m2), floats, at);
  float *const dst = result_floats(floats, at);
  name_run("across", source, count, pitch);
  compare(
      "rotate_across", {Output(result_memory, dst, 4 * floats)},
      [=](const BlockKernels &kernels) { return kernels.rotate_across[source]; },
      [=](auto kernel) { return kernel(src, pitch * bytes_of(source), count, rotation, dst, pitch), true; });
}

void check_across_back(int target, int64_t count, int64_t gap, Place at) {
  const uint32_t rotation = some_rotation();
  const int64_t pitch = count + gap, floats = (kRotatedLength - 1) * pitch + count;
  const float *const src =
      reinterpret_cast<float *>(fill_floats(kFromFloat32, element_of(DLFP4_float8_e5m2), floats, at));
  uint8_t *const dst = place(result_memory, floats * bytes_of(target), at);
  name_run("across, back", target, count, pitch);
  compare(
      "rotate_across_back", {Output(result_memory, dst, floats * bytes_of(target))},
      [=](const BlockKernels &kernels) { return kernels.rotate_across_back[target]; },
      [=](auto kernel) { return kernel(src, pitch, count, rotation, dst, pitch * bytes_of(target)), true; });
}

// Clears the highest bit of each float's exponent.
void make_small(int source, int64_t count, uint8_t *floats) {
  const int64_t bytes = bytes_of(source);
  for (int64_t i = 0; i < count; ++i) floats[(i + 1) * bytes - 1] &= 0xBF;
}

// The largest magnitudes of floats, which are all below 2 or mostly overflow.
void check_largest(int source, int64_t count, int64_t gap, bool small, Place at) {
  const uint32_t rotation = some_rotation();
  const int64_t pitch = count + gap, floats = (kRotatedLength - 1) * pitch + count;
  const int64_t along = count / kRotatedLength * kRotatedLength;
  uint8_t *const src = fill_floats(source, element_of(DLFP4_float8_e5m2), floats, at);
  if (small) make_small(source, floats, src);
  uint32_t *const dst = reinterpret_cast<uint32_t *>(place(result_memory, 4, at));
  name_run(small ? "largest, small" : "largest", source, count, pitch);
  compare(
      "largest_rotated", {Output(result_memory, dst, 4)},
      [=](const BlockKernels &kernels) { return kernels.largest_rotated[source]; },
      [=](auto kernel) { return *dst = kernel(src, along, rotation), true; });
  compare(
      "largest_rotated_across", {Output(result_memory, dst, 4)},
      [=](const BlockKernels &kernels) { return kernels.largest_rotated_across[source]; },
      [=](auto kernel) { return *dst = kernel(src, pitch * bytes_of(source), count, rotation), true; });
}

// Of whole numbers up to 2^19 all sums are exact.
void test_rule() {
  for (int round = 0; round < 200; ++round) {
    const uint32_t rotation = some_rotation();
    float values[kRotatedLength], given[kRotatedLength];
    for (float &value : given) value = static_cast<float>(random_below(1 << 20) - (1 << 19));
    memcpy(values, given, sizeof(values));
    rotate(values, rotation);
    bool good = true;
    for (int k = 0; k < kRotatedLength; ++k) {
      double sum = 0;
      for (int i = 0; i < kRotatedLength; ++i) {
        const bool negative = (__builtin_popcount(static_cast<unsigned>(i & k)) + (rotation >> i & 1)) % 2 != 0;
        sum += (negative ? -1 : 1) * static_cast<double>(given[i]);
      }
      good &= static_cast<double>(values[k]) == sum / 4;
    }
    check(good, "rotate", "is not x diag(signs) H16 / 4");
    rotate_back(values, rotation);
    check(memcmp(values, given, sizeof(values)) == 0, "rotate_back", "is not the inverse");
  }
}

void test_all() {
  test_rule();
  for (int source = 0; source < kNumSources; ++source) {
    for (Place at : {kAtEnd, kAtBegin}) {
      for (int64_t count = 0; count <= 320; count += kRotatedLength)
        check_along(source, count, at), check_along_back(source, count, at);
      for (int64_t count = 0; count <= 150; ++count)
        check_across(source, count, random_below(20), at), check_across_back(source, count, random_below(20), at);
      for (int64_t count = 0; count <= 150; ++count)
        for (bool small : {false, true}) check_largest(source, count, random_below(20), small, at);
    }
  }
}

}  // namespace
}  // namespace dlfp4

int main() { return dlfp4::run_at_every_level(dlfp4::test_all); }
