// A call from XLA: its buffers and its plan, and how to fail.
// Layout: xla_ffi.h's call frame; buffers are numbered with operands first, then results.
// Trick: one loop over a batch serves all operations, each of which sees the addresses of one tensor.
#ifndef DLFP4_SRC_XLA_FRAMES_H_
#define DLFP4_SRC_XLA_FRAMES_H_

#include <stdint.h>
#include <string.h>

#include "dlfp4/xla_ffi.h"
#include "plans.h"
#include "rules/operations.h"

namespace dlfp4 {
namespace xla {

// An error of XLA's with a text, which it copies.
inline XLA_FFI_Error *fail(const XLA_FFI_CallFrame *frame, XLA_FFI_Error_Code code, const char *text) {
  XLA_FFI_Error_Create_Args args = {sizeof(args), nullptr, text, code};
  return frame->api->XLA_FFI_Error_Create(&args);
}

// What XLA asks of a handler before its first call; false for a call.
inline bool tell_about_handler(XLA_FFI_CallFrame *frame, uint32_t traits) {
  XLA_FFI_Extension_Base *const asked = frame->extension_start;
  if (asked == nullptr || asked->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata *const told = reinterpret_cast<XLA_FFI_Metadata_Extension *>(asked)->metadata;
  // Minor versions only lengthen structs, and no field behind those of our own version is used.
  const XLA_FFI_Api_Version *const theirs = frame->api != nullptr ? &frame->api->api_version : nullptr;
  const bool is_known = theirs != nullptr && theirs->major_version == XLA_FFI_API_MAJOR;
  told->api_version = {sizeof(XLA_FFI_Api_Version), nullptr, XLA_FFI_API_MAJOR,
                       is_known ? theirs->minor_version : XLA_FFI_API_MINOR};
  told->traits = traits;
  told->state_type_id = {0};
  return true;
}

inline const XLA_FFI_Buffer *buffer_of(const XLA_FFI_CallFrame *frame, int64_t number) {
  const int64_t operands = frame->args.size;
  void *const found = number < operands ? frame->args.args[number] : frame->rets.rets[number - operands];
  return static_cast<const XLA_FFI_Buffer *>(found);
}

// The plan of a call; null, with its error, where it is none that this build makes.
template <class Plan>
const Plan *plan_of(const XLA_FFI_CallFrame *frame, XLA_FFI_Error **error) {
  static_assert(sizeof(Plan) % sizeof(int64_t) == 0, "a plan travels as 64-bit integers");
  const bool is_array = frame->attrs.size == 1 && frame->attrs.types[0] == XLA_FFI_AttrType_ARRAY;
  const XLA_FFI_Array *const array = is_array ? static_cast<const XLA_FFI_Array *>(frame->attrs.attrs[0]) : nullptr;
  if (array != nullptr && array->dtype == XLA_FFI_DataType_S64 && array->size * sizeof(int64_t) == sizeof(Plan)) {
    const Plan *const plan = static_cast<const Plan *>(array->data);
    const int64_t buffers = frame->args.size + frame->rets.size;
    if (plan->plan.version == DLFP4_PLAN_VERSION && plan->plan.bytes == sizeof(Plan) && buffers <= DLFP4_PLAN_BUFFERS)
      return plan;
  }
  *error = fail(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                "dlfp4: the program was traced with another version of dlfp4, whose plans differ; trace, compile or "
                "export it anew with this one");
  return nullptr;
}

// The buffers of one tensor of a batch.
struct Addresses {
  uint8_t *at[DLFP4_PLAN_BUFFERS];
};

inline Addresses addresses_of(const XLA_FFI_CallFrame *frame, const dlfp4_plan &plan, int64_t number) {
  Addresses found = {};
  for (int64_t k = 0; k < frame->args.size + frame->rets.size; ++k)
    found.at[k] = static_cast<uint8_t *>(buffer_of(frame, k)->data) + number * plan.steps[k];
  return found;
}

// Takes the buffers of a call one after another.
struct Cursor {
  uint8_t *const *next;
  uint8_t *take() { return *next++; }
};

// Data, scales, the global scale of lines, and offsets, whose type says that there are some; the global scale of a
// whole tensor is returned.
inline const float *place_blocks(dlfp4_blocks *blocks, dlfp4_unit unit, Cursor *cursor) {
  blocks->data = cursor->take();
  blocks->scales = cursor->take();
  float *const found = unit == DLFP4_UNIT_NONE ? nullptr : reinterpret_cast<float *>(cursor->take());
  blocks->decodes = unit == DLFP4_UNIT_LINES ? found : nullptr;
  blocks->offsets = blocks->offset_bits != 0 ? cursor->take() : nullptr;
  return unit == DLFP4_UNIT_TENSOR ? found : nullptr;
}

inline const float *place_factor(dlfp4_plan_factor *factor, Cursor *cursor) {
  if (factor->lines.format >= 0) return place_blocks(&factor->lines.blocks, factor->unit, cursor);
  factor->lines.blocks.data = cursor->take();
  return nullptr;
}

inline dlfp4_view view_of(const int64_t *size, const dlfp4_plan_elements &elements, void *data) {
  static const int64_t kStep = 1;
  return {data, size, &kStep, 1, elements.code, elements.bits, elements.padded, 0};
}

// Where quantizing writes the scale of a whole tensor, and what it is given.
struct QuantizedPlaces {
  void *given;
  float *units[2];
};

inline QuantizedPlaces place_quantized(dlfp4_quantize_plan *plan, const Addresses &addresses) {
  Cursor cursor = {addresses.at};
  plan->x.data = cursor.take();
  QuantizedPlaces places = {};
  if (plan->given != DLFP4_GIVEN_NOTHING) places.given = cursor.take();
  for (int k = 0; k < 2; ++k) {
    if (!plan->along[k]) continue;
    dlfp4_blocks *const blocks = &plan->blocks[k];
    places.units[k] = const_cast<float *>(place_blocks(blocks, plan->unit, &cursor));
    if (plan->has_scale && plan->unit == DLFP4_UNIT_NONE) places.units[k] = static_cast<float *>(blocks->scales);
    blocks->finds_decodes = plan->given != DLFP4_GIVEN_SCALE;
  }
  return places;
}

inline void step_to_next_part(dlfp4_quantize_plan *plan) {
  if (plan->x.columns == 0) return;  // what has no elements may lie anywhere
  plan->x.data = static_cast<uint8_t *>(plan->x.data) + plan->part_steps[0];
  plan->blocks[0].data = static_cast<uint8_t *>(plan->blocks[0].data) + plan->part_steps[1];
  plan->blocks[0].scales = static_cast<uint8_t *>(plan->blocks[0].scales) + plan->part_steps[2];
  plan->recipe.first += plan->part_elements;
}

}  // namespace xla
}  // namespace dlfp4

#endif  // DLFP4_SRC_XLA_FRAMES_H_
