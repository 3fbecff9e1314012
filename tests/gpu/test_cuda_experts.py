"""Products by experts on a GPU: the bytes of matmul expert by expert, wherever rows go; what no host looks at."""

import numpy as np
import pytest

import dlfp4
from dlfp4._core import _multiply_bytes_on_cuda, _multiply_on_cuda

from ..products.test_grouped_matmul import ENDS, route, stack_of, take, values
from .test_cuda_matmul import CUDA, PREPARABLE, on_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("torch")]
STREAMED, SAME = 5, "32x128"  # a mean of rows up to which weights are streamed; tactics that add along K in that order
DEEPEST = 8192  # K of streamed products


def prepared(name, experts, n, k, seed=1):
    stack = on_cuda(stack_of(name, experts, n, k, seed)).prepare()
    assert stack.scale_layout == "prepared"
    return stack


def rows_on_cuda(torch, shape, dtype="bfloat16", seed=0):
    return torch.from_numpy(values(shape, seed)).to(CUDA, getattr(torch, dtype))


def numbers(torch, array, dtype="int32"):
    return torch.as_tensor(np.asarray(array), device=CUDA).to(getattr(torch, dtype))


def poisoned(torch, shape, dtype):
    return torch.full(shape, float("nan"), device=CUDA, dtype=getattr(torch, dtype))


def by_expert(torch, x, stack, ends, dtype, alpha=1.0):
    """Rows in order, by matmul's kernel for each expert, and zeros beyond the last one."""
    out, first = torch.zeros(len(x), stack.shape[1], device=CUDA, dtype=getattr(torch, dtype)), 0
    plain = stack.with_scale_layout("linear")
    tactic = "stream" if len(x) <= STREAMED * stack.shape[0] and x.shape[1] <= DEEPEST else SAME
    for expert, end in enumerate(map(int, ends)):
        if end > first:
            w = plain[expert].prepare()
            part = torch.empty_like(out[first:end])
            _multiply_on_cuda(
                dlfp4.asarray(x[first:end].contiguous()), w.mT, dlfp4.asarray(part), alpha, None, tactic, None
            )
            out[first:end] = part
        first = max(first, end)
    return out


def run(torch, x, stack, ends, shape, dtype="bfloat16", **options):
    """Twice into memory full of NaN: the same bits."""
    outs = [poisoned(torch, shape, dtype) for _ in range(2)]
    for out in outs:
        dlfp4.grouped_matmul(x, stack.mT, ends, out=out, **options)
    assert torch.equal(*(out.view(torch.uint8) for out in outs)), "not the same bits twice"
    return outs[0]


def same(torch, got, expected):
    assert got.dtype == expected.dtype
    wrong = got.view(torch.uint8) != expected.view(torch.uint8)
    assert not wrong.any(), f"{int(wrong.sum())} bytes differ, first at {wrong.nonzero()[0]}"


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_128x128"])
def test_transposed_stacks(name):
    w = stack_of(name, 3, 128, 256)
    expected = w.dequantize().to_numpy()
    there = w.to_device(CUDA)
    for stack in (there, there.prepare()):
        turned = stack.mT
        assert (turned.shape, turned.scale_layout) == ((3, 256, 128), stack.scale_layout)
        assert (turned.dequantize().to_device("cpu").to_numpy() == expected.mT).all()
        assert (turned.mT.dequantize().to_device("cpu").to_numpy() == expected).all()
        assert (turned.to_device("cpu").dequantize().to_numpy() == expected.mT).all()
    assert there.mT.prepare().scale_layout == there.prepare().scale_layout
    assert (there.mT[1].dequantize().to_device("cpu").to_numpy() == expected[1].T).all()


# Whole blocks of 128 rows; blocks that two or three experts share; N that no eight divides; K with a tail.
SHAPES = [(4, 128, 256), (4, 192, 512), (4, 72, 320), (4, 40, 64), (4, 51, 96), (4, 700, 1088)]


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", PREPARABLE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_format(torch, name, shape):
    """By the kernels for few rows and for many: each type of x and of results."""
    _, n, k = shape
    stack = prepared(name, *shape)
    for times in (1, 9):
        for dtype, result in (("bfloat16", "bfloat16"), ("float16", "float16"), ("bfloat16", "float32")):
            x = rows_on_cuda(torch, (40 * times, k), dtype)
            for ends in ENDS.values():
                ends = np.array(ends) * times
                got = run(torch, x, stack, numbers(torch, ends), (len(x), n), result, alpha=0.75)
                same(torch, got, by_expert(torch, x, stack, ends, result, 0.75))


# As many of each of 16 experts as there are here; the last rows are nobody's.
FEW = (
    [1] * 16,
    [0, 1, 7, 8, 9, 15, 16, 17, 0, 0, 2, 0, 0, 0, 0, 1],
    [0, 0, 0, 46, *[0] * 11, 31],
    [77, *[0] * 15],
    [0] * 16,
)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", PREPARABLE)
@pytest.mark.parametrize(
    "shape", [*SHAPES, (4, 80, 2880), (4, 272, 7168), (4, 1000, 4096), (4, 24, 8192), (4, 24, 8448)], ids=str
)
def test_streamed(torch, name, shape):
    """So few rows that weights are streamed, eight at a time; K of one slice a warp, of more, and of too many."""
    _, n, k = shape
    stack = prepared(name, 16, n, k)
    for counts in FEW:
        ends = np.cumsum(counts)
        assert ends[-1] + 3 <= STREAMED * 16
        for dtype, result in (("bfloat16", "bfloat16"), ("float16", "float16"), ("bfloat16", "float32")):
            x = rows_on_cuda(torch, (ends[-1] + 3, k), dtype)
            got = run(torch, x, stack, numbers(torch, ends), (len(x), n), result, alpha=0.75)
            same(torch, got, by_expert(torch, x, stack, ends, result, 0.75))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("bits", ["int32", "int64"])
@pytest.mark.parametrize("k", [64, 2880, 8192])
def test_streamed_tokens(torch, bits, k):
    """Read where they lie, in memory that has more; others are NaN, and those that are not there count as zeros."""
    experts, tokens, n = 16, 300, 80
    stack = prepared("mxfp4", experts, n, k)
    for seed, counts in enumerate(FEW):
        ends = np.cumsum(counts)
        rows, rng = rows_on_cuda(torch, (ends[-1] + 3, k), seed=seed), np.random.default_rng(seed)
        places = rng.choice(tokens, len(rows), replace=False)
        memory = poisoned(torch, (tokens, k + 24), "bfloat16")
        x = memory[:, 8 : k + 8]
        x[torch.from_numpy(places).to(CUDA)] = rows
        wrong = rng.choice(len(rows), 3, replace=False)
        places[wrong] = [-1, tokens, 2**31 - 1]
        rows[torch.from_numpy(wrong).to(CUDA)] = 0
        expected = by_expert(torch, rows, stack, ends, "bfloat16")
        given = {"indices": numbers(torch, places, bits)}
        same(torch, run(torch, x, stack, numbers(torch, ends, bits), expected.shape, **given), expected)
        expected = by_expert(torch, rows, stack, ends, "float32")
        added = weighted(torch, expected, places.clip(0, tokens - 1), torch.ones(len(rows), device=CUDA), ends, tokens)
        got = run(torch, x, stack, numbers(torch, ends, bits), (tokens, n), "float32",
                  weights=torch.ones(len(rows), device=CUDA), **given)  # fmt: skip
        there = np.setdiff1d(np.arange(tokens), [0, tokens - 1])
        same(torch, got[there], added[there])


# Tiles have multiples of 8 rows, from 64 on of 16.
EVERY_SIZE = [1, *(rows + more for rows in [*range(8, 64, 8), *range(64, 257, 16)] for more in (0, 1)), 600]


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("rows", EVERY_SIZE)
def test_every_size_of_tile(torch, rows):
    stack = prepared("mxfp4", 3, 256, 192)
    for ends in ([rows, rows + 1, 2 * rows + 1], [rows, rows, rows]):
        for dtype in ("bfloat16", "float32"):
            x = rows_on_cuda(torch, (ends[-1] + 8, 192))
            got = run(torch, x, stack, numbers(torch, ends), (len(x), 256), dtype)
            same(torch, got, by_expert(torch, x, stack, ends, dtype))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    "case",
    [(32, 4, 50, 0), (128, 4, 200, 0), (256, 8, 300, 0), (512, 8, 700, 0), (32, 4, 500, 0.5), (32, 4, 3000, 0),
     (64, 8, 900, 2)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("bits", ["int32", "int64"])
def test_routed_tokens(torch, case, bits):
    """Gathered, weighted and added as routers do: experts, choices of a token, tokens, and how skewed."""
    experts, top, tokens, skew = case
    n, k = 136, 128
    indices, ends = route(tokens, experts, top, skew=skew)
    stack = prepared("nvfp4", experts, n, k)
    x = rows_on_cuda(torch, (tokens, k))
    places, there = numbers(torch, indices, bits), numbers(torch, ends, bits)
    rows = x[places.long()]
    expected = by_expert(torch, rows, stack, ends, "bfloat16")
    same(torch, run(torch, x, stack, there, expected.shape, indices=places), expected)
    same(torch, run(torch, rows, stack, there, expected.shape), expected)
    weights = torch.rand(len(indices), device=CUDA)
    wide = by_expert(torch, rows, stack, ends, "float32")
    for dtype in ("bfloat16", "float32"):
        sums = weighted(torch, wide, indices, weights, ends, tokens).to(getattr(torch, dtype))
        options = {"indices": places, "weights": weights}
        same(torch, run(torch, x, stack, there, (tokens, n), dtype, **options), sums)
        same(torch, run(torch, rows, stack, there, (tokens, n), dtype, tokens=tokens, **options), sums)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("tokens", [400, 2000])
def test_more_tiles_than_blocks_of_threads(torch, tokens):
    """Blocks take tiles in turn, or each the next that nobody has where a kernel comes before."""
    experts, n, k = 128, 700, 192
    indices, ends = route(tokens, experts, 4, skew=0.02)
    stack, x = prepared("mxfp4", experts, n, k), rows_on_cuda(torch, (tokens, k))
    places, there, weights = numbers(torch, indices), numbers(torch, ends), torch.rand(len(indices), device=CUDA)
    rows = x[places.long()]
    expected = by_expert(torch, rows, stack, ends, "bfloat16")
    same(torch, run(torch, rows, stack, there, expected.shape), expected)
    same(torch, run(torch, x, stack, there, expected.shape, indices=places), expected)
    sums = weighted(torch, by_expert(torch, rows, stack, ends, "float32"), indices, weights, ends, tokens)
    for each, options in ((x, {}), (rows, {"tokens": tokens})):
        got = run(torch, each, stack, there, (tokens, n), "float32", indices=places, weights=weights, **options)
        same(torch, got, sums)


def weighted(torch, rows, indices, weights, ends, tokens):
    """In order, in float32, products rounded before they are added."""
    products = (rows * weights[:, None]).cpu().numpy()
    sums = np.zeros((tokens, rows.shape[1]), np.float32)
    for row in range(int(ends[-1])):
        sums[indices[row]] += products[row]
    return torch.from_numpy(sums).to(CUDA)


@pytest.mark.usefixtures("hopper")
def test_a_token_with_many_rows(torch):
    """More than the kernel that adds keeps at a time, and rows of none."""
    experts, n, k, rows = 3, 264, 64, 500
    stack = prepared("mxfp4", experts, n, k)
    rng = np.random.default_rng(0)
    indices = rng.choice([0, 0, 0, 4, 5], rows)
    ends = np.array([100, 100, 450])
    x, weights = rows_on_cuda(torch, (rows, k)), torch.rand(rows, device=CUDA)
    expected = weighted(torch, by_expert(torch, x, stack, ends, "float32"), indices, weights, ends, 7)
    got = run(torch, x, stack, numbers(torch, ends), (7, n), "float32", indices=numbers(torch, indices),
              weights=weights, tokens=7)  # fmt: skip
    same(torch, got, expected)


@pytest.mark.usefixtures("hopper")
def test_scales_of_experts_and_quantized_rows(torch):
    rng = np.random.default_rng(2)
    plain = values((5, 136, 256)) * 2.0 ** rng.integers(-9, 9, (5, 1, 1)).astype(np.float32)
    scales = (np.abs(plain).max(axis=(1, 2)) / 2688).astype(np.float32)
    w = dlfp4.quantize(plain, "nvfp4", global_scale=scales)
    stack = on_cuda(w).prepare()
    assert stack.scale_layout == "prepared"
    assert (stack.dequantize().to_device("cpu").to_numpy() == w.dequantize().to_numpy()).all()
    ends = np.array([3, 3, 30, 31, 60])
    x = rows_on_cuda(torch, (60, 256))
    expected = by_expert(torch, x, stack, ends, "bfloat16")
    same(torch, run(torch, x, stack, numbers(torch, ends), (60, 136)), expected)
    for name in ("mxfp4", "fp8_e4m3"):
        q = on_cuda(dlfp4.quantize(values((60, 256)), name))
        got = run(torch, q, stack, numbers(torch, ends), (60, 136), "float32").double()
        left, first = q.dequantize().to_torch().double(), 0
        for expert, end in enumerate(ends):
            right = torch.from_numpy(w.dequantize().to_numpy()[expert].T).to(CUDA).double()
            exact, size = left[first:end] @ right, left[first:end].abs() @ right.abs()
            assert ((got[first:end] - exact).abs() <= 256 * 2.0**-24 * size + 2.0**-22 * exact.abs()).all()
            first = end


@pytest.mark.usefixtures("hopper")
def test_nothing_is_read_of_others(torch):
    """Rows of other experts, those beyond the last end, and tokens that no row names are NaN."""
    stack = prepared("mxfp8_e4m3", 4, 200, 160)
    x = rows_on_cuda(torch, (100, 160))
    ends = np.array([10, 40, 40, 77])
    clean = by_expert(torch, x, stack, ends, "bfloat16")
    for expert, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        bad = torch.full_like(x, float("nan"))
        bad[first:end] = x[first:end]
        got = run(torch, bad, stack, numbers(torch, ends), (100, 200))
        same(torch, got[first:end], clean[first:end])
        assert got[77:].eq(0).all(), expert
    tokens = torch.full((300, 160), float("nan"), device=CUDA, dtype=torch.bfloat16)
    tokens[::3] = x
    places = numbers(torch, np.arange(100) * 3)
    same(torch, run(torch, tokens, stack, numbers(torch, ends), (100, 200), indices=places), clean)


@pytest.mark.usefixtures("hopper")
def test_numbers_that_no_host_checks(torch):
    """Ends out of order or range count as the nearest that are not, tokens that are not there as zeros."""
    stack, x = prepared("mxfp4", 5, 128, 64), rows_on_cuda(torch, (50, 64))
    for given, meant in [([-7, 20, 10, 2**31 - 1, 3], [0, 20, 20, 50, 50]), ([60, 0, 0, 0, 0], [50] * 5),
                         ([-1, -2, -3, -4, -(2**31)], [0] * 5)]:  # fmt: skip
        got = run(torch, x, stack, numbers(torch, given, "int64"), (50, 128))
        same(torch, got, by_expert(torch, x, stack, meant, "bfloat16"))
    indices = np.arange(50)
    indices[[0, 7, 49]] = [-1, 50, 2**31 - 1]
    ends, rows = [10, 20, 30, 40, 50], x.clone()
    rows[[0, 7, 49]] = 0
    got = run(torch, x, stack, numbers(torch, ends), (50, 128), indices=numbers(torch, indices))
    same(torch, got, by_expert(torch, rows, stack, ends, "bfloat16"))
    got = run(torch, x, stack, numbers(torch, ends), (50, 128), "float32", indices=numbers(torch, indices, "int64"),
              weights=torch.ones(50, device=CUDA))  # fmt: skip
    expected = by_expert(torch, rows, stack, ends, "float32")
    expected[[0, 7, 49]] = 0
    same(torch, got, expected)


@pytest.mark.usefixtures("hopper")
def test_graphs_with_other_offsets(torch):
    stack, x = prepared("nvfp4", 8, 256, 128), rows_on_cuda(torch, (200, 128))
    indices, ends = numbers(torch, np.zeros(400)), numbers(torch, np.zeros(8))
    weights, out = torch.ones(400, device=CUDA), poisoned(torch, (200, 256), "bfloat16")
    plain = poisoned(torch, (400, 256), "bfloat16")

    def both():
        stream = torch.cuda.current_stream()
        dlfp4.grouped_matmul(x, stack.mT, ends, indices=indices, out=plain, stream=stream)
        dlfp4.grouped_matmul(x, stack.mT, ends, indices=indices, weights=weights, out=out, stream=stream)

    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both()
    for seed in range(3):
        given, last = route(200, 8, 2, seed)
        indices.copy_(numbers(torch, given))
        ends.copy_(numbers(torch, last))
        graph.replay()
        same(torch, plain, by_expert(torch, x[indices.long()], stack, last, "bfloat16"))
        wide = by_expert(torch, x[indices.long()], stack, last, "float32")
        same(torch, out, weighted(torch, wide, given, weights, last, 200).bfloat16())


@pytest.mark.usefixtures("hopper")
def test_routing_that_was_made_just_before(torch):
    """The kernel of products starts while rows are gathered, but not before there are offsets."""
    stack, x = prepared("nvfp4", 8, 256, 128), rows_on_cuda(torch, (200, 128))
    indices, ends = numbers(torch, np.zeros(400)), numbers(torch, np.zeros(8))
    for tokens in (3, 60, 200):
        for seed in range(3):
            given, last = route(tokens, 8, 2, seed)
            there, sooner = numbers(torch, given), numbers(torch, last)
            expected = by_expert(torch, x[there.long()], stack, last, "bfloat16")
            places, out = indices[: len(given)], poisoned(torch, expected.shape, "bfloat16")
            torch.cuda._sleep(10**6)
            places.copy_(there)
            ends.copy_(sooner)
            dlfp4.grouped_matmul(x, stack.mT, ends, indices=places, out=out)
            places.zero_()
            ends.zero_()
            same(torch, out, expected)


@pytest.mark.usefixtures("hopper")
def test_strides(torch):
    """Rows apart or misaligned, results apart, turned or misaligned, vectors with steps."""
    stack, ends = prepared("mxfp4", 4, 136, 96), np.array([5, 50, 50, 90])
    x = rows_on_cuda(torch, (90, 96))
    expected = by_expert(torch, x, stack, ends, "bfloat16")
    apart = rows_on_cuda(torch, (180, 200), seed=5)
    for each in (apart[::2, 8:104], apart[:90, 3:99], apart[:96, :90].T):
        each.copy_(x)
        same(torch, run(torch, each, stack, numbers(torch, ends), (90, 136)), expected)
    steps = numbers(torch, np.repeat(ends, 2))[::2]
    for out in (poisoned(torch, (90, 300), "bfloat16")[:, 8:144], poisoned(torch, (90, 300), "bfloat16")[:, 3:139],
                poisoned(torch, (136, 90), "bfloat16").T):  # fmt: skip
        dlfp4.grouped_matmul(x, stack.mT, steps, out=out)
        same(torch, out.contiguous(), expected)
    around = poisoned(torch, (92, 152), "bfloat16")
    dlfp4.grouped_matmul(x, stack.mT, steps, out=around[1:91, 8:144])
    around[1:91, 8:144] = 1
    assert int(around.isnan().sum()) == 92 * 152 - 90 * 136


@pytest.mark.usefixtures("hopper")
def test_no_rows(torch):
    stack = prepared("mxfp4", 4, 128, 64)
    none = numbers(torch, [0, 0, 0, 0])
    assert dlfp4.grouped_matmul(rows_on_cuda(torch, (0, 64)), stack.mT, none).shape == (0, 128)
    got = run(torch, rows_on_cuda(torch, (9, 64)), stack, none, (9, 128))
    assert got.eq(0).all()
    empty = numbers(torch, [])
    got = run(torch, rows_on_cuda(torch, (9, 64)), stack, none, (9, 128), indices=empty,
              weights=torch.zeros(0, device=CUDA))  # fmt: skip
    assert got.eq(0).all()


FP8 = [("fp8_e4m3", "fp8_e4m3"), ("fp8_row", "fp8_row"), ("fp8_1x128", "fp8_128x128"), ("fp8_1x128", "fp8_1x128"),
       ("fp8_e4m3", "fp8_128x128"), ("fp8_row", "fp8_1x128")]  # fmt: skip


def bytes_by_expert(torch, x, stack, ends, dtype, alpha=1.0):
    """As by_expert, of FP8 by FP8."""
    out, first = torch.zeros(x.shape[0], stack.shape[1], device=CUDA, dtype=getattr(torch, dtype)), 0
    for expert, end in enumerate(map(int, ends)):
        if end > first:
            part = torch.empty_like(out[first:end])
            rows = x if x.scales.ndim == 0 else take(x, first, end)
            if x.scales.ndim == 0:
                rows = dlfp4.ScaledTensor.from_parts(x.data[first:end], x.scales, format=x.format)
            _multiply_bytes_on_cuda(rows, stack[expert].mT, dlfp4.asarray(part), alpha, SAME, None)
            out[first:end] = part
        first = max(first, end)
    return out


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("pair", FP8, ids="-".join)
@pytest.mark.parametrize("case", [(4, 128, 256), (3, 256, 1040), (4, 72, 144), (4, 200, 640)], ids=str)
def test_fp8_by_fp8(torch, pair, case):
    """As both lie. Blocks of 128 rows of weights are whole."""
    experts, n, k = case
    if "128x128" in pair[1]:
        n = -(-n // 128) * 128
    stack = on_cuda(stack_of(pair[1], experts, n, k))
    for times in (1, 4, 17):
        x = on_cuda(dlfp4.quantize(values((40 * times, k), 3), pair[0], pad=True))
        for ends in ENDS.values():
            ends = (np.array(ends) * times)[:experts]
            for dtype in ("bfloat16", "float32"):
                got = run(torch, x, stack, numbers(torch, ends), (x.shape[0], n), dtype, alpha=0.75)
                same(torch, got, bytes_by_expert(torch, x, stack, ends, dtype, 0.75))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    "rows", [1, 15, 16, 17, 32, 33, 64, 65, 127, 128, 129, 160, 161, 192, 193, 256, 257, 300, 384, 400, 449, 513]
)
def test_every_size_of_tile_of_fp8(torch, rows):
    stack = on_cuda(stack_of("fp8_128x128", 3, 256, 384))
    ends = np.array([rows, rows + 1, 2 * rows + 1])
    x = on_cuda(dlfp4.quantize(values((ends[-1] + 8, 384), 3), "fp8_1x128"))
    for dtype in ("bfloat16", "float32"):
        got = run(torch, x, stack, numbers(torch, ends), (x.shape[0], 256), dtype)
        same(torch, got, bytes_by_expert(torch, x, stack, ends, dtype))


@pytest.mark.usefixtures("hopper")
def test_more_tiles_of_fp8_than_blocks_of_threads(torch):
    """In turn, or each the next that nobody has where rows are brought together before."""
    experts, tokens, n, k = 128, 400, 640, 256
    indices, ends = route(tokens, experts, 4, skew=0.02)
    stack = on_cuda(stack_of("fp8_128x128", experts, n, k))
    x, places = rows_on_cuda(torch, (tokens, k)), numbers(torch, indices)
    q, rows = dlfp4.quantize(x, "fp8_1x128"), dlfp4.quantize(x[places.long()], "fp8_1x128")
    expected = bytes_by_expert(torch, rows, stack, ends, "bfloat16")
    same(torch, run(torch, rows, stack, numbers(torch, ends), expected.shape), expected)
    same(torch, run(torch, q, stack, numbers(torch, ends), expected.shape, indices=places), expected)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("pair", FP8, ids="-".join)
def test_routed_tokens_of_fp8(torch, pair):
    """Codes and scales are gathered, from scales in each layout; rows of no token are zero."""
    experts, top, tokens, n, k = 32, 4, 150, 256, 384
    indices, ends = route(tokens, experts, top)
    stack = on_cuda(stack_of(pair[1], experts, n, k))
    x = on_cuda(dlfp4.quantize(values((tokens, k), 3), pair[0]))
    codes, scales = x.data.to_torch(), x.scales.to_torch()
    places = numbers(torch, indices)
    rows = dlfp4.ScaledTensor.from_parts(codes[places.long()], scales[places.long()] if scales.ndim else scales,
                                         format=x.format)  # fmt: skip
    expected = bytes_by_expert(torch, rows, stack, ends, "bfloat16")
    given = x.with_scale_layout("cublas_1x128") if "1x128" in pair[0] else x
    for each in (x, given):
        same(torch, run(torch, each, stack, numbers(torch, ends), expected.shape, indices=places), expected)
    weights = torch.rand(len(indices), device=CUDA)
    wide = bytes_by_expert(torch, rows, stack, ends, "float32")
    sums = weighted(torch, wide, indices, weights, ends, tokens)
    got = run(torch, given, stack, numbers(torch, ends), (tokens, n), "float32", indices=places, weights=weights)
    same(torch, got, sums)
    wrong = places.clone()
    wrong[3] = -1
    got = run(torch, given, stack, numbers(torch, ends), expected.shape, indices=wrong)
    expected[3] = 0
    same(torch, got, expected)


@pytest.mark.usefixtures("hopper")
def test_rows_quantized_on_the_way(torch):
    """activation= quantizes tokens, and takes the ways of quantized ones."""
    stack, ends = on_cuda(stack_of("fp8_128x128", 4, 256, 256)), numbers(torch, [5, 50, 50, 90])
    x = rows_on_cuda(torch, (90, 256))
    for name in ("fp8_1x128", "fp8_row"):
        q = dlfp4.quantize(x, name)
        expected = run(torch, q, stack, ends, (90, 256))
        same(torch, run(torch, x, stack, ends, (90, 256), activation=name), expected)
    with pytest.raises(dlfp4.BackendError, match="activation='fp8_1x128'"):
        dlfp4.grouped_matmul(x, stack.mT, ends)


def test_what_is_refused(torch):
    w, x, ends = stack_of("mxfp4", 3, 32, 64), values((40, 64)), np.array([5, 6, 40], np.int32)
    there = [dlfp4.asarray(each).to_device(CUDA) for each in (x, ends)]
    with pytest.raises(dlfp4.BackendError, match="prepared weights and FP8 by experts"):
        dlfp4.grouped_matmul(there[0], w.to_device(CUDA).mT, there[1])
    with pytest.raises(dlfp4.BackendError, match="offsets lie on cpu"):
        dlfp4.grouped_matmul(there[0], w.to_device(CUDA).mT, ends)
    with pytest.raises(dlfp4.BackendError, match="cast it to bfloat16 or float16"):
        dlfp4.grouped_matmul(there[0], w.to_device(CUDA).prepare().mT, there[1])
    half = dlfp4.asarray(rows_on_cuda(torch, (40, 64)))
    with pytest.raises(dlfp4.BackendError, match="round"):
        dlfp4.grouped_matmul(half, w.to_device(CUDA).prepare().mT, there[1], activation="int8")
    many = on_cuda(stack_of("mxfp4", 513, 16, 64)).prepare()
    with pytest.raises(dlfp4.BackendError, match="at most 512"):
        dlfp4.grouped_matmul(half, many.mT, dlfp4.asarray(np.zeros(513, np.int32)).to_device(CUDA))
