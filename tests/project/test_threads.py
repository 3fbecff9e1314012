"""What many threads do at once: with a GIL they take turns at every instruction, without one they really meet."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dlfp4

from ..support.capsules import run_python, together
from ..support.levels import available_levels, run_at
from ..support.reference import raw_bytes

HERE = Path(__file__).resolve().parent
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
    files = sorted(HERE.parents[1].glob("dlfp4/core/*/*.pxi"))
    assert len(files) > 10
    changed = re.compile(r"\b[A-Z_]+\.get\(\w+\)|\b(?:known|products)\)?\.get\(")  # constant tables have a default
    assert [f"{file.name}: {each}" for file in files for each in changed.findall(file.read_text())] == []


def test_no_object_is_replaced_that_all_threads_see():
    """Between reading such a variable and holding what it names, another thread could let go of that."""
    text = "".join(file.read_text() for file in HERE.parents[1].glob("dlfp4/core/*/*.pxi"))
    replaced = {name for names in re.findall(r"^ +global (.+)$", text, re.MULTILINE) for name in names.split(", ")}
    assert replaced - {"BOXED"} == set()  # as dlfp4.torch is imported, before there are kernels that read it


def test_first_use_by_many_threads():
    """Tables that are filled when they are first needed, and the import itself."""
    assert int(run_python((HERE.parent / "support" / "first_use.py").read_text())) > 10_000


def test_threads_that_race():
    """A moment of what `nox -s hammer` does for longer, on a Python without a GIL."""
    command = [sys.executable, "-P", HERE / "hammer.py", "--seconds", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    counted = dict(line.split()[:2] for line in done.stdout.splitlines())
    assert counted.keys() == {"capsules", "views", "outputs", "choices", "first_use"}
    assert all(int(rounds) > 0 for rounds in counted.values())


ONE_RESULT = """
import threading
import numpy as np, dlfp4

dlfp4.set_num_threads(1)
x = np.random.default_rng(4).normal(size=(256, 4096)).astype("float32")

def write(barrier, name, out):
    barrier.wait()
    dlfp4.quantize(x, name, out=out)

for name in dlfp4.formats():
    out, expected = dlfp4.quantize(x, name), dlfp4.quantize(x, name).data.view("uint8").to_numpy()
    for _ in range(40):
        barrier = threading.Barrier(2)
        threads = [threading.Thread(target=write, args=(barrier, name, out)) for _ in range(2)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        if not np.array_equal(out.data.view("uint8").to_numpy(), expected):
            print(name)
            break
"""


def test_threads_that_write_one_result():
    """Both write the same bytes at the same moment, so these are what must be there in the end."""
    assert run_python(ONE_RESULT) == ""


TEAM = """
import os
import numpy as np, dlfp4

dlfp4.set_num_threads(6)
small, large = np.ones(2 << 16, "float32"), np.ones(12 << 16, "float32")

def run(x):
    dlfp4.cast(x, "bfloat16")
    return set(os.listdir("/proc/self/task"))

first = run(large)
print(len(first) >= 6, all(run(x) == first for x in (small, large, small, large)))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="reads Linux's list of a process's threads")
def test_little_work_ends_no_threads():
    """To start them again for the next large work takes longer than the work."""
    assert run_python(TEAM) == "True True\n"


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
