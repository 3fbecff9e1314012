/* The handlers of XLA's custom calls by name, each platform's; dlfp4/core/machine/xla.pxi hands them out. */
#ifndef DLFP4_SRC_XLA_HANDLERS_H_
#define DLFP4_SRC_XLA_HANDLERS_H_

#include "dlfp4/xla_ffi.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* of the library, for the extension */

typedef struct {
  const char *name; /* of the operation; NULL behind the last */
  XLA_FFI_Handler *execute;
  XLA_FFI_Handler *initialize; /* the stage before the first call; NULL: none */
} dlfp4_xla_handler;

const dlfp4_xla_handler *dlfp4_xla_handlers(void);
const dlfp4_xla_handler *dlfp4_xla_handlers_of_cuda(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif /* DLFP4_SRC_XLA_HANDLERS_H_ */
