// Four over six for all vectors: how far FP4 is from blocks with their largest element on 6 and on 4.
// Layout: a block, or a line, a lane; a block's sixteen elements come one after the other.
// Trick: blocks are transposed in registers, so that every lane adds up its own errors in their order.
#ifndef DLFP4_SRC_BLOCKS_VECTOR_ERRORS_H_
#define DLFP4_SRC_BLOCKS_VECTOR_ERRORS_H_

#include <utility>

#include "host/simd/lanes.h"
#include "kernels.h"
#include "rules/encode_rule.h"
#include "rules/scaling.h"

namespace dlfp4 {
namespace {

// --- Transposing -----------------------------------------------------------------------------

// Lane I of two vectors of N lanes, of which the pairs that differ in one bit of a row's and a lane's number change
// places.
constexpr int low_lane(int i, int bit, int lanes) { return i & bit ? lanes + i - bit : i; }
constexpr int high_lane(int i, int bit, int lanes) { return i & bit ? lanes + i : i + bit; }

template <int Bit, class V, int... I>
DLFP4_ALWAYS_INLINE inline void exchange(V *low, V *high, std::integer_sequence<int, I...>) {
  constexpr int kLanes = sizeof...(I);
  const V a = *low, b = *high;
  *low = __builtin_shufflevector(a, b, low_lane(I, Bit, kLanes)...);
  *high = __builtin_shufflevector(a, b, high_lane(I, Bit, kLanes)...);
}

// As many vectors as each has lanes.
template <int Bit, class V>
DLFP4_ALWAYS_INLINE inline void transpose(V *rows) {
  constexpr int kLanes = sizeof(V) / 4;
  if constexpr (Bit < kLanes) {
    for (int i = 0; i < kLanes; ++i)
      if (!(i & Bit)) exchange<Bit>(rows + i, rows + i + Bit, std::make_integer_sequence<int, kLanes>());
    transpose<2 * Bit>(rows);
  }
}

// --- Errors ----------------------------------------------------------------------------------

template <class Isa, int Src>
struct Errors {
  using U32 = typename Isa::U32;
  using F32 = typename Isa::F32;
  static constexpr int kLanes = sizeof(F32) / 4, kBytes = kTypes[Src].bits / 8;
  static constexpr int kVectors = kErrorBlock / kLanes;  // of a block

  static F32 magnitude(F32 values) { return reinterpret_cast<F32>(reinterpret_cast<U32>(values) & ~kFloatSign); }

  // One candidate of each lane.
  struct Candidate {
    F32 multiplier, scale, sum;

    Candidate(const ErrorParams &both, int number, int64_t first, F32 before)
        : multiplier(load_lanes<F32>(both.multipliers[number] + first)),
          scale(load_lanes<F32>(both.scales[number] + first)),
          sum(before) {}

    // FP4's values lie a half apart, from 2 on a power of two: adding a power of two rounds to them. As `error_of`, of
    // values without their signs.
    template <bool kSquares>
    DLFP4_ALWAYS_INLINE void add(F32 values, F32 amax, F32 reach) {
      const F32 product = smaller<F32>(values * multiplier, splat<F32>(6.0f));
      const U32 power = larger<U32>(reinterpret_cast<U32>(product) & kFloatInfinity, splat<U32>(127u << 23));
      const F32 addend = reinterpret_cast<F32>(power + (22u << 23));
      const F32 element = (product + addend) - addend;
      const F32 error = element * scale * amax / reach - values;
      sum += kSquares ? error * error : magnitude(error);
    }
  };

  // Of whole vectors of lanes; values_of(k) are element k of each.
  template <bool kSquares, class ValuesOf>
  DLFP4_ALWAYS_INLINE static void add_lanes(int64_t first, int elements, const ErrorParams &both, float *sixes,
                                            float *fours, const ValuesOf &values_of) {
    const F32 amax = splat<F32>(both.rule->amax), reach = splat<F32>(both.rule->reach), none = {};
    Candidate six(both, 0, first, none), four(both, 1, first, none);
    for (int k = 0; k < elements; ++k) {
      const F32 values = magnitude(values_of(k));
      six.template add<kSquares>(values, amax, reach);
      four.template add<kSquares>(values, amax, reach);
    }
    store_lanes(sixes + first, load_lanes<F32>(sixes + first) + six.sum);
    store_lanes(fours + first, load_lanes<F32>(fours + first) + four.sum);
  }

  // A vector of blocks as its elements' vectors.
  struct Transposed {
    F32 rows[kVectors][kLanes];

    explicit Transposed(const uint8_t *src) {
      constexpr int kBlocks = Isa::kCodes / kErrorBlock;  // of a step
      for (int b = 0; b < kLanes; b += kBlocks) {
        const auto floats = Isa::template load_floats<Src>(src + b * kErrorBlock * kBytes);
        for (int i = 0; i < 4; ++i) rows[i % kVectors][b + i / kVectors] = reinterpret_cast<F32>(floats.part[i]);
      }
      for (int i = 0; i < kVectors; ++i) transpose<1>(rows[i]);
    }
    F32 operator()(int k) const { return rows[k / kLanes][k % kLanes]; }
  };

  template <bool kSquares>
  static void sum_all(const uint8_t *src, int64_t blocks, const ErrorParams &both, float *sixes, float *fours) {
    for (int64_t b = 0; b < blocks; b += kLanes) {
      const Transposed values(src + b * kErrorBlock * kBytes);
      add_lanes<kSquares>(b, kErrorBlock, both, sixes, fours, values);
    }
  }

  template <bool kSquares>
  static void add_all(const uint8_t *src, int64_t count, const ErrorParams &both, float *sixes, float *fours) {
    for (int64_t i = 0; i < count; i += Isa::kCodes) {
      const auto floats = Isa::template load_floats<Src>(src + i * kBytes);
      for (int part = 0; part < 4; ++part)
        add_lanes<kSquares>(i + part * kLanes, 1, both, sixes, fours,
                            [&](int) { return reinterpret_cast<F32>(floats.part[part]); });
    }
  }

  // The last blocks or elements, in memory of their own, of `Size` lanes.
  template <int Size, class Run>
  static void finish(const uint8_t *src, int64_t bytes, int64_t first, int64_t count, const ErrorParams &both,
                     float *sixes, float *fours, Run run) {
    alignas(64) uint8_t values[Size * kErrorBlock * kBytes] = {};
    alignas(64) float numbers[6][Size] = {};
    const size_t size = static_cast<size_t>(count) * sizeof(float);
    memcpy(values, src, static_cast<size_t>(bytes));
    for (int c = 0; c < 2; ++c) memcpy(numbers[c], both.multipliers[c] + first, size);
    for (int c = 0; c < 2; ++c) memcpy(numbers[2 + c], both.scales[c] + first, size);
    memcpy(numbers[4], sixes + first, size);
    memcpy(numbers[5], fours + first, size);
    run(values, int64_t{Size}, ErrorParams{both.rule, {numbers[0], numbers[1]}, {numbers[2], numbers[3]}}, numbers[4],
        numbers[5]);
    memcpy(sixes + first, numbers[4], size);
    memcpy(fours + first, numbers[5], size);
  }

  static bool squares(const ErrorParams &both) { return both.rule->chooses == DLFP4_MEAN_SQUARED; }

  static void sum(const uint8_t *src, int64_t blocks, const ErrorParams &both, float *sixes, float *fours) {
    const auto run = squares(both) ? sum_all<true> : sum_all<false>;
    const int64_t whole = blocks / kLanes * kLanes, rest = blocks - whole;
    constexpr int64_t kBlockBytes = kErrorBlock * kBytes;
    run(src, whole, both, sixes, fours);
    if (rest > 0) finish<kLanes>(src + whole * kBlockBytes, rest * kBlockBytes, whole, rest, both, sixes, fours, run);
  }

  static void add(const uint8_t *src, int64_t count, const ErrorParams &both, float *sixes, float *fours) {
    const auto run = squares(both) ? add_all<true> : add_all<false>;
    const int64_t whole = count / Isa::kCodes * Isa::kCodes, rest = count - whole;
    run(src, whole, both, sixes, fours);
    if (rest > 0) finish<Isa::kCodes>(src + whole * kBytes, rest * kBytes, whole, rest, both, sixes, fours, run);
  }
};

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_VECTOR_ERRORS_H_
