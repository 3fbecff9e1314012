"""ScaledTensors in Arrow: an extension type, so that they lie in tables, go through IPC and Parquet, and come back.

Importing this module imports pyarrow and registers the type. A reader that knows it gets ScaledTensors; any other
reader sees the storage, a struct that says what each part is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from dlfp4 import ScaledTensor, Tensor, asarray, cast, empty
from dlfp4._core import _in_shape_of
from dlfp4.extents import count_elements

_NAME = "dlfp4.scaled_tensor"
_PART = pa.struct({"dtype": pa.string(), "shape": pa.list_(pa.int64()), "bytes": pa.large_binary()})
_PARTS = ("data", "scales", "global_scale", "encode_scale", "zero_points", "biases")
_NIBBLES = ("int4", "uint4")
_DESCRIPTION = {
    "format": pa.string(),
    "axis": pa.int8(),
    "scale_layout": pa.string(),
    "shape": pa.list_(pa.int64()),
    "hadamard": pa.list_(pa.int8()),
}
_STORAGE = pa.struct({**_DESCRIPTION, **dict.fromkeys(_PARTS, _PART)})


class ScaledTensorScalar(pa.ExtensionScalar):  # type: ignore[misc]  # pyarrow has no types
    """One tensor of an array."""

    def as_py(self, **_: Any) -> ScaledTensor | None:
        """The ScaledTensor, read-only, over a copy: Arrow makes one for each scalar; None of a null.

        Raises
        ------
        ValueError
            The parts are not those of a tensor of the format, type and shape that are said.
        """
        return None if self.value is None else _tensors_of(pa.repeat(self.value, 1))[0]


class ScaledTensorArray(pa.ExtensionArray):  # type: ignore[misc]
    """An array of tensors, as :func:`array` makes it and as the chunks of a table's column are."""

    def to_tensors(self) -> list[ScaledTensor | None]:
        """The ScaledTensors, read-only, over the array's memory, which is not read; None for nulls.

        A part that does not lie on a multiple of its element's size is copied.

        Raises
        ------
        ValueError
            Parts are not those of a tensor of the format, type and shape that are said.
        """
        return _tensors_of(self.storage)


class ScaledTensorType(pa.ExtensionType):  # type: ignore[misc]
    """The Arrow type of :class:`dlfp4.ScaledTensor`, of any format and shape: ``dlfp4.scaled_tensor``.

    Examples
    --------
    >>> from dlfp4.arrow import ScaledTensorType
    >>> ScaledTensorType().extension_name
    'dlfp4.scaled_tensor'
    """

    def __init__(self) -> None:
        super().__init__(_STORAGE, _NAME)

    def __arrow_ext_serialize__(self) -> bytes:
        return b""  # each tensor says what it is

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> ScaledTensorType:
        if storage_type != _STORAGE:
            raise ValueError(
                f"{_NAME} stored as {storage_type}: expected {_STORAGE}; it was written by another version of dlfp4"
            )
        return cls()

    def __arrow_ext_class__(self) -> type[ScaledTensorArray]:
        return ScaledTensorArray

    def __arrow_ext_scalar_class__(self) -> type[ScaledTensorScalar]:
        return ScaledTensorScalar


def array(tensors: Iterable[ScaledTensor | None]) -> ScaledTensorArray:
    """Put ScaledTensors into an Arrow array, one tensor in each element.

    Their bytes are copied into Arrow's buffers, those of CUDA devices through the host.

    Parameters
    ----------
    tensors : iterable of ScaledTensor or None
        Of any formats and shapes. A prepared weight is stored in the order that it had before.

    Returns
    -------
    ScaledTensorArray
        Of type :class:`ScaledTensorType`. Its ``to_tensors()`` gives tensors over Arrow's memory.

    Raises
    ------
    TypeError
        An element is not a ScaledTensor.

    Examples
    --------
    >>> import numpy as np, dlfp4, dlfp4.arrow
    >>> q = dlfp4.quantize(np.ones((4, 32), "float32"), "mxfp4")
    >>> [each.shape for each in dlfp4.arrow.array([q]).to_tensors()]
    [(4, 32)]
    """
    rows = [None if tensor is None else _to_storage(tensor) for tensor in tensors]
    made: ScaledTensorArray = pa.ExtensionArray.from_storage(ScaledTensorType(), pa.array(rows, _STORAGE))
    return made


def _to_storage(tensor: ScaledTensor) -> dict[str, Any]:
    if not isinstance(tensor, ScaledTensor):
        raise TypeError(f"{type(tensor).__name__}: expected a dlfp4.ScaledTensor or None; call dlfp4.quantize() first")
    if tensor.scale_layout == "prepared":
        tensor = tensor.with_scale_layout("linear")
    tensor = tensor.to_device("cpu")
    return {
        "format": tensor.format.name,
        "axis": tensor.axis,
        "scale_layout": tensor.scale_layout,
        "shape": list(tensor.shape),
        "hadamard": tensor.hadamard,
        **{name: _to_part(getattr(tensor, name)) for name in _PARTS},
    }


def _to_part(part: Tensor | None) -> dict[str, Any] | None:
    if part is None:
        return None
    return {"dtype": part.dtype.name, "shape": list(part.shape), "bytes": _octets_of(part).to_numpy().data}


def _octets_of(part: Tensor) -> Tensor:
    """The bytes of a part; of zero points of 4 bits there may be an odd number, after which four bits are zero."""
    if not part.size:
        return empty(0, "uint8")
    flat = part.copy().reshape(part.size)
    if part.size % 2 and part.dtype.name in _NIBBLES:
        whole = asarray(np.zeros(part.size // 2 + 1, np.uint8)).view(part.dtype)
        cast(flat, part.dtype, out=whole[: part.size])
        flat = whole
    return flat.view("uint8")


def _tensors_of(storage: pa.StructArray) -> list[ScaledTensor | None]:
    """The tensors of an array's storage, column by column: scalars of it would have copies of the bytes."""
    storage.validate(full=True)  # offsets, which Arrow believes of files; ArrowInvalid is a ValueError
    valid = storage.is_valid().to_pylist()
    described = {name: storage.field(name).to_pylist() for name in _DESCRIPTION}
    parts = {name: _parts_of(name, storage.field(name), valid) for name in _PARTS}
    return [
        _tensor_of(
            {name: values[row] for name, values in described.items()},
            {name: values[row] for name, values in parts.items() if values[row] is not None},
        )
        if there
        else None
        for row, there in enumerate(valid)
    ]


def _tensor_of(described: dict[str, Any], parts: dict[str, Any]) -> ScaledTensor:
    if missing := {"data", "scales"} - parts.keys():
        raise ValueError(f"{_NAME} without its {' and '.join(sorted(missing))}: the array is damaged")
    try:
        q = ScaledTensor.from_parts(parts.pop("data"), parts.pop("scales"), **parts, **described)
        return _in_shape_of(q, parts.get("global_scale"))
    except TypeError as error:  # a null where a number has to be
        raise ValueError(f"{_NAME}: {error}") from error


def _parts_of(name: str, column: pa.StructArray, valid: list[bool]) -> list[Tensor | None]:
    """A part of each tensor; None where it, or the tensor, is null."""
    octets, there = column.field("bytes"), column.is_valid().to_pylist()
    types, shapes = column.field("dtype").to_pylist(), column.field("shape").to_pylist()
    return [
        _part_of(name, types[row], tuple(shapes[row] or ()), _slot(octets, row)) if there[row] and valid[row] else None
        for row in range(len(column))
    ]


def _slot(array: pa.LargeBinaryArray, row: int) -> pa.Buffer:
    """The bytes of one element, where they lie."""
    _, offsets, octets = array.buffers()
    start, end = np.frombuffer(offsets, np.int64)[array.offset + row :][:2].tolist()
    return octets.slice(start, end - start)


def _part_of(name: str, dtype: str, shape: tuple[int, ...], buffer: pa.Buffer) -> Tensor:
    octets = np.frombuffer(buffer, np.uint8)
    try:
        if octets.ctypes.data % empty(0, dtype).dtype.itemsize:
            octets = octets.copy()
        flat = asarray(octets).view(dtype)
        if dtype in _NIBBLES and count_elements(shape) == flat.size - 1:
            flat = flat[:-1]
        return flat.reshape(shape)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_NAME}: {name} has {octets.size} bytes, which are not {shape} of {dtype}") from error


pa.register_extension_type(ScaledTensorType())
