// Checks whose memory it is that captures allocate and free, without a GPU.
// Layout: graphs that hold user objects, streams that are captured into them or not, memory that is allocated or not.
// Trick: the driver is a table of functions, so that the linker takes this file's instead of driver.cpp.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for memory
#endif

#include "gpu/captured.h"

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "gpu/context.h"
#include "support.h"

namespace dlfp4 {
namespace cuda {
namespace {

// --- The driver ----------------------------------------------------------------------------------

constexpr int kRefused = 1, kOutOfMemory = 2;
enum State { kNotCaptured, kCaptured, kInvalidated, kImplicit };

struct Object {
  void *block;
  void (*end)(void *);
  unsigned references;
};

struct Graph {
  uint64_t id;
  std::vector<Object *> objects;
};

struct Stream {
  State state = kNotCaptured;
  Graph *graph = nullptr;
};

// A call of the driver holds it while it changes what is here, as drivers hold their own.
std::mutex driver_mutex;
using Locked = std::lock_guard<std::mutex>;

std::set<CUdeviceptr> live;
std::map<CUdeviceptr, int> waits;  // for the last use of freed memory
CUdeviceptr next_address = 0x1000;
int open_streams, open_events, waited, failing_streams, failing_objects;

Stream legacy;  // whose handle is 1

Stream *fake(CUstream stream) {
  return reinterpret_cast<uintptr_t>(stream) == 1 ? &legacy : reinterpret_cast<Stream *>(stream);
}
Graph *fake(CUgraph graph) { return reinterpret_cast<Graph *>(graph); }
Object *fake(CUuserObject object) { return reinterpret_cast<Object *>(object); }
uintptr_t handle(Stream *stream) { return stream == &legacy ? 1 : reinterpret_cast<uintptr_t>(stream); }

bool fails(int *times) { return *times > 0 && (*times)-- > 0; }

CUresult get_capture_info(CUstream stream, int *state, uint64_t *id, CUgraph *graph, const void **, size_t *) {
  if (fake(stream)->state == kImplicit) return kRefused;
  *state = fake(stream)->state;
  if (*state != kCaptured) return 0;
  *id = fake(stream)->graph->id;
  *graph = reinterpret_cast<CUgraph>(fake(stream)->graph);
  return 0;
}

CUresult create_stream(CUstream *stream, unsigned) {
  const Locked locked(driver_mutex);
  if (fails(&failing_streams)) return kRefused;
  ++open_streams;
  waited = 0;
  *stream = reinterpret_cast<CUstream>(new Stream);
  return 0;
}

CUresult destroy_stream(CUstream stream) {
  const Locked locked(driver_mutex);
  --open_streams;
  delete fake(stream);
  return 0;
}

CUresult allocate(CUdeviceptr *memory, size_t bytes, CUstream stream) {
  const Locked locked(driver_mutex);
  check(fake(stream)->state == kNotCaptured, "memory is no node of a graph", "");
  if (bytes > 1 << 20) return kOutOfMemory;
  *memory = next_address += 0x1000;
  live.insert(*memory);
  return 0;
}

CUresult release(CUdeviceptr memory, CUstream stream) {
  const Locked locked(driver_mutex);
  if (fake(stream)->state != kNotCaptured) return kRefused;
  check(live.erase(memory) == 1, "memory is freed once", "");
  waits[memory] = waited;
  return 0;
}

CUresult synchronize(CUstream) { return 0; }

CUresult create_event(CUevent *event, unsigned) {
  const Locked locked(driver_mutex);
  ++open_events;
  *event = reinterpret_cast<CUevent>(new int(0));
  return 0;
}

CUresult record_event(CUevent, CUstream stream) { return fake(stream)->state == kNotCaptured ? 0 : kRefused; }

CUresult wait_event(CUstream, CUevent, unsigned) {
  const Locked locked(driver_mutex);
  ++waited;
  return 0;
}

CUresult destroy_event(CUevent event) {
  const Locked locked(driver_mutex);
  --open_events;
  delete reinterpret_cast<int *>(event);
  return 0;
}

CUresult create_object(CUuserObject *object, void *block, void (*end)(void *), unsigned references, unsigned) {
  const Locked locked(driver_mutex);
  if (fails(&failing_objects)) return kRefused;
  *object = reinterpret_cast<CUuserObject>(new Object{block, end, references});
  return 0;
}

CUresult retain_object(CUuserObject object, unsigned count) {
  const Locked locked(driver_mutex);
  fake(object)->references += count;
  return 0;
}

CUresult release_object(CUuserObject object, unsigned count) {
  const Locked locked(driver_mutex);
  Object *released = fake(object);
  check(released->references >= count, "references are released once", "");
  released->references -= count;
  if (released->references > 0) return 0;
  released->end(released->block);
  delete released;
  return 0;
}

CUresult give_to_graph(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  const Locked locked(driver_mutex);
  check(count == 1 && flags == 1, "a reference moves to the graph", "");
  fake(graph)->objects.push_back(fake(object));
  return 0;
}

Driver make_driver() {
  Driver driver = {};
  driver.cuStreamGetCaptureInfo = get_capture_info;
  driver.cuStreamCreate = create_stream;
  driver.cuStreamDestroy = destroy_stream;
  driver.cuMemAllocAsync = allocate;
  driver.cuMemFreeAsync = release;
  driver.cuStreamSynchronize = synchronize;
  driver.cuEventCreate = create_event;
  driver.cuEventRecord = record_event;
  driver.cuStreamWaitEvent = wait_event;
  driver.cuEventDestroy = destroy_event;
  driver.cuUserObjectCreate = create_object;
  driver.cuUserObjectRetain = retain_object;
  driver.cuUserObjectRelease = release_object;
  driver.cuGraphRetainUserObject = give_to_graph;
  return driver;
}

Driver driver = make_driver();

}  // namespace

const Driver &opened_driver() { return driver; }

namespace {

// --- What a program does -------------------------------------------------------------------------

constexpr int kDevice = 0, kOtherDevice = 1;

Graph *begin(Stream *stream) {
  static std::atomic<uint64_t> captures{0};
  stream->state = kCaptured;
  return stream->graph = new Graph{++captures, {}};
}

void finish(Stream *stream) { stream->state = kNotCaptured; }

void destroy(Graph *graph) {
  for (Object *object : graph->objects) release_object(reinterpret_cast<CUuserObject>(object), 1);
  delete graph;
}

// As driver.cpp does both.
void *take(Stream *stream, size_t bytes, int device = kDevice) {
  void *memory = nullptr;
  int status = 0;
  if (allocate_if_captured(device, handle(stream), bytes, &memory, &status)) return status == 0 ? memory : nullptr;
  CUdeviceptr address = 0;
  allocate(&address, bytes, reinterpret_cast<CUstream>(stream));
  return reinterpret_cast<void *>(address);
}

void drop(Stream *stream, void *memory, int device = kDevice, bool serves_again = true, int readers = 0) {
  int status = 0;
  std::vector<CUevent> events(static_cast<size_t>(readers));
  for (CUevent &event : events) create_event(&event, 0);
  if (!free_if_captured(device, handle(stream), memory, serves_again, events, &status))
    status = release(reinterpret_cast<CUdeviceptr>(memory), reinterpret_cast<CUstream>(stream));
  const Locked locked(driver_mutex);  // counts checks, too
  check(status == 0, "memory is freed", "");
}

bool is_live(void *memory) { return live.count(reinterpret_cast<CUdeviceptr>(memory)) == 1; }

// A call in which nothing is captured.
void call(int device = kDevice) {
  Stream other;
  drop(&other, take(&other, 16, device), device);
}

void check_nothing_left(const char *detail) {
  call();
  check(live.empty(), "no memory is left", detail);
  check(open_streams == 0 && open_events == 0, "no stream or event is left", detail);
}

// --- Tests -------------------------------------------------------------------------------------

void test_outliving(bool graph_first) {
  Stream stream;
  Graph *graph = begin(&stream);
  void *memory = take(&stream, 64);
  finish(&stream);
  if (graph_first) {
    destroy(graph);
    call();
    check(is_live(memory), "a tensor outlives its graph", "");
    drop(&stream, memory);
    check(waits[reinterpret_cast<CUdeviceptr>(memory)] == 1, "after its last use", "");
  } else {
    drop(&stream, memory);
    call();
    check(is_live(memory), "a graph outlives its tensor", "");
    destroy(graph);
  }
  check_nothing_left(graph_first ? "graph first" : "tensor first");
}

void test_use_on_another_stream() {
  Stream stream;
  Graph *graph = begin(&stream);
  void *read = take(&stream, 64), *other = take(&stream, 64);
  drop(&stream, read, kDevice, false);
  drop(&stream, other);
  check(take(&stream, 64) == other, "what another stream of the capture reads does not serve again", "");
  drop(&stream, other);
  finish(&stream);
  check(is_live(read), "but stays with the graph", "");
  destroy(graph);
  check_nothing_left("use on another stream");
}

void test_reuse() {
  Stream stream, other;
  Graph *graph = begin(&stream);
  other.state = kCaptured, other.graph = graph;
  void *large = take(&stream, 4096), *small = take(&stream, 64);
  drop(&stream, large);
  drop(&stream, small);
  void *of_other = take(&other, 64);
  check(of_other != small, "another stream of the capture gets memory of its own", "");
  check(take(&stream, 32) == small, "the smallest that fits serves again", "");
  check(take(&stream, 65) == large, "and then the larger one", "");
  check(take(&stream, 2 << 20) == nullptr, "no memory is an error", "");
  drop(&stream, small);
  drop(&other, of_other);
  finish(&stream);
  finish(&other);
  Graph *next = begin(&stream);
  drop(&stream, large);
  void *of_next = take(&stream, 32);
  check(of_next != large && of_next != small, "another capture gets memory of its own", "");
  drop(&stream, of_next);
  finish(&stream);
  destroy(graph);
  destroy(next);
  check_nothing_left("reuse");
}

// A tensor of one capture that ends in another, which may have used it.
void test_two_captures(bool first_ends_first) {
  Stream stream;
  Graph *first = begin(&stream);
  void *memory = take(&stream, 64);
  finish(&stream);
  Graph *second = begin(&stream);
  if (first_ends_first) destroy(first);
  drop(&stream, memory);
  finish(&stream);
  if (!first_ends_first) destroy(first);
  call();
  check(is_live(memory), "the second graph has it", first_ends_first ? "first ends first" : "");
  destroy(second);
  check_nothing_left("two captures");
}

void test_from_before() {
  Stream stream;
  void *memory = take(&stream, 64);
  Graph *graph = begin(&stream);
  drop(&stream, memory);
  finish(&stream);
  call();
  check(is_live(memory), "kept as long as the graph", "");
  destroy(graph);
  check_nothing_left("from before");
}

// Streams that are not captured may still read it.
void test_readers(bool from_before) {
  Stream stream;
  void *memory = from_before ? take(&stream, 64) : nullptr;
  Graph *graph = begin(&stream);
  if (!from_before) memory = take(&stream, 64);
  drop(&stream, memory, kDevice, true, 2);
  finish(&stream);
  destroy(graph);
  call();
  check(waits[reinterpret_cast<CUdeviceptr>(memory)] == 2, "memory is given back after its readers",
        from_before ? "from before" : "of the capture");
  check_nothing_left("readers");
}

// The legacy stream's own, while a stream is captured that waits for it: the driver frees nothing there.
void test_legacy_stream() {
  void *memory = take(&legacy, 64), *in_graph = take(&legacy, 64);
  legacy.state = kImplicit;
  drop(&legacy, memory, kDevice, true, 1);
  drop(&legacy, in_graph, kDevice, false);
  call();
  check(is_live(memory), "kept while the driver refuses", "");
  legacy.state = kNotCaptured;
  call();
  check(!is_live(memory) && waits[reinterpret_cast<CUdeviceptr>(memory)] == 1, "freed after it and its reader", "");
  check(is_live(in_graph), "kept for a graph that is not known", "");
  live.erase(reinterpret_cast<CUdeviceptr>(in_graph));
  check_nothing_left("legacy stream");
}

void test_failed_capture() {
  Stream stream;
  void *before = take(&stream, 64);
  Graph *graph = begin(&stream);
  void *within = take(&stream, 64);
  stream.state = kInvalidated;
  drop(&stream, before);
  drop(&stream, within);
  destroy(graph);
  finish(&stream);
  check_nothing_left("a capture that failed");
}

void test_failures() {
  Stream stream;
  Graph *graph = begin(&stream);
  failing_objects = 1;
  check(take(&stream, 64) == nullptr, "an object that is refused is an error", "");
  void *before = take(&stream, 64);
  drop(&stream, before);
  finish(&stream);
  destroy(graph);
  failing_streams = 1;
  Stream other;
  void *memory = take(&other, 64);
  check(is_live(memory), "giving back may fail, allocating does not", "");
  check(is_live(before), "what could not be given back is not lost", "");
  drop(&other, memory);
  check_nothing_left("failures");
}

void test_devices() {
  Stream stream;
  Graph *graph = begin(&stream);
  void *memory = take(&stream, 64, kOtherDevice);
  drop(&stream, memory, kOtherDevice);
  finish(&stream);
  destroy(graph);
  call(kDevice);
  check(is_live(memory), "a call on one device leaves another's memory", "");
  call(kOtherDevice);
  check_nothing_left("devices");
}

// Each captures into graphs of its own, while others give back what is over; the legacy stream is refused all the time.
void test_threads() {
  legacy.state = kImplicit;
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number)
    threads.emplace_back([] {
      for (int round = 0; round < 100; ++round) {
        Stream stream;
        void *before = take(&stream, 64), *of_legacy = nullptr;
        allocate(reinterpret_cast<CUdeviceptr *>(&of_legacy), 64, reinterpret_cast<CUstream>(&stream));
        Graph *graph = begin(&stream);
        void *within = take(&stream, 64);
        drop(&stream, before);
        drop(&legacy, of_legacy);
        drop(&stream, within);
        within = take(&stream, 32);
        finish(&stream);
        if (round % 2) destroy(graph);
        drop(&stream, within);
        if (round % 2 == 0) destroy(graph);
      }
    });
  for (std::thread &thread : threads) thread.join();
  legacy.state = kNotCaptured;
  check_nothing_left("threads");
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

int main() {
  using namespace dlfp4::cuda;
  for (bool first : {false, true}) {
    test_outliving(first);
    test_two_captures(first);
  }
  test_reuse();
  test_use_on_another_stream();
  test_from_before();
  test_readers(true);
  test_readers(false);
  test_legacy_stream();
  test_failed_capture();
  test_failures();
  test_devices();
  test_threads();
  return dlfp4::report();
}
