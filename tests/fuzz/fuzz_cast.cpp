// dlfp4_cast of any two tensors: what numerics.h makes of each element, in its place.
// Layout: see c_api.h.
// Trick: see c_api.h.
#include "c_api.h"

namespace fuzz {
namespace {

std::vector<int64_t> any_shape(Bytes *input) {
  std::vector<int64_t> shape(static_cast<size_t>(input->below(5)));
  for (int64_t &extent : shape) extent = input->one_of({1, 2, 3, 4, 5, 8, 0, 17});
  if (!shape.empty() && input->chance(4)) shape.back() = input->byte();
  return shape;
}

// Floats mostly, which any other is converted to.
int any_dtype(Bytes *input) {
  if (input->chance(8)) return input->below(DLFP4_NUM_DTYPES);
  return DLFP4_float64 + input->below(DLFP4_float4_e2m1fn - DLFP4_float64 + 1);
}

bool is_convertible(int from, int to) { return from == to || (is_float(kTypes[from]) && is_float(kTypes[to])); }

// --- The model -------------------------------------------------------------------------------

// An element in the bits of a place, which may be wider; up to 128 of them.
struct Code {
  uint64_t words[2];
};

Code load(const uint8_t *data, int64_t place, int spacing, int bits) {
  Code code = {};
  if (spacing % 8 == 0) {
    memcpy(&code, data + place * (spacing / 8), static_cast<size_t>((bits + 7) / 8));
    if (bits < 8) code.words[0] &= low_bits(bits);
    return code;
  }
  const int64_t first = place * spacing;
  for (int bit = 0; bit < bits; ++bit)
    code.words[0] |= uint64_t{static_cast<uint64_t>(data[divide_down(first + bit, 8)] >> ((first + bit) & 7) & 1)}
                     << bit;
  return code;
}

void store(uint8_t *data, int64_t place, int spacing, int bits, const Code &code) {
  if (spacing % 8 == 0) {
    memcpy(data + place * (spacing / 8), &code, static_cast<size_t>((bits + 7) / 8));
    return;
  }
  const int64_t first = place * spacing;
  for (int bit = 0; bit < bits; ++bit) {
    uint8_t *const at = data + divide_down(first + bit, 8);
    const int shift = static_cast<int>((first + bit) & 7);
    *at = static_cast<uint8_t>((*at & ~(1 << shift)) | static_cast<int>(code.words[0] >> bit & 1) << shift);
  }
}

int64_t place_of(const DLTensor &t, const std::vector<Wide> &strides, int64_t element) {
  Wide place = 0;
  for (int k = t.ndim - 1; k >= 0; --k) {
    place += element % t.shape[k] * strides[static_cast<size_t>(k)];
    element /= t.shape[k];
  }
  return static_cast<int64_t>(place);
}

uint8_t *start_of(const DLTensor &t) { return static_cast<uint8_t *>(t.data) + t.byte_offset; }

// Of tensors that a taken call may have: the same shape. Elements are counted as they are described.
void model(const Tensor &x, const Tensor &out, const dlfp4_convert_options &options) {
  const DLTensor &from = x.fields, &to = out.fields;
  const int from_row = row_of(from.dtype), to_row = row_of(to.dtype);
  const int from_spacing = spacing_of(from, x.is_padded), to_spacing = spacing_of(to, out.is_padded);
  const std::vector<Wide> from_strides = strides_of(from), to_strides = strides_of(to);
  int64_t size = 1, last = 0;
  for (int k = 0; k < to.ndim; ++k) size *= to.shape[k];
  bool is_forward = true;
  for (int k = 0; k < to.ndim; ++k) is_forward &= to.shape[k] == 1 || to_strides[static_cast<size_t>(k)] >= 0;
  for (int64_t i = 0; i < size; ++i) {
    Code code = load(start_of(from), place_of(from, from_strides, i), from_spacing, from.dtype.bits);
    const Round round = {options.rounding, options.saturate != 0};
    if (from_row != to_row)
      code = {{convert(kTypes[from_row], kTypes[to_row], code.words[0], round,
                       draw_of(options.seed, static_cast<uint64_t>(i))),
               0}};
    const int64_t place = place_of(to, to_strides, i);
    last = place > last ? place : last;
    store(start_of(to), place, to_spacing, to.dtype.bits, code);
  }
  // Codes without gaps are completed to a byte with zeros.
  const int64_t bits = size * to_spacing;
  if (size && is_forward && last == size - 1 && bits % 8 != 0)
    start_of(to)[bits / 8] &= static_cast<uint8_t>((1 << bits % 8) - 1);
}

void cast(Bytes *input, Arena *arena) {
  const int from = any_dtype(input), to = input->chance(6) ? from : any_dtype(input);
  const uint32_t flags = static_cast<uint32_t>(input->below(input->chance(16) ? 8 : 4));
  const std::vector<int64_t> shape = any_shape(input);
  Tensor x = make_any(input, arena, from, shape, false, flags & DLFP4_PADDED_X);
  Tensor out = make_any(input, arena, to, shape, true, flags & DLFP4_PADDED_OUT);
  dlfp4_convert_options options = {DLFP4_NEAREST_EVEN, 1, 0};
  const bool has_options = input->chance(2);
  int rounding = DLFP4_NEAREST_EVEN;
  if (has_options) {
    rounding = input->chance(16) ? static_cast<int>(input->edge()) : input->below(6);
    memcpy(&options.rounding, &rounding, sizeof(rounding));  // no enum has such a value
    options.saturate = input->below(3) - 1;
    options.seed = input->word();
  }
  change_some(input, arena, {&x, &out});
  const bool refuses = must_refuse({{&x, false}, {&out, true}});
  const bool is_changed = x.is_changed || out.is_changed;
  const bool is_known = rounding >= DLFP4_NEAREST_EVEN && rounding <= DLFP4_STOCHASTIC;
  const bool is_right =
      is_known && flags < 4 && is_convertible(from, to) && (rounding != DLFP4_UPWARD || to == DLFP4_float8_e8m0fnu);
  const Must must = refuses ? kMustRefuse : is_changed ? kMay : is_right ? kMustTake : kMustRefuse;
  const std::vector<uint8_t> before = arena->image();
  const bool taken = run(input, arena, must, true, [&] {
    return dlfp4_cast(&x.fields, &out.fields, has_options ? &options : nullptr, flags, nullptr);
  });
  if (!taken || is_pair(x.fields.dtype) || is_pair(out.fields.dtype)) return;
  const std::vector<uint8_t> after = arena->image();
  arena->restore(before);
  model(x, out, options);
  require(arena->image() == after, "not what numerics.h makes of the elements");
}

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  return fuzz::run_case(data, size, fuzz::cast);
}
