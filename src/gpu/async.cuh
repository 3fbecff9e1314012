// Instructions that work while the thread goes on: copies, barriers in shared memory, products of a warp.
// Layout: shared memory by its 32-bit addresses.
// A function wraps an instruction. Only kernels for sm_90a use those of sm_90a.
#ifndef DLFP4_SRC_GPU_ASYNC_CUH_
#define DLFP4_SRC_GPU_ASYNC_CUH_

#include "elements.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define DLFP4_HOPPER
#endif

namespace dlfp4 {
namespace cuda {

enum OperandType { kBfloat16, kFloat16 };  // of products

extern __shared__ __align__(1024) uint8_t shared_memory[];  // as much as the launch asks for

__device__ inline uint32_t shared_address(const void *ptr) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(ptr));
}

// This thread's lane, read anew at every call, so that nothing computed from it holds registers before.
__device__ inline int read_lane() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// A warp's number, in a form in which the compiler knows that its lanes agree on it. All of them have to ask.
__device__ inline int warp_of_block() { return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarpSize), 0); }

// A value that stays in a register, instead of being computed anew in each turn of a loop.
__device__ inline uint32_t held(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// --- Overlap with the kernel before (programmatic dependent launch) ----------------------------

__device__ inline void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// --- Shared memory ---------------------------------------------------------------------------

__device__ inline void load_shared(uint32_t address, uint32_t (&to)[1]) {
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to[0]) : "r"(address));
}

__device__ inline void load_shared(uint32_t address, uint32_t (&to)[2]) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address));
}

__device__ inline float load_shared_float(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}

__device__ inline void load_shared_pair(uint32_t address, float (&to)[2]) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "r"(address));
}

__device__ inline void store_shared_float(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ inline void load_shared_16(uint32_t address, uint32_t *to) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}

// Predicated, without a branch.
__device__ inline void load_shared_16(uint32_t address, bool wanted, float *to) {
  asm volatile("{.reg .pred wanted; setp.ne.b32 wanted, %5, 0; @wanted ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];}"
               : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3])
               : "r"(address), "r"(static_cast<int>(wanted)));
}

// The byte's sign is the result's.
__device__ inline uint32_t load_shared_byte(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.s8 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}

__device__ inline void store_shared_16(uint32_t address, const uint32_t *from) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(from[0]), "r"(from[1]), "r"(from[2]),
               "r"(from[3])
               : "memory");
}

__device__ inline void store_shared_16(uint32_t address, const float *from) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(from[0]), "f"(from[1]), "f"(from[2]),
               "f"(from[3])
               : "memory");
}

// --- Copies of 16 bytes a thread, and products of a warp ---------------------------------------

// Copies 16 bytes, or writes zeros and reads nothing.
__device__ inline void copy_16(uint32_t to, const uint8_t *from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ inline void copy_8(uint32_t to, const uint8_t *from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(there ? 8 : 0) : "memory");
}

__device__ inline void copy_4(uint32_t to, const void *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most so many groups, the last ones, are under way.
template <int Pending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Four matrices of 8 x 8 16-bit elements; the lane's address is that of a row.
__device__ inline void load_matrices(uint32_t address, uint32_t *to) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}

// The same back.
__device__ inline void store_matrices(uint32_t address, const uint32_t *from) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(from[0]),
               "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// The same of two.
__device__ inline void store_two_matrices(uint32_t address, const uint32_t *from) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(from[0]), "r"(from[1])
               : "memory");
}

// Four matrices turned around; the lane's address is that of a row.
__device__ inline void store_matrices_turned(uint32_t address, const uint32_t *from) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(from[0]),
               "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

#define DLFP4_MMA(type)                                                               \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

template <int Type>
__device__ inline void multiply_tile(float *sums, const uint32_t *a, const uint32_t *b) {
  if constexpr (Type == kBfloat16)
    DLFP4_MMA("bf16");
  else
    DLFP4_MMA("f16");
}
#undef DLFP4_MMA

#ifdef DLFP4_HOPPER
// Whether this lane is the one of its warp, all of which is here, that does what takes one thread. The compiler knows
// then that one lane is active: addresses of its copies are the warp's own values, and no loop looks for other lanes'.
__device__ inline bool is_elected() {
  uint32_t is;
  asm volatile("{.reg .pred is; elect.sync _|is, 0xFFFFFFFF; selp.u32 %0, 1, 0, is;}" : "=r"(is));
  return is != 0;
}

// --- Barriers ------------------------------------------------------------------------------------

__device__ inline void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// At a barrier of a block of the cluster, by address_at_rank. Not with .release.cluster, for which all threads' memory
// operations are waited for: what was read before needs no more than their order, which the data dependence gives.
__device__ inline void arrive_in_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// As soon as all copies of this thread have ended that it began by copy_4 and the like.
__device__ inline void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Whether the barrier has passed that phase, without a wait.
__device__ inline bool has_passed(uint32_t barrier, int phase) {
  uint32_t passed;
  asm volatile(
      "{.reg .pred passed; mbarrier.test_wait.parity.shared::cta.b64 passed, [%1], %2; selp.u32 %0, 1, 0, passed;}"
      : "=r"(passed)
      : "r"(barrier), "r"(phase)
      : "memory");
  return passed != 0;
}

__device__ inline void wait_for(uint32_t barrier, uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n"
      "}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

__device__ inline void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ inline void sync_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}

// Synchronises all threads of a block but the producer's.
__device__ inline void sync_consumers() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// A consumer's warpgroup.
__device__ inline void sync_consumer(int number) { asm volatile("bar.sync %0, 128;" ::"r"(2 + number) : "memory"); }

// Of two consumers one does what the other has let it do.
__device__ inline void wait_for_turn(int number) { asm volatile("bar.sync %0, 256;" ::"r"(4 + number) : "memory"); }
__device__ inline void give_turn(int number) { asm volatile("bar.arrive %0, 256;" ::"r"(4 + number) : "memory"); }

// The same place in the memory of a block of the cluster.
__device__ inline uint32_t address_at_rank(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// The larger of two numbers, in the memory of a block of the cluster.
__device__ inline void raise_in_cluster(uint32_t address, uint32_t value) {
  asm volatile("red.shared::cluster.max.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ inline float4 load_from_cluster(uint32_t address) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address));
  return value;
}

__device__ inline void store_to_cluster(uint32_t address, float4 value) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value.x), "f"(value.y),
               "f"(value.z), "f"(value.w)
               : "memory");
}

// --- Bulk copies -----------------------------------------------------------------------------------

// For weights: each byte is read once, so it need not stay in the L2 cache.
__device__ inline uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ inline void copy_bytes(uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ inline void copy_bytes(uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// The box of a tensor map at (column, row).
__device__ inline void copy_box(uint32_t to, const TensorMap *map, int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// So that the first of such copies finds its map at hand.
__device__ inline void prefetch_map(const TensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The same to the same place in the memory of each block of the cluster whose bit is set, and to their barriers.
__device__ inline void copy_box_to_all(uint32_t to, const TensorMap *map, int column, int row, uint32_t barrier,
                                       int ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<uint16_t>(ranks))
      : "memory");
}

// Lets bulk copies see what this thread has written to shared memory.
__device__ inline void publish_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// What lies outside of the matrix is left out, 16 bytes at a time.
__device__ inline void store_box(const TensorMap *map, int column, int row, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column),
               "r"(row), "r"(from)
               : "memory");
}

__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until the memory that this thread's stores read is free.
__device__ inline void wait_for_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
#endif  // DLFP4_HOPPER

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_ASYNC_CUH_
