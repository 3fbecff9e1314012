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

// So many vectors, each as that many lanes, or as several times that many, which are transposed apart.
template <int Count, int Bit = 1, class V>
DLFP4_ALWAYS_INLINE inline void transpose(V *rows) {
  if constexpr (Bit < Count) {
    for (int i = 0; i < Count; ++i)
      if (!(i & Bit)) exchange<Bit>(rows + i, rows + i + Bit, std::make_integer_sequence<int, sizeof(V) / 4>());
    transpose<Count, 2 * Bit>(rows);
  }
}

struct TableOfEight {
  alignas(32) float numbers[8];
};

// --- Errors ----------------------------------------------------------------------------------

// Isa::choose_by_half(values, of_halves, of_others) takes of_halves in lanes whose value is from 1.5 times a power of
// two to twice it. Isa::look_up(dwords, table) takes the numbers of a table of eight by the lowest bits of dwords.
template <class Isa, int Src>
struct Errors {
  using U32 = typename Isa::U32;
  using F32 = typename Isa::F32;
  static constexpr int kLanes = sizeof(F32) / 4, kBytes = kTypes[Src].bits / 8;
  static constexpr int kVectors = kErrorBlock / kLanes;  // of a block

  static F32 magnitude(F32 values) { return reinterpret_cast<F32>(reinterpret_cast<U32>(values) & ~kFloatSign); }

  // One candidate of each lane.
  template <bool kSquares, bool kUsual>
  struct Candidate {
    static constexpr uint32_t kSix = 129u << 23 | 1u << 22;
    // FP4's values lie a half apart, from 2 on a power of two: adding these rounds to them. By the last bits of a
    // value's exponent, which has 127 for 1; values whose exponents are far below, and share these bits, become zero.
    static constexpr float kAddend = 1 << 22;
    static constexpr TableOfEight kAddends = {
        {2 * kAddend, 4 * kAddend, kAddend, kAddend, kAddend, kAddend, kAddend, kAddend}};
    F32 multiplier, scale, one, one_and_half, amax, reach;
    F32 sum = {};

    Candidate(const ErrorParams &both, int number, int64_t first)
        : multiplier(load_lanes<F32>(both.multipliers[number] + first)),
          scale(load_lanes<F32>(both.scales[number] + first)),
          amax(splat<F32>(both.rule->amax)),
          reach(splat<F32>(both.rule->reach)) {
      one = scale * amax / reach;
      one_and_half = 1.5f * scale * amax / reach * (1 / kAddend);
    }

    // Of an element that adding `addend` made: 1.5 times a power of two, or none.
    DLFP4_ALWAYS_INLINE F32 worth(F32 element, F32 addend) const {
      if constexpr (!kUsual) return element * scale * amax / reach;
      return Isa::choose_by_half(element, addend * one_and_half, element * one);
    }

    // As `error_of`, of values without their signs, whose order is that of their bits.
    DLFP4_ALWAYS_INLINE void add(F32 values) {
      const U32 product = smaller<U32>(reinterpret_cast<U32>(values * multiplier), splat<U32>(kSix));
      const F32 addend = Isa::look_up(product >> 23, kAddends);
      const F32 element = (reinterpret_cast<F32>(product) + addend) - addend;
      const F32 error = worth(element, addend) - values;
      sum += kSquares ? error * error : magnitude(error);
    }
  };

  // Of whole vectors of lanes; values_of(k) are element k of each, without signs.
  template <bool kSquares, bool kUsual, class ValuesOf>
  DLFP4_ALWAYS_INLINE static void add_lanes(int64_t first, int64_t elements, const ErrorParams &both, float *sixes,
                                            float *fours, const ValuesOf &values_of) {
    Candidate<kSquares, kUsual> six(both, 0, first), four(both, 1, first);
    for (int64_t k = 0; k < elements; ++k) {
      const F32 values = values_of(k);
      six.add(values);
      four.add(values);
    }
    store_lanes(sixes + first, load_lanes<F32>(sixes + first) + six.sum);
    store_lanes(fours + first, load_lanes<F32>(fours + first) + four.sum);
  }

  // A vector of blocks as its elements' vectors.
  struct Transposed {
    F32 rows[kErrorBlock];

    explicit Transposed(const uint8_t *src) {
      if constexpr (Src == DLFP4_bfloat16)
        widen_pairs(src);
      else
        transpose_floats(src);
    }

    void transpose_floats(const uint8_t *src) {
      constexpr int kBlocks = Isa::kCodes / kErrorBlock;  // of a step
      for (int b = 0; b < kLanes; b += kBlocks) {
        const auto floats = Isa::template load_floats<Src>(src + b * kErrorBlock * kBytes);
        for (int i = 0; i < 4; ++i)
          rows[i % kVectors * kLanes + b + i / kVectors] = magnitude(reinterpret_cast<F32>(floats.part[i]));
      }
      for (int i = 0; i < kVectors; ++i) transpose<kLanes>(rows + i * kLanes);
    }

    // Pairs of bfloat16 are transposed as the dwords that they are.
    void widen_pairs(const uint8_t *src) {
      constexpr int kPairs = kErrorBlock / 2, kCount = kLanes < kPairs ? kLanes : kPairs;
      U32 pairs[kPairs];
      for (int i = 0; i < kPairs; ++i) pairs[i] = load_pairs<kCount>(src, i) & 0x7FFF7FFFu;
      for (int i = 0; i < kPairs; i += kCount) transpose<kCount>(pairs + i);
      for (int i = 0; i < kPairs; ++i) {
        rows[2 * i] = reinterpret_cast<F32>(pairs[i] << 16);
        rows[2 * i + 1] = reinterpret_cast<F32>(pairs[i] & 0xFFFF0000u);
      }
    }

    // Vector i: `Count` pairs of each block that it has, of which a block's parts follow `Count` vectors later.
    template <int Count>
    static U32 load_pairs(const uint8_t *src, int i) {
      constexpr int kBlockBytes = kErrorBlock * kBytes;
      const uint8_t *const first = src + i % Count * kBlockBytes + i / Count * Count * 4;
      if constexpr (Count == kLanes)
        return load_lanes<U32>(first);
      else
        return Isa::load_halves(first, Count * kBlockBytes);
    }

    F32 operator()(int64_t k) const { return rows[k]; }
  };

  template <bool kSquares, bool kUsual>
  static void sum_all(const uint8_t *src, int64_t blocks, const ErrorParams &both, float *sixes, float *fours) {
    for (int64_t b = 0; b < blocks; b += kLanes) {
      const Transposed values(src + b * kErrorBlock * kBytes);
      add_lanes<kSquares, kUsual>(b, kErrorBlock, both, sixes, fours, values);
    }
  }

  template <bool kSquares, bool kUsual, int... Part>
  static void add_step(const uint8_t *src, int64_t stride, int64_t rows, int64_t first, const ErrorParams &both,
                       float *sixes, float *fours, std::integer_sequence<int, Part...>) {
    (add_lanes<kSquares, kUsual>(
         first + Part * kLanes, rows, both, sixes, fours,
         [=](int64_t k) {
           return magnitude(reinterpret_cast<F32>(Isa::template load_floats<Src>(src + k * stride).part[Part]));
         }),
     ...);
  }

  template <bool kSquares, bool kUsual>
  static void add_all(const uint8_t *src, int64_t stride, int64_t rows, int64_t count, const ErrorParams &both,
                      float *sixes, float *fours) {
    for (int64_t i = 0; i < count; i += Isa::kCodes)
      add_step<kSquares, kUsual>(src + i * kBytes, stride, rows, i, both, sixes, fours,
                                 std::make_integer_sequence<int, 4>());
  }

  // Calls run(both, sixes, fours) for the last blocks or lines, whose numbers are followed by zeros, `Size` in all.
  template <int Size, class Run>
  static void finish(int64_t first, int64_t count, const ErrorParams &both, float *sixes, float *fours, Run run) {
    alignas(64) float numbers[6][Size] = {};
    const size_t size = static_cast<size_t>(count) * sizeof(float);
    for (int c = 0; c < 2; ++c) memcpy(numbers[c], both.multipliers[c] + first, size);
    for (int c = 0; c < 2; ++c) memcpy(numbers[2 + c], both.scales[c] + first, size);
    memcpy(numbers[4], sixes + first, size);
    memcpy(numbers[5], fours + first, size);
    run(ErrorParams{both.rule, {numbers[0], numbers[1]}, {numbers[2], numbers[3]}}, numbers[4], numbers[5]);
    memcpy(sixes + first, numbers[4], size);
    memcpy(fours + first, numbers[5], size);
  }

  static bool squares(const ErrorParams &both) { return both.rule->chooses == DLFP4_MEAN_SQUARED; }

  static void sum(const uint8_t *src, int64_t blocks, const ErrorParams &all, float *sixes, float *fours) {
    constexpr int64_t kBlockBytes = kErrorBlock * kBytes;
    const auto run = has_usual_errors(*all.rule) ? (squares(all) ? sum_all<true, true> : sum_all<false, true>)
                                                 : (squares(all) ? sum_all<true, false> : sum_all<false, false>);
    const int64_t whole = blocks / kLanes * kLanes, rest = blocks - whole;
    run(src, whole, all, sixes, fours);
    if (rest == 0) return;
    alignas(64) uint8_t values[kLanes * kBlockBytes] = {};
    memcpy(values, src + whole * kBlockBytes, static_cast<size_t>(rest * kBlockBytes));
    finish<kLanes>(whole, rest, all, sixes, fours,
                   [&](const ErrorParams &both, float *six, float *four) { run(values, kLanes, both, six, four); });
  }

  static void add(const uint8_t *src, int64_t stride, int64_t rows, int64_t count, const ErrorParams &all, float *sixes,
                  float *fours) {
    constexpr int64_t kSize = Isa::kCodes;
    const auto run = has_usual_errors(*all.rule) ? (squares(all) ? add_all<true, true> : add_all<false, true>)
                                                 : (squares(all) ? add_all<true, false> : add_all<false, false>);
    const int64_t whole = count / kSize * kSize, rest = count - whole;
    run(src, stride, rows, whole, all, sixes, fours);
    if (rest == 0) return;
    alignas(64) uint8_t values[kErrorBlock * kSize * kBytes] = {};
    for (int64_t k = 0; k < rows; ++k)
      memcpy(values + k * kSize * kBytes, src + k * stride + whole * kBytes, static_cast<size_t>(rest * kBytes));
    finish<kSize>(whole, rest, all, sixes, fours, [&](const ErrorParams &both, float *six, float *four) {
      run(values, kSize * kBytes, rows, kSize, both, six, four);
    });
  }
};

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_BLOCKS_VECTOR_ERRORS_H_
