"""The exchange matrix: every framework, element type and direction, tried live with random bits.

Each framework is tried in its own process: some cannot share one (TensorFlow and PaddlePaddle bring different versions
of protobuf), and a crash costs only that framework's column.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import ml_dtypes
import numpy as np

import dlfp4
from dlfp4 import __version__, frameworks
from dlfp4.frameworks import base

SHAPE = (4, 16)
SEED = 20261121
TIMEOUT = 120  # seconds per framework, mostly for its import
ANSWER = b"dlfp4.matrix: "  # begins the line with a process's cells, among lines that frameworks print
ROWS: tuple[str, ...] = (
    *base.COMMON,
    *base.COMPLEX,
    "bfloat16",
    *base.FP8,
    *(row for name in base.SUBBYTE for row in (name, name + base.PADDED)),
)


class Outcome(StrEnum):
    """The result of one exchange."""

    ZERO_COPY = "zero-copy"
    COPY = "copy"
    REFUSED = "refused"
    NO_TYPE = "no such type"
    WRONG = "wrong values"
    CRASHED = "crashed"
    MISSING = "missing"


class Direction(StrEnum):
    """The direction of the exchange."""

    IMPORT = "import"  # framework -> dlfp4
    EXPORT = "export"  # dlfp4 -> framework


@dataclass(frozen=True)
class Cell:
    """One exchange: a framework's arrays on a device, an element type, a direction."""

    framework: str
    device: str
    dtype: str
    direction: Direction
    outcome: Outcome
    reason: str = ""

    @property
    def column(self) -> str:
        """The framework, and the device unless it is the host."""
        return self.framework if self.device == "cpu" else f"{self.framework} {self.device}"


@dataclass(frozen=True)
class Report:
    """The matrix, and the versions that were tried."""

    versions: dict[str, str]
    cells: tuple[Cell, ...]


# ---- The exchange itself


def random_values(row: str) -> np.ndarray:
    """An array of random bits: every code of a type may come up, NaN and infinity included."""
    name = row.removesuffix(base.PADDED)
    dtype = base.dtype_of(name)
    generator = np.random.default_rng([SEED, ROWS.index(row)])
    octets = generator.integers(0, 256, (*SHAPE, dtype.itemsize), np.uint8)
    if name == "bool":
        return octets[..., 0] < 128
    if name in base.SUBBYTE:
        return extend_sign(octets[..., 0], dtype)
    return octets.view(dtype)[..., 0]


def extend_sign(codes: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The low bits of each byte as an element of a sub-byte type, the way NumPy stores it."""
    spare = 8 - base.SUBBYTE[dtype.name]
    signed = np.int8 if dtype.name.startswith("int") else np.uint8
    return ((codes << spare).view(signed) >> spare).view(dtype)


def stored_bytes(array: np.ndarray) -> bytes:
    """The bits of an array's elements; elements below 8 bits take one byte each, with zero high bits."""
    if array.dtype.name in base.SUBBYTE:
        return base.codes_of(array).tobytes()
    return array.tobytes()


def make_tensor(array: np.ndarray, packed: bool, device: str) -> dlfp4.Tensor:
    """A Tensor of the same elements in memory that dlfp4 allocates."""
    if packed:
        tensor = dlfp4.asarray(base.pack_array(array), copy=True).view(array.dtype).reshape(array.shape)
    else:
        tensor = dlfp4.asarray(array, copy=True)
    return tensor.to_device("cuda:0") if device == "cuda" else tensor


def read_bytes(tensor: dlfp4.Tensor) -> bytes:
    """The memory of a compact Tensor."""
    host = tensor.to_device("cpu")
    return ctypes.string_at(host.data_ptr, host.nbytes)


def read_elements(tensor: dlfp4.Tensor) -> bytes:
    """:func:`stored_bytes` for a compact Tensor, computed without dlfp4's own conversions."""
    octets = np.frombuffer(read_bytes(tensor), np.uint8)
    if tensor.packed:
        return base.unpack_codes(octets, base.SUBBYTE[tensor.dtype.name], tensor.size).tobytes()
    return stored_bytes(octets.view(tensor.dtype))


def judge(
    framework: base.Framework, native: Any, tensor: dlfp4.Tensor, equal: bool, became: str
) -> tuple[Outcome, str]:
    """The outcome of an exchange that took place."""
    if not equal:
        return Outcome.WRONG, became
    shared = framework.pointer(native) == tensor.data_ptr
    return (Outcome.ZERO_COPY if shared else Outcome.COPY), became


def try_import(framework: base.Framework, row: str, device: str) -> tuple[Outcome, str]:
    """Framework -> dlfp4."""
    if not framework.holds(row):
        return Outcome.NO_TYPE, ""
    if framework.make is None:
        return Outcome.REFUSED, "it takes tensors and hands none out"
    values = random_values(row)
    native = framework.make(values, row in base.SUBBYTE, device)
    refusals: tuple[type[Exception], ...] = (BufferError, *framework.errors())
    try:
        tensor = dlfp4.asarray(native)
    except refusals as error:
        return Outcome.REFUSED, base.first_line(error)
    became = "" if base.row_of(tensor) == row else f"arrives as {base.row_of(tensor)}"
    same = read_bytes(tensor) if became else read_elements(tensor)
    return judge(framework, native, tensor, same == stored_bytes(values), became)


def try_export(framework: base.Framework, row: str, device: str) -> tuple[Outcome, str]:
    """dlfp4 -> framework."""
    values = random_values(row)
    tensor = make_tensor(values, row in base.SUBBYTE, device)
    try:
        native = framework.from_tensor(tensor, None)
    except base.RefusedError as refusal:
        return Outcome.REFUSED, refusal.reason
    except BufferError as error:
        return Outcome.REFUSED, base.first_line(error)
    received = framework.read(native)
    if received.dtype == values.dtype:
        return judge(framework, native, tensor, stored_bytes(received) == stored_bytes(values), "")
    return judge(
        framework, native, tensor, received.tobytes() == read_bytes(tensor), f"arrives as {received.dtype.name}"
    )


ATTEMPTS = {Direction.IMPORT: try_import, Direction.EXPORT: try_export}


def try_cell(framework: base.Framework, row: str, device: str, direction: Direction) -> tuple[Outcome, str]:
    """One exchange; any unforeseen exception becomes its outcome.

    Only this function catches every exception. A future release may raise anything, for a type that the framework's
    file does not know or for a fault of its own. That exception is the finding; it costs one cell, not the table.
    """
    try:
        return ATTEMPTS[direction](framework, row, device)
    except Exception as surprise:  # noqa: BLE001
        return Outcome.CRASHED, f"{type(surprise).__name__}: {base.first_line(surprise)}"


def measure(name: str, rows: Iterable[str] = ROWS) -> tuple[str, list[Cell]]:
    """The cells of one framework, tried in this process, and its version."""
    framework, rows = frameworks.framework(name), tuple(rows)
    cells = []
    for device in framework.devices:
        missing = framework.missing(device)
        for row in rows:
            for direction in Direction:
                outcome, reason = (Outcome.MISSING, missing) if missing else try_cell(framework, row, device, direction)
                cells.append(Cell(name, device, row, direction, outcome, reason))
    return ("" if framework.missing(framework.devices[0]) else framework.version()), cells


# ---- A process for each framework


def measure_apart(name: str, rows: Sequence[str]) -> tuple[str, list[Cell]]:
    """:func:`measure` in its own process; if that process fails, the cause becomes the reason in every cell."""
    framework = frameworks.framework(name)
    command = [sys.executable, "-P", "-m", "dlfp4.matrix", name, *rows]
    try:
        done = subprocess.run(
            command, env=os.environ | framework.environ, capture_output=True, timeout=TIMEOUT, check=True
        )
    except subprocess.TimeoutExpired:
        return "", crashed(framework, rows, f"no answer within {TIMEOUT} s")
    except subprocess.CalledProcessError as error:
        told = error.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        return "", crashed(framework, rows, f"exit status {error.returncode}: {told[-1]}")
    answers = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    if not answers:
        return "", crashed(framework, rows, "its process ended without an answer")
    answer = json.loads(answers[0].removeprefix(ANSWER))
    return answer["version"], [as_cell(cell) for cell in answer["cells"]]


def crashed(framework: base.Framework, rows: Sequence[str], reason: str) -> list[Cell]:
    """The cells of a framework whose process gave no answer."""
    return [
        Cell(framework.name, device, row, direction, Outcome.CRASHED, reason)
        for device in framework.devices
        for row in rows
        for direction in Direction
    ]


def as_cell(fields: dict[str, str]) -> Cell:
    """A Cell from its JSON."""
    return Cell(**fields | {"direction": Direction(fields["direction"]), "outcome": Outcome(fields["outcome"])})  # type: ignore[arg-type]


def matrix(names: Iterable[str] = frameworks.NAMES, rows: Iterable[str] = ROWS) -> Report:
    """Try every framework and element type, both ways.

    Parameters
    ----------
    names : iterable of str
        Frameworks, of ``dlfp4.frameworks.NAMES``.
    rows : iterable of str
        Element types, of ``ROWS``; ``"float4_e2m1fn padded"`` is FP4 with one element a byte.

    Returns
    -------
    Report
        One cell per exchange, in that order. Frameworks that are not installed have cells that say so.
    """
    rows, cells = tuple(rows), []
    versions = {"dlfp4": __version__, "python": platform.python_version(), "ml_dtypes": ml_dtypes.__version__}
    for name in names:
        installed, column = measure_apart(name, rows)
        if installed:
            versions[name] = installed
        cells += column
    return Report(versions, tuple(cells))


# ---- The report as text

SIGNS = {
    Outcome.ZERO_COPY: "=",
    Outcome.COPY: "c",
    Outcome.REFUSED: "-",
    Outcome.NO_TYPE: ".",
    Outcome.WRONG: "!",
    Outcome.CRASHED: "!",
}
LEGEND = (
    "Each pair: framework -> dlfp4, dlfp4 -> framework.\n"
    "= zero-copy   c copy   - refused   . no such type   ! wrong values, an unforeseen error, or a crash"
)


def as_text(report: Report) -> str:
    """The report as a table, with its legend and the reasons that cells give."""
    present = [cell for cell in report.cells if cell.outcome is not Outcome.MISSING]
    absent = {cell.column: cell.reason for cell in report.cells if cell.outcome is Outcome.MISSING}
    lines = ["  ".join(f"{name} {number}" for name, number in report.versions.items()), ""]
    if present:
        lines += [*table(present), "", LEGEND, "", *reasons(present), ""]
    lines += [f"{column}: {reason}" for column, reason in absent.items()]
    return "\n".join(lines)


def table(cells: Sequence[Cell]) -> list[str]:
    """One line per element type, one column per framework."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    signs = {(cell.dtype, cell.column, cell.direction): SIGNS[cell.outcome] for cell in cells}
    width = max(len(cell.dtype) for cell in cells)
    lines = [" " * width + "".join(f"  {column}" for column in columns)]
    for row in dict.fromkeys(cell.dtype for cell in cells):
        pairs = (" ".join(signs[row, column, way] for way in Direction).center(len(column)) for column in columns)
        lines.append(f"{row:{width}}" + "".join(f"  {pair}" for pair in pairs))
    return lines


def reasons(cells: Sequence[Cell]) -> list[str]:
    """The reasons by framework and direction, each once, after the element types that it applies to."""
    given: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        if cell.reason:
            ends = (cell.column, "dlfp4") if cell.direction is Direction.IMPORT else ("dlfp4", cell.column)
            given.setdefault(" -> ".join(ends), {}).setdefault(cell.reason, []).append(cell.dtype)
    lines = []
    for way, types in given.items():
        lines += [way, *(f"    {', '.join(rows)}: {reason}" for reason, rows in types.items())]
    return lines


def as_json(report: Report) -> str:
    """The report as JSON."""
    return json.dumps(asdict(report), indent=1)


if __name__ == "__main__":
    measured, found = measure(sys.argv[1], sys.argv[2:])
    print("\n", ANSWER.decode(), json.dumps({"version": measured, "cells": [asdict(cell) for cell in found]}), sep="")
