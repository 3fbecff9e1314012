// Checks which kernels each device gets, without a GPU: launch.cpp, and the products that need kernels compiled for a
// GPU, on a driver and a build's image that are made here.
// Layout: an image says which devices it serves; a library remembers its image; a kernel its library and number.
// Trick: the driver is a table of functions, so that the linker takes this file's instead of driver.cpp.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for loading
#endif

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/context.h"
#include "gpu/kernels.h"
#include "gpu/launch.h"
#include "products/cuda/few_rows.h"
#include "products/cuda/grouped.h"
#include "products/cuda/params.h"
#include "products/cuda/product_kernels.h"
#include "products/cuda/product_params.h"
#include "products/cuda/stream.h"
#include "products/cuda/tactics.h"
#include "rules/formats.h"
#include "support.h"

namespace dlfp4 {
namespace cuda {

// Of the images without sources here. What is tested of one is tested of the products'.
constexpr const char *kOtherNames[] = {"first", "second"};
const KernelNames kernels_of_codecs = {kOtherNames, 2};
const KernelNames kernels_of_blocks = {kOtherNames, 1};
const KernelNames kernels_of_dots = {kOtherNames, 2};

namespace {

using namespace image_of_products;

constexpr int kSharedBytes = 227 * 1024, kMultiprocessors = 108;
constexpr int kNotInitialized = 3, kInvalidImage = 200, kInvalidContext = 201, kNoBinary = 209, kInvalidDevice = 101;
constexpr int kNotFound = 500, kNotSupported = 801;

// --- A driver -------------------------------------------------------------------------------------

struct FakeImage {
  uint64_t devices;  // that it serves, a bit each
  int version;       // of its kernels, on all of them
  int num_kernels = kMostKernels;
  int status = 0;  // of loading it
};

struct FakeLibrary;

struct FakeKernel {
  const FakeLibrary *library;
  int number;
};

struct FakeLibrary {
  const FakeImage *image;
  bool is_open;
  int found;  // kernels
  FakeKernel kernels[kMostKernels];
};

struct Launched {
  const FakeKernel *kernel;
  int device;
  bool overlaps;
};

constexpr int kMostLoads = 16;
FakeLibrary libraries[kMostLoads];
int loads = 0;
Launched last_launch;
int launches = 0;
std::vector<Launched> given_shared_memory;
const FakeImage *images_of_build[kNumImages];
thread_local int current_device = -1;

int open_libraries() {
  int count = 0;
  for (const FakeLibrary &library : libraries) count += library.is_open;
  return count;
}

const FakeKernel *fake(CUkernel kernel) { return reinterpret_cast<const FakeKernel *>(kernel); }

CUresult get_device(CUdevice *device) {
  *device = current_device;
  return current_device < 0 ? kInvalidContext : 0;
}

CUresult load_data(CUlibrary *out, const void *data, int *, void **, unsigned, int *, void **, unsigned) {
  const FakeImage *image = static_cast<const FakeImage *>(data);
  *out = reinterpret_cast<CUlibrary>(&libraries[loads]);  // as a failing call may
  if (image->status != 0) return image->status;
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // so that other threads come
  libraries[loads].image = image;
  libraries[loads].is_open = true;
  ++loads;
  return 0;
}

CUresult unload(CUlibrary library) {
  FakeLibrary *closed = reinterpret_cast<FakeLibrary *>(library);
  check(closed->is_open, "unloaded once", "");
  closed->is_open = false;
  return 0;
}

// Kernels are asked for in the order of their numbers.
CUresult get_kernel(CUkernel *kernel, CUlibrary handle, const char *) {
  FakeLibrary *library = reinterpret_cast<FakeLibrary *>(handle);
  if (library->found == library->image->num_kernels) return kNotFound;
  FakeKernel *found = &library->kernels[library->found];
  *found = {library, library->found++};
  *kernel = reinterpret_cast<CUkernel>(found);
  return 0;
}

bool serves(const FakeKernel *kernel, int device) {
  return kernel->library->is_open && (kernel->library->image->devices >> device & 1);
}

CUresult get_function(CUfunction *, CUkernel kernel) { return serves(fake(kernel), current_device) ? 0 : kNoBinary; }

CUresult get_attribute(int *value, int, CUkernel kernel, CUdevice device) {
  if (!serves(fake(kernel), device)) return kNoBinary;
  *value = fake(kernel)->library->image->version;
  return 0;
}

CUresult set_attribute(int, int value, CUkernel kernel, CUdevice device) {
  check(value == kSharedBytes, "the device's shared memory", "");
  given_shared_memory.push_back({fake(kernel), device, false});
  return 0;
}

void (*look_at_launch)(const LaunchConfig &config, const void *parameters) = nullptr;

CUresult launch_kernel(const LaunchConfig *config, CUkernel kernel, void **parameters, void **) {
  if (!serves(fake(kernel), current_device)) return kNoBinary;
  last_launch = {fake(kernel), current_device, config->num_attributes == 1};
  if (look_at_launch) look_at_launch(*config, parameters[0]);
  ++launches;
  return 0;
}

CUresult get_device_attribute(int *value, int attribute, CUdevice) {
  constexpr int kMultiprocessorCount = 16;
  *value = attribute == kMultiprocessorCount ? kMultiprocessors : kSharedBytes;
  return 0;
}

CUresult describe_tensor(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *,
                         const uint32_t *, int, int, int, int) {
  return 0;
}

Driver make_driver() {
  Driver driver = {};
  driver.cuCtxGetDevice = get_device;
  driver.cuDeviceGetAttribute = get_device_attribute;
  driver.cuLibraryLoadData = load_data;
  driver.cuLibraryUnload = unload;
  driver.cuLibraryGetKernel = get_kernel;
  driver.cuKernelGetFunction = get_function;
  driver.cuKernelGetAttribute = get_attribute;
  driver.cuKernelSetAttribute = set_attribute;
  driver.cuLaunchKernelEx = launch_kernel;
  driver.cuTensorMapEncodeTiled = describe_tensor;
  return driver;
}

Driver driver = make_driver();

}  // namespace

const Driver &opened_driver() { return driver; }

// The devices' contexts: each test leaves the thread without one.
CurrentContext::CurrentContext(int device) { current_device = device; }
CurrentContext::~CurrentContext() { current_device = -1; }

const void *built_image(Image image) { return images_of_build[image]; }

namespace {

// --- Tests: the devices and, by number, what serves them ---------------------------------------------

constexpr int kServed = 0, kUnserved = 1, kNewer = 2, kRaced = 3, kUnloaded = 4;
constexpr int kSome = kNumKernels / 2;  // a kernel
const FakeImage kBuilt = {1 << kServed | 1 << kNewer, 80};
const FakeImage kOwn = {1 << kUnserved, 90};
const FakeImage kDamaged = {1 << kServed | 1 << kUnserved, 90, kMostKernels, kInvalidImage};

int launch_on(int device, int number, int shared_bytes = 0, Image image = kImage) {
  const CurrentContext context(device);
  return launch_shape({image, number, 0}, {{1, 1}, 128, shared_bytes, 1}, nullptr, 0);
}

int need_on(int device) {
  const CurrentContext context(device);
  return need_hopper_kernels(kImage);
}

int load_on(int device, const FakeImage *given, Image image = kImage) { return dlfp4_cuda_load(device, image, given); }

void check_unloaded(int device, const char *when, int reason = kNotInitialized) {
  const int before = launches;
  check(!dlfp4_cuda_is_loaded(device, kImage), "not loaded", when);
  check(launch_on(device, kSome) == reason && launches == before, "no launch", when);
  check(need_on(device) == (reason == kNotInitialized ? kNoBinary : reason), "no kernels", when);
}

void check_launch(int device, const FakeImage &image, const char *when) {
  for (int number : {0, kSome, kNumKernels - 1}) {
    check(launch_on(device, number) == 0 && last_launch.device == device, "a launch", when);
    check(last_launch.kernel->number == number, "the kernel asked for", when);
    check(last_launch.kernel->library->image == &image, "the kernels of the device", when);
    check(last_launch.overlaps == (image.version >= 90), "overlap of what was compiled for sm_90 alone", when);
  }
  check(dlfp4_cuda_is_loaded(device, kImage) && need_on(device) == (image.version == 90 ? 0 : kNoBinary), "the version",
        when);
}

void test_nothing_to_load() {
  check_unloaded(kServed, "at the start");
  check(load_on(kServed, nullptr) == DLFP4_CUDA_NO_IMAGE, "no image", "in the build");
  check_unloaded(kServed, "without an image");
  images_of_build[kImage] = &kDamaged;
  for (int time = 0; time < 2; ++time)
    check(load_on(kServed, nullptr) == kInvalidImage, "load", "the build's, damaged");
  check_unloaded(kServed, "with a damaged image");
  images_of_build[kImage] = &kBuilt;
  driver.cuLibraryUnload = nullptr;
  check(load_on(kServed, nullptr) == kNotSupported && loads == 0, "not supported", "by an old driver");
  driver = make_driver();
}

void test_the_image_of_the_build() {
  for (int time = 0; time < 2; ++time) check(load_on(kServed, nullptr) == 0, "load", "the build's");
  check(load_on(kServed, &kOwn) == 0, "load", "over the build's");
  check(loads == 1 && open_libraries() == 1, "loading again loads nothing", "the build's");
  check_launch(kServed, kBuilt, "the build's");
  check_unloaded(kUnserved, "beside a device that is served");
}

void test_a_device_that_it_does_not_serve() {
  for (int time = 0; time < 2; ++time) check(load_on(kUnserved, nullptr) == kNoBinary, "load", "unserved");
  check(loads == 1 && open_libraries() == 1, "the build's library stays", "unserved");
  check_unloaded(kUnserved, "by the build's");
  const struct {
    const char *name;
    FakeImage image;
    int status;
  } bad[] = {{"of another device", {1 << kServed, 90}, kNoBinary},
             {"damaged", kDamaged, kInvalidImage},
             {"without the last kernel", {1 << kUnserved, 90, kNumKernels - 1}, kNotFound}};
  for (const auto &row : bad) {
    check(load_on(kUnserved, &row.image) == row.status, "status of an image", row.name);
    check(open_libraries() == 1, "unloaded", row.name);
    check_unloaded(kUnserved, row.name);
  }
  const int before = loads;
  for (int time = 0; time < 2; ++time) check(load_on(kUnserved, &kOwn) == 0, "load", "its own");
  check(loads == before + 1 && open_libraries() == 2, "loading again loads nothing", "its own");
  check_launch(kUnserved, kOwn, "its own");
  check_launch(kServed, kBuilt, "beside a device with its own");
}

void test_a_library_is_shared() {
  const int before = loads;
  check(load_on(kNewer, nullptr) == 0 && loads == before, "no second load", "of the build's");
  check_launch(kNewer, kBuilt, "a second device");
}

// More shared memory is asked for once a kernel and device, of the device's kernel.
void test_shared_memory() {
  const FakeImage *images[] = {&kBuilt, &kOwn, &kBuilt};
  for (int time = 0; time < 2; ++time)
    for (int device : {kServed, kUnserved, kNewer}) check(launch_on(device, kSome, 100 << 10) == 0, "launch", "shared");
  check(given_shared_memory.size() == 3, "once a device", "shared");
  for (size_t i = 0; i < given_shared_memory.size() && i < 3; ++i) {
    const Launched &given = given_shared_memory[i];
    check(given.device == static_cast<int>(i) && given.kernel->library->image == images[i], "the device's", "shared");
  }
}

// One of many threads loads; all find the kernels there.
void test_threads() {
  static const FakeImage image = {1 << kRaced, 90};
  const int before = loads;
  int statuses[8];
  std::vector<std::thread> threads;
  for (int &status : statuses) threads.emplace_back([&status] { status = load_on(kRaced, &image); });
  for (std::thread &thread : threads) thread.join();
  for (int status : statuses) check(status == 0, "load", "by many threads");
  check(loads == before + 1, "one load", "by many threads");
  check_launch(kRaced, image, "loaded by many threads");
}

// The others come when they are asked for.
void test_images_apart() {
  static const FakeImage dots = {1 << kServed, 90};
  check(launch_on(kServed, 0, 0, kImage_dots) == kNotInitialized, "no launch", "of an image that is not loaded");
  check(load_on(kServed, nullptr, kImage_dots) == DLFP4_CUDA_NO_IMAGE, "no image", "of a name that the build lacks");
  images_of_build[kImage_dots] = &dots;
  const int before = loads;
  check(load_on(kServed, nullptr, kImage_dots) == 0 && loads == before + 1, "load", "apart");
  check(launch_on(kServed, 1, 0, kImage_dots) == 0 && loads == before + 1, "launch", "apart");
  check(last_launch.kernel->library->image == &dots && last_launch.kernel->number == 1, "the image's kernel", "apart");
  check(last_launch.kernel->library->found == kernels_of_dots.count, "the kernels of the image alone", "apart");
  check(last_launch.overlaps, "the version of the image", "apart");
  for (Image other : {kImage_codecs, kImage_blocks})
    check(!dlfp4_cuda_is_loaded(kServed, other), "not loaded", "beside others");
  check(dlfp4_cuda_is_loaded(kServed, kImage_dots) && !dlfp4_cuda_is_loaded(kNewer, kImage_dots), "loaded", "apart");
  check_launch(kServed, kBuilt, "beside another image");
}

void test_more_shared_memory_of_each_image() {
  given_shared_memory.clear();
  for (int time = 0; time < 2; ++time) check(launch_on(kServed, 1, 100 << 10, kImage_dots) == 0, "launch", "shared");
  check(given_shared_memory.size() == 1, "once", "of a kernel of the same number as another image's");
}

void test_names_of_images() {
  check(strcmp(dlfp4_cuda_image_name(DLFP4_CUDA_IMAGE_codecs), "codecs") == 0, "the name", "codecs");
  check(strcmp(dlfp4_cuda_image_name(kImage_products), "products") == 0, "the name", "products");
}

void test_devices_beyond_the_table() {
  static const FakeImage image = {~uint64_t{0}, 90};
  for (int device : {-1, kMaxDevices, 1 << 30}) {
    check(load_on(device, &image) == kInvalidDevice, "an invalid device", "beyond the table");
    check_unloaded(device, "beyond the table", device < 0 ? kInvalidContext : kInvalidDevice);
  }
  check_unloaded(kUnloaded, "at the end");
}

// Of an image for every GPU the kernels of the other tactics are empty: nothing is launched.
void test_products() {
  int tactics[64], all = 0;
  dlfp4_cuda_product product = {};
  product.format = DLFP4_FORMAT_nvfp4;
  product.rows = 64;
  product.columns = product.depth = product.stored_depth = product.x_stride = product.y_stride = 512;
  product.y_bytes = 2;
  while (dlfp4_cuda_tactic_name(all)) ++all;
  const struct {
    const char *name;
    int device;
    bool has_all;
  } rows[] = {{"PTX", kServed, false}, {"its own", kUnserved, true}};
  for (const auto &row : rows) {
    int count = 0;
    check(dlfp4_cuda_find_tactics(row.device, product.format, 64, 512, 512, tactics, 64, &count) == 0, "tactics",
          row.name);
    check(row.has_all ? count > 1 : count == 1 && tactics[0] == 0, "what is offered", row.name);
    for (int tactic = 0; tactic < all; ++tactic) {
      const int before = launches, status = dlfp4_cuda_multiply(row.device, 0, &product, tactic);
      if (!serves(kTactics[tactic], kNvfp4)) {
        check(status <= -DLFP4_CUDA_REFUSED && launches == before, "a tactic of FP8", row.name);
        continue;
      }
      const bool is_there = row.has_all || tactic == 0;
      check(status == (is_there ? 0 : kNoBinary) && launches == before + is_there, "a product", row.name);
    }
  }
}

// Those of FP8 are for sm_90a alone, by the tactics that it has and with the scales that they need.
void test_products_of_bytes() {
  static const float scale = 1;
  dlfp4_cuda_bytes_product product = {};
  product.rows = 64;
  product.columns = product.depth = product.x.stride = product.w.stride = product.y_stride = 512;
  product.y_bytes = 2;
  for (int lines : {0, 1, 128})
    for (int device : {int{kServed}, int{kUnserved}})
      for (int tactic = 0; tactic < kNumTactics; ++tactic) {
        product.x.scale_lines = lines > 0;
        product.w.scale_lines = lines;
        product.x.scale_step = product.w.scale_step = lines > 0;
        product.x.scales = product.w.scales = lines > 0 ? &scale : nullptr;
        const int before = launches, status = dlfp4_cuda_multiply_bytes(device, 0, &product, tactic);
        const bool is_served = serves(kTactics[tactic], byte_kind(product)),
                   is_there = device == kUnserved && is_served;
        check(launches == before + is_there, "a product of FP8", kTactics[tactic].name);
        check(is_served ? status == (is_there ? 0 : kNoBinary) : status <= -DLFP4_CUDA_REFUSED, "its status",
              kTactics[tactic].name);
      }
  product.x.scales = nullptr;
  check(dlfp4_cuda_multiply_bytes(kUnserved, 0, &product, 1) <= -DLFP4_CUDA_REFUSED, "one side without scales", "FP8");
}

// What the warps of a block of threads have lies in its memory, and they share all of K.
void check_cut(const StreamCut &cut, int64_t warps, int eights, int64_t bytes, int kind, int64_t depth) {
  const int64_t sums = cut.memory.sums + int64_t{cut.tiles} * sums_bytes_of_tile(eights);
  const char *what = "the shape of a product";
  check(warps >= 1 && warps <= kMostWarps && cut.tiles >= 1, "warps and tiles", what);
  check(sums <= cut.memory.stage && cut.memory.stage < cut.memory.bytes, "sums before weights", what);
  check(cut.memory.bytes % 128 == 0 && cut.memory.stage % 128 == 0, "places of warps", what);
  check(warps * cut.memory.bytes + kFactorBytes <= bytes, "shared memory", what);
  const int64_t slices =
      int64_t{cut.full_warps} * cut.slices_of_warp + (warps - cut.full_warps) * (cut.slices_of_warp - 1);
  const int of_slice = kBlockK * slice_blocks(weight_layout(kind).bits);
  check(slices == (depth + of_slice - 1) / of_slice, "slices of K", what);
}

// Blocks of threads reach all of y, one at a time on a multiprocessor.
void check_stream(const LaunchConfig &config, const void *parameters) {
  const StreamParams &p = *static_cast<const StreamParams *>(parameters);
  const int eights = p.product.rows > 8 ? 2 : 1;
  check_cut(p.cut, config.block[0] / kWarpSize, eights, config.shared_bytes, p.product.weights ? kMxfp8 : kNvfp4,
            p.product.depth);
  constexpr unsigned int kReserved = 1024;  // of a block of threads, besides
  const char *what = "the shape of a product";
  check(config.shared_bytes <= kSharedBytes, "what there is", what);
  check(2 * (config.shared_bytes + kReserved) > kSharedBytes + kReserved, "one block at a time", what);
  check(int64_t{config.grid[0]} * p.cut.tiles * kTile >= p.product.columns, "columns", what);
  check(config.grid[1] * 8 * eights >= static_cast<unsigned>(p.product.rows) && config.grid[1] <= UINT16_MAX, "rows",
        what);
}

void test_shapes_of_stream() {
  look_at_launch = check_stream;
  for (int format : {DLFP4_FORMAT_nvfp4, DLFP4_FORMAT_mxfp4, DLFP4_FORMAT_mxfp8_e4m3})
    for (int64_t rows : {1, 8, 9, 16, 80, 32768, (1 << 20) - 16})
      for (int64_t columns : {1, 4096, 6416, 128256})
        for (int64_t depth : {8, 256, 4096, 8192, 14336}) {
          dlfp4_cuda_product product = {};
          product.format = format;
          product.weights = format == DLFP4_FORMAT_mxfp8_e4m3 ? &product : nullptr;  // says it to check_stream
          product.rows = rows;
          product.columns = product.y_stride = columns;
          product.depth = product.stored_depth = product.x_stride = depth;
          product.y_bytes = 2;
          check(dlfp4_cuda_multiply(kServed, 0, &product, 0) == 0, "launched", "the shape of a product");
        }
  look_at_launch = nullptr;
}

// Warps share K as for one tile of one matrix. What they have lies in their memory, then what all have.
void check_streamed_experts(const LaunchConfig &config, const void *parameters) {
  const GroupedStreamParams &p = *static_cast<const GroupedStreamParams *>(parameters);
  const StreamedCut &cut = p.cut;
  const int kind = p.experts - 3, warps = config.block[0] / kWarpSize;
  int of_one_matrix;
  const StreamCut of_matrix = cut_stream(p.product, kind, 1, 1, &of_one_matrix);
  const char *what = "streamed experts";
  check(warps == of_one_matrix && cut.slices_of_warp == of_matrix.slices_of_warp, "shares of K", what);
  check(cut.full_warps == of_matrix.full_warps, "shares of K", what);
  check(cut.stage == cut.slices_of_warp * x_slice_bytes(kind, 1) && cut.stage % 128 == 0, "x", what);
  check(cut.bytes == cut.stage + 2 * slice_of_tile_bytes(kind) && cut.bytes % 128 == 0, "weights", what);
  check(cut.sums == warps * cut.bytes && cut.barriers == cut.sums + 8 * kTile * 4 * kPassed, "sums", what);
  check(cut.schedule == cut.barriers + warps * kPassed * 8, "barriers", what);
  const int bytes = static_cast<int>(config.shared_bytes), at_once = config.grid[0] / kMultiprocessors;
  check(bytes == cut.schedule + 2 * 4 * kMostExperts, "the schedule", what);
  constexpr int kReserved = 1024;  // of a block of threads, besides
  check(at_once >= 1 && at_once * (bytes + kReserved) <= kSharedBytes + kReserved, "blocks of threads at once", what);
  check(at_once * warps <= kMostStreamingWarps, "warps at once", what);
}

void test_streamed_experts() {
  static const FakeImage image = {1 << kServed, 90};
  check(load_on(kServed, &image, kImage_grouped) == 0, "load", "streamed experts");
  look_at_launch = check_streamed_experts;
  const int32_t end = 0;
  for (int format : {DLFP4_FORMAT_nvfp4, DLFP4_FORMAT_mxfp4, DLFP4_FORMAT_mxfp8_e4m3})
    for (int64_t columns : {1, 5760})
      for (int64_t depth : {8, 256, 2048, 2880, 4096, 7168, 8192}) {
        dlfp4_cuda_product product = {};
        product.format = format;
        product.rows = 3;
        product.columns = product.y_stride = columns;
        product.depth = product.stored_depth = product.x_stride = depth;
        product.y_bytes = 2;
        dlfp4_cuda_routing routing = {};
        routing.ends = &end;
        routing.end_bits = 32;
        routing.experts = 3 + weight_kind(format);  // says it to check_streamed_experts
        const int before = launches;
        check(dlfp4_cuda_grouped_matmul(kServed, 0, &product, 0, &routing) == 0, "its status", "streamed experts");
        check(launches == before + 1, "launched", "streamed experts");
      }
  look_at_launch = nullptr;
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

int main() {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  test_nothing_to_load();
  test_the_image_of_the_build();
  test_a_device_that_it_does_not_serve();
  test_a_library_is_shared();
  test_shared_memory();
  test_threads();
  test_images_apart();
  test_more_shared_memory_of_each_image();
  test_names_of_images();
  test_devices_beyond_the_table();
  test_products();
  test_products_of_bytes();
  test_shapes_of_stream();
  test_streamed_experts();
  return report();
}
