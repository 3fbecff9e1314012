"""A small model of PyTorch, with weights that are quantized and some that are kept."""

import importlib

from .capsules import framework
from .torch_tensors import randn

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
F = torch.nn.functional


class Attention(torch.nn.Module):
    """Projections that engines fuse."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(64, 64) for _ in range(3))
        self.o_proj = torch.nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return self.o_proj(F.scaled_dot_product_attention(self.q_proj(x), self.k_proj(x), self.v_proj(x)))


class Experts(torch.nn.Module):
    """Stacks of experts, as transformers has them: (experts, out, in)."""

    def __init__(self):
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(randn(3, 64, 64))
        self.down_proj = torch.nn.Parameter(randn(3, 64, 32))

    def forward(self, x):
        return sum(F.linear(F.linear(x, self.gate_up_proj[k])[..., :32], self.down_proj[k]) for k in range(3))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(32, 64)
        self.self_attn = Attention()
        self.experts = Experts()
        self.norm = torch.nn.LayerNorm(64)
        self.lm_head = torch.nn.Linear(64, 32, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids):
        x = self.embed_tokens(ids)
        return self.lm_head(self.norm(x + self.self_attn(x) + self.experts(x)))


def model():
    torch.manual_seed(0)
    return Model()


def quantized_names(module):
    return [name for name, x in module.named_parameters() if isinstance(x, dt.ScaledTensor)]


QUANTIZED = [
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"), "experts.gate_up_proj", "experts.down_proj",
]  # fmt: skip
