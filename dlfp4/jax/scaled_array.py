"""ScaledArray: a block-scaled tensor of JAX arrays, as a pytree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey

from dlfp4 import _core
from dlfp4._core import ScaledTensor, Tensor
from dlfp4.frameworks.jax import FP6
from dlfp4.jax.codecs import Array, cast, elements
from dlfp4.jax.primitives import DEQUANTIZE, arrays_of, call
from dlfp4.proto import TensorProto

if TYPE_CHECKING:
    from dlfp4._core import _DType
    from dlfp4.formats import Format

Operand: TypeAlias = "Array | ScaledArray"

HOST = _core._parse_device("cpu")  # what arrays are described for; where they lie is JAX's
PARTS = ("data", "scales", "global_scale")  # in the order of TensorProto.buffers


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

    __slots__ = (*PARTS, "is_transposed", "proto", "source")

    data: Array
    scales: Array
    global_scale: Array | None
    source: Array | None
    proto: TensorProto
    is_transposed: bool

    def __init__(
        self, parts: Iterable[Array], proto: TensorProto, *, source: Array | None = None, is_transposed: bool = False
    ) -> None:
        given = list(parts)
        for number, name in enumerate(PARTS):
            setattr(self, name, given[number] if number < len(given) else None)
        self.source = source
        self.proto = proto
        self.is_transposed = is_transposed

    # ---- The pytree

    def tree_flatten_with_keys(self) -> tuple[list[tuple[GetAttrKey, Any]], tuple[TensorProto, bool]]:
        """The arrays with their names, and what they are."""
        names = (*PARTS, "source")
        return [(GetAttrKey(name), getattr(self, name)) for name in names], (self.proto, self.is_transposed)

    @classmethod
    def tree_unflatten(cls, structure: tuple[TensorProto, bool], leaves: Sequence[Any]) -> ScaledArray:
        """The inverse; leaves may be anything that JAX puts in the place of arrays."""
        *parts, source = leaves
        return cls(parts, structure[0], source=source, is_transposed=structure[1])

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
        own = self.proto.shape[::-1] if self.is_transposed else self.proto.shape
        return (*self.stack, *own)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

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
        stacked = math.prod(self.stack)
        return stacked * sum(
            -(-math.prod(shape) * (4 if dtype.name == "float4_e2m1fn" else 8 * dtype.itemsize) // 8)
            for shape, dtype in arrays_of(self.proto)
        )

    @property
    def mT(self) -> ScaledArray:  # noqa: N802 - the name of the array API
        """The last two dimensions exchanged; nothing is moved. ValueError unless there are two."""
        if len(self.proto.shape) != 2:
            raise ValueError(f"mT of a ScaledArray needs two dimensions; this one has shape {self.shape}")
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
        """
        plain = q.with_scale_layout("linear") if q.scale_layout == "prepared" else q
        proto = replace(TensorProto.of(plain), device=HOST, requires_grad=False)
        parts = (plain.data, plain.scales, plain.global_scale)
        return cls([as_array(part) for part in parts if part is not None], proto)

    def to_tensor(self) -> ScaledTensor:
        """The tensor as a :class:`dlfp4.ScaledTensor` over the same memory.

        Raises
        ------
        ValueError
            Leaves that are stacked: take one tensor, ``jax.tree.map(lambda leaf: leaf[0], q)``.
        BufferError
            Arrays that cannot be exchanged: traced, deleted, on several devices.
        """
        check_single(self)
        parts = dict(zip(PARTS, map(_core.asarray, self.parts), strict=False))
        q = _core._restore_scaled(
            parts["data"],
            parts["scales"],
            parts.get("global_scale"),
            self.format.name,
            -1 if self.proto.rowwise else -2,
            self.scale_layout,
            self.proto.shape,
            hadamard=self.hadamard,
        )
        return q.mT if self.is_transposed else q


def as_array(part: Tensor) -> Array:
    """A part as a JAX array."""
    return (part.view("uint8") if part.dtype.name in FP6 else part).to_jax()


def check_single(q: ScaledArray) -> None:
    """ValueError for stacked leaves."""
    if q.stack:
        raise ValueError(
            f"{q!r} is a stack of tensors of shape {q.proto.shape}; map over it with jax.vmap or jax.lax.scan, or take "
            f"one: jax.tree.map(lambda leaf: leaf[0], q)"
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
    """The tensor with scales of its format's type, as the kernels read them."""
    if q.proto.scale_dtype is None:
        return q
    data, scales, *rest = q.parts
    wide = cast(scales, q.format.scale)
    proto = replace(q.proto, scale_dtype=None)
    return ScaledArray([data, wide, *rest], proto, source=q.source, is_transposed=q.is_transposed)


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
        One tensor; stacked leaves are mapped over.
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
    proto, arrays = described(with_read_scales(given))
    (values,) = call(DEQUANTIZE, (proto,), arrays, dtype=named.name)
    values = values.mT if given.is_transposed else values
    return values if given.source is None else carry(values, given.source)


def keep_values(values: Array, source: Array) -> Array:
    """Values that were made of something."""
    del source
    return values


def differentiate_values(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
    """Their derivative is that of what they were made of."""
    return primals[0], tangents[1].astype(primals[0].dtype)


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
