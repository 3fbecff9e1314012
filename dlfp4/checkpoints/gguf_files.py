"""GGUF files, by the ``gguf`` package: MXFP4 and NVFP4 as ggml's blocks, floats and integers as they are.

NVFP4's global scale lies beside the blocks, in a float32 tensor: ``NAME.scale`` of ``NAME.weight``, one for each matrix
of a stack. Names and the order of rows are those of :mod:`dlfp4.checkpoints.llama_cpp`, where it knows the model.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import dlfp4
from dlfp4 import ScaledTensor, Tensor
from dlfp4._core import _refuse_hadamard
from dlfp4.checkpoints.ggml import BLOCKS, block_of, count_blocks, from_ggml, to_ggml
from dlfp4.checkpoints.gguf_headers import MOST_DIMS, check_header
from dlfp4.checkpoints.safetensors import check_text
from dlfp4.extents import bounded_product, count_elements
from dlfp4.files import OPEN, open_file, replacing
from dlfp4.parsing import brief, shown

Array = npt.NDArray[Any]
SUFFIX = ".gguf"
PLAIN = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
}  # fmt: skip
UNITS = ("F32", "F16", "BF16")  # types of global scales, which float32 holds
LONGEST = 63  # bytes of a name
MOST_ARRAY = (1 << 63) - 1  # bytes that the other extents of an empty array of NumPy take


def package() -> Any:
    """The ``gguf`` package; ModuleNotFoundError says how to get it."""
    try:
        return import_module("gguf")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("GGUF files need the gguf package: pip install gguf") from error


def is_gguf(path: object) -> bool:
    """Whether a path is that of a GGUF file."""
    return isinstance(path, str | os.PathLike) and os.fspath(path).endswith(SUFFIX)


def scale_name(name: str) -> str:
    """What the tensor is called that holds the global scales of another."""
    return f"{name.removesuffix('.weight')}.scale"


# ---- Reading


def read(path: str) -> tuple[dict[str, Tensor | ScaledTensor], dict[str, Any]]:
    """Map a GGUF file and return its tensors, and its fields but for arrays.

    MXFP4 and NVFP4 are converted to rows of codes and scales, other blocks of ggml are decoded to float32.

    Raises
    ------
    ValueError
        The file is not a GGUF file, or is damaged.
    """
    library = package()
    try:
        with open_file(path) as file:
            check_header(file, os.fstat(file.fileno()).st_size)
            # The package opens files by name; this is the one that was checked.
            reader = library.GGUFReader(f"{OPEN}/{file.fileno()}")
            check_order(reader)
            check_apart(reader.tensors)
            entries = {entry.name: entry for entry in reader.tensors}
            array = library.GGUFValueType.ARRAY
            fields = {key: field.contents() for key, field in reader.fields.items() if array not in field.types}
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a GGUF file, or is damaged: {error}") from error
    scales = {scale_name(name) for name, entry in entries.items() if entry.tensor_type.name == "NVFP4"}
    tensors = {}
    for name, entry in entries.items():
        if name in scales:
            continue
        try:
            unit = entries.get(scale_name(name)) if entry.tensor_type.name == "NVFP4" else None
            tensors[name] = as_tensor(library, entry, None if unit is None else read_units(library, unit))
        except (ValueError, TypeError, BufferError, NotImplementedError) as error:
            raise ValueError(f"{path}: {brief(name)}: {error}") from error
    return tensors, fields


def check_order(reader: Any) -> None:
    """ValueError where numbers are in the other order of bytes: the package gives some types as bytes as they lie."""
    if reader.byte_order != "I":
        raise ValueError(
            "its numbers are in the order of bytes of another machine; gguf-convert-endian of the gguf package turns "
            "them round"
        )


def check_apart(entries: Iterable[Any]) -> None:
    """ValueError where two tensors have bytes in common."""
    taken = sorted((int(entry.data_offset), int(entry.n_bytes), entry.name) for entry in entries if entry.n_bytes)
    for (start, size, name), (following, _, other) in itertools.pairwise(taken):
        if start + size > following:
            raise ValueError(f"{shown(other)} begins at byte {following}, and {shown(name)} ends at {start + size}")


def read_units(library: Any, entry: Any) -> Array:
    """The numbers of a tensor of global scales."""
    if entry.tensor_type.name not in UNITS:
        raise ValueError(
            f"its global scale {brief(entry.name)} is of type {entry.tensor_type.name}; expected one of "
            f"{', '.join(UNITS)}"
        )
    numbers = as_tensor(library, entry, None)
    assert isinstance(numbers, Tensor)
    return numbers.to_numpy().astype(np.float32)


def as_tensor(library: Any, entry: Any, units: Array | None) -> Tensor | ScaledTensor:
    """One tensor of a file; `units` are its global scales."""
    kind, shape = entry.tensor_type.name, tuple(int(size) for size in reversed(entry.shape))
    if kind.lower() in BLOCKS:
        unit = None if units is None or kind != "NVFP4" else one_or_each(units, shape)
        return from_ggml(np.ascontiguousarray(entry.data), kind.lower(), shape, global_scale=unit)
    if kind == "BF16":
        return dlfp4.asarray(entry.data.view(ml_dtypes.bfloat16).reshape(shape))
    if kind in PLAIN.values():
        return dlfp4.asarray(entry.data.reshape(shape))
    return dlfp4.asarray(library.quants.dequantize(entry.data, entry.tensor_type).reshape(shape))


def one_or_each(units: Array, shape: tuple[int, ...]) -> Any:
    """The global scale of a tensor, or those of the matrices of a stack where they differ."""
    flat = units.reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return float(flat[0])
    if len(shape) < 3 or flat.size != count_elements(shape[:-2]):
        raise ValueError(
            f"{flat.size} global scales for shape {shape}; expected one, or one for each matrix of a stack"
        )
    return flat


# ---- Writing


def check(x: Tensor | ScaledTensor) -> None:
    """ValueError where the package writes no such tensor, or reads it no more."""
    if isinstance(x, ScaledTensor):
        check_blocks(x)
    elif bounded_product(filter(None, x.shape)) * x.dtype.itemsize > MOST_ARRAY:
        raise ValueError(f"it is empty, and of shape {x.shape} NumPy, by which GGUF files are read, has no arrays")


def check_blocks(q: ScaledTensor) -> None:
    """ValueError where ggml has no blocks of a tensor."""
    count_blocks(q.shape, block_of(q.format.name), q.format.name)
    _refuse_hadamard(q, "ggml")
    if q.axis != -1:
        raise ValueError(f"blocks run along axis {q.axis}; ggml's run along the last axis")
    if q.global_scale is not None and q.global_scale.size not in (1, count_elements(q.shape[:-2])):
        raise ValueError("it has a global scale per row, but GGUF files have one per matrix")


def check_scale_names(tensors: Mapping[str, Tensor | ScaledTensor]) -> None:
    """ValueError where readers would take a tensor for the global scale of another, which need not have one, or the
    global scale of one tensor for that of two.
    """
    owners: dict[str, str] = {}
    for name, x in tensors.items():
        if not isinstance(x, ScaledTensor) or not x.format.has_global_scale:
            continue
        scale = scale_name(name)
        if scale in tensors:
            raise ValueError(f"{scale} is what GGUF files call the global scale of {name}; rename one of the two")
        if owners.setdefault(scale, name) != name:
            raise ValueError(f"{owners[scale]} and {name}: in GGUF files {scale} scales both; rename one")


def write(
    path: Path, tensors: Mapping[str, Tensor | ScaledTensor], architecture: str, fields: Mapping[str, int | float]
) -> None:
    """Write a GGUF file, which replaces `path` once it is complete; `fields` are values by methods of its writer.

    Raises
    ------
    ValueError
        GGUF has no type of a tensor, or not as many dimensions, or its name is too long, or is that of another's global
        scale; UTF-8 does not hold a name.
    """
    library = package()
    check_text(f"the architecture is {shown(architecture)}", architecture)
    check_scale_names(tensors)
    planned = [each for name, x in tensors.items() for each in entries_of(library, name, x)]
    with replacing(path, size=sum(size for _, _, _, size, *_ in planned)) as file:
        # The package opens files by name. This name is the file, which has no other yet.
        writer = library.GGUFWriter(f"{OPEN}/{file.fileno()}", architecture)
        try:
            for method, value in fields.items():
                getattr(writer, method)(value)
            writer.add_quantization_version(library.GGML_QUANT_VERSION)
            for name, shape, dtype, size, kind, _ in planned:
                writer.add_tensor_info(name, shape, dtype, size, raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for *_, x in planned:
                writer.write_tensor_data(content_of(x))
        finally:
            writer.close()


def entries_of(library: Any, name: str, x: Tensor | ScaledTensor) -> list[tuple[Any, ...]]:
    """Name, shape, array type, bytes and ggml's type of a tensor and of its global scales, and the tensors."""
    check_text(f"a tensor is named {shown(name)}", name)
    if len(name.encode()) > LONGEST:
        raise ValueError(f"{brief(name)}: GGUF's names have at most {LONGEST} bytes")
    if len(x.shape) > MOST_DIMS:
        raise ValueError(f"{name} has shape {x.shape}; GGUF's tensors have at most {MOST_DIMS} dimensions")
    kinds = library.GGMLQuantizationType
    if not isinstance(x, ScaledTensor):
        if x.dtype.name not in PLAIN:
            raise ValueError(f"{name}: GGUF has no {x.dtype}; it has {', '.join(PLAIN)}")
        kind = kinds[PLAIN[x.dtype.name]]
        # The package reads scalars of all types but this one.
        shape = (1,) if x.dtype.name == "bfloat16" and not x.shape else x.shape
        return [(name, shape, x.dtype, x.nbytes, kind, x)]
    block = block_of(x.format.name)
    size = count_blocks(x.shape, block, x.format.name) * block.nbytes
    shape = (*x.shape[:-1], x.shape[-1] // block.elements * block.nbytes)
    found: list[tuple[Any, ...]] = [(name, shape, np.dtype(np.uint8), size, kinds[x.format.name.upper()], x)]
    if x.global_scale is not None:
        units = dlfp4.asarray(each_unit(x))
        found.append((scale_name(name), units.shape, units.dtype, units.nbytes, kinds.F32, units))
    return found


def each_unit(q: ScaledTensor) -> Array:
    """The global scale of a matrix, or one for each matrix of a stack."""
    assert q.global_scale is not None
    count = count_elements(q.shape[:-2])
    return np.ascontiguousarray(np.broadcast_to(q.global_scale.to_numpy().reshape(-1), (count,)).astype(np.float32))


def content_of(x: Tensor | ScaledTensor) -> Array:
    """The bytes of a tensor."""
    array: Array = (to_ggml(x) if isinstance(x, ScaledTensor) else x).to_numpy()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
