"""What cast, pack and unpack take and refuse: `out`, the dialects of producers, dtype arguments, errors (which write
nothing), threads, fork and the GIL."""

import contextlib
import os
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest

import dlfp4

from ..support.capsules import PADDED, READ_ONLY, Made, framework, random_array, run_python
from ..support.reference import (
    BITS,
    FLOATS,
    FLOATS_BELOW_8,
    LOW,
    codec,
    codes_of,
    dtype_of,
    expected_bytes,
    native_cast,
    of_codes,
    packed_bytes,
    random_codes,
    raw_bytes,
)

FP4, FP8 = "float4_e2m1fn", "float8_e4m3fn"
VALUES = np.array([[0.3, -5, 100, 1], [1.75, -0.0, 2.5, -6]], np.float32)
VALUES_FP4 = np.array([[1, 0xE, 7, 2], [4, 8, 4, 0xF]], np.uint8)  # 1.75 and 2.5 are ties: both go to 2
PATTERN = 0x5A


def filled(shape, name):
    dtype = dtype_of(name)
    return np.full((*shape, dtype.itemsize), PATTERN, np.uint8).view(dtype).reshape(shape)


@contextlib.contextmanager
def refused(error, match, *memory):
    """The block raises that error, and not a byte of `memory` changes."""
    before = [block.tobytes() for block in memory]
    with pytest.raises(error, match=match):
        yield
    assert [block.tobytes() for block in memory] == before


def made(memory, name, shape, **fields):
    return Made(memory, dtype=name, shape=shape, strides=None, **fields)


# ---- out -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*LOW, "float16", "bfloat16", "float32", "float64"])
def test_out_of_numpy(name):
    out = filled((2, 4), name)
    result = dlfp4.cast(VALUES, name, out=out)
    assert (result.data_ptr, result.shape, result.dtype) == (out.ctypes.data, (2, 4), out.dtype)
    assert result.packed is False
    expected = codec(name).round(VALUES) if BITS[name] <= 32 else codes_of(VALUES.astype(np.float64))
    assert codes_of(out).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", FLOATS_BELOW_8)
@pytest.mark.parametrize("packed", [True, False])
def test_out_of_our_own(name, packed):
    out = dlfp4.empty((2, 4), name, packed=packed)
    result = dlfp4.cast(VALUES, name, out=out, packed=not packed)  # the memory says how, not the argument
    assert (result.data_ptr, result.packed) == (out.data_ptr, packed)
    assert raw_bytes(out) == expected_bytes(codec(name).round(VALUES), name, packed)


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu", "bfloat16", "float16"]
)
def test_out_of_torch(name):
    torch = framework("torch")
    out = torch.full((2, 4 * BITS[name] // 8), PATTERN, dtype=torch.uint8).view(getattr(torch, name))
    result = dlfp4.cast(VALUES, name, out=out)
    assert result.data_ptr == out.data_ptr()
    assert out.view(torch.uint8).numpy().tobytes() == codec(name).round(VALUES).tobytes()


def test_out_of_torch_in_pairs():
    torch = framework("torch")
    bytes_out = torch.full((2, 2), PATTERN, dtype=torch.uint8)
    out = bytes_out.view(torch.float4_e2m1fn_x2)
    result = dlfp4.cast(VALUES, FP4, out=out)
    assert (result.shape, result.packed, result.data_ptr) == ((2, 4), True, out.data_ptr())
    assert bytes_out.numpy().tobytes() == packed_bytes(VALUES_FP4, 4)
    assert torch.from_dlpack(result).dtype == torch.float4_e2m1fn_x2


def test_out_of_any_producer():
    memory = np.zeros(2, np.uint8)
    dlfp4.cast(VALUES[0], FP4, out=made(memory, FP4, (4,)).capsule)
    assert memory.tobytes() == packed_bytes(VALUES_FP4[0], 4)
    padded = np.full(4, 0xFF, np.uint8)
    dlfp4.cast(VALUES[0], FP4, out=made(padded, FP4, (4,), flags=PADDED).capsule)
    assert padded.tobytes() == VALUES_FP4[0].tobytes()  # the high bits are written


@pytest.mark.parametrize("packed", [True, False])
def test_out_of_pack_and_unpack(packed):
    codes = of_codes(np.arange(10), FP4)
    operation = dlfp4.pack if packed else dlfp4.unpack
    out = dlfp4.empty((10,), FP4, packed=packed)
    for source in (codes, dlfp4.pack(codes)):
        assert operation(source, out=out).data_ptr == out.data_ptr
        assert raw_bytes(out) == expected_bytes(codes_of(codes), FP4, packed)
    wrong = np.full(10, PATTERN, np.uint8)
    other = made(wrong, FP4, (10,), flags=PADDED if packed else 0)
    with refused(ValueError, "padded, .*packed" if packed else "packed, .*padded", wrong):
        operation(codes, out=other.capsule)


# ---- in place ------------------------------------------------------------------------------------------------------

IN_PLACE = [
    (FP8, "float8_e5m2"), ("float8_e5m2", "float8_e8m0fnu"), ("float16", "bfloat16"), ("bfloat16", "float16"),
    ("float32", "float32"), ("float64", "float64"), (FP4, "float6_e3m2fn"), ("float6_e2m3fn", FP8), (FP8, FP4),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), IN_PLACE)
@pytest.mark.parametrize("step", [slice(None), slice(None, None, 2), slice(None, None, -1)], ids=str)
def test_in_place(source, target, step):
    """Elements of one size in memory may turn into the other type where they are."""
    memory = random_codes(source, 5000)
    values, elsewhere = memory[step], np.ones(5000, bool)
    elsewhere[step] = False
    kept = codes_of(memory)[elsewhere].tobytes()
    expected = codes_of(dlfp4.cast(values.copy(), target, packed=False)).tobytes()
    dlfp4.cast(values, target, out=memory.view(dtype_of(target))[step])
    assert codes_of(memory[step]).tobytes() == expected
    assert codes_of(memory)[elsewhere].tobytes() == kept


OVERLAPS = {
    "one on": lambda block: (block[:100].view(FP8T), block[1:101].view(E5M2)),
    "reversed": lambda block: (block[:100].view(FP8T), block[99::-1].view(E5M2)),
    "narrower": lambda block: (block[:400].view(np.float32), block[:100].view(E5M2)),
    "wider": lambda block: (block[:100].view(FP8T), block[:400].view(np.float32)),
    "transposed": lambda block: (block[:100].view(FP8T).reshape(10, 10), block[:100].view(E5M2).reshape(10, 10).T),
    "last byte": lambda block: (block[:100].view(FP8T), block[99:199].view(E5M2)),
}
FP8T, E5M2 = dtype_of(FP8), dtype_of("float8_e5m2")


@pytest.mark.parametrize("way", OVERLAPS)
def test_overlap_is_refused(way):
    block = np.random.default_rng(1).integers(0, 255, 400, dtype=np.uint8)
    source, out = OVERLAPS[way](block)
    with refused(ValueError, "overlap", block):
        dlfp4.cast(source, out.dtype, out=out)


def test_memory_side_by_side_does_not_overlap():
    block = np.zeros(200, np.uint8)
    block[:100] = 0x38
    dlfp4.cast(block[:100].view(FP8T), E5M2, out=block[100:].view(E5M2))
    assert block.tobytes() == b"\x38" * 100 + b"\x3c" * 100


def test_packed_into_its_own_padded_memory_is_refused():
    block = np.arange(16, dtype=np.uint8)
    packed, padded = made(block, FP4, (16,)), made(block, FP4, (16,), flags=PADDED)
    with refused(ValueError, "overlap", block):
        dlfp4.unpack(packed.capsule, out=padded.capsule)


# ---- refused outputs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8,), (4, 2), (2, 4, 1), (1, 2, 4), (2, 3), (2, 0), ()], ids=str)
def test_out_of_another_shape(shape):
    out = filled(shape, FP8)
    with refused(ValueError, r"the result has \(2, 4\)", out):
        dlfp4.cast(VALUES, FP8, out=out)


@pytest.mark.parametrize("name", [name for name in [*FLOATS, "int4"] if name != FP8])
def test_out_of_another_type(name):
    out = filled((2, 4), name)
    with refused(TypeError, f"{name}.*{FP8}", out):
        dlfp4.cast(VALUES, FP8, out=out)
    with refused(TypeError, f"{name}.*uint4", out):
        dlfp4.pack(np.zeros((2, 4), ml_dtypes.uint4), out=out)


def test_read_only_out():
    out = filled((2, 4), FP8)
    out.flags.writeable = False
    with refused(BufferError, "read-only", out):
        dlfp4.cast(VALUES, FP8, out=out)
    memory = np.full(8, PATTERN, np.uint8)
    fp8, fp4 = (made(memory, name, (2, 4), flags=READ_ONLY) for name in (FP8, FP4))
    with refused(BufferError, "read-only", memory):
        dlfp4.cast(VALUES, FP8, out=fp8.capsule)
    with refused(BufferError, "read-only", memory):
        dlfp4.pack(VALUES_FP4.view(dtype_of(FP4)), out=fp4.capsule)


def test_out_whose_elements_share_memory():
    block = filled((4,), FP8)
    out = np.lib.stride_tricks.as_strided(block, (2, 4), (0, 1))
    with refused(ValueError, "share", block):
        dlfp4.cast(VALUES, FP8, out=out)


@pytest.mark.parametrize("device", [(2, 0), (10, 0), (8, 0)], ids=str)
def test_device_memory(device):
    memory, errors = np.full(32, PATTERN, np.uint8), (BufferError, dlfp4.DriverError)
    fp8, fp4, float32 = (made(memory, name, (2, 4), device=device) for name in (FP8, FP4, "float32"))
    with refused(errors, None, memory):
        dlfp4.cast(VALUES, FP8, out=fp8.capsule)
    with refused(errors, None, memory):
        dlfp4.cast(float32.capsule, FP8)
    with refused(errors, None, memory):
        dlfp4.unpack(fp4.capsule)


@pytest.mark.parametrize("out", [[1, 2], 5, "float32", len], ids=str)
def test_out_that_is_no_memory(out):
    with pytest.raises(TypeError):
        dlfp4.cast(VALUES, FP8, out=out)


def test_packed_slices_that_start_within_a_byte():
    packed = dlfp4.cast(VALUES, FP4)
    before = raw_bytes(packed)
    with pytest.raises(BufferError, match="copy"):
        dlfp4.cast(VALUES[:, 1:], FP4, out=packed[:, 1:])
    with pytest.raises(BufferError, match="copy"):
        dlfp4.cast(packed[:, 1:], "float32")
    assert raw_bytes(packed) == before
    assert (
        codes_of(dlfp4.unpack(packed)[:, 1:]).tolist() == VALUES_FP4[:, 1:].tolist()
    )  # the remedy for one that is padded


# ---- dialects ------------------------------------------------------------------------------------------------------


def test_torch_gets_its_pairs_back():
    torch = framework("torch")
    result = dlfp4.cast(torch.from_numpy(VALUES.copy()), FP4)
    assert (result.shape, raw_bytes(result)) == ((2, 4), packed_bytes(VALUES_FP4, 4))
    pairs = torch.from_dlpack(result)
    assert (pairs.dtype, tuple(pairs.shape)) == (torch.float4_e2m1fn_x2, (2, 2))
    assert pairs.view(torch.uint8).numpy().tobytes() == packed_bytes(VALUES_FP4, 4)
    back = dlfp4.cast(pairs, "float32")  # and in again
    assert torch.from_dlpack(back).tolist() == native_cast(of_codes(VALUES_FP4, FP4), "float32").tolist()
    assert torch.from_dlpack(dlfp4.pack(dlfp4.unpack(pairs))).dtype == torch.float4_e2m1fn_x2


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
def test_torch_to_torch(name):
    torch = framework("torch")
    values = torch.randn(33, 7, generator=torch.Generator().manual_seed(1)) * 50
    for source in (values, values.T, values[::2, 1:], values.bfloat16(), values.half()):
        result = torch.from_dlpack(dlfp4.cast(source, getattr(torch, name)))
        assert result.dtype == getattr(torch, name)
        expected = codec(name).round(source.float().numpy())
        assert result.contiguous().view(torch.uint8).numpy().tobytes() == expected.tobytes()


def test_jax_arrays():
    jnp = framework("jax").numpy
    result = dlfp4.cast(jnp.asarray(VALUES), jnp.float4_e2m1fn)
    assert raw_bytes(result) == packed_bytes(VALUES_FP4, 4)
    back = jnp.from_dlpack(dlfp4.cast(result, jnp.bfloat16))
    assert np.asarray(back).tobytes() == native_cast(of_codes(VALUES_FP4, FP4), "bfloat16").tobytes()


# ---- dtype ---------------------------------------------------------------------------------------------------------


def forms(name):
    kinds = [name, dtype_of(name), dtype_of(name).type]
    with contextlib.suppress(ImportError):
        import torch

        kinds += [getattr(torch, attribute) for attribute in (name, f"{name}_x2") if hasattr(torch, attribute)]
    with contextlib.suppress(ImportError):
        import jax.numpy as jnp

        kinds += [getattr(jnp, name)] if hasattr(jnp, name) else []
    return kinds


@pytest.mark.parametrize("name", FLOATS)
def test_dtype_in_all_forms(name):
    kinds = forms(name)
    results = [dlfp4.cast(VALUES, kind) for kind in kinds]
    assert {result.dtype for result in results} == {dtype_of(name)}
    assert {raw_bytes(result) for result in results} == {raw_bytes(results[0])}


@pytest.mark.parametrize(
    "dtype", ["float3", "", "float4_e2m1", None, 3, 3.5, len, np.dtype("S4"), np.dtype(">f4"), [], {}], ids=repr
)
def test_what_names_no_type(dtype):
    with pytest.raises(TypeError):
        dlfp4.cast(VALUES, dtype)


INTEGERS = ["bool", "int2", "int4", "uint4", "int8", "uint8", "int64", "complex64"]


@pytest.mark.parametrize("name", INTEGERS)
def test_pairs_without_a_conversion(name):
    whole = native_cast(np.array([0, 1, 1, 0], np.float32), name)
    for target in FLOATS:
        out = filled((4,), target)
        with refused(TypeError, f"{name}.*{target}", out):
            dlfp4.cast(whole, target, out=out)
        with pytest.raises(TypeError, match=f"{target}.*{name}"):
            dlfp4.cast(native_cast(np.ones(4, np.float32), target), name)
    assert codes_of(dlfp4.cast(whole, name, packed=False)).tobytes() == codes_of(whole).tobytes()


@pytest.mark.parametrize("name", ["float32", FP8, "int8", "bool"])
def test_pack_and_unpack_are_for_types_below_a_byte(name):
    for operation in (dlfp4.pack, dlfp4.unpack):
        with pytest.raises(TypeError, match=name):
            operation(native_cast(np.ones(4, np.float32), name))


@pytest.mark.parametrize("x", [["text"], 1.5, None, "text", {}], ids=repr)
def test_inputs_that_are_no_memory(x):
    with pytest.raises(TypeError):
        dlfp4.cast(x, FP8)


def test_stream_is_refused_for_host_memory():
    out = filled((2, 4), FP8)
    with refused(ValueError, "stream", out):
        dlfp4.cast(VALUES, FP8, out=out, stream=1)


def test_defaults_are_nearest_even_saturating_packed():
    result = dlfp4.cast(VALUES, FP4)
    assert (result.packed, raw_bytes(result)) == (True, packed_bytes(VALUES_FP4, 4))
    assert raw_bytes(dlfp4.asarray(VALUES, dtype=FP4)) == raw_bytes(result)
    assert dlfp4.cast(VALUES, FP8).data_ptr % 64 == 0
    assert dlfp4.cast(VALUES, "float32").data_ptr != VALUES.ctypes.data  # also a cast to its own type is a copy


# ---- threads -------------------------------------------------------------------------------------------------------


MILLIONS = 3_000_001
THREADED = {
    "to FP4": ("float32", FP4, lambda a: a),
    "to FP6": ("float32", "float6_e3m2fn", lambda a: a),
    "to FP8, transposed": ("bfloat16", FP8, lambda a: a[:-1].reshape(1500, 2000).T),
    "to FP6, rows": ("float16", "float6_e2m3fn", lambda a: a[:-1].reshape(3000, 1000)[:, 3:]),
    "from FP8": ("float8_e5m2", "float32", lambda a: a),
}


@pytest.mark.parametrize("case", THREADED)
def test_bytes_do_not_depend_on_threads(case, threads):
    source, target, view = THREADED[case]
    values = view(random_codes(source, MILLIONS))
    expected = codes_of(native_cast(values, target)) if BITS[target] > 8 else codec(target).round(values)
    expected = expected_bytes(expected, target, True)
    for count in (1, 2, 3, 4):
        threads(count)
        assert dlfp4.get_num_threads() == count
        assert raw_bytes(dlfp4.cast(values, target)) == expected
    packed = dlfp4.cast(values, FP4)
    threads(3)
    assert raw_bytes(dlfp4.pack(dlfp4.unpack(packed))) == raw_bytes(packed)


def test_number_of_threads(threads):
    default = dlfp4.get_num_threads()
    assert default >= 1
    threads(7)
    assert dlfp4.get_num_threads() == 7
    with pytest.raises(ValueError, match="-1"):
        threads(-1)
    with pytest.raises(TypeError):
        threads("2")
    assert dlfp4.get_num_threads() == 7
    threads(0)
    assert dlfp4.get_num_threads() == default


def test_callers_in_several_threads(threads):
    threads(2)
    inputs = [random_codes("float32", 300_000, seed) for seed in range(4)]
    expected = [expected_bytes(codec(FP4).round(values), FP4, True) for values in inputs]
    found: dict[int, set[bytes]] = {}

    def work(number):
        found[number] = {raw_bytes(dlfp4.cast(inputs[number], FP4)) for _ in range(10)}

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [found[number] for number in range(4)] == [{raw} for raw in expected]


def large():
    return random_array((2000, 2048))


LONG = {
    "cast": (lambda: (large().T,), lambda x: dlfp4.cast(x, FP4)),
    "pack": (lambda: (large().astype(ml_dtypes.float4_e2m1fn),), dlfp4.pack),
    "copy": (lambda: (dlfp4.asarray(large()).T,), lambda x: x.copy()),
    "quantize": (lambda: (large(),), lambda x: dlfp4.quantize(x, "nvfp4", axis=-2)),
    "dequantize": (lambda: (dlfp4.quantize(large(), "mxfp6_e2m3"),), lambda q: q.dequantize()),
    "vecdot": (lambda: (dlfp4.quantize(large(), "nvfp4"), large()), dlfp4.vecdot),
    "matmul": (lambda: (large()[:64], dlfp4.quantize(large(), "nvfp4").mT), dlfp4.matmul),
}


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no GIL")
@pytest.mark.parametrize("operation", LONG)
def test_large_calls_release_the_gil(operation, threads):
    """Nothing but a call that gives the GIL up lets the other thread on: the interpreter itself will not switch."""
    threads(1)
    ticks, stop, interval = [0], threading.Event(), sys.getswitchinterval()
    make, run = LONG[operation]
    operands = make()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.0005)

    clock = threading.Thread(target=tick)
    sys.setswitchinterval(1000)
    clock.start()
    time.sleep(0.05)  # by then no thread waits for the GIL that asked for it under the old interval
    try:
        start = ticks[0]
        sum(range(1_000_000))
        alone = ticks[0] - start
        for _ in range(200):
            run(*operands)
            if ticks[0] > start + 5:
                break
        together = ticks[0] - start
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        clock.join()
    assert alone == 0
    assert together > 5


FORKED = """
import os, signal, sys, warnings
import numpy as np
import dlfp4

warnings.simplefilter("ignore")  # of forking with threads about: that is the point
values = np.random.default_rng(0).normal(size=2_000_000).astype("float32")
dlfp4.set_num_threads(4)
expected = dlfp4.cast(values, "float4_e2m1fn").to_numpy().tobytes()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        same = dlfp4.cast(values, "float4_e2m1fn").to_numpy().tobytes() == expected
        os._exit(0 if same and dlfp4.get_num_threads() == 1 else 1)
    children.append(child)
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
assert dlfp4.get_num_threads() == 4
assert dlfp4.cast(values, "float4_e2m1fn").to_numpy().tobytes() == expected
"""


OTHERS_FORKED = """
import os, signal, warnings
import torch
import numpy as np
import dlfp4

warnings.simplefilter("ignore")
torch.set_num_threads(4)
assert (torch.ones(1 << 24) * 2).sum() == 1 << 25
values = np.random.default_rng(0).normal(size=2_000_000).astype("float32")
child = os.fork()
if child == 0:
    signal.alarm(60)
    codes = dlfp4.cast(values, "float4_e2m1fn").to_numpy().tobytes()
    os._exit(0 if len(codes) == values.size else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_fork_after_threaded_work_of_others():
    """They may have the same OpenMP, whose threads a child does not get."""
    framework("torch")
    run_python(OTHERS_FORKED)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_fork_after_threaded_work():
    run_python(FORKED)
