"""The protocol's rules and known pitfalls, as a consumer meets them: what dlfp4 asks, keeps and refuses."""

import copy

import ml_dtypes
import numpy as np
import pytest

import dlfp4

from ..support import capsules
from ..support.capsules import DEVICES, IS_COPIED, Made, Managed, Producer, framework, random_array
from .test_lifetime import tensor_of

# ---- consumer: what from_dlpack asks -------------------------------------------------------------------------------


def test_asks_for_version_1_3():
    producer = Producer(Made())
    dlfp4.from_dlpack(producer)
    assert [call["max_version"] for call in producer.calls] == [(1, 3)]


@pytest.mark.parametrize(
    ("name", "stream"), [("cpu", None), ("cuda", 1), ("cuda_managed", 1), ("rocm", 0), ("vulkan", None)]
)
def test_asks_for_the_default_stream_where_there_are_streams(name, stream):
    device = (DEVICES[name], 0)
    producer = Producer(Made(device=device), device)
    dlfp4.from_dlpack(producer)
    assert [call.get("stream") for call in producer.calls] == [stream]


@pytest.mark.parametrize(("copy", "asked"), [(None, None), (False, False), (True, None)])
def test_asks_for_no_copy_where_none_may_be_made(copy, asked):
    producer = Producer(Made())
    dlfp4.from_dlpack(producer, copy=copy)
    assert [call["copy"] for call in producer.calls] == [asked]


@pytest.mark.parametrize(("lies_on", "device", "asked"), [(2, "cpu", (1, 0)), (1, "cpu", None), (1, None, None)])
def test_asks_for_a_device_where_the_data_lies_on_another(lies_on, device, asked):
    producer = Producer(Made(), (lies_on, 0))
    dlfp4.from_dlpack(producer, device=device)
    assert [call["dl_device"] for call in producer.calls] == [asked]


def test_a_producers_own_kind_of_type_error_is_no_reason_to_ask_again():
    class NoData(TypeError):
        pass

    class Refusing(Producer):
        def __dlpack__(self, **options):
            self.calls.append(options)
            raise NoData

    producer = Refusing(Made())
    with pytest.raises(NoData):
        dlfp4.from_dlpack(producer)
    assert len(producer.calls) == 1


@pytest.mark.parametrize(("shape", "strides"), [((2, 3), (13, 4)), ((3, 2), (8, 5)), ((2,), (2,))])
def test_strides_between_items_are_refused(shape, strides):
    array = np.ndarray(shape, "float32", bytes(64), strides=strides)
    with pytest.raises(BufferError, match="not multiples of the item size 4"):
        dlfp4.from_dlpack(array)


@pytest.mark.parametrize(("shape", "strides"), [((1, 3), (13, 4)), ((3, 1), (8, 5)), ((0, 3), (13, 4)), ((1,), (2,))])
def test_strides_that_lead_nowhere_may_be_any(shape, strides):
    array = np.ndarray(shape, "float32", np.arange(16, dtype="float32"), strides=strides)
    assert dlfp4.from_dlpack(array).tolist() == array.tolist()


@pytest.mark.parametrize("kind", [capsules.OldProducer, capsules.OldestProducer])
@pytest.mark.parametrize("versioned", [False, True])
def test_old_producers_are_asked_again(kind, versioned):
    producer = kind(Made(versioned=versioned))
    tensor = dlfp4.from_dlpack(producer)
    assert len(producer.calls) == 1  # the call that was refused for its keywords never got into the body
    assert tensor.data_ptr == producer.made.memory.ctypes.data
    assert tensor.to_numpy().tobytes() == producer.made.memory.tobytes()


def test_a_type_error_of_the_producer_itself_comes_through():
    with pytest.raises(TypeError, match="stopped halfway"):
        dlfp4.from_dlpack(capsules.RaisingProducer(TypeError("stopped halfway")))


def test_keyboard_interrupt_in_the_second_asking_propagates():
    class Interrupted(Producer):
        def __dlpack__(self, stream=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dlfp4.from_dlpack(Interrupted(Made()))


@pytest.mark.parametrize("kind", [Producer, capsules.OldProducer, capsules.OldestProducer])
@pytest.mark.parametrize("copy", [None, False, True])
def test_copy_on_import(kind, copy):
    """The factory's producers ignore `copy`, as old ones do: the promise is dlfp4's to keep."""
    producer = kind(Made())
    memory = producer.made.memory
    tensor = dlfp4.from_dlpack(producer, copy=copy)
    assert (tensor.data_ptr == memory.ctypes.data) is (copy is not True)
    assert tensor.to_numpy().tobytes() == memory.tobytes()


def test_copy_on_import_of_a_real_producer():
    array = random_array((5, 3))
    copied, shared = dlfp4.from_dlpack(array, copy=True), dlfp4.from_dlpack(array, copy=False)
    assert shared.data_ptr == array.ctypes.data != copied.data_ptr
    array += 1
    assert shared.to_numpy().tobytes() == array.tobytes() != copied.to_numpy().tobytes()


@pytest.mark.parametrize("device", ["cpu", (1, 0), dlfp4.Device("cpu")], ids=repr)
def test_device_on_import(device):
    array = random_array((4,))
    tensor = dlfp4.from_dlpack(array, device=device)
    assert (str(tensor.device), tensor.to_numpy().tobytes()) == ("cpu", array.tobytes())


def test_device_that_cannot_be_served_on_import():
    with pytest.raises(BufferError, match="cannot allocate memory on vulkan:0; expected 'cpu' or 'cuda:N'"):
        dlfp4.from_dlpack(random_array((4,)), device="vulkan:0")
    with pytest.raises(ValueError, match="type 'toaster' is unknown"):
        dlfp4.from_dlpack(random_array((4,)), device="toaster:0")


def test_device_id_none_is_zero():
    tensor = dlfp4.from_dlpack(Producer(Made(), (1, None)))
    assert str(tensor.device) == "cpu"


# ---- consumer: capsules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versioned", [True, False])
def test_a_capsule_is_consumed_once(versioned):
    tensor, made = tensor_of(versioned=versioned)
    assert made.name == b"used_" + made.first_name
    with pytest.raises((BufferError, TypeError), match=r"used_|consumed"):
        dlfp4.from_dlpack(made.capsule)
    assert tensor.to_numpy().tobytes() == made.memory.tobytes()
    made.drop()
    assert made.deleted == 0
    del tensor
    assert made.deleted == 1


@pytest.mark.parametrize("versioned", [True, False])
def test_an_unconsumed_capsule_of_ours_releases_its_tensor(versioned):
    tensor, made = tensor_of(versioned=versioned)
    capsule = tensor.__dlpack__(max_version=(1, 3) if versioned else None)
    del tensor
    assert made.deleted == 0
    del capsule
    assert made.deleted == 1


def test_a_consumed_capsule_of_ours_leaves_the_release_to_the_consumer():
    tensor, made = tensor_of()
    managed = Managed(tensor.__dlpack__(max_version=(1, 3))).consume()
    del tensor
    managed.capsule = None
    assert made.deleted == 0
    managed.capsule = managed.name = None
    capsules.Deleter(managed.struct.deleter)(managed.address)
    assert made.deleted == 1


def test_capsule_names_are_static():
    """A capsule keeps the pointer to its name alone: every capsule must show the same, immortal string."""
    tensor, _ = tensor_of()
    for version, name in (((1, 3), capsules.VERSIONED), (None, capsules.LEGACY)):
        first, second = (tensor.__dlpack__(max_version=version) for _ in range(2))
        assert capsules.capsule_name_address(first) == capsules.capsule_name_address(second)
        assert capsules.capsule_name(first) == name
        dlfp4.from_dlpack(first)
        assert capsules.capsule_name(first) == b"used_" + name


# ---- shapes and strides --------------------------------------------------------------------------------------------

BASE = random_array((4, 6))
LAYOUTS = {
    "rows": BASE, "transposed": BASE.T, "strided": BASE[::2, 1::2], "negative": BASE[::-1, ::-2],
    "broadcast": np.broadcast_to(BASE[0], (3, 6)), "scalar": BASE[0, 0:1].reshape(()), "empty": BASE[:0],
    "empty-inside": BASE[:, 3:3], "offset": BASE[1:, 2:],
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("version", [(1, 3), None], ids=str)
def test_layouts_through_and_back(layout, version):
    array = LAYOUTS[layout]
    tensor, _ = tensor_of(array)
    again = dlfp4.from_dlpack(tensor.__dlpack__(max_version=version))
    for t in (tensor, again):
        assert (t.shape, t.size, t.ndim) == (array.shape, array.size, array.ndim)
        assert t.to_numpy().tobytes() == array.tobytes()
        if array.size:
            assert t.data_ptr == array.ctypes.data
            assert [s for n, s in zip(t.shape, t.strides, strict=True) if n > 1] == [
                s // 4 for n, s in zip(array.shape, array.strides, strict=True) if n > 1
            ]


def test_strides_of_77_are_no_obstacle():
    tensor, made = tensor_of(random_array((1, 4, 1)), strides=(77, 1, 77))
    assert tensor.reshape((2, 2)).data_ptr == made.memory.ctypes.data  # contiguous all the same
    assert tensor.reshape((4,)).to_numpy().tobytes() == made.memory.tobytes()
    assert tensor.view("uint8").shape == (1, 16, 1)


def test_negative_strides_never_reach_torch():
    torch = framework("torch")
    tensor, made = tensor_of(random_array((6,))[::-1])
    with pytest.raises(BufferError, match=r"(?is)negative.*copy"):
        tensor.to_torch()
    copied = tensor.to_torch(copy=True)
    assert torch.equal(copied, torch.tensor(made.memory.tolist()))


@pytest.mark.parametrize("shape", [(2**40, 2**40, 0), (2**40, 0, 2**40), (0, 2**40, 2**40)])
def test_extents_that_overflow_never_reach_torch(shape):
    """Of an empty tensor, which has none of what they count; by each way, and without it."""
    torch = framework("torch")
    tensor, _ = tensor_of(random_array((1,)), shape=shape, strides=(1, 1, 1))
    assert tensor.shape == shape
    for take in (torch.from_dlpack, torch.utils.dlpack.from_dlpack, lambda t: t.to_torch()):
        with pytest.raises(BufferError, match=r"more than 63 bits.*reshape\(\(0,\)\)"):
            take(tensor)
        assert take(tensor.reshape((0,))).numel() == 0


# ---- real producers ------------------------------------------------------------------------------------------------


def swapped():
    return random_array((4,)).astype(np.dtype("f4").newbyteorder())


@pytest.mark.parametrize("entry", [dlfp4.from_dlpack, dlfp4.asarray], ids=["from_dlpack", "asarray"])
def test_non_native_endianness(entry):
    with pytest.raises(BufferError):
        entry(swapped())
    with pytest.raises(BufferError):
        entry(memoryview(swapped()) if entry is dlfp4.asarray else swapped())


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([None]), np.zeros(2, "M8[s]"), np.zeros(2, "i4,f4")], ids=str
)
def test_arrays_that_no_dlpack_type_describes(array):
    with pytest.raises((BufferError, TypeError)):
        dlfp4.asarray(array)


@pytest.mark.parametrize("entry", [dlfp4.asarray, dlfp4.from_dlpack, lambda x: dlfp4.quantize(x, "mxfp4")])
def test_masks_are_not_lost(entry):
    x = np.ma.array(np.linspace(0, 1, 32, dtype=np.float32), mask=[False] * 31 + [True])
    with pytest.raises(BufferError, match=r"filled\(value\)"):
        entry(x)
    for plain in (x.filled(2), x.data):
        entry(plain)


@pytest.mark.parametrize("dtype", ["float32", "float8_e5m2", "float4_e2m1fn"])
def test_subclasses_of_arrays_only_add_a_face(dtype, tmp_path):
    """They are what NumPy's own arrays are, also of types that NumPy's `__dlpack__` does not know."""
    plain = random_array((2, 3)).astype(dtype)
    mapped = np.memmap(tmp_path / "x", np.dtype(dtype), "w+", shape=(2, 3))
    mapped[:] = plain
    for entry in (dlfp4.asarray, lambda x: dlfp4.cast(x, dtype, packed=False)):
        assert entry(mapped).to_numpy().tobytes() == plain.tobytes()
    assert dlfp4.asarray(mapped).data_ptr == mapped.ctypes.data
    if dtype == "float32":
        assert dlfp4.from_dlpack(mapped).data_ptr == mapped.ctypes.data


@pytest.mark.parametrize("entry", [dlfp4.asarray, lambda x: dlfp4.cast(x, "float32")])
@pytest.mark.parametrize("thing", [None, 3, "text", len], ids=str)
def test_what_has_no_memory_says_what_is_expected(entry, thing):
    with pytest.raises(TypeError, match=rf"{type(thing).__name__} has no memory to share: expected .*numpy\.asarray"):
        entry(thing)


@pytest.mark.parametrize("entry", [dlfp4.asarray, lambda q: dlfp4.cast(q, "float32"), dlfp4.pack])
def test_scaled_tensors_are_no_tensors(entry):
    with pytest.raises(TypeError, match=r"several tensors.*dequantize"):
        entry(dlfp4.quantize(np.linspace(0, 1, 32, dtype=np.float32).reshape(1, 32), "mxfp4"))


def test_copies_of_pinned_memory_lie_on_the_host():
    made = Made(random_array((6, 64)), device=(3, 0))
    tensor = dlfp4.from_dlpack(made.capsule)
    assert str(tensor.device) == "cuda_host"
    for view in (tensor, tensor[1:, ::2]):
        for copied in (view.copy(), dlfp4.from_dlpack(view, copy=True), copy.deepcopy(view)):
            assert (str(copied.device), copied.to_numpy().tobytes()) == ("cpu", view.to_numpy().tobytes())


def test_pinned_memory_as_the_hosts():
    pinned = dlfp4.from_dlpack(Made(np.arange(4, dtype=np.float32), device=(DEVICES["cuda_host"], 0)).capsule)
    shared = Managed(pinned.__dlpack__(max_version=(1, 3), dl_device=(1, 0)))
    assert (shared.data, shared.flags & IS_COPIED) == (pinned.data_ptr, 0)
    copied = Managed(pinned.__dlpack__(max_version=(1, 3), dl_device=(1, 0), copy=True))
    assert copied.data != pinned.data_ptr
    assert copied.flags & IS_COPIED


def test_what_a_producer_says_of_its_data_comes_through():
    pyarrow = framework("pyarrow")
    with pytest.raises(pyarrow.ArrowTypeError, match="no nulls"):
        dlfp4.from_dlpack(pyarrow.array([1.0, None]))


def test_tensors_without_numbers():
    """TensorFlow ends the process when it is asked for a capsule of them."""
    tensorflow = framework("tensorflow")
    with pytest.raises(BufferError, match="a tensor of string has no numbers"):
        dlfp4.from_dlpack(tensorflow.constant(["a", "b"]))


def test_arrays_of_jax_that_are_gone_or_have_no_values():
    jax = framework("jax")
    gone = jax.numpy.arange(4.0)
    gone.delete()
    with pytest.raises(BufferError, match="deleted or donated"):
        dlfp4.from_dlpack(gone)
    with pytest.raises(BufferError, match="outside of jit"):
        jax.jit(lambda x: dlfp4.from_dlpack(x).shape)(jax.numpy.arange(4.0))


# ---- what DLPack's main branch has beyond 1.3


def test_complex_numbers_of_bfloat16():
    """Carried where ml_dtypes has them, in and out and through views; never converted."""
    name = "bcomplex32"
    if not hasattr(ml_dtypes, name):
        with pytest.raises(TypeError, match=name):
            dlfp4.empty((2,), name)
        return
    array = capsules.random_array((3, 4), name)
    tensor = dlfp4.asarray(array)
    managed = Managed(tensor.T[1:].__dlpack__(max_version=(1, 3)))
    assert (managed.dtype, managed.shape, managed.strides) == ((*capsules.DTYPES[name], 1), (3, 3), (1, 4))
    assert dlfp4.from_dlpack(managed.capsule).to_numpy().tobytes() == array.T[1:].tobytes()
    assert tensor.T.copy().to_numpy().tobytes() == array.T.tobytes()
    assert tensor.view("uint16").shape == (3, 8)
    with pytest.raises(TypeError, match=f"does not cast {name}"):
        dlfp4.cast(tensor, "float32")


# ---- dtypes that say what they are on the wire


class Wire:
    """As the dtypes of tvm-ffi and PaddlePaddle (array-api #972)."""

    def __init__(self, *wire):
        self.wire = wire

    def __dlpack_data_type__(self):
        return self.wire


@pytest.mark.parametrize("name", capsules.DTYPES)
def test_dtype_arguments_by_their_wire(name):
    assert dlfp4.empty((2,), Wire(*capsules.DTYPES[name], 1)).dtype.name == name


def test_fp4_by_its_wire_in_pairs():
    assert dlfp4.empty((2,), Wire(17, 4, 2)).dtype.name == "float4_e2m1fn"


@pytest.mark.parametrize("wire", [(200, 8, 1), (2, 32, 2), (2, 7, 1), (-1, 8, 1), (2, 2**40, 1)], ids=str)
def test_wires_that_are_no_type(wire):
    with pytest.raises(TypeError, match="is not one that dlfp4 carries"):
        dlfp4.empty((2,), Wire(*wire))


def test_dtypes_of_tvm_ffi():
    tvm_ffi = capsules.framework("tvm_ffi")
    for name in ("float32", "bfloat16", "float8_e4m3fn", "float4_e2m1fn"):
        assert dlfp4.empty((2, 4), tvm_ffi.dtype(name)).dtype.name == name


def test_what_numpy_owns_says_nothing_new():
    assert not hasattr(np.dtype("float32"), "__dlpack_data_type__")
    assert not hasattr(dlfp4.empty((2,), "bfloat16").dtype, "__dlpack_data_type__")
