// The version of the library.
#include "dlfp4/dlfp4.h"

#define DLFP4_TEXT_OF(number) #number
#define DLFP4_TEXT(number) DLFP4_TEXT_OF(number)

extern "C" const char *dlfp4_version(void) {
  return DLFP4_TEXT(DLFP4_VERSION_MAJOR) "." DLFP4_TEXT(DLFP4_VERSION_MINOR) "." DLFP4_TEXT(DLFP4_VERSION_PATCH);
}
