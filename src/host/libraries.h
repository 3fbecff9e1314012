// Functions of libraries that are found while a program runs, and are never linked.
#ifndef DLFP4_SRC_HOST_LIBRARIES_H_
#define DLFP4_SRC_HOST_LIBRARIES_H_

namespace dlfp4 {

// Opens CUDA's driver, which stays; NULL without one, or where it has no such function.
void *find_in_driver(const char *function);

// NULL where the process has not loaded tvm-ffi.
void *find_in_tvm_ffi(const char *function);

}  // namespace dlfp4

#endif  // DLFP4_SRC_HOST_LIBRARIES_H_
