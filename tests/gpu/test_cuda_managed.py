"""CUDA managed memory: kernels of the device and of the host read it where it lies, after the work on its stream."""

import itertools
from copy import deepcopy

import numpy as np
import pytest

import dlfp4

pytestmark = pytest.mark.gpu

# Holds up the stream, then doubles what is there.
DOUBLE_LATE = r"""
extern "C" __global__ void double_late(float *x, int count) {
  const long long start = clock64();
  while (clock64() - start < 200000000) {
  }
  for (int i = threadIdx.x; i < count; i += blockDim.x) x[i] *= 2;
}
"""


def managed(cupy, values):
    """A CuPy array of the values in managed memory."""
    array = cupy.ndarray(values.shape, values.dtype, memptr=cupy.cuda.malloc_managed(values.nbytes))
    array.set(values)
    return array


def move_managed(cupy, part):
    """A part of a ScaledTensor, copied to managed memory."""
    values = part.view("uint8") if part.ndim else part  # CuPy has none of the small types
    return dlfp4.from_dlpack(managed(cupy, values.to_numpy())).view(part.dtype)


def some(shape):
    return np.random.default_rng(3).standard_normal(shape).astype("float32")


def test_kernels_of_the_device_take_it(cupy):
    x = some((4, 64))
    tensor = dlfp4.from_dlpack(managed(cupy, x))
    assert tensor.device.type == "cuda_managed"
    for ours, host in (
        (dlfp4.cast(tensor, "float8_e4m3fn"), dlfp4.cast(x, "float8_e4m3fn")),
        (dlfp4.quantize(tensor, "nvfp4").data, dlfp4.quantize(x, "nvfp4").data),
        (dlfp4.vecdot(tensor, tensor), dlfp4.vecdot(x, x)),
    ):
        assert ours.device.type == "cuda"
        np.testing.assert_allclose(
            ours.to_numpy().astype("float32"), host.to_numpy().astype("float32"), rtol=1e-6, atol=0
        )


def test_products_with_the_host_run_there(cupy):
    x, w = some((4, 64)), some((8, 64))
    tensor, weights = dlfp4.from_dlpack(managed(cupy, x)), dlfp4.quantize(w, "mxfp4")
    parts = [move_managed(cupy, part) for part in (weights.data, weights.scales)]
    moved = dlfp4.ScaledTensor.from_parts(*parts, format="mxfp4", shape=w.shape)
    for a, b in ((tensor, weights), (x, moved), (tensor, moved)):
        ours, host = dlfp4.matmul(a, b.mT, backend="cpu"), dlfp4.matmul(x, weights.mT, backend="cpu")
        assert ours.device.type == "cpu"
        assert ours.to_numpy().tobytes() == host.to_numpy().tobytes()
    ours = dlfp4.vecdot(tensor, x)
    assert ours.device.type == "cpu"
    assert ours.to_numpy().tobytes() == dlfp4.vecdot(x, x).to_numpy().tobytes()


def test_parts_lie_where_those_that_are_not_managed_lie(cupy):
    """Whichever part that is, the kernels that run read all of them."""
    x = some((4, 64))
    host = dlfp4.quantize(x, "nvfp4")
    for device, odd in itertools.product(("cpu", "cuda:0"), range(3)):
        parts = [move_managed(cupy, part) for part in (host.data, host.scales, host.global_scale)]
        parts[odd] = (host.data, host.scales, host.global_scale)[odd].to_device(device)
        q = dlfp4.ScaledTensor.from_parts(*parts, format="nvfp4")
        assert {str(part.device) for part in (q.data, q.scales, q.global_scale)} == {device}
        assert q.dequantize().to_numpy().tobytes() == host.dequantize().to_numpy().tobytes()
        ours = dlfp4.vecdot(q, dlfp4.asarray(x).to_device(device)).to_numpy()
        np.testing.assert_allclose(ours, dlfp4.vecdot(host, x).to_numpy(), rtol=1e-6, atol=0)


def test_scales_in_another_layout_take_the_data_along(cupy):
    host = dlfp4.quantize(some((4, 64)), "nvfp4")
    parts = [move_managed(cupy, part) for part in (host.data, host.scales, host.global_scale)]
    q = dlfp4.ScaledTensor.from_parts(*parts, format="nvfp4").with_scale_layout("128x4")
    assert {str(part.device) for part in (q.data, q.scales, q.global_scale)} == {"cuda:0"}
    with pytest.raises(dlfp4.BackendError, match="together"):
        dlfp4.vecdot(q, some((4, 64)))


def test_the_host_waits_for_its_stream(cupy):
    x = some((4, 64))
    array, kernel = managed(cupy, x), cupy.RawKernel(DOUBLE_LATE, "double_late")
    with cupy.cuda.Stream(non_blocking=True):
        kernel((1,), (256,), (array, array.size))
        tensor = dlfp4.from_dlpack(array)
        late = dlfp4.matmul(tensor, x.T, backend="cpu")
    np.testing.assert_array_equal(late.to_numpy(), dlfp4.matmul(2 * x, x.T, backend="cpu").to_numpy())


def test_copies_lie_on_the_device(cupy):
    tensor = dlfp4.from_dlpack(managed(cupy, some((6, 64))))
    for view in (tensor, tensor[1:], tensor.T, tensor[:, ::2]):
        for copied in (view.copy(), dlfp4.from_dlpack(view, copy=True), dlfp4.asarray(view, copy=True), deepcopy(view)):
            assert (str(copied.device), copied.to_numpy().tobytes()) == ("cuda:0", view.to_numpy().tobytes())
