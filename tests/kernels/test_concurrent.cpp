// Many threads at once, from the first use on: each gets the bytes that one alone gets, whatever the others choose.
// Layout: a result a thread; inputs are shared.
// Trick: built with -fsanitize=thread and without OpenMP (`nox -s tsan`), it shows races in what the library shares.
#include <atomic>
#include <thread>
#include <vector>

#include "support.h"

namespace dlfp4 {
namespace {

constexpr int kThreads = 8, kRounds = 200;
constexpr int64_t kRows = 16, kColumns = 256;

DLTensor describe(void *data, int64_t *shape, DLDataType type) {
  return {data, {kDLCPU, 0}, 2, type, shape, nullptr, 0};
}

// What a thread makes of the values that all share: codes, scales, values again, the codes as bytes, a product. The
// table for these bytes is made by who needs it first at a level.
struct Results {
  std::vector<uint8_t> codes = std::vector<uint8_t>(kRows * kColumns / 2);
  std::vector<uint8_t> scales = std::vector<uint8_t>(kRows * kColumns / 32);
  std::vector<uint16_t> values = std::vector<uint16_t>(kRows * kColumns);
  std::vector<uint8_t> bytes = std::vector<uint8_t>(kRows * kColumns);
  std::vector<float> sums = std::vector<float>(kRows);

  bool operator==(const Results &other) const {
    return codes == other.codes && scales == other.scales && values == other.values && bytes == other.bytes &&
           sums == other.sums;
  }
};

bool run(const std::vector<float> &x, Results *results) {
  int64_t shape[] = {kRows, kColumns}, scale_shape[] = {kRows, kColumns / 32}, lines[] = {kRows};
  const DLTensor floats = describe(const_cast<float *>(x.data()), shape, {kDLFloat, 32, 1});
  const DLTensor data = describe(results->codes.data(), shape, {kDLFloat4_e2m1fn, 4, 1});
  const DLTensor scales = describe(results->scales.data(), scale_shape, {kDLFloat8_e8m0fnu, 8, 1});
  const DLTensor values = describe(results->values.data(), shape, {kDLBfloat, 16, 1});
  const DLTensor bytes = describe(results->bytes.data(), shape, {kDLFloat8_e4m3fn, 8, 1});
  DLTensor sums = describe(results->sums.data(), lines, {kDLFloat, 32, 1});
  sums.ndim = 1;
  const dlfp4_scaled_tensor q = {dlfp4_find_format("mxfp4"), -1, 0, 0, &data, &scales, nullptr, nullptr, nullptr};
  return dlfp4_quantize(&floats, nullptr, 0, &q, nullptr, nullptr) == DLFP4_OK &&
         dlfp4_dequantize(&q, &values, nullptr) == DLFP4_OK &&
         dlfp4_cast(&data, &bytes, nullptr, 0, nullptr) == DLFP4_OK &&
         dlfp4_vecdot(&q, &q, &sums, nullptr, nullptr) == DLFP4_OK;
}

// Chooses levels and numbers of threads meanwhile.
void choose(const std::atomic<bool> &over) {
  for (int number = 0; !over; ++number) {
    const char *const name = dlfp4_isa_numbered(number);
    if (!name) number = -1;
    dlfp4_set_isa(name);
    dlfp4_set_num_threads(number & 3);
  }
  dlfp4_set_isa(nullptr);
  dlfp4_set_num_threads(0);
}

void test_threads() {
  std::vector<float> x(kRows * kColumns);
  for (float &value : x) value = static_cast<float>(random_below(2001) - 1000) / 64;
  std::vector<Results> results(kThreads);
  std::atomic<int> wrong{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number)
    threads.emplace_back([&, number] {
      Results first;
      wrong += !run(x, &first);
      for (int round = 0; round < kRounds; ++round) wrong += !run(x, &results[number]) || !(results[number] == first);
    });
  std::thread chooser([&] { choose(over); });
  for (std::thread &each : threads) each.join();
  over = true;
  chooser.join();
  check(wrong == 0, "threads", "a thread got other bytes than alone");
  for (const Results &each : results) check(each == results[0], "threads", "threads got several results");
}

}  // namespace
}  // namespace dlfp4

int main() {
  dlfp4::test_threads();
  return dlfp4::report();
}
