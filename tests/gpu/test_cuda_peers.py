"""Two GPUs: tensors of either from where either is current, copies between them, and refusals of what lies on both."""

import threading

import numpy as np
import pytest

import dlfp4

from ..products.test_matmul import assert_product
from ..support import reference
from ..support.capsules import framework
from ..support.reference import host_bytes

pytestmark = pytest.mark.gpus

DEVICES = ("cuda:0", "cuda:1")
MATRIX = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)


@pytest.fixture(params=[0, 1], ids=["first", "second"])
def torch(request):
    """PyTorch, where each device has been made the current one."""
    torch = framework("torch")
    with torch.cuda.device(request.param):
        yield torch
        assert torch.cuda.current_device() == request.param


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def other(device):
    return DEVICES[1 - DEVICES.index(device)]


# ---- Copies


def strided(x):
    return x[1:-1, ::2]


@pytest.mark.parametrize("part", [lambda x: x, strided, lambda x: x.T], ids=["whole", "strided", "transposed"])
@pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e3m2fn", "float8_e4m3fn", "bfloat16", "float32"])
def test_copies_from_one_to_the_other(torch, device, name, part):
    host = dlfp4.cast(MATRIX, name)
    there = part(host.to_device(device)).to_device(other(device))
    assert (str(there.device), there.dtype, there.packed) == (other(device), host.dtype, host.packed)
    assert host_bytes(there) == host_bytes(part(host).copy())
    assert host_bytes(there.to_device(device)) == host_bytes(there)


def test_a_copy_of_a_part_leaves_its_neighbours(torch, device):
    """Whose first bytes are of another tensor's element, and whose memory is PyTorch's."""
    source = torch.arange(256, dtype=torch.uint8, device=device)
    there = dlfp4.from_dlpack(source)[3:250].to_device(other(device))
    assert torch.equal(there.to_torch().cpu(), source[3:250].cpu())
    assert str(there.to_torch().device) == other(device)


def test_scaled_tensors_move(torch, device):
    q = dlfp4.quantize(dlfp4.asarray(MATRIX).to_device(device), "nvfp4", scale_layout="128x4")
    there = q.to_device(other(device))
    assert (str(there.device), there.scale_layout) == (other(device), "128x4")
    expected = dlfp4.quantize(MATRIX, "nvfp4", scale_layout="128x4")
    for field in ("data", "scales", "global_scale"):
        assert host_bytes(getattr(there, field)) == host_bytes(getattr(expected, field))
    assert host_bytes(there.dequantize()) == host_bytes(expected.dequantize())


def test_copies_wait_for_the_producer(torch, device):
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        source = torch.zeros(1 << 22, device=device)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            source.fill_(3)
            there = dlfp4.from_dlpack(source).to_device(other(device))
    assert (there.to_torch() == 3).all()


def test_copies_wait_for_what_has_their_memory(torch, device):
    """Memory that was freed is given again while work that was put before its end still writes to it."""
    bytes_ = 1 << 24
    ones = dlfp4.asarray(torch.ones(bytes_, dtype=torch.uint8, device=device))
    with torch.cuda.device(other(device)):
        last = dlfp4.empty(bytes_, "uint8", device=other(device))
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.default_stream()):  # in whose order memory is given back
            torch.cuda._sleep(500_000_000)
            last.to_torch().zero_()
    del last
    there = ones.to_device(other(device))
    assert (there.to_torch() == 1).all()


def test_managed_memory_reaches_both(torch, device):
    cupy = framework("cupy")
    with cupy.cuda.Device(int(device[-1])):
        memory = cupy.cuda.malloc_managed(MATRIX.nbytes)
        array = cupy.ndarray(MATRIX.shape, "float32", memory)
        array[...] = cupy.asarray(MATRIX)
        managed = dlfp4.from_dlpack(array)
        cupy.cuda.get_current_stream().synchronize()
    for place in DEVICES:
        there = managed.to_device(place)
        assert str(there.device) == place
        assert host_bytes(there) == MATRIX.tobytes()


# ---- Exchange


@pytest.mark.parametrize("name", ["float32", "float8_e5m2", "float4_e2m1fn_x2"])
def test_exchange_shares_memory(torch, device, name):
    source = torch.randint(1, 255, (8, 64), dtype=torch.uint8, device=device).view(getattr(torch, name))
    tensor = dlfp4.from_dlpack(source)
    assert (str(tensor.device), tensor.data_ptr) == (device, source.data_ptr())
    back = tensor.to_torch(copy=False)
    assert (back.device, back.dtype, back.data_ptr()) == (source.device, source.dtype, source.data_ptr())
    array = tensor.to_cupy(copy=False)
    assert (array.device.id, array.data.ptr) == (int(device[-1]), source.data_ptr())
    assert array.view("uint8").get().tobytes() == source.view(torch.uint8).cpu().numpy().tobytes()
    assert dlfp4.from_dlpack(array).device == device


def test_jax_gets_its_device(torch, device):
    jax = framework("jax")
    tensor = dlfp4.cast(MATRIX, "float8_e4m3fn").to_device(device)
    with torch.cuda.device(torch.cuda.current_device()):  # XLA leaves the device current on which it worked
        array = tensor.to_jax(copy=False)
        again = dlfp4.from_dlpack(jax.numpy.asarray(array))
        fp4 = dlfp4.cast(MATRIX, "float4_e2m1fn").to_device(device).to_jax()
    assert (array.unsafe_buffer_pointer(), next(iter(array.devices())).id) == (tensor.data_ptr, int(device[-1]))
    assert again.device == device
    assert next(iter(fp4.devices())).id == int(device[-1])
    assert (
        np.asarray(fp4).view(np.uint8).tobytes()
        == dlfp4.cast(MATRIX, "float4_e2m1fn", packed=False).to_numpy().view(np.uint8).tobytes()
    )


def test_consumers_on_the_other_device_are_refused(torch, device):
    tensor = dlfp4.asarray(MATRIX).to_device(device)
    with pytest.raises(BufferError, match=rf"to_device\('{other(device)}'\)"):
        tensor.__dlpack__(dl_device=(2, int(other(device)[-1])), max_version=(1, 3))
    with pytest.raises(BufferError):
        dlfp4.from_dlpack(torch.zeros(3, device=device), device=other(device), copy=False)


# ---- Operations


def results_of(x):
    """What each operation makes of a float32 matrix, as bytes on the host."""
    q = dlfp4.quantize(x, "nvfp4")
    mx = dlfp4.quantize(x, "mxfp8_e4m3", axis=-2, scale_layout="128x4")
    w = dlfp4.quantize(x[:, :128], "mxfp4")
    tensors = {
        "cast": dlfp4.cast(x, "float6_e2m3fn"),
        "transposed": dlfp4.cast(x.T, "float4_e2m1fn"),
        "copy": strided(x).copy(),
        "unpack": dlfp4.unpack(dlfp4.cast(x, "float4_e2m1fn")),
        "data": q.data,
        "scales": q.scales,
        "global_scale": q.global_scale,
        "columns": mx.data,
        "tiles": mx.scales,
        "dequantize": mx.dequantize(),
        "dot": dlfp4.vecdot(q, q),
        "floats": dlfp4.vecdot(x, x),
        "product": dlfp4.matmul(dlfp4.cast(x[:3, :128], "bfloat16"), w.prepare().mT, out_dtype="float32"),
    }
    return {name: host_bytes(tensor) for name, tensor in tensors.items()}


def test_operations_on_either(torch, device):
    got = results_of(dlfp4.asarray(MATRIX).to_device(device))
    expected = results_of(dlfp4.asarray(MATRIX).to_device(other(device)))
    on_host = results_of(dlfp4.asarray(MATRIX))
    assert got == expected
    for name in set(got) - {"dot", "floats", "product"}:
        assert got[name] == on_host[name], name


def test_operations_of_threads_that_have_used_no_device(device):
    """A thread begins without a current context."""
    x = dlfp4.asarray(MATRIX).to_device(device)
    expected, got = results_of(x), []
    threads = [threading.Thread(target=lambda: got.append(results_of(x))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [expected] * 2


@pytest.mark.parametrize("backend", ["cuda", "torch", "auto"])
@pytest.mark.parametrize("rows", [1, 100])
def test_products_by_every_backend(torch, device, backend, rows):
    w = dlfp4.quantize(dlfp4.asarray(MATRIX).to_device(device), "nvfp4").prepare()
    x = torch.randn(rows, 256, device=device, dtype=torch.bfloat16)
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
    y = dlfp4.matmul(x, w.mT, out_dtype="float32", backend=backend, stream=stream)
    stream.synchronize()
    assert str(y.device) == device
    assert_product(y, dlfp4.asarray(x).to_device("cpu"), dlfp4.quantize(MATRIX, "nvfp4").mT)


def test_prepared_weights_move(torch, device):
    w = dlfp4.quantize(dlfp4.asarray(MATRIX).to_device(device), "mxfp4").prepare()
    there = w.to_device(other(device))
    x = dlfp4.cast(dlfp4.quantize(MATRIX[:5], "mxfp4").dequantize(), "bfloat16")
    products = [dlfp4.matmul(x.to_device(place), q.mT) for place, q in ((device, w), (other(device), there))]
    assert str(there.device) == other(device)
    assert host_bytes(products[0]) == host_bytes(products[1])


def test_measured_tactics(torch, device, tmp_path):
    w = dlfp4.quantize(dlfp4.asarray(MATRIX).to_device(device), "nvfp4").prepare()
    x = torch.randn(4, 256, device=device, dtype=torch.bfloat16)
    with dlfp4.autotune(tmp_path / "tactics.json"):
        tuned = dlfp4.matmul(x, w.mT)
    assert str(tuned.device) == device
    assert_product(tuned, dlfp4.asarray(x).to_device("cpu"), dlfp4.quantize(MATRIX, "nvfp4").mT)


def test_graphs_of_either(torch, device):
    x = torch.randn(64, 256, device=device)
    with torch.cuda.device(device):
        dlfp4.quantize(x, "nvfp4")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # its own is of the device that had the first graph
            q = dlfp4.quantize(x, "nvfp4", stream=torch.cuda.current_stream())
            values = dlfp4.dequantize(q, stream=torch.cuda.current_stream())
        x.copy_(torch.from_numpy(MATRIX))
        graph.replay()
        torch.cuda.synchronize()
    assert host_bytes(values) == host_bytes(dlfp4.quantize(MATRIX, "nvfp4").dequantize())


def test_memory_of_either_is_freed(torch, device):
    torch.cuda.synchronize(device)
    free = []
    for _ in range(3):
        for _ in range(50):
            dlfp4.empty(1 << 26, "uint8", device=device).to_device(other(device))
        torch.cuda.synchronize(device)
        torch.cuda.synchronize(other(device))
        free.append([torch.cuda.mem_get_info(place)[0] for place in DEVICES])
    for k in range(2):
        losses = free[0][k] - free[1][k], free[1][k] - free[2][k]
        assert min(losses) < 1 << 26  # others on the device take memory too, but once


# ---- Refusals


def both_devices(device):
    here, there = (dlfp4.asarray(MATRIX).to_device(place) for place in (device, other(device)))
    return here, there, dlfp4.quantize(here, "nvfp4"), dlfp4.quantize(there, "nvfp4")


REFUSED = {
    "cast": lambda here, there, q, r: dlfp4.cast(here, "bfloat16", out=dlfp4.cast(there, "bfloat16")),
    "quantize": lambda here, there, q, r: dlfp4.quantize(here, "nvfp4", out=r),
    "global scale": lambda here, there, q, r: dlfp4.quantize(here, "nvfp4", global_scale=r.global_scale),
    "dequantize": lambda here, there, q, r: dlfp4.dequantize(
        q, out=dlfp4.empty((64, 256), "float32", device=str(there.device))
    ),
    "parts": lambda here, there, q, r: dlfp4.ScaledTensor.from_parts(q.data, r.scales, format="nvfp4"),
    "vecdot": lambda here, there, q, r: dlfp4.vecdot(q, r),
    "matmul": lambda here, there, q, r: dlfp4.matmul(dlfp4.cast(here, "bfloat16"), r.mT),
    "product's out": lambda here, there, q, r: dlfp4.matmul(
        here, q.mT, out=dlfp4.empty((64, 64), "float32", device=str(there.device))
    ),
}


@pytest.mark.parametrize("operation", REFUSED.values(), ids=REFUSED.keys())
def test_operands_of_both_are_refused(torch, device, operation):
    with pytest.raises((BufferError, ValueError, dlfp4.BackendError), match=r"cuda:[01].*cuda:[01]"):
        operation(*both_devices(device))


def test_streams_of_the_other_device(torch, device):
    x = dlfp4.asarray(MATRIX).to_device(device)
    stream = torch.cuda.Stream(other(device))
    q = dlfp4.quantize(x, "nvfp4")
    for operation in (
        lambda: dlfp4.cast(x, "bfloat16", stream=stream),
        lambda: dlfp4.quantize(x, "nvfp4", stream=stream),
        lambda: dlfp4.dequantize(q, stream=stream),
        lambda: dlfp4.matmul(x, q.mT, stream=stream.cuda_stream),
    ):
        with pytest.raises(ValueError, match=f"a stream of {other(device)}, and the data lies on {device}"):
            operation()
    torch.cuda.synchronize(device)
    assert host_bytes(dlfp4.cast(x, "bfloat16")) == host_bytes(dlfp4.cast(MATRIX, "bfloat16"))
    assert reference.codes_of(x.to_device("cpu")).size == MATRIX.size
