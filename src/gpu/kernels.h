/* The operations of dlfp4.h on CUDA memory, in the order of a stream.
 *
 * All return 0, a CUresult, DLFP4_CUDA_MISSING, or -(DLFP4_CUDA_REFUSED + a dlfp4_status) for a description that the
 * kernels do not take. None waits, none allocates: all can be captured in a graph.
 */
#ifndef DLFP4_SRC_GPU_KERNELS_H_
#define DLFP4_SRC_GPU_KERNELS_H_

#include <stdint.h>

#include "rules/operations.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* of the library, for the extension */

#define DLFP4_CUDA_NO_IMAGE (-2) /* this build has no CUDA kernels */
#define DLFP4_CUDA_REFUSED 100
#define DLFP4_CUDA_CAPTURE_IMPLICIT 906 /* CUDA_ERROR_STREAM_CAPTURE_IMPLICIT */

int dlfp4_cuda_convert(int device, uintptr_t stream, const dlfp4_view *src, const dlfp4_view *dst,
                       const dlfp4_convert_options *options);

/* The decode scale of the whole tensor, of formats that have one. All pointers are to the device. */
typedef struct {
  const float *given; /* NULL: `number` is the scale, or, if that is 0, it is found in x */
  float number;
  float *places[2]; /* where the scale of each result is kept; the second may be NULL */
} dlfp4_cuda_scale;

int dlfp4_cuda_quantize(int device, uintptr_t stream, const dlfp4_matrix *x, int format, const dlfp4_recipe *recipe,
                        const dlfp4_cuda_scale *scale, const dlfp4_blocks *along_rows,
                        const dlfp4_blocks *along_columns);

/* Whether it is faster from a compact copy of `x`, which is then read by vectors. */
int dlfp4_cuda_quantizes_slowly(const dlfp4_matrix *x, int format);

/* `decode` is on the device, or NULL. */
int dlfp4_cuda_dequantize(int device, uintptr_t stream, const dlfp4_blocks *q, int format, const float *decode,
                          const dlfp4_matrix *result);

int dlfp4_cuda_convert_scales(int device, uintptr_t stream, const void *src, int src_layout, void *dst, int dst_layout,
                              int64_t rows, int64_t columns, int itemsize, uint8_t fill);

int dlfp4_cuda_shuffle_weight(int device, uintptr_t stream, const void *src, void *dst, int64_t rows, int64_t columns,
                              int back);

/* All pointers are to the device, that of the result included. */
int dlfp4_cuda_find_changes(int device, uintptr_t stream, const dlfp4_grid *grid, const float *before,
                            const float *after, float *changes, float *sizes, int joins);
int dlfp4_cuda_sum_up_changes(int device, uintptr_t stream, const float *changes, const float *sizes, int64_t blocks,
                              dlfp4_changes *result);
int dlfp4_cuda_take_better(int device, uintptr_t stream, const dlfp4_grid *grid, const float *exact, int64_t code_bytes,
                           const dlfp4_stored *best, const dlfp4_stored *other);

/* One side of sums of products: lines of any number of axes. */
typedef struct {
  dlfp4_lines lines;      /* but for step and decode */
  const int64_t *strides; /* from line to line, an axis each */
  const float *decode;    /* the tensor's scale, on the device, or NULL */
} dlfp4_cuda_lines;

/* result[i] = the sum of a(i, k) * b(i, k) over k < length, for the lines i of `shape` in row-major order: see
 * dlfp4_host_vecdot. `workspace` is of dlfp4_cuda_vecdot_workspace numbers, on the device. */
int64_t dlfp4_cuda_vecdot_workspace(int64_t lines, int64_t length);
int dlfp4_cuda_vecdot(int device, uintptr_t stream, const dlfp4_cuda_lines *a, const dlfp4_cuda_lines *b, int ndim,
                      const int64_t *shape, int64_t length, float *result, double *workspace);

/* --- Products with prepared weights: see prepared.h ----------------------------------------------------------------
 */

/* The prepared form of `rows` rows of a format's elements: blocks of code_bytes and, after them, scale_bytes. Those of
 * each `block_rows` rows follow one another. All zero for formats that have none. */
typedef struct {
  int64_t blocks, code_bytes, scale_bytes, block_rows;
} dlfp4_cuda_prepared_size;
dlfp4_cuda_prepared_size dlfp4_cuda_size_prepared(int format, int64_t rows, int64_t columns);

/* What dlfp4_cuda_inspect writes to the device, over zeros. */
typedef struct {
  uint32_t refused;  /* something is there that the prepared form does not hold */
  uint32_t largest;  /* scale byte, of power-of-two scales */
  uint32_t smallest; /* 255 - the smallest of blocks that are not all zero */
} dlfp4_cuda_report;
int dlfp4_cuda_inspect(int device, uintptr_t stream, const dlfp4_blocks *w, int format, int64_t rows,
                       dlfp4_cuda_report *report);

/* Whether weights with such a report can be prepared, and multiplied exactly as float16 as well as bfloat16. */
int dlfp4_cuda_can_prepare(int format, const dlfp4_cuda_report *report);
int dlfp4_cuda_is_exact_in_half(int format, const dlfp4_cuda_report *report);

/* To the prepared form, or `back`. */
int dlfp4_cuda_prepare(int device, uintptr_t stream, const dlfp4_blocks *w, int format, int64_t rows, int largest,
                       void *prepared, int back);

/* y = alpha * x @ w.T, with the factors (on the device, or NULL). x has 16-byte aligned rows and depth % 8 == 0.
 *
 * With x_scales, x is FP4 of the weights' format, which "stream" alone takes: packed codes and linear scales with rows
 * that are multiples of 16 bytes apart and aligned so (scales of MXFP4: of 8 bytes), and a depth that
 * dlfp4_cuda_reads_codes knows. */
typedef struct {
  const void *weights;
  int format;
  int largest;
  const void *x;
  int64_t x_stride; /* in elements */
  int x_is_half;    /* float16, not bfloat16 */
  const void *x_scales;
  int64_t x_scale_stride;
  void *y;
  int64_t y_stride;
  int y_bytes, y_is_half;
  int64_t rows, columns, depth;
  int64_t stored_depth; /* what the weights were prepared with */
  float alpha;
  const float *factors[2];
} dlfp4_cuda_product;

/* The ways to compute it, by number; NULL past the last. */
const char *dlfp4_cuda_tactic_name(int tactic);

/* Those that the current image has for a device and that fit a problem, the best guess first, and how many. */
int dlfp4_cuda_find_tactics(int device, int format, int64_t rows, int64_t columns, int64_t depth, int *tactics,
                            int capacity, int *count);

/* The elements of K that such a tactic takes at a time of an x in codes of this format, so that depth is a multiple of
 * them; 0 where it takes none. */
int64_t dlfp4_cuda_reads_codes(int format, int64_t depth, int tactic);

int dlfp4_cuda_multiply(int device, uintptr_t stream, const dlfp4_cuda_product *product, int tactic);

/* A matrix of FP8 as it lies: rows of bytes side by side, 16 bytes apart or multiples of it. Its float32 scales serve
 * `scale_lines` rows and 128 of K each; where 0 there is one for the tensor, or none. */
typedef struct {
  const void *data;
  int64_t stride;
  int is_e5m2;
  const float *scales;
  int64_t scale_stride, scale_step; /* from scale to scale along the rows, and along K: 0 where one serves a row */
  int scale_lines;
} dlfp4_cuda_bytes;

/* y = alpha * x @ w.T on tensor cores of compute capability 9.0: sums of 128 products are theirs, of some 14 bits, and
 * those sums are added in float32. Without scales on one side, that of the other has to be of the tensor. */
typedef struct {
  dlfp4_cuda_bytes x, w;
  void *y;
  int64_t y_stride;
  int y_bytes, y_is_half;
  int64_t rows, columns, depth;
  float alpha;
} dlfp4_cuda_bytes_product;

/* As dlfp4_cuda_find_tactics. */
int dlfp4_cuda_find_bytes_tactics(int device, const dlfp4_cuda_bytes_product *product, int *tactics, int capacity,
                                  int *count);

int dlfp4_cuda_multiply_bytes(int device, uintptr_t stream, const dlfp4_cuda_bytes_product *product, int tactic);

/* --- Which operands of FP8 by FP8 are taken, by which kernel, and what is done before: see byte_operands.cpp --------
 */

/* Why lines are not a side of such a product as they lie: their elements are not E4M3 or E5M2; they have scales other
 * than float32 ones, of 128 of K or more each; these lie in a layout that kernels do not read. */
typedef enum {
  DLFP4_CUDA_BYTES_TAKEN = 0,
  DLFP4_CUDA_BYTES_ELEMENTS,
  DLFP4_CUDA_BYTES_SCALES,
  DLFP4_CUDA_BYTES_LAYOUT
} dlfp4_cuda_bytes_refusal;

/* Of a format in a layout of scales, or, with format -1, of plain elements of a row of dtypes.def. */
dlfp4_cuda_bytes_refusal dlfp4_cuda_refuses_bytes(int format, int dtype, int layout);

/* Whether bulk copies read `rows` rows of `length` bytes each: (i, k) lies at i * strides[0] + k * strides[1]. */
int dlfp4_cuda_reads_rows_of_bytes(const void *data, const int64_t *strides, int64_t rows, int64_t length);

/* Lines of a matrix as a side: `count` of them, of `length` elements. */
dlfp4_status dlfp4_cuda_read_bytes(const dlfp4_lines *lines, int64_t count, int64_t length, dlfp4_cuda_bytes *side);

/* The largest number of rows that shares a choice of kernel with `rows`: up to 16 each has its own, from one power of
 * two to the next there are four. */
int64_t dlfp4_cuda_bucket_of_rows(int64_t rows);

/* The best guess, where nothing was measured: that of the rows' bucket. */
int dlfp4_cuda_choose_tactic(int device, int format, int64_t rows, int64_t columns, int64_t depth, int *tactic);
int dlfp4_cuda_choose_bytes_tactic(int device, const dlfp4_cuda_bytes_product *product, int *tactic);

/* The products of dlfp4_host_grouped_matmul, with everything on the device, where the host does not look: ends that
 * decrease or are beyond the product's rows count as the nearest ones that do not, and rows with an index out of range
 * as none. Routed rows beyond the last end are zero. A product has all experts' weights: `columns` rows of each, one
 * expert's after the other's, as one matrix; its `rows` are the routed ones. */
typedef struct {
  int64_t experts;
  const void *ends;    /* of each expert */
  int end_bits;        /* int32 or int64 */
  const void *indices; /* of each routed row, or NULL */
  int index_bits;
  int gathers;          /* whether indices are rows of x */
  int adds;             /* whether routed rows are multiplied by weights and added to rows of y by indices, in order, */
  const float *weights; /* in float32; of each routed row */
  int64_t tokens;       /* rows of x where it gathers, and of y where it adds */
  void *workspace;      /* as many bytes as the functions below say, aligned to 16 */
} dlfp4_cuda_routing;

/* CUDA_ERROR_NO_BINARY_FOR_GPU where a device's image has no kernels for prepared weights of a format, or, with -1, for
 * bytes. */
int dlfp4_cuda_need_grouped(int device, int format);

/* -1 where the product is refused for its extents. */
int64_t dlfp4_cuda_grouped_matmul_workspace(const dlfp4_cuda_product *product, const dlfp4_cuda_routing *routing);
int64_t dlfp4_cuda_grouped_matmul_bytes_as_they_lie_workspace(const dlfp4_cuda_bytes_product *product,
                                                              const dlfp4_cuda_routing *routing);

/* factors[0] is `factor_step`, 0 or 1, further for each next expert. */
int dlfp4_cuda_grouped_matmul(int device, uintptr_t stream, const dlfp4_cuda_product *product, int factor_step,
                              const dlfp4_cuda_routing *routing);

/* E4M3 by E4M3, whose scales are read where they are. */
int dlfp4_cuda_grouped_matmul_bytes_as_they_lie(int device, uintptr_t stream, const dlfp4_cuda_bytes_product *product,
                                                const dlfp4_cuda_routing *routing);

/* The same bits. Where it pays, x's scales of neighbouring rows are first brought together: the workspace has room for
 * them, and the image of blocks is to be loaded as well. */
int64_t dlfp4_cuda_grouped_matmul_bytes_workspace(const dlfp4_cuda_bytes_product *product,
                                                  const dlfp4_cuda_routing *routing);
int dlfp4_cuda_brings_scales(const dlfp4_cuda_bytes_product *product, const dlfp4_cuda_routing *routing);
int dlfp4_cuda_grouped_matmul_bytes(int device, uintptr_t stream, const dlfp4_cuda_bytes_product *product,
                                    const dlfp4_cuda_routing *routing);

/* What this build's image was compiled for ("90a, PTX"), or "" where it has none. */
const char *dlfp4_cuda_image(void);

/* The images: DLFP4_CUDA_IMAGE_codecs, ... Each operation's is to be loaded before it. */
enum {
#define DLFP4_CUDA_IMAGE(name) DLFP4_CUDA_IMAGE_##name,
#include "images.def"
#undef DLFP4_CUDA_IMAGE
  DLFP4_CUDA_NUM_IMAGES
};

/* Loads an image for a device that lacks it: the build's, or, of `data` made of the same sources, its own.
 * DLFP4_CUDA_NO_IMAGE where the build has none, CUDA_ERROR_NO_BINARY_FOR_GPU and the like where it does not serve the
 * device. */
int dlfp4_cuda_load(int device, int image, const void *data);

/* Whether such a status says that the image has nothing for the device, or only PTX that the driver cannot compile. */
int dlfp4_cuda_is_unserved(int status);

/* Whether it is loaded. Opens no driver. */
int dlfp4_cuda_is_loaded(int device, int image);

/* The image's name. */
const char *dlfp4_cuda_image_name(int image);

/* The device's compute capability: 90 for 9.0. */
int dlfp4_cuda_architecture(int device, int *architecture);

/* The device's name, of at most `length` bytes with the zero that ends it. */
int dlfp4_cuda_device_name(int device, char *name, int length);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif /* DLFP4_SRC_GPU_KERNELS_H_ */
