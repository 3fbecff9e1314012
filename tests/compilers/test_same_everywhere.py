"""Calls made at random: eager, by PyTorch's operations, and in a jitted program of constants: one result, or refusals.

A number is a call, so a failure is repeated by its number: ``pytest -k "[17]"``.
"""

import importlib
import random

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import analysis, checkpoints

from ..support.capsules import framework
from ..support.reference import parts_of

torch = framework("torch")
jax = pytest.importorskip("jax")
dt, dj = importlib.import_module("dlfp4.torch"), importlib.import_module("dlfp4.jax")

TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
REFUSALS = (TypeError, ValueError, NotImplementedError, RuntimeError, IndexError)  # a BackendError is a RuntimeError


class Caller:
    """Chooses a call; the same one for the same number."""

    def __init__(self, number):
        self.random = random.Random(number)
        self.choose = self.random.choice
        self.type = self.choose([*TYPES])
        self.format = self.choose([*dlfp4.formats()])

    def sometimes(self, **options):
        """Some of the options, each with one of its values."""
        return {name: self.choose(values) for name, values in options.items() if self.random.random() < 0.3}

    def shape(self):
        lines = [self.choose([0, 1, 2, 3, 16, 33]) for _ in range(self.choose([0, 1, 1, 2]))]
        return (*lines, self.choose([0, 1, 3, 130, 32, 64, 128, 128, 256, 256]))

    def values(self, shape, type="float32"):
        """Some of which are special."""
        numbers = np.random.default_rng(self.random.getrandbits(32))
        x = np.asarray(numbers.normal(size=shape) * 10.0 ** self.choose([-3, 0, 2]), dtype=np.float32)
        if x.size and self.random.random() < 0.2:
            x.ravel()[numbers.integers(x.size)] = self.choose([np.nan, np.inf, -np.inf, -0.0])
        return x.astype(TYPES[type])

    def quantized(self, shape, **options):
        return dlfp4.quantize(self.values(shape), self.format, **options)

    # ---- Calls: a function of the library that is called, with the operands that it takes

    def cast(self):
        x, dtype = self.values(self.shape(), self.type), self.choose(EIGHT_BITS)
        options = self.sometimes(rounding=["toward_zero", "nearest_away", "up"], saturate=[True, False])
        return lambda lib, x: lib.cast(x, dtype, **options), [x]

    def quantize(self):
        format = self.choose([name for name in dlfp4.formats() if not name.startswith("uint4")])  # not in JAX
        x, options = self.values(self.shape(), self.type), self.sometimes(axis=[-1, -2], hadamard=[7, (1, -1) * 8])
        return lambda lib, x: lib.quantize(x, format, **options), [x]

    def dequantize(self):
        q = self.quantized(self.shape(), axis=self.choose([-1, -2]))
        return lambda lib, q: lib.dequantize(q, self.type), [q]

    def dot(self):
        q = self.quantized((self.choose([16, 64, 128]),))
        return lambda lib, a, b: lib.dot(a, b), [self.choose([q, self.values(q.shape, self.type)]), q]

    def vecdot(self):
        shape = self.shape()
        b = self.quantized(self.choose([shape, shape, shape, shape[1:], self.shape()]), axis=self.choose([-1, -1, -2]))
        a, axis = self.choose([b, self.values(shape, self.type)]), self.choose([-1, -1, -1, -2, 0])
        return lambda lib, a, b: lib.vecdot(a, b, axis), [a, b]

    def matmul(self):
        k = self.choose([0, 64, 128, 256])
        of_x, of_w = self.choose([((), ()), ((), ()), ((3,), ()), ((2, 3), ()), ((0,), ()), ((3,), (3,))])
        w = self.quantized((*of_w, self.choose([1, 16, 33]), k))
        x = (*of_x, *self.choose([(1,), (17,)] if of_x else [(), (1,), (17,)]), k)
        options = self.sometimes(alpha=[0.5, -1.0, 0.0, -0.0], out_dtype=[*TYPES])
        if self.choose([True, False]):
            x = self.quantized(x)
        else:
            x, more = self.values(x, self.type), self.sometimes(activation=["fp8_1x128", "mxfp8", "fp8_row"])
            options |= more
        return lambda lib, x, w: lib.matmul(x, w.mT, **options), [x, w]

    def grouped_matmul(self):
        experts, rows, k = self.choose([1, 2, 4]), self.choose([0, 1, 9]), self.choose([16, 64, 128])
        ends = np.sort(self.random.choices(range(rows + 1), k=experts)).astype(np.int32)
        options = self.sometimes(alpha=[0.5], out_dtype=[*TYPES])

        def call(lib, x, w, ends, sizes):
            return lib.grouped_matmul(x, w.mT, sizes if lib is dj else ends, **options)

        w = self.quantized((experts, self.choose([1, 33]), k))
        return call, [self.values((rows, k), self.type), w, ends, np.diff(ends, prepend=0)]


CALLS = (
    Caller.cast,
    Caller.quantize,
    Caller.dequantize,
    Caller.dot,
    Caller.vecdot,
    Caller.matmul,
    Caller.grouped_matmul,
)


def to_bytes(found):
    """What there is of a result, whoever made it."""
    if isinstance(found, (dj.ScaledArray, dt.ScaledTensor)):
        found = dlfp4.asarray(found)
    if isinstance(found, dlfp4.ScaledTensor):
        return found.format.name, found.axis, found.shape, [to_bytes(part) for part in parts_of(found)]
    array = np.asarray(dlfp4.asarray(found).to_numpy())
    return array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes()


def outcome(call, lib, operands):
    """A result, or None where it is refused."""
    try:
        return to_bytes(call(lib, *operands))
    except REFUSALS:
        return None


def for_torch(x):
    return dt.ScaledTensor.from_dlfp4(x) if isinstance(x, dlfp4.ScaledTensor) else dlfp4.asarray(x).to_torch(copy=True)


def for_jax(x):
    return dj.ScaledArray.from_tensor(x) if isinstance(x, dlfp4.ScaledTensor) else jax.numpy.asarray(x)


def made(number):
    """A call of the number's kind, and what it gives: of the first of its numbers that is served; one in eight may be
    refused. Numbers whose operands cannot be quantized are passed over.
    """
    may_be_refused = number // len(CALLS) % 8 == 7
    while True:
        try:
            call, operands = CALLS[number % len(CALLS)](Caller(number))
            expected = outcome(call, dlfp4, operands)
            if may_be_refused or expected is not None:
                return call, operands, expected
        except ValueError:
            pass
        number += 1000 * len(CALLS)


@pytest.mark.parametrize("number", range(210))
def test_calls(number):
    call, operands, expected = made(number)

    def jitted(lib, *operands):
        return jax.jit(lambda: call(lib, *map(for_jax, operands)))()

    assert outcome(call, dt, [for_torch(x) for x in operands]) == expected
    assert outcome(jitted, dj, operands) == expected


def test_zeros_have_signs():
    """What is remembered of one alpha is not taken for the other, by whatever way."""
    x, w = np.ones((2, 64), np.float32), dlfp4.quantize(np.ones((3, 64), np.float32), "nvfp4")
    for alpha in (0.0, -0.0, 0.0):
        expected = to_bytes(dlfp4.matmul(x, w.mT, alpha=alpha))
        for _ in range(3):
            assert to_bytes(dt.matmul(for_torch(x), for_torch(w).mT, alpha=alpha)) == expected
            assert to_bytes(jax.jit(lambda x: dj.matmul(x, for_jax(w).mT, alpha=alpha))(x)) == expected  # noqa: B023


TAKING_QUANTIZED = {
    "dequantize": dlfp4.dequantize,
    "concatenate": lambda q: dlfp4.concatenate([q, q]),
    "stack": lambda q: dlfp4.stack([q, q]),
    "to_ggml": checkpoints.to_ggml,
    "error": lambda q: repr(analysis.error(np.ones((4, 64)), q)),
    "blocks of an error": lambda q: analysis.error(np.ones((4, 64)), q).by_block,
    "error of an operand": lambda q: repr(analysis.error(q, np.ones((4, 64)))),
    "signal_to_noise": lambda q: str(analysis.signal_to_noise(np.ones((4, 64)), q)),
    "calibrate": lambda q: str(analysis.calibrate(q)),
}


@pytest.mark.parametrize("name", TAKING_QUANTIZED)
def test_functions_that_take_the_quantized_tensors_of_all(name):
    call = TAKING_QUANTIZED[name]
    q = dlfp4.quantize(np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32), "nvfp4")
    expected = call(q)
    for other in (for_torch(q), for_jax(q)):
        found = call(other)
        assert found == expected if isinstance(expected, str) else to_bytes(found) == to_bytes(expected)
