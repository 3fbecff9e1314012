// Which kernel serves: each says in kernels.def what it is for, and hosts look for what they need.
// Layout: a key a kernel, by its number.
// Trick: tables are made of the look-up while this is compiled: a call indexes one and never searches.
#ifndef DLFP4_SRC_GPU_KEYS_H_
#define DLFP4_SRC_GPU_KEYS_H_

#include "launch.h"
#include "products/cuda/prepared.h"
#include "rules/block_keys.h"

namespace dlfp4 {
namespace cuda {

enum Operation {
  kByName,  // of a kernel that hosts need not look for
  kEncode,
  kEncodeToBits,
  kDecode,
  kRecodeBits,
  kFindLargest,
  kQuantizeAny,
  kQuantizeRows,
  kQuantizeRepeatingSquares,
  kQuantizeSquares,
  kQuantizeWhole,
  kQuantizeTile,
  kQuantizeTileOfSquares,
  kQuantizeStrip,
  kDequantizeRows,
  kDequantizeTile,
  kDequantizeAcross,
  kDotVectors,
  kDotSteps,
  kDotBlocks,
  kMultiply8,
  kMultiply16,
  kMultiply32,
  kMultiply64,
  kMultiply128,
  kMultiply256,
  kMultiplyWalking
};

constexpr int kAnything = -1;  // a field of a key that does not matter to a kernel

// `from` and `to` are what it reads and writes, or both sides of a dot: rows of dtypes.def, of operations on bits their
// number, of products the WeightKind as `to`. Then how blocks are scaled, as BlockKey has it.
struct KernelKey {
  Operation operation;
  int from, to;
  int scale, kind;
  int64_t length;

  constexpr explicit KernelKey(Operation what = kByName, int source = kAnything, int target = kAnything,
                               int scale_row = kAnything, int scale_kind = kAnything, int64_t elements = kAnything)
      : operation(what), from(source), to(target), scale(scale_row), kind(scale_kind), length(elements) {}
};

namespace {

constexpr KernelKey kKernelKeys[kNumKernels] = {
#define DLFP4_CUDA_KERNEL(name, key, parameters, body) KernelKey key,
#include "products/cuda/kernels.def"
#undef DLFP4_CUDA_KERNEL
};

constexpr bool serves(int64_t field, int64_t wanted) { return field == kAnything || field == wanted; }

constexpr bool serves(const KernelKey &key, const KernelKey &wanted) {
  return key.operation == wanted.operation && serves(key.from, wanted.from) && serves(key.to, wanted.to) &&
         serves(key.scale, wanted.scale) && serves(key.kind, wanted.kind) && serves(key.length, wanted.length);
}

// The kernel for a key, or kNoKernel.
constexpr KernelNumber find_kernel(const KernelKey &wanted) {
  for (int i = 0; i < kNumKernels; ++i)
    if (serves(kKernelKeys[i], wanted)) return static_cast<KernelNumber>(i);
  return kNoKernel;
}

constexpr bool is_for(KernelNumber kernel, Operation operation) {
  return kernel != kNoKernel && kKernelKeys[kernel].operation == operation;
}

// Whether decode_fast (scales.cuh) knows the scales.
constexpr bool is_fast_scale(const BlockKey &blocks) {
  return blocks.kind != DLFP4_TWO_LEVEL || blocks.scale == DLFP4_float8_e4m3fn;
}

// What find(i) finds.
template <int Count>
struct KernelList {
  KernelNumber kernel[Count];

  template <class Find>
  constexpr explicit KernelList(const Find &find) : kernel() {
    for (int i = 0; i < Count; ++i) kernel[i] = find(i);
  }

  constexpr KernelNumber operator[](int place) const { return kernel[place]; }
};

// What find(i, k) finds for each row and column.
template <int Rows, int Columns>
struct KernelTable {
  KernelNumber kernel[Rows][Columns];

  template <class Find>
  constexpr explicit KernelTable(const Find &find) : kernel() {
    for (int i = 0; i < Rows; ++i)
      for (int k = 0; k < Columns; ++k) kernel[i][k] = find(i, k);
  }

  constexpr const KernelNumber (&operator[](int row) const)[Columns] { return kernel[row]; }
};

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_KEYS_H_
