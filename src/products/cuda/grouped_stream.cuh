// Rows times weights of their experts where these have few: the weights pass once, without a halt.
// Layout: the work is tiles of 16 rows of weights by up to eight rows of their expert, in the order of experts; each
// block of threads has as many as any other, which follow one another. It reads where experts' rows end, and counts the
// tiles itself. Its warps share K in slices, as in few_rows.cuh.
// Trick: sums go from warp to warp. Each adds its own to those of the warp before and passes them on, the last one
// stores; so no warp waits for all, and weights are under way all the time, across experts too.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_GROUPED_STREAM_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_GROUPED_STREAM_CUH_

#include "routing.cuh"
#include "stream_slice.cuh"

namespace dlfp4 {
namespace cuda {

#ifdef DLFP4_HOPPER

template <int Kind, int Type>
class StreamedExperts {
  using Slice = StreamSlice<Kind, Type, kStreamedRows / 8>;

  // Tiles that follow one another, of the same rows of x.
  struct Run {
    int end;      // the first tile beyond it
    int weights;  // from a tile to that of all experts' weights
    int expert, first_row, end_row;
  };

  // Rows of x that a lane copies parts of, four rows apart among those of a run; -1 where none is.
  static constexpr int kOwnRows = kStreamedRows / Slice::kRowsAtOnce;
  struct Tokens {
    int of[kOwnRows];
  };

  // As Slice::RowsInOrder.
  struct RowsOfTokens {
    const ProductParams &q;
    const Tokens &tokens;
    int first_byte, own = 0;
    const uint8_t *from = find();

    __device__ bool has(int) const { return tokens.of[own] >= 0; }
    __device__ const uint8_t *find() const { return q.x + tokens.of[own] * q.x_stride + first_byte; }
    __device__ void advance() {
      if (++own < kOwnRows) from = find();
    }
  };

  const GroupedStreamParams &p_;
  const ProductParams &q_;
  const StreamedCut &cut_;
  int *const ends_ = reinterpret_cast<int *>(shared_memory + cut_.schedule);
  int *const tiles_ = ends_ + kMostExperts;  // up to an expert, its own included
  const uint32_t lane_ = read_lane();
  const int warp_ = warp_of_block(), warps_ = blockDim.x / kWarpSize;
  const int slices_ = cut_.slices_of_warp - (warp_ >= cut_.full_warps);
  const uint32_t x_ = shared_address(shared_memory) + warp_ * cut_.bytes;
  const uint32_t sums_ = shared_address(shared_memory) + cut_.sums + lane_ * 16;
  const uint32_t barriers_ = shared_address(shared_memory) + cut_.barriers + warp_ * kPassed * 8;
  const uint32_t scale_offset_ = Slice::scale_offset(lane_);

  uint32_t stage_ = x_ + cut_.stage, other_stage_ = stage_ + slice_of_tile_bytes(Kind);
  int tile_, end_, passed_ = 0;
  // What is fetched next.
  int next_tile_, next_end_, next_weights_ = 0, next_slice_ = 0;

 public:
  __device__ explicit StreamedExperts(const GroupedStreamParams &p) : p_(p), q_(p.product), cut_(p.cut) {}

  __device__ void run() {
    let_next_kernel_start();
    if (lane_ < kPassed) init_barrier(barriers_ + lane_ * 8, 1);
    if (!p_.follows_gathering) wait_for_kernel_before();
    load_ends(p_, ends_);
    __syncthreads();
    if (warp_ == 0) count();
    __syncthreads();
    next_tile_ = next_end_ = tile_ = first_of_block(blockIdx.x);
    end_ = first_of_block(blockIdx.x + 1);
    for (int i = 0; i < kStreamStages; ++i) copy_next();
    wait_for_kernel_before();
    while (tile_ < end_) multiply(find_run(tile_));
    wait_for_copies<0>();
    clear_rows(q_, ends_[p_.experts - 1], threadIdx.x, blockDim.x);
  }

 private:
  // --- The schedule

  // Of all experts' weights, whose first and last tile may be a neighbour's too.
  __device__ int first_tile(int expert) const { return static_cast<int>(int64_t{expert} * q_.columns / kTile); }
  __device__ int count_tiles(int expert) const {
    return static_cast<int>((int64_t{expert + 1} * q_.columns + kTile - 1) / kTile) - first_tile(expert);
  }

  __device__ void count() const {
    order_ends(ends_, p_.experts);
    __syncwarp();
    const auto count_of = [&](int expert) { return count_eights(expert) * count_tiles(expert); };
    add_up_experts(p_.experts, count_of, [&](int expert, int, int sum) {
      if (expert < p_.experts) tiles_[expert] = sum;
    });
  }

  __device__ int first_row(int expert) const { return expert > 0 ? ends_[expert - 1] : 0; }
  __device__ int count_eights(int expert) const {
    return (ends_[expert] - first_row(expert) + kStreamedRows - 1) / kStreamedRows;
  }

  __device__ int first_of_block(int block) const {
    return static_cast<int>(int64_t{tiles_[p_.experts - 1]} * block / gridDim.x);
  }

  __device__ Run find_run(int tile) const {
    Run run;
    run.expert = find_expert(tiles_, p_.experts, tile);
    const int of_expert = count_tiles(run.expert), before = run.expert ? tiles_[run.expert - 1] : 0;
    const int rows_before = (tile - before) / of_expert, first = before + rows_before * of_expert;
    run.end = min(end_, first + of_expert);
    run.weights = first_tile(run.expert) - first;
    run.first_row = first_row(run.expert) + rows_before * kStreamedRows;
    run.end_row = min(ends_[run.expert], run.first_row + kStreamedRows);
    return run;
  }

  // --- Weights: tile by tile, each in all of the warp's slices

  // To the stage that was read last, as one group of copies; zeros where none are left.
  __device__ void copy_next() {
    const bool wanted = next_tile_ < end_;
    if (wanted && next_tile_ == next_end_) {
      const Run run = find_run(next_tile_);
      next_end_ = run.end;
      next_weights_ = run.weights;
    }
    const uint32_t tile = next_tile_ + next_weights_;
    const uint8_t *codes = Slice::find_codes(q_, tile, block_of(next_slice_));
    const uint8_t *scales = codes + (Slice::offset_of_scales(tile) + scale_offset_);
    Slice::copy_weights(stage_ + lane_ * 16, codes, scales, lane_, wanted);
    commit_copies();
    const uint32_t copied = stage_;
    stage_ = other_stage_;
    other_stage_ = copied;
    const bool is_last = ++next_slice_ == slices_;
    next_slice_ = is_last ? 0 : next_slice_;
    next_tile_ += is_last;
  }

  __device__ int slice_number(int slice) const { return warp_ + slice * warps_; }
  __device__ int block_of(int slice) const { return slice_number(slice) * Slice::kBlocks; }

  // --- Rows of x

  __device__ Tokens find_tokens(const Run &run) const {
    Tokens tokens;
    int row = run.first_row + lane_ / Slice::kRowLanes;
#pragma unroll
    for (int &token : tokens.of) {
      token = row < run.end_row ? token_of(row) : -1;
      row += Slice::kRowsAtOnce;
    }
    return tokens;
  }

  __device__ int token_of(int row) const {
    if (!p_.tokens.data) return row;
    const int64_t token = load_integer(p_.tokens, row);
    return token >= 0 && token < p_.count_tokens ? static_cast<int>(token) : -1;
  }

  // --- Products

  __device__ void multiply(const Run &run) {
    const Tokens tokens = find_tokens(run);
    for (int i = 0; i < slices_; ++i) {
      const int slice = slice_number(i), first_chunk = slice * Slice::kChunks + lane_ % Slice::kRowLanes;
      Slice::copy_slice(q_, x_of(i), slice, lane_, RowsOfTokens{q_, tokens, first_chunk * 16});
    }
    commit_copies();
    wait_for_copies<0>();
    __syncwarp();
    typename Slice::Operands operands;
    Slice::take_x(x_, lane_, operands);
    for (; tile_ < run.end; ++tile_) {
      typename Slice::Sums sums = {};
      for (int i = 0; i < slices_; ++i) {
        if (slices_ > 1) Slice::take_x(x_of(i), lane_, operands);
        wait_for_copies<kStreamStages - 1>();
        __syncwarp();
        multiply_slice(operands, sums);
        __syncwarp();
        copy_next();
      }
      pass_on(sums.of[0][0], run);
    }
  }

  // The stage's words two blocks at a time.
  __device__ void multiply_slice(const typename Slice::Operands &operands, typename Slice::Sums &sums) const {
    const uint32_t codes = stage_ + lane_ * 16, scales = stage_ + Slice::staged_scales(lane_);
    LaneWords<Kind> words[2];
    Slice::take_block(codes, scales, 0, words[0]);
#pragma unroll
    for (int b = 0; b < Slice::kBlocks; ++b) {
      if (b + 1 < Slice::kBlocks) Slice::take_block(codes, scales, b + 1, words[(b + 1) % 2]);
      Slice::multiply_block(words[b % 2], operands, b, q_.shifts, sums);
    }
    sums.join();
  }

  __device__ uint32_t x_of(int slice) const { return x_ + slice * Slice::kRows * Slice::kRowBytes; }

  // --- Sums

  // Those of the warps before come first. A place in the ring is free again when the last warp has read it.
  __device__ void pass_on(float (&sums)[4], const Run &run) {
    const int place = passed_ % kPassed, phase = passed_ / kPassed % 2;
    const uint32_t at = sums_ + place * sums_bytes_of_tile(1), barrier = barriers_ + place * 8;
    float before[4] = {};
    if (warp_ > 0) wait_for(barrier - kPassed * 8, phase);
    load_shared_16(at, warp_ > 0, before);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = before[i] + sums[i];
    if (warp_ == warps_ - 1) {
      store(sums, run);
    } else {
      if (warp_ == 0 && passed_ >= kPassed) wait_for(barrier + (warps_ - 1) * kPassed * 8, phase ^ 1);
      store_shared_16(at, sums);
    }
    __syncwarp();
    if (lane_ == 0) arrive(barrier);
    ++passed_;
  }

  // A lane's four: two rows by two columns.
  __device__ void store(const float (&sums)[4], const Run &run) const {
    const Finish finish(q_, int64_t{run.expert} * p_.factor_step);  // from the cache: registers are scarce
    const int first_row = run.first_row + lane_ % 4 * 2;
    const int first_column = (tile_ + run.weights) * kTile - run.expert * q_.columns + lane_ / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + i % 2, column = first_column + i / 2 * 8;
      if (row < run.end_row && static_cast<unsigned>(column) < static_cast<unsigned>(q_.columns))
        store_result(q_, row, column, finish(sums[i]));
    }
  }
};

#endif

// On other GPUs, where the host does not call it, it is empty.
template <int Kind, int Type>
__device__ inline void stream_grouped(const GroupedStreamParams &p) {
#ifdef DLFP4_HOPPER
  StreamedExperts<Kind, Type>(p).run();
#endif
}

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_GROUPED_STREAM_CUH_
