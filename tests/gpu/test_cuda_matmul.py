"""matmul on a GPU against float64 products of the decoded operands: every backend and tactic; autotune; its errors."""

import importlib
import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4._core import _cuda_capability, _find_tactics, _multiply_on_cuda, _tactic_names, cuda_image
from dlfp4.engines import cuda, flashinfer
from dlfp4.engines.problem import Problem

from ..products.test_matmul import CASES, EPSILON, LARGE, assert_product, values
from ..support.reference import native_cast

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("torch")]

matmul, autotune = (importlib.import_module(f"dlfp4.{name}") for name in ("matmul", "autotune"))
CUDA = "cuda:0"
PREPARABLE = ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_e4m3"]  # test_which_formats_are_prepared
# Of sums of FP8 products in Hopper's tensor cores, in units of the sum of magnitudes: some 14 bits, cut off.
HOPPER_FP8 = 2.0**-10


def on_cuda(x):
    return (x if isinstance(x, dlfp4.ScaledTensor) else dlfp4.asarray(x)).to_device(CUDA)


class Expected:
    """A product in float64 and the bound around it, on the device."""

    def __init__(self, a, b, alpha=1.0, per_magnitude=None):
        left, right = (wide_on_cuda(x) for x in (a, b))
        per_magnitude = per_magnitude or max(left.shape[-1], 16) * 2.0**-24
        self.values = alpha * (left @ right)
        self.bound = abs(alpha) * per_magnitude * (left.abs() @ right.abs())

    def check(self, got, what):
        name = str(got.dtype).removeprefix("torch.")
        bound = self.bound + EPSILON[name] * self.values.abs() + 2.0**-126
        if name == "float16":
            bound += 2.0**-25  # half of its smallest step
        assert got.shape == self.values.shape
        wrong = ~((got.double() - self.values).abs() <= bound)
        assert not wrong.any(), f"{what}: {int(wrong.sum())} of {wrong.numel()} wrong, first at {wrong.nonzero()[0]}"


def wide_on_cuda(x):
    return (x.dequantize() if isinstance(x, dlfp4.ScaledTensor) else dlfp4.cast(x, "float32")).to_torch().double()


def able(problem):
    """The backends that take a problem, those among them that are asked by name alone."""
    machine = matmul.machine_at(problem.device, matmul.BACKENDS)
    return [row for row in matmul.BACKENDS if matmul.reason_of(row, problem, machine) is None]


def run_everything(torch, a, b, dtype, expected, alpha=1.0):
    """By every backend and tactic twice into memory full of NaN: the same bits, within the bound. Returns who ran."""
    ran = []
    rough = Expected(a, b, alpha, HOPPER_FP8)
    problem = Problem(a, b, np.dtype(dtype), alpha)
    for row in able(problem):
        for tactic in row.tactics(problem):
            name = f"{row.name}:{tactic}"
            outs = [torch.full(problem.shape, float("nan"), device=CUDA, dtype=getattr(torch, dtype)) for _ in range(2)]
            for out in outs:
                row.run(problem, tactic, dlfp4.asarray(out))
            assert torch.equal(*(out.view(torch.uint8) for out in outs)), f"{name}: not the same bits twice"
            (rough if row.name == "cuda_fp8" else expected).check(outs[0], name)
            ran.append(name)
    return ran


def check(a, b, **options):
    """As `auto` chooses: twice the same bits, and within the bound."""
    first, second = (dlfp4.matmul(on_cuda(a), on_cuda(b.mT).mT, **options) for _ in range(2))
    assert str(first.device) == CUDA
    host = first.to_device("cpu")
    assert host.view("uint8").to_numpy().tobytes() == second.to_device("cpu").view("uint8").to_numpy().tobytes()
    assert_product(host, a, b, options.get("alpha", 1.0), bound_of(on_cuda(a), on_cuda(b.mT).mT))


def bound_of(a, b):
    """What `auto` promises, where it is not matmul's bound."""
    return HOPPER_FP8 if next(iter(dlfp4.backends(a, b))) == "cuda_fp8" else None


# ---- every backend and tactic


def test_which_formats_are_prepared():
    """The others stay what they are, and are decoded for each product."""
    weights = {name: on_cuda(dlfp4.quantize(values((128, 256)), name)) for name in dlfp4.formats()}
    assert [name for name, w in weights.items() if w.prepare().scale_layout == "prepared"] == PREPARABLE
    assert all(w.prepare() is w for name, w in weights.items() if name not in PREPARABLE)


@pytest.mark.parametrize("name", PREPARABLE)
def test_slices_of_prepared_weights(name):
    """Matrices of a stack, with a global scale each where the format has one, and rows: between blocks of 128 rows."""
    stack = dlfp4.stack([dlfp4.quantize(values((256, 160), seed), name) for seed in range(3)])
    stack = on_cuda(stack)
    there = stack.prepare()
    if there.scale_layout != "prepared":  # of FP8 the kernels know one scale
        stack = on_cuda(dlfp4.quantize(values((3, 256, 160)), name))
        there = stack.prepare()
    x = on_cuda(native_cast(values((5, 160)), "bfloat16"))
    for key in (1, -1, slice(1, 3), (2, slice(128, 256)), (0, slice(128, None)), (slice(1), slice(None)), slice(2, 2)):
        part, expected = there[key], stack[key]
        assert part.shape == expected.shape
        assert part.scale_layout == ("prepared" if part.data.size else "linear")
        assert_same_bytes(part.dequantize(), expected.dequantize())
        if part.ndim == 2:
            product = dlfp4.matmul(x, part.mT, backend="cuda")
            assert_same_bytes(product, dlfp4.matmul(x, expected.prepare().mT, backend="cuda"))
            assert part.data.data_ptr > there.data.data_ptr
    assert_same_bytes(there.mT[1].dequantize(), stack.mT[1].dequantize())
    for key in ((1, slice(64)), (1, slice(None), slice(64)), (slice(None), slice(128))):
        with pytest.raises((ValueError, BufferError), match=r"blocks of 128 rows|do not follow one another"):
            there[key]


def assert_same_bytes(a, b):
    host = [x.to_device("cpu").view("uint8").to_numpy().tobytes() for x in (a, b)]
    assert host[0] == host[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", PREPARABLE)
@pytest.mark.parametrize("case", CASES + LARGE, ids=str)
def test_float_by_weight(torch, case, name, dtype):
    m, n, k = case
    a = on_cuda(native_cast(values((m, k)), dtype))
    w = on_cuda(dlfp4.quantize(values((n, k), 1), name))
    expected = Expected(a, w.mT, alpha=0.75)
    for weight, is_ours in ((w, False), (w.prepare(), True)):
        ran = run_everything(torch, a, weight.mT, dtype, expected, alpha=0.75)
        assert "torch:default" in ran
        assert any(each.startswith("cuda:") for each in ran) == is_ours


# One tile, tails, slices of K shared out unevenly, more of them than warps, x that fills half a tile and less.
SHAPES_OF_TACTICS = [
    (1, 264, 512), (3, 272, 14336), (8, 272, 4352), (9, 130, 8288), (16, 4096, 1024), (33, 520, 2048), (129, 384, 1536),
    (130, 392, 704), (257, 16384, 64), (300, 1088, 768), (1100, 14336, 128), (4097, 256, 256), (5, 64, 64),
    (1100, 14336, 704),  # all that the walk has: rests of rows, whole tiles, tiles that clusters share
    (16, 6416, 8192), (80, 8192, 4096),  # of "stream", fewer warps and fewer tiles, for which there is shared memory
]  # fmt: skip


OF_BYTES = ("16x", "walk")  # FP8 by FP8 alone, but for "walk" itself
TACTICS = [name for name in _tactic_names() if name == "walk" or not name.startswith(OF_BYTES)]


def tactics_of_image():
    """All, or the first alone where PTX for every GPU serves: what the library offers for a problem tells which."""
    w = on_cuda(dlfp4.quantize(values((256, 256)), "nvfp4")).prepare()
    names = TACTICS if len(_find_tactics(w.mT, 64)) > 1 else TACTICS[:1]
    assert len(names) > 1 or _cuda_capability(0) != (9, 0) or "90a" not in cuda_image()
    return names


@pytest.mark.parametrize("name", PREPARABLE)
@pytest.mark.parametrize("case", SHAPES_OF_TACTICS, ids=str)
def test_every_tactic_by_its_name(torch, case, name):
    """Those too that nobody would choose for the problem; those whose kernels an image lacks are refused."""
    m, n, k = case
    a = on_cuda(native_cast(values((m, k)), "bfloat16"))
    w = on_cuda(dlfp4.quantize(values((n, k), 1), name)).prepare()
    expected = Expected(a, w.mT)
    there = tactics_of_image()
    for tactic in TACTICS:
        for dtype in ("float32", "bfloat16"):
            out = torch.full((m, n), float("nan"), device=CUDA, dtype=getattr(torch, dtype))
            given = Problem(a, w.mT, np.dtype(dtype)), tactic, dlfp4.asarray(out)
            if tactic in there:
                cuda.BACKEND.run(*given)
                expected.check(out, tactic)
            else:
                with pytest.raises(dlfp4.DriverError, match="NO_BINARY"):
                    cuda.BACKEND.run(*given)


# Of results in larger memory: where they start, from one row to the next, and the step of rows.
LAYOUTS = {
    "rows apart": (0, 1096, 1),
    "an odd pitch": (8, 1091, 1),
    "misaligned": (1, 1088, 1),
    "upwards": (8, 1096, -1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", [(300, 1088, 768), (641, 1085, 320)], ids=str)
def test_results_lie_anywhere(torch, case, layout):
    """By every tactic the same bytes as in memory of their own, and not a byte beside them."""
    m, n, k = case
    start, pitch, step = LAYOUTS[layout]
    a = on_cuda(native_cast(values((m, k)), "bfloat16"))
    problem = Problem(a, on_cuda(dlfp4.quantize(values((n, k), 1), "nvfp4")).prepare().mT, np.dtype("bfloat16"))
    for tactic in tactics_of_image():
        expected = torch.full((m, n), float("nan"), device=CUDA, dtype=torch.bfloat16)
        cuda.BACKEND.run(problem, tactic, dlfp4.asarray(expected))
        memory = torch.full((start + m * pitch + 64,), 1234, device=CUDA, dtype=torch.int16)
        left = memory.clone()
        there = memory.view(torch.bfloat16).as_strided((m, n), (pitch, 1), start)
        cuda.BACKEND.run(problem, tactic, dlfp4.asarray(there)[::step])
        assert torch.equal((there if step > 0 else there.flip(0)).view(torch.int16), expected.view(torch.int16)), tactic
        left.as_strided((m, n), (pitch, 1), start).copy_(there.view(torch.int16))
        assert torch.equal(memory, left), f"{tactic}: memory beside the results"


@pytest.mark.slow
@pytest.mark.parametrize("name", PREPARABLE)
@pytest.mark.parametrize("case", [(16, 6416, 8192), (80, 8192, 4096), (1100, 14336, 704)], ids=str)
def test_every_product_is_the_same(torch, case, name):
    """Two in turn, thousands by each tactic: a race that one in ten thousand loses likely shows in some case."""
    m, n, k = case
    a = on_cuda(native_cast(values((m, k)), "bfloat16"))
    w = on_cuda(dlfp4.quantize(values((n, k), 1), name)).prepare()
    problems = [Problem(x, w.mT, np.dtype("bfloat16")) for x in (a, a[::-1].copy())]
    outs = torch.empty((8, m, n), device=CUDA, dtype=torch.bfloat16)
    for tactic in tactics_of_image():
        for problem, out in zip(problems, outs, strict=False):
            cuda.BACKEND.run(problem, tactic, dlfp4.asarray(out))
        first, wrong = outs[:2].view(torch.int16).repeat(4, 1, 1), torch.zeros((), device=CUDA, dtype=torch.int64)
        for _ in range(500):
            outs.fill_(float("nan"))
            for i, out in enumerate(outs):
                cuda.BACKEND.run(problems[i % 2], tactic, dlfp4.asarray(out))
            wrong += (outs.view(torch.int16) != first).flatten(1).any(1).sum()
        assert int(wrong) == 0, f"{tactic}: {int(wrong)} of 4000"


@pytest.mark.parametrize("name", PREPARABLE)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_quantized_by_weight(torch, case, name):
    m, n, k = case
    a, w = (on_cuda(dlfp4.quantize(values(shape, seed), name)) for seed, shape in enumerate(((m, k), (n, k))))
    expected = Expected(a, w.mT)
    run_everything(torch, a, w.prepare().mT, "bfloat16", expected)
    if name != "fp8_e4m3":  # which scaled_mm takes, too: see below
        run_everything(torch, a, w.mT, "float32", expected)


# ---- few rows that are quantized as the weight is: kernels read their codes

CODED = ["nvfp4", "mxfp4"]
SHAPES_OF_CODED = [
    (1, 256, 256), (1, 4096, 4096), (2, 130, 512), (3, 272, 14336), (7, 264, 1024), (8, 1000, 4096), (8, 272, 4352),
    (9, 130, 8192), (15, 264, 512), (16, 4096, 4096), (16, 14208, 512), (16, 144, 14336), (17, 264, 512),
    (40, 136, 768),
]  # fmt: skip


def by_values(torch, a, b, dtype, alpha=1.0):
    """By the kernel of floats, from the values of a."""
    out = torch.full((a.shape[0], b.shape[1]), float("nan"), device=CUDA, dtype=getattr(torch, dtype))
    values_of_a, factor = cuda.values_of(a, "bfloat16", None)
    _multiply_on_cuda(values_of_a, b, dlfp4.asarray(out), alpha, factor, "stream", None)
    return out


@pytest.fixture
def by_codes(torch, monkeypatch):
    """By the kernel of codes: nothing is decoded before it."""

    def refuse(*given):
        pytest.fail(f"{given} is decoded")

    def multiply(a, b, dtype, alpha=1.0):
        out = torch.full((a.shape[0], b.shape[1]), float("nan"), device=CUDA, dtype=getattr(torch, dtype))
        with monkeypatch.context() as patched:
            patched.setattr(cuda, "values_of", refuse)
            cuda.BACKEND.run(Problem(a, b, np.dtype(dtype), alpha), "stream", dlfp4.asarray(out))
        return out

    return multiply


def same_bits(torch, ours, theirs):
    return torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def of_codes(codes, scales, name):
    """A ScaledTensor of codes, one a byte, and scale bytes."""
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return on_cuda(dlfp4.ScaledTensor.from_parts(packed, scales.astype(np.uint8), format=name))


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("case", SHAPES_OF_CODED, ids=str)
def test_codes_are_worth_their_values(torch, by_codes, case, name):
    m, n, k = case
    a, w = (on_cuda(dlfp4.quantize(values(shape, seed), name)) for seed, shape in enumerate(((m, k), (n, k))))
    b = w.prepare().mT
    assert b.scale_layout == "prepared"
    expected = Expected(a, w.mT, alpha=0.75)
    for dtype in EPSILON:
        ours = by_codes(a, b, dtype, 0.75)
        assert same_bits(torch, ours, by_values(torch, a, b, dtype, 0.75)), dtype
        expected.check(ours, dtype)


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("name", CODED)
def test_every_scale_and_code_of_x(torch, by_codes, name, rows):
    """NaN, negative and subnormal scales, powers of two to the last: a row of each, times a unit matrix."""
    one = 127 if name == "mxfp4" else 0x38
    length = dlfp4.formats()[name].block[1]
    b = of_codes(2 * np.eye(256, dtype=np.uint8), np.full((256, 256 // length), one), name).prepare().mT
    assert b.scale_layout == "prepared"
    codes = np.random.default_rng(0).integers(0, 16, (rows, 256), np.uint8)
    codes[:, :32] = np.arange(32) % 16
    for first in range(0, 256, rows):
        scales = np.repeat(np.arange(first, first + rows)[:, None], 256 // length, axis=1)
        a = of_codes(codes, scales, name)
        ours = by_codes(a, b, "float32")
        assert same_bits(torch, ours, by_values(torch, a, b, "float32")), first
        if name == "nvfp4":
            torch.testing.assert_close(ours, a.dequantize().to_torch(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", CODED)
def test_scales_of_x_that_differ_in_a_row(torch, by_codes, name):
    """Each group has its own, and no other row's."""
    rng = np.random.default_rng(0)
    length = dlfp4.formats()[name].block[1]
    b = on_cuda(dlfp4.quantize(values((264, 1024), 1), name)).prepare().mT
    for m in (1, 6, 16):
        scales = rng.integers(0, 127, (m, 1024 // length)) + (64 if name == "mxfp4" else 0)
        a = of_codes(rng.integers(0, 16, (m, 1024), np.uint8), scales, name)
        assert same_bits(torch, by_codes(a, b, "float32"), by_values(torch, a, b, "float32"))


@pytest.mark.parametrize("name", CODED)
def test_codes_between_others(torch, by_codes, name):
    q = on_cuda(dlfp4.quantize(values((40, 512)), name))
    b = on_cuda(dlfp4.quantize(values((264, 512), 1), name)).prepare().mT
    for rows in (slice(3, 7), slice(1, 33, 2), slice(9, 10), slice(None, None, 4)):
        a = dlfp4.ScaledTensor.from_parts(q.data[rows], q.scales[rows], q.global_scale, format=name)
        assert same_bits(torch, by_codes(a, b, "float32"), by_values(torch, a, b, "float32"))


def padded(name):
    """K is 248, and what is stored beyond is no zero."""
    step = dlfp4.formats()[name].block[1]
    full = of_codes(np.full((5, 256), 2), np.full((5, 256 // step), 0x38), name)
    return dlfp4.ScaledTensor.from_parts(full.data, full.scales, format=name, shape=(5, 248))


@pytest.mark.parametrize("name", CODED)
def test_codes_that_are_decoded_first(torch, name):
    """Where K is not whole slices, rows lie anywhere, scales lie in tiles, formats differ, or K is padded."""
    wide = on_cuda(dlfp4.quantize(values((5, 1024)), name))
    step = dlfp4.formats()[name].block[1]
    parts = wide.data[:, 32:544], wide.scales[:, 32 // step : 544 // step]
    other = CODED[1 - CODED.index(name)]
    for a in (
        on_cuda(dlfp4.quantize(values((5, 288)), name)),
        dlfp4.ScaledTensor.from_parts(*parts, wide.global_scale, format=name),
        wide.with_scale_layout("128x4"),
        on_cuda(dlfp4.quantize(values((5, 512)), other)),
        padded(name),
    ):
        b = on_cuda(dlfp4.quantize(values((264, a.shape[1]), 1), name, pad=True)).prepare().mT
        out = torch.full((5, 264), float("nan"), device=CUDA)
        cuda.BACKEND.run(Problem(a, b, np.dtype("float32")), "stream", dlfp4.asarray(out))
        Expected(a, b).check(out, a)


@pytest.mark.parametrize("name", CODED)
def test_codes_in_a_graph(torch, by_codes, name, monkeypatch):
    """Replayed on new codes, scales and tensor's scale in the same memory."""
    a, new = (on_cuda(dlfp4.quantize(scale * values((4, 512), seed), name)) for seed, scale in enumerate((1, 3), 2))
    b = on_cuda(dlfp4.quantize(values((256, 512), 1), name)).prepare().mT
    expected = [by_codes(x, b, "bfloat16") for x in (a, new)]
    out, graph = torch.full_like(expected[0], float("nan")), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    monkeypatch.setattr(cuda, "values_of", lambda *given: pytest.fail(f"{given} is decoded"))
    with torch.cuda.graph(graph):
        dlfp4.matmul(a, b, out=out, stream=torch.cuda.current_stream(), backend="cuda")
    for want in expected:
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, want)
        for part, source in zip(a.to_torch(), new.to_torch(), strict=True):
            if part is not None:
                part.reshape(-1).view(torch.uint8).copy_(source.reshape(-1).view(torch.uint8))


def test_codes_whose_memory_moved_are_refused(torch, monkeypatch):
    monkeypatch.setattr(cuda, "values_of", lambda *given: pytest.fail(f"{given} is decoded"))
    b = on_cuda(dlfp4.quantize(values((32, 256)), "mxfp4")).prepare().mT
    for moved in (0, 1):
        parts = [torch.zeros((2, columns), device=CUDA, dtype=torch.uint8) for columns in (128, 8)]
        a = dlfp4.ScaledTensor.from_parts(*parts, format="mxfp4")
        parts[moved].set_(torch.zeros((1, 8), device=CUDA, dtype=torch.uint8))
        with pytest.raises(BufferError, match="import it again"):
            dlfp4.matmul(a, b, backend="cuda")


@pytest.mark.parametrize("m", [1, 16, 129])
def test_every_type_of_result(torch, m):
    a = on_cuda(native_cast(values((m, 512)), "bfloat16"))
    w = on_cuda(dlfp4.quantize(values((200, 512), 1), "nvfp4")).prepare()
    for dtype in EPSILON:
        run_everything(torch, a, w.mT, dtype, Expected(a, w.mT))


def test_scaled_mm(torch):
    """By its name alone, within what the tensor cores keep of sums."""
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no FP8 product")
    for m, n, k in ((1, 256, 512), (48, 512, 512), (129, 1088, 2048)):
        a, w = (on_cuda(dlfp4.quantize(values(shape, seed), "fp8_e4m3")) for seed, shape in enumerate(((m, k), (n, k))))
        expected = Expected(a, w.mT, alpha=0.5, per_magnitude=HOPPER_FP8)
        outs = [dlfp4.matmul(a, w.mT, alpha=0.5, backend="scaled_mm") for _ in range(2)]
        assert torch.equal(*(out.to_torch() for out in outs))
        expected.check(outs[0].to_torch(), "scaled_mm")
        assert dlfp4.backends(a, w.mT)["scaled_mm"].startswith("only by its name")
        decoded = dlfp4.matmul(a, w.mT, alpha=0.5, backend="torch").to_torch()
        Expected(a, w.mT, alpha=0.5).check(decoded, "torch")


# ---- what `auto` makes of everything else


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", dlfp4.formats())
@pytest.mark.parametrize("case", [(1, 256, 512), (13, 256, 128), (17, 1088, 576)], ids=str)
def test_other_formats(case, name, dtype):
    m, n, k = case
    w = dlfp4.quantize(values((n, k), 1), name, pad=True)
    check(native_cast(values((m, k)), dtype), w.mT)


@pytest.mark.parametrize("name", dlfp4.formats())
def test_other_formats_on_both_sides(name):
    a = dlfp4.quantize(values((9, 256)), name, pad=True)
    check(a, dlfp4.quantize(values((64, 256), 1), name).mT, alpha=0.5)


def test_batches_and_plain_elements():
    w = dlfp4.quantize(values((48, 256), 1), "nvfp4")
    check(native_cast(values((3, 5, 256)), "bfloat16"), w.mT, out_dtype="float32")
    check(native_cast(values((7, 64)), "float8_e4m3fn"), dlfp4.quantize(values((16, 64), 1), "mxfp4").mT)


def test_out_and_streams(torch):
    w = dlfp4.quantize(torch.randn(512, 256, device="cuda"), "nvfp4")
    x = torch.randn(32, 256, device="cuda", dtype=torch.bfloat16)
    for weight in (w, w.prepare()):
        out = torch.full((32, 512), float("nan"), device="cuda", dtype=torch.bfloat16)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        result = dlfp4.matmul(x, weight.mT, out=out, stream=stream)
        assert result.data_ptr == out.data_ptr()
        expected = x.double() @ w.dequantize().to_torch().double().T
        assert (out.double() - expected).abs().max() <= 2**-8 * expected.abs().max()
        torch.cuda.synchronize()
        assert (torch.from_dlpack(dlfp4.matmul(x, weight.mT)) == out).all()


def test_nothing_waits(torch):
    w = dlfp4.quantize(torch.randn(512, 256, device="cuda"), "nvfp4")
    x = torch.randn(32, 256, device="cuda", dtype=torch.bfloat16)
    for weight in (w, w.prepare()):
        dlfp4.matmul(x, weight.mT)
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        dlfp4.matmul(x, weight.mT)
        assert not torch.cuda.current_stream().query()
        torch.cuda.synchronize()


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_flashinfer_is_called_as_it_expects(torch, name, monkeypatch):
    """By a stand-in that decodes what it is given: FlashInfer's own function needs a Blackwell."""
    sizes = []

    def mm_fp4(a, b, a_scales, b_scales, alpha, out_dtype, *, block_size, use_nvfp4):
        assert {part.dtype for part in (a, b, a_scales, b_scales)} == {torch.uint8}
        sizes.append((block_size, use_nvfp4))
        left, right = (
            wide_on_cuda(dlfp4.ScaledTensor.from_parts(data, scales, format=name, scale_layout="128x4"))
            for data, scales in ((a, a_scales), (b.T, b_scales.T))
        )
        return (alpha * (left @ right.T)).to(out_dtype)

    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(mm_fp4=mm_fp4))
    x, w = (on_cuda(dlfp4.quantize(values(shape), name, scale_layout="128x4")) for shape in ((2, 20, 256), (48, 256)))
    out = torch.full((2, 20, 48), float("nan"), device=CUDA, dtype=torch.bfloat16)
    flashinfer.run(Problem(x, w.mT, np.dtype(ml_dtypes.bfloat16), 0.5), "default", dlfp4.asarray(out))
    assert sizes == [(16, True) if name == "nvfp4" else (32, False)]
    Expected(x, w.mT, 0.5).check(out, name)


# ---- what it does not take


def refusal(a, b):
    return dlfp4.backends(a, b)["cuda"]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_dtypes_of_x_that_need_a_cast(dtype):
    w = on_cuda(dlfp4.quantize(values((128, 64)), "nvfp4")).prepare()
    assert refusal(on_cuda(np.ones((8, 64), dtype)), w.mT) == f"a has dtype {dtype}; cast it to bfloat16 or float16"


def test_formats_that_16_bits_do_not_hold():
    w = on_cuda(dlfp4.quantize(values((128, 256)), "nvfp4")).prepare()
    x = on_cuda(dlfp4.quantize(values((8, 256)), "fp8_1x128"))
    assert refusal(x, w.mT) == "fp8_1x128 has no exact form of 16 bits"
    rows = np.repeat(np.float32([1, 2**-60]), 64)[:, None]  # more than float16's exponents apart
    apart = on_cuda(dlfp4.quantize(values((128, 256)) * rows, "mxfp4")).prepare()
    half = on_cuda(dlfp4.cast(values((8, 256)), "float16"))
    assert "neither bfloat16 nor float16 holds both a and b" in refusal(half, apart.mT)
    assert refusal(dlfp4.cast(half, "bfloat16"), apart.mT) is None


def test_blocks_across_the_sums():
    w = on_cuda(dlfp4.quantize(values((128, 64)), "nvfp4"))
    across = on_cuda(dlfp4.quantize(values((64, 16)), "nvfp4")).mT
    assert "run across the products' sums; quantize a along its last axis" in refusal(across, w.prepare().mT)
    x = on_cuda(dlfp4.cast(values((8, 64)), "bfloat16"))
    assert "b is not prepared; call w.prepare() once for a weight w of (N, K)" in refusal(x, w.mT)
    assert refusal(x, w.prepare().mT) is None


def test_depths_that_are_not_copied_whole():
    w = on_cuda(dlfp4.quantize(values((128, 20)), "fp8_e4m3")).prepare()
    x = on_cuda(dlfp4.cast(values((8, 20)), "bfloat16"))
    assert refusal(x, w.mT) == "K is 20; expected a multiple of 8"


def test_more_than_a_launch_counts(monkeypatch):
    w = on_cuda(dlfp4.quantize(values((128, 64)), "nvfp4")).prepare()
    x = on_cuda(dlfp4.cast(values((8, 64)), "bfloat16"))
    monkeypatch.setattr(cuda, "MOST_ROWS", 7)
    assert refusal(x, w.mT) == "M is 8; expected at most 7: split it"
    monkeypatch.setattr(cuda, "MOST_BYTES", 7)
    assert refusal(x, w.mT) == f"b has {w.nbytes} bytes; expected at most 7: split N"
    with pytest.raises(dlfp4.BackendError, match="expected at most 7: split N"):
        dlfp4.matmul(x, w.mT, backend="cuda")


def test_operands_apart():
    w = dlfp4.quantize(np.ones((32, 32), np.float32), "mxfp4")
    with pytest.raises(dlfp4.BackendError, match=r"a lies on cpu, b on cuda:0"):
        dlfp4.matmul(np.ones((2, 32), np.float32), on_cuda(w).mT)
    assert dlfp4.backends(on_cuda(np.ones((2, 32), np.float32)), on_cuda(w).mT)["torch"] is None


# ---- autotune


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setattr(autotune, "CHOICES", {})
    return tmp_path / "choices.json"


@pytest.mark.parametrize("is_prepared", [False, True], ids=["plain", "prepared"])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_rows_in_turn(torch, cache, name, is_prepared):
    n, k = 1088, 1536
    w = on_cuda(dlfp4.quantize(values((n, k), 1), name))
    b = (w.prepare() if is_prepared else w).mT
    for _ in range(2):  # the second time by look-up, from the file
        for rows in (256, 4096, 17, 4097, 3, 256, 129):
            a = on_cuda(native_cast(values((rows, k)), "bfloat16"))
            with dlfp4.autotune(cache):
                outs = [torch.full((rows, n), float("nan"), device=CUDA, dtype=torch.bfloat16) for _ in range(2)]
                for out in outs:
                    dlfp4.matmul(a, b, out=out)
            assert torch.equal(*outs)
            Expected(a, b).check(outs[0], f"{rows} rows")
        if is_prepared:
            assert sorted(key.rows for key in autotune.CHOICES) == [3, 20, 160, 256, 4096, 5120]
            assert {key.device for key in autotune.CHOICES} == {torch.cuda.get_device_name()}
            assert all(0 < choice.microseconds < 1e5 for choice in autotune.CHOICES.values())
        autotune.CHOICES.clear()
    assert cache.exists() == is_prepared  # of plain weights, one backend alone has a tactic


def test_every_backend_is_measured(torch, cache, monkeypatch):
    """What wins is among the fastest of our tactics and of PyTorch's product, in graphs and by the wall clock."""
    a = on_cuda(native_cast(values((64, 2048)), "bfloat16"))
    b = on_cuda(dlfp4.quantize(values((4096, 2048), 1), "nvfp4")).prepare().mT
    with dlfp4.autotune(cache):
        dlfp4.matmul(a, b)
    ((key, choice),) = autotune.CHOICES.items()
    assert "torch:default" in key.candidates
    assert choice.backend == "cuda"
    monkeypatch.setattr(autotune, "CHOICES", {})
    monkeypatch.setattr("dlfp4.engines.clocks.has_torch", lambda: False)
    with dlfp4.autotune(cache.with_name("other.json")):  # by CuPy, where it is, else without graphs
        Expected(a, b).check(dlfp4.matmul(a, b, backend="cuda").to_torch(), "cuda")
    assert len(autotune.CHOICES) == (len(tactics_of_image()) > 1)  # there is nothing to choose from otherwise


@pytest.mark.parametrize("known", [True, False], ids=["stream given", "PyTorch's own"])
def test_capture_is_not_measured(torch, cache, known):
    a = torch.randn(8, 512, device="cuda", dtype=torch.bfloat16)
    b = on_cuda(dlfp4.quantize(values((256, 512), 1), "nvfp4")).prepare().mT
    out = torch.empty(8, 256, device="cuda", dtype=torch.bfloat16)
    dlfp4.matmul(a, b, out=out)
    expected = out.clone()
    graph = torch.cuda.CUDAGraph()
    with dlfp4.autotune(cache), torch.cuda.graph(graph):
        dlfp4.matmul(a, b, out=out, stream=torch.cuda.current_stream() if known else None)
    assert not autotune.CHOICES
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


def test_capture_by_cupy_is_not_measured(torch, cache, monkeypatch):
    """The driver knows, where there is no PyTorch to ask."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    monkeypatch.setattr("dlfp4.engines.clocks.has_torch", lambda: False)
    a = on_cuda(native_cast(values((8, 512)), "bfloat16"))
    b = on_cuda(dlfp4.quantize(values((256, 512), 1), "nvfp4")).prepare().mT
    out = dlfp4.empty((8, 256), "bfloat16", device="cuda:0")
    expected = dlfp4.matmul(a, b, out=out).to_device("cpu").view("uint16").tolist()
    stream = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with dlfp4.autotune(cache), stream:
        stream.begin_capture()
        dlfp4.matmul(a, b, out=out, stream=stream)
        graph = stream.end_capture()
    assert not autotune.CHOICES
    out.to_torch().fill_(float("nan"))
    torch.cuda.synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert out.to_device("cpu").view("uint16").tolist() == expected
