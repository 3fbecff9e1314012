"""4-bit weights as AutoAWQ's and AutoGPTQ's own modules pack and multiply them, on a CPU: read and written with the
same bits. `nox -s packers` installs both, without what they ask for, which these modules do not need."""

import importlib
import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import dlfp4
from dlfp4.checkpoints import join_parts, split_parts

from ..support.reference import raw_bytes

torch = pytest.importorskip("torch")

N, K = 64, 256  # AutoGPTQ packs 32 rows and columns at a time


def module_of(monkeypatch, package, name):
    """A module of an installed package, whose own beginnings, which import models and loaders, do not run."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed: nox -s packers")
    *parents, _ = name.split(".")
    for depth in range(len(parents)):
        path = Path(spec.origin).parent.joinpath(*parents[1 : depth + 1])
        bare = types.ModuleType(".".join(parents[: depth + 1]))
        bare.__path__ = [str(path)]
        monkeypatch.setitem(sys.modules, bare.__name__, bare)
    return importlib.import_module(name)


@pytest.fixture
def awq(monkeypatch):
    pytest.importorskip("accelerate", reason="AutoAWQ imports it")
    return module_of(monkeypatch, "awq", "awq.modules.linear.gemm")


@pytest.fixture
def gptq(monkeypatch):
    pytest.importorskip("transformers", reason="AutoGPTQ imports it")
    return module_of(monkeypatch, "auto_gptq", "auto_gptq.nn_modules.qlinear.qlinear_cuda_old")


def linear(group, lowest, dtype):
    """A layer of weights near codes times scales; scales and zero points, a group's in a column."""
    rng = np.random.default_rng(group)
    codes, zeros = rng.integers(0, 16, (N, K)), rng.integers(lowest, 16, (N, K // group))
    scales = (rng.random((N, K // group)) / 64 + 1 / 128).astype(np.float16).astype(np.float32)
    near = codes - np.repeat(zeros, group, 1) + rng.uniform(-0.25, 0.25, (N, K))
    layer = torch.nn.Linear(K, N, bias=False, dtype=dtype)
    layer.weight.data = torch.from_numpy((near * np.repeat(scales, group, 1)).astype(np.float32)).to(dtype)
    return layer, torch.from_numpy(scales), torch.from_numpy(zeros.astype(np.float32))


def parts_of(layer, *names):
    return {f"up.{name}": getattr(layer, name).numpy() for name in names}


def load_into(layer, q, convention):
    """Our parts in a module of theirs, whose own are of the same types and shapes."""
    for name, part in split_parts({"up.weight": q}, convention).items():
        theirs, ours = getattr(layer, name.removeprefix("up.")), torch.from_numpy(part.to_numpy().copy())
        assert (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape)
        setattr(layer, name.removeprefix("up."), ours)


def worth(q, dtype):
    """What theirs is to be compared with: their formula rounds to the scales' type."""
    return raw_bytes(dlfp4.cast(q.dequantize(), dtype))


def of_awq(awq, layer, scales=None):
    """By their own formula, in float16, or in the type of other scales."""
    theirs = awq.dequantize_gemm(
        layer.qweight, layer.qzeros, layer.scales if scales is None else scales, 4, layer.group_size
    )
    return theirs.T.contiguous().numpy().tobytes()


@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_awq(awq, group):
    plain, scales, zeros = linear(K if group == -1 else group, 0, torch.float32)
    layer = awq.WQLinear_GEMM.from_linear(plain, 4, group if group > 0 else K, scales=scales.T, zeros=zeros.T)
    q = join_parts(parts_of(layer, "qweight", "qzeros", "scales"))["up.weight"]
    assert (q.format, q.shape) == (f"uint4_g{group}" if group > 0 else "uint4_row", (N, K))
    assert worth(q, "float16") == of_awq(awq, layer)
    assert worth(q, "float32") == of_awq(awq, layer, layer.scales.float())
    ours = dlfp4.quantize(plain.weight.data.numpy(), q.format, recipe=dlfp4.Recipe(scale_dtype="float16"))
    load_into(layer, ours, "awq")
    assert worth(ours, "float16") == of_awq(awq, layer)


def of_gptq(layer, dtype):
    """Their product with ones, each of which takes a column of the weights."""
    return layer(torch.eye(K, dtype=dtype)).T.contiguous().numpy().tobytes()


def lowered(zeros):
    """Zero points as a module stores them: less 1 in four bits, eight of them a word."""
    stored = (zeros.T.to(torch.int64) - 1 & 15).reshape(zeros.shape[1], -1, 8)
    words = (stored << 4 * torch.arange(8)).sum(-1)
    return (words - (words >> 31 << 32)).to(torch.int32)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_gptq(gptq, group, dtype):
    """Their packing lets zero points of 0 spill over a word's other codes, so that these are put in by hand."""
    kind = getattr(torch, dtype)
    plain, scales, zeros = linear(K if group == -1 else group, 1, kind)
    layer = gptq.QuantLinear(4, group, K, N, bias=False, weight_dtype=kind)
    layer.pack(plain, scales, zeros.clone(), None)  # which it may write to
    q = join_parts(parts_of(layer, "qweight", "qzeros", "scales", "g_idx"))["up.weight"]
    assert (q.format, q.shape) == (f"uint4_g{group}" if group > 0 else "uint4_row", (N, K))
    assert worth(q, dtype) == of_gptq(layer, kind)
    assert torch.equal(layer.qzeros, lowered(zeros))
    layer.qzeros = lowered(zeros - 1)
    q = join_parts(parts_of(layer, "qweight", "qzeros", "scales", "g_idx"))["up.weight"]
    assert not q.zero_points.to_numpy().all()
    assert worth(q, dtype) == of_gptq(layer, kind)
    ours = dlfp4.quantize(plain.weight.data.float().numpy(), q.format, recipe=dlfp4.Recipe(scale_dtype=dtype))
    load_into(layer, ours, "gptq")
    assert worth(ours, dtype) == of_gptq(layer, kind)
