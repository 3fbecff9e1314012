/** @file
 * How the operations of dlfp4.h scale, round and multiply, and the statuses that they return. C99 and C++17. */
#ifndef DLFP4_OPTIONS_H_
#define DLFP4_OPTIONS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What an operation returns: dlfp4_status_string() has the words. Where it is not DLFP4_OK, nothing was written, but
 * by a device that failed. */
typedef enum {
  DLFP4_OK = 0,
  DLFP4_E_DTYPE,   /**< an element type, or a pair of them, that the operation does not have */
  DLFP4_E_SHAPE,   /**< shapes that differ or do not divide into blocks, strides or an alignment that are not taken */
  DLFP4_E_OPTION,  /**< an option, a format or a layout out of its range, or without use here */
  DLFP4_E_ISA,     /**< an instruction set that this machine, or this build, does not have */
  DLFP4_E_DEVICE,  /**< memory that the operation does not reach, or tensors on several devices */
  DLFP4_E_MEMORY,  /**< no memory on the host, of functions that allocate a workspace */
  DLFP4_E_LIBRARY, /**< a library that the process has not loaded */
  DLFP4_E_CUDA_DRIVER,  /**< no CUDA driver, or no device */
  DLFP4_E_CUDA_KERNELS, /**< this build, or the operation, has no kernels for the device */
  DLFP4_E_CUDA = 1000,  /**< plus the CUresult with which the driver failed */
  DLFP4_E_CUDA_LAST = 2023
} dlfp4_status;

/** To nearest, ties to even, away from zero or (NEAREST_ZERO) toward it. DLFP4_UPWARD is of float8_e8m0fnu alone. */
typedef enum {
  DLFP4_NEAREST_EVEN = 0,
  DLFP4_NEAREST_AWAY,
  DLFP4_TOWARD_ZERO,
  DLFP4_NEAREST_ZERO,
  DLFP4_UPWARD,
  DLFP4_STOCHASTIC
} dlfp4_rounding;

/** Of a conversion of elements. */
typedef struct {
  dlfp4_rounding rounding;
  int saturate;  /**< nonzero: types of at most 8 bits clamp overflow; zero: as ml_dtypes' astype */
  uint64_t seed; /**< for DLFP4_STOCHASTIC: the result depends on the seed and on the element's index alone */
} dlfp4_convert_options;

/** How the exponent of a power-of-two scale follows from a block's largest magnitude a; emax and max are the element
 * type's largest exponent and value: floor(log2 a) - emax (OCP MX v1.0, 6.3), ceil(log2(a / max)) of the exact
 * quotient, ceil(log2 a) - emax, or the exponent of a rounded to the type's mantissa, ties up, - emax. */
typedef enum { DLFP4_SCALE_FLOOR = 0, DLFP4_SCALE_RCEIL, DLFP4_SCALE_CEIL, DLFP4_SCALE_EVEN } dlfp4_scale_rule;

/** The order of operations of a scale in units of the tensor's, which decides bytes; a is the block's largest
 * magnitude, G the tensor's encode scale, max the element type's largest value: a * (G * (1 / max)); G * (a * (1 /
 * max)), where codes under a scale of zero are zero; G * (a / max), with a / max and G rounded to the input's type.
 * DLFP4_INPUT_TYPE is for float32 scales that are quotients as well, a / max: one that is zero becomes one unit in the
 * last place of 1. */
typedef enum { DLFP4_GLOBAL_FIRST = 0, DLFP4_BLOCK_FIRST, DLFP4_INPUT_TYPE } dlfp4_scale_order;

/** Of FP4 with scales in two levels, four over six: a block is quantized with its largest magnitude on 6 and on 4, with
 * scales of (a / 6) * G and 1.5 times that, and what has the smaller error is kept, by the sum of magnitudes or of
 * squares; ties keep 6. Errors are ((q * s) * A) / (6 * largest_scale) - x, added up line by line in order, A being the
 * tensor's largest magnitude. */
typedef enum { DLFP4_NOT_FOUR_OVER_SIX = 0, DLFP4_MEAN_ABSOLUTE, DLFP4_MEAN_SQUARED } dlfp4_four_over_six;

/** How a tensor is quantized: how scales follow from the data, and how elements are rounded. dlfp4_default_recipe()
 * fills in a format's own. */
typedef struct {
  dlfp4_scale_rule scale_rule;   /**< of formats with power-of-two scales */
  dlfp4_scale_order scale_order; /**< of formats with scales in two levels, and of float8 elements with `divides` */
  dlfp4_four_over_six four_over_six;
  float largest_scale;         /**< of these formats, what A makes a scale; 0: the scale type's largest value */
  dlfp4_rounding rounding;     /**< of the elements, which saturate */
  uint64_t seed;               /**< for DLFP4_STOCHASTIC, with the element's index first + line * length + position */
  uint64_t first;              /**< of a part of a tensor, the index of its first element */
  float eps;                   /**< formats of one level: smaller magnitudes count as this one */
  uint8_t divides;             /**< not of powers of two: elements are divided by scales, which are quotients by max;
                                *   those of integers always are, by 7.5 for 4 bits */
  uint8_t pow2;                /**< formats with float32 scales: round the encode scale down to a power of two */
  uint8_t zero_scale;          /**< not of float32 scales: the code of a scale that would be zero */
  uint8_t least_scale;         /**< not of float32 scales: the least code of the scale of a block that is not zero */
  uint8_t drops_negative_zero; /**< elements that are -0 become +0 */
  uint8_t rounds_to_plus_zero; /**< elements that round to zero too */
  uint8_t scale_code, scale_bits; /**< formats with float32 scales: the type of DLPack that is to hold them exactly,
                                   *   bfloat16, float16 or, with `pow2`, float8_e8m0fnu. They are written as float32
                                   *   all the same. 0: none */
} dlfp4_recipe;

/** How the lines of the first operand of a product are read: as they are, or, floats that are multiplied with FP4,
 * rounded to int8 in blocks of 32 with a scale each (largest magnitude / 127), which is faster and not exact. Operands
 * that are quantized already can only be read as they are. */
typedef enum { DLFP4_ACTIVATION_EXACT = 0, DLFP4_ACTIVATION_INT8 } dlfp4_activation;

/** Of a matrix product. */
typedef struct {
  dlfp4_activation activation;
  float alpha; /**< what the sums are multiplied with */
} dlfp4_matmul_options;

#ifdef __cplusplus
}
#endif

#endif /* DLFP4_OPTIONS_H_ */
