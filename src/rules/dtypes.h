/* dtypes.def as an enum (DLFP4_float32, ...) and as a table that the enum indexes. */
#ifndef DLFP4_SRC_RULES_DTYPES_H_
#define DLFP4_SRC_RULES_DTYPES_H_

#include <stdint.h>

enum {
#define DLFP4_DTYPE(name, code, bits, exponent, mantissa, bias, specials) DLFP4_##name,
#include "dtypes.def"
#undef DLFP4_DTYPE
  DLFP4_NUM_DTYPES
};

enum dlfp4_specials { DLFP4_NONE, DLFP4_IEEE, DLFP4_FN, DLFP4_FNUZ, DLFP4_FINITE, DLFP4_E8M0 };

typedef struct {
  const char *name;
  uint8_t code;
  uint8_t bits;
  uint8_t exponent;
  uint8_t mantissa;
  int16_t bias;
  uint8_t specials;
} dlfp4_dtype_row;

static const dlfp4_dtype_row dlfp4_dtypes[DLFP4_NUM_DTYPES] = {
#define DLFP4_DTYPE(name, code, bits, exponent, mantissa, bias, specials) \
  {#name, code, bits, exponent, mantissa, bias, DLFP4_##specials},
#include "dtypes.def"
#undef DLFP4_DTYPE
};

#ifdef __cplusplus
extern "C" {
#endif

/* The row of a DLPack type with lanes = 1, or -1. */
int dlfp4_find_dtype(uint8_t code, uint8_t bits);

#ifdef __cplusplus
}
#endif

#endif /* DLFP4_SRC_RULES_DTYPES_H_ */
