/* formats.def as an enum (DLFP4_FORMAT_nvfp4, ...) and as a table that the enum indexes. */
#ifndef DLFP4_SRC_RULES_FORMATS_H_
#define DLFP4_SRC_RULES_FORMATS_H_

#include <stdint.h>

#include "dtypes.h"

enum {
#define DLFP4_BLOCK_FORMAT(name, element, lines, length, scale, rule, repeats) DLFP4_FORMAT_##name,
#include "formats.def"
#undef DLFP4_BLOCK_FORMAT
  DLFP4_NUM_FORMATS
};

enum dlfp4_scale_kind { DLFP4_TWO_LEVEL, DLFP4_POWER, DLFP4_LARGEST };

typedef struct {
  const char *name;
  uint8_t element; /* a row of dtypes.def */
  uint8_t scale;   /* a row of dtypes.def */
  uint8_t kind;    /* dlfp4_scale_kind */
  uint8_t repeats;
  int32_t lines;
  int32_t length;
} dlfp4_format_row;

#ifdef __cplusplus /* which can make tables of it while compiling */
#define DLFP4_CONSTANT static constexpr
#else
#define DLFP4_CONSTANT static const
#endif

DLFP4_CONSTANT dlfp4_format_row dlfp4_formats[DLFP4_NUM_FORMATS] = {
#define DLFP4_BLOCK_FORMAT(name, element, lines, length, scale, rule, repeats) \
  {#name, DLFP4_##element, DLFP4_##scale, DLFP4_##rule, repeats, lines, length},
#include "formats.def"
#undef DLFP4_BLOCK_FORMAT
};

#endif /* DLFP4_SRC_RULES_FORMATS_H_ */
