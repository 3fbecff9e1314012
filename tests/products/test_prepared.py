"""Prepared weights: the same tensor, exactly, wherever the unprepared one goes, and every scale that can be held."""

import pickle

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints

from ..support.reference import host_bytes

CUDA = "cuda:0"
FORMATS = ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_e4m3"]
SHAPES = [(1, 32), (16, 64), (17, 96), (128, 256), (129, 320), (300, 1088)]
gpu = pytest.mark.gpu


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def assert_same(ours, theirs):
    assert (ours.format, ours.axis, ours.shape) == (theirs.format, theirs.axis, theirs.shape)
    for part in ("data", "scales", "global_scale"):
        ours_part, theirs_part = getattr(ours, part), getattr(theirs, part)
        if theirs_part is not None:
            assert (ours_part.shape, ours_part.dtype) == (theirs_part.shape, theirs_part.dtype)
            assert host_bytes(ours_part) == host_bytes(theirs_part), part


def weights(codes, scales, fmt):
    """A ScaledTensor on the GPU of any codes (one a byte) and scale bytes."""
    if dlfp4.formats()[fmt].element.itemsize == 1 and "fp4" in fmt:
        codes = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    q = dlfp4.ScaledTensor.from_parts(codes, scales, np.float32(1) if fmt == "nvfp4" else None, format=fmt)
    return q.to_device(CUDA)


def product(x, q):
    """X times the prepared weights by each kernel: the same values, in float32."""
    x = dlfp4.asarray(x).to_device(CUDA)
    w = q.mT
    results = []
    for tactic in dlfp4._core._find_tactics(w, x.shape[0]):
        out = dlfp4.asarray(np.full((x.shape[0], w.shape[1]), np.nan, np.float32)).to_device(CUDA)
        dlfp4._core._multiply_on_cuda(x, w, out, 1.0, None, tactic, None)
        results.append(dlfp4.from_dlpack(out, device="cpu").to_numpy().astype(np.float64))
    return results


# ---- On the host


@pytest.mark.parametrize("fmt", list(dlfp4.formats()))
def test_on_the_host_scales_become_linear(fmt):
    q = dlfp4.quantize(values(128, 128), fmt)
    assert q.prepare() is q
    if fmt.startswith(("nvfp4", "mx")):
        assert_same(q.with_scale_layout("128x4").prepare(), q)
    assert q.mT.prepare().axis == -2


def test_on_the_host_products_are_those_of_the_unprepared():
    q, x = dlfp4.quantize(values(24, 64), "nvfp4", scale_layout="128x4"), values(3, 64, seed=1)
    ours, theirs = (dlfp4.matmul(x, w.mT).to_numpy() for w in (q.prepare(), q))
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
def test_which_codes_kernels_read_as_they_are(fmt):
    """Of the weight's format, whole slices of K in aligned rows, and linear scales; by the kernel for few rows."""
    q, step = dlfp4.quantize(values(3, 1024), fmt), dlfp4.formats()[fmt].block[1]
    b, reads = dlfp4.quantize(values(8, 1024), fmt).mT, dlfp4._core._reads_codes

    def part(*columns):
        scales = q.scales[:, slice(*(column // step for column in columns))]
        return dlfp4.ScaledTensor.from_parts(q.data[:, slice(*columns)], scales, q.global_scale, format=fmt)

    assert reads(q, b, "stream")
    assert reads(part(256, 768), b, "stream")
    assert not reads(q, b, "32x64")
    assert not reads(part(0, 1024 - step), b, "stream")
    assert not reads(part(32, 544), b, "stream")
    for offset, pitch, scale_pitch, expected in ((0, 272, 64, 1), (8, 272, 64, 0), (0, 264, 64, 0), (0, 272, 33, 0)):
        codes, scales = np.zeros((3, pitch), np.uint8), np.zeros((3, scale_pitch), np.uint8)
        parts = codes[:, offset : offset + 256], scales[:, : 512 // step]
        assert reads(dlfp4.ScaledTensor.from_parts(*parts, format=fmt), b, "stream") == bool(expected), (offset, pitch)
    padded = dlfp4.ScaledTensor.from_parts(q.data[:, :256], q.scales[:, : 256 // step], format=fmt, shape=(3, 248))
    assert not reads(padded, b, "stream")
    assert not reads(q.with_scale_layout("128x4"), b, "stream")
    for other in {"nvfp4", "mxfp4", "nvfp4_16x16", "mxfp8_e4m3"} - {fmt}:
        assert not reads(dlfp4.quantize(values(16, 1024), other), b, "stream")
    eights = dlfp4.quantize(values(3, 1024), "mxfp8_e4m3")
    assert not reads(eights, eights, "stream")
    assert not reads(dlfp4.quantize(values(256, 256), fmt, axis=-2), b, "stream")


# ---- On a GPU: the same tensor


@gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_it_converts_back_exactly(fmt, shape):
    q = dlfp4.quantize(values(*shape), fmt).to_device(CUDA)
    prepared = q.prepare()
    assert prepared.scale_layout == "prepared"
    assert prepared.prepare() is prepared
    assert_same(prepared.with_scale_layout("linear"), q)
    assert_same(prepared.mT.mT.with_scale_layout("linear"), q)
    assert_same(q.mT.prepare().mT.with_scale_layout("linear"), q)
    assert_same(prepared.to_device("cpu"), q.to_device("cpu"))


@gpu
@pytest.mark.parametrize("fmt", FORMATS)
def test_it_serves_where_the_unprepared_one_does(fmt):
    q = dlfp4.quantize(values(48, 96), fmt).to_device(CUDA)
    prepared, x = q.prepare(), dlfp4.asarray(values(5, 96, seed=1)).to_device(CUDA)
    assert host_bytes(prepared.dequantize("bfloat16")) == host_bytes(q.dequantize("bfloat16"))
    assert host_bytes(prepared.mT.dequantize()) == host_bytes(q.mT.dequantize())
    assert host_bytes(dlfp4.vecdot(x[0], prepared)) == host_bytes(dlfp4.vecdot(x[0], q))
    assert host_bytes(dlfp4.matmul(x, prepared.mT, backend="torch")) == host_bytes(
        dlfp4.matmul(x, q.mT, backend="torch")
    )
    with pytest.raises(BufferError, match="to_device"):
        pickle.dumps(prepared)
    assert_same(pickle.loads(pickle.dumps(prepared.to_device("cpu"))), q.to_device("cpu"))
    for ours, theirs in zip(prepared.to_torch(), q.to_torch(), strict=True):
        assert (ours is None and theirs is None) or host_bytes(ours) == host_bytes(theirs)


@gpu
def test_files_and_descriptions_hold_the_tensor_that_it_is(tmp_path):
    q = dlfp4.quantize(values(128, 8192), "nvfp4").to_device(CUDA)  # as many blocks as rows
    prepared = q.prepare()
    checkpoints.save(tmp_path / "w.safetensors", {"w": prepared})
    assert_same(checkpoints.load(tmp_path / "w.safetensors")["w"], q.to_device("cpu"))
    assert dlfp4.TensorProto.of(prepared) == dlfp4.TensorProto.of(q)
    with pytest.raises(ValueError, match="prepare"):
        q.with_scale_layout("prepared")


@gpu
def test_a_pair_dialect_comes_back():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    codes = torch.randint(0, 256, (32, 32), device="cuda").to(torch.uint8).view(torch.float4_e2m1fn_x2)
    scales = torch.full((32, 2), 127, dtype=torch.uint8, device="cuda").view(torch.float8_e8m0fnu)
    q = dlfp4.ScaledTensor.from_parts(codes, scales, format="mxfp4")
    assert q.prepare().with_scale_layout("linear").data.to_torch().dtype == codes.dtype


@gpu
def test_work_stays_on_the_stream_that_is_asked_for():
    """Restored weights and copied rows are made and freed in the order of that stream: a graph replays them."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q = dlfp4.quantize(values(256, 512), "nvfp4").to_device(CUDA).prepare()
    x = torch.randn((4, 6, 512), device="cuda", dtype=torch.bfloat16).transpose(0, 1)[:, ::2]  # rows in no one run
    expected = dlfp4.matmul(x, q.mT, out_dtype="float32").to_torch().clone(), q.dequantize().to_torch().clone()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    product = torch.zeros((6, 2, 256), device="cuda")
    decoded = torch.zeros((256, 512), device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        dlfp4.matmul(x, q.mT, out=product, stream=stream)
        dlfp4.dequantize(q, out=decoded, stream=stream)
    for _ in range(3):
        product.fill_(float("nan"))
        decoded.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(product, expected[0])
        assert torch.equal(decoded, expected[1])


@gpu
def test_a_product_right_after_preparing_reads_what_was_prepared():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.randn((3, 4096), device="cuda", dtype=torch.bfloat16)
    for seed in range(5):
        q = dlfp4.quantize(torch.randn((4096, 4096), device="cuda") * (seed + 1), "nvfp4")
        ours = dlfp4.matmul(x, q.prepare().mT, out_dtype="float32", backend="cuda").to_torch()
        theirs = dlfp4.matmul(x, q.mT, out_dtype="float32", backend="torch").to_torch()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


@gpu
def test_borrowed_memory_that_moved_is_refused():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    w = dlfp4.quantize(values(32, 64), "nvfp4").to_device(CUDA).prepare().mT
    source = torch.zeros((2, 64), device="cuda", dtype=torch.bfloat16)
    x = dlfp4.from_dlpack(source)
    source.set_(torch.zeros((1, 64), device="cuda", dtype=torch.bfloat16))
    with pytest.raises(BufferError, match="import it again"):
        dlfp4.matmul(x, w, backend="cuda")


@gpu
@pytest.mark.parametrize("fmt", ["nvfp4", "fp8_e4m3"])
def test_preparing_frees_the_unprepared(fmt):
    """Whose scale of the tensor lies in the same memory as its codes. Other processes may take memory meanwhile."""
    torch = pytest.importorskip("torch")
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    dlfp4.quantize(x, fmt).prepare()  # what is allocated once

    def takes_its_own_memory_alone():
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        kept = [dlfp4.quantize(x, fmt).prepare() for _ in range(10)]
        torch.cuda.synchronize()
        return before - torch.cuda.mem_get_info()[0] < 1.5 * sum(w.nbytes for w in kept)

    assert any(takes_its_own_memory_alone() for _ in range(5))


@gpu
def test_layouts_and_other_formats():
    q = dlfp4.quantize(values(128, 128), "mxfp4").to_device(CUDA)
    swizzled = q.with_scale_layout("128x4")
    assert_same(swizzled.prepare().with_scale_layout("128x4"), swizzled)
    for fmt in set(dlfp4.formats()) - set(FORMATS):
        other = dlfp4.quantize(values(128, 128), fmt).to_device(CUDA)
        assert other.prepare().scale_layout == "linear"


# ---- On a GPU: every scale


@gpu
def test_every_scale_of_two_levels_and_every_code():
    """All finite scales, subnormal and zero, over all codes: kernels see exactly what dequantize sees."""
    scales = np.arange(127, dtype=np.uint8)[:, None]
    codes = np.tile(np.arange(16, dtype=np.uint8), (127, 1))
    q = weights(codes, scales, "nvfp4")
    prepared = q.prepare()
    assert prepared.scale_layout == "prepared"
    codes[0] &= 8  # all that a zero scale leaves of a code is its sign
    same = weights(codes, scales, "nvfp4")
    assert_same(prepared.with_scale_layout("linear"), same)
    assert host_bytes(same.dequantize()) == host_bytes(q.dequantize())
    expected = q.to_device("cpu").dequantize().to_numpy().astype(np.float64)
    for dtype in (ml_dtypes.bfloat16, np.float16):
        for result in product(np.eye(16).astype(dtype), prepared):
            assert np.array_equal(result, expected.T)


@gpu
@pytest.mark.parametrize("largest", [0, 1, 2, 60, 119, 127, 200, 249, 250])
@pytest.mark.parametrize("fmt", ["mxfp4", "mxfp8_e4m3"])
def test_powers_of_two_wherever_they_lie(fmt, largest):
    """Every scale that bfloat16 holds beside the largest, and zeros under scales far below."""
    scales = np.arange(max(0, largest - 120), largest + 1, dtype=np.uint8)[:, None]
    codes = np.tile(np.array([0, 8, 1, 9, 5, 7, 15, 2] * 4, np.uint8), (len(scales), 1))
    if fmt == "mxfp8_e4m3":
        codes = np.tile(np.array([0, 128, 1, 129, 0x38, 0x7E, 0xFE, 0x08] * 4, np.uint8), (len(scales), 1))
    zeros = np.zeros((3, 32), np.uint8)
    q = weights(np.vstack([codes, zeros]), np.vstack([scales, np.uint8([[0], [largest // 2], [largest]])]), fmt)
    prepared = q.prepare()
    assert prepared.scale_layout == "prepared"
    assert_same(prepared.with_scale_layout("linear"), q)
    element = dlfp4.formats()[fmt].element
    table = (np.arange(256 if fmt == "mxfp8_e4m3" else 16, dtype=np.uint8)).view(element).astype(np.float64)
    exact = table[np.vstack([codes, zeros])] * np.exp2(np.vstack([scales, [[0], [0], [0]]]).astype(np.float64) - 127)
    finite = np.abs(exact) < 3.4e38
    normal = (np.abs(exact) >= 2.0**-126) | (exact == 0)  # what float32 sums hold exactly
    for result in product(np.eye(32).astype(ml_dtypes.bfloat16), prepared):
        assert np.array_equal(result.T[finite & normal], exact[finite & normal])


@gpu
@pytest.mark.parametrize("fmt", ["mxfp4", "mxfp8_e4m3"])
def test_float16_is_offered_only_where_it_is_exact(fmt):
    codes = np.full((2, 32), 1, np.uint8)
    for span, exact in [(0, True), (22, True), (23, False), (120, False)]:
        q = weights(codes, np.uint8([[127 - span], [127]]), fmt).prepare()
        assert dlfp4._core._exact_in_half(q) is exact
        x = dlfp4.asarray(np.eye(32, dtype=np.float16)).to_device(CUDA)
        reason = dlfp4.backends(x, q.mT)["cuda"]
        assert (reason is None) == exact
        if exact:
            expected = q.to_device("cpu").dequantize().to_numpy()
            for result in product(np.eye(32, dtype=np.float16), q):
                assert np.array_equal(result.T, expected)


@gpu
@pytest.mark.parametrize(
    ("fmt", "codes", "scale"),
    [
        ("nvfp4", 1, 0x7F),  # NaN
        ("nvfp4", 1, 0x81),  # negative
        ("nvfp4", 0, 0x80),  # negative zero
        ("mxfp4", 1, 255),
        ("mxfp4", 1, 251),  # the largest that bfloat16 holds beside its codes
        ("mxfp4", 1, 6),  # too far below the other rows
        ("mxfp8_e4m3", 0x7F, 127),  # an element that is NaN
        ("mxfp8_e4m3", 0xFF, 127),
    ],
)
def test_what_the_order_cannot_hold_stays_as_it_is(fmt, codes, scale):
    block = 16 if fmt == "nvfp4" else 32
    all_codes, scales = np.full((40, block), 2, np.uint8), np.full((40, 1), 127 if fmt != "nvfp4" else 56, np.uint8)
    all_codes[20], scales[20] = codes, scale
    q = weights(all_codes, scales, fmt)
    prepared = q.prepare()
    assert prepared is q
    x = dlfp4.asarray(values(2, block).astype(ml_dtypes.bfloat16)).to_device(CUDA)
    ours = dlfp4.from_dlpack(dlfp4.matmul(x, prepared.mT, out_dtype="float32"), device="cpu").to_numpy()
    theirs = dlfp4.matmul(dlfp4.from_dlpack(x, device="cpu"), q.to_device("cpu").mT, out_dtype="float32").to_numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
