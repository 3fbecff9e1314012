"""What the processes of test_pickling.py do: importable in each of them, and without pytest."""

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.shared_memory import SharedMemory

import numpy as np

import dlfp4


def parts_of(x):
    """The Tensors that an object consists of."""
    parts = [x] if isinstance(x, dlfp4.Tensor) else [x.data, x.scales, x.global_scale, x.zero_points]
    return [part for part in parts if part is not None]


def memory_of(tensor):
    """The bytes of a compact tensor whose size is a whole number of them, as an array over them."""
    return tensor.reshape((1, -1)).view("uint8").to_numpy(copy=False)


def values_of(x):
    return (x if isinstance(x, dlfp4.Tensor) else x.dequantize()).tolist()


def put(buffers, align=64):
    """Out-of-band buffers side by side in shared memory, as an object store keeps them, and where each one is."""
    raw = [buffer.raw() for buffer in buffers]
    starts = np.cumsum([0, *(-(-part.nbytes // align) * align for part in raw)])
    places = [(int(start), part.nbytes, part.readonly) for start, part in zip(starts, raw, strict=False)]
    memory = SharedMemory(create=True, size=int(starts[-1]))
    for part, (start, nbytes, _) in zip(raw, places, strict=True):
        memory.buf[start : start + nbytes] = part
    return memory, places


def get(memory, places):
    """The buffers again, read-only where they were."""
    parts = [(memory.buf[start : start + nbytes], readonly) for start, nbytes, readonly in places]
    return [part.toreadonly() if readonly else part for part, readonly in parts]


def flip(name, places, stream):
    """In another process: load an object over shared memory, tell what is seen of it, and flip the bits of its data."""
    memory = SharedMemory(name=name)
    buffers = get(memory, places)
    loaded = pickle.loads(stream, buffers=buffers)
    addresses = [np.frombuffer(buffer, np.uint8).ctypes.data for buffer in buffers]
    lies_there = [part.data_ptr for part in parts_of(loaded)] == addresses
    readonly = [part.readonly for part in parts_of(loaded)]
    values = values_of(loaded)
    if not readonly[0]:
        np.invert(memory_of(parts_of(loaded)[0]), out=memory_of(parts_of(loaded)[0]))
    del loaded, buffers
    memory.close()  # raises where the memory is still in use
    return lies_there, readonly, values


def pool_of(method, workers):
    """Processes for all objects of a test: each takes half a second to start."""
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(method))


def check_shared_memory(x, pool):
    """An object in shared memory is the same memory for both sides."""
    buffers = []
    stream = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    memory, places = put(buffers)
    try:
        before = [memory_of(part).tobytes() for part in parts_of(x)]
        seen = pool.submit(flip, memory.name, places, stream).result()
        readonly = [part.readonly for part in parts_of(x)]
        assert seen == (True, readonly, values_of(x)), seen
        loaded = pickle.loads(stream, buffers=get(memory, places))
        after = [memory_of(part).tobytes() for part in parts_of(loaded)]
        if not readonly[0]:
            before[0] = np.invert(np.frombuffer(before[0], np.uint8)).tobytes()
        assert after == before
        del loaded
    finally:
        memory.close()
        memory.unlink()


def same_with_values(x):
    """In another process: the object as it came, and what it holds there."""
    return x, values_of(x)


def check_pool(x, pool):
    """An object goes to a process and comes back, twice."""
    for back, values in pool.map(same_with_values, [x, x]):
        assert repr(back) == repr(x)
        assert values == values_of(x) == values_of(back)


def objects():
    """Tensors and ScaledTensors whose bytes may be flipped."""
    x = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    frozen = x.copy()
    frozen.flags.writeable = False
    yield dlfp4.asarray(x)
    yield dlfp4.asarray(frozen)
    for name in ("float4_e2m1fn", "float6_e2m3fn", "float8_e4m3fn"):
        yield dlfp4.cast(x, name)
        yield dlfp4.cast(x, name, packed=False)
    for name in dlfp4.formats():
        yield dlfp4.quantize(x, name, pad=True)
    yield dlfp4.quantize(x, "nvfp4", axis=-2, scale_layout="128x4")
    yield dlfp4.quantize(x, "mxfp8_e5m2", axis=-2)
