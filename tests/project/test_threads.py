"""What many threads do at once: with a GIL they take turns at every instruction, without one they really meet."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import dlfp4

from ..support.capsules import run_python, together
from ..support.levels import available_levels, run_at
from ..support.reference import raw_bytes

THREADS = 8


@pytest.fixture(autouse=True)
def in_turns():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def bytes_of(q):
    return raw_bytes(q.data) + raw_bytes(q.scales)


def test_remembered_rules_are_forgotten_meanwhile():
    """More recipes than are remembered come by while others use theirs: entries go while they are read."""
    x = np.random.default_rng(2).normal(size=(4, 64)).astype("float32")
    expected = bytes_of(dlfp4.quantize(x, "mxfp4", recipe="nvidia"))

    def work(number):
        if number < 2:
            return {bytes_of(dlfp4.quantize(x, "mxfp4", recipe=dlfp4.Recipe(scale_rule="rceil", eps=i * 1e-30)))
                    for i in range(number * 1000, number * 1000 + 1500)}  # fmt: skip
        return {bytes_of(dlfp4.quantize(x, "mxfp4", recipe="nvidia")) for _ in range(1500)}

    assert together(THREADS, work) == [{expected}] * THREADS


def test_values_are_borrowed_from_no_dictionary():
    """`dict.get`, as Cython compiles it, holds a borrowed reference for a moment: `look_up` does not."""
    files = sorted(Path(__file__).parents[2].glob("dlfp4/core/*/*.pxi"))
    assert len(files) > 10
    changed = re.compile(r"\b[A-Z_]+\.get\(\w+\)|\b(?:known|products)\)?\.get\(")  # constant tables have a default
    assert [f"{file.name}: {each}" for file in files for each in changed.findall(file.read_text())] == []


FIRST = """
import sys, threading
sys.setswitchinterval(1e-6)
import numpy as np

barrier, found = threading.Barrier(8), [None] * 8
x = np.random.default_rng(3).normal(size=(4, 64)).astype("float32")

def results():
    import dlfp4
    parts = []
    for name in ("float4_e2m1fn", "float6_e2m3fn", "float8_e5m2", "bfloat16"):
        tensor = dlfp4.asarray(dlfp4.cast(x, name))
        parts += [dlfp4.cast(tensor, "float32").to_numpy().tobytes() if name == "bfloat16" else
                  bytes(dlfp4.cast(dlfp4.cast(tensor, "float8_e4m3fn"), "float32").to_numpy())]
    for name, format in dlfp4.formats().items():
        q = dlfp4.quantize(x, name, pad=True)
        parts += [str(q), bytes(q.dequantize().to_numpy()), dlfp4.TensorProto((64, 256), format=name).buffers()]
    w = dlfp4.quantize(x, "nvfp4")
    parts += [bytes(dlfp4.matmul(x, w.mT).to_numpy()), dlfp4.backends(x, w.mT), dlfp4.vecdot(w, w).tolist()]
    return str(parts)

def run(number):
    barrier.wait()
    found[number] = results()

threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert found == [results()] * 8, [each and hash(each) for each in found]
print(len(found[0]))
"""


def test_first_use_by_many_threads():
    """Tables that are filled when they are first needed, and the import itself."""
    assert int(run_python(FIRST)) > 10_000


SMALL_STACK = """
import threading
import numpy as np, dlfp4

dlfp4.set_num_threads(1)
x = np.random.default_rng(4).normal(size=(384, 1024)).astype("float32")
by_row, by_error = dlfp4.Recipe(global_scale_per="row"), dlfp4.Recipe(four_over_six="mean_squared")

def run():
    for name in ("nvfp4", "fp8_128x128", "int4_g32"):
        w, across = (dlfp4.quantize(x, name, axis=axis, pad=True) for axis in (-1, -2))
        dlfp4.matmul(x, w.mT), dlfp4.vecdot(w, w), across.dequantize()
        dlfp4.grouped_matmul(x, dlfp4.stack([w, w]).mT, np.array([100, 384]))
    dlfp4.quantize(x, "nvfp4", axis=(-1, -2)), dlfp4.quantize(x, "nvfp4", axis=-2, recipe=by_row)
    dlfp4.quantize(x, "nvfp4", axis=-2, recipe=by_error)
    dlfp4.quantize(x, "mxfp4", axis=-2, hadamard=3).dequantize()
    dlfp4.matmul(x, x.T), dlfp4.cast(x.T, "float4_e2m1fn")
    print("enough")

threading.stack_size(1 << 20)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer's variables lie apart")
@pytest.mark.parametrize("level", available_levels())
def test_threads_with_small_stacks(level):
    """As docs/library.md has it."""
    assert run_at(level, SMALL_STACK) == "enough\n"
