// dlfp4_host_vecdot: sums of products of lines.
// Layout: any that reader.h reads; elements that lie in order are multiplied in place.
// Trick: a line is cut into segments of fixed length, each summed by one thread and all added in order, so that results
// do not depend on the threads.
#include <math.h>
#include <string.h>

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
constexpr double kLeastSum = 0x1p-102;        // beside which what is below 2^-126 is below its last bit

// How two lines are multiplied: as integers; as floats; as FP4 in blocks of one kind, by stored scales; as elements in
// blocks of one length, by the product of their scales; as float32 values.
enum Way { kIntegers, kFloats, kStoredBlocks, kScaledBlocks, kValues };

struct DotCall {
  const ProductKernels *kernels;
  const ProductKernels *exact;  // the scalar level's, which sum in float64
  Reader a, b;
  Way way;
  double factor;
  int64_t lines, length;
  float *result;
  int64_t stride;
};

// Integers in blocks are multiplied as their values.
bool have_equal_blocks(const Reader &a, const Reader &b) {
  return a.scaled && b.scaled && a.row == b.row && a.format.block == b.format.block && !a.format.integers;
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

bool are_zeros(const uint8_t *bytes, int64_t count) {
  return bytes[0] == 0 && memcmp(bytes, bytes + 1, static_cast<size_t>(count - 1)) == 0;
}

// sum(kernels), which may add in float32. Where products or sums left its range, or may have, they are added again in
// float64: the factors of the whole sum may lead back into it. Not where all `bytes` of elements of an operand are 0.
template <class Sum>
double sum_in_range(const DotCall &call, const uint8_t *a, const uint8_t *b, int64_t bytes, Sum sum) {
  const double found = sum(*call.kernels);
  if (fabs(found) >= kLeastSum && fabs(found) < INFINITY) return found;
  return found == 0 && (are_zeros(a, bytes) || are_zeros(b, bytes)) ? found : sum(*call.exact);
}

double sum_floats(const DotCall &call, int row, const uint8_t *a, const uint8_t *b, int64_t count) {
  return sum_in_range(call, a, b, count * (kTypes[row].bits / 8),
                      [=](const ProductKernels &kernels) { return kernels.sum_floats[row](a, b, count); });
}

double sum_codes(const DotCall &call, const uint8_t *a, const uint8_t *b, int64_t count, bool packed) {
  const int row = call.a.row;
  if (call.way == kIntegers) {
    const int64_t sum = call.kernels->sum_integers[row][packed](a, b, count);
    return static_cast<double>(sum) / (unit_of(row) * unit_of(row));
  }
  const int64_t item = kTypes[row].bits / 8;
  return add_pieces(0, count, kMostFloats, [&](int64_t first, int64_t elements) {
    return sum_floats(call, row, a + first * item, b + first * item, elements);
  });
}

double sum_plain(const DotCall &call, int64_t line, int64_t first, int64_t count) {
  const uint8_t *const a = find_codes(call.a, line, first), *const b = find_codes(call.b, line, first);
  if (a && b && call.a.packed == call.b.packed) return sum_codes(call, a, b, count, call.a.packed);
  alignas(64) uint8_t a_buffer[kMostRead * sizeof(float)], b_buffer[kMostRead * sizeof(float)];
  return add_pieces(first, count, kMostRead, [&](int64_t from, int64_t elements) {
    const uint8_t *const a_codes = read_codes(call.a, line, from, elements, a_buffer);
    return sum_codes(call, a_codes, read_codes(call.b, line, from, elements, b_buffer), elements, false);
  });
}

double sum_values(const DotCall &call, int64_t line, int64_t first, int64_t count) {
  alignas(64) uint8_t a[kMostRead * sizeof(float)], b[kMostRead * sizeof(float)];
  return add_pieces(first, count, kMostRead, [&](int64_t from, int64_t elements) {
    read_values(call.a, line, from, elements, kFromFloat32, a);
    read_values(call.b, line, from, elements, kFromFloat32, b);
    return sum_floats(call, DLFP4_float32, a, b, elements);
  });
}

double sum_stored_blocks(const DotCall &call, int64_t line, int64_t first, int64_t count) {
  alignas(64) uint8_t a_buffer[kMostSummed / 16], b_buffer[kMostSummed / 16];
  const int key = call.a.format.key;
  const int64_t whole = count / call.a.format.block * call.a.format.block;
  const double total = add_pieces(first, whole, kMostSummed, [&](int64_t from, int64_t elements) {
    const uint8_t *const a_scales = read_stored_scales(call.a, line, from, elements, a_buffer);
    const uint8_t *const b_scales = read_stored_scales(call.b, line, from, elements, b_buffer);
    const uint8_t *const a = find_codes(call.a, line, from), *const b = find_codes(call.b, line, from);
    return sum_in_range(call, a, b, elements / 2, [=](const ProductKernels &kernels) {
      return kernels.sum_blocks[key](a, a_scales, b, b_scales, elements);
    });
  });
  return whole == count ? total : total + sum_values(call, line, first + whole, count - whole);
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
double sum_some_blocks(const DotCall &call, int64_t line, int64_t first, int64_t count) {
  alignas(64) uint8_t a_buffer[kMostRead], b_buffer[kMostRead];
  float scales[kMostScales], others[kMostScales];
  const int64_t block = call.a.format.block;
  read_scales(call.a, line, first, count, scales);
  read_scales(call.b, line, first, count, others);
  if (multiply_scales(scales, others, divide_up(count, block))) return sum_values(call, line, first, count);
  const uint8_t *const a = packed_codes(call.a, line, first, count, a_buffer);
  const uint8_t *const b = packed_codes(call.b, line, first, count, b_buffer);
  return sum_in_range(call, a, b, count * bits_in_memory(call.a) / 8, [&](const ProductKernels &kernels) {
    return kernels.sum_scaled[call.a.format.key](a, b, count, scales);
  });
}

double sum_scaled_blocks(const DotCall &call, int64_t line, int64_t first, int64_t count) {
  const int64_t whole = call.a.packed ? count / call.a.format.block * call.a.format.block : count;
  const bool in_order = find_codes(call.a, line, first) && find_codes(call.b, line, first);
  const int64_t most = in_order ? kMostScales * call.a.format.block : kMostRead;
  const double total = add_pieces(
      first, whole, most, [&](int64_t from, int64_t elements) { return sum_some_blocks(call, line, from, elements); });
  return whole == count ? total : total + sum_values(call, line, first + whole, count - whole);
}

double sum_run(const DotCall &call, int64_t line, int64_t first, int64_t count) {
  switch (call.way) {
    case kStoredBlocks:
      return sum_stored_blocks(call, line, first, count);
    case kScaledBlocks:
      return sum_scaled_blocks(call, line, first, count);
    case kValues:
      return sum_values(call, line, first, count);
    default:
      return sum_plain(call, line, first, count);
  }
}

void put(const DotCall &call, int64_t line, double sum) {
  const double factor = call.factor * factor_of_line(call.a, line) * factor_of_line(call.b, line);
  call.result[line * call.stride] = static_cast<float>(sum * factor);
}

// --- Threads ---------------------------------------------------------------------------------

void sum_lines(const void *context, int64_t first, int64_t last) {
  const DotCall &call = *static_cast<const DotCall *>(context);
  for (int64_t line = first; line < last; ++line) put(call, line, sum_run(call, line, 0, call.length));
}

// Some segments of one line.
struct Part {
  const DotCall *call;
  int64_t line;
  int64_t first;  // segment
  double *sums;
};

void sum_segments(const void *context, int64_t first, int64_t last) {
  const Part &part = *static_cast<const Part *>(context);
  for (int64_t i = first; i < last; ++i) {
    const int64_t from = (part.first + i) * kSegment;
    part.sums[i] = sum_run(*part.call, part.line, from, least(kSegment, part.call->length - from));
  }
}

double sum_long_line(const DotCall &call, int64_t line) {
  double sums[kMostSegments], total = 0;
  const int64_t segments = divide_up(call.length, kSegment);
  for (int64_t first = 0; first < segments; first += kMostSegments) {
    const Part part = {&call, line, first, sums};
    const int64_t count = least(kMostSegments, segments - first);
    parallel_for_tiles(count, kGrain / kSegment, sum_segments, &part);
    for (int64_t i = 0; i < count; ++i) total += sums[i];
  }
  return total;
}

// Sums of nothing are zero under any scale.
void put_zeros(const DotCall &call) {
  for (int64_t line = 0; line < call.lines; ++line) call.result[line * call.stride] = 0;
}

void sum_all(const DotCall &call) {
  if (call.length == 0) return put_zeros(call);
  if (call.length <= kSegment) return parallel_for_tiles(call.lines, divide_up(kGrain, call.length), sum_lines, &call);
  for (int64_t line = 0; line < call.lines; ++line) put(call, line, sum_long_line(call, line));
}

}  // namespace
}  // namespace dlfp4

extern "C" dlfp4_status dlfp4_host_vecdot(const dlfp4_lines *a, const dlfp4_lines *b, int64_t lines, int64_t length,
                                          float *result, int64_t stride) {
  using namespace dlfp4;
  const int level = current_level();
  if (level < 0) return DLFP4_E_ISA;
  DotCall call;
  dlfp4_status status = make_reader(*a, level, &call.a);
  if (status == DLFP4_OK) status = make_reader(*b, level, &call.b);
  if (status != DLFP4_OK) return status;
  if (a->blocks.length < length || b->blocks.length < length) return DLFP4_E_SHAPE;
  if (!find_way(call.a, call.b, &call.way)) return DLFP4_E_DTYPE;
  call.kernels = &product_kernels(level);
  call.exact = &product_kernels(scalar_level());
  call.factor = call.a.factor * call.b.factor;
  call.lines = lines;
  call.length = length;
  call.result = result;
  call.stride = stride;
  sum_all(call);
  return DLFP4_OK;
}

extern "C" dlfp4_status dlfp4_host_vecdot_axes(const dlfp4_lines *a, const int64_t *strides_of_a, const dlfp4_lines *b,
                                               const int64_t *strides_of_b, int ndim, const int64_t *shape,
                                               int64_t length, float *result) {
  const int last = ndim - 1;
  int64_t runs = 1;
  for (int k = 0; k < last; ++k) runs *= shape[k];
  dlfp4_lines of_a = *a, of_b = *b;
  of_a.step = strides_of_a[last];
  of_b.step = strides_of_b[last];
  for (int64_t run = 0; run < runs; ++run, result += shape[last]) {
    of_a.first = of_b.first = 0;
    int64_t rest = run;
    for (int k = last - 1; k >= 0; rest /= shape[k--]) {
      of_a.first += rest % shape[k] * strides_of_a[k];
      of_b.first += rest % shape[k] * strides_of_b[k];
    }
    const dlfp4_status status = dlfp4_host_vecdot(&of_a, &of_b, shape[last], length, result, 1);
    if (status != DLFP4_OK) return status;
  }
  return DLFP4_OK;
}
