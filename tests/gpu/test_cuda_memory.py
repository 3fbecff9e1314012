"""CUDA memory as no library allocates it: off the borders of its elements, and of more dimensions than a kernel has."""

import numpy as np
import pytest

import dlfp4

from ..support.reference import host_bytes

pytestmark = pytest.mark.gpu


def moved(x, offset=1):
    """The same values on the device, `offset` bytes behind a border."""
    source = dlfp4.asarray(x).to_device("cuda:0")
    room = dlfp4.empty((source.nbytes + offset,), "uint8", device="cuda:0")[offset:]
    result = room.view(source.dtype).reshape(source.shape)
    return dlfp4.cast(source, source.dtype, out=result)


def floats(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64"])
def test_elements_off_their_borders(dtype):
    x = dlfp4.asarray(floats((33, 65)))
    x = dlfp4.cast(x, dtype) if "float" in dtype else x.reshape((-1,))[:-1].view(dtype)
    off = moved(x) if "float" in dtype else moved(x.view("uint8")).view(dtype)
    assert off.data_ptr % 2 == 1
    assert host_bytes(off.copy()) == host_bytes(x)
    assert host_bytes(off[::2].copy()) == host_bytes(x[::2].copy())
    if "float" in dtype:
        assert host_bytes(dlfp4.cast(off, "float8_e4m3fn")) == host_bytes(dlfp4.cast(x, "float8_e4m3fn"))
        assert host_bytes(dlfp4.cast(off.T, "float4_e2m1fn")) == host_bytes(dlfp4.cast(x.T, "float4_e2m1fn"))


@pytest.mark.parametrize("name", dlfp4.formats())
@pytest.mark.parametrize("axis", [-1, -2])
def test_quantize_and_back_off_borders(name, axis):
    x = floats((128, 256))
    q, host = dlfp4.quantize(moved(x), name, axis=axis), dlfp4.quantize(x, name, axis=axis)
    assert host_bytes(q.data) == host_bytes(host.data)
    assert host_bytes(q.scales) == host_bytes(host.scales)
    values = moved(np.zeros((128, 256), np.float32))
    dlfp4.dequantize(q, out=values)
    assert host_bytes(values) == host_bytes(host.dequantize())
    assert dlfp4.dot(moved(x[0]), moved(x[1])).item() == pytest.approx(float(x[0] @ x[1]), abs=1e-3)


def test_scales_off_their_borders_are_refused():
    host = dlfp4.quantize(floats((4, 256)), "fp8_1x128")
    data, scales = host.data.to_device("cuda:0"), moved(host.scales)
    with pytest.raises(BufferError, match=r"scales of float32 starts at address .* \.copy\(\)"):
        dlfp4.ScaledTensor.from_parts(data, scales, format="fp8_1x128")
    q = dlfp4.ScaledTensor.from_parts(data, scales.copy(), format="fp8_1x128")
    assert host_bytes(q.dequantize()) == host_bytes(host.dequantize())
    nvfp4, one = dlfp4.quantize(floats((4, 64)), "nvfp4").to_device("cuda:0"), moved(np.float32([0.5]))
    with pytest.raises(BufferError, match="global_scale of float32 starts"):
        dlfp4.ScaledTensor.from_parts(nvfp4.data, nvfp4.scales, one, format="nvfp4")
    with pytest.raises(BufferError, match="global_scale of float32 starts"):
        dlfp4.quantize(moved(floats((4, 64)), 0), "nvfp4", global_scale=one)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("m", [1, 24, 300])
def test_products_off_borders(m, dtype):
    x, w = dlfp4.cast(floats((m, 256)), "bfloat16"), dlfp4.quantize(floats((64, 256), 1), "nvfp4").to_device("cuda:0")
    w = w.prepare()
    expected = dlfp4.matmul(x.to_device("cuda:0"), w.mT, out_dtype=dtype, backend="cuda")
    out = moved(dlfp4.cast(np.full((m, 64), np.nan, np.float32), dtype))
    dlfp4.matmul(moved(x), w.mT, out=out, backend="cuda")
    assert host_bytes(out) == host_bytes(expected)


@pytest.mark.parametrize("m", [5, 300])
def test_pytorch_multiplies_what_it_cannot_have_as_it_lies(torch, m):
    x, w = dlfp4.cast(floats((m, 128)), "bfloat16"), dlfp4.quantize(floats((48, 128), 1), "nvfp4").to_device("cuda:0")
    expected = host_bytes(dlfp4.matmul(x.to_device("cuda:0"), w.mT, backend="torch"))
    for given in (moved(x), x.to_device("cuda:0")[::-1].copy()[::-1]):
        assert host_bytes(dlfp4.matmul(given, w.mT, backend="torch")) == expected
    room = dlfp4.empty((m, 48), "bfloat16", device="cuda:0")
    for out in (moved(room), room[::-1], room[:, ::-1]):
        dlfp4.matmul(x.to_device("cuda:0"), w.mT, out=out, backend="torch")
        assert host_bytes(out.copy()) == expected


def test_pytorch_gets_whole_elements_alone(torch):
    off = moved(floats((4, 4)))
    with pytest.raises(BufferError, match=r"multiples of their size; call .copy\(\)"):
        off.to_torch()
    with pytest.raises(BufferError, match=r"multiples of their size"):
        torch.from_dlpack(off)
    assert torch.equal(off.copy().to_torch().cpu(), torch.tensor(floats((4, 4))))
    assert moved(np.arange(4, dtype=np.uint8)).to_torch().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("ndim", [12, 13, 15])
def test_more_dimensions_than_a_kernel_has(ndim):
    host = dlfp4.asarray(floats((2,) * ndim))
    view, device = host.T, host.to_device("cuda:0").T
    assert host_bytes(device.copy()) == host_bytes(view.copy())
    for options in ({"packed": False}, {"rounding": "stochastic", "seed": 3, "packed": False}):
        found = dlfp4.cast(device, "float4_e2m1fn", **options)
        assert host_bytes(found) == host_bytes(dlfp4.cast(view, "float4_e2m1fn", **options))
    for target in ("float4_e2m1fn", "float6_e2m3fn"):
        assert host_bytes(dlfp4.cast(device, target)) == host_bytes(dlfp4.cast(view, target))
    wide = dlfp4.asarray((floats((2,) * ndim) * 1j).astype(np.complex128))
    assert host_bytes(wide.to_device("cuda:0").T.copy()) == host_bytes(wide.T.copy())


def test_streams_that_are_none():
    x = dlfp4.asarray(floats((4, 64))).to_device("cuda:0")
    for use in (lambda s: dlfp4.cast(x, "bfloat16", stream=s), lambda s: dlfp4.quantize(x, "nvfp4", stream=s).data):
        for handle in (-1, -7, 2**70):
            with pytest.raises(ValueError, match=f"stream={handle}"):
                use(handle)
        with pytest.raises(TypeError, match="stream='s' is of type str"):
            use("s")
        assert host_bytes(use(0)) == host_bytes(use(None))
