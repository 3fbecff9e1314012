"""One file per framework; importing this package imports none of them.

To add a framework, write its file, which ends in one ``FRAMEWORK`` row, and add its name to ``NAMES``. The file of a
package whose quantized tensors are no producers has a function ``from_NAME`` instead, and its name in ``QUANTIZED``.
"""

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from dlfp4.frameworks.base import Framework, RefusedError, first_line

__all__ = [
    "NAMES",
    "QUANTIZED",
    "Framework",
    "RefusedError",
    "current_streams",
    "first_line",
    "framework",
    "load",
    "of_type",
    "shares_table",
]

NAMES = (
    "numpy",
    "torch",
    "jax",
    "cupy",
    "tensorflow",
    "pyarrow",
    "mlx",
    "onnxruntime",
    "tvm_ffi",
    "paddle",
    "numkong",
    "max",
    "cutlass",
    "cuda_core",
    "warp",
)
QUANTIZED = ("torchao", "transformer_engine")


@cache
def load(name: str) -> ModuleType:
    """The file of a framework, as a module; it imports the framework itself only where a function needs it."""
    return import_module(f"dlfp4.frameworks.{name}")


def framework(name: str) -> Framework:
    """The row of a framework."""
    row: Framework = load(name).FRAMEWORK
    return row


def current_streams(index: int) -> list[Any]:
    """The current streams of all imported frameworks on a CUDA device: objects, or handles."""
    return [current_stream(index) for name, current_stream in _with_streams() if sys.modules.get(name) is not None]


@cache
def _with_streams() -> tuple[tuple[str, Callable[[int], Any]], ...]:
    """The frameworks that have a current stream."""
    rows = ((name, framework(name).current_stream) for name in NAMES)
    return tuple((name, current_stream) for name, current_stream in rows if current_stream is not None)


# The true bases of a class, whatever its metaclass claims.
bases_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__


def of_type(cls: type) -> Framework | None:
    """The framework of a class or of its nearest known base; None where no file here knows it."""
    for base in bases_of(cls):
        name = _by_package().get(str(base.__module__).partition(".")[0])
        if name is not None:
            return framework(name)
    return None


@cache
def _by_package() -> dict[str, str]:
    """The name of each framework by the package that its classes come from."""
    return {framework(name).package: name for name in NAMES}


def shares_table(cls: type) -> bool:
    """Whether a class is served by the C exchange table that it inherits."""
    row = of_type(cls)
    return row is not None and cls in row.table_shared_with()
