// The calls of the C API on CUDA devices.
// Layout: as on the host.
// Trick: see run.h.
#include "gpu/driver.h"
#include "gpu/kernels.h"
#include "run.h"

namespace dlfp4 {
namespace api {
namespace {

dlfp4_cuda_lines side_of(const Factor &factor) { return {factor.lines, &factor.lines.step, factor.decode}; }

}  // namespace

const char *name_of_cuda(int result) { return dlfp4_cuda_error_name(result); }

dlfp4_status load_on_cuda(int device) {
  for (int image = 0; image < DLFP4_CUDA_NUM_IMAGES; ++image)
    if (const dlfp4_status status = load(device, image)) return status;
  return DLFP4_OK;
}

dlfp4_status convert_on_cuda(const Place &place, const dlfp4_view &x, const dlfp4_view &out,
                             const dlfp4_convert_options *options) {
  return run(place, DLFP4_CUDA_IMAGE_codecs,
             [&] { return dlfp4_cuda_convert(place.device, place.stream, &x, &out, options); });
}

dlfp4_status quantize_on_cuda(const Place &place, const Quantization &call) {
  dlfp4_cuda_scale scale = {nullptr, call.given, {}};
  int count = 0;
  for (float *at : call.places)
    if (at) scale.places[count++] = at;
  return run(place, DLFP4_CUDA_IMAGE_blocks, [&] {
    return dlfp4_cuda_quantize(place.device, place.stream, &call.x, call.format, &call.recipe, &scale, call.along[0],
                               call.along[1]);
  });
}

dlfp4_status dequantize_on_cuda(const Place &place, const Scaled &q, int format, const dlfp4_matrix &out) {
  const bool two_level = dlfp4_formats[format].kind == DLFP4_TWO_LEVEL;
  return run(place, DLFP4_CUDA_IMAGE_blocks, [&] {
    return dlfp4_cuda_dequantize(place.device, place.stream, &q.blocks, format, two_level ? q.global_scale : nullptr,
                                 &out);
  });
}

dlfp4_status convert_scales_on_cuda(const Place &place, const void *x, int x_layout, void *out, int out_layout,
                                    int64_t rows, int64_t columns, int itemsize, uint8_t fill) {
  return run(place, DLFP4_CUDA_IMAGE_blocks, [&] {
    return dlfp4_cuda_convert_scales(place.device, place.stream, x, x_layout, out, out_layout, rows, columns, itemsize,
                                     fill);
  });
}

int64_t vecdot_workspace_on_cuda(int64_t length) {
  return dlfp4_cuda_vecdot_workspace(1, length) * int64_t{sizeof(double)};
}

dlfp4_status vecdot_on_cuda(const Place &place, const Factor &a, const Factor &b, int64_t lines, int64_t length,
                            float *out, void *workspace) {
  const dlfp4_cuda_lines left = side_of(a), right = side_of(b);
  return run(place, DLFP4_CUDA_IMAGE_dots, [&] {
    return dlfp4_cuda_vecdot(place.device, place.stream, &left, &right, 1, &lines, length, out,
                             static_cast<double *>(workspace));
  });
}

}  // namespace api
}  // namespace dlfp4
