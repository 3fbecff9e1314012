// What dlfp4 calls of PyTorch's stable C interface (torch/csrc/stable/c/shim.h, from 2.11 on), found at run time:
// nothing links to PyTorch. A handle is the address of a pointer to what implements the tensor. Functions that fill an
// answer return 0. A value of a kernel's stack is an integer, the bits of a double, or the handle of a tensor, list or
// string; an optional one is 0, or the address of a value.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
#include <cstddef>
extern "C" {
#else
#include <stdbool.h>
#include <stddef.h>
#endif

typedef void (*dlfp4_boxed_kernel)(uint64_t *stack, uint64_t arguments, uint64_t results);

typedef struct {
  int (*aoti_torch_get_dim)(void **tensor, int64_t *answer);
  int (*aoti_torch_get_sizes)(void **tensor, int64_t **answer);
  int (*aoti_torch_get_strides)(void **tensor, int64_t **answer);
  int (*aoti_torch_get_dtype)(void **tensor, int32_t *answer);
  int (*aoti_torch_get_device_type)(void **tensor, int32_t *answer);
  int (*aoti_torch_get_device_index)(void **tensor, int32_t *answer);
  bool (*aoti_torch_grad_mode_is_enabled)(void);
  int (*aoti_torch_empty_strided)(int64_t ndim, const int64_t *shape, const int64_t *strides, int32_t dtype,
                                  int32_t device_type, int32_t device_index, void ***answer);
  int (*aoti_torch_new_tensor_handle)(void **tensor, void ***answer);
  int (*aoti_torch_delete_tensor_object)(void **tensor);
  int (*torch_string_length)(void *string, size_t *answer);
  int (*torch_string_c_str)(void *string, const char **answer);
  int (*torch_delete_string)(void *string);
  int (*torch_list_size)(void *list, size_t *answer);
  int (*torch_list_get_item)(void *list, size_t index, uint64_t *answer);
  int (*torch_delete_list)(void *list);
  int (*aoti_torch_library_init_impl)(const char *ns, const char *key, const char *file, uint32_t line, void **answer);
  int (*torch_library_impl)(void *library, const char *name, dlfp4_boxed_kernel kernel, uint64_t version);
  int (*torch_delete_stable_ivalue)(uint64_t *value);  // from 2.13 on; before, C++ deletes what it made
} dlfp4_stable;

// The kernels for devices and for autograd: they call `run` with the GIL, and raise the exception of Python that -1
// stands for. There is one `run`.
typedef enum { DLFP4_BELOW_AUTOGRAD, DLFP4_AUTOGRAD } dlfp4_stage;
dlfp4_boxed_kernel dlfp4_boxed(dlfp4_stage stage, int (*run)(uint64_t *stack, dlfp4_stage stage));

// The dispatch keys that this thread includes and excludes, two numbers; NULL where the library has none under this
// name.
const uint64_t *dlfp4_keys_of_thread(void *library);

int dlfp4_delete_value(uint64_t *value);

#ifdef __cplusplus
}
#endif
