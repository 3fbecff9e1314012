// Quantizes a tensor of PyTorch's C++ library where it lies and decodes it into another one: DLTensors go from one
// library to the other, and no element is copied on the way.
#include <ATen/ATen.h>
#include <ATen/DLConvertor.h>

#include <cmath>
#include <cstdio>
#include <dlfp4/dlfp4.hpp>

namespace {

// A DLTensor of a PyTorch tensor, which keeps its memory.
class Borrowed {
 public:
  explicit Borrowed(const at::Tensor &tensor) : managed_(at::toDLPack(tensor)) {}
  Borrowed(const Borrowed &) = delete;
  ~Borrowed() { managed_->deleter(managed_); }
  dlfp4::View view() const { return dlfp4::View(managed_->dl_tensor); }

 private:
  DLManagedTensor *managed_;
};

}  // namespace

int main() {
  const at::Tensor x = at::randn({256, 512}), y = at::empty_like(x);
  const dlfp4::ScaledTensor q = dlfp4::quantize(Borrowed(x).view(), dlfp4::formats::nvfp4());
  dlfp4::dequantize(q, Borrowed(y).view());
  const double noise = (y - x).square().sum().item<double>(), signal = x.square().sum().item<double>();
  std::printf("%lld bytes instead of %lld, %.1f dB\n", static_cast<long long>(q.bytes()),
              static_cast<long long>(x.nbytes()), 10 * std::log10(signal / noise));
  return 0;
}
