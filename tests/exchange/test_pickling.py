"""Pickles and copies: zero-copy out of band, whole in band, the same tensor on the other side."""

import copy
import ctypes
import io
import pickle
import weakref

import numpy as np
import pytest

import dlfp4
from dlfp4 import TensorProto

from ..support.capsules import DTYPES, Made, Managed, framework, random_array, run_python
from ..support.reference import parts_of, raw_bytes

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
SHAPES = [(3, 5), (2, 4, 16), (7,), (), (0, 3), (1, 0, 2)]


def described(tensor):
    return tensor.shape, tensor.strides, tensor.dtype, tensor.packed, tensor.readonly, tensor.device


def out_of_band(x):
    buffers = []
    stream = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    return stream, buffers


def tensors(name):
    """One of every shape and form of storage, of random bits."""
    for shape in SHAPES:
        for packed in {True, DTYPES[name][1] >= 8}:
            tensor = dlfp4.empty(shape, name, packed=packed)
            fill(tensor, 0xFF if packed else 0xFF >> max(8 - DTYPES[name][1], 0))
            yield tensor


def fill(tensor, mask):
    """Random bits; of padded elements only those that they use."""
    octets = np.random.default_rng(0).integers(256, size=tensor.nbytes, dtype=np.uint8) & mask
    ctypes.memmove(tensor.data_ptr, octets.tobytes(), tensor.nbytes)


def codes(tensor):
    """Its elements' bytes, without spare bits behind them."""
    return raw_bytes(dlfp4.unpack(tensor) if DTYPES[tensor.dtype.name][1] < 8 and tensor.packed else tensor)


def quantized():
    x = np.random.default_rng(0).standard_normal((2, 64, 128)).astype(np.float32)
    for name in dlfp4.formats():
        yield from dlfp4.quantize(x, name, axis=(-1, -2))
    yield dlfp4.quantize(x[:, :3, :50], "mxfp4", pad=True, scale_layout="aiter", recipe="rocm")
    yield dlfp4.quantize(x, "nvfp4", axis=-2, scale_layout="8x4")
    yield dlfp4.quantize(x[0], "mxfp8_e4m3").mT  # strided parts


# ---- Tensor


@pytest.mark.parametrize("name", DTYPES)
def test_out_of_band_is_zero_copy(name):
    for tensor in tensors(name):
        stream, buffers = out_of_band(tensor)
        (buffer,) = buffers
        assert buffer.raw().nbytes == tensor.nbytes
        back = pickle.loads(stream, buffers=buffers)
        assert described(back) == described(tensor)
        assert raw_bytes(back) == raw_bytes(tensor)
        if tensor.size:
            assert np.frombuffer(buffer, np.uint8).ctypes.data == tensor.data_ptr
            assert back.data_ptr == tensor.data_ptr
        assert len(stream) < 400


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", DTYPES)
def test_in_band_is_a_copy(name, protocol):
    for tensor in tensors(name):
        back = pickle.loads(pickle.dumps(tensor, protocol=protocol))
        assert described(back) == described(tensor)
        assert raw_bytes(back) == raw_bytes(tensor)
        assert not tensor.size or back.data_ptr != tensor.data_ptr


def test_shared_memory_is_seen_on_both_sides():
    tensor = dlfp4.asarray(np.arange(4, dtype=np.float32))
    stream, _ = out_of_band(tensor)
    memory = bytearray(tensor.nbytes)
    back = pickle.loads(stream, buffers=[memory])
    assert back.tolist() == [0, 0, 0, 0]
    memory[:] = raw_bytes(tensor)
    assert back.tolist() == [0, 1, 2, 3]
    back.to_numpy()[0] = 7
    assert np.frombuffer(memory, np.float32)[0] == 7


def test_what_is_loaded_keeps_its_memory():
    stream, _ = out_of_band(dlfp4.asarray(np.arange(1000, dtype=np.int64)))
    back = pickle.loads(stream, buffers=[np.arange(1000, dtype=np.int64)])
    assert back[::2].tolist() == list(range(0, 1000, 2))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_read_only_stays_read_only(protocol):
    array = np.arange(6, dtype=np.float32)
    array.flags.writeable = False
    back = pickle.loads(pickle.dumps(dlfp4.asarray(array), protocol=protocol))
    assert (back.readonly, back.tolist()) == (True, list(range(6)))
    stream, buffers = out_of_band(dlfp4.asarray(array))
    assert buffers[0].raw().readonly
    assert pickle.loads(stream, buffers=buffers).readonly
    # Read-only is what is given: bytes for a tensor that was writable.
    stream, _ = out_of_band(dlfp4.empty(2, "uint8"))
    assert pickle.loads(stream, buffers=[b"ab"]).readonly


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_strided_memory_is_made_compact(protocol):
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    packed = dlfp4.cast(np.arange(24, dtype=np.float32).reshape(4, 6), "float4_e2m1fn")
    for tensor in (dlfp4.asarray(array)[::-2, 1::3], dlfp4.asarray(array).T, packed[1:, :4], packed.T):
        back = pickle.loads(pickle.dumps(tensor, protocol=protocol))
        assert back.tolist() == tensor.tolist()
        assert described(back) == described(tensor.copy())
    broadcast = dlfp4.asarray(np.broadcast_to(np.float32(1), (3, 4)))
    assert pickle.loads(pickle.dumps(broadcast, protocol=protocol)).tolist() == [[1] * 4] * 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("name", "elements"), [("float4_e2m1fn", 3), ("float6_e3m2fn", 2)])
def test_a_part_takes_no_neighbours_along(name, elements, protocol):
    """Its last byte has elements of others, which a write to what was unpickled would change."""
    memory = np.full(3, 0xFF, np.uint8)
    part = dlfp4.asarray(memory).view(name)[:elements]
    buffers = []
    stream = pickle.dumps(part, protocol, buffer_callback=buffers.append if protocol == 5 else None)
    back = pickle.loads(stream, buffers=buffers)
    whole, spare = divmod(elements * DTYPES[name][1], 8)
    assert raw_bytes(back) == b"\xff" * whole + bytes([(1 << spare) - 1])
    dlfp4.cast(np.zeros(elements, "float32"), name, out=back)
    assert (memory == 0xFF).all()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_pairs_stay_pairs(protocol):
    tensor = dlfp4.cast(np.arange(16, dtype=np.float32).reshape(2, 8), "float4_e2m1fn")
    for x2 in (True, False):
        for back in (pickle.loads(pickle.dumps(tensor.x2(x2), protocol=protocol)), copy.deepcopy(tensor.x2(x2))):
            assert back.tolist() == tensor.tolist()
            _, _, lanes = Managed(back.__dlpack__(max_version=(1, 3))).dtype
            assert lanes == (2 if x2 else 1)


def test_from_pytorch_and_back():
    torch = framework("torch")
    native = torch.arange(16, dtype=torch.uint8).reshape(2, 8).view(torch.float4_e2m1fn_x2)
    stream, buffers = out_of_band(dlfp4.from_dlpack(native))
    back = torch.from_dlpack(pickle.loads(stream, buffers=buffers))
    assert (back.dtype, back.data_ptr()) == (native.dtype, native.data_ptr())


def test_buffers_keep_the_memory_alive():
    x = np.arange(6, dtype=np.float32)
    alive, buffers = weakref.ref(x), []
    pickled = pickle.dumps(dlfp4.asarray(x), 5, buffer_callback=buffers.append)
    del x
    assert alive() is not None
    assert pickle.loads(pickled, buffers=buffers).tolist() == [0, 1, 2, 3, 4, 5]
    del buffers
    assert alive() is None


@pytest.mark.parametrize(
    "buffer", [b"", b"1234567", b"123456789", np.zeros((2, 2), np.int32)], ids=["none", "short", "long", "longer"]
)
def test_a_buffer_of_another_size(buffer):
    stream, _ = out_of_band(dlfp4.empty(2, "float32"))
    with pytest.raises(ValueError, match=r"buffer has \d+ bytes.*\(2,\) of float32 needs 8"):
        pickle.loads(stream, buffers=[buffer])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_device_memory_is_refused(protocol):
    made = Made(random_array((4,)), device=(2, 0))  # host memory that claims to be a device's
    tensor = dlfp4.from_dlpack(made.capsule)
    with pytest.raises(BufferError, match=r"cuda:0.*to_device\('cpu'\)"):
        pickle.dumps(tensor, protocol=protocol)


# ---- ScaledTensor


def test_scaled_out_of_band_is_zero_copy():
    for q in list(quantized())[:-1]:
        stream, buffers = out_of_band(q)
        assert [buffer.raw().nbytes for buffer in buffers] == [part.nbytes for part in parts_of(q)]
        back = pickle.loads(stream, buffers=buffers)
        assert repr(back) == repr(q)
        assert [part.data_ptr for part in parts_of(back)] == [part.data_ptr for part in parts_of(q)]
        assert TensorProto.of(back) == TensorProto.of(q)


def test_parts():
    parts = next(iter(quantized())).to_numpy()
    back = pickle.loads(pickle.dumps(parts))
    assert type(back) is type(parts)
    assert [None if part is None else part.tobytes() for part in back] == [
        None if part is None else part.tobytes() for part in parts
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_scaled_in_band(protocol):
    for q in quantized():
        back = pickle.loads(pickle.dumps(q, protocol=protocol))
        assert repr(back) == repr(q)
        assert back.format is q.format
        assert back.dequantize().tolist() == q.dequantize().tolist()


# ---- What describes


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "x",
    [
        *(dlfp4.Device(name, index) for name, index in (("cpu", 0), ("cuda", 3), ("cuda_host", 0))),
        *dlfp4.formats().values(),
        dlfp4.Recipe(),
        dlfp4.Recipe(scale_rule="ceil", rounding="stochastic", pow2=True, eps=1e-6),
        TensorProto((2, 3), "float8_e4m3fn", device="cuda:1", requires_grad=True),
        TensorProto((64, 64), format="nvfp4", columnwise=True, scale_layout="8x4"),
        TensorProto(3, "int4", packed=False),
    ],
    ids=repr,
)
def test_descriptions(x, protocol):
    back = pickle.loads(pickle.dumps(x, protocol=protocol))
    assert (back, hash(back), repr(back), type(back)) == (x, hash(x), repr(x), type(x))
    assert copy.copy(x) == copy.deepcopy(x) == x


# ---- Damaged and hostile pickles


def restore(*described):
    return dlfp4._core._restore_tensor(*described)


@pytest.mark.parametrize(
    ("described", "match"),
    [
        ((bytearray(64), (2**61 + 64,), "uint8", False, False), "more elements than memory can hold"),
        ((bytearray(64), (2**60 + 8,), "float64", False, False), "more elements than memory can hold"),
        ((bytearray(64), (2**40, 2**40), "float4_e2m1fn", False, False), "more elements than memory can hold"),
        ((b"", (2**63 - 1,), "float4_e2m1fn", False, False), "more elements than memory can hold"),
        ((b"a", (-1,), "uint8", False, False), "invalid extent"),
        ((b"a", (2**64 + 1,), "uint8", False, False), "invalid extent"),
        ((b"a", (1.0,), "uint8", False, False), "invalid extent"),
        ((b"a", (True,), "uint8", False, False), "invalid extent"),
        ((b"a", (1,) * 70_000, "uint8", False, False), "70000 dimensions"),
        ((b"a", [1], "uint8", False, False), "the pickle is damaged"),
        ((b"a", (1,), np.dtype("uint8"), False, False), "the pickle is damaged"),
        ((b"a", (1,), "uint8", 0, False), "the pickle is damaged"),
        ((b"a", (1,), "uint8", False, None), "the pickle is damaged"),
        ((b"a", (1,), "no type", False, False), "names the type 'no type'"),
        ((b"ab", (1,), "uint8", False, False), "the buffer has 2 bytes; a Tensor of shape .* needs 1"),
        ((b"", (1,), "uint8", False, False), "the buffer has 0 bytes"),
        ((b"a", (3,), "float4_e2m1fn", False, False), "needs 2"),
        ((b"a", (2,), "float4_e2m1fn", True, False), "needs 2"),
    ],
)
def test_damaged_tensors_are_refused(described, match):
    with pytest.raises(ValueError, match=match) as caught:
        restore(*described)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("shape", [(2**40, 0, 2**40), (0, 2**40, 2**40)])
def test_empty_tensors_of_large_extents(shape):
    """They are imported, so what is pickled of them comes back."""
    torch = pytest.importorskip("torch")
    x = dlfp4.asarray(torch.empty(0).as_strided(shape, (0, 0, 0)))
    for protocol in (4, 5):
        back = pickle.loads(pickle.dumps(x, protocol))
        assert (back.shape, back.strides, back.dtype) == (shape, x.strides, x.dtype)


def test_buffers_that_changed_their_size_are_refused():
    stream, _ = out_of_band(dlfp4.empty((4, 8), "float32"))
    for size in (0, 127, 129):
        with pytest.raises(ValueError, match="pass the buffers unchanged"):
            pickle.loads(stream, buffers=[bytearray(size)])


def changed_parts():
    """Ways in which the description of an NVFP4 tensor can be wrong: the argument's place, and what comes there."""
    long = dlfp4.from_dlpack(Made(np.ones((1,) * 64, np.float32), shape=(1,) * 70).capsule)
    half = dlfp4.empty((2, 16), "float4_e2m1fn")
    for place, values in {
        0: (half, None, b"", long),
        1: (None, dlfp4.empty((4, 1), "float8_e4m3fn"), dlfp4.empty((4, 2), "float32"), long.view("float8_e4m3fn")),
        2: (long, dlfp4.empty((3,), "float32"), "x"),
        3: ("fp4", None, "nvfp4 "),
        4: (0, 1, -3),
        5: ("tiled", "", "prepared"),
        6: ((), (2**62, 32), (-4, 32), (4, 33), (1,) * 70_000 + (4, 32), (4.5, 32)),
        7: (dlfp4.empty((3,), "float32"), long, "x", b""),
        8: ((1,) * 15, (2,) * 16, "x"),
        9: (dlfp4.empty((4, 2), "uint8"),),
    }.items():
        for value in values:
            yield place, value


def test_damaged_quantized_tensors_are_refused():
    q = dlfp4.quantize(np.ones((4, 32), np.float32), "nvfp4")
    rebuild, parts = q.__reduce__()
    assert repr(rebuild(*parts)) == repr(q)
    cases = list(changed_parts())
    for place, value in cases:
        with pytest.raises((ValueError, TypeError, OverflowError)):
            rebuild(*parts[:place], value, *parts[place + 1 :])
    assert len(cases) > 20


def test_only_stacks_are_turned():
    q = dlfp4.quantize(np.ones((2, 4, 32), np.float32), "nvfp4")
    for value in (None, q.data, "mT"):
        with pytest.raises(ValueError, match="expected a ScaledTensor"):
            dlfp4._core._restore_turned(value)
    back = pickle.loads(pickle.dumps(q.mT))
    assert back.shape == (2, 32, 4)
    assert back.mT.dequantize().tolist() == q.dequantize().tolist()


@pytest.mark.parametrize(
    "facts", [(2**62, 4), (2**40, 2**40), (-5, 64), (64, 63), (64, 192), (128, 64), (32, 128), (0, 0)]
)
def test_prepared_weights_have_the_size_of_their_shape(facts):
    """Kernels go by the facts, which PyTorch's form brings along as text."""
    restore, size_of = dlfp4._core._restore_prepared, dlfp4._core._size_of_prepared
    blocks, codes, scales, _ = size_of("nvfp4", 64, 64)
    memory = np.zeros((blocks, codes + scales), np.uint8)
    parts = (memory[:, :codes], memory[:, codes:], None, "nvfp4", -1, (64, 64), None)
    assert restore(*parts, (64, 64, 0, True)).shape == (64, 64)
    with pytest.raises(ValueError, match="cannot have shape"):
        restore(*parts, (*facts, 0, True))


class Restricted(pickle.Unpickler):
    """It takes the functions that dlfp4's documentation names, and what bytes are made by."""

    allowed = frozenset({
        ("dlfp4._core", "_restore_tensor"), ("dlfp4._core", "_restore_scaled"), ("dlfp4._core", "_restore_turned"),
        ("builtins", "bytearray"), ("_codecs", "encode"), ("__builtin__", "bytearray"),
    })  # fmt: skip

    def find_class(self, module, name):
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_restricted_unpicklers_need_three_functions(protocol):
    q = dlfp4.quantize(np.ones((2, 4, 32), np.float32), "nvfp4", hadamard=3)
    for x in (q, q.mT, q.data, q.data.x2(), dlfp4.asarray(b"abc"), dlfp4.quantize(np.ones((4, 32), "f4"), "int4_g32")):
        back = Restricted(io.BytesIO(pickle.dumps(x, protocol=protocol))).load()
        assert repr(back) == repr(x)


def test_torch_loads_them_with_weights_only():
    torch = framework("torch")
    assert dlfp4.torch is not None  # which tells PyTorch of the functions
    q = dlfp4.quantize(np.ones((2, 4, 32), np.float32), "nvfp4")
    file = io.BytesIO()
    torch.save({"tensor": q.data, "quantized": q, "turned": q.mT}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert [repr(each) for each in loaded.values()] == [repr(each) for each in (q.data, q, q.mT)]


# ---- copy


@pytest.mark.parametrize("name", ["float32", "float4_e2m1fn", "float6_e3m2fn", "int4"])
def test_deepcopy_owns_its_memory(name):
    for tensor in tensors(name):
        twin = copy.deepcopy(tensor)
        assert described(twin) == described(tensor)
        assert codes(twin) == codes(tensor)
        assert not tensor.size or twin.data_ptr != tensor.data_ptr
        assert twin.data_ptr % 64 == 0
        assert copy.copy(tensor).data_ptr == tensor.data_ptr


def test_deepcopy_of_what_is_read_only_can_be_written():
    assert not copy.deepcopy(dlfp4.asarray(b"bytes")).readonly


def test_deepcopy_keeps_what_is_shared():
    tensor = dlfp4.empty(3, "float32")
    first, second = copy.deepcopy([tensor, tensor])
    assert first is second


def test_deepcopy_of_scaled():
    for q in quantized():
        twin = copy.deepcopy(q)
        assert repr(twin) == repr(q)
        assert twin.dequantize().tolist() == q.dequantize().tolist()
        mine, yours = ({part.data_ptr for part in parts_of(x)} for x in (q, twin))
        assert not mine & yours
        assert copy.copy(q) is q


# ---- Processes


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_shared_memory_between_processes(method):
    run_python(f"""
import pickle_workers as w
if __name__ == "__main__":
    with w.pool_of({method!r}, 1) as pool:
        for x in w.objects():
            w.check_shared_memory(x, pool)
""")


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_process_pool(method):
    run_python(f"""
import pickle_workers as w
if __name__ == "__main__":
    with w.pool_of({method!r}, 2) as pool:
        for x in w.objects():
            w.check_pool(x, pool)
""")
