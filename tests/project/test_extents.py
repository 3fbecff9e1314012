"""Products of extents: one function in Python, a few in Cython, which see where 63 bits do not hold them."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

import dlfp4
from dlfp4.extents import BEYOND, bounded_product, count_elements

from ..support.capsules import Made
from ..support.levels import available_levels, run_at

PACKAGE = Path(dlfp4.__file__).parent
CHECKED = {"extents.py", "strides.pxi"}  # where products are made
# A product in Python, and one in Cython of what describes a tensor; `(*shape[:2], n)` is none.
BARE = {
    ".py": re.compile(r"\b(math|np|numpy)\.prod\b|functools\.reduce"),
    ".pxi": re.compile(
        r"\bmath\.prod\b|(shape|strides|scale_strides)\[[^]]*\] \*=? "
        r"|(?<!\()(?<!, )\* ?\(?(self|source|factor|call|plan|part|codes|scales|a|b)(\.\w+)*(\.dl)?\.?(shape|strides)\["
        r"|\bsize_ \*|\* storage_bits|storage_bits\(\w+\) \*"
    ),
}


def bare_products(name, text):
    """The lines of a file that multiply extents on their own."""
    found = BARE.get(Path(name).suffix)
    lines = text.splitlines() if found and Path(name).name not in CHECKED else []
    return [f"{name}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if found.search(line)]


def test_extents_are_multiplied_in_one_place():
    files = [path for path in PACKAGE.rglob("*") if path.suffix in BARE]
    assert len(files) > 90
    assert [line for path in files for line in bare_products(str(path.relative_to(PACKAGE)), path.read_text())] == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("proto.py", "rows = math.prod(shape[:-1])"),
        ("a.py", "count = int(np.prod(q.shape))"),
        ("a.pxi", "stride = a.shape[k] * stride"),
        ("a.pxi", "a.shape[kept - 1] *= a.shape[k]"),
        ("a.pxi", "return self.size_ * bits"),
        ("a.pxi", "first = rows * plan.x.strides[0]"),
        ("a.pxi", "bits = self.dl.shape[1] * storage_bits(self)"),
    ],
)
def test_planted_products_are_found(name, line):
    assert bare_products(name, line) == [f"{name}:1: {line}"]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), 1), ((3, 5), 15), ((2**62,), 2**62), ((2**40, 2**40, 0), 0), ((0,) + (2**63 - 1,) * 1000, 0)],
)
def test_elements_are_counted(shape, expected):
    assert count_elements(shape) == bounded_product(shape) == expected


@pytest.mark.parametrize("shape", [(2**63,), (2**40, 2**40), (2**63 - 1,) * 65, (2,) * 1000])
def test_more_elements_than_memory_holds(shape):
    assert bounded_product(shape) == BEYOND
    with pytest.raises(ValueError, match="more elements than memory can hold") as caught:
        count_elements(shape)
    assert len(str(caught.value)) < 2000


def test_numbers_do_not_grow_with_the_list():
    """The whole product would have millions of digits, and take half a minute of the processor."""
    start = time.process_time()
    assert bounded_product((2**63 - 1,) * 100_000) == BEYOND
    assert time.process_time() - start < 5


def broadcast(*shape):
    return dlfp4.asarray(np.broadcast_to(np.float32(1), shape))


def test_lines_that_cannot_be_counted_are_refused():
    with pytest.raises(ValueError, match="more lines than can be counted"):
        dlfp4.vecdot(broadcast(2**40, 1, 1), broadcast(1, 2**40, 1))


LONG_LINES = """
import itertools, numpy as np, dlfp4
for dtype, more in itertools.product(("float8_e4m3fn", "bfloat16", "float32"), (0, 1024)):
    one = dlfp4.cast(np.ones((1, 1), np.float32), dtype)
    x = dlfp4.asarray(np.broadcast_to(one.to_numpy(), (1, 2**62 // (8 * one.nbytes) + more)))
    stack = dlfp4.asarray(np.broadcast_to(one.to_numpy(), (1, *x.T.shape)))
    for multiply in (lambda: dlfp4.matmul(x, x.T), lambda: dlfp4.grouped_matmul(x, stack, np.array([1]))):
        try:
            multiply()
        except MemoryError as error:
            print(str(error)[:25])
"""


@pytest.mark.parametrize("level", available_levels())
def test_products_of_lines_that_cannot_be_prepared(level):
    """A line that repeats an element is as long as one likes. The bytes of prepared rows once wrapped to a few."""
    assert run_at(level, LONG_LINES) == "no memory for a workspace\n" * 12


@pytest.mark.parametrize("shape", [(2**40, 2**40, 0), (0, 2**62, 2**62, 3)])
def test_empty_tensors_of_any_extents(shape):
    """Views of them are empty, too; what counts lines refuses them."""
    tensor = dlfp4.from_dlpack(Made(dtype="float32", shape=shape, strides=(1,) * len(shape)).capsule)
    assert tensor[..., -1:].size == tensor[-1:].size == tensor.T.size == 0
    with pytest.raises(ValueError, match=r"can be counted|memory can hold"):
        dlfp4.quantize(tensor, "mxfp4")
