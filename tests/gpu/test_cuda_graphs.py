"""Memory that is allocated on a stream: how long the stream lives; what reads it on others; while it is captured, whose
memory it is, how long that lives, what serves again."""

import gc
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dlfp4

from ..support.reference import host_bytes, parts_of

pytestmark = pytest.mark.gpu

CUDA = "cuda:0"
MEGABYTE = 2**20
ROWS = dlfp4.Recipe(global_scale_per="row")


def all_bytes(result):
    parts = parts_of(result) if isinstance(result, dlfp4.ScaledTensor) else [result]
    return [host_bytes(part) for part in parts]


def capture(torch, work, stream=None):
    """A graph of the work, which gets the stream, and what it returned."""
    graph, stream = torch.cuda.CUDAGraph(), stream or torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        result = work(stream)
    return graph, result


def randn(torch, *shape, dtype="float32"):
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def multiply_coded(x, stream):
    """Rows enough that x is decoded into memory for a moment."""
    w = dlfp4.quantize(np.linspace(-3, 3, 256 * 512, dtype=np.float32).reshape(256, 512), "nvfp4")
    prepared = w.to_device(CUDA).prepare()
    return lambda: dlfp4.matmul(dlfp4.quantize(x, "nvfp4", stream=stream()), prepared.mT, stream=stream())


OPERATIONS = {
    "cast": lambda x, stream: lambda: dlfp4.cast(x, "float8_e4m3fn", stream=stream()),
    "copy": lambda x, stream: lambda: dlfp4.from_dlpack(x).copy(),
    "quantize": lambda x, stream: lambda: dlfp4.quantize(x, "nvfp4", stream=stream()),
    "quantize a copy": lambda x, stream: lambda: dlfp4.quantize(x[:, 1:481], "nvfp4", stream=stream()),
    "rows": lambda x, stream: lambda: dlfp4.quantize(x, "fp8_row", stream=stream()),
    "a scale a row": lambda x, stream: lambda: dlfp4.quantize(x, "nvfp4", recipe=ROWS, stream=stream()),
    "both": lambda x, stream: lambda: dlfp4.quantize(x, "mxfp8_e4m3", axis=(-1, -2), stream=stream())[1],
    "matmul": multiply_coded,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_of_a_capture(torch, name):
    """Replays write where they were captured, what the same call gives outside."""
    x = randn(torch, 96, 512, dtype="bfloat16")
    run = OPERATIONS[name](x, torch.cuda.current_stream)
    run()
    graph, result = capture(torch, lambda stream: run())
    for scale in (1, 3):
        x.copy_(randn(torch, 96, 512, dtype="bfloat16") * scale)
        graph.replay()
        torch.cuda.synchronize()
        assert all_bytes(result) == all_bytes(run())


def test_a_result_outlives_its_graph(torch):
    x = randn(torch, 1024, 1024)
    expected = host_bytes(dlfp4.cast(x, "bfloat16"))
    graph, y = capture(torch, lambda stream: dlfp4.cast(x, "bfloat16", stream=stream))
    graph.replay()
    torch.cuda.synchronize()
    del graph
    gc.collect()
    others = [dlfp4.cast(randn(torch, 1024, 1024), "bfloat16") for _ in range(20)]
    torch.cuda.synchronize()
    assert host_bytes(y) == expected
    assert y.data_ptr not in {other.data_ptr for other in others}


def test_a_graph_outlives_its_results(torch):
    """What it writes to is nobody else's, though no tensor has it."""
    x = randn(torch, 1024, 1024)
    graph, y = capture(torch, lambda stream: dlfp4.cast(x, "bfloat16", stream=stream))
    address = y.data_ptr
    del y
    zeros = torch.zeros(1024, 1024, device="cuda", dtype=torch.bfloat16)
    others = [dlfp4.cast(zeros, "float16") for _ in range(20)]
    assert address not in {other.data_ptr for other in others}
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert not any(any(host_bytes(other)) for other in others)


def test_what_is_freed_in_a_capture_serves_it_again(torch):
    x = randn(torch, 512, 512)

    def work(stream):
        addresses = []
        for target in ("bfloat16", "float16", "float8_e4m3fn"):
            y = dlfp4.cast(x, target, stream=stream)
            addresses.append(y.data_ptr)
            del y
        held = [dlfp4.cast(x, "bfloat16", stream=stream) for _ in range(2)]
        return addresses, held

    graph, (addresses, held) = capture(torch, work)
    assert len(set(addresses)) == 1
    assert held[0].data_ptr == addresses[0]
    assert held[1].data_ptr != addresses[0]
    graph.replay()
    torch.cuda.synchronize()
    expected = host_bytes(dlfp4.cast(x, "bfloat16"))
    assert [host_bytes(y) for y in held] == [expected, expected]


def test_branches_of_a_capture_share_nothing(torch):
    """Work on two streams of one capture may run at once."""
    x, other = randn(torch, 512, 512), torch.cuda.Stream()

    def work(stream):
        first = dlfp4.cast(x, "bfloat16", stream=stream)
        fork, join = torch.cuda.Event(), torch.cuda.Event()
        address = first.data_ptr
        del first
        fork.record(stream)
        other.wait_event(fork)
        second = dlfp4.cast(x, "bfloat16", stream=other)
        assert second.data_ptr != address
        join.record(other)
        stream.wait_event(join)
        return second

    graph, second = capture(torch, work)
    graph.replay()
    torch.cuda.synchronize()
    assert host_bytes(second) == host_bytes(dlfp4.cast(x, "bfloat16"))


def test_graphs_share_nothing(torch):
    """Two that were captured on one stream are replayed on others, at once."""
    x = [randn(torch, 2048, 2048) for _ in range(2)]
    graphs, stream = [torch.cuda.CUDAGraph() for _ in x], torch.cuda.Stream()
    results = [torch.empty_like(each) for each in x]
    torch.cuda.synchronize()
    for graph, each, result in zip(graphs, x, results, strict=True):
        with torch.cuda.graph(graph, stream=stream):
            dlfp4.dequantize(dlfp4.quantize(each, "nvfp4", stream=stream), out=result, stream=stream)
    replaying = [torch.cuda.Stream() for _ in x]
    for _ in range(10):
        for graph, on in zip(graphs, replaying, strict=True):
            with torch.cuda.stream(on):
                graph.replay()
    torch.cuda.synchronize()
    for each, result in zip(x, results, strict=True):
        assert host_bytes(result) == host_bytes(dlfp4.dequantize(dlfp4.quantize(each, "nvfp4")))


@pytest.mark.parametrize("keeps", ["nothing", "result", "from before"])
def test_memory_comes_back(torch, keeps):
    """Of graphs, of their results, whichever ends first, and of tensors that end in a capture: 32 MB each, 64 times.

    Others on the device take memory too, but not each of three times.
    """
    x = randn(torch, 4096, 4096)

    def free():
        torch.cuda.synchronize()
        dlfp4.cast(x[:1], "bfloat16")  # a call gives back what has ended
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    def work(stream, held):
        held.clear()
        return dlfp4.cast(x, "bfloat16", stream=stream)

    losses = []
    for _ in range(3):
        before = free()
        for _ in range(64):
            stream = torch.cuda.Stream()
            held = [dlfp4.cast(x, "bfloat16", stream=stream)] if keeps == "from before" else []
            graph, y = capture(torch, lambda stream, held=held: work(stream, held), stream)
            if keeps == "nothing":
                del y
            graph.replay()
            del graph
        y = None
        losses.append(before - free())
    assert min(losses) < 256 * MEGABYTE


def test_a_tensor_from_before_ends_within_a_capture(torch):
    """Its memory is no node of the graph, which is replayed more than once."""
    x, stream = randn(torch, 512, 512), torch.cuda.Stream()
    torch.cuda.synchronize()
    before = [dlfp4.cast(x, "bfloat16", stream=stream)]
    result, graph = torch.empty(512, 512, device="cuda", dtype=torch.bfloat16), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        dlfp4.cast(x, "bfloat16", out=result, stream=stream)
        before.clear()
        dlfp4.cast(x, "float16", stream=stream)
    for _ in range(3):
        result.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert host_bytes(result) == host_bytes(dlfp4.cast(x, "bfloat16"))


# What is made of a tensor on a stream.
MADE = {
    "cast": lambda x, stream: dlfp4.cast(x, "bfloat16", stream=stream),
    "quantized": lambda x, stream: dlfp4.quantize(x, "nvfp4", stream=stream),
    "prepared": lambda x, stream: dlfp4.quantize(x, "nvfp4", stream=stream).prepare(),
    "in PyTorch": lambda x, stream: dlfp4.cast(x, "bfloat16", stream=stream).to_torch(),
    "on the host": lambda x, stream: dlfp4.from_dlpack(x).to_device("cpu"),
    "from the host": lambda x, stream: dlfp4.asarray(np.ones((512, 512), np.float32)).to_device(CUDA),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("on", ["the current stream", "another stream"])
def test_a_capture_outlives_what_ends_within_it(torch, name, on):
    """As when Python collects garbage there, which was made on streams that are not captured."""
    x = randn(torch, 512, 512)
    held = [MADE[name](x, torch.cuda.Stream() if on == "another stream" else None) for _ in range(3)]

    def work(stream):
        first = dlfp4.cast(x, "bfloat16", stream=stream)
        held.clear()
        return first, dlfp4.cast(x, "float16", stream=stream)

    graph, results = capture(torch, work)
    graph.replay()
    torch.cuda.synchronize()
    assert [host_bytes(y) for y in results] == [host_bytes(dlfp4.cast(x, target)) for target in ("bfloat16", "float16")]


@pytest.mark.parametrize("name", MADE)
def test_other_threads_go_on_beside_a_capture(torch, name):
    """What they allocate, copy and wait for on streams of their own neither fails nor ends the capture."""
    x, own = randn(torch, 512, 512), torch.cuda.Stream()

    def go_on():
        for _ in range(20):
            MADE[name](x, own)

    def work(stream):
        with ThreadPoolExecutor(1) as threads:
            beside = threads.submit(go_on)
            while not beside.done():
                dlfp4.cast(x, "bfloat16", stream=stream)
                time.sleep(0.001)
        beside.result()
        return dlfp4.cast(x, "bfloat16", stream=stream)

    graph, result = capture(torch, work)
    graph.replay()
    torch.cuda.synchronize()
    assert host_bytes(result) == host_bytes(dlfp4.cast(x, "bfloat16"))


def test_a_capture_that_fails_leaves_nothing_behind():
    """In a process of its own: PyTorch goes on with the stream of a capture that failed as the current one."""
    code = """
import torch, dlfp4

def fail(stream):
    held.clear()
    y = dlfp4.cast(x, "bfloat16", stream=stream)
    stream.synchronize()  # which ends the capture
    return y

x, stream, graph = torch.randn(512, 512, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
expected = dlfp4.cast(x, "bfloat16").to_device("cpu").view("uint16").to_numpy()
held = [dlfp4.cast(x, "float16", stream=stream)]
torch.cuda.synchronize()
try:
    with torch.cuda.graph(graph, stream=stream):
        fail(stream)
except RuntimeError as error:
    assert "captur" in str(error), error
else:
    raise AssertionError("the capture did not fail")
torch.cuda.synchronize()
for _ in range(3):
    y = dlfp4.cast(x, "bfloat16", stream=stream)
    assert (y.to_device("cpu").view("uint16").to_numpy() == expected).all()
"""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


# ---- Streams that end


def test_what_is_made_on_a_stream_keeps_it(cupy):
    """CuPy destroys a stream with its object: the driver would read freed memory when the result is freed."""
    x = dlfp4.from_dlpack(cupy.linspace(-6, 6, 4096, dtype="float32"))
    stream = cupy.cuda.Stream(non_blocking=True)
    y = dlfp4.quantize(x, "mxfp4", stream=stream)
    view, other = y.data[:2048], dlfp4.cast(x, "bfloat16")
    z = dlfp4.dequantize(y, stream=stream)
    alive = weakref.ref(stream)
    del stream, y
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is not None  # of z, which was made where y was
    expected = host_bytes(dlfp4.dequantize(dlfp4.quantize(x, "mxfp4")))
    assert host_bytes(z) == expected
    del z
    gc.collect()
    assert alive() is None
    assert host_bytes(other) == host_bytes(dlfp4.cast(x, "bfloat16"))


def test_a_graph_outlives_its_stream(cupy):
    x = dlfp4.from_dlpack(cupy.linspace(-6, 6, 4096, dtype="float32"))
    expected = host_bytes(dlfp4.cast(x, "bfloat16"))
    cupy.cuda.Device().synchronize()
    for first in ("graph", "result"):
        held = {}
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            held["result"] = dlfp4.cast(x, "bfloat16", stream=stream)
            held["graph"] = stream.end_capture()
        del stream
        held["graph"].launch()
        cupy.cuda.Device().synchronize()
        assert host_bytes(held["result"]) == expected
        del held[first]
        gc.collect()
        if "graph" in held:
            held["graph"].launch()
        cupy.cuda.Device().synchronize()
        assert "result" not in held or host_bytes(held["result"]) == expected


# ---- Readers on other streams


def in_bfloat16(values):
    return dlfp4.cast(values, "bfloat16")


def in_blocks(values):
    return dlfp4.quantize(values, "nvfp4")


def as_weights(values):
    return dlfp4.quantize(values, "nvfp4").prepare()


class Named:
    """A stream by its handle, as CuPy takes one."""

    def __init__(self, stream):
        self.handle = stream.cuda_stream

    def __cuda_stream__(self):
        return 0, self.handle


def copy_by_cupy(t, stream):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    with cupy.cuda.Stream.from_external(Named(stream)):
        return cupy.from_dlpack(t.view("uint16")).copy()


# What is made of values, and who reads it on a stream, beside other values or weights.
READERS = {
    "cast": (in_bfloat16, lambda t, stream, x, w: dlfp4.cast(t, "float8_e4m3fn", stream=stream)),
    "quantize": (in_bfloat16, lambda t, stream, x, w: dlfp4.quantize(t[8:], "mxfp4", stream=stream)),
    "given scale": (
        lambda values: dlfp4.cast(values[:1, :1].abs(), "float32")[0, 0],
        lambda t, stream, x, w: dlfp4.quantize(x, "nvfp4", global_scale=t, stream=stream),
    ),
    "dequantize": (in_blocks, lambda t, stream, x, w: dlfp4.dequantize(t, stream=stream)),
    "rows": (in_bfloat16, lambda t, stream, x, w: dlfp4.matmul(t[:16], w.mT, stream=stream)),
    "coded rows": (in_blocks, lambda t, stream, x, w: dlfp4.matmul(t, w.mT, stream=stream)),
    "weights": (as_weights, lambda t, stream, x, w: dlfp4.matmul(x, t.mT, stream=stream)),
    "restored weights": (as_weights, lambda t, stream, x, w: dlfp4.dequantize(t, stream=stream)),
    "by PyTorch": (in_bfloat16, lambda t, stream, x, w: dlfp4.matmul(t, x, stream=stream, backend="torch")),
    "by scaled_mm": (
        lambda values: dlfp4.quantize(values, "fp8_e4m3", global_scale=0.01),
        lambda t, stream, x, w: dlfp4.matmul(t, t.mT, stream=stream, backend="scaled_mm"),
    ),
}
# The same where that stream is PyTorch's current one.
CONSUMERS = {
    "dot": (in_bfloat16, lambda t, stream, x, w: dlfp4.vecdot(x[0], t)),
    "to_torch": (in_bfloat16, lambda t, stream, x, w: t.to_torch().clone()),
    "a view": (in_bfloat16, lambda t, stream, x, w: dlfp4.from_dlpack(t)[8:].view("uint8").to_torch().clone()),
    "CuPy": (in_bfloat16, lambda t, stream, x, w: copy_by_cupy(t, stream)),
}


@pytest.mark.parametrize("name", [*READERS, *CONSUMERS])
def test_memory_outlasts_what_reads_it(torch, name):
    """It is dropped while the reader has yet to start, and what is made next would lie there."""
    make, read = READERS.get(name) or CONSUMERS[name]
    values, others = (randn(torch, 1024, 1024) for _ in range(2))
    beside = randn(torch, 1024, 1024, dtype="bfloat16"), as_weights(randn(torch, 1024, 1024))
    stream = torch.cuda.Stream()
    current = torch.cuda.stream(stream if name in CONSUMERS else torch.cuda.current_stream())
    torch.cuda.synchronize()
    with current:
        first = read(make(values), stream, *beside)
    torch.cuda.synchronize()
    expected, t = all_bytes(first), make(values)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
    with current:
        result = read(t, stream, *beside)
    del t
    made_next = make(others)
    torch.cuda.synchronize()
    assert all_bytes(result) == expected
    assert all_bytes(made_next) == all_bytes(make(others))


def test_copies_wait_for_the_memory_they_get(torch):
    """A copy of what was made on a stream is made on it, and so is its memory."""
    x, y = (randn(torch, 1024, 1024) for _ in range(2))
    reader, maker = torch.cuda.Stream(), torch.cuda.Stream()
    t, u = dlfp4.cast(x, "bfloat16"), dlfp4.cast(y, "bfloat16", stream=maker)
    expected = host_bytes(dlfp4.cast(t, "float8_e4m3fn")), host_bytes(u)
    with torch.cuda.stream(reader):
        torch.cuda._sleep(200_000_000)
    result = dlfp4.cast(t, "float8_e4m3fn", stream=reader)
    del t
    copy = u.copy()
    assert (host_bytes(result), host_bytes(copy)) == expected


def test_branches_of_a_capture_read_what_was_dropped(torch):
    """What a branch reads does not serve the stream again on which it was made, which does not wait for the branch."""
    x, other = randn(torch, 2048, 2048), torch.cuda.Stream()

    def work(stream):
        fork, join = torch.cuda.Event(), torch.cuda.Event()
        first = dlfp4.cast(x, "bfloat16", stream=stream)
        address = first.data_ptr
        fork.record(stream)
        other.wait_event(fork)
        with torch.cuda.stream(other):
            torch.cuda._sleep(20_000_000)
        read = dlfp4.cast(first, "float8_e4m3fn", stream=other)
        del first
        second = dlfp4.cast(x[:, :1024].contiguous(), "float16", stream=stream)
        assert second.data_ptr != address
        join.record(other)
        stream.wait_event(join)
        return read, second

    graph, (read, _) = capture(torch, work)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    assert host_bytes(read) == host_bytes(dlfp4.cast(dlfp4.cast(x, "bfloat16"), "float8_e4m3fn"))


def test_an_exception_survives_a_deleter(monkeypatch):
    """The capsule ends while the exception is on its way, and a framework cannot tell its stream."""

    def fail(index):
        raise RuntimeError(f"no stream on device {index}")

    told = []
    monkeypatch.setattr("dlfp4.frameworks.current_streams", fail)
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: told.append(str(failure.exc_value)))
    t = dlfp4.empty((4, 64), "float32", device=CUDA)
    with pytest.raises(TypeError, match="int"):
        int(t.__dlpack__(stream=1))
    assert told == ["no stream on device 0"]


def test_readers_streams_may_end_first(cupy):
    """CuPy destroys its streams: what they read is freed later, by no call that names them."""
    x = cupy.linspace(-6, 6, 2**20, dtype="float32")
    t = dlfp4.cast(x, "bfloat16")
    expected = host_bytes(dlfp4.cast(t, "float8_e4m3fn"))
    for _ in range(8):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            out = cupy.empty(x.shape, "uint8")
            dlfp4.cast(t, "float8_e4m3fn", out=dlfp4.from_dlpack(out).view("float8_e4m3fn"), stream=stream.ptr)
            copied = cupy.from_dlpack(t.view("uint16")).copy()
        stream.synchronize()
        assert out.get().tobytes() == expected
        assert copied.get().tobytes() == host_bytes(t)
        del stream
        gc.collect()
    del t
    gc.collect()
    assert host_bytes(dlfp4.cast(dlfp4.cast(x, "bfloat16"), "float8_e4m3fn")) == expected
