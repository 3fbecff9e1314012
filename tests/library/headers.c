/* What needs no library: the structs of DLPack. */
#include <dlfp4/dlpack.h>

int main(void) {
  DLTensor tensor = {0};
  return tensor.ndim;
}
