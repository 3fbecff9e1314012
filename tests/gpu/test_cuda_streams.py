"""Order between streams: what waits for what, and what need not; memory that must be there, and written, in time."""

import gc
import time

import numpy as np
import pytest

import dlfp4

from ..support.reference import host_bytes

pytestmark = pytest.mark.gpu

LONG = 2 * 10**9  # cycles: about a second


def weights(torch, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(256, 512, device="cuda", generator=generator)


def test_preparing_waits_for_the_scale_of_the_tensor(torch):
    stream = torch.cuda.Stream()
    unit = torch.ones((), device="cuda")
    q = dlfp4.quantize(weights(torch), "nvfp4")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        unit.fill_(2)
        late = dlfp4.asarray(unit)
    prepared = dlfp4.ScaledTensor.from_parts(q.data, q.scales, late, format="nvfp4").prepare()
    assert prepared.scale_layout == "prepared"
    assert prepared.global_scale.item() == 2


def test_products_do_not_wait_for_the_stream_of_prepared_weights(torch):
    w = dlfp4.quantize(weights(torch), "nvfp4").prepare()
    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        x = torch.randn(8, 512, device="cuda", dtype=torch.bfloat16)
        expected = host_bytes(dlfp4.matmul(x, w.mT))
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)  # on the default stream, where the weights were made
    with torch.cuda.stream(stream):
        y = dlfp4.matmul(x, w.mT)
        done.record(stream)
    waited = time.monotonic() + 0.3
    while not done.query() and time.monotonic() < waited:
        time.sleep(0.01)
    assert done.query()
    assert not torch.cuda.default_stream().query()
    assert host_bytes(y) == expected


def test_operands_that_are_gone_are_not_copied(torch):
    w = dlfp4.quantize(weights(torch), "nvfp4").prepare()
    x = torch.randn(2, 3, 520, device="cuda", dtype=torch.bfloat16)
    part = dlfp4.asarray(x[:, 1:, :512])
    x.untyped_storage().resize_(0)
    with pytest.raises(BufferError, match="is gone; import it again"):
        dlfp4.matmul(part, w.mT)


def test_capture_of_a_stream_that_the_default_stream_waits_for(cupy):
    """A tensor of the default stream, from before the capture, is an operand of what is captured."""
    x = dlfp4.from_dlpack(cupy.arange(4096, dtype="float32"))
    out = dlfp4.empty(4096, "bfloat16", device="cuda:0")
    dlfp4.cast(x, "bfloat16", out=out)  # what a first call loads
    expected = host_bytes(out)
    dlfp4.cast(dlfp4.from_dlpack(cupy.zeros(4096, dtype="float32")), "bfloat16", out=out)
    dropped = dlfp4.cast(x, "float16")
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream()
    stream.begin_capture()
    dlfp4.cast(x, "bfloat16", out=out, stream=stream)
    del dropped  # of the default stream, where the driver frees nothing now
    graph = stream.end_capture()
    assert host_bytes(out) != expected
    graph.launch()
    stream.synchronize()
    assert host_bytes(out) == expected


def test_what_ends_within_a_capture_is_kept_for_its_readers(torch, cupy):
    """Memory from before a capture that another stream still reads serves nobody else, though the graph has ended."""
    count = 1 << 24
    of_capture, reader = cupy.cuda.Stream(non_blocking=True), torch.cuda.Stream()
    ones, zeros = (dlfp4.asarray(torch.full((count,), value, device="cuda")) for value in (1.0, 0.0))
    read = dlfp4.cast(ones, "bfloat16", stream=of_capture)
    result = dlfp4.empty(count, "float32", device="cuda:0")
    dlfp4.cast(read, "float32", out=result)
    torch.cuda.synchronize()
    with torch.cuda.stream(reader):
        torch.cuda._sleep(LONG)
    dlfp4.cast(read, "float32", out=result, stream=reader)
    of_capture.begin_capture()
    del read
    graph = of_capture.end_capture()
    del graph
    gc.collect()
    written = [dlfp4.cast(zeros, "bfloat16", stream=of_capture) for _ in range(4)]
    torch.cuda.synchronize()
    assert len(written) == 4
    assert (result.to_torch() == 1).all()


@pytest.mark.parametrize("name", ["nvfp4", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "part",
    [
        lambda x: x[:, :512],
        lambda x: x.T,
        lambda x: x[:512, :].T[:, 32:],
        lambda x: x[:1, :1000],
        lambda x: x[1:400:3],
        lambda x: x[:, ::2],
        lambda x: x.reshape((-1,))[: 64 * 1021].reshape((64, 1021)),
    ],
    ids=["left part", "transposed", "part of transposed", "one row", "every third row", "every second column", "odd"],
)
def test_the_scale_of_a_tensor_of_any_lines(name, dtype, part):
    """Its largest magnitude lies where kernels of whole steps might not look."""
    for seed in range(4):
        x = np.random.default_rng(seed).normal(size=(640, 1024)).astype(np.float32)
        host = part(dlfp4.cast(x, dtype))
        rows, columns = host.shape
        place = (rows - 1 - seed * 5 % rows, columns - 1 - seed * 7)
        x[...] = np.clip(x, -3, 3)
        host = part(dlfp4.cast(x, dtype))
        dlfp4.cast(np.full((), -77, np.float32), dtype, out=host[place])
        device = part(dlfp4.cast(x, dtype).to_device("cuda:0"))
        dlfp4.cast(dlfp4.asarray(np.full((), -77, np.float32)).to_device("cuda:0"), dtype, out=device[place])
        expected, got = (dlfp4.quantize(each, name, pad=True) for each in (host, device))
        for field in ("data", "scales", "global_scale"):
            if getattr(expected, field) is not None:
                assert host_bytes(getattr(got, field)) == host_bytes(getattr(expected, field)), (seed, field)


@pytest.mark.parametrize("layout", ["128x4", "8x4", "aiter"])
def test_scales_without_padding(layout):
    """Every byte of the tiles is a scale, and is written."""
    x = np.random.default_rng(0).normal(size=(256, 512)).astype(np.float32)
    name = "mxfp4" if layout == "aiter" else "nvfp4"
    expected = dlfp4.quantize(x, name, scale_layout=layout)
    device = dlfp4.asarray(x).to_device("cuda:0")
    out = dlfp4.quantize(device, name, scale_layout=layout)
    dlfp4.cast(
        dlfp4.asarray(np.full(out.scales.shape, 0x7F, np.uint8)).to_device("cuda:0"),
        "uint8",
        out=out.scales.view("uint8"),
    )
    dlfp4.quantize(device, name, scale_layout=layout, out=out)
    assert host_bytes(out.scales) == host_bytes(expected.scales)
