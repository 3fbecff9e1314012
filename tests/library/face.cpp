// dlfp4.hpp: both forms of every operation, what owns memory and what does not. Compiled without exceptions, too.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfp4/dlfp4.hpp>
#include <utility>
#include <vector>

namespace {

void expect(bool holds, const char *what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

std::vector<float> numbers(std::size_t count) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = static_cast<float>(i * 37 % 101) / 16 - 3;
  return result;
}

bool are_near(const std::vector<float> &a, const std::vector<float> &b, float most) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::fabs(a[i] - b[i]) <= most)) return false;
  return a.size() == b.size();
}

void test_views(std::vector<float> &x) {
  const dlfp4::View view(x, {4, 64}), turned = view.transposed();
  expect(view.ndim() == 2 && view.extent(1) == 64 && view.stride(0) == 64, "a row-major view");
  expect(turned.extent(0) == 64 && turned.stride(0) == 1 && turned.data() == x.data(), "a transposed view");
  const DLTensor tensor = turned.dl();
  const dlfp4::View again(tensor);
  expect(again.extent(0) == 64 && again.stride(1) == 64, "a view of a DLTensor");
  expect(!dlfp4::View() && view, "whether a view is one");
#if __cplusplus >= 202002L
  expect(dlfp4::View(std::span(x), {256}).data() == x.data(), "a view of a span");
  const std::span<const float, 256> all(x.data(), 256);
  expect(dlfp4::View(all, {256}).data() == x.data(), "a view of a span whose length its type has");
#endif
}

void test_views_that_are_refused(const std::vector<float> &x) {
  std::vector<float> out(x.size());
  for (const dlfp4::View &view :
       {dlfp4::View(x, {4, 65}), dlfp4::View(x, {1, 1, 1, 1, 1, 1, 1, 4, 64}), dlfp4::View(x, {256}).transposed(),
        dlfp4::View(x, {-1, 4}), dlfp4::View(x, {std::int64_t{1} << 40, std::int64_t{1} << 40})}) {
    std::error_code error;
    dlfp4::cast(view, dlfp4::View(out, {4, 64}), nullptr, nullptr, error);
    expect(error == DLFP4_E_SHAPE, "what is no tensor is refused");
  }
}

void test_descriptions_that_are_refused(const std::vector<float> &x) {
  const dlfp4::View view(x, {4, 64});
  DLTensor no_shape = view.dl(), too_few = view.dl(), nowhere = view.dl();
  no_shape.shape = nullptr;
  too_few.ndim = -7;
  nowhere.data = nullptr;
  nowhere.byte_offset = 8;
  std::vector<float> out(x.size());
  for (const DLTensor &tensor : {no_shape, too_few, nowhere}) {
    std::error_code error;
    dlfp4::cast(dlfp4::View(tensor), dlfp4::View(out, {4, 64}), nullptr, nullptr, error);
    expect(error == (tensor.data ? DLFP4_E_SHAPE : DLFP4_E_OPTION), "so is what describes none");
  }
}

void test_error_codes(const std::vector<float> &x) {
  std::error_code error;
  const dlfp4::View view(x, {4, 64});
  dlfp4::ScaledTensor q = dlfp4::quantize(view, dlfp4::formats::nvfp4(), {}, error);
  expect(!error && q.bytes() == 4 * 32 + 4 * 4 + 4, "nvfp4 is quantized");
  dlfp4::ScaledTensor moved;
  moved = std::move(q);
  std::vector<float> back(x.size()), square(16), sums(4);
  dlfp4::dequantize(moved, dlfp4::View(back, {4, 64}), nullptr, error);
  expect(!error && are_near(x, back, 0.6f), "it is decoded after it was moved");
  dlfp4::dequantize(q, dlfp4::View(back, {4, 64}), nullptr, error);
  expect(error && q.bytes() == 0 && q.rows() == 0 && !q.view().data, "what it was moved from is empty");
  dlfp4::matmul(view, moved, dlfp4::View(square, {4, 4}), nullptr, error);
  expect(!error, "it is multiplied");
  dlfp4::vecdot(view, moved, dlfp4::View(sums, {4}), error);
  expect(!error && are_near(sums, {square[0], square[5], square[10], square[15]}, 1e-3f), "sums are those of products");
  std::vector<dlfp4::bfloat16> half(x.size());
  dlfp4::cast(view, dlfp4::View(half, {4, 64}), nullptr, nullptr, error);
  expect(!error && half[16].bits != 0, "it is cast");
  dlfp4::QuantizeOptions along_columns;
  along_columns.axis = dlfp4::Axis::columns;
  const dlfp4::ScaledView nothing = {};
  dlfp4::dequantize(nothing, dlfp4::View(back, {4, 64}), nullptr, error);
  expect(error == DLFP4_E_OPTION, "nothing is no tensor");
  const dlfp4::ScaledTensor none = dlfp4::quantize(view, dlfp4::Format::find("fp5"), along_columns, error);
  expect(error == DLFP4_E_OPTION && none.bytes() == 0, "an unknown format is an error");
  expect(!error.message().empty() && std::string(error.category().name()) == "dlfp4", "errors have words");
}

void test_experts(const std::vector<float> &x) {
  std::error_code error;
  const std::vector<std::int64_t> ends = {1, 4}, long_ends = {1, 5};
  std::vector<float> out(4 * 2), again(4 * 2), all(4 * 4), square(4 * 4);
  const dlfp4::View view(x, {4, 64});
  const dlfp4::ScaledTensor w = dlfp4::quantize(view, dlfp4::formats::mxfp8_e4m3(), {}, error);
  dlfp4::Routing routing;
  routing.ends = dlfp4::View(ends, {2});
  dlfp4::grouped_matmul(view, w, routing, dlfp4::View(out, {4, 2}), nullptr, error);
  expect(!error, "rows are multiplied by their experts");
  dlfp4::matmul(view, w, dlfp4::View(all, {4, 4}), nullptr, error);
  expect(are_near(out, {all[0], all[1], all[6], all[7], all[10], all[11], all[14], all[15]}, 1e-3f),
         "by whose weights");
  dlfp4::Routing outside;
  outside.ends = dlfp4::View(long_ends, {2});
  dlfp4::grouped_matmul(view, w, outside, dlfp4::View(again, {4, 2}), nullptr, error);
  expect(error == DLFP4_E_OPTION, "rows that are not there are refused");
  std::vector<char> workspace(
      static_cast<std::size_t>(dlfp4::grouped_matmul_workspace(view, w, routing, dlfp4::View(again, {4, 2}))));
  dlfp4::grouped_matmul(view, w, routing, dlfp4::View(again, {4, 2}), nullptr, workspace.data(), nullptr, error);
  expect(!error && again == out, "in a workspace of one's own");
  workspace.resize(static_cast<std::size_t>(dlfp4::matmul_workspace(view, w, dlfp4::View(square, {4, 4}))));
  dlfp4::matmul(view, w, dlfp4::View(square, {4, 4}), nullptr, workspace.data(), nullptr, error);
  expect(!error && square == all, "matrices too");
  const dlfp4_prepared prepared = dlfp4::prepare(w, out.data(), nullptr, error);
  expect(error == DLFP4_E_DEVICE, "weights of the host are not prepared");
  dlfp4::matmul(view, prepared, dlfp4::View(all, {4, 4}), 1, nullptr, error);
  expect(error == DLFP4_E_DEVICE, "nor multiplied so");
  expect(dlfp4::grouped_matmul_workspace(view, prepared, routing, dlfp4::View(out, {4, 2})) == -1, "by no expert");
  dlfp4::grouped_matmul(view, prepared, routing, dlfp4::View(out, {4, 2}), 1, nullptr, nullptr, error);
  expect(error == DLFP4_E_DEVICE, "either");
}

void test_biases(const std::vector<float> &x) {
  std::error_code error;
  const dlfp4::ScaledTensor q = dlfp4::quantize(dlfp4::View(x, {4, 64}), dlfp4::formats::uint4_g32(), {}, error);
  expect(!error && q.view().zero_points && !q.view().biases, "integers get zero points");
  std::vector<float> biases(4 * 2), values(x.size()), again(x.size());
  for (std::size_t i = 0; i < biases.size(); ++i) biases[i] = -8 * static_cast<float *>(q.view().scales.data())[i];
  dlfp4::ScaledView biased = q.view();
  biased.zero_points = {};
  biased.biases = dlfp4::View(biases, {4, 2});
  dlfp4::dequantize(q, dlfp4::View(values, {4, 64}), nullptr, error);
  dlfp4::dequantize(biased, dlfp4::View(again, {4, 64}), nullptr, error);
  expect(!error && are_near(values, again, 1e-6f), "or biases, which say the same");
}

void test_layouts(const std::vector<float> &x) {
  std::error_code error;
  const dlfp4::View view(x, {4, 64});
  const dlfp4::ScaledTensor lines = dlfp4::quantize(view, dlfp4::formats::mxfp8_e4m3(), {}, error);
  dlfp4::QuantizeOptions in_tiles;
  in_tiles.layout = dlfp4::layout("128x4");
  const dlfp4::ScaledTensor tiles = dlfp4::quantize(view, dlfp4::formats::mxfp8_e4m3(), in_tiles, error);
  const dlfp4::View scales = lines.view().scales, tiled = tiles.view().scales;
  std::vector<std::uint8_t> back(static_cast<std::size_t>(scales.extent(0) * scales.extent(1)), 0xFF);
  const dlfp4::View out(back.data(), scales.dtype(), {scales.extent(0), scales.extent(1)});
  dlfp4::convert_scales(tiled, in_tiles.layout, out, 0, 4, 2, 0, nullptr, error);
  expect(!error && std::memcmp(back.data(), scales.data(), back.size()) == 0, "scales leave their tiles");
  dlfp4::convert_scales(tiled, 0, out, 0, 4, 2, 0, nullptr, error);
  expect(error == DLFP4_E_SHAPE, "scales of another layout are refused");
}

void test_formats() {
  const dlfp4::Format format = dlfp4::formats::uint4_g32();
  expect(format && format != dlfp4::formats::nvfp4() && !dlfp4::Format(), "formats are told apart");
  expect(format.info().length == 32 && dlfp4::formats::fp8_1x128().recipe().pow2 == 1, "formats describe themselves");
  expect(dlfp4::layout("128x4") > 0 && dlfp4::layout("linear") == 0, "layouts have numbers");
}

#if defined(__cpp_exceptions)
void test_exceptions(const std::vector<float> &x) {
  const dlfp4::View view(x, {4, 64});
  std::vector<float> back(x.size());
  const dlfp4::ScaledTensor q = dlfp4::quantize(view, dlfp4::formats::uint4_g32());
  dlfp4::dequantize(q, dlfp4::View(back, {4, 64}));
  expect(are_near(x, back, 0.3f), "uint4 is quantized");
  dlfp4_status status = DLFP4_OK;
  try {
    dlfp4::dequantize(q, dlfp4::View(back, {2, 128}));
  } catch (const dlfp4::Error &error) {
    status = error.status();
    expect(std::string(error.what()).find("dequantize") != std::string::npos, "an error names the operation");
  }
  expect(status == DLFP4_E_SHAPE, "another shape throws");
}
#endif

}  // namespace

int main() {
  std::vector<float> x = numbers(256);
  test_views(x);
  test_views_that_are_refused(x);
  test_descriptions_that_are_refused(x);
  test_error_codes(x);
  test_experts(x);
  test_biases(x);
  test_layouts(x);
  test_formats();
#if defined(__cpp_exceptions)
  test_exceptions(x);
#endif
  return 0;
}
