"""The C API on a CUDA device: the bytes of the package's functions, in the order of a stream."""

from ctypes import byref

import pytest

import dlfp4

from ..support import c_api
from ..support.capsules import framework

pytestmark = pytest.mark.gpu
torch = framework("torch")
C = c_api.load()


def floats(*shape, dtype=None):
    return torch.randn(*shape, device="cuda", dtype=dtype or torch.float32)


def stream():
    return torch.cuda.current_stream().cuda_stream


def same(a, b):
    return a.view("uint8").to_torch().cpu().equal(b.view("uint8").to_torch().cpu())


@pytest.mark.parametrize("dtype", ["float4_e2m1fn", "float6_e2m3fn", "float8_e4m3fn"])
def test_cast(dtype):
    x = floats(32, 64)
    expected = dlfp4.cast(x, dtype)
    out = dlfp4.empty((32, 64), dtype, device="cuda")
    assert C.cast(c_api.describe(x), c_api.describe(out), None, 0, stream()) == c_api.OK
    assert same(out, expected)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_e4m3", "fp8_1x128", "int4_g32", "uint4_g32"])
def test_quantize_and_dequantize(name, axis):
    x = floats(128, 256)
    expected, result = dlfp4.quantize(x, name, axis=axis), dlfp4.quantize(torch.ones_like(x), name, axis=axis)
    assert C.quantize(c_api.describe(x), None, 0, c_api.describe_scaled(result), None, stream()) == c_api.OK
    for part in ("data", "scales"):
        ours, theirs = getattr(result, part), getattr(expected, part)
        assert same(ours, theirs) if ours.ndim else ours.item() == theirs.item()
    out = torch.empty_like(x)
    assert C.dequantize(c_api.describe_scaled(result), c_api.describe(out), stream()) == c_api.OK
    assert out.equal(expected.dequantize().to_torch())


def test_calls_are_captured_in_a_graph():
    x, out = floats(64, 64), torch.zeros(64, 64, device="cuda")
    q = dlfp4.quantize(x, "nvfp4")
    assert C.load_cuda(0) == c_api.OK
    graph = torch.cuda.CUDAGraph()
    described = c_api.describe(x), c_api.describe_scaled(q), c_api.describe(out)
    with torch.cuda.graph(graph):
        assert C.quantize(described[0], None, 0, described[1], None, stream()) == c_api.OK
        assert C.dequantize(described[1], described[2], stream()) == c_api.OK
    x.mul_(-3)
    graph.replay()
    torch.cuda.synchronize()
    assert out.equal(dlfp4.quantize(x, "nvfp4").dequantize().to_torch())


def test_vecdot():
    x, w = floats(512, 256), dlfp4.quantize(floats(512, 256), "nvfp4")
    out = torch.zeros(512, device="cuda")
    workspace = torch.empty(max(1, C.vecdot_workspace(512, 256)), dtype=torch.uint8, device="cuda")
    operands = c_api.plain(x), c_api.describe_scaled(w)
    assert C.vecdot(*operands, c_api.describe(out), workspace.data_ptr(), stream()) == c_api.OK
    assert out.equal(dlfp4.vecdot(x, w).to_torch())


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_e4m3"])
@pytest.mark.parametrize("rows", [1, 16, 200])
def test_products_by_prepared_weights(name, rows):
    w, x = dlfp4.quantize(floats(384, 512), name), floats(rows, 512, dtype=torch.bfloat16)
    memory = torch.empty(C.prepared_bytes(C.find_format(name.encode()), 384, 512), dtype=torch.uint8, device="cuda")
    prepared = c_api.Prepared()
    torch.cuda.synchronize()
    assert C.prepare(c_api.describe_scaled(w), memory.data_ptr(), byref(prepared), stream()) == c_api.OK
    out = torch.zeros(rows, 384, device="cuda")
    call = c_api.describe(x), byref(prepared), c_api.describe(out)
    assert C.matmul_prepared(*call, 0.5, stream()) == c_api.OK
    exact = 0.5 * x.double() @ w.dequantize().to_torch().double().T
    bound = 0.5 * x.double().abs() @ w.dequantize().to_torch().double().abs().T * 512 * 2.0**-24
    assert (out.double() - exact).abs().le(bound).all()
    assert C.matmul_prepared(c_api.describe(x[:, ::2]), *call[1:], 1, stream()) == c_api.E_SHAPE
    assert C.matmul_prepared(c_api.describe(x.float()), *call[1:], 1, stream()) == c_api.E_DTYPE


def test_a_failing_driver_is_named():
    bad = c_api.describe(floats(4), device=c_api.DLDevice(2, 63))
    status = C.cast(bad, bad, None, 0, None)
    assert status > c_api.E_CUDA
    assert C.status_string(status).decode().startswith("CUDA_ERROR_")
