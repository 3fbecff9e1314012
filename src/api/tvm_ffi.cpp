// The C API as functions of tvm-ffi's stable ABI: by name in its registry, and as symbols of a module.
// Layout: the ABI of tvm-ffi 0.1 (tvm/ffi/c_api.h) as far as it is used, declared here so that building needs none of
// it. Trick: tvm-ffi is found in the process when it is asked for, never linked.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dlfp4/dlfp4.h"
#include "host/libraries.h"

namespace dlfp4 {
namespace tvm_ffi {
namespace {

enum TypeIndex {
  kNone = 0,
  kInt = 1,
  kFloat = 3,
  kDLTensorPtr = 7,
  kRawStr = 8,
  kSmallStr = 11,
  kStr = 65,
  kTensor = 70
};

struct Object {
  uint64_t references;
  int32_t type_index;
  uint32_t padding;
  void (*deleter)(void *, int);
};

struct ByteArray {
  const char *data;
  size_t size;
};

struct Any {
  int32_t type_index;
  uint32_t small_length;
  union {
    int64_t integer;
    double number;
    void *pointer;
    const char *text;
    char small_text[8];
  };
};

static_assert(sizeof(Object) == 24 && sizeof(Any) == 16, "the ABI of tvm-ffi");

using Function = int (*)(void *, const Any *, int32_t, Any *);

// A function of libtvm_ffi, where the process has loaded it; else NULL.
template <class Type>
Type find(const char *name) {
  return reinterpret_cast<Type>(find_in_tvm_ffi(name));
}

const char *name_of(int32_t type_index) {
  switch (type_index) {
    case kNone:
      return "None";
    case kInt:
      return "an integer";
    case kFloat:
      return "a number";
    case kDLTensorPtr:
    case kTensor:
      return "a tensor";
    case kRawStr:
    case kSmallStr:
    case kStr:
      return "a string";
    default:
      return "something else";
  }
}

// What a function was called with. After a failure everything fails.
class Call {
 public:
  Call(const char *function, const Any *arguments, int32_t count, int32_t expected)
      : function_(function), arguments_(arguments) {
    char words[kWords];
    if (count == expected) return;
    snprintf(words, sizeof(words), "dlfp4.%s: %d arguments; expected %d", function_, static_cast<int>(count),
             static_cast<int>(expected));
    fail("TypeError", words);
  }

  const DLTensor *tensor(int32_t k) {
    if (const DLTensor *found = find_tensor(k)) return found;
    return expect(k, "a tensor"), nullptr;
  }

  const DLTensor *tensor_or_none(int32_t k) {
    return failed_ || arguments_[k].type_index == kNone ? nullptr : tensor(k);
  }

  int integer(int32_t k) {
    if (failed_) return 0;
    const Any &x = arguments_[k];
    if (x.type_index == kInt && x.integer == static_cast<int>(x.integer)) return static_cast<int>(x.integer);
    return expect(k, "a small integer"), 0;
  }

  float number(int32_t k) {
    if (failed_) return 0;
    const Any &x = arguments_[k];
    if (x.type_index == kFloat) return static_cast<float>(x.number);
    if (x.type_index == kInt) return static_cast<float>(x.integer);
    return expect(k, "a number"), 0;
  }

  // The number that a name stands for.
  int named(int32_t k, int (*look_up)(const char *), const char *what) {
    char name[32] = "";
    const ByteArray given = text(k);
    if (failed_) return -1;
    if (given.size < sizeof(name)) memcpy(name, given.data, given.size);
    const int found = look_up(name);
    if (found >= 0) return found;
    char words[kWords];
    snprintf(words, sizeof(words), "dlfp4.%s: argument %d is no name of a %s", function_, static_cast<int>(k), what);
    fail("ValueError", words);
    return -1;
  }

  // Format, axis, layout, data, scales, global scale or None, zero points, biases or None.
  dlfp4_scaled_tensor scaled(int32_t first) {
    dlfp4_scaled_tensor q = {};
    q.format = named(first, dlfp4_find_format, "format");
    q.axis = integer(first + 1);
    q.layout = named(first + 2, dlfp4_find_layout, "layout of scales");
    q.data = tensor(first + 3);
    q.scales = tensor(first + 4);
    q.global_scale = tensor_or_none(first + 5);
    const DLTensor *const offsets = tensor_or_none(first + 6);
    (offsets && offsets->dtype.code == kDLFloat ? q.biases : q.zero_points) = offsets;
    return q;
  }

  bool failed() const { return failed_; }

  int finish(dlfp4_status status) {
    if (status == DLFP4_OK || failed_) return failed_ ? -1 : 0;
    char words[kWords];
    snprintf(words, sizeof(words), "dlfp4.%s: %s", function_, dlfp4_status_string(status));
    fail(status >= DLFP4_E_CUDA_DRIVER ? "RuntimeError" : "ValueError", words);
    return -1;
  }

 private:
  static constexpr int kWords = 256;

  const DLTensor *find_tensor(int32_t k) const {
    if (failed_) return nullptr;
    const Any &x = arguments_[k];
    if (x.type_index == kDLTensorPtr) return static_cast<const DLTensor *>(x.pointer);
    if (x.type_index == kTensor)
      return reinterpret_cast<const DLTensor *>(static_cast<char *>(x.pointer) + sizeof(Object));
    return nullptr;
  }

  ByteArray text(int32_t k) {
    if (failed_) return {};
    const Any &x = arguments_[k];
    if (x.type_index == kRawStr) return {x.text, strlen(x.text)};
    if (x.type_index == kSmallStr) return {x.small_text, x.small_length};
    if (x.type_index == kStr)
      return *reinterpret_cast<const ByteArray *>(static_cast<char *>(x.pointer) + sizeof(Object));
    return expect(k, "a string"), ByteArray{};
  }

  void expect(int32_t k, const char *what) {
    if (failed_) return;
    char words[kWords];
    snprintf(words, sizeof(words), "dlfp4.%s: argument %d is %s; expected %s", function_, static_cast<int>(k),
             name_of(arguments_[k].type_index), what);
    fail("TypeError", words);
  }

  void fail(const char *kind, const char *words) {
    failed_ = true;
    if (const auto raise = find<void (*)(const char *, const char *)>("TVMFFIErrorSetRaisedFromCStr"))
      raise(kind, words);
  }

  const char *const function_;
  const Any *const arguments_;
  bool failed_ = false;
};

bool is_on_cuda(const DLTensor &x) { return x.device.device_type == kDLCUDA || x.device.device_type == kDLCUDAManaged; }

// The stream that tvm-ffi's environment has for a tensor's device, which managed memory belongs to as well.
void *stream_of(const DLTensor *x) {
  const auto get = find<void *(*)(int32_t, int32_t)>("TVMFFIEnvGetStream");
  return x && get && is_on_cuda(*x) ? get(kDLCUDA, x->device.device_id) : nullptr;
}

void put_none(Any *result) { memset(result, 0, sizeof(*result)); }

// x, out
int cast(void *, const Any *arguments, int32_t count, Any *result) {
  Call call("cast", arguments, count, 2);
  const DLTensor *const x = call.tensor(0), *const out = call.tensor(1);
  put_none(result);
  return call.failed() ? -1 : call.finish(dlfp4_cast(x, out, nullptr, 0, stream_of(x)));
}

// x, and of the result: format, axis, layout, data, scales, global scale or None, zero points or None
int quantize(void *, const Any *arguments, int32_t count, Any *result) {
  Call call("quantize", arguments, count, 8);
  const DLTensor *const x = call.tensor(0);
  const dlfp4_scaled_tensor q = call.scaled(1);
  put_none(result);
  return call.failed() ? -1 : call.finish(dlfp4_quantize(x, nullptr, 0, &q, nullptr, stream_of(x)));
}

// of a quantized tensor: format, axis, layout, data, scales, global scale or None, zero points or None; out
int dequantize(void *, const Any *arguments, int32_t count, Any *result) {
  Call call("dequantize", arguments, count, 8);
  const dlfp4_scaled_tensor q = call.scaled(0);
  const DLTensor *const out = call.tensor(7);
  put_none(result);
  return call.failed() ? -1 : call.finish(dlfp4_dequantize(&q, out, stream_of(out)));
}

// x; of weights (N, K): format, axis, layout, data, scales, global scale or None, zero points or None; out, alpha
int matmul(void *, const Any *arguments, int32_t count, Any *result) {
  Call call("matmul", arguments, count, 10);
  dlfp4_scaled_tensor x = {};
  x.format = DLFP4_PLAIN;
  x.data = call.tensor(0);
  const dlfp4_scaled_tensor w = call.scaled(1);
  const DLTensor *const out = call.tensor(8);
  const dlfp4_matmul_options options = {DLFP4_ACTIVATION_EXACT, call.number(9)};
  put_none(result);
  if (call.failed()) return -1;
  const int64_t bytes = is_on_cuda(*out) ? 0 : dlfp4_matmul_workspace(&x, &w, out, &options);
  void *const workspace = bytes > 0 ? malloc(static_cast<size_t>(bytes)) : nullptr;
  const dlfp4_status status =
      bytes > 0 && !workspace ? DLFP4_E_MEMORY : dlfp4_matmul(&x, &w, out, &options, workspace, stream_of(out));
  free(workspace);
  return call.finish(status);
}

struct Row {
  const char *name;
  Function function;
};
constexpr Row kFunctions[] = {
    {"dlfp4.cast", cast}, {"dlfp4.quantize", quantize}, {"dlfp4.dequantize", dequantize}, {"dlfp4.matmul", matmul}};

bool add(const Row &row) {
  const auto create = find<int (*)(void *, Function, void (*)(void *), void **)>("TVMFFIFunctionCreate");
  const auto set = find<int (*)(const ByteArray *, void *, int)>("TVMFFIFunctionSetGlobal");
  const auto release = find<int (*)(void *)>("TVMFFIObjectDecRef");
  void *function = nullptr;
  if (!create || !set || !release || create(nullptr, row.function, nullptr, &function) != 0) return false;
  const ByteArray name = {row.name, strlen(row.name)};
  const bool done = set(&name, function, 1) == 0;
  release(function);
  return done;
}

}  // namespace
}  // namespace tvm_ffi
}  // namespace dlfp4

extern "C" {

dlfp4_status dlfp4_register_tvm_ffi(void) {
  for (const dlfp4::tvm_ffi::Row &row : dlfp4::tvm_ffi::kFunctions)
    if (!dlfp4::tvm_ffi::add(row)) return DLFP4_E_LIBRARY;
  return DLFP4_OK;
}

// What tvm-ffi finds in a module that it has loaded.
#define DLFP4_TVM_FFI_SYMBOL(name)                                                                 \
  DLFP4_API int __tvm_ffi_##name(void *self, const void *arguments, int32_t count, void *result) { \
    return dlfp4::tvm_ffi::name(self, static_cast<const dlfp4::tvm_ffi::Any *>(arguments), count,  \
                                static_cast<dlfp4::tvm_ffi::Any *>(result));                       \
  }
DLFP4_TVM_FFI_SYMBOL(cast)
DLFP4_TVM_FFI_SYMBOL(quantize)
DLFP4_TVM_FFI_SYMBOL(dequantize)
DLFP4_TVM_FFI_SYMBOL(matmul)
#undef DLFP4_TVM_FFI_SYMBOL
}
