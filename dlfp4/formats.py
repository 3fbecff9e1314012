"""The block-scaled formats, and the recipes by which their scales are chosen.

A format says how a tensor is stored: elements, blocks, scales. A recipe says how the scales follow from the data, and
how elements are rounded. The core makes the formats from the rows of ``formats.def``; nothing here repeats them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from types import MappingProxyType
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np

from dlfp4.extents import count_elements
from dlfp4.suggest import did_you_mean, is_one_of
from dlfp4.tables import in_columns

ScaleRule = Literal["floor", "rceil", "ceil", "even"]
ScaleOrder = Literal["global_first", "block_first", "input_type"]
FourOverSix = Literal["mean_absolute", "mean_squared"]
Rounding = Literal["nearest_even", "nearest_away", "nearest_zero", "toward_zero", "stochastic"]
RecipeName = Literal[
    "ocp", "nvidia", "transformer-engine", "transformer-engine-rocm", "flashinfer", "modelopt", "compressed-tensors",
    "deepseek", "deepseek-ue8m0", "aiter", "rocm", "ggml", "mlx",
]  # fmt: skip
ScaleDtype = Literal["float32", "bfloat16", "float16", "float8_e8m0fnu"]
GlobalScalePer = Literal["tensor", "row", "matrix"]
ZeroPointDtype = Literal["uint4", "int4", "uint8", "int8"]
BiasDtype = Literal["float32", "bfloat16", "float16"]
Activation = Literal["int8", "fp8_1x128", "mxfp8", "fp8_row"]
SCALE_RULES: tuple[str, ...] = get_args(ScaleRule)
ERRORS: tuple[str, ...] = get_args(FourOverSix)
SCALE_ORDERS: tuple[str, ...] = get_args(ScaleOrder)
SCALE_DTYPES: tuple[str, ...] = get_args(ScaleDtype)
GLOBAL_SCALES: tuple[str, ...] = get_args(GlobalScalePer)
ROUNDINGS: tuple[str, ...] = get_args(Rounding)
ZERO_POINTS: tuple[str, ...] = get_args(ZeroPointDtype)
BIASES: tuple[str, ...] = get_args(BiasDtype)
ROTATED_LENGTH = 16  # elements that the Hadamard transform takes at a time
CHOICES = MappingProxyType(  # of a recipe's options that are names
    {
        "scale_rule": (None, *SCALE_RULES),
        "scale_order": (None, *SCALE_ORDERS),
        "rounding": ROUNDINGS,
        "scale_dtype": (None, *SCALE_DTYPES),
        "global_scale_per": GLOBAL_SCALES,
    }
)


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
        ``(lines, length)``: so many lines of so many elements share a scale; ``(1, None)``: each line has one, however
        long it is; None: the whole tensor has one.
    kind : {"two_level", "power", "largest"}
        Scales are float8 in units of a float32 scale of the tensor; powers of two; or float32 that map a block's
        largest magnitude to the element type's largest value, or to 7.5 of int4 and uint4.
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
    block: tuple[int, int | None] | None
    kind: Literal["two_level", "power", "largest"]
    repeats_scales: bool
    number: int

    @property
    def scales_lines(self) -> bool:
        """Whether each line has one scale, of all its elements."""
        return self.block is not None and self.block[1] is None

    @property
    def has_integers(self) -> bool:
        """Whether elements are integers, with a zero point or a bias a block where a tensor has them."""
        return self.element.name in ("int4", "uint4")

    def block_in(self, lines: int, length: int) -> tuple[int, int]:
        """The block, with what it is of a matrix of so many lines of so many elements: that of the whole tensor is all
        of it.
        """
        if self.block is None:
            return max(lines, 1), max(length, 1)
        return self.block[0], self.block[1] or max(length, 1)

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
        return "\n".join(in_columns([head, *map(_described, self._rows.values())]))


def _described(row: Format) -> tuple[str, ...]:
    """The columns of a format's row."""
    block = "tensor" if row.block is None else "line" if row.scales_lines else "x".join(map(str, row.block))
    return row.name, row.element.name, block, row.scale.name, "float32" if row.has_global_scale else "-"


@dataclass(frozen=True, slots=True, repr=False)
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
    rounding : {"nearest_even", "nearest_away", "nearest_zero", "toward_zero", "stochastic"}
        Of the elements. "nearest_zero" sends ties toward zero (ggml, MLX, DeepGEMM).
    pow2 : bool, optional
        Formats with float32 scales: round the encode scale down to a power of two, the stored scale up ("ue8m0").
        Default: False for one scale a tensor or a row and where `divide` is True, else True.
    eps : float
        MX formats and those with float32 scales: the least magnitude of a block; smaller ones count as `eps`.
    zero_scale : int, optional
        MX formats: the e8m0 byte of a block of zeros. NVFP4: the e4m3 byte that is stored for a scale of zero, of a
        block of zeros or one that rounds to zero. Default: 0.
    scale_dtype : {"float32", "bfloat16", "float16", "float8_e8m0fnu"}, optional
        Formats with float32 scales: the type in which the scales are stored, exactly. Those of 16 bits are rounded to
        it, to nearest even but never to zero, before elements are scaled by them; "float8_e8m0fnu" needs
        ``pow2=True``, which is the default of blocks. Default: "float32".
    global_scale_per : {"tensor", "row", "matrix"}
        NVFP4: one global scale for the tensor, ``()``; one for each line along which blocks run, ``(M,)``, as
        TransformerEngine's ``row_scaled_nvfp4``; or one for each matrix of a stack ``(E, N, K)``, ``(E,)``, such as
        experts'. A is then the largest magnitude of that row or matrix alone, which is quantized as if it were alone.
    keeps_negative_zero : bool
        False: inputs of -0, and products with the encode scale that underflow float32, become +0. What the element type
        rounds to zero keeps its sign.
    rounds_to_negative_zero : bool
        False: what the element type rounds to zero is +0 as well.
    divide : bool
        Formats with float32 scales: ``s = a / max`` and ``q = round(x / s)``, instead of ``s = 1 / (max / a)`` and
        ``q = round(x * (max / a))`` (DeepSeek, vLLM, SGLang). NVFP4: ``s = e4m3(a / (6 * g))`` and
        ``q = round(x / (s * g))``, where codes under a scale of zero are zero (ModelOpt, MLX). Where `pow2` is True
        both are the same. int4 and uint4 always divide.
    scale_order : {"global_first", "block_first", "input_type"}, optional
        NVFP4: how a block's scale is computed from its largest magnitude a and the tensor's encode scale G:
        ``a * (G * (1/6))`` (TransformerEngine), ``G * (a * (1/6))``, where codes under a scale of zero are zero
        (FlashInfer, vLLM), or ``G * (a / 6)`` with a / 6 and both steps of ``G = 1 / A * 2688`` rounded to the input's
        type, where scales are divided by G and G is 1 where it would overflow (compressed-tensors). Default:
        "global_first". FP8 with float32 scales and `divide`, int4 and uint4 take "input_type", too: ``a / max`` is
        rounded to the input's type, where one of zero becomes one unit in the last place of 1, and so is ``x / s``, but
        where `scale_dtype` is another type of 16 bits.
    scale_floor : float, optional
        NVFP4 and MX formats: the least scale that is stored, as a number of the scales' type, such as 2**-9; blocks of
        zeros go by `zero_scale`.
    four_over_six : {"mean_absolute", "mean_squared"}, optional
        NVFP4: each block is quantized with its largest element on 6 and on 4, with scales ``s = e4m3((a / 6) * G)`` and
        1.5 times that, and the one with the smaller error of this kind is kept; ties keep 6. Errors are
        ``((q * s) * A) / (6 * largest_scale) - x``, of the tensor's largest magnitude A, added up in order,
        a line of the block at a time (TransformerEngine). Not with "stochastic", `divide` or `scale_order`.
    largest_scale : {256, 448}, optional
        NVFP4 with `four_over_six`: the scale of the block that has A. 256 leaves room for 4 in every block. Default:
        256.

    Notes
    -----
    A format refuses the options that it has no use for; int4 and uint4 take `rounding`, `eps`, `scale_order` and
    `scale_dtype` of 16 or 32 bits.

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
    rounds_to_negative_zero: bool = True
    divide: bool = False
    scale_order: ScaleOrder | None = None
    scale_floor: float | None = None
    four_over_six: FourOverSix | None = None
    largest_scale: Literal[256, 448] | None = None
    scale_dtype: ScaleDtype | None = None
    global_scale_per: GlobalScalePer = "tensor"

    def __repr__(self) -> str:
        """The options that differ from the usual ones: a call that makes the recipe."""
        options = ((field, getattr(self, field.name)) for field in fields(self))
        said = [f"{field.name}={value!r}" for field, value in options if value != field.default]
        return f"Recipe({', '.join(said)})"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if not is_one_of(getattr(self, name), choices):
                expected = ", ".join("None" if choice is None else choice for choice in choices)
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {expected}")
        self._check_four_over_six()
        if self.zero_scale is not None and (type(self.zero_scale) is not int or self.zero_scale not in range(255)):
            raise ValueError(f"zero_scale={self.zero_scale!r}: expected a byte of a scale, an integer from 0 to 254")
        for name in ("eps", "scale_floor"):
            number: Any = getattr(self, name)
            if number is None and name == "scale_floor":
                continue
            if not isinstance(number, Real) or not 0 <= float(number) <= float(np.finfo(np.float32).max):
                raise ValueError(f"{name}={number!r}: expected a finite float32, 0 or more")
        for name in ("pow2", "keeps_negative_zero", "rounds_to_negative_zero", "divide"):
            flags = (None, True, False) if name == "pow2" else (True, False)
            if not any(getattr(self, name) is flag for flag in flags):
                raise ValueError(f"{name}={getattr(self, name)!r}: expected {', '.join(map(str, flags))}")

    def _check_four_over_six(self) -> None:
        if not is_one_of(self.four_over_six, (None, *ERRORS)):
            raise ValueError(f"four_over_six={self.four_over_six!r}: expected None or one of {', '.join(ERRORS)}")
        if not is_one_of(self.largest_scale, (None, 256, 448)):
            raise ValueError(f"largest_scale={self.largest_scale!r}: expected None, 256 or 448")
        if self.four_over_six is None and self.largest_scale is not None:
            raise ValueError("largest_scale is for four_over_six: give both or neither")
        if self.four_over_six is not None and (self.divide or self.scale_order or self.rounding == "stochastic"):
            raise ValueError(
                "four_over_six has an order of operations of its own: leave out divide, scale_order and "
                "stochastic rounding"
            )


# Element types of what is quantized, and of values and products.
FLOATS = ("float32", "bfloat16", "float16")

# What products make of float activations: the format in which these are quantized by its default recipe. Kernels of
# hosts make integers themselves, block by block, of which there is no tensor.
ACTIVATIONS: Mapping[str, str | None] = MappingProxyType(
    {"int8": None, "fp8_1x128": "fp8_1x128", "mxfp8": "mxfp8_e4m3", "fp8_row": "fp8_row"}
)

# The kinds of formats that have a use for an option; all kinds have one for the options that are not named.
KINDS_OF_OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "scale_rule": ("power",),
        "pow2": ("largest",),
        "eps": ("power", "largest"),
        "zero_scale": ("two_level", "power"),
        "divide": ("two_level", "largest"),
        "scale_order": ("two_level", "largest"),
        "scale_floor": ("two_level", "power"),
        "four_over_six": ("two_level",),
        "largest_scale": ("two_level",),
        "scale_dtype": ("largest",),
        "global_scale_per": ("two_level",),
    }
)
FORMATS_OF_KIND = MappingProxyType(
    {"two_level": "nvfp4 formats", "power": "mx formats", "largest": "formats with float32 scales"}
)
OPTIONS_OF_INTEGERS = ("rounding", "eps", "divide", "scale_order", "scale_dtype")  # they always divide

_RCEIL, _EVEN = Recipe(scale_rule="rceil"), Recipe(scale_rule="even")
_TRANSFORMER_ENGINE = {"two_level": Recipe(), "power": _RCEIL, "largest": Recipe()}

# What the world's libraries do, by a format's kind or, where they treat elements apart, by its kind and element: the
# OCP reference and torchao; TransformerEngine and cuDNN; ROCm's early kernel of it; FlashInfer and vLLM; TensorRT Model
# Optimizer; compressed-tensors (no rule here is that of its MXFP8, which rounds as FP4 does); DeepSeek's kernels and
# DeepGEMM, and the same with scales of powers of two; AITER; ggml; MLX (whose NVFP4 has a global scale of 1).
RECIPES: Mapping[str, Mapping[str, Recipe]] = MappingProxyType(
    {
        "ocp": {"power": Recipe(scale_rule="floor")},
        "nvidia": _TRANSFORMER_ENGINE,
        "transformer-engine": _TRANSFORMER_ENGINE,
        "transformer-engine-rocm": {
            "power": Recipe(scale_rule="even", rounding="nearest_away", zero_scale=127, keeps_negative_zero=False)
        },
        "flashinfer": {"two_level": Recipe(scale_order="block_first"), "power": _RCEIL},
        "modelopt": {
            "two_level": Recipe(divide=True, scale_floor=2.0**-9, zero_scale=0x38, keeps_negative_zero=False),
            "power of float4_e2m1fn": Recipe(scale_rule="rceil", rounding="nearest_zero"),
        },
        "compressed-tensors": {
            "two_level": Recipe(divide=True, scale_order="input_type", zero_scale=0x20, keeps_negative_zero=False),
            "power of float4_e2m1fn": Recipe(scale_rule="even", keeps_negative_zero=False),
            "largest": Recipe(divide=True, scale_order="input_type", keeps_negative_zero=False),
            "largest of int4": Recipe(scale_order="input_type"),
            "largest of uint4": Recipe(scale_order="input_type"),
        },
        "deepseek": {
            "power of float4_e2m1fn": Recipe(
                scale_rule="rceil", rounding="nearest_zero", eps=1e-4, rounds_to_negative_zero=False
            ),
            "largest": Recipe(divide=True, eps=1e-4),
        },
        "deepseek-ue8m0": {"largest": Recipe(pow2=True, eps=1e-4)},
        "aiter": {"power": _EVEN},
        "rocm": {"power": _EVEN},
        "ggml": {
            "power of float4_e2m1fn": Recipe(scale_rule="floor", rounding="nearest_zero", rounds_to_negative_zero=False)
        },
        "mlx": {
            "two_level": Recipe(divide=True, rounding="nearest_zero", rounds_to_negative_zero=False),
            "power of float4_e2m1fn": Recipe(
                scale_rule="rceil", rounding="nearest_zero", zero_scale=127, rounds_to_negative_zero=False
            ),
            "power of float8_e4m3fn": Recipe(scale_rule="rceil", zero_scale=127),
        },
    }
)


def scale_type(format: Format, name: str | None) -> np.dtype[Any]:
    """The type of a format's scales, by the `scale_dtype` that was asked for; ValueError where there is none."""
    if name is None or is_one_of(name, (format.scale.name,)):
        return format.scale
    if format.kind != "largest" or not is_one_of(name, SCALE_DTYPES):
        expected = ", ".join(SCALE_DTYPES) if format.kind == "largest" else format.scale.name
        raise ValueError(f"scale_dtype={name!r}: the scales of {format} are {format.scale.name}; expected {expected}")
    return np.dtype(getattr(ml_dtypes, name, name))


def pow2_of(format: Format, recipe: Recipe) -> bool:
    """Whether float32 scales are powers of two."""
    in_blocks = format.block is not None and not format.scales_lines and not recipe.divide
    in_blocks = in_blocks and not format.has_integers
    return in_blocks if recipe.pow2 is None else recipe.pow2


def check_granularity(format: Format, recipe: Recipe) -> None:
    """Refuse a type of scales, or global scales, that the format does not have."""
    holds_powers = format.kind == "largest" and scale_type(format, recipe.scale_dtype).name == "float8_e8m0fnu"
    if holds_powers and not pow2_of(format, recipe):
        raise ValueError(
            f"scale_dtype='float8_e8m0fnu' holds powers of two, which the scales of {format} by this recipe are not; "
            f"pass pow2=True"
        )
    check_global_scale(format, recipe.global_scale_per)


def check_global_scale(format: Format, per: str) -> None:
    """Refuse global scales that the format does not have."""
    if not is_one_of(per, GLOBAL_SCALES):
        raise ValueError(f"global_scale_per={per!r}: expected one of {', '.join(GLOBAL_SCALES)}")
    if per == "tensor":
        return
    if not format.has_global_scale:
        raise ValueError(f"global_scale_per={per!r}: {format} has no global scale")
    if per == "row" and format.block is not None and format.block[0] > 1:
        raise ValueError(
            f"global_scale_per='row': a block of {format} spans {format.block[0]} lines; use nvfp4, or 'matrix'"
        )


def check_recipe(recipe: object) -> None:
    """ValueError for what is no recipe of any format, such as a misspelt name."""
    if not isinstance(recipe, Recipe) and not (isinstance(recipe, str) and recipe in RECIPES):
        near = did_you_mean(recipe, RECIPES)
        raise ValueError(f"recipe={recipe!r}: expected None, a dlfp4.Recipe or one of {', '.join(RECIPES)}{near}")


def granularity_of(format: Format, shape: tuple[int, ...], axis: int, count: int) -> Literal["row", "matrix"]:
    """Which part of a tensor several global scales are of, by their number."""
    lines = shape[-1] if axis == -2 else count_elements(shape[:-1])
    return "row" if count == lines and format.block is not None and format.block[0] == 1 else "matrix"


def find_recipe(format: Format, recipe: Recipe | str | None) -> Recipe:
    """The recipe that a format takes; ValueError where the two do not go together."""
    if recipe is None:
        return RECIPES["ocp"]["power"] if format.kind == "power" else Recipe()
    chosen = recipe if isinstance(recipe, Recipe) else _named_recipe(format, recipe)
    if format.has_integers:
        _check_recipe_of_integers(format, chosen)
    for field in fields(Recipe):
        value, kinds = getattr(chosen, field.name), KINDS_OF_OPTIONS.get(field.name)
        if kinds is not None and format.kind not in kinds and value != field.default:
            users = " and ".join(FORMATS_OF_KIND[kind] for kind in kinds)
            raise ValueError(
                f"recipe={recipe!r} has {field.name}={value!r}, for which {format} has no use: it is for {users}; "
                f"give a Recipe without it"
            )
    _check_zero_scale(format, chosen)
    _check_scale_order(format, chosen)
    check_granularity(format, chosen)
    return chosen


def _check_scale_order(format: Format, recipe: Recipe) -> None:
    """Refuse an order of operations that float32 scales do not have."""
    if format.kind != "largest" or recipe.scale_order is None:
        return
    divides = recipe.divide or format.has_integers
    if recipe.scale_order != "input_type" or not divides or recipe.pow2:
        raise ValueError(
            f"recipe={recipe!r} has scale_order={recipe.scale_order!r}, for which {format} has no use: formats with "
            f"float32 scales take 'input_type' alone, with divide=True and without pow2"
        )


def _check_zero_scale(format: Format, recipe: Recipe) -> None:
    """Refuse a byte that is NaN or negative as a scale: what is under it has no codes."""
    byte = recipe.zero_scale
    if byte is None:
        return
    value = float(np.array(byte, np.uint8).view(format.scale))
    if math.isnan(value) or math.copysign(1, value) < 0:
        raise ValueError(
            f"zero_scale={byte}: as {format.scale}, the type of {format}'s scales, that is {value}; expected the byte "
            f"of zero or of a positive number"
        )


def _check_recipe_of_integers(format: Format, recipe: Recipe) -> None:
    """Refuse what integers have no use for."""
    for field in fields(Recipe):
        value = getattr(recipe, field.name)
        if field.name not in OPTIONS_OF_INTEGERS and value != field.default:
            raise ValueError(
                f"recipe={recipe!r} has {field.name}={value!r}, for which {format} has no use: integers take "
                f"{', '.join(OPTIONS_OF_INTEGERS)}; give a Recipe without it"
            )
    if recipe.scale_dtype == "float8_e8m0fnu":
        raise ValueError(
            f"scale_dtype='float8_e8m0fnu' holds powers of two, which the scales of {format} are not; expected "
            f"float32, bfloat16 or float16"
        )


def offsets_of(format: Format, zero_points: str | None, biases: str | None) -> str:
    """The type of what a block has beside its scale, "" for nothing: by its name or, where none is given, as `quantize`
    makes it.
    """
    for name, asked, choices in (("zero_points", zero_points, (*ZERO_POINTS, "none")), ("biases", biases, BIASES)):
        if not is_one_of(asked, (None, *choices)):
            raise ValueError(f"{name}={asked!r}: expected one of {', '.join(choices)}")
        if asked not in (None, "none") and not format.has_integers:
            raise ValueError(f"{name}={asked!r}: only formats of int4 and uint4 have {name}; {format} has none")
    if biases is not None:
        if zero_points not in (None, "none"):
            raise ValueError(f"zero_points={zero_points!r} and biases={biases!r}: a tensor has one of them, or neither")
        return biases
    if zero_points is None:
        return own_offsets(format)
    return "" if zero_points == "none" else zero_points


def offset_parts(q: Any) -> dict[str, Any]:
    """The zero points or the biases of a ScaledTensor, by that name: none, or one of the two."""
    parts = {"zero_points": q.zero_points, "biases": q.biases}
    return {name: part for name, part in parts.items() if part is not None}


def own_offsets(format: Format) -> str:
    """The type of the zero points that `quantize` makes, "" for none."""
    return "uint8" if format.element.name == "uint4" else ""


def _named_recipe(format: Format, name: str) -> Recipe:
    """What a named recipe is for a format."""
    check_recipe(name)
    found = _row_of(name, format)
    if found is None:
        takes = [each for each in RECIPES if _row_of(each, format) is not None]
        raise ValueError(
            f"recipe={name!r} is for {_users_of(name)}; {format} takes {', '.join(takes)}: name one of these, or none"
        )
    return found


def _row_of(name: str, format: Format) -> Recipe | None:
    """What a named recipe is for a format; None where it has no rule for it."""
    rows = RECIPES[name]
    of_kind = None if format.has_integers else rows.get(format.kind)
    return rows.get(f"{format.kind} of {format.element}", of_kind)


def _users_of(name: str) -> str:
    """The formats that a named recipe is for, in words."""
    elements: dict[str, list[str]] = {}
    for key in RECIPES[name]:
        kind, _, element = key.partition(" of ")
        elements.setdefault(kind, []).append(element)
    words = {**FORMATS_OF_KIND, "largest": "FP8 formats"}
    return " and ".join(
        words[kind] + (" and integers" if "int4" in of else "" if "" in of else f" of {' and '.join(of)}")
        for kind, of in elements.items()
    )


def largest_scale_of(recipe: Recipe) -> float:
    """What the tensor's largest magnitude makes a scale, or 0: the largest value of the scales' type."""
    return 0.0 if recipe.four_over_six is None else float(recipe.largest_scale or 256)


def code_of_scale(format: Format, scale: float | None) -> int:
    """The byte of a format's scale that is worth so much, or 0; ValueError where there is none."""
    if scale is None:
        return 0
    stored = np.array(scale, np.float32).astype(format.scale)
    if float(stored) != float(scale):
        raise ValueError(f"scale_floor={scale!r} is not a value of {format.scale}, the type of {format}'s scales")
    return int(stored.view(np.uint8))
