"""Who frees what, and when: each deleter exactly once, from any thread, in any order, until after the interpreter."""

import ctypes
import gc
import os
import pickle
import sys
import time
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import dlfp4

from ..support import capsules
from ..support.capsules import Made, Managed, Producer, framework, random_array, run_python, together

MILLION = 1_000_000


def tensor_of(memory=None, **fields):
    """A Tensor over a factory capsule, and the factory's record of it."""
    made = Made(random_array((3, 4)) if memory is None else memory, **fields)
    return dlfp4.from_dlpack(made.capsule), made


MADE_UP = """
import sys
import numpy as np
import dlfp4

class Dtype:
    dtype = np.dtype("float32")

types = [Dtype() for _ in range(1000)]
usual = max(sys.getrefcount(each) for each in types)
for each in types:
    assert dlfp4.empty(0, each).dtype == "float32"
print(sum(sys.getrefcount(each) > usual for each in types))
"""


def test_types_that_callers_make_up_are_not_all_remembered():
    assert 0 < int(run_python(MADE_UP)) <= 256


# ---- counting ------------------------------------------------------------------------------------------------------


def leaks(action, *, count=500, rounds=10):
    """Whether `count` calls leave 8 bytes each behind, as tracemalloc sees it (PyMem_RawMalloc included), in every
    one of some rounds: caches and free lists, numpy's and Python's, fill up in one round or another, a leak in each."""
    gc.collect()
    gc.freeze()  # what the frameworks have loaded need not be searched again each time
    tracemalloc.start()
    try:
        return all(measured(action, count) >= 8 * count for _ in range(rounds))
    finally:
        tracemalloc.stop()


def measured(action, count):
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(count):
        action()
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


def test_a_million_exchanges_hold_and_release_one_source():
    """A deleter run twice would free the source early, one forgotten would keep it for ever."""
    tensor, made = tensor_of()
    expected = made.memory.tobytes()
    dlpack, version, started = dlfp4.from_dlpack, (1, 3), time.perf_counter()
    for _ in range(MILLION):
        dlpack(tensor.__dlpack__(max_version=version))
    assert time.perf_counter() - started < 60
    assert made.deleted == 0
    last = dlpack(tensor.__dlpack__(max_version=version))
    assert last.to_numpy().tobytes() == expected
    del tensor
    assert made.deleted == 0
    del last
    assert made.deleted == 1


LONG_CHAIN = """
import capsules, dlfp4
made = capsules.Made()
tensor = dlfp4.from_dlpack(made.capsule)
for _ in range(1_000_000):
    tensor = dlfp4.from_dlpack(tensor.__dlpack__(max_version=VERSION))
assert made.deleted == 0 and tensor.to_numpy().tobytes() == made.memory.tobytes()
del tensor
assert made.deleted == 1
"""


@pytest.mark.parametrize("version", [(1, 3), None])
def test_a_long_chain_of_exchanges(version):
    """Each tensor holds the one before, and the last one goes: the release must not recurse through the stack."""
    run_python(LONG_CHAIN.replace("VERSION", str(version)))


CHAIN_THROUGH_NUMPY = """
import capsules, dlfp4
made = capsules.Made()
tensor = dlfp4.from_dlpack(made.capsule)
for number in range(200_000):
    array = tensor.to_numpy()
    tensor = dlfp4.from_dlpack(array[:] if number % 2 else array)
assert made.deleted == 0 and tensor.to_numpy().tobytes() == made.memory.tobytes()
del tensor, array
assert made.deleted == 1
"""


def test_a_long_chain_through_numpy():
    run_python(CHAIN_THROUGH_NUMPY)


def test_an_array_of_a_loan_is_held_itself():
    """PyTorch may take a loan's memory away, but not under an array that was handed out before."""
    torch = framework("torch")
    source = torch.arange(1024.0)
    array = dlfp4.from_dlpack(source).to_numpy()
    again = dlfp4.from_dlpack(array)
    source.set_(torch.zeros(3))
    del array
    assert again.tolist() == list(range(1024))


@pytest.mark.parametrize("version", [(1, 3), None], ids=str)
def test_our_deleter_runs_exactly_once_per_export(version):
    """A counting deleter is slipped into each exported struct; it passes the call on."""
    tensor, made = tensor_of()
    counts: dict[int, int] = {}
    for number in range(3000):
        capsule = tensor.__dlpack__(max_version=version)
        kept = spy(Managed(capsule), counts, number)
        imported = dlfp4.from_dlpack(capsule) if number % 2 else None
        assert counts.get(number, 0) == 0
        del capsule, imported
        assert counts[number] == 1
        assert kept
    del tensor
    assert made.deleted == 1


def spy(managed, counts, number):
    original = capsules.Deleter(managed.struct.deleter)

    @capsules.Deleter
    def counting(address):
        counts[number] = counts.get(number, 0) + 1
        original(address)

    managed.struct.deleter = ctypes.cast(counting, ctypes.c_void_p)
    return counting


# ---- leaks ---------------------------------------------------------------------------------------------------------

SOURCE = dlfp4.asarray(random_array((3, 4)))
PACKED = dlfp4.asarray(capsules.random_bytes(12).reshape(3, 4)).view("float4_e2m1fn")
SWAPPED = np.ones(3, ">f4")  # made once: NumPy 2.1 leaks a reference to float32 each time
ROWS = random_array((32, 64))
WEIGHT = dlfp4.quantize(ROWS, "nvfp4")
PADDED = ROWS.astype(ml_dtypes.float4_e2m1fn)
PRODUCT = np.empty((32, 32), np.float32)
READONLY = dlfp4.asarray(bytes(random_array((12,))))
ARRAY = random_array((3, 4))
# Asking numpy for these anew each time fills a cache of its own, which looks like a leak for a few thousand calls.
KNOWN = {"data": ARRAY.ctypes.data, "dtype": "float32", "strides": (4, 1)}


def refusal(action):
    def call():
        with pytest.raises((BufferError, TypeError, ValueError, IndexError)):
            action()

    return call


def out_of_band():
    buffers = []
    pickled = pickle.dumps(WEIGHT, 5, buffer_callback=buffers.append)
    return pickle.loads(pickled, buffers=buffers)


def hostile(**fields):
    def call():
        made = Made(ARRAY, **{**KNOWN, **fields})
        with pytest.raises((BufferError, TypeError)):
            dlfp4.from_dlpack(made.capsule)
        made.drop()
        assert made.deleted == 1

    return call


def consumed_twice():
    capsule = SOURCE.__dlpack__(max_version=(1, 3))
    dlfp4.from_dlpack(capsule)
    dlfp4.from_dlpack(capsule)


KINDS = {
    "versioned": lambda: dlfp4.from_dlpack(SOURCE.__dlpack__(max_version=(1, 3))),
    "legacy": lambda: dlfp4.from_dlpack(SOURCE.__dlpack__()),
    "unconsumed": lambda: SOURCE.__dlpack__(max_version=(1, 3)),
    "unconsumed legacy": lambda: SOURCE.__dlpack__(),
    "own tensor": lambda: dlfp4.from_dlpack(SOURCE),
    "packed": lambda: dlfp4.from_dlpack(PACKED.__dlpack__(max_version=(1, 3))),
    "x2": lambda: dlfp4.from_dlpack(PACKED.x2().__dlpack__(max_version=(1, 3))),
    "copied": lambda: SOURCE.__dlpack__(max_version=(1, 3), copy=True),
    "copy": lambda: SOURCE.copy(),
    "empty": lambda: dlfp4.empty((64, 64), "float4_e2m1fn"),
    "asarray": lambda: dlfp4.asarray(ARRAY),
    "buffer": lambda: dlfp4.asarray(b"0123456789"),
    "numpy in": lambda: dlfp4.from_dlpack(ARRAY),
    "numpy out": lambda: np.from_dlpack(SOURCE),
    "to_numpy": lambda: (SOURCE.to_numpy(), PACKED.to_numpy()),
    "views": lambda: (SOURCE[1:, ::2], SOURCE.T, SOURCE.mT, SOURCE.reshape((12,)), SOURCE.view("uint8")),
    "metadata": lambda: (repr(SOURCE), SOURCE.shape, SOURCE.strides, SOURCE.dtype, str(SOURCE.device), SOURCE.nbytes),
    "values": lambda: (SOURCE.tolist(), SOURCE[0, 0].item(), float(SOURCE[0, 0])),
    "exchange table": lambda: through_the_table(SOURCE),
    "factory": lambda: dlfp4.from_dlpack(Made(ARRAY, **KNOWN).capsule),
    "old producer": lambda: dlfp4.from_dlpack(capsules.OldProducer(Made(ARRAY, **KNOWN))),
    "cast": lambda: dlfp4.cast(ARRAY, "float8_e4m3fn"),
    "pack": lambda: dlfp4.unpack(dlfp4.pack(PADDED)),
    "quantize": lambda: dlfp4.quantize(ROWS, "nvfp4"),
    "quantize both ways": lambda: dlfp4.quantize(ROWS, "mxfp6_e2m3", axis=(-1, -2), recipe="nvidia"),
    "dequantize": lambda: WEIGHT.dequantize("bfloat16"),
    "scaled views": lambda: (WEIGHT.mT, WEIGHT.data, WEIGHT.scales, WEIGHT.global_scale, repr(WEIGHT)),
    "scale layout": lambda: WEIGHT.with_scale_layout("128x4").with_scale_layout("linear"),
    "from parts": lambda: dlfp4.ScaledTensor.from_parts(
        WEIGHT.data, WEIGHT.scales, WEIGHT.global_scale, format="nvfp4"
    ),
    "vecdot": lambda: dlfp4.vecdot(WEIGHT, ROWS),
    "matmul": lambda: dlfp4.matmul(ROWS, WEIGHT.mT),
    "matmul into": lambda: dlfp4.matmul(ROWS, WEIGHT.mT, out=PRODUCT, activation="int8"),
    "backends": lambda: dlfp4.backends(ROWS, WEIGHT.mT),
    "pickle": lambda: (pickle.loads(pickle.dumps(SOURCE)), pickle.loads(pickle.dumps(WEIGHT, 5))),
    "out of band": out_of_band,
    "bad cast": refusal(lambda: dlfp4.cast(ARRAY, "float8_e4m3fn", rounding="up")),
    "bad quantize": refusal(lambda: dlfp4.quantize(ROWS, "nvfp4", out=WEIGHT.mT)),
    "bad parts": refusal(lambda: dlfp4.ScaledTensor.from_parts(WEIGHT.data, WEIGHT.data, format="nvfp4")),
    "bad vecdot": refusal(lambda: dlfp4.vecdot(WEIGHT, ROWS[:, :16])),
    "bad matmul": refusal(lambda: dlfp4.matmul(ROWS, WEIGHT)),
    "consumed twice": refusal(consumed_twice),
    "read-only legacy": refusal(lambda: READONLY.__dlpack__()),
    "bad stream": refusal(lambda: SOURCE.__dlpack__(stream=7)),
    "bad dl_device": refusal(lambda: SOURCE.__dlpack__(dl_device=(4, 0))),
    "bad max_version": refusal(lambda: SOURCE.__dlpack__(max_version="1")),
    "not a producer": refusal(lambda: dlfp4.from_dlpack(3)),
    "no capsule": refusal(lambda: dlfp4.from_dlpack(Producer(None))),
    "raising producer": refusal(lambda: dlfp4.from_dlpack(capsules.RaisingProducer(ValueError("halfway")))),
    "raising device": refusal(lambda: dlfp4.from_dlpack(capsules.RaisingProducer(ValueError("x"), at="device"))),
    "byte order": refusal(lambda: dlfp4.asarray(SWAPPED)),
    "unaligned view": refusal(lambda: PACKED[..., 1]),
    "bad reshape": refusal(lambda: SOURCE.reshape((5,))),
    "bad view": refusal(lambda: SOURCE[:, :3].view("float4_e2m1fn").view("float64")),
    "bad index": refusal(lambda: SOURCE[9]),
    "bad copy": refusal(lambda: PACKED.to_numpy(copy=False)),
    "no data": hostile(data=None),
    "negative shape": hostile(shape=(-3,)),
    "no shape": hostile(shape=None, ndim=2),
    "bad ndim": hostile(ndim=-1),
    "bad dtype": hostile(code=200),
    "bad lanes": hostile(lanes=2),
    "bad device": hostile(device=(99, 0)),
    "overflow": hostile(shape=(2**32, 2**32)),
    "bad strides": hostile(strides=(2**62, 1)),
    "bad offset": hostile(byte_offset=2**64 - 4),
    "bad name": hostile(name=b"foo"),
    "bad major": hostile(version=(2, 0)),
}


def through_the_table(tensor):
    api = capsules.exchange_api(type(tensor))
    managed, result = ctypes.c_void_p(), ctypes.c_void_p()
    api.managed_tensor_from_py_object_no_sync(tensor, ctypes.byref(managed))
    api.managed_tensor_to_py_object_no_sync(managed, ctypes.byref(result))
    return capsules.take_object(result)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_leaks(kind):
    assert not leaks(KINDS[kind])


def test_a_leak_would_be_seen():
    kept = []
    assert leaks(lambda: kept.append(object()))


def test_no_reference_leaks_on_singletons():
    """tracemalloc does not see a reference too many on an object that exists once: its count does."""
    watched = [SOURCE.dtype, SOURCE.device, type(SOURCE), type(SOURCE.device), ARRAY, SOURCE, np.float32]
    for action in KINDS.values():
        action()
    before = [sys.getrefcount(thing) for thing in watched]
    for _ in range(50):
        for action in KINDS.values():
            action()
    gc.collect()
    after = [sys.getrefcount(thing) for thing in watched]
    assert [b - a for a, b in zip(before, after, strict=True) if b - a >= 40] == []


# ---- what an export keeps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(1, 3), None], ids=str)
def test_exported_shape_and_strides_outlive_the_tensor(version):
    tensor, _ = tensor_of(random_array((2, 3, 4, 5)))
    view = tensor[:, 1:, ::2].mT
    managed = Managed(view.__dlpack__(max_version=version))
    expected = view.shape, view.strides
    del tensor, view
    gc.collect()
    litter = [dlfp4.empty((7, 7, 7, 7), "uint8") for _ in range(200)]  # takes what has been freed
    assert (managed.shape, managed.strides) == expected == ((2, 2, 5, 2), (60, 20, 1, 10))
    assert len(litter) == 200


@pytest.mark.parametrize("version", [(1, 3), None], ids=str)
def test_an_export_keeps_the_memory(version):
    tensor, made = tensor_of()
    capsule = tensor.__dlpack__(max_version=version)
    del tensor
    gc.collect()
    assert made.deleted == 0
    array = np.from_dlpack(Producer(capsule))
    made.memory += 1
    assert array.tobytes() == made.memory.tobytes()
    del array, capsule
    assert made.deleted == 1


VIEWS = {
    "view": lambda t: t.view("uint8"),
    "reshape": lambda t: t.reshape((4, 3)),
    "slice": lambda t: t[1:, ::2],
    "numpy": lambda t: t.to_numpy(),
    "array": np.asarray,
    "T": lambda t: t.T,
}


@pytest.mark.parametrize("make", VIEWS)
def test_views_keep_the_memory(make):
    tensor, made = tensor_of()
    view = VIEWS[make](tensor)
    del tensor
    gc.collect()
    assert made.deleted == 0
    assert np.asarray(view).size
    del view
    gc.collect()
    assert made.deleted == 1


def test_memory_of_numpy_is_kept():
    array = random_array((1000,))
    expected = array.tobytes()
    tensor, whole = dlfp4.from_dlpack(array[10:]), dlfp4.asarray(array)
    del array
    gc.collect()
    litter = [np.full(1000, 7, np.float32) for _ in range(50)]
    assert tensor.to_numpy().tobytes() == expected[40:]
    assert whole.to_numpy().tobytes() == expected
    assert len(litter) == 50


def test_an_exported_bytearray_cannot_be_resized():
    data = bytearray(random_array((8,)).tobytes())
    tensor = dlfp4.asarray(data)
    with pytest.raises(BufferError):
        data.extend(b"more")
    assert tensor.to_numpy().tobytes() == bytes(data)
    del tensor
    gc.collect()
    data.extend(b"more")


def test_memory_of_torch_is_kept():
    torch = framework("torch")
    source = torch.randn(1000)
    expected = source.numpy().tobytes()
    tensor = dlfp4.from_dlpack(source)
    source += 1
    assert tensor.to_numpy().tobytes() == source.numpy().tobytes() != expected
    expected = source.numpy().tobytes()
    del source
    litter = [torch.zeros(1000) for _ in range(50)]
    assert tensor.to_numpy().tobytes() == expected
    assert len(litter) == 50


def test_no_reference_cycles():
    """Memory goes at once, with the garbage collector asleep."""
    gc.collect()
    gc.disable()
    try:
        tensor, made = tensor_of()
        views = [tensor[1:], tensor.T, tensor.reshape((12,)), tensor.to_numpy(), np.from_dlpack(tensor)]
        assert made.deleted == 0
        del tensor, views
        assert made.deleted == 1
    finally:
        gc.enable()


# ---- threads -------------------------------------------------------------------------------------------------------


def has_native(name):
    """Whether this process has the C library's function."""
    try:
        return hasattr(ctypes.CDLL(None), name)
    except (OSError, TypeError):  # Windows has no CDLL(None)
        return False


@pytest.mark.skipif(not has_native("pthread_create"), reason="no pthread_create in this process")
@pytest.mark.parametrize("version", [(1, 3), None], ids=str)
def test_deleters_called_from_threads_python_has_never_seen(version):
    """Each native thread starts in the deleter itself: it has no GIL and no thread state."""
    libc = ctypes.CDLL(None)
    libc.pthread_create.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    libc.pthread_join.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    sources = [tensor_of() for _ in range(40)]
    exports = [Managed(tensor.__dlpack__(max_version=version)).consume() for tensor, _ in sources]
    made = [record for _, record in sources]
    del sources
    gc.collect()
    threads = [ctypes.c_void_p() for _ in exports]
    for thread, export in zip(threads, exports, strict=True):
        assert libc.pthread_create(ctypes.byref(thread), None, export.struct.deleter, export.address) == 0
    for thread in threads:
        assert libc.pthread_join(thread, None) == 0
    assert [record.deleted for record in made] == [1] * len(made)


def test_deleters_called_without_the_gil_from_python_threads():
    """ctypes lets go of the GIL around a foreign call; eight threads delete eight exports of one tensor at once."""
    tensor, made = tensor_of()
    for _ in range(50):
        exports = [Managed(tensor.__dlpack__(max_version=(1, 3))).consume() for _ in range(8)]
        assert together(8, lambda i, exports=exports: exports[i].delete()) == [None] * 8
    assert made.deleted == 0
    del tensor
    assert made.deleted == 1


@pytest.mark.parametrize("racers", [2, 8])
@pytest.mark.parametrize("versioned", [True, False])
def test_threads_racing_for_one_capsule(racers, versioned):
    for _ in range(100):
        made = Made(versioned=versioned)
        results = together(racers, lambda _, made=made: dlfp4.from_dlpack(made.capsule))
        winners = [r for r in results if isinstance(r, dlfp4.Tensor)]
        losers = [r for r in results if isinstance(r, (BufferError, TypeError))]
        assert (len(winners), len(losers)) == (1, racers - 1)
        assert winners[0].to_numpy().tobytes() == made.memory.tobytes()
        assert made.deleted == 0
        del results, winners, losers
        assert made.deleted == 1


def test_threads_sharing_one_tensor():
    tensor, made = tensor_of()
    expected = made.memory.tobytes()

    def work(_, tensor=tensor):
        for _ in range(500):
            again = dlfp4.from_dlpack(tensor.__dlpack__(max_version=(1, 3)))
            if again[1:].T.mT.reshape((8,)).to_numpy().tobytes() != expected[16:]:
                return "wrong values"
        return "fine"

    assert together(8, work) == ["fine"] * 8
    del tensor, work
    gc.collect()
    assert made.deleted == 1


# ---- the end of the process ----------------------------------------------------------------------------------------

LIVE_AT_EXIT = """
import ctypes, sys
import numpy as np
import capsules, dlfp4
array = np.arange(1, 13, dtype=np.float32)
tensor = dlfp4.from_dlpack(array)
own = dlfp4.empty((4, 4), "float4_e2m1fn")
exports = [t.__dlpack__(max_version=v) for t in (tensor, own) for v in ((1, 3), None)]
consumer = np.from_dlpack(tensor)
view = tensor[1:].to_numpy()
sys.keep = [dlfp4.from_dlpack(exports.pop()), own.__dlpack__(max_version=(1, 3))]  # dies with the interpreter
cycle = [tensor, own, exports]
cycle.append(cycle)
class Late:
    def __del__(self, dlpack=dlfp4.from_dlpack, tensor=tensor):
        print(dlpack(tensor.__dlpack__(max_version=(1, 3))).shape)
late = Late()
print("alive")
"""

DELETED_AFTER_PYTHON = """
import ctypes
import numpy as np
import capsules, dlfp4
libc = ctypes.CDLL(None)
libc.__cxa_atexit.argtypes = [ctypes.c_void_p] * 3
for version in ((1, 3), None):
    for tensor in (dlfp4.from_dlpack(np.ones(5)), dlfp4.empty((4, 4), "float4_e2m1fn")):
        export = capsules.Managed(tensor.__dlpack__(max_version=version)).consume()
        assert libc.__cxa_atexit(export.struct.deleter, export.address, None) == 0
print("alive")
"""

FORKED = """
import os
import numpy as np
import capsules, dlfp4
made = capsules.Made()
tensor = dlfp4.from_dlpack(made.capsule)
capsule = tensor.__dlpack__(max_version=(1, 3))
expected = made.memory.tobytes()
child = os.fork()
if child == 0:
    good = dlfp4.from_dlpack(capsule).to_numpy().tobytes() == expected and made.deleted == 0
    capsule = tensor = None
    os._exit(0 if good and made.deleted == 1 else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert made.deleted == 0, "the child's deleter is the child's"
assert dlfp4.from_dlpack(capsule).to_numpy().tobytes() == expected
capsule = tensor = None
assert made.deleted == 1
print("alive")
"""

TORCH_AT_EXIT = """
import torch, dlfp4
tensor = dlfp4.from_dlpack(torch.arange(8.0))
back = torch.from_dlpack(tensor)
out = tensor.to_torch()
assert back.data_ptr() == tensor.data_ptr == out.data_ptr()
print("alive")
"""


@pytest.mark.parametrize("name", ["LIVE_AT_EXIT", "DELETED_AFTER_PYTHON", "FORKED", "TORCH_AT_EXIT"])
def test_quiet_end(name):
    """Exit code 0 and nothing on stderr, with capsules, views and consumers still alive."""
    if name == "TORCH_AT_EXIT":
        framework("torch")
    if name == "FORKED" and not hasattr(os, "fork"):
        pytest.skip("no fork on this platform")
    if name == "DELETED_AFTER_PYTHON" and not has_native("__cxa_atexit"):
        pytest.skip("no __cxa_atexit in this process")
    assert run_python(globals()[name]).startswith("alive")


@pytest.mark.gpu
def test_fork_with_live_cuda_tensors():
    """The child may not touch the driver; dropping what it inherited must not try to."""
    said = run_python(
        "import os, warnings, dlfp4\n"
        "warnings.simplefilter('ignore')  # the driver's threads do not use Python\n"
        "tensor = dlfp4.empty((64, 64), 'float4_e2m1fn', device='cuda:0')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    del tensor\n"
        "    os._exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "del tensor\n"
        "print('alive')\n"
    )
    assert said == "alive\n"
