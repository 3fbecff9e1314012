// Where each system has the libraries that are found while a program runs.
#include "libraries.h"

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace dlfp4 {

#ifdef _WIN32
namespace {
void *find_in(HMODULE library, const char *function) {
  return library ? reinterpret_cast<void *>(GetProcAddress(library, function)) : nullptr;
}
}  // namespace

// From the system's own folder alone, for anyone may have put a file of that name into another.
void *find_in_driver(const char *function) {
  return find_in(LoadLibraryExA("nvcuda.dll", nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32), function);
}

void *find_in_tvm_ffi(const char *function) { return find_in(GetModuleHandleA("tvm_ffi.dll"), function); }
#else
void *find_in_driver(const char *function) {
  void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library ? dlsym(library, function) : nullptr;
}

void *find_in_tvm_ffi(const char *function) { return dlsym(RTLD_DEFAULT, function); }
#endif

}  // namespace dlfp4
