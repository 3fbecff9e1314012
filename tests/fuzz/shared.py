"""A target of shared memory: views of views, exports that outlive their source, and results that are written to them.

The model has the bits of each memory, and where in them the elements of each tensor lie. Whatever overlaps, a result is
the one that fresh memory gets, or ValueError; and no other bit changes.
"""

import ctypes
import pickle
import sys
from dataclasses import dataclass

import capsules
import makers
import numpy as np

import dlfp4

REFUSALS = (BufferError, TypeError, ValueError, IndexError, MemoryError)
ROOM = 96  # bytes of a memory
MOST = 24  # tensors at a time
NAMES = [*makers.NAMES, *[name for name in makers.NAMES if capsules.DTYPES[name][1] < 8] * 6]  # which share bytes


class Memory:
    """Some bytes, and the bits that they have to have."""

    def __init__(self, address, size):
        self.address, self.size = address, size
        self.bits = np.unpackbits(self.read(), bitorder="little")

    def read(self):
        return np.frombuffer(ctypes.string_at(self.address, self.size), np.uint8)

    def check(self):
        found = np.unpackbits(self.read(), bitorder="little")
        assert np.array_equal(found, self.bits), f"bits {np.flatnonzero(found != self.bits)[:9]} changed"


@dataclass
class Held:
    """A tensor, the bits at which its elements start, and whether others have elements in its last byte."""

    tensor: dlfp4.Tensor
    memory: Memory
    places: np.ndarray
    is_part: bool = False

    @property
    def room(self):
        """The bits of an element, with those that are spare."""
        bits = capsules.DTYPES[self.tensor.dtype.name][1]
        return max(bits, 8) if not self.tensor.packed else bits

    def codes(self):
        """The bits of all elements, in order."""
        used = capsules.DTYPES[self.tensor.dtype.name][1]
        return self.memory.bits[self.places.reshape(-1, 1) + np.arange(used)]


def codes_of(tensor):
    """The same as they are read."""
    bits = capsules.DTYPES[tensor.dtype.name][1]
    plain = dlfp4.unpack(tensor) if bits < 8 else tensor
    octets = np.frombuffer(np.ascontiguousarray(plain.to_numpy()).tobytes(), np.uint8)
    return np.unpackbits(octets.reshape(tensor.size, max(1, bits // 8)), axis=1, bitorder="little")[:, :bits]


def described(tensor, memory, is_part):
    """A tensor as its address and strides say."""
    steps = np.zeros(tensor.shape, np.int64)
    for indices, stride in zip(np.indices(tensor.shape), tensor.strides, strict=True):
        steps += indices * stride
    held = Held(tensor, memory, steps, is_part)
    held.places = 8 * (tensor.data_ptr - memory.address) + steps * held.room
    return held


def fresh(tensor):
    """A tensor that has all of its memory."""
    return described(tensor, Memory(tensor.data_ptr, tensor.nbytes), False)


# ---- Views


def sliced(held, rng):
    key = makers.index(rng, held.tensor.ndim)
    view = Held(held.tensor[key], held.memory, held.places[key])
    view.is_part = held.is_part or view.tensor.size != held.tensor.size
    return view


def turned(held, rng):
    return Held(held.tensor.T, held.memory, held.places.T, held.is_part)


def reshaped(held, rng):
    shape = makers.shape_of_size(rng, held.tensor.size)
    return Held(held.tensor.reshape(shape), held.memory, held.places.reshape(shape), held.is_part)


def viewed(held, rng):
    """The same bits under another type."""
    view = described(held.tensor.view(rng.choice(NAMES)), held.memory, held.is_part)
    assert np.array_equal(covered(held), covered(view))
    return view


def covered(held):
    return np.unique(held.places.reshape(-1, 1) + np.arange(held.room))


def exported(held, rng):
    """Through a capsule or an array, in place of the tensor itself."""
    ways = [
        lambda tensor: dlfp4.from_dlpack(tensor.__dlpack__(max_version=rng.choice([None, (1, 3)]))),
        lambda tensor: dlfp4.from_dlpack(tensor.x2().__dlpack__()),
        lambda tensor: dlfp4.asarray(tensor.to_numpy(copy=False)),
    ]
    return Held(rng.choice(ways)(held.tensor), held.memory, held.places, held.is_part)


def pickled(held, rng):
    """Out of band: over the same memory, or over a copy where others may not see a write."""
    buffers = []
    stream = pickle.dumps(held.tensor, protocol=5, buffer_callback=buffers.append)
    tensor = pickle.loads(stream, buffers=buffers)
    is_shared = tensor.data_ptr == held.tensor.data_ptr
    return described(tensor, held.memory, held.is_part) if is_shared and tensor.size else fresh(tensor)


def copied(held, rng):
    return fresh(held.tensor.copy())


VIEWS = [sliced, sliced, turned, reshaped, viewed, exported, pickled, copied]


# ---- Results


def random_floats(rng, shape):
    return np.random.default_rng(rng.getrandbits(32)).normal(size=shape).astype("float32")


def operation(rng, held, given):
    """A call that may write to a tensor, by its out."""
    shape, dtype, is_packed = held.tensor.shape, held.tensor.dtype, held.tensor.packed
    sources = [each.tensor for each in given if each.tensor.shape == shape and each.tensor.dtype == dtype]
    source = rng.choice([*sources, random_floats(rng, shape)] if "float" in dtype.name else sources)
    a, b = rng.choice(given).tensor, rng.choice(given).tensor
    quantized = dlfp4.quantize(random_floats(rng, shape or (1,)), "fp8_row") if dtype == "float32" else None
    calls = [
        lambda out: dlfp4.cast(source, dtype, packed=is_packed, out=out),
        lambda out: (dlfp4.pack if is_packed else dlfp4.unpack)(source, out=out),
        lambda out: dlfp4.vecdot(a, b, out=out),
        lambda out: dlfp4.dequantize(quantized, out=out),
    ]
    return rng.choice(calls[: 4 if quantized else 2])


def write(rng, held, given):
    """What a call gives in fresh memory, it gives in any; or it refuses that, and writes nothing."""
    call = operation(rng, held, given)
    try:
        expected = call(None)
        if expected.shape != held.tensor.shape or expected.dtype != held.tensor.dtype:
            return
        codes = codes_of(expected)
        call(held.tensor)
    except REFUSALS:
        return
    bits = held.memory.bits
    assert len(np.unique(held.places)) == held.places.size, "elements that share memory were written"
    spare = np.zeros((len(codes), held.room - codes.shape[1]), np.uint8)
    bits[held.places.reshape(-1, 1) + np.arange(held.room)] = np.concatenate([codes, spare], axis=1)
    if held.tensor.packed and held.tensor.size and not held.is_part:
        end = held.places.max() + held.room
        bits[end : -(-end // 8) * 8] = 0


# ---- The target


def check(held):
    for each in held:
        assert each.tensor.shape == each.places.shape, (each.tensor, each.places.shape)
        assert np.array_equal(codes_of(each.tensor), each.codes())


def shared(rng):
    """Steps in any order, in some of which threads read all that there is."""
    array = np.random.default_rng(rng.getrandbits(32)).integers(256, size=ROOM, dtype=np.uint8)
    made = capsules.Made(array, dtype="uint8")
    held = [fresh(dlfp4.from_dlpack(made.capsule))]
    steps = 0
    for _ in range(rng.randrange(4, 40)):
        each = rng.choice(held)
        if rng.random() < 0.4:
            write(rng, each, held)
            each.memory.check()
        else:
            try:
                held.append(rng.choice(VIEWS)(each, rng))
            except REFUSALS:
                continue
        steps += 1
        if len(held) > MOST or rng.random() < 0.1:
            del held[rng.randrange(1, len(held) + 1) :], held[: rng.randrange(len(held))]
        if rng.random() < 0.05:
            assert capsules.together(3, lambda _, held=tuple(held): check(held)) == [None] * 3
    check(held)
    for each in held:
        each.memory.check()
    is_read, held, each = steps > 3, None, None
    made.drop()
    assert made.deleted == 1, made.deleted
    return is_read


TARGETS = {
    "shared": shared,
}
sys.setswitchinterval(1e-5)
