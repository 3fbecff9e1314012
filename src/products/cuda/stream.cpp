// Warps share K in slices, and a warp's memory has to hold the sums of all its tiles.
#include "stream.h"

#include <algorithm>

#include "gpu/launch.h"
#include "grouped.h"
#include "rules/matrix.h"

namespace dlfp4 {
namespace cuda {

namespace {

constexpr int kLeastWarps = 12;  // fewer wait for memory, where there are slices for more

// Warps go round the four schedulers of a multiprocessor, of which the busiest decides: how many slices its warps have.
int slices_of_scheduler(int slices, int warps) {
  constexpr int kSchedulers = 4;
  return static_cast<int>(divide_up(warps, kSchedulers) * (slices / warps) + divide_up(slices % warps, kSchedulers));
}

class Cutter {
  int kind_, eights_, memory_, slices_, most_, least_;

 public:
  Cutter(const ProductParams &product, int kind, int eights, int memory)
      : kind_(kind),
        eights_(eights),
        memory_(memory - kFactorBytes),
        slices_(static_cast<int>(divide_up(product.blocks, slice_blocks(weight_layout(kind).bits)))),
        most_(std::min({slices_, kMostWarps, memory_ / warp_memory(kind, eights, 1, false).bytes})),
        least_(std::min(most_, kLeastWarps)) {}

  int most_tiles() const { return memory_ / (least_ * sums_bytes_of_tile(eights_)); }

  bool fits(int warps, int tiles) const { return warps * memory_of(warps, tiles).bytes <= memory_; }

  // Those that share K best, or 0 for too many tiles.
  int warps_for(int tiles) const {
    int best = 0;
    for (int warps = most_; warps >= least_; --warps)
      if (fits(warps, tiles) && (best == 0 || slices_of_scheduler(slices_, warps) < slices_of_scheduler(slices_, best)))
        best = warps;
    return best;
  }

  StreamCut cut(int warps, int tiles) const {
    const int slices_of_warp = static_cast<int>(divide_up(slices_, warps));
    return {tiles, slices_of_warp, slices_ - (slices_of_warp - 1) * warps, memory_of(warps, tiles)};
  }

 private:
  WarpMemory memory_of(int warps, int tiles) const { return warp_memory(kind_, eights_, tiles, warps >= slices_); }
};

}  // namespace

StreamCut cut_stream(const ProductParams &product, int kind, int eights, int64_t most_tiles, int *warps) {
  const Cutter cutter(product, kind, eights, most_shared_memory());
  const int64_t all = divide_up(product.columns, kTile);
  int tiles = static_cast<int>(std::min({all, int64_t{cutter.most_tiles()}, most_tiles}));
  while (tiles > 1 && cutter.warps_for(tiles) == 0) --tiles;
  *warps = cutter.warps_for(tiles);
  return cutter.cut(*warps, tiles);
}

int cut_streamed_experts(const ProductParams &product, int kind, int *warps, StreamedCut *cut) {
  const StreamCut of_one_tile = cut_stream(product, kind, kStreamedRows / 8, 1, warps);
  cut->slices_of_warp = of_one_tile.slices_of_warp;
  cut->full_warps = of_one_tile.full_warps;
  cut->stage = of_one_tile.slices_of_warp * x_slice_bytes(kind, kStreamedRows / 8);
  cut->bytes = cut->stage + kStreamStages * slice_of_tile_bytes(kind);
  cut->sums = *warps * cut->bytes;
  cut->barriers = cut->sums + kPassed * sums_bytes_of_tile(kStreamedRows / 8);
  cut->schedule = cut->barriers + *warps * kPassed * 8;
  return cut->schedule + kStreamScheduleBytes;
}

int stream_shared_bytes(int bytes) { return std::max(bytes, (most_shared_memory() - kFactorBytes) / 2 + 1); }

}  // namespace cuda
}  // namespace dlfp4
