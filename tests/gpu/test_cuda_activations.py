"""matmul(activation=...) by FP8 formats on a GPU: the bytes of the product of what quantize makes of x."""

import importlib

import numpy as np
import pytest

import dlfp4
from dlfp4._core import _cuda_capability

from ..products.test_activations import FP8
from ..products.test_grouped_matmul import stack_of, values
from ..support.block_reference import FORMATS
from ..support.reference import native_cast
from .test_cuda_matmul import CUDA, PREPARABLE, on_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("torch")]
K = 384


def floats(rows, dtype="bfloat16", seed=0):
    return on_cuda(native_cast(values((rows, K), seed), dtype))


def weight(name, columns=256):
    return on_cuda(dlfp4.quantize(values((columns, K), 1), name, pad=True))


def usual(activation):
    """A weight that tensor cores multiply by such activations."""
    return weight({"fp8_1x128": "fp8_128x128", "fp8_row": "fp8_row", "mxfp8": "mxfp8_e4m3"}[activation]).prepare()


def host_bytes(x):
    return x.to_device("cpu").view("uint8").to_numpy().tobytes()


def same(got, expected):
    assert (got.shape, got.dtype, got.device) == (expected.shape, expected.dtype, expected.device)
    assert host_bytes(got) == host_bytes(expected)


@pytest.mark.parametrize("activation", FP8)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FORMATS)
def test_bytes_of_two_steps(name, dtype, activation):
    """By "auto", and by each backend that takes the pair; the weight as it lies, and prepared."""
    w = weight(name)
    weights = (w, w.prepare()) if name in PREPARABLE else (w,)
    for rows in (1, 70):
        x = floats(rows, dtype)
        q = dlfp4.quantize(x, FP8[activation])
        for each in weights:
            able = [backend for backend, reason in dlfp4.backends(q, each.mT).items() if reason is None]
            assert "torch" in able
            for backend in ("auto", *able):
                options = {"backend": backend, "alpha": 0.5}
                same(dlfp4.matmul(x, each.mT, activation=activation, **options),
                     dlfp4.matmul(q, each.mT, out_dtype=dtype, **options))  # fmt: skip


@pytest.mark.parametrize("name", ["fp8_128x128", "fp8_1x128", "fp8_row", "fp8_e4m3"])
@pytest.mark.parametrize("activation", ["fp8_1x128", "fp8_row"])
def test_fp8_goes_to_tensor_cores_as_it_lies(name, activation):
    if _cuda_capability(0) != (9, 0):
        pytest.skip(f"kernels for compute capability 9.0; this device has {_cuda_capability(0)}")
    x, w = floats(48), weight(name)
    expected = dlfp4.matmul(dlfp4.quantize(x, FP8[activation]), w.mT, out_dtype="bfloat16", backend="cuda_fp8")
    same(dlfp4.matmul(x, w.mT, activation=activation), expected)
    with pytest.raises(dlfp4.BackendError, match="K is 40; expected a multiple of 16"):
        dlfp4.matmul(on_cuda(values((4, 40))), on_cuda(dlfp4.quantize(values((64, 40)), name)).mT,
                     activation=activation, backend="cuda_fp8")  # fmt: skip


@pytest.mark.parametrize("activation", FP8)
def test_memory_of_the_caller(torch, activation):
    x, w = floats(9), usual(activation)
    for dtype in ("float32", "bfloat16", "float16"):
        out = torch.full((9, 512), float("nan"), device=CUDA, dtype=getattr(torch, dtype))
        dlfp4.matmul(x, w.mT, activation=activation, out=out[:, ::2])
        expected = dlfp4.matmul(dlfp4.quantize(x, FP8[activation]), w.mT, out_dtype=dtype).to_torch()
        assert torch.equal(out[:, ::2], expected)
        assert out[:, 1::2].isnan().all()


@pytest.mark.parametrize("activation", FP8)
def test_the_current_stream(torch, activation):
    """x is written late; what it was quantized to is memory that the next call takes."""
    w, stream = usual(activation), torch.cuda.Stream()
    rows = [floats(200, seed=seed).to_torch() for seed in range(8)]
    expected = [dlfp4.matmul(x, w.mT, activation=activation).to_torch() for x in rows]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        found = [dlfp4.matmul(x + 0, w.mT, activation=activation).to_torch() for x in rows]
    stream.synchronize()
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("activation", FP8)
def test_captured_in_a_graph(torch, activation):
    """Later replays read what x holds then."""
    w, x = usual(activation), floats(32).to_torch()
    out = torch.empty(32, 256, device=CUDA, dtype=torch.bfloat16)
    dlfp4.matmul(x, w.mT, activation=activation, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dlfp4.matmul(x, w.mT, activation=activation, out=out)
    for seed in range(3):
        x.copy_(floats(32, seed=seed).to_torch())
        graph.replay()
        expected = dlfp4.matmul(x, w.mT, activation=activation).to_torch()
        assert torch.equal(out, expected)


@pytest.mark.parametrize("activation", FP8)
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "fp8_128x128"])
def test_experts(torch, name, activation):
    """Where there are kernels for the quantized rows, the bytes are theirs, else their reason is told."""
    ends = dlfp4.asarray(np.array([5, 6, 40], np.int32)).to_device(CUDA)
    x, w = floats(40), stack_of(name, 3, 128, K).to_device(CUDA).prepare()
    q = dlfp4.quantize(x, FP8[activation])
    found = outcome(x, w.mT, ends, activation=activation)
    assert found == outcome(q, w.mT, ends, out_dtype="bfloat16")
    if _cuda_capability(0) == (9, 0) and activation == "mxfp8" and name in PREPARABLE:
        assert isinstance(found, bytes), found


def outcome(*operands, **options):
    """Bytes, or why there are none."""
    try:
        return host_bytes(dlfp4.grouped_matmul(*operands, **options))
    except dlfp4.BackendError as error:
        return str(error)


@pytest.mark.parametrize("activation", FP8)
@pytest.mark.parametrize("name", ["fp8_128x128", "fp8_row", "fp8_e4m3", "mxfp8_e4m3", "mxfp4", "nvfp4"])
def test_layers_of_pytorch(torch, name, activation):
    dt = importlib.import_module("dlfp4.torch")
    made = torch.nn.Sequential(torch.nn.Linear(K, 256, device=CUDA, dtype=torch.bfloat16))
    w = dlfp4.quantize(made[0].weight.detach(), name)
    dt.quantize_(made, name, include=["*"], activation=activation)
    x = floats(8).to_torch()
    is_prepared = dlfp4.asarray(made[0].weight).scale_layout == "prepared"
    assert is_prepared == (name in PREPARABLE and activation == "mxfp8")
    own = w.prepare() if is_prepared else w
    with torch.no_grad():
        product = dlfp4.matmul(dlfp4.quantize(x, FP8[activation]), own.mT, out_dtype="bfloat16").to_torch()
        for _ in range(3):
            assert torch.equal(made(x), product + made[0].bias)
    x.requires_grad_()
    made(x).sum().backward()
    expected = made[0].weight.dequantize().float().sum(0).expand(8, -1)
    assert torch.allclose(x.grad.float(), expected, rtol=0, atol=0.05)


def test_what_is_refused():
    x, w = floats(4), weight("mxfp8_e4m3")
    with pytest.raises(ValueError, match="K is 40, and the blocks of mxfp8_e4m3 have 32 elements"):
        dlfp4.matmul(on_cuda(values((4, 40))), on_cuda(values((40, 64))), activation="mxfp8")
    with pytest.raises(dlfp4.BackendError, match="a is quantized already"):
        dlfp4.matmul(dlfp4.quantize(x, "mxfp8_e4m3"), w.mT, activation="mxfp8")
    with pytest.raises(ValueError, match="overlaps"):
        dlfp4.matmul(x, on_cuda(dlfp4.quantize(values((K, K)), "fp8_row")).mT, activation="fp8_row", out=x)
