// The calls of the C API as drivers take them, for a host and for CUDA devices.
// Layout: a struct a call, filled from DLTensors.
// Trick: only src/api/cuda knows the drivers of devices.
#ifndef DLFP4_SRC_API_CALLS_H_
#define DLFP4_SRC_API_CALLS_H_

#include "tensors.h"

namespace dlfp4 {
namespace api {

struct Quantization {
  dlfp4_matrix x;
  int format;
  dlfp4_recipe recipe;
  float given;  // scale of the whole tensor; 0: it is found
  const dlfp4_blocks *along[2];
  float *places[2];  // where the scale of the whole tensor is kept; NULL: nowhere
};

struct Factor {
  dlfp4_lines lines;
  const float *decode;  // the tensor's scale where it lies, or NULL
  int64_t count;        // of lines
};

struct Product {
  Factor factors[2];
  int64_t length;
  dlfp4_matrix out;
  dlfp4_matmul_options options;
  Place place;
};

struct Numbers {
  const void *data;  // next to one another; or NULL
  int bits;          // of integers: 32 or 64
};

// Which rows each expert multiplies; what the numbers are is not looked at.
struct Experts {
  int64_t count, rows;  // of experts, and of routed rows
  Numbers ends, indices;
  const float *weights;
  bool gathers;
};
inline bool has_ends(const dlfp4_routing *routing) { return routing && routing->ends; }
// For x of so many lines and weights of so many, of all experts; `routing` has ends.
dlfp4_status read_experts(const dlfp4_routing *routing, const Place &place, int64_t lines, int64_t lines_of_weights,
                          const dlfp4_matrix &out, Experts *experts);

const char *name_of_cuda(int result);
dlfp4_status load_on_cuda(int device);

dlfp4_status convert_on_cuda(const Place &place, const dlfp4_view &x, const dlfp4_view &out,
                             const dlfp4_convert_options *options);
dlfp4_status quantize_on_cuda(const Place &place, const Quantization &call);
dlfp4_status dequantize_on_cuda(const Place &place, const Scaled &q, int format, const dlfp4_matrix &out);
dlfp4_status convert_scales_on_cuda(const Place &place, const void *x, int x_layout, void *out, int out_layout,
                                    int64_t rows, int64_t columns, int itemsize, uint8_t fill);
int64_t vecdot_workspace_on_cuda(int64_t length);  // for each line
dlfp4_status vecdot_on_cuda(const Place &place, const Factor &a, const Factor &b, int64_t lines, int64_t length,
                            float *out, void *workspace);

// -1 where the call will be refused.
int64_t matmul_workspace_on_cuda(const Product &product);
dlfp4_status matmul_on_cuda(const Product &product);
int64_t grouped_matmul_workspace_on_cuda(const Product &product, const Experts &experts);
dlfp4_status grouped_matmul_on_cuda(const Product &product, const Experts &experts, void *workspace);

}  // namespace api
}  // namespace dlfp4

#endif  // DLFP4_SRC_API_CALLS_H_
