"""ScaledArray: a block-scaled tensor of JAX arrays, as a pytree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Never, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey

from dlfp4 import _core
from dlfp4._core import ScaledTensor, Tensor
from dlfp4.extents import count_elements
from dlfp4.frameworks.base import FP6, SUBBYTE
from dlfp4.frameworks.jax import WITHOUT_DLPACK
from dlfp4.jax.calls import arrays_of, refuse_symbols
from dlfp4.jax.codecs import Array, cast, elements
from dlfp4.jax.primitives import call
from dlfp4.jax.table import DEQUANTIZE
from dlfp4.proto import ACROSS, TensorProto

if TYPE_CHECKING:
    from dlfp4._core import _DType
    from dlfp4.formats import Format

Operand: TypeAlias = "Array | ScaledArray"

HOST = _core._parse_device("cpu")  # what arrays are described for; where they lie is JAX's
PARTS = ("data", "scales", "global_scale", "zero_points", "biases")  # in the order of TensorProto.buffers


@jax.tree_util.register_pytree_with_keys_class
class ScaledArray:
    """A block-scaled tensor of JAX arrays: ``value = data * scale of its block (* global_scale)``.

    It comes from :func:`dlfp4.jax.quantize`, or from :meth:`from_tensor`, and is a pytree: its arrays are leaves, what
    it is belongs to the structure. It goes through ``jit``, ``vmap``, ``scan``, ``device_put``, ``tree.map``,
    optimizers and checkpoints like a dictionary of arrays. Stacked leaves, as ``scan`` and ``vmap`` take them, are a
    stack of such tensors; operations take one.

    Attributes
    ----------
    data : jax.Array
        The elements, in the shape of :class:`dlfp4.ScaledTensor`: float4_e2m1fn, which XLA packs, or a float8 type.
        FP6, of which XLA has no type, is carried as its packed bytes: uint8, with rows of ``K * 6 / 8``.
    scales : jax.Array
        Decode scales, in the shape and type of :class:`dlfp4.ScaledTensor`.
    global_scale : jax.Array or None
        float32, in formats with two levels of scales.
    zero_points, biases : jax.Array or None
        Of int4 and uint4, as :class:`dlfp4.ScaledTensor` has them.
    source : jax.Array or None
        What was quantized, with ``straight_through=True``: it takes the gradient.
    proto : TensorProto
        What the arrays are, before `mT`.

    Examples
    --------
    >>> import jax, dlfp4.jax
    >>> w = dlfp4.jax.quantize(jax.numpy.eye(32), "mxfp4")
    >>> jax.tree.map(lambda leaf: leaf.shape, w)
    ScaledArray(shape=(32, 32), format='mxfp4', data=(32, 32), scales=(32, 1))
    """

    __slots__ = (*PARTS, "is_transposed", "proto", "source", "whole")

    data: Array
    scales: Array
    global_scale: Array | None
    zero_points: Array | None
    biases: Array | None
    source: Array | None
    proto: TensorProto
    whole: TensorProto  # what the arrays were cut from, which the structure of a pytree keeps
    is_transposed: bool

    def __init__(
        self, parts: Iterable[Array], proto: TensorProto, *, source: Array | None = None, is_transposed: bool = False
    ) -> None:
        named = dict(zip(names_of_parts(proto), parts, strict=True))
        for name in PARTS:
            setattr(self, name, named.get(name))
        self.source = source
        self.proto = self.whole = proto
        self.is_transposed = is_transposed

    # ---- The pytree

    def tree_flatten_with_keys(self) -> tuple[list[tuple[GetAttrKey, Any]], tuple[TensorProto, bool]]:
        """The arrays with their names, and what they are."""
        names = (*PARTS, "source")
        return [(GetAttrKey(name), getattr(self, name)) for name in names], (self.whole, self.is_transposed)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[TensorProto, bool]]:
        """The arrays, and what they are."""
        parts = (self.data, self.scales, self.global_scale, self.zero_points, self.biases, self.source)
        return parts, (self.whole, self.is_transposed)

    @classmethod
    def tree_unflatten(cls, structure: tuple[TensorProto, bool], leaves: Sequence[Any]) -> ScaledArray:
        """The tensor of that structure; leaves may be anything that JAX puts in the place of arrays."""
        self = cls.__new__(cls)
        self.whole, self.is_transposed = structure
        for name, leaf in zip((*PARTS, "source"), leaves, strict=True):
            setattr(self, name, leaf)
        self.proto = fitted(self.whole, shapes_of(self.parts))
        return self

    # ---- What it is

    @property
    def format(self) -> Format:
        """The block-scaled format, which equals its name."""
        assert self.proto.format is not None
        return self.proto.format

    @property
    def stack(self) -> tuple[int, ...]:
        """The leading dimensions of stacked leaves; () for one tensor."""
        shape = tuple(getattr(self.data, "shape", ()))
        return shape[: max(0, len(shape) - len(self.proto.buffers()[0].shape))]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor, without padding; of stacked leaves with theirs in front."""
        own = self.proto.shape
        return (*self.stack, *own[:-2], own[-1], own[-2]) if self.is_transposed else (*self.stack, *own)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return count_elements(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements, as the format has it."""
        return self.format.element

    @property
    def axis(self) -> int:
        """-1 or -2, along which the blocks run."""
        own = -1 if self.proto.rowwise else -2
        return -3 - own if self.is_transposed else own

    @property
    def scale_layout(self) -> str:
        """How the scales lie."""
        return self.proto.scale_layout

    @property
    def hadamard(self) -> tuple[int, ...] | None:
        """The signs of the Hadamard transform that :meth:`dequantize` undoes."""
        return self.proto.hadamard

    @property
    def parts(self) -> list[Array]:
        """The arrays of the tensor, in the order of its buffers."""
        return [part for part in (getattr(self, name) for name in PARTS) if part is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of the parts in memory, FP4 packed."""
        stacked = count_elements(self.stack)
        return stacked * sum(
            -(-count_elements(shape) * SUBBYTE.get(dtype.name, 8 * dtype.itemsize) // 8)
            for shape, dtype in arrays_of(self.proto)
        )

    @property
    def mT(self) -> ScaledArray:  # noqa: N802 - the name of the array API
        """The last two dimensions exchanged; nothing is moved. ValueError unless there are two.

        Of a stack ``(E, ..., N, K)`` with blocks along its last axis it is what :func:`grouped_matmul` takes.
        """
        dimensions = len(self.proto.shape)
        if dimensions < 2:
            raise ValueError(f"mT of a ScaledArray needs two dimensions or more; this one has shape {self.shape}")
        if dimensions > 2 and not self.proto.rowwise:
            raise ValueError(
                f"{self!r} is a stack with blocks along its columns, which may cross from one matrix to the next: "
                f"quantize it along its last axis"
            )
        source = None if self.source is None else self.source.mT
        return ScaledArray(self.parts, self.proto, source=source, is_transposed=not self.is_transposed)

    def __repr__(self) -> str:
        parts = [(name, getattr(self, name)) for name in (*PARTS, "source")]
        shown = [
            f"{name}={part.dtype}{list(part.shape)}" if hasattr(part, "dtype") else f"{name}={part!r}"
            for name, part in parts
            if part is not None
        ]
        return f"ScaledArray(shape={self.shape}, format={self.format.name!r}, {', '.join(shown)})"

    # ---- To and from others

    def dequantize(self, dtype: Any = "float32") -> Array:
        """The values; see :func:`dlfp4.jax.dequantize`."""
        return dequantize(self, dtype)

    @classmethod
    def from_tensor(cls, q: ScaledTensor) -> ScaledArray:
        """The tensor as JAX arrays.

        Parameters
        ----------
        q : dlfp4.ScaledTensor
            On the host, or on a GPU that JAX sees. JAX shares compact memory that is aligned to 64 bytes, as dlfp4
            allocates it, and copies FP4 and all else. A prepared weight is restored to linear scales.

        Raises
        ------
        TypeError
            `q` is not a dlfp4.ScaledTensor.
        """
        if not isinstance(q, _core.ScaledTensor):
            raise TypeError(f"q is of type {type(q).__name__}; expected a dlfp4.ScaledTensor, from dlfp4.quantize")
        if _core._is_turned(q):
            return cls.from_tensor(q.mT).mT
        plain = q.with_scale_layout("linear") if q.scale_layout == "prepared" else q
        proto = replace(TensorProto.of(plain), device=HOST, requires_grad=False)
        return cls([as_array(getattr(plain, name)) for name in names_of_parts(proto)], proto)

    def to_tensor(self) -> ScaledTensor:
        """The tensor as a :class:`dlfp4.ScaledTensor` over the same memory, but for int4, which JAX does not export.

        Raises
        ------
        ValueError
            Leaves that are stacked: take one tensor, ``jax.tree.map(lambda leaf: leaf[0], q)``.
        BufferError
            Arrays that cannot be exchanged: traced, deleted, on several devices.

        Notes
        -----
        Elements below 8 bits of NumPy arrays, as :func:`jax.device_get` makes them, lie one a byte and are packed.
        :func:`dlfp4.asarray` gives the same tensor.
        """
        check_single(self)
        parts = dict(zip(names_of_parts(self.proto), map(as_tensor, self.parts), strict=True))
        q = _core._restore_scaled(
            parts["data"],
            parts["scales"],
            parts.get("global_scale"),
            self.format.name,
            -1 if self.proto.rowwise else -2,
            self.scale_layout,
            self.proto.shape,
            hadamard=self.hadamard,
            offsets=parts.get("zero_points", parts.get("biases")),
        )
        return q.mT if self.is_transposed else q

    def __dlfp4_scaled__(self, copy: bool | None = None) -> ScaledTensor:
        """What dlfp4's own functions take this for."""
        copied = [str(part.dtype) for part in self.parts if is_copied(part)] if copy is False else []
        if copied:
            raise BufferError(f"{copied[0]} of {self!r} can only be taken as a copy, which copy=False forbids")
        return self.to_tensor()

    def __array__(self, *arguments: Any, **options: Any) -> Never:
        raise TypeError(refusal_as_array(self))

    @property
    def aval(self) -> Never:
        """TypeError: ``jax.numpy`` asks this of all that has a shape and a dtype, before it takes that for an array;
        ``zeros_like`` and its kind, which would make codes, only where they are given no dtype.
        """
        raise TypeError(refusal_as_array(self))


def refusal_as_array(q: ScaledArray) -> str:
    """What to do instead of taking a tensor of several arrays for one."""
    return (
        f"{q!r} is not an array: its codes mean nothing without their scales; .dequantize() gives its values, "
        f"dlfp4.asarray takes it whole, and jax.numpy.zeros_like and its kind need a dtype"
    )


def names_of_parts(proto: TensorProto) -> list[str]:
    """The names of a tensor's parts, in the order of its buffers."""
    return [buffer.name.removeprefix(ACROSS) for buffer in proto.buffers()]


def shapes_of(parts: Iterable[Any]) -> tuple[tuple[int, ...], ...]:
    """The shapes of parts; () where one is no array, but what JAX has put in its place."""
    shapes = tuple(getattr(part, "shape", None) for part in parts)
    return shapes if all(isinstance(shape, tuple) for shape in shapes) else ()  # type: ignore[return-value]


@lru_cache(maxsize=4096)
def fitted(proto: TensorProto, shapes: tuple[tuple[int, ...], ...]) -> TensorProto:
    """What arrays are that were cut between blocks from those of a tensor, or joined of such, as ``shard_map`` does.

    It is `proto` itself where they are a stack of its arrays, and where they make no tensor: see `check_single`.
    """
    expected = [shape for shape, _ in arrays_of(proto)]
    if len(shapes) != len(expected) or len(shapes[0]) < len(expected[0]):
        return proto
    stacked = len(shapes[0]) - len(expected[0])
    own = [shape[stacked:] for shape in shapes]
    if own == expected or not proto.rowwise or not all(expected[0]):
        return proto
    inner, length = proto.shape[1:-1], proto.shape[-1]
    lines = own[0][0] if len(own[0]) > 1 else 1
    cut = (lines // max(1, count_elements(inner)), *inner, length * own[0][-1] // expected[0][-1])
    try:
        found = replace(proto, shape=cut[-len(proto.shape) :])
    except ValueError:  # cut through blocks
        return proto
    return found if own == [shape for shape, _ in arrays_of(found)] else proto


def as_array(part: Tensor) -> Array:
    """A part as a JAX array."""
    return (part.view("uint8") if part.dtype.name in FP6 else part).to_jax()


def as_tensor(part: Array) -> Tensor:
    """A part's memory; a copy of integers below 8 bits, which JAX does not export."""
    return _core.asarray(np.asarray(part) if part.dtype in WITHOUT_DLPACK else part)


def is_copied(part: Array) -> bool:
    """Whether `as_tensor` cannot share a part's memory, or gives elements that are yet to be packed."""
    return part.dtype.name in SUBBYTE and (isinstance(part, np.ndarray) or part.dtype in WITHOUT_DLPACK)


def check_single(q: ScaledArray) -> None:
    """ValueError for stacked leaves, and for those that make no tensor, beyond which kernels would read."""
    refuse_symbols(q.shape)
    if q.stack:
        own = q.shape[len(q.stack) :]
        raise ValueError(
            f"{q!r} is a stack of tensors of shape {own}; map over it with jax.vmap or jax.lax.scan, or take one: "
            f"jax.tree.map(lambda leaf: leaf[0], q)"
        )
    expected = [shape for shape, _ in arrays_of(q.proto)]
    if list(shapes_of(q.parts)) != expected:
        raise ValueError(
            f"{q!r} has arrays of other shapes than {expected}, those of a tensor of {q.proto.shape}: take whole "
            f"blocks with their scales, and of a tensor with rows that have blocks along the last axis"
        )


# ---- Operands


def as_operand(x: Any, name: str) -> Operand:
    """A ScaledArray, which is one tensor, or an array."""
    if isinstance(x, ScaledTensor):
        return ScaledArray.from_tensor(x)
    if isinstance(x, ScaledArray):
        check_single(x)
        return x
    if type(x).__name__ == "PyCapsule":
        raise TypeError(f"{name} is a capsule; pass jax.numpy.from_dlpack of what made it")
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def with_read_scales(q: ScaledArray) -> ScaledArray:
    """The tensor with scales of its format's type, and biases of float32, as the kernels read them."""
    data, scales, *rest = q.parts
    proto = replace(q.proto, scale_dtype=None, biases=None if q.biases is None else "float32")
    if proto == q.proto:
        return q
    wide = [cast(scales, q.format.scale), *(rest if q.biases is None else [cast(q.biases, "float32")])]
    return ScaledArray([data, *wide], proto, source=q.source, is_transposed=q.is_transposed)


def flattened(q: ScaledArray) -> ScaledArray:
    """The tensor as the matrix as which it is stored, unless its matrices have scales of their own."""
    if q.proto.global_scale_per == "matrix":
        return q
    matrix = (count_elements(q.proto.shape[:-1]), q.proto.shape[-1])
    return ScaledArray(q.parts, replace(q.proto, shape=matrix), source=q.source, is_transposed=q.is_transposed)


def described(x: Operand) -> tuple[TensorProto, list[Array]]:
    """An operand as operations take it. Codes and scales are constants to derivatives."""
    if isinstance(x, ScaledArray):
        return x.proto, [jax.lax.stop_gradient(part) for part in x.parts]
    proto, array = elements(x)
    return proto, [jax.lax.stop_gradient(array)]


# ---- Back


def dequantize(q: ScaledArray | ScaledTensor, dtype: _DType = "float32") -> Array:
    """The values of a block-scaled tensor: :func:`dlfp4.dequantize` on JAX arrays.

    Parameters
    ----------
    q : ScaledArray
        One tensor; map over stacked leaves with jax.vmap.
    dtype : dtype-like
        float32, bfloat16 or float16.

    Returns
    -------
    jax.Array
        ``(..., K)``. Derivatives go to q's `source`, if it has one.

    Examples
    --------
    >>> import jax, dlfp4.jax
    >>> q = dlfp4.jax.quantize(jax.numpy.arange(32.0), "mxfp8_e4m3")
    >>> dlfp4.jax.dequantize(q, "bfloat16")[::8]
    Array([0, 8, 16, 24], dtype=bfloat16)
    """
    given = as_operand(q, "q")
    if not isinstance(given, ScaledArray):
        raise TypeError(f"q is of type {type(q).__name__}; expected a ScaledArray, from dlfp4.jax.quantize")
    named = _core._parse_dtype(dtype)
    if named.name not in ("float32", "bfloat16", "float16"):
        raise TypeError(f"dtype={named}: block-scaled tensors dequantize to float32, bfloat16 or float16")
    proto, arrays = described(flattened(with_read_scales(given)))
    (values,) = call(DEQUANTIZE, (proto,), arrays, dtype=named.name)
    values = values.reshape(given.proto.shape)
    values = values.mT if given.is_transposed else values
    return values if given.source is None else carry(values, given.source)


def keep_values(values: Array, source: Array) -> Array:
    """Values that were made of something."""
    del source
    return values


def differentiate_values(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
    """Their derivative is that of what they were made of."""
    values, source = primals
    return carry(values, source), tangents[1].astype(values.dtype)


carry = jax.custom_jvp(keep_values)
carry.defjvp(differentiate_values)


# ---- dlfp4.ScaledTensor as a pytree


def flatten_tensor(q: ScaledTensor) -> tuple[list[Any], tuple[TensorProto, bool]]:
    """A ScaledTensor's parts as JAX arrays, and what they are."""
    keyed, structure = ScaledArray.from_tensor(q).tree_flatten_with_keys()
    return [leaf for _, leaf in keyed], structure


def unflatten_tensor(structure: tuple[TensorProto, bool], leaves: Sequence[Any]) -> ScaledTensor | ScaledArray:
    """The ScaledTensor of arrays with values on one device; a ScaledArray of all else, such as tracers."""
    q = ScaledArray.tree_unflatten(structure, leaves)
    expected = arrays_of(q.proto)
    found = [(getattr(part, "shape", None), getattr(part, "dtype", None)) for part in q.parts]
    return q.to_tensor() if found == expected and all(map(has_values, q.parts)) else q


def has_values(part: Any) -> bool:
    """Whether an array lies on one device, to be read."""
    return isinstance(part, np.ndarray) or (
        isinstance(part, jax.Array) and not isinstance(part, jax.core.Tracer) and len(part.devices()) == 1
    )


jax.tree_util.register_pytree_node(ScaledTensor, flatten_tensor, unflatten_tensor)
