"""What the build does with DLFP4_CUDA, and with what Cython generates. Configures the kernels alone, which needs CMake
and a compiler but no Python, but where it says so."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import dlfp4

ROOT = Path(__file__).resolve().parents[2]
NO_NVCC = "-DDLFP4_NVCC="

same_on_every_python = pytest.mark.arithmetic  # and takes seconds
needs_cmake = pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not on PATH")


def fake_nvcc(folder, version="13.0.48"):
    path = folder / "nvcc"
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version[:4]}, V{version}'\n")
    path.chmod(0o755)
    return f"-DDLFP4_NVCC={path}"


def configure(folder, *options):
    command = ["cmake", "-S", ROOT, "-B", folder, "-DDLFP4_KERNEL_TESTS=ON", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


@same_on_every_python
@needs_cmake
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([NO_NVCC], "DLFP4_CUDA=AUTO, no nvcc: no CUDA kernels"),
        (["-DDLFP4_CUDA=OFF"], "DLFP4_CUDA=OFF, no CUDA kernels"),
    ],
)
def test_the_decision_is_printed(tmp_path, options, said):
    status, output = configure(tmp_path, *options)
    assert status == 0, output
    assert said in output


@same_on_every_python
@needs_cmake
@pytest.mark.parametrize("decision", ["AUTO", "ON"])
def test_the_gpus_compiled_for_are_printed(tmp_path, decision):
    options = [fake_nvcc(tmp_path), f"-DDLFP4_CUDA={decision}", "-DDLFP4_CUDA_ARCHITECTURES=80;90a"]
    status, output = configure(tmp_path, *options)
    assert status == 0, output
    assert f"DLFP4_CUDA={decision}, CUDA kernels for 80 90a by {tmp_path}/nvcc 13.0.48" in output


@same_on_every_python
@needs_cmake
def test_an_older_nvcc_leaves_families_to_ptx(tmp_path):
    options = [fake_nvcc(tmp_path, "12.4.99"), "-DDLFP4_CUDA_ARCHITECTURES=80;90a;100f;120f"]
    status, output = configure(tmp_path, *options)
    assert status == 0, output
    assert f"CUDA kernels for 80 90a by {tmp_path}/nvcc 12.4.99" in output


@same_on_every_python
@needs_cmake
def test_an_nvcc_that_miscompiles_is_refused(tmp_path):
    status, output = configure(tmp_path, fake_nvcc(tmp_path, "13.2.1"))
    assert status != 0
    assert "nvcc 13.2.1 miscompiles" in output


@same_on_every_python
@needs_cmake
def test_an_nvcc_that_does_not_run_is_refused(tmp_path):
    status, output = configure(tmp_path, f"-DDLFP4_NVCC={tmp_path}/nothing")
    assert status != 0
    assert f"{tmp_path}/nothing" in output


@same_on_every_python
@needs_cmake
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-DDLFP4_CUDA=ON", NO_NVCC], "DLFP4_CUDA=ON, but there is no nvcc"),
        (["-DDLFP4_CUDA=yes"], "DLFP4_CUDA=yes: expected AUTO, ON or OFF"),
        (
            [
                "-DCMAKE_SYSTEM_NAME=Windows",
                "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
                "-DCMAKE_CXX_COMPILER=g++",
            ],
            "g++ cannot compile the kernels on Windows",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(tmp_path, options, said):
    status, output = configure(tmp_path, *options)
    assert status != 0
    assert said in output


@same_on_every_python
@needs_cmake
@pytest.mark.parametrize("flags", ["", "-fsanitize=address"])
def test_kernels_are_hardened(tmp_path, flags):
    """Not under sanitizers, which see more without."""
    status, output = configure(
        tmp_path,
        NO_NVCC,
        "-G",
        "Ninja",
        f"-DCMAKE_C_FLAGS={flags}",
        f"-DCMAKE_CXX_FLAGS={flags}",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
    )
    assert status == 0, output
    commands = (tmp_path / "compile_commands.json").read_text()
    for flag in ("-fstack-protector-strong", "-D_FORTIFY_SOURCE=2"):
        assert (flag in commands) == (flags == "")


@needs_cmake
@pytest.mark.skipif(not Path(sysconfig.get_path("include"), "Python.h").exists(), reason="no headers of Python")
def test_overflow_is_defined_in_generated_c(tmp_path):
    options = ["-DDLFP4_BUILD_PYTHON=ON", f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    status, output = configure(tmp_path, NO_NVCC, "-G", "Ninja", *options)
    assert status == 0, output
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    (command,) = (each["command"] for each in commands if each["file"].endswith("_core.c"))
    assert "-fwrapv" in command


@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf is not on PATH")
def test_addresses_of_functions_are_read_only():
    """In the extension and in the library."""
    core = Path(dlfp4._core.__file__)
    libraries = [core, *core.parent.glob("lib/libdlfp4.so.*")]
    assert len(libraries) == 2
    for library in libraries:
        said = subprocess.run(["readelf", "-ldW", library], capture_output=True, text=True, check=True).stdout
        assert "GNU_RELRO" in said
        assert re.search(r"BIND_NOW|Flags: NOW", said)
        assert re.search(r"GNU_STACK.* RW ", said)


def mend(path, version, body):
    """What cmake/mend_cython.py says and makes of a generated text."""
    path.write_text(f"/* Generated by Cython {version} */\n{body}")
    command = [sys.executable, str(ROOT / "cmake" / "mend_cython.py"), str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    return said, path.read_text().partition("\n")[2]


def test_tracebacks_that_are_not_there_are_not_released(tmp_path):
    """Of what an `except` caught, in its function alone."""
    other = "{\n  __Pyx_DECREF(t_2);\n  __Pyx_DECREF(t_3);\n}\n"
    caught = "{\n  if (__Pyx_GetException(&t_1, &t_2, &t_3) < 0) goto error;" + other[1:]
    wanted = caught.replace("DECREF(t_3)", "XDECREF(t_3)") + other
    assert mend(tmp_path / "_core.c", "3.4.0", caught + other) == ("", wanted)


def test_what_cython_generates_is_mended_or_refused(tmp_path):
    twice = "{\n    int result = PyList_Append(list, x);\n    Py_DECREF(x);\n    return result;\n}\n"
    once = twice.replace("Py_DECREF", "if (likely(result == 0)) Py_DECREF")
    path = tmp_path / "_core.c"
    for version in ("3.3.0", "3.3.1", "3.4.0"):
        assert mend(path, version, 2 * twice) == ("", 2 * once)
    assert mend(path, "3.4.0", "{}\n") == ("", "{}\n")  # mended upstream, or to be seen by test_exhausted.py
    for version in ("3.3.0", "3.3.1"):
        said, left = mend(path, version, "{}\n")
        assert re.search(rf"_core.c: Cython {version} releases .* twice .*: compare it with", said)
        assert left == "{}\n"
