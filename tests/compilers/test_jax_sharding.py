"""dlfp4.jax on eight devices of the host; see the program."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")
PROGRAM = Path(__file__).with_name("jax_on_eight_devices.py")


@pytest.mark.parametrize("axes", ["auto", "explicit"])
def test_eight_devices(axes):
    """A process of its own: how many devices there are is decided before JAX starts."""
    command = [sys.executable, "-P", "-W", "error", str(PROGRAM), axes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all equal\n"
