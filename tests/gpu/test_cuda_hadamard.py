"""The Hadamard transform on a GPU, beside what test_cuda_formats.py says of every row."""

import numpy as np
import pytest

import dlfp4

from ..support.reference import host_bytes
from .test_cuda_formats import CUDA, bytes_of, magnitudes_of_all_kinds

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_e4m3"])
def test_zeros_that_complete_blocks(name):
    x = magnitudes_of_all_kinds("bfloat16")[7:47, :205]
    for axis in (-1, -2):
        ours, theirs = (
            dlfp4.quantize(t, name, axis=axis, pad=True, hadamard=9) for t in (dlfp4.asarray(x).to_device(CUDA), x)
        )
        assert bytes_of(ours) == bytes_of(theirs)
        assert host_bytes(ours.dequantize()) == host_bytes(theirs.dequantize())


@pytest.mark.parametrize("per", ["row", "matrix"])
def test_global_scales_of_parts(per):
    x = magnitudes_of_all_kinds("float32").reshape(4, 64, 512)
    ours, theirs = (
        dlfp4.quantize(t, "nvfp4", recipe=dlfp4.Recipe(global_scale_per=per), hadamard=9)
        for t in (dlfp4.asarray(x).to_device(CUDA), x)
    )
    assert bytes_of(ours) == bytes_of(theirs)
    assert host_bytes(ours.dequantize()) == host_bytes(theirs.dequantize())


def test_products_of_prepared_weights():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 256)).astype(np.float32), rng.standard_normal((128, 256)).astype(np.float32)
    q = dlfp4.quantize(dlfp4.asarray(w).to_device(CUDA), "nvfp4", hadamard=9)
    values = q.dequantize().to_device("cpu").to_numpy().astype(np.float64)
    for weight in (q, q.prepare()):
        assert weight.hadamard == q.hadamard
        product = dlfp4.matmul(dlfp4.asarray(x).to_device(CUDA), weight.mT).to_device("cpu").to_numpy()
        np.testing.assert_allclose(product, x @ values.T, rtol=0, atol=1e-3)
    activations = dlfp4.quantize(dlfp4.asarray(x).to_device(CUDA), "nvfp4", hadamard=9)
    exact = activations.dequantize().to_device("cpu").to_numpy().astype(np.float64) @ values.T
    np.testing.assert_allclose(dlfp4.matmul(activations, q.mT).to_device("cpu").to_numpy(), exact, rtol=0, atol=1e-3)


def test_graphs():
    torch = pytest.importorskip("torch")
    x = torch.randn(256, 512, dtype=torch.bfloat16, device="cuda")
    q = dlfp4.quantize(x, "nvfp4", hadamard=9)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dlfp4.quantize(x, "nvfp4", hadamard=9, out=q)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert bytes_of(q) == bytes_of(dlfp4.quantize(x.cpu(), "nvfp4", hadamard=9))
