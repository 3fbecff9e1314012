"""FP8 by FP8 on the tensor cores of compute capability 9.0: every format, tactic and shape against float64."""

import itertools

import numpy as np
import pytest

import dlfp4
from dlfp4._core import _multiply_bytes_on_cuda, _tactic_names
from dlfp4.engines import cuda_fp8
from dlfp4.engines.problem import Problem

from ..products.test_matmul import values
from .test_cuda_matmul import CUDA, HOPPER_FP8, Expected, on_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("torch", "hopper")]

ROWS = ("fp8_e4m3", "fp8_row", "fp8_1x128")
WEIGHTS = (*ROWS, "fp8_128x128")
# Those that read prepared weights left out.
TACTICS = [name for name in _tactic_names() if name not in ("stream", "walk") and not name.startswith("256x")]
# One tile, tails of each side, K that no 128 divides, more ranks than K has blocks for, half tiles, several tiles.
SHAPES = [
    (1, 8, 128), (3, 72, 256), (16, 128, 384), (17, 200, 1024), (64, 64, 4096), (100, 328, 640), (128, 2112, 512),
    (129, 136, 2048), (200, 1000, 1280), (300, 520, 256), (1100, 4096, 384), (450, 33792, 128),
    (1027, 328, 640),
]  # fmt: skip


def quantized(shape, name, seed=0, scale=1.0):
    return on_cuda(dlfp4.quantize(values(shape, seed) * np.float32(scale), name))


def run(torch, a, b, tactic, dtype="float32", alpha=1.0):
    """Twice into memory full of NaN: the same bits."""
    shape = a.shape[:-1] + b.shape[-1:]
    outs = [torch.full(shape, float("nan"), device=CUDA, dtype=getattr(torch, dtype)) for _ in range(2)]
    for out in outs:
        _multiply_bytes_on_cuda(a, b, dlfp4.asarray(out), alpha, tactic, None)
    assert torch.equal(*(out.view(torch.uint8) for out in outs)), f"{tactic}: not the same bits twice"
    return outs[0]


def has_kernel(tactic, a, b):
    """Of tiles of 16 rows there are kernels without scales along K. Walks have tiles of columns within 128 that share a
    scale, other columns where none do, and of both 128x128; rows of weights with scales of their own leave only that,
    and 256x128.
    """
    of_a, of_b = (each.format.name if isinstance(each, dlfp4.ScaledTensor) else "" for each in (a, b))
    has_scales = "128" in of_a + of_b
    if not tactic.startswith("walk"):
        return not (has_scales and tactic.startswith("16x"))
    rows, columns = map(int, tactic.removeprefix("walk").removeprefix("2x").split("x"))
    if has_scales and of_b.startswith(("fp8_1x128", "fp8_row")):
        return columns == 128 and rows >= 128
    return rows <= 128 and ((rows, columns) == (128, 128) or has_scales == (128 % columns == 0))


def tactics_of(a, b):
    """Every kernel but those that have more ranks than there are blocks of K."""
    steps = -(-b.shape[0] // cuda_fp8.DEPTH)
    for name in TACTICS:
        ranks = int(name.split("/")[1]) if "/" in name else 1
        ways = ranks * (2 if name.endswith("x64") or "x64/" in name else 1)
        if has_kernel(name, a, b) and (ways <= steps or name.startswith("walk")):
            yield name


@pytest.mark.parametrize("pair", list(itertools.product(ROWS, WEIGHTS)), ids="-".join)
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_every_tactic(torch, case, pair):
    m, n, k = case
    a, w = quantized((m, k), pair[0]), quantized((n, k), pair[1], 1)
    expected = Expected(a, w.mT, 0.75, HOPPER_FP8)
    for tactic in tactics_of(a, w.mT):
        expected.check(run(torch, a, w.mT, tactic, alpha=0.75), tactic)


@pytest.mark.parametrize(
    "names",
    [
        ("fp8_e5m2", "fp8_e4m3"),
        ("fp8_row", "fp8_row_e5m2"),
        ("fp8_1x128_e5m2", "fp8_128x128_e5m2"),
        ("fp8_1x128_e5m2", "fp8_128x128"),
        ("fp8_1x128", "fp8_1x128_e5m2"),
    ],
    ids="-".join,
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_types_of_elements_and_results(torch, names, dtype):
    a, w = quantized((70, 640), names[0]), quantized((264, 640), names[1], 1)
    expected = Expected(a, w.mT, 1.0, HOPPER_FP8)
    for tactic in tactics_of(a, w.mT):
        expected.check(run(torch, a, w.mT, tactic, dtype), tactic)


@pytest.mark.parametrize(
    "pair", [("fp8_e4m3", "fp8_e4m3"), ("fp8_row", "fp8_row"), ("fp8_1x128", "fp8_128x128")], ids="-".join
)
def test_exact_sums_have_the_bytes_of_the_product(torch, pair):
    """Integers whose sums any accumulator holds, by scales that are powers of two: no rounding anywhere."""
    m, n, k = 150, 264, 512
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((m, k), (n, k)))
    for each in (x, w):
        each[:, ::128] = 7  # the largest of every block and row, so that 448 / 7 = 64 becomes every scale
    a, weight = (on_cuda(dlfp4.quantize(each, name)) for each, name in ((x, pair[0]), (w, pair[1])))
    assert np.array_equal(dlfp4.dequantize(a.to_device("cpu")).to_numpy(), x)
    expected = torch.from_numpy(x @ w.T).to(CUDA)
    for tactic in tactics_of(a, weight.mT):
        assert torch.equal(run(torch, a, weight.mT, tactic), expected), tactic


@pytest.mark.parametrize("below", range(1, 19))
def test_what_tensor_cores_keep(torch, below):
    """Of sums 13 bits below the largest product; what is smaller is lost, be it often there."""
    largest, small = 256.0, 2.0 ** (16 - below)
    x, w = torch.zeros(16, 128, device=CUDA), torch.zeros(64, 128, device=CUDA)
    x[:, 0] = w[:, 0] = largest
    x[:, 1:] = 2.0 ** ((16 - below) // 2)
    w[:, 1:] = small / x[0, 1]
    a, b = (dlfp4.asarray(each.to(torch.float8_e4m3fn)) for each in (x, w.t()))
    kept = largest**2 + (127 * small if below <= 13 else 0)
    for tactic in tactics_of(a, b):
        assert (run(torch, a, b, tactic) == kept).all()


def test_unscaled_bytes_of_any_strides(torch):
    """Plain FP8, rows apart, K not contiguous: copied where bulk copies cannot read them."""
    x = torch.randn(40, 320, device=CUDA).to(torch.float8_e4m3fn)
    w = torch.randn(72, 320, device=CUDA).to(torch.float8_e4m3fn)
    for a, b in (
        (x[:, :256], w[:, :256].t()),
        (x[1::2, 3:259], w[:, 1:257].t()),
        (x[:, :256], w[:, :256].t().contiguous()),
    ):
        left, right = dlfp4.asarray(a), dlfp4.asarray(b)
        got = dlfp4.matmul(left, right, out_dtype="float32", backend="cuda_fp8").to_torch()
        wide = a.double(), b.double()
        assert ((got.double() - wide[0] @ wide[1]).abs() <= HOPPER_FP8 * (wide[0].abs() @ wide[1].abs())).all()


def test_nan_and_infinity_stay_in_their_rows_and_columns(torch):
    x, w = np.ones((33, 256), np.float32), np.ones((72, 256), np.float32)
    a, b = (dlfp4.quantize(each, "fp8_row_e5m2") for each in (x, w))
    a.data.view("uint8").to_numpy()[5, 200] = 0x7F  # NaN
    a.data.view("uint8").to_numpy()[6, 100] = 0x7C  # infinity
    b.data.view("uint8").to_numpy()[7, 0] = 0xFC  # -infinity
    a, b = on_cuda(a), on_cuda(b)
    for tactic in tactics_of(a, b.mT):
        got = run(torch, a, b.mT, tactic)
        assert got[5].isnan().all()
        assert (got[6, :7] == float("inf")).all()
        assert (got[:5, 7] == float("-inf")).all()
        assert got[7:, 8:].isfinite().all()


def test_auto_takes_them_as_they_lie(torch):
    """And says by which error; decoding stays to be asked for by its name."""
    a, w = quantized((48, 512), "fp8_1x128"), quantized((256, 512), "fp8_128x128", 1)
    assert next(iter(dlfp4.backends(a, w.mT))) == "cuda_fp8"
    out = torch.empty(48, 256, device=CUDA, dtype=torch.bfloat16)
    dlfp4.matmul(a, w.mT, out=out)
    Expected(a, w.mT, 1.0, HOPPER_FP8).check(out, "auto")
    exact = dlfp4.matmul(a, w.mT, out_dtype="float32", backend="torch")
    Expected(a, w.mT).check(exact.to_torch(), "torch")


@pytest.mark.parametrize("depth", range(128, 897, 128))
@pytest.mark.parametrize("names", [("fp8_1x128", "fp8_128x128"), ("fp8_e4m3", "fp8_e4m3")], ids="-".join)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_tiles_of_few_blocks(torch, depth, names, dtype):
    """Of each multiprocessor, so that tiles go round the ring of stages, or two share memory: the same bits. Results of
    16 bits leave by bulk copies while the next tile is multiplied.
    """
    a, w = quantized((300, depth), names[0]), quantized((33800, depth), names[1], 1)
    expected = run(torch, a, w.mT, "128x128", dtype)
    others = [name for name in tactics_of(a, w.mT) if name.startswith("walk")]
    for tactic in (*others, "64x128", "32x128"):
        assert torch.equal(run(torch, a, w.mT, tactic, dtype), expected), tactic


@pytest.mark.parametrize("tactic", ["64x128", "128x128", "walk2x64x64", "walk128x128"])
@pytest.mark.parametrize("rows", [48, 300, 1027])
def test_layouts_of_scales(torch, rows, tactic):
    """The same bytes, whichever way the scales lie: linear, or as cuBLAS has them."""
    a, w = quantized((rows, 1536), "fp8_1x128"), quantized((264, 1536), "fp8_128x128", 1)
    turned, padded = a.with_scale_layout("cublas_1x128"), w.with_scale_layout("cublas_128x128")
    expected = run(torch, a, w.mT, tactic)
    for x, weight in ((turned, w), (a, padded), (turned, padded)):
        assert torch.equal(run(torch, x, weight.mT, tactic), expected)


def test_captured_in_a_graph(torch):
    a, w = quantized((32, 512), "fp8_1x128"), quantized((256, 512), "fp8_128x128", 1)
    out = torch.zeros(32, 256, device=CUDA)
    dlfp4.matmul(a, w.mT, out=out)
    expected, graph = out.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dlfp4.matmul(a, w.mT, out=out)
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("a", "w", "said"),
    [
        ("fp8_1x128", "nvfp4", "expected float8_e4m3fn or float8_e5m2"),
        ("mxfp8_e4m3", "mxfp8_e4m3", "expected scales of float32"),
    ],
)
def test_what_it_refuses(torch, a, w, said):
    a, w = quantized((16, 256), a), quantized((64, 256), w, 1)
    with pytest.raises(dlfp4.BackendError, match=said):
        dlfp4.matmul(a, w.mT, backend="cuda_fp8")
    assert "cuda_fp8" in dlfp4.backends(a, w.mT)


def test_k_that_no_copy_reads_is_refused(torch):
    x = torch.ones(4, 24, device=CUDA).to(torch.float8_e4m3fn)
    with pytest.raises(dlfp4.BackendError, match="K is 24; expected a multiple of 16"):
        dlfp4.matmul(dlfp4.asarray(x), dlfp4.asarray(x.t()), backend="cuda_fp8")


def test_problem_of_another_device_is_none_of_its():
    a = dlfp4.quantize(values((4, 256)), "fp8_1x128")
    problem = Problem(a, a.mT, np.dtype(np.float32))
    assert "GPU" in cuda_fp8.supports(problem, None)
