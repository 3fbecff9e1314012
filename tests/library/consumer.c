/* The library is that of its header, and runs. */
#include <dlfp4/dlfp4.h>
#include <stdio.h>

int main(void) {
  int major = -1, minor = -1, patch = -1;
  if (sscanf(dlfp4_version(), "%d.%d.%d", &major, &minor, &patch) != 3) return 1;
  if (major * 10000 + minor * 100 + patch != DLFP4_VERSION_NUMBER) return 2;
  dlfp4_set_num_threads(3);
  if (dlfp4_get_num_threads() != 3 && dlfp4_get_num_threads() != 1) return 3; /* 1: a build without OpenMP */
  return dlfp4_isa() ? 0 : 4;
}
