"""Scales of blocks under another scale of the whole tensor: small tables over all codes of a scale, and the search for
the best scale of a block that no code holds exactly.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dlfp4._core import ScaledTensor, asarray, cast, dequantize, quantize
from dlfp4.receipts import Array, relative_errors

if TYPE_CHECKING:
    from dlfp4._core import _RecipeLike

Octets = npt.NDArray[np.uint8]
LENGTH = 16  # elements of a block of two levels
HALF_STEP = 2.0**-4  # the largest rounding of a normal E4M3 number: codes under such a scale stay the best
NAN = 0x7F
NANS = (NAN, NAN | 0x80)
ABOUT = range(-2, 13)  # codes; an octave of E4M3 has 8
AT_ONCE = 1 << 14  # blocks searched at a time, so that they stay in a cache


@cache
def values_of_scales(name: str) -> npt.NDArray[np.float32]:
    """The value of each code of a scale type."""
    codes = asarray(np.arange(256, dtype=np.uint8)).view(name)
    values = cast(codes, "float32").to_numpy().copy()
    values.flags.writeable = False
    return values


def nearest_e4m3(values: Array) -> Octets:
    """The codes of the nearest numbers, saturated; NaN keeps its sign."""
    codes = cast(np.ascontiguousarray(values, dtype=np.float64), "float8_e4m3fn")
    octets: Octets = codes.view("uint8").to_numpy()
    return octets


class Renamed(NamedTuple):
    """E4M3 scales in units of another global scale, by the code they had."""

    codes: Octets
    errors: Array  # the relative error of the decoded scale; 0 where it is the same float32 number


def rename(before: float, after: float) -> Renamed:
    """The table for one global scale and another."""
    values = values_of_scales("float8_e4m3fn")
    with np.errstate(all="ignore"):
        codes = nearest_e4m3(values.astype(np.float64) * (before / after))
        old = values * np.float32(before)
        errors = relative_errors(old[:, None], (values[codes] * np.float32(after))[:, None])
    return Renamed(codes, errors)


@cache
def values_of_fp4() -> npt.NDArray[np.float64]:
    """The value of each code of FP4."""
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    return np.concatenate([magnitudes, -magnitudes])


def translate(octets: Octets, table: Octets) -> Octets:
    """The table's entry for each byte, faster than by an index."""
    text = np.ascontiguousarray(octets).tobytes().translate(table.tobytes())
    return np.frombuffer(bytearray(text), np.uint8).reshape(octets.shape)


def repeat(octets: Octets, down: int, along: int) -> Octets:
    """Each byte in so many rows and columns."""
    if along == 2:
        octets = (octets * np.uint16(0x0101)).view(np.uint8)
    elif along > 1:
        octets = np.repeat(octets, along, axis=1)
    return np.repeat(octets, down, axis=0) if down > 1 else octets


def count_codes(scales: Octets) -> npt.NDArray[np.int64]:
    """How many scales have each code."""
    return np.bincount(scales.reshape(-1), minlength=256)


def has_nonzero(q: ScaledTensor) -> bool:
    """Whether any element is not zero; zeros are exact under any finite scale."""
    name = q.data.dtype.name
    bits = np.uint8(0x77 if name.startswith("float4") else 0xFF if "int" in name else 0x7F)
    return bool((q.data.view("uint8").to_device("cpu").to_numpy() & bits).any())


def zero_blocks(codes: Octets, length: int) -> npt.NDArray[np.bool_]:
    """Which blocks of packed FP4 hold zeros alone; `codes` is (lines, bytes), whole blocks."""
    magnitudes = codes.reshape(codes.shape[0], -1, length // 2) & 0x77
    zero: npt.NDArray[np.bool_] = magnitudes.max(-1, initial=0) == 0
    return zero


# ---- Blocks that no scale holds exactly


class Remedy(NamedTuple):
    """Blocks whose scale came out too coarse, by their place among all, before and after."""

    coarse: npt.NDArray[np.bool_]
    before: npt.NDArray[np.float32]
    unit: float
    recipe: _RecipeLike | None = None


def mend(remedy: Remedy, codes: Octets, scales: Octets, errors: Array) -> None:
    """Choose codes and scales anew, in place, where that is better or a recipe says so; `codes` has a row a block."""
    coarse, before, unit, recipe = remedy
    decoded = values_of_blocks(codes[coarse], scales[coarse], "nvfp4", unit)
    found = requantize(before, unit) if recipe is None else by_recipe(before, unit, recipe)
    better = found.squares < squares_of(before, decoded) if recipe is None else np.ones(len(before), bool)
    places = tuple(index[better] for index in np.nonzero(coarse))
    codes[places], scales[places] = found.codes[better], found.scales[better]
    errors[coarse] = np.where(better, found.errors, relative_errors(before, decoded))


class Blocks(NamedTuple):
    """Blocks of two levels: a row each."""

    codes: Octets  # packed
    scales: Octets
    errors: Array  # the largest, relative
    squares: Array  # the sum of the squared ones


def values_of_blocks(codes: Octets, scales: Octets, format: str, unit: float | None) -> npt.NDArray[np.float32]:
    """What packed blocks decode to, a row each."""
    q = ScaledTensor.from_parts(codes, scales[:, None], unit, format=format)
    return dequantize(q).to_numpy()


def requantize(values: npt.NDArray[np.float32], unit: float) -> Blocks:
    """Blocks of 16 numbers, a row each, with the scales and codes of the least squared error under a global scale."""
    codes = np.empty((len(values), LENGTH // 2), np.uint8)
    scales = np.empty(len(values), np.uint8)
    errors, squares = np.empty((2, len(values)))
    for first in range(0, len(values), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        codes[part], scales[part], errors[part], squares[part] = search(values[part], unit)
    return Blocks(codes, scales, errors, squares)


def by_recipe(values: npt.NDArray[np.float32], unit: float, recipe: _RecipeLike) -> Blocks:
    """The same by a recipe's rule."""
    q = quantize(values, "nvfp4", recipe=recipe, global_scale=unit)
    codes, scales = (part.view("uint8").to_numpy() for part in (q.data, q.scales))
    decoded = dequantize(q).to_numpy()
    return Blocks(codes, scales[:, 0], relative_errors(values, decoded), squares_of(values, decoded))


def search(values: npt.NDArray[np.float32], unit: float) -> Blocks:
    """Try all scales that may be the best."""
    finite: npt.NDArray[np.bool_] = np.asarray(np.isfinite(values).all(-1))
    exact = np.where(finite[:, None], values, 0).astype(np.float64)
    largest = np.abs(exact).max(-1)
    best = np.full(len(values), np.inf)
    scales = np.zeros(len(values), np.uint8)
    for candidate in candidates(largest / unit):
        decoded = decode(exact, candidate, unit)
        with np.errstate(over="ignore"):
            error = ((decoded - exact) ** 2).sum(-1)
        better = error < best
        scales[better], best[better] = candidate[better], error[better]
    codes = round_to(exact, scales, unit)
    scales = np.where(finite, scales, np.uint8(NAN))
    packed: Octets = codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
    packed[~finite] = 0
    decoded = values_of_blocks(packed, scales, "nvfp4", unit)
    return Blocks(packed, scales, relative_errors(values, decoded), squares_of(values, decoded))


def squares_of(before: Array, after: Array) -> Array:
    """The squared error of each row; NaN counts as no error."""
    with np.errstate(all="ignore"):
        errors: Array = np.nansum((before.astype(np.float64) - after) ** 2, axis=-1)
    return errors


def candidates(largest: Array) -> list[Octets]:
    """Codes of scales for blocks of these magnitudes: those about the one that maps it to 6, and an octave above."""
    nearest = nearest_e4m3(largest / 6).astype(int)
    return [np.clip(nearest + step, 0, NAN - 1).astype(np.uint8) for step in ABOUT]


def factors(scales: Octets, unit: float) -> Array:
    """What scales are worth, a column."""
    worth: Array = values_of_scales("float8_e4m3fn")[scales].astype(np.float64)[:, None] * unit
    return worth


def round_to(exact: Array, scales: Octets, unit: float) -> Octets:
    """The codes of elements under given scales, one a byte."""
    worth = factors(scales, unit)
    scaled = np.divide(exact, worth, out=np.zeros_like(exact), where=worth != 0)
    octets: Octets = cast(scaled, "float4_e2m1fn", packed=False).to_numpy().view(np.uint8)
    return octets


def decode(exact: Array, scales: Octets, unit: float) -> Array:
    """What elements become under given scales."""
    codes = round_to(exact, scales, unit)
    decoded: Array = values_of_fp4()[codes] * factors(scales, unit)
    return decoded


def unit_of(q: ScaledTensor) -> float:
    """The global scale as a number; 1 where there is none."""
    scale: Any = q.global_scale
    return 1.0 if scale is None else float(scale.item())
