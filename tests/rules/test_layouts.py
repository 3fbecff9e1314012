"""layouts.h, alone: where each scale lies, as NumPy's reshape and transpose put it, and what its table says of it."""

import re
from pathlib import Path

import numpy as np
import pytest

import dlfp4

from ..support import rules

pytestmark = pytest.mark.arithmetic

SHAPES = [(1, 1), (4, 4), (128, 4), (256, 8), (512, 24), (260, 12), (130, 129)]


def arranged(order, layout):
    """A padded matrix in the order in which a layout has it in memory, by the pages that layouts.h names."""
    r, c = order.shape
    if layout == "128x4":  # torchao's to_blocked
        return order.reshape(r // 128, 4, 32, c // 4, 4).transpose(0, 3, 2, 1, 4)
    if layout == "8x4":
        return order.reshape(r // 8, 8, c // 4, 4).transpose(0, 2, 1, 3)
    if layout == "aiter":  # e8m0_shuffle
        return order.reshape(r // 32, 2, 16, c // 8, 2, 4).transpose(0, 3, 5, 2, 4, 1)
    if layout == "n32k4":
        return order.reshape(r // 32, 32, c // 4, 4).transpose(0, 2, 1, 3)
    if layout == "deepgemm":  # an int32 of four columns, transposed
        return order.reshape(r, c // 4, 4).transpose(1, 0, 2)
    return order.T if layout == "cublas_1x128" else order


# Multiples that rows and columns are padded to, neighbours of a row, bytes, whether columns follow one another, lines.
LAYOUTS = {
    "linear": (1, 1, 0, 0, 0, 0),
    "128x4": (128, 4, 4, 1, 0, 0),
    "8x4": (8, 4, 4, 1, 0, 0),
    "aiter": (256, 8, 1, 1, 0, 0),
    "n32k4": (32, 4, 4, 1, 0, 0),
    "deepgemm": (4, 4, 4, 1, 1, 0),
    "cublas_1x128": (4, 1, 1, 4, 1, 1),
    "cublas_128x128": (1, 4, 4, 4, 0, 128),
}


def table():
    found = []
    while row := rules.call("layout", len(found)):
        found.append(row.contents)
    return found


def test_the_table():
    names = ("rows", "columns", "run", "bytes", "by_rows", "lines")
    found = {row.name.decode(): tuple(getattr(row, name) for name in names) for row in table()}
    assert list(found.items()) == list(LAYOUTS.items())  # stored descriptions count them


def test_whoever_names_all_layouts_names_these():
    root = Path(__file__).parents[2]
    for path, first in (
        ("dlfp4/_core.pyi", "_ScaleLayout: TypeAlias = Literal["),
        ("include/dlfp4/dlfp4.h", "The number of a layout of scales by its name: "),
    ):
        listed = (root / path).read_text().partition(first)[2][:300]
        assert re.findall(r'"(\w+)"', listed)[: len(LAYOUTS)] == list(LAYOUTS), path
    notes = dlfp4.ScaledTensor.with_scale_layout.__doc__
    assert {name for name in LAYOUTS if f'"{name}"' in notes} == set(LAYOUTS)


def offsets(layout, shape):
    """Where the library puts each scale of a padded matrix."""
    row = table()[layout]
    pitch = shape[0] if row.by_rows else shape[1]
    return np.array(
        [[rules.call("scale_offset", layout, i, j, pitch) for j in range(shape[1])] for i in range(shape[0])]
    )


@pytest.mark.parametrize("layout", range(len(LAYOUTS)), ids=list(LAYOUTS))
def test_offsets(layout):
    name = list(LAYOUTS)[layout]
    rows, columns, run = LAYOUTS[name][:3]
    for shape in SHAPES:
        padded = tuple(-(-extent // step) * step for extent, step in zip(shape, (rows, columns), strict=True))
        order = np.arange(padded[0] * padded[1]).reshape(padded)
        found = offsets(layout, padded)
        assert np.array_equal(np.argsort(arranged(order, name).ravel()).reshape(padded), found), shape
        run = run or padded[1]  # neighbours of a row are neighbours in memory
        assert (np.diff(found.reshape(padded[0], -1, run)) == 1).all()


def test_no_layout():
    for layout in (-1, len(LAYOUTS)):
        assert rules.call("scale_offset", layout, 3, 5, 16) == 0


@pytest.mark.parametrize("shape", [(16, 32), (64, 96), (48, 128)])
def test_shuffled_weights(shape):
    """AITER's shuffle_weight of (16, 16)."""
    order = np.arange(shape[0] * shape[1]).reshape(shape)
    memory = order.reshape(shape[0] // 16, 16, shape[1] // 16, 16).transpose(0, 2, 1, 3)
    found = [[rules.call("weight_offset", i, j, shape[1]) for j in range(shape[1])] for i in range(shape[0])]
    assert np.array_equal(np.argsort(memory.ravel()).reshape(shape), found)
