// dlfp4_vecdot: sums of products of lines.
// Layout: any that reader.h reads; elements that lie in order are multiplied in place.
// Trick: a line is cut into segments of fixed length, each summed by one thread and all added in order, so that results
// do not depend on the threads.
#include "host/level.h"
#include "host/threads.h"
#include "kernels.h"
#include "reader.h"
#include "rules/numerics.h"
#include "rules/scaling.h"
#include "rules/sums.h"

namespace dlfp4 {
namespace {

constexpr int64_t kSegment = 1 << 17;            // elements, a multiple of every block
constexpr int64_t kGrain = 1 << 19;              // elements worth a thread
constexpr int64_t kMostSegments = 1024;          // added at a time
constexpr int64_t kMostScales = kMostRead / 16;  // read at a time
constexpr float kLargestScale = 0x1p100f;
constexpr int32_t kSmallestNormal = 1 << 23;  // as bits

// How two lines are multiplied: as integers; as floats; as FP4 in blocks of one kind, by stored scales; as elements in
// blocks of one length, by the product of their scales; as float32 values.
enum Way { kIntegers, kFloats, kStoredBlocks, kScaledBlocks, kValues };

struct Job {
  const ProductKernels *kernels;
  Reader a, b;
  Way way;
  double factor;
  int64_t lines, length;
  float *result;
  int64_t stride;
};

bool have_equal_blocks(const Reader &a, const Reader &b) {
  return a.scaled && b.scaled && a.row == b.row && a.format.block == b.format.block;
}

bool find_way(const Reader &a, const Reader &b, Way *way) {
  const bool plain = !a.scaled && !b.scaled && a.row == b.row;
  if (plain && is_integer(a.row)) return *way = kIntegers, true;
  if (plain && is_summed_as_float(a.row)) return *way = kFloats, true;
  const bool stored = have_equal_blocks(a, b) && a.format.key == b.format.key && is_fp4(kBlockKeys[a.format.key]);
  *way = stored ? kStoredBlocks : have_equal_blocks(a, b) ? kScaledBlocks : kValues;
  return is_value(a) && is_value(b);
}

// Calls sum(first, count) for pieces of at most `most` elements, and adds up.
template <class Sum>
double add_pieces(int64_t first, int64_t count, int64_t most, Sum sum) {
  double total = 0;
  for (int64_t done = 0; done < count; done += most) total += sum(first + done, least(most, count - done));
  return total;
}

double sum_codes(const Job &job, const uint8_t *a, const uint8_t *b, int64_t count, bool packed) {
  const int row = job.a.row;
  if (job.way == kIntegers) {
    const int64_t sum = job.kernels->sum_integers[row][packed](a, b, count);
    return static_cast<double>(sum) / (unit_of(row) * unit_of(row));
  }
  const int64_t item = kFormats[row].bits / 8;
  return add_pieces(0, count, kMostFloats, [&](int64_t first, int64_t elements) {
    return job.kernels->sum_floats[row](a + first * item, b + first * item, elements);
  });
}

double sum_plain(const Job &job, int64_t line, int64_t first, int64_t count) {
  const uint8_t *const a = find_codes(job.a, line, first), *const b = find_codes(job.b, line, first);
  if (a && b && job.a.packed == job.b.packed) return sum_codes(job, a, b, count, job.a.packed);
  alignas(64) uint8_t a_buffer[kMostRead * sizeof(float)], b_buffer[kMostRead * sizeof(float)];
  return add_pieces(first, count, kMostRead, [&](int64_t from, int64_t elements) {
    const uint8_t *const a_codes = read_codes(job.a, line, from, elements, a_buffer);
    return sum_codes(job, a_codes, read_codes(job.b, line, from, elements, b_buffer), elements, false);
  });
}

double sum_values(const Job &job, int64_t line, int64_t first, int64_t count) {
  alignas(64) uint8_t a[kMostRead * sizeof(float)], b[kMostRead * sizeof(float)];
  return add_pieces(first, count, kMostRead, [&](int64_t from, int64_t elements) {
    read_values(job.a, line, from, elements, kFromFloat32, a);
    read_values(job.b, line, from, elements, kFromFloat32, b);
    return job.kernels->sum_floats[DLFP4_float32](a, b, elements);
  });
}

double sum_stored_blocks(const Job &job, int64_t line, int64_t first, int64_t count) {
  alignas(64) uint8_t a_buffer[kMostSummed / 16], b_buffer[kMostSummed / 16];
  const auto sum = job.kernels->sum_blocks[job.a.format.key];
  const int64_t whole = count / job.a.format.block * job.a.format.block;
  const double total = add_pieces(first, whole, kMostSummed, [&](int64_t from, int64_t elements) {
    const uint8_t *const a_scales = read_stored_scales(job.a, line, from, elements, a_buffer);
    const uint8_t *const b_scales = read_stored_scales(job.b, line, from, elements, b_buffer);
    return sum(find_codes(job.a, line, from), a_scales, find_codes(job.b, line, from), b_scales, elements);
  });
  return whole == count ? total : total + sum_values(job, line, first + whole, count - whole);
}

// scales *= others. Returns whether a product is so large (or NaN) that zeros may not stay zero, or so small that it
// lost bits. The loop compares bits, so that a compiler makes vectors of it.
bool multiply_scales(float *scales, const float *others, int64_t count) {
  int32_t largest = 0, lost = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool is_zero = scales[i] == 0 || others[i] == 0;
    scales[i] *= others[i];
    const auto magnitude = static_cast<int32_t>(bits_of(scales[i]) & 0x7FFFFFFF);
    largest = magnitude > largest ? magnitude : largest;
    lost |= !is_zero & (magnitude < kSmallestNormal);
  }
  return lost != 0 || largest >= static_cast<int32_t>(bits_of(kLargestScale));
}

// Elements in place if they lie in order, else gathered.
const uint8_t *packed_codes(const Reader &reader, int64_t line, int64_t first, int64_t count, uint8_t *buffer) {
  const uint8_t *const found = find_codes(reader, line, first);
  return found ? found : read_codes(reader, line, first, count, buffer);
}

// `count` elements that fill whole bytes, and start a block; at most kMostRead, unless they are read where they lie.
double sum_some_blocks(const Job &job, int64_t line, int64_t first, int64_t count) {
  alignas(64) uint8_t a_buffer[kMostRead], b_buffer[kMostRead];
  float scales[kMostScales], others[kMostScales];
  const int64_t block = job.a.format.block;
  read_scales(job.a, line, first, count, scales);
  read_scales(job.b, line, first, count, others);
  if (multiply_scales(scales, others, divide_up(count, block))) return sum_values(job, line, first, count);
  const uint8_t *const a = packed_codes(job.a, line, first, count, a_buffer);
  const uint8_t *const b = packed_codes(job.b, line, first, count, b_buffer);
  return job.kernels->sum_scaled[job.a.format.key](a, b, count, scales);
}

double sum_scaled_blocks(const Job &job, int64_t line, int64_t first, int64_t count) {
  const int64_t whole = job.a.packed ? count / job.a.format.block * job.a.format.block : count;
  const bool in_order = find_codes(job.a, line, first) && find_codes(job.b, line, first);
  const int64_t most = in_order ? kMostScales * job.a.format.block : kMostRead;
  const double total = add_pieces(
      first, whole, most, [&](int64_t from, int64_t elements) { return sum_some_blocks(job, line, from, elements); });
  return whole == count ? total : total + sum_values(job, line, first + whole, count - whole);
}

double sum_run(const Job &job, int64_t line, int64_t first, int64_t count) {
  switch (job.way) {
    case kStoredBlocks:
      return sum_stored_blocks(job, line, first, count);
    case kScaledBlocks:
      return sum_scaled_blocks(job, line, first, count);
    case kValues:
      return sum_values(job, line, first, count);
    default:
      return sum_plain(job, line, first, count);
  }
}

void put(const Job &job, int64_t line, double sum) {
  job.result[line * job.stride] = job.length == 0 ? 0 : static_cast<float>(sum * job.factor);
}

// --- Threads ---------------------------------------------------------------------------------

void sum_lines(const void *context, int64_t first, int64_t last) {
  const Job &job = *static_cast<const Job *>(context);
  for (int64_t line = first; line < last; ++line) put(job, line, sum_run(job, line, 0, job.length));
}

// Some segments of one line.
struct Part {
  const Job *job;
  int64_t line;
  int64_t first;  // segment
  double *sums;
};

void sum_segments(const void *context, int64_t first, int64_t last) {
  const Part &part = *static_cast<const Part *>(context);
  for (int64_t i = first; i < last; ++i) {
    const int64_t from = (part.first + i) * kSegment;
    part.sums[i] = sum_run(*part.job, part.line, from, least(kSegment, part.job->length - from));
  }
}

double sum_long_line(const Job &job, int64_t line) {
  double sums[kMostSegments], total = 0;
  const int64_t segments = divide_up(job.length, kSegment);
  for (int64_t first = 0; first < segments; first += kMostSegments) {
    const Part part = {&job, line, first, sums};
    const int64_t count = least(kMostSegments, segments - first);
    parallel_for_tiles(count, kGrain / kSegment, sum_segments, &part);
    for (int64_t i = 0; i < count; ++i) total += sums[i];
  }
  return total;
}

void sum_all(const Job &job) {
  if (job.length <= kSegment) return parallel_for_tiles(job.lines, divide_up(kGrain, job.length + 1), sum_lines, &job);
  for (int64_t line = 0; line < job.lines; ++line) put(job, line, sum_long_line(job, line));
}

}  // namespace
}  // namespace dlfp4

extern "C" dlfp4_status dlfp4_vecdot(const dlfp4_lines *a, const dlfp4_lines *b, int64_t lines, int64_t length,
                                     float *result, int64_t stride) {
  using namespace dlfp4;
  const int level = current_level();
  if (level < 0) return DLFP4_E_ISA;
  Job job;
  dlfp4_status status = make_reader(*a, level, &job.a);
  if (status == DLFP4_OK) status = make_reader(*b, level, &job.b);
  if (status != DLFP4_OK) return status;
  if (a->blocks.length < length || b->blocks.length < length) return DLFP4_E_SHAPE;
  if (!find_way(job.a, job.b, &job.way)) return DLFP4_E_DTYPE;
  job.kernels = &product_kernels(level);
  job.factor = job.a.factor * job.b.factor;
  job.lines = lines;
  job.length = length;
  job.result = result;
  job.stride = stride;
  sum_all(job);
  return DLFP4_OK;
}
