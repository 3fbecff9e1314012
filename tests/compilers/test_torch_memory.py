"""``dlfp4.torch.ScaledTensor`` and its kin have no memory of their own, which nobody reads, nor data loaders share."""

import importlib
import subprocess
import sys

import numpy as np
import pytest

import dlfp4

from ..support.capsules import framework
from ..support.torch_tensors import randn

torch = framework("torch")
importlib.import_module("torch.utils.dlpack")
dt = importlib.import_module("dlfp4.torch")


def line(q):
    return q.mT.reshape(-1)


def arranged(q):
    return q[None].permute(1, 0, 2)


@pytest.mark.parametrize("arrange", [lambda q: q, line, arranged], ids=["as it is", "in a line", "arranged"])
def test_none_reads_memory_that_is_none(tmp_path, arrange):
    q = arrange(dt.quantize(randn(32, 64), "nvfp4"))
    for call in (np.asarray, np.array, lambda q: q.numpy(), lambda q: q.numpy(force=True), lambda q: q.tolist()):
        with pytest.raises(NotImplementedError, match=r"call \.dequantize\(\) for the values"):
            call(q)
    for call in (np.from_dlpack, torch.from_dlpack, dlfp4.from_dlpack):
        with pytest.raises(BufferError, match=r"\.dequantize\(\) gives its values"):
            call(q)
    with pytest.raises(RuntimeError, match=r"no storage of its own.*state_dict\(\)"):
        q.storage()
    for call in (torch.utils.dlpack.to_dlpack, torch.Tensor.data_ptr):  # of PyTorch in C, which raises its own words
        with pytest.raises(RuntimeError, match="data"):
            call(q)
    safetensors = pytest.importorskip("safetensors.torch")
    with pytest.raises(RuntimeError, match=r"no storage of its own.*state_dict\(\)"):
        safetensors.save_file({"weight": q}, tmp_path / "model.safetensors")


@pytest.mark.parametrize("arrange", [lambda q: q, line, arranged], ids=["as it is", "in a line", "arranged"])
def test_c_exchange_tables_refuse_it(arrange):
    tvm_ffi = framework("tvm_ffi")
    q = arrange(dt.quantize(randn(32, 64), "nvfp4"))
    for call in (tvm_ffi.from_dlpack, tvm_ffi.get_global_func("testing.echo")):
        with pytest.raises((TypeError, BufferError), match="exchange"):
            call(q)


LOADER = """
import torch, dlfp4, dlfp4.torch as dt

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"x": dt.quantize(torch.arange(index, index + 64.0).reshape(2, 32), "mxfp4")}

for workers in (0, 1):
    batches = [batch["x"] for batch in torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=workers)]
    each = [Rows()[index]["x"].to_dlfp4() for index in range(4)]
    for q, stack in zip(batches, (dlfp4.stack(each[:2]), dlfp4.stack(each[2:])), strict=True):
        assert torch.equal(q.elements, stack.data.view("uint8").to_torch())
        assert torch.equal(q.dequantize(), stack.dequantize().to_torch())
"""


def test_batches_of_data_loaders():
    """In a process of their own, for workers are forked, which JAX's threads forbid."""
    subprocess.run([sys.executable, "-P", "-c", LOADER], check=True, timeout=300)


SPAWNED = """
import torch, dlfp4.torch as dt

def child(given, made):
    w, layer, x = given.get()
    made.put([torch.nn.functional.linear(x, w).tolist(), layer(x).tolist()])

if __name__ == "__main__":
    context = torch.multiprocessing.get_context("spawn")
    given, made = context.Queue(), context.Queue()
    x, w = torch.randn(2, 64), dt.quantize(torch.randn(32, 64), "nvfp4")
    layer = dt.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 32)), "nvfp4").requires_grad_(False)
    process = context.Process(target=child, args=(given, made))
    process.start()
    given.put((w, layer, x))
    assert made.get(timeout=200) == [torch.nn.functional.linear(x, w).tolist(), layer(x).tolist()]
    process.join()
"""


def test_queues_of_spawned_processes(tmp_path):
    """A file of its own, for a spawned process imports it."""
    program = tmp_path / "program.py"
    program.write_text(SPAWNED)
    subprocess.run([sys.executable, "-P", str(program)], check=True, timeout=300)
