// Rows times weights of their experts, on sm_90a: tiles of many_rows.cuh and bytes.cuh, which blocks of threads walk
// over. Layout: a tile is rows of one expert by 128 rows of all experts' weights, whose first and last may be a
// neighbour's. Trick: a warp plans (grouped_plan.cuh). Rows of tokens are brought together first, for bulk copies:
// copied by threads while others multiply, they came a third slower.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_GROUPED_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_GROUPED_CUH_

#include "grouped_plan.cuh"
#include "many_rows.cuh"

namespace dlfp4 {
namespace cuda {

#ifdef DLFP4_HOPPER
template <int Kind, bool IsPrepared = is_prepared(Kind)>
struct GroupedOf {
  using Params = GroupedParams;
};

template <int Kind>
struct GroupedOf<Kind, false> {
  using Params = GroupedBytesParams;
};

template <int Kind, int Type, RoutedRows Of>
class Experts {
  using Params = typename GroupedOf<Kind>::Params;
  using Lanes = typename KindOf<Kind, Type>::Lanes;
  static constexpr int kSizes = count_sizes(Of), kSizesByX = sizes_by_x(Of), kBox = routed_box(Of);
  static constexpr int kChunks = kBoxBytes / 16, kSharers = count_sharers(Of);
  // One thread copies weights and another x: a small stage of both takes one thread longer than multiplying it. FP8 by
  // FP8 was 8 % slower that way.
  static constexpr int kCopiers = is_prepared(Kind) ? 2 : 1;

  // Those who read jobs: copiers, a warp that brings scales, warps that multiply.
  static constexpr int kTakers = kCopiers + has_scales(Kind) + kConsumers * kWarpgroup / kWarpSize;

  const Params &p_;
  const ProductParams &q_;
  Schedule<Of> &schedule_;
  const Ring<Kind> ring_;

 public:
  __device__ explicit Experts(const Params &p)
      : p_(p),
        q_(p.product),
        schedule_(*reinterpret_cast<Schedule<Of> *>(shared_memory)),
        ring_(most_rows(Of), kBlockRows, grouped_stages<Of>(Kind), kBeforeRing<Of>, kSharers) {}

  __device__ __forceinline__ void run() {
    let_next_kernel_start();
    if (!p_.follows_gathering) wait_for_kernel_before();
    const Plan<Of> plan(p_, schedule_);
    plan.prepare(kTakers);
    ring_.init(arrivals(Kind, kCopiers), kConsumers * Lanes::kReleases);
    if (warpgroup() == 0) {
      give_up_registers<Kind, blocks_at_once(Of)>();
      const int warp = warp_of_block();
      if (warp == 0 && is_elected()) produce<true, kCopiers == 1>();
      if (kCopiers == 2 && warp == 1 && is_elected()) produce<false, true>();
      if constexpr (has_scales(Kind))
        if (warp == 1) produce_scales();
      if (warp == 2 && is_elected()) plan.run();
      __syncwarp();
    } else {
      take_registers<Kind, blocks_at_once(Of)>();
      consume();
    }
  }

 private:
  // --- Copying

  template <bool Weights, bool X>
  __device__ void produce() const {
    if (X) wait_for_kernel_before();
    Turn turn = first_turn();
    for (Jobs<Of> jobs(schedule_); jobs.now().size < kSizes; jobs.next()) produce_tile<Weights, X>(jobs.now(), turn);
    if constexpr (kSharers > 1) ring_.drain(turn);
  }

  template <bool Weights, bool X>
  __device__ __forceinline__ void produce_tile(const Job &job, Turn &turn) const {
    const BoxedRows rows = {job.first_row, copied_rows(Of, job.size), kBox};
    const int row_block = job.row_block;
    const bool maps_scales = X && this->maps_scales(job.size);
    const int bytes = (Weights ? ring_.weight_bytes : 0) + (X ? x_stage_bytes(rows.count) : 0) +
                      (maps_scales ? ring_.scales_of_copies(rows) * 4 : 0);
    for (int block = 0; block < q_.blocks; ++block) {
      const uint32_t full = ring_.full + 8 * turn.stage;
      wait_for(ring_.empty + 8 * turn.stage, turn.phase);
      expect_bytes(full, bytes);
      if (Weights) copy_row_block(ring_, p_, row_block, block, turn.stage);
      if (X) ring_.copy_x(&p_.x, block * stage_depth(Kind), rows, turn.stage, kSharers);
      if constexpr (has_scales(Kind))
        if (maps_scales) ring_.copy_x_scales(&p_.x_scales, block, rows, turn.stage, kSharers);
      turn.advance(1, ring_.stages);
    }
  }

  // Whether bulk copies bring the scales of x, which they cannot turn.
  __device__ bool maps_scales(int size) const {
    if constexpr (has_scales(Kind)) return size < kSizesByX && p_.maps_scales;
    return false;
  }

  // A warp copies what scales a stage.
  __device__ void produce_scales() const {
    wait_for_kernel_before();
    Turn turn = first_turn();
    Jobs<Of> jobs(schedule_);
    produce_scales<0>(jobs, turn);
  }

  template <int Size>
  __device__ void produce_scales(Jobs<Of> &jobs, Turn &turn) const {
    for (; jobs.now().size == Size; next(jobs)) {
      constexpr ScaleOrder kOfX = Size < kSizesByX ? kInOrder : kTurned, kOther = kOfX == kTurned ? kInOrder : kTurned;
      const LaneScales<rows_of_size(Of, Size), kOfX> of_x(p_.of_x, jobs.now().first_row, q_.rows);
      const LaneScales<kBlockRows, has_scales_of_rows(Kind) ? kOther : kOne> of_weights(
          p_.of_weights, jobs.now().row_block * kBlockRows, p_.weight_rows);
      for (int block = 0; block < q_.blocks; ++block) {
        const uint32_t to = ring_.scales + turn.stage * ring_.scale_bytes;
        wait_for(ring_.empty + 8 * turn.stage, turn.phase);
        if (!maps_scales(Size)) of_x.copy(to, block);
        of_weights.copy(to + line_scale_bytes(most_rows(Of)), block);
        arrive_after_copies(ring_.full + 8 * turn.stage);
        turn.advance(1, ring_.stages);
      }
    }
    if constexpr (Size + 1 < kSizes) produce_scales<Size + 1>(jobs, turn);
  }

  // For a warp.
  __device__ static void next(Jobs<Of> &jobs) {
    __syncwarp();
    jobs.next(read_lane() == 0);
  }

  // --- Multiplying

  __device__ __forceinline__ void consume() const {
    wait_for_kernel_before();
    Jobs<Of> jobs(schedule_);
    if constexpr (kSizesByX > 0) {
      BytesConsumerByX<Kind, Type> by_x(ring_, half(), half() * kRowsOfGroup);
      multiply_sizes<0, kSizesByX>(by_x, jobs);
      Lanes consumer(ring_, half(), by_x.end(half()));
      multiply_sizes<kSizesByX, kSizes>(consumer, jobs);
    } else {
      Lanes consumer(ring_, q_, half(), 0);
      multiply_sizes<0, kSizes>(consumer, jobs);
    }
    clear_rows(q_, schedule_.ends[p_.experts - 1], threadIdx.x - kWarpgroup, kConsumers * kWarpgroup);
  }

  // A loop a size: with all sizes in one loop ptxas finds no registers for the sums.
  template <int Size, int End, class Consumer>
  __device__ __forceinline__ void multiply_sizes(Consumer &consumer, Jobs<Of> &jobs) const {
    for (; jobs.now().size == Size; next(jobs)) multiply<Size>(consumer, jobs.now());
    if constexpr (Size + 1 < End) multiply_sizes<Size + 1, End>(consumer, jobs);
  }

  __device__ static int half() { return warpgroup() - 1; }

  template <int Size>
  __device__ __forceinline__ void multiply(BytesConsumerByX<Kind, Type> &consumer, const Job &job) const {
    constexpr int kParts = rows_of_size(Of, Size) / kRowsByX;
    float sums[kParts][kSumsByX];
    consumer.multiply(q_.blocks, sums, maps_scales(Size) ? job.first_row % kScalesOfCopy : 0);
    const Finish finish(q_, job.factor);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      store_rows(sums[part], part * kRowsByX + half() * kRowsOfGroup, job, finish);
  }

  template <int Size>
  __device__ __forceinline__ void multiply(Lanes &consumer, const Job &job) const {
    constexpr int kRows = rows_of_size(Of, Size);
    float sums[kRows / 2];
    if constexpr (is_prepared(Kind)) {
      consumer.template multiply<kRows, sets_of_operands(Of)>({q_.blocks, 0, 1}, sums);
      consumer.release();
    } else {
      consumer.template multiply<kRows>({q_.blocks, 0, 1}, sums);
    }
    if constexpr (Kind == kBytesByLine)
      scale_lines<kRows>({p_.of_weights, p_.weight_rows, job.row_block * kBlockRows + half() * kColumnsOfHalf},
                         {p_.of_x, q_.rows, job.first_row}, sums);
    const Finish finish(q_, job.factor);
    if constexpr (Of == kManyRows)
      if (p_.stores_eights) return store_pairs<kRows>(sums, job, finish);
    store_columns<kRows>(sums, job, finish);
  }

  // --- Results

  // A warpgroup's from a row of the tile on, where x is the first operand.
  __device__ void store_rows(float *sums, int first_row, const Job &job, const Finish &finish) const {
    if constexpr (Kind == kBytesByLine)
      scale_lines<kBlockRows>({p_.of_x, q_.rows, job.first_row + first_row},
                              {p_.of_weights, p_.weight_rows, job.row_block * kBlockRows}, sums);
    const int left = min(kRowsOfGroup, job.left - first_row);
    if (!p_.stores_eights) return store_each_row(sums, first_row, left, job, finish);
#pragma unroll
    for (int first = 0; first < kBlockRows; first += kColumnsOfHalf) {
      sync_consumer(half());  // all have stored the piece before
      turn_sums(sums + first / 2, finish, q_.y_is_half, piece());
      sync_consumer(half());
      store_piece(job.first_row + first_row, left, job.first_column + first);
    }
  }

  __device__ void store_each_row(const float *sums, int first_row, int left, const Job &job,
                                 const Finish &finish) const {
#pragma unroll
    for (int i = 0; i < kSumsByX; ++i) {
      const int row = line_of_thread() + (i >> 1 & 1) * 8;
      const int column = job.first_column + i / 4 * 8 + pair_of_thread() + (i & 1);
      if (row < left && has_column(column)) store_result(q_, job.first_row + first_row + row, column, finish(sums[i]));
    }
  }

  __device__ bool has_column(int column) const {
    return static_cast<unsigned>(column) < static_cast<unsigned>(q_.columns);
  }

  // Where it has columns of the tile, which it turns around in shared memory, some rows at a time. Of 16 bits that
  // takes a large tile less time.
  template <int Rows>
  __device__ void store_pairs(const float *sums, const Job &job, const Finish &finish) const {
    constexpr int kPiece = kRowsOfGroup, kRowBytes = kColumnsOfHalf * 2;
    static_assert(kPiece * kRowBytes <= piece_bytes(Of), "");
    const int lane = lane_of_warp(), eight = warp_of_group() * 2 + (lane >> 3 & 1);
    const uint32_t to = piece() + ((lane & 7) + (lane >> 4) * 8) * kRowBytes + (eight ^ (lane & 7)) * 16;
#pragma unroll
    for (int first = 0; first < Rows; first += kPiece) {
      if (first >= job.left) break;
      sync_consumer(half());  // all have stored the piece before
#pragma unroll
      for (int group = 0; group < kPiece / 16; ++group) {
        if (first + group * 16 >= Rows) break;
        const float *own = sums + (first / 16 + group) * 8;
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = round_pair(finish(own[2 * i]), finish(own[2 * i + 1]), q_.y_is_half);
        store_matrices_turned(to + group * (16 * kRowBytes), pairs);
      }
      sync_consumer(half());
      store_piece(job.first_row + first, min(min(kPiece, Rows - first), job.left - first),
                  job.first_column + half() * kColumnsOfHalf);
    }
  }

  // The same of any results.
  template <int Rows>
  __device__ void store_columns(const float *sums, const Job &job, const Finish &finish) const {
    constexpr int kPiece = piece_rows(Of);
    const int lane = lane_of_warp();
    const uint32_t to = piece() + ((lane & 3) * (2 * kPiecePitch) + warp_of_group() * kTile + (lane >> 2)) * 4;
#pragma unroll
    for (int first = 0; first < Rows; first += kPiece) {
      if (first >= job.left) break;
      sync_consumer(half());  // all have stored the piece before
#pragma unroll
      for (int i = 0; i < kPiece / 2; ++i)
        if (first + i * 2 < Rows)
          store_shared_float(to + ((i / 4 * 8 + (i & 1)) * kPiecePitch + (i >> 1 & 1) * 8) * 4, sums[first / 2 + i]);
      sync_consumer(half());
      store_eights(min(min(kPiece, Rows - first), job.left - first), job.first_row + first,
                   job.first_column + half() * kColumnsOfHalf, finish);
    }
  }

  __device__ void store_eights(int rows, int first_row, int first_column, const Finish &finish) const {
    constexpr int kEights = kColumnsOfHalf / 8;
    const int own = threadIdx.x % kEights * 8, column = first_column + own;
    const uint32_t first = piece() + own * 4;  // a shuffle, which all threads take part in
#pragma unroll 1
    for (int row = threadIdx.x % kWarpgroup / kEights; row < rows; row += kWarpgroup / kEights) {
      const uint32_t from = first + row * (kPiecePitch * 4);
      float eight[8];
      load_shared_16(from, true, eight);
      load_shared_16(from + 16, true, eight + 4);
#pragma unroll
      for (float &sum : eight) sum = finish(sum);
      if (__builtin_expect(store_whole_eight(q_, first_row + row, column, eight), 1)) continue;
#pragma unroll 1
      for (int i = 0; i < 8; ++i)
        if (has_column(column + i))
          store_result(q_, first_row + row, column + i, finish(load_shared_float(from + i * 4)));
    }
  }

  // Where a warpgroup's results lie on their way out.
  __device__ static uint32_t piece() {
    return shared_address(shared_memory) + sizeof(Schedule<Of>) + half() * piece_bytes(Of);
  }

  __device__ void store_piece(int first_row, int rows, int first_column) const {
    const uint32_t from = piece();
    const int chunk = threadIdx.x % kChunks, column = first_column + chunk * 8;
    if (!has_column(column)) return;
    for (int row = threadIdx.x % kWarpgroup / kChunks; row < rows; row += kWarpgroup / kChunks) {
      uint32_t eight[4];
      load_shared_16(from + row * (kColumnsOfHalf * 2) + (chunk ^ (row & 7)) * 16, eight);
      uint8_t *to = q_.y + (int64_t{first_row + row} * q_.y_stride + column) * 2;
      *reinterpret_cast<uint4 *>(to) = make_uint4(eight[0], eight[1], eight[2], eight[3]);
    }
  }
};
#endif  // DLFP4_HOPPER

// --- Rows of tokens ------------------------------------------------------------------------------

// A row of a token by some threads, of which this is one; zeros where the token is not there.
__device__ inline void gather_codes(const GatherParams &p, int64_t row, int64_t token, int own) {
  constexpr int kAtOnce = 4;
  const auto *from = reinterpret_cast<const uint4 *>(p.x + token * p.x_stride);
  auto *to = reinterpret_cast<uint4 *>(p.rows) + row * p.sixteens;
  for (int64_t first = own; first < p.sixteens; first += kAtOnce * p.threads_of_row) {
    uint4 of[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t i = first + k * p.threads_of_row;
      of[k] = token >= 0 && i < p.sixteens ? __ldg(from + i) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t i = first + k * p.threads_of_row;
      if (i < p.sixteens) to[i] = of[k];
    }
  }
}

__device__ inline void gather_scales(const GatherParams &p, int64_t row, int64_t token, int own) {
  const float *from = p.scales.data + token / p.scales.lines * p.scales.line_stride;
  for (int64_t block = own; block < p.scales_of_row; block += p.threads_of_row)
    p.row_scales[block * p.pitch_of_scales + row] = token >= 0 ? __ldg(from + block * p.scales.block_stride) : 0;
}

// Threads share rows out, not bytes: a division for each 16 took longer than to copy them. Rows that no expert has come
// along. The kernel of products may start as soon as this one has waited for what makes the ends.
__device__ inline void gather_rows(const GatherParams &p) {
  wait_for_kernel_before();
  let_next_kernel_start();
  if (p.next && global_thread() == 0) *p.next = 0;
  const int rows_at_once = blockDim.x / p.threads_of_row, own = threadIdx.x % p.threads_of_row;
  for (int64_t row = blockIdx.x * rows_at_once + threadIdx.x / p.threads_of_row; row < p.count_rows;
       row += gridDim.x * rows_at_once) {
    const int64_t named = load_integer(p.tokens, row), token = named < p.count_tokens ? named : -1;
    gather_codes(p, row, token, own);
    if (p.scales_of_row) gather_scales(p, row, token, own);
  }
}

// --- Weighted sums -------------------------------------------------------------------------------

// A warp has a token, and eight columns a lane at a time.
class Combine {
  // Some rows of the token, a lane each, and where to look for more.
  struct Found {
    int count, row, next;
  };

  const CombineParams &p_;
  const ProductParams &q_;
  const int lane_ = read_lane();
  int64_t token_ = int64_t{blockIdx.x} * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
  int routed_;  // rows that experts have

 public:
  __device__ explicit Combine(const CombineParams &p)
      : p_(p), q_(p.product), routed_(count_routed(p.ends, p.experts, p.routed)) {}

  __device__ void run() const {
    if (token_ >= q_.rows) return;
    const Found first = find(0);
    for (int column = (blockIdx.y * kWarpSize + lane_) * 8; column - lane_ * 8 < q_.columns;
         column += gridDim.y * kWarpSize * 8) {
      float sums[8] = {};
      Found found = first;
      add(found, column, sums);
      while (found.next < routed_) add(found = find(found.next), column, sums);
      store_eight(q_, static_cast<int>(token_), column, sums);
    }
  }

 private:
  __device__ Found find(int from) const {
    Found found = {0, 0, from};
    for (; found.next < routed_; found.next += kWarpSize) {
      const int row = found.next + lane_;
      unsigned here = __ballot_sync(kAllLanes, row < routed_ && load_integer(p_.tokens, row) == token_);
      if (found.count + __popc(here) > kWarpSize) break;
      for (; here; here &= here - 1, ++found.count)
        if (lane_ == found.count) found.row = found.next + __ffs(here) - 1;
    }
    return found;
  }

  // In the order of the rows; products are rounded before they are added, as on the host (-fmad=false).
  __device__ void add(const Found &found, int column, float (&sums)[8]) const {
    for (int i = 0; i < found.count; ++i) {
      const int64_t row = __shfl_sync(kAllLanes, found.row, i);
      if (column >= q_.columns) continue;
      const float weight = __ldg(p_.weights + row);
      const auto *from = reinterpret_cast<const float4 *>(p_.rows + row * p_.row_stride + column);
      const float4 low = from[0], high = from[1];
      const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int k = 0; k < 8; ++k) sums[k] += weight * values[k];
    }
  }
};

// On other GPUs, where the host does not call them, these are empty.
template <int Kind, int Type, RoutedRows Of, class Params>
__device__ __forceinline__ void multiply_grouped(const Params &p) {
#ifdef DLFP4_HOPPER
  Experts<Kind, Type, Of>(p).run();
#endif
}

__device__ inline void combine_rows(const CombineParams &p) { Combine(p).run(); }

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_PRODUCTS_CUDA_GROUPED_CUH_
