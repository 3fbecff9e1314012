// Instructions that work while the thread goes on: copies, barriers in shared memory, warpgroup products.
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

// --- Products of a warpgroup -----------------------------------------------------------------------

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int Pending>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Rows of 128 bytes of shared memory, swizzled by 128, as an operand.
__device__ inline uint64_t describe_rows(uint32_t address) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 | (address & 0x3FFFF) >> 4;
}

#define DLFP4_SUM4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define DLFP4_SUM8(i) DLFP4_SUM4(i), DLFP4_SUM4(i + 4)
#define DLFP4_SUM16(i) DLFP4_SUM4(i), DLFP4_SUM4(i + 4), DLFP4_SUM4(i + 8), DLFP4_SUM4(i + 12)
#define DLFP4_SUM48(i) DLFP4_SUM16(i), DLFP4_SUM16(i + 16), DLFP4_SUM16(i + 32)
#define DLFP4_SUM64(i) DLFP4_SUM16(i), DLFP4_SUM16(i + 16), DLFP4_SUM16(i + 32), DLFP4_SUM16(i + 48)
#define DLFP4_NAME8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define DLFP4_NAME16 DLFP4_NAME8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define DLFP4_NAME28 DLFP4_NAME16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27"
#define DLFP4_NAME32 DLFP4_NAME16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DLFP4_NAME48 DLFP4_NAME32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define DLFP4_NAME56 DLFP4_NAME48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define DLFP4_NAME64 DLFP4_NAME48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DLFP4_NAME72 DLFP4_NAME64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define DLFP4_NAME80 DLFP4_NAME64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define DLFP4_NAME96 DLFP4_NAME80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define DLFP4_NAME112 \
  DLFP4_NAME96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define DLFP4_NAME128 \
  DLFP4_NAME112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// `names` of the sums, then those of the four words of a, of b, and of whether to add.
#define DLFP4_WGMMA(rows, type, names, of_a, of_b, of_adds, ...)                                                   \
  asm volatile("{.reg .pred adds; setp.ne.b32 adds, " of_adds                                                      \
               ", 0;\n"                                                                                            \
               "wgmma.mma_async.sync.aligned.m64n" rows "k16.f32." type "." type " {" names "}, {" of_a "}, " of_b \
               ", adds, 1, 1, 0;}"                                                                                 \
               : __VA_ARGS__                                                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)))
#define DLFP4_WGMMA_32(type) DLFP4_WGMMA("32", type, DLFP4_NAME16, "%16, %17, %18, %19", "%20", "%21", DLFP4_SUM16(0))
#define DLFP4_WGMMA_64(type) \
  DLFP4_WGMMA("64", type, DLFP4_NAME32, "%32, %33, %34, %35", "%36", "%37", DLFP4_SUM16(0), DLFP4_SUM16(16))
#define DLFP4_WGMMA_96(type)                                                                                 \
  DLFP4_WGMMA("96", type, DLFP4_NAME48, "%48, %49, %50, %51", "%52", "%53", DLFP4_SUM16(0), DLFP4_SUM16(16), \
              DLFP4_SUM16(32))
#define DLFP4_WGMMA_128(type) DLFP4_WGMMA("128", type, DLFP4_NAME64, "%64, %65, %66, %67", "%68", "%69", DLFP4_SUM64(0))
#define DLFP4_WGMMA_160(type) \
  DLFP4_WGMMA("160", type, DLFP4_NAME80, "%80, %81, %82, %83", "%84", "%85", DLFP4_SUM64(0), DLFP4_SUM16(64))
#define DLFP4_WGMMA_192(type)                                                                                   \
  DLFP4_WGMMA("192", type, DLFP4_NAME96, "%96, %97, %98, %99", "%100", "%101", DLFP4_SUM64(0), DLFP4_SUM16(64), \
              DLFP4_SUM16(80))
#define DLFP4_WGMMA_224(type)                                                                                        \
  DLFP4_WGMMA("224", type, DLFP4_NAME112, "%112, %113, %114, %115", "%116", "%117", DLFP4_SUM64(0), DLFP4_SUM16(64), \
              DLFP4_SUM16(80), DLFP4_SUM16(96))
#define DLFP4_WGMMA_256(type) \
  DLFP4_WGMMA("256", type, DLFP4_NAME128, "%128, %129, %130, %131", "%132", "%133", DLFP4_SUM64(0), DLFP4_SUM64(64))

// sums = a @ b (+ sums): 64 rows of weights from registers, some rows of x from shared memory, 16 of K.
template <int Type, int Rows>
__device__ inline void multiply_rows(float *sums, const uint32_t *a, uint64_t b, bool adds) {
  static_assert(Rows % 32 == 0 && Rows > 0 && Rows <= 256, "");
#define DLFP4_MULTIPLY_ROWS(type) \
  if constexpr (Rows == 32)       \
    DLFP4_WGMMA_32(type);         \
  else if constexpr (Rows == 64)  \
    DLFP4_WGMMA_64(type);         \
  else if constexpr (Rows == 96)  \
    DLFP4_WGMMA_96(type);         \
  else if constexpr (Rows == 128) \
    DLFP4_WGMMA_128(type);        \
  else if constexpr (Rows == 160) \
    DLFP4_WGMMA_160(type);        \
  else if constexpr (Rows == 192) \
    DLFP4_WGMMA_192(type);        \
  else if constexpr (Rows == 224) \
    DLFP4_WGMMA_224(type);        \
  else                            \
    DLFP4_WGMMA_256(type)
  if constexpr (Type == kFloat16) {
    DLFP4_MULTIPLY_ROWS("f16");
  } else {
    DLFP4_MULTIPLY_ROWS("bf16");
  }
#undef DLFP4_MULTIPLY_ROWS
}

// The same of bytes: both operands from shared memory, 32 of K.
#define DLFP4_WGMMA_BYTES(rows, types, names, of_a, of_b, of_adds, ...)                                  \
  asm volatile("{.reg .pred adds; setp.ne.b32 adds, " of_adds                                            \
               ", 0;\n"                                                                                  \
               "wgmma.mma_async.sync.aligned.m64n" rows "k32.f32." types " {" names "}, " of_a ", " of_b \
               ", adds, 1, 1;}"                                                                          \
               : __VA_ARGS__                                                                             \
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)))

#define DLFP4_MULTIPLY_BYTES(types)                                                                                    \
  if constexpr (Rows == 16)                                                                                            \
    DLFP4_WGMMA_BYTES("16", types, DLFP4_NAME8, "%8", "%9", "%10", DLFP4_SUM8(0));                                     \
  else if constexpr (Rows == 32)                                                                                       \
    DLFP4_WGMMA_BYTES("32", types, DLFP4_NAME16, "%16", "%17", "%18", DLFP4_SUM16(0));                                 \
  else if constexpr (Rows == 64)                                                                                       \
    DLFP4_WGMMA_BYTES("64", types, DLFP4_NAME32, "%32", "%33", "%34", DLFP4_SUM16(0), DLFP4_SUM16(16));                \
  else if constexpr (Rows == 56)                                                                                       \
    DLFP4_WGMMA_BYTES("56", types, DLFP4_NAME28, "%28", "%29", "%30", DLFP4_SUM16(0), DLFP4_SUM8(16), DLFP4_SUM4(24)); \
  else if constexpr (Rows == 96)                                                                                       \
    DLFP4_WGMMA_BYTES("96", types, DLFP4_NAME48, "%48", "%49", "%50", DLFP4_SUM48(0));                                 \
  else if constexpr (Rows == 112)                                                                                      \
    DLFP4_WGMMA_BYTES("112", types, DLFP4_NAME56, "%56", "%57", "%58", DLFP4_SUM48(0), DLFP4_SUM8(48));                \
  else if constexpr (Rows == 144)                                                                                      \
    DLFP4_WGMMA_BYTES("144", types, DLFP4_NAME72, "%72", "%73", "%74", DLFP4_SUM64(0), DLFP4_SUM8(64));                \
  else                                                                                                                 \
    DLFP4_WGMMA_BYTES("128", types, DLFP4_NAME64, "%64", "%65", "%66", DLFP4_SUM64(0))

// Elements are E4M3 or E5M2.
template <bool IsE5m2, bool IsE5m2OfB, int Rows>
__device__ inline void multiply_bytes(float *sums, uint64_t a, uint64_t b, bool adds) {
  static_assert(
      Rows == 16 || Rows == 32 || Rows == 56 || Rows == 64 || Rows == 96 || Rows == 112 || Rows == 128 || Rows == 144,
      "");
  if constexpr (IsE5m2 && IsE5m2OfB) {
    DLFP4_MULTIPLY_BYTES("e5m2.e5m2");
  } else if constexpr (IsE5m2) {
    DLFP4_MULTIPLY_BYTES("e5m2.e4m3");
  } else if constexpr (IsE5m2OfB) {
    DLFP4_MULTIPLY_BYTES("e4m3.e5m2");
  } else {
    DLFP4_MULTIPLY_BYTES("e4m3.e4m3");
  }
}

#undef DLFP4_MULTIPLY_BYTES
#undef DLFP4_WGMMA_BYTES
#undef DLFP4_SUM4
#undef DLFP4_SUM8
#undef DLFP4_SUM16
#undef DLFP4_SUM48
#undef DLFP4_SUM64
#undef DLFP4_NAME8
#undef DLFP4_NAME16
#undef DLFP4_NAME28
#undef DLFP4_NAME32
#undef DLFP4_NAME48
#undef DLFP4_NAME56
#undef DLFP4_NAME64
#undef DLFP4_NAME72
#undef DLFP4_NAME80
#undef DLFP4_NAME96
#undef DLFP4_NAME112
#undef DLFP4_NAME128
#undef DLFP4_WGMMA
#undef DLFP4_WGMMA_32
#undef DLFP4_WGMMA_64
#undef DLFP4_WGMMA_96
#undef DLFP4_WGMMA_128
#undef DLFP4_WGMMA_160
#undef DLFP4_WGMMA_192
#undef DLFP4_WGMMA_224
#undef DLFP4_WGMMA_256
#endif  // DLFP4_HOPPER

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_ASYNC_CUH_
