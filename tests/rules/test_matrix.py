"""matrix.h, alone: where elements of lines lie, whose decode scale a line has, and what rounds up."""

import itertools

import numpy as np
import pytest

from ..support import rules

pytestmark = pytest.mark.arithmetic


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
