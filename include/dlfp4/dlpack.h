/* The DLPack 1.3 ABI (https://dmlc.github.io/dlpack), declared for C11 and C++17, and the values that its main branch
 * has added since (dmlc/dlpack#187 to #189), which change no layout.
 *
 * Names, values and layouts are the standard's; the static asserts at the end hold every size and offset, and
 * tests/exchange/test_abi.py compares them with the header that PyTorch ships.
 */
#ifndef DLFP4_DLPACK_H_
#define DLFP4_DLPACK_H_

#include <stddef.h>
#include <stdint.h>

/* A program may have DLPack's own header as well, as PyTorch's are: whichever comes first declares the structs. */
#ifdef DLPACK_DLPACK_H_
#if DLPACK_MAJOR_VERSION != 1 || DLPACK_MINOR_VERSION < 1
#error "a DLPack header without FP4 came first; dlfp4 needs that of 1.1 or newer, or its own before the other one"
#endif
#else
#define DLPACK_DLPACK_H_

#ifdef __cplusplus
extern "C" {
#endif

#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 3

/* A struct of another major version has another layout: call its deleter, read nothing else. */
typedef struct {
  uint32_t major;
  uint32_t minor;
} DLPackVersion;

#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,
  kDLOpenCL = 4,
  kDLVulkan = 7,
  kDLMetal = 8,
  kDLVPI = 9,
  kDLROCM = 10,
  kDLROCMHost = 11,
  kDLExtDev = 12,
  kDLCUDAManaged = 13,
  kDLOneAPI = 14,
  kDLWebGPU = 15,
  kDLHexagon = 16,
  kDLMAIA = 17,
  kDLTrn = 18,
  kDLTPU = 19,
  kDLTPUHost = 20,
  kDLAscend = 21
} DLDeviceType;

typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;

typedef enum {
  kDLInt = 0U,
  kDLUInt = 1U,
  kDLFloat = 2U,
  kDLOpaqueHandle = 3U,
  kDLBfloat = 4U,
  kDLComplex = 5U,
  kDLBool = 6U,
  kDLFloat8_e3m4 = 7U,
  kDLFloat8_e4m3 = 8U,
  kDLFloat8_e4m3b11fnuz = 9U,
  kDLFloat8_e4m3fn = 10U,
  kDLFloat8_e4m3fnuz = 11U,
  kDLFloat8_e5m2 = 12U,
  kDLFloat8_e5m2fnuz = 13U,
  kDLFloat8_e8m0fnu = 14U,
  kDLFloat6_e2m3fn = 15U, /* bits must be 6 */
  kDLFloat6_e3m2fn = 16U, /* bits must be 6 */
  kDLFloat4_e2m1fn = 17U, /* bits must be 4 */
  kDLBcomplex = 18U       /* two of bfloat16 */
} DLDataTypeCode;

typedef struct {
  uint8_t code; /* DLDataTypeCode */
  uint8_t bits; /* of one lane */
  uint16_t lanes;
} DLDataType;

typedef struct {
  void *data; /* may be NULL where the tensor has no element */
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL (before 1.2): compact, row-major */
  uint64_t byte_offset;
} DLTensor;

/* The unversioned struct of the capsule "dltensor". It cannot say read-only nor padded. */
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *self); /* may be NULL */
} DLManagedTensor;

#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)
/* One sub-byte element per byte, in its low bits; without it such elements are packed, little-endian. */
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED (1UL << 2UL)

/* The struct of the capsule "dltensor_versioned". */
typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self); /* may be NULL */
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* ---- The C exchange API: a table of functions behind `__dlpack_c_exchange_api__`, an attribute of the tensor's type
 * that holds a capsule named "dlpack_exchange_api". No function synchronises streams. */

/* A new tensor after `prototype` (dtype, ndim, shape, device). On failure returns -1 and calls SetError once. */
typedef int (*DLPackManagedTensorAllocator)(DLTensor *prototype, DLManagedTensorVersioned **out, void *error_ctx,
                                            void (*SetError)(void *error_ctx, const char *kind, const char *message));

/* An owning view of `py_object`, whose type is the one the table came from. -1 with a Python exception on failure. */
typedef int (*DLPackManagedTensorFromPyObjectNoSync)(void *py_object, DLManagedTensorVersioned **out);

/* A borrowed view, alive until control returns to the object's owner. -1 with a Python exception on failure. */
typedef int (*DLPackDLTensorFromPyObjectNoSync)(void *py_object, DLTensor *out);

/* The stream on which the framework works now; NULL on the CPU. */
typedef int (*DLPackCurrentWorkStream)(DLDeviceType device_type, int32_t device_id, void **out_current_stream);

/* Takes ownership of `tensor` and makes it an object of the framework. -1 with a Python exception on failure. */
typedef int (*DLPackManagedTensorToPyObjectNoSync)(DLManagedTensorVersioned *tensor, void **out_py_object);

typedef struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  struct DLPackExchangeAPIHeader *prev_api; /* a table of an older major version, or NULL */
} DLPackExchangeAPIHeader;

typedef struct DLPackExchangeAPI {
  DLPackExchangeAPIHeader header;
  DLPackManagedTensorAllocator managed_tensor_allocator;
  DLPackManagedTensorFromPyObjectNoSync managed_tensor_from_py_object_no_sync;
  DLPackManagedTensorToPyObjectNoSync managed_tensor_to_py_object_no_sync;
  DLPackDLTensorFromPyObjectNoSync dltensor_from_py_object_no_sync; /* may be NULL */
  DLPackCurrentWorkStream current_work_stream;
} DLPackExchangeAPI;

#ifdef __cplusplus
} /* extern "C" */
#define DLFP4_STATIC_ASSERT static_assert
#else
#define DLFP4_STATIC_ASSERT _Static_assert
#endif

#define DLFP4_ASSERT_SIZE(type, size) DLFP4_STATIC_ASSERT(sizeof(type) == (size), "size of " #type)
#define DLFP4_ASSERT_OFFSET(type, field, offset) \
  DLFP4_STATIC_ASSERT(offsetof(type, field) == (offset), "offset of " #type "." #field)

DLFP4_STATIC_ASSERT(sizeof(void *) == 8, "dlfp4 needs a 64-bit platform");
DLFP4_ASSERT_SIZE(DLPackVersion, 8);
DLFP4_ASSERT_OFFSET(DLPackVersion, minor, 4);
DLFP4_ASSERT_SIZE(DLDeviceType, 4);
DLFP4_ASSERT_SIZE(DLDevice, 8);
DLFP4_ASSERT_OFFSET(DLDevice, device_id, 4);
DLFP4_ASSERT_SIZE(DLDataType, 4);
DLFP4_ASSERT_OFFSET(DLDataType, bits, 1);
DLFP4_ASSERT_OFFSET(DLDataType, lanes, 2);
DLFP4_ASSERT_SIZE(DLTensor, 48);
DLFP4_ASSERT_OFFSET(DLTensor, device, 8);
DLFP4_ASSERT_OFFSET(DLTensor, ndim, 16);
DLFP4_ASSERT_OFFSET(DLTensor, dtype, 20);
DLFP4_ASSERT_OFFSET(DLTensor, shape, 24);
DLFP4_ASSERT_OFFSET(DLTensor, strides, 32);
DLFP4_ASSERT_OFFSET(DLTensor, byte_offset, 40);
DLFP4_ASSERT_SIZE(DLManagedTensor, 64);
DLFP4_ASSERT_OFFSET(DLManagedTensor, manager_ctx, 48);
DLFP4_ASSERT_OFFSET(DLManagedTensor, deleter, 56);
DLFP4_ASSERT_SIZE(DLManagedTensorVersioned, 80);
DLFP4_ASSERT_OFFSET(DLManagedTensorVersioned, manager_ctx, 8);
DLFP4_ASSERT_OFFSET(DLManagedTensorVersioned, deleter, 16);
DLFP4_ASSERT_OFFSET(DLManagedTensorVersioned, flags, 24);
DLFP4_ASSERT_OFFSET(DLManagedTensorVersioned, dl_tensor, 32);
DLFP4_ASSERT_SIZE(DLPackExchangeAPIHeader, 16);
DLFP4_ASSERT_OFFSET(DLPackExchangeAPIHeader, prev_api, 8);
DLFP4_ASSERT_SIZE(DLPackExchangeAPI, 56);
DLFP4_ASSERT_OFFSET(DLPackExchangeAPI, managed_tensor_allocator, 16);
DLFP4_ASSERT_OFFSET(DLPackExchangeAPI, managed_tensor_from_py_object_no_sync, 24);
DLFP4_ASSERT_OFFSET(DLPackExchangeAPI, managed_tensor_to_py_object_no_sync, 32);
DLFP4_ASSERT_OFFSET(DLPackExchangeAPI, dltensor_from_py_object_no_sync, 40);
DLFP4_ASSERT_OFFSET(DLPackExchangeAPI, current_work_stream, 48);

#undef DLFP4_ASSERT_OFFSET
#undef DLFP4_ASSERT_SIZE
#undef DLFP4_STATIC_ASSERT

#endif /* DLPACK_DLPACK_H_ */
#endif /* DLFP4_DLPACK_H_ */
