/** @file
 * libdlfp4 for C++17 and later: views of any memory, tensors that own theirs, and the operations of dlfp4.h on both.
 *
 * Header-only, and no more than the C API says: what it takes and refuses, and its bytes, are there. Each operation has
 * two forms, as std::filesystem has: one throws dlfp4::Error, a std::system_error, and one sets a std::error_code that
 * is its last argument. Without exceptions (-fno-exceptions) the second alone is there; what it returns is empty where
 * the error is set. */
#ifndef DLFP4_DLFP4_HPP_
#define DLFP4_DLFP4_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

#include "dlfp4.h"

namespace dlfp4 {

// --- Errors ----------------------------------------------------------------------------------

/** The category of dlfp4_status, with its words: one a process, whatever else its libraries hide. */
DLFP4_API inline const std::error_category &category() noexcept {
  struct Category final : std::error_category {
    const char *name() const noexcept override { return "dlfp4"; }
    std::string message(int status) const override { return dlfp4_status_string(static_cast<dlfp4_status>(status)); }
  };
  static const Category result;
  return result;
}

}  // namespace dlfp4

/** Beside dlfp4_status, where std::error_code looks for it, so that `code == DLFP4_E_SHAPE` compares the two. */
inline std::error_code make_error_code(dlfp4_status status) noexcept {
  return {static_cast<int>(status), dlfp4::category()};
}
template <>
struct std::is_error_code_enum<dlfp4_status> : std::true_type {};

namespace dlfp4 {

using ::make_error_code;

#if defined(__cpp_exceptions)
/** What the forms throw that set no std::error_code; status() is the C API's. */
class Error : public std::system_error {
 public:
  Error(std::error_code code, const char *operation) : std::system_error(code, std::string("dlfp4: ") + operation) {}
  dlfp4_status status() const noexcept { return static_cast<dlfp4_status>(code().value()); }
};

namespace detail {
inline void check(std::error_code error, const char *operation) {
  if (error) throw Error(error, operation);
}
}  // namespace detail
#endif

// --- Element types ---------------------------------------------------------------------------

/** Storage of types that C++17 does not have; dlfp4::cast() makes floats of them. */
struct bfloat16 {
  std::uint16_t bits;
};
struct float16 {
  std::uint16_t bits;
};

/** The element type of memory of T; specialise it for types of your own. */
template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DLDataType value = {kDLFloat, 32, 1};
};
template <>
struct dtype_of<double> {
  static constexpr DLDataType value = {kDLFloat, 64, 1};
};
template <>
struct dtype_of<float16> {
  static constexpr DLDataType value = {kDLFloat, 16, 1};
};
template <>
struct dtype_of<bfloat16> {
  static constexpr DLDataType value = {kDLBfloat, 16, 1};
};
template <>
struct dtype_of<std::uint8_t> {
  static constexpr DLDataType value = {kDLUInt, 8, 1};
};
template <>
struct dtype_of<std::int8_t> {
  static constexpr DLDataType value = {kDLInt, 8, 1};
};
template <>
struct dtype_of<std::int64_t> {
  static constexpr DLDataType value = {kDLInt, 64, 1};
};

namespace types {
inline constexpr DLDataType float4_e2m1fn = {kDLFloat4_e2m1fn, 4, 1};
inline constexpr DLDataType float6_e2m3fn = {kDLFloat6_e2m3fn, 6, 1};
inline constexpr DLDataType float6_e3m2fn = {kDLFloat6_e3m2fn, 6, 1};
inline constexpr DLDataType float8_e4m3fn = {kDLFloat8_e4m3fn, 8, 1};
inline constexpr DLDataType float8_e5m2 = {kDLFloat8_e5m2, 8, 1};
inline constexpr DLDataType float8_e8m0fnu = {kDLFloat8_e8m0fnu, 8, 1};
}  // namespace types

// --- Views -----------------------------------------------------------------------------------

/** A tensor somewhere: an address, a type, a shape, strides and a device, none of which it owns. What cannot be one,
 * with more than kMostDimensions extents or more elements than a vector has, is a view that every operation refuses
 * with DLFP4_E_SHAPE. */
class View {
 public:
  static constexpr int kMostDimensions = 8;

  View() = default;

  /** Row-major memory of any type; FP4 and FP6 are packed. */
  View(const void *data, DLDataType dtype, std::initializer_list<std::int64_t> shape, DLDevice device = {kDLCPU, 0})
      : data_(const_cast<void *>(data)), dtype_(dtype), device_(device) {
    set(static_cast<std::int64_t>(shape.size()), shape.begin(), nullptr);
  }

  template <class T>
  View(const T *data, std::initializer_list<std::int64_t> shape, DLDevice device = {kDLCPU, 0})
      : View(data, dtype_of<std::remove_cv_t<T>>::value, shape, device) {}

  /** A vector or a span has to have all elements. */
  template <class T>
  View(const std::vector<T> &data, std::initializer_list<std::int64_t> shape) : View(data.data(), shape) {
    hold(data.size());
  }

#if __cplusplus >= 202002L
  template <class T, std::size_t kExtent>
  View(std::span<T, kExtent> data, std::initializer_list<std::int64_t> shape) : View(data.data(), shape) {
    hold(data.size());
  }
#endif

  /** What DLPack handed out; it is not deleted. */
  explicit View(const DLTensor &tensor)
      : data_(tensor.data ? static_cast<char *>(tensor.data) + tensor.byte_offset : nullptr),
        dtype_(tensor.dtype),
        device_(tensor.device) {
    set(tensor.ndim, tensor.shape, tensor.strides);
  }

  explicit operator bool() const noexcept { return ndim_ != 0 || data_ != nullptr; }
  void *data() const noexcept { return data_; }
  DLDataType dtype() const noexcept { return dtype_; }
  DLDevice device() const noexcept { return device_; }
  int ndim() const noexcept { return ndim_; }
  std::int64_t extent(int k) const noexcept { return shape_[static_cast<std::size_t>(k)]; }
  std::int64_t stride(int k) const noexcept { return strides_[static_cast<std::size_t>(k)]; }

  /** A matrix with rows as columns; of anything else a view that is refused. */
  View transposed() const noexcept {
    View result = *this;
    if (ndim_ != 2) result.ndim_ = kRefused;
    std::swap(result.shape_[0], result.shape_[1]);
    std::swap(result.strides_[0], result.strides_[1]);
    return result;
  }

  /** The DLTensor, which points into this view. */
  DLTensor dl() const noexcept {
    return {data_,
            device_,
            ndim_,
            dtype_,
            const_cast<std::int64_t *>(shape_.data()),
            const_cast<std::int64_t *>(strides_.data()),
            0};
  }

 private:
  static constexpr std::int32_t kRefused = -1;

  void set(std::int64_t ndim, const std::int64_t *shape, const std::int64_t *strides) noexcept {
    ndim_ = ndim < 0 || ndim > kMostDimensions || (ndim > 0 && !shape) ? kRefused : static_cast<std::int32_t>(ndim);
    for (std::int32_t k = ndim_ - 1; k >= 0; --k) {
      const std::size_t at = static_cast<std::size_t>(k);
      shape_[at] = shape[k];
      strides_[at] = strides ? strides[k] : count_;
      if (shape[k] < 0 || (shape[k] > 0 && count_ > INT64_MAX / shape[k])) ndim_ = kRefused;
      if (ndim_ == kRefused) return;
      count_ *= shape[k];
    }
  }

  void hold(std::size_t elements) noexcept {
    if (static_cast<std::size_t>(count_) > elements) ndim_ = kRefused;
  }

  void *data_ = nullptr;
  std::int64_t count_ = 1;
  DLDataType dtype_ = {kDLFloat, 32, 1};
  DLDevice device_ = {kDLCPU, 0};
  std::int32_t ndim_ = 0;
  std::array<std::int64_t, kMostDimensions> shape_ = {}, strides_ = {};
};

// --- Formats ---------------------------------------------------------------------------------

/** A block-scaled format by its number. */
class Format {
 public:
  constexpr Format() noexcept = default;
  constexpr explicit Format(int number) noexcept : number_(number) {}

  /** The format of a name; one that nothing takes where there is none. */
  static Format find(const char *name) noexcept { return Format(dlfp4_find_format(name)); }

  constexpr int number() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }
  dlfp4_format_info info() const noexcept {
    dlfp4_format_info result = {};
    dlfp4_describe_format(number_, &result);
    return result;
  }
  dlfp4_recipe recipe() const noexcept {
    dlfp4_recipe result = {};
    dlfp4_default_recipe(number_, &result);
    return result;
  }
  friend constexpr bool operator==(Format a, Format b) noexcept { return a.number_ == b.number_; }
  friend constexpr bool operator!=(Format a, Format b) noexcept { return !(a == b); }

 private:
  int number_ = DLFP4_PLAIN;
};

/** The formats by their names. */
namespace formats {
#define DLFP4_CPP_FORMAT(name) \
  inline Format name() noexcept { return Format::find(#name); }
DLFP4_CPP_FORMAT(nvfp4)
DLFP4_CPP_FORMAT(nvfp4_16x16)
DLFP4_CPP_FORMAT(mxfp4)
DLFP4_CPP_FORMAT(mxfp4_16)
DLFP4_CPP_FORMAT(mxfp6_e2m3)
DLFP4_CPP_FORMAT(mxfp6_e3m2)
DLFP4_CPP_FORMAT(mxfp8_e4m3)
DLFP4_CPP_FORMAT(mxfp8_e5m2)
DLFP4_CPP_FORMAT(mxfp8_32x32)
DLFP4_CPP_FORMAT(fp8_e4m3)
DLFP4_CPP_FORMAT(fp8_e5m2)
DLFP4_CPP_FORMAT(fp8_row)
DLFP4_CPP_FORMAT(fp8_row_e5m2)
DLFP4_CPP_FORMAT(fp8_1x128)
DLFP4_CPP_FORMAT(fp8_1x128_e5m2)
DLFP4_CPP_FORMAT(fp8_1x128_e4m3fnuz)
DLFP4_CPP_FORMAT(fp8_1x128_e5m2fnuz)
DLFP4_CPP_FORMAT(fp8_128x128)
DLFP4_CPP_FORMAT(fp8_128x128_e5m2)
DLFP4_CPP_FORMAT(int4_g32)
DLFP4_CPP_FORMAT(int4_g64)
DLFP4_CPP_FORMAT(int4_g128)
DLFP4_CPP_FORMAT(int4_row)
DLFP4_CPP_FORMAT(uint4_g32)
DLFP4_CPP_FORMAT(uint4_g64)
DLFP4_CPP_FORMAT(uint4_g128)
DLFP4_CPP_FORMAT(uint4_row)
#undef DLFP4_CPP_FORMAT
}  // namespace formats

/** The number of a layout of scales, or one that nothing takes. */
inline int layout(const char *name) noexcept { return dlfp4_find_layout(name); }

/** Along which axis of a matrix blocks run. */
enum class Axis : std::int32_t { rows = -1, columns = -2 };

// --- Quantized tensors -----------------------------------------------------------------------

/** A quantized matrix somewhere, by views of its parts: of any device, of anyone. */
struct ScaledView {
  Format format;
  Axis axis = Axis::rows;
  std::int32_t layout = 0;
  std::uint32_t rotation = 0;
  View data, scales, global_scale, zero_points, biases;

  /** Plain elements, as products take them. */
  static ScaledView plain(const View &elements) noexcept {
    ScaledView result;
    result.data = elements;
    return result;
  }
};

/** A quantized matrix of rows x columns on the host, which owns its memory. It moves, and is not copied; what it was
 * moved from is empty, as a default one is, and refused. */
class ScaledTensor {
 public:
  ScaledTensor() = default;
  ScaledTensor(ScaledTensor &&other) noexcept { *this = std::move(other); }
  ScaledTensor &operator=(ScaledTensor &&other) noexcept {
    memory_ = std::move(other.memory_);
    view_ = std::exchange(other.view_, {});
    rows_ = std::exchange(other.rows_, 0);
    columns_ = std::exchange(other.columns_, 0);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  /** Memory for a result; its contents are not set. */
  static ScaledTensor allocate(Format format, std::int64_t rows, std::int64_t columns, Axis axis, int layout,
                               std::error_code &error) {
    ScaledTensor result;
    dlfp4_sizes sizes;
    error = make_error_code(dlfp4_size_buffers(format.number(), static_cast<int>(axis), layout, rows, columns, &sizes));
    if (error) return result;
    const dlfp4_format_info info = format.info();
    const bool two_level = info.kind == DLFP4_SCALES_IN_TWO_LEVELS;
    const bool has_zero_points = info.element.code == kDLUInt;
    const std::int64_t count = sizes.scales[0] * sizes.scales[1];
    const std::int64_t at[] = {0, aligned(sizes.data_bytes), aligned(sizes.data_bytes) + aligned(sizes.scale_bytes)};
    const auto needed = static_cast<std::size_t>(at[2] + aligned(has_zero_points ? count : 4));
    result.memory_.reset(static_cast<char *>(::operator new(needed, kAlignment, std::nothrow)));
    if (!result.memory_) {
      error = make_error_code(DLFP4_E_MEMORY);
      return result;
    }
    char *const memory = result.memory_.get();
    ScaledView &view = result.view_;
    view.format = format;
    view.axis = axis;
    view.layout = layout;
    view.data = View(memory, info.element, {sizes.data[0], sizes.data[1]});
    view.scales = sizes.scale_ndim ? View(memory + at[1], info.scale, {sizes.scales[0], sizes.scales[1]})
                                   : View(memory + at[1], info.scale, {});
    if (two_level) view.global_scale = View(memory + at[2], dtype_of<float>::value, {});
    if (has_zero_points)
      view.zero_points = View(memory + at[2], dtype_of<std::uint8_t>::value, {sizes.scales[0], sizes.scales[1]});
    result.rows_ = rows;
    result.columns_ = columns;
    result.bytes_ = sizes.data_bytes + sizes.scale_bytes + (two_level ? 4 : 0) + (has_zero_points ? count : 0);
    return result;
  }
#if defined(__cpp_exceptions)
  static ScaledTensor allocate(Format format, std::int64_t rows, std::int64_t columns, Axis axis = Axis::rows,
                               int layout = 0) {
    std::error_code error;
    ScaledTensor result = allocate(format, rows, columns, axis, layout, error);
    detail::check(error, "ScaledTensor::allocate");
    return result;
  }
#endif

  const ScaledView &view() const noexcept { return view_; }
  operator const ScaledView &() const noexcept { return view_; }
  Format format() const noexcept { return view_.format; }
  std::int64_t rows() const noexcept { return rows_; }
  std::int64_t columns() const noexcept { return columns_; }
  /** Of all parts. */
  std::int64_t bytes() const noexcept { return bytes_; }
  void set_rotation(std::uint32_t rotation) noexcept { view_.rotation = rotation; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static constexpr std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }
  struct Free {
    void operator()(char *memory) const noexcept { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<char, Free> memory_;
  ScaledView view_;
  std::int64_t rows_ = 0, columns_ = 0, bytes_ = 0;
};

namespace detail {
// The C struct, for the length of a call: it points into itself, and to the view.
class Described {
 public:
  explicit Described(const ScaledView &view) noexcept
      : data_(view.data.dl()),
        scales_(view.scales.dl()),
        global_scale_(view.global_scale.dl()),
        zero_points_(view.zero_points.dl()),
        biases_(view.biases.dl()),
        tensor_{view.format.number(),
                static_cast<std::int32_t>(view.axis),
                view.layout,
                view.rotation,
                &data_,
                view.scales ? &scales_ : nullptr,
                view.global_scale ? &global_scale_ : nullptr,
                view.zero_points ? &zero_points_ : nullptr,
                view.biases ? &biases_ : nullptr} {}
  Described(const Described &) = delete;
  Described &operator=(const Described &) = delete;
  const dlfp4_scaled_tensor *get() const noexcept { return &tensor_; }

 private:
  DLTensor data_, scales_, global_scale_, zero_points_, biases_;
  dlfp4_scaled_tensor tensor_;
};
}  // namespace detail

/** An operand of a product: a view of elements, or a quantized tensor. */
struct Operand : ScaledView {
  Operand(const View &elements) noexcept : ScaledView(plain(elements)) {}
  Operand(const ScaledView &scaled) noexcept : ScaledView(scaled) {}
  Operand(const ScaledTensor &scaled) noexcept : ScaledView(scaled.view()) {}
};

// --- Operations ------------------------------------------------------------------------------

/** out = x in out's type; see dlfp4_cast(). */
inline void cast(const View &x, const View &out, const dlfp4_convert_options *options, void *stream,
                 std::error_code &error) {
  const DLTensor from = x.dl(), to = out.dl();
  error = make_error_code(dlfp4_cast(&from, &to, options, 0, stream));
}

/** Of quantize(): all that dlfp4_quantize() takes beside tensors. */
struct QuantizeOptions {
  Axis axis = Axis::rows;
  int layout = 0;
  const dlfp4_recipe *recipe = nullptr;
  float global_scale = 0;
  std::uint32_t rotation = 0;
};

/** Quantizes into memory that is there, of any device; see dlfp4_quantize(). `q` says the axis and the layout, and the
 * rotation, which may be among the options as well. */
inline void quantize(const View &x, const ScaledView &q, const QuantizeOptions &options, void *stream,
                     std::error_code &error) {
  const DLTensor from = x.dl();
  const detail::Described result(q);
  if (options.rotation != 0 && options.rotation != result.get()->rotation) {
    error = make_error_code(DLFP4_E_OPTION);
    return;
  }
  error = make_error_code(dlfp4_quantize(&from, options.recipe, options.global_scale, result.get(), nullptr, stream));
}

/** Quantizes a matrix of the host. */
inline ScaledTensor quantize(const View &x, Format format, const QuantizeOptions &options, std::error_code &error) {
  const std::int64_t rows = x.ndim() == 2 ? x.extent(0) : -1;  // others are refused
  ScaledTensor result =
      ScaledTensor::allocate(format, rows, rows < 0 ? rows : x.extent(1), options.axis, options.layout, error);
  if (error) return result;
  result.set_rotation(options.rotation);
  quantize(x, result.view(), options, nullptr, error);
  return error ? ScaledTensor() : std::move(result);
}

/** The values of a quantized tensor; see dlfp4_dequantize(). */
inline void dequantize(const ScaledView &q, const View &out, void *stream, std::error_code &error) {
  const detail::Described from(q);
  const DLTensor to = out.dl();
  error = make_error_code(dlfp4_dequantize(from.get(), &to, stream));
}

/** Scales from one layout to another; see dlfp4_convert_scales(). */
inline void convert_scales(const View &x, int x_layout, const View &out, int out_layout, std::int64_t rows,
                           std::int64_t columns, std::uint8_t fill, void *stream, std::error_code &error) {
  const DLTensor from = x.dl(), to = out.dl();
  error = make_error_code(dlfp4_convert_scales(&from, x_layout, &to, out_layout, rows, columns, fill, stream));
}

namespace detail {
inline bool is_on_cuda(const View &x) noexcept {
  return x.device().device_type == kDLCUDA || x.device().device_type == kDLCUDAManaged;
}

// Calls with a workspace of so many bytes of the host; without one where it is refused, to learn why.
template <class Call>
std::error_code with_workspace(std::int64_t bytes, Call call) {
  if (bytes <= 0) return make_error_code(call(nullptr));
  const std::unique_ptr<void, void (*)(void *)> workspace(std::malloc(static_cast<std::size_t>(bytes)), std::free);
  return workspace ? make_error_code(call(workspace.get())) : make_error_code(DLFP4_E_MEMORY);
}
}  // namespace detail

/** The bytes of workspace that matmul() takes, where the tensors lie; see dlfp4_matmul_workspace(). */
inline std::int64_t matmul_workspace(const Operand &a, const Operand &b, const View &out,
                                     const dlfp4_matmul_options *options = nullptr) noexcept {
  const detail::Described left(a), right(b);
  const DLTensor to = out.dl();
  return dlfp4_matmul_workspace(left.get(), right.get(), &to, options);
}

/** out(i, j) = alpha * the sum over k of a(i, k) * b(j, k), on any device, in a workspace of matmul_workspace() bytes;
 * see dlfp4_matmul(). */
inline void matmul(const Operand &a, const Operand &b, const View &out, const dlfp4_matmul_options *options,
                   void *workspace, void *stream, std::error_code &error) {
  const detail::Described left(a), right(b);
  const DLTensor to = out.dl();
  error = make_error_code(dlfp4_matmul(left.get(), right.get(), &to, options, workspace, stream));
}

/** The same, with a workspace that is allocated for the call on the host. On a CUDA device there is none, and the
 * stream is the legacy default one. */
inline void matmul(const Operand &a, const Operand &b, const View &out, const dlfp4_matmul_options *options,
                   std::error_code &error) {
  error =
      detail::with_workspace(detail::is_on_cuda(out) ? 0 : matmul_workspace(a, b, out, options), [&](void *workspace) {
        std::error_code found;
        matmul(a, b, out, options, workspace, nullptr, found);
        return static_cast<dlfp4_status>(found.value());
      });
}

/** Which rows each expert multiplies; see dlfp4_routing. */
struct Routing {
  View ends, indices, weights;
  bool gathers = false;
};

namespace detail {
// The C struct, for the length of a call: it points into itself.
class DescribedRouting {
 public:
  explicit DescribedRouting(const Routing &routing) noexcept
      : ends_(routing.ends.dl()),
        indices_(routing.indices.dl()),
        weights_(routing.weights.dl()),
        routing_{&ends_, routing.indices ? &indices_ : nullptr, routing.weights ? &weights_ : nullptr,
                 routing.gathers} {}
  DescribedRouting(const DescribedRouting &) = delete;
  DescribedRouting &operator=(const DescribedRouting &) = delete;
  const dlfp4_routing *get() const noexcept { return &routing_; }

 private:
  DLTensor ends_, indices_, weights_;
  dlfp4_routing routing_;
};
}  // namespace detail

/** The bytes of workspace that grouped_matmul() takes, where the tensors lie; see dlfp4_grouped_matmul_workspace(). */
inline std::int64_t grouped_matmul_workspace(const Operand &x, const Operand &w, const Routing &routing,
                                             const View &out, const dlfp4_matmul_options *options = nullptr) noexcept {
  const detail::Described left(x), right(w);
  const detail::DescribedRouting rows(routing);
  const DLTensor to = out.dl();
  return dlfp4_grouped_matmul_workspace(left.get(), right.get(), rows.get(), &to, options);
}

/** The product of matmul() by each expert, on any device, in a workspace of grouped_matmul_workspace() bytes; see
 * dlfp4_grouped_matmul(). */
inline void grouped_matmul(const Operand &x, const Operand &w, const Routing &routing, const View &out,
                           const dlfp4_matmul_options *options, void *workspace, void *stream, std::error_code &error) {
  const detail::Described left(x), right(w);
  const detail::DescribedRouting rows(routing);
  const DLTensor to = out.dl();
  error = make_error_code(dlfp4_grouped_matmul(left.get(), right.get(), rows.get(), &to, options, workspace, stream));
}

/** The same, with a workspace that is allocated for the call on the host. On a CUDA device there is none, and the
 * stream is the legacy default one. */
inline void grouped_matmul(const Operand &x, const Operand &w, const Routing &routing, const View &out,
                           const dlfp4_matmul_options *options, std::error_code &error) {
  error = detail::with_workspace(detail::is_on_cuda(out) ? 0 : grouped_matmul_workspace(x, w, routing, out, options),
                                 [&](void *workspace) {
                                   std::error_code found;
                                   grouped_matmul(x, w, routing, out, options, workspace, nullptr, found);
                                   return static_cast<dlfp4_status>(found.value());
                                 });
}

/** Prepares weights on a CUDA device in memory of dlfp4_prepared_bytes(); see dlfp4_prepare(). */
inline dlfp4_prepared prepare(const ScaledView &w, void *memory, void *stream, std::error_code &error) {
  const detail::Described from(w);
  dlfp4_prepared result = {};
  error = make_error_code(dlfp4_prepare(from.get(), memory, &result, stream));
  return result;
}

/** out(i, j) = alpha * the sum over k of x(i, k) * w(j, k) on a CUDA device; see dlfp4_matmul_prepared(). */
inline void matmul(const View &x, const dlfp4_prepared &w, const View &out, float alpha, void *stream,
                   std::error_code &error) {
  const DLTensor from = x.dl(), to = out.dl();
  error = make_error_code(dlfp4_matmul_prepared(&from, &w, &to, alpha, stream));
}

/** The bytes of workspace that grouped_matmul() by prepared weights takes, on the device; see
 * dlfp4_grouped_matmul_prepared_workspace(). */
inline std::int64_t grouped_matmul_workspace(const View &x, const dlfp4_prepared &w, const Routing &routing,
                                             const View &out) noexcept {
  const detail::DescribedRouting rows(routing);
  const DLTensor from = x.dl(), to = out.dl();
  return dlfp4_grouped_matmul_prepared_workspace(&from, &w, rows.get(), &to);
}

/** The product of matmul() with prepared weights by each expert; see dlfp4_grouped_matmul_prepared(). */
inline void grouped_matmul(const View &x, const dlfp4_prepared &w, const Routing &routing, const View &out, float alpha,
                           void *workspace, void *stream, std::error_code &error) {
  const detail::DescribedRouting rows(routing);
  const DLTensor from = x.dl(), to = out.dl();
  error = make_error_code(dlfp4_grouped_matmul_prepared(&from, &w, rows.get(), &to, alpha, workspace, stream));
}

/** out[i] = the sum over k of a(i, k) * b(i, k), on the host; see dlfp4_vecdot(). */
inline void vecdot(const Operand &a, const Operand &b, const View &out, std::error_code &error) {
  const detail::Described left(a), right(b);
  const DLTensor to = out.dl();
  error = make_error_code(dlfp4_vecdot(left.get(), right.get(), &to, nullptr, nullptr));
}

#if defined(__cpp_exceptions)
inline void cast(const View &x, const View &out, const dlfp4_convert_options *options = nullptr,
                 void *stream = nullptr) {
  std::error_code error;
  cast(x, out, options, stream, error);
  detail::check(error, "cast");
}

inline void quantize(const View &x, const ScaledView &q, const QuantizeOptions &options = {}, void *stream = nullptr) {
  std::error_code error;
  quantize(x, q, options, stream, error);
  detail::check(error, "quantize");
}

inline ScaledTensor quantize(const View &x, Format format, const QuantizeOptions &options = {}) {
  std::error_code error;
  ScaledTensor result = quantize(x, format, options, error);
  detail::check(error, "quantize");
  return result;
}

inline void dequantize(const ScaledView &q, const View &out, void *stream = nullptr) {
  std::error_code error;
  dequantize(q, out, stream, error);
  detail::check(error, "dequantize");
}

inline void convert_scales(const View &x, int x_layout, const View &out, int out_layout, std::int64_t rows,
                           std::int64_t columns, std::uint8_t fill = 0, void *stream = nullptr) {
  std::error_code error;
  convert_scales(x, x_layout, out, out_layout, rows, columns, fill, stream, error);
  detail::check(error, "convert_scales");
}

inline void matmul(const Operand &a, const Operand &b, const View &out, const dlfp4_matmul_options *options = nullptr) {
  std::error_code error;
  matmul(a, b, out, options, error);
  detail::check(error, "matmul");
}

inline void matmul(const Operand &a, const Operand &b, const View &out, const dlfp4_matmul_options *options,
                   void *workspace, void *stream) {
  std::error_code error;
  matmul(a, b, out, options, workspace, stream, error);
  detail::check(error, "matmul");
}

inline void grouped_matmul(const Operand &x, const Operand &w, const Routing &routing, const View &out,
                           const dlfp4_matmul_options *options, void *workspace, void *stream) {
  std::error_code error;
  grouped_matmul(x, w, routing, out, options, workspace, stream, error);
  detail::check(error, "grouped_matmul");
}

inline void grouped_matmul(const View &x, const dlfp4_prepared &w, const Routing &routing, const View &out, float alpha,
                           void *workspace, void *stream) {
  std::error_code error;
  grouped_matmul(x, w, routing, out, alpha, workspace, stream, error);
  detail::check(error, "grouped_matmul");
}

inline void grouped_matmul(const Operand &x, const Operand &w, const Routing &routing, const View &out,
                           const dlfp4_matmul_options *options = nullptr) {
  std::error_code error;
  grouped_matmul(x, w, routing, out, options, error);
  detail::check(error, "grouped_matmul");
}

inline dlfp4_prepared prepare(const ScaledView &w, void *memory, void *stream = nullptr) {
  std::error_code error;
  const dlfp4_prepared result = prepare(w, memory, stream, error);
  detail::check(error, "prepare");
  return result;
}

inline void matmul(const View &x, const dlfp4_prepared &w, const View &out, float alpha = 1, void *stream = nullptr) {
  std::error_code error;
  matmul(x, w, out, alpha, stream, error);
  detail::check(error, "matmul");
}

inline void vecdot(const Operand &a, const Operand &b, const View &out) {
  std::error_code error;
  vecdot(a, b, out, error);
  detail::check(error, "vecdot");
}
#endif

}  // namespace dlfp4

#endif  // DLFP4_DLFP4_HPP_
