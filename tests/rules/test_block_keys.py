"""block_keys.h, alone: what formats are told apart by, where each has its place, and which ones kernels could serve."""

import ctypes
import itertools

import pytest

from ..support import rules

pytestmark = pytest.mark.arithmetic

ELEMENT, SCALE, KIND, REPEATS, LINES, LENGTH = range(6)  # of a row of formats.def
KINDS = (rules.TWO_LEVEL, rules.POWER, rules.LARGEST)
FLOAT8 = {
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz",
}  # fmt: skip
ELEMENTS = {*FLOAT8, "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}


def numbers(*values):
    return (ctypes.c_int64 * len(values))(*values)


def row(element="float8_e4m3fn", scale="float32", kind=rules.LARGEST, lines=1, length=128):
    return numbers(rules.rows()[element], rules.rows()[scale], kind, 0, lines, length)


def filled(name, size, *arguments):
    """What a function writes."""
    result = numbers(*[0] * size)
    rules.call(name, *arguments, result)
    return tuple(result)


def formats():
    return [filled("format", 6, number) for number in range(rules.call("number_of_formats"))]


def key_of(of):
    return filled("key_of_row", 4, numbers(*of))


def test_a_key_says_how_elements_share_a_scale_along_a_line():
    """How many lines share it, and how often it is stored, does not matter: but for one scale of a whole line."""
    whole_line = key_of(row(length=0))[3]
    assert whole_line < -1  # no length, and not keys.h's kAnything
    for lines, length, repeats in itertools.product((0, 1, 2, 16, 128), (0, 1, 2, 16, 128), (0, 1)):
        of = (3, 5, 7, repeats, lines, length)
        assert key_of(of) == (3, 5, 7, whole_line if (lines, length) == (1, 0) else length)


def test_keys_are_equal_in_all_or_differ():
    key = (3, 5, 2, 128)
    assert rules.call("are_equal_keys", numbers(*key), numbers(*key))
    for changed in range(1, 16):  # a bit for each member
        other = [value + (changed >> place & 1) for place, value in enumerate(key)]
        assert not rules.call("are_equal_keys", numbers(*key), numbers(*other)), other


def test_places_of_keys_and_elements_are_those_of_their_first_formats():
    keys = list(dict.fromkeys(map(key_of, formats())))
    elements = list(dict.fromkeys(of[ELEMENT] for of in formats()))
    assert len(keys) < len(formats())  # some share one
    assert [filled("key", 4, place) for place in range(rules.call("number_of_keys"))] == keys
    assert [rules.call("element", place) for place in range(rules.call("number_of_elements"))] == elements
    for place, key in enumerate(keys):
        assert rules.call("place_of_key", numbers(*key)) == place
        assert rules.call("place_of_key", numbers(*key[:3], 7)) == -1  # no block has seven elements
    for number in range(len(rules.rows())):
        assert rules.call("element_of", number) == (elements.index(number) if number in elements else -1)


def test_places_of_sources():
    sources = ["float32", "bfloat16", "float16"]
    for name, number in rules.rows().items():
        assert rules.call("source_of", number) == (sources.index(name) if name in sources else -1), name


def test_uint4_is_encoded_as_int4():
    known = rules.rows()
    for name, number in known.items():
        assert rules.call("encoded_row", number) == known["int4" if name == "uint4" else name], name


def test_elements_are_floats_of_at_most_a_byte_with_a_fraction():
    assert {name for name, number in rules.rows().items() if rules.call("is_element", number)} == ELEMENTS


def test_blocks_are_tensors_lines_or_powers_of_two():
    """Whole tensors (0 x 0), lines (1 x 0), or 1 to 128 lines of 16 to 128 elements."""
    extents = [-128, -16, -1, *range(300), 512, 1 << 20]
    known = {(0, 0), (1, 0), *itertools.product((1, 2, 4, 8, 16, 32, 64, 128), (16, 32, 64, 128))}
    found = {
        (lines, length)
        for lines, length in itertools.product(extents, repeat=2)
        if rules.call("is_block", numbers(0, 0, 0, 0, lines, length))
    }
    assert found == known


def test_integers_have_offsets_in_blocks_of_one_line_alone():
    """And only types of four bits have them, whose scales come from the largest magnitude."""
    for name, kind, lines in itertools.product(rules.rows(), KINDS, (0, 1, 2, 128)):
        of = row(name, kind=kind, lines=lines)
        four_bits = name in ("int4", "uint4", "float4_e2m1fn")
        assert rules.call("is_integer_block", of) == (four_bits and kind == rules.LARGEST and lines == 1), (name, kind)
        assert rules.call("is_integer_row", of) == (name in ("int4", "uint4")), name


def reaches_two(name):
    """Whether an element may be 2: a power of two as a scale has the largest element in the largest one's binade."""
    return rules.call("largest_exponent", rules.rows()[name]) >= 1


def test_scales_are_of_the_types_that_scaling_knows():
    """A float8 in units of the tensor's scale, a power of two, or float32."""
    for element, scale, kind in itertools.product(rules.rows(), rules.rows(), KINDS):
        expected = {
            rules.TWO_LEVEL: scale in FLOAT8,
            rules.POWER: scale == "float8_e8m0fnu" and reaches_two(element),
            rules.LARGEST: scale == "float32",
        }[kind]
        assert rules.call("is_scale", row(element, scale, kind)) == expected, (element, scale, kind)
