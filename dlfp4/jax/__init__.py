"""dlfp4 inside JAX programs: the operations on arrays and tracers, by XLA's foreign functions.

The functions run in the order of XLA's own work, without a callback and without a copy, and give the bytes of their
namesakes in :mod:`dlfp4`. Importing this module registers them with JAX, and :class:`dlfp4.ScaledTensor` as a pytree.
"""

from dlfp4.jax import exporting as exporting
from dlfp4.jax.codecs import cast, pack, unpack
from dlfp4.jax.experts import grouped_matmul
from dlfp4.jax.products import dot, matmul, vecdot
from dlfp4.jax.scaled_array import ScaledArray, dequantize
from dlfp4.jax.scaling import quantize

__all__ = [
    "ScaledArray",
    "cast",
    "dequantize",
    "dot",
    "grouped_matmul",
    "matmul",
    "pack",
    "quantize",
    "unpack",
    "vecdot",
]
