"""Quantized layers on a GPU in PyTorch's compilers, exports, traces and transforms: the results of eager calls."""

import importlib
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

import dlfp4
from dlfp4 import TensorProto

from .test_torch_modules import case as case
from .test_torch_ops import FORMATS, host_bytes, randn
from .test_torch_ops import pytestmark as pytestmark


def check(torch, made, expected):
    """Equal but for the order of sums, which a copy of a prepared weight may change."""
    assert (made.shape, made.dtype, made.device) == (expected.shape, expected.dtype, expected.device)
    assert torch.allclose(made.float(), expected.float(), rtol=2e-2, atol=2e-2)


def exported(torch, layers, x):
    rows = torch.export.Dim("rows", min=2, max=64)
    return torch.export.export(layers, (x,), dynamic_shapes=({0: rows},))


def test_dynamic_shapes(torch, case):
    layers, x, _ = case
    compiled = torch.compile(layers, fullgraph=True, dynamic=True)
    with torch.inference_mode():
        for rows in (3, 5, 8):
            check(torch, compiled(x[:rows]), layers(x[:rows]))


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # of PyTorch's own archives
def test_export_saved_and_loaded(torch, case):
    layers, x, _ = case
    file = io.BytesIO()
    torch.export.save(exported(torch, layers, x), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for rows in (3, 8):
        check(torch, loaded(2 * x[:rows]), layers(2 * x[:rows]))


@pytest.mark.slow
@pytest.mark.xfail(run=False, reason="PyTorch 2.11's AOTIModelPackageLoader ends the process, for nn.Linear alone too")
def test_aot_inductor(torch, case, tmp_path):
    layers, x, _ = case
    with torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(
            exported(torch, layers, x), package_path=str(tmp_path / "layers.pt2")
        )
        check(torch, torch._inductor.aoti_load_package(package)(2 * x[:3]), layers(2 * x[:3]))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(torch, case, mode):
    layers, x, _ = case
    make_fx = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx
    graph = make_fx(layers, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    assert torch.ops.dlfp4.matmul.default in {node.target for node in graph.graph.nodes}
    check(torch, graph(2 * x), layers(2 * x))


@pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning")
def test_traces_record_the_operation(torch, dt, case):
    layers, x, _ = case
    check(torch, torch.jit.trace(layers, (x,), check_trace=False)(2 * x[:3]), layers(2 * x[:3]))
    with pytest.raises(RuntimeError, match=r"use torch\.export"):
        torch.jit.trace(lambda x: dt.quantize(x, "mxfp4").dequantize(), (x,))


def test_transforms(torch, case):
    """vmap, grad and jvp, also within one another, by the decoded weight."""
    layers, x, _ = case
    weight = layers[0].weight.dequantize().float()
    stack = x.reshape(2, 4, 512)
    check(torch, torch.func.vmap(layers)(stack), layers(stack))
    gradient = torch.func.grad(lambda x: layers(x).float().sum())
    check(torch, gradient(x), weight.sum(0).expand(8, -1).bfloat16())
    check(torch, torch.func.vmap(gradient)(stack), gradient(x).reshape(2, 4, 512))
    _, along = torch.func.jvp(layers, (x,), (2 * x,))
    check(torch, along, 2 * (layers(x) - layers[0].bias).detach())


def test_pickles_and_threads(torch, case):
    layers, x, product = case
    loaded = pickle.loads(pickle.dumps(layers))
    with torch.inference_mode(), ThreadPoolExecutor(4) as pool:
        check(torch, loaded(x), product)
        for made in pool.map(lambda _: layers(x), range(32)):
            check(torch, made, product)


def test_another_dtype_leaves_the_values_alone(torch, case):
    layers, x, _ = case
    expected = layers[0].weight.dequantize()
    layers.to(torch.float16)
    assert layers[0].weight.dtype == torch.float16
    assert torch.equal(layers[0].weight.dequantize(torch.bfloat16), expected)
    assert layers(x.half()).dtype == torch.float16


def of_bytes(torch, parts):
    """The parts with codes as bytes: PyTorch's checks cannot compare FP8 and FP4."""
    low = {name: getattr(parts, name) for name in ("data", "scales") if getattr(parts, name).dtype.itemsize == 1}
    return parts._replace(**{name: part.view(torch.uint8) for name, part in low.items()})


@pytest.mark.parametrize("name", FORMATS)
def test_opcheck_of_formats(torch, dt, name):
    x = randn(torch, 128, 128)
    q = dt.functions.quantize(x, name)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for op, args in (
        (torch.ops.dlfp4.quantize.default, (x, name)),
        (torch.ops.dlfp4.dequantize.default, of_bytes(torch, q)),
        (torch.ops.dlfp4.matmul.default, (randn(torch, 2, 128), *of_bytes(torch, q.mT))),
    ):
        assert set(torch.library.opcheck(op, args, test_utils=tests).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", FORMATS)
def test_tensors_cross_the_border_of_a_graph(torch, dt, name):
    """In, taken apart and put together by a TensorProto, quantized within, and out."""

    def function(x, w):
        q = dt.functions.quantize(x, name)
        proto = TensorProto.of(q)
        memory = proto.allocate()
        return proto.unflatten(dict(proto.flatten(q))), memory, dt.quantize(x, name), w.dequantize(), x @ w.mT

    x, w = randn(torch, 128, 128), dt.quantize(randn(torch, 128, 128, seed=1), name)
    again, memory, q, values, product = torch.compile(function, fullgraph=True, backend="aot_eager")(x, w)
    expected = dt.quantize(x, name)
    assert host_bytes(torch, again.data) == host_bytes(torch, q.elements) == host_bytes(torch, expected.elements)
    assert (memory.type, memory.data.shape, memory.data.device) == (again.type, again.data.shape, x.device)
    assert torch.equal(dt.dequantize(again), expected.dequantize())
    assert torch.equal(values, w.dequantize())
    check(torch, product, x @ w.mT)
    torch._dynamo.reset()


def test_copies_from_the_host_into_slices(torch, dt):
    """Into memory of another tensor under one global scale, and into new memory."""
    whole = dt.quantize(randn(torch, 128, 64), "nvfp4", global_scale=0.01)
    host = randn(torch, 64, 64, seed=1).cpu()
    part = dt.quantize(host, "nvfp4", global_scale=0.01)
    for target in (whole, torch.zeros_like(whole)):
        target[:64].copy_(part)
        assert torch.equal(target[:64].dequantize().cpu(), part.dequantize())
    with pytest.raises(ValueError, match="cannot be copied into a view"):
        whole[:64].copy_(dt.quantize(host, "nvfp4"))


def test_tensors_are_joined(torch, dt):
    """Codes and scales side by side, on the device."""
    pair = [dt.quantize(randn(torch, 128, 128, seed=seed), "nvfp4", global_scale=0.01) for seed in range(2)]
    ours = [q.to_dlfp4() for q in pair]
    for made, expected in (
        (torch.cat(pair), dlfp4.concatenate(ours)),
        (torch.cat([q.mT for q in pair]), dlfp4.concatenate(ours, 1).mT),
        (torch.stack(pair), dlfp4.stack(ours)),
    ):
        assert made.device == pair[0].device
        assert torch.equal(made.dequantize(), expected.dequantize().to_torch())
