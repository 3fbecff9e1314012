"""MXFP4 and NVFP4 in the blocks of ggml (llama.cpp, GGUF): the same codes and scales in another order.

ggml's ``block_mxfp4`` is an e8m0 byte and 16 bytes of elements; its ``block_nvfp4`` is four e4m3 bytes and 32 bytes of
elements, for four groups of 16. A group of G elements takes G / 2 bytes: byte j has element j in its low nibble and
element j + G / 2 in its high nibble, where dlfp4 has elements 2 j and 2 j + 1.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

import dlfp4
from dlfp4 import ScaledTensor, Tensor
from dlfp4._core import _refuse_hadamard
from dlfp4.extents import count_elements
from dlfp4.proto import own_scaled
from dlfp4.show import summary

if TYPE_CHECKING:
    from dlfp4._core import _Quantized

Octets = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Block:
    """A block of ggml: one scale per group, then the elements of all groups, `length` each."""

    groups: int
    length: int

    @property
    def elements(self) -> int:
        """Elements of a block."""
        return self.groups * self.length

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self.groups + self.elements // 2


BLOCKS = {"mxfp4": Block(1, 32), "nvfp4": Block(4, 16)}


def from_ggml(blocks: Any, format: str, shape: tuple[int, ...], *, global_scale: Any = None) -> ScaledTensor:
    """Convert ggml's blocks to a quantized tensor, by one copy, since elements change places.

    Parameters
    ----------
    blocks : producer
        uint8, compact, of any shape: the data of a GGUF tensor.
    format : {"mxfp4", "nvfp4"}
        ``GGML_TYPE_MXFP4`` or ``GGML_TYPE_NVFP4``.
    shape : tuple of int
        The tensor's shape in elements, (..., K), the contiguous axis last: GGUF's dimensions reversed. K is a multiple
        of 32 (mxfp4) or 64 (nvfp4).
    global_scale : float or producer, optional
        NVFP4's decode scale of the tensor. ggml's blocks have none: GGUF files keep it in a separate tensor,
        ``NAME.scale``, beside ``NAME.weight``.

    Returns
    -------
    ScaledTensor
        Every code and scale byte as in `blocks`. Values agree with ggml's unless a scale is NaN or negative: ggml
        ignores the highest bit of an e4m3 scale, reads 0x7F as 0, and reads the e8m0 scale 0xFF as 2**128.

    Raises
    ------
    ValueError
        ggml has no blocks of the format, the number of bytes does not fit `shape`, or an extent is negative.
    TypeError
        `blocks` are not uint8, or `shape` is not a tuple of integers.
    """
    block, octets, shape = block_of(format), dlfp4.asarray(blocks), as_extents(shape)
    if octets.dtype != np.uint8:
        raise TypeError(f"blocks have dtype {octets.dtype}; expected uint8, such as blocks.view('uint8')")
    count = count_blocks(shape, block, format)
    if octets.size != count * block.nbytes:
        raise ValueError(
            f"{octets.size} bytes of blocks for shape {shape}; {format} needs {count * block.nbytes}, "
            f"{block.nbytes} for {block.elements} elements"
        )
    rows = octets.to_numpy().reshape(count, block.nbytes)
    scales = np.ascontiguousarray(rows[:, : block.groups]).reshape(*shape[:-1], shape[-1] // block.length)
    data = interleave(rows[:, block.groups :].reshape(count * block.groups, block.length // 2))
    packed = data.reshape(*shape[:-1], shape[-1] // 2)
    return ScaledTensor.from_parts(packed, scales, global_scale, format=format, shape=shape)


def to_ggml(q: ScaledTensor | _Quantized) -> Tensor:
    """Convert a quantized tensor to ggml's blocks; the inverse of :func:`from_ggml`.

    A global scale has no place in the blocks: write ``q.global_scale`` to the GGUF file as the tensor ``NAME.scale``.

    Parameters
    ----------
    q : ScaledTensor
        mxfp4 or nvfp4 on the host, blocks along the last axis, K a multiple of 32 (mxfp4) or 64 (nvfp4). It may be
        one of dlfp4.torch or dlfp4.jax.

    Returns
    -------
    Tensor
        uint8, (..., K / 32 * 17) or (..., K / 64 * 36): the shape in bytes that the ``gguf`` package takes.

    Raises
    ------
    ValueError
        The format, the axis or K is not as above.
    TypeError
        `q` is not a ScaledTensor.
    """
    q = own_scaled(q)
    if not isinstance(q, ScaledTensor):
        raise TypeError(f"q is of type {type(q).__name__}; expected a ScaledTensor, as quantize gives it")
    block = block_of(q.format.name)
    count = count_blocks(q.shape, block, q.format.name)
    _refuse_hadamard(q, "ggml")
    if q.axis != -1:
        raise ValueError(f"{summary(q)}: ggml's blocks run along the last axis; quantize with axis=-1")
    q = q.with_scale_layout("linear")  # prepared weights have an order of their own
    scales = q.scales.view("uint8").to_numpy()
    data = q.data.view("uint8").to_numpy().reshape(count * block.groups, block.length // 2)
    blocks = np.empty((count, block.nbytes), np.uint8)
    blocks[:, : block.groups] = scales.reshape(count, block.groups)
    blocks[:, block.groups :] = deinterleave(data).reshape(count, block.elements // 2)
    return dlfp4.asarray(blocks.reshape(*q.shape[:-1], q.shape[-1] // block.elements * block.nbytes))


def block_of(format: str) -> Block:
    """The block of a format; ValueError where ggml has none."""
    if str(format) not in BLOCKS:
        raise ValueError(f"ggml has no blocks of {format}, only of {' and '.join(BLOCKS)}")
    return BLOCKS[str(format)]


def as_extents(shape: Iterable[SupportsIndex]) -> tuple[int, ...]:
    """A shape as Python's integers; TypeError where it is none, ValueError where some are negative."""
    try:
        extents = tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"shape={shape!r} is not a tuple of integers") from None
    if min(extents, default=0) < 0:
        raise ValueError(f"shape={extents}: expected extents from 0")
    return extents


def count_blocks(shape: tuple[int, ...], block: Block, format: str) -> int:
    """How many blocks a tensor takes; ValueError where its rows do not divide into them."""
    if not shape or shape[-1] % block.elements:
        raise ValueError(f"shape {shape}: ggml's blocks of {format} need a last axis in multiples of {block.elements}")
    return count_elements(shape) // block.elements


def interleave(groups: Octets) -> Octets:
    """Reorder bytes of elements (j, j + G / 2) into bytes of elements (2 j, 2 j + 1), one group per row."""
    first, second = groups[:, 0::2], groups[:, 1::2]
    return np.concatenate([first & 15 | second << 4, first >> 4 | second & 0xF0], axis=1)


def deinterleave(groups: Octets) -> Octets:
    """Undo :func:`interleave`."""
    low, high = np.split(groups, 2, axis=1)
    result = np.empty_like(groups)
    result[:, 0::2] = low & 15 | high << 4
    result[:, 1::2] = low >> 4 | high & 0xF0
    return result
