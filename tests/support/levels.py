"""The levels of instruction sets: which there are here, and programs that run at one of them."""

import functools
import json
import os
import subprocess
import sys

import pytest

from .capsules import run_python

LEVELS = ["amx", "avx512_bf16", "avx512", "avx2", "neon", "scalar"]  # the fastest first
PRODUCTS_ALONE = ("amx", "avx512_bf16")  # whose codecs and block scaling are those of the level below
CODEC_LEVELS = [level for level in LEVELS if level not in PRODUCTS_ALONE]


def python_at(level, *arguments):
    """A fresh interpreter at one level, whatever its exit status."""
    command, env = [sys.executable, "-P", *arguments], {**os.environ, "DLFP4_ISA": level}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


@functools.cache
def available_levels():
    ask = ("-c", "import dlfp4; print(dlfp4.cpu_isa())")
    return [level for level in LEVELS if python_at(level, *ask).stdout.strip() == level]


def require(level):
    if level not in available_levels():
        pytest.skip(f"{level} is not there")


def run_at(level, code, **options):
    """What a program prints at a level; skips where that is not there."""
    require(level)
    return run_python(code, DLFP4_ISA=level, **options)


def digests_at(level, code):
    """What a program says that prints its level and JSON."""
    used, found = run_at(level, code, timeout=300).splitlines()
    assert used == level
    return json.loads(found)
