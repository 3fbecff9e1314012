/* Quantizes a matrix to a format, decodes it, and prints the bytes that it takes and the ratio of signal to noise.
 *
 *   cc quantize.c $(python -m dlfp4 config --cflags --libs) -lm -o quantize && ./quantize nvfp4
 */
#include <dlfp4/dlfp4.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 256, COLUMNS = 512 };

static const DLDevice HOST = {kDLCPU, 0};
static const DLDataType FLOAT32 = {kDLFloat, 32, 1};

/* Row-major memory; `shape` has to live as long as the tensor. */
static DLTensor tensor(void *data, DLDataType dtype, int ndim, int64_t *shape) {
  DLTensor result = {0};
  result.data = data;
  result.device = HOST;
  result.ndim = ndim;
  result.dtype = dtype;
  result.shape = shape;
  return result;
}

static void check(dlfp4_status status, const char *what) {
  if (status == DLFP4_OK) return;
  fprintf(stderr, "%s: %s\n", what, dlfp4_status_string(status));
  exit(1);
}

static void *allocate(int64_t bytes) {
  void *memory = malloc(bytes > 0 ? (size_t)bytes : 1);
  if (memory) return memory;
  fprintf(stderr, "no memory for %lld bytes\n", (long long)bytes);
  exit(1);
}

/* The same numbers everywhere, about normally distributed. */
static float next_number(uint32_t *state) {
  float sum = 0;
  for (int k = 0; k < 12; ++k) {
    *state = *state * 1664525u + 1013904223u;
    sum += (float)(*state >> 8) / 16777216.0f;
  }
  return sum - 6;
}

static double decibels(const float *exact, const float *got, int64_t count) {
  double signal = 0, noise = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double error = (double)got[i] - exact[i];
    signal += (double)exact[i] * exact[i];
    noise += error * error;
  }
  return 10 * log10(signal / noise);
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "nvfp4";
  const int format = dlfp4_find_format(name);
  dlfp4_format_info info;
  dlfp4_sizes sizes;
  check(dlfp4_describe_format(format, &info), name);
  check(dlfp4_size_buffers(format, -1, 0, ROWS, COLUMNS, &sizes), name);

  int64_t shape[2] = {ROWS, COLUMNS};
  const int64_t count = (int64_t)ROWS * COLUMNS;
  float *values = allocate(count * 4), *decoded = allocate(count * 4), global = 0;
  uint32_t state = 1;
  for (int64_t i = 0; i < count; ++i) values[i] = next_number(&state);
  void *codes = allocate(sizes.data_bytes), *scales = allocate(sizes.scale_bytes);
  void *zero_points = allocate(sizes.scales[0] * sizes.scales[1]);

  const DLDataType bytes = {kDLUInt, 8, 1};
  const DLTensor x = tensor(values, FLOAT32, 2, shape), out = tensor(decoded, FLOAT32, 2, shape);
  const DLTensor data = tensor(codes, info.element, 2, sizes.data);
  const DLTensor of_blocks = tensor(scales, info.scale, sizes.scale_ndim, sizes.scales);
  const DLTensor of_tensor = tensor(&global, FLOAT32, 0, NULL);
  const DLTensor points = tensor(zero_points, bytes, 2, sizes.scales);
  dlfp4_scaled_tensor q = {0};
  q.format = format;
  q.axis = -1;
  q.data = &data;
  q.scales = &of_blocks;
  if (info.kind == DLFP4_SCALES_IN_TWO_LEVELS) q.global_scale = &of_tensor;
  if (info.element.code == kDLUInt) q.zero_points = &points;

  check(dlfp4_quantize(&x, NULL, 0, &q, NULL, NULL), "quantizing");
  check(dlfp4_dequantize(&q, &out, NULL), "decoding");
  printf("%s: %lld bytes of elements, %lld of scales, %.1f dB, by %s of dlfp4 %s\n", name, (long long)sizes.data_bytes,
         (long long)sizes.scale_bytes, decibels(values, decoded, count), dlfp4_isa(), dlfp4_version());
  free(values);
  free(decoded);
  free(codes);
  free(scales);
  free(zero_points);
  return 0;
}
