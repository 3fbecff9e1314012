// dlfp4_prepare, dlfp4_matmul_prepared and dlfp4_grouped_matmul_prepared: what is taken and what is refused, that the
// host touches no byte of a device, and what becomes of calls of the driver that fail.
// Layout: see c_api.h. What lies on the device is memory of the arena, poisoned.
// Trick: the driver is tests/kernels/stand_in_driver.c, whose kernels do nothing, and which says how many there were.
#include "c_api.h"
#include "gpu/kernels.h"

extern "C" {
void stand_in_fail(long number, int error);
const char *stand_in_failed(void);
long stand_in_launched(void);
int LLVMFuzzerInitialize(int *, char ***);
}

namespace fuzz {
namespace {

constexpr int kFailure = 719;
constexpr int64_t kMostExperts = 512;
constexpr int64_t kAlignment = 256, kPiece = 16;

// --- The device ------------------------------------------------------------------------------

void move_to_device(std::initializer_list<Tensor *> tensors) {
  for (Tensor *each : tensors) {
    each->fields.device = {kDLCUDA, 0};
    __asan_poison_memory_region(each->memory.begin, static_cast<size_t>(each->memory.bytes));
  }
}

// Where a tensor lies does not matter: nothing is read.
Fate fate_there(const Tensor &x) {
  Tensor here = x;
  const DLDevice device = x.fields.device;
  const bool is_there = device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged;
  if (!is_there || device.device_id != 0) return kRefused;
  here.fields.device = {kDLCPU, 0};
  return fate_of(here, false);
}

// A call, of whose driver's calls one may fail.
template <class Call>
dlfp4_status run_there(Bytes *input, Must must, Call call) {
  const long failing = input->chance(8) ? input->below(12) : -1, before = stand_in_launched();
  stand_in_fail(failing, kFailure);
  const dlfp4_status status = call();
  const char *const failed = stand_in_failed();
  stand_in_fail(-1, 0);
  if (*failed) {
    require(must != kMustTake || status == DLFP4_OK || status == DLFP4_E_CUDA + kFailure,
            "a failure of the driver has another name");
    require(must != kMustRefuse || status != DLFP4_OK, "a call that has to be refused is taken");
    return status;
  }
  require(status == DLFP4_OK || status < DLFP4_E_CUDA, "a driver that does not fail has failed");
  require(must != kMustTake || status == DLFP4_OK, "a call that has to be taken is refused");
  require(must != kMustRefuse || status != DLFP4_OK, "a call that has to be refused is taken");
  require(status == DLFP4_OK || must != kMustRefuse || stand_in_launched() == before, "a refused call has launched");
  return status;
}

// --- Weights ---------------------------------------------------------------------------------

struct Weights {
  Parts parts;
  Tensor extra;  // offsets that no such format has
  dlfp4_prepared prepared;
  int64_t rows, columns, matrices;
  void *memory;
  bool is_changed;
};

// For a stack: a scale for each matrix, in place of that of the whole.
void make_scale_of_matrices(Bytes *input, Arena *arena, int64_t experts, Weights *w) {
  if (!w->parts.q.global_scale) return;
  w->matrices = input->one_of<int64_t>({1, experts});
  std::vector<int64_t> shape;
  if (w->matrices > 1 || input->chance(2)) shape.push_back(w->matrices);
  w->parts.global_scale = make_compact(input, arena, DLFP4_float32, shape);
}

void make_weights(Bytes *input, Arena *arena, int64_t experts, int64_t rows, int64_t columns, Weights *w) {
  static const int kKnown[] = {dlfp4_find_format("nvfp4"), dlfp4_find_format("mxfp4"), dlfp4_find_format("mxfp8_e4m3"),
                               dlfp4_find_format("fp8_e4m3")};
  const int format = input->chance(8) ? input->below(DLFP4_NUM_FORMATS) : kKnown[input->below(4)];
  const int axis = input->chance(16) ? -2 : -1, layout = input->chance(16) ? input->below(8) : 0;
  make_parts(input, arena, format, axis, layout, experts * rows, columns, false, &w->parts);
  w->rows = w->parts.data.fields.shape[0];
  w->columns = w->parts.data.fields.shape[1];
  w->matrices = 1;
  make_scale_of_matrices(input, arena, experts, w);
  if (input->chance(32)) w->parts.q.rotation = dlfp4_rotation(input->byte());
  if (input->chance(16)) {
    const DLTensor &scales = w->parts.scales.fields;
    w->extra = make_compact(input, arena, DLFP4_uint8, std::vector<int64_t>(scales.shape, scales.shape + scales.ndim));
    w->parts.q.zero_points = &w->extra.fields;
  }
  move_to_device({&w->parts.data, &w->parts.scales, &w->parts.global_scale, &w->parts.offsets, &w->extra});
  if (input->chance(4)) change_some(input, arena, {&w->parts.data, &w->parts.scales, &w->parts.global_scale});
  w->is_changed = is_changed({&w->parts.data, &w->parts.scales, &w->parts.global_scale});
}

// Whether rows of codes below 8 bits begin on bytes.
bool is_addressable(const DLTensor &codes) {
  if (codes.ndim != 2 || row_of(codes.dtype) < 0 || codes.dtype.bits == 8 || codes.dtype.lanes != 1) return true;
  const std::vector<Wide> strides = strides_of(codes);
  if (codes.shape[0] == 0 || codes.shape[1] == 0) return true;
  const bool is_dense = codes.shape[1] == 1 || strides[1] == 1;
  return is_dense && (codes.shape[0] == 1 || strides[0] * codes.dtype.bits % 8 == 0);
}

Must must_prepare(const Weights &w, int64_t bytes, int shift) {
  const dlfp4_scaled_tensor &q = w.parts.q;
  for (const Operand &each : operands_of(w.parts, false))
    if (each.tensor != &w.parts.offsets && fate_there(*each.tensor) == kRefused) return kMustRefuse;
  if (q.zero_points || q.biases || q.axis != -1 || q.layout != 0 || q.rotation || shift % kAlignment != 0)
    return kMustRefuse;
  if (!is_addressable(w.parts.data.fields)) return kMustRefuse;
  if (w.is_changed) return kMay;
  const bool by_line = q.global_scale && w.parts.global_scale.fields.ndim == 1 && w.matrices == w.rows && w.rows > 1;
  return bytes > 0 && !by_line ? kMustTake : kMustRefuse;
}

// Whether there are prepared weights.
bool prepare(Bytes *input, Arena *arena, Weights *w) {
  const int shift = input->chance(16) ? 1 + input->below(64) : 0;
  const int64_t bytes = dlfp4_prepared_bytes(w->parts.q.format, w->rows, w->columns);
  require(bytes == 0 || bytes * 8 >= w->rows * w->columns * dlfp4_dtypes[dlfp4_formats[w->parts.q.format].element].bits,
          "prepared weights have too few bytes");
  w->memory = arena->take_scratch(bytes > 0 ? bytes : 64, shift);
  const dlfp4_status status = run_there(input, must_prepare(*w, bytes, shift),
                                        [&] { return dlfp4_prepare(&w->parts.q, w->memory, &w->prepared, nullptr); });
  return status == DLFP4_OK && !w->is_changed;
}

// --- Rows ------------------------------------------------------------------------------------

// Rows of elements side by side, more often than not.
Tensor make_rows(Bytes *input, Arena *arena, int dtype, int64_t rows, int64_t columns) {
  const std::vector<int64_t> shape = {rows, columns};
  if (input->chance(8)) return make_any(input, arena, dtype, shape, false);
  const int64_t gap = input->one_of({0, 0, 8, 16, 1});
  return make(input, arena, dtype, shape, {columns + gap, 1}, false, !input->chance(8));
}

bool is_matrix(const DLTensor &t, int64_t rows, int64_t columns) {
  return t.ndim == 2 && t.shape[0] == rows && t.shape[1] == columns;
}

// As kernels take them: elements side by side, rows that do not overlap and begin at multiples of so many bytes.
bool has_rows(const DLTensor &t, int64_t bytes) {
  const bool is_empty = t.shape[0] == 0 || t.shape[1] == 0;
  const std::vector<Wide> strides = is_empty ? std::vector<Wide>{t.shape[1] ? t.shape[1] : 1, 1} : strides_of(t);
  if (t.shape[1] > 1 && strides[1] != 1) return false;
  if ((reinterpret_cast<uintptr_t>(t.data) + t.byte_offset) % static_cast<uint64_t>(bytes) != 0) return false;
  return t.shape[0] <= 1 || (strides[0] * t.dtype.bits / 8 % bytes == 0 && strides[0] >= t.shape[1]);
}

struct Call {
  Weights w;
  Tensor x, out;
};

int any_of_x(Bytes *input) {
  return input->one_of<int>({DLFP4_bfloat16, DLFP4_float16, DLFP4_bfloat16, DLFP4_float32});
}
int any_result(Bytes *input) {
  return input->one_of<int>({DLFP4_float32, DLFP4_bfloat16, DLFP4_float16, DLFP4_float32, DLFP4_float64});
}

// What x and the result have to be, whatever their numbers of rows.
bool fits(const Call &c) {
  const int x = row_of(c.x.fields.dtype), out = row_of(c.out.fields.dtype);
  const int64_t depth = c.x.fields.shape[1];
  return (x == DLFP4_bfloat16 || (x == DLFP4_float16 && c.w.prepared.exact_in_half)) && depth > 0 && depth % 8 == 0 &&
         depth <= c.w.columns && has_rows(c.x.fields, kPiece) &&
         (out == DLFP4_float32 || out == DLFP4_bfloat16 || out == DLFP4_float16) &&
         has_rows(c.out.fields, dlfp4_dtypes[out].bits / 8);
}

// kMustTake where nothing is wrong that can be seen of the descriptions.
Must must_describe(std::initializer_list<const Tensor *> tensors) {
  Must must = kMustTake;
  for (const Tensor *each : tensors) {
    const Fate fate = fate_there(*each);
    if (fate == kRefused) return kMustRefuse;
    if (fate == kElsewhere) must = kMay;
  }
  return must;
}

// --- The calls -------------------------------------------------------------------------------

void matmul(Bytes *input, Arena *arena) {
  Call c = {};
  const int64_t rows = input->one_of({1, 2, 9, 17, 40, 0}), columns = input->one_of({16, 1, 33, 130});
  const int64_t depth = input->one_of({32, 64, 256, 128, 8, 7, 0, 264});
  make_weights(input, arena, 1, columns, input->one_of({64, 32, 256, 128, 16}), &c.w);
  if (!prepare(input, arena, &c.w)) return;
  c.x = make_rows(input, arena, any_of_x(input), rows, depth);
  c.out = make_rows(input, arena, any_result(input), input->chance(16) ? rows + 1 : rows, columns);
  move_to_device({&c.x, &c.out});
  change_some(input, arena, {&c.x, &c.out});
  Must must = must_describe({&c.x, &c.out});
  if (must != kMustRefuse && (c.x.fields.ndim != 2 || c.out.fields.ndim != 2))
    must = kMay;
  else if (must != kMustRefuse && !(fits(c) && is_matrix(c.out.fields, c.x.fields.shape[0], c.w.rows)))
    must = kMustRefuse;
  const long before = stand_in_launched();
  const dlfp4_status status = run_there(
      input, must, [&] { return dlfp4_matmul_prepared(&c.x.fields, &c.w.prepared, &c.out.fields, 0.5f, nullptr); });
  const bool has_work = must == kMustTake && c.x.fields.shape[0] > 0;
  require(status != DLFP4_OK || !has_work || stand_in_launched() > before, "a product was not launched");
}

struct Routing {
  Tensor ends, indices, weights;
  dlfp4_routing r;
};

void make_routing(Bytes *input, Arena *arena, int64_t rows, int64_t experts, Routing *routing) {
  *routing = {};
  const int dtype = input->one_of<int>({DLFP4_int64, DLFP4_int32, DLFP4_int64, DLFP4_int16});
  routing->ends = make_compact(input, arena, dtype, {experts});
  routing->indices = make_compact(input, arena, input->one_of<int>({DLFP4_int64, DLFP4_int32}), {rows});
  routing->weights = make_compact(input, arena, DLFP4_float32, {rows});
  move_to_device({&routing->ends, &routing->indices, &routing->weights});
  routing->r.ends = &routing->ends.fields;
  const int kind = input->below(4);
  if (kind > 0 || input->chance(16)) routing->r.indices = &routing->indices.fields;
  if (kind > 1) routing->r.weights = &routing->weights.fields;
  routing->r.gathers = kind == 1 || kind == 3;
}

// Whether a tensor, if there is one, is so many numbers next to one another.
bool are_numbers(const DLTensor *t, int64_t count, std::initializer_list<int> dtypes) {
  if (!t) return true;
  bool is_known = false;
  for (int dtype : dtypes) is_known |= row_of(t->dtype) == dtype && t->dtype.lanes == 1;
  if (!is_known || t->ndim != 1 || t->shape[0] != count) return false;
  const uint64_t address = reinterpret_cast<uintptr_t>(t->data) + t->byte_offset;
  return (count <= 1 || strides_of(*t)[0] == 1) && address % (t->dtype.bits / 8) == 0;
}

// Of so many rows with indices.
bool fits_routing(const Call &c, const dlfp4_routing &r, int64_t indexed, int64_t experts) {
  const int64_t lines = c.x.fields.shape[0], of_out = c.out.fields.shape[0], rows = r.indices ? indexed : lines;
  if ((r.weights || r.gathers) != (r.indices != nullptr)) return false;
  if (!are_numbers(r.ends, experts, {DLFP4_int64, DLFP4_int32})) return false;
  if (!are_numbers(r.indices, rows, {DLFP4_int64, DLFP4_int32}) || !are_numbers(r.weights, rows, {DLFP4_float32}))
    return false;
  if ((!r.gathers && lines != rows) || (!r.weights && of_out != rows)) return false;
  if (r.gathers && r.weights && lines != of_out) return false;
  return c.w.rows == experts * c.out.fields.shape[1] && (c.w.matrices == 1 || c.w.matrices == experts);
}

int64_t workspace_of(const Call &c, const dlfp4_routing &r, int64_t rows) {
  const int64_t gathered = r.gathers ? rows * c.x.fields.shape[1] * 2 : 0;
  return gathered + (r.weights ? rows * ((c.out.fields.shape[1] + 7) / 8 * 8) * 4 : 0);
}

void grouped(Bytes *input, Arena *arena) {
  Call c = {};
  Routing routing;
  const int64_t experts = input->chance(32) ? kMostExperts + input->below(2) : input->one_of({2, 1, 3, 5});
  const int64_t rows = input->one_of({4, 1, 9, 20, 0, 300}), tokens = 1 + input->below(5);
  const int64_t columns = experts > 5 ? 1 : input->one_of({16, 1, 5});
  const int64_t depth = input->one_of({32, 64, 16, 8, 0, 256});
  make_weights(input, arena, experts, columns, input->one_of({64, 32, 16, 256}), &c.w);
  if (!prepare(input, arena, &c.w)) return;
  make_routing(input, arena, rows, experts, &routing);
  c.x = make_rows(input, arena, any_of_x(input), routing.r.gathers ? tokens : rows, depth);
  const int64_t of_out = routing.r.weights ? tokens : rows;
  c.out = make_rows(input, arena, any_result(input), input->chance(16) ? of_out + 1 : of_out, columns);
  move_to_device({&c.x, &c.out});
  change_some(input, arena, {&c.x, &c.out, &routing.ends, &routing.indices, &routing.weights});
  Must must = must_describe({&c.x, &c.out, &routing.ends});
  if (routing.r.indices && fate_there(routing.indices) == kRefused) must = kMustRefuse;
  if (routing.r.weights && fate_there(routing.weights) == kRefused) must = kMustRefuse;
  const bool are_matrices = c.x.fields.ndim == 2 && c.out.fields.ndim == 2;
  const bool is_changed = fuzz::is_changed({&routing.ends, &routing.indices, &routing.weights});
  if (must != kMustRefuse && (!are_matrices || is_changed))
    must = kMay;
  else if (must != kMustRefuse && !(fits(c) && fits_routing(c, routing.r, rows, experts)))
    must = kMustRefuse;
  if (experts > kMostExperts) must = kMustRefuse;
  const int64_t bytes = dlfp4_grouped_matmul_prepared_workspace(&c.x.fields, &c.w.prepared, &routing.r, &c.out.fields);
  if (must == kMustRefuse) require(bytes == -1, "a call that is refused has a workspace");
  if (must == kMustTake) require(bytes == workspace_of(c, routing.r, rows), "the workspace has another size");
  const int shift = input->chance(16) ? 1 + input->below(15) : 0;
  const bool has_none = bytes > 0 && (shift || input->chance(16));
  if (has_none) must = kMustRefuse;
  void *const workspace = shift || !has_none ? arena->take_scratch(64, shift) : nullptr;
  run_there(input, must, [&] {
    return dlfp4_grouped_matmul_prepared(&c.x.fields, &c.w.prepared, &routing.r, &c.out.fields, 1, workspace, nullptr);
  });
}

void products(Bytes *input, Arena *arena) { input->chance(2) ? grouped(input, arena) : matmul(input, arena); }

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerInitialize(int *, char ***) {
  fuzz::require(freopen("/dev/null", "w", stdout) != nullptr, "the driver's words have no place");
  for (int image : {DLFP4_CUDA_IMAGE_products, DLFP4_CUDA_IMAGE_grouped})
    fuzz::require(dlfp4_cuda_load(0, image, "sm_90") == 0, "the stand-in of the driver is not there");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  return fuzz::run_case(data, size, fuzz::products);
}
