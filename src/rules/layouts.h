/* Where scale (i, j) of a matrix of scales lies, and byte (i, j) of a shuffled weight, on host and device.
 * Layout: offsets in elements (bytes of the weight) from the start of the padded, row-major matrix.
 * Trick: a function and a row a layout; every conversion and every kernel goes through them.
 */
#ifndef DLFP4_SRC_RULES_LAYOUTS_H_
#define DLFP4_SRC_RULES_LAYOUTS_H_

#include <stdint.h>

#ifdef __CUDACC__
#define DLFP4_OFFSET __host__ __device__ static inline int64_t
#else
#define DLFP4_OFFSET static inline int64_t
#endif

DLFP4_OFFSET dlfp4_offset_linear(int64_t i, int64_t j, int64_t columns) { return i * columns + j; }

/* cuBLAS, CUTLASS, torchao ("blocked"): tiles of 128 rows and 4 columns, in each of which four rows, 32 apart, share
 * 16 bytes. https://docs.nvidia.com/cuda/cublas, "1D block scaling factors layout" */
DLFP4_OFFSET dlfp4_offset_128x4(int64_t i, int64_t j, int64_t columns) {
  return (i / 128 * (columns / 4) + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
}

/* TensorRT-LLM: tiles of 8 rows and 4 columns. */
DLFP4_OFFSET dlfp4_offset_8x4(int64_t i, int64_t j, int64_t columns) {
  return (i / 8 * (columns / 4) + j / 4) * 32 + i % 8 * 4 + j % 4;
}

/* AITER's e8m0_shuffle, for AMD's MX matrix instructions. */
DLFP4_OFFSET dlfp4_offset_aiter(int64_t i, int64_t j, int64_t columns) {
  return i / 32 * 32 * columns + j / 8 * 256 + j % 4 * 64 + i % 16 * 4 + j % 8 / 4 * 2 + i % 32 / 16;
}

/* AITER's scales for gfx1250 ("n32k4"): tiles of 32 rows and 4 columns, the columns of a row together. */
DLFP4_OFFSET dlfp4_offset_n32k4(int64_t i, int64_t j, int64_t columns) {
  return i / 32 * 32 * columns + j / 4 * 128 + i % 32 * 4 + j % 4;
}

/* DeepGEMM's packed UE8M0: four bytes of a row are an int32, and the int32 of all rows follow one another, aligned to
 * 16 bytes. `rows` is the padded number of rows. */
DLFP4_OFFSET dlfp4_offset_deepgemm(int64_t i, int64_t j, int64_t rows) { return (j / 4 * rows + i) * 4 + j % 4; }

/* cuBLAS's and TransformerEngine's float32 scales of 1 x 128 blocks, transposed: columns follow one another, each
 * completed to 16 bytes; and of 128 x 128 blocks, whose rows are. https://docs.nvidia.com/cuda/cublas, "1D and 2D block
 * scaling for FP8" */
DLFP4_OFFSET dlfp4_offset_cublas_1x128(int64_t i, int64_t j, int64_t rows) { return j * rows + i; }
DLFP4_OFFSET dlfp4_offset_cublas_128x128(int64_t i, int64_t j, int64_t columns) { return i * columns + j; }

/* AITER's shuffle_weight (16, 16) of a matrix of bytes; rows a multiple of 16, columns one of 32. */
DLFP4_OFFSET dlfp4_offset_aiter_weight(int64_t i, int64_t j, int64_t columns) {
  return i / 16 * 16 * columns + j / 16 * 256 + i % 16 * 16 + j % 16;
}

/* A row per scale layout: name, the multiples that rows and columns are padded to, how many scales of a row lie next to
 * each other, from a column that is a multiple of that number (0: all of them), bytes of a scale (0: any), whether
 * columns follow one another, and the lines of the blocks that it is for (0: any). The pitch, the last argument of an
 * offset, is the padded number of columns, or of rows where columns follow one another. */
#define DLFP4_SCALE_LAYOUTS(ROW)      \
  ROW(linear, 1, 1, 0, 0, 0, 0)       \
  ROW(128x4, 128, 4, 4, 1, 0, 0)      \
  ROW(8x4, 8, 4, 4, 1, 0, 0)          \
  ROW(aiter, 256, 8, 1, 1, 0, 0)      \
  ROW(n32k4, 32, 4, 4, 1, 0, 0)       \
  ROW(deepgemm, 4, 4, 4, 1, 1, 0)     \
  ROW(cublas_1x128, 4, 1, 1, 4, 1, 1) \
  ROW(cublas_128x128, 1, 4, 4, 4, 0, 128)

enum {
#define DLFP4_LAYOUT_ENUM(name, rows, columns, run, bytes, by_rows, lines) DLFP4_LAYOUT_##name,
  DLFP4_SCALE_LAYOUTS(DLFP4_LAYOUT_ENUM)
#undef DLFP4_LAYOUT_ENUM
      DLFP4_NUM_LAYOUTS
};

typedef struct {
  const char *name;
  int32_t rows;
  int32_t columns;
  int32_t run;
  int32_t bytes;
  int32_t by_rows;
  int32_t lines;
} dlfp4_layout_row;

static const dlfp4_layout_row dlfp4_layouts[DLFP4_NUM_LAYOUTS] = {
#define DLFP4_LAYOUT_ROW(name, rows, columns, run, bytes, by_rows, lines) \
  {#name, rows, columns, run, bytes, by_rows, lines},
    DLFP4_SCALE_LAYOUTS(DLFP4_LAYOUT_ROW)
#undef DLFP4_LAYOUT_ROW
};

DLFP4_OFFSET dlfp4_scale_offset(int layout, int64_t i, int64_t j, int64_t pitch) {
  switch (layout) {
#define DLFP4_LAYOUT_CASE(name, rows, columns, run, bytes, by_rows, lines) \
  case DLFP4_LAYOUT_##name:                                                \
    return dlfp4_offset_##name(i, j, pitch);
    DLFP4_SCALE_LAYOUTS(DLFP4_LAYOUT_CASE)
#undef DLFP4_LAYOUT_CASE
    default:
      return 0;
  }
}

#endif /* DLFP4_SRC_RULES_LAYOUTS_H_ */
