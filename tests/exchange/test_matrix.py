"""The exchange matrix, cell by cell, against what is recorded here; and tensors that walk through several frameworks.

A cell recorded as refused fails when it starts to work, one recorded as zero-copy when it copies: then change the
record. The table has the form that `python -m dlfp4 matrix` prints.
"""

import functools
import pkgutil
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dlfp4
from dlfp4 import frameworks
from dlfp4.frameworks import base
from dlfp4.matrix import ROWS, SIGNS, Direction, Outcome, matrix, measure, measure_apart, random_values

from ..support.command_line import command_line

# Framework -> dlfp4, dlfp4 -> framework:  = zero-copy  c copy  - refused  . the framework has no such type
RECORD = """
                      numpy  torch  torch cuda  jax  jax cuda  cupy cuda  tensorflow  pyarrow  mlx  onnxruntime  tvm_ffi  paddle  numkong  max  max cuda  cutlass  cutlass cuda  cuda_core  cuda_core cuda  warp  warp cuda
bool                   = =    = =      = =      = =    = =        = =        = =        . -    = c      = =        = =     = =      . -    = =    = =       - =        - =          = =          = =        = =      = =
int8                   = =    = =      = =      = =    = =        = =        = =        = =    = c      = =        = =     = =      = =    = =    = =       - =        - =          = =          = =        = =      = =
int16                  = =    = =      = =      = =    = =        = =        = =        = =    = c      = =        = =     = =      = =    = =    = =       - =        - =          = =          = =        = =      = =
int32                  = =    = =      = =      = =    = =        = =        = =        = =    = c      = =        = =     = =      = =    = =    = =       - =        - =          = =          = =        = =      = =
int64                  = =    = =      = =      = =    = =        = =        = =        = =    = c      = =        = =     = =      = =    = =    = =       - =        - =          = =          = =        = =      = =
uint8                  = =    = =      = =      = =    = =        = =        = =        = =    = c      = =        = =     = =      = =    = =    = =       - =        - =          = =          = =        = =      = =
uint16                 = =    = =      = =      = =    = =        = =        = =        = =    = c      = =        = =     . =      = =    = =    = =       - =        - =          = =          = =        = =      = =
uint32                 = =    = =      = =      = =    = =        = =        = =        = =    = c      = =        = =     . =      = =    = =    = =       - =        - =          = =          = =        = =      = =
uint64                 = =    = =      = =      = =    = =        = =        = =        = =    = c      = =        = =     . =      = =    = =    = =       - =        - =          = =          = =        = =      = =
float16                = =    = =      = =      = =    = =        = =        = =        = =    = c      = =        = =     = =      = =    = =    = =       - =        - =          = =          = =        = =      = =
float32                = =    = =      = =      = =    = =        = =        = =        = =    = c      = =        = =     = =      = =    = =    = =       - =        - =          = =          = =        = =      = =
float64                = =    = =      = =      = =    = =        = =        = =        = =    = -      = =        = =     = =      = =    = =    = =       - =        - =          = =          = =        = =      = =
complex64              = =    = =      = =      = =    = =        = =        = =        . -    = c      . -        . -     = =      = =    . -    . -       . -        . -          = =          = =        . -      . -
complex128             = =    = =      = =      = =    = =        = =        = =        . -    . -      . -        . -     = =      = =    . -    . -       . -        . -          = =          = =        . -      . -
bfloat16               = =    = =      = =      = =    = =        = =        = =        . -    = c      = =        = =     = =      = =    = =    = =       - =        - =          - =          - =        = =      = =
float8_e3m4            = =    . -      . -      = =    = =        . =        . -        . -    . -      . -        = =     . -      . -    . -    . -       . -        . -          . -          . -        . -      . -
float8_e4m3            = =    . -      . -      = =    = =        . =        . -        . -    . -      . -        = =     . -      . -    . -    . -       - =        - =          . -          . -        . -      . -
float8_e4m3b11fnuz     = =    . -      . -      = =    = =        . =        - -        . -    . -      . -        = =     . -      . -    . -    . -       - =        - =          . -          . -        . -      . -
float8_e4m3fn          = =    = =      = =      = =    = =        . =        - -        . -    . -      = =        = =     = =      = =    = =    = =       - =        - =          . -          . -        . -      . -
float8_e4m3fnuz        = =    = =      = =      = =    = =        . =        - -        . -    . -      = =        = =     . -      . -    = =    = =       . -        . -          . -          . -        . -      . -
float8_e5m2            = =    = =      = =      = =    = =        . =        - -        . -    . -      = =        = =     = =      = =    = =    = =       - =        - =          . -          . -        . -      . -
float8_e5m2fnuz        = =    = =      = =      = =    = =        . =        - -        . -    . -      = =        = =     . -      . -    = =    = =       . -        . -          . -          . -        . -      . -
float8_e8m0fnu         = =    = =      = =      = =    = =        . =        . -        . -    . -      = =        = =     . -      . -    = =    = =       - =        - =          . -          . -        . -      . -
float6_e2m3fn          . c    . -      . -      . c    . c        . =        . -        . -    . -      . -        = =     . -      . -    = =    = =       - =        - =          . -          . -        . -      . -
float6_e2m3fn padded   = =    . -      . -      - c    - c        . =        . -        . -    . -      . -        . -     . -      = =    . -    . -       . -        . -          . -          . -        . -      . -
float6_e3m2fn          . c    . -      . -      . c    . c        . =        . -        . -    . -      . -        = =     . -      . -    = =    = =       - =        - =          . -          . -        . -      . -
float6_e3m2fn padded   = =    . -      . -      - c    - c        . =        . -        . -    . -      . -        . -     . -      = =    . -    . -       . -        . -          . -          . -        . -      . -
float4_e2m1fn          . c    = =      = =      = c    = c        . =        . -        . -    . -      = =        = =     . -      . -    = =    = =       - =        - =          . -          . -        . -      . -
float4_e2m1fn padded   = =    . -      . -      . c    . c        . =        - -        . -    . -      . -        . -     . -      . -    . -    . -       . -        . -          . -          . -        . -      . -
int4                   . c    . -      . -      - c    - c        . =        . -        . -    . -      = =        = =     . -      . -    . -    . -       . -        . -          . -          . -        . -      . -
int4 padded            = =    . -      . -      . c    . c        . =        - -        . -    . -      . -        . -     . -      . -    . -    . -       . -        . -          . -          . -        . -      . -
uint4                  . c    . -      . -      - c    - c        . =        . -        . -    . -      = =        = =     . -      . -    . -    . -       . -        . -          . -          . -        . -      . -
uint4 padded           = =    . -      . -      . c    . c        . =        - -        . -    . -      . -        . -     . -      . -    . -    . -       . -        . -          . -          . -        . -      . -
int2                   . c    . -      . -      - c    - c        . =        . -        . -    . -      = =        = =     . -      . -    . -    . -       . -        . -          . -          . -        . -      . -
int2 padded            = =    . -      . -      . c    . c        . =        - -        . -    . -      . -        . -     . -      . -    . -    . -       . -        . -          . -          . -        . -      . -
uint2                  . c    . -      . -      - c    - c        . =        . -        . -    . -      = =        = =     . -      . -    . -    . -       . -        . -          . -          . -        . -      . -
uint2 padded           = =    . -      . -      . c    . c        . =        - -        . -    . -      . -        . -     . -      . -    . -    . -       . -        . -          . -          . -        . -      . -
"""  # noqa: E501

# What a refusal says (a regular expression), by framework and direction.
REFUSALS = {
    ("torch", "export"): "Unsupported (code|k)",
    ("jax", "import"): "has no DLPack equivalent",
    ("jax", "export"): "has FP6 from 0.11 on",
    ("tensorflow", "import"): "is not supported by dlpack",
    ("tensorflow", "export"): 'Unsupported (Type Codes|U?Int bits)|capsule with name "dltensor"',
    ("pyarrow", "export"): "unsupported (DLPack type|(unsigned )?integer bit width)",
    ("mlx", "export"): "Cannot convert array to mlx|narrow the values to 32 bits",
    ("onnxruntime", "export"): "Unsupported DLPack data type|cannot say padded",
    ("tvm_ffi", "export"): "unknown type_code=5|Expect a dltensor field",
    ("paddle", "export"): r"DLDataType(\.bits| code)",
    ("numkong", "export"): "unsupported DLPack dtype",
    ("max", "export"): "unsupported (DLDataTypeCode|(unsigned|int) DLDataType)|not a valid DType|cannot say padded",
    ("cutlass", "import"): "takes tensors and hands none out",
    ("cutlass", "export"): "Unknown DLPack dtype|Unsupported .* bit width|no attribute 'Float8|padded elements",
    ("cuda_core", "import"): "takes bfloat16 and hands none out",
    ("cuda_core", "export"): "Unsupported dtype|must be a multiple of 8|is not supported",
    ("warp", "export"): "Unknown DLPack datatype|does not support complex types|valid DLPack capsule",
}

# Exchanges that take place under another type.
RENAMED = {("cupy", "export", row): "arrives as uint8" for row in ROWS if re.match(r"float[468]_|u?int[24]\b", row)}

# The record holds from these versions on; older ones refuse more.
RECORDED_FROM = {"pyarrow": (26,), "onnxruntime": (1, 32)}

# What versions that the tests still meet do otherwise: framework, before which version, rows (a regular expression).
BEFORE = {("jax", (0, 11), "float6_"): {"import": ".", "export": "-"}}


def read_record(table):
    """((column, row, direction), sign) of each recorded cell."""
    header, *lines = table.strip("\n").splitlines()
    columns = re.split(r"\s{2,}", header.strip())
    for line in lines:
        row = re.split(r"\s{2,}", line)[0]
        pairs = re.findall(r"(\S) (\S)", line[len(row) :])
        assert len(pairs) == len(columns), line
        for column, signs in zip(columns, pairs, strict=True):
            for direction, sign in zip(Direction, signs, strict=True):
                yield (column, row, direction), sign


CELLS = dict(read_record(RECORD))


def numbers(version):
    return tuple(int(number) for number in re.findall(r"\d+", version))


def expected_sign(key, version):
    column, row, direction = key
    for (framework, release, rows), signs in BEFORE.items():
        if column.split()[0] == framework and numbers(version) < release and re.match(rows, row):
            return signs[direction]
    return CELLS[key]


@pytest.mark.parametrize("path", ["README.md", "docs/matrix.md"])
def test_the_documents_say_what_is_recorded(path):
    text = (Path(__file__).parents[2] / path).read_text()
    header = next(line for line in text.splitlines() if line.lstrip().startswith("numpy "))
    table = text[text.index(header) :].split("\n\n")[0].split("\n```")[0]
    said = dict(read_record(table))
    assert len(said) > 200
    assert said == {cell: CELLS[cell] for cell in said}


@functools.cache
def measured(framework):
    """The installed version of a framework, and its cells."""
    version, cells = measure_apart(framework, ROWS)
    return version, {(cell.column, cell.dtype, cell.direction): cell for cell in cells}


CHATTY = """
import atexit, os
atexit.register(print, "goodbye")
print("hello")
if "silent" in os.environ.get("DLFP4_TEST", ""):
    os._exit(0)
"""


@pytest.mark.parametrize("silent", [False, True])
def test_what_else_a_framework_prints_is_no_answer(tmp_path, monkeypatch, silent):
    (tmp_path / "sitecustomize.py").write_text(CHATTY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("DLFP4_TEST", "silent" * silent)
    _, cells = measure_apart("numpy", ["float32"])
    assert {cell.outcome for cell in cells} == {Outcome.CRASHED if silent else Outcome.ZERO_COPY}
    assert all("without an answer" in cell.reason for cell in cells) == silent


def as_case(key):
    marks = [pytest.mark.gpu] if key[0].endswith("cuda") else []
    return pytest.param(key, id="-".join(key).replace(" ", "_"), marks=marks)


def is_to_be_tried(key):
    """GPU tests never skip: PyTorch, JAX and CuPy must be there, others are tried where they are."""
    framework, _, device = key[0].partition(" ")
    return device == "" or framework in ("torch", "jax", "cupy") or frameworks.framework(framework).installed()


@pytest.mark.parametrize("key", [as_case(key) for key in CELLS if is_to_be_tried(key)])
def test_cell(key):
    column, row, direction = key
    framework = column.split()[0]
    version, cells = measured(framework)
    cell = cells[key]
    if version and numbers(version) < RECORDED_FROM.get(framework, ()):
        pytest.skip(f"{framework} {version}: the record is of {RECORDED_FROM[framework]}")
    if cell.outcome is Outcome.MISSING and column == framework:
        pytest.skip(f"{column}: {cell.reason}")
    assert SIGNS.get(cell.outcome) == expected_sign(key, version), f"{cell.outcome}: {cell.reason}"
    if cell.outcome is Outcome.REFUSED:
        assert re.search(REFUSALS[framework, direction], cell.reason)
    else:
        assert cell.reason == RENAMED.get((framework, direction, row), "")


def test_record_is_complete():
    columns = {
        name if device == "cpu" else f"{name} {device}"
        for name in frameworks.NAMES
        for device in frameworks.framework(name).devices
    }
    assert set(CELLS) == {(column, row, way) for column in columns for row in ROWS for way in Direction}


def test_report_of_one_framework():
    report = matrix(["numpy"], ["float32", "float4_e2m1fn"])
    assert report.versions["numpy"] == np.__version__
    assert [cell.outcome for cell in report.cells] == ["zero-copy", "zero-copy", "no such type", "copy"]


# ---- Surprises


@pytest.fixture
def numpy_with(monkeypatch):
    """Puts other functions into NumPy's row, for this process."""
    row = frameworks.framework("numpy")
    return lambda **fields: monkeypatch.setattr(frameworks, "framework", lambda _: replace(row, **fields))


def surprise(*_):
    raise KeyError(23)


@pytest.mark.parametrize(
    ("step", "directions"),
    [
        ("make", ["import"]),
        ("from_tensor", ["export"]),
        ("read", ["export"]),
        ("pointer", ["import", "export"]),
        ("errors", ["import"]),
    ],
)
def test_what_a_framework_raises_by_surprise_costs_that_cell(numpy_with, step, directions):
    numpy_with(**{step: surprise})
    _, cells = measure("numpy", ["float32"])
    crashed = {cell.direction: cell.reason for cell in cells if cell.outcome is Outcome.CRASHED}
    assert crashed == dict.fromkeys(directions, "KeyError: 23")
    assert all(cell.outcome in (Outcome.CRASHED, Outcome.ZERO_COPY) for cell in cells)


def test_other_values_are_wrong(numpy_with):
    numpy_with(read=np.zeros_like)
    _, cells = measure("numpy", ["float32", "bool"])
    assert [cell.outcome for cell in cells] == ["zero-copy", "wrong values"] * 2


def test_a_framework_without_arrays_of_its_own_says_so(numpy_with):
    numpy_with(make=None)
    _, cells = measure("numpy", ["float32", "float4_e2m1fn"])
    assert [cell.outcome for cell in cells] == ["refused", "zero-copy", "no such type", "copy"]
    assert cells[0].reason == "it takes tensors and hands none out"


UNKNOWN_TYPE = """
from dlfp4.frameworks import load
def read(native):
    if native.dtype == "int8":
        raise KeyError(23)
    return native
object.__setattr__(load("numpy").FRAMEWORK, "read", read)
"""


def test_a_surprise_is_the_exit_status_and_no_traceback(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(UNKNOWN_TYPE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = command_line("matrix", "--framework", "numpy")
    assert (done.returncode, done.stderr) == (1, "")
    lines = [line for line in done.stdout.splitlines() if "!" in line and "= zero" not in line]
    assert [line.split() for line in lines] == [["int8", "=", "!"]]
    assert "    int8: KeyError: 23" in done.stdout.splitlines()


# ---- Chains


def shares(tensor, pointer):
    """Whether memory went on as it was; what arrived read-only PyTorch and old JAX may only copy."""
    return tensor.readonly or tensor.data_ptr == pointer


@pytest.mark.filterwarnings("ignore::UserWarning")  # JAX and PyTorch warn about each other's threads and buffers
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e8m0fnu", "bfloat16", "float32"])
def test_chain_without_a_copy(name):
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    values = random_values(name)
    start = dlfp4.asarray(values, copy=True).to_torch()  # our memory is aligned as JAX wants it
    first = dlfp4.from_dlpack(start)
    second = dlfp4.from_dlpack(first.to_jax(copy=False))
    third = dlfp4.from_dlpack(second.to_numpy(copy=False))
    end = third.to_torch()
    assert isinstance(end, torch.Tensor)
    assert isinstance(first.to_jax(), jax.Array)
    assert end.dtype == start.dtype
    assert first.data_ptr == second.data_ptr == third.data_ptr == start.data_ptr()
    assert shares(third, end.data_ptr())
    assert end.view(torch.uint8).numpy().tobytes() == values.tobytes()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_chain_of_fp4_copies_once():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    octets = np.random.default_rng(4).integers(0, 256, (8, 32), np.uint8)
    start = torch.tensor(octets).view(torch.float4_e2m1fn_x2)
    first = dlfp4.from_dlpack(start)
    assert (first.shape, first.data_ptr) == ((8, 64), start.data_ptr())
    array = first.to_jax()  # the one copy: JAX imports FP4 only as bytes
    assert (array.shape, array.dtype) == ((8, 64), jax.numpy.float4_e2m1fn)
    second = dlfp4.from_dlpack(array)
    assert second.data_ptr == array.unsafe_buffer_pointer()
    bits = second.view("uint8").to_numpy(copy=False)  # NumPy has no packed FP4, but its bytes
    assert bits.ctypes.data == second.data_ptr
    third = dlfp4.from_dlpack(bits).view("float4_e2m1fn")
    end = third.to_torch()
    assert shares(third, end.data_ptr())
    assert (end.dtype, end.shape) == (start.dtype, start.shape)
    assert end.view(torch.uint8).numpy().tobytes() == octets.tobytes()


# How each library that knows FP4 takes an array of another one.
IDIOMS = {
    "numpy": "numpy:asarray",
    "torch": "torch:from_dlpack",
    "jax": "jax.numpy:asarray",
    "onnxruntime": "onnxruntime:OrtValue.from_dlpack",
    "tvm_ffi": "tvm_ffi:from_dlpack",
    "max": "max.driver:Buffer.from_dlpack",
    "cutlass": "cutlass.cute.runtime:from_dlpack",
}


def row_with_fp4(name):
    """The row of a framework, which is installed, in a version that exchanges FP4."""
    row = frameworks.framework(name)
    if row.missing():
        pytest.skip(f"{name}: {row.missing()}")
    if row.release() < RECORDED_FROM.get(name, ()):
        pytest.skip(f"{name} {row.version()}: the record is of {RECORDED_FROM[name]}")
    return row


def test_idioms_are_of_all_that_take_fp4():
    columns = {column for column, *_ in CELLS if not column.endswith("cuda")}
    assert {column for column in columns if CELLS[column, base.FP4, "export"] in "=c"} == set(IDIOMS)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("target", IDIOMS)
@pytest.mark.parametrize("source", ["torch", "onnxruntime", "tvm_ffi", "max"])
def test_fp4_lands_by_every_librarys_own_idiom(source, target):
    values = random_values(base.FP4)
    native = row_with_fp4(source).make(values, True, "cpu")
    received = row_with_fp4(target).read(pkgutil.resolve_name(IDIOMS[target])(dlfp4.from_dlpack(native)))
    assert (received.shape, received.dtype) == (values.shape, values.dtype)
    assert base.codes_of(received).tobytes() == base.codes_of(values).tobytes()
