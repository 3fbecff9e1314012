// Which level of instruction sets runs. A level is a number here, faster ones first; src/levels has their names and
// tables.
#ifndef DLFP4_SRC_HOST_LEVEL_H_
#define DLFP4_SRC_HOST_LEVEL_H_

namespace dlfp4 {

constexpr int kNoLevel = -1;

// The level in use, or kNoLevel: DLFP4_ISA names one that is not there.
int current_level();

// The slowest level, which has a kernel for everything.
int scalar_level();

}  // namespace dlfp4

#endif  // DLFP4_SRC_HOST_LEVEL_H_
