// Chooses the level of instruction sets and, in it, the kernels of a conversion.
// Layout: a table a level, [source][destination][mode], of the kernel that serves.
// Trick: the tables are filled once, slowest level first: faster rows overwrite slower ones.
#include "codecs/plan.h"

#include "blocks/kernels.h"
#include "host/threads.h"
#include "products/kernels.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

namespace dlfp4 {

#define DLFP4_LEVEL(name, available) extern const Level level_##name;
#include "levels.def"
#undef DLFP4_LEVEL
#define DLFP4_PRODUCTS(level, available) extern const ProductKernels level##_products;
#include "product_levels.def"
#undef DLFP4_PRODUCTS

namespace {

constexpr const Level *kLevels[] = {
#define DLFP4_LEVEL(name, available) &level_##name,
#include "levels.def"
#undef DLFP4_LEVEL
};
constexpr int kNumLevels = sizeof(kLevels) / sizeof(kLevels[0]);
constexpr int kScalar = kNumLevels - 1;
constexpr int kUnavailable = -1;

constexpr int kNumOperands = 2 * DLFP4_NUM_DTYPES;
constexpr int kMaxCode = 32, kMaxBits = 128;
static_assert(DLFP4_NUM_DTYPES <= 64, "sets of types are 64 bits");
#define DLFP4_DTYPE(name, code, bits, exponent, mantissa, bias, specials)                                      \
  static_assert(code < kMaxCode && bits <= kMaxBits && (bits == 6 || (bits >= 2 && (bits & (bits - 1)) == 0)), \
                "tables and copies know no such code or width: " #name);
#include "rules/dtypes.def"
#undef DLFP4_DTYPE
constexpr int64_t kBlock = 1024;  // elements converted at a time through buffers in the L1 cache

Kernel tables[kNumLevels][kNumOperands][kNumOperands][kNumModes];
BlockKernels block_tables[kNumLevels];
ProductKernels product_tables[kNumLevels];
const char *product_levels[kNumLevels];  // the fastest one whose kernels a table has
int8_t rows_of_types[kMaxCode][kMaxBits + 1];
pthread_once_t tables_once = PTHREAD_ONCE_INIT;
int default_level = kUnavailable;  // what DLFP4_ISA, or else the machine, asks for
int level_in_use = kUnavailable;

int index_of(Operand operand) { return operand.row + (operand.packed ? DLFP4_NUM_DTYPES : 0); }

void add_rows(int table, const Level &level) {
  for (int i = 0; i < level.num_rows; ++i) {
    const KernelRow &row = level.rows[i];
    Kernel *kernels = tables[table][index_of(row.src)][index_of(row.dst)];
    for (int mode = 0; mode < kNumModes; ++mode)
      if (row.modes >> mode & 1) kernels[mode] = row.kernel;
  }
}

// BlockKernels and ProductKernels are nothing but pointers and numbers of their size, so that they can be filled as an
// array of them: what is not zero replaces what is there.
template <class Kernels>
void add_kernels(const Kernels &kernels, Kernels *table) {
  using Pointer = void (*)();
  constexpr size_t kPointers = sizeof(Kernels) / sizeof(Pointer);
  Pointer from[kPointers], to[kPointers];
  static_assert(sizeof(from) == sizeof(Kernels), "a table of pointers");
  memcpy(from, &kernels, sizeof(from));
  memcpy(to, table, sizeof(to));
  for (size_t i = 0; i < kPointers; ++i)
    if (from[i]) to[i] = from[i];
  memcpy(table, to, sizeof(to));
}

struct LevelProducts {
  const char *level;
  const ProductKernels *kernels;
  bool available;
};

void add_products(int table, const Level &level) {
  const LevelProducts products[] = {
#define DLFP4_PRODUCTS(level, available) {#level, &level##_products, (available)},
#include "product_levels.def"
#undef DLFP4_PRODUCTS
  };
  for (const LevelProducts &row : products) {
    if (!row.available || strcmp(row.level, level.name) != 0) continue;
    add_kernels(*row.kernels, &product_tables[table]);
    product_levels[table] = row.level;
  }
}

void add_level(int table, const Level &level) {
  add_rows(table, level);
  if (level.blocks) add_kernels(*level.blocks, &block_tables[table]);
  add_products(table, level);
}

bool is_available(int level) {
  const bool available[] = {
#define DLFP4_LEVEL(name, available) (available),
#include "levels.def"
#undef DLFP4_LEVEL
  };
  return available[level];
}

int fastest_level() {
  for (int level = 0; level < kNumLevels; ++level)
    if (is_available(level)) return level;
  return kScalar;
}

int level_named(const char *name) {
  for (int level = 0; level < kNumLevels; ++level)
    if (strcmp(kLevels[level]->name, name) == 0 && is_available(level)) return level;
  return kUnavailable;
}

void fill_rows_of_types() {
  memset(rows_of_types, -1, sizeof(rows_of_types));
  for (int row = 0; row < DLFP4_NUM_DTYPES; ++row)
    rows_of_types[dlfp4_dtypes[row].code][dlfp4_dtypes[row].bits] = static_cast<int8_t>(row);
}

void initialize() {
  watch_forks();
  for (int table = 0; table < kNumLevels; ++table)
    for (int level = kScalar; level >= table; --level) add_level(table, *kLevels[level]);
  fill_rows_of_types();
  const char *wanted = getenv("DLFP4_ISA");
  default_level = wanted && *wanted ? level_named(wanted) : fastest_level();
  level_in_use = default_level;
}

void initialize_once() { pthread_once(&tables_once, initialize); }

Kernel find_kernel(int level, Operand src, Operand dst, int mode) {
  return tables[level][index_of(src)][index_of(dst)][mode];
}

int64_t bytes_of(Operand operand, int64_t count) {
  const int64_t bits = dlfp4_dtypes[operand.row].bits;
  return operand.packed ? count * bits / 8 : count * ((bits + 7) / 8);
}

void run_block(const Plan &plan, const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  uint8_t unpacked[kBlock];  // packed elements are smaller than a byte
  uint8_t converted[kBlock];
  if (plan.unpack) {
    plan.unpack(src, unpacked, count, mode);
    src = unpacked;
  }
  plan.convert(src, plan.pack ? converted : dst, count, mode);
  if (plan.pack) plan.pack(converted, dst, count, mode);
}

}  // namespace

int current_level() {
  initialize_once();
  return __atomic_load_n(&level_in_use, __ATOMIC_RELAXED);
}

const BlockKernels &block_kernels(int level) { return block_tables[level]; }

const BlockKernels &scalar_block_kernels() { return block_tables[kScalar]; }

const ProductKernels &product_kernels(int level) { return product_tables[level]; }

int find_row(uint8_t code, uint8_t bits) {
  initialize_once();
  return code < kMaxCode && bits <= kMaxBits ? rows_of_types[code][bits] : -1;
}

bool find_operand(const dlfp4_view &view, Operand *operand) {
  const int row = find_row(view.code, view.bits);
  *operand = {static_cast<uint8_t>(row), view.bits < 8 && !view.padded};
  return row >= 0;
}

bool are_convertible(Operand from, Operand to) {
  return from.row == to.row || (is_float(kFormats[from.row]) && is_float(kFormats[to.row]));
}

Plan make_plan(int level, Operand src, Operand dst, const Mode &mode) {
  const int index = mode_index(mode.rounding, mode.saturate);
  Plan plan = {src, dst, find_kernel(level, src, dst, index), nullptr, nullptr, nullptr};
  if (plan.whole) return plan;
  const Operand plain_src = {src.row, false}, plain_dst = {dst.row, false};
  plan.convert = find_kernel(level, plain_src, plain_dst, index);
  if (src.packed) plan.unpack = find_kernel(level, src, plain_src, index);
  if (dst.packed) plan.pack = find_kernel(level, plain_dst, dst, index);
  return plan;
}

void run_plan(const Plan &plan, const uint8_t *src, uint8_t *dst, int64_t count, const Mode &mode) {
  if (plan.whole) return plan.whole(src, dst, count, mode);
  Mode block_mode = mode;
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t block = count - done < kBlock ? count - done : kBlock;
    block_mode.first = mode.first + static_cast<uint64_t>(done);
    run_block(plan, src + bytes_of(plan.src, done), dst + bytes_of(plan.dst, done), block, block_mode);
  }
}

void scalar_run(Operand src, Operand dst, const uint8_t *from, uint8_t *to, int64_t count, const Mode &mode) {
  run_plan(make_plan(kScalar, src, dst, mode), from, to, count, mode);
}

}  // namespace dlfp4

extern "C" {

const char *dlfp4_isa(void) {
  const int level = dlfp4::current_level();
  return level == dlfp4::kUnavailable ? nullptr : dlfp4::kLevels[level]->name;
}

const char *dlfp4_isa_numbered(int number) {
  return number >= 0 && number < dlfp4::kNumLevels ? dlfp4::kLevels[number]->name : nullptr;
}

const char *dlfp4_products_isa(void) {
  const int level = dlfp4::current_level();
  return level == dlfp4::kUnavailable ? nullptr : dlfp4::product_levels[level];
}

dlfp4_status dlfp4_set_isa(const char *name) {
  dlfp4::initialize_once();
  const int level = name ? dlfp4::level_named(name) : dlfp4::default_level;
  if (level == dlfp4::kUnavailable) return DLFP4_E_ISA;
  __atomic_store_n(&dlfp4::level_in_use, level, __ATOMIC_RELAXED);
  return DLFP4_OK;
}
}
