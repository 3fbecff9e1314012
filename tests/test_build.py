"""What the build does with DLFP4_CUDA. Configures the kernels alone, which needs CMake and a compiler but no Python."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NO_NVCC = "-DDLFP4_NVCC="

needs_cmake = pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not on PATH")


def configure(folder, *options):
    command = ["cmake", "-S", ROOT, "-B", folder, "-DDLFP4_KERNEL_TESTS=ON", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


@needs_cmake
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([NO_NVCC], "DLFP4_CUDA=AUTO, no nvcc: no CUDA kernels"),
        (["-DDLFP4_CUDA=AUTO", "-DDLFP4_NVCC=/somewhere/nvcc"], "DLFP4_CUDA=AUTO, nvcc is /somewhere/nvcc"),
        (["-DDLFP4_CUDA=ON", "-DDLFP4_NVCC=/somewhere/nvcc"], "DLFP4_CUDA=ON, nvcc is /somewhere/nvcc"),
        (["-DDLFP4_CUDA=OFF"], "DLFP4_CUDA=OFF, no CUDA kernels"),
    ],
)
def test_the_decision_is_printed(tmp_path, options, said):
    status, output = configure(tmp_path, *options)
    assert status == 0, output
    assert said in output


@needs_cmake
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-DDLFP4_CUDA=ON", NO_NVCC], "DLFP4_CUDA=ON, but there is no nvcc"),
        (["-DDLFP4_CUDA=yes"], "DLFP4_CUDA=yes: expected AUTO, ON or OFF"),
    ],
)
def test_what_cannot_be_built_is_refused(tmp_path, options, said):
    status, output = configure(tmp_path, *options)
    assert status != 0
    assert said in output
