// The AMX level's kernels for products: panels of the AVX-512 level, by tiles.
// Layout: two tiles of rows of x by two of columns, as they lie in a panel, whose pairs are what AMX multiplies.
// Trick: sums stay in four tiles for a whole panel, or a block; they leave by way of the L1 cache.
#include <string.h>

#include "avx512_sums.h"

namespace dlfp4 {
namespace {

constexpr int64_t kMostTileRows = 2 * kBand;
constexpr int64_t kTileBytes = 64;         // of a row of a tile
constexpr int64_t kStep = kTileBytes / 2;  // positions of bfloat16 in one
constexpr int64_t kInCache = 512;          // positions of a panel that the L1 cache holds beside rows of x
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

  // Columns of a panel, and rows of x that are so many bytes apart.
  DLFP4_INLINE void load(const void *panel, const void *first, const void *second, int64_t pitch) const {
    _tile_loadd(6, panel, kPanelRow);
    _tile_loadd(4, first, pitch);
    _tile_loadd(7, static_cast<const uint8_t *>(panel) + kTileBytes, kPanelRow);
    _tile_loadd(5, second, pitch);
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

// --- What lies ahead -------------------------------------------------------------------------

// Asks for all of it, a little with each of so many steps.
class Prefetching {
 public:
  Prefetching(const Ahead &ahead, int64_t steps)
      : at_(ahead.from), end_(at_ + ahead.bytes), step_((ahead.bytes / steps / kTileBytes + 1) * kTileBytes) {}

  DLFP4_INLINE void operator()() {
    for (int64_t byte = 0; byte < step_ && at_ < end_; byte += kTileBytes, at_ += kTileBytes)
      _mm_prefetch(reinterpret_cast<const char *>(at_), _MM_HINT_T1);
  }

 private:
  const uint8_t *at_, *const end_;
  const int64_t step_;
};

// --- bfloat16 --------------------------------------------------------------------------------

// Bands are so many positions apart.
DLFP4_INLINE inline void add_bfloats(const Tiles &tiles, const void *panel, const uint16_t *x, int64_t band) {
  tiles.load(panel, x, x + (tiles.second() < kBand ? tiles.second() * kStep : band), kBandBytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Less than a step: what lies in the panel beyond is completed with zeros.
void add_last_bfloats(const Tiles &tiles, const uint16_t *panel, int64_t depth, const uint16_t *x, int64_t band) {
  alignas(64) uint16_t last[kStep * kColumns] = {};
  memcpy(last, panel, static_cast<size_t>(depth * kColumns) * sizeof(*panel));
  finish_writes();
  add_bfloats(tiles, last, x, band);
}

DLFP4_INLINE inline void sum_bfloats(const Tiles &tiles, const uint16_t *panel, const uint16_t *x, int64_t pitch,
                                     int64_t depth, Prefetching *ask) {
  const int64_t whole = depth / kStep * kStep, band = kBand * pitch;
  tiles.clear();
  for (int64_t k = 0; k < whole; k += kStep) {
    (*ask)();
    add_bfloats(tiles, panel + k * kColumns, x + k * kBand, band);
  }
  if (whole < depth) add_last_bfloats(tiles, panel + whole * kColumns, depth - whole, x + whole * kBand, band);
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

void multiply_bfloats(const uint16_t *panel, const uint16_t *x, int64_t pitch, int64_t depth, int64_t rows,
                      const Ahead &ahead, double *totals) {
  alignas(64) float sums[kMostTileRows * kColumns];
  Tiles tiles(kTileBytes);
  Prefetching ask(ahead, steps_of(rows, depth, kStep));
  for (int64_t k = 0; k < depth; k += kInCache)
    each_run(rows, [&](int64_t first, int64_t count) {
      tiles.take(count);
      sum_bfloats(tiles, panel + k * kColumns, x + first * pitch + k * kBand, pitch,
                  depth - k < kInCache ? depth - k : kInCache, &ask);
      tiles.store(sums);
      for (int64_t i = 0; i < count * kColumns; i += kLanes)
        add_to(totals + first * kColumns + i, _mm512_load_ps(sums + i));
    });
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

// Not scale by scale: that product may be none of float32's.
void add_scaled_sums(const float *sums, const float *scales, const BfloatRows &x, int64_t block, int64_t rows,
                     float *of_all) {
  const __m512 first = _mm512_load_ps(scales), second = _mm512_load_ps(scales + kLanes);
  for (int64_t i = 0; i < rows; ++i, sums += kColumns, of_all += kColumns) {
    const __m512 scale = _mm512_set1_ps(x.scales[i * x.block_pitch + block]);
    const __m512 low = _mm512_mul_ps(_mm512_load_ps(sums), first);
    const __m512 high = _mm512_mul_ps(_mm512_load_ps(sums + kLanes), second);
    _mm512_store_ps(of_all, _mm512_fmadd_ps(low, scale, _mm512_load_ps(of_all)));
    _mm512_store_ps(of_all + kLanes, _mm512_fmadd_ps(high, scale, _mm512_load_ps(of_all + kLanes)));
  }
}

void multiply_scaled_bfloats(const uint16_t *panel, const float *scales, const BfloatRows &x, int64_t block,
                             int64_t depth, int64_t rows, const Ahead &ahead, double *totals) {
  alignas(64) float sums[kMostTileRows * kColumns], of_all[kMostTileRows * kColumns];
  Tiles tiles(kTileBytes);
  Prefetching ask(ahead, steps_of(rows, depth, kStep));
  each_run(rows, [&](int64_t first, int64_t count) {
    const BfloatRows run = rows_from(x, first);
    tiles.take(count);
    memset(of_all, 0, sizeof(of_all));
    for (int64_t k = 0, b = 0; k < depth; k += block, ++b) {
      const int64_t here = depth - k < block ? depth - k : block;
      sum_bfloats(tiles, panel + k * kColumns, run.values + k * kBand, run.pitch, here, &ask);
      tiles.store(sums);
      add_scaled_sums(sums, scales + b * kColumns, run, b, count, of_all);
    }
    for (int64_t i = 0; i < count * kColumns; i += kLanes)
      add_to(totals + first * kColumns + i, _mm512_load_ps(of_all + i));
  });
}

}  // namespace

void add_amx_products(ProductKernels *kernels) {
  kernels->tiles.multiply_bfloats = multiply_bfloats;
  kernels->tiles.multiply_scaled_bfloats = multiply_scaled_bfloats;
  kernels->tiles.take_bands = true;
}

}  // namespace dlfp4
