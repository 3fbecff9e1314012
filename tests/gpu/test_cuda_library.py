"""The C API on a CUDA device: the bytes of the package's functions, in the order of a stream."""

import ctypes
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


def equal(out, expected):
    return out.view(torch.uint8).equal(expected.to_torch().view(torch.uint8))


def poisoned(*shape, dtype=None):
    return torch.full(shape, float("nan"), device="cuda", dtype=dtype or torch.float32)


def memory_of(bytes):
    """A workspace."""
    assert bytes >= 0
    return torch.empty(max(1, bytes), dtype=torch.uint8, device="cuda")


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
    assert equal(out, dlfp4.matmul(x, w.prepare().mT, alpha=0.5, out_dtype="float32", backend="cuda"))
    assert C.matmul_prepared(c_api.describe(x[:, ::2]), *call[1:], 1, stream()) == c_api.E_SHAPE
    assert C.matmul_prepared(c_api.describe(x.float()), *call[1:], 1, stream()) == c_api.E_DTYPE


# ---- FP8 by FP8

PAIRS = [
    ("fp8_e4m3", "fp8_e4m3"), ("fp8_e5m2", "fp8_e4m3"), ("fp8_row", "fp8_row"), ("fp8_1x128", "fp8_128x128"),
    ("fp8_1x128", "fp8_1x128_e5m2"), ("fp8_row", "fp8_128x128"),
]  # fmt: skip


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("names", PAIRS, ids="-".join)
@pytest.mark.parametrize("case", [(1, 264, 640), (16, 256, 1024), (48, 384, 4096), (300, 520, 256), (2100, 4096, 400)])
def test_products_of_fp8(case, names, dtype):
    """By the kernel that the package takes, which needs no workspace."""
    m, n, k = case
    a, w = dlfp4.quantize(floats(m, k), names[0]), dlfp4.quantize(floats(n, k), names[1])
    expected = dlfp4.matmul(a, w.mT, alpha=0.75, out_dtype=dtype, backend="cuda_fp8")
    options = byref(c_api.MatmulOptions(alpha=0.75))
    for given in (a, a.with_scale_layout("cublas_1x128")) if names[0] == "fp8_1x128" else (a,):
        out = poisoned(m, n, dtype=getattr(torch, dtype))
        call = c_api.describe_scaled(given), c_api.describe_scaled(w), c_api.describe(out), options
        assert C.matmul_workspace(*call) == 0
        assert C.matmul(*call, None, stream()) == c_api.OK
        assert equal(out, expected)


@pytest.mark.usefixtures("hopper")
def test_plain_fp8_in_rows_apart():
    x, w = floats(40, 320).to(torch.float8_e4m3fn)[:, :256], floats(72, 256).to(torch.float8_e5m2)
    expected = dlfp4.matmul(x, dlfp4.asarray(w).mT, out_dtype="float32", backend="cuda_fp8")
    wide = poisoned(40, 100)
    call = c_api.plain(x), c_api.plain(w), c_api.describe(wide[:, :72]), None
    assert C.matmul(*call, None, stream()) == c_api.OK
    assert equal(wide[:, :72].contiguous(), expected)
    assert wide[:, 72:].isnan().all()
    assert C.matmul(c_api.plain(x[:, 8:248]), c_api.plain(w[:, :240]), *call[2:], None, stream()) == c_api.E_SHAPE
    blocks = c_api.describe_scaled(dlfp4.quantize(floats(72, 256), "fp8_1x128"))
    assert C.matmul(call[0], blocks, *call[2:], None, stream()) == c_api.E_OPTION


@pytest.mark.usefixtures("hopper")
def test_fp8_by_its_name_in_tvm_ffi():
    tvm_ffi = framework("tvm_ffi")
    assert C.register_tvm_ffi() == c_api.OK
    x, w = floats(48, 256).to(torch.float8_e4m3fn), dlfp4.quantize(floats(72, 256), "fp8_e4m3")
    out = poisoned(48, 72)
    given = [tvm_ffi.from_dlpack(dlfp4.asarray(part)) for part in (x, w.data, w.scales, out)]
    multiply = tvm_ffi.get_global_func("dlfp4.matmul")
    multiply(given[0], "fp8_e4m3", -1, "linear", given[1], given[2], None, None, given[3], 0.5)
    torch.cuda.synchronize()
    assert equal(out, dlfp4.matmul(x, w.mT, alpha=0.5, out_dtype="float32", backend="cuda_fp8"))


# ---- Experts


def routing(ends, indices=None, weights=None, gathers=False):
    parts = {"ends": ends, "indices": indices, "weights": weights}
    described = {name: ctypes.pointer(c_api.describe(part)) for name, part in parts.items() if part is not None}
    result = c_api.Routing(gathers=gathers, **described)
    result.kept = described
    return result


WAYS = ["in order", "gathered", "added", "both"]
EXPERTS, TOKENS = 4, 70


def route(way, rows, integer=torch.int32):
    """What the package and the C API are told, and the shapes of x and of the result; expert 1 has no rows."""
    gathers, adds = way in ("gathered", "both"), way in ("added", "both")
    ends = torch.tensor([rows // 3, rows // 3, rows - 10, rows - 5], device="cuda").to(integer)
    named = {}
    if gathers or adds:
        named["indices"] = torch.randint(0, TOKENS, (rows,), device="cuda").to(integer)
    if adds:
        named["weights"] = floats(rows)
    options = {"tokens": TOKENS} if adds and not gathers else {}
    return ends, named, options, TOKENS if gathers else rows, TOKENS if adds else rows, gathers


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [37, 600])
@pytest.mark.parametrize("names", [("fp8_1x128", "fp8_128x128"), ("fp8_row", "fp8_row"), ("fp8_e4m3", "fp8_e4m3")])
def test_experts_of_fp8(names, rows, way):
    ends, named, options, lines, results, gathers = route(way, rows, torch.int64)
    x, w = dlfp4.quantize(floats(lines, 400), names[0]), dlfp4.quantize(floats(EXPERTS, 128, 400), names[1])
    expected = dlfp4.grouped_matmul(x, w.mT, ends, out_dtype="bfloat16", **named, **options)
    out = poisoned(results, 128, dtype=torch.bfloat16)
    rows_of_experts = routing(ends, **named, gathers=gathers)
    call = c_api.describe_scaled(x), c_api.describe_scaled(w), rows_of_experts, c_api.describe(out), None
    workspace = memory_of(C.grouped_matmul_workspace(*call))
    assert C.grouped_matmul(*call, workspace.data_ptr(), stream()) == c_api.OK
    assert equal(out, expected)


def prepare(w):
    """A stack, prepared as one matrix by the C API, and the memory that it reads."""
    experts, n, k = w.shape
    memory = memory_of(C.prepared_bytes(C.find_format(w.format.name.encode()), experts * n, k))
    result = c_api.Prepared()
    torch.cuda.synchronize()
    assert C.prepare(c_api.describe_scaled(w), memory.data_ptr(), byref(result), stream()) == c_api.OK
    result.kept = memory, w
    return result


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [37, 600])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_e4m3", "nvfp4 of matrices"])
def test_experts_of_prepared_weights(name, rows, way):
    """Expert by expert the package's bytes, where one global scale serves all and where each expert has its own."""
    per = "matrix" if name.endswith("matrices") else "tensor"
    recipe = dlfp4.Recipe(global_scale_per=per) if name.startswith("nvfp4") else None
    scale = torch.tensor([1.0, 8.0, 0.25, 3.0], device="cuda").reshape(EXPERTS, 1, 1)
    w = dlfp4.quantize(floats(EXPERTS, 72, 320) * scale, name.split()[0], recipe=recipe)
    ends, named, options, lines, results, gathers = route(way, rows)
    x = floats(lines, 320, dtype=torch.bfloat16)
    expected = dlfp4.grouped_matmul(x, w.prepare().mT, ends, alpha=0.5, out_dtype="float32", **named, **options)
    prepared, out = prepare(w), poisoned(results, 72)
    assert prepared.matrices == (EXPERTS if per == "matrix" else 1)
    call = c_api.describe(x), byref(prepared), routing(ends, **named, gathers=gathers), c_api.describe(out)
    workspace = memory_of(C.grouped_matmul_prepared_workspace(*call))
    assert C.grouped_matmul_prepared(*call, 0.5, workspace.data_ptr(), stream()) == c_api.OK
    assert equal(out, expected)


@pytest.mark.usefixtures("hopper")
def test_experts_in_a_graph_that_is_replayed_with_other_rows():
    """No host looks at where rows go: in order and out of it, beyond the last row, of tokens that are not there."""
    x, w = floats(TOKENS, 320, dtype=torch.bfloat16), dlfp4.quantize(floats(EXPERTS, 128, 320), "mxfp4")
    prepared, stack, out = prepare(w), w.prepare(), poisoned(50, 128, dtype=torch.bfloat16)
    ends, tokens = torch.zeros(EXPERTS, dtype=torch.int32, device="cuda"), torch.zeros(50, dtype=torch.int64).cuda()
    call = c_api.describe(x), byref(prepared), routing(ends, tokens, gathers=True), c_api.describe(out)
    workspace = memory_of(C.grouped_matmul_prepared_workspace(*call))
    assert C.load_cuda(0) == c_api.OK
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert C.grouped_matmul_prepared(*call, 1, workspace.data_ptr(), stream()) == c_api.OK
    for given in ([10, 20, 30, 50], [0, 0, 45, 45], [30, 20, 40, 90]):
        ends.copy_(torch.tensor(given))
        tokens.copy_(torch.randint(-2, TOKENS + 2, (50,)))
        graph.replay()
        assert equal(out, dlfp4.grouped_matmul(x, stack.mT, ends, indices=tokens, out_dtype="bfloat16"))


def test_a_failing_driver_is_named():
    bad = c_api.describe(floats(4), device=c_api.DLDevice(2, 63))
    status = C.cast(bad, bad, None, 0, None)
    assert status > c_api.E_CUDA
    assert C.status_string(status).decode().startswith("CUDA_ERROR_")
