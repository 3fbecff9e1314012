/* What dlfp4 uses of the C ABI of XLA's foreign functions (XLA FFI, major version 0), declared for C11 and C++17.
 *
 * Names, values and layouts are those of xla/ffi/api/c_api.h, which jaxlib ships; the static asserts at the end hold
 * every size and offset, and tests/compilers/test_xla_abi.py compares them with that header. Structs of later minor
 * versions are longer: a struct that XLA fills says its size, and what lies behind the fields named here is not read.
 */
#ifndef DLFP4_XLA_FFI_H_
#define DLFP4_XLA_FFI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define XLA_FFI_API_MAJOR 0
#define XLA_FFI_API_MINOR 3

typedef struct XLA_FFI_Error XLA_FFI_Error;
typedef struct XLA_FFI_ExecutionContext XLA_FFI_ExecutionContext;
typedef struct XLA_FFI_Future XLA_FFI_Future;
typedef struct XLA_FFI_InternalApi XLA_FFI_InternalApi;

/* What a call is extended by: a request for what a handler says of itself, before its first call. */
typedef enum { XLA_FFI_Extension_Metadata = 1 } XLA_FFI_Extension_Type;

typedef struct XLA_FFI_Extension_Base {
  size_t struct_size;
  XLA_FFI_Extension_Type type;
  struct XLA_FFI_Extension_Base *next;
} XLA_FFI_Extension_Base;

typedef struct {
  size_t struct_size;
  XLA_FFI_Extension_Base *extension_start;
  int major_version;
  int minor_version;
} XLA_FFI_Api_Version;

typedef struct {
  int64_t type_id;
} XLA_FFI_TypeId;

enum { XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE = 1u << 0 };

typedef struct {
  size_t struct_size;
  XLA_FFI_Api_Version api_version;
  uint32_t traits;
  XLA_FFI_TypeId state_type_id;
} XLA_FFI_Metadata;

typedef struct {
  XLA_FFI_Extension_Base extension_base;
  XLA_FFI_Metadata *metadata;
} XLA_FFI_Metadata_Extension;

typedef enum {
  XLA_FFI_Error_Code_INVALID_ARGUMENT = 3,
  XLA_FFI_Error_Code_RESOURCE_EXHAUSTED = 8,
  XLA_FFI_Error_Code_FAILED_PRECONDITION = 9,
  XLA_FFI_Error_Code_INTERNAL = 13
} XLA_FFI_Error_Code;

typedef struct {
  size_t struct_size;
  XLA_FFI_Extension_Base *extension_start;
  const char *message;
  XLA_FFI_Error_Code errc;
} XLA_FFI_Error_Create_Args;

typedef struct {
  size_t struct_size;
  XLA_FFI_Extension_Base *extension_start;
  XLA_FFI_ExecutionContext *ctx;
  void *stream; /* out */
} XLA_FFI_Stream_Get_Args;

typedef struct {
  size_t struct_size;
  XLA_FFI_Extension_Base *extension_start;
  XLA_FFI_ExecutionContext *ctx;
  size_t size;
  size_t alignment;
  void *data; /* out */
} XLA_FFI_DeviceMemory_Allocate_Args;

typedef struct {
  size_t struct_size;
  XLA_FFI_Extension_Base *extension_start;
  XLA_FFI_ExecutionContext *ctx;
  int32_t device_ordinal; /* out */
} XLA_FFI_DeviceOrdinal_Get_Args;

/* The functions of XLA. Those that dlfp4 does not call are untyped. */
typedef struct {
  size_t struct_size;
  XLA_FFI_Extension_Base *extension_start;
  XLA_FFI_Api_Version api_version;
  const XLA_FFI_InternalApi *internal_api;
  XLA_FFI_Error *(*XLA_FFI_Error_Create)(XLA_FFI_Error_Create_Args *args);
  void *uncalled[3]; /* Error_GetMessage, Error_Destroy, Handler_Register */
  XLA_FFI_Error *(*XLA_FFI_Stream_Get)(XLA_FFI_Stream_Get_Args *args);
  void *uncalled_too[4]; /* Type_Register, ExecutionContext_Get, State_Set, State_Get */
  XLA_FFI_Error *(*XLA_FFI_DeviceMemory_Allocate)(XLA_FFI_DeviceMemory_Allocate_Args *args);
  void *uncalled_as_well[7]; /* DeviceMemory_Free, ThreadPool_*, Future_*, RunId_Get */
  XLA_FFI_Error *(*XLA_FFI_DeviceOrdinal_Get)(XLA_FFI_DeviceOrdinal_Get_Args *args);
} XLA_FFI_Api;

typedef enum { XLA_FFI_DataType_S64 = 5 } XLA_FFI_DataType;

typedef struct {
  size_t struct_size;
  XLA_FFI_Extension_Base *extension_start;
  int32_t dtype; /* XLA_FFI_DataType */
  void *data;
  int64_t rank;
  int64_t *dims;
} XLA_FFI_Buffer;

typedef enum { XLA_FFI_ArgType_BUFFER = 1 } XLA_FFI_ArgType;
typedef enum { XLA_FFI_RetType_BUFFER = 1 } XLA_FFI_RetType;
typedef enum { XLA_FFI_AttrType_ARRAY = 1 } XLA_FFI_AttrType;

typedef enum { XLA_FFI_ExecutionStage_INITIALIZE = 2, XLA_FFI_ExecutionStage_EXECUTE = 3 } XLA_FFI_ExecutionStage;

typedef struct {
  const char *ptr;
  size_t len;
} XLA_FFI_ByteSpan;

typedef struct {
  int32_t dtype; /* XLA_FFI_DataType */
  size_t size;
  void *data;
} XLA_FFI_Array;

typedef struct {
  size_t struct_size;
  XLA_FFI_Extension_Base *extension_start;
  int64_t size;
  XLA_FFI_ArgType *types;
  void **args;
} XLA_FFI_Args;

typedef struct {
  size_t struct_size;
  XLA_FFI_Extension_Base *extension_start;
  int64_t size;
  XLA_FFI_RetType *types;
  void **rets;
} XLA_FFI_Rets;

typedef struct {
  size_t struct_size;
  XLA_FFI_Extension_Base *extension_start;
  int64_t size;
  XLA_FFI_AttrType *types;
  XLA_FFI_ByteSpan **names;
  void **attrs;
} XLA_FFI_Attrs;

typedef struct {
  size_t struct_size;
  XLA_FFI_Extension_Base *extension_start;
  const XLA_FFI_Api *api;
  XLA_FFI_ExecutionContext *ctx;
  int32_t stage; /* XLA_FFI_ExecutionStage */
  XLA_FFI_Args args;
  XLA_FFI_Rets rets;
  XLA_FFI_Attrs attrs;
  XLA_FFI_Future *future;
} XLA_FFI_CallFrame;

/* NULL: it went well. */
typedef XLA_FFI_Error *XLA_FFI_Handler(XLA_FFI_CallFrame *call_frame);

#ifdef __cplusplus
} /* extern "C" */
#define DLFP4_STATIC_ASSERT static_assert
#else
#define DLFP4_STATIC_ASSERT _Static_assert
#endif

#define DLFP4_ASSERT_SIZE(type, size) DLFP4_STATIC_ASSERT(sizeof(type) == (size), "size of " #type)
#define DLFP4_ASSERT_OFFSET(type, field, offset) \
  DLFP4_STATIC_ASSERT(offsetof(type, field) == (offset), "offset of " #type "." #field)

DLFP4_ASSERT_SIZE(XLA_FFI_Extension_Base, 24);
DLFP4_ASSERT_OFFSET(XLA_FFI_Extension_Base, type, 8);
DLFP4_ASSERT_OFFSET(XLA_FFI_Extension_Base, next, 16);
DLFP4_ASSERT_SIZE(XLA_FFI_Api_Version, 24);
DLFP4_ASSERT_OFFSET(XLA_FFI_Api_Version, major_version, 16);
DLFP4_ASSERT_OFFSET(XLA_FFI_Api_Version, minor_version, 20);
DLFP4_ASSERT_SIZE(XLA_FFI_Metadata, 48);
DLFP4_ASSERT_OFFSET(XLA_FFI_Metadata, api_version, 8);
DLFP4_ASSERT_OFFSET(XLA_FFI_Metadata, traits, 32);
DLFP4_ASSERT_OFFSET(XLA_FFI_Metadata, state_type_id, 40);
DLFP4_ASSERT_SIZE(XLA_FFI_Metadata_Extension, 32);
DLFP4_ASSERT_OFFSET(XLA_FFI_Metadata_Extension, metadata, 24);
DLFP4_ASSERT_SIZE(XLA_FFI_Error_Create_Args, 32);
DLFP4_ASSERT_OFFSET(XLA_FFI_Error_Create_Args, message, 16);
DLFP4_ASSERT_OFFSET(XLA_FFI_Error_Create_Args, errc, 24);
DLFP4_ASSERT_SIZE(XLA_FFI_Stream_Get_Args, 32);
DLFP4_ASSERT_OFFSET(XLA_FFI_Stream_Get_Args, ctx, 16);
DLFP4_ASSERT_OFFSET(XLA_FFI_Stream_Get_Args, stream, 24);
DLFP4_ASSERT_SIZE(XLA_FFI_DeviceMemory_Allocate_Args, 48);
DLFP4_ASSERT_OFFSET(XLA_FFI_DeviceMemory_Allocate_Args, size, 24);
DLFP4_ASSERT_OFFSET(XLA_FFI_DeviceMemory_Allocate_Args, alignment, 32);
DLFP4_ASSERT_OFFSET(XLA_FFI_DeviceMemory_Allocate_Args, data, 40);
DLFP4_ASSERT_SIZE(XLA_FFI_DeviceOrdinal_Get_Args, 32);
DLFP4_ASSERT_OFFSET(XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal, 24);
DLFP4_ASSERT_OFFSET(XLA_FFI_Api, api_version, 16);
DLFP4_ASSERT_OFFSET(XLA_FFI_Api, internal_api, 40);
DLFP4_ASSERT_OFFSET(XLA_FFI_Api, XLA_FFI_Error_Create, 48);
DLFP4_ASSERT_OFFSET(XLA_FFI_Api, XLA_FFI_Stream_Get, 80);
DLFP4_ASSERT_OFFSET(XLA_FFI_Api, XLA_FFI_DeviceMemory_Allocate, 120);
DLFP4_ASSERT_OFFSET(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get, 184);
DLFP4_ASSERT_SIZE(XLA_FFI_Buffer, 48);
DLFP4_ASSERT_OFFSET(XLA_FFI_Buffer, dtype, 16);
DLFP4_ASSERT_OFFSET(XLA_FFI_Buffer, data, 24);
DLFP4_ASSERT_OFFSET(XLA_FFI_Buffer, rank, 32);
DLFP4_ASSERT_OFFSET(XLA_FFI_Buffer, dims, 40);
DLFP4_ASSERT_SIZE(XLA_FFI_ByteSpan, 16);
DLFP4_ASSERT_OFFSET(XLA_FFI_ByteSpan, len, 8);
DLFP4_ASSERT_SIZE(XLA_FFI_Array, 24);
DLFP4_ASSERT_OFFSET(XLA_FFI_Array, size, 8);
DLFP4_ASSERT_OFFSET(XLA_FFI_Array, data, 16);
DLFP4_ASSERT_SIZE(XLA_FFI_Args, 40);
DLFP4_ASSERT_OFFSET(XLA_FFI_Args, args, 32);
DLFP4_ASSERT_SIZE(XLA_FFI_Rets, 40);
DLFP4_ASSERT_OFFSET(XLA_FFI_Rets, rets, 32);
DLFP4_ASSERT_SIZE(XLA_FFI_Attrs, 48);
DLFP4_ASSERT_OFFSET(XLA_FFI_Attrs, attrs, 40);
DLFP4_ASSERT_OFFSET(XLA_FFI_CallFrame, api, 16);
DLFP4_ASSERT_OFFSET(XLA_FFI_CallFrame, ctx, 24);
DLFP4_ASSERT_OFFSET(XLA_FFI_CallFrame, stage, 32);
DLFP4_ASSERT_OFFSET(XLA_FFI_CallFrame, args, 40);
DLFP4_ASSERT_OFFSET(XLA_FFI_CallFrame, rets, 80);
DLFP4_ASSERT_OFFSET(XLA_FFI_CallFrame, attrs, 120);
DLFP4_ASSERT_OFFSET(XLA_FFI_CallFrame, future, 168);

#undef DLFP4_ASSERT_OFFSET
#undef DLFP4_ASSERT_SIZE
#undef DLFP4_STATIC_ASSERT

#endif /* DLFP4_XLA_FFI_H_ */
