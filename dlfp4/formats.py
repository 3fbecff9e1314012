"""The block-scaled formats, and the recipes by which their scales are chosen.

A format says how a tensor is stored: elements, blocks, scales. A recipe says how the scales follow from the data, and
how elements are rounded. The core makes the formats from the rows of ``formats.def``; nothing here repeats them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from dlfp4.suggest import did_you_mean

ScaleRule = Literal["floor", "rceil", "ceil", "even"]
Rounding = Literal["nearest_even", "nearest_away", "toward_zero", "stochastic"]
RecipeName = Literal["ocp", "nvidia", "aiter", "rocm", "transformer-engine-rocm"]
SCALE_RULES: tuple[str, ...] = get_args(ScaleRule)
ROUNDINGS: tuple[str, ...] = get_args(Rounding)


@dataclass(frozen=True, eq=False, slots=True)
class Format:
    """A block-scaled format: a row of :func:`formats`. It equals its name.

    Parameters
    ----------
    name : str
        Such as "nvfp4".
    element, scale : numpy.dtype
        Of the elements and of the stored scales, which are decode scales: value = element * scale (* global scale).
    block : tuple of int or None
        ``(lines, length)``: so many lines of so many elements share a scale; None: the whole tensor does.
    kind : {"two_level", "power", "largest"}
        Scales are float8 in units of a float32 scale of the tensor; powers of two; or float32 that map a block's
        largest magnitude to the element type's largest value.
    repeats_scales : bool
        Each line of a block has a scale of its own in memory, all equal.
    number : int
        The row in ``src/rules/formats.def``.

    Examples
    --------
    >>> import dlfp4
    >>> dlfp4.formats()["nvfp4"].block
    (1, 16)
    >>> dlfp4.formats()["nvfp4"] == "nvfp4"
    True
    """

    name: str
    element: np.dtype[Any]
    scale: np.dtype[Any]
    block: tuple[int, int] | None
    kind: Literal["two_level", "power", "largest"]
    repeats_scales: bool
    number: int

    @property
    def has_global_scale(self) -> bool:
        """Whether a float32 decode scale of the whole tensor goes with the blocks' scales."""
        return self.kind == "two_level"

    def __eq__(self, other: object) -> bool:
        return self is other or self.name == other

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


class FormatTable(Mapping[str, Format]):
    """The formats by name: a read-only mapping that prints as a table."""

    __slots__ = ("_rows",)

    def __init__(self, rows: dict[str, Format]) -> None:
        self._rows = rows

    def __getitem__(self, name: str) -> Format:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        head = ("format", "element", "block", "scale", "global scale")
        lines = [head, *map(_described, self._rows.values())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _described(row: Format) -> tuple[str, ...]:
    """The columns of a format's row."""
    block = "tensor" if row.block is None else "x".join(map(str, row.block))
    return row.name, row.element.name, block, row.scale.name, "float32" if row.has_global_scale else "-"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How scales are chosen and elements are rounded.

    Parameters
    ----------
    scale_rule : {"floor", "rceil", "ceil", "even"}, optional
        The exponent of an MX block's scale, from the block's largest magnitude a and the element type's largest value
        max = 2**emax * m: ``floor(log2 a) - emax`` (OCP MX v1.0, 6.3), ``ceil(log2(a / max))`` of the exact quotient
        (NVIDIA), ``ceil(log2 a) - emax``, or the exponent of a rounded to the type's mantissa, ties up, ``- emax``
        (AMD).
        Default: "floor" for MX formats. Other formats have one rule each and take none.
    rounding : {"nearest_even", "nearest_away", "toward_zero", "stochastic"}
        Of the elements.
    pow2 : bool, optional
        Formats with float32 scales: round the encode scale down to a power of two. Default: False for one scale a
        tensor, True for one a block.
    eps : float
        Formats with float32 scales: the least magnitude of a block; smaller ones count as `eps`.
    zero_scale : int, optional
        The e8m0 byte of an MX block of zeros. Default: 0.
    keeps_negative_zero : bool
        False: inputs of -0, and products with the encode scale that underflow float32, become +0. What the element type
        rounds to zero keeps its sign.

    Notes
    -----
    A format refuses the options that it has no use for.

    Examples
    --------
    >>> import dlfp4
    >>> dlfp4.Recipe(scale_rule="ceil").rounding
    'nearest_even'
    """

    scale_rule: ScaleRule | None = None
    rounding: Rounding = "nearest_even"
    pow2: bool | None = None
    eps: float = 0.0
    zero_scale: int | None = None
    keeps_negative_zero: bool = True

    def __post_init__(self) -> None:
        if self.scale_rule not in (None, *SCALE_RULES):
            raise ValueError(f"scale_rule={self.scale_rule!r}: expected None or one of {', '.join(SCALE_RULES)}")
        if self.rounding not in ROUNDINGS:
            raise ValueError(f"rounding={self.rounding!r}: expected one of {', '.join(ROUNDINGS)}")
        if self.zero_scale is not None and (type(self.zero_scale) is not int or self.zero_scale not in range(255)):
            raise ValueError(f"zero_scale={self.zero_scale!r}: expected an e8m0 byte, an integer from 0 to 254")
        eps: Any = self.eps
        if not isinstance(eps, Real) or not 0 <= float(eps) <= float(np.finfo(np.float32).max):
            raise ValueError(f"eps={self.eps!r}: expected a finite float32, 0 or more")
        for name, flags in (("pow2", (None, True, False)), ("keeps_negative_zero", (True, False))):
            if not any(getattr(self, name) is flag for flag in flags):
                raise ValueError(f"{name}={getattr(self, name)!r}: expected {', '.join(map(str, flags))}")


# Element types of what is quantized, and of values and products.
FLOATS = ("float32", "bfloat16", "float16")

# The kinds of formats that have a use for an option; all kinds have one for the options that are not named.
KINDS_OF_OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"scale_rule": ("power",), "pow2": ("largest",), "eps": ("largest",), "zero_scale": ("power",)}
)
FORMATS_OF_KIND = MappingProxyType(
    {"two_level": "nvfp4 formats", "power": "mx formats", "largest": "formats with float32 scales"}
)

_EVEN = Recipe(scale_rule="even")

# What the world's libraries do, by the kind of a format: the OCP reference and torchao; TransformerEngine, cuDNN and
# FlashInfer on NVIDIA; AITER on AMD, and ROCm's early kernel of TransformerEngine.
RECIPES: Mapping[str, Mapping[str, Recipe]] = MappingProxyType(
    {
        "ocp": {"power": Recipe(scale_rule="floor")},
        "nvidia": {"two_level": Recipe(), "power": Recipe(scale_rule="rceil"), "largest": Recipe()},
        "aiter": {"power": _EVEN},
        "rocm": {"power": _EVEN},
        "transformer-engine-rocm": {
            "power": Recipe(scale_rule="even", rounding="nearest_away", zero_scale=127, keeps_negative_zero=False)
        },
    }
)


def find_recipe(format: Format, recipe: Recipe | str | None) -> Recipe:
    """The recipe that a format takes; ValueError where the two do not go together."""
    if recipe is None:
        return RECIPES["ocp"]["power"] if format.kind == "power" else Recipe()
    chosen = recipe if isinstance(recipe, Recipe) else _named_recipe(format, recipe)
    for field in fields(Recipe):
        value, kinds = getattr(chosen, field.name), KINDS_OF_OPTIONS.get(field.name)
        if kinds is not None and format.kind not in kinds and value != field.default:
            users = " and ".join(FORMATS_OF_KIND[kind] for kind in kinds)
            raise ValueError(
                f"recipe={recipe!r} has {field.name}={value!r}, for which {format} has no use: it is for {users}; "
                f"give a Recipe without it"
            )
    return chosen


def _named_recipe(format: Format, name: str) -> Recipe:
    """What a named recipe is for a format."""
    if name not in RECIPES:
        near = did_you_mean(name, RECIPES)
        raise ValueError(f"recipe={name!r}: expected a dlfp4.Recipe or one of {', '.join(RECIPES)}{near}")
    if format.kind not in RECIPES[name]:
        users = " and ".join(FORMATS_OF_KIND[kind] for kind in RECIPES[name])
        raise ValueError(
            f"recipe={name!r} is for {users}; {format} has one rule of its own: leave recipe out, or give Recipe(...)"
        )
    return RECIPES[name][format.kind]
