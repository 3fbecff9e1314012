"""TensorProto: what a tensor is and consists of, known without its data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from dlfp4 import _core, frameworks
from dlfp4._core import Buffer
from dlfp4.formats import Format, check_global_scale, granularity_of, offsets_of, own_offsets, scale_type
from dlfp4.frameworks.base import COMMON, COMPLEX, FP8, SUBBYTE

if TYPE_CHECKING:
    from dlfp4._core import Device, ScaledTensor, Tensor, _Axis, _DeviceLike, _DType, _ScaleLayout, _Shape
    from dlfp4.formats import BiasDtype, GlobalScalePer, ScaleDtype, ZeroPointDtype

    Described: TypeAlias = Tensor | ScaledTensor | tuple[ScaledTensor, ScaledTensor]


def layout_of(q: ScaledTensor) -> _ScaleLayout:
    """The layout of a tensor's scales; that of a prepared weight is the one of the tensor it restores to."""
    return "linear" if q.scale_layout == "prepared" else q.scale_layout


def scale_dtype_of(q: ScaledTensor) -> ScaleDtype | None:
    """The type of a tensor's scales; a prepared weight has those of its format as bytes."""
    name: Any = (q.format.scale if q.scale_layout == "prepared" else q.scales.dtype).name
    return name  # type: ignore[no-any-return]


# What says how a quantized tensor's parts lie.
_LAYOUT = (
    "scale_layout", "rowwise", "columnwise", "scale_dtype", "global_scale_per", "hadamard", "zero_points", "biases",
)  # fmt: skip
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
    scale_layout : str
        How the scales of a quantized tensor lie: "linear", or one of :meth:`ScaledTensor.with_scale_layout`.
    pad : bool
        Incomplete blocks are completed with zeros.
    rowwise, columnwise : bool
        Quantized along axis -1, along axis -2, or both.
    scale_dtype : {"float32", "bfloat16", "float16", "float8_e8m0fnu"}, optional
        The type of the scales, of formats whose own is float32; see :class:`Recipe`.
    global_scale_per : {"tensor", "row", "matrix"}
        Which part of the tensor a global scale is of; see :class:`Recipe`.
    hadamard : sequence of int or int, optional
        The signs of the Hadamard transform before quantizing, or their seed; see :func:`quantize`. It changes no
        buffer.
    zero_points : {"uint4", "int4", "uint8", "int8", "none"}, optional
        int4 and uint4: the type of the zero points of blocks. Default: as :func:`quantize` makes them, "uint8" for
        uint4, else none.
    biases : {"float32", "bfloat16", "float16"}, optional
        int4 and uint4: the type of the biases of blocks, instead of zero points.

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
    scale_dtype: ScaleDtype | None
    global_scale_per: GlobalScalePer
    hadamard: tuple[int, ...] | None
    zero_points: ZeroPointDtype | Literal["none"] | None
    biases: BiasDtype | None

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
        scale_dtype: ScaleDtype | None = None,
        global_scale_per: GlobalScalePer = "tensor",
        hadamard: Sequence[int] | int | None = None,
        zero_points: ZeroPointDtype | Literal["none"] | None = None,
        biases: BiasDtype | None = None,
    ) -> None:
        if (dtype is None) == (format is None):
            raise ValueError(f"dtype={dtype!r} and format={format!r}: give either of them")
        element = None if dtype is None else element_of(dtype)
        values = {
            "shape": _parse_shape(shape),
            "dtype": element,
            "format": None if format is None else format_of(format),
            "device": device_of(device),
            "requires_grad": flag_of(requires_grad, "requires_grad"),
            "packed": flag_of(packed, "packed") or (element is not None and element.name not in SUBBYTE),
            "scale_layout": name_of_layout(scale_layout),
            "pad": flag_of(pad, "pad"),
            "rowwise": flag_of(rowwise, "rowwise"),
            "columnwise": flag_of(columnwise, "columnwise"),
            "scale_dtype": scale_dtype,
            "global_scale_per": global_scale_per,
            "hadamard": None if hadamard is None else _parse_signs(hadamard),
            "zero_points": zero_points,
            "biases": biases,
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
            return
        name = self.format.name
        settled = settle_options(name, self.scale_dtype, self.global_scale_per, self.zero_points, self.biases)
        object.__setattr__(self, "scale_dtype", settled[0])
        object.__setattr__(self, "zero_points", settled[1])
        if not self.packed:
            raise ValueError("packed=False with a format: the data of quantized tensors is packed; leave it out")
        if not (self.rowwise or self.columnwise):
            raise ValueError("rowwise=False and columnwise=False: a quantized tensor has at least one of the two")

    def _options(self) -> list[tuple[str, Any]]:
        """What differs from the default, apart from shape, dtype or format, and device."""
        options = [(name, default, getattr(self, name)) for name, default in OPTION_DEFAULTS.items()]
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
            :func:`quantize` returns, or those of ``dlfp4.torch`` and ``dlfp4.jax``.

        Raises
        ------
        TypeError
            `x` is not a tensor.
        ValueError
            ScaledTensors that are not one tensor along two axes.
        BufferError
            A tensor that cannot be exchanged.
        """
        graph = graph_now()
        if graph is not None:
            return graph.describe(x)
        x = as_described(x)
        if isinstance(x, _core.ScaledTensor):
            return cls._of_scaled((x,))
        if isinstance(x, (tuple, list)):
            each = [as_described(one) for one in x]
            return cls._of_scaled([own_scaled(one) for one in each])
        if type(x).__name__ == "PyCapsule":
            raise TypeError("a capsule can be taken only once; describe dlfp4.from_dlpack(capsule), and use that")
        requires_grad = bool(getattr(x, "requires_grad", False))
        if getattr(getattr(x, "device", None), "type", None) == "meta":
            shape, dtype = frameworks.load("torch").describe(x)
            return cls(shape, dtype, requires_grad=requires_grad)
        tensor: Any = _core.asarray(x.detach() if requires_grad else x)
        if isinstance(tensor, _core.ScaledTensor):  # of another library's quantized tensor
            return cls._of_scaled((tensor,))
        return cls(tensor.shape, tensor.dtype, None, tensor.device, requires_grad, packed=tensor.packed)

    @classmethod
    def _of_scaled(cls, parts: Sequence[Any]) -> TensorProto:
        """The description of one tensor, quantized along one axis or both."""
        if not parts or not all(isinstance(part, _core.ScaledTensor) for part in parts):
            names = ", ".join(type(part).__name__ for part in parts)
            raise TypeError(f"expected a tensor, a ScaledTensor or a tuple of ScaledTensors, got ({names})")
        for part in parts:
            _core._refuse_turned(part)
        axes = [part.axis for part in parts]
        kinds = {
            (
                part.shape,
                part.format,
                part.device,
                layout_of(part),
                scale_dtype_of(part),
                _granularity(part),
                part.hadamard,
                *_offset_types(part),
            )
            for part in parts
        }
        if len(kinds) > 1 or len(set(axes)) < len(axes):
            raise ValueError(f"{parts!r} is not one tensor quantized along axes -1 and -2, as quantize returns it")
        ((shape, format, device, scale_layout, scale_dtype, per, hadamard, zero_points, biases),) = kinds
        pad = not all(_core._divides(shape, format, axis) for axis in axes)
        return cls(
            shape,
            format=format,
            device=device,
            scale_layout=scale_layout,
            pad=pad,
            rowwise=-1 in axes,
            columnwise=-2 in axes,
            scale_dtype=scale_dtype,
            global_scale_per=per,
            hadamard=hadamard,
            zero_points=zero_points,
            biases=biases,
        )

    @property
    def is_quantized(self) -> bool:
        """Whether it has a block-scaled format."""
        return self.format is not None

    @property
    def _extents(self) -> tuple[int, ...]:
        """The shape; in a graph, which may take that of a description from outside for symbols, as constants."""
        return self.shape if graph_now() is None else constants(self.shape)

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
            formats that have one, "global_scale", or "zero_points" or "biases" of integers; for axis -2
            "columnwise_data" and so on.
        """
        if self.format is None:
            assert self.dtype is not None
            return (Buffer("data", self._extents, self.dtype),)
        named = {}
        for axis in self._axes:
            for buffer in self._buffers_along(axis):
                name = self._name(buffer.name, axis)
                named[name] = Buffer(name, buffer.shape, buffer.dtype)
        return tuple(named.values())

    def _buffers_along(self, axis: int) -> tuple[Buffer, ...]:
        """The buffers along one axis, of a quantized tensor, by the names of their parts."""
        assert self.format is not None
        # Extents that a compiler has only by name are not hashable, and must not be: nothing is remembered of them.
        shape = self._extents
        symbolic = any(map(is_symbolic, shape))
        describe = _core._describe_buffers if symbolic else buffers_of
        return describe(
            shape,
            self.format.name,
            axis,
            self.scale_layout,
            self.pad,
            self.scale_dtype,
            self.global_scale_per,
            offsets_in(self.format.name, self.zero_points, self.biases),
        )

    def _name(self, buffer: str, axis: int) -> str:
        """A buffer's name in a tensor that may be quantized along both axes; these share a tensor's global scale, but
        for one that was transformed along each.
        """
        differs = self.hadamard is not None and self.rowwise and self.columnwise
        is_shared = buffer == "global_scale" and self.global_scale_per == "tensor" and not differs
        return buffer if axis == -1 or is_shared else ACROSS + buffer

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
        graph = graph_now()
        if graph is not None:
            made: Described = graph.allocate(self)
            return made
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
        graph = graph_now()
        if graph is not None:
            return graph.flatten(self, x)
        found = TensorProto.of(x)
        for name in ("format", "dtype", "shape", "device", "packed", *_LAYOUT):
            if getattr(found, name) != getattr(self, name):
                raise ValueError(f"{name} differs: the tensor is {found!r}; expected {self!r}")
        if self.format is None:
            return self._check({"data": x.detach() if found.requires_grad else own(x)})
        parts: dict[str, Any] = {}
        for scaled in map(own, x if is_several(x) else (x,)):
            for buffer in self._buffers_along(scaled.axis):
                name, part = self._name(buffer.name, scaled.axis), getattr(scaled, buffer.name)
                if part is None:
                    continue  # absent, as will be said
                if name in parts and not _same(parts[name], part):
                    raise ValueError(f"{name} differs between the tensors along axes -1 and -2; they are not of one x")
                parts[name] = part
        return self._check(self._by_name(parts))

    def unflatten(self, buffers: Mapping[str, Any] | Sequence[Any]) -> Described:
        """The tensor of the given buffers, sharing their memory: the inverse of :meth:`flatten`.

        An `encode_scale` is no buffer: give it to :meth:`ScaledTensor.from_parts` where products need its exact bits.

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
        graph = graph_now()
        if graph is not None:
            made: Described = graph.unflatten(self, buffers)
            return made
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
            _core._restore_scaled(
                parts[self._name("data", axis)],
                parts[self._name("scales", axis)],
                parts.get(self._name("global_scale", axis)),
                self.format.name,
                axis,
                self.scale_layout,
                self.shape,
                hadamard=self.hadamard,
                offsets=parts.get(self._name("zero_points", axis), parts.get(self._name("biases", axis))),
            )
            for axis in self._axes
        ]
        return results[0] if len(results) == 1 else (results[0], results[1])


# Of the keywords that say more than shape, dtype or format, and device.
OPTION_DEFAULTS: Mapping[str, Any] = {
    name: each.default
    for name, each in inspect.signature(TensorProto.__init__).parameters.items()
    if name not in ("self", "shape", "dtype", "format", "device")
}


# ---- What is constant in a compiler's graph: functions of constants alone, which dlfp4.torch has Dynamo call at once


# Dynamo knows objects by where they come from: these come from tables.
FORMATS = dict(_core.formats())
DEVICES = {name: _core._parse_device(name) for name in ("cpu", *(f"cuda:{index}" for index in range(16)))}
DTYPES = {name: _core._parse_dtype(name) for name in (*COMMON, *COMPLEX, "bfloat16", *FP8, *SUBBYTE)}


def entry_of(table: Mapping[str, Any], given: Any, parse: Callable[[Any], Any]) -> Any:
    """What a table has by a name, or has itself, of which a graph knows that it is the same; else what is parsed."""
    if isinstance(given, str) and given in table:
        return table[given]
    for entry in table.values():
        if entry is given:
            return entry
    return parse(given)


def element_of(dtype: Any) -> np.dtype[Any]:
    """An element type."""
    found: np.dtype[Any] = entry_of(DTYPES, dtype, _core._parse_dtype)
    return found


def format_of(format: Any) -> Format:
    """A row of the table of formats."""
    found: Format = entry_of(FORMATS, format, _core._find_format)
    return found


def device_of(device: Any) -> Device:
    """A device."""
    found: Device = entry_of(DEVICES, device, shared_device)
    return found


def shared_device(device: Any) -> Device:
    """A device, as the table has it where it has an equal one."""
    found = _core._parse_device(device)
    return DEVICES.get(str(found), found)


def signs_of(hadamard: Any) -> tuple[int, ...] | None:
    """The signs of a Hadamard transform."""
    return _core._parse_hadamard(hadamard)


def buffers_of(*described: Any) -> tuple[Buffer, ...]:
    """The buffers of a quantized tensor along one axis."""
    return _core._buffers_of(*described)


def offsets_in(format: str, zero_points: Any, biases: Any) -> str:
    """The type of what a block has beside its scale."""
    return offsets_of(_core._find_format(format), zero_points, biases)


def settle_options(name: str, scale_dtype: Any, per: str, zero_points: Any, biases: Any) -> tuple[Any, Any]:
    """The types of scales and zero points, None for the format's own: those that every tensor of the format has."""
    format = _core._find_format(name)
    own = scale_type(format, scale_dtype) == format.scale
    check_global_scale(format, per)
    found = offsets_of(format, zero_points, biases)
    bare = biases is not None or found == own_offsets(format)
    return None if own else scale_dtype, None if bare else zero_points


CONSTANT = (signs_of, buffers_of, offsets_in, settle_options)


def own(x: Any) -> Any:
    """A tensor as ours, over the same memory where it is another library's, or in parts."""
    if isinstance(x, _core.ScaledTensor):
        return x
    return x.__dlfp4_share__() if hasattr(type(x), "__dlfp4_share__") else _core.asarray(x)


def own_scaled(x: Any) -> Any:
    """A quantized tensor of dlfp4.torch or dlfp4.jax as ours; anything else as it is."""
    return own(x) if hasattr(x, "__dlfp4_scaled__") else x


def as_described(x: Any) -> Any:
    """A quantized tensor or parts of another library's as ours without memory, which the other may not have either."""
    return x.__dlfp4_outline__() if hasattr(type(x), "__dlfp4_outline__") else x


def is_several(x: Any) -> bool:
    """Whether it is several tensors, and not the parts of one."""
    return isinstance(x, (tuple, list)) and not hasattr(type(x), "__dlfp4_share__")


def name_of_layout(given: Any) -> Any:
    """A name, which the core looks up."""
    if not isinstance(given, str):
        raise TypeError(f"scale_layout={given!r} is of type {type(given).__name__}; expected a string")
    return given


def flag_of(value: Any, name: str) -> bool:
    """A flag."""
    return value if value is True or value is False else _core._parse_flag(value, name)


class InGraph(NamedTuple):
    """How a framework describes and allocates its own tensors inside its compiler, where there are no others."""

    is_compiling: Callable[[], bool]
    describe: Callable[[Any], TensorProto]
    allocate: Callable[[TensorProto], Any]
    flatten: Callable[[TensorProto, Any], dict[str, Any]]
    unflatten: Callable[[TensorProto, Any], Any]


IN_GRAPH: list[InGraph] = []  # of dlfp4.torch, once it is imported


def graph_now() -> InGraph | None:
    """That of the compiler that traces this call, if one does."""
    for each in IN_GRAPH:
        if each.is_compiling():
            return each
    return None


def is_symbolic(extent: Any) -> bool:
    """Whether an extent is one that a compiler computes with before it knows the number."""
    known = isinstance(extent, (int, float, type)) or hasattr(extent, "__array__")
    return not known and hasattr(extent, "__floordiv__")


def constants(shape: Any) -> tuple[int, ...]:
    """Extents as numbers, which a graph that had them as symbols is then made for: a range has a length."""
    return tuple([len(range(extent)) for extent in shape])


def constant_signs(given: Any) -> Any:
    """The signs of a Hadamard transform, or their seed, as numbers in the same way."""
    if isinstance(given, (tuple, list)):
        return tuple([1 if sign == 1 else -1 if sign == -1 else 0 for sign in given])
    return len(range(given)) if isinstance(given, int) and 0 <= given < 1 << 63 else given


def _parse_signs(hadamard: Any) -> tuple[int, ...] | None:
    return signs_of(hadamard if graph_now() is None else constant_signs(hadamard))


def _parse_shape(shape: Any) -> tuple[int, ...]:
    given = shape if isinstance(shape, (tuple, list)) else (shape,)
    if graph_now() is not None:
        extents = constants(given)
    else:
        extents = tuple([extent if is_symbolic(extent) else _core._parse_integer(extent, "shape") for extent in given])
    if any([not is_symbolic(extent) and extent < 0 for extent in extents]):  # noqa: C419  (which Dynamo can trace)
        raise ValueError(f"shape {extents}: expected extents of 0 or more")
    return extents


def _offset_types(q: ScaledTensor) -> tuple[ZeroPointDtype | Literal["none"] | None, BiasDtype | None]:
    """The types of a tensor's zero points and biases, as a proto has them."""
    zero_points: Any = None if q.zero_points is None else q.zero_points.dtype.name
    biases: Any = None if q.biases is None else q.biases.dtype.name
    bare = q.format.has_integers and zero_points is None and biases is None
    return "none" if bare else zero_points, biases


def _granularity(q: ScaledTensor) -> GlobalScalePer:
    """Which part of a tensor its global scales are of."""
    unit = q.global_scale
    return "tensor" if unit is None or unit.ndim == 0 else granularity_of(q.format, q.shape, q.axis, unit.size)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two scalars are the same memory, or the same bytes."""
    return a.data_ptr == b.data_ptr or a.to_numpy().tobytes() == b.to_numpy().tobytes()
