// A level of instruction sets as an object: its name, whether this machine runs it, what it brings to each operation.
#ifndef DLFP4_SRC_LEVELS_LEVEL_H_
#define DLFP4_SRC_LEVELS_LEVEL_H_

#include "blocks/kernels.h"
#include "codecs/kernels.h"
#include "products/kernels.h"

namespace dlfp4 {

// The functions write the level's kernels over those of slower levels; null where the level has none of its own. They
// are compiled for the level's instructions: they are called where `runs` says so.
struct Level {
  const char *name;
  bool (*runs)();
  void (*add_codecs)(CodecKernels *kernels);
  void (*add_blocks)(BlockKernels *kernels);
  void (*add_products)(ProductKernels *kernels);
  // Asks the system whether this process may use the level, where it has to be asked; only of a level that is wanted.
  bool (*may_run)() = nullptr;
};

}  // namespace dlfp4

#endif  // DLFP4_SRC_LEVELS_LEVEL_H_
