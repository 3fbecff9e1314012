// What an x86 processor has, and what the system saves of it when threads take turns.
// Trick: the processor itself is asked, for zig's runtime answers no to every __builtin_cpu_supports.
#ifndef DLFP4_SRC_LEVELS_X86_H_
#define DLFP4_SRC_LEVELS_X86_H_

#include <cpuid.h>
#include <stdint.h>

namespace dlfp4 {
namespace x86 {

// Registers of CPUID, in the order in which they are filled.
enum Register { kEax, kEbx, kEcx, kEdx };

// One instruction set: its bit in a register of a leaf and subleaf.
struct Feature {
  unsigned leaf, subleaf;
  Register in;
  int bit;
};
constexpr Feature kFma = {1, 0, kEcx, 12}, kOsxsave = {1, 0, kEcx, 27};
constexpr Feature kAvx2 = {7, 0, kEbx, 5}, kBmi2 = {7, 0, kEbx, 8};
constexpr Feature kAvx512f = {7, 0, kEbx, 16}, kAvx512dq = {7, 0, kEbx, 17}, kAvx512bw = {7, 0, kEbx, 30},
                  kAvx512vl = {7, 0, kEbx, 31}, kAvx512vbmi = {7, 0, kEcx, 1}, kAvx512vnni = {7, 0, kEcx, 11},
                  kAvx512bf16 = {7, 1, kEax, 5};
constexpr Feature kAmxBf16 = {7, 0, kEdx, 22}, kAmxTile = {7, 0, kEdx, 24};

// Registers that the system saves, as bits of XCR0.
constexpr uint64_t kVectors = 0x6, kMasksAndWideVectors = 0xE0;

// 0 for leaves and subleaves that the processor does not have.
inline bool has(Feature feature) {
  unsigned found[4] = {}, last = feature.subleaf;
  if (feature.subleaf && !__get_cpuid_count(feature.leaf, 0, &last, &found[1], &found[2], &found[3])) return false;
  if (last < feature.subleaf) return false;
  if (!__get_cpuid_count(feature.leaf, feature.subleaf, &found[0], &found[1], &found[2], &found[3])) return false;
  return found[feature.in] >> feature.bit & 1;
}

template <class... Features>
bool has_all(Features... features) {
  return (has(features) && ...);
}

inline bool saves(uint64_t registers) {
  if (!has(kOsxsave)) return false;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return ((uint64_t{high} << 32 | low) & registers) == registers;
}

}  // namespace x86
}  // namespace dlfp4

#endif  // DLFP4_SRC_LEVELS_X86_H_
