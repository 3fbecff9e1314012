// Checks the words of prepared weights without a GPU: what kernels cut out of them are the values that went in.
// Layout: prepared.h's.
// Trick: the masks of the kernels are few; each is applied here as there, and the float it leaves is compared.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"  // not all of the support is for words
#endif

#include "products/cuda/prepared.h"

#include <math.h>

#include <set>
#include <utility>

#include "support.h"

namespace dlfp4 {
namespace cuda {
namespace {

char detail[128];

float bfloat16_value(uint32_t half) {
  const uint32_t word = half << 16;
  float value;
  memcpy(&value, &word, sizeof(value));
  return value;
}

float value_of(int row, uint64_t code) {
  const uint64_t word = convert(kTypes[row], kTypes[DLFP4_float32], code, {DLFP4_NEAREST_EVEN, true}, {0, 0, 0});
  float value;
  memcpy(&value, &word, sizeof(value));
  return value;
}

// --- Codes -------------------------------------------------------------------------------------

void test_codes(int bits) {
  const int row = bits == 4 ? DLFP4_float4_e2m1fn : DLFP4_float8_e4m3fn;
  const int exponent = bits == 4 ? -126 : -120;
  for (uint32_t code = 0; code < 1u << bits; ++code) {
    const uint32_t other = static_cast<uint32_t>(random_below(1 << bits));
    const uint32_t field = field_of_codes(bits, code, other);
    snprintf(detail, sizeof(detail), "%u, %u of %d bits", code, other, bits);
    check((field & ~field_mask(bits)) == 0, "a field lies under the mask", detail);
    check(code_of_field(bits, field, 0) == code && code_of_field(bits, field, 1) == other, "codes come back", detail);
    const float expected = value_of(row, code);
    if (std::isnan(expected)) continue;  // such weights are not prepared
    const float found = std::ldexp(bfloat16_value(field & 0xFFFF), -exponent);
    check(found == expected && std::signbit(found) == std::signbit(expected), "a field is a bfloat16", detail);
  }
}

void test_word(int bits, uint32_t word) {
  uint32_t fields[4] = {};
  spread_fields(bits, word, Shifts(), fields);
  for (uint32_t &field : fields) field &= field_mask(bits);
  snprintf(detail, sizeof(detail), "%08X of %d bits", word, bits);
  check(word_of_fields(bits, fields) == word, "fields give the word that they come from", detail);
}

// As many words as fields: if no two have the same fields, each choice of fields has a word.
void test_words(int bits) {
  for (int first = 0; first < 32; ++first)
    for (int second = first; second < 32; ++second) {
      test_word(bits, 1u << first | 1u << second);
      test_word(bits, ~(1u << first | 1u << second));
    }
  for (int i = 0; i < 200000; ++i) test_word(bits, static_cast<uint32_t>(random_bits()));
}

// --- Scales ------------------------------------------------------------------------------------

void test_wide_scales() {
  for (uint32_t code = 0; code < 0x7F; ++code) {
    const uint8_t wide = wide_scale(static_cast<uint8_t>(code));
    snprintf(detail, sizeof(detail), "scale %02X", code);
    check(narrow_scale(wide) == code, "a scale comes back", detail);
    if (code == 0) continue;  // the kernels have none: the codes are zeros
    const float found = std::ldexp(bfloat16_value(uint32_t{wide} << 4 | (Shifts().scale_exponents & 0xFFFF)), -118);
    check(found == value_of(DLFP4_float8_e4m3fn, code), "a scale is a bfloat16", detail);
  }
}

void test_scale_places(int group) {
  const int groups = kBlockK / group;
  std::set<std::pair<int, int>> places;
  snprintf(detail, sizeof(detail), "groups of %d", group);
  for (int word = 0; word < kTile * groups / 4; ++word)
    for (int byte = 0; byte < 4; ++byte) {
      const ScalePlace place = scale_place(group, word, byte);
      check(place.row >= 0 && place.row < kTile && place.group >= 0 && place.group < groups, "a place", detail);
      places.insert({place.row, place.group});
    }
  check(places.size() == static_cast<size_t>(kTile * groups), "each scale has one place", detail);
}

// The first and the third byte under the mask, then, turned by a byte, the second and the fourth.
void test_turned_scales(bool is_power) {
  const int place = is_power ? 7 : 4;  // of the low bit of a scale in its half
  const uint32_t mask = 0x00FF00FFu << place;
  for (int i = 0; i < 1000; ++i) {
    const uint32_t bytes = static_cast<uint32_t>(random_bits());
    const uint32_t word = rotate_right(bytes, 32 - turn_of_scales(is_power));
    snprintf(detail, sizeof(detail), "%08X, %s", bytes, is_power ? "powers of two" : "E4M3");
    check((word & mask) >> place == (bytes & 0x00FF00FF), "the first and the third scale", detail);
    check((rotate_right(word, 8) & mask) >> place == (bytes >> 8 & 0x00FF00FF), "the second and the fourth", detail);
  }
}

}  // namespace
}  // namespace cuda
}  // namespace dlfp4

int main() {
  using namespace dlfp4;
  using namespace dlfp4::cuda;
  for (int bits : {4, 8}) {
    test_codes(bits);
    test_words(bits);
  }
  test_wide_scales();
  for (int group : {16, 32}) test_scale_places(group);
  for (bool is_power : {false, true}) test_turned_scales(is_power);
  return report();
}
