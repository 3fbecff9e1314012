// What a conversion changes, on CUDA memory.
// Layout: rows of floats next to one another.
// Trick: memory of results is cleared in the order of the stream, and then only raised.
#include "rules/changes.h"
#include "rules/grid.h"

#include "block_kernels.h"
#include "gpu/context.h"
#include "gpu/runs.h"
#include "params.h"

namespace dlfp4::cuda {
namespace {

// Calls body(size) for a grid that is one, in the context of its device.
template <class Body>
int on_grid(int device, const dlfp4_grid &grid, const Body &body) {
  const CurrentContext context(device);
  if (context.status()) return context.status();
  return is_grid(grid) ? body(size_of(grid)) : refuse(DLFP4_E_SHAPE);
}

}  // namespace
}  // namespace dlfp4::cuda

extern "C" {

int dlfp4_cuda_find_changes(int device, uintptr_t stream, const dlfp4_grid *grid, const float *before,
                            const float *after, float *changes, float *sizes, int joins) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  return on_grid(device, *grid, [&](const GridSize &size) {
    const int64_t bytes = size.down * size.along * static_cast<int64_t>(sizeof(float)),
                  parts = divide_up(grid->columns, kPartOfRow);
    if (bytes == 0) return 0;
    int status = joins ? 0 : set_bytes(changes, 0, bytes, stream);
    if (!status && !joins) status = set_bytes(sizes, 0, bytes, stream);
    const ChangesParams p = {before,
                             after,
                             reinterpret_cast<uint32_t *>(changes),
                             reinterpret_cast<uint32_t *>(sizes),
                             grid->rows,
                             grid->columns,
                             grid->lines,
                             grid->length,
                             size.along,
                             parts};
    return status ? status : run(image_of_blocks::kKernel_find_changes, grid->rows * parts * kWarpSize, p, stream);
  });
}

int dlfp4_cuda_sum_up_changes(int device, uintptr_t stream, const float *changes, const float *sizes, int64_t blocks,
                              dlfp4_changes *result) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  const CurrentContext context(device);
  if (context.status()) return context.status();
  const int status = set_bytes(result, 0, sizeof(*result), stream);
  const SumParams p = {changes, sizes, blocks, reinterpret_cast<unsigned long long *>(&result->changed),
                       reinterpret_cast<unsigned long long *>(&result->largest)};
  return status ? status : run_walk(image_of_blocks::kKernel_sum_up_changes, blocks, p, stream);
}

int dlfp4_cuda_take_better(int device, uintptr_t stream, const dlfp4_grid *grid, const float *exact, int64_t code_bytes,
                           const dlfp4_stored *best, const dlfp4_stored *other) {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  return on_grid(device, *grid, [&](const GridSize &size) {
    const int64_t blocks = size.down * size.along;
    const ChoiceParams p = {exact,        best->values,  other->values, best->codes,   best->scales,
                            other->codes, other->scales, grid->rows,    grid->columns, grid->lines,
                            grid->length, size.along,    blocks,        code_bytes};
    return run(image_of_blocks::kKernel_take_better, blocks * kSums, p, stream);
  });
}
}
