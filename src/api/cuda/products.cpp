// Products of FP8 by FP8 as both lie.
// Layout: see dlfp4_cuda_bytes.
// Trick: what is taken, the kernel, and what is done before are the extension's: products/cuda/byte_operands.cpp.
#include "products.h"

namespace dlfp4 {
namespace api {
namespace {

dlfp4_status describe(const Product &p, dlfp4_cuda_bytes_product *product) {
  *product = {};
  dlfp4_cuda_bytes *const sides[] = {&product->x, &product->w};
  if (p.options.activation != DLFP4_ACTIVATION_EXACT) return DLFP4_E_OPTION;
  for (int k = 0; k < 2; ++k)
    if (const dlfp4_status status = dlfp4_cuda_read_bytes(&p.factors[k].lines, p.factors[k].count, p.length, sides[k]))
      return status;
  const bool are_scaled = p.factors[0].lines.format >= 0 && p.factors[1].lines.format >= 0;
  if ((product->x.scale_lines > 0 || product->w.scale_lines > 0) && !are_scaled) return DLFP4_E_OPTION;
  if (p.length == 0) return DLFP4_E_SHAPE;
  product->rows = p.factors[0].count;
  product->depth = p.length;
  product->alpha = p.options.alpha;
  return set_result(p.out, product);
}

dlfp4_status describe_routed(const Product &p, const Experts &experts, void *workspace,
                             dlfp4_cuda_bytes_product *product, dlfp4_cuda_routing *routing) {
  if (const dlfp4_status status = describe(p, product)) return status;
  if (product->x.is_e5m2 || product->w.is_e5m2) return DLFP4_E_DTYPE;
  product->rows = experts.rows;
  return route(experts, p.factors[0].count, p.out, workspace, routing);
}

}  // namespace

int64_t matmul_workspace_on_cuda(const Product &p) {
  dlfp4_cuda_bytes_product product;
  return describe(p, &product) ? -1 : 0;
}

dlfp4_status matmul_on_cuda(const Product &p) {
  dlfp4_cuda_bytes_product product;
  if (const dlfp4_status status = describe(p, &product)) return status;
  if (product.rows * product.columns == 0) return DLFP4_OK;
  return run(p.place, DLFP4_CUDA_IMAGE_products, [&] {
    int tactic;
    const int code = dlfp4_cuda_choose_bytes_tactic(p.place.device, &product, &tactic);
    return code ? code : dlfp4_cuda_multiply_bytes(p.place.device, p.place.stream, &product, tactic);
  });
}

int64_t grouped_matmul_workspace_on_cuda(const Product &p, const Experts &experts) {
  dlfp4_cuda_bytes_product product;
  dlfp4_cuda_routing routing;
  if (describe_routed(p, experts, nullptr, &product, &routing)) return -1;
  return dlfp4_cuda_grouped_matmul_bytes_workspace(&product, &routing);
}

dlfp4_status grouped_matmul_on_cuda(const Product &p, const Experts &experts, void *workspace) {
  dlfp4_cuda_bytes_product product;
  dlfp4_cuda_routing routing;
  if (const dlfp4_status status = describe_routed(p, experts, workspace, &product, &routing)) return status;
  const int64_t bytes = dlfp4_cuda_grouped_matmul_bytes_workspace(&product, &routing);
  if (const dlfp4_status status = check_workspace(workspace, bytes)) return status;
  if (dlfp4_cuda_brings_scales(&product, &routing))
    if (const dlfp4_status status = load(p.place.device, DLFP4_CUDA_IMAGE_blocks)) return status;
  return run(p.place, DLFP4_CUDA_IMAGE_grouped,
             [&] { return dlfp4_cuda_grouped_matmul_bytes(p.place.device, p.place.stream, &product, &routing); });
}

}  // namespace api
}  // namespace dlfp4
