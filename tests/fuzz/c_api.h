// What the fuzz targets of the C API share: descriptions made of the input's bytes, over memory of exactly their size.
// Layout: an arena under AddressSanitizer, of which no byte between tensors can be touched.
// Trick: a model in 128 bits says of each description whether it must be refused, and a call that is taken is compared
// with the same call at the scalar level, as images of all memory.
#ifndef DLFP4_TESTS_FUZZ_C_API_H_
#define DLFP4_TESTS_FUZZ_C_API_H_

#include <sanitizer/asan_interface.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>
#include <vector>

#include "dlfp4/dlfp4.h"
#include "rules/dtypes.h"
#include "rules/formats.h"
#include "rules/numerics.h"

namespace fuzz {

using namespace dlfp4;

inline void require(bool good, const char *what) {
  if (good) return;
  fprintf(stderr, "dlfp4: %s\n", what);
  abort();
}

// Thrown where a case would tell nothing: too large, or over memory that is not there.
struct Dropped {};

// --- The input -------------------------------------------------------------------------------

// Zeros behind its end, which stand for the plainest choices.
class Bytes {
 public:
  Bytes(const uint8_t *data, size_t size) : at_(data), end_(data + size) {}

  uint8_t byte() { return at_ < end_ ? *at_++ : 0; }
  int below(int bound) { return byte() % bound; }
  bool chance(int one_in) { return below(one_in) == one_in - 1; }

  uint64_t word() {
    uint64_t word = 0;
    for (int k = 0; k < 8; ++k) word |= uint64_t{byte()} << 8 * k;
    return word;
  }

  // What overflows, or nearly: a power of two and its neighbours, of either sign, or any number.
  int64_t edge() {
    const int how = byte();
    if (how == 255) return static_cast<int64_t>(word());
    const uint64_t power = uint64_t{1} << how % 64;
    const uint64_t value = power + static_cast<uint64_t>(byte() % 3) - 1;
    return static_cast<int64_t>(how & 64 ? ~value + 1 : value);
  }

  template <class Choice>
  Choice one_of(std::initializer_list<Choice> choices) {
    return choices.begin()[below(static_cast<int>(choices.size()))];
  }

 private:
  const uint8_t *at_, *const end_;
};

// --- Memory ----------------------------------------------------------------------------------

struct Region {
  uint8_t *begin;
  int64_t bytes;
};

// The memory of a case.
class Arena {
 public:
  Arena() { __asan_poison_memory_region(memory_, sizeof(memory_)); }
  Arena(const Arena &) = delete;
  ~Arena() { __asan_poison_memory_region(memory_, sizeof(memory_)); }

  // Bytes whose address is `shift` above a multiple of 64.
  uint8_t *take(int64_t bytes, int shift = 0) {
    if (bytes > kMost || used_ + bytes + 2 * kGap > kMost) throw Dropped();
    uint8_t *const begin = memory_ + used_ + kGap + shift;
    __asan_unpoison_memory_region(begin, static_cast<size_t>(bytes));
    regions_.push_back({begin, bytes});
    used_ += (kGap + shift + bytes + kGap - 1) / kGap * kGap;
    return begin;
  }

  std::vector<uint8_t> image() const {
    std::vector<uint8_t> bytes;
    for (const Region &each : regions_) bytes.insert(bytes.end(), each.begin, each.begin + each.bytes);
    return bytes;
  }

  // Bytes that are in no image, in place of those of the last call of this; `shift` above a multiple of 256.
  void *take_scratch(int64_t bytes, int shift) {
    if (bytes + shift > kScratch) throw Dropped();
    __asan_poison_memory_region(scratch_, sizeof(scratch_));
    __asan_unpoison_memory_region(scratch_ + shift, static_cast<size_t>(bytes));
    return scratch_ + shift;
  }

  void restore(const std::vector<uint8_t> &bytes) {
    const uint8_t *from = bytes.data();
    for (const Region &each : regions_) {
      if (each.bytes) memcpy(each.begin, from, static_cast<size_t>(each.bytes));
      from += each.bytes;
    }
  }

 private:
  static constexpr int64_t kMost = 1 << 18, kScratch = 1 << 21, kGap = 64;
  alignas(256) static inline uint8_t memory_[kMost], scratch_[kScratch];
  std::vector<Region> regions_;
  int64_t used_ = 0;
};

inline uint64_t mix(uint64_t *state) {  // splitmix64
  uint64_t z = *state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Floats of neither large nor small magnitudes, so that products of them neither overflow nor vanish.
inline void fill_moderately(Region region, int dtype, uint64_t seed) {
  const ElementType f = kTypes[dtype];
  const int64_t item = f.bits / 8;
  for (int64_t place = 0; place + item <= region.bytes; place += item) {
    const uint64_t noise = mix(&seed);
    const uint64_t exponent = static_cast<uint64_t>(f.bias - 4) + noise % 8;
    const uint64_t code = sign_bit(f, noise >> 8 & 1) | exponent << f.mantissa | (noise >> 9 & low_bits(f.mantissa));
    memcpy(region.begin + place, &code, static_cast<size_t>(item));
  }
}

inline void fill(Bytes *input, Region region, int dtype) {
  const int how = input->below(4);
  uint64_t seed = input->byte();
  const ElementType f = kTypes[dtype];
  if (how < 2 && is_float(f) && f.bits >= 16) return fill_moderately(region, dtype, seed);
  for (int64_t k = 0; k < region.bytes; ++k)
    region.begin[k] = how == 3 ? input->byte() : static_cast<uint8_t>(mix(&seed));
}

// --- Descriptions ----------------------------------------------------------------------------

constexpr int kMostDims = 63;
constexpr int64_t kMostElements = 4096;  // of a tensor whose fields were changed

struct Tensor {
  DLTensor fields;
  Region memory;
  bool is_padded;   // as the call's flags have it: one element a byte where it has less
  bool is_changed;  // one of its fields, after it was made
};

// Bits from an element to the next.
inline int spacing_of(const DLTensor &t, bool is_padded) { return is_padded && t.dtype.bits < 8 ? 8 : t.dtype.bits; }

inline int64_t size_of(const std::vector<int64_t> &shape) {
  int64_t size = 1;
  for (int64_t extent : shape) size *= extent;
  return size;
}

// Strides of any order of the dimensions, with gaps and against the order of memory.
inline std::vector<int64_t> any_strides(Bytes *input, const std::vector<int64_t> &shape, bool may_repeat) {
  const size_t ndim = shape.size();
  std::vector<size_t> order(ndim);
  std::vector<int64_t> strides(ndim);
  for (size_t k = 0; k < ndim; ++k) order[k] = k;
  for (size_t k = ndim; k > 1; --k)
    std::swap(order[k - 1], order[static_cast<size_t>(input->below(static_cast<int>(k)))]);
  int64_t next = 1 + input->below(3);
  for (size_t k = ndim; k-- > 0;) {
    const size_t dim = order[k];
    const int how = input->below(8);
    strides[dim] = how == 7 ? -next : how == 6 && may_repeat ? 0 : next;
    next = next * (shape[dim] ? shape[dim] : 1) + (how & 1);
  }
  return strides;
}

inline std::vector<int64_t> compact_strides(const std::vector<int64_t> &shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t k = shape.size(); k-- > 0; stride *= shape[k]) strides[k] = stride;
  return strides;
}

inline int64_t divide_down(int64_t value, int64_t by) { return value / by - (value % by < 0); }

inline int64_t *copy_to(Arena *arena, const std::vector<int64_t> &numbers) {
  const int64_t bytes = static_cast<int64_t>(numbers.size() * sizeof(int64_t));
  int64_t *const copy = reinterpret_cast<int64_t *>(arena->take(bytes));
  if (bytes) memcpy(copy, numbers.data(), static_cast<size_t>(bytes));
  return copy;
}

// A tensor over memory of exactly its size, of any alignment that its elements may have.
inline Tensor make(Bytes *input, Arena *arena, int dtype, const std::vector<int64_t> &shape,
                   const std::vector<int64_t> &strides, bool padded = false, bool is_aligned = false) {
  Tensor x = {};
  x.is_padded = padded;
  x.fields.dtype = {dlfp4_dtypes[dtype].code, dlfp4_dtypes[dtype].bits, 1};
  const int spacing = spacing_of(x.fields, padded);
  int64_t low = 0, high = 0;
  for (size_t k = 0; k < shape.size(); ++k) (strides[k] < 0 ? low : high) += (shape[k] - 1) * strides[k];
  const bool is_empty = size_of(shape) == 0;
  const int64_t first = is_empty ? 0 : divide_down(low * spacing, 8);
  const int64_t end = is_empty ? 0 : (high * spacing + spacing + 7) / 8;
  x.memory = {arena->take(end - first, is_aligned ? 0 : input->below(9) % 8), end - first};
  fill(input, x.memory, dtype);
  const uint64_t offset = input->chance(4) ? input->byte() : 0;
  const uintptr_t data = reinterpret_cast<uintptr_t>(x.memory.begin) - static_cast<uintptr_t>(first);
  x.fields.data = reinterpret_cast<void *>(data - offset);
  x.fields.byte_offset = offset;
  x.fields.device = {kDLCPU, 0};
  x.fields.ndim = static_cast<int32_t>(shape.size());
  x.fields.shape = copy_to(arena, shape);
  const bool says_strides = strides != compact_strides(shape) || input->chance(2);
  x.fields.strides = says_strides ? copy_to(arena, strides) : nullptr;
  return x;
}

inline Tensor make_compact(Bytes *input, Arena *arena, int dtype, const std::vector<int64_t> &shape) {
  return make(input, arena, dtype, shape, compact_strides(shape), false, true);
}

inline Tensor make_any(Bytes *input, Arena *arena, int dtype, const std::vector<int64_t> &shape, bool is_result,
                       bool padded = false) {
  const bool is_compact = !input->chance(2);
  return make(input, arena, dtype, shape, is_compact ? compact_strides(shape) : any_strides(input, shape, !is_result),
              padded);
}

// Any value in a field.
inline void change(Bytes *input, Arena *arena, Tensor *x) {
  DLTensor *const t = &x->fields;
  x->is_changed = true;
  const int dim = t->ndim > 0 && t->ndim <= kMostDims ? input->below(t->ndim) : -1;
  switch (input->below(10)) {
    case 0:
      if (dim >= 0 && t->shape) t->shape[dim] = input->edge();
      break;
    case 1:
      if (dim >= 0 && !t->strides) t->strides = copy_to(arena, std::vector<int64_t>(static_cast<size_t>(t->ndim), 1));
      if (dim >= 0) t->strides[dim] = input->edge();
      break;
    case 2:
      t->ndim = static_cast<int32_t>(input->edge());
      if (t->ndim > 0 && t->ndim <= kMostDims) {
        const std::vector<int64_t> extents(static_cast<size_t>(t->ndim), input->one_of({1, 0, 2}));
        t->shape = copy_to(arena, extents);
        t->strides = input->chance(2) ? copy_to(arena, extents) : nullptr;
      }
      break;
    case 3:
      t->dtype.lanes = input->one_of<uint16_t>({2, 0, 3, 65535});
      break;
    case 4:
      t->dtype.code = input->byte();
      t->dtype.bits = input->byte();
      break;
    case 5:
      t->data = input->chance(2) ? reinterpret_cast<void *>(input->edge()) : nullptr;
      break;
    case 6:
      t->byte_offset = static_cast<uint64_t>(input->edge());
      break;
    case 7:
      t->device = {static_cast<DLDeviceType>(input->below(24)), input->one_of({0, 1, -1})};
      break;
    case 8:
      t->shape = nullptr;
      break;
    default:
      t->strides = nullptr;
  }
}

inline bool is_changed(std::initializer_list<const Tensor *> tensors) {
  for (const Tensor *each : tensors)
    if (each->is_changed) return true;
  return false;
}

inline void change_some(Bytes *input, Arena *arena, std::initializer_list<Tensor *> tensors) {
  for (int count = input->chance(4) ? 1 + input->below(3) : 0; count > 0; --count)
    change(input, arena, tensors.begin()[input->below(static_cast<int>(tensors.size()))]);
}

// --- The model of descriptions ---------------------------------------------------------------

using Wide = __int128;

inline int row_of(DLDataType type) {
  for (int row = 0; row < DLFP4_NUM_DTYPES; ++row)
    if (dlfp4_dtypes[row].code == type.code && dlfp4_dtypes[row].bits == type.bits) return row;
  return -1;
}

inline bool is_pair(DLDataType type) { return type.lanes == 2 && row_of(type) == DLFP4_float4_e2m1fn; }

inline bool has_known_fields(const DLTensor &t) {
  if (t.ndim < 0 || t.ndim > kMostDims || (t.ndim > 0 && !t.shape)) return false;
  if (row_of(t.dtype) < 0 || (t.dtype.lanes != 1 && !is_pair(t.dtype))) return false;
  const int device = t.device.device_type;
  return device == kDLCPU || device == kDLCUDAHost || device == kDLROCMHost;
}

inline std::vector<Wide> strides_of(const DLTensor &t) {
  std::vector<Wide> strides(static_cast<size_t>(t.ndim));
  Wide next = 1;
  for (int k = t.ndim - 1; k >= 0; --k) {
    strides[static_cast<size_t>(k)] = t.strides ? t.strides[k] : next;
    if (next > 0 && next < INT64_MAX) next *= t.shape[k] ? t.shape[k] : 1;  // negative extents are refused
  }
  return strides;
}

enum Fate { kTaken, kRefused, kElsewhere };

struct Reach {
  Wide low, high;  // in elements
  bool is_empty, is_countable;
};

inline Reach reach_of(const DLTensor &t, const std::vector<Wide> &strides) {
  Reach reach = {0, 0, false, true};
  Wide size = 1;
  for (int k = 0; k < t.ndim; ++k) {
    reach.is_empty |= t.shape[k] == 0;
    size *= t.shape[k] ? t.shape[k] : 1;
    if (t.shape[k] < 0 || size > INT64_MAX / 64) return {0, 0, false, false};
  }
  for (int k = 0; k < t.ndim && !reach.is_empty; ++k) {
    const Wide span = Wide{t.shape[k] - 1} * strides[static_cast<size_t>(k)];
    (span < 0 ? reach.low : reach.high) += span;
    if (1 + reach.high - reach.low > INT64_MAX / 128) return {0, 0, false, false};
  }
  return reach;
}

// Whether each element has a place of its own in the memory, where that is to be written.
inline bool is_apart(const Tensor &x, const std::vector<Wide> &strides) {
  const DLTensor &t = x.fields;
  std::vector<Wide> places = {0};
  for (int k = 0; k < t.ndim; ++k) {
    const std::vector<Wide> before = places;
    places.clear();
    for (Wide place : before)
      for (int64_t i = 0; i < t.shape[k]; ++i) places.push_back(place + i * strides[static_cast<size_t>(k)]);
  }
  std::vector<bool> taken;
  Wide low = 0;
  for (Wide place : places) low = place < low ? place : low;
  for (Wide place : places) {
    const size_t at = static_cast<size_t>(place - low);
    if (at >= taken.size()) taken.resize(at + 1);
    if (taken[at]) return false;
    taken[at] = true;
  }
  return true;
}

// What must become of a call with such a tensor: it can be taken, must be refused, or cannot be made here.
inline Fate fate_of(const Tensor &x, bool is_result) {
  const DLTensor &t = x.fields;
  if (!has_known_fields(t)) return kRefused;
  const std::vector<Wide> strides = strides_of(t);
  const Reach reach = reach_of(t, strides);
  if (!reach.is_countable) return kRefused;
  const int last = t.ndim - 1;
  const bool pairs = is_pair(t.dtype);
  if (pairs && last < 0) return kRefused;
  if (reach.is_empty) return kTaken;  // its strides mean nothing
  if (pairs && strides[static_cast<size_t>(last)] != 1 && t.shape[last] != 1) return kRefused;
  if (!t.data) return kRefused;
  Wide size = 1;
  for (int k = 0; k < t.ndim; ++k) size *= t.shape[k];
  if (size > kMostElements) return kElsewhere;
  const int spacing = spacing_of(t, x.is_padded) * (pairs ? 2 : 1);
  const uint64_t start = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
  const Wide first = (Wide{start} - Wide{reinterpret_cast<uintptr_t>(x.memory.begin)}) * 8;
  const bool inside =
      first + reach.low * spacing >= 0 && first + (reach.high + 1) * spacing <= Wide{x.memory.bytes} * 8;
  const bool is_whole = inside && (!is_result || !x.is_changed || is_apart(x, strides));
  return is_whole ? kTaken : kElsewhere;
}

// --- Quantized matrices ----------------------------------------------------------------------

struct Parts {
  dlfp4_scaled_tensor q;
  Tensor data, scales, global_scale, offsets;
};

inline bool has_integers(int format) {
  return dlfp4_formats[format].element == DLFP4_int4 || dlfp4_formats[format].element == DLFP4_uint4;
}

// Elements of any strides that they can have: below 8 bits, whole bytes from line to line.
inline Tensor make_codes(Bytes *input, Arena *arena, int dtype, const int64_t (&shape)[2], bool is_result) {
  const std::vector<int64_t> extents = {shape[0], shape[1]};
  const int bits = dlfp4_dtypes[dtype].bits;
  if (bits == 8) return make_any(input, arena, dtype, extents, is_result);
  const int64_t gap = shape[1] * bits % 8 == 0 ? input->one_of({0, 0, 8, 16}) : 0;
  return make(input, arena, dtype, extents, {shape[1] + gap, 1});
}

// Of integers: zero points or biases for products and values, zero points of uint8 where they are set.
inline void make_offsets(Bytes *input, Arena *arena, const std::vector<int64_t> &shape, bool is_result, Parts *parts) {
  const bool is_signed = dlfp4_formats[parts->q.format].element == DLFP4_int4;
  if (is_result ? is_signed : input->chance(2)) return;
  const int dtype =
      is_result ? DLFP4_uint8 : input->one_of<int>({DLFP4_uint8, DLFP4_int8, DLFP4_int4, DLFP4_uint4, DLFP4_float32});
  const bool is_array = dtype == DLFP4_float32 || dlfp4_dtypes[dtype].bits < 8;
  parts->offsets =
      is_array ? make_compact(input, arena, dtype, shape) : make_any(input, arena, dtype, shape, is_result);
  (dtype == DLFP4_float32 ? parts->q.biases : parts->q.zero_points) = &parts->offsets.fields;
}

// The parts of (rows, columns). Dropped where the format has no such layout.
inline void make_parts(Bytes *input, Arena *arena, int format, int axis, int layout, int64_t rows, int64_t columns,
                       bool is_result, Parts *parts) {
  dlfp4_sizes sizes;
  const dlfp4_format_row &row = dlfp4_formats[format];
  if (dlfp4_size_buffers(format, axis, layout, rows, columns, &sizes)) throw Dropped();
  *parts = {};
  parts->q = {format, axis, layout, 0, &parts->data.fields, &parts->scales.fields, nullptr, nullptr, nullptr};
  parts->data = make_codes(input, arena, row.element, sizes.data, is_result);
  std::vector<int64_t> shape(sizes.scales, sizes.scales + sizes.scale_ndim);
  const bool is_array = shape.empty() || layout != 0;
  parts->scales =
      is_array ? make_compact(input, arena, row.scale, shape) : make_any(input, arena, row.scale, shape, is_result);
  if (row.kind == DLFP4_TWO_LEVEL) {
    const bool by_line = row.lines == 1 && input->chance(3);
    const std::vector<int64_t> lines(by_line, axis == -1 ? rows : columns);
    parts->global_scale = make_compact(input, arena, DLFP4_float32, lines);
    parts->q.global_scale = &parts->global_scale.fields;
  }
  if (has_integers(format)) make_offsets(input, arena, shape, is_result, parts);
}

struct Operand {
  const Tensor *tensor;
  bool is_result;
};

inline std::vector<Operand> operands_of(const Parts &parts, bool is_result) {
  std::vector<Operand> operands = {{&parts.data, is_result}};
  if (parts.q.scales) operands.push_back({&parts.scales, is_result});
  if (parts.q.global_scale) operands.push_back({&parts.global_scale, is_result});
  if (parts.q.zero_points || parts.q.biases) operands.push_back({&parts.offsets, is_result});
  return operands;
}

// Of a call: whether it must be refused. Dropped where a tensor lies elsewhere.
inline bool must_refuse(const std::vector<Operand> &operands) {
  bool elsewhere = false;
  for (const Operand &each : operands) {
    const Fate fate = fate_of(*each.tensor, each.is_result);
    if (fate == kRefused) return true;
    elsewhere |= fate == kElsewhere;
  }
  if (elsewhere) throw Dropped();
  return false;
}

// --- Calls -----------------------------------------------------------------------------------

inline const std::vector<const char *> &levels() {
  static const std::vector<const char *> *const found = [] {
    auto *const names = new std::vector<const char *>;
    for (int number = 0; const char *name = dlfp4_isa_numbered(number); ++number)
      if (dlfp4_set_isa(name) == DLFP4_OK) names->push_back(name);
    return names;
  }();
  return *found;
}

struct Outcome {
  dlfp4_status status;
  std::vector<uint8_t> before, after;
};

// Calls at a level and leaves the memory as the call did; nothing may be written where it refuses.
template <class Call>
Outcome call_at(Arena *arena, const char *level, Call call) {
  require(dlfp4_set_isa(level) == DLFP4_OK, "a level is gone");
  Outcome outcome = {DLFP4_OK, arena->image(), {}};
  outcome.status = call();
  outcome.after = arena->image();
  require(outcome.status == DLFP4_OK || outcome.before == outcome.after, "a refused call has written");
  return outcome;
}

enum Must { kMay, kMustTake, kMustRefuse };

// At a level of the input's and at the scalar one; the same status, and, where `compare`, the same memory. Returns
// whether it was taken, with the memory as the scalar level left it.
template <class Call>
bool run(Bytes *input, Arena *arena, Must must, bool compare, Call call) {
  const char *const level = levels()[static_cast<size_t>(input->below(static_cast<int>(levels().size())))];
  const Outcome one = call_at(arena, level, call);
  arena->restore(one.before);
  const Outcome other = call_at(arena, "scalar", call);
  require(one.status == other.status, "levels return several statuses");
  require(must != kMustTake || one.status == DLFP4_OK, "a call that has to be taken is refused");
  require(must != kMustRefuse || one.status != DLFP4_OK, "a call that has to be refused is taken");
  require(!compare || one.after == other.after, "levels give several results");
  return one.status == DLFP4_OK;
}

// The body of a target: one case.
template <class Body>
int run_case(const uint8_t *data, size_t size, Body body) {
  Bytes input(data, size);
  Arena arena;
  try {
    body(&input, &arena);
  } catch (const Dropped &) {
  }
  return 0;
}

}  // namespace fuzz

#endif  // DLFP4_TESTS_FUZZ_C_API_H_
