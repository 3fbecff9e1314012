"""Threads race for what they share, round after round: `python -P tests/project/hammer.py [--seconds 10]`.

Each race has its share of the time, and says how many rounds it ran. Without a GIL the threads really meet; a Python
and a core that were built with ThreadSanitizer say where nothing orders them (`nox -s hammer`).
"""

import argparse
import pickle
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import dlfp4

SUPPORT = Path(__file__).resolve().parents[1] / "support"
sys.path.insert(0, str(SUPPORT))
from capsules import Made, run_python, together  # noqa: E402

THREADS = 8
X = np.random.default_rng(7).integers(-3, 4, (32, 64)).astype("float32")  # products are exact, whoever multiplies


def all_give(expected, work):
    """What every thread gets, again and again, so that they meet whenever each of them began."""
    found = together(THREADS, lambda number: {work(number) for _ in range(20)})
    assert found == [{expected}] * THREADS, found


def parts_of(q):
    return q.data.view("uint8").to_numpy().tobytes(), q.scales.view("uint8").to_numpy().tobytes()


# ---- Races: each call is a round


def capsules():
    """One capsule: one thread gets the tensor, and it is deleted once."""
    for versioned in (True, False):
        made = Made(versioned=versioned)
        found = together(THREADS, lambda _, made=made: dlfp4.from_dlpack(made.capsule))
        (winner,) = (each for each in found if isinstance(each, dlfp4.Tensor))
        assert sum(isinstance(each, (BufferError, TypeError)) for each in found) == THREADS - 1, found
        assert winner.to_numpy().tobytes() == made.memory.tobytes()
        del found, winner
        assert made.deleted == 1


SHARED = dlfp4.asarray(X), dlfp4.quantize(X, "nvfp4")
VALUES = SHARED[1].dequantize().to_numpy()


def views():
    """One tensor and one ScaledTensor, of which all make views, exports, pickles and values."""
    tensor, scaled = SHARED

    def work(number):
        row = 16 * (number % 2)
        again = dlfp4.from_dlpack(tensor.__dlpack__(max_version=(1, 3))).T.mT[row : row + 16].reshape((4, 256))
        part = pickle.loads(pickle.dumps(scaled[row : row + 16]))
        return (
            again.to_numpy().tobytes() == X[row : row + 16].tobytes()
            and part.dequantize().to_numpy().tobytes() == VALUES[row : row + 16].tobytes()
            and repr(scaled) == str(scaled)
        )

    all_give(True, work)


def outputs():
    """One `out=`, into which all write the same."""
    for name in ("nvfp4", "mxfp8_e4m3", "fp8_row", "uint4_g64"):
        out, expected = dlfp4.quantize(np.ones_like(X), name), parts_of(dlfp4.quantize(X, name))
        all_give(True, lambda _, name=name, out=out: dlfp4.quantize(X, name, out=out) is out)
        assert parts_of(out) == expected
    values = np.zeros_like(X)
    all_give(X.shape, lambda _: dlfp4.dequantize(SHARED[1], out=values).shape)
    assert values.tobytes() == VALUES.tobytes()


def choices():
    """Half of the threads measure, into one file, what the others multiply meanwhile."""
    choices.rounds = getattr(choices, "rounds", 0) % 31 + 1
    w = dlfp4.quantize(X[: choices.rounds], "mxfp4")  # another N each time, which nobody has measured yet
    expected = (X @ w.dequantize().to_numpy().T).tobytes()

    def work(number):
        if number % 2:
            return dlfp4.matmul(X, w.mT).to_numpy().tobytes()
        with dlfp4.autotune(FILE):
            return dlfp4.matmul(X, w.mT).to_numpy().tobytes()

    all_give(expected, work)


def first_use():
    """Tables that are filled when they are first needed, and the import itself."""
    assert int(run_python((SUPPORT / "first_use.py").read_text(), timeout=600)) > 10_000


RACES = (capsules, views, outputs, choices, first_use)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    seconds = parser.parse_args().seconds / len(RACES)
    sys.setswitchinterval(1e-6)
    with tempfile.TemporaryDirectory() as folder:
        FILE = Path(folder) / "choices.json"
        for race in RACES:
            rounds, end = 0, time.monotonic() + seconds
            while rounds == 0 or time.monotonic() < end:
                race()
                rounds += 1
            print(f"{race.__name__} {rounds} rounds", flush=True)
