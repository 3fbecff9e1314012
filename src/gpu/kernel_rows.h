/* The words in which an image's list of kernels, <image>.def, is written. A row is a kernel:
 * DLFP4_CUDA_KERNEL(name, key, parameters, body).
 *
 *   name        the symbol in the image, and kKernel_<name> in the host's list
 *   key         what it is for, as the fields of KernelKey (keys.h) in parentheses: hosts find it by these alone; () of
 *               what they name
 *   parameters  the struct that the host passes
 *   body        what a thread does with `p`
 *
 * DLFP4_CUDA_LEAN(name, key, parameters, body) is the same with so few registers that these allow four blocks of
 * threads on a multiprocessor (shared memory may not), which hide what each waits for.
 *
 * DLFP4_CUDA_PRODUCT(name, key, parameters, threads, at_once, body) is the same for a kernel with a number of threads
 * of its own, which waits for the kernel before it where it needs to. Registers allow `at_once` blocks of them on a
 * multiprocessor.
 *
 * The order means nothing. What has no row goes by the kernels for anything. A list is read more than once, each time
 * with another DLFP4_CUDA_KERNEL; image.cuh has the one that defines kernels.
 */
#ifndef DLFP4_SRC_GPU_KERNEL_ROWS_H_
#define DLFP4_SRC_GPU_KERNEL_ROWS_H_

#ifndef DLFP4_CUDA_LEAN
#define DLFP4_CUDA_LEAN(name, key, parameters, body) DLFP4_CUDA_KERNEL(name, key, parameters, body)
#define DLFP4_CUDA_PRODUCT(name, key, parameters, threads, at_once, body) DLFP4_CUDA_KERNEL(name, key, parameters, body)
#endif

#define DLFP4_CUDA_OF_FLOATS(ROW, ...) \
  ROW(float32, __VA_ARGS__)            \
  ROW(bfloat16, __VA_ARGS__)           \
  ROW(float16, __VA_ARGS__)

#endif /* DLFP4_SRC_GPU_KERNEL_ROWS_H_ */
