/* The operations as their drivers have them: on host memory, described by addresses, strides and formats. gpu/kernels.h
 * has them on CUDA memory, dlfp4/dlfp4.h on DLTensors.
 *
 * No function here allocates, throws, touches Python or keeps a pointer after it returns.
 * Arguments are described, never owned; a status other than DLFP4_OK means that nothing was written.
 */
#ifndef DLFP4_SRC_RULES_OPERATIONS_H_
#define DLFP4_SRC_RULES_OPERATIONS_H_

#include <stddef.h>
#include <stdint.h>

#include "dlfp4/options.h"

#ifdef __cplusplus
extern "C" {
#endif
#ifndef __CUDACC_RTC__
#pragma GCC visibility push(default) /* of the library, for the extension */
#endif

/* Elements in host memory. `code` and `bits` are DLPack's, lanes = 1. Strides count elements, so that in packed
 * sub-byte data element (i, j) lies at bit (i*strides[0] + j*strides[1]) * bits from `data`; padded data holds one
 * element in the low bits of each byte. `data` needs no alignment. Writing completes the last byte of packed data with
 * zeros, but in a `part`, where other elements may lie there, and in data with gaps, those bits stay. */
typedef struct {
  void *data;
  const int64_t *shape;
  const int64_t *strides;
  int32_t ndim;
  uint8_t code;
  uint8_t bits;
  uint8_t padded;
  uint8_t part;
} dlfp4_view;

/* dst[i] = src[i] in dst's type, for every index i. Equal types move bits (this is also pack, unpack and copy);
 * different ones must both be floating-point. `options` may be NULL: nearest even, saturating.
 * src and dst may be the same memory only where every element keeps its byte (equal item sizes and strides). */
dlfp4_status dlfp4_host_convert(const dlfp4_view *src, const dlfp4_view *dst, const dlfp4_convert_options *options);

/* The float32 next to a number, also where the processor has been told to take subnormals for zeros. */
float dlfp4_host_narrow(double number);

/* --- Block scaling ------------------------------------------------------------------------------------------- */

/* A scale of the whole tensor: elements are multiplied with `encode`, codes with `decode`. */
typedef struct {
  float encode;
  float decode;
  float largest; /* magnitude that they are of; 0: not known */
} dlfp4_tensor_scale;

typedef struct {
  void *data;
  int64_t rows, columns;
  int64_t strides[2]; /* in elements */
  uint8_t code, bits; /* DLPack's: float32, bfloat16 or float16 */
} dlfp4_matrix;

/* A quantized matrix, as lines along which the blocks run: rows, or columns. Element k of line i lies at element
 * i * strides[0] + k * strides[1] of `data`, packed; types below 8 bits need strides[1] == 1 and lines that start on a
 * byte. Scale (line, block) lies where `layout`, a row of layouts.h, puts it; linear scales at
 * line * scale_strides[0] + block * scale_strides[1]. A layout whose columns follow one another has its padded number
 * of rows in scale_strides[0]. Where blocks span several lines, "line" counts groups of lines, unless the format
 * repeats its scales.
 *
 * Formats with two levels have a decode scale of the whole tensor, or `decodes`, one for every `decode_lines` lines:
 * that of line n is decodes[n / decode_lines]. Quantizing takes those of one line each.
 *
 * Formats of integers may have `offsets`, one for each scale, at line * offset_strides[0] + block * offset_strides[1]:
 * zero points (DLPack's int or uint of 4 bits, packed, or of 8), so that values are (element - zero point) * scale, or
 * biases (float32), so that values are element * scale + bias. Quantizing to uint4 sets zero points, which are of
 * uint8 and neighbours along a line, to 8. */
typedef struct {
  void *data;
  int64_t strides[2];
  void *scales;
  int64_t scale_strides[2];
  int32_t layout;
  uint8_t fill;   /* the byte that a layout's padding gets */
  int64_t length; /* elements of a line, at least those of the matrix: what lies beyond is written as zero */
  float *decodes; /* NULL: none */
  int64_t decode_lines;
  uint8_t finds_decodes; /* quantizing: they are found and written; else they are read, as they were given */
  uint32_t rotation;     /* see dlfp4_rotation; 0: none */
  void *offsets;         /* NULL: none */
  int64_t offset_strides[2];
  uint8_t offset_code, offset_bits;
} dlfp4_blocks;

/* The random Hadamard transform, a rotation of sixteen neighbours along a line: x -> x diag(signs) H16 / 4 in float32,
 * before scales are found, undone by dequantizing. Bits 0 to 15 are set where an element is negated, bit 16 says that
 * there is a transform. Products do not undo it: lines with equal rotations have the products of what they were.
 * Lengths are multiples of 16. */
enum { DLFP4_ROTATED = 1 << 16 };

/* The tensor's scale from its elements (formats with a scale of the whole tensor), or from a decode scale. Rotated
 * elements are those along rows of x. */
dlfp4_status dlfp4_host_find_tensor_scale(const dlfp4_matrix *x, int format, const dlfp4_recipe *recipe,
                                          uint32_t rotation, dlfp4_tensor_scale *scale);
dlfp4_tensor_scale dlfp4_host_given_tensor_scale(float decode);
int dlfp4_host_is_decode_scale(float number);

/* `along_rows` has a line a row of x, `along_columns` a line a column; either may be NULL. `scale` is that of the whole
 * tensor, NULL where there is none. Lines whose last block is incomplete are completed with zeros where blocks->length
 * says so, and otherwise only taken by formats with float32 scales. Lines that are rotated are those of one direction:
 * each has a scale of the whole tensor of its own. */
dlfp4_status dlfp4_host_quantize(const dlfp4_matrix *x, int format, const dlfp4_recipe *recipe,
                                 const dlfp4_tensor_scale *scale, const dlfp4_blocks *along_rows,
                                 const dlfp4_blocks *along_columns);

/* Row i of the result is line i of q; the result's strides may be any. `decode` is the tensor's scale (1: none). */
dlfp4_status dlfp4_host_dequantize(const dlfp4_blocks *q, int format, float decode, const dlfp4_matrix *result);

/* A matrix of scales of `itemsize` bytes, at most 4, from one layout to another. `fill` is the byte of the padding. */
dlfp4_status dlfp4_host_convert_scales(const void *src, int src_layout, void *dst, int dst_layout, int64_t rows,
                                       int64_t columns, int itemsize, uint8_t fill);

/* AITER's (16, 16) shuffle of a row-major matrix of bytes; `back` undoes it. src and dst are different memory. */
dlfp4_status dlfp4_host_shuffle_weight(const void *src, void *dst, int64_t rows, int64_t columns, int back);

/* --- What a conversion changes: see ScaledTensor.to ---------------------------------------------------------- */

/* Rows of float32 numbers next to one another, in blocks of `lines` rows and `length` columns; those at the ends may be
 * smaller. The length is a multiple of 16, or at least `columns`; of dlfp4_host_take_better a multiple of 16 up to
 * 2048. */
typedef struct {
  int64_t rows, columns, lines, length;
} dlfp4_grid;

/* For each block its largest change and the largest finite magnitude that it had before. Infinities and NaN that stayed
 * are no change; one that came or went is an infinite one. `joins`: numbers that are there already count as well. */
dlfp4_status dlfp4_host_find_changes(const dlfp4_grid *grid, const float *before, const float *after, float *changes,
                                     float *sizes, int joins);

typedef struct {
  uint64_t changed; /* blocks */
  double largest;   /* change of an element over the largest magnitude of its block */
} dlfp4_changes;
dlfp4_status dlfp4_host_sum_up_changes(const float *changes, const float *sizes, int64_t blocks, dlfp4_changes *result);

/* Blocks as they are stored: `code_bytes` of each row of a block next to one another, whole blocks; a byte of scale
 * each; and what they decode to. */
typedef struct {
  const float *values;
  uint8_t *codes, *scales;
} dlfp4_stored;

/* Replaces each block by the other one where the sum of its squared errors is smaller; NaN is no error. */
dlfp4_status dlfp4_host_take_better(const dlfp4_grid *grid, const float *exact, int64_t code_bytes,
                                    const dlfp4_stored *best, const dlfp4_stored *other);

/* --- Products ------------------------------------------------------------------------------------------------ */

/* Lines that are multiplied with other lines, element by element, and summed. Line i is number n = first + i * step;
 * its element k lies at element n * blocks.strides[0] + k * blocks.strides[1] of `blocks.data`. Plain elements
 * (format -1) are of type (code, bits), packed or one a byte, with any strides; of a format's they are as dlfp4_blocks
 * has them, packed, with the scale of line n, and `decode` is the tensor's scale (1: none). A step of 0 repeats a
 * line. blocks.length is the number of elements that are multiplied, or more. */
typedef struct {
  dlfp4_blocks blocks;
  int32_t format; /* a row of formats.def, or -1 */
  uint8_t code, bits, padded;
  float decode;
  int64_t first, step;
} dlfp4_lines;

/* result[i * stride] = the sum of a(i, k) * b(i, k) over k < length, for i < lines; 0 where length is 0. Elements are
 * floats, or both integers of one type of at most 8 bits. FP4, FP6 and integers are summed exactly and rounded once;
 * otherwise |error| <= max(length, 16) * 2^-24 * sum |a b|, where bfloat16 inputs below 2^-126 may count as zero. Sums
 * that leave the range of float32, before the scales of tensors and lines lead back into it, are made in float64. */
dlfp4_status dlfp4_host_vecdot(const dlfp4_lines *a, const dlfp4_lines *b, int64_t lines, int64_t length, float *result,
                               int64_t stride);

/* The same over lines of several axes, in row-major order, into compact memory: `shape` has the extents of `ndim` axes,
 * at least one, and each side's strides the step in lines along each; first and step of the sides are 0. */
dlfp4_status dlfp4_host_vecdot_axes(const dlfp4_lines *a, const int64_t *strides_of_a, const dlfp4_lines *b,
                                    const int64_t *strides_of_b, int ndim, const int64_t *shape, int64_t length,
                                    float *result);

/* result(i, j) = alpha * the sum of a(i, k) * b(j, k) over k < length, for the result's rows i and columns j, rounded
 * to its type. Elements are floats; the bound is that of dlfp4_host_vecdot, and one rounding, where inputs and products
 * below 2^-126 may count as zero. Scales of blocks may be applied to the sums of these: what holds for products then
 * holds for products of elements alone, and neither may overflow. `workspace` is memory of dlfp4_host_matmul_workspace
 * bytes, of any alignment; -1 where dlfp4_host_matmul will refuse. */
int64_t dlfp4_host_matmul_workspace(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length,
                                    const dlfp4_matrix *result, const dlfp4_matmul_options *options);
dlfp4_status dlfp4_host_matmul(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length, const dlfp4_matrix *result,
                               const dlfp4_matmul_options *options, void *workspace);

/* Rows that are divided among experts, in their order: expert e has the routed rows from ends[e - 1] (0 for the first)
 * up to ends[e], and lines of b whose numbers are greater by e * step than those of the first expert. ends do not
 * decrease; the last one is at most `rows`. */
typedef struct {
  int64_t rows, experts, step;
  const int64_t *ends;
  const int64_t *gather;  /* the line of a of each routed row; NULL: they are the lines, in order */
  const int64_t *scatter; /* the result's row to which each is added; NULL: they are the result's rows */
  const float *weights;   /* that they are multiplied with; NULL without scatter, and only then */
} dlfp4_groups;

/* The product of dlfp4_host_matmul by each expert, with the same bits; routed rows beyond the last end are zero. With
 * scatter, row i of the result is the sum of weight * product over the routed rows that are added to it, in their order
 * and in float32, rounded once to the result's type; rows beyond the last end are not read. */
int64_t dlfp4_host_grouped_matmul_workspace(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length,
                                            const dlfp4_groups *groups, const dlfp4_matrix *result,
                                            const dlfp4_matmul_options *options);
dlfp4_status dlfp4_host_grouped_matmul(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length,
                                       const dlfp4_groups *groups, const dlfp4_matrix *result,
                                       const dlfp4_matmul_options *options, void *workspace);

#ifndef __CUDACC_RTC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif /* DLFP4_SRC_RULES_OPERATIONS_H_ */
