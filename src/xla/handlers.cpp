// Operations of a compiled program on the host: cast, pack, unpack, quantize, dequantize, matmul, sums.
// Layout: XLA's buffers are compact and row-major; those of FP4 are packed, low nibble first.
// Trick: a plan is the eager call's own description, so that a handler fills in addresses and calls the kernels.
#include "handlers.h"

#include <stdlib.h>

#include "frames.h"
#include "rules/scaling.h"

namespace dlfp4 {
namespace xla {
namespace {

XLA_FFI_Error *fail_of(const XLA_FFI_CallFrame *frame, dlfp4_status status, const char *refused) {
  if (status == DLFP4_E_ISA)
    return fail(frame, XLA_FFI_Error_Code_INTERNAL,
                "dlfp4: DLFP4_ISA names an instruction set that this machine or this build does not have");
  return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, refused);
}

// Runs `one(plan, addresses, error)` for every tensor of a batch, until one fails.
template <class Plan, class One>
XLA_FFI_Error *run(XLA_FFI_CallFrame *frame, const char *refused, One one) {
  if (tell_about_handler(frame, 0)) return nullptr;
  XLA_FFI_Error *error = nullptr;
  const Plan *const plan = plan_of<Plan>(frame, &error);
  if (plan == nullptr) return error;
  for (int64_t number = 0; number < plan->plan.count && error == nullptr; ++number) {
    const Addresses addresses = addresses_of(frame, plan->plan, number);
    const dlfp4_status status = one(*plan, addresses, &error);
    if (error == nullptr && status != DLFP4_OK) error = fail_of(frame, status, refused);
  }
  return error;
}

// --- Codecs ----------------------------------------------------------------------------------

XLA_FFI_Error *convert(XLA_FFI_CallFrame *frame) {
  return run<dlfp4_convert_plan>(frame, "dlfp4: the kernels refused to convert these element types",
                                 [](const dlfp4_convert_plan &plan, const Addresses &addresses, XLA_FFI_Error **) {
                                   const dlfp4_view source = view_of(&plan.size, plan.source, addresses.at[0]);
                                   const dlfp4_view result = view_of(&plan.size, plan.result, addresses.at[1]);
                                   return dlfp4_host_convert(&source, &result, &plan.options);
                                 });
}

// --- Block scaling ---------------------------------------------------------------------------

// The scale of a whole tensor: given, of a magnitude, or found along the lines that are asked for.
dlfp4_status find_scale(const dlfp4_quantize_plan &plan, void *given, dlfp4_tensor_scale *scale) {
  if (plan.given == DLFP4_GIVEN_SCALE) {
    *scale = dlfp4_host_given_tensor_scale(*static_cast<const float *>(given));
    return DLFP4_OK;
  }
  dlfp4_matrix x = plan.x;
  if (plan.given == DLFP4_GIVEN_LARGEST) x = {given, 1, 1, {1, 1}, x.code, x.bits};
  if (plan.rotation != 0 && plan.along[0] == 0)
    x = {x.data, x.columns, x.rows, {x.strides[1], x.strides[0]}, x.code, x.bits};
  return dlfp4_host_find_tensor_scale(&x, plan.format, &plan.recipe, plan.rotation, scale);
}

// Quantizes what `plan` has addresses for; `units` are where the scale of the whole tensor is kept.
dlfp4_status quantize_part(const dlfp4_quantize_plan &plan, void *given, float *const units[2]) {
  dlfp4_tensor_scale scale = {};
  if (plan.has_scale) {
    const dlfp4_status status = find_scale(plan, given, &scale);
    if (status != DLFP4_OK) return status;
    for (int k = 0; k < 2; ++k)
      if (units[k] != nullptr) *units[k] = scale.decode;
  }
  return dlfp4_host_quantize(&plan.x, plan.format, &plan.recipe, plan.has_scale ? &scale : nullptr,
                             plan.along[0] ? &plan.blocks[0] : nullptr, plan.along[1] ? &plan.blocks[1] : nullptr);
}

bool are_decode_scales(const float *given, int64_t count) {
  for (int64_t k = 0; k < count; ++k)
    if (!is_decode_scale(given[k])) return false;
  return true;
}

dlfp4_status quantize_tensor(dlfp4_quantize_plan plan, const Addresses &addresses, bool *is_refused) {
  QuantizedPlaces places = place_quantized(&plan, addresses);
  const int64_t count = plan.unit == DLFP4_UNIT_LINES ? plan.units : plan.parts;
  float *const given = plan.given == DLFP4_GIVEN_SCALE ? static_cast<float *>(places.given) : nullptr;
  if (given != nullptr && !are_decode_scales(given, count)) {
    *is_refused = true;
    return DLFP4_E_OPTION;
  }
  for (const dlfp4_blocks &blocks : plan.blocks)
    if (blocks.decodes != nullptr && given != nullptr) memcpy(blocks.decodes, given, count * sizeof(float));
  dlfp4_status status = DLFP4_OK;
  for (int64_t part = 0; part < plan.parts && status == DLFP4_OK; ++part) {
    status = quantize_part(plan, given != nullptr ? given + part * (plan.parts > 1) : places.given, places.units);
    step_to_next_part(&plan);
    if (places.units[0] != nullptr) ++places.units[0];
  }
  return status;
}

XLA_FFI_Error *quantize(XLA_FFI_CallFrame *frame) {
  return run<dlfp4_quantize_plan>(
      frame, "dlfp4: the kernels refused to quantize as described",
      [frame](const dlfp4_quantize_plan &plan, const Addresses &addresses, XLA_FFI_Error **error) {
        bool is_refused = false;
        const dlfp4_status status = quantize_tensor(plan, addresses, &is_refused);
        if (is_refused)
          *error = fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                        "dlfp4: global_scale: a decode scale is a positive, finite float32");
        return status;
      });
}

XLA_FFI_Error *dequantize(XLA_FFI_CallFrame *frame) {
  return run<dlfp4_dequantize_plan>(frame, "dlfp4: the kernels refused to dequantize as described",
                                    [](dlfp4_dequantize_plan plan, const Addresses &addresses, XLA_FFI_Error **) {
                                      Cursor cursor = {addresses.at};
                                      const float *const decode = place_blocks(&plan.blocks, plan.unit, &cursor);
                                      plan.result.data = cursor.take();
                                      return dlfp4_host_dequantize(&plan.blocks, plan.format,
                                                                   decode != nullptr ? *decode : 1, &plan.result);
                                    });
}

// --- Products --------------------------------------------------------------------------------

void place_factors(dlfp4_plan_factor *factors, Cursor *cursor) {
  for (int k = 0; k < 2; ++k) {
    const float *const decode = place_factor(&factors[k], cursor);
    if (decode != nullptr) factors[k].lines.decode = *decode;
  }
}

// Memory for one call, which its destructor frees.
class Workspace {
 public:
  explicit Workspace(int64_t bytes) : memory_(malloc(bytes > 0 ? bytes : 1)) {}
  Workspace(const Workspace &) = delete;
  ~Workspace() { free(memory_); }
  void *get() const { return memory_; }

 private:
  void *const memory_;
};

XLA_FFI_Error *fail_without_memory(const XLA_FFI_CallFrame *frame) {
  return fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "dlfp4: no memory for a product's workspace");
}

XLA_FFI_Error *matmul(XLA_FFI_CallFrame *frame) {
  return run<dlfp4_matmul_plan>(
      frame, "dlfp4: the kernels do not multiply these element types",
      [frame](dlfp4_matmul_plan plan, const Addresses &addresses, XLA_FFI_Error **error) {
        Cursor cursor = {addresses.at};
        place_factors(plan.factors, &cursor);
        plan.result.data = cursor.take();
        const dlfp4_lines *const a = &plan.factors[0].lines, *const b = &plan.factors[1].lines;
        const int64_t bytes = dlfp4_host_matmul_workspace(a, b, plan.length, &plan.result, &plan.options);
        if (bytes < 0) return DLFP4_E_DTYPE;
        const Workspace workspace(bytes);
        if (workspace.get() != nullptr)
          return dlfp4_host_matmul(a, b, plan.length, &plan.result, &plan.options, workspace.get());
        *error = fail_without_memory(frame);
        return DLFP4_OK;
      });
}

void widen(const int32_t *from, int64_t count, int64_t *to) {
  for (int64_t k = 0; k < count; ++k) to[k] = from[k];
}

// Where rows belong, as a program computed it: what it may have wrong is found here.
const char *check_groups(const dlfp4_groups &groups, const int64_t *indices, int64_t tokens) {
  int64_t last = 0;
  for (int64_t e = 0; e < groups.experts; ++e) {
    if (groups.ends[e] < last || groups.ends[e] > groups.rows)
      return "dlfp4: group_sizes: expected numbers of rows, none negative, and not more rows in all than there are";
    last = groups.ends[e];
  }
  for (int64_t k = 0; indices != nullptr && k < last; ++k)
    if (indices[k] < 0 || indices[k] >= tokens) return "dlfp4: indices: expected the numbers of tokens";
  return nullptr;
}

dlfp4_status multiply_groups(const XLA_FFI_CallFrame *frame, const dlfp4_grouped_plan &plan, const dlfp4_groups &groups,
                             XLA_FFI_Error **error) {
  const dlfp4_lines *const x = &plan.factors[0].lines, *const w = &plan.factors[1].lines;
  const int64_t bytes = dlfp4_host_grouped_matmul_workspace(x, w, plan.length, &groups, &plan.result, &plan.options);
  if (bytes < 0) return DLFP4_E_DTYPE;
  const Workspace workspace(bytes);
  if (workspace.get() != nullptr)
    return dlfp4_host_grouped_matmul(x, w, plan.length, &groups, &plan.result, &plan.options, workspace.get());
  *error = fail_without_memory(frame);
  return DLFP4_OK;
}

dlfp4_status place_groups(const XLA_FFI_CallFrame *frame, dlfp4_grouped_plan plan, const Addresses &addresses,
                          XLA_FFI_Error **error) {
  Cursor cursor = {addresses.at};
  place_factors(plan.factors, &cursor);
  const Workspace numbers((plan.experts + plan.rows) * int64_t{sizeof(int64_t)});
  if (numbers.get() == nullptr) {
    *error = fail_without_memory(frame);
    return DLFP4_OK;
  }
  int64_t *const ends = static_cast<int64_t *>(numbers.get());
  int64_t *const indices = plan.routing != DLFP4_ROUTING_IN_ORDER ? ends + plan.experts : nullptr;
  widen(reinterpret_cast<const int32_t *>(cursor.take()), plan.experts, ends);
  if (indices != nullptr) widen(reinterpret_cast<const int32_t *>(cursor.take()), plan.rows, indices);
  dlfp4_groups groups = {plan.rows, plan.experts, plan.step, ends, nullptr, nullptr, nullptr};
  if (plan.routing & DLFP4_ROUTING_GATHERS) groups.gather = indices;
  if (plan.routing & DLFP4_ROUTING_ADDS) {
    groups.scatter = indices;
    groups.weights = reinterpret_cast<const float *>(cursor.take());
  }
  plan.result.data = cursor.take();
  const char *const wrong = check_groups(groups, indices, plan.tokens);
  if (wrong == nullptr) return multiply_groups(frame, plan, groups, error);
  *error = fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, wrong);
  return DLFP4_OK;
}

XLA_FFI_Error *grouped_matmul(XLA_FFI_CallFrame *frame) {
  return run<dlfp4_grouped_plan>(
      frame, "dlfp4: the kernels do not multiply these element types",
      [frame](const dlfp4_grouped_plan &plan, const Addresses &addresses, XLA_FFI_Error **error) {
        return place_groups(frame, plan, addresses, error);
      });
}

XLA_FFI_Error *vecdot(XLA_FFI_CallFrame *frame) {
  return run<dlfp4_vecdot_plan>(frame, "dlfp4: there is no dot product of these element types",
                                [](dlfp4_vecdot_plan plan, const Addresses &addresses, XLA_FFI_Error **) {
                                  Cursor cursor = {addresses.at};
                                  place_factors(plan.factors, &cursor);
                                  return dlfp4_host_vecdot_axes(
                                      &plan.factors[0].lines, plan.strides[0], &plan.factors[1].lines, plan.strides[1],
                                      plan.ndim, plan.shape, plan.length, reinterpret_cast<float *>(cursor.take()));
                                });
}

}  // namespace
}  // namespace xla
}  // namespace dlfp4

extern "C" const dlfp4_xla_handler *dlfp4_xla_handlers(void) {
  using namespace dlfp4::xla;
  static const dlfp4_xla_handler handlers[] = {
      {"convert", convert, nullptr}, {"quantize", quantize, nullptr}, {"dequantize", dequantize, nullptr},
      {"matmul", matmul, nullptr},   {"vecdot", vecdot, nullptr},     {"grouped_matmul", grouped_matmul, nullptr},
      {nullptr, nullptr, nullptr},
  };
  return handlers;
}
