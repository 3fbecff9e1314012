/** @file
 * The C API of libdlfp4: casts, block scaling and products of FP4, FP6 and FP8 tensors, on hosts and on CUDA devices.
 *
 * Tensors are DLPack's DLTensor, in any strides, where they lie: what any framework hands out goes in, and nothing is
 * copied. Memory is the caller's, results' too; dlfp4_size_buffers() says how much a quantized tensor takes. Host
 * memory is CPU and pinned memory; all tensors of a call lie there, or on one CUDA device. No function allocates on the
 * host, throws, or keeps a pointer after it returns. Elements need no alignment; single numbers, sums and what says
 * where rows belong have that of their type. Results share no memory with operands, but where a function says so, nor
 * their elements with one another; that is not checked. Calls may run at the same time in any threads.
 *
 * Statuses mean what options.h says. For example, DLFP4_E_OPTION: a NULL where an argument is required; DLFP4_E_ISA, of
 * calls on the host: DLFP4_ISA names an instruction set that is not available. Comments name what is special to a
 * function.
 *
 * `stream` is a cudaStream_t (NULL: the legacy default stream) and means nothing for host memory. Work on a device is
 * in the stream's order, nothing waits, and all but dlfp4_prepare() can be captured into a graph once dlfp4_load_cuda()
 * has loaded the kernels, which otherwise the first call does.
 *
 * FP4 and FP6 are packed, little-endian in bits: the even FP4 element is the low nibble. FP4 in pairs, as PyTorch's
 * float4_e2m1fn_x2 (lanes = 2) has it, is taken as what it holds.
 *
 * C99, C++17, and later. */
#ifndef DLFP4_DLFP4_H_
#define DLFP4_DLFP4_H_

#include <stddef.h>
#include <stdint.h>

#include "dlpack.h"
#include "options.h"

/** The version of these declarations; dlfp4_version() is that of the library. CMake and the Python package take it from
 * here. */
#define DLFP4_VERSION_MAJOR 0
#define DLFP4_VERSION_MINOR 1
#define DLFP4_VERSION_PATCH 0
#define DLFP4_VERSION_NUMBER (DLFP4_VERSION_MAJOR * 10000 + DLFP4_VERSION_MINOR * 100 + DLFP4_VERSION_PATCH)

/** What the shared library exports; on Windows a list of these names says so, when it is linked. */
#if defined(__GNUC__) && !defined(_WIN32)
#define DLFP4_API __attribute__((visibility("default")))
#else
#define DLFP4_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** The version of the library: "0.1.0". */
DLFP4_API const char *dlfp4_version(void);

/** A status in words, or, of a driver that failed, by CUDA's name. Static; never NULL. */
DLFP4_API const char *dlfp4_status_string(dlfp4_status status);

/* --- Formats ------------------------------------------------------------------------------------------------- */

/** How the scales of a format's blocks follow from their largest magnitudes. */
typedef enum {
  DLFP4_SCALES_IN_TWO_LEVELS = 0, /**< float8, in units of a float32 scale of the whole tensor */
  DLFP4_SCALES_POWERS_OF_TWO,
  DLFP4_SCALES_FLOAT32
} dlfp4_scale_family;

/** A block-scaled format: value = element * scale, or, in two levels, element * scale * global scale. */
typedef struct {
  const char *name; /**< static: "nvfp4" */
  DLDataType element, scale;
  int32_t lines, length; /**< of a block: so many lines of so many elements; 1 x 0: a line; 0 x 0: the whole tensor */
  dlfp4_scale_family kind;
  int32_t repeats_scales; /**< nonzero: each line of a block has a scale of its own in memory, all equal */
} dlfp4_format_info;

/** The number of a format by its name, such as "nvfp4", "mxfp8_e4m3" or "fp8_128x128"; -1 where there is none, as of
 * NULL. */
DLFP4_API int dlfp4_find_format(const char *name);

/** The description of a format; numbers begin at 0. DLFP4_E_OPTION behind the last one. */
DLFP4_API dlfp4_status dlfp4_describe_format(int format, dlfp4_format_info *info);

/** The recipe that a format is quantized with where none is given. DLFP4_E_OPTION where there is no such format. */
DLFP4_API dlfp4_status dlfp4_default_recipe(int format, dlfp4_recipe *recipe);

/** The number of a layout of scales by its name: "linear" (0), "128x4", "8x4", "aiter", "n32k4", "deepgemm",
 * "cublas_1x128", "cublas_128x128"; -1 where there is none. */
DLFP4_API int dlfp4_find_layout(const char *name);

/** What the parts of a quantized matrix take. */
typedef struct {
  int64_t data[2];     /**< shape of the elements, packed */
  int64_t scales[2];   /**< shape of the scales */
  int32_t scale_ndim;  /**< 2; 0 of a format with one scale for the tensor */
  int64_t data_bytes;  /**< of the elements */
  int64_t scale_bytes; /**< of the scales */
} dlfp4_sizes;

/** The parts of a quantized matrix of rows x columns. Blocks run along the rows (axis -1) or the columns (axis -2).
 *
 * Along axis -1 the data is (rows, columns) and the scales are (rows, columns / block). Along axis -2 elements below 8
 * bits are stored transposed, (columns, rows) with scales (columns, rows / block); bytes stay as they are, with scales
 * (rows / block, columns). Lines are completed to whole blocks with zeros, but for bytes with float32 scales. Where a
 * block spans several lines, so does a scale, unless the format repeats it. Layouts other than "linear" store a row of
 * scales for each line, whatever the axis, padded to whole tiles. Formats in two levels have a float32 scale beside
 * these; uint4 has a zero point of uint8 for each scale, in the scales' shape.
 *
 * @return DLFP4_E_OPTION: no such format, axis or layout, or the layout is not for the format's scales. DLFP4_E_SHAPE:
 * extents are negative or too large. */
DLFP4_API dlfp4_status dlfp4_size_buffers(int format, int axis, int layout, int64_t rows, int64_t columns,
                                          dlfp4_sizes *sizes);

/* --- Tensors ------------------------------------------------------------------------------------------------- */

/** In place of a format: elements as they are, without scales. */
enum { DLFP4_PLAIN = -1 };

/** A quantized matrix, by its parts, with the shapes of dlfp4_size_buffers(); the parts of Python's ScaledTensor are
 * these. Where products take plain elements, `data` is a matrix of any strides, `format` is DLFP4_PLAIN, and the rest
 * is zero. */
typedef struct {
  int32_t format;
  int32_t axis;                 /**< along which the blocks run: -1, the rows, or -2, the columns */
  int32_t layout;               /**< of the scales; 0: linear */
  uint32_t rotation;            /**< of dlfp4_rotation(); 0: none */
  const DLTensor *data;         /**< elements */
  const DLTensor *scales;       /**< decode scales, of the format's type */
  const DLTensor *global_scale; /**< formats in two levels: float32, 0-d or, one for each of `count` equal runs of
                                 *   lines, such as lines or the matrices of a stack, (count,); else NULL */
  const DLTensor *zero_points;  /**< int4 and uint4: integers, one for each scale, or NULL */
  const DLTensor *biases;       /**< int4 and uint4: float32, likewise, in place of zero points, or NULL */
} dlfp4_scaled_tensor;

/** Of dlfp4_cast(): tensors of FP4, FP6 and smaller integers that hold one element in the low bits of each byte. Not of
 * pairs (two lanes), which share one. */
enum { DLFP4_PADDED_X = 1, DLFP4_PADDED_OUT = 2 };

/** out = x in out's type, element by element; equal types move bits, so that this packs, unpacks and copies, too.
 *
 * @param x        Of any rank up to 63.
 * @param out      Of x's shape. Types that differ are floating-point. It may be x where elements have as many bits, 8
 *                 or more, and equal strides.
 * @param options  NULL: to nearest even, saturating.
 * @param flags    DLFP4_PADDED_X, DLFP4_PADDED_OUT, or 0: both are packed.
 * @return DLFP4_E_DTYPE: types that are not converted. DLFP4_E_SHAPE: shapes differ. DLFP4_E_OPTION: options or flags
 * that are not known, or padded pairs. DLFP4_E_DEVICE. */
DLFP4_API dlfp4_status dlfp4_cast(const DLTensor *x, const DLTensor *out, const dlfp4_convert_options *options,
                                  uint32_t flags, void *stream);

/** Quantizes a tensor along one axis, or along both in one pass.
 *
 * @param x             (..., columns) of float32, bfloat16 or float16, which counts as a matrix; leading dimensions are
 *                      one run.
 * @param recipe        NULL: the format's own.
 * @param global_scale  The decode scale of the whole tensor, where the format has one (nvfp4, fp8_e4m3 and the like);
 *                      0: found in x. It is written to the result either way.
 * @param q             The result, whose parts are written.
 * @param other         A second result of the same format, along the other axis, or NULL.
 * @return DLFP4_E_SHAPE: parts of other shapes than dlfp4_size_buffers() gives, or global scales of runs of several
 * lines, which quantizing does not find. DLFP4_E_DTYPE: parts of other types, or x. DLFP4_E_OPTION: a recipe
 * with values that mean nothing, or with four_over_six where the format has one level (other options that a format has
 * no use for are ignored); a global scale that is negative, infinite or NaN, or of a format that has none.
 * DLFP4_E_DEVICE. */
DLFP4_API dlfp4_status dlfp4_quantize(const DLTensor *x, const dlfp4_recipe *recipe, float global_scale,
                                      const dlfp4_scaled_tensor *q, const dlfp4_scaled_tensor *other, void *stream);

/** The values of a quantized tensor: element * scale (* global scale), (element - zero point) * scale, or
 * element * scale + bias, in float32, rounded to nearest even. A rotation is undone.
 *
 * @param out  (..., columns) of float32, bfloat16 or float16, which counts as a matrix.
 * @return DLFP4_E_SHAPE: parts of other shapes than dlfp4_size_buffers() gives for out's. DLFP4_E_DTYPE: parts of other
 * types, or out. DLFP4_E_OPTION: a part that is missing, or that the format does not have. DLFP4_E_DEVICE. */
DLFP4_API dlfp4_status dlfp4_dequantize(const dlfp4_scaled_tensor *q, const DLTensor *out, void *stream);

/** The random Hadamard transform of sixteen neighbours whose signs a seed draws, as the `rotation` of a tensor. Sums of
 * products of two tensors with equal rotations are those of what they were made of. */
DLFP4_API uint32_t dlfp4_rotation(uint64_t seed);

/** Scales from one layout to another.
 *
 * @param x        A compact matrix of 8, 16 or 32 bits an element, in a shape of dlfp4_size_buffers().
 * @param out      The same, of x's type.
 * @param rows     The scales' rows before padding.
 * @param columns  Their columns.
 * @param fill     The byte of the result's padding.
 * @return DLFP4_E_OPTION: no such layout. DLFP4_E_SHAPE: shapes that are not those of the layouts. DLFP4_E_DTYPE: types
 * that differ, or of other sizes. DLFP4_E_DEVICE. */
DLFP4_API dlfp4_status dlfp4_convert_scales(const DLTensor *x, int x_layout, const DLTensor *out, int out_layout,
                                            int64_t rows, int64_t columns, uint8_t fill, void *stream);

/* --- Products ------------------------------------------------------------------------------------------------ */

/** The bytes of workspace that dlfp4_vecdot() needs on a CUDA device for so many sums of so many products; -1 where it
 * will refuse. On the host it needs none. */
DLFP4_API int64_t dlfp4_vecdot_workspace(int64_t lines, int64_t length);

/** out[i] = the sum over k of a(i, k) * b(i, k).
 *
 * Elements are floats, or both integers of one type of at most 8 bits. FP4, FP6 and integers are summed exactly and
 * rounded once; otherwise the error is at most max(K, 16) * 2^-24 * sum |a b|.
 *
 * @param a          Of K elements a line, along which blocks run; of `lines` lines, or of one, which is repeated.
 * @param b          Likewise.
 * @param out        (lines,) of float32, compact.
 * @param workspace  On a device of dlfp4_vecdot_workspace() bytes, aligned to 8; else NULL.
 * @return DLFP4_E_DTYPE, DLFP4_E_SHAPE, DLFP4_E_DEVICE. DLFP4_E_OPTION: no workspace on a device that needs one, or
 * rotations that differ. */
DLFP4_API dlfp4_status dlfp4_vecdot(const dlfp4_scaled_tensor *a, const dlfp4_scaled_tensor *b, const DLTensor *out,
                                    void *workspace, void *stream);

/** The bytes of workspace that dlfp4_matmul() needs, where the tensors lie; -1 where it will refuse: what it returns
 * says why, whatever its workspace. */
DLFP4_API int64_t dlfp4_matmul_workspace(const dlfp4_scaled_tensor *a, const dlfp4_scaled_tensor *b,
                                         const DLTensor *out, const dlfp4_matmul_options *options);

/** out(i, j) = alpha * the sum over k of a(i, k) * b(j, k): activations of (M, K) by weights of (N, K). On the host the
 * bound is that of dlfp4_vecdot(), and one rounding, for sums of float32's normal numbers: below these a sum loses at
 * most K * 2^-149 before alpha and scales multiply it, K * 2^-123 at the levels avx512_bf16 and amx.
 *
 * On a CUDA device of compute capability 9.0 these are products of FP8 by FP8, on its tensor cores, as both lie. They
 * keep 13 bits below the largest product when they sum 128; what is smaller is lost, at most 2^-6 * sum |a b|, of
 * random values below 2^-10 of it. All else is dlfp4_matmul_prepared()'s there.
 *
 * @param a          Floats, plain or quantized, whose blocks run along K. On a device float8_e4m3fn or float8_e5m2,
 * each side without scales or with float32 ones for 128 of K or more (fp8_e4m3, fp8_row, fp8_1x128, fp8_128x128 and the
 * same of e5m2; linear or in cuBLAS's layouts); where one side has scales of blocks, the other has scales, too. Rows
 * begin at multiples of 16 bytes; K is one of 16, and not 0.
 * @param b          Likewise.
 * @param out        (M, N) of float32, bfloat16 or float16; on a device in compact rows.
 * @param options    NULL: alpha = 1, exact; on a device it is exact.
 * @param workspace  Of dlfp4_matmul_workspace() bytes, of any alignment; on a device these are 0, and it is not read.
 * @return On the host DLFP4_E_OPTION: no workspace. On a device DLFP4_E_DTYPE: other elements. DLFP4_E_OPTION: other
 * scales, or on one side alone. DLFP4_E_SHAPE: rows or K that its copies do not read. DLFP4_E_CUDA_KERNELS: another
 * compute capability. */
DLFP4_API dlfp4_status dlfp4_matmul(const dlfp4_scaled_tensor *a, const dlfp4_scaled_tensor *b, const DLTensor *out,
                                    const dlfp4_matmul_options *options, void *workspace, void *stream);

/** Which rows each expert multiplies, where the tensors lie; compact. Integers are int64, on a device int32 as well.
 *
 * The host looks at them. On a device nothing does, and nothing waits: ends that decrease or are beyond the rows count
 * as the nearest ones that do not, and rows with an index out of range as zeros, or none where they are added. A graph
 * may be replayed with others. */
typedef struct {
  const DLTensor *ends;    /**< (experts,): expert e has the routed rows from ends[e - 1] up to ends[e] */
  const DLTensor *indices; /**< (rows,), or NULL: the routed rows are those of x and of out, in order */
  const DLTensor
      *weights;    /**< (rows,) of float32, or NULL; with them, routed rows are added to rows `indices` of out */
  int32_t gathers; /**< nonzero: `indices` are rows of x, too */
} dlfp4_routing;

/** The bytes of workspace that dlfp4_grouped_matmul() needs, where the tensors lie; -1 where it will refuse. */
DLFP4_API int64_t dlfp4_grouped_matmul_workspace(const dlfp4_scaled_tensor *x, const dlfp4_scaled_tensor *w,
                                                 const dlfp4_routing *routing, const DLTensor *out,
                                                 const dlfp4_matmul_options *options);

/** The product of dlfp4_matmul() by each expert; on the host with the same bits, on a device with those of a kernel
 * that does not share out K. There it is of float8_e4m3fn by float8_e4m3fn, and of at most 512 experts;
 * dlfp4_grouped_matmul_prepared() has the rest.
 *
 * @param x          (rows, K), or, where indices gather, (tokens, K).
 * @param w          (experts * N, K): the weights of one expert after those of the other.
 * @param out        (rows, N); rows beyond the last end are zero. With weights (tokens, N): row i is the sum of
 *                   weight * product over the routed rows with that index, in their order, in float32, rounded once.
 *                   Where a device gathers and adds, both have as many tokens.
 * @param workspace  Of dlfp4_grouped_matmul_workspace() bytes; on a device aligned to 16.
 * @return On the host DLFP4_E_OPTION: ends that decrease or exceed the rows, indices out of range. DLFP4_E_OPTION:
 * weights without indices, no workspace. On a device also what dlfp4_matmul() returns there. */
DLFP4_API dlfp4_status dlfp4_grouped_matmul(const dlfp4_scaled_tensor *x, const dlfp4_scaled_tensor *w,
                                            const dlfp4_routing *routing, const DLTensor *out,
                                            const dlfp4_matmul_options *options, void *workspace, void *stream);

/** Weights in the order in which the matrix kernels of CUDA devices read them. The members are the library's own; what
 * they point to belongs to the caller. */
typedef struct {
  const void *memory;
  const float *factors; /* the scale of the whole tensor, or of each matrix of a stack, on the device, or NULL */
  int32_t device, format, largest, exact_in_half;
  int64_t rows, columns;
  int64_t matrices; /* that have a factor each; 1: all has one, or none */
} dlfp4_prepared;

/** The bytes that weights of (rows, columns), completed to whole blocks, take in this form; 0 where it does not have
 * them: formats of integers and of blocks with float32 scales, or extents below 1 or too large. */
DLFP4_API int64_t dlfp4_prepared_bytes(int format, int64_t rows, int64_t columns);

/** Prepares weights on a device, once for many products. It waits for the device.
 *
 * @param w         (N, K), blocks along K, linear scales; of a stack for experts (experts * N, K), whose global scale
 *                  may be one for each expert, (experts,). Scales of the whole tensor or of experts are read by
 *                  products, too, and have to stay where they are; all else may go.
 * @param memory    Of dlfp4_prepared_bytes(), on the device, aligned to 256 bytes; the products read it.
 * @param prepared  What dlfp4_matmul_prepared() and dlfp4_grouped_matmul_prepared() take.
 * @return DLFP4_E_OPTION: the form does not have such weights, or not their values: its power-of-two scales span less
 * than those of the formats. Multiply dequantized weights then. DLFP4_E_SHAPE: memory that is not aligned, too. */
DLFP4_API dlfp4_status dlfp4_prepare(const dlfp4_scaled_tensor *w, void *memory, dlfp4_prepared *prepared,
                                     void *stream);

/** out(i, j) = alpha * the sum over k of x(i, k) * w(j, k), on the tensor cores of a device, with exact products.
 *
 * @param x    (M, K) of bfloat16, or of float16 where the weights' values have no larger span than that, in rows that
 *             begin at multiples of 16 bytes; K is a multiple of 8.
 * @param out  (M, N) of float32, bfloat16 or float16, in compact rows.
 * @return DLFP4_E_DTYPE, DLFP4_E_SHAPE, DLFP4_E_DEVICE. DLFP4_E_OPTION: a stack whose experts have a scale each. */
DLFP4_API dlfp4_status dlfp4_matmul_prepared(const DLTensor *x, const dlfp4_prepared *w, const DLTensor *out,
                                             float alpha, void *stream);

/** The bytes of workspace, on the device, that dlfp4_grouped_matmul_prepared() needs; -1 where it will refuse. */
DLFP4_API int64_t dlfp4_grouped_matmul_prepared_workspace(const DLTensor *x, const dlfp4_prepared *w,
                                                          const dlfp4_routing *routing, const DLTensor *out);

/** The product of dlfp4_matmul_prepared() by each expert, with the bits of its kernel for few rows where there are at
 * most five times as many rows as experts and K is at most 8192, else of one that does not share out K; on devices of
 * compute capability 9.0, of at most 512 experts.
 *
 * @param x          (rows, K), or, where indices gather, (tokens, K), of dlfp4_matmul_prepared()'s types.
 * @param w          A stack of (experts * N, K), prepared as one matrix.
 * @param routing    On the device.
 * @param out        As dlfp4_grouped_matmul() has it there.
 * @param workspace  Of dlfp4_grouped_matmul_prepared_workspace() bytes, aligned to 16.
 * @return As dlfp4_matmul_prepared(). DLFP4_E_OPTION: weights without indices, or scales of another number of experts,
 * or no workspace. DLFP4_E_CUDA_KERNELS: another compute capability. */
DLFP4_API dlfp4_status dlfp4_grouped_matmul_prepared(const DLTensor *x, const dlfp4_prepared *w,
                                                     const dlfp4_routing *routing, const DLTensor *out, float alpha,
                                                     void *workspace, void *stream);

/* --- The machine --------------------------------------------------------------------------------------------- */

/** The instruction set in use: "scalar", "avx2", "avx512", "avx512_bf16" (which has VNNI too), "amx" or "neon". Chosen
 * at the first call from what the machine has, for "amx" also from whether Linux lets the process use tiles, which is
 * asked for unless the variable DLFP4_ISA names another one; NULL where that names one that is not there. */
DLFP4_API const char *dlfp4_isa(void);

/** Forces an instruction set, of the whole process (NULL: choose again). DLFP4_E_ISA where it is not there. A workspace
 * has the bytes of the one in use: force no other one between asking for them and the product. */
DLFP4_API dlfp4_status dlfp4_set_isa(const char *name);

/** The instruction sets of this build by number, the fastest first; NULL behind the last. */
DLFP4_API const char *dlfp4_isa_numbered(int number);

/** Threads for large calls, of the whole process; results do not depend on it. 0 restores the default (the CPUs this
 * process may use). OpenMP ends the process where the system refuses it a thread. */
DLFP4_API void dlfp4_set_num_threads(int threads);
DLFP4_API int dlfp4_get_num_threads(void);

/** Loads the kernels for a device, so that later calls can be captured into a graph. DLFP4_E_CUDA_DRIVER,
 * DLFP4_E_CUDA_KERNELS, or what the driver says. */
DLFP4_API dlfp4_status dlfp4_load_cuda(int device);

/** Puts functions into the registry of tvm-ffi, by which anything that speaks it calls them; no result is returned,
 * they write to tensors that they are given, on the stream that tvm-ffi has for the device:
 *
 *   dlfp4.cast(x, out)
 *   dlfp4.quantize(x, format, axis, layout, data, scales, global_scale or None, zero_points or None)
 *   dlfp4.dequantize(format, axis, layout, data, scales, global_scale or None, zero_points or None, out)
 *   dlfp4.matmul(x, format, axis, layout, data, scales, global_scale or None, zero_points or None, out, alpha)
 *
 * What is given for zero points may be biases, of float32. On a device matmul is that of FP8 x, without scales, by FP8
 * with one scale for the tensor.
 *
 * The library is a module of tvm-ffi, too, with these functions by their names without "dlfp4.".
 *
 * @return DLFP4_E_LIBRARY where the process has not loaded libtvm_ffi with global symbols, as its Python package does.
 */
DLFP4_API dlfp4_status dlfp4_register_tvm_ffi(void);

#ifdef __cplusplus
}
#endif

#endif /* DLFP4_DLFP4_H_ */
