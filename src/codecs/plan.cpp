// Composes a conversion from the kernels of a level.
// Layout: runs of any length, cut into blocks that stay in the L1 cache where more than one kernel walks them.
#include "plan.h"

#include "host/level.h"
#include "rules/numerics.h"

namespace dlfp4 {
namespace {

constexpr int64_t kBlock = 1024;  // elements converted at a time through buffers in the L1 cache

int64_t bytes_of(Operand operand, int64_t count) {
  const int64_t bits = dlfp4_dtypes[operand.row].bits;
  return operand.packed ? count * bits / 8 : count * ((bits + 7) / 8);
}

void run_block(const Plan &plan, const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  uint8_t unpacked[kBlock];  // packed elements are smaller than a byte
  uint8_t converted[kBlock];
  if (plan.unpack) {
    plan.unpack(src, unpacked, count, mode);
    src = unpacked;
  }
  plan.convert(src, plan.pack ? converted : dst, count, mode);
  if (plan.pack) plan.pack(converted, dst, count, mode);
}

}  // namespace

void CodecKernels::add(const KernelRow *rows, int count) {
  for (int i = 0; i < count; ++i) {
    Kernel *const kernels = kernels_[index_of(rows[i].src)][index_of(rows[i].dst)];
    for (int mode = 0; mode < kNumModes; ++mode)
      if (rows[i].modes >> mode & 1) kernels[mode] = rows[i].kernel;
  }
}

bool are_convertible(Operand from, Operand to) {
  return from.row == to.row || (is_float(kTypes[from.row]) && is_float(kTypes[to.row]));
}

Plan make_plan(int level, Operand src, Operand dst, const Mode &mode) {
  const int index = mode_index(mode.rounding, mode.saturate);
  const CodecKernels &kernels = codec_kernels(level);
  Plan plan = {src, dst, kernels.find(src, dst, index), nullptr, nullptr, nullptr};
  if (plan.whole) return plan;
  const Operand plain_src = {src.row, false}, plain_dst = {dst.row, false};
  plan.convert = kernels.find(plain_src, plain_dst, index);
  if (src.packed) plan.unpack = kernels.find(src, plain_src, index);
  if (dst.packed) plan.pack = kernels.find(plain_dst, dst, index);
  return plan;
}

void run_plan(const Plan &plan, const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  if (plan.whole) return plan.whole(src, dst, count, mode);
  Mode block_mode = mode;
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t block = count - done < kBlock ? count - done : kBlock;
    block_mode.first = mode.first + static_cast<uint64_t>(done);
    run_block(plan, src + bytes_of(plan.src, done), dst + bytes_of(plan.dst, done), block, block_mode);
  }
}

void scalar_run(Operand src, Operand dst, const uint8_t *from, uint8_t *to, int64_t count, const Mode &mode) {
  run_plan(make_plan(scalar_level(), src, dst, mode), from, to, count, mode);
}

}  // namespace dlfp4
