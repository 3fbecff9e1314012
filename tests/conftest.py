"""Which tests run: those marked gpu or slow only when `-m` names their marker; those marked gpu never skip."""

import re
import sys

import pytest

import dlfp4

OPT_IN = ("gpu", "slow")


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
    if item.get_closest_marker("gpu"):
        if not dlfp4.cuda_available():
            pytest.fail("marked gpu and asked for with -m, but no CUDA device is available", pytrace=False)
        if "torch" in sys.modules:  # JAX leaves the last of several GPUs current when it starts
            sys.modules["torch"].cuda.set_device(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.skipped and item.get_closest_marker("gpu"):
        report.outcome, report.longrepr = "failed", f"marked gpu and asked for with -m, but it {report.longrepr[-1]}"
    return report


@pytest.fixture
def threads():
    """Sets how many threads work, for this test."""
    yield dlfp4.set_num_threads
    dlfp4.set_num_threads(0)
