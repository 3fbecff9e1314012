// Rows times weights of their experts where these have few: the weights pass once, as in few_rows.cuh.
// Layout: the work is tiles of 16 rows of weights by up to 16 rows of their expert, in the order of experts; each block
// of threads has as many as any other, which follow one another. It reads where experts' rows end, and counts the tiles
// itself.
#ifndef DLFP4_SRC_PRODUCTS_CUDA_GROUPED_STREAM_CUH_
#define DLFP4_SRC_PRODUCTS_CUDA_GROUPED_STREAM_CUH_

#include "few_rows.cuh"
#include "routing.cuh"

namespace dlfp4 {
namespace cuda {

static_assert(sizeof(StreamPlace) <= kStreamPlaceBytes, "");

template <int Kind, int Type>
class StreamedExperts {
  const GroupedStreamParams &p_;
  const ProductParams &q_;
  int *const ends_, *const tiles_;  // up to an expert, its own included
  StreamPlace &place_;              // in shared memory, for registers are scarce

 public:
  __device__ explicit StreamedExperts(const GroupedStreamParams &p)
      : p_(p),
        q_(p.product),
        ends_(reinterpret_cast<int *>(shared_memory + p.schedule)),
        tiles_(ends_ + kMostExperts),
        place_(*reinterpret_cast<StreamPlace *>(tiles_ + kMostExperts)) {}

  __device__ void run() const {
    let_next_kernel_start();
    wait_for_kernel_before();
    load_ends(p_, ends_);
    if (threadIdx.x < kWarpSize) count();
    __syncthreads();
    for (int tile = first_of_block(blockIdx.x); tile < first_of_block(blockIdx.x + 1);) tile = multiply(tile);
    clear_rows(q_, ends_[p_.experts - 1], threadIdx.x, blockDim.x);
  }

 private:
  // Of all experts' weights, whose first and last tile may be a neighbour's too.
  __device__ int first_tile(int expert) const { return static_cast<int>(int64_t{expert} * q_.columns / kTile); }
  __device__ int count_tiles(int expert) const {
    return static_cast<int>((int64_t{expert + 1} * q_.columns + kTile - 1) / kTile) - first_tile(expert);
  }

  __device__ void count() const {
    const auto count_of = [&](int expert, int rows) {
      return (rows + kStreamedRows - 1) / kStreamedRows * count_tiles(expert);
    };
    add_up_experts(ends_, p_.experts, count_of, [&](int expert, int end, int sum) {
      ends_[expert] = end;
      tiles_[expert] = sum;
    });
  }

  __device__ int first_of_block(int block) const {
    return static_cast<int>(int64_t{tiles_[p_.experts - 1]} * block / gridDim.x);
  }

  // From a tile on as many as fit at a time; the first one that is left.
  __device__ int multiply(int tile) const {
    const StreamPlace place = place_of(tile);
    if (threadIdx.x == 0) place_ = place;
    __syncthreads();
    if (has_more(place))
      FewRows<Kind, Type, 2, false>(q_, p_.cuts[1], place_).run();
    else
      FewRows<Kind, Type, 1, false>(q_, p_.cuts[0], place_).run();
    wait_for_copies<0>();
    const int done = place_.tiles;
    __syncthreads();  // all have read that, and the sums
    return tile + done;
  }

  // In even parts of what the block has of an expert's rows.
  __device__ StreamPlace place_of(int tile) const {
    const int expert = find_expert(tiles_, p_.experts, tile), of_expert = count_tiles(expert);
    const int in_expert = tile - (expert ? tiles_[expert - 1] : 0), first = in_expert % of_expert;
    StreamPlace place;
    place.first_tile = first_tile(expert) + first;
    place.first_row = (expert ? ends_[expert - 1] : 0) + in_expert / of_expert * kStreamedRows;
    place.end_row = ends_[expert];
    place.first_column = expert * q_.columns;
    place.factor = q_.factors[0] ? q_.factors[0] + expert * p_.factor_step : nullptr;
    const int left = min(first_of_block(blockIdx.x + 1) - tile, of_expert - first);
    const int parts = (left - 1) / p_.cuts[has_more(place)].tiles + 1;
    place.tiles = (left + parts - 1) / parts;
    return place;
  }

  __device__ static bool has_more(const StreamPlace &place) { return place.end_row - place.first_row > 8; }
};

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
