// Checks by which keys kernels are found, without a GPU: each by its own, none by one that differs.
// Layout: the rows of kernels.def.
// Trick: what a format, a type or a scale that comes later would ask for is asked for now.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for keys
#endif

#include "gpu/keys.h"

#include "support.h"

namespace dlfp4 {
namespace cuda {
namespace {

constexpr const char *kNames[kNumKernels] = {
#define DLFP4_CUDA_KERNEL(name, key, parameters, body) #name,
#include "products/cuda/kernels.def"
#undef DLFP4_CUDA_KERNEL
};

// What a kernel is asked for: fields that do not matter to it have some value.
KernelKey asked_for(const KernelKey &key) {
  const auto some = [](int64_t field) { return field == kAnything ? 1 : field; };
  return KernelKey(key.operation, static_cast<int>(some(key.from)), static_cast<int>(some(key.to)),
                   static_cast<int>(some(key.scale)), static_cast<int>(some(key.kind)), some(key.length));
}

template <class Field>
void test_field(int number, KernelKey wanted, Field KernelKey::*field) {
  if (kKernelKeys[number].*field == static_cast<Field>(kAnything)) return;
  for (Field value = 0; value < 300; ++value) {
    wanted.*field = value;
    const bool is_own = value == kKernelKeys[number].*field;
    check((find_kernel(wanted) == number) == is_own, "a kernel serves what its key says alone", kNames[number]);
  }
}

void test_kernel(int number) {
  const KernelKey wanted = asked_for(kKernelKeys[number]);
  check(find_kernel(wanted) == number, "a kernel is found by its key", kNames[number]);
  check(is_for(static_cast<KernelNumber>(number), wanted.operation), "what it is for", kNames[number]);
  test_field(number, wanted, &KernelKey::from);
  test_field(number, wanted, &KernelKey::to);
  test_field(number, wanted, &KernelKey::scale);
  test_field(number, wanted, &KernelKey::kind);
  test_field(number, wanted, &KernelKey::length);
}

void test_tables() {
  const KernelList<3> list([](int i) { return i == 1 ? kKernel_convert_any : kNoKernel; });
  const KernelTable<2, 2> table([](int i, int k) { return i == 1 && k == 0 ? kKernel_convert_any : kNoKernel; });
  check(list[0] == kNoKernel && list[1] == kKernel_convert_any && list[2] == kNoKernel, "places", "of a list");
  check(table[1][0] == kKernel_convert_any && table[0][1] == kNoKernel, "places", "of a table");
  check(!is_for(kNoKernel, kByName) && !is_for(kNoKernel, kEncode), "no kernel is for nothing", "");
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

int main() {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  for (int number = 0; number < kNumKernels; ++number)
    if (kKernelKeys[number].operation != kByName) test_kernel(number);
  test_tables();
  return report();
}
