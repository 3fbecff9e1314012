// Tables of what the codes of a type of at most 8 bits become in another.
// Layout: a byte for each of 256 codes; bits above a source's own are ignored.
// Trick: the scalar kernel makes a table at the first use of a pair and a mode.
#ifndef DLFP4_SRC_CODECS_RECODE_TABLES_H_
#define DLFP4_SRC_CODECS_RECODE_TABLES_H_

#include <string.h>

#include "kernels.h"

namespace dlfp4 {
namespace {

enum TableState { kEmpty, kFilling, kReady };

// Zero at the start of the program, then filled once.
struct RecodeTable {
  alignas(64) uint8_t code[256];
  int state;
};

template <int Src, int Dst>
RecodeTable recode_tables[kNumFixedModes];

void fill_table(int src, int dst, const Mode &mode, uint8_t *table) {
  uint8_t codes[256];
  for (int code = 0; code < 256; ++code) codes[code] = static_cast<uint8_t>(code);
  const Operand from = {static_cast<uint8_t>(src), false}, to = {static_cast<uint8_t>(dst), false};
  scalar_run(from, to, codes, table, 256, mode);
}

// Who does not come first, and does not find it ready, uses a table of its own: nobody waits, not even a forked child.
inline __attribute__((noinline)) const uint8_t *find_table(RecodeTable *table, int src, int dst, const Mode &mode,
                                                           uint8_t *own) {
  if (__atomic_load_n(&table->state, __ATOMIC_ACQUIRE) == kReady) return table->code;
  fill_table(src, dst, mode, own);
  int empty = kEmpty;
  if (__atomic_compare_exchange_n(&table->state, &empty, kFilling, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    memcpy(table->code, own, sizeof(table->code));
    __atomic_store_n(&table->state, kReady, __ATOMIC_RELEASE);
  }
  return own;
}

// `own` has room for 256 codes.
template <int Src, int Dst>
const uint8_t *find_table(const Mode &mode, uint8_t *own) {
  return find_table(&recode_tables<Src, Dst>[mode_index(mode.rounding, mode.saturate)], Src, Dst, mode, own);
}

}  // namespace
}  // namespace dlfp4

#endif  // DLFP4_SRC_CODECS_RECODE_TABLES_H_
