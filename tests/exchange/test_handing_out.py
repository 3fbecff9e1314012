"""The protocol's rules and known pitfalls, as a producer meets them: versions, flags, devices and streams."""

import re

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
