/* The C API of the kernels: what the Python package calls, and what other C and C++ code may.
 *
 * No function here allocates, throws, touches Python or keeps a pointer after it returns.
 * Arguments are described, never owned; a status other than DLFP4_OK means that nothing was written.
 */
#ifndef DLFP4_DLFP4_H_
#define DLFP4_DLFP4_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  DLFP4_OK = 0,
  DLFP4_E_DTYPE,  /* a type, or a pair of types, that the operation does not have */
  DLFP4_E_SHAPE,  /* shapes differ */
  DLFP4_E_OPTION, /* an option out of its range */
  DLFP4_E_ISA     /* an instruction set that this machine, or this build, does not have */
} dlfp4_status;

/* Elements in host memory. `code` and `bits` are DLPack's, lanes = 1. Strides count elements, so that in packed
 * sub-byte data element (i, j) lies at bit (i*strides[0] + j*strides[1]) * bits from `data`; padded data holds one
 * element in the low bits of each byte. `data` needs no alignment. */
typedef struct {
  void *data;
  const int64_t *shape;
  const int64_t *strides;
  int32_t ndim;
  uint8_t code;
  uint8_t bits;
  uint8_t padded;
} dlfp4_view;

typedef enum { DLFP4_NEAREST_EVEN = 0, DLFP4_NEAREST_AWAY, DLFP4_TOWARD_ZERO, DLFP4_STOCHASTIC } dlfp4_rounding;

typedef struct {
  dlfp4_rounding rounding;
  int saturate;  /* nonzero: overflow clamps to the largest finite value; zero: as ml_dtypes' astype */
  uint64_t seed; /* for DLFP4_STOCHASTIC: the result depends on the seed and on the element's index alone */
} dlfp4_convert_options;

/* dst[i] = src[i] in dst's type, for every index i. Equal types move bits (this is also pack, unpack and copy);
 * different ones must both be floating-point. `options` may be NULL: nearest even, saturating.
 * src and dst may be the same memory only where every element keeps its byte (equal item sizes and strides). */
dlfp4_status dlfp4_convert(const dlfp4_view *src, const dlfp4_view *dst, const dlfp4_convert_options *options);

/* The instruction set in use: "scalar", "avx2", "avx512" or "neon". Chosen at the first call from what the machine
 * has; dlfp4_set_isa forces one (NULL: choose again) and refuses one that is not there. */
const char *dlfp4_isa(void);
dlfp4_status dlfp4_set_isa(const char *name);

/* Threads for large calls; results do not depend on it. 0 restores the default (the CPUs this process may use). */
void dlfp4_set_num_threads(int threads);
int dlfp4_get_num_threads(void);

#ifdef __cplusplus
}
#endif

#endif /* DLFP4_DLFP4_H_ */
