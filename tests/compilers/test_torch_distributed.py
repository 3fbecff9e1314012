"""Quantized weights over two processes: FSDP's ``fully_shard``, and DTensors; see the program."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..support.capsules import framework

torch = framework("torch")
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="this PyTorch is built without gloo",
)
PROGRAM = Path(__file__).with_name("torch_on_two_processes.py")


NAMES = ("layers", "a_model", "refusals", "dtensors", "columns", "tensor_parallel", "data_parallel")


@pytest.mark.parametrize("name", [f"check_{name}" for name in NAMES])
def test_two_processes(name, tmp_path):
    commands = [[sys.executable, "-P", str(PROGRAM), name, str(tmp_path / "meeting"), str(rank)] for rank in range(2)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        errors = [process.communicate(timeout=240)[1] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], "\n".join(errors)
