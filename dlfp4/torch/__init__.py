"""dlfp4's operations as PyTorch's own: for eager code, and inside ``torch.compile`` and ``torch.export``.

Importing this module registers ``torch.ops.dlfp4.*``. Its functions take and return PyTorch's tensors, have the names
and arguments of dlfp4's, and give the same bytes.
"""

import torch

from dlfp4.torch import counting, distributing, joining, multiplying, protos, registering, views  # noqa: F401  (which register themselves)
from dlfp4.torch.from_values import quantize
from dlfp4.torch.functions import cast, dequantize, dot, grouped_matmul, matmul, pack, unpack, vecdot
from dlfp4.torch.linear import Linear
from dlfp4.torch.quantizing import quantize_
from dlfp4.torch.representing import Parts
from dlfp4.torch.scaled_tensor import ScaledTensor

if torch.distributed.is_available():
    from dlfp4.torch import collectives  # noqa: F401

__all__ = [
    "Linear",
    "Parts",
    "ScaledTensor",
    "cast",
    "dequantize",
    "dot",
    "grouped_matmul",
    "matmul",
    "pack",
    "quantize",
    "quantize_",
    "unpack",
    "vecdot",
]
