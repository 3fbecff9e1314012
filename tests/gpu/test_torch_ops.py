"""torch.ops.dlfp4 on a GPU: the host's bytes, prepared weights, CUDA graphs of compiled code."""

import pytest

import dlfp4
from dlfp4._core import _cuda_capability
from dlfp4.operations import Encoding

from . import test_cuda_experts as experts

pytestmark = [
    pytest.mark.gpu,
    # What PyTorch's own modules warn of when Inductor loads them.
    pytest.mark.filterwarnings("ignore:`torch.jit.(script|script_method|trace)` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores for float32 matrix multiplication"),
    # Inductor keeps memory for its graphs by an empty one.
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
]
FORMATS = [name for name, row in dlfp4.formats().items() if row.element.name != "uint4"]  # which has zero points


def randn(torch, *shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


def host_bytes(torch, x):
    codes = x if x.dtype == torch.float4_e2m1fn_x2 else x.reshape(-1).contiguous()
    return codes.view(torch.uint8).cpu().numpy().tobytes()


def prepared(dt, weight, name="nvfp4"):
    """The parts of a prepared weight's transpose, as an operand."""
    w = dlfp4.quantize(weight, name).prepare().mT
    unit = None if w.global_scale is None else w.global_scale.to_torch()
    return dt.Parts(w.data.to_torch(), w.scales.to_torch(), unit, str(Encoding.of(w)), w.shape)


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_of_the_host(torch, dt, name):
    x = randn(torch, 128, 256)
    for axis in (-1, -2):
        here, there = (dt.functions.quantize(t, name, axis=axis) for t in (x, x.cpu()))
        for a, b in zip(here[:3], there[:3], strict=True):
            assert (a is None) == (b is None)
            assert a is None or (a.device.type == "cuda" and host_bytes(torch, a) == host_bytes(torch, b))
        assert host_bytes(torch, dt.dequantize(here)) == host_bytes(torch, dt.dequantize(there))


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_e4m3"])
def test_prepared_weights(torch, dt, name):
    weight, x = randn(torch, 256, 512), randn(torch, 8, 512, seed=1).bfloat16()
    w = dlfp4.quantize(weight, name).prepare().mT
    y = dt.matmul(x, prepared(dt, weight, name))
    assert host_bytes(torch, y) == host_bytes(torch, dlfp4.matmul(x, w).to_torch())
    assert torch.equal(dt.dequantize(prepared(dt, weight, name)), dlfp4.dequantize(w).to_torch())


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_e4m3"])
def test_prepared_weights_whose_parts_were_copied(torch, dt, name):
    weight, x = randn(torch, 256, 512), randn(torch, 8, 512, seed=1).bfloat16()
    whole = prepared(dt, weight, name)
    apart = whole._replace(data=whole.data.clone(), scales=whole.scales.clone())
    for _ in range(3):
        assert torch.equal(dt.dequantize(apart), dt.dequantize(whole))
        made, expected = dt.matmul(x, apart), dt.matmul(x, whole)
        assert torch.allclose(made.float(), expected.float(), rtol=2e-2, atol=2e-2)
        assert torch.equal(made, expected) or name == "fp8_e4m3"  # which multiplies in linear order then


def test_operations_run_on_the_current_stream(torch, dt):
    weight, x = prepared(dt, randn(torch, 256, 512)), randn(torch, 8, 512, seed=1).bfloat16()
    expected = dt.matmul(x, weight)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        y = dt.matmul(x * 2, weight)
        z = y + 1
    stream.synchronize()
    assert torch.equal(z, expected * 2 + 1)


def test_opcheck(torch, dt):
    x = randn(torch, 32, 128)
    codes, scales, unit, *_ = dt.functions.quantize(x, "nvfp4")
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    parts = (codes.view(torch.uint8), scales.view(torch.uint8), unit)
    for op, args in (
        (torch.ops.dlfp4.quantize.default, (x, "nvfp4")),
        (torch.ops.dlfp4.dequantize.default, (*parts, "nvfp4")),
        (torch.ops.dlfp4.matmul.default, (randn(torch, 2, 128), *parts, "nvfp4/columns")),
    ):
        found = torch.library.opcheck(op, args, test_utils=tests)
        assert set(found.values()) == {"SUCCESS"}


def test_autocast(torch, dt):
    weight, x = prepared(dt, randn(torch, 256, 512)), randn(torch, 8, 512, seed=1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(dt.matmul(x, weight), dt.matmul(x.bfloat16(), weight))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(torch, dt, mode):
    """With CUDA graphs the later calls replay: other values give other results."""
    weight = prepared(dt, randn(torch, 256, 512))
    for part in weight[:3]:
        torch._dynamo.mark_static_address(part)  # else a graph would copy the parts one by one

    def function(x):
        y = dt.matmul(torch.relu(x), weight)
        q = dt.quantize(y.float(), "mxfp8_e4m3")
        return y + 1, dt.dequantize(q, "bfloat16"), dt.cast(x, "float8_e4m3fn")

    compiled = torch.compile(function, fullgraph=True, mode=mode)
    for seed in range(5):
        x = randn(torch, 8, 512, seed=seed).bfloat16()
        for a, b in zip(compiled(x), function(x), strict=True):
            assert host_bytes(torch, a.clone()) == host_bytes(torch, b)


def test_gradient(torch, dt):
    weight, x = randn(torch, 256, 512), randn(torch, 8, 512, seed=1).bfloat16().requires_grad_()
    parts = prepared(dt, weight)
    dt.matmul(x, parts).sum().backward()
    expected = dt.dequantize(parts, "bfloat16").sum(1)
    assert torch.allclose(x.grad, expected.expand(8, -1), rtol=2e-2, atol=0.5)


def test_products_by_experts(torch, dt):
    """Eager, by PyTorch's own function and compiled: the same bits."""
    if _cuda_capability(0) != (9, 0):
        pytest.skip(f"kernels for compute capability 9.0; this device has {_cuda_capability(0)}")
    stack, x = experts.prepared("mxfp4", 4, 256, 128), experts.rows_on_cuda(torch, (64, 128))
    ends = experts.numbers(torch, [10, 20, 20, 64])
    w = dt.ScaledTensor.from_dlfp4(stack)
    expected = experts.by_expert(torch, x, stack, ends.tolist(), "bfloat16")
    experts.same(torch, dt.grouped_matmul(x, w.mT, ends), expected)
    experts.same(torch, torch.nn.functional.grouped_mm(x, w.mT, offs=ends), expected)

    def step(x, w, ends):
        return torch.relu(dt.grouped_matmul(x, w.mT, ends))

    experts.same(torch, torch.compile(step, fullgraph=True)(x, w, ends), torch.relu(expected))


def test_gradients_of_products_by_experts(torch, dt):
    """By the decoded weights, with PyTorch's product; rows of no expert have none."""
    if _cuda_capability(0) != (9, 0):
        pytest.skip(f"kernels for compute capability 9.0; this device has {_cuda_capability(0)}")
    stack, rows = experts.prepared("nvfp4", 4, 256, 128), experts.rows_on_cuda(torch, (40, 128))
    ends, w = [10, 20, 20, 33], dt.ScaledTensor.from_dlfp4(stack)
    values = w.dequantize().double()
    for indices in (None, experts.numbers(torch, list(range(40))[::-1])):
        x = rows.clone().requires_grad_()
        y = dt.grouped_matmul(x, w.mT, experts.numbers(torch, ends), indices=indices)
        grad = experts.rows_on_cuda(torch, (40, 256), seed=7)
        y.backward(grad)
        expected = torch.zeros(40, 128, device="cuda", dtype=torch.float64)
        for expert, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            expected[first:end] = grad[first:end].double() @ values[expert]
        if indices is not None:
            expected = expected.flip(0)
        assert torch.allclose(x.grad.double(), expected, rtol=2**-6, atol=2**-4)
        assert (x.grad[expected.eq(0).all(1)] == 0).all()
