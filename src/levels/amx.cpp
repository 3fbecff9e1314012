// The level amx: products of the level avx512_bf16 by tiles of AMX, where Linux lets this process use them.
#include "level.h"
#include "x86.h"

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dlfp4 {

extern const Level level_avx512_bf16;
void add_amx_products(ProductKernels *kernels);

namespace {
#ifdef __linux__
bool has_tiles() { return x86::has_all(x86::kAmxTile, x86::kAmxBf16); }

// Asks the kernel for the process, as threads and forked children need no more than that. It refuses where it is older
// than Linux 5.16 or a thread's stack for signals is too small for tiles. Asking again changes nothing.
bool may_use_tiles() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
#else
bool has_tiles() { return false; }
bool may_use_tiles() { return false; }
#endif

bool runs() { return level_avx512_bf16.runs() && has_tiles(); }
}  // namespace

extern const Level level_amx;
const Level level_amx = {"amx", runs, nullptr, nullptr, add_amx_products, may_use_tiles};

}  // namespace dlfp4
