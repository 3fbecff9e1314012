// dlfp4_vecdot, dlfp4_matmul and dlfp4_grouped_matmul: sums within the bound of dlfp4.h at every level, and products by
// experts with the bits of those by one.
// Layout: see c_api.h.
// Trick: operands are decoded by dlfp4_cast and dlfp4_dequantize, which other targets check.
#include <math.h>

#include "c_api.h"

namespace fuzz {
namespace {

// Lines of K elements, plain or quantized.
struct Factor {
  Parts parts;
  int dtype;  // of plain elements
  int64_t lines;
  bool is_plain;
};

// Scales whose products neither overflow nor vanish, which the bound does not speak of, whatever the elements.
void fill_scales(const Region &region, int dtype, uint64_t seed) {
  if (dtype != DLFP4_float8_e8m0fnu) return fill_moderately(region, dtype, seed);
  for (int64_t k = 0; k < region.bytes; ++k) region.begin[k] = static_cast<uint8_t>(119 + mix(&seed) % 16);
}

void make_factor(Bytes *input, Arena *arena, int dtype, int64_t lines, int64_t length, Factor *factor) {
  factor->is_plain = input->chance(2);
  factor->lines = lines;
  factor->dtype = dtype;
  if (!factor->is_plain) {
    const int axis = input->chance(3) ? -2 : -1, layout = input->chance(6) ? input->below(8) : 0;
    const int format = input->below(DLFP4_NUM_FORMATS);
    make_parts(input, arena, format, axis, layout, axis == -1 ? lines : length, axis == -1 ? length : lines, false,
               &factor->parts);
    const uint64_t seed = input->byte();
    fill_scales(factor->parts.scales.memory, dlfp4_formats[format].scale, seed);
    if (factor->parts.q.global_scale) fill_scales(factor->parts.global_scale.memory, DLFP4_float32, seed + 1);
    return;
  }
  factor->parts = {};
  factor->parts.q.format = DLFP4_PLAIN;
  factor->parts.q.data = &factor->parts.data.fields;
  factor->parts.data = make_any(input, arena, dtype, {lines, length}, false);
}

int any_plain(Bytes *input) {
  const int row = input->below(DLFP4_NUM_DTYPES);
  return is_float(kTypes[row]) && kTypes[row].specials != DLFP4_E8M0 && row != DLFP4_float64 ? row : DLFP4_bfloat16;
}

int64_t any_length(Bytes *input) { return input->one_of({16, 32, 64, 128, 256, 1, 7, 33, 100, 0}); }

bool is_changed(const Factor &factor) {
  const Parts &p = factor.parts;
  return fuzz::is_changed({&p.data, &p.scales, &p.global_scale, &p.offsets});
}

void add_operands(const Factor &factor, std::vector<Operand> *operands) {
  for (const Operand &each : operands_of(factor.parts, false)) operands->push_back(each);
}

// --- The model -------------------------------------------------------------------------------

// The products of a sum: quantized lines may have more elements than were asked for, which are multiplied where both
// do.
int64_t products_of(const Factor &a, const Factor &b, int64_t length) {
  int64_t least = INT64_MAX;
  for (const Factor *each : {&a, &b}) {
    if (each->is_plain) return length;
    const bool across = each->parts.q.axis == -2 && each->parts.data.fields.dtype.bits == 8;
    const int64_t stored = each->parts.data.fields.shape[!across];
    least = stored < least ? stored : least;
  }
  return least;
}

DLTensor describe(void *data, DLDataType type, int64_t (*shape)[2]) {
  return {data, {kDLCPU, 0}, 2, type, *shape, nullptr, 0};
}

double integer_of(int dtype, uint64_t code) {
  const int bits = dlfp4_dtypes[dtype].bits;
  const bool negative = dlfp4_dtypes[dtype].code == 0 && code >> (bits - 1) & 1;
  return static_cast<double>(code & low_bits(bits)) - (negative ? ldexp(1, bits) : 0);
}

// What factors are worth, as (lines, length).
std::vector<double> values_of(const Factor &factor, int64_t length) {
  int64_t shape[2] = {factor.lines, length};
  const size_t size = static_cast<size_t>(factor.lines * length);
  if (!factor.is_plain) {
    std::vector<float> values(size);
    int64_t turned[2] = {length, factor.lines};
    const bool rows = factor.parts.q.axis == -1;
    int64_t strides[2] = {1, length};
    DLTensor out = describe(values.data(), {kDLFloat, 32, 1}, rows ? &shape : &turned);
    if (!rows) out.strides = strides;
    require(size == 0 || dlfp4_dequantize(&factor.parts.q, &out, nullptr) == DLFP4_OK, "a factor has no values");
    return {values.begin(), values.end()};
  }
  std::vector<double> values(size);
  if (is_float(kTypes[factor.dtype])) {
    const DLTensor out = describe(values.data(), {kDLFloat, 64, 1}, &shape);
    require(size == 0 || dlfp4_cast(&factor.parts.data.fields, &out, nullptr, 0, nullptr) == DLFP4_OK,
            "a factor has no values");
    return values;
  }
  std::vector<uint8_t> codes(size);
  const DLTensor out = describe(codes.data(), factor.parts.data.fields.dtype, &shape);
  require(size == 0 || dlfp4_cast(&factor.parts.data.fields, &out, nullptr, 0, nullptr) == DLFP4_OK,
          "a factor has no codes");
  for (size_t k = 0; k < size; ++k) {
    const size_t bits = dlfp4_dtypes[factor.dtype].bits, place = k * bits;
    values[k] = integer_of(factor.dtype, static_cast<uint64_t>(codes[place / 8] >> place % 8));
  }
  return values;
}

struct Sum {
  double value, magnitude, largest;  // of the factors
};

Sum sum_of(const double *a, const double *b, int64_t length) {
  Sum sum = {0, 0, 0};
  for (int64_t k = 0; k < length; ++k) {
    sum.value += a[k] * b[k];
    sum.magnitude += fabs(a[k] * b[k]);
    sum.largest = fmax(sum.largest, fmax(fabs(a[k]), fabs(b[k])));
  }
  return sum;
}

// Whether the sum is one that the bound speaks of: products of its factors neither overflow nor vanish.
bool is_bounded(const Sum &sum) {
  if (sum.magnitude > 1e37) return false;                                      // weighted
  return sum.largest < 1e12 && (sum.magnitude == 0 || sum.magnitude > 1e-24);  // not where one of them is NaN
}

// `rounding`: of the result's type, relative to the result. Values of quantized factors are rounded to float32 here,
// and need not be there.
bool is_near(double got, const Sum &sum, int64_t length, double rounding) {
  const double products = static_cast<double>(length < 16 ? 16 : length) + 8;
  const double bound = ldexp(products, -24) * sum.magnitude;
  return fabs(got - sum.value) <= bound + rounding * (fabs(sum.value) + bound) + 1e-30;
}

// --- vecdot ----------------------------------------------------------------------------------

void check_dots(const Factor &a, const Factor &b, int64_t length, const uint8_t *result, int64_t lines) {
  const std::vector<double> left = values_of(a, length), right = values_of(b, length);
  for (int64_t i = 0; i < lines; ++i) {
    const Sum sum =
        sum_of(left.data() + (a.lines == 1 ? 0 : i) * length, right.data() + (b.lines == 1 ? 0 : i) * length, length);
    float got;
    memcpy(&got, result + 4 * i, 4);
    if (isfinite(sum.magnitude) && is_bounded(sum))
      require(is_near(static_cast<double>(got), sum, length, 0), "a sum is beyond the bound");
  }
}

void vecdot(Bytes *input, Arena *arena) {
  const int64_t lines = 1 + input->below(5), length = any_length(input);
  const bool integers = input->chance(6);
  const int dtype =
      integers ? input->one_of<int>({DLFP4_int8, DLFP4_uint8, DLFP4_int4, DLFP4_uint4, DLFP4_int2}) : any_plain(input);
  Factor a, b;
  make_factor(input, arena, dtype, input->chance(4) ? 1 : lines, length, &a);
  make_factor(input, arena, integers ? dtype : any_plain(input), input->chance(4) ? 1 : lines, length, &b);
  Tensor out = make_compact(input, arena, DLFP4_float32, {lines});
  change_some(input, arena, {&a.parts.data, &a.parts.scales, &b.parts.data, &b.parts.global_scale, &out});
  std::vector<Operand> operands = {{&out, true}};
  add_operands(a, &operands);
  add_operands(b, &operands);
  const bool refuses = must_refuse(operands), changed = is_changed(a) || is_changed(b) || out.is_changed;
  const bool fits = !integers || (a.is_plain && b.is_plain);
  const bool taken = run(input, arena,
                         refuses            ? kMustRefuse
                         : changed || !fits ? kMay
                                            : kMustTake,
                         false, [&] { return dlfp4_vecdot(&a.parts.q, &b.parts.q, &out.fields, nullptr, nullptr); });
  if (!taken || changed) return;
  const int64_t products = products_of(a, b, length);
  check_dots(a, b, products, out.memory.begin, lines);
  for (const char *level : levels()) {
    require(dlfp4_set_isa(level) == DLFP4_OK, "a level is gone");
    require(dlfp4_vecdot(&a.parts.q, &b.parts.q, &out.fields, nullptr, nullptr) == DLFP4_OK, "refused the second time");
    check_dots(a, b, products, out.memory.begin, lines);
  }
}

// --- matmul ----------------------------------------------------------------------------------

double rounding_of(int dtype) { return ldexp(1, -1 - kTypes[dtype].mantissa) * (dtype == DLFP4_float32 ? 0 : 1); }

struct Product {
  Factor a, b;
  Tensor out;
  int dtype;  // of the result
  int64_t length;
  dlfp4_matmul_options options;
  bool has_options, is_exact;

  const dlfp4_matmul_options *given() const { return has_options ? &options : nullptr; }
};

void make_options(Bytes *input, Product *p) {
  p->options = {DLFP4_ACTIVATION_EXACT, 1};
  p->has_options = input->chance(2);
  p->is_exact = true;
  if (!p->has_options) return;
  const int activation = input->chance(32) ? static_cast<int>(input->edge()) : input->below(2);
  memcpy(&p->options.activation, &activation, sizeof(activation));  // no enum has such a value
  p->is_exact = activation == DLFP4_ACTIVATION_EXACT;
  p->options.alpha = input->one_of({1.0f, 0.5f, -2.0f, 0.0f});
}

void make_product(Bytes *input, Arena *arena, int64_t rows_of_a, int64_t rows, int64_t columns, int64_t lines_of_b,
                  Product *p) {
  p->length = any_length(input);
  make_options(input, p);
  make_factor(input, arena, any_plain(input), rows_of_a, p->length, &p->a);
  make_factor(input, arena, any_plain(input), lines_of_b, p->length, &p->b);
  p->dtype = input->one_of<int>({DLFP4_float32, DLFP4_bfloat16, DLFP4_float16});
  p->out = make_any(input, arena, p->dtype, {rows, columns}, true);
}

bool is_changed(const Product &p) { return is_changed(p.a) || is_changed(p.b) || p.out.is_changed; }

std::vector<Operand> operands_of(const Product &p) {
  std::vector<Operand> operands = {{&p.out, true}};
  add_operands(p.a, &operands);
  add_operands(p.b, &operands);
  return operands;
}

// The result as (rows, columns) of float64.
std::vector<double> results_of(const Product &p, int64_t rows, int64_t columns) {
  std::vector<double> values(static_cast<size_t>(rows * columns));
  int64_t shape[2] = {rows, columns};
  const DLTensor out = describe(values.data(), {kDLFloat, 64, 1}, &shape);
  require(values.empty() || dlfp4_cast(&p.out.fields, &out, nullptr, 0, nullptr) == DLFP4_OK, "no result");
  return values;
}

// A workspace of -1 is that of a call that is refused; of a device, by its driver, where there is none, as well.
void require_agreement(int64_t bytes, dlfp4_status status) {
  const bool is_refused = status != DLFP4_OK && status < DLFP4_E_CUDA_DRIVER;
  require((bytes < 0) == is_refused, "the workspace says otherwise");
}

void check_element(const Product &p, Sum sum, double got, int64_t terms) {
  const double alpha = static_cast<double>(p.options.alpha);
  sum.value *= alpha;
  sum.magnitude *= fabs(alpha);
  const bool is_small = p.dtype == DLFP4_float16 && (sum.magnitude > 60000 || fabs(sum.value) < 1e-4);
  if (!isfinite(sum.magnitude) || !is_bounded(sum) || is_small) return;
  require(is_near(got, sum, terms, rounding_of(p.dtype)), "an element is beyond the bound");
}

void check_matmul(const Product &p, const std::vector<double> &a, const std::vector<double> &b) {
  const std::vector<double> got = results_of(p, p.a.lines, p.b.lines);
  for (int64_t i = 0; i < p.a.lines; ++i)
    for (int64_t j = 0; j < p.b.lines; ++j)
      check_element(p, sum_of(a.data() + i * p.length, b.data() + j * p.length, p.length),
                    got[static_cast<size_t>(i * p.b.lines + j)], p.length);
}

void matmul(Bytes *input, Arena *arena) {
  const int64_t rows = input->one_of({1, 2, 3, 5, 9, 0, 17}), columns = input->one_of({1, 2, 16, 33, 5, 0});
  Product p;
  make_product(input, arena, rows, rows, columns, columns, &p);
  change_some(input, arena, {&p.a.parts.data, &p.a.parts.scales, &p.b.parts.data, &p.b.parts.scales, &p.out});
  const bool refuses = must_refuse(operands_of(p)), changed = is_changed(p);
  const int shift = input->below(8);
  const auto call = [&] {
    const int64_t bytes = dlfp4_matmul_workspace(&p.a.parts.q, &p.b.parts.q, &p.out.fields, p.given());
    void *const workspace = arena->take_scratch(bytes < 0 ? 0 : bytes, shift);
    const dlfp4_status status = dlfp4_matmul(&p.a.parts.q, &p.b.parts.q, &p.out.fields, p.given(), workspace, nullptr);
    require_agreement(bytes, status);
    return status;
  };
  const Must must = refuses ? kMustRefuse : changed || !p.is_exact ? kMay : kMustTake;
  if (!run(input, arena, must, false, call) || changed || !p.is_exact) return;
  p.length = products_of(p.a, p.b, p.length);
  const std::vector<double> a = values_of(p.a, p.length), b = values_of(p.b, p.length);
  check_matmul(p, a, b);
  for (const char *level : levels()) {
    require(dlfp4_set_isa(level) == DLFP4_OK && call() == DLFP4_OK, "refused the second time");
    check_matmul(p, a, b);
  }
}

// --- Experts ---------------------------------------------------------------------------------

struct Routing {
  Tensor ends, indices, weights;
  dlfp4_routing r;
};

int64_t *numbers_in(const Tensor &x) { return reinterpret_cast<int64_t *>(x.memory.begin); }

void make_routing(Bytes *input, Arena *arena, int64_t rows, int64_t experts, int64_t tokens, Routing *routing) {
  *routing = {};
  routing->ends = make_compact(input, arena, DLFP4_int64, {experts});
  routing->r.ends = &routing->ends.fields;
  for (int64_t e = 0; e < experts; ++e) numbers_in(routing->ends)[e] = rows * (e + 1) / (experts + input->below(2));
  const int kind = input->below(4);
  if (kind == 0) return;
  routing->indices = make_compact(input, arena, DLFP4_int64, {rows});
  routing->r.indices = &routing->indices.fields;
  for (int64_t i = 0; i < rows; ++i) numbers_in(routing->indices)[i] = input->below(static_cast<int>(tokens));
  routing->r.gathers = kind != 2;
  if (kind == 1) return;
  routing->weights = make_compact(input, arena, DLFP4_float32, {rows});
  routing->r.weights = &routing->weights.fields;
}

// Another number somewhere, which is refused or another routing.
void change_numbers(Bytes *input, Routing *routing) {
  Tensor *const x = input->chance(2) && routing->r.indices ? &routing->indices : &routing->ends;
  x->is_changed = true;
  if (x->memory.bytes) numbers_in(*x)[input->byte() % (x->memory.bytes / 8)] = input->edge();
}

double weight_of(const Routing &routing, int64_t row) {
  float weight;
  memcpy(&weight, routing.weights.memory.begin + 4 * row, 4);
  return static_cast<double>(weight);
}

void add_weighted(const Sum &sum, double weight, Sum *total) {
  total->value += weight * sum.value;
  total->magnitude += fabs(weight) * sum.magnitude;
  total->largest = fmax(total->largest, fmax(sum.largest, fabs(weight)));
}

int64_t expert_of(const Routing &routing, int64_t row, int64_t experts) {
  int64_t expert = 0;
  while (expert < experts && row >= numbers_in(routing.ends)[expert]) ++expert;
  return expert;
}

struct Extents {
  int64_t rows, tokens, columns, experts;
};

// As (rows or tokens, columns): a row is the product by its expert, or zero behind the last one; with weights, tokens
// are sums of weighted rows.
std::vector<Sum> sums_by_experts(const Product &p, const Routing &routing, const Extents &of) {
  const std::vector<double> a = values_of(p.a, p.length), b = values_of(p.b, p.length);
  const bool adds = routing.r.weights != nullptr;
  std::vector<Sum> sums(static_cast<size_t>((adds ? of.tokens : of.rows) * of.columns), Sum{0, 0, 0});
  for (int64_t i = 0; i < of.rows; ++i) {
    const int64_t expert = expert_of(routing, i, of.experts);
    const int64_t row = routing.r.gathers ? numbers_in(routing.indices)[i] : i;
    for (int64_t j = 0; j < of.columns && expert < of.experts; ++j) {
      const double *const line = b.data() + (expert * of.columns + j) * p.length;
      const Sum sum = sum_of(a.data() + row * p.length, line, p.length);
      if (adds)
        add_weighted(sum, weight_of(routing, i),
                     &sums[static_cast<size_t>(numbers_in(routing.indices)[i] * of.columns + j)]);
      else
        sums[static_cast<size_t>(i * of.columns + j)] = sum;
    }
  }
  return sums;
}

void check_grouped(const Product &p, const Routing &routing, const Extents &of) {
  const int64_t lines = routing.r.weights ? of.tokens : of.rows;
  const std::vector<Sum> sums = sums_by_experts(p, routing, of);
  const std::vector<double> got = results_of(p, lines, of.columns);
  const int64_t terms = p.length + (routing.r.weights ? of.rows : 0);
  for (size_t k = 0; k < got.size(); ++k) check_element(p, sums[k], got[k], terms);
}

void grouped(Bytes *input, Arena *arena) {
  const int64_t rows = input->one_of({4, 1, 9, 20, 0}), experts = 1 + input->below(4), tokens = 1 + input->below(5);
  const int64_t columns = input->one_of({2, 1, 16, 5});
  Routing routing;
  Product p;
  make_routing(input, arena, rows, experts, tokens, &routing);
  make_product(input, arena, routing.r.gathers ? tokens : rows, routing.r.weights ? tokens : rows, columns,
               experts * columns, &p);
  if (input->chance(4)) change_numbers(input, &routing);
  change_some(
      input, arena,
      {&routing.ends, &routing.indices, &routing.weights, &p.a.parts.data, &p.b.parts.data, &p.b.parts.scales, &p.out});
  std::vector<Operand> operands = operands_of(p);
  operands.push_back({&routing.ends, false});
  if (routing.r.indices) operands.push_back({&routing.indices, false});
  if (routing.r.weights) operands.push_back({&routing.weights, false});
  const bool refuses = must_refuse(operands);
  const bool changed = is_changed(p) || fuzz::is_changed({&routing.ends, &routing.indices, &routing.weights});
  const int shift = input->below(8);
  const auto call = [&] {
    const int64_t bytes =
        dlfp4_grouped_matmul_workspace(&p.a.parts.q, &p.b.parts.q, &routing.r, &p.out.fields, p.given());
    void *const workspace = arena->take_scratch(bytes < 0 ? 0 : bytes, shift);
    const dlfp4_status status =
        dlfp4_grouped_matmul(&p.a.parts.q, &p.b.parts.q, &routing.r, &p.out.fields, p.given(), workspace, nullptr);
    require_agreement(bytes, status);
    return status;
  };
  const Must must = refuses ? kMustRefuse : changed || !p.is_exact ? kMay : kMustTake;
  if (!run(input, arena, must, false, call) || changed || !p.is_exact) return;
  p.length = products_of(p.a, p.b, p.length);
  check_grouped(p, routing, {rows, tokens, columns, experts});
  for (const char *level : levels()) {
    require(dlfp4_set_isa(level) == DLFP4_OK && call() == DLFP4_OK, "refused the second time");
    check_grouped(p, routing, {rows, tokens, columns, experts});
  }
}

void products(Bytes *input, Arena *arena) {
  const int operation = input->below(4);
  if (operation == 0) return vecdot(input, arena);
  operation == 3 ? grouped(input, arena) : matmul(input, arena);
}

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  return fuzz::run_case(data, size, fuzz::products);
}
