// The Hadamard transform of sixteen neighbours along or across lines, for all vectors; rules/hadamard.h has the rule.
// Layout: along lines a sixteen is one vector, two or four; across lines it is sixteen rows of vectors.
// Trick: a step within a vector multiplies it with 1 or -1, which is exact, and adds itself with lanes exchanged.
#ifndef DLFP4_SRC_BLOCKS_VECTOR_HADAMARD_H_
#define DLFP4_SRC_BLOCKS_VECTOR_HADAMARD_H_

#include <utility>

#include "host/simd/lanes.h"
#include "kernels.h"
#include "rules/hadamard.h"
#include "vector_floats.h"

namespace dlfp4 {
namespace {

// Isa::multiply_add(a, b, c) is a * b + c, rounded once or twice. Isa::has_nan looks at a step's four vectors.
template <class Isa>
struct Hadamard {
  using F32 = typename Isa::F32;
  using U32 = typename Isa::U32;
  static constexpr int kLanes = sizeof(F32) / 4, kVectors = kRotatedLength / kLanes;
  static constexpr int64_t kCodes = Isa::kCodes;

  static F32 flip(F32 floats, U32 signs) { return reinterpret_cast<F32>(reinterpret_cast<U32>(floats) ^ signs); }

  using Floats = decltype(Isa::template load_floats<DLFP4_float32>(nullptr));

  static void clear_nans(Floats *floats) {
    if (__builtin_expect(!Isa::has_nan(*floats), 1)) return;
    for (int i = 0; i < 4; ++i) floats->part[i] = Isa::replace_nans(floats->part[i], float_of(kFloatNan));
  }

  // --- A sixteen along a line ----------------------------------------------------------------

  template <int Step, int... Lane>
  static F32 step_within(F32 v, std::integer_sequence<int, Lane...>) {
    const F32 signs = {(Lane & Step ? -1.0f : 1.0f)...};
    return Isa::multiply_add(v, signs, __builtin_shufflevector(v, v, (Lane ^ Step)...));
  }

  template <int Step>
  static void step(F32 *v) {
    if constexpr (Step < kLanes) {
      for (int i = 0; i < kVectors; ++i) v[i] = step_within<Step>(v[i], std::make_integer_sequence<int, kLanes>());
    } else {
      butterfly<Step / kLanes, kVectors>(v);
    }
  }

  static void transform(F32 *v) {
    step<1>(v);
    step<2>(v);
    step<4>(v);
    step<8>(v);
  }

  // --- The largest magnitude of what is rotated ----------------------------------------------

  // The last step's sum and difference have the sum of the magnitudes as the larger one of theirs.
  static U32 largest_of_last(F32 low, F32 high) { return reinterpret_cast<U32>(magnitude(low) + magnitude(high)); }
  static F32 magnitude(F32 values) { return reinterpret_cast<F32>(reinterpret_cast<U32>(values) & ~kFloatSign); }

  template <int... Lane>
  static U32 largest_of_two(F32 a, F32 b, std::integer_sequence<int, Lane...>) {
    constexpr int kHalf = sizeof...(Lane);
    return largest_of_last(__builtin_shufflevector(a, b, Lane..., (kLanes + Lane)...),
                           __builtin_shufflevector(a, b, (kHalf + Lane)..., (kLanes + kHalf + Lane)...));
  }

  // Of a step's four vectors, which are whole sixteens.
  static U32 largest_of_step(F32 *v) {
    for (int i = 0; i < 4; i += kVectors) step<1>(v + i), step<2>(v + i), step<4>(v + i);
    U32 largest = {};
    if constexpr (kVectors == 1) {
      for (int i = 0; i < 4; i += 2)
        largest = larger(largest, largest_of_two(v[i], v[i + 1], std::make_integer_sequence<int, kLanes / 2>()));
    } else {
      constexpr int kHalf = kVectors / 2;
      for (int i = 0; i < 4; ++i)
        if (!(i & kHalf)) largest = larger(largest, largest_of_last(v[i], v[i + kHalf]));
    }
    return largest;
  }

  static uint32_t largest_lane(U32 lanes) {
    uint32_t largest = 0;
    for (int i = 0; i < kLanes; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
    return largest < kFloatInfinity ? largest : kFloatInfinity;
  }
};

// --- Along lines -----------------------------------------------------------------------------

constexpr int kRotatedAhead = 4096;  // elements to prefetch: two runs of quantize.cpp

// Whole steps of floats, of which Isa::load_floats<Src> is as in codecs/vector.h.
template <class Isa, int Src>
__attribute__((noinline)) void rotate_steps(const uint8_t *src, int64_t count, uint32_t rotation, uint8_t *dst) {
  using Of = Hadamard<Isa>;
  constexpr int kBytes = kTypes[Src].bits / 8;
  alignas(64) float quarters[kRotatedLength];
  for (int i = 0; i < kRotatedLength; ++i) quarters[i] = signed_quarter(rotation, i);
  for (int64_t first = 0; first < count; first += Isa::kCodes) {
    Isa::template prefetch<Isa::kCodes * kBytes, kRotatedAhead * kBytes>(src + first * kBytes);
    auto floats = Isa::template load_floats<Src>(src + first * kBytes);
    for (int i = 0; i < 4; ++i)
      floats.part[i] = floats.part[i] * load_lanes<typename Of::F32>(quarters + i % Of::kVectors * Of::kLanes);
    for (int i = 0; i < 4; i += Of::kVectors) Of::transform(floats.part + i);
    Of::clear_nans(&floats);
    store_floats<Isa, DLFP4_float32>(dst + first * 4, floats);
  }
}

template <class Isa, int Dst>
__attribute__((noinline)) void rotate_steps_back(const uint8_t *src, int64_t count, uint32_t rotation, uint8_t *dst) {
  using Of = Hadamard<Isa>;
  alignas(64) uint32_t signs[kRotatedLength];
  for (int i = 0; i < kRotatedLength; ++i) signs[i] = (rotation >> i & 1) << 31;
  for (int64_t first = 0; first < count; first += Isa::kCodes) {
    auto floats = Isa::template load_floats<DLFP4_float32>(src + first * 4);
    for (int i = 0; i < 4; ++i) floats.part[i] = floats.part[i] * 0.25f;
    for (int i = 0; i < 4; i += Of::kVectors) Of::transform(floats.part + i);
    for (int i = 0; i < 4; ++i)
      floats.part[i] = Of::flip(floats.part[i], load_lanes<typename Of::U32>(signs + i % Of::kVectors * Of::kLanes));
    Of::clear_nans(&floats);
    store_floats<Isa, Dst>(dst + first * (kTypes[Dst].bits / 8), floats);
  }
}

template <class Isa, int Src>
__attribute__((noinline)) typename Isa::U32 largest_of_steps(const uint8_t *src, int64_t count, uint32_t rotation) {
  using Of = Hadamard<Isa>;
  constexpr int kBytes = kTypes[Src].bits / 8;
  alignas(64) float quarters[kRotatedLength];
  for (int i = 0; i < kRotatedLength; ++i) quarters[i] = signed_quarter(rotation, i);
  typename Isa::U32 largest = {};
  for (int64_t first = 0; first < count; first += Isa::kCodes) {
    Isa::template prefetch<Isa::kCodes * kBytes, kRotatedAhead * kBytes>(src + first * kBytes);
    auto floats = Isa::template load_floats<Src>(src + first * kBytes);
    for (int i = 0; i < 4; ++i)
      floats.part[i] = floats.part[i] * load_lanes<typename Of::F32>(quarters + i % Of::kVectors * Of::kLanes);
    largest = larger(largest, Of::largest_of_step(floats.part));
  }
  return largest;
}

template <class Isa, int Src>
uint32_t largest_of_rotated_line(const uint8_t *src, int64_t count, uint32_t rotation) {
  constexpr int64_t kCodes = Isa::kCodes, kBytes = kTypes[Src].bits / 8;
  const int64_t whole = count / kCodes * kCodes;
  auto largest = largest_of_steps<Isa, Src>(src, whole, rotation);
  if (whole < count) {
    StepMemory<kCodes, kTypes[Src].bits> rest = {};
    Isa::read_part(rest.byte, src + whole * kBytes, (count - whole) * kBytes);
    largest = larger(largest, largest_of_steps<Isa, Src>(rest.byte, kCodes, rotation));
  }
  return Hadamard<Isa>::largest_lane(largest);
}

// Calls run(src, count, dst) for whole steps, and for the rest in memory of its own.
template <class Isa, int SrcBits, int DstBits, class Run>
void in_sixteens(const uint8_t *src, int64_t count, uint8_t *dst, Run run) {
  constexpr int64_t kCodes = Isa::kCodes;
  const int64_t whole = count / kCodes * kCodes, rest = count - whole;
  run(src, whole, dst);
  if (rest == 0) return;
  StepMemory<kCodes, SrcBits> from = {};
  StepMemory<kCodes, DstBits> to;
  Isa::read_part(from.byte, src + whole * SrcBits / 8, rest * SrcBits / 8);
  run(from.byte, kCodes, to.byte);
  Isa::write_part(dst + whole * DstBits / 8, to.byte, rest * DstBits / 8);
}

template <class Isa, int Src>
void rotate_line(const uint8_t *src, int64_t count, uint32_t rotation, float *dst) {
  in_sixteens<Isa, kTypes[Src].bits, 32>(src, count, reinterpret_cast<uint8_t *>(dst),
                                         [=](const uint8_t *from, int64_t elements, uint8_t *to) {
                                           rotate_steps<Isa, Src>(from, elements, rotation, to);
                                         });
}

template <class Isa, int Dst>
void rotate_line_back(const float *src, int64_t count, uint32_t rotation, uint8_t *dst) {
  in_sixteens<Isa, 32, kTypes[Dst].bits>(reinterpret_cast<const uint8_t *>(src), count, dst,
                                         [=](const uint8_t *from, int64_t elements, uint8_t *to) {
                                           rotate_steps_back<Isa, Dst>(from, elements, rotation, to);
                                         });
}

// --- Across lines ----------------------------------------------------------------------------

// Sixteen rows of one step each.
template <class Isa>
struct RowsOfSteps {
  typename Isa::F32 part[4][kRotatedLength];
};

template <class Isa, int Src>
void load_rows(const uint8_t *src, int64_t stride, int64_t count, RowsOfSteps<Isa> *rows) {
  for (int k = 0; k < kRotatedLength; ++k) {
    StepMemory<Isa::kCodes, kTypes[Src].bits> part = {};
    const uint8_t *from = src + k * stride;
    if (count < Isa::kCodes) {
      Isa::read_part(part.byte, from, count * kTypes[Src].bits / 8);
      from = part.byte;
    }
    const auto floats = Isa::template load_floats<Src>(from);
    for (int i = 0; i < 4; ++i) rows->part[i][k] = floats.part[i];
  }
}

// NaNs get their one pattern.
template <class Isa, int Dst>
void store_rows(const RowsOfSteps<Isa> &rows, uint8_t *dst, int64_t stride, int64_t count) {
  for (int k = 0; k < kRotatedLength; ++k) {
    StepMemory<Isa::kCodes, kTypes[Dst].bits> part;
    uint8_t *const to = dst + k * stride;
    typename Hadamard<Isa>::Floats floats;
    for (int i = 0; i < 4; ++i) floats.part[i] = rows.part[i][k];
    Hadamard<Isa>::clear_nans(&floats);
    store_floats<Isa, Dst>(count < Isa::kCodes ? part.byte : to, floats);
    if (count < Isa::kCodes) Isa::write_part(to, part.byte, count * kTypes[Dst].bits / 8);
  }
}

template <class Isa, int Src>
__attribute__((noinline)) void rotate_rows(const uint8_t *src, int64_t stride, int64_t count, uint32_t rotation,
                                           float *dst, int64_t pitch) {
  RowsOfSteps<Isa> rows;
  for (int64_t first = 0; first < count; first += Isa::kCodes) {
    load_rows<Isa, Src>(src + first * (kTypes[Src].bits / 8), stride, count - first, &rows);
    for (auto &part : rows.part) rotate_but_nans(part, rotation);
    store_rows<Isa, DLFP4_float32>(rows, reinterpret_cast<uint8_t *>(dst + first), 4 * pitch, count - first);
  }
}

template <class Isa, int Src>
__attribute__((noinline)) uint32_t largest_of_rotated_rows(const uint8_t *src, int64_t stride, int64_t count,
                                                           uint32_t rotation) {
  using Of = Hadamard<Isa>;
  RowsOfSteps<Isa> rows;
  typename Isa::U32 largest = {};
  for (int64_t first = 0; first < count; first += Isa::kCodes) {
    load_rows<Isa, Src>(src + first * (kTypes[Src].bits / 8), stride, count - first, &rows);
    for (auto &part : rows.part) {
      for (int k = 0; k < kRotatedLength; ++k) part[k] = part[k] * signed_quarter(rotation, k);
      butterfly<1>(part);
      butterfly<2>(part);
      butterfly<4>(part);
      for (int k = 0; k < 8; ++k) largest = larger(largest, Of::largest_of_last(part[k], part[k + 8]));
    }
  }
  return Of::largest_lane(largest);
}

template <class Isa, int Dst>
__attribute__((noinline)) void rotate_rows_back(const float *src, int64_t pitch, int64_t count, uint32_t rotation,
                                                uint8_t *dst, int64_t stride) {
  RowsOfSteps<Isa> rows;
  for (int64_t first = 0; first < count; first += Isa::kCodes) {
    load_rows<Isa, DLFP4_float32>(reinterpret_cast<const uint8_t *>(src + first), 4 * pitch, count - first, &rows);
    for (auto &part : rows.part) {
      for (int k = 0; k < kRotatedLength; ++k) part[k] = part[k] * 0.25f;
      butterflies(part);
      for (int k = 0; k < kRotatedLength; ++k) part[k] = rotation >> k & 1 ? -part[k] : part[k];
    }
    store_rows<Isa, Dst>(rows, dst + first * (kTypes[Dst].bits / 8), stride, count - first);
  }
}

template <class Isa, int From>
void add_rotations(BlockKernels *kernels) {
  constexpr int kRow = kSourceRows[From];
  kernels->rotate[From] = rotate_line<Isa, kRow>;
  kernels->rotate_back[From] = rotate_line_back<Isa, kRow>;
  kernels->largest_rotated[From] = largest_of_rotated_line<Isa, kRow>;
  kernels->largest_rotated_across[From] = largest_of_rotated_rows<Isa, kRow>;
  kernels->rotate_across[From] = rotate_rows<Isa, kRow>;
  kernels->rotate_across_back[From] = rotate_rows_back<Isa, kRow>;
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_VECTOR_HADAMARD_H_
