// The AMX level's kernels for products: panels of the AVX-512 level, by tiles.
// Layout: two tiles of rows of x by two of columns, as they lie in a panel, whose pairs are what AMX multiplies.
// Trick: sums stay in four tiles for a whole panel, or a block; they leave by way of the L1 cache, and vectors, idle
// while tiles multiply, add them to their totals during the next run.
#include <string.h>

#include <type_traits>
#include <utility>

#include "avx512_sums.h"

namespace dlfp4 {
namespace {

constexpr int64_t kMostTileRows = 2 * kBand;
constexpr int64_t kTileBytes = 64;  // of a row of a tile
constexpr int64_t kItem = sizeof(uint16_t);
constexpr int64_t kStep = kTileBytes / kItem;  // positions of bfloat16 in one
constexpr int64_t kInCache = 512;              // positions of a panel that the L1 cache holds beside rows of x
constexpr int64_t kPanelRow = 2 * kTileBytes;
constexpr int64_t kSumsRow = kColumns * sizeof(float);

// Compilers do not know all that instructions for tiles read.
DLFP4_INLINE inline void finish_writes() { __asm__ volatile("" ::: "memory"); }

// --- Tiles -----------------------------------------------------------------------------------

// Sums are tiles 0 to 3, those of the first rows first; rows of x 4 and 5; columns 6 and 7.
struct alignas(64) Shapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];  // of a row
  uint8_t rows[16];
};

// The tiles of this thread, for runs of at most two bands. A tile has the rows of one, or where there is but one half
// of them each; they share the middle row of an odd number.
class Tiles {
 public:
  explicit Tiles(int64_t bytes) : bytes_(bytes) {}
  Tiles(const Tiles &) = delete;
  ~Tiles() { _tile_release(); }

  DLFP4_INLINE void take(int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    const int64_t heights[2] = {rows > kBand ? kBand : (rows + 1) / 2, rows > kBand ? rows - kBand : (rows + 1) / 2};
    second_ = rows - heights[1];
    Shapes shapes = {};
    shapes.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      const bool is_of_x = tile == 4 || tile == 5;
      shapes.bytes[tile] = static_cast<uint16_t>(is_of_x ? bytes_ : kTileBytes);
      shapes.rows[tile] = static_cast<uint8_t>(tile < 6 ? heights[is_of_x ? tile - 4 : tile / 2] : bytes_ / 4);
    }
    finish_writes();
    _tile_loadconfig(&shapes);
  }

  DLFP4_INLINE void clear() const {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }

  // Columns of a panel, and rows of x that are so many bytes apart. Rows, which are read once, go by the L1 cache: the
  // panel stays there.
  DLFP4_INLINE void load(const void *panel, const void *first, const void *second, int64_t pitch) const {
    _tile_loadd(6, panel, kPanelRow);
    _tile_stream_loadd(4, first, pitch);
    _tile_loadd(7, static_cast<const uint8_t *>(panel) + kTileBytes, kPanelRow);
    _tile_stream_loadd(5, second, pitch);
  }

  // The second tile's first row.
  int64_t second() const { return second_; }

  // Dwords in rows of kColumns.
  DLFP4_INLINE void store(void *sums) const {
    uint8_t *const first = static_cast<uint8_t *>(sums), *const second = first + second_ * kSumsRow;
    _tile_stored(0, first, kSumsRow);
    _tile_stored(1, first + kTileBytes, kSumsRow);
    _tile_stored(2, second, kSumsRow);
    _tile_stored(3, second + kTileBytes, kSumsRow);
  }

 private:
  const int64_t bytes_;  // of a row of x in a tile
  int64_t rows_ = 0, second_ = 0;
};

// --- bfloat16 --------------------------------------------------------------------------------

// Rows of the second tile begin so many positions after the first's.
DLFP4_INLINE inline void add_bfloats(const Tiles &tiles, const void *panel, const uint16_t *x, int64_t second) {
  tiles.load(panel, x, x + second, kBandBytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Bands are so many positions apart.
DLFP4_INLINE inline int64_t find_second(const Tiles &tiles, int64_t band) {
  return tiles.second() < kBand ? tiles.second() * kStep : band;
}

// Less than a step: what lies in the panel beyond is completed with zeros.
void add_last_bfloats(const Tiles &tiles, const uint16_t *panel, int64_t depth, const uint16_t *x, int64_t second) {
  alignas(64) uint16_t last[kStep * kColumns] = {};
  memcpy(last, panel, static_cast<size_t>(depth * kColumns) * sizeof(*panel));
  finish_writes();
  add_bfloats(tiles, last, x, second);
}

// Adds to the tiles' sums. Calls beside() before each whole step's products.
template <class Beside>
DLFP4_INLINE inline void sum_bfloats(const Tiles &tiles, const uint16_t *panel, const uint16_t *x, int64_t pitch,
                                     int64_t depth, Beside beside) {
  const int64_t rest = depth % kStep, second = find_second(tiles, kBand * pitch);
  for (int64_t steps = depth / kStep; steps > 0; --steps, panel += kStep * kColumns, x += kStep * kBand) {
    beside();
    add_bfloats(tiles, panel, x, second);
  }
  if (rest) add_last_bfloats(tiles, panel, rest, x, second);
}

// Calls call(first row, number of rows) for two bands at a time.
template <class Call>
DLFP4_INLINE inline void each_run(int64_t rows, Call call) {
  for (int64_t first = 0; first < rows; first += kMostTileRows)
    call(first, rows - first < kMostTileRows ? rows - first : kMostTileRows);
}

int64_t steps_of(int64_t rows, int64_t depth, int64_t step) {
  return ((rows + kMostTileRows - 1) / kMostTileRows) * ((depth + step - 1) / step);
}

// The sums of a run, and the totals to which they go.
struct RunSums {
  alignas(64) float values[kMostTileRows * kColumns];
  double *totals = nullptr;
  int64_t count = 0;
};

constexpr int kVectors = kMostTileRows * kColumns / kLanes / (kInCache / kStep);  // that a step adds

// Asks for what lies ahead, a little with each step of a run. Codes and rows that are next begin at a line of the
// cache; rows lie in bands that are so many bytes apart.
class Asking {
 public:
  Asking(const uint8_t *codes, int64_t codes_step, const uint8_t *rows, int64_t rows_step, int64_t band)
      : codes_(codes), rows_(rows), codes_step_(codes_step), rows_step_(rows_step), band_(band) {}

  DLFP4_INLINE void operator()() {
    for (const uint8_t *const end = codes_ + codes_step_; codes_ < end; codes_ += kTileBytes) ask_for(codes_);
    for (const uint8_t *const end = rows_ + rows_step_; rows_ < end; rows_ += kTileBytes) {
      ask_for(rows_);
      ask_for(rows_ + band_);
    }
  }

 private:
  DLFP4_INLINE static void ask_for(const uint8_t *at) { _mm_prefetch(reinterpret_cast<const char *>(at), _MM_HINT_T1); }

  const uint8_t *codes_, *rows_;
  const int64_t codes_step_, rows_step_, band_;
};

// Adds a run's sums to their totals, a little with each step of the next.
class Adding {
 public:
  explicit Adding(const RunSums &run) : sums_(run.values), totals_(run.totals) {}

  DLFP4_INLINE void operator()() {
    for (int i = 0; i < kVectors; ++i, sums_ += kLanes, totals_ += kLanes) add_to(totals_, _mm512_load_ps(sums_));
  }

 private:
  const float *sums_;
  double *totals_;
};

void add_sums(const RunSums &run) {
  for (int64_t i = 0; i < run.count; i += kLanes) add_to(run.totals + i, _mm512_load_ps(run.values + i));
}

// Of so many bytes, what each step asks for: whole lines of the cache.
int64_t bytes_of_step(int64_t bytes, int64_t steps) {
  return (bytes + steps * kTileBytes - 1) / (steps * kTileBytes) * kTileBytes;
}

// What all runs of a panel ask for.
struct Asked {
  const Ahead &ahead;
  const int64_t pitch, codes_step, rows_step;  // in bytes

  Asked(const Ahead &what, int64_t of_rows, int64_t depth, int64_t rows)
      : ahead(what),
        pitch(of_rows * kItem),
        codes_step(bytes_of_step(what.bytes, steps_of(rows, depth, kStep))),
        rows_step(bytes_of_step(what.row_bytes, (depth + kStep - 1) / kStep)) {}

  // By a run of so many rows, from a step on, where so many steps went before in all.
  Asking by(int64_t first, int64_t count, int64_t step, int64_t before) const {
    return {ahead.from + before * codes_step, codes_step, ahead.rows + first * pitch + step * rows_step, rows_step,
            count > kBand ? kBand * pitch : 0};
  }
};

void multiply_bfloats(const uint16_t *panel, const uint16_t *x, int64_t pitch, int64_t depth, int64_t rows,
                      const Ahead &ahead, double *totals) {
  RunSums sums[2], *last = sums, *now = sums + 1;
  Tiles tiles(kTileBytes);
  const Asked asked(ahead, pitch, depth, rows);
  int64_t steps = 0;
  for (int64_t k = 0; k < depth; k += kInCache)
    each_run(rows, [&](int64_t first, int64_t count) {
      const int64_t here = depth - k < kInCache ? depth - k : kInCache;
      const uint16_t *const from = panel + k * kColumns, *const run = x + first * pitch + k * kBand;
      Asking ask = asked.by(first, count, k / kStep, steps);
      Adding add(*last);
      tiles.take(count);
      tiles.clear();
      if (last->count == kMostTileRows * kColumns && here == kInCache) {
        sum_bfloats(tiles, from, run, pitch, here, [&ask, &add]() DLFP4_INLINE { ask(), add(); });
      } else {
        add_sums(*last);
        sum_bfloats(tiles, from, run, pitch, here, [&ask]() DLFP4_INLINE { ask(); });
      }
      tiles.store(now->values);
      now->totals = totals + first * kColumns;
      now->count = count * kColumns;
      steps += here / kStep;
      std::swap(last, now);
    });
  add_sums(*last);
}

// Blocks whose sums are scaled begin where a piece of a band does.
constexpr bool are_whole_steps() {
  for (int place = 0; place < kNumKeys; ++place) {
    const BlockKey &key = kBlockKeys[place];
    if (sums_elements(key) && key.scale == DLFP4_float32 && key.length % kStep != 0) return false;
  }
  return true;
}
static_assert(are_whole_steps());

constexpr int64_t kScaledPart = 128;  // positions of a block during which sums of the block before are scaled
constexpr int64_t kScaledRows = kMostTileRows / (kScaledPart / kStep);  // in a step

// A run's sums of a block that are still to be scaled, and of the blocks before. All leave with those of the last.
struct BlockSums {
  alignas(64) float values[kMostTileRows * kColumns];
  alignas(64) float before[kMostTileRows * kColumns] = {};
  const float *of_columns = nullptr, *of_rows = nullptr;  // scales; those of rows are so far apart
  int64_t pitch = 0, rows = 0;
  double *totals = nullptr;  // null: the run has another block
};

// Scales a block's rows, a few at a time. Not scale by scale: that product may be none of float32's.
template <bool kIsLast>
class Scaling {
 public:
  explicit Scaling(BlockSums *block)
      : low_(_mm512_load_ps(block->of_columns)),
        high_(_mm512_load_ps(block->of_columns + kLanes)),
        of_rows_(block->of_rows),
        pitch_(block->pitch),
        values_(block->values),
        before_(block->before),
        totals_(block->totals) {}

  DLFP4_INLINE void operator()(int64_t rows) {
    for (int64_t i = 0; i < rows; ++i, of_rows_ += pitch_) {
      const __m512 of_row = _mm512_set1_ps(*of_rows_);
      scale(low_, of_row);
      scale(high_, of_row);
    }
  }

 private:
  DLFP4_INLINE void scale(__m512 of_columns, __m512 of_row) {
    const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(values_), of_columns);
    const __m512 sums = _mm512_fmadd_ps(scaled, of_row, _mm512_load_ps(before_));
    _mm512_store_ps(before_, kIsLast ? _mm512_setzero_ps() : sums);
    if (kIsLast) add_to(totals_, sums), totals_ += kLanes;
    values_ += kLanes, before_ += kLanes;
  }

  const __m512 low_, high_;
  const float *of_rows_;
  const int64_t pitch_;
  const float *values_;
  float *before_;
  double *totals_;
};

template <bool kIsLast>
void scale_block(BlockSums *block) {
  Scaling<kIsLast> scale(block);
  scale(block->rows);
}

void add_block(BlockSums *block) {
  if (block->rows > 0) block->totals ? scale_block<true>(block) : scale_block<false>(block);
}

void multiply_scaled_bfloats(const uint16_t *panel, const float *scales, const BfloatRows &x, int64_t block,
                             int64_t depth, int64_t rows, const Ahead &ahead, double *totals) {
  BlockSums sums;
  Tiles tiles(kTileBytes);
  const Asked asked(ahead, x.pitch, depth, rows);
  int64_t steps = 0;
  each_run(rows, [&](int64_t first, int64_t count) {
    const BfloatRows run = rows_from(x, first);
    tiles.take(count);
    for (int64_t k = 0, b = 0; k < depth; k += block, ++b) {
      const int64_t here = depth - k < block ? depth - k : block;
      const int64_t scaled = sums.rows == kMostTileRows && here >= kScaledPart ? kScaledPart : 0;
      Asking ask = asked.by(first, count, k / kStep, steps);
      const auto sum_beside = [&](auto is_last) DLFP4_INLINE {
        Scaling<is_last()> scale(&sums);
        sum_bfloats(tiles, panel + k * kColumns, run.values + k * kBand, run.pitch, kScaledPart,
                    [&]() DLFP4_INLINE { ask(), scale(kScaledRows); });
      };
      tiles.clear();
      if (!scaled)
        add_block(&sums);
      else if (sums.totals)
        sum_beside(std::true_type());
      else
        sum_beside(std::false_type());
      sum_bfloats(tiles, panel + (k + scaled) * kColumns, run.values + (k + scaled) * kBand, run.pitch, here - scaled,
                  [&ask]() DLFP4_INLINE { ask(); });
      tiles.store(sums.values);
      sums.of_columns = scales + b * kColumns, sums.of_rows = run.scales + b;
      sums.pitch = run.block_pitch, sums.rows = count;
      sums.totals = k + block < depth ? nullptr : totals + first * kColumns;
      steps += here / kStep;
    }
  });
  add_block(&sums);
}

}  // namespace

void add_amx_products(ProductKernels *kernels) {
  kernels->tiles.multiply_bfloats = multiply_bfloats;
  kernels->tiles.multiply_scaled_bfloats = multiply_scaled_bfloats;
  kernels->tiles.take_bands = true;
  kernels->lines.most_bfloat_rows = 4;
}

}  // namespace dlfp4
