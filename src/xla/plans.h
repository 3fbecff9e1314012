/* What an operation inside a compiled program is told: all of a call but the addresses.
 *
 * A plan is made where a program is traced, by the code that fills the kernels' descriptions of an eager call
 * (dlfp4/core/ops/plans.pxi), and travels as an attribute, as it lies in memory. Addresses in it are 0: handlers fill
 * them in from the call's buffers, whose order each plan states: operands first, then results, all compact and
 * row-major.
 */
#ifndef DLFP4_SRC_XLA_PLANS_H_
#define DLFP4_SRC_XLA_PLANS_H_

#include <stdint.h>

#include "rules/operations.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DLFP4_PLAN_VERSION = 2,  /* of all plans: programs that were stored are refused by builds with other plans */
  DLFP4_PLAN_BUFFERS = 12, /* the most that a call has */
  DLFP4_PLAN_AXES = 32     /* of sums */
};

/* The first part of every plan. A call may do `count` tensors of one description, `steps` bytes apart: of each buffer,
 * in its order; 0 where all share it. */
typedef struct {
  uint32_t version;
  uint32_t bytes; /* of the whole plan */
  int64_t count;
  int64_t steps[DLFP4_PLAN_BUFFERS];
} dlfp4_plan;

typedef struct {
  uint8_t code, bits, padded;
} dlfp4_plan_elements;

/* x -> result. */
typedef struct {
  dlfp4_plan plan;
  int64_t size; /* elements */
  dlfp4_plan_elements source, result;
  dlfp4_convert_options options;
} dlfp4_convert_plan;

/* What a global scale is of. A format with one scale in all keeps that with its scales. */
typedef enum { DLFP4_UNIT_NONE = 0, DLFP4_UNIT_TENSOR, DLFP4_UNIT_LINES } dlfp4_unit;

/* What quantizing is told of the global scale: nothing, the scale itself, or the largest magnitude that it is of, in
 * x's type, where x is a part of a tensor. */
typedef enum { DLFP4_GIVEN_NOTHING = 0, DLFP4_GIVEN_SCALE, DLFP4_GIVEN_LARGEST } dlfp4_given;

/* x[, what is given] -> of each direction that is asked for, rows first: data, scales[, global scale][,
 * zero points]. */
typedef struct {
  dlfp4_plan plan;
  dlfp4_matrix x;
  int32_t format;
  uint32_t rotation; /* of lines whose tensor's scale is found */
  dlfp4_recipe recipe;
  dlfp4_blocks blocks[2]; /* along rows, along columns */
  uint8_t along[2];       /* which are asked for */
  uint8_t given;          /* dlfp4_given: what the operand beside x is */
  uint8_t has_scale;      /* of the whole tensor, as `unit` or as the scales */
  dlfp4_unit unit;
  int64_t units;          /* numbers in a global scale of lines */
  int64_t parts;          /* matrices of a stack, along rows, each of which has a global scale; else 1 */
  int64_t part_steps[3];  /* bytes from one to the next: x, data, scales */
  uint64_t part_elements; /* elements of one, as the recipe counts them */
} dlfp4_quantize_plan;

/* data, scales[, global scale][, zero points or biases] -> values. */
typedef struct {
  dlfp4_plan plan;
  dlfp4_blocks blocks;
  int32_t format;
  dlfp4_unit unit;
  dlfp4_matrix result; /* a row a line */
} dlfp4_dequantize_plan;

/* A factor: elements, or data, scales[, global scale][, zero points or biases]. */
typedef struct {
  dlfp4_lines lines;
  dlfp4_unit unit;
} dlfp4_plan_factor;

/* Factors a and b -> result. */
typedef struct {
  dlfp4_plan plan;
  dlfp4_plan_factor factors[2];
  int64_t length;
  dlfp4_matrix result;
  dlfp4_matmul_options options;
} dlfp4_matmul_plan;

/* What the indices of rows are for: none, rows of x, rows to which results are added, or both. */
enum { DLFP4_ROUTING_IN_ORDER = 0, DLFP4_ROUTING_GATHERS = 1, DLFP4_ROUTING_ADDS = 2 };

/* Factors x and w, ends[, indices][, weights, where results are added] -> result. Ends and indices are int32. */
typedef struct {
  dlfp4_plan plan;
  dlfp4_plan_factor factors[2];
  int64_t length;
  dlfp4_matrix result;
  dlfp4_matmul_options options;
  int64_t rows, experts, step; /* as of dlfp4_groups */
  int64_t tokens;              /* rows of which the indices are */
  int64_t routing;
} dlfp4_grouped_plan;

/* Factors a and b -> sums, float32, over the lines of `shape`. */
typedef struct {
  dlfp4_plan plan;
  dlfp4_plan_factor factors[2];
  int64_t length;
  int32_t ndim;
  int64_t shape[DLFP4_PLAN_AXES];
  int64_t strides[2][DLFP4_PLAN_AXES]; /* from line to line, of each factor */
} dlfp4_vecdot_plan;

#ifdef __cplusplus
}
#endif

#endif /* DLFP4_SRC_XLA_PLANS_H_ */
