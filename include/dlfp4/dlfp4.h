/* The C API of the kernels: what the Python package calls, and what other C and C++ code may.
 *
 * No function here allocates, throws, touches Python or keeps a pointer after it returns.
 * Arguments are described, never owned; a status other than DLFP4_OK means that nothing was written.
 */
#ifndef DLFP4_DLFP4_H_
#define DLFP4_DLFP4_H_

#include <stddef.h>
#include <stdint.h>

/* The version of these declarations; dlfp4_version() is that of the library. CMake and the Python package take it from
 * here. */
#define DLFP4_VERSION_MAJOR 0
#define DLFP4_VERSION_MINOR 1
#define DLFP4_VERSION_PATCH 0
#define DLFP4_VERSION_NUMBER (DLFP4_VERSION_MAJOR * 10000 + DLFP4_VERSION_MINOR * 100 + DLFP4_VERSION_PATCH)

/* What the shared library exports. */
#if defined(__GNUC__) && !defined(__CUDACC_RTC__)
#define DLFP4_API __attribute__((visibility("default")))
#else
#define DLFP4_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library: "0.1.0". */
DLFP4_API const char *dlfp4_version(void);

typedef enum {
  DLFP4_OK = 0,
  DLFP4_E_DTYPE,  /* a type, or a pair of types, that the operation does not have */
  DLFP4_E_SHAPE,  /* shapes differ */
  DLFP4_E_OPTION, /* an option out of its range */
  DLFP4_E_ISA     /* an instruction set that this machine, or this build, does not have */
} dlfp4_status;

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

/* To nearest, ties to even, away from zero or (NEAREST_ZERO) toward it. DLFP4_UPWARD is of float8_e8m0fnu alone. */
typedef enum {
  DLFP4_NEAREST_EVEN = 0,
  DLFP4_NEAREST_AWAY,
  DLFP4_TOWARD_ZERO,
  DLFP4_NEAREST_ZERO,
  DLFP4_UPWARD,
  DLFP4_STOCHASTIC
} dlfp4_rounding;

typedef struct {
  dlfp4_rounding rounding;
  int saturate;  /* nonzero: overflow clamps to the largest finite value; zero: as ml_dtypes' astype */
  uint64_t seed; /* for DLFP4_STOCHASTIC: the result depends on the seed and on the element's index alone */
} dlfp4_convert_options;

/* dst[i] = src[i] in dst's type, for every index i. Equal types move bits (this is also pack, unpack and copy);
 * different ones must both be floating-point. `options` may be NULL: nearest even, saturating.
 * src and dst may be the same memory only where every element keeps its byte (equal item sizes and strides). */
DLFP4_API dlfp4_status dlfp4_convert(const dlfp4_view *src, const dlfp4_view *dst,
                                     const dlfp4_convert_options *options);

/* --- Block scaling ------------------------------------------------------------------------------------------- */

/* A format is a row of formats.def; dlfp4_find_format gives its number, or -1. */
DLFP4_API int dlfp4_find_format(const char *name);

/* How the exponent of a power-of-two scale follows from a block's largest magnitude a; emax and max are the element
 * type's largest exponent and value: floor(log2 a) - emax (OCP MX v1.0, 6.3), ceil(log2(a / max)) of the exact
 * quotient, ceil(log2 a) - emax, or the exponent of a rounded to the type's mantissa, ties up, - emax. */
typedef enum { DLFP4_SCALE_FLOOR = 0, DLFP4_SCALE_RCEIL, DLFP4_SCALE_CEIL, DLFP4_SCALE_EVEN } dlfp4_scale_rule;

/* The order of operations of a scale in units of the tensor's, which decides bytes; a is the block's largest magnitude,
 * G the tensor's encode scale, max the element type's largest value: a * (G * (1 / max)); G * (a * (1 / max)), where
 * codes under a scale of zero are zero; G * (a / max), with a / max and G rounded to the input's type. */
typedef enum { DLFP4_GLOBAL_FIRST = 0, DLFP4_BLOCK_FIRST, DLFP4_INPUT_TYPE } dlfp4_scale_order;

/* Of FP4 with scales in two levels, four over six: a block is quantized with its largest magnitude on 6 and on 4, with
 * scales of (a / 6) * G and 1.5 times that, and what has the smaller error is kept, by the sum of magnitudes or of
 * squares; ties keep 6. Errors are ((q * s) * A) / (6 * largest_scale) - x, added up line by line in order, A being the
 * tensor's largest magnitude. */
typedef enum { DLFP4_NOT_FOUR_OVER_SIX = 0, DLFP4_MEAN_ABSOLUTE, DLFP4_MEAN_SQUARED } dlfp4_four_over_six;

typedef struct {
  dlfp4_scale_rule scale_rule;   /* of formats with power-of-two scales */
  dlfp4_scale_order scale_order; /* of formats with scales in two levels */
  dlfp4_four_over_six four_over_six;
  float largest_scale;            /* of these formats, what A makes a scale; 0: the scale type's largest value */
  dlfp4_rounding rounding;        /* of the elements, which saturate */
  uint64_t seed;                  /* for DLFP4_STOCHASTIC, with the element's index first + line * length + position */
  uint64_t first;                 /* of a part of a tensor, the index of its first element */
  float eps;                      /* formats of one level: smaller magnitudes count as this one */
  uint8_t divides;                /* not of powers of two: elements are divided by scales, which are quotients by max;
                                   * those of integers always are, by 7.5 for 4 bits */
  uint8_t pow2;                   /* formats with float32 scales: round the encode scale down to a power of two */
  uint8_t zero_scale;             /* not of float32 scales: the code of a scale that would be zero */
  uint8_t least_scale;            /* not of float32 scales: the least code of the scale of a block that is not zero */
  uint8_t drops_negative_zero;    /* elements that are -0 become +0 */
  uint8_t rounds_to_plus_zero;    /* elements that round to zero too */
  uint8_t scale_code, scale_bits; /* formats with float32 scales: DLPack's bfloat16 or float16, which is to hold them
                                   * exactly; 0: none */
} dlfp4_recipe;

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

/* The rotation whose signs a seed draws. */
DLFP4_API uint32_t dlfp4_rotation(uint64_t seed);

/* The tensor's scale from its elements (formats with a scale of the whole tensor), or from a decode scale. Rotated
 * elements are those along rows of x. */
DLFP4_API dlfp4_status dlfp4_find_tensor_scale(const dlfp4_matrix *x, int format, const dlfp4_recipe *recipe,
                                               uint32_t rotation, dlfp4_tensor_scale *scale);
DLFP4_API dlfp4_tensor_scale dlfp4_given_tensor_scale(float decode);

/* `along_rows` has a line a row of x, `along_columns` a line a column; either may be NULL. `scale` is that of the whole
 * tensor, for the formats that have one. Lines whose last block is incomplete are completed with zeros where
 * blocks->length says so, and otherwise only taken by formats with float32 scales. Lines that are rotated are those of
 * one direction: each has a scale of the whole tensor of its own. */
DLFP4_API dlfp4_status dlfp4_quantize(const dlfp4_matrix *x, int format, const dlfp4_recipe *recipe,
                                      const dlfp4_tensor_scale *scale, const dlfp4_blocks *along_rows,
                                      const dlfp4_blocks *along_columns);

/* Row i of the result is line i of q; the result's strides may be any. `decode` is the tensor's scale (1: none). */
DLFP4_API dlfp4_status dlfp4_dequantize(const dlfp4_blocks *q, int format, float decode, const dlfp4_matrix *result);

/* A matrix of scales of `itemsize` bytes from one layout to another. `fill` is the byte of the padding. */
DLFP4_API dlfp4_status dlfp4_convert_scales(const void *src, int src_layout, void *dst, int dst_layout, int64_t rows,
                                            int64_t columns, int itemsize, uint8_t fill);

/* AITER's (16, 16) shuffle of a row-major matrix of bytes; `back` undoes it. src and dst are different memory. */
DLFP4_API dlfp4_status dlfp4_shuffle_weight(const void *src, void *dst, int64_t rows, int64_t columns, int back);

/* --- What a conversion changes: see ScaledTensor.to ---------------------------------------------------------- */

/* Rows of float32 numbers next to one another, in blocks of `lines` rows and `length` columns; those at the ends may be
 * smaller. The length is a multiple of 16, or at least `columns`; of dlfp4_take_better a multiple of 16 up to 2048. */
typedef struct {
  int64_t rows, columns, lines, length;
} dlfp4_grid;

/* For each block its largest change and the largest finite magnitude that it had before. Infinities and NaN that stayed
 * are no change; one that came or went is an infinite one. `joins`: numbers that are there already count as well. */
DLFP4_API dlfp4_status dlfp4_find_changes(const dlfp4_grid *grid, const float *before, const float *after,
                                          float *changes, float *sizes, int joins);

typedef struct {
  uint64_t changed; /* blocks */
  double largest;   /* change of an element over the largest magnitude of its block */
} dlfp4_changes;
DLFP4_API dlfp4_status dlfp4_sum_up_changes(const float *changes, const float *sizes, int64_t blocks,
                                            dlfp4_changes *result);

/* Blocks as they are stored: `code_bytes` of each row of a block next to one another, whole blocks; a byte of scale
 * each; and what they decode to. */
typedef struct {
  const float *values;
  uint8_t *codes, *scales;
} dlfp4_stored;

/* Replaces each block by the other one where the sum of its squared errors is smaller; NaN is no error. */
DLFP4_API dlfp4_status dlfp4_take_better(const dlfp4_grid *grid, const float *exact, int64_t code_bytes,
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
 * otherwise |error| <= max(length, 16) * 2^-24 * sum |a b|, where inputs and products below 2^-126 may count as zero.
 * Scales of blocks may be applied to the sums of these: what holds for products then holds for products of elements
 * alone, which must not overflow either. */
DLFP4_API dlfp4_status dlfp4_vecdot(const dlfp4_lines *a, const dlfp4_lines *b, int64_t lines, int64_t length,
                                    float *result, int64_t stride);

/* The same over lines of several axes, in row-major order, into compact memory: `shape` has the extents of `ndim` axes,
 * at least one, and each side's strides the step in lines along each; first and step of the sides are 0. */
DLFP4_API dlfp4_status dlfp4_vecdot_axes(const dlfp4_lines *a, const int64_t *strides_of_a, const dlfp4_lines *b,
                                         const int64_t *strides_of_b, int ndim, const int64_t *shape, int64_t length,
                                         float *result);

/* How the lines of `a` are read: as they are, or, floats that are multiplied with FP4, rounded to int8 in blocks of 32
 * with a scale each (largest magnitude / 127), which is faster and not exact. */
typedef enum { DLFP4_ACTIVATION_EXACT = 0, DLFP4_ACTIVATION_INT8 } dlfp4_activation;

typedef struct {
  dlfp4_activation activation;
  float alpha;
} dlfp4_matmul_options;

/* result(i, j) = alpha * the sum of a(i, k) * b(j, k) over k < length, for the result's rows i and columns j, rounded
 * to its type. Elements are floats; the bound is that of dlfp4_vecdot, and one rounding. `workspace` is memory of
 * dlfp4_matmul_workspace bytes, of any alignment; -1 where dlfp4_matmul will refuse. */
DLFP4_API int64_t dlfp4_matmul_workspace(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length,
                                         const dlfp4_matrix *result, const dlfp4_matmul_options *options);
DLFP4_API dlfp4_status dlfp4_matmul(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length,
                                    const dlfp4_matrix *result, const dlfp4_matmul_options *options, void *workspace);

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

/* The product of dlfp4_matmul by each expert, with the same bits; routed rows beyond the last end are zero. With
 * scatter, row i of the result is the sum of weight * product over the routed rows that are added to it, in their order
 * and in float32, rounded once to the result's type; rows beyond the last end are not read. */
DLFP4_API int64_t dlfp4_grouped_matmul_workspace(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length,
                                                 const dlfp4_groups *groups, const dlfp4_matrix *result,
                                                 const dlfp4_matmul_options *options);
DLFP4_API dlfp4_status dlfp4_grouped_matmul(const dlfp4_lines *a, const dlfp4_lines *b, int64_t length,
                                            const dlfp4_groups *groups, const dlfp4_matrix *result,
                                            const dlfp4_matmul_options *options, void *workspace);

/* The instruction set in use: "scalar", "avx2", "avx512", "avx512_bf16" (which has VNNI too) or "neon". Chosen at the
 * first call from what the machine has; dlfp4_set_isa forces one (NULL: choose again) and refuses one that is not
 * there. */
DLFP4_API const char *dlfp4_isa(void);
DLFP4_API dlfp4_status dlfp4_set_isa(const char *name);

/* The instruction sets of this build by number, the fastest first; NULL behind the last. */
DLFP4_API const char *dlfp4_isa_numbered(int number);

/* Threads for large calls; results do not depend on it. 0 restores the default (the CPUs this process may use). */
DLFP4_API void dlfp4_set_num_threads(int threads);
DLFP4_API int dlfp4_get_num_threads(void);

#ifdef __cplusplus
}
#endif

#endif /* DLFP4_DLFP4_H_ */
