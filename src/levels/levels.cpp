// Chooses the level of instruction sets, and completes each level's kernels with those of slower ones.
// Layout: a table of kernels a level and operation, filled once, slowest level first: faster kernels replace slower
// ones.
#include <stdlib.h>
#include <string.h>

#include "dlfp4/dlfp4.h"
#include "host/level.h"
#include "level.h"

namespace dlfp4 {

#define DLFP4_LEVEL(name) extern const Level level_##name;
#include "levels.def"
#undef DLFP4_LEVEL

namespace {

constexpr const Level *kLevels[] = {
#define DLFP4_LEVEL(name) &level_##name,
#include "levels.def"
#undef DLFP4_LEVEL
};
constexpr int kNumLevels = sizeof(kLevels) / sizeof(kLevels[0]);
constexpr int kScalar = kNumLevels - 1;

struct Kernels {
  CodecKernels codecs;
  BlockKernels blocks;
  ProductKernels products;
};

Kernels kernels_of[kNumLevels];
int default_level = kNoLevel;  // what DLFP4_ISA, or else the machine, asks for
int level_in_use = kNoLevel;

void add_level(const Level &level, Kernels *kernels) {
  if (!level.runs()) return;
  if (level.add_codecs) level.add_codecs(&kernels->codecs);
  if (level.add_blocks) level.add_blocks(&kernels->blocks);
  if (level.add_products) level.add_products(&kernels->products);
}

bool may_use(const Level &level) { return level.runs() && (!level.may_run || level.may_run()); }

int fastest_level() {
  int level = 0;
  while (!may_use(*kLevels[level])) ++level;  // the scalar one runs everywhere
  return level;
}

int level_named(const char *name) {
  for (int level = 0; level < kNumLevels; ++level)
    if (strcmp(kLevels[level]->name, name) == 0 && may_use(*kLevels[level])) return level;
  return kNoLevel;
}

void initialize() {
  for (int level = 0; level < kNumLevels; ++level)
    for (int below = kScalar; below >= level; --below) add_level(*kLevels[below], &kernels_of[level]);
  const char *wanted = getenv("DLFP4_ISA");
  default_level = wanted && *wanted ? level_named(wanted) : fastest_level();
  level_in_use = default_level;
}

void initialize_once() {
  static const bool done = (initialize(), true);
  (void)done;
}

}  // namespace

int current_level() {
  initialize_once();
  return __atomic_load_n(&level_in_use, __ATOMIC_RELAXED);
}

int scalar_level() { return kScalar; }

const CodecKernels &codec_kernels(int level) { return kernels_of[level].codecs; }

const BlockKernels &block_kernels(int level) { return kernels_of[level].blocks; }

const ProductKernels &product_kernels(int level) { return kernels_of[level].products; }

}  // namespace dlfp4

extern "C" {

const char *dlfp4_isa(void) {
  const int level = dlfp4::current_level();
  return level == dlfp4::kNoLevel ? nullptr : dlfp4::kLevels[level]->name;
}

const char *dlfp4_isa_numbered(int number) {
  return number >= 0 && number < dlfp4::kNumLevels ? dlfp4::kLevels[number]->name : nullptr;
}

dlfp4_status dlfp4_set_isa(const char *name) {
  dlfp4::initialize_once();
  const int level = name ? dlfp4::level_named(name) : dlfp4::default_level;
  if (level == dlfp4::kNoLevel) return DLFP4_E_ISA;
  __atomic_store_n(&dlfp4::level_in_use, level, __ATOMIC_RELAXED);
  return DLFP4_OK;
}
}
