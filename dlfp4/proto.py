"""What a tensor consists of, known without its data: the buffers of every block-scaled format, and TensorProto."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlfp4 import _core
from dlfp4.frameworks.base import SUBBYTE

if TYPE_CHECKING:
    from dlfp4.formats import Format


class Buffer(NamedTuple):
    """One piece of memory of a tensor: its name, its shape in logical elements, its element type."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@lru_cache(maxsize=1024)
def buffers_of(shape: tuple[int, ...], format: Format, axis: int, scale_layout: str, pad: bool) -> tuple[Buffer, ...]:
    """The buffers of a tensor quantized along one axis: whatever allocates, checks or documents them asks here.

    The tensor counts as a matrix of M = prod(shape[:-1]) rows and K = shape[-1] columns. Along ``axis=-1`` a line is a
    row: the data is (M, K), the scales are (M, K / block). Along ``axis=-2`` a line is a column: elements below 8 bits
    are stored transposed, as (K, M) with scales (K, M / block); bytes stay as they are, (M, K), with scales
    (M / block, K). Where a block spans several lines, so does a scale, unless the format repeats its scales.

    Parameters
    ----------
    shape : tuple of int
        (..., K), of the tensor before it is quantized.
    format : Format
        A row of :func:`dlfp4.formats`.
    axis : {-1, -2}
        Along which the blocks run.
    scale_layout : str
        Other layouts than "linear" hold the scales with a row a line, whatever the axis, padded to whole tiles.
    pad : bool
        The data of each line has whole blocks; the elements past its end are zeros. Lines are never added.

    Returns
    -------
    tuple of Buffer
        "data", "scales" and, of formats with two levels of scales, "global_scale".

    Raises
    ------
    ValueError
        The blocks do not divide the shape; the format or dlfp4 has no such layout; a bad axis or shape.
    """
    lines, length = _as_lines(shape, axis)
    if not pad and not divides(shape, format, axis):
        raise ValueError(
            f"shape {shape} as {lines} lines of {length} elements along axis {axis} does not divide into the "
            f"{format.block} blocks of {format.name}; pass pad=True to complete blocks with zeros, or pad the tensor"
        )
    stored = length if format.block is None or _is_ragged(format) else _round_up(length, format.block[1])
    scales = _scales_of(format, lines, stored)
    transposed = axis == -2 and format.element.name not in SUBBYTE  # against its lines: bytes stay where they are
    if scale_layout != "linear":
        scales = _tiled(scales, format, scale_layout)
    elif transposed:
        scales = scales[::-1]
    buffers = (
        Buffer("data", (stored, lines) if transposed else (lines, stored), format.element),
        Buffer("scales", scales, format.scale),
    )
    return (*buffers, Buffer("global_scale", (), np.dtype(np.float32))) if format.has_global_scale else buffers


def divides(shape: tuple[int, ...], format: Format, axis: int) -> bool:
    """Whether a format takes the shape without padding: its blocks divide it, or its last block may be a short one."""
    lines, length = _as_lines(shape, axis)
    return format.block is None or _is_ragged(format) or (lines % format.block[0] == 0 and length % format.block[1] == 0)


def _is_ragged(format: Format) -> bool:
    """Whether blocks may be short: those with float32 scales are."""
    return format.kind == "largest"


def _as_lines(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """How many lines the blocks run along, and how long these are."""
    if not shape or min(shape) < 0:
        raise ValueError(f"shape {shape}: a quantized tensor has one dimension or more, of extent 0 or more")
    if axis not in (-1, -2):
        raise ValueError(f"axis={axis}: expected -1, blocks along the last axis, or -2, along all others as one")
    if axis == -2 and len(shape) == 1:
        raise ValueError(f"axis=-2 of shape {shape}: blocks along columns need two dimensions; reshape the tensor first")
    rows, columns = math.prod(shape[:-1]), shape[-1]
    return (rows, columns) if axis == -1 else (columns, rows)


def _scales_of(format: Format, lines: int, length: int) -> tuple[int, ...]:
    """The scales' shape: a row a line, or a row a group of lines that share them."""
    if format.block is None:
        return ()
    group, block = format.block
    return lines if format.repeats_scales else -(-lines // group), -(-length // block)


def _tiled(scales: tuple[int, ...], format: Format, layout: str) -> tuple[int, ...]:
    """The scales' shape under a layout of tiles."""
    tiles = _core._scale_layouts()
    if layout not in tiles:
        raise ValueError(f"scale_layout={layout!r}: expected one of {', '.join(tiles)}")
    if format.scale.itemsize != 1:
        raise ValueError(
            f"scale_layout={layout!r} holds scales of one byte, those of {format.name} are {format.scale}; "
            f"use scale_layout='linear'"
        )
    return tuple(_round_up(extent, multiple) for extent, multiple in zip(scales, tiles[layout], strict=True))


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
