// The scalar kernels of block scaling as a table: complete, so that all other levels fall through to it.
#include "scalar.h"

#include <utility>

#include "changes.h"

namespace dlfp4 {
namespace {

template <int Rounding, int From, int To>
void add_encoders(BlockKernels *kernels) {
  constexpr int kTo = encoded_row(kElementRows[To]);
  kernels->encode[Rounding][From][To] = encode<Rounding, kSourceRows[From], kTo>;
  kernels->encode_across[Rounding][From][To] = encode_across<Rounding, kSourceRows[From], kTo>;
}

template <int From, int To, int... Rounding>
void add_pair(BlockKernels *kernels, std::integer_sequence<int, Rounding...>) {
  (add_encoders<Rounding, From, To>(kernels), ...);
  kernels->decode[To][From] = decode_blocks<kElementRows[To], kSourceRows[From]>;
  kernels->decode_across[To][From] = decode_across<kElementRows[To], kSourceRows[From]>;
  if constexpr (is_block_integer(kTypes[kElementRows[To]])) {
    kernels->decode_affine[To][From] = decode_affine<kElementRows[To], kSourceRows[From]>;
    kernels->decode_affine_across[To][From] = decode_affine_across<kElementRows[To], kSourceRows[From]>;
  }
}

template <int From, int... Rounding>
void add_choices(BlockKernels *kernels, std::integer_sequence<int, Rounding...>) {
  ((kernels->sum_errors[Rounding][From] = sum_errors<Rounding, kSourceRows[From]>), ...);
  ((kernels->add_errors[Rounding][From] = add_errors<Rounding, kSourceRows[From]>), ...);
}

template <int From, int... To>
void add_floats(BlockKernels *kernels, std::integer_sequence<int, To...>) {
  kernels->find_largest[From] = find_largest<kSourceRows[From]>;
  kernels->join_largest[From] = join_largest<kSourceRows[From]>;
  kernels->rotate[From] = rotate_line<kSourceRows[From]>;
  kernels->rotate_back[From] = rotate_line_back<kSourceRows[From]>;
  kernels->largest_rotated[From] = largest_of_rotated_line<kSourceRows[From]>;
  kernels->largest_rotated_across[From] = largest_of_rotated_rows<kSourceRows[From]>;
  kernels->rotate_across[From] = rotate_rows<kSourceRows[From]>;
  kernels->rotate_across_back[From] = rotate_rows_back<kSourceRows[From]>;
  using Roundings = std::integer_sequence<int, DLFP4_NEAREST_EVEN, DLFP4_NEAREST_AWAY, DLFP4_TOWARD_ZERO,
                                          DLFP4_NEAREST_ZERO, DLFP4_STOCHASTIC>;
  (add_pair<From, To>(kernels, Roundings()), ...);
  add_choices<From>(kernels, Roundings());
}

template <int... Bits>
void add_turns(BlockKernels *kernels) {
  ((kernels->pack_across[Bits] = pack_across<Bits>), ...);
  ((kernels->unpack_across[Bits] = unpack_across<Bits>), ...);
}

template <int... From, int... To, int... Key>
void add_block_kernels(BlockKernels *kernels, std::integer_sequence<int, From...>, std::integer_sequence<int, To...> to,
                       std::integer_sequence<int, Key...>) {
  (add_floats<From>(kernels, to), ...);
  add_turns<4, 6, 8>(kernels);
  add_changes(kernels);
  ((kernels->find_scales[Key] = find_scales<Key>), ...);
  ((kernels->find_scales_of_lines[Key] = find_scales_of_lines<Key>), ...);
  ((kernels->decode_scales[Key] = decode_scales<Key>), ...);
}

}  // namespace

void add_scalar_blocks(BlockKernels *kernels) {
  add_block_kernels(kernels, std::make_integer_sequence<int, kNumSources>(),
                    std::make_integer_sequence<int, kNumElements>(), std::make_integer_sequence<int, kNumKeys>());
}

}  // namespace dlfp4
