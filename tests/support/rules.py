"""The rules of src/rules alone, in a library that compiles in a second: tests/rules/rules.cpp by ctypes."""

import atexit
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
# No contraction and no vectors: what every level must give.
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}")
SOURCES = ("tests/rules/rules.cpp", *(f"src/rules/{name}.cpp" for name in ("matrix", "operand", "walk")))
OBJECTS = "DLFP4_RULES_OBJECTS"  # a folder that keeps objects from one process to the next: see tests/mutation

ROUNDINGS = ["nearest_even", "nearest_away", "toward_zero", "nearest_zero", "up", "stochastic"]
TWO_LEVEL, POWER, LARGEST = range(3)  # dlfp4_scale_kind


class Options(Structure):
    _fields_ = [
        (name, kind)
        for kind, names in (
            (c_int32, "element scale scale_rule order divides pow2 mantissa scale_mantissa chooses"),
            (c_uint32, "zero_scale least_code"),
            (c_float, "eps largest_scale encode decode largest"),
        )
        for name in names.split()
    ]


class Layout(Structure):
    _fields_ = [
        ("name", c_char_p),
        *((name, c_int32) for name in ["rows", "columns", "run", "bytes", "by_rows", "lines"]),
    ]


class View(Structure):
    """dlfp4_view."""

    _fields_ = [
        ("data", c_void_p),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("ndim", c_int32),
        *((name, c_uint8) for name in ["code", "bits", "padded", "part"]),
    ]


class Walk(Structure):
    _fields_ = [("ndim", c_int32), ("size", c_int64), ("extent", c_int64 * 63), ("stride", c_int64 * 63 * 2)]


class Matrix(Structure):
    """dlfp4_matrix."""

    _fields_ = [
        ("data", c_void_p),
        ("rows", c_int64),
        ("columns", c_int64),
        ("strides", c_int64 * 2),
        ("code", c_uint8),
        ("bits", c_uint8),
    ]


class Lines(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("source", c_int32),
        *((name, c_int64) for name in ["item", "lines", "length", "line_stride", "step"]),
        ("rotation", c_uint32),
    ]


class Blocks(Structure):
    """dlfp4_blocks."""

    _fields_ = [
        ("data", c_void_p),
        ("strides", c_int64 * 2),
        ("scales", c_void_p),
        ("scale_strides", c_int64 * 2),
        ("layout", c_int32),
        ("fill", c_uint8),
        ("length", c_int64),
        ("decodes", c_void_p),
        ("decode_lines", c_int64),
        ("finds_decodes", c_uint8),
        ("rotation", c_uint32),
        ("offsets", c_void_p),
        ("offset_strides", c_int64 * 2),
        ("offset_code", c_uint8),
        ("offset_bits", c_uint8),
    ]


class Scales(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("layout", c_int32),
        ("bytes", c_int32),
        *((name, c_int64) for name in ["stride", "step", "pitch", "lines_per_row"]),
    ]


WORDS, FLOATS, BYTES, NUMBERS = POINTER(c_uint64), POINTER(c_float), POINTER(c_uint8), POINTER(c_int64)
SIGNATURES = {
    "size_of": (c_int64, c_int32),
    "row": (c_char_p, c_int32),
    "convert": (None, c_int32, c_int32, c_int32, c_int32, c_uint64, WORDS, c_int64, WORDS),
    "encode": (c_uint32, c_int32, c_int32, c_int32, FLOATS, c_int64, BYTES, BYTES),
    "decode": (None, c_int32, c_uint64, WORDS, POINTER(c_int32), POINTER(c_int32), POINTER(c_int32)),
    "philox": (c_uint32, c_uint64, c_uint64, c_uint32, c_int32),
    "rounds_up": (c_int32, c_uint64, c_int32, c_int32, c_uint64, c_uint64, c_uint32),
    "low_bits": (c_uint64, c_int32),
    "holds_exactly": (c_int32, c_int32, c_int32),
    "is_low": (c_int32, c_int32),
    "is_block_integer": (c_int32, c_int32),
    "smallest_normal_exponent": (c_int32, c_int32),
    "largest_exponent": (c_int32, c_int32),
    "largest_finite_code": (c_uint64, c_int32),
    "float_of_magnitude": (c_uint32, c_int32, c_uint64),
    "narrowed": (c_float, c_float, c_int32),
    "is_decode_scale": (c_int32, c_float),
    "tensor_scale": (None, POINTER(Options), c_int32, c_float, FLOATS, FLOATS, FLOATS),
    "whole": (c_float, POINTER(Options)),
    "blocks": (None, POINTER(Options), c_int32, c_int32, FLOATS, c_int64, POINTER(c_uint32), FLOATS),
    "decode_scale": (c_float, c_int32, c_uint32),
    "error": (c_float, POINTER(Options), c_float, c_float, c_float),
    "has_usual_errors": (c_int32, POINTER(Options)),
    "scaled": (c_float, c_float, c_float, c_int32, c_int32, c_float),
    "decoded": (c_float, c_float, c_float),
    "decoded_with": (c_float, c_float, c_float, c_float, c_float),
    "decoded_without": (c_float, c_float, c_float),
    "middle": (c_uint32,),
    "zero_point": (c_float, c_uint32, c_int32, c_int32),
    "layout": (POINTER(Layout), c_int32),
    "scale_offset": (c_int64, c_int32, c_int64, c_int64, c_int64),
    "weight_offset": (c_int64, c_int64, c_int64, c_int64),
    "format": (None, c_int32, NUMBERS),
    **{f"number_of_{what}": (c_int32,) for what in ("formats", "elements", "keys")},
    "element": (c_int32, c_int32),
    "key": (None, c_int32, NUMBERS),
    "key_of_row": (None, NUMBERS, NUMBERS),
    "are_equal_keys": (c_int32, NUMBERS, NUMBERS),
    "place_of_key": (c_int32, NUMBERS),
    **dict.fromkeys(["source_of", "element_of", "encoded_row", "is_element"], (c_int32, c_int32)),
    **dict.fromkeys(["is_integer_row", "is_integer_block", "is_block", "is_scale"], (c_int32, NUMBERS)),
    **dict.fromkeys(["at", "line_at"], (c_int64,) * 6),
    "decode_of_line": (c_float, FLOATS, c_int64, c_float, c_int64),
    **dict.fromkeys(["divide_up", "round_up", "least"], (c_int64, c_int64, c_int64)),
    "log2_of": (c_int32, c_int64),
    "make_lines": (c_int32, POINTER(Matrix), c_int32, POINTER(Lines)),
    "find_format": (c_int32, c_int32, NUMBERS),
    "make_scales": (None, c_int32, POINTER(Blocks), POINTER(Scales)),
    "are_one_line": (c_int32, c_int32, POINTER(Blocks), POINTER(Matrix)),
    **{
        f"{way}_scales{across}": (None, POINTER(Scales), c_int64, c_int64, c_int64, BYTES)
        for way in ("load", "store")
        for across in ("", "_across")
    },
    **{
        f"load_offsets{across}": (c_int32, POINTER(Blocks), c_int64, c_int64, c_int64, FLOATS)
        for across in ("", "_across")
    },
    **dict.fromkeys(["has_known_offsets", "can_set_offsets"], (c_int32, c_int32, POINTER(Blocks))),
    "has_whole_blocks": (c_int32, c_int32, c_int64),
    "is_addressable": (c_int32, c_int32, POINTER(Blocks), c_int64),
    **dict.fromkeys(["gather_items", "scatter_items"], (None, BYTES, c_int64, c_int64, c_int64, BYTES)),
    "collapse": (c_int32, POINTER(View), POINTER(View), POINTER(Walk)),
    **dict.fromkeys(["has_contiguous_rows", "is_run"], (c_int32, POINTER(Walk))),
    **dict.fromkeys(["is_row_major", "is_dense"], (c_int32, POINTER(Walk), c_int32)),
    "rows_start_on_bytes": (c_int32, POINTER(Walk), c_int32, c_int32, c_int32),
    **dict.fromkeys(
        ["gather", "scatter"],
        (None, POINTER(Walk), c_int32, c_int32, c_int32, BYTES, c_int64, c_int64, BYTES, c_int64),
    ),
    "find_operand": (c_int32, POINTER(View), POINTER(c_int32)),
    "find_dtype": (c_int32, c_uint8, c_uint8),
    "spacing": (c_int32, c_int32, c_int32),
    "is_rounding": (c_int32, c_int32),
    "copy_codes": (None, BYTES, BYTES, c_int64),
    "is_integer": (c_int32, c_int32),
    "is_summed_as_float": (c_int32, c_int32),
    "unit": (c_int32, c_int32),
    "integer": (c_int32, c_int32, c_uint64),
    "are_between": (c_int32, c_uint8, c_uint8, BYTES, c_int64),
    "are_far": (c_int32, FLOATS, c_int64),
    "is_grid": (c_int32, c_int64, c_int64, c_int64, c_int64),
    "grid_size": (None, c_int64, c_int64, c_int64, c_int64, POINTER(c_int64), POINTER(c_int64)),
    "are_plain_powers": (c_int32, BYTES, c_int64),
    "quarter_bias": (c_int32,),
    "rotate": (None, FLOATS, c_uint32),
    "rotate_back": (None, FLOATS, c_uint32),
    "change": (c_uint32, c_float, c_float),
    "finite_magnitude": (c_uint32, c_float),
    "square_of_error": (c_double, c_float, c_float),
    "relative_change": (c_double, c_float, c_float),
}


def compiled(compiler, source, folder):
    """The object of a source in a folder, which may have it of the same texts."""
    headers = (
        path for room in ("src/rules", "src/host/simd", "include/dlfp4") for path in (ROOT / room).glob("*.[hd]*")
    )
    texts = [path.read_bytes() for path in (ROOT / source, *sorted(headers))]
    path = os.path.join(folder, hashlib.sha256(b"\0".join(texts)).hexdigest() + ".o")
    if not os.path.exists(path):
        subprocess.run([compiler, *FLAGS, "-c", str(ROOT / source), "-o", f"{path}.new.o"], check=True)
        os.rename(f"{path}.new.o", path)
    return path


@functools.cache
def library():
    """The compiled rules."""
    compiler = shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler for the rules")
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    path = os.path.join(folder, "librules.so")
    objects = [compiled(compiler, source, os.environ.get(OBJECTS, folder)) for source in SOURCES]
    subprocess.run([compiler, "-shared", *objects, "-o", path], check=True)
    loaded = ctypes.CDLL(path)
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(loaded, f"rule_{name}")
        function.restype, function.argtypes = result, arguments
    for which, struct in enumerate((View, Walk, Matrix, Lines, Blocks, Scales, Options, Layout)):
        assert sizeof(struct) == loaded.rule_size_of(which), struct
    return loaded


def call(name, *arguments):
    return getattr(library(), f"rule_{name}")(*arguments)


def pointer(array, kind):
    assert array.flags.c_contiguous
    return array.ctypes.data_as(kind)


@functools.cache
def rows():
    """The number of each row of dtypes.def."""
    found = {}
    while name := call("row", len(found)):
        found[name.decode()] = len(found)
    return found


def convert(codes, source, target, rounding="nearest_even", *, saturate=True, seed=0):
    """The codes, as uint64, that the rules make of codes."""
    codes = np.ascontiguousarray(codes, np.uint64)
    results = np.empty_like(codes)
    row = rows()
    call(
        "convert", row[source], row[target], ROUNDINGS.index(rounding), saturate, seed, pointer(codes, WORDS),
        codes.size, pointer(results, WORDS),
    )  # fmt: skip
    return results


def options(element, scale="float32", **fields):
    """Those of a format without a recipe, but for `fields`."""
    row, usual = rows(), {"mantissa": 23, "scale_mantissa": 23, "encode": 1, "decode": 1}
    return Options(element=row[element], scale=row[scale], **{**usual, **fields})


def blocks(chosen, kind, magnitudes, *, fours=False):
    """What is stored for blocks with these largest magnitudes, and what their elements are multiplied with."""
    magnitudes = np.ascontiguousarray(magnitudes, np.float32)
    stored, multipliers = np.empty(magnitudes.shape, np.uint32), np.empty(magnitudes.shape, np.float32)
    call(
        "blocks", chosen, kind, fours, pointer(magnitudes, FLOATS), magnitudes.size,
        pointer(stored, POINTER(c_uint32)), pointer(multipliers, FLOATS),
    )  # fmt: skip
    return stored, multipliers


def tensor_scale(chosen, kind, magnitude):
    """The encode and the decode scale of a whole tensor, and its magnitude where that is known."""
    results = [c_float() for _ in range(3)]
    call("tensor_scale", chosen, kind, magnitude, *results)
    return tuple(np.float32(result.value) for result in results)
