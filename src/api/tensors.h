// What the C API is given: DLTensors, believed as far as a C caller can be, as the drivers' descriptions.
// Layout: any strides; FP4 in pairs becomes single elements.
// Trick: a call's tensors say together where it runs.
#ifndef DLFP4_SRC_API_TENSORS_H_
#define DLFP4_SRC_API_TENSORS_H_

#include <stdint.h>

#include "dlfp4/dlfp4.h"
#include "rules/formats.h"
#include "rules/layouts.h"
#include "rules/matrix.h"
#include "rules/operations.h"

namespace dlfp4 {
namespace api {

constexpr int kMostDims = 63;

// A tensor, its offset in the address, with strides, counted in single elements.
struct Elements {
  char *data;
  int ndim;
  int64_t shape[kMostDims], strides[kMostDims];
  uint8_t code, bits;
  int dtype;  // a row of dtypes.def
};
dlfp4_status read(const DLTensor *tensor, Elements *elements);

// The same as rows of its last dimension.
struct Matrix {
  char *data;
  int64_t shape[2], strides[2];
  uint8_t code, bits;
  int dtype;
};
dlfp4_status read_matrix(const DLTensor *tensor, Matrix *matrix);

// As drivers have it.
inline dlfp4_matrix matrix_of(const Matrix &x) {
  return {x.data, x.shape[0], x.shape[1], {x.strides[0], x.strides[1]}, x.code, x.bits};
}

// Where a call runs.
struct Place {
  bool on_host;
  int device;
  uintptr_t stream;
};
// Of tensors, some of which may be NULL; DLFP4_E_DEVICE where they do not lie together or nothing reads them.
dlfp4_status find_place(const DLTensor *const *tensors, int count, void *stream, Place *place);

// An operand and its result, by `read` or `read_matrix`, and where both lie.
template <class Operand>
dlfp4_status read_pair(dlfp4_status (*read_one)(const DLTensor *, Operand *), const DLTensor *x, const DLTensor *out,
                       void *stream, Operand *from, Operand *to, Place *place) {
  const DLTensor *const tensors[] = {x, out};
  if (const dlfp4_status status = read_one(x, from)) return status;
  if (const dlfp4_status status = read_one(out, to)) return status;
  return find_place(tensors, 2, stream, place);
}
// Whether a tensor lies where others do.
bool lies_at(const DLTensor *tensor, const Place &place);
dlfp4_status find_place_of(const dlfp4_scaled_tensor *a, const dlfp4_scaled_tensor *b, const DLTensor *other,
                           void *stream, Place *place);

// A quantized matrix as the drivers have it.
struct Scaled {
  dlfp4_blocks blocks;
  float *global_scale;  // of the whole tensor, or NULL; of formats with one scale, that
};
// Of a matrix of so many lines of so many elements; `fill` is the byte that padding of scales gets.
dlfp4_status read_scaled(const dlfp4_scaled_tensor *q, int64_t lines, int64_t length, uint8_t fill, Scaled *scaled);

// Lines and elements of a line, as the data has them, which may end in zeros.
dlfp4_status read_extents(const dlfp4_scaled_tensor *q, int64_t *lines, int64_t *length);

// The shape in memory of so many rows and columns of scales, which a layout completes to tiles.
struct TiledShape {
  int64_t extents[2];
};
inline TiledShape tiled_shape(const dlfp4_layout_row &tile, int64_t rows, int64_t columns) {
  const int64_t padded_rows = round_up(rows, tile.rows), padded_columns = round_up(columns, tile.columns);
  if (tile.by_rows) return {{padded_columns / tile.run, padded_rows * tile.run}};
  return {{padded_rows, padded_columns}};
}

bool is_compact(const Elements &elements);

// Elements next to one another, at an address that can be read as an array of numbers.
bool is_array(const Elements &elements);

constexpr int64_t kMostExtent = int64_t{1} << 40;  // so that what is completed to blocks or tiles can be counted

}  // namespace api
}  // namespace dlfp4

#endif  // DLFP4_SRC_API_TENSORS_H_
