// Checks dlfp4_host_convert at every level that this machine runs against numerics.h, bit for bit.
// Layout: every pair of types and packings; runs of any length at any address; strided views.
// Trick: results are compared as whole images of memory, so that a stray write shows too.
#ifndef _WIN32
#include <sys/wait.h>
#endif

#include <new>

#include "support.h"
#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace dlfp4 {
namespace {

constexpr int64_t kMaxCount = 200003;
Guarded src_memory, dst_memory;
uint8_t image[Guarded::kBytes];  // what dst_memory should hold
const char *level_name;

struct Case {
  Type src;
  Type dst;
  dlfp4_convert_options options;
};

void report(bool good, const char *test, const Case &c, int64_t count) {
  if (good) return check(true, test, "");
  char detail[256];
  snprintf(detail, sizeof(detail), "%s, %s%s -> %s%s, rounding %d, saturate %d, %ld elements", level_name,
           name_of(c.src), c.src.packed ? " packed" : "", name_of(c.dst), c.dst.packed ? " packed" : "",
           c.options.rounding, c.options.saturate, static_cast<long>(count));
  check(false, test, detail);
}

dlfp4_convert_options mode_numbered(int mode) {
  constexpr dlfp4_rounding kRoundings[] = {DLFP4_NEAREST_EVEN, DLFP4_NEAREST_AWAY, DLFP4_TOWARD_ZERO,
                                           DLFP4_NEAREST_ZERO, DLFP4_STOCHASTIC};
  return {kRoundings[mode / 2 % 5], mode % 2, 0x0123456789ABCDEF};
}

dlfp4_status convert_run(const Case &c, uint8_t *src, uint8_t *dst, int64_t count) {
  const int64_t shape[] = {count}, strides[] = {1};
  const dlfp4_view from = view_of(c.src, src, 1, shape, strides);
  const dlfp4_view to = view_of(c.dst, dst, 1, shape, strides);
  return dlfp4_host_convert(&from, &to, &c.options);
}

void reference_run(const Case &c, const uint8_t *src, uint8_t *dst, int64_t count) {
  memset(dst, 0, static_cast<size_t>(bytes_for(c.dst, count)));
  for (int64_t i = 0; i < count; ++i) {
    const Code code = get_element(c.src, src, i);
    put_element(c.dst, dst, i, reference(c.src, c.dst, code, c.options, static_cast<uint64_t>(i)));
  }
}

// Compares 64 bytes before and after the run as well, as far as there is memory.
void check_run(const Case &c, uint8_t *src, uint8_t *dst, int64_t count, const char *test) {
  const int64_t bytes = bytes_for(c.dst, count);
  const int64_t before = dst - dst_memory.begin < 64 ? dst - dst_memory.begin : 64;
  const int64_t after = dst_memory.end - dst - bytes < 64 ? dst_memory.end - dst - bytes : 64;
  memset(dst - before, 0xA5, static_cast<size_t>(before + bytes + after));
  memset(image, 0xA5, static_cast<size_t>(before + bytes + after));
  fill(c.src, c.dst.row, src, count);
  reference_run(c, src, image + before, count);
  const bool ok = convert_run(c, src, dst, count) == DLFP4_OK;
  const size_t compared = static_cast<size_t>(before + bytes + after);
  report(ok && memcmp(dst - before, image, compared) == 0, test, c, count);
}

// --- Runs ------------------------------------------------------------------------------------

// Every length against both guard pages.
void test_lengths(Type src, Type dst) {
  for (int64_t count = 0; count <= 130; ++count) {
    const Case c = {src, dst, mode_numbered(static_cast<int>(random_below(10)))};
    uint8_t *src_end = src_memory.end - bytes_for(src, count);
    uint8_t *dst_end = dst_memory.end - bytes_for(dst, count);
    check_run(c, src_end, dst_end, count, "length, at the end");
    check_run({src, dst, mode_numbered(static_cast<int>(count % 2))}, src_memory.begin, dst_memory.begin, count,
              "length, at the begin");
  }
}

void test_offsets(Type src, Type dst) {
  for (int64_t offset = 0; offset < 64; ++offset) {
    const Case c = {src, dst, mode_numbered(static_cast<int>(offset % 10))};
    const int64_t count = 65 + random_below(66);
    check_run(c, src_memory.begin + offset, dst_memory.begin + random_below(64), count, "offset of source");
    check_run(c, src_memory.begin + random_below(64), dst_memory.begin + offset, count, "offset of destination");
  }
}

void test_modes(Type src, Type dst) {
  for (int mode = 0; mode < 8; ++mode)
    check_run({src, dst, mode_numbered(mode)}, src_memory.begin, dst_memory.begin, 3001, "mode");
}

// All codes of the types of up to 16 bits, in every mode.
void test_all_codes(Type src, Type dst) {
  const int bits = kTypes[src.row].bits;
  if (bits > 16 || src.row == dst.row) return;
  const int64_t count = int64_t{1} << bits;
  for (int64_t i = 0; i < count; ++i) {
    Code code = {};
    memcpy(code.byte, &i, sizeof(i));
    put_element(src, src_memory.begin, i, code);
  }
  for (int mode = 0; mode < 8; ++mode) {
    const Case c = {src, dst, mode_numbered(mode)};
    reference_run(c, src_memory.begin, image, count);
    convert_run(c, src_memory.begin, dst_memory.begin, count);
    const size_t bytes = static_cast<size_t>(bytes_for(dst, count));
    report(memcmp(dst_memory.begin, image, bytes) == 0, "all codes", c, count);
  }
}

void test_threads(Type src, Type dst) {
  const size_t bytes = static_cast<size_t>(bytes_for(dst, kMaxCount));
  fill(src, dst.row, src_memory.begin, kMaxCount);
  for (int mode : {1, 7}) {
    const Case c = {src, dst, mode_numbered(mode)};
    dlfp4_set_num_threads(1);
    convert_run(c, src_memory.begin, dst_memory.begin, kMaxCount);
    memcpy(image, dst_memory.begin, bytes);
    for (int threads : {2, 3}) {
      dlfp4_set_num_threads(threads);
      memset(dst_memory.begin, 0xA5, bytes);
      convert_run(c, src_memory.begin, dst_memory.begin, kMaxCount);
      report(memcmp(dst_memory.begin, image, bytes) == 0, "threads", c, kMaxCount);
    }
  }
  dlfp4_set_num_threads(0);
}

void test_in_place(Type src, Type dst) {
  if (spacing_in_bits(src) != spacing_in_bits(dst)) return;
  const int64_t count = 1 + random_below(3000);
  const Case c = {src, dst, mode_numbered(static_cast<int>(random_below(10)))};
  fill(src, dst.row, dst_memory.begin, count);
  reference_run(c, dst_memory.begin, image, count);
  convert_run(c, dst_memory.begin, dst_memory.begin, count);
  const size_t bytes = static_cast<size_t>(bytes_for(dst, count));
  report(memcmp(dst_memory.begin, image, bytes) == 0, "in place", c, count);
}

// --- Strided views ---------------------------------------------------------------------------

struct Strided {
  int ndim;
  int64_t shape[4];
  int64_t strides[2][4];
  int64_t lowest[2];  // the element at the lowest address, counted from the first one
  int64_t highest[2];
};

int64_t random_extent(int dim, int ndim) {
  if (dim == ndim - 1 && random_below(3) == 0) return 60 + random_below(80);
  return random_below(24) == 0 ? 0 : 1 + random_below(4);
}

// Strides of a random order of the dimensions, with gaps; no two elements share a place unless the
// side may repeat.
void random_strides(Strided *view, int side, bool may_repeat) {
  const bool row_major = random_below(2) == 0, gaps = random_below(2) == 0;
  int64_t next = gaps ? 1 + random_below(3) : 1;
  int order[4] = {0, 1, 2, 3};
  for (int i = view->ndim - 1; i > 0 && !row_major; --i) {
    const int other = static_cast<int>(random_below(i + 1)), kept = order[i];
    order[i] = order[other];
    order[other] = kept;
  }
  for (int i = view->ndim - 1; i >= 0; --i) {
    const int dim = order[i];
    view->strides[side][dim] = next;
    next = next * (view->shape[dim] ? view->shape[dim] : 1) + (gaps ? random_below(4) : 0);
    if (random_below(6) == 0) view->strides[side][dim] *= -1;
    if (may_repeat && random_below(6) == 0) view->strides[side][dim] = 0;
  }
}

Strided random_view() {
  Strided view = {};
  view.ndim = static_cast<int>(random_below(5));
  for (int dim = 0; dim < view.ndim; ++dim) view.shape[dim] = random_extent(dim, view.ndim);
  random_strides(&view, kSrcSide, true);
  random_strides(&view, kDstSide, false);
  for (int side = 0; side < 2; ++side)
    for (int dim = 0; dim < view.ndim; ++dim) {
      const int64_t reach = view.strides[side][dim] * (view.shape[dim] - 1);
      if (view.shape[dim] == 0) continue;
      (reach < 0 ? view.lowest[side] : view.highest[side]) += reach;
    }
  return view;
}

int64_t size_of(const Strided &view) {
  int64_t size = 1;
  for (int dim = 0; dim < view.ndim; ++dim) size *= view.shape[dim];
  return size;
}

int64_t offset_of(const Strided &view, int side, int64_t element) {
  int64_t offset = 0;
  for (int dim = view.ndim - 1; dim >= 0; --dim) {
    offset += element % view.shape[dim] * view.strides[side][dim];
    element /= view.shape[dim];
  }
  return offset;
}

// The first element's place: the last byte of the view touches the guard page where it can.
uint8_t *place(const Guarded &memory, const Strided &view, int side, Type type) {
  const int64_t last_bit = (view.highest[side] + 1) * spacing_in_bits(type);
  return memory.end - (last_bit + 7) / 8;
}

void reference_strided(const Case &c, const Strided &view, bool part, const uint8_t *src, uint8_t *dst) {
  const int64_t size = size_of(view);
  for (int64_t i = 0; i < size; ++i) {
    const Code code = get_element(c.src, src, offset_of(view, kSrcSide, i));
    put_element(c.dst, dst, offset_of(view, kDstSide, i),
                reference(c.src, c.dst, code, c.options, static_cast<uint64_t>(i)));
  }
  const bool dense = size > 0 && view.lowest[kDstSide] == 0 && view.highest[kDstSide] == size - 1;
  const bool completes = dense && !part;
  for (int64_t bit = size * spacing_in_bits(c.dst); completes && bit % 8 != 0; ++bit)
    dst[bit / 8] &= static_cast<uint8_t>(~(1 << bit % 8));
}

void test_strided(Type src_type, Type dst_type) {
  const Strided view = random_view();
  const Case c = {src_type, dst_type, mode_numbered(static_cast<int>(random_below(10)))};
  uint8_t *src = place(src_memory, view, kSrcSide, src_type);
  uint8_t *dst = place(dst_memory, view, kDstSide, dst_type);
  const int64_t window = dst_memory.end - dst + 64 - view.lowest[kDstSide] * 16;
  const int64_t elements = view.highest[kSrcSide] - view.lowest[kSrcSide] + 1;
  const int64_t below = (view.lowest[kSrcSide] * spacing_in_bits(src_type) - 7) / 8;
  fill(src_type, dst_type.row, src + below, elements);
  for (uint8_t *at = dst_memory.end - window; at < dst_memory.end; ++at) *at = static_cast<uint8_t>(random_bits());
  memcpy(image, dst_memory.end - window, static_cast<size_t>(window));
  const bool part = random_below(2) == 0;
  reference_strided(c, view, part, src, image + window - (dst_memory.end - dst));
  const dlfp4_view from = view_of(src_type, src, view.ndim, view.shape, view.strides[kSrcSide]);
  dlfp4_view to = view_of(dst_type, dst, view.ndim, view.shape, view.strides[kDstSide]);
  to.part = part;
  const bool ok = dlfp4_host_convert(&from, &to, &c.options) == DLFP4_OK;
  const size_t compared = static_cast<size_t>(window);
  report(ok && memcmp(dst_memory.end - window, image, compared) == 0, "strided", c, size_of(view));
}

// Rows with a gap after each, over threads.
void test_threaded_rows(Type src_type, Type dst_type) {
  const int64_t shape[] = {1500, 131}, src_strides[] = {136, 1}, dst_strides[] = {144, 1};
  const Case c = {src_type, dst_type, mode_numbered(9)};
  const size_t bytes = static_cast<size_t>(bytes_for(dst_type, 1500 * 144));
  fill(src_type, dst_type.row, src_memory.begin, 1500 * 136);
  const dlfp4_view from = view_of(src_type, src_memory.begin, 2, shape, src_strides);
  memset(dst_memory.begin, 0xA5, bytes);
  memset(image, 0xA5, bytes);
  const dlfp4_view to = view_of(dst_type, dst_memory.begin, 2, shape, dst_strides);
  const dlfp4_view to_image = view_of(dst_type, image, 2, shape, dst_strides);
  dlfp4_set_num_threads(3);
  dlfp4_host_convert(&from, &to, &c.options);
  dlfp4_set_num_threads(1);
  dlfp4_host_convert(&from, &to_image, &c.options);
  dlfp4_set_num_threads(0);
  report(memcmp(dst_memory.begin, image, bytes) == 0, "threaded rows", c, 1500 * 131);
}

// --- Properties ------------------------------------------------------------------------------

bool is_nan(int row, uint64_t code) { return decode(kTypes[row], code).kind == kNan; }

// Every code of every type comes back from float64.
void test_round_trip(int row) {
  if (!is_float(kTypes[row]) || kTypes[row].bits > 16) return;
  const int64_t count = int64_t{1} << kTypes[row].bits;
  const Type type = {row, false}, wide = {DLFP4_float64, false};
  for (int64_t i = 0; i < count; ++i) {
    Code code = {};
    memcpy(code.byte, &i, sizeof(i));
    put_element(type, src_memory.begin, i, code);
  }
  convert_run({type, wide, mode_numbered(0)}, src_memory.begin, dst_memory.begin, count);
  convert_run({wide, type, mode_numbered(0)}, dst_memory.begin, image, count);
  for (int64_t i = 0; i < count; ++i) {
    uint64_t back;
    memcpy(&back, get_element(type, image, i).byte, sizeof(back));
    const uint64_t code = static_cast<uint64_t>(i);
    check(back == code || (is_nan(row, code) && is_nan(row, back)), "round trip", dlfp4_dtypes[row].name);
  }
}

// The share of elements rounded up is the fraction, within five standard deviations, be it wide or
// far below the 32 bits that are drawn first.
void test_stochastic_mean(double fraction) {
  const int64_t count = 100000;
  const Type wide = {DLFP4_float64, false}, narrow = {DLFP4_float8_e4m3fn, false};
  const double value = 1.0 + fraction / 8;
  for (int64_t i = 0; i < count; ++i) memcpy(src_memory.begin + 8 * i, &value, sizeof(value));
  convert_run({wide, narrow, mode_numbered(9)}, src_memory.begin, dst_memory.begin, count);
  double up = 0;
  for (int64_t i = 0; i < count; ++i) up += dst_memory.begin[i] - 0x38;
  const double error = up - count * fraction;
  check(error * error <= 25 * count * fraction * (1 - fraction), "stochastic mean", level_name);
}

// Programs may have the processor take subnormals for zeros; results do not depend on it.
void test_flushing(Type src, Type dst) {
#ifdef __SSE2__
  const unsigned control = _mm_getcsr();
  _mm_setcsr(control | 0x8040);
  test_modes(src, dst);
  check((_mm_getcsr() | 0x3F) == (control | 0x8040 | 0x3F), "flushing", "the processor's modes have changed");
  _mm_setcsr(control);
#else
  (void)src, (void)dst;
#endif
}

// Output too large for any cache, where kernels may write past the caches: repetitions of a short run.
void test_large(Type src, Type dst, int64_t offset) {
  constexpr std::align_val_t kLine{64};
  const int64_t period = 4096, repeats = (int64_t{80} << 20) / bytes_for(dst, period);
  const int64_t count = period * repeats + 77, src_bytes = bytes_for(src, period), dst_bytes = bytes_for(dst, period);
  const Case c = {src, dst, mode_numbered(1)};
  uint8_t *from = static_cast<uint8_t *>(malloc(static_cast<size_t>(src_bytes * (repeats + 1))));
  uint8_t *to = static_cast<uint8_t *>(operator new(static_cast<size_t>(dst_bytes * (repeats + 1)) + 64, kLine));
  fill(src, dst.row, from, period);
  reference_run(c, from, image, period);
  for (int64_t i = 1; i <= repeats; ++i) memcpy(from + i * src_bytes, from, static_cast<size_t>(src_bytes));
  bool good = convert_run(c, from, to + offset, count) == DLFP4_OK;
  for (int64_t i = 0; i <= repeats; ++i) {
    const int64_t bytes = i < repeats ? dst_bytes : bytes_for(dst, 76);  // whole bytes of the last, short repetition
    good = good && memcmp(to + offset + i * dst_bytes, image, static_cast<size_t>(bytes)) == 0;
  }
  report(good, "large", c, count);
  free(from);
  operator delete(to, kLine);
}

void test_large_runs() {
  const Type f32 = {DLFP4_float32, false}, bf16 = {DLFP4_bfloat16, false}, e4m3 = {DLFP4_float8_e4m3fn, false};
  const Type e5m2 = {DLFP4_float8_e5m2, false}, fp6 = {DLFP4_float6_e3m2fn, true}, fp4 = {DLFP4_float4_e2m1fn, true};
  const Type padded_fp4 = {DLFP4_float4_e2m1fn, false};
  dlfp4_set_num_threads(1);
  for (int64_t offset : {0, 3, 16}) {
    test_large(e4m3, f32, offset);
    test_large(fp4, f32, offset);
    test_large(fp6, bf16, offset);
    test_large(bf16, e4m3, offset);
    test_large(bf16, f32, offset);
    test_large(e4m3, e5m2, offset);
    test_large(fp6, e4m3, offset);
    test_large(padded_fp4, fp4, offset);
  }
  dlfp4_set_num_threads(0);
}

void test_errors() {
  int64_t shape[] = {4}, other[] = {5}, strides[] = {1};
  const Type f32 = {DLFP4_float32, false}, i32 = {DLFP4_int32, false};
  const dlfp4_view src = view_of(f32, src_memory.begin, 1, shape, strides);
  const dlfp4_view dst = view_of(f32, dst_memory.begin, 1, shape, strides);
  const dlfp4_view integers = view_of(i32, dst_memory.begin, 1, shape, strides);
  const dlfp4_view longer = view_of(f32, dst_memory.begin, 1, other, strides);
  dlfp4_view unknown = dst;
  unknown.code = 200;
  dlfp4_convert_options bad = {};
  memset(&bad.rounding, 4, 1);
  check(dlfp4_host_convert(&src, &dst, nullptr) == DLFP4_OK, "errors", "default options");
  check(dlfp4_host_convert(&src, &integers, nullptr) == DLFP4_E_DTYPE, "errors", "float to int");
  check(dlfp4_host_convert(&src, &unknown, nullptr) == DLFP4_E_DTYPE, "errors", "unknown type");
  check(dlfp4_host_convert(&src, &longer, nullptr) == DLFP4_E_SHAPE, "errors", "shapes differ");
  check(dlfp4_host_convert(&src, &dst, &bad) == DLFP4_E_OPTION, "errors", "unknown rounding");
  check(dlfp4_set_isa("mmx") == DLFP4_E_ISA, "errors", "unknown level");
}

// A child of threaded work must finish, on one thread.
void test_fork() {
#ifndef _WIN32
  dlfp4_set_num_threads(2);
  const Case c = {{DLFP4_float32, false}, {DLFP4_float16, false}, mode_numbered(1)};
  convert_run(c, src_memory.begin, dst_memory.begin, kMaxCount);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    convert_run(c, src_memory.begin, dst_memory.begin, kMaxCount);
    _exit(dlfp4_get_num_threads() == 1 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  dlfp4_set_num_threads(0);
  check(status == 0, "fork", "the child hung or failed");
#endif
}

// --- All of it -------------------------------------------------------------------------------

void test_level(const char *name) {
  level_name = name;
  each_pair(test_lengths);
  each_pair(test_offsets);
  each_pair(test_modes);
  each_pair(test_flushing);
  each_pair(test_all_codes);
  each_pair(test_in_place);
  each_pair(test_threads);
  for (int round = 0; round < 40; ++round) each_pair(test_strided);
  each_pair(test_threaded_rows);
  test_large_runs();
  for (int row = 0; row < DLFP4_NUM_DTYPES; ++row) test_round_trip(row);
  for (double fraction : {0.0, 0.03, 0.5, 0.9, 1e-12}) test_stochastic_mean(fraction);
  printf("%s: %ld checks, %ld failures\n", name, checks, failures);
}

}  // namespace
}  // namespace dlfp4

int main() {
  return dlfp4::run([] {
    dlfp4::test_errors();
    dlfp4::each_codec_level(dlfp4::test_level);
    dlfp4::test_fork();
  });
}
