"""Signals at random moments: what they interrupt leaves nothing behind, and gives the same when it is called again.

Handlers run where Python lets them, between two instructions of its own. In a process of its own, which a fault ends.
"""

import gc
import pickle
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints

from ..support.own_process import run_apart

ROUNDS = 60  # of each call


class Interrupted(Exception):
    """What the handler raises, as that of Ctrl-C does."""


def calls(folder):
    """What calls are made of, and the calls by name; each gives the same again."""
    x = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    q, w = dlfp4.quantize(x, "nvfp4"), dlfp4.quantize(x, "mxfp4")
    codes, out, stream = dlfp4.cast(x, "float4_e2m1fn"), dlfp4.quantize(x, "uint4_g64"), pickle.dumps(q)
    tensors, path = {"q": q, "x": x}, folder / "x.safetensors"
    ends = np.array([16, 16, 64], np.int32)
    stack = dlfp4.quantize(np.stack([x, -x, x]), "nvfp4")

    def save():
        checkpoints.save(path, tensors)
        return path.read_bytes()

    def quantize_model():
        checkpoints.quantize_model(path, folder / "q.safetensors", "mxfp8_e4m3")
        return (folder / "q.safetensors").read_bytes()

    checkpoints.save(path, tensors)
    return x, {
        "cast": lambda: dlfp4.cast(x, "float8_e4m3fn"),
        "lists": lambda: dlfp4.asarray([[1.0, 2.0]] * 64),
        "capsules": lambda: dlfp4.from_dlpack(dlfp4.from_dlpack(x).__dlpack__(max_version=(1, 3))),
        "views": lambda: dlfp4.unpack(dlfp4.pack(codes)[1:, :64]),
        "quantize": lambda: dlfp4.quantize(x, "nvfp4", axis=(-1, -2)),
        "out": lambda: dlfp4.quantize(x, "uint4_g64", out=out),
        "dequantize": lambda: q.dequantize(),
        "to": lambda: w.to("mxfp8_e4m3"),
        "matmul": lambda: dlfp4.matmul(x, w.mT, activation="mxfp8"),
        "grouped_matmul": lambda: dlfp4.grouped_matmul(x, stack.mT, ends),
        "concatenate": lambda: dlfp4.concatenate([q, q]),
        "pickles": lambda: pickle.loads(stream).dequantize(),
        "load": lambda: checkpoints.load(path)["q"],
        "save": save,
        "quantize_model": quantize_model,
    }


# ---- In a process of its own


def call_until(call, seconds):
    """What a call gives, or None where a signal so much later ended it."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            return call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return None


def interrupt(*_):
    raise Interrupted


def reenter(*_):
    """A handler that calls the library, which must hold no lock where Python's code runs."""
    assert dlfp4.quantize(np.ones((2, 64), np.float32), "nvfp4").dequantize().to_numpy().all()


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def signal_all(folder, handler):
    """Each call many times, which signals end or disturb; says how many they ended."""
    signal.signal(signal.SIGALRM, {"interrupt": interrupt, "reenter": reenter}[handler])
    folder, ended = Path(folder), 0
    x, every = calls(folder)
    for name, call in every.items():
        expected, began = pickle.dumps(call()), time.perf_counter()
        assert pickle.dumps(call()) == expected, name
        took, chance = time.perf_counter() - began, random.Random(name)
        gc.collect()
        files, references = files_in(folder), sys.getrefcount(x)
        for _ in range(ROUNDS):
            found = call_until(call, chance.uniform(1e-6, 1.2 * took))
            assert found is None or pickle.dumps(found) == expected, name
            ended += found is None
            assert files_in(folder) == files, name
        del found
        gc.collect()
        assert sys.getrefcount(x) == references, name
        assert pickle.dumps(call()) == expected, name
    print(ended)


# ---- The tests


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that send signals are POSIX's")
@pytest.mark.parametrize("handler", ["interrupt", "reenter"])
def test_signals_at_random(tmp_path, handler):
    """A handler that raises ends calls; one that calls the library ends none, and gets what it asks for."""
    done = run_apart("tests.project.test_signals", "signal_all", tmp_path, handler)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (int(done.stdout) > 0) == (handler == "interrupt")
