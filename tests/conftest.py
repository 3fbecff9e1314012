"""Which tests run: those marked gpu, gpus or slow only when `-m` names their marker; those of GPUs never skip."""

import functools
import gc
import os
import re
import sys

import pytest

import dlfp4

from .support.capsules import framework

OPT_IN = ("gpu", "gpus", "slow")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take 3/4 of a GPU that all share


def pytest_collection_modifyitems(config, items):
    named = re.findall(r"\w+", config.option.markexpr)
    unasked = [name for name in OPT_IN if name not in named]
    chosen, left_out = [], []
    for item in items:
        (left_out if any(map(item.get_closest_marker, unasked)) else chosen).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


def pytest_runtest_setup(item):
    if not needs_gpu(item):
        return
    if not dlfp4.cuda_available():
        pytest.fail("asked for with -m, but no CUDA device is available", pytrace=False)
    if item.get_closest_marker("gpus") and not has_two_devices():
        pytest.fail("marked gpus and asked for with -m, but there is no second CUDA device", pytrace=False)
    if "torch" in sys.modules:  # JAX leaves the last of several GPUs current when it starts
        sys.modules["torch"].cuda.set_device(0)


def needs_gpu(item):
    return item.get_closest_marker("gpu") or item.get_closest_marker("gpus")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Within a capture CUDA graphs, XLA's programs and managed memory of earlier tests must not end: the driver would
    end the capture, too.
    """
    if not needs_gpu(item):
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@functools.cache
def has_two_devices():
    try:
        dlfp4.empty(1, "uint8", device="cuda:1")
    except dlfp4.DriverError:
        return False
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.skipped and needs_gpu(item):
        report.outcome, report.longrepr = "failed", f"asked for with -m, but it {report.longrepr[-1]}"
    return report


@pytest.fixture(scope="module", autouse=True)
def loaded_before():
    """What the frameworks have loaded, which the tests of a module need not search for garbage again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def torch():
    return framework("torch")


@pytest.fixture
def threads():
    """Sets how many threads work, for this test."""
    yield dlfp4.set_num_threads
    dlfp4.set_num_threads(0)
