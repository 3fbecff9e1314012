// FP8 by FP8 as both lie, on sm_90a: the parts of the kernels for many rows (many_rows.cuh) that differ from those of
// prepared weights.
// Layout: a stage of the ring is 128 bytes of rows of x and of rows of weights, and the scales of both.
// Trick: tensor cores keep some 14 bits of sums of FP8, so they add one stage only; the threads scale such sums and add
// them to those of float32, by one operation that has to be asked for (-fmad=false), while the tensor cores work for
// the other warpgroup or on the next stage. Few rows of x are the second operand of wgmma, the weights the first; in a
// walk (byte_walk.cuh) it is the other way around, so that a thread needs two scales of x and one of weights where 128
// columns share that.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_BYTES_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_BYTES_CUH_

#include "fragments.cuh"
#include "params.h"
#include "ring.cuh"

namespace dlfp4 {
namespace cuda {

#ifdef DLFP4_HOPPER
// --- Scales ------------------------------------------------------------------------------------

// How many scales of `Lines` lines a lane brings, 32 lines apart.
DLFP4_RULE int lane_scales(int lines, ScaleOrder order) {
  return order == kOne ? 1 : (lines + kWarpSize - 1) / kWarpSize;
}

template <int Lines, ScaleOrder Order>
__device__ inline int place_of_scale(int line) {
  return Order == kTurned ? turned_place(Lines, line) : Order == kInPairs ? paired_place(line) : line;
}

// Whether there is the i-th of a lane.
template <int Lines, ScaleOrder Order>
__device__ inline bool has_scale(int i) {
  if (Order == kOne) return read_lane() == 0;
  return Lines % kWarpSize == 0 || read_lane() < Lines - i * kWarpSize;
}

// Where a lane finds its scales of `Lines` lines from `first` on.
template <int Lines, ScaleOrder Order>
class LaneScales {
  static constexpr int kCount = lane_scales(Lines, Order);
  const float *from_[kCount];
  int64_t step_;

 public:
  __device__ LaneScales(const ByteScales &scales, int first, int lines) : step_(scales.block_stride) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int line = min(first + line_of(i), lines - 1);  // what lies outside meets zeros, and is not stored
      from_[i] = scales.data + line / scales.lines * scales.line_stride;
    }
  }

  // Those of a block along K.
  __device__ void copy(uint32_t to, int block) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (has_scale<Lines, Order>(i))
        copy_4(to + place_of_scale<Lines, Order>(line_of(i)) * 4, from_[i] + block * step_);
  }

 private:
  __device__ static int line_of(int i) { return Order == kOne ? 0 : i * kWarpSize + read_lane(); }
};

// What a warp copies of the scales of a tile.
template <int Rows, ScaleOrder OrderOfX, int Columns, ScaleOrder OrderOfWeights>
class TileScales {
  LaneScales<Rows, OrderOfX> of_x_;
  LaneScales<Columns, OrderOfWeights> of_weights_;

 public:
  __device__ TileScales(const BytesParams &p, int first_row, int first_column)
      : of_x_(p.of_x, first_row, p.product.rows), of_weights_(p.of_weights, first_column, p.product.columns) {}

  __device__ void copy(uint32_t to, int block, uint32_t full) const {
    of_x_.copy(to, block);
    of_weights_.copy(to + line_scale_bytes(Rows), block);
    arrive_after_copies(full);
  }
};

// The same for warps that load scales of several blocks at once and store them to stages as these become free: each
// scale that is copied by itself costs a place in the queue of loads.
template <int Lines, ScaleOrder Order, int Blocks>
class LoadedScales {
  static constexpr int kCount = lane_scales(Lines, Order), kApart = Order == kTurned ? kWarpSize / 4 : kWarpSize;
  const ByteScales &scales_;
  const int last_;
  const bool lie_together_;
  int line_[kCount];
  const int place_ = place_of_scale<Lines, Order>(read_lane()) * 4;

 public:
  struct Values {
    float of[kCount][Blocks];

    __device__ void multiply(const float (&factors)[Blocks]) {
#pragma unroll
      for (int i = 0; i < kCount * Blocks; ++i) of[i / Blocks][i % Blocks] *= factors[i % Blocks];
    }
  };

  __device__ LoadedScales(const ByteScales &scales, int first, int lines, int blocks)
      : scales_(scales),
        last_(blocks - 1),
        lie_together_(scales.block_stride == 1 && blocks % Blocks == 0 && scales.line_stride % Blocks == 0 &&
                      reinterpret_cast<uintptr_t>(scales.data) % (Blocks * 4) == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      line_[i] = min(first + (Order == kOne ? 0 : i * kWarpSize + read_lane()), lines - 1) / scales.lines;
  }

  // From a block on whose number is a multiple of `Blocks`; behind the last one it comes again.
  __device__ void load(int block, Values &values) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      int line = line_[i];
      asm volatile("" : "+r"(line));  // its place is found anew, for there are no registers to keep it
      const float *of_line = scales_.data + line * scales_.line_stride;
      if (lie_together_) {
        load_floats(of_line + block, values.of[i]);
      } else {
#pragma unroll
        for (int k = 0; k < Blocks; ++k)
          values.of[i][k] = __ldg(of_line + min(block + k, last_) * scales_.block_stride);
      }
    }
  }

  __device__ void store(uint32_t to, const Values &values, int number) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (has_scale<Lines, Order>(i)) store_shared_float(to + place_ + i * kApart * 4, values.of[i][number]);
  }

 private:
  __device__ static void load_floats(const float *from, float (&to)[4]) {
    const float4 four = __ldg(reinterpret_cast<const float4 *>(from));
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }

  __device__ static void load_floats(const float *from, float (&to)[2]) {
    const float2 two = __ldg(reinterpret_cast<const float2 *>(from));
    to[0] = two.x, to[1] = two.y;
  }
};

// What two warps bring so of a tile: one loads while the other stores. Where weights share a scale, it comes within
// those of x, so that consumers have no more than two to read.
template <int Kind, int Rows, ScaleOrder OrderOfX, int Columns, ScaleOrder OrderOfWeights>
class LoadedTileScales {
  static constexpr int kOfLane = lane_scales(Rows, OrderOfX) + lane_scales(Columns, OrderOfWeights);
  static constexpr int kBlocks = kOfLane <= 5 ? 4 : 2;  // as registers allow
  using OfX = LoadedScales<Rows, OrderOfX, kBlocks>;
  using OfWeights = LoadedScales<Columns, OrderOfWeights, kBlocks>;
  static constexpr bool kAreMultiplied = OrderOfX == kInPairs;
  static_assert(!kAreMultiplied || OrderOfWeights == kOne, "");
  struct Values {
    typename OfX::Values x;
    typename OfWeights::Values weights;
  };

  OfX of_x_;
  OfWeights of_weights_;

 public:
  static constexpr int kWarps = 2;

  __device__ LoadedTileScales(const BytesParams &p, int first_row, int first_column)
      : of_x_(p.of_x, first_row, p.product.rows, p.product.blocks),
        of_weights_(p.of_weights, first_column, p.product.columns, p.product.blocks) {}

  // A warp's share of the blocks from `begin` to `end`. Warps take turns with groups of blocks, those of other tiles
  // before included.
  __device__ void produce(const Ring<Kind> &ring, int warp, int begin, int end, Turn &turn, int &groups) const {
    // A warp that leaves out another's stages still meets each of its own in its turn.
    static_assert(
        ring_stages(Kind, Rows, Columns, INT16_MAX, kMostShared - staging_bytes(Kind, Rows, Columns)) > kBlocks + 1,
        "");
#pragma unroll 1
    for (int first = begin / kBlocks * kBlocks; first < end; first += kBlocks) {
      if (groups++ % kWarps != warp) {
        turn.advance(min(first + kBlocks, end) - max(first, begin), ring.stages);
        continue;
      }
      Values values;
      of_x_.load(first, values.x);
      of_weights_.load(first, values.weights);
      if constexpr (kAreMultiplied) values.x.multiply(values.weights.of[0]);
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        const int block = first + i;
        if (block < begin || block >= end) continue;
        wait_for(ring.empty + 8 * turn.stage, turn.phase);
        const uint32_t to = ring.scales + turn.stage * ring.scale_bytes;
        of_x_.store(to, values.x, i);
        if constexpr (!kAreMultiplied) of_weights_.store(to + line_scale_bytes(Rows), values.weights, i);
        __syncwarp();
        if (read_lane() == 0) arrive(ring.full + 8 * turn.stage);
        turn.advance(1, ring.stages);
      }
    }
  }
};

// Lines that have one scale each.
struct ScaledLines {
  const ByteScales &scales;
  int count, first;
  __device__ float operator[](int line) const {
    return __ldg(scales.data + min(first + line, count - 1) * scales.line_stride);
  }
};

// A thread's place in its warpgroup: the first of its lines of the first operand (the other is eight further), and of
// its pairs of the second.
__device__ inline int line_of_thread() { return warp_of_group() * kTile + lane_of_warp() / 4; }
__device__ inline int pair_of_thread() { return lane_of_warp() % 4 * 2; }

// Sums of a warpgroup by the scales of its lines of the first operand, and those of `Lines` of the second.
template <int Lines>
__device__ inline void scale_lines(const ScaledLines &first, const ScaledLines &second, float *sums) {
  const float of_first[2] = {first[line_of_thread()], first[line_of_thread() + 8]};
#pragma unroll
  for (int i = 0; i < Lines / 2; i += 4) {
    const int line = i * 2 + pair_of_thread();
    const float of_second[2] = {second[line], second[line + 1]};
#pragma unroll
    for (int k = 0; k < 4; ++k) sums[i + k] *= of_first[k >> 1] * of_second[k & 1];
  }
}

// --- Multiplying -------------------------------------------------------------------------------

// Where a warpgroup's operands and their scales lie in the first stage.
struct Operands {
  uint32_t first, second, first_scales, second_scales;
};

// A warpgroup's sums: 64 lines of the first operand by `Lines` of the second, in the order of Consumer's sums. Scales
// of the second wait in registers while the tensor cores work, where there is room for them.
template <int Kind, bool FirstIsE5m2, bool SecondIsE5m2, ScaleOrder OrderOfFirst, ScaleOrder OrderOfSecond,
          bool HasRoom>
class BytesProducts {
 public:
  static constexpr int kReleases = kWarpgroup / kWarpSize;  // of a stage: each warp has read its scales

  __device__ BytesProducts(const Ring<Kind> &ring, const Operands &at, int first_bytes, int second_bytes,
                           const Turn &turn)
      : ring_(ring), at_(at), first_bytes_(first_bytes), second_bytes_(second_bytes), turn_(turn) {
    if (OrderOfFirst != kOne) at_.first_scales += place_of_scale<0, OrderOfFirst>(line_of_thread()) * 4;
  }

  // Of a stage one part after another: 64 lines of the first operand, `lines_apart`. The first of its scales may be
  // those of `before` other lines. Warpgroups that take turns to start products do not wait at the same time: one adds
  // sums while the other's are made.
  template <int Lines, int Parts>
  __device__ void multiply(const Blocks &blocks, int lines_apart, int before, bool takes_turns,
                           float (&sums)[Parts][Lines / 2]) {
#pragma unroll
    for (int i = 0; i < Parts * Lines / 2; ++i) sums[i / (Lines / 2)][i % (Lines / 2)] = 0;
#pragma unroll 1  // unrolled, as small tiles are otherwise, wgmma has no registers to run beside other work
    for (int block = blocks.first; block < blocks.count; block += blocks.by) {
      if (!is_there_) wait_for(ring_.full + 8 * turn_.stage, turn_.phase);
      Turn next = turn_;
      next.advance(blocks.by, ring_.stages);
      is_there_ = has_passed(ring_.full + 8 * next.stage, next.phase);
#pragma unroll
      for (int part = 0; part < Parts; ++part)
        multiply_part<Lines>(part * lines_apart, before, takes_turns, sums[part]);
      __syncwarp();
      ring_.release(turn_.stage, lane_of_warp());
      turn_ = next;
    }
  }

  // All blocks, with two sets of products: tensor cores multiply a stage while the one before is added.
  template <int Lines>
  __device__ void multiply_ahead(int blocks, float (&sums)[Lines / 2]) {
    static_assert(OrderOfFirst == kInPairs, "");
#pragma unroll
    for (float &sum : sums) sum = 0;
    if (blocks == 0) return;                               // more shares of K than blocks
    turn_.stage = __shfl_sync(kAllLanes, turn_.stage, 0);  // the compiler knows then that a warp agrees on it
    Stage<Lines> stages[2];
    begin_stage(stages[0]);
#pragma unroll 1
    for (; blocks > 2; blocks -= 2) {
      begin_stage(stages[1]);
      add_stage<1>(stages[0], sums);
      begin_stage(stages[0]);
      add_stage<1>(stages[1], sums);
    }
    if (blocks == 2) {
      begin_stage(stages[1]);
      add_stage<1>(stages[0], sums);
      add_stage<0>(stages[1], sums);
    } else {
      add_stage<0>(stages[0], sums);
    }
  }

  __device__ const Turn &turn() const { return turn_; }

 private:
  static constexpr bool kLoadsEarly = has_scales(Kind) && OrderOfSecond == kTurned && HasRoom;

  template <int Lines>
  __device__ void multiply_part(int line, int before, bool takes_turns, float (&sums)[Lines / 2]) const {
    float products[Lines / 2];
    if (takes_turns) wait_for_turn(warpgroup() - 1);
    begin<Lines>(line, products);
    if (takes_turns)
      give_turn(warpgroup() & 1);  // the other's
    else
      __syncwarp();  // or ptxas reads scales before the last product, which waits for them
    float of_first[2] = {1, 1};
    if constexpr (has_scales(Kind)) load_scales(line + before, of_first);
    float of_second[kLoadsEarly ? Lines / 4 : 1];
    if constexpr (kLoadsEarly)
#pragma unroll
      for (int i = 0; i < Lines / 4; i += 4) load_four(Lines, i, of_first, of_second + i);
    wait_for_products<0>();
#pragma unroll
    for (float &product : products) asm volatile("" : "+f"(product)::"memory");
    if constexpr (has_scales(Kind) && OrderOfSecond == kTurned) {
      add_scaled<Lines>(products, of_first, of_second, sums);
    } else {
#pragma unroll
      for (int i = 0; i < Lines / 2; ++i)
        sums[i] = has_scales(Kind) ? __fmaf_rn(products[i], of_first[i >> 1 & 1], sums[i]) : sums[i] + products[i];
    }
  }

  // Of which the compiler does not know that it is one: where sums are plain it serialises the products of two sets.
  __device__ static float factor_of_one() {
    float one;
    asm volatile("mov.f32 %0, 0f3F800000;" : "=f"(one));
    return one;
  }

  // This turn's, from a line of the first operand on.
  template <int Lines>
  __device__ void begin(int line, float (&products)[Lines / 2]) const {
    const uint64_t first = describe_rows(at_.first + turn_.stage * first_bytes_ + line * kBoxBytes);
    const uint64_t second = describe_rows(at_.second + turn_.stage * second_bytes_);
    begin_products();
#pragma unroll
    for (int i = 0; i < kBoxBytes / 32; ++i)
      multiply_bytes<FirstIsE5m2, SecondIsE5m2, Lines>(products, first + 2 * i, second + 2 * i, i > 0);
    commit_products();
  }

  // A stage whose products are under way, and the scales they are to be multiplied by.
  template <int Lines>
  struct Stage {
    float products[Lines / 2], scales[2];
    int number;
  };

  template <int Lines>
  __device__ void begin_stage(Stage<Lines> &stage) {
    if (!is_there_) wait_for(ring_.full + 8 * turn_.stage, turn_.phase);
    begin<Lines>(0, stage.products);
    __syncwarp();
    if constexpr (has_scales(Kind))
      load_scales(0, stage.scales);
    else
      stage.scales[0] = stage.scales[1] = factor_of_one();
    stage.number = turn_.stage;
    turn_.advance(1, ring_.stages);
    is_there_ = has_passed(ring_.full + 8 * turn_.stage, turn_.phase);
  }

  // `Later` stages have begun since.
  template <int Later, int Lines>
  __device__ void add_stage(Stage<Lines> &stage, float (&sums)[Lines / 2]) const {
    wait_for_products<Later>();
#pragma unroll
    for (float &product : stage.products) asm volatile("" : "+f"(product)::"memory");
#pragma unroll
    for (int i = 0; i < Lines / 2; ++i) sums[i] = __fmaf_rn(stage.products[i], stage.scales[i >> 1 & 1], sums[i]);
    __syncwarp();
    ring_.release(stage.number, lane_of_warp());
  }

  // Of the first operand, times the one of the second where that has one.
  __device__ void load_scales(int line, float (&of_first)[2]) const {
    const uint32_t of_stage = turn_.stage * ring_.scale_bytes, first = at_.first_scales + of_stage + line * 4;
    if constexpr (OrderOfFirst == kInPairs) return load_shared_pair(first, of_first);
    of_first[0] = load_shared_float(OrderOfFirst == kOne ? at_.first_scales + of_stage : first);
    of_first[1] = OrderOfFirst == kOne ? of_first[0] : load_shared_float(first + 8 * 4);
    if constexpr (OrderOfSecond == kOne) {
      const float of_second = load_shared_float(at_.second_scales + of_stage);
      of_first[0] *= of_second, of_first[1] *= of_second;
    }
  }

  // From a number on, four of the second operand's that this thread needs, times the one of the first where that has
  // one.
  __device__ void load_four(int lines, int number, const float (&of_first)[2], float *scales) const {
    const uint32_t of_lane = at_.second_scales + lane_of_warp() % 4 * turned_pitch(lines) * 4;
    load_shared_16(of_lane + turn_.stage * ring_.scale_bytes + number * 4, true, scales);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (OrderOfFirst == kOne) scales[i] *= of_first[0];
  }

  template <int Lines>
  __device__ void add_scaled(const float (&products)[Lines / 2], const float (&of_first)[2], const float *of_second,
                             float (&sums)[Lines / 2]) const {
#pragma unroll
    for (int i = 0; i < Lines / 2; i += 8) {
      float loaded[4];
      if constexpr (!kLoadsEarly) load_four(Lines, i / 2, of_first, loaded);
      const float *scales = kLoadsEarly ? of_second + i / 2 : loaded;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float of_second = scales[k / 4 * 2 + (k & 1)];
        const float scale = OrderOfFirst == kOne ? of_second : of_first[k >> 1 & 1] * of_second;
        sums[i + k] = __fmaf_rn(products[i + k], scale, sums[i + k]);
      }
    }
  }

  const Ring<Kind> &ring_;
  Operands at_;
  const int first_bytes_, second_bytes_;  // of a stage
  Turn turn_;
  bool is_there_ = false;  // that turn's stage, as was seen a turn before, for an answer takes time
};

// With weights as the first operand, where a block of threads has one tile: 64 of them a warpgroup.
template <int Kind, int Types>
class BytesConsumer {
  using Products =
      BytesProducts<Kind, is_e5m2(Types), x_is_e5m2(Types), has_scales_of_rows(Kind) ? kInOrder : kOne, kTurned, true>;
  static constexpr int kTurnsFrom = 128;  // rows of x, whose products take longer than turns
  Products products_;

 public:
  static constexpr int kReleases = Products::kReleases;

  __device__ BytesConsumer(const Ring<Kind> &ring, const ProductParams &, int half, int first)
      : BytesConsumer(ring, half, Turn(first)) {}

  __device__ BytesConsumer(const Ring<Kind> &ring, int half, const Turn &turn)
      : products_(
            ring,
            {ring.weights + half * (kColumnsOfHalf * kBoxBytes), ring.x,
             ring.scales + line_scale_bytes(ring.rows) + (has_scales_of_rows(Kind) ? half * kColumnsOfHalf * 4 : 0),
             ring.scales},
            ring.weight_bytes, ring.x_bytes, turn) {}

  template <int Rows>
  __device__ void multiply(const Blocks &blocks, float (&sums)[Rows / 2]) {
    const bool takes_turns = has_scales(Kind) && Rows >= kTurnsFrom && blocks.by == 1;  // where both have all blocks
    if (takes_turns && warpgroup() == 2) give_turn(0);
    products_.template multiply<Rows, 1>(blocks, 0, 0, takes_turns, reinterpret_cast<float (&)[1][Rows / 2]>(sums));
    if (takes_turns && warpgroup() == 1) wait_for_turn(0);  // that the other has given last
  }
};

// With x as the first operand: a warpgroup has 64 rows of each 128, or those of a tile that has no more.
constexpr int kRowsByX = kConsumers * kRowsOfGroup, kSumsByX = kBlockRows / 2;

// With two sets of products there are no turns.
template <int Kind, int Types, bool HasTwoSets = false, int Columns = kBlockRows, bool HasRoom = false>
class BytesConsumerByX {
  // Sums without scales are added too fast to gain by it.
  static constexpr bool kTakesTurns = has_scales(Kind) && !HasTwoSets;
  BytesProducts<Kind, x_is_e5m2(Types), is_e5m2(Types), HasTwoSets ? kInPairs : kInOrder,
                has_scales_of_rows(Kind) ? kTurned : kOne, HasRoom>
      products_;

 public:
  // From a row and a column of the tile on.
  __device__ BytesConsumerByX(const Ring<Kind> &ring, int group, int row, int column = 0)
      : products_(ring,
                  {ring.x + row * kBoxBytes, ring.weights + column * kBoxBytes, ring.scales + row * 4,
                   ring.scales + line_scale_bytes(ring.rows)},
                  ring.x_bytes, ring.weight_bytes, Turn(0)) {
    if (kTakesTurns && group == 1) give_turn(0);
  }

  // Stages may begin with the scales of `before` other rows.
  template <int Parts>
  __device__ void multiply(int blocks, float (&sums)[Parts][Columns / 2], int before = 0) {
    if constexpr (HasTwoSets)
      products_.template multiply_ahead<Columns>(blocks, sums[0]);
    else
      products_.template multiply<Columns>({blocks, 0, 1}, kRowsByX, before, kTakesTurns, sums);
  }

  // After the last tile; the turn among stages is what goes on.
  __device__ const Turn &end(int group) const {
    if (kTakesTurns && group == 0) wait_for_turn(0);  // that the other has given last
    return products_.turn();
  }
};

// Some columns of a warpgroup's 64 rows, as results of 16 bits in shared memory, 64 of them swizzled.
template <int Columns = kColumnsOfHalf>
__device__ inline void turn_sums(const float *sums, const Finish &finish, bool is_half, uint32_t to) {
  const int lane = lane_of_warp(), row = warp_of_group() * kTile + lane % 16;
  const int turned = Columns == kColumnsOfHalf ? row & 7 : 0;
  to += row * (Columns * 2);
#pragma unroll
  for (int eight = 0; eight < Columns / 8; eight += 2) {
    const bool is_last = eight + 1 == Columns / 8;
    const float *own = sums + eight * 4;
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < (is_last ? 2 : 4); ++i)
      pairs[i] = round_pair(finish(own[2 * i]), finish(own[2 * i + 1]), is_half);
    if (is_last)
      store_two_matrices(to + eight * 16, pairs);
    else
      store_matrices(to + ((eight + lane / 16) ^ turned) * 16, pairs);
  }
}

#endif  // DLFP4_HOPPER

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_BYTES_CUH_
