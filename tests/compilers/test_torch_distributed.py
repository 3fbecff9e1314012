"""Quantized weights over two processes: FSDP's ``fully_shard``, and DTensors; see the program."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..support.capsules import framework

torch = framework("torch")
import dlfp4.torch as dt  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="this PyTorch is built without gloo",
)
PROGRAM = Path(__file__).with_name("torch_on_two_processes.py")


NAMES = ("layers", "a_model", "refusals", "dtensors", "columns", "parts", "tensor_parallel", "data_parallel")


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each of two processes printed, which all checks share, for their start takes longest: results and errors."""
    meeting = str(tmp_path_factory.mktemp("processes") / "meeting")
    commands = [[sys.executable, "-P", str(PROGRAM), meeting, str(rank), *NAMES] for rank in range(2)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [subprocess.Popen(command, text=True, **pipes) for command in commands]
    try:
        return [process.communicate(timeout=240) for process in both]
    finally:
        for process in both:
            process.kill()


@pytest.mark.parametrize("name", NAMES)
def test_two_processes(name, said):
    """After a check that fails none is run."""
    results, errors = zip(*said, strict=True)
    assert all(f"{name} holds" in result.splitlines() for result in results), "\n".join(errors)


def test_a_transpose_is_not_gathered():
    """Its shards are columns, which do not follow one another in memory as rows do."""
    q = dt.quantize(torch.ones(64, 32), "nvfp4")
    with pytest.raises(NotImplementedError, match="gather it as it lies, then transpose"):
        torch.ops._c10d_functional.all_gather_into_tensor(q.mT, 2, "0")
