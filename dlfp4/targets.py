"""What ``ScaledTensor.to`` makes a tensor: the format that a format, a convention or a recipe stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dlfp4 import _core, spellings
from dlfp4._core import ScaledTensor, formats
from dlfp4.formats import RECIPES, Format, Recipe
from dlfp4.frameworks.base import SUBBYTE
from dlfp4.spellings import SPELLINGS
from dlfp4.suggest import did_you_mean

if TYPE_CHECKING:
    from dlfp4._core import _RecipeLike


@dataclass(frozen=True, slots=True)
class Convention:
    """The formats that other software stores, those of its own elements first.

    Parameters
    ----------
    formats : tuple of str
        In the order of preference.
    without_global_scale : tuple of str
        Those of two levels that it stores without a scale of the tensor.
    has_biases : bool
        Whether it stores biases beside integers, and not zero points alone.
    """

    formats: tuple[str, ...]
    without_global_scale: tuple[str, ...] = ()
    has_biases: bool = False


def of_files(name: str) -> Convention:
    """What a convention's files hold, those with float32 scales after the others."""
    rows = [row for row in SPELLINGS if row.convention == name]
    held = {each: row for row in rows for each in row.formats}
    known = formats()
    return Convention(
        tuple(sorted(held, key=lambda each: known[each].kind == "largest")),
        tuple(each for each, row in held.items() if known[each].has_global_scale and not row.global_scale),
        any(".biases" in row.further for row in rows),
    )


CONVENTIONS = {
    **{name: of_files(name) for name in spellings.CONVENTIONS},
    "ggml": Convention(("mxfp4", "nvfp4")),
    "torchao": Convention(("nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2")),
}


class Target(NamedTuple):
    """What a tensor is to become."""

    format: Format
    recipe: _RecipeLike | None  # of what is rounded
    requantizes: bool  # also what is in the format already
    has_unit: bool  # a scale of the whole tensor, where the format has one
    has_biases: bool = True  # biases of integers stay what they are


def find_target(q: ScaledTensor, target: Any, recipe: _RecipeLike | None) -> Target:
    """The format, convention or recipe that was asked for; ValueError where there is none of that name."""
    if isinstance(target, Recipe) or (isinstance(target, str) and target in RECIPES and target not in CONVENTIONS):
        if recipe is not None:
            raise ValueError(f"to({target!r}, recipe={recipe!r}) names two recipes; give one")
        chosen: Any = target
        return Target(q.format, chosen, requantizes=True, has_unit=True)
    name = str(target)
    if name in CONVENTIONS:
        convention = CONVENTIONS[name]
        format = nearest_format(q.format, convention)
        has_unit = format.name not in convention.without_global_scale
        return Target(format, recipe, requantizes=False, has_unit=has_unit, has_biases=convention.has_biases)
    if name not in formats():
        known = [*formats(), *CONVENTIONS, *RECIPES]
        raise ValueError(
            f"to({target!r}): expected a format ({', '.join(formats())}), a convention ({', '.join(CONVENTIONS)}) or a "
            f"recipe ({', '.join(RECIPES)}){did_you_mean(name, known)}"
        )
    return Target(_core._find_format(target), recipe, requantizes=False, has_unit=True)


def nearest_format(format: Format, convention: Convention) -> Format:
    """The format itself where a convention stores it, else the first of the same elements, else of the widest.

    Of formats in two levels, one in two levels comes first: nvfp4_16x16 is nvfp4 that repeats its scales. Wide elements
    lose least: those of MXFP8 are the same numbers as MXFP6's.
    """
    if format.name in convention.formats:
        return format
    if f"u{format.name}" in convention.formats:  # the same values without a sign
        return formats()[f"u{format.name}"]
    rows = [formats()[name] for name in convention.formats]
    alike = [row for row in rows if row.element == format.element]
    in_two = [row for row in alike if row.kind == format.kind == "two_level"]
    return (in_two or alike or [max(rows, key=lambda row: SUBBYTE.get(row.element.name, 8))])[0]
