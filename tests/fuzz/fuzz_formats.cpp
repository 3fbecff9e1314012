// Names, descriptions, sizes and statuses: each is there or refused, and sizes are those of all their factors.
// Layout: see c_api.h.
// Trick: see c_api.h.
#include "c_api.h"

namespace fuzz {
namespace {

// Of a name that is whatever the input has, in memory that ends behind its zero.
void find(Bytes *input, Arena *arena) {
  const int length = input->below(20);
  char *const name = reinterpret_cast<char *>(arena->take(length + 1));
  for (int k = 0; k < length; ++k) name[k] = static_cast<char>(input->byte());
  name[length] = 0;
  const int format = dlfp4_find_format(name), layout = dlfp4_find_layout(name);
  dlfp4_format_info info;
  if (format >= 0)
    require(dlfp4_describe_format(format, &info) == DLFP4_OK && strcmp(info.name, name) == 0, "another format's name");
  require(layout >= -1 && layout < 8, "a layout that is not there");
  if (dlfp4_set_isa(name) == DLFP4_OK) require(strcmp(dlfp4_isa(), name) == 0, "another level");
}

void describe(Bytes *input) {
  const int format = input->chance(4) ? static_cast<int>(input->edge()) : input->byte();
  dlfp4_format_info info;
  dlfp4_recipe recipe;
  const bool is_there = format >= 0 && format < DLFP4_NUM_FORMATS;
  require((dlfp4_describe_format(format, &info) == DLFP4_OK) == is_there, "a format's description");
  require((dlfp4_default_recipe(format, &recipe) == DLFP4_OK) == is_there, "a format's recipe");
  if (is_there) require(dlfp4_find_format(info.name) == format, "two formats of one name");
}

int64_t any_extent(Bytes *input) { return input->chance(2) ? input->edge() : input->byte(); }

void size(Bytes *input) {
  const int format = input->chance(8) ? static_cast<int>(input->edge()) : input->below(DLFP4_NUM_FORMATS);
  const int axis = input->chance(8) ? static_cast<int>(input->edge()) : -1 - input->below(2);
  const int layout = input->chance(8) ? static_cast<int>(input->edge()) : input->below(8);
  const int64_t rows = any_extent(input), columns = any_extent(input);
  const bool is_there = format >= 0 && format < DLFP4_NUM_FORMATS;
  dlfp4_sizes sizes;
  const dlfp4_status status = dlfp4_size_buffers(format, axis, layout, rows, columns, &sizes);
  const int64_t prepared = dlfp4_prepared_bytes(format, rows, columns);
  require(prepared >= 0 && (is_there || prepared == 0), "prepared weights of no format");
  if (status != DLFP4_OK) return;
  require(is_there && rows >= 0 && columns >= 0, "sizes of what is not there");
  const dlfp4_format_row &row = dlfp4_formats[format];
  const Wide bits = Wide{sizes.data[0]} * sizes.data[1] * dlfp4_dtypes[row.element].bits;
  const Wide scales = Wide{sizes.scales[0]} * sizes.scales[1] * (dlfp4_dtypes[row.scale].bits / 8);
  require((bits + 7) / 8 == sizes.data_bytes && scales == sizes.scale_bytes, "bytes of another size");
  require(bits >= Wide{rows} * columns * dlfp4_dtypes[row.element].bits, "data of fewer elements");
  require(sizes.scale_ndim == (row.lines ? 2 : 0), "scales of another rank");
}

// Any number of threads is taken; what is no number of some restores OpenMP's own. No case after it has them.
void choose_threads(Bytes *input) {
  const int threads = static_cast<int>(input->edge()), usual = dlfp4_get_num_threads();
  dlfp4_set_num_threads(threads);
  const int found = dlfp4_get_num_threads();
  dlfp4_set_num_threads(0);
  require(found == usual || (threads > 0 && found == threads), "other threads");  // usual: a build without OpenMP
  require(usual > 0 && dlfp4_get_num_threads() == usual, "threads that stay");
}

// Of a process without a GPU and without tvm-ffi.
void look_for_libraries(Bytes *input) {
  require(strlen(dlfp4_version()) > 4, "no version");
  require(dlfp4_register_tvm_ffi() == DLFP4_E_LIBRARY, "a library that is not there");
  require(dlfp4_load_cuda(static_cast<int>(input->edge())) != DLFP4_OK, "kernels for a device that is not there");
}

void formats(Bytes *input, Arena *arena) {
  switch (input->below(6)) {
    case 0:
      return size(input);
    case 1:
      return find(input, arena);
    case 2:
      return describe(input);
    case 3:
      return choose_threads(input);
    case 4:
      return look_for_libraries(input);
    default: {
      const int status = static_cast<int>(input->edge());
      require(status < 0 || status > DLFP4_E_CUDA_LAST || dlfp4_status_string(static_cast<dlfp4_status>(status)),
              "a status without words");
      require(dlfp4_rotation(input->word()) != 0, "no rotation");
      const int64_t bytes = dlfp4_vecdot_workspace(input->byte(), input->byte());
      require(bytes >= 0, "a workspace of fewer than no bytes");
    }
  }
}

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  return fuzz::run_case(data, size, fuzz::formats);
}
