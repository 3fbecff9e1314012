"""What a tensor consists of, known without its data: the buffers of every block-scaled format, and TensorProto."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from dlfp4 import _core, frameworks
from dlfp4.formats import Format, find_format
from dlfp4.frameworks.base import SUBBYTE

if TYPE_CHECKING:
    from dlfp4._core import Device, ScaledTensor, Tensor, _Axis, _DeviceLike, _DType, _ScaleLayout, _Shape

    Described: TypeAlias = Tensor | ScaledTensor | tuple[ScaledTensor, ScaledTensor]


class Buffer(NamedTuple):
    """One piece of memory of a tensor: its name, its shape in logical elements, its element type."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def layout_of(q: ScaledTensor) -> _ScaleLayout:
    """Of the scales, for a prepared weight those of the tensor that it is."""
    return "linear" if q.scale_layout == "prepared" else q.scale_layout


@lru_cache(maxsize=1024)
def buffers_of(
    shape: tuple[int, ...], format: Format | str, axis: int, scale_layout: str, pad: bool
) -> tuple[Buffer, ...]:
    """The buffers of a tensor quantized along one axis: whatever allocates, checks or documents them asks here.

    The tensor counts as a matrix of M = prod(shape[:-1]) rows and K = shape[-1] columns. Along ``axis=-1`` a line is a
    row: the data is (M, K), the scales are (M, K / block). Along ``axis=-2`` a line is a column: elements below 8 bits
    are stored transposed, as (K, M) with scales (K, M / block); bytes stay as they are, (M, K), with scales
    (M / block, K). Where a block spans several lines, so does a scale, unless the format repeats its scales.

    Parameters
    ----------
    shape : tuple of int
        (..., K), of the tensor before it is quantized.
    format : Format or str
        A row of :func:`dlfp4.formats`; names are faster to look up.
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
    format = find_format(format)
    lines, length = _as_lines(shape, axis)
    if format.block is not None and not pad and not divides(shape, format, axis):
        group, block = format.block
        raise ValueError(
            f"shape {shape} along axis {axis}, {lines} lines of {length} elements, does not divide into the "
            f"{group}x{block} blocks of {format.name}; pass pad=True to complete them with zeros, or pad the tensor"
        )
    stored = length if format.block is None or _may_be_short(format) else _round_up(length, format.block[1])
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
    """Whether a format takes the shape without padding: its blocks divide it, or may be short at its end."""
    if format.block is None or _may_be_short(format):
        return True
    return all(count % block == 0 for count, block in zip(_as_lines(shape, axis), format.block, strict=True))


def _may_be_short(format: Format) -> bool:
    """Blocks with float32 scales may."""
    return format.kind == "largest"


def _as_lines(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """How many lines the blocks run along, and how long these are."""
    if not shape or min(shape) < 0:
        raise ValueError(f"shape {shape}: a quantized tensor has one dimension or more, of extent 0 or more")
    if axis not in (-1, -2):
        raise ValueError(f"axis={axis}: expected -1, blocks along the last axis, or -2, along all others as one")
    if axis == -2 and len(shape) == 1:
        raise ValueError(f"axis=-2 of shape {shape}: blocks along columns need two dimensions; reshape the tensor")
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
        near = _core._did_you_mean(layout, list(tiles))
        raise ValueError(f"scale_layout={layout!r}: expected one of {', '.join(tiles)}{near}")
    if format.scale.itemsize != 1:
        raise ValueError(
            f"scale_layout={layout!r} holds scales of one byte, those of {format.name} are {format.scale}; "
            f"use scale_layout='linear'"
        )
    return tuple(_round_up(extent, multiple) for extent, multiple in zip(scales, tiles[layout], strict=True))


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


ACROSS = "columnwise_"  # before the names of what is quantized along axis -2


@dataclass(frozen=True, init=False, repr=False, slots=True)
class TensorProto:
    """What a tensor is, without its data: shape, element type or block-scaled format, device.

    It never changes, equals any other that says the same, and can be a key of a dictionary. It needs neither a GPU nor
    PyTorch.

    Parameters
    ----------
    shape : int or tuple of int
        ``(..., K)``, in logical elements, without padding.
    dtype : dtype-like, optional
        The elements of a plain tensor. Either this or `format` is given.
    format : Format or str, optional
        Of a quantized tensor: a row of :func:`formats`.
    device : str, tuple or Device
        Where the memory lies, or shall lie.
    requires_grad : bool
        Whether gradients are asked for. A note for frameworks: it changes no buffer.
    packed : bool
        Elements below 8 bits share bytes, as those of a quantized tensor always do. True for all wider ones.
    scale_layout : {"linear", "128x4", "8x4", "aiter"}
        How the scales of a quantized tensor lie.
    pad : bool
        Incomplete blocks are completed with zeros.
    rowwise, columnwise : bool
        Quantized along axis -1, along axis -2, or both.

    Raises
    ------
    ValueError
        Both or neither of `dtype` and `format`; an unknown format, layout or device; blocks that do not divide the
        shape; options of quantized tensors for a plain one.
    TypeError
        `dtype` is not an element type that dlfp4 carries.

    Examples
    --------
    >>> import dlfp4
    >>> proto = dlfp4.TensorProto((64, 256), format="nvfp4", device="cuda:0")
    >>> [(name, shape, dtype.name) for name, shape, dtype in proto.buffers()]
    [('data', (64, 256), 'float4_e2m1fn'), ('scales', (64, 16), 'float8_e4m3fn'), ('global_scale', (), 'float32')]
    >>> dlfp4.TensorProto((64, 256), "bfloat16").allocate().shape
    (64, 256)
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    format: Format | None
    device: Device
    requires_grad: bool
    packed: bool
    scale_layout: _ScaleLayout
    pad: bool
    rowwise: bool
    columnwise: bool

    def __init__(
        self,
        shape: _Shape,
        dtype: _DType | None = None,
        format: Format | str | None = None,
        device: _DeviceLike = "cpu",
        requires_grad: bool = False,
        *,
        packed: bool = True,
        scale_layout: _ScaleLayout = "linear",
        pad: bool = False,
        rowwise: bool = True,
        columnwise: bool = False,
    ) -> None:
        if (dtype is None) == (format is None):
            raise ValueError(f"dtype={dtype!r} and format={format!r}: give either of them")
        element = None if dtype is None else _core._parse_dtype(dtype)
        values = {
            "shape": _parse_shape(shape),
            "dtype": element,
            "format": None if format is None else find_format(format),
            "device": _core._parse_device(device),
            "requires_grad": _core._parse_flag(requires_grad, "requires_grad"),
            "packed": _core._parse_flag(packed, "packed") or (element is not None and element.name not in SUBBYTE),
            "scale_layout": scale_layout,
            "pad": _core._parse_flag(pad, "pad"),
            "rowwise": _core._parse_flag(rowwise, "rowwise"),
            "columnwise": _core._parse_flag(columnwise, "columnwise"),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check_options()
        self.buffers()  # refuses a shape that does not divide, and a layout that the format does not have

    def _check_options(self) -> None:
        """Refuse options that mean nothing for this kind of tensor."""
        if self.format is None:
            given = [f"{name}={value!r}" for name, value in self._options() if name not in ("requires_grad", "packed")]
            if given:
                raise ValueError(f"{', '.join(given)} without a format: only quantized tensors have that; leave it out")
        elif not self.packed:
            raise ValueError("packed=False with a format: the data of quantized tensors is packed; leave it out")
        elif not (self.rowwise or self.columnwise):
            raise ValueError("rowwise=False and columnwise=False: a quantized tensor has at least one of the two")

    def _options(self) -> list[tuple[str, Any]]:
        """What differs from the default, apart from shape, dtype or format, and device."""
        options = ((name, default, getattr(self, name)) for name, default in _option_defaults().items())
        return [(name, value) for name, default, value in options if value != default]

    def __repr__(self) -> str:
        kind = f"dtype={self.dtype}" if self.format is None else f"format={self.format.name!r}"
        options = "".join(f", {name}={value!r}" for name, value in self._options())
        return f"TensorProto(shape={self.shape}, {kind}, device={str(self.device)!r}{options})"

    @classmethod
    def of(cls, x: Any) -> TensorProto:
        """The description of a tensor; its memory is not read.

        Parameters
        ----------
        x : producer, ScaledTensor or tuple of ScaledTensor
            What :func:`asarray` takes, but for capsules, which can be taken once; PyTorch tensors with
            ``requires_grad``, and without memory (``device="meta"``), which count as host tensors; what
            :func:`quantize` returns.

        Raises
        ------
        TypeError
            `x` is no tensor.
        ValueError
            ScaledTensors that are not one tensor along two axes.
        BufferError
            A tensor that cannot be exchanged.
        """
        if isinstance(x, _core.ScaledTensor):
            return cls._of_scaled((x,))
        if isinstance(x, (tuple, list)):
            return cls._of_scaled(x)
        if type(x).__name__ == "PyCapsule":
            raise TypeError("a capsule can be taken only once; describe dlfp4.from_dlpack(capsule), and use that")
        requires_grad = bool(getattr(x, "requires_grad", False))
        if getattr(getattr(x, "device", None), "type", None) == "meta":
            shape, dtype = frameworks.load("torch").describe(x)
            return cls(shape, dtype, requires_grad=requires_grad)
        tensor = _core.asarray(x.detach() if requires_grad else x)
        return cls(tensor.shape, tensor.dtype, None, tensor.device, requires_grad, packed=tensor.packed)

    @classmethod
    def _of_scaled(cls, parts: Sequence[Any]) -> TensorProto:
        """The description of one tensor, quantized along one axis or both."""
        if not parts or not all(isinstance(part, _core.ScaledTensor) for part in parts):
            names = ", ".join(type(part).__name__ for part in parts)
            raise TypeError(f"expected a tensor, a ScaledTensor or a tuple of ScaledTensors, got ({names})")
        axes = [part.axis for part in parts]
        kinds = {(part.shape, part.format, part.device, layout_of(part)) for part in parts}
        if len(kinds) > 1 or len(set(axes)) < len(axes):
            raise ValueError(f"{parts!r} is not one tensor quantized along axes -1 and -2, as quantize returns it")
        ((shape, format, device, scale_layout),) = kinds
        pad = not all(divides(shape, format, axis) for axis in axes)
        return cls(
            shape,
            format=format,
            device=device,
            scale_layout=scale_layout,
            pad=pad,
            rowwise=-1 in axes,
            columnwise=-2 in axes,
        )

    @property
    def is_quantized(self) -> bool:
        """Whether it has a block-scaled format."""
        return self.format is not None

    @property
    def _axes(self) -> list[_Axis]:
        axes: list[_Axis] = [-1, -2]
        return [axis for axis, wanted in zip(axes, (self.rowwise, self.columnwise), strict=True) if wanted]

    def buffers(self) -> tuple[Buffer, ...]:
        """Every piece of memory that the tensor consists of, in the order of :meth:`flatten`.

        Returns
        -------
        tuple of Buffer
            Each with name, shape (in logical elements) and dtype: "data", of quantized tensors also "scales" and, in
            formats that have one, "global_scale"; for axis -2 "columnwise_data" and "columnwise_scales".
        """
        if self.format is None:
            assert self.dtype is not None
            return (Buffer("data", self.shape, self.dtype),)
        named = {}
        for axis in self._axes:
            for buffer in buffers_of(self.shape, self.format, axis, self.scale_layout, self.pad):
                name = _name(buffer.name, axis)
                named[name] = buffer._replace(name=name)
        return tuple(named.values())

    def allocate(self) -> Described:
        """A tensor of this description, with memory of its own, which is not initialised.

        Returns
        -------
        Tensor or ScaledTensor
            Or a tuple of two ScaledTensors, rowwise and columnwise, that share one global scale. ``quantize(...,
            out=...)`` fills what it gets whole, the padding of scale layouts included.

        Raises
        ------
        BufferError
            A device on which dlfp4 cannot allocate.
        MemoryError, DriverError
            The memory is not there.
        """
        return self._assemble(
            {
                name: _core.empty(shape, dtype, device=self.device, packed=self.packed)
                for name, shape, dtype in self.buffers()
            }
        )

    def flatten(self, x: Any) -> dict[str, Tensor]:
        """A tensor's buffers by name, in declared order, sharing their memory.

        Parameters
        ----------
        x : producer, ScaledTensor or tuple of ScaledTensor
            A tensor of this description; ``requires_grad`` may differ.

        Raises
        ------
        ValueError
            Another description; the message names the first field that differs.
        """
        found = TensorProto.of(x)
        for name in ("format", "dtype", "shape", "device", "packed", "scale_layout", "rowwise", "columnwise"):
            if getattr(found, name) != getattr(self, name):
                raise ValueError(f"{name} differs: the tensor is {found!r}; expected {self!r}")
        if self.format is None:
            return self._check({"data": x.detach() if found.requires_grad else x})
        parts: dict[str, Any] = {}
        for scaled in (x,) if isinstance(x, _core.ScaledTensor) else x:
            for buffer in buffers_of(self.shape, self.format, scaled.axis, self.scale_layout, self.pad):
                name, part = _name(buffer.name, scaled.axis), getattr(scaled, buffer.name)
                if part is None:
                    continue  # absent, as will be said
                if name in parts and not _same(parts[name], part):
                    raise ValueError(f"{name} differs between the tensors along axes -1 and -2; they are not of one x")
                parts[name] = part
        return self._check(self._by_name(parts))

    def unflatten(self, buffers: Mapping[str, Any] | Sequence[Any]) -> Described:
        """The tensor of the given buffers, sharing their memory: the inverse of :meth:`flatten`.

        Parameters
        ----------
        buffers : mapping or sequence of producers
            By name, or all of them in declared order.

        Raises
        ------
        ValueError
            A buffer is absent, extra, of another shape or on another device.
        TypeError
            A buffer is of another dtype; or `buffers` is neither a mapping nor a list or tuple.
        """
        return self._assemble(self._check(self._by_name(buffers)))

    def _by_name(self, buffers: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        """The buffers in declared order, none absent and none extra."""
        names = [buffer.name for buffer in self.buffers()]
        if not isinstance(buffers, (Mapping, list, tuple)):
            kind = type(buffers).__name__
            raise TypeError(f"buffers is of type {kind}; expected a mapping, list or tuple of {names}")
        if not isinstance(buffers, Mapping):
            extras = [f"number {number}" for number in range(len(names), len(buffers))]
            buffers = dict(zip([*names, *extras], buffers, strict=False))
        absent = [name for name in names if buffers.get(name) is None]
        extra = [name for name in buffers if name not in names]
        if absent or extra:
            problems = [f"{', '.join(some)} {what}" for some, what in ((absent, "absent"), (extra, "extra")) if some]
            raise ValueError(f"buffers: {'; '.join(problems)}; expected {', '.join(names)} for {self!r}")
        return {name: buffers[name] for name in names}

    def _check(self, parts: dict[str, Any]) -> dict[str, Tensor]:
        """The parts as Tensors, each as its buffer says."""
        tensors = {name: _core.asarray(part) for name, part in parts.items()}
        for name, shape, dtype in self.buffers():
            tensor = tensors[name]
            if tensor.dtype != dtype:
                raise TypeError(f"{name} has dtype {tensor.dtype}; expected {dtype}: for bytes, .view({dtype.name!r})")
            if tensor.shape != shape:
                raise ValueError(f"{name} has shape {tensor.shape}; expected {shape} for {self!r}")
            if tensor.device != self.device:
                raise ValueError(f"{name} lies on {tensor.device}; expected {self.device}: call .to_device first")
            if dtype.name in SUBBYTE and tensor.packed != self.packed:
                remedy = "dlfp4.pack" if self.packed else "dlfp4.unpack"
                raise ValueError(f"{name} has packed={tensor.packed}; expected packed={self.packed}: call {remedy}")
        return tensors

    def _assemble(self, parts: dict[str, Tensor]) -> Described:
        """The tensor of checked parts."""
        if self.format is None:
            return parts["data"]
        results = [
            _core.ScaledTensor.from_parts(
                parts[_name("data", axis)],
                parts[_name("scales", axis)],
                parts.get("global_scale"),
                format=self.format,
                axis=axis,
                scale_layout=self.scale_layout,
                shape=self.shape,
            )
            for axis in self._axes
        ]
        return results[0] if len(results) == 1 else (results[0], results[1])


@lru_cache(maxsize=1)
def _option_defaults() -> dict[str, Any]:
    """Of the keywords that say more than shape, dtype or format, and device."""
    parameters = inspect.signature(TensorProto.__init__).parameters
    said = ("self", "shape", "dtype", "format", "device")
    return {name: each.default for name, each in parameters.items() if name not in said}


def _parse_shape(shape: Any) -> tuple[int, ...]:
    extents = tuple(operator.index(extent) for extent in (shape if isinstance(shape, (tuple, list)) else (shape,)))
    if min(extents, default=0) < 0:
        raise ValueError(f"shape {extents}: expected extents of 0 or more")
    return extents


def _name(buffer: str, axis: int) -> str:
    """A buffer's name in a tensor that may be quantized along both axes; these share the global scale."""
    return buffer if axis == -1 or buffer == "global_scale" else ACROSS + buffer


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two scalars are the same memory, or the same bytes."""
    return a.data_ptr == b.data_ptr or a.to_numpy().tobytes() == b.to_numpy().tobytes()
