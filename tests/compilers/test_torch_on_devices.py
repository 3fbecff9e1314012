"""Whole uses of quantized weights in PyTorch that are to be the same on the host and on a GPU: each a test for both."""

import importlib
import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

import dlfp4

from ..support.capsules import framework

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
F = torch.nn.functional
pytestmark = [
    # What PyTorch's own modules warn of when Inductor loads them.
    pytest.mark.filterwarnings("ignore:`torch.jit.(script|script_method|trace)` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores for float32 matrix multiplication"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop because:UserWarning"),  # vmap of its own products
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
FORMATS = ["nvfp4", "mxfp4", "mxfp8_e4m3"]
MODELS = [("cpu", "mxfp4"), *(pytest.param("cuda", name, marks=pytest.mark.gpu) for name in FORMATS)]


def randn(*shape, seed=0):
    """bfloat16, on the host."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def quantized(device, name, *shape, seed=0):
    """A weight on a device, prepared where that is a GPU, as quantize_ has it."""
    weight = dlfp4.quantize(randn(*shape, seed=seed).to(device), name)
    return dt.ScaledTensor.from_dlfp4(weight if device == "cpu" else weight.prepare())


def check(made, expected):
    """Equal but for the order of sums."""
    assert (made.shape, made.dtype, made.device) == (expected.shape, expected.dtype, expected.device)
    assert torch.allclose(made.float(), expected.float(), rtol=2e-2, atol=0.5)


# Tokens of a quantized model, eager and compiled, and of the same without quantizing.
TOKENS = """
import json, sys, torch, transformers
import dlfp4.torch

transformers.logging.set_verbosity_error()
device, format, backend = sys.argv[1:]
config = transformers.LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                                  num_key_value_heads=2, vocab_size=512, max_position_embeddings=64)
ids = torch.tensor([[7, 300, 12, 45, 501], [1, 2, 3, 500, 77]], device=device)

def tokens(model):
    return model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)[:, 5:].tolist()

torch.manual_seed(0)
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().to(device)
results = {"floats": tokens(model)}
dlfp4.torch.quantize_(model, format)
results["eager"] = tokens(model)
results["quantized"] = sum(isinstance(weight, dlfp4.torch.ScaledTensor) for weight in model.parameters())
model.forward = torch.compile(model.forward, fullgraph=True, backend=backend)
results["compiled"] = tokens(model)
print(json.dumps(results))
"""


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize(("device", "name"), MODELS)
def test_a_model_of_transformers_generates_the_same_tokens(device, name):
    """In a process of its own: transformers and what it imports warn of much."""
    backend = "aot_eager" if device == "cpu" else "inductor"  # which takes minutes on a host
    command = [sys.executable, "-P", "-c", TOKENS, device, name, backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["quantized"] == 14  # seven in each layer; the head stays
    assert found["compiled"] == found["eager"]
    assert found["eager"] != found["floats"]
    assert len({token for row in found["eager"] for token in row}) > 1


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("device", DEVICES)
def test_graphs_are_replayed_with_other_rows_and_other_weights(device, name):
    """A weight is an argument, which is written to and replaced: on a GPU between replays of one CUDA graph."""
    weights = [quantized(device, name, 256, 512, seed=seed) for seed in range(2)]

    def function(x, w):
        return torch.relu(x @ w.mT) + 1, x.sum()

    torch._dynamo.reset()
    counters = importlib.import_module("torch._dynamo.utils").counters
    counters.clear()
    compiled = torch.compile(function, fullgraph=True, mode="reduce-overhead")
    with torch.inference_mode():
        for number in range(8):
            x, w = randn(8, 512, seed=10 + number).to(device), weights[number // 2 % 2]
            made = [each.clone() for each in compiled(x, w)]
            check(made[0], function(x, w)[0])
            check(made[1], function(x, w)[1])
        weights[0].copy_(weights[1])
        check(compiled(x, weights[0])[0].clone(), function(x, weights[1])[0])
    assert counters["inductor"]["cudagraph_skips"] == (device == "cpu")  # one graph, of all weights


def needs_kernels(device):
    """Skip where a GPU has no products by experts."""
    if device == "cuda" and dlfp4._core._cuda_capability(0) != (9, 0):
        pytest.skip(f"kernels for compute capability 9.0; this device has {dlfp4._core._cuda_capability(0)}")


def by_expert(x, values, ends):
    """The product by experts of floats, one after another."""
    pairs = zip([0, *ends[:-1]], ends, strict=True)
    return torch.cat([x[first:last].float() @ values[number].mT for number, (first, last) in enumerate(pairs)])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("device", DEVICES)
def test_transforms_of_products_by_experts(device, name):
    """torch.func.grad and vmap, also one within the other and compiled, of PyTorch's function and of dlfp4's."""
    needs_kernels(device)
    w, ends = quantized(device, name, 4, 256, 128), [10, 20, 20, 64]
    values, offsets = w.dequantize().float(), torch.tensor(ends, dtype=torch.int32, device=device)
    x = randn(2, 64, 128, seed=1).to(device)
    expected = torch.stack([by_expert(rows, values, ends) for rows in x]).bfloat16()
    slope = torch.cat([values[k].sum(0).expand(rows, -1) for k, rows in enumerate((10, 10, 0, 44))]).bfloat16()
    for multiply in (
        lambda x: F.grouped_mm(x, w.mT, offs=offsets),
        lambda x: dt.grouped_matmul(x, w.mT, offsets),
    ):

        def total(x, multiply=multiply):
            return multiply(x).float().sum()

        check(torch.func.vmap(multiply)(x), expected)
        check(torch.func.grad(total)(x[0]), slope)
        check(torch.func.vmap(torch.func.grad(total))(x), slope.expand(2, -1, -1))
        torch._dynamo.reset()
        compiled = torch.compile(torch.func.vmap(multiply), fullgraph=True, backend="aot_eager")
        check(compiled(x), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_vmap_over_offsets_of_experts(device):
    """Each of a batch has its own numbers of rows."""
    needs_kernels(device)
    w, x = quantized(device, "mxfp4", 4, 256, 128), randn(2, 64, 128, seed=1).to(device)
    ends = [[10, 20, 20, 64], [0, 1, 63, 64]]
    offsets = torch.tensor(ends, dtype=torch.int32, device=device)
    made = torch.func.vmap(lambda x, ends: F.grouped_mm(x, w.mT, offs=ends))(x, offsets)
    values = w.dequantize().float()
    check(made, torch.stack([by_expert(*each) for each in zip(x, [values] * 2, ends, strict=True)]).bfloat16())
