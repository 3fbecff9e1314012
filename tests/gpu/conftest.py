"""What tests on a GPU ask for beside PyTorch."""

import importlib

import pytest

from dlfp4._core import _cuda_capability

from ..support.capsules import framework


@pytest.fixture
def cupy():
    return framework("cupy")


@pytest.fixture
def dt(torch):
    return importlib.import_module("dlfp4.torch")


@pytest.fixture
def hopper():
    """Skips where the kernels for compute capability 9.0 do not run."""
    if _cuda_capability(0) != (9, 0):
        pytest.skip(f"kernels for compute capability 9.0; this device has {_cuda_capability(0)}")
