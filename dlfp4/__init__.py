"""Zero-copy interchange of FP4, FP6 and FP8 tensors between frameworks, over DLPack 1.3."""

from typing import TYPE_CHECKING

try:
    from dlfp4._core import __version__
except ModuleNotFoundError as _error:
    if _error.name != "dlfp4._core":
        raise
    raise ModuleNotFoundError(
        f"{__path__[0]} has no compiled core. Python was probably started inside a checkout, which shadows the "
        "installed package: start it in another folder, or as python -P",
        name=_error.name,
    ) from None
except ImportError as _error:
    if "Interpreter change" not in str(_error):  # as Cython says it
        raise
    raise ImportError(
        "dlfp4 was imported in another interpreter of this process first, and its core serves only one interpreter of "
        "a process: import it in the main interpreter only (mod_wsgi: WSGIApplicationGroup %{GLOBAL}), or use processes"
    ) from _error

from dlfp4._core import (
    BackendError,
    Device,
    DriverError,
    ScaledTensor,
    Tensor,
    asarray,
    cast,
    cpu_isa,
    cuda_available,
    dequantize,
    dot,
    empty,
    formats,
    from_dlpack,
    get_num_threads,
    pack,
    quantize,
    set_num_threads,
    shuffle_weight,
    unpack,
    unshuffle_weight,
    vecdot,
)
from dlfp4.autotune import autotune
from dlfp4.config import get_cmake_dir, get_library_dir, show_config
from dlfp4.files import get_include
from dlfp4.formats import Format, Recipe
from dlfp4.frameworks.base import RefusedError
from dlfp4.frameworks.numpy import register_dlpack_dtypes
from dlfp4.grouped import grouped_matmul
from dlfp4.joining import concatenate, stack
from dlfp4.matmul import backends, matmul
from dlfp4.proto import TensorProto
from dlfp4.receipts import Receipt
from dlfp4.transcode import transcode as _transcode  # noqa: F401  (which ScaledTensor.to calls)

__all__ = [
    "BackendError",
    "Device",
    "DriverError",
    "Format",
    "Receipt",
    "Recipe",
    "RefusedError",
    "ScaledTensor",
    "Tensor",
    "TensorProto",
    "__version__",
    "analysis",
    "asarray",
    "autotune",
    "backends",
    "cast",
    "checkpoints",
    "concatenate",
    "cpu_isa",
    "cuda_available",
    "dequantize",
    "dot",
    "empty",
    "formats",
    "from_dlpack",
    "get_cmake_dir",
    "get_include",
    "get_library_dir",
    "get_num_threads",
    "grouped_matmul",
    "matmul",
    "pack",
    "quantize",
    "set_num_threads",
    "show_config",
    "shuffle_weight",
    "stack",
    "unpack",
    "unshuffle_weight",
    "vecdot",
]

if TYPE_CHECKING:
    from types import ModuleType

    from dlfp4 import analysis, checkpoints
    from dlfp4 import jax as jax
    from dlfp4 import torch as torch
else:

    def __getattr__(name: str) -> "ModuleType":
        """``dlfp4.analysis``, ``checkpoints``, ``jax`` and ``torch``, which are imported when first asked for."""
        if name in ("analysis", "checkpoints", "jax", "torch"):
            from importlib import import_module

            return import_module(f"dlfp4.{name}")
        raise AttributeError(f"module 'dlfp4' has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    """What there is, and what is there when it is asked for."""
    return sorted({*globals(), *__all__})


register_dlpack_dtypes()
