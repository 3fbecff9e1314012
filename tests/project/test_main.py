"""``python -m dlfp4 info | matrix | bench``, as a user runs them; test_quantize_file.py has ``quantize``."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints, matrix
from dlfp4.__main__ import main
from dlfp4.matrix import Cell, Direction, Outcome, Report

from ..support.command_line import command_line

TYPES = ["float32", "float8_e4m3fn", "float4_e2m1fn"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("play",), "invalid choice: 'play'"),
        (("matrix", "--framework", "theano"), "invalid choice: 'theano'"),
        (("matrix", "--dtype", "float4"), "invalid choice: 'float4'"),
    ],
    ids=str,
)
def test_mistakes_are_named(arguments, message):
    result = command_line(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize("arguments", [(), ("--help",)], ids=str)
def test_help_names_the_commands(arguments):
    result = command_line(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert all(command in result.stdout for command in ("info", "config", "matrix", "quantize", "bench"))


def test_info():
    result = command_line("info")
    assert (result.returncode, result.stderr) == (0, "")
    rows = {line[:18].rstrip(): line[18:] for line in result.stdout.splitlines()}
    assert rows["python"].split()[0] == sys.version.split()[0]
    assert rows["numpy, ml_dtypes"].startswith(np.__version__)
    assert rows["kernels"].startswith(f"{dlfp4.cpu_isa()}, ")
    assert (rows["headers"], rows["libdlfp4"]) == (dlfp4.get_include(), dlfp4.get_library_dir())
    assert "numpy" in rows["frameworks"].split(", ")


# ---- matrix


def test_matrix_as_a_table_and_as_json():
    options = ["matrix", "--framework", "numpy", *(word for name in TYPES for word in ("--dtype", name))]
    table, data = command_line(*options), command_line(*options, "--json")
    assert (table.returncode, data.returncode) == (0, 0)
    lines = table.stdout.splitlines()
    assert f"numpy {np.__version__}" in lines[0]
    signs = {line.split()[0]: line.split()[1:] for line in lines[3 : 3 + len(TYPES)]}
    assert signs == {"float32": ["=", "="], "float8_e4m3fn": ["=", "="], "float4_e2m1fn": [".", "c"]}
    report = json.loads(data.stdout)
    assert report["versions"]["numpy"] == np.__version__
    assert [(cell["dtype"], cell["direction"], cell["outcome"]) for cell in report["cells"]] == [
        (name, way, outcome)
        for name in TYPES
        for way, outcome in zip(
            ("import", "export"),
            ("no such type", "copy") if name == "float4_e2m1fn" else ("zero-copy", "zero-copy"),
            strict=True,
        )
    ]


def cell(outcome, direction=Direction.IMPORT, **fields):
    return Cell(
        **{"framework": "jax", "device": "cpu", "dtype": "int8", "reason": "", **fields},
        direction=direction,
        outcome=outcome,
    )


@pytest.mark.parametrize("outcome", Outcome)
def test_wrong_values_and_crashes_are_the_exit_status(outcome, monkeypatch, capsys):
    asked = []
    report = Report({"dlfp4": "9.9"}, [cell(outcome), cell(outcome, Direction.EXPORT)])
    monkeypatch.setattr(matrix, "matrix", lambda *which: asked.append(which) or report)
    assert main(["matrix"]) == (outcome in (Outcome.WRONG, Outcome.CRASHED))
    assert asked == [(dlfp4.frameworks.NAMES, matrix.ROWS)]
    assert capsys.readouterr().out == matrix.as_text(report) + "\n"


def test_a_report_says_each_reason_once():
    report = Report(
        {"dlfp4": "9.9"},
        [
            cell(Outcome.COPY),
            cell(Outcome.REFUSED, Direction.EXPORT, reason="no"),
            cell(Outcome.WRONG, dtype="int16", device="cuda"),
            cell(Outcome.REFUSED, Direction.EXPORT, dtype="int16", device="cuda", reason="never"),
            cell(Outcome.NO_TYPE, dtype="int16"),
            cell(Outcome.REFUSED, Direction.EXPORT, dtype="int16", reason="no"),
            cell(Outcome.CRASHED, dtype="int8", device="cuda", reason="exit status -11"),
            cell(Outcome.ZERO_COPY, Direction.EXPORT, dtype="int8", device="cuda"),
            cell(Outcome.MISSING, framework="torch", reason="not installed"),
        ],
    )
    lines = matrix.as_text(report).splitlines()
    assert lines[:5] == ["dlfp4 9.9", "", "       jax  jax cuda", "int8   c -    ! =   ", "int16  . -    ! -   "]
    assert lines[5:] == [
        "",
        *matrix.LEGEND.splitlines(),
        "",
        "dlfp4 -> jax",
        "    int8, int16: no",
        "dlfp4 -> jax cuda",
        "    int16: never",
        "jax cuda -> dlfp4",
        "    int8: exit status -11",
        "",
        "torch: not installed",
    ]


# ---- bench


@pytest.fixture
def checkout(monkeypatch, tmp_path):
    """A source checkout with two benchmarks, one of which fails."""
    (tmp_path / "benchmarks").mkdir()
    for name, status in (("one", 0), ("two", 3)):
        script = f"from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\nraise SystemExit({status})\n"
        (tmp_path / "benchmarks" / f"bench_{name}.py").write_text(script)
    monkeypatch.setattr(dlfp4, "__file__", str(tmp_path / "dlfp4" / "__init__.py"))
    return tmp_path / "benchmarks"


@pytest.mark.parametrize(("names", "status"), [(["one"], 0), (["two"], 3), (["two", "one"], 3), ([], 3)])
def test_benchmarks_run_by_name(checkout, names, status):
    assert main(["bench", *names]) == status
    assert {path.stem for path in checkout.glob("*.ran")} == {f"bench_{name}" for name in names or ("one", "two")}


def test_no_such_benchmark(checkout, capsys):
    assert main(["bench", "one", "three"]) == 1
    assert capsys.readouterr().err == "No benchmark named three; there are: one, two.\n"
    assert list(checkout.glob("*.ran")) == []


def test_no_benchmarks_beside_an_installed_package(checkout, capsys):
    for path in checkout.iterdir():
        path.unlink()
    assert main(["bench"]) == 1
    assert f"No benchmarks at {checkout}" in capsys.readouterr().err


def test_output_that_cannot_be_shown_or_read(tmp_path):
    """Names beyond the terminal's letters are escaped; a reader that leaves is no success."""
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    checkpoints.save(source, {"h\u00e9.weight": np.ones((32, 32), np.float32)})
    command = [sys.executable, "-P", "-m", "dlfp4", "quantize", str(source), "-o", str(target), "--format", "mxfp4"]
    environ = os.environ | {"PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environ)
    assert "h\\xe9.weight" in shown.stdout
    reading, writing = os.pipe()
    os.close(reading)
    left = subprocess.run(
        [sys.executable, "-P", "-m", "dlfp4", "info"], stdout=writing, stderr=subprocess.PIPE, timeout=120, check=False
    )
    os.close(writing)
    assert (left.returncode, left.stderr) == (141, b"")


@pytest.mark.parametrize(
    "command", [("quantize", "--format", "mxfp4", "-o"), ("convert", "--to", "dlfp4", "-o"), ("inspect",)]
)
def test_names_give_a_terminal_no_orders(tmp_path, capsys, command):
    """Nor do they begin lines, by which a file could say of itself what only the command says."""
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    checkpoints.save(source, {"\x1b[2J\nnothing is flagged\u202e.weight": np.ones((32, 32), np.float32)})
    assert main([*command[:1], str(source), *command[1:], *[str(target)] * (len(command) > 1)]) == 0
    printed = "".join(capsys.readouterr())
    assert r"\x1b[2J\nnothing is flagged\u202e.weight" in printed
    assert not any(ord(each) < 32 for each in printed.replace("\n", ""))
    assert "\u202e" not in printed


PRINTING = [
    (),
    ("--help",),
    ("info",),
    ("quantize", "--help"),
    ("matrix", "--framework", "numpy", "--dtype", "float32"),
]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", PRINTING, ids=str)
def test_output_that_cannot_be_written_is_told_in_a_line(arguments, unbuffered):
    """argparse passes over it, and a buffer is written at the end of the interpreter only."""
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-P", "-m", "dlfp4", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (74, 1)
    assert done.stderr.startswith("python -m dlfp4: the output could not be written: [Errno 28]")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=env, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
