"""Which tensors of a model are quantized, along which axis, and why the others are kept.

Only the weights of linear layers are quantized by default, as their names and shapes tell them. What is already
quantized, in a convention known here or not, is kept with all that belongs to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Literal

import numpy as np

import dlfp4
from dlfp4 import Recipe, ScaledTensor, Tensor
from dlfp4._core import _buffers_of, _find_format, _parse_flag
from dlfp4.checkpoints.conventions import (
    as_it_comes_back,
    caution,
    check_mapping,
    find_spelling,
    scales_shape,
    why_unknown,
)
from dlfp4.checkpoints.names import fused_with, last, listed, module_of
from dlfp4.checkpoints.roles import FLAG, Model
from dlfp4.extents import bounded_product
from dlfp4.formats import Format, find_recipe
from dlfp4.frameworks.base import is_row_major
from dlfp4.suggest import did_you_mean, is_one_of

GPT_OSS = "gpt-oss"  # whose experts were (experts, in, out), and are stored as (experts, out, in)
MOST_ELEMENTS = 1 << 59  # of the other extents of an empty tensor: as float64 NumPy addresses no more
TURNING = ("gptq",)  # whose loaders take layers that were stored as (in, out)


@dataclass(frozen=True)
class Choice:
    """What is to become of one tensor.

    Parameters
    ----------
    name : str
        Of the tensor.
    quantized : bool
        Whether it is to be quantized.
    reason : str
        Why it is kept; of a quantized one, what is worth saying about it, such as an unusual axis, or "".
    axis : int
        The axis along which its blocks run, -1 or -2: the one over which products with it sum.
    fused : tuple of str
        The tensors, itself among them, that engines multiply by as by one matrix, such as gate and up. They are to have
        one global scale.
    global_scale : float, optional
        That scale, once it is known.
    """

    name: str
    quantized: bool
    reason: str = ""
    axis: Literal[-1, -2] = -1
    fused: tuple[str, ...] = ()
    global_scale: float | None = None


def choose(
    tensors: Mapping[str, Any],
    format: str | Format,
    *,
    convention: str | None = None,
    include: str | Sequence[str] | None = (),
    exclude: str | Sequence[str] | None = (),
    include_embeddings: bool = False,
    include_heads: bool = False,
    include_routers: bool = False,
    axis: int | None = None,
    roles: Mapping[str, str] | None = None,
) -> dict[str, Choice]:
    """Choose the tensors of a model to quantize; by default, the weights of its linear layers alone.

    Names, element types and shapes decide, and no data is read. Embeddings, output heads, routers of experts, norms,
    biases, convolutions, positional tables and what is already quantized are kept. So is what the format or the
    convention cannot hold.

    Parameters
    ----------
    tensors : mapping of str to object
        All tensors of the model, of all its files: anything with ``dtype`` and ``shape``, or pairs of the two. A
        part whose weight lies in another file is recognised only where both are given.
    format : str or Format
        A row of :func:`dlfp4.formats`.
    convention : str, optional
        Keep what it cannot store; see :func:`dlfp4.checkpoints.split_parts`. Without `include`, also keep what its
        loaders do not look for, such as stacks of experts where they know layers alone.
    include, exclude : str or sequence of str
        Patterns of names. A tensor may be quantized if its name matches one of `include` (an empty `include` matches
        all) and none of `exclude`. ``lm_head`` or ``mlp.gate`` matches where these are whole components of the name;
        a pattern with ``*``, ``?`` or ``[`` matches the name, or the name of a module that holds the tensor; what
        follows ``re:`` is a regular expression for the beginning of either. Each pattern must match something.
    include_embeddings, include_heads, include_routers : bool
        Quantize these, too.
    axis : {-1, -2}, optional
        The axis over which products with stacks of experts sum: -1 for (experts, out, in), -2 for (experts, in, out).
        By default the shapes of the stacks that belong together tell it. Who says it names the stacks.
    roles : mapping of str to str, optional
        By name, what tensors are, or why they are kept, where more is known of them than names tell: "embedding".

    Returns
    -------
    dict of str to Choice
        One for each tensor, in the same order.

    Raises
    ------
    ValueError
        A pattern matches nothing or is not a regular expression, the format or the convention is unknown, the
        convention does not store the format, or `axis` is none.
    TypeError
        A pattern is not a string.

    Examples
    --------
    >>> from dlfp4.checkpoints import selection
    >>> shapes = {"lm_head.weight": ("bfloat16", (512, 64)), "layers.0.up_proj.weight": ("bfloat16", (128, 64))}
    >>> for choice in selection.choose(shapes, "nvfp4").values():
    ...     print(choice.name, choice.quantized, choice.reason or "-")
    lm_head.weight False output head; include_heads quantizes it
    layers.0.up_proj.weight True -
    """
    if not is_one_of(axis, (None, -1, -2)):
        raise ValueError(f"axis={axis!r}: expected None, -1 (experts, out, in) or -2 (experts, in, out)")
    check_mapping("tensors", tensors, "tensors")
    chosen = _find_format(format)
    if convention is not None:
        find_spelling(chosen, convention)
    shapes = {name: described(x) for name, x in tensors.items()}
    included, excluded = as_patterns("include", include), as_patterns("exclude", exclude)
    wanted, unwanted = find_matches("include", included, shapes), find_matches("exclude", excluded, shapes)
    order = -2 if axis is None and convention == GPT_OSS else axis
    flags = {"embeddings": include_embeddings, "heads": include_heads, "routers": include_routers}
    model = Model(shapes, {name: _parse_flag(flag, FLAG + name) for name, flag in flags.items()}, order, roles)
    choices = {}
    for name, x in tensors.items():
        reason = (
            f"already {x.format}" if isinstance(x, ScaledTensor)
            else model.why_quantized(name) or why_excluded(name, included, wanted, unwanted)
            or model.why_no_weight(name, named=bool(included))
        )  # fmt: skip
        choice = Choice(name, False, reason) if reason else Choice(name, True, *model.orient(name))
        choice = fit(choice, shapes[name][1], chosen, convention)
        choice = choice if included else look_for(choice, len(shapes[name][1]), convention, axis is not None)
        choices[name] = with_caution(choice, chosen, convention)
    if has_unit(chosen, convention):
        flat = {name for name, (_, shape) in shapes.items() if len(shape) == 2}
        return {name: replace(choice, fused=fused_among(choice, choices, flat)) for name, choice in choices.items()}
    return choices


def quantize_chosen(
    x: Any,
    choice: Choice,
    format: str | Format,
    *,
    convention: str | None = None,
    recipe: Any = None,
) -> ScaledTensor:
    """Quantize one chosen tensor along its axis.

    Conventions store blocks along the last axis. For them a matrix stored as (in, out) is transposed, so the result
    has the shape (..., out, in). It has the values that come back from where it is stored.
    """
    chosen = _find_format(format)
    options = options_of(x, choice, chosen, convention, recipe)
    if is_transposed(choice, convention):
        x = dlfp4.asarray(x).mT
    q: ScaledTensor = dlfp4.quantize(x, chosen, **options)
    return q if convention is None else as_it_comes_back(q, find_spelling(chosen, convention))


def options_of(x: Any, choice: Choice, format: Format, convention: str | None, recipe: Any) -> dict[str, Any]:
    """What :func:`dlfp4.quantize` is given for a chosen tensor, of which only element type and shape are asked."""
    own = recipe_of(x, format, convention, recipe)
    options: dict[str, Any] = {"recipe": own, "axis": -1 if is_transposed(choice, convention) else choice.axis}
    if choice.global_scale is not None and own.global_scale_per == "tensor":
        options["global_scale"] = choice.global_scale
    elif format.has_global_scale and not has_unit(format, convention):
        options["global_scale"] = 1.0  # there is no place for another one
    return options


def without_flag(reason: str) -> str:
    """A reason, for callers whose own caller has no such flags of :func:`choose` as it names."""
    return reason.partition(f"; {FLAG}")[0]


def is_transposed(choice: Choice, convention: str | None) -> bool:
    """Whether a chosen tensor is stored as its transpose."""
    return convention is not None and choice.axis == -2


# ---- One global scale for several tensors


def has_unit(format: Format, convention: str | None) -> bool:
    """Whether tensors have a global scale, and the convention has a place for it."""
    return format.has_global_scale and (convention is None or bool(find_spelling(format, convention).global_scale))


def recipe_of(x: Any, format: Format, convention: str | None, recipe: Any) -> Recipe:
    """The recipe for a tensor, with the scales that the convention's loaders hold where the recipe does not say it."""
    dtype, shape = described(x)
    found = find_recipe(format, recipe)
    if len(shape) < 3 and found.global_scale_per == "matrix":  # which says of stacks that they have several
        return replace(found, global_scale_per="tensor")
    if convention is None:
        return found
    spelling = find_spelling(format, convention)
    if format.kind == "largest" and spelling.held_scales and found.scale_dtype is None:
        type_of_scales: Any = dtype if spelling.held_scales == "weights" else spelling.held_scales
        return replace(found, scale_dtype=type_of_scales)
    if len(shape) > 2 and format.has_global_scale and spelling.per_matrix and found.global_scale_per == "tensor":
        return replace(found, global_scale_per="matrix")
    return found


def fused_among(choice: Choice, choices: Mapping[str, Choice], matrices: Collection[str]) -> tuple[str, ...]:
    """The chosen matrices that are fused with this one, itself among them; empty where there are no others."""
    names = fused_with(choice.name).values() if choice.quantized and choice.name in matrices else ()
    members = tuple(name for name in names if name in matrices and choices[name].quantized)
    return members if len(members) > 1 else ()


def shared_global_scale(tensors: Iterable[Any], format: str | Format, recipe: Any = None) -> float:
    """The global scale of the tensor that needs the largest one, as :func:`dlfp4.quantize` would choose it."""
    largest = max(largest_magnitude(dlfp4.asarray(x)) for x in tensors)
    block = np.zeros((16, 16), np.float32)
    block[0, 0] = largest
    one = replace(find_recipe(_find_format(format), recipe), global_scale_per="tensor")
    unit = dlfp4.quantize(block, format, recipe=one).global_scale
    return 1.0 if unit is None else float(unit.item())


# By element type: unsigned integers of its size, and the bits of infinity.
BITS: Mapping[str, tuple[Any, int]] = {
    "float32": (np.uint32, 0x7F800000),
    "bfloat16": (np.uint16, 0x7F80),
    "float16": (np.uint16, 0x7C00),
}
CHUNK = 1 << 18  # elements, whose bits lie in the cache


def largest_magnitude(x: Tensor) -> float:
    """The largest finite magnitude, found by the bits: those of finite numbers are in the numbers' order."""
    integers, infinity = BITS[x.dtype.name]
    line = (x if is_row_major(x) else x.copy()).reshape(-1)
    found = 0
    for start in range(0, line.size, CHUNK):
        bits = line[start : start + CHUNK].view(integers).to_numpy() & (np.iinfo(integers).max >> 1)
        top = int(bits.max())
        found = max(found, top if top < infinity else int(bits[bits < infinity].max(initial=0)))
    return float(np.array([found], integers).view(x.dtype)[0])


def described(x: Any) -> tuple[str, tuple[int, ...]]:
    """The name of the element type, and the shape."""
    if isinstance(x, ScaledTensor):
        return x.format.element.name, x.shape
    dtype, shape = x if isinstance(x, tuple) else (x.dtype, x.shape)
    return str(getattr(dtype, "name", dtype)).removeprefix("torch."), tuple(shape)


def fit(choice: Choice, shape: tuple[int, ...], format: Format, convention: str | None) -> Choice:
    """The choice, or the word that its format or convention does not hold a tensor of that shape."""
    if not choice.quantized:
        return choice
    if 0 in shape and bounded_product(filter(None, shape)) > MOST_ELEMENTS:
        return replace(choice, quantized=False, reason=f"empty, and of shape {shape} NumPy has no arrays")
    turned = shape if choice.axis == -1 else (*shape[:-2], shape[-1], shape[-2])
    if convention and scales_shape(format, turned) is None:
        return replace(choice, quantized=False, reason=f"{convention} holds no {format} of shape {shape}")
    short = format.kind == "largest" and not format.has_integers  # whose last blocks may be
    length = 1 if format.block is None or short else format.block[1] or 1
    try:
        _buffers_of(shape, format, choice.axis, "linear", False)
    except ValueError:
        fits = False
    else:
        fits = turned[-1] % length == 0
    if fits:
        return choice
    return replace(
        choice,
        quantized=False,
        reason=f"{turned[-1]} elements along axis {choice.axis} do not divide into blocks of {format}",
    )


def with_caution(choice: Choice, format: Format, convention: str | None) -> Choice:
    """The choice, and what a loader makes of the tensor without a word."""
    word = caution(choice.name, format, convention) if choice.quantized else ""
    return replace(choice, reason="; ".join(filter(None, (choice.reason, word)))) if word else choice


def look_for(choice: Choice, ndim: int, convention: str | None, names_stacks: bool) -> Choice:
    """The choice, or the word that loaders of its convention do not look for the parts of such a tensor."""
    if not choice.quantized or convention is None:
        return choice
    reason = why_unloadable(choice, ndim, convention, names_stacks)
    return replace(choice, quantized=False, reason=f"{reason}; include names it") if reason else choice


def why_unloadable(choice: Choice, ndim: int, convention: str, names_stacks: bool) -> str:
    """Why loaders of the convention would leave the values of a tensor to chance; "" where they do not."""
    unknown = why_unknown(ndim, convention)
    if unknown or ndim == 3:
        return "" if names_stacks and ndim == 3 else unknown
    if choice.axis == -2 and convention not in TURNING:
        return f"stored as (in, out), which loaders of {convention} do not expect"
    if module_of(choice.name) and last(choice.name) != "weight":
        return f"not a weight of a module, which loaders of {convention} look for"
    return ""


# ---- Patterns of names


def as_patterns(option: str, given: Any) -> tuple[str, ...]:
    """One pattern, several or none; TypeError for what is no string."""
    if given is None or isinstance(given, str):
        return () if given is None else (given,)
    patterns = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"{option}={given!r}: expected a pattern of names as a string, or several in a list")
    return patterns


def find_matches(option: str, patterns: Iterable[str], names: Collection[str]) -> set[str]:
    """The names that match one of the patterns; ValueError for a pattern that matches none, such as a misspelt one."""
    found: set[str] = set()
    for pattern in patterns:
        matches = as_test(option, pattern)
        matched = {name for name in names if matches(name)}
        if not matched:
            components = {component for name in names for component in name.split(".")}
            near = did_you_mean(pattern, [*components, *names])
            some = ", ".join(islice(names, 3))
            raise ValueError(f"{option}={pattern!r} matches no tensor of the model; its names are like {some}{near}")
        found |= matched
    return found


def check_included(include: str | Sequence[str] | None, chosen: Collection[str], kept: Mapping[str, str]) -> None:
    """ValueError for a pattern that chooses nothing, as all that it matches is kept for another reason.

    Parameters
    ----------
    include
        As :func:`choose` takes it.
    chosen : collection of str
        The names of the tensors to quantize.
    kept : mapping of str to str
        Why each of the others is kept.
    """
    for pattern in as_patterns("include", include):
        matches = as_test("include", pattern)
        if any(map(matches, chosen)):
            continue
        names: dict[str, list[str]] = {}  # by the reason
        for name, reason in kept.items():
            if matches(name):
                names.setdefault(reason, []).append(name)
        told = ", ".join(f"{listed(each)} ({reason})" for reason, each in names.items())
        raise ValueError(f"include={pattern!r} chooses nothing, as what it matches is kept: {told}")


def as_test(option: str, pattern: str) -> Callable[[str], bool]:
    """Whether a name matches the pattern."""
    if pattern.startswith("re:"):
        try:
            expression = re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise ValueError(f"{option}={pattern!r} is not a regular expression: {error}") from None
        return lambda name: any(expression.match(each) for each in (name, name.rpartition(".")[0]))
    if any(character in pattern for character in "*?["):
        return lambda name: any(fnmatchcase(each, pattern) for each in paths(name))
    return lambda name: f".{pattern.strip('.')}." in f".{name}."


def paths(name: str) -> list[str]:
    """The name, and the names of the modules that hold the tensor."""
    components = name.split(".")
    return [".".join(components[:stop]) for stop in range(len(components), 0, -1)]


def why_excluded(name: str, include: Sequence[str], wanted: set[str], unwanted: set[str]) -> str:
    """Why the patterns keep a tensor, or "" where they do not."""
    if name in unwanted:
        return "excluded"
    return "not included" if include and name not in wanted else ""
