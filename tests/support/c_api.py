"""The C API of libdlfp4 in ctypes, on the parts of the package's own tensors."""

import ctypes
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path

import dlfp4

from .capsules import DEVICES, DTYPES, DLDataType, DLDevice, DLTensor

PLAIN = -1
OK, E_DTYPE, E_SHAPE, E_OPTION, E_ISA, E_DEVICE, E_MEMORY, E_LIBRARY, E_CUDA_DRIVER, E_CUDA_KERNELS = range(10)
E_CUDA = 1000


class FormatInfo(Structure):
    _fields_ = [
        ("name", c_char_p), ("element", DLDataType), ("scale", DLDataType), ("lines", c_int32), ("length", c_int32),
        ("kind", c_int), ("repeats_scales", c_int32),
    ]  # fmt: skip


class Sizes(Structure):
    _fields_ = [
        ("data", c_int64 * 2), ("scales", c_int64 * 2), ("scale_ndim", c_int32), ("data_bytes", c_int64),
        ("scale_bytes", c_int64),
    ]  # fmt: skip


class ScaledTensor(Structure):
    _fields_ = [
        ("format", c_int32), ("axis", c_int32), ("layout", c_int32), ("rotation", c_uint32),
        ("data", POINTER(DLTensor)), ("scales", POINTER(DLTensor)), ("global_scale", POINTER(DLTensor)),
        ("zero_points", POINTER(DLTensor)), ("biases", POINTER(DLTensor)),
    ]  # fmt: skip


class ConvertOptions(Structure):
    _fields_ = [("rounding", c_int), ("saturate", c_int), ("seed", c_uint64)]


class Recipe(Structure):
    _fields_ = [
        ("scale_rule", c_int), ("scale_order", c_int), ("four_over_six", c_int), ("largest_scale", c_float),
        ("rounding", c_int), ("seed", c_uint64), ("first", c_uint64), ("eps", c_float), ("divides", c_uint8),
        ("pow2", c_uint8), ("zero_scale", c_uint8), ("least_scale", c_uint8), ("drops_negative_zero", c_uint8),
        ("rounds_to_plus_zero", c_uint8), ("scale_code", c_uint8), ("scale_bits", c_uint8),
    ]  # fmt: skip


class Routing(Structure):
    _fields_ = [
        ("ends", POINTER(DLTensor)), ("indices", POINTER(DLTensor)), ("weights", POINTER(DLTensor)),
        ("gathers", c_int32),
    ]  # fmt: skip


class Prepared(Structure):
    _fields_ = [
        ("memory", c_void_p), ("factors", c_void_p), ("device", c_int32), ("format", c_int32), ("largest", c_int32),
        ("exact_in_half", c_int32), ("rows", c_int64), ("columns", c_int64), ("matrices", c_int64),
    ]  # fmt: skip


class MatmulOptions(Structure):
    _fields_ = [("activation", c_int), ("alpha", c_float)]


TENSOR, SCALED = POINTER(DLTensor), POINTER(ScaledTensor)
SIGNATURES = {
    "version": (c_char_p, []),
    "status_string": (c_char_p, [c_int]),
    "find_format": (c_int, [c_char_p]),
    "find_layout": (c_int, [c_char_p]),
    "describe_format": (c_int, [c_int, POINTER(FormatInfo)]),
    "default_recipe": (c_int, [c_int, POINTER(Recipe)]),
    "size_buffers": (c_int, [c_int, c_int, c_int, c_int64, c_int64, POINTER(Sizes)]),
    "cast": (c_int, [TENSOR, TENSOR, POINTER(ConvertOptions), c_uint32, c_void_p]),
    "quantize": (c_int, [TENSOR, POINTER(Recipe), c_float, SCALED, SCALED, c_void_p]),
    "dequantize": (c_int, [SCALED, TENSOR, c_void_p]),
    "rotation": (c_uint32, [c_uint64]),
    "convert_scales": (c_int, [TENSOR, c_int, TENSOR, c_int, c_int64, c_int64, c_uint8, c_void_p]),
    "vecdot_workspace": (c_int64, [c_int64, c_int64]),
    "vecdot": (c_int, [SCALED, SCALED, TENSOR, c_void_p, c_void_p]),
    "matmul_workspace": (c_int64, [SCALED, SCALED, TENSOR, POINTER(MatmulOptions)]),
    "matmul": (c_int, [SCALED, SCALED, TENSOR, POINTER(MatmulOptions), c_void_p, c_void_p]),
    "grouped_matmul_workspace": (c_int64, [SCALED, SCALED, POINTER(Routing), TENSOR, POINTER(MatmulOptions)]),
    "grouped_matmul": (c_int, [SCALED, SCALED, POINTER(Routing), TENSOR, POINTER(MatmulOptions), c_void_p, c_void_p]),
    "prepared_bytes": (c_int64, [c_int, c_int64, c_int64]),
    "prepare": (c_int, [SCALED, c_void_p, POINTER(Prepared), c_void_p]),
    "matmul_prepared": (c_int, [TENSOR, POINTER(Prepared), TENSOR, c_float, c_void_p]),
    "grouped_matmul_prepared_workspace": (c_int64, [TENSOR, POINTER(Prepared), POINTER(Routing), TENSOR]),
    "grouped_matmul_prepared": (
        c_int,
        [TENSOR, POINTER(Prepared), POINTER(Routing), TENSOR, c_float, c_void_p, c_void_p],
    ),
    "load_cuda": (c_int, [c_int]),
    "register_tvm_ffi": (c_int, []),
}


def load():
    """The library that the package runs on, its functions by name without their prefix."""
    interface = dlfp4.__version__.rpartition(".")[0]
    library = ctypes.CDLL(str(Path(dlfp4.get_library_dir()) / f"libdlfp4.so.{interface}"))
    functions = type("Functions", (), {})()
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, f"dlfp4_{name}")
        function.restype, function.argtypes = result, arguments
        setattr(functions, name, function)
    return functions


def describe(tensor, **changed):
    """A Tensor, or what `asarray` takes, as a DLTensor. It keeps what it points to."""
    tensor = dlfp4.asarray(tensor)
    device, _, number = str(tensor.device).partition(":")
    fields = {
        "data": tensor.data_ptr,
        "device": DLDevice(DEVICES[device], int(number or 0)),
        "ndim": tensor.ndim,
        "dtype": DLDataType(*DTYPES[tensor.dtype.name], 1),
        "shape": (c_int64 * max(1, tensor.ndim))(*tensor.shape),
        "strides": (c_int64 * max(1, tensor.ndim))(*tensor.strides),
        "byte_offset": 0,
    } | changed
    result = DLTensor(**fields)
    result.kept = tensor, fields
    return result


def plain(tensor):
    """Plain elements as an operand of a product."""
    data = describe(tensor)
    result = ScaledTensor(format=PLAIN, data=ctypes.pointer(data))
    result.kept = data
    return result


def describe_scaled(q, *, rotation=0):
    """A ScaledTensor by its parts."""
    functions = load()
    parts = {name: getattr(q, name) for name in ("data", "scales", "global_scale", "zero_points", "biases")}
    described = {name: ctypes.pointer(describe(part)) for name, part in parts.items() if part is not None}
    result = ScaledTensor(
        format=functions.find_format(q.format.name.encode()),
        axis=q.axis,
        layout=functions.find_layout(q.scale_layout.encode()),
        rotation=rotation,
        **described,
    )
    result.kept = described
    return result


__all__ = ["byref", *[name for name in globals() if name[0].isupper()], "describe", "describe_scaled", "load", "plain"]
