// Operations of a compiled program on CUDA devices: cast, pack, unpack, quantize, dequantize, sums.
// Layout: as on the host; XLA packs FP4 there, too.
// Trick: kernels are launched on the stream that XLA gives; nothing waits, and but for sums nothing is allocated.
#include <stdio.h>

#include <initializer_list>

#include "gpu/driver.h"
#include "gpu/kernels.h"
#include "xla/frames.h"
#include "xla/handlers.h"

namespace dlfp4 {
namespace xla {
namespace {

struct Place {
  int device;
  uintptr_t stream;
};

XLA_FFI_Error *find_device(const XLA_FFI_CallFrame *frame, int *device) {
  XLA_FFI_DeviceOrdinal_Get_Args args = {sizeof(args), nullptr, frame->ctx, 0};
  XLA_FFI_Error *const error = frame->api->XLA_FFI_DeviceOrdinal_Get(&args);
  *device = args.device_ordinal;
  return error;
}

XLA_FFI_Error *find_place(const XLA_FFI_CallFrame *frame, Place *place) {
  XLA_FFI_Stream_Get_Args args = {sizeof(args), nullptr, frame->ctx, nullptr};
  XLA_FFI_Error *const error = frame->api->XLA_FFI_Stream_Get(&args);
  place->stream = reinterpret_cast<uintptr_t>(args.stream);
  return error != nullptr ? error : find_device(frame, &place->device);
}

XLA_FFI_Error *fail_of(const XLA_FFI_CallFrame *frame, int status, const char *what) {
  char text[256];
  if (status == DLFP4_CUDA_NO_IMAGE)
    snprintf(text, sizeof(text), "dlfp4: %s: this build has no kernels for the device", what);
  else if (status <= -DLFP4_CUDA_REFUSED)
    snprintf(text, sizeof(text), "dlfp4: %s: the CUDA kernels do not take this (status %d)", what,
             -status - DLFP4_CUDA_REFUSED);
  else
    snprintf(text, sizeof(text), "dlfp4: %s: %s (%d)", what, dlfp4_cuda_error_name(status), status);
  return fail(frame, XLA_FFI_Error_Code_INTERNAL, text);
}

// Runs `one(plan, addresses, place)` for every tensor of a batch, until one fails.
template <class Plan, class One>
XLA_FFI_Error *run(XLA_FFI_CallFrame *frame, const char *what, uint32_t traits, One one) {
  if (tell_about_handler(frame, traits)) return nullptr;
  XLA_FFI_Error *error = nullptr;
  const Plan *const plan = plan_of<Plan>(frame, &error);
  Place place = {};
  if (plan == nullptr) return error;
  error = find_place(frame, &place);
  for (int64_t number = 0; number < plan->plan.count && error == nullptr; ++number) {
    const int status = one(*plan, addresses_of(frame, plan->plan, number), place);
    if (status != 0) error = fail_of(frame, status, what);
  }
  return error;
}

// The stage before the first call: kernels are loaded, which may not be done while a graph is captured.
template <int... kImages>
XLA_FFI_Error *load(XLA_FFI_CallFrame *frame) {
  if (tell_about_handler(frame, 0)) return nullptr;
  int device = 0;
  XLA_FFI_Error *error = find_device(frame, &device);
  for (const int image : {kImages...}) {
    if (error != nullptr || dlfp4_cuda_is_loaded(device, image)) continue;
    const int status = dlfp4_cuda_load(device, image, nullptr);
    if (status != 0) error = fail_of(frame, status, "loading kernels");
  }
  return error;
}

// --- Codecs ----------------------------------------------------------------------------------

XLA_FFI_Error *convert(XLA_FFI_CallFrame *frame) {
  return run<dlfp4_convert_plan>(frame, "converting", XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE,
                                 [](const dlfp4_convert_plan &plan, const Addresses &addresses, const Place &place) {
                                   const dlfp4_view source = view_of(&plan.size, plan.source, addresses.at[0]);
                                   const dlfp4_view result = view_of(&plan.size, plan.result, addresses.at[1]);
                                   return dlfp4_cuda_convert(place.device, place.stream, &source, &result,
                                                             &plan.options);
                                 });
}

// --- Block scaling ---------------------------------------------------------------------------

// Given global scales of lines, to where those of the result lie.
int copy_units(const Place &place, const void *given, float *units, int64_t count) {
  static const dlfp4_plan_elements kFloat = {2, 32, 0};
  const dlfp4_view source = view_of(&count, kFloat, const_cast<void *>(given)), result = view_of(&count, kFloat, units);
  return dlfp4_cuda_convert(place.device, place.stream, &source, &result, nullptr);
}

int quantize_part(const dlfp4_quantize_plan &plan, const dlfp4_cuda_scale &scale, const Place &place) {
  return dlfp4_cuda_quantize(place.device, place.stream, &plan.x, plan.format, &plan.recipe, &scale,
                             plan.along[0] ? &plan.blocks[0] : nullptr, plan.along[1] ? &plan.blocks[1] : nullptr);
}

int quantize_tensor(dlfp4_quantize_plan plan, const Addresses &addresses, const Place &place) {
  if (plan.given == DLFP4_GIVEN_LARGEST) return -(DLFP4_CUDA_REFUSED + DLFP4_E_OPTION);
  const QuantizedPlaces places = place_quantized(&plan, addresses);
  dlfp4_cuda_scale scale = {plan.has_scale ? static_cast<const float *>(places.given) : nullptr, 0, {}};
  int found = 0;
  for (int k = 0; k < 2; ++k) {
    if (places.units[k] != nullptr) scale.places[found++] = places.units[k];
    float *const of_lines = plan.blocks[k].decodes;
    if (of_lines == nullptr || places.given == nullptr) continue;
    const int status = copy_units(place, places.given, of_lines, plan.units);
    if (status != 0) return status;
  }
  for (int64_t part = 0; part < plan.parts; ++part) {
    const int status = quantize_part(plan, scale, place);
    if (status != 0) return status;
    step_to_next_part(&plan);
    if (scale.given != nullptr) ++scale.given;
    if (scale.places[0] != nullptr) ++scale.places[0];
  }
  return 0;
}

XLA_FFI_Error *quantize(XLA_FFI_CallFrame *frame) {
  return run<dlfp4_quantize_plan>(frame, "quantizing", XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE,
                                  quantize_tensor);
}

XLA_FFI_Error *dequantize(XLA_FFI_CallFrame *frame) {
  return run<dlfp4_dequantize_plan>(frame, "dequantizing", XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE,
                                    [](dlfp4_dequantize_plan plan, const Addresses &addresses, const Place &place) {
                                      Cursor cursor = {addresses.at};
                                      const float *const decode = place_blocks(&plan.blocks, plan.unit, &cursor);
                                      plan.result.data = cursor.take();
                                      return dlfp4_cuda_dequantize(place.device, place.stream, &plan.blocks,
                                                                   plan.format, decode, &plan.result);
                                    });
}

// --- Sums ------------------------------------------------------------------------------------

// Memory that XLA frees when the call has returned, in the order of its stream.
XLA_FFI_Error *allocate(const XLA_FFI_CallFrame *frame, int64_t bytes, void **memory) {
  if (bytes == 0) return nullptr;
  XLA_FFI_DeviceMemory_Allocate_Args args = {sizeof(args),   nullptr, frame->ctx, static_cast<size_t>(bytes),
                                             sizeof(double), nullptr};
  XLA_FFI_Error *const error = frame->api->XLA_FFI_DeviceMemory_Allocate(&args);
  *memory = args.data;
  return error;
}

int sum(dlfp4_vecdot_plan plan, const Addresses &addresses, const Place &place, double *workspace) {
  Cursor cursor = {addresses.at};
  dlfp4_cuda_lines sides[2];
  for (int k = 0; k < 2; ++k) {
    const float *const decode = place_factor(&plan.factors[k], &cursor);
    sides[k] = {plan.factors[k].lines, plan.strides[k], decode};
  }
  return dlfp4_cuda_vecdot(place.device, place.stream, &sides[0], &sides[1], plan.ndim, plan.shape, plan.length,
                           reinterpret_cast<float *>(cursor.take()), workspace);
}

XLA_FFI_Error *vecdot(XLA_FFI_CallFrame *frame) {
  if (tell_about_handler(frame, 0)) return nullptr;
  XLA_FFI_Error *error = nullptr;
  const dlfp4_vecdot_plan *const plan = plan_of<dlfp4_vecdot_plan>(frame, &error);
  if (plan == nullptr) return error;
  int64_t lines = 1;
  for (int k = 0; k < plan->ndim; ++k) lines *= plan->shape[k];
  if (lines == 0) return nullptr;
  void *workspace = nullptr;
  error = allocate(frame, dlfp4_cuda_vecdot_workspace(lines, plan->length) * sizeof(double), &workspace);
  if (error != nullptr) return error;
  return run<dlfp4_vecdot_plan>(
      frame, "summing products", 0,
      [workspace](const dlfp4_vecdot_plan &each, const Addresses &addresses, const Place &place) {
        return sum(each, addresses, place, static_cast<double *>(workspace));
      });
}

}  // namespace
}  // namespace xla
}  // namespace dlfp4

extern "C" const dlfp4_xla_handler *dlfp4_xla_handlers_of_cuda(void) {
  using namespace dlfp4::xla;
  static const dlfp4_xla_handler handlers[] = {
      {"convert", convert, load<DLFP4_CUDA_IMAGE_codecs>},
      {"quantize", quantize, load<DLFP4_CUDA_IMAGE_blocks, DLFP4_CUDA_IMAGE_codecs>},
      {"dequantize", dequantize, load<DLFP4_CUDA_IMAGE_blocks>},
      {"vecdot", vecdot, load<DLFP4_CUDA_IMAGE_dots>},
      {nullptr, nullptr, nullptr},
  };
  return handlers;
}
