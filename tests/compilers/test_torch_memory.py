"""``dlfp4.torch.ScaledTensor`` and its kin have no memory of their own, which nobody reads, nor data loaders share."""

import importlib

import numpy as np
import pytest

import dlfp4

from ..support.capsules import framework

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")


def values(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def line(q):
    return q.mT.reshape(-1)


def arranged(q):
    return q[None].permute(1, 0, 2)


@pytest.mark.parametrize("arrange", [lambda q: q, line, arranged], ids=["as it is", "in a line", "arranged"])
def test_none_reads_memory_that_is_none(tmp_path, arrange):
    q = arrange(dt.quantize(values(32, 64), "nvfp4"))
    for call in (np.asarray, np.array, lambda q: q.numpy(), lambda q: q.numpy(force=True), lambda q: q.tolist()):
        with pytest.raises(NotImplementedError, match=r"call \.dequantize\(\) for the values"):
            call(q)
    for call in (np.from_dlpack, torch.from_dlpack, dlfp4.from_dlpack):
        with pytest.raises(BufferError, match=r"dlfp4\.asarray takes it whole"):
            call(q)
    with pytest.raises(RuntimeError, match=r"no storage of its own.*state_dict\(\)"):
        q.storage()
    safetensors = pytest.importorskip("safetensors.torch")
    with pytest.raises(RuntimeError, match=r"no storage of its own.*state_dict\(\)"):
        safetensors.save_file({"weight": q}, tmp_path / "model.safetensors")


@pytest.mark.parametrize("arrange", [lambda q: q, line, arranged], ids=["as it is", "in a line", "arranged"])
def test_c_exchange_tables_refuse_it(arrange):
    tvm_ffi = framework("tvm_ffi")
    q = arrange(dt.quantize(values(32, 64), "nvfp4"))
    for call in (tvm_ffi.from_dlpack, tvm_ffi.get_global_func("testing.echo")):
        with pytest.raises((TypeError, BufferError), match="exchange"):
            call(q)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"x": dt.quantize(values(2, 32, seed=index), "mxfp4")}


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_data_loaders(workers):
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=workers)
    for number, batch in enumerate(loader):
        each = [dlfp4.quantize(values(2, 32, seed=index), "mxfp4") for index in (2 * number, 2 * number + 1)]
        assert torch.equal(batch["x"].elements, dlfp4.stack(each).data.view("uint8").to_torch())
        assert torch.equal(batch["x"].dequantize(), dlfp4.stack(each).dequantize().to_torch())
