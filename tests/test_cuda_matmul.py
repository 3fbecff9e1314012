"""matmul on a GPU against float64 products of the decoded operands; what has no backend says why."""

import numpy as np
import pytest

import dlfp4

from .reference import native_cast
from .test_matmul import CASES, assert_product, values

pytestmark = pytest.mark.gpu

CUDA = "cuda:0"


@pytest.fixture(autouse=True)
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def on_cuda(x):
    return (x if isinstance(x, dlfp4.ScaledTensor) else dlfp4.asarray(x)).to_device(CUDA)


def check(a, b, **options):
    """Twice the same bits, and within the bound."""
    first, second = (dlfp4.matmul(on_cuda(a), on_cuda(b.mT).mT, **options) for _ in range(2))
    assert str(first.device) == CUDA
    host = first.to_device("cpu")
    assert host.view("uint8").to_numpy().tobytes() == second.to_device("cpu").view("uint8").to_numpy().tobytes()
    assert_product(host, a, b, options.get("alpha", 1.0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    "name", ["nvfp4", "nvfp4_16x16", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "fp8_128x128", "fp8_e4m3"]
)
@pytest.mark.parametrize("case", [case for case in CASES if case[2] % 128 == 0 or case[0] == 17], ids=str)
def test_float_by_weight(case, name, dtype):
    m, n, k = case
    w = dlfp4.quantize(values((n, k), 1), name, pad=True)
    check(native_cast(values((m, k)), dtype), w.mT)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e5m2", "fp8_e5m2"])
@pytest.mark.parametrize("case", CASES[:8], ids=str)
def test_quantized_by_weight(case, name):
    m, n, k = case
    check(dlfp4.quantize(values((m, k)), name), dlfp4.quantize(values((n, k), 1), name).mT, alpha=0.5)


def test_batches_and_plain_elements():
    w = dlfp4.quantize(values((48, 256), 1), "nvfp4")
    check(native_cast(values((3, 5, 256)), "bfloat16"), w.mT, out_dtype="float32")
    check(native_cast(values((7, 64)), "float8_e4m3fn"), dlfp4.quantize(values((16, 64), 1), "mxfp4").mT)


def test_out_and_streams(torch):
    w = dlfp4.quantize(torch.randn(512, 256, device="cuda"), "nvfp4")
    x = torch.randn(32, 256, device="cuda", dtype=torch.bfloat16)
    out = torch.full((32, 512), float("nan"), device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    result = dlfp4.matmul(x, w.mT, out=out, stream=stream)
    assert result.data_ptr == out.data_ptr()
    expected = x.double() @ w.dequantize().to_torch().double().T
    assert (out.double() - expected).abs().max() <= 2**-8 * expected.abs().max()
    torch.cuda.synchronize()
    assert (torch.from_dlpack(dlfp4.matmul(x, w.mT)) == out).all()


def test_nothing_waits(torch):
    w = dlfp4.quantize(torch.randn(512, 256, device="cuda"), "nvfp4")
    x = torch.randn(32, 256, device="cuda", dtype=torch.bfloat16)
    dlfp4.matmul(x, w.mT)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    dlfp4.matmul(x, w.mT)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


def test_operands_apart():
    w = dlfp4.quantize(np.ones((32, 32), np.float32), "mxfp4")
    with pytest.raises(dlfp4.BackendError, match=r"a lies on cpu, b on cuda:0"):
        dlfp4.matmul(np.ones((2, 32), np.float32), on_cuda(w).mT)
    assert dlfp4.backends(on_cuda(np.ones((2, 32), np.float32)), on_cuda(w).mT)["torch"] is None
