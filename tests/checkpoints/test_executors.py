"""Dask and Ray on one machine: a task a file, the same bytes."""

import subprocess
import sys

import numpy as np
import pytest

from dlfp4 import checkpoints

PROGRAMS = {
    "distributed": """
import sys
from dask.distributed import Client, LocalCluster
from dlfp4 import checkpoints

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        with client.get_executor() as executor:
            checkpoints.quantize_model(sys.argv[1], sys.argv[2], "nvfp4", convention="modelopt", executor=executor)
""",
    "ray": """
import concurrent.futures, sys
import ray
from dlfp4 import checkpoints

class RayExecutor(concurrent.futures.Executor):
    "Runs functions as Ray's tasks."

    def submit(self, function, /, *arguments, **options):
        return ray.remote(function).remote(*arguments, **options).future()

ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
checkpoints.quantize_model(sys.argv[1], sys.argv[2], "nvfp4", convention="modelopt", executor=RayExecutor())
""",
}


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for number in range(3):
        weight = np.random.default_rng(number).normal(size=(64, 64)).astype(np.float32)
        checkpoints.save(folder / f"{number}.safetensors", {f"layers.{number}.up_proj.weight": weight})
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".dlfp4.json"}


@pytest.mark.parametrize("package", PROGRAMS)
def test_the_same_bytes(model, tmp_path, package):
    pytest.importorskip(package)
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[package])
    command = [sys.executable, "-P", program, model, tmp_path / "out"]
    # Away from the checkout: workers start in the same folder, and would import its package without an extension.
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    checkpoints.quantize_model(model, tmp_path / "alone", "nvfp4", convention="modelopt")
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
