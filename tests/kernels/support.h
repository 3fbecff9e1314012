// What the kernel tests share: guarded memory, an independent walk over elements, odd inputs.
// Layout: any view; what is no whole bytes is read and written a bit at a time, by the plainest code there is.
// Trick: memory ends at a page that faults, so one byte read or written too far ends the program.
#ifndef DLFP4_TESTS_KERNELS_SUPPORT_H_
#define DLFP4_TESTS_KERNELS_SUPPORT_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#undef near  // two words that it takes away
#undef far
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <initializer_list>

#include "dlfp4/dlfp4.h"
#include "rules/numerics.h"
#include "rules/operations.h"

namespace dlfp4 {
namespace {

// --- Reporting -------------------------------------------------------------------------------

long checks = 0, failures = 0;

void check(bool good, const char *what, const char *detail) {
  ++checks;
  if (good) return;
  if (++failures <= 20) printf("FAIL %s: %s\n", what, detail);
}

// What a program ends with: says how it went, and returns its exit status.
int report() {
  printf("%ld checks, %ld failures\n", checks, failures);
  return failures != 0;
}

// The main of tests that run at levels of instruction sets.
template <class Tests>
int run(Tests tests) {
  if (!dlfp4_isa()) {
    printf("DLFP4_ISA names a level that is not there\n");
    return 2;
  }
  tests();
  return report();
}

// --- Random numbers --------------------------------------------------------------------------

uint64_t random_state = 0x5EED;

uint64_t random_bits() {  // splitmix64
  uint64_t z = random_state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

int64_t random_below(int64_t bound) { return static_cast<int64_t>(random_bits() % static_cast<uint64_t>(bound)); }

// --- Memory between two pages that fault -----------------------------------------------------

struct Guarded {
  static constexpr int64_t kBytes = 4 << 20;
  int64_t page;
  uint8_t *begin;
  uint8_t *end;

  Guarded(const Guarded &) = delete;
#ifdef _WIN32
  Guarded() : page(1 << 16) {
    void *reserved = VirtualAlloc(nullptr, kBytes + 2 * page, MEM_RESERVE, PAGE_NOACCESS);
    begin = static_cast<uint8_t *>(reserved) + page;
    end = begin + kBytes;
    if (!reserved || !VirtualAlloc(begin, kBytes, MEM_COMMIT, PAGE_READWRITE)) _exit(3);
  }
  ~Guarded() { VirtualFree(begin - page, 0, MEM_RELEASE); }
#else
  Guarded() : page(sysconf(_SC_PAGESIZE)) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *mapped = mmap(nullptr, kBytes + 2 * page, PROT_NONE, flags, -1, 0);
    begin = static_cast<uint8_t *>(mapped) + page;
    end = begin + kBytes;
    if (mapped == MAP_FAILED || mprotect(begin, kBytes, PROT_READ | PROT_WRITE)) _exit(3);
  }
  ~Guarded() { munmap(begin - page, kBytes + 2 * page); }
#endif
};

// --- Types -----------------------------------------------------------------------------------

enum { kSrcSide, kDstSide };

struct Type {
  int row;
  bool packed;
};

inline const char *name_of(Type type) { return dlfp4_dtypes[type.row].name; }

bool is_sub_byte(int row) { return kTypes[row].bits < 8; }

int64_t spacing_in_bits(Type type) {
  const int bits = kTypes[type.row].bits;
  return type.packed || bits > 8 ? bits : 8;
}

int64_t bytes_for(Type type, int64_t count) { return (count * spacing_in_bits(type) + 7) / 8; }

inline dlfp4_view view_of(Type type, void *data, int ndim, const int64_t *shape, const int64_t *strides) {
  const dlfp4_dtype_row &row = dlfp4_dtypes[type.row];
  const uint8_t padded = row.bits < 8 && !type.packed;
  return {data, shape, strides, ndim, row.code, row.bits, padded, 0};
}

inline bool convertible(Type src, Type dst) {
  return src.row == dst.row || (is_float(kTypes[src.row]) && is_float(kTypes[dst.row]));
}

template <class Body>
void each_pair(Body body) {
  for (int src = 0; src < DLFP4_NUM_DTYPES; ++src)
    for (int dst = 0; dst < DLFP4_NUM_DTYPES; ++dst)
      for (int packing = 0; packing < 4; ++packing) {
        const Type from = {src, (packing & 1) != 0}, to = {dst, (packing & 2) != 0};
        if (from.packed && !is_sub_byte(src)) continue;
        if (to.packed && !is_sub_byte(dst)) continue;
        if (convertible(from, to)) body(from, to);
      }
}

template <class Body>
void each_level(Body body) {
  for (int number = 0; const char *name = dlfp4_isa_numbered(number); ++number)
    if (dlfp4_set_isa(name) == DLFP4_OK) body(name);
  dlfp4_set_isa(nullptr);
}

// Levels that have products alone take codecs and block scaling from the one below.
template <class Body>
void each_codec_level(Body body) {
  each_level([&](const char *name) {
    if (strcmp(name, "amx") != 0 && strcmp(name, "avx512_bf16") != 0) body(name);
  });
}

// --- The reference ---------------------------------------------------------------------------

struct Code {
  uint8_t byte[16];
};

inline Code get_element(Type type, const uint8_t *data, int64_t offset) {
  Code code = {};
  const int bits = kTypes[type.row].bits;
  const int64_t first = offset * spacing_in_bits(type);
  if (bits % 8 == 0) {
    memcpy(code.byte, data + first / 8, static_cast<size_t>(bits / 8));
    return code;
  }
  for (int bit = 0; bit < bits; ++bit) {
    const int64_t at = first + bit;
    code.byte[bit / 8] |= (data[at >> 3] >> (at & 7) & 1) << bit % 8;
  }
  return code;
}

void put_element(Type type, uint8_t *data, int64_t offset, Code code) {
  const int64_t spacing = spacing_in_bits(type), first = offset * spacing;
  if (spacing % 8 == 0) {
    memcpy(data + first / 8, code.byte, static_cast<size_t>(spacing / 8));
    return;
  }
  for (int bit = 0; bit < spacing; ++bit) {
    const int64_t at = first + bit;
    const uint8_t mask = static_cast<uint8_t>(1 << (at & 7));
    const bool set = code.byte[bit / 8] >> bit % 8 & 1;
    data[at >> 3] = static_cast<uint8_t>(set ? data[at >> 3] | mask : data[at >> 3] & ~mask);
  }
}

inline Code reference(Type src, Type dst, Code code, const dlfp4_convert_options &options, uint64_t index) {
  if (src.row == dst.row) return code;
  uint64_t bits;
  memcpy(&bits, code.byte, sizeof(bits));
  const Round round = {options.rounding, options.saturate != 0};
  bits = convert(kTypes[src.row], kTypes[dst.row], bits, round, draw_of(options.seed, index));
  Code result = {};
  memcpy(result.byte, &bits, sizeof(bits));
  return result;
}

// --- Inputs ----------------------------------------------------------------------------------

double value_of_code(int row, uint64_t code) {
  const Round round = {DLFP4_NEAREST_EVEN, false};
  const uint64_t bits = convert(kTypes[row], kTypes[DLFP4_float64], code, round, {0, 0, 0});
  double value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

uint64_t code_of_value(int row, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return convert(kTypes[DLFP4_float64], kTypes[row], bits, {DLFP4_TOWARD_ZERO, false}, {0, 0, 0});
}

// A code of `src` at, or next to, a value of `dst` or the midpoint of two.
uint64_t near_boundary(int src, int dst) {
  const uint64_t magnitudes = low_bits(kTypes[dst].bits - (kTypes[dst].specials != DLFP4_E8M0));
  const uint64_t code = random_bits() & magnitudes;
  const double low = value_of_code(dst, code);
  const double high = value_of_code(dst, code < magnitudes ? code + 1 : code);
  const double point = random_bits() & 1 ? low : low + (high - low) / 2;
  const double signed_point = random_bits() & 1 ? point : -point;
  return code_of_value(src, signed_point) + static_cast<uint64_t>(random_below(3) - 1);
}

uint64_t special_code(int row) {
  const ElementType f = kTypes[row];
  const uint64_t specials[] = {0,
                               1,
                               infinity_code(f) - 1,
                               infinity_code(f),
                               infinity_code(f) + 1,
                               low_bits(magnitude_bits(f)),
                               infinity_code(f) | low_bits(f.mantissa) / 2,
                               uint64_t{1} << f.mantissa};
  return specials[random_below(8)] | sign_bit(f, random_bits() & 1);
}

Code random_code(int src, int dst) {
  Code code;
  const uint64_t noise[2] = {random_bits(), random_bits()};
  memcpy(code.byte, noise, sizeof(noise));
  if (!is_float(kTypes[src]) || random_below(4) == 0) return code;
  const uint64_t bits = random_below(4) == 0 || src == dst ? special_code(src) : near_boundary(src, dst);
  memcpy(code.byte, &bits, sizeof(bits));
  return code;
}

// Fills whole bytes, so that spare and padding bits hold noise.
inline void fill(Type src, int dst, uint8_t *data, int64_t count) {
  const int64_t bytes = bytes_for(src, count);
  for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(random_bits());
  if (is_sub_byte(src.row)) return;
  for (int64_t i = 0; i < count; ++i) put_element(src, data, i, random_code(src.row, dst));
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_TESTS_KERNELS_SUPPORT_H_
