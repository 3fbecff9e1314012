"""Work runs where the caller works: captures and side streams of PyTorch, CuPy and JAX, with operands of our own that
were made elsewhere before. The rules themselves, without a GPU: test_current_streams.py."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dlfp4

from ..support.capsules import framework
from ..support.reference import host_bytes

pytestmark = pytest.mark.gpu

LONG = 2 * 10**9  # cycles: about a second
CUDA = "cuda:0"


def normal(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def operands(torch):
    """Tensors of our own, made on PyTorch's default stream: rows, weights that are prepared and not, plain elements."""
    x = torch.tensor(normal((16, 512), 0), device="cuda", dtype=torch.bfloat16)
    weight = torch.tensor(normal((256, 512), 1), device="cuda", dtype=torch.bfloat16)
    made = {
        "x": dlfp4.from_dlpack(x),
        "qx": dlfp4.quantize(x, "nvfp4"),
        "w": dlfp4.quantize(weight, "nvfp4").prepare(),
        "plain": dlfp4.quantize(weight, "nvfp4"),
        "padded": dlfp4.cast(x, "float4_e2m1fn", packed=False),
        "kept": (x, weight),
    }
    torch.cuda.synchronize()
    return made


# What takes operands and writes to memory of ours that was made before, so that a replay is seen; its shape and type.
INTO = {
    "matmul": (lambda o, out: dlfp4.matmul(o["qx"], o["w"].mT, out=out), (16, 256), "bfloat16"),
    "matmul of rows": (lambda o, out: dlfp4.matmul(o["x"], o["w"].mT, out=out), (16, 256), "bfloat16"),
    "matmul by PyTorch": (lambda o, out: dlfp4.matmul(o["x"], o["plain"].mT, out=out), (16, 256), "bfloat16"),
    "cast": (lambda o, out: dlfp4.cast(o["x"], "float8_e4m3fn", out=out), (16, 512), "float8_e4m3fn"),
    "dequantize": (lambda o, out: dlfp4.dequantize(o["qx"], out.dtype, out=out), (16, 512), "bfloat16"),
    "dequantize prepared": (lambda o, out: dlfp4.dequantize(o["w"], out.dtype, out=out), (256, 512), "float32"),
    "pack": (lambda o, out: dlfp4.pack(o["padded"], out=out), (16, 512), "float4_e2m1fn"),
}


def clear(tensor):
    octets = tensor.reshape(tensor.shape or (1,)).view("uint8")
    dlfp4.cast(dlfp4.asarray(np.zeros(octets.shape, np.uint8)).to_device(CUDA), "uint8", out=octets)
    return tensor


def zeros(shape, dtype):
    return clear(dlfp4.empty(shape, dtype, device=CUDA))


@pytest.mark.parametrize("name", INTO)
def test_captures_of_pytorch_have_the_work(torch, name):
    """No operand is PyTorch's, nor is the result."""
    call, shape, dtype = INTO[name]
    made, out = operands(torch), zeros(shape, dtype)
    call(made, out)  # what a first call loads
    expected = host_bytes(out)
    out = zeros(shape, dtype)
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        call(made, out)
    torch.cuda.synchronize()
    assert not any(host_bytes(out))
    graph.replay()
    torch.cuda.synchronize()
    assert host_bytes(out) == expected


RETURNING = {
    "quantize": lambda o: dlfp4.quantize(o["x"], "mxfp4").data,
    "quantize that finds its scale": lambda o: dlfp4.quantize(o["x"], "nvfp4").scales,
    "vecdot": lambda o: dlfp4.vecdot(o["x"], o["qx"]),
    "unpack": lambda o: dlfp4.unpack(o["qx"].data),
    "scale layout": lambda o: o["qx"].with_scale_layout("128x4").scales,
    "shuffle": lambda o: dlfp4.shuffle_weight(o["plain"].data),
    "copy": lambda o: o["x"][:, ::2].copy(),
    "matmul": lambda o: dlfp4.matmul(o["qx"], o["w"].mT),
}


def read_now(torch, tensor):
    """The bytes as they are, on a stream that waits for nobody."""
    octets = tensor.view("uint8")
    with torch.cuda.stream(torch.cuda.Stream()):
        capsule = octets.__dlpack__(stream=-1, max_version=(1, 0))
        return torch.utils.dlpack.from_dlpack(capsule).cpu().numpy().tobytes()


@pytest.mark.parametrize("name", INTO)
def test_side_streams_of_pytorch_have_the_work(torch, name):
    """It waits for what was put there before, though the default stream, which made the operands, has nothing to do."""
    call, shape, dtype = INTO[name]
    made, out = operands(torch), zeros(shape, dtype)
    stream = torch.cuda.Stream()
    call(made, out)
    expected = host_bytes(out)
    out = zeros(shape, dtype)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        call(made, out)
    assert not any(read_now(torch, out))
    assert not stream.query()
    stream.synchronize()
    assert read_now(torch, out) == expected


@pytest.mark.parametrize("name", RETURNING)
def test_results_of_a_capture_are_written_by_its_graph(torch, name):
    made, call = operands(torch), RETURNING[name]
    expected = host_bytes(call(made))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(made)
    clear(result)
    torch.cuda.synchronize()
    assert not any(read_now(torch, result))
    graph.replay()
    torch.cuda.synchronize()
    assert read_now(torch, result) == expected


def test_two_threads_on_two_streams(torch):
    """They share weights; each result is that of its thread's rows, time after time."""
    made, barrier = operands(torch), threading.Barrier(2)
    inputs = [torch.tensor(normal((16, 512), 10 + k), device="cuda", dtype=torch.bfloat16) for k in range(2)]
    coded = [dlfp4.quantize(x, "nvfp4") for x in inputs]
    expected = [host_bytes(dlfp4.matmul(q, made["w"].mT, out_dtype="bfloat16")) for q in coded]
    torch.cuda.synchronize()

    def work(number):
        stream, x = torch.cuda.Stream(), dlfp4.from_dlpack(inputs[number])
        out = zeros((16, 256), "bfloat16")
        results = []
        barrier.wait()
        with torch.cuda.stream(stream):
            for _ in range(50):
                dlfp4.matmul(dlfp4.quantize(x, "nvfp4"), made["w"].mT, out=out)
                stream.synchronize()
                results.append(host_bytes(out))
        return set(results)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [{each} for each in expected]


def test_work_of_nobody_does_not_miss_a_graph(torch):
    """Tensors that came from no framework run on the legacy stream, which a capture of another would pass by."""
    own = dlfp4.asarray(normal((16, 512), 0)).to_device(CUDA)
    out, of_torch = zeros((16, 512), "bfloat16"), torch.zeros(16, 512, device="cuda", dtype=torch.bfloat16)
    dlfp4.cast(own, "bfloat16", out=out)
    expected = host_bytes(out)
    out = zeros((16, 512), "bfloat16")
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        with pytest.raises(dlfp4.DriverError, match=r"captures stream \d+; give stream=.*CAPTURE_IMPLICIT \(906\)"):
            dlfp4.cast(own, "bfloat16", out=out)
        dlfp4.cast(own, "bfloat16", out=out, stream=stream)  # the remedies, into the same graph
        dlfp4.cast(own, "bfloat16", out=of_torch)
    graph.replay()
    torch.cuda.synchronize()
    assert host_bytes(out) == expected == of_torch.view(torch.uint8).cpu().numpy().tobytes()


def test_captures_and_side_streams_of_cupy(cupy):
    x = cupy.asarray(normal((64, 512), 0))
    own, out = dlfp4.from_dlpack(x), zeros((64, 512), "bfloat16")
    dlfp4.cast(own, "bfloat16", out=out)
    expected = host_bytes(out)
    quantized = host_bytes(dlfp4.quantize(x, "nvfp4").data)
    out = zeros((64, 512), "bfloat16")
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        dlfp4.cast(own, "bfloat16", out=out)
        captured = dlfp4.quantize(x, "nvfp4")  # an array of CuPy's, asked for on the stream that is captured
        graph = stream.end_capture()
        assert not any(host_bytes(out))
        graph.launch(stream)
        stream.synchronize()
        assert (host_bytes(out), host_bytes(captured.data)) == (expected, quantized)
        assert host_bytes(dlfp4.cast(own, "bfloat16")) == expected


def test_what_is_made_on_a_stream_of_cupy_outlives_it(cupy):
    """CuPy destroys its streams; memory that is made where it worked keeps the object."""
    own = dlfp4.from_dlpack(cupy.asarray(normal((64, 512), 0)))
    expected = host_bytes(dlfp4.cast(own, "bfloat16"))
    for _ in range(8):
        with cupy.cuda.Stream(non_blocking=True):
            result = dlfp4.cast(own, "bfloat16")
        assert host_bytes(result) == expected
        del result


def test_jax_works_on_the_legacy_stream(torch):
    """It has no current stream: its arrays are handed over in order there, and not into another framework's graph."""
    jax = framework("jax")
    array = jax.numpy.asarray(normal((16, 512), 0))
    expected = host_bytes(dlfp4.cast(normal((16, 512), 0), "bfloat16"))
    own = dlfp4.from_dlpack(array)
    stream = torch.cuda.Stream()
    assert host_bytes(dlfp4.cast(array, "bfloat16")) == expected
    with torch.cuda.stream(stream):
        out = torch.zeros(16, 512, device="cuda", dtype=torch.bfloat16)
        dlfp4.cast(own, "bfloat16", out=out)
        assert out.view(torch.uint8).cpu().numpy().tobytes() == expected
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        with pytest.raises(dlfp4.DriverError, match="CAPTURE_IMPLICIT"):
            dlfp4.cast(own, "bfloat16")
        out.zero_()
        dlfp4.cast(own, "bfloat16", out=out)
    graph.replay()
    torch.cuda.synchronize()
    assert out.view(torch.uint8).cpu().numpy().tobytes() == expected
