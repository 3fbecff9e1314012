// dlfp4_convert: checks its arguments, finds the contiguous runs and hands them to kernels.
// Layout: any two views of one shape.
// Trick: what is not a long run on whole bytes is gathered, converted and scattered in blocks.
#include <string.h>

#include "../numerics.h"
#include "dispatch.h"
#include "layout.h"
#include "threads.h"

namespace dlfp4 {
namespace {

constexpr int64_t kGrain = 1 << 16;  // elements worth a thread
constexpr int64_t kLongRow = 64;     // elements worth a kernel call
constexpr int64_t kBlock = 512;      // elements gathered at a time
constexpr int kMaxCodeBytes = 16;

struct Job {
  Plan plan;      // whole runs, as they lie in memory
  Plan gathered;  // blocks of unpacked codes
  const uint8_t *src;
  uint8_t *dst;
  Mode mode;
  const Layout *layout;
  bool part;  // other elements may lie in the last byte
};

// --- Arguments -------------------------------------------------------------------------------

bool have_one_shape(const dlfp4_view &src, const dlfp4_view &dst) {
  if (src.ndim != dst.ndim || src.ndim < 0) return false;
  for (int32_t dim = 0; dim < src.ndim; ++dim)
    if (src.shape[dim] != dst.shape[dim] || src.shape[dim] < 0) return false;
  return true;
}

bool is_mode(const dlfp4_convert_options *options, Mode *mode) {
  *mode = {DLFP4_NEAREST_EVEN, true, 0, 0};
  if (!options) return true;
  int rounding;  // read as what it is in memory: C callers may store any number in the enum
  memcpy(&rounding, &options->rounding, sizeof(rounding));
  if (rounding < DLFP4_NEAREST_EVEN || rounding > DLFP4_STOCHASTIC) return false;
  *mode = {static_cast<dlfp4_rounding>(rounding), options->saturate != 0, options->seed, 0};
  return true;
}

// --- Runs ------------------------------------------------------------------------------------

const uint8_t *at(const uint8_t *data, Operand operand, int64_t element) {
  return data + element * spacing(operand) / 8;
}

uint8_t *at(uint8_t *data, Operand operand, int64_t element) {
  return const_cast<uint8_t *>(at(static_cast<const uint8_t *>(data), operand, element));
}

Mode mode_from(const Job &job, int64_t element) {
  Mode mode = job.mode;
  mode.first = static_cast<uint64_t>(element);
  return mode;
}

void convert_run(const void *context, int64_t first, int64_t last) {
  const Job &job = *static_cast<const Job *>(context);
  run_plan(job.plan, at(job.src, job.plan.src, first), at(job.dst, job.plan.dst, first), last - first,
           mode_from(job, first));
}

void convert_gathered(const Job &job, Cursor *src, Cursor *dst, int64_t first, int64_t last) {
  alignas(64) uint8_t codes[kBlock * kMaxCodeBytes];
  alignas(64) uint8_t converted[kBlock * kMaxCodeBytes];
  for (int64_t element = first; element < last; element += kBlock) {
    const int64_t count = last - element < kBlock ? last - element : kBlock;
    gather(job.plan.src, job.src, src, codes, count);
    run_plan(job.gathered, codes, converted, count, mode_from(job, element));
    scatter(job.plan.dst, job.dst, dst, converted, count);
  }
}

void convert_strided(const void *context, int64_t first, int64_t last) {
  const Job &job = *static_cast<const Job *>(context);
  Cursor src = cursor_at(*job.layout, kSrc, first), dst = cursor_at(*job.layout, kDst, first);
  convert_gathered(job, &src, &dst, first, last);
}

// Elements that fill whole bytes on both sides, as packed groups do (of 4, of 2 or of 1).
int64_t in_whole_bytes(int64_t elements) { return elements & ~int64_t{3}; }

void convert_rows(const void *context, int64_t first_row, int64_t last_row) {
  const Job &job = *static_cast<const Job *>(context);
  const int64_t extent = job.layout->extent[job.layout->ndim - 1];
  const int64_t body = in_whole_bytes(extent);
  const int64_t first = first_row * extent, last = last_row * extent;
  Cursor src = cursor_at(*job.layout, kSrc, first), dst = cursor_at(*job.layout, kDst, first);
  for (int64_t element = first; element < last; element += extent) {
    run_plan(job.plan, at(job.src, job.plan.src, src.offset), at(job.dst, job.plan.dst, dst.offset), body,
             mode_from(job, element));
    advance(&src, body);
    advance(&dst, body);
    convert_gathered(job, &src, &dst, element + body, element + extent);
  }
}

// Packed elements that threads could share a byte of are written by one of them.
int64_t strided_grain(const Job &job) { return job.plan.dst.packed ? job.layout->size : kGrain; }

void convert_strided_all(const Job &job) {
  const Layout &layout = *job.layout;
  const int64_t extent = layout.extent[layout.ndim - 1];
  const bool rows = extent >= kLongRow && has_contiguous_rows(layout) &&
                    rows_start_on_bytes(layout, kSrc, job.plan.src) && rows_start_on_bytes(layout, kDst, job.plan.dst);
  if (rows)
    parallel_for_tiles(layout.size / extent, (kGrain + extent - 1) / extent, convert_rows, &job);
  else
    parallel_for(layout.size, strided_grain(job), convert_strided, &job);
}

void convert_elements(const Job &job) {
  if (is_run(*job.layout))
    parallel_for(job.layout->size, kGrain, convert_run, &job);
  else
    convert_strided_all(job);
}

// Of packed codes without gaps the last byte may have bits to spare: zeros, or what other elements have there.
void convert_all(const Job &job) {
  const int64_t bits = job.layout->size * dlfp4_dtypes[job.plan.dst.row].bits;
  if (!job.plan.dst.packed || bits % 8 == 0 || !is_dense(*job.layout, kDst)) return convert_elements(job);
  const uint8_t spare = static_cast<uint8_t>(0xFF << bits % 8);
  const uint8_t beside = job.part ? job.dst[bits / 8] & spare : 0;
  convert_elements(job);
  job.dst[bits / 8] = static_cast<uint8_t>((job.dst[bits / 8] & ~spare) | beside);
}

}  // namespace
}  // namespace dlfp4

extern "C" dlfp4_status dlfp4_convert(const dlfp4_view *src, const dlfp4_view *dst,
                                      const dlfp4_convert_options *options) {
  using namespace dlfp4;
  const int level = current_level();
  if (level < 0) return DLFP4_E_ISA;
  Operand from, to;
  if (!find_operand(*src, &from) || !find_operand(*dst, &to)) return DLFP4_E_DTYPE;
  if (!are_convertible(from, to)) return DLFP4_E_DTYPE;
  Mode mode;
  if (!is_mode(options, &mode)) return DLFP4_E_OPTION;
  Layout layout;
  if (!have_one_shape(*src, *dst) || !collapse(*src, *dst, &layout)) return DLFP4_E_SHAPE;
  if (layout.size == 0) return DLFP4_OK;
  const Operand plain_from = {from.row, false}, plain_to = {to.row, false};
  convert_all({make_plan(level, from, to, mode), make_plan(level, plain_from, plain_to, mode),
               static_cast<const uint8_t *>(src->data), static_cast<uint8_t *>(dst->data), mode, &layout,
               dst->part != 0});
  return DLFP4_OK;
}
