// Memory that is allocated while a stream is captured. It keeps its address, and lives as long as its graph or its
// tensor, whichever ends later. The driver's own allocations would cost 1.5 us each in every replay of the graph, and
// kernels would not overlap across them.
// Layout: a table of blocks by address; each is a user object of the driver, to which its graph and its tensor refer.
// Trick: what a capture has freed serves it again on the same stream, where work runs in the order in which it was put.
#include "captured.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "context.h"

namespace dlfp4 {
namespace cuda {
namespace {

constexpr int kCaptureActive = 1, kCaptureRefused = 3;  // 2: a capture that has failed
constexpr uintptr_t kLegacyStream = 1;                  // 0 is the same
constexpr unsigned kNonBlocking = 1, kNoDestructorSync = 1, kMoveToGraph = 1;
constexpr unsigned kGraph = 1, kGraphAndTensor = 2;  // who refers to a block

struct Block {
  void *memory;
  size_t bytes;
  int device;
  uintptr_t stream;
  uint64_t capture;
  CUuserObject object = nullptr;
  std::vector<CUevent> last_uses = {};  // outside of the capture
  bool of_legacy = false;               // freed when the legacy stream takes work again, in its order
  bool is_idle = false;                 // no tensor has it
  std::atomic<bool> is_over{false};
};

struct Blocks {
  std::mutex mutex;  // never held while the driver is called, which may wait for `end`
  std::unordered_map<void *, std::unique_ptr<Block>> by_address;
  std::atomic<size_t> count{0}, over[kMaxDevices]{};
};

// Never destroyed: graphs may end after static objects do.
Blocks &blocks() {
  static Blocks *all = new Blocks;
  return *all;
}

// The driver reports on any thread, where it may not be called, that neither a graph nor a tensor has a block.
void end(void *block) {
  const int device = static_cast<Block *>(block)->device;
  static_cast<Block *>(block)->is_over = true;
  ++blocks().over[device];
}

// What a stream is captured into: no graph if it is not captured, or no longer, because something went wrong.
struct Capture {
  int state = 0;
  uint64_t id = 0;
  CUgraph graph = nullptr;

  explicit Capture(uintptr_t stream) {
    const int status = opened_driver().cuStreamGetCaptureInfo(reinterpret_cast<CUstream>(stream), &state, &id, &graph,
                                                              nullptr, nullptr);
    // The driver takes nothing on the legacy stream while a stream that waits for it is captured.
    if (status != 0) state = stream <= kLegacyStream ? kCaptureRefused : 0;
    if (state != kCaptureActive) graph = nullptr;
  }
  bool is_there() const { return state != 0; }
};

// A stream for a moment, which nothing captures.
class OwnStream {
 public:
  OwnStream() { status_ = opened_driver().cuStreamCreate(&stream_, kNonBlocking); }
  ~OwnStream() {
    if (status_ == 0) opened_driver().cuStreamDestroy(stream_);
  }
  OwnStream(const OwnStream &) = delete;
  OwnStream &operator=(const OwnStream &) = delete;
  int status() const { return status_; }
  CUstream get() const { return stream_; }

 private:
  CUstream stream_ = nullptr;
  int status_;
};

// --- Taking and giving back ----------------------------------------------------------------------

int allocate_now(size_t bytes, void **out) {
  const OwnStream own;
  CUdeviceptr memory = 0;
  int status = own.status() != 0 ? own.status() : opened_driver().cuMemAllocAsync(&memory, bytes, own.get());
  if (status != 0) return status;
  *out = reinterpret_cast<void *>(memory);
  status = opened_driver().cuStreamSynchronize(own.get());
  if (status != 0) opened_driver().cuMemFreeAsync(memory, own.get());
  return status;
}

std::vector<std::unique_ptr<Block>> take_what_is_over(int device, bool legacy_is_refused) {
  std::vector<std::unique_ptr<Block>> over;
  const std::lock_guard<std::mutex> lock(blocks().mutex);
  auto &all = blocks().by_address;
  for (auto each = all.begin(); each != all.end();) {
    const Block &block = *each->second;  // what else it says may be read once it is over
    const bool is_over = block.device == device && block.is_over && !(block.of_legacy && legacy_is_refused);
    if (is_over) over.push_back(std::move(each->second));
    each = is_over ? all.erase(each) : std::next(each);
  }
  blocks().count = all.size();
  blocks().over[device] -= over.size();
  return over;
}

// Of the current device. A failure concerns no present caller.
void give_back_what_is_over(int device) {
  if (blocks().over[device] == 0) return;
  const Driver &driver = opened_driver();
  const OwnStream own;
  if (own.status() != 0) return;
  for (const auto &block : take_what_is_over(device, Capture(kLegacyStream).is_there())) {
    const CUstream order = block->of_legacy ? reinterpret_cast<CUstream>(block->stream) : own.get();
    for (CUevent use : block->last_uses) {
      driver.cuStreamWaitEvent(order, use, 0);
      driver.cuEventDestroy(use);
    }
    driver.cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(block->memory), order);
  }
}

// The smallest that is idle and large enough, for another tensor.
Block *take_idle(uint64_t capture, uintptr_t stream, size_t bytes) {
  const std::lock_guard<std::mutex> lock(blocks().mutex);
  Block *best = nullptr;
  for (const auto &each : blocks().by_address) {
    Block *block = each.second.get();
    const bool fits = block->is_idle && block->capture == capture && block->stream == stream && block->bytes >= bytes;
    if (fits && (!best || block->bytes < best->bytes)) best = block;
  }
  if (best) best->is_idle = false;
  return best;
}

Block *add_block(void *memory, size_t bytes, int device, uintptr_t stream, const Capture &capture) {
  std::unique_ptr<Block> block(new Block{memory, bytes, device, stream, capture.id});
  Block *own = block.get();
  const std::lock_guard<std::mutex> lock(blocks().mutex);
  blocks().by_address[memory] = std::move(block);
  blocks().count = blocks().by_address.size();
  return own;
}

// From then on the driver reports its end.
int belong_to(CUgraph graph, Block *block, unsigned references) {
  const Driver &driver = opened_driver();
  const int status = driver.cuUserObjectCreate(&block->object, block, end, references, kNoDestructorSync);
  return status != 0 ? status : driver.cuGraphRetainUserObject(graph, block->object, 1, kMoveToGraph);
}

// The same; a block that the graph does not take ends here.
int give_to(CUgraph graph, Block *block, unsigned references) {
  const int status = belong_to(graph, block, references);
  if (status != 0 && block->object)
    opened_driver().cuUserObjectRelease(block->object, references);
  else if (status != 0)
    end(block);
  return status;
}

int allocate_new(int device, uintptr_t stream, const Capture &capture, size_t bytes, void **out) {
  if (const int status = allocate_now(bytes, out)) return status;
  Block *block = add_block(*out, bytes, device, stream, capture);
  return give_to(capture.graph, block, kGraphAndTensor);
}

// Memory from before the capture, which the driver does not free now. It is kept as long as the graph, whose nodes may
// use it, or until the next call if the capture has failed: work from before the capture is taken to have ended by
// then. Memory of the legacy stream is freed after the capture, or never if an unknown graph reads it.
int keep(int device, uintptr_t stream, const Capture &capture, void *memory, bool in_graph,
         std::vector<CUevent> readers) {
  Block *block = add_block(memory, 0, device, stream, capture);
  block->last_uses = std::move(readers);
  block->of_legacy = capture.state == kCaptureRefused;
  if (capture.graph) return give_to(capture.graph, block, kGraph);
  if (!block->of_legacy || !in_graph) end(block);
  return 0;
}

// After a capture, work of the stream that belongs to no graph may have read a tensor.
int mark_last_use(Block *block) {
  const Driver &driver = opened_driver();
  CUevent event = nullptr;
  const int status = driver.cuEventCreate(&event, kEventDisableTiming);
  if (status != 0) return status;
  block->last_uses.push_back(event);
  return driver.cuEventRecord(event, reinterpret_cast<CUstream>(block->stream));
}

void set_idle(Block *block) {
  const std::lock_guard<std::mutex> lock(blocks().mutex);
  block->is_idle = true;
}

// The end of the block's tensor. Another capture may have used the block; its graph then has it too.
int free_block(Block *block, const Capture &capture, bool serves_again, const std::vector<CUevent> &readers) {
  const Driver &driver = opened_driver();
  block->last_uses.insert(block->last_uses.end(), readers.begin(), readers.end());
  if (capture.graph && capture.id != block->capture)
    return driver.cuGraphRetainUserObject(capture.graph, block->object, 1, kMoveToGraph);
  if (capture.graph && serves_again) set_idle(block);
  const int status = capture.is_there() ? 0 : mark_last_use(block);
  const int released = driver.cuUserObjectRelease(block->object, 1);
  return status != 0 ? status : released;
}

Block *find(void *memory) {
  const std::lock_guard<std::mutex> lock(blocks().mutex);
  const auto found = blocks().by_address.find(memory);
  return found == blocks().by_address.end() ? nullptr : found->second.get();
}

}  // namespace

bool allocate_if_captured(int device, uintptr_t stream, size_t bytes, void **out, int *status) {
  give_back_what_is_over(device);
  const Capture capture(stream);
  if (!capture.graph) return false;
  Block *idle = take_idle(capture.id, stream, bytes);
  if (idle) *out = idle->memory;
  *status =
      idle ? opened_driver().cuUserObjectRetain(idle->object, 1) : allocate_new(device, stream, capture, bytes, out);
  return true;
}

bool free_if_captured(int device, uintptr_t stream, void *memory, bool serves_again, std::vector<CUevent> readers,
                      int *status) {
  const Capture capture(stream);
  Block *block = blocks().count > 0 ? find(memory) : nullptr;
  if (!block && !capture.is_there()) return false;
  *status = block ? free_block(block, capture, serves_again, readers)
                  : keep(device, stream, capture, memory, !serves_again, std::move(readers));
  give_back_what_is_over(device);
  return true;
}

}  // namespace cuda
}  // namespace dlfp4
