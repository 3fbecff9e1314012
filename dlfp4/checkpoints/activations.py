"""Scales of activations, which ModelOpt and compressed-tensors store beside quantized weights: of what a layer
multiplies its weight by, and of keys and values in a cache.

They are no parts of a weight, and stay tensors of their own. The two conventions name them otherwise, and for NVFP4
compressed-tensors stores reciprocals.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

import dlfp4
from dlfp4 import Tensor
from dlfp4.checkpoints.conventions import reciprocal
from dlfp4.checkpoints.names import last, module_of


class Spelling(NamedTuple):
    """How a convention stores the scale of what a layer multiplies by: the last component of its name, whether it is
    the reciprocal of the decode scale, and its shape.
    """

    name: str
    encodes: bool
    shape: tuple[int, ...]


# By convention and format of the weight.
INPUTS: Mapping[str, Mapping[str, Spelling]] = {
    "modelopt": {"nvfp4": Spelling("input_scale", False, ()), "fp8_e4m3": Spelling("input_scale", False, ())},
    "compressed-tensors": {
        "nvfp4": Spelling("input_global_scale", True, (1,)),
        "fp8_e4m3": Spelling("input_scale", False, (1,)),
    },
}
# By convention: the name of a cache's scale, and a pattern that finds its module and whether it is of keys or values.
CACHES: Mapping[str, tuple[str, re.Pattern[str]]] = {
    "modelopt": (r"\1.\2_proj.\2_scale", re.compile(r"(.+)\.([kv])_proj\.\2_scale")),
    "compressed-tensors": (r"\1.\2_scale", re.compile(r"(.+)(?<!_proj)\.([kv])_scale")),
}


class Respelling(NamedTuple):
    """What becomes of a scale: its new name, whether it is inverted, and its shape."""

    name: str
    inverts: bool
    shape: tuple[int, ...] | None


def respelled(names: Collection[str], formats: Mapping[str, str], convention: str) -> dict[str, Respelling]:
    """How another convention stores the scales among the tensors of a model, by their names and the formats of those
    that are quantized. What it has no place for, or has under that name already, stays as it is.
    """
    if convention not in INPUTS or not formats:
        return {}
    found = {name: how for name in names if (how := respelled_one(name, formats, convention))}
    return {name: how for name, how in found.items() if how.name == name or how.name not in names}


def respelled_one(name: str, formats: Mapping[str, str], convention: str) -> Respelling | None:
    """The same of one tensor; None where it is no such scale."""
    found = next((match for _, pattern in CACHES.values() if (match := pattern.fullmatch(name))), None)
    if found:
        return Respelling(found.expand(CACHES[convention][0]), inverts=False, shape=None)
    format = formats.get(f"{module_of(name)}.weight", "")
    given = [row[format] for row in INPUTS.values() if format in row and row[format].name == last(name)]
    if not given:
        return None
    spelling = INPUTS[convention][format]
    return Respelling(f"{module_of(name)}.{spelling.name}", given[0].encodes != spelling.encodes, spelling.shape)


def is_scale(name: str) -> bool:
    """Whether a tensor is called as scales of activations are."""
    names = {spelling.name for row in INPUTS.values() for spelling in row.values()}
    return last(name) in names or any(pattern.fullmatch(name) for _, pattern in CACHES.values())


def stored(x: Tensor, how: Respelling) -> Tensor:
    """A scale as another convention stores it; ValueError where it has no reciprocal, or one that is no number."""
    if not how.inverts or x.size != 1:
        return x.reshape(how.shape) if how.shape is not None and x.size == 1 else x
    if "float" not in x.dtype.name:
        raise ValueError(f"{how.name} would be the reciprocal of a scale of {x.dtype}; expected floats")
    inverse = reciprocal(dlfp4.cast(x.reshape(()), "float32"))
    if not np.isfinite(inverse).all():
        raise ValueError(f"{how.name} would be {inverse.item()}, the reciprocal of {x.item()}")
    return dlfp4.asarray(inverse.reshape(how.shape or ()))


def layers_with_inputs(names: Iterable[str], convention: str, format: str) -> set[str]:
    """The layers beside whose weights of a format a convention finds the scale of what they multiply by."""
    spelling = INPUTS.get(convention, {}).get(format)
    return {module_of(name) for name in names if spelling and last(name) == spelling.name}


def has_cache(names: Iterable[str], convention: str) -> bool:
    """Whether scales of a cache are among the names, as a convention spells them."""
    return convention in CACHES and any(map(CACHES[convention][1].fullmatch, names))
