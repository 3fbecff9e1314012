"""The operations that compilers see as their own: a row each, from which :mod:`dlfp4.torch` and others are made.

A row has the name of an eager function, its arguments, and the description of its result by :class:`TensorProto`. What
allocates a result and what only describes one (fake tensors, abstract arrays) ask the same row, so they cannot differ.
Arguments are values of a compiler's graph: tensors, and constants that are equal by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dlfp4 import _core, grouped
from dlfp4.extents import count_elements
from dlfp4.formats import FLOATS, Recipe, find_recipe, granularity_of, offset_parts
from dlfp4.matmul import refuse_shapes
from dlfp4.proto import TensorProto

if TYPE_CHECKING:
    from dlfp4._core import ScaledTensor, _Axis, _ScaleLayout

# ---- How the parts of a quantized tensor are stored


TURNED = "turned"  # what an encoding's text says of a transposed stack


class Prepared(NamedTuple):
    """What the layout of :meth:`ScaledTensor.prepare` has to be read with."""

    rows: int
    columns: int
    largest: int
    exact_in_half: int


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a quantized tensor is stored in its parts: a constant of a compiled graph, equal by value.

    Parameters
    ----------
    format : str
        A row of :func:`formats`.
    axis : {-1, -2}
        Along which blocks run.
    scale_layout : str
        How scales lie.
    hadamard : tuple of int, optional
        The signs of the transform before quantizing.
    prepared : Prepared, optional
        Of a weight that was prepared.
    turned : bool
        Of a transposed stack, whose parts are those of the stack.
    offsets : str
        The element type of zero points or biases; empty where there are none.

    Examples
    --------
    >>> from dlfp4.operations import Encoding
    >>> str(Encoding("nvfp4", -2, "128x4"))
    'nvfp4/columns/128x4'
    >>> Encoding.parse("nvfp4/columns").axis
    -2
    """

    format: str
    axis: _Axis = -1
    scale_layout: _ScaleLayout | Literal["prepared"] = "linear"
    hadamard: tuple[int, ...] | None = None
    prepared: Prepared | None = None
    turned: bool = False
    offsets: str = ""

    @staticmethod
    def of(q: ScaledTensor) -> Encoding:
        """That of a ScaledTensor."""
        _core._refuse_turned(q)
        facts = _core._facts_of_prepared(q)
        prepared = None if facts is None else Prepared(*map(int, facts))
        offsets = "".join(part.dtype.name for part in offset_parts(q).values())
        return Encoding(q.format.name, q.axis, q.scale_layout, q.hadamard, prepared, offsets=offsets)

    def __str__(self) -> str:
        words = [self.format]
        if self.axis == -2:
            words.append(TURNED if self.turned else "columns")
        if self.scale_layout != "linear":
            words.append(self.scale_layout)
        if self.hadamard is not None:
            words.append("hadamard=" + "".join("-" if sign < 0 else "+" for sign in self.hadamard))
        if self.prepared is not None:
            words.append("facts=" + ",".join(map(str, self.prepared)))
        if self.offsets:
            words.append("offsets=" + self.offsets)
        return "/".join(words)

    @staticmethod
    def parse(text: str) -> Encoding:
        """The encoding that such a text names."""
        return _parse_encoding(text)


@lru_cache(maxsize=4096)
def _parse_encoding(text: str) -> Encoding:
    name, *words = text.split("/")
    values: dict[str, Any] = {"format": _core._find_format(name).name}
    for word in words:
        key, _, value = word.partition("=")
        if word in ("columns", TURNED):
            values["axis"] = -2
            values["turned"] = word == TURNED
        elif key == "hadamard":
            values["hadamard"] = tuple(-1 if sign == "-" else 1 for sign in value)
        elif key == "facts":
            values["prepared"] = Prepared(*map(int, value.split(",")))
        elif key == "offsets":
            values["offsets"] = value
        else:
            values["scale_layout"] = word
    return Encoding(**values)


def transposed(text: str, is_stack: bool = False) -> str:
    """The text of the transpose's encoding, of one's text."""
    word, other = (TURNED, "columns") if is_stack else ("columns", TURNED)
    name, *words = text.split("/")
    if words[:1] == [other]:
        raise ValueError(f"{text!r} of a stack: blocks along its columns may cross from one matrix to the next")
    words = words[1:] if words[:1] == [word] else [word, *words]
    return "/".join([name, *words])


def text_of_recipe(recipe: Recipe | str | None) -> str:
    """A recipe as a constant: its name, what differs from the default, or nothing."""
    if recipe is None or isinstance(recipe, str):
        return recipe or ""
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe={recipe!r} is of type {type(recipe).__name__}; expected a name, or a dlfp4.Recipe")
    defaults = {field.name: field.default for field in fields(Recipe)}
    return json.dumps({name: value for name, value in asdict(recipe).items() if value != defaults[name]})


@lru_cache(maxsize=1024)
def recipe_of_text(text: str) -> Recipe | str | None:
    """The recipe that such a constant stands for: a Recipe, a name, or None."""
    return Recipe(**json.loads(text)) if text.startswith("{") else text or None


# ---- Rows


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of an operation.

    Parameters
    ----------
    name : str
        As of the eager function.
    kind : str
        "operand", a plain tensor; "quantized", one that may be quantized as well; "vector", one whose type PyTorch has;
        "scale", the same, optional; else a constant: "text", "dtype", "recipe", "backend", "flag", "number", "integer",
        "index", "count", "axes" or "signs".
    default : object
        Of constants; ``REQUIRED`` where there is none.
    """

    name: str
    kind: str
    default: Any = None

    @property
    def is_tensor(self) -> bool:
        """Whether it is a value of the graph, and no constant."""
        return self.kind in ("operand", "quantized", "vector", "scale")


REQUIRED: Any = ...


@dataclass(frozen=True, slots=True)
class Operation:
    """A row: an eager function of dlfp4 as compilers see it.

    Parameters
    ----------
    name : str
        Of the eager function.
    arguments : tuple of Argument
        Tensors first.
    result : callable
        Takes a TensorProto for each tensor (None for an absent one) and the constants by name; returns that of the
        result.
    """

    name: str
    arguments: tuple[Argument, ...]
    result: Callable[..., TensorProto]

    @property
    def tensors(self) -> tuple[Argument, ...]:
        """The arguments that are tensors."""
        return tuple(each for each in self.arguments if each.is_tensor)

    @property
    def constants(self) -> tuple[Argument, ...]:
        """The arguments that are constants of a compiled graph."""
        return tuple(each for each in self.arguments if not each.is_tensor)


def _cast(x: TensorProto, *, dtype: str, packed: bool, **_: Any) -> TensorProto:
    return TensorProto(x.shape, dtype, packed=packed)


def _pack(x: TensorProto) -> TensorProto:
    return TensorProto(x.shape, x.dtype)


def _unpack(x: TensorProto) -> TensorProto:
    return TensorProto(x.shape, x.dtype, packed=False)


def _quantize(
    x: TensorProto,
    global_scale: TensorProto | None,
    *,
    format: str,
    recipe: str,
    axis: Sequence[int],
    scale_layout: Any,
    pad: bool,
    hadamard: Sequence[int] | None,
    **_: Any,
) -> TensorProto:
    _core._check_axes(tuple(axis))
    row = _core._find_format(format)
    chosen = find_recipe(row, recipe_of_text(recipe))
    per = chosen.global_scale_per
    if global_scale is not None and per == "tensor" and row.has_global_scale:
        count = count_elements(global_scale.shape)
        per = "tensor" if count == 1 else granularity_of(row, x.shape, min(axis), count)
    return TensorProto(
        x.shape,
        format=format,
        scale_layout=scale_layout,
        pad=pad,
        rowwise=-1 in axis,
        columnwise=-2 in axis,
        scale_dtype=chosen.scale_dtype,
        global_scale_per=per,
        hadamard=hadamard,
    )


def _dequantize(q: TensorProto, *, dtype: str) -> TensorProto:
    return TensorProto(q.shape, dtype)


def _vecdot(a: TensorProto, b: TensorProto, *, axis: int = -1) -> TensorProto:
    shapes = without_axis(a.shape, axis, "a"), without_axis(b.shape, axis, "b")
    if differ(a.shape[axis], b.shape[axis]):
        _core._refuse_lengths(a.shape, b.shape, axis)
    rank = max(map(len, shapes))
    pairs = list(zip(*(aligned(each, rank) for each in shapes), strict=True))
    for m, n in pairs:
        if differ(m, n) and 1 not in (m, n):
            _core._refuse_broadcast(*shapes, m, n)
    return TensorProto(tuple(n if m == 1 else m for m, n in pairs), "float32")


def without_axis(shape: tuple[int, ...], axis: int, name: str) -> tuple[int, ...]:
    """The axes of an operand that are not summed over, which broadcast: only then do those of two ranks align."""
    if not shape:
        raise ValueError(f"{name} is 0-d and has no axis to sum over; reshape it to (1,) first")
    if not -len(shape) <= axis < len(shape):
        raise ValueError(
            f"axis={axis} of {name}, which has {len(shape)} dimensions; expected {-len(shape)} to {len(shape) - 1}"
        )
    along = axis % len(shape)
    return shape[:along] + shape[along + 1 :]


def aligned(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """A shape with as many dimensions as another operand's."""
    return (1,) * (rank - len(shape)) + shape


def _dot(a: TensorProto, b: TensorProto) -> TensorProto:
    for name, x in (("a", a), ("b", b)):
        if len(x.shape) != 1:
            _core._refuse_vector(name, x.shape)
    return _vecdot(a, b)


def differ(m: Any, n: Any) -> bool:
    """Whether two extents are known to differ: of a compiler's symbols it is the operation itself that finds out."""
    return isinstance(m, int) and isinstance(n, int) and m != n


def _matmul(a: TensorProto, b: TensorProto, *, out_dtype: str | None, **_: Any) -> TensorProto:
    if not a.shape or len(b.shape) != 2 or differ(a.shape[-1], b.shape[0]):
        refuse_shapes(a.shape, b.shape)
    return TensorProto(a.shape[:-1] + b.shape[-1:], out_dtype or _type_of_product(a))


def _type_of_product(a: TensorProto) -> str:
    own = None if a.dtype is None else a.dtype.name
    return own if own in FLOATS else "float32"


def check_vector(name: str, vector: TensorProto, count: Any, what: str) -> None:
    """ValueError where there is not one number for each expert or row, as far as is known."""
    if len(vector.shape) != 1 or differ(vector.shape[0], count):
        grouped.refuse_vector(name, vector.shape, count, what)


def _grouped_matmul(
    x: TensorProto,
    w: TensorProto,
    offsets: TensorProto,
    indices: TensorProto | None,
    weights: TensorProto | None,
    *,
    tokens: int | None,
    out_dtype: str | None,
    **_: Any,
) -> TensorProto:
    grouped.check_choice(indices, weights, tokens)
    grouped.check_ranks(x.shape, w.shape)
    stands = w.format is not None and w.rowwise  # as it was quantized, of which the operation says what to do
    if differ(x.shape[1], w.shape[1]) and not stands:
        grouped.refuse_depth(x.shape, w.shape[1])
    routed = x if indices is None else indices
    check_vector("offsets", offsets, w.shape[0], "experts")
    if indices is not None:
        check_vector("indices", indices, None, "rows")
    if weights is not None:
        check_vector("weights", weights, routed.shape[0], "rows")
    rows = routed.shape[0] if weights is None else x.shape[0] if tokens is None else tokens
    return TensorProto((rows, w.shape[-1]), out_dtype or _type_of_product(x))


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        row.name: row
        for row in (
            Operation(
                "cast",
                (
                    Argument("x", "operand"),
                    Argument("dtype", "dtype", REQUIRED),
                    Argument("rounding", "text", "nearest_even"),
                    Argument("saturate", "flag", True),
                    Argument("packed", "flag", True),
                    Argument("seed", "integer"),
                ),
                _cast,
            ),
            Operation("pack", (Argument("x", "operand"),), _pack),
            Operation("unpack", (Argument("x", "operand"),), _unpack),
            Operation(
                "quantize",
                (
                    Argument("x", "operand"),
                    Argument("global_scale", "scale"),
                    Argument("format", "text", REQUIRED),
                    Argument("recipe", "recipe", ""),
                    Argument("axis", "axes", (-1,)),
                    Argument("rounding", "text"),
                    Argument("seed", "integer"),
                    Argument("scale_layout", "text", "linear"),
                    Argument("pad", "flag", False),
                    Argument("hadamard", "signs"),
                ),
                _quantize,
            ),
            Operation("dequantize", (Argument("q", "quantized"), Argument("dtype", "dtype", "float32")), _dequantize),
            Operation("dot", (Argument("a", "quantized"), Argument("b", "quantized")), _dot),
            Operation(
                "vecdot",
                (Argument("a", "quantized"), Argument("b", "quantized"), Argument("axis", "index", -1)),
                _vecdot,
            ),
            Operation(
                "matmul",
                (
                    Argument("a", "quantized"),
                    Argument("b", "quantized"),
                    Argument("alpha", "number"),
                    Argument("out_dtype", "dtype"),
                    Argument("activation", "text"),
                    Argument("backend", "backend", ""),
                ),
                _matmul,
            ),
            Operation(
                "grouped_matmul",
                (
                    Argument("x", "quantized"),
                    Argument("w", "quantized"),
                    Argument("offsets", "vector"),
                    Argument("indices", "scale"),
                    Argument("weights", "scale"),
                    Argument("tokens", "count"),
                    Argument("alpha", "number"),
                    Argument("out_dtype", "dtype"),
                    Argument("activation", "text"),
                ),
                _grouped_matmul,
            ),
        )
    }
)
