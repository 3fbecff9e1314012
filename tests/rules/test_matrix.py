"""matrix.h and matrix.cpp, alone: lines of matrices, what follows from a format, the places of scales and offsets."""

import itertools

import numpy as np
import pytest

from ..support import capsules, rules
from ..support.reference import BITS, Guarded
from .test_layouts import LAYOUTS

pytestmark = pytest.mark.arithmetic

GUARDED, RESULTS = Guarded(1 << 14), Guarded(64)
KINDS = {"TWO_LEVEL": 0, "POWER": 1, "LARGEST": 2}
WHOLE_LINE = 1 << 62


def test_elements_of_lines():
    """NumPy's addresses of matrices of 1 to 4 bytes, by rows and by columns."""
    for dtype, transposed in itertools.product((np.uint8, np.float16, np.float32), (False, True)):
        matrix = np.zeros((5, 12), dtype)[:, ::3]
        matrix = matrix.T if transposed else matrix
        steps = [stride // matrix.itemsize for stride in matrix.strides]
        for line, position in np.ndindex(matrix.shape):
            expected = matrix[line:, position:].ctypes.data - matrix.ctypes.data
            assert rules.call("at", matrix.itemsize, *steps, line, position) == expected


def test_codes_of_lines():
    """Elements of 4, 6 and 8 bits lie where so many bits before them end."""
    for bits, (line_stride, step) in itertools.product((4, 6, 8), ((64, 1), (192, 1), (8, 16))):
        for line, position in itertools.product(range(4), range(0, 16, 4)):
            expected = sum([line_stride * bits] * line + [step * bits] * position) // 8
            assert rules.call("line_at", bits, line_stride, step, line, position) == expected


def test_decode_scales_of_lines():
    decodes = np.arange(1, 5, dtype=np.float32)
    for lines, line in itertools.product((1, 2, 3), range(4)):
        expected = decodes.repeat(lines)[line]
        assert rules.call("decode_of_line", rules.pointer(decodes, rules.FLOATS), lines, 9.0, line) == expected
    assert rules.call("decode_of_line", None, 1, 9.0, 3) == 9


def test_rounding_up():
    for value, multiple in itertools.product(range(300), range(1, 40)):
        multiples = range(0, 400, multiple)
        assert rules.call("round_up", value, multiple) == next(found for found in multiples if found >= value)
        assert rules.call("divide_up", value, multiple) == next(
            n for n, found in enumerate(multiples) if found >= value
        )


def test_least_and_logarithms():
    for a, b in itertools.product((-(1 << 62), -1, 0, 1, 1 << 62), repeat=2):
        assert rules.call("least", a, b) == min(a, b)
    for power in range(63):
        assert rules.call("log2_of", 1 << power) == power


def test_lines_of_matrices():
    """Of floats of 2 and 4 bytes; other types have none."""
    lines = rules.Lines(rotation=7)
    for name, (code, bits) in capsules.DTYPES.items():
        matrix = rules.Matrix(4096, 5, 9, (20, 2), code, bits)
        for columns in (False, True):
            made = rules.call("make_lines", matrix, columns, lines)
            assert made == (name in ("float32", "bfloat16", "float16"))
            assert (lines.data, lines.item, lines.rotation) == (4096, bits // 8, 0)
            found = lines.lines, lines.length, lines.line_stride, lines.step
            assert found == ((9, 5, 2, 20) if columns else (5, 9, 20, 2))
            assert not made or lines.source == ["float32", "bfloat16", "float16"].index(name)


def formats():
    """All rows of formats.def: number, names of the types, kind, whether scales are repeated, lines and length."""
    names = {number: name for name, number in rules.rows().items()}
    for number in range(rules.call("number_of_formats")):
        element, scale, *rest = row_of(number)
        yield number, names[element], names[scale], *rest


def row_of(number):
    row = np.empty(6, np.int64)
    rules.call("format", number, rules.pointer(row, rules.NUMBERS))
    return row.tolist()


def test_what_follows_from_a_format():
    info, key = np.empty(11, np.int64), np.empty(4, np.int64)
    members = rules.pointer(info, rules.NUMBERS)
    for number, element, scale, _, _, lines, length in formats():
        assert rules.call("find_format", number, members)
        row = np.array(row_of(number))
        rules.call("key_of_row", rules.pointer(row, rules.NUMBERS), rules.pointer(key, rules.NUMBERS))
        assert info.tolist() == [
            number,
            rules.call("element_of", rules.rows()[element]),
            rules.call("place_of_key", rules.pointer(key, rules.NUMBERS)),
            BITS[element],
            BITS[scale] // 8,
            length or WHOLE_LINE,
            max(1, lines),
            (lines, length) == (0, 0),
            (lines, length) == (1, 0),
            element in ("int4", "uint4"),
            number,
        ]
    for number in (-1, -(1 << 31), rules.call("number_of_formats"), (1 << 31) - 1):
        assert not rules.call("find_format", number, members)


def test_scales_of_blocks():
    scales = rules.Scales()
    for number, _, scale, _, repeats, lines, length in formats():
        for layout, name in enumerate(LAYOUTS):
            blocks = rules.Blocks(scales=4096, scale_strides=(140, 3), layout=layout, length=1000)
            rules.call("make_scales", number, blocks, scales)
            columns = -(-1000 // (length or WHOLE_LINE))
            pitch = {"linear": columns, "aiter": -(-columns // 8) * 8, "cublas_128x128": -(-columns // 4) * 4}
            pitch |= dict.fromkeys(["128x4", "8x4", "n32k4"], -(-columns // 4) * 4)
            found = scales.data, scales.layout, scales.bytes, scales.stride, scales.step, scales.pitch
            assert found == (4096, layout, BITS[scale] // 8, 140, 3, pitch.get(name, 140))
            assert scales.lines_per_row == (1 if repeats else max(1, lines))


def number_of(element, lines, length):
    return next(n for n, name, *_, rows, of in formats() if (name, rows, of) == (element, lines, length))


def float_matrix(rows, columns, strides, name="float32"):
    return rules.Matrix(None, rows, columns, strides, *capsules.DTYPES[name])


def test_lines_that_are_one():
    """Codes, scales, offsets and floats each go on where the line before ends."""
    mxfp8, integers = number_of("float8_e4m3fn", 1, 32), number_of("int4", 1, 32)
    whole, tile = number_of("float8_e4m3fn", 0, 0), number_of("float8_e4m3fn", 128, 128)
    place, decodes = 4096, 8192
    usual = {"strides": (256, 1), "scale_strides": (8, 1), "length": 256}
    zero_points = {"offsets": place, "offset_strides": (8, 1)}
    for number, length, changes, expected in (
        (mxfp8, 256, {}, True),
        (integers, 256, {}, True),
        (integers, 256, zero_points, True),
        (mxfp8, 256, {"length": 288}, False),
        (mxfp8, 256, {"strides": (257, 1)}, False),
        (mxfp8, 256, {"strides": (256, 2)}, False),
        (mxfp8, 256, {"layout": 1}, False),
        (mxfp8, 256, {"scale_strides": (8, 2)}, False),
        (mxfp8, 256, {"scale_strides": (9, 1)}, False),
        (mxfp8, 272, {"length": 272, "strides": (272, 1)}, False),  # incomplete blocks
        (mxfp8, 256, {"decodes": decodes}, False),
        (integers, 256, zero_points | {"offset_strides": (8, 2)}, False),
        (integers, 256, zero_points | {"offset_strides": (9, 1)}, False),
        (integers, 256, {"offset_strides": (9, 2)}, True),  # of no offsets
        (tile, 256, {"scale_strides": (2, 1)}, False),  # many lines have one row of scales
        (whole, 256, {"scale_strides": (0, 0)}, True),
        (whole, 256, {"scale_strides": (0, 0), **zero_points}, False),
        (whole, 256, {"scale_strides": (0, 0), "decodes": decodes}, False),
    ):
        blocks = rules.Blocks(**{**usual, **changes})
        for strides, follow in (((length, 1), True), ((length + 1, 1), False), ((length, 2), False)):
            floats = float_matrix(3, length, strides)
            assert rules.call("are_one_line", number, blocks, floats) == (expected and follow), (changes, strides)


def test_places_of_scales():
    """Along and across, of each layout and of each number of bytes, with no memory next to that of the matrix."""
    rng = np.random.default_rng(0)
    rows, columns = 256, 16
    for (layout, name), size in itertools.product(enumerate(LAYOUTS), (1, 2, 4)):
        pitch = rows if name in ("deepgemm", "cublas_1x128") else columns
        linear = [(columns, 1), (columns + 3, 1), (1, rows), (1, rows + 5), (2 * columns, 2), (2, 2 * rows)]
        linear += [(columns, 0), (0, 1)]  # one scale for many blocks
        for (stride, step), group in itertools.product(linear if name == "linear" else [(9, 9), (1, 1)], (1, 2, 128)):
            if name == "linear":
                places = np.add.outer(np.arange(rows) * stride, np.arange(columns) * step)
            else:
                places = np.array(
                    [[rules.call("scale_offset", layout, i, j, pitch) for j in range(columns)] for i in range(rows)]
                )
            data = np.zeros((int(places.max()) + 1, size), np.uint8)
            scales = rules.Scales(data.ctypes.data, layout, size, stride, step, pitch, group)
            for block, count in ((0, columns), (3, 7), (5, 1), (2, 0), (7, 9)):
                line = int(rng.integers(rows)) * group + int(rng.integers(group))
                check_scales(scales, "", data, (line, block, count), places[line // group, block : block + count], rng)
            for line, count in ((0, rows), (group * 3, 2 * group), (group * 2, 5 * group - 1), (group, 1), (0, 0)):
                lines = np.arange(line, line + count) // group
                block = int(rng.integers(columns))
                count = min(count, rows * group)
                check_scales(scales, "_across", data, (line, block, count), places[lines, block], rng)


def check_scales(scales, way, data, arguments, places, rng):
    """Those at the places are read, and written, where a group of lines has one place by the first of the group."""
    data[:] = rng.integers(0, 256, data.shape)
    for right in (False, True):
        stored = GUARDED.flush(len(places) * data.shape[1], right).reshape(len(places), data.shape[1])
        stored[:] = 0
        rules.call(f"load_scales{way}", scales, *arguments, rules.pointer(stored, rules.BYTES))
        assert (stored == data[places]).all()
        if 0 in (scales.stride, scales.step):
            continue
        stored[:] = rng.integers(0, 256, stored.shape)
        expected = data.copy()
        kept, first = np.unique(places, return_index=True)
        expected[kept] = stored[first]
        rules.call(f"store_scales{way}", scales, *arguments, rules.pointer(stored, rules.BYTES))
        assert (data == expected).all()


def offset_blocks(data, name, strides):
    return rules.Blocks(
        offsets=data.ctypes.data,
        offset_strides=strides,
        **dict(zip(("offset_code", "offset_bits"), capsules.DTYPES[name], strict=True)),
    )


OFFSETS = {"int8": np.int8, "uint8": np.uint8, "float32": np.float32, "int4": np.uint8, "uint4": np.uint8}


def test_offsets_of_blocks():
    """Zero points and biases as floats; along and across, with and without gaps."""
    rng = np.random.default_rng(1)
    for (name, dtype), strides in itertools.product(OFFSETS.items(), ((8, 1), (1, 6), (17, 2), (8, 0), (0, 1))):
        size = 5 * strides[0] + 7 * strides[1] + 1
        if name in ("int4", "uint4"):
            data = rng.integers(0, 256, -(-size // 2)).astype(dtype)
            codes = np.stack([data & 15, data >> 4], 1).reshape(-1).astype(np.int64)
            values = np.where((codes > 7) & (name == "int4"), codes - 16, codes)
        else:
            data = rng.integers(0, 256, size).astype(dtype)
            values = data.astype(np.float64)
        for right in (False, True):
            place = GUARDED.flush(data.nbytes, right).view(data.dtype)
            place[:] = data
            blocks = offset_blocks(place, name, strides)
            for line, block, count in ((0, 0, 8), (2, 3, 5), (5, 7, 1), (1, 4, 0)):
                found = loaded(blocks, "", line, block, count)
                assert found == [values[line * strides[0] + (block + k) * strides[1]] for k in range(count)]
            for line, block, count in ((0, 0, 6), (2, 3, 4), (5, 7, 1), (1, 4, 0)):
                found = loaded(blocks, "_across", line, block, count)
                assert found == [values[(line + k) * strides[0] + block * strides[1]] for k in range(count)]


def loaded(blocks, way, line, block, count):
    for right in (False, True):
        results = RESULTS.flush(4 * count, right).view(np.float32)
        results[:] = 77
        assert not rules.call(f"load_offsets{way}", blocks, line, block, count, rules.pointer(results, rules.FLOATS))
    return results.tolist()


def test_biases_that_are_not_finite():
    results = np.empty(3, np.float32)
    out = rules.pointer(results, rules.FLOATS)
    largest = np.finfo(np.float32).max
    for value in (np.nan, -np.nan, np.inf, -np.inf, largest, -largest, -0.0):
        for k in range(3):
            biases = np.ones(3, np.float32)
            biases[k] = value
            for way, strides in (("", (3, 1)), ("_across", (1, 3))):
                finite = not rules.call(f"load_offsets{way}", offset_blocks(biases, "float32", strides), 0, 0, 3, out)
                assert finite == np.isfinite(value)
                assert results.tobytes() == biases.tobytes()


def test_types_of_offsets():
    """Integers have zero points or biases, of five types; quantizing sets those of uint4, as uint8."""
    for number, element, *_ in formats():
        none = rules.Blocks(offset_code=9, offset_bits=9)
        assert rules.call("has_known_offsets", number, none)
        assert rules.call("can_set_offsets", number, none)
        for name, (code, bits) in capsules.DTYPES.items():
            blocks = rules.Blocks(offsets=4096, offset_code=code, offset_bits=bits)
            known = element in ("int4", "uint4") and name in OFFSETS
            assert rules.call("has_known_offsets", number, blocks) == known
            assert rules.call("can_set_offsets", number, blocks) == (element == "uint4" and name == "uint8")


def test_lengths_that_may_be_stored():
    """Whole blocks; lines that are one block: whole bytes; bytes under float32 scales: all."""
    for number, element, _, kind, _, lines, length in formats():
        for elements in (*range(300), 1 << 40, (1 << 40) + 1):
            if kind == KINDS["LARGEST"] and BITS[element] == 8:
                expected = True
            elif (lines, length) == (1, 0):
                expected = elements * BITS[element] % 8 == 0
            else:
                expected = elements % length == 0
            assert rules.call("has_whole_blocks", number, elements) == expected


def test_lines_that_can_be_addressed():
    for number, element, *_ in formats():
        bits = BITS[element]
        for length, lines, strides in itertools.product(
            (0, 1, 2, 32), (0, 1, 2, 9), itertools.product((1, 2, 3, 4, 8, 32, -32), (1, 2, -1, 0))
        ):
            blocks = rules.Blocks(length=length, strides=strides)
            dense = length < 2 or strides[1] == 1
            starts = lines < 2 or strides[0] * bits % 8 == 0
            expected = bits == 8 or length == 0 or (dense and starts)
            assert rules.call("is_addressable", number, blocks, lines) == expected


def test_items_with_and_without_gaps():
    rng = np.random.default_rng(2)
    for item, step, count in itertools.product((1, 2, 4), (1, 2, 5), (0, 1, 2, 9)):
        size = ((count - 1) * step + 1) * item if count else 0
        for right in (False, True):
            source = GUARDED.flush(size, right)
            source[:] = rng.integers(0, 256, size)
            places = np.arange(count)[:, None] * step * item + np.arange(item)
            dense = np.full(count * item + 8, 0xA5, np.uint8)
            numbers = step, item, count
            rules.call("gather_items", rules.pointer(source, rules.BYTES), *numbers, rules.pointer(dense, rules.BYTES))
            assert (dense[: count * item] == source[places].reshape(-1)).all()
            assert (dense[count * item :] == 0xA5).all()
            dense[:] = rng.integers(0, 256, dense.size)
            expected = source.copy()
            expected[places] = dense[: count * item].reshape(-1, item)
            rules.call("scatter_items", rules.pointer(dense, rules.BYTES), *numbers, rules.pointer(source, rules.BYTES))
            assert (source == expected).all()
