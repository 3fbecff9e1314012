// Checks by which keys kernels are found, without a GPU: each by its own, none by one that differs.
// Layout: the lists of the images.
// Trick: what a format, a type or a scale that comes later would ask for is asked for now.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for keys
#endif

#include "blocks/cuda/block_kernels.h"
#include "codecs/cuda/codec_kernels.h"
#include "products/cuda/dot_kernels.h"
#include "products/cuda/grouped_kernels.h"
#include "products/cuda/product_kernels.h"
#include "support.h"

namespace dlfp4 {
namespace cuda {
namespace {

// What a kernel is asked for: fields that do not matter to it have some value.
KernelKey asked_for(const KernelKey &key) {
  const auto some = [](int64_t field) { return field == kAnything ? 1 : field; };
  return KernelKey(key.operation, static_cast<int>(some(key.from)), static_cast<int>(some(key.to)),
                   static_cast<int>(some(key.scale)), static_cast<int>(some(key.kind)), some(key.length));
}

// The kernels of an image.
template <int Count>
struct Kernels {
  Image image;
  const KernelKey (&keys)[Count];
  const char *const (&names)[Count];

  template <class Field>
  void test_field(int number, KernelKey wanted, Field KernelKey::*field) const {
    if (keys[number].*field == static_cast<Field>(kAnything)) return;
    for (Field value = 0; value < 300; ++value) {
      wanted.*field = value;
      const bool is_own = value == keys[number].*field;
      check((find_in(image, keys, wanted).number == number) == is_own, "a kernel serves what its key says alone",
            names[number]);
    }
  }

  void test_kernel(int number) const {
    const KernelKey wanted = asked_for(keys[number]);
    const DeviceKernel found = find_in(image, keys, wanted);
    check(found.image == image && found.number == number, "a kernel is found by its key", names[number]);
    check(is_for(found, wanted.operation) && !is_for(found, wanted.operation + 1), "what it is for", names[number]);
    test_field(number, wanted, &KernelKey::from);
    test_field(number, wanted, &KernelKey::to);
    test_field(number, wanted, &KernelKey::scale);
    test_field(number, wanted, &KernelKey::kind);
    test_field(number, wanted, &KernelKey::length);
  }

  void test() const {
    for (int number = 0; number < Count; ++number)
      if (keys[number].operation != kByName) test_kernel(number);
  }
};

void test_tables() {
  const DeviceKernel any = image_of_codecs::kKernel_convert_any;
  const KernelList<3> list([=](int i) { return i == 1 ? any : kNoKernel; });
  const KernelTable<2, 2> table([=](int i, int k) { return i == 1 && k == 0 ? any : kNoKernel; });
  check(list[0] == kNoKernel && list[1] == any && list[2] == kNoKernel, "places", "of a list");
  check(table[1][0] == any && table[0][1] == kNoKernel, "places", "of a table");
  check(!is_for(kNoKernel, kByName) && !is_for(kNoKernel, kEncode), "no kernel is for nothing", "");
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

int main() {
  using namespace dlfp4::cuda;
  Kernels<image_of_codecs::kNumKernels>{kImage_codecs, image_of_codecs::kKeys, image_of_codecs::kNames}.test();
  Kernels<image_of_blocks::kNumKernels>{kImage_blocks, image_of_blocks::kKeys, image_of_blocks::kNames}.test();
  Kernels<image_of_dots::kNumKernels>{kImage_dots, image_of_dots::kKeys, image_of_dots::kNames}.test();
  Kernels<image_of_grouped::kNumKernels>{kImage_grouped, image_of_grouped::kKeys, image_of_grouped::kNames}.test();
  Kernels<image_of_products::kNumKernels>{kImage_products, image_of_products::kKeys, image_of_products::kNames}.test();
  test_tables();
  return dlfp4::report();
}
