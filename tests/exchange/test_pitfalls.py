"""The protocol's rules and known pitfalls, seen from both sides: what dlfp4 asks, hands out, keeps and refuses."""

import copy
import re

import ml_dtypes
import numpy as np
import pytest

import dlfp4

from ..support import capsules
from ..support.capsules import DEVICES, IS_COPIED, PADDED, READ_ONLY, Made, Managed, Producer, framework, random_array
from .test_lifetime import tensor_of

NAMED = {
    name: name if name in ("cpu", "cuda_host", "rocm_host", "tpu_host", "cuda_managed") else f"{name}:0"
    for name in DEVICES
}


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
    with pytest.raises(BufferError, match="no multiples of the item size 4"):
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


# ---- producer: versions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(1, 0), (1, 3), (1, 99), (2, 0)], ids=str)
def test_versioned_export(version):
    tensor, made = tensor_of()
    managed = Managed(tensor.__dlpack__(max_version=version))
    assert (managed.versioned, managed.version, managed.flags) == (True, (1, 3), 0)
    check_plain_export(managed, made)


@pytest.mark.parametrize("version", [None, (0, 8), (0, 0)], ids=str)
def test_legacy_export(version):
    tensor, made = tensor_of()
    managed = Managed(tensor.__dlpack__(max_version=version))
    assert not managed.versioned
    check_plain_export(managed, made)


def check_plain_export(managed, made):
    assert (managed.shape, managed.strides, managed.dtype) == ((3, 4), (4, 1), (2, 32, 1))
    assert (managed.data, managed.byte_offset, managed.device) == (made.memory.ctypes.data, 0, (1, 0))


def test_no_arguments_means_legacy():
    tensor, _ = tensor_of()
    assert capsules.capsule_name(tensor.__dlpack__()) == capsules.LEGACY


def test_arguments_are_keyword_only():
    tensor, _ = tensor_of()
    with pytest.raises(TypeError):
        tensor.__dlpack__(None)


@pytest.mark.parametrize("version", ["1.3", 1, (1,), (1, 0, 0), ("a", "b"), [1.5, 0]], ids=str)
def test_malformed_max_version(version):
    tensor, _ = tensor_of()
    with pytest.raises(TypeError, match=re.escape(f"max_version={version!r}: expected None or (major, minor)")):
        tensor.__dlpack__(max_version=version)


def test_exported_offset_is_zero_and_strides_are_there():
    """Several consumers ignore byte_offset, and 1.2 forbids NULL strides: both are put right on the way through."""
    memory = random_array((3, 4))
    tensor, made = tensor_of(memory, shape=(2, 4), strides=None, byte_offset=16)
    for version in ((1, 3), None):
        managed = Managed(tensor.__dlpack__(max_version=version))
        assert (managed.data, managed.byte_offset) == (made.memory.ctypes.data + 16, 0)
        assert (managed.shape, managed.strides) == ((2, 4), (4, 1))
        assert managed.bytes(32) == memory.tobytes()[16:]


# ---- producer: flags -----------------------------------------------------------------------------------------------


def test_read_only_in_both_directions():
    tensor, _ = tensor_of(flags=READ_ONLY)
    assert Managed(tensor.__dlpack__(max_version=(1, 3))).flags == READ_ONLY
    assert dlfp4.from_dlpack(tensor).readonly
    assert not np.from_dlpack(tensor).flags.writeable
    for version in (None, (0, 8)):
        with pytest.raises(BufferError, match=r"(?i)read.?only"):
            tensor.__dlpack__(max_version=version)


def test_read_only_of_real_producers():
    array = random_array((4,))
    array.flags.writeable = False
    for tensor in (dlfp4.from_dlpack(array), dlfp4.asarray(array), dlfp4.asarray(bytes(array))):
        assert tensor.readonly
        assert not tensor.to_numpy().flags.writeable
    assert not dlfp4.asarray(bytearray(array)).readonly


def test_arrays_that_were_made_read_only_stay_so():
    """Over memory of a Tensor that may be written, which the array was made of."""
    tensor = dlfp4.asarray(random_array((4,)).copy())
    array = tensor.to_numpy()
    array.flags.writeable = False
    assert dlfp4.asarray(array).readonly
    assert dlfp4.asarray(array[1:]).readonly
    assert not dlfp4.asarray(tensor.to_numpy()).readonly


@pytest.mark.parametrize("dtype", capsules.SUBBYTE)
def test_padded_in_both_directions(dtype):
    tensor, made = tensor_of(random_array((3, 4), dtype), flags=PADDED)
    assert not tensor.packed
    for version in (None, (1, 0), (1, 3)):  # with None a legacy consumer rejects the name: never silently packed
        managed = Managed(tensor.__dlpack__(max_version=version))
        assert (managed.versioned, managed.flags) == (True, PADDED)
        assert managed.bytes(12) == made.memory.tobytes()
    with pytest.raises(BufferError, match=r"(?i)padded"):
        tensor.__dlpack__(max_version=(0, 8))
    both, _ = tensor_of(random_array((3, 4), dtype), flags=PADDED | READ_ONLY)
    assert Managed(both.__dlpack__(max_version=(1, 3))).flags == PADDED | READ_ONLY


@pytest.mark.parametrize("version", [(1, 3), None], ids=str)
def test_export_with_copy(version):
    tensor, made = tensor_of()
    managed = Managed(tensor.__dlpack__(max_version=version, copy=True))
    assert managed.data != made.memory.ctypes.data
    assert managed.bytes(48) == made.memory.tobytes()
    if version:
        assert managed.flags & IS_COPIED
    tensor.to_numpy()[...] = 9
    assert managed.bytes(48) != made.memory.tobytes()


@pytest.mark.parametrize("copy", [None, False])
@pytest.mark.parametrize("flags", [0, IS_COPIED])
def test_export_without_copy(copy, flags):
    """What came as a copy, the consumer's alone, is shared when it goes on, and says so no more."""
    tensor, made = tensor_of(flags=flags)
    for shared in (tensor, tensor[...]):
        managed = Managed(shared.__dlpack__(max_version=(1, 3), copy=copy))
        assert (managed.data, managed.flags & IS_COPIED) == (made.memory.ctypes.data, 0)


def test_what_can_only_hand_out_a_copy_is_refused_by_all_who_take_none():
    for take in (dlfp4.from_dlpack, dlfp4.asarray):
        made = Made(flags=IS_COPIED)
        with pytest.raises(BufferError, match="only hand out a copy"):
            take(Producer(made), copy=False)
        assert made.deleted == 1
        assert take(Producer(Made(flags=IS_COPIED))).size == 4


@pytest.mark.parametrize(
    ("take", "flags", "match"),
    [
        (lambda x: dlfp4.from_dlpack(x, copy=False), IS_COPIED, "only hand out a copy"),
        (lambda x: dlfp4.asarray(x, copy=False), IS_COPIED, "only hand out a copy"),
        (lambda x: dlfp4.from_dlpack(x, device="cuda:0", copy=False), 0, "moving it to cuda:0 needs a copy"),
        (lambda x: dlfp4.asarray(x, dtype="float16", copy=False), 0, "float32 to float16 needs a copy"),
        (lambda x: dlfp4.asarray(x, dtype="nonsense"), 0, "^dtype 'nonsense' is not one"),
        (lambda x: dlfp4.from_dlpack(x, device="nowhere"), 0, "nowhere"),
    ],
    ids=["a copy", "a copy of any kind", "elsewhere", "another type", "no type", "no device"],
)
def test_a_capsule_that_is_refused_can_be_taken_otherwise(take, flags, match):
    for versioned in (True, False)[: 1 if flags else 2]:  # legacy capsules have no flags
        made = Made(flags=flags, versioned=versioned)
        with pytest.raises((BufferError, TypeError, ValueError), match=match):
            take(made.capsule)
        assert made.untouched
        tensor = dlfp4.from_dlpack(made.capsule)
        assert tensor.data_ptr == made.memory.ctypes.data
        del tensor
        assert made.deleted == 1


def test_what_came_as_a_copy_is_shared_from_then_on():
    tensor, made = tensor_of(flags=IS_COPIED)
    for shared in (tensor, tensor[...], tensor.reshape((12,)), dlfp4.asarray(tensor, copy=False)):
        again = dlfp4.from_dlpack(shared, copy=False)
        assert (again.data_ptr, again.to_numpy(copy=False).ctypes.data) == (made.memory.ctypes.data,) * 2


def test_the_host_is_one_device():
    tensor, _ = tensor_of()
    for move in (lambda: tensor.to_device("cpu:1"), lambda: dlfp4.from_dlpack(tensor, device="cpu:1")):
        with pytest.raises(BufferError, match="the host is one device"):
            move()
    with pytest.raises(BufferError, match="cannot allocate memory on cpu:1"):
        dlfp4.empty(4, "uint8", device="cpu:1")


def test_a_device_never_changes():
    device = dlfp4.empty(1, "uint8").device
    device.__init__("cuda", 3)
    assert str(device) == str(dlfp4.asarray(b"1").device) == "cpu"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"stream": 2**70}, ValueError),
        ({"max_version": (1, "x")}, TypeError),
        ({"dl_device": (99, 0)}, BufferError),
        ({"dl_device": (2, -1)}, BufferError),
    ],
    ids=str,
)
def test_arguments_of_dlpack_beyond_bounds(options, error):
    tensor, _ = tensor_of()
    assert Managed(tensor.__dlpack__(max_version=(2**70, 0))).versioned
    with pytest.raises(error, match=next(iter(options))):
        tensor.__dlpack__(**options)


def test_copied_strided_memory_is_not_lost():
    tensor, made = tensor_of(random_array((4, 6))[::2, ::-1])
    managed = Managed(tensor.__dlpack__(max_version=(1, 3), copy=True))
    assert managed.flags & IS_COPIED
    assert dlfp4.from_dlpack(managed.capsule).to_numpy().tobytes() == made.memory.tobytes()


# ---- producer: devices and streams ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_round_trips(name):
    tensor, made = tensor_of(device=(DEVICES[name], 0))
    assert str(tensor.device) == NAMED[name]
    assert tuple(map(int, tensor.__dlpack_device__())) == (DEVICES[name], 0)
    managed = Managed(tensor.__dlpack__(max_version=(1, 3)))
    assert (managed.device, managed.data) == ((DEVICES[name], 0), made.memory.ctypes.data)
    again = dlfp4.from_dlpack(tensor)
    assert (str(again.device), again.data_ptr) == (NAMED[name], tensor.data_ptr)
    assert NAMED[name] in repr(tensor)


def test_offsets_from_opaque_handles_stay_offsets():
    made = Made(np.arange(12, dtype=np.float32), device=(DEVICES["vulkan"], 0), byte_offset=16, shape=(8,))
    tensor = dlfp4.from_dlpack(made.capsule)
    for view, offset in ((tensor, 16), (tensor[2:], 24)):
        managed = Managed(view.__dlpack__(max_version=(1, 3)))
        assert (managed.data, managed.byte_offset) == (made.memory.ctypes.data, offset)


@pytest.mark.parametrize("name", [name for name in DEVICES if NAMED[name].endswith(":0")])
def test_device_index_is_kept(name):
    tensor, _ = tensor_of(device=(DEVICES[name], 3))
    assert str(tensor.device) == f"{name}:3"
    assert tuple(map(int, tensor.__dlpack_device__())) == (DEVICES[name], 3)
    assert Managed(tensor.__dlpack__(max_version=(1, 3))).device == (DEVICES[name], 3)


@pytest.mark.parametrize("name", ["cpu", "cuda_host", "rocm_host", "tpu_host"])
def test_host_readable_devices_are_read(name):
    tensor, made = tensor_of(device=(DEVICES[name], 0))
    assert tensor.to_numpy().tobytes() == made.memory.tobytes()


@pytest.mark.parametrize("name", ["opencl", "vulkan", "rocm", "hexagon", "maia", "trn", "tpu", "ascend", "ext_dev"])
def test_foreign_memory_is_not_read(name):
    tensor, _ = tensor_of(device=(DEVICES[name], 0))
    with pytest.raises(BufferError, match=NAMED[name]):
        tensor.to_numpy()
    with pytest.raises(BufferError):
        tensor.copy()


def test_cpu_is_always_offered():
    tensor, made = tensor_of()
    for stream in (None, -1):
        managed = Managed(tensor.__dlpack__(max_version=(1, 3), dl_device=(1, 0), stream=stream))
        assert (managed.data, managed.flags) == (made.memory.ctypes.data, 0)


@pytest.mark.parametrize("device", [(4, 0), (7, 0), (10, 0)], ids=str)
def test_devices_we_cannot_serve(device):
    tensor, _ = tensor_of()
    with pytest.raises(BufferError, match="this tensor lies on cpu and can go out there, or to the host"):
        tensor.__dlpack__(max_version=(1, 3), dl_device=device)


def test_another_device_without_a_copy_is_refused():
    tensor, _ = tensor_of()
    with pytest.raises(BufferError, match="cuda:0"):
        tensor.__dlpack__(max_version=(1, 3), dl_device=(2, 0), copy=False)


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("gpu", ValueError, "device type 'gpu' is unknown"),
        (1, TypeError, "device 1 is of type int"),
        *((pair, TypeError, "expected a DLPack pair of integers") for pair in ((1,), (1, 2, 3), ("a", 0), (1, "b"))),
        *(((code, 0), BufferError, f"device type {code} is unknown") for code in (99, -1, 2**40)),
    ],
    ids=str,
)
def test_malformed_dl_device(device, error, message):
    tensor, _ = tensor_of()
    with pytest.raises(error, match=message):
        tensor.__dlpack__(max_version=(1, 3), dl_device=device)


STREAMS = [
    *(("cpu", stream, ()) for stream in (None, -1)),
    *(("cpu", stream, ValueError) for stream in (0, 1, 2, 7, -2)),
    *(("cuda", stream, ()) for stream in (None, 1, -1)),  # none of these needs the driver
    *(("cuda", stream, ValueError) for stream in (0, -2)),
    *(("rocm", stream, ()) for stream in (None, 0, -1)),
    *(("rocm", stream, ValueError) for stream in (1, 2, -2)),
    ("rocm", 7, BufferError),  # a handle, of a driver that is not ours
]


@pytest.mark.parametrize(("device", "stream", "refusal"), STREAMS)
def test_streams(device, stream, refusal):
    tensor, made = tensor_of(device=(DEVICES[device], 0))
    if refusal:
        with pytest.raises(refusal, match=rf"(?i)stream.*{stream}"):
            tensor.__dlpack__(max_version=(1, 3), stream=stream)
    else:
        assert Managed(tensor.__dlpack__(max_version=(1, 3), stream=stream)).data == made.memory.ctypes.data


@pytest.mark.parametrize("stream", ["1", 1.5, (1,)], ids=repr)
def test_malformed_stream(stream):
    for device in ("cpu", "cuda", "rocm"):
        tensor, _ = tensor_of(device=(DEVICES[device], 0))
        with pytest.raises(TypeError, match=re.escape(f"stream={stream!r}: expected None or an integer")):
            tensor.__dlpack__(max_version=(1, 3), stream=stream)


@pytest.mark.gpu
def test_streams_with_a_driver():
    """2 is the per-thread default, anything above a handle; the export waits or not, the memory is the same."""
    torch = framework("torch")
    tensor = dlfp4.empty((64,), "float32", device="cuda:0")
    for stream in (None, 1, 2, -1, torch.cuda.Stream().cuda_stream):
        managed = Managed(tensor.__dlpack__(max_version=(1, 3), stream=stream))
        assert (managed.data, managed.device) == (tensor.data_ptr, (2, 0))
    with pytest.raises(ValueError, match=r"stream.*0"):
        tensor.__dlpack__(max_version=(1, 3), stream=0)


@pytest.mark.gpu
def test_cpu_is_offered_for_device_memory():
    array = random_array((64,))
    tensor = dlfp4.asarray(array).to_device("cuda:0")
    managed = Managed(tensor.__dlpack__(max_version=(1, 3), dl_device=(1, 0)))
    assert (managed.device, managed.bytes(256)) == ((1, 0), array.tobytes())
    assert managed.flags & IS_COPIED
    with pytest.raises((ValueError, BufferError), match="stream"):
        tensor.__dlpack__(max_version=(1, 3), dl_device=(1, 0), stream=1)
    with pytest.raises(BufferError, match="copy"):
        tensor.__dlpack__(max_version=(1, 3), dl_device=(1, 0), copy=False)


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
