// Quantizes weights to several formats, multiplies activations by them, and prints the ratio of signal to noise of each
// product.
//
//   c++ -std=c++17 multiply.cpp $(python -m dlfp4 config --cflags --libs) -o multiply && ./multiply
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <dlfp4/dlfp4.hpp>
#include <random>
#include <vector>

namespace {

std::vector<float> normal(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float &number : result) number = distribution(engine);
  return result;
}

double decibels(const std::vector<float> &exact, const std::vector<float> &got) {
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double error = double{got[i]} - double{exact[i]};
    signal += double{exact[i]} * double{exact[i]};
    noise += error * error;
  }
  return 10 * std::log10(signal / noise);
}

}  // namespace

int main() try {
  constexpr std::int64_t kRows = 8, kDepth = 1024, kColumns = 512;
  const std::vector<float> x = normal(kRows * kDepth, 1), w = normal(kColumns * kDepth, 2);
  const dlfp4::View activations(x, {kRows, kDepth}), weights(w, {kColumns, kDepth});
  std::vector<float> exact(kRows * kColumns), product(exact.size());
  dlfp4::matmul(activations, weights, dlfp4::View(exact, {kRows, kColumns}));

  std::printf("%-14s%12s%10s\n", "weights", "bytes", "SNR, dB");
  for (const dlfp4::Format format : {dlfp4::formats::nvfp4(), dlfp4::formats::mxfp4(), dlfp4::formats::int4_g32(),
                                     dlfp4::formats::mxfp6_e2m3(), dlfp4::formats::mxfp8_e4m3()}) {
    const dlfp4::ScaledTensor q = dlfp4::quantize(weights, format);
    dlfp4::matmul(activations, q, dlfp4::View(product, {kRows, kColumns}));
    std::printf("%-14s%12lld%10.1f\n", format.info().name, static_cast<long long>(q.bytes()), decibels(exact, product));
  }
  return 0;
} catch (const dlfp4::Error &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
