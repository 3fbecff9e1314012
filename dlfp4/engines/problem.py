"""What a matrix product is, what a backend is, and the questions that several backends ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import ml_dtypes

from dlfp4._core import (
    _ON_CUDA,
    _ON_HOST,
    ScaledTensor,
    Tensor,
    _parse_dtype,
    _plain,
    _without_global_scale,
    cast,
    dequantize,
)
from dlfp4.extents import count_elements
from dlfp4.formats import FLOATS
from dlfp4.frameworks import base
from dlfp4.show import summary

if TYPE_CHECKING:
    import numpy as np

    from dlfp4._core import Device, _Stream
    from dlfp4.formats import Activation, Format

Operand: TypeAlias = Tensor | ScaledTensor

LOW = tuple(name for name in (*base.FP8, *base.SUBBYTE) if name.startswith("float") and name != "float8_e8m0fnu")
# By NumPy's numbers, for a type's name costs it a microsecond.
FLOAT_NUMBERS = frozenset(_parse_dtype(name).num for name in FLOATS)
FACTORS = {_parse_dtype(name).num: name for name in (*FLOATS, *LOW)}
FP4 = _parse_dtype("float4_e2m1fn")
ONE_TACTIC = ("default",)


class Problem(NamedTuple):
    """One matrix product: a of (..., M, K) and b of (K, N), what is to become of it, and the handle of its stream."""

    a: Operand
    b: Operand
    dtype: np.dtype[Any]
    alpha: float = 1.0
    activation: Activation | None = None
    stream: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return self.a.shape[:-1] + self.b.shape[-1:]

    @property
    def rows(self) -> int:
        """M, of all batches together."""
        return count_elements(self.a.shape[:-1])

    @property
    def device(self) -> Device:
        """Where the work is done: the CUDA device, if one operand lies on one."""
        return self.b.device if self.b.device.type in _ON_CUDA else self.a.device


@dataclass(frozen=True, slots=True)
class Machine:
    """What a choice depends on besides the problem.

    Parameters
    ----------
    capability : tuple of int, optional
        The compute capability of the CUDA device that the problem lies on; None on the host.
    missing : mapping
        Why this machine does not have a backend, by name; None for those that it has.
    """

    capability: tuple[int, int] | None
    missing: Mapping[str, str | None]


def serves_in_order(problem: Problem, machine: Machine) -> int:  # noqa: ARG001
    """The rank of a backend that takes its turn."""
    return 0


def serves_always(problem: Problem, machine: Machine) -> None:
    """What "auto" may choose for all that it takes."""


# Compared by identity: rows are few, and part of the key of a cache that every call asks.
@dataclass(frozen=True, eq=False, slots=True)
class Backend:
    """A way to multiply.

    What `supports`, `rank` and `only_by_name` make of a problem is remembered, and not asked again for one whose
    operands have the same types or formats, shapes, scale layouts and devices (``_core._traits``), with the same type
    of result and activation: nothing else may count for them.

    Parameters
    ----------
    name : str
        What ``matmul(backend=...)`` takes.
    missing : callable
        Why this machine does not have it, or None.
    supports : callable
        Why it does not take a problem on a machine, or None where it does.
    tactics : callable
        The names of its ways to run a problem, the best guess first.
    run : callable
        Writes the product of a problem by a tactic to a Tensor.
    rank : callable
        0 or more: smaller ones are asked first, equal ones in the order of the table.
    only_by_name : callable
        Why "auto" does not choose it for a problem that it takes, or None where it may.
    needs_gpu : bool
        It takes no problem on the host.
    """

    name: str
    missing: Callable[[], str | None]
    supports: Callable[[Problem, Machine], str | None]
    tactics: Callable[[Problem], tuple[str, ...]]
    run: Callable[[Problem, str, Tensor], None]
    rank: Callable[[Problem, Machine], int] = serves_in_order
    only_by_name: Callable[[Problem, Machine], str | None] = serves_always
    needs_gpu: bool = False


# ---- What several backends ask


def never_missing() -> str | None:
    """What every machine has."""
    return None


def one_tactic(problem: Problem) -> tuple[str, ...]:  # noqa: ARG001
    """Of backends that choose for themselves."""
    return ONE_TACTIC


def element_of(x: Operand) -> np.dtype[Any]:
    """The type of an operand's elements."""
    return x.format.element if isinstance(x, ScaledTensor) else x.dtype


def has_fp4_blocks(format: Format) -> bool:
    """Whether weights of a format are FP4 in blocks, by whose codes activations of int8 are multiplied."""
    return format.element == FP4 and format.block is not None


def has_integers(x: Operand) -> bool:
    """Whether it is a ScaledTensor of integers."""
    return isinstance(x, ScaledTensor) and x.format.has_integers


AS_OF_MATMUL = ("a", "b")  # what messages call the operands


def not_on_host(problem: Problem, names: tuple[str, str] = AS_OF_MATMUL) -> str | None:
    """Which operand the CPU cannot read."""
    for name, x in zip(names, (problem.a, problem.b), strict=True):
        if x.device.type not in _ON_HOST:
            return f"{name} lies on {x.device}, and this backend reads host memory; call .to_device('cpu') first"
    return None


def not_on_one_cuda_device(problem: Problem, names: tuple[str, str] = AS_OF_MATMUL) -> str | None:
    """Whether the operands lie apart, or on the host."""
    a, b = problem.a.device, problem.b.device
    if a != b:
        place = str(a) if a.type == "cuda" else "cpu"
        return f"{names[0]} lies on {a}, {names[1]} on {b}; bring them together with .to_device({place!r})"
    if a.type != "cuda":
        return (
            f"the operands lie on {a}, and this backend reads CUDA memory; where there is a GPU, call "
            f".to_device('cuda:0') on both"
        )
    return None


def not_floats(problem: Problem, names: tuple[str, str] = AS_OF_MATMUL) -> str | None:
    """Which operand has elements that are no floats of at most 32 bits."""
    for name, x in zip(names, (problem.a, problem.b), strict=True):
        dtype = element_of(x)
        if dtype.num not in FACTORS and not has_integers(x):
            return (
                f"{name} has dtype {dtype}; expected signed floats of at most 32 bits, or a ScaledTensor; convert it "
                f"first, floats by dlfp4.cast, others with their own library (vecdot sums integers as they are)"
            )
    return None


def not_along_sums(problem: Problem) -> str | None:
    """Which operand has blocks that run across the sums."""
    for name, x, axis in (("a", problem.a, -1), ("b", problem.b, -2)):
        if isinstance(x, ScaledTensor) and x.axis != axis:
            return (
                f"the blocks of {name}, {summary(x)}, run across the products' sums; quantize a of (M, K) and w of "
                f"(N, K) along the last axis and pass a and w.mT, or dequantize {name}"
            )
    return None


def rounds_activations(problem: Problem) -> str | None:
    """Whether activations are to be rounded, by a backend that does not."""
    if problem.activation is None:
        return None
    return "it multiplies decoded values and does not round activations; leave activation out"


def not_capable(machine: Machine, oldest: tuple[int, int]) -> str | None:
    """Whether the GPU is too old."""
    if machine.capability is not None and machine.capability >= oldest:
        return None
    here = (
        "is not a CUDA device"
        if machine.capability is None
        else f"has compute capability {version(machine.capability)}"
    )
    return f"the device of the operands {here}; expected compute capability {version(oldest)} or later"


def version(numbers: tuple[int, int]) -> str:
    """As 9.0."""
    return ".".join(map(str, numbers))


def refuses_layouts(problem: Problem, layout: str) -> str | None:
    """Whether the scales of blocks lie in a layout along the sums, and elements as every format stores them."""
    for name, x in (("a", problem.a), ("b", problem.b)):
        if isinstance(x, ScaledTensor):
            expected = "linear" if x.format.block is None else layout
            if x.scale_layout != expected:
                return (
                    f"{name} has scale_layout {x.scale_layout!r}; expected {expected!r}, call "
                    f"{name}.with_scale_layout({expected!r}) once"
                )
    return not_along_sums(problem)


def name_of(dtype: np.dtype[Any]) -> str:
    """A type's name."""
    return FACTORS.get(dtype.num) or dtype.name


def describe(x: Operand) -> str:
    """The format or type of an operand."""
    return x.format.name if isinstance(x, ScaledTensor) else name_of(x.dtype)


def decode(x: Operand, stream: _Stream | None = None) -> Tensor:
    """An operand's values."""
    if isinstance(x, ScaledTensor):
        return dequantize(x, "float32", stream=stream)
    return x if name_of(x.dtype) == "float32" else cast(x, "float32", stream=stream)


def exact_types(x: Operand) -> tuple[str, ...]:
    """The types that hold an operand's values, but for a scale of the whole tensor, exactly."""
    if scales_lines(x):
        return ("float32",)
    if isinstance(x, ScaledTensor):
        return exact_types_of(x.format)
    if x.dtype.itemsize == 1:
        return FLOATS
    return (name_of(x.dtype), "float32")


@cache
def exact_types_of(format: Format) -> tuple[str, ...]:
    """The same of a format: float32, and the types of 16 bits that hold every product of an element and a scale."""
    if format.has_integers:  # which may have zero points and biases
        return ("float32",)
    if format.block is None:
        return FLOATS
    return tuple(name for name in FLOATS if name == "float32" or holds_products(name, format))


def holds_products(name: str, format: Format) -> bool:
    """Whether a type has the bits for them, and the range; bfloat16 has float32's."""
    finfo: Any = ml_dtypes.finfo  # which has no types
    target, element, scale = finfo(name), finfo(format.element), finfo(format.scale)
    bits = element.nmant + 1 + (scale.nmant + 1 if scale.nmant else 0)  # a power of two adds none
    if bits > target.nmant + 1:
        return False
    largest = float(element.max) * float(scale.max)
    smallest = float(element.smallest_subnormal) * float(scale.smallest_subnormal)
    fits = largest <= float(target.max) and smallest >= float(target.smallest_subnormal)
    return fits or name == "bfloat16"


def without_tensor_scale(x: ScaledTensor, name: str, stream: _Stream | None) -> tuple[Tensor, Tensor | None]:
    """A ScaledTensor's values in a type, but for the scale of the whole tensor, which comes beside them."""
    plain = _plain(x, stream)
    if scales_lines(plain):
        return dequantize(plain, name, stream=stream), None
    if plain.format.block is None:
        return cast(plain.data, name, stream=stream).reshape(x.shape), plain.scales
    return dequantize(_without_global_scale(plain), name, stream=stream), plain.global_scale


def scales_lines(x: Operand) -> bool:
    """Whether lines, or matrices of a stack, have scales that multiply their sums."""
    if not isinstance(x, ScaledTensor):
        return False
    return x.format.scales_lines or (x.global_scale is not None and x.global_scale.ndim > 0)


def refuses_scales_of_lines(problem: Problem) -> str | None:
    """Which operand has scales of lines, where kernels read one of the tensor."""
    for name, x in (("a", problem.a), ("b", problem.b)):
        if scales_lines(x):
            return f"{name}, {summary(x)}, has a scale for each of its lines; expected one for the whole tensor"
    return None


def has_own_scales(x: ScaledTensor) -> bool:
    """Whether its scales are of the format's own type, as others' kernels take them."""
    return x.scales.dtype == x.format.scale or x.scale_layout == "prepared"
