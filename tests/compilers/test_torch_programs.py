"""Whole programs as people run them: a transformer that is trained with FP4 weights, adapters beside quantized weights,
a program that another process loads; compiled ones give the bytes of eager ones.
"""

import importlib
import subprocess
import sys

import pytest

from ..support.capsules import framework
from ..support.torch_tensors import randn

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
F = torch.nn.functional


class Block(torch.nn.Module):
    """Attention and a gated layer, by masters that are quantized in each step."""

    def __init__(self, width=64):
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)])
        shapes = {
            "qkv": (3 * width, width),
            "out": (width, width),
            "up": (4 * width, width),
            "down": (width, 2 * width),
        }
        self.masters = torch.nn.ParameterDict(
            {
                name: torch.nn.Parameter(randn(*shape, seed=seed) / 8)
                for seed, (name, shape) in enumerate(shapes.items())
            }
        )

    def product(self, name, x):
        return F.linear(x, dt.quantize(self.masters[name], "nvfp4"))

    def forward(self, x):
        q, k, v = self.product("qkv", self.norms[0](x)).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.product("out", found.transpose(1, 2).flatten(2))
        gate, up = self.product("up", self.norms[1](x)).chunk(2, -1)
        return x + self.product("down", F.silu(gate) * up)


def steps_of_training(change, kind):
    """Losses and masters, of a model on tokens that it learns."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(32, 64), Block(), torch.nn.Linear(64, 32)).to(kind)
    tokens, optimizer = torch.randint(32, (2, 9)), torch.optim.SGD(model.parameters(), 0.1)
    forward, losses = change(model), []
    for _ in range(3):
        loss = F.cross_entropy(forward(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach() for parameter in model.parameters()]


# Dynamo itself makes an object of the class.
@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be:DeprecationWarning")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_training_with_fp4_weights(kind):
    losses, masters = steps_of_training(lambda model: model, kind)
    made, same = steps_of_training(lambda model: torch.compile(model, fullgraph=True, backend="aot_eager"), kind)
    assert losses[0] > losses[1] > losses[2]
    assert made == losses
    assert all(map(torch.equal, masters, same))


class Adapted(torch.nn.Module):
    """A quantized layer, and the product of two small matrices that is added to it."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer
        self.down = torch.nn.Parameter(randn(rank, layer.in_features) / 8)
        self.up = torch.nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + F.linear(F.linear(x, self.down), self.up)


def test_adapters_of_a_quantized_layer():
    """They are trained, the layer is not, whose input gets its gradient; a state dict has all of it."""

    def trained(change):
        torch.manual_seed(0)
        layers = dt.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 32)), "nvfp4")
        model = torch.nn.Sequential(*map(Adapted, layers)).requires_grad_(True)
        optimizer = torch.optim.AdamW([each for name, each in model.named_parameters() if "layer" not in name], 1e-2)
        forward, x = change(model), randn(3, 64).requires_grad_()
        for _ in range(3):
            loss = (forward(x) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model, x.grad, loss.item()

    (eager, grad, loss), (made, same, other) = map(trained, (lambda m: m, torch.compile(backend="aot_eager")))
    assert torch.equal(grad, same)
    assert loss == other
    first = dt.quantize_(torch.nn.Linear(64, 64), "nvfp4")
    state = {name.removeprefix("0.layer."): part for name, part in eager.state_dict().items() if "0.layer." in name}
    first.load_state_dict(state)
    assert torch.equal(first.weight.elements, made[0].layer.weight.elements)
    assert all(map(torch.equal, eager.state_dict().values(), made.state_dict().values()))
    assert eager[0].up.abs().max() > 0


LOADING = """
import sys, torch, dlfp4.torch

program = torch.export.load(sys.argv[1]).module()
x, expected = torch.load(sys.argv[2])
assert torch.equal(program(x), expected)
assert torch.equal(program(x[:2]), expected[:2])
"""


@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
def test_a_program_in_a_process_that_imports_dlfp4_alone(tmp_path):
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
    model, x = dt.quantize_(layers.requires_grad_(False), "nvfp4"), randn(5, 64)
    rows = torch.export.Dim("rows", min=2)
    torch.export.save(torch.export.export(model, (x[:3],), dynamic_shapes=({0: rows},)), tmp_path / "model.pt2")
    torch.save((x, model(x)), tmp_path / "results.pt")
    command = [sys.executable, "-P", "-c", LOADING, str(tmp_path / "model.pt2"), str(tmp_path / "results.pt")]
    subprocess.run(command, check=True, timeout=300)
