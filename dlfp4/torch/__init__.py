"""dlfp4's operations as PyTorch's own: for eager code, and inside ``torch.compile`` and ``torch.export``.

Importing this module registers ``torch.ops.dlfp4.*``. Its functions take and return PyTorch's tensors, have the names
and arguments of dlfp4's, and give the same bytes.
"""

from dlfp4.torch import protos, registering  # noqa: F401  (which register themselves)
from dlfp4.torch.functions import cast, dequantize, dot, matmul, pack, quantize, unpack, vecdot
from dlfp4.torch.representing import Parts

__all__ = ["Parts", "cast", "dequantize", "dot", "matmul", "pack", "quantize", "unpack", "vecdot"]
