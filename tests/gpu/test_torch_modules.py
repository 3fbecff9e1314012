"""Quantized layers of PyTorch on a GPU: prepared weights, their copies, state dicts, compiled code and its graphs."""

import copy
import io
import types

import pytest

import dlfp4

from . import test_cuda_experts as experts
from .test_torch_ops import host_bytes, randn
from .test_torch_ops import pytestmark as pytestmark


@pytest.fixture(params=["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_e4m3"])
def case(request, torch, dt):
    """A quantized layer, some rows, and their product as dlfp4 makes it of the layer's first weight."""
    made = torch.nn.Sequential(torch.nn.Linear(512, 256, device="cuda", dtype=torch.bfloat16))
    x = randn(torch, 8, 512).bfloat16()
    weight = dlfp4.quantize(made[0].weight.detach(), request.param).prepare()
    product = dlfp4.matmul(x, weight.mT).to_torch() + made[0].bias
    dt.quantize_(made, request.param, include=["*"])
    return made, x, product


def test_the_product_is_that_of_dlfp4(torch, case):
    layers, x, product = case
    with torch.inference_mode():
        assert host_bytes(torch, layers(x)) == host_bytes(torch, product)


def test_copies_multiply_as_the_first(torch, dt, case):
    layers, x, product = case
    layers[0].bias.requires_grad_(False)
    there = copy.deepcopy(layers).cpu()
    assert there[0].weight.device.type == "cpu"
    file = io.BytesIO()
    torch.save(layers[0].weight, file)
    file.seek(0)
    loaded = torch.load(file)
    assert torch.equal(loaded.dequantize().cpu(), there[0].weight.dequantize())
    for copied in (copy.deepcopy(layers), there.cuda()):
        assert torch.allclose(copied(x).float(), product.float(), rtol=2e-2, atol=2e-2)


def test_state_dicts(torch, dt, case):
    layers, x, product = case
    state = {name: part.cpu() for name, part in layers.state_dict().items()}
    with torch.inference_mode():
        layers[0].weight.copy_(layers[0].weight)
        layers.load_state_dict(state)
        assert torch.allclose(layers(x).float(), product.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(torch, case, mode):
    layers, x, _ = case
    compiled = torch.compile(layers, fullgraph=True, mode=mode)
    with torch.inference_mode():
        for scale in (1, 2, 4, 1):
            got = compiled(x * scale).clone()
            want = layers(x * scale)
            assert torch.allclose(got.float(), want.float(), rtol=2e-2, atol=2e-2)


def test_copies_in_a_graph(torch, case):
    """Products read prepared weights at once, but wait for copies that are just being made."""
    layers, x, product = case

    def function(x, w, b):
        return x @ w.clone().mT + b

    compiled = torch.compile(function, fullgraph=True)
    with torch.inference_mode():
        for _ in range(20):
            made = compiled(x, layers[0].weight, layers[0].bias)
            assert torch.allclose(made.float(), product.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3"])
@pytest.mark.parametrize("rows", [256, 192])
def test_stacks_of_experts(torch, dt, name, rows):
    """Prepared where each matrix is whole blocks: products by experts, and by one of them, which is a view."""
    if dlfp4._core._cuda_capability(0) != (9, 0):
        pytest.skip(f"kernels for compute capability 9.0; this device has {dlfp4._core._cuda_capability(0)}")
    module = torch.nn.Module()
    module.gate_up_proj = torch.nn.Parameter(randn(torch, 4, rows, 128).bfloat16())
    dt.quantize_(module, name, include=["*"])
    w, x = module.gate_up_proj, randn(torch, 64, 128, seed=1).bfloat16()
    assert (w.to_dlfp4().scale_layout == "prepared") == (rows == 256)
    for expert in range(4):
        assert torch.equal(w[expert].dequantize(), w.dequantize()[expert])
        assert host_bytes(torch, x @ w[expert].mT) == host_bytes(torch, dt.matmul(x, w[expert].mT))
    stacked = torch.bmm(x.reshape(4, 16, 128), w.mT)
    for expert in range(4):
        part = x[16 * expert : 16 * expert + 16]
        assert host_bytes(torch, stacked[expert]) == host_bytes(torch, dt.matmul(part, w[expert].mT))
    if rows == 256:
        assert w[1].elements.data_ptr() > w.elements.data_ptr()
        ends = experts.numbers(torch, [10, 20, 20, 64])
        expected = experts.by_expert(torch, x, w.to_dlfp4(), ends.tolist(), "bfloat16")
        experts.same(torch, torch.nn.functional.grouped_mm(x, w.mT, offs=ends), expected)
        with pytest.raises(ValueError, match="multiples of 128 rows"):
            w[1][:64]
        two = types.SimpleNamespace(size=lambda: 2)
        with pytest.raises(ValueError, match="prepare=False"):
            w.fsdp_pre_all_gather(two, (8, rows, 128), (rows * 128, 128, 1), module, None)
