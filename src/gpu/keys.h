// Which kernel serves: each says in its list what it is for, and hosts look for what they need.
// Layout: a key a kernel, by its number in its image.
// Trick: tables are made of the look-up while this is compiled: a call indexes one and never searches.
#ifndef DLFP4_SRC_GPU_KEYS_H_
#define DLFP4_SRC_GPU_KEYS_H_

#include <stdint.h>

#include "launch.h"
#include "rules/block_keys.h"

namespace dlfp4 {
namespace cuda {

constexpr int kByName = 0;     // the operation of a kernel that hosts need not look for
constexpr int kAnything = -1;  // a field of a key that does not matter to a kernel

// `operation` is one of the image's. `from` and `to` are what the kernel reads and writes, or both sides of a dot: rows
// of dtypes.def, of operations on bits their number, of products the WeightKind as `to`. Then how blocks are scaled, as
// BlockKey has it; of conversions `kind` is the StepLayout.
struct KernelKey {
  int operation;
  int from, to;
  int scale, kind;
  int64_t length;

  constexpr explicit KernelKey(int what = kByName, int source = kAnything, int target = kAnything,
                               int scale_row = kAnything, int scale_kind = kAnything, int64_t elements = kAnything)
      : operation(what), from(source), to(target), scale(scale_row), kind(scale_kind), length(elements) {}
};

namespace {

constexpr bool serves(int64_t field, int64_t wanted) { return field == kAnything || field == wanted; }

constexpr bool serves(const KernelKey &key, const KernelKey &wanted) {
  return key.operation == wanted.operation && serves(key.from, wanted.from) && serves(key.to, wanted.to) &&
         serves(key.scale, wanted.scale) && serves(key.kind, wanted.kind) && serves(key.length, wanted.length);
}

// The kernel of an image for a key, or kNoKernel.
template <int Count>
constexpr DeviceKernel find_in(Image image, const KernelKey (&keys)[Count], const KernelKey &wanted) {
  for (int number = 0; number < Count; ++number)
    if (serves(keys[number], wanted)) return {image, number, wanted.operation};
  return kNoKernel;
}

constexpr bool is_for(const DeviceKernel &kernel, int operation) {
  return kernel != kNoKernel && kernel.operation == operation;
}

// Whether decode_fast (blocks/cuda/scales.cuh) knows the scales.
constexpr bool is_fast_scale(const BlockKey &blocks) {
  return blocks.kind != DLFP4_TWO_LEVEL || blocks.scale == DLFP4_float8_e4m3fn;
}

// What find(i) finds.
template <int Count>
struct KernelList {
  DeviceKernel kernel[Count];

  template <class Find>
  constexpr explicit KernelList(const Find &find) : kernel() {
    for (int i = 0; i < Count; ++i) kernel[i] = find(i);
  }

  constexpr const DeviceKernel &operator[](int place) const { return kernel[place]; }
};

// What find(i, k) finds for each row and column.
template <int Rows, int Columns>
struct KernelTable {
  DeviceKernel kernel[Rows][Columns];

  template <class Find>
  constexpr explicit KernelTable(const Find &find) : kernel() {
    for (int i = 0; i < Rows; ++i)
      for (int k = 0; k < Columns; ++k) kernel[i][k] = find(i, k);
  }

  constexpr const DeviceKernel (&operator[](int row) const)[Columns] { return kernel[row]; }
};

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_KEYS_H_
