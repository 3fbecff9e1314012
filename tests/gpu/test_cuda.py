"""Exchange on a GPU: device memory passed on without a copy, moved when asked, ordered between streams."""

import subprocess
import sys
import textwrap

import ml_dtypes
import numpy as np
import pytest

import dlfp4

from ..support import capsules, reference
from ..support.reference import host_bytes

pytestmark = pytest.mark.gpu

FP8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")


def random_bytes(torch, *shape):
    return torch.randint(1, 255, shape, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", *FP8])
def test_torch_round_trip_shares_memory(torch, name):
    source = random_bytes(torch, 16, 32).view(getattr(torch, name))
    tensor = dlfp4.from_dlpack(source)
    assert (str(tensor.device), tensor.dtype.name, tensor.data_ptr) == ("cuda:0", name, source.data_ptr())
    for back in (torch.from_dlpack(tensor), tensor.to_torch(copy=False)):
        assert (back.dtype, back.shape, back.data_ptr()) == (source.dtype, source.shape, source.data_ptr())
    assert host_bytes(tensor) == source.cpu().view(torch.uint8).numpy().tobytes()


def test_mutation_is_seen_on_both_sides(torch):
    source = random_bytes(torch, 64)
    tensor = dlfp4.from_dlpack(source)
    source.fill_(7)
    assert host_bytes(tensor) == b"\7" * 64
    torch.from_dlpack(tensor).fill_(9)
    assert source.cpu().tolist() == [9] * 64


def test_fp4_pairs_walk_back_to_torch(torch):
    source = random_bytes(torch, 8, 16).view(torch.float4_e2m1fn_x2)
    tensor = dlfp4.from_dlpack(source)
    assert (tensor.shape, tensor.dtype, tensor.packed) == ((8, 32), ml_dtypes.float4_e2m1fn, True)
    back = torch.from_dlpack(tensor)
    assert (back.dtype, back.shape, back.data_ptr()) == (source.dtype, source.shape, source.data_ptr())
    codes = source.view(torch.uint8).cpu().numpy()
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(8, 32)
    assert tensor.to_numpy().view(np.uint8).tobytes() == nibbles.tobytes()


def test_cupy_gets_the_bytes_without_a_copy(torch):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    source = random_bytes(torch, 8, 16)
    for dtype in (torch.float8_e4m3fn, torch.float4_e2m1fn_x2):
        array = dlfp4.from_dlpack(source.view(dtype)).to_cupy(copy=False)
        assert (array.dtype, array.shape, array.data.ptr) == (np.uint8, (8, 16), source.data_ptr())
    array = cupy.arange(24, dtype="float32").reshape(4, 6)
    tensor = dlfp4.from_dlpack(array)
    assert (tensor.data_ptr, tensor.shape) == (array.data.ptr, (4, 6))
    assert tensor.to_numpy().tobytes() == array.get().tobytes()


def test_jax_shares_what_it_can(torch):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.fail("JAX has no GPU backend here")
    source = random_bytes(torch, 8, 64).view(torch.float8_e5m2)
    array = dlfp4.from_dlpack(source).to_jax(copy=False)
    assert (array.dtype.name, array.unsafe_buffer_pointer()) == ("float8_e5m2", source.data_ptr())
    back = dlfp4.from_dlpack(array)
    assert back.data_ptr == source.data_ptr()


@pytest.mark.parametrize("name", ["float32", "float8_e4m3fn", "uint8"])
def test_to_host_and_back(torch, name):
    source = random_bytes(torch, 12, 20).view(getattr(torch, name))
    host = dlfp4.from_dlpack(source).to_device("cpu")
    assert (str(host.device), host.data_ptr % 64) == ("cpu", 0)
    device = host.to_device("cuda:0")
    assert torch.equal(torch.from_dlpack(device).view(torch.uint8), source.view(torch.uint8))
    assert dlfp4.from_dlpack(source, device="cpu").view("uint8").to_numpy().tobytes() == host_bytes(device)


VIEWS = {"transposed": lambda x: x.T, "sliced": lambda x: x[::2, 3:], "row": lambda x: x[5], "empty": lambda x: x[:0]}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_strided_device_memory_reaches_the_host(torch, view):
    source = torch.randn(12, 20, device="cuda")
    taken = dlfp4.from_dlpack(view(source)).to_numpy()
    assert taken.tobytes() == view(source).cpu().contiguous().numpy().tobytes()


def test_strided_packed_fp4_reaches_the_host(torch):
    source = random_bytes(torch, 6, 8)
    transposed = dlfp4.from_dlpack(source.view(torch.float4_e2m1fn_x2)).T
    codes = source.cpu().numpy()
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(6, 16)
    assert transposed.to_numpy().view(np.uint8).tobytes() == nibbles.T.tobytes()


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e2m3fn"])
@pytest.mark.parametrize("index", [slice(4, 0, -1), slice(None, None, -1), slice(28, 3, -3)], ids=str)
def test_packed_memory_backwards_reaches_the_host(name, index):
    """Whose lowest element may begin within a byte."""
    whole = dlfp4.pack(np.resize(reference.all_codes(name), 29))
    codes = reference.codes_of(dlfp4.unpack(whole))[index]
    taken = whole.to_device("cuda:0")[index].to_device("cpu")
    assert reference.codes_of(dlfp4.unpack(taken)).tolist() == codes.tolist()


def test_host_copy_through_the_protocol(torch):
    source = torch.randn(5, 7, device="cuda")
    array = np.from_dlpack(dlfp4.from_dlpack(source), device="cpu")
    assert array.tobytes() == source.cpu().numpy().tobytes()
    with pytest.raises(BufferError, match="copy=False"):
        dlfp4.from_dlpack(source).__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(ValueError, match="None"):
        dlfp4.from_dlpack(source).__dlpack__(dl_device=(1, 0), stream=1)


def test_empty_on_the_device(torch):
    tensor = dlfp4.empty((4, 34), "float4_e2m1fn", device="cuda:0")
    assert (str(tensor.device), tensor.nbytes) == ("cuda:0", 68)
    torch.from_dlpack(tensor.view("uint8").x2(False)).fill_(0x21)
    assert set(tensor.to_numpy().astype("float32").ravel().tolist()) == {0.5, 1.0}


def test_a_host_pointer_marked_as_cuda_is_never_read():
    made = capsules.Made(device=(2, 0))
    tensor = dlfp4.from_dlpack(made.capsule)
    for attempt in (tensor.to_numpy, tensor.tolist, lambda: tensor.to_device("cpu")):
        with pytest.raises(dlfp4.DriverError, match=r"CUDA_ERROR\w+ \(\d+\)"):
            attempt()


# ---- Streams


def slow_fill(torch, stream, value):
    """A tensor that reads `value` only after some 50 ms of work on `stream`."""
    source = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        source.fill_(value)
    return source


@pytest.mark.parametrize("consumer", ["legacy", "per_thread", "handle"])
def test_the_consumer_waits_for_the_producer(torch, consumer):
    producer, other = torch.cuda.Stream(), torch.cuda.Stream()
    source = slow_fill(torch, producer, 7.0)
    with torch.cuda.stream(producer):
        tensor = dlfp4.from_dlpack(source)
    stream = {"legacy": 1, "per_thread": 2, "handle": other.cuda_stream}[consumer]
    capsule = tensor.__dlpack__(stream=stream, max_version=(1, 3))
    reader = torch.cuda.default_stream() if stream == 1 else torch.cuda.ExternalStream(stream)
    with torch.cuda.stream(reader):
        copied = torch.from_dlpack(capsule).clone()
    reader.synchronize()
    assert copied.min().item() == copied.max().item() == 7.0


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.T], ids=["compact", "strided"])
def test_the_consumer_waits_for_the_copy(torch, view):
    """Which itself waits for the producer."""
    producer, other = torch.cuda.Stream(), torch.cuda.Stream()
    source = slow_fill(torch, producer, 7.0).reshape(1024, 1024)
    with torch.cuda.stream(producer):
        tensor = dlfp4.from_dlpack(source)
    capsule = view(tensor).__dlpack__(stream=other.cuda_stream, max_version=(1, 3), copy=True)
    with torch.cuda.stream(other):
        copied = torch.from_dlpack(capsule).clone()
    other.synchronize()
    assert copied.data_ptr() != source.data_ptr()
    assert copied.min().item() == copied.max().item() == 7.0


def test_no_synchronisation_when_none_is_asked_for(torch):
    producer, other = torch.cuda.Stream(), torch.cuda.Stream()
    source = slow_fill(torch, producer, 7.0)
    with torch.cuda.stream(producer):
        tensor = dlfp4.from_dlpack(source)
    capsule = tensor.__dlpack__(stream=-1, max_version=(1, 3))
    assert other.query()
    assert not producer.query()
    torch.cuda.synchronize()
    assert torch.from_dlpack(capsule).max().item() == 7.0


def test_a_host_copy_waits_for_the_producer(torch):
    producer = torch.cuda.Stream()
    source = slow_fill(torch, producer, 3.0)
    with torch.cuda.stream(producer):
        tensor = dlfp4.from_dlpack(source)
    assert set(tensor.to_numpy().tolist()) == {3.0}


def test_stream_zero_is_refused(torch):
    with pytest.raises(ValueError, match="stream=0"):
        dlfp4.from_dlpack(torch.ones(3, device="cuda")).__dlpack__(stream=0)


# ---- Life and death


def test_device_memory_is_freed(torch):
    torch.cuda.synchronize()
    free = []
    for _ in range(3):
        for _ in range(50):
            dlfp4.empty(1 << 26, "uint8", device="cuda:0")
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    assert min(free[0] - free[1], free[1] - free[2]) < 1 << 26  # others on the device take memory too, but once


def test_live_device_tensors_at_exit():
    script = """
        import dlfp4, torch
        kept = dlfp4.empty((64, 64), "float8_e4m3fn", device="cuda:0")
        taken = dlfp4.from_dlpack(torch.ones(8, device="cuda"))
        capsule = taken.__dlpack__(max_version=(1, 3))
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
