// Products of a warpgroup, on tensor cores (wgmma).
// Layout: shared memory by its 32-bit addresses. A function wraps an instruction of sm_90a.
#ifndef DLFP4_SRC_GPU_WGMMA_CUH_
#define DLFP4_SRC_GPU_WGMMA_CUH_

#include "async.cuh"

namespace dlfp4 {
namespace cuda {

#ifdef DLFP4_HOPPER
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
#define DLFP4_SUM16(i) DLFP4_SUM8(i), DLFP4_SUM8(i + 8)
#define DLFP4_SUM32(i) DLFP4_SUM16(i), DLFP4_SUM16(i + 16)
#define DLFP4_SUM64(i) DLFP4_SUM32(i), DLFP4_SUM32(i + 32)
#define DLFP4_NAME4 "%0, %1, %2, %3"
#define DLFP4_NAME8 DLFP4_NAME4 ", %4, %5, %6, %7"
#define DLFP4_NAME12 DLFP4_NAME8 ", %8, %9, %10, %11"
#define DLFP4_NAME16 DLFP4_NAME12 ", %12, %13, %14, %15"
#define DLFP4_NAME20 DLFP4_NAME16 ", %16, %17, %18, %19"
#define DLFP4_NAME24 DLFP4_NAME20 ", %20, %21, %22, %23"
#define DLFP4_NAME28 DLFP4_NAME24 ", %24, %25, %26, %27"
#define DLFP4_NAME32 DLFP4_NAME28 ", %28, %29, %30, %31"
#define DLFP4_NAME40 DLFP4_NAME32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define DLFP4_NAME48 DLFP4_NAME40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define DLFP4_NAME56 DLFP4_NAME48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define DLFP4_NAME64 DLFP4_NAME56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define DLFP4_NAME72 DLFP4_NAME64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define DLFP4_NAME80 DLFP4_NAME72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define DLFP4_NAME88 DLFP4_NAME80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define DLFP4_NAME96 DLFP4_NAME88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define DLFP4_NAME104 DLFP4_NAME96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define DLFP4_NAME112 DLFP4_NAME104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define DLFP4_NAME120 DLFP4_NAME112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define DLFP4_NAME128 DLFP4_NAME120 ", %120, %121, %122, %123, %124, %125, %126, %127"

// Of so many rows: `names` of the sums, then those of the four words of a, of b, and of whether to add.
#define DLFP4_WGMMA(type, rows, names, of_a, of_b, of_adds, ...)                                                      \
  if constexpr (Rows == rows)                                                                                         \
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, " of_adds                                                       \
                 ", 0;\n"                                                                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #rows "k16.f32." type "." type " {" names "}, {" of_a "}, " of_b \
                 ", adds, 1, 1, 0;}"                                                                                  \
                 : __VA_ARGS__                                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));
#define DLFP4_MULTIPLY_ROWS(type)                                                                                  \
  DLFP4_WGMMA(type, 8, DLFP4_NAME4, "%4, %5, %6, %7", "%8", "%9", DLFP4_SUM4(0))                                   \
  DLFP4_WGMMA(type, 16, DLFP4_NAME8, "%8, %9, %10, %11", "%12", "%13", DLFP4_SUM8(0))                              \
  DLFP4_WGMMA(type, 24, DLFP4_NAME12, "%12, %13, %14, %15", "%16", "%17", DLFP4_SUM8(0), DLFP4_SUM4(8))            \
  DLFP4_WGMMA(type, 32, DLFP4_NAME16, "%16, %17, %18, %19", "%20", "%21", DLFP4_SUM16(0))                          \
  DLFP4_WGMMA(type, 40, DLFP4_NAME20, "%20, %21, %22, %23", "%24", "%25", DLFP4_SUM16(0), DLFP4_SUM4(16))          \
  DLFP4_WGMMA(type, 48, DLFP4_NAME24, "%24, %25, %26, %27", "%28", "%29", DLFP4_SUM16(0), DLFP4_SUM8(16))          \
  DLFP4_WGMMA(type, 56, DLFP4_NAME28, "%28, %29, %30, %31", "%32", "%33", DLFP4_SUM16(0), DLFP4_SUM8(16),          \
              DLFP4_SUM4(24))                                                                                      \
  DLFP4_WGMMA(type, 64, DLFP4_NAME32, "%32, %33, %34, %35", "%36", "%37", DLFP4_SUM32(0))                          \
  DLFP4_WGMMA(type, 80, DLFP4_NAME40, "%40, %41, %42, %43", "%44", "%45", DLFP4_SUM32(0), DLFP4_SUM8(32))          \
  DLFP4_WGMMA(type, 96, DLFP4_NAME48, "%48, %49, %50, %51", "%52", "%53", DLFP4_SUM32(0), DLFP4_SUM16(32))         \
  DLFP4_WGMMA(type, 112, DLFP4_NAME56, "%56, %57, %58, %59", "%60", "%61", DLFP4_SUM32(0), DLFP4_SUM16(32),        \
              DLFP4_SUM8(48))                                                                                      \
  DLFP4_WGMMA(type, 128, DLFP4_NAME64, "%64, %65, %66, %67", "%68", "%69", DLFP4_SUM64(0))                         \
  DLFP4_WGMMA(type, 144, DLFP4_NAME72, "%72, %73, %74, %75", "%76", "%77", DLFP4_SUM64(0), DLFP4_SUM8(64))         \
  DLFP4_WGMMA(type, 160, DLFP4_NAME80, "%80, %81, %82, %83", "%84", "%85", DLFP4_SUM64(0), DLFP4_SUM16(64))        \
  DLFP4_WGMMA(type, 176, DLFP4_NAME88, "%88, %89, %90, %91", "%92", "%93", DLFP4_SUM64(0), DLFP4_SUM16(64),        \
              DLFP4_SUM8(80))                                                                                      \
  DLFP4_WGMMA(type, 192, DLFP4_NAME96, "%96, %97, %98, %99", "%100", "%101", DLFP4_SUM64(0), DLFP4_SUM32(64))      \
  DLFP4_WGMMA(type, 208, DLFP4_NAME104, "%104, %105, %106, %107", "%108", "%109", DLFP4_SUM64(0), DLFP4_SUM32(64), \
              DLFP4_SUM8(96))                                                                                      \
  DLFP4_WGMMA(type, 224, DLFP4_NAME112, "%112, %113, %114, %115", "%116", "%117", DLFP4_SUM64(0), DLFP4_SUM32(64), \
              DLFP4_SUM16(96))                                                                                     \
  DLFP4_WGMMA(type, 240, DLFP4_NAME120, "%120, %121, %122, %123", "%124", "%125", DLFP4_SUM64(0), DLFP4_SUM32(64), \
              DLFP4_SUM16(96), DLFP4_SUM8(112))                                                                    \
  DLFP4_WGMMA(type, 256, DLFP4_NAME128, "%128, %129, %130, %131", "%132", "%133", DLFP4_SUM64(0), DLFP4_SUM64(64))

// sums = a @ b (+ sums): 64 rows of weights from registers, some rows of x from shared memory, 16 of K.
template <int Type, int Rows>
__device__ inline void multiply_rows(float *sums, const uint32_t *a, uint64_t b, bool adds) {
  static_assert(Rows > 0 && Rows <= 256 && Rows % (Rows < 64 ? 8 : 16) == 0, "");
  if constexpr (Type == kFloat16) {
    DLFP4_MULTIPLY_ROWS("f16")
  } else {
    DLFP4_MULTIPLY_ROWS("bf16")
  }
}

// The same of bytes: both operands from shared memory, 32 of K.
#define DLFP4_WGMMA_BYTES(types, rows, names, of_a, of_b, of_adds, ...)                                     \
  if constexpr (Rows == rows)                                                                               \
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, " of_adds                                             \
                 ", 0;\n"                                                                                   \
                 "wgmma.mma_async.sync.aligned.m64n" #rows "k32.f32." types " {" names "}, " of_a ", " of_b \
                 ", adds, 1, 1;}"                                                                           \
                 : __VA_ARGS__                                                                              \
                 : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
#define DLFP4_MULTIPLY_BYTES(types)                                                                                 \
  DLFP4_WGMMA_BYTES(types, 16, DLFP4_NAME8, "%8", "%9", "%10", DLFP4_SUM8(0))                                       \
  DLFP4_WGMMA_BYTES(types, 32, DLFP4_NAME16, "%16", "%17", "%18", DLFP4_SUM16(0))                                   \
  DLFP4_WGMMA_BYTES(types, 56, DLFP4_NAME28, "%28", "%29", "%30", DLFP4_SUM16(0), DLFP4_SUM8(16), DLFP4_SUM4(24))   \
  DLFP4_WGMMA_BYTES(types, 64, DLFP4_NAME32, "%32", "%33", "%34", DLFP4_SUM32(0))                                   \
  DLFP4_WGMMA_BYTES(types, 96, DLFP4_NAME48, "%48", "%49", "%50", DLFP4_SUM32(0), DLFP4_SUM16(32))                  \
  DLFP4_WGMMA_BYTES(types, 112, DLFP4_NAME56, "%56", "%57", "%58", DLFP4_SUM32(0), DLFP4_SUM16(32), DLFP4_SUM8(48)) \
  DLFP4_WGMMA_BYTES(types, 128, DLFP4_NAME64, "%64", "%65", "%66", DLFP4_SUM64(0))                                  \
  DLFP4_WGMMA_BYTES(types, 144, DLFP4_NAME72, "%72", "%73", "%74", DLFP4_SUM64(0), DLFP4_SUM8(64))

// Elements are E4M3 or E5M2.
template <bool IsE5m2, bool IsE5m2OfB, int Rows>
__device__ inline void multiply_bytes(float *sums, uint64_t a, uint64_t b, bool adds) {
  static_assert(
      Rows == 16 || Rows == 32 || Rows == 56 || Rows == 64 || Rows == 96 || Rows == 112 || Rows == 128 || Rows == 144,
      "");
  if constexpr (IsE5m2 && IsE5m2OfB) {
    DLFP4_MULTIPLY_BYTES("e5m2.e5m2")
  } else if constexpr (IsE5m2) {
    DLFP4_MULTIPLY_BYTES("e5m2.e4m3")
  } else if constexpr (IsE5m2OfB) {
    DLFP4_MULTIPLY_BYTES("e4m3.e5m2")
  } else {
    DLFP4_MULTIPLY_BYTES("e4m3.e4m3")
  }
}

#undef DLFP4_MULTIPLY_BYTES
#undef DLFP4_MULTIPLY_ROWS
#undef DLFP4_WGMMA_BYTES
#undef DLFP4_WGMMA
#undef DLFP4_SUM4
#undef DLFP4_SUM8
#undef DLFP4_SUM16
#undef DLFP4_SUM32
#undef DLFP4_SUM64
#undef DLFP4_NAME4
#undef DLFP4_NAME8
#undef DLFP4_NAME12
#undef DLFP4_NAME16
#undef DLFP4_NAME20
#undef DLFP4_NAME24
#undef DLFP4_NAME28
#undef DLFP4_NAME32
#undef DLFP4_NAME40
#undef DLFP4_NAME48
#undef DLFP4_NAME56
#undef DLFP4_NAME64
#undef DLFP4_NAME72
#undef DLFP4_NAME80
#undef DLFP4_NAME88
#undef DLFP4_NAME96
#undef DLFP4_NAME104
#undef DLFP4_NAME112
#undef DLFP4_NAME120
#undef DLFP4_NAME128
#endif  // DLFP4_HOPPER

}  // namespace cuda
}  // namespace dlfp4

#endif  // DLFP4_SRC_GPU_WGMMA_CUH_
