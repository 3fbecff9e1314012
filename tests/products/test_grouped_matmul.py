"""grouped_matmul on the host: the bytes of matmul by each expert, wherever rows go; what it refuses."""

import pickle

import ml_dtypes
import numpy as np
import pytest

import dlfp4

from ..support.block_reference import FORMATS
from ..support.capsules import Made, framework, run_python, together
from ..support.levels import LEVELS, run_at
from ..support.reference import codes_of, native_cast
from .test_matmul import poisoned, wide

FLOATS = ("float32", "bfloat16", "float16")


def values(shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def stack_of(name, experts, n, k, seed=1):
    return dlfp4.quantize(values((experts, n, k), seed), name, pad=True)


def route(tokens, experts, top, seed=0, skew=0.0):
    """Rows sorted by expert: their tokens, and where experts end. With skew, the first experts have the most."""
    rng = np.random.default_rng([seed, tokens, experts])
    scores = rng.normal(size=(tokens, experts)) - skew * np.arange(experts)
    chosen = np.argsort(-scores, axis=1)[:, :top].ravel()
    order = np.argsort(chosen, kind="stable")
    ends = np.cumsum(np.bincount(chosen, minlength=experts)).astype(np.int32)
    return (order // top).astype(np.int32), ends


def by_expert(x, w, ends, **options):
    """The bytes of rows, expert by expert, and zeros beyond the last one."""
    first, parts = 0, []
    rows = x.shape[0]
    for expert, end in enumerate(ends):
        part = x[first:end] if isinstance(x, np.ndarray) else take(x, first, end)
        parts.append(dlfp4.matmul(part, w[expert].mT, **options).to_numpy())
        first = int(end)
    parts.append(np.zeros((rows - first, w.shape[1]), parts[0].dtype))
    return np.concatenate(parts)


def take(x, first, last):
    """Rows of a ScaledTensor, also where they cut through no block's lines."""
    return dlfp4.ScaledTensor.from_parts(x.data[first:last], x.scales[first:last], x.global_scale, format=x.format,
                                         shape=(last - first, x.shape[1]))  # fmt: skip


def same(got, expected):
    assert got.shape == expected.shape
    assert codes_of(got).tobytes() == np.ascontiguousarray(expected).tobytes()


ENDS = {
    "even": [10, 20, 30, 40], "empty ones": [0, 17, 17, 40], "one has all": [0, 40, 40, 40], "one each": [1, 2, 3, 4],
    "the last one": [0, 0, 0, 40], "rows beyond": [3, 9, 9, 31], "none at all": [0, 0, 0, 0],
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name):
    """Forms of few rows and of panels, of each float type."""
    w = stack_of(name, 4, 128, 520)
    for dtype in FLOATS:
        x = native_cast(values((40, 520)), dtype)
        for ends in ENDS.values():
            same(dlfp4.grouped_matmul(x, w.mT, np.array(ends, np.int32)), by_expert(x, w, ends))


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3", "mxfp6_e2m3", "fp8_1x128", "fp8_row"])
def test_quantized_rows(name):
    w, x = stack_of(name, 4, 128, 512), dlfp4.quantize(values((40, 512)), name)
    for ends in ENDS.values():
        same(dlfp4.grouped_matmul(x, w.mT, np.array(ends, np.int32)), by_expert(x, w, ends))
    order = np.random.default_rng(5).permutation(40)
    gathered = dlfp4.grouped_matmul(x, w.mT, np.array([9, 9, 20, 40]), indices=order)
    rows = [take(x, int(i), int(i) + 1) for i in order]
    again = dlfp4.concatenate(rows) if x.global_scale is None else None
    if again is not None and name != "fp8_row":
        same(gathered, by_expert(again, w, [9, 9, 20, 40]))
    exact = np.stack([x.dequantize().to_numpy()[order[i]].astype("f8") @ wide(w[expert_of(i, [9, 9, 20, 40])]).T
                      for i in range(40)])  # fmt: skip
    assert np.abs(gathered.to_numpy() - exact).max() <= 1e-4


def expert_of(row, ends):
    return int(np.searchsorted(ends, row, side="right"))


ROUTINGS = [(16, 32, 4, 0), (300, 32, 4, 0), (64, 128, 4, 0), (96, 256, 8, 0), (300, 32, 4, 0.5), (40, 32, 1, 9),
            (2, 600, 8, 0)]  # fmt: skip


@pytest.mark.parametrize(("tokens", "experts", "top", "skew"), ROUTINGS)
def test_routings(tokens, experts, top, skew):
    w = stack_of("mxfp4", experts, 40, 64)
    x = native_cast(values((tokens, 64)), "bfloat16")
    indices, ends = route(tokens, experts, top, skew=skew)
    expected = by_expert(x[indices], w, ends)
    for kind in (np.int32, np.int64):
        out = poisoned(expected.shape, "bfloat16")
        dlfp4.grouped_matmul(x, w.mT, ends.astype(kind), indices=indices.astype(kind), out=out)
        same(out, expected)
    weights = np.random.default_rng(0).random(len(indices)).astype(np.float32)
    rows = by_expert(x[indices], w, ends, out_dtype="float32")
    sums = np.zeros((tokens, 40), np.float32)
    for row, token in enumerate(indices):
        sums[token] += weights[row] * rows[row]
    got = dlfp4.grouped_matmul(x, w.mT, ends, indices=indices, weights=weights, out_dtype="float32")
    same(got, sums)
    for dtype in FLOATS:
        out = poisoned((tokens, 40), dtype)
        dlfp4.grouped_matmul(x[indices], w.mT, ends, indices=indices, weights=weights, tokens=tokens, out=out)
        same(out, native_cast(sums, dtype))


def test_tokens_without_rows_are_zero():
    w, x = stack_of("nvfp4", 2, 33, 64), values((3, 64))
    options = {"indices": np.array([4, 0, 99]), "weights": np.array([2, 3, np.nan], np.float32), "tokens": 6}
    got = dlfp4.grouped_matmul(x, w.mT, np.array([1, 2]), **options).to_numpy()
    assert not got[[1, 2, 3, 5]].any()
    same(got[4], 2 * dlfp4.matmul(x[:1], w[0].mT).to_numpy()[0])
    same(got[0], 3 * dlfp4.matmul(x[1:2], w[1].mT).to_numpy()[0])


@pytest.mark.parametrize("k", [7168, 40000])
def test_more_rows_than_the_workspace_holds(k):
    w, x = stack_of("mxfp4", 3, 33, k), native_cast(values((1500, k)), "bfloat16")
    for ends in ([700, 701, 1490], [0, 1500, 1500]):
        same(dlfp4.grouped_matmul(x, w.mT, np.array(ends)), by_expert(x, w, ends))


def test_more_sums_than_the_workspace_holds():
    tokens = 70000
    w = stack_of("mxfp4", 2, 300, 32)
    x, rows = values((4, 32)), np.array([3, tokens - 1, 3, 8])
    weights = np.ones(4, np.float32)
    got = dlfp4.grouped_matmul(x, w.mT, np.array([2, 4]), indices=rows, weights=weights, tokens=tokens).to_numpy()
    each = by_expert(x, w, [2, 4])
    same(got[[3, 8, tokens - 1]], np.stack([each[0] + each[2], each[3], each[1]]))
    assert not np.delete(got, rows, 0).any()


def test_a_global_scale_an_expert():
    given = values((4, 48, 64)) * np.float32([1, 100, 1e-3, 7])[:, None, None]
    w = dlfp4.quantize(given, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="matrix"))
    assert w.global_scale.shape == (4,)
    x = values((40, 64))
    for ends in ENDS.values():
        same(dlfp4.grouped_matmul(x, w.mT, np.array(ends)), by_expert(x, w, ends))


@pytest.mark.parametrize("name", ["fp8_128x128", "nvfp4_16x16", "mxfp8_32x32"])
def test_squares_that_cross_from_one_expert_to_the_next(name):
    """Rows of all experts are one matrix to quantize, whatever their number."""
    w, x, ends = stack_of(name, 4, 40, 256), values((40, 256)), [9, 10, 31, 40]
    got = dlfp4.grouped_matmul(x, w.mT, np.array(ends)).to_numpy()
    dense = wide(w)
    for row in range(40):
        right = dense[expert_of(row, ends)].T
        bound = 256 * 2.0**-24 * (np.abs(x[row]) @ np.abs(right)) + 2.0**-24 * np.abs(got[row])
        assert (np.abs(got[row] - x[row].astype(np.float64) @ right) <= bound).all()


@pytest.mark.parametrize("layout", ["128x4", "8x4", "aiter"])
def test_scale_layouts(layout):
    w, x = stack_of("mxfp4", 4, 32, 256), values((40, 256))
    expected = dlfp4.grouped_matmul(x, w.mT, np.array([5, 9, 20, 40]))
    got = dlfp4.grouped_matmul(x, w.with_scale_layout(layout).mT, np.array([5, 9, 20, 40]))
    same(got, expected.to_numpy())


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float8_e4m3fn", "float4_e2m1fn"])
def test_plain_weights(name):
    """Of any strides: rows of K, and columns of K as PyTorch's grouped_mm has them."""
    w, x = values((4, 40, 64)), values((40, 64))
    rows = dlfp4.cast(w, name)
    ends = [3, 3, 30, 38]
    got = dlfp4.grouped_matmul(x, rows.mT, np.array(ends))
    same(got, by_expert(x, rows, ends))
    if name != "float4_e2m1fn":
        columns = np.ascontiguousarray(codes_of(rows).view(ml_dtypes.finfo(name).dtype).reshape(4, 40, 64).mT)
        same(dlfp4.grouped_matmul(x, columns, np.array(ends)), by_expert(x, columns.mT, ends))


def test_alpha_types_and_activations():
    w, x, ends = stack_of("nvfp4", 4, 48, 256), values((40, 256)), np.array([9, 10, 10, 39])
    for options in (
        {"alpha": -0.5},
        {"out_dtype": "bfloat16"},
        {"activation": "int8"},
        {"alpha": 3, "activation": "int8"},
    ):
        same(dlfp4.grouped_matmul(x, w.mT, ends, **options), by_expert(x, w, ends, **options))
    wide_out = poisoned((40, 96), "float16")
    dlfp4.grouped_matmul(x, w.mT, ends, out=wide_out[:, ::2])
    same(np.ascontiguousarray(wide_out[:, ::2]), by_expert(x, w, ends, out_dtype="float16"))
    assert np.isnan(wide_out[:, 1::2].astype("f4")).all()


def test_strided_and_borrowed_arguments():
    w, x = stack_of("mxfp8_e4m3", 3, 32, 64), values((80, 128))[::2, ::2]
    ends = np.array([5, 0, 6, 0, 40, 0], np.int64)[::2]
    expected = by_expert(np.ascontiguousarray(x), w, ends)
    same(dlfp4.grouped_matmul(x, w.mT, ends), expected)
    same(dlfp4.grouped_matmul(x[::-1], w.mT, ends, indices=np.arange(40)[::-1]), expected)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_frameworks(name):
    w, x, ends = stack_of("nvfp4", 3, 32, 64), values((40, 64)), np.array([5, 6, 40], np.int32)
    expected = by_expert(x, w, ends)
    library = framework(name)
    make = library.from_numpy if name == "torch" else library.numpy.asarray
    got = dlfp4.grouped_matmul(make(x), w.mT, make(ends), indices=make(np.arange(40, dtype=np.int32)))
    same(got, expected)


def test_hadamard():
    w = dlfp4.quantize(values((3, 32, 64)), "nvfp4", hadamard=1)
    x, ends = values((40, 64)), [5, 6, 40]
    same(dlfp4.grouped_matmul(x, w.mT, np.array(ends)), by_expert(x, w, ends))
    alike = dlfp4.quantize(x, "nvfp4", hadamard=1)
    got = dlfp4.grouped_matmul(alike, w.mT, np.array(ends)).to_numpy()
    plain = dlfp4.grouped_matmul(alike.dequantize(), w.mT, np.array(ends)).to_numpy()
    assert np.abs(got - plain).max() < 1e-4


def test_nothing():
    ends = np.zeros(3, np.int32)
    for rows, n, k in ((0, 32, 64), (5, 0, 64), (5, 32, 0)):
        w = dlfp4.cast(values((3, n, k)), "bfloat16")
        got = dlfp4.grouped_matmul(values((rows, k)), w.mT, ends + rows).to_numpy()
        assert got.shape == (rows, n)
        assert not got.any()
    none = dlfp4.cast(values((0, 32, 64)), "bfloat16")
    assert not dlfp4.grouped_matmul(values((5, 64)), none.mT, np.zeros(0, np.int32)).to_numpy().any()


def test_rows_without_columns_take_no_time():
    """However many: nothing walks over them."""
    rows = 2**50
    x = np.broadcast_to(np.zeros((1, 32), "float32"), (rows, 32))
    assert dlfp4.grouped_matmul(x, np.zeros((1, 32, 0), "float32"), np.array([rows])).shape == (rows, 0)


def test_threads_do_not_change_results():
    w, x = stack_of("mxfp4", 32, 200, 512), native_cast(values((300, 512)), "bfloat16")
    results = []
    for threads in (1, 2, 3, 0):
        dlfp4.set_num_threads(threads)
        found = []
        for skew in (0, 1):
            indices, ends = route(300, 32, 4, skew=skew)
            weights = np.random.default_rng(0).random(1200).astype(np.float32)
            found.append(codes_of(dlfp4.grouped_matmul(x, w.mT, ends, indices=indices)).tobytes())
            found.append(codes_of(dlfp4.grouped_matmul(x, w.mT, ends, indices=indices, weights=weights)).tobytes())
        results.append(found)
    assert all(result == results[0] for result in results)


def test_many_at_once():
    w, x = stack_of("mxfp4", 8, 64, 128), values((40, 128))
    indices, ends = route(40, 8, 2)
    weights = np.ones(80, np.float32)
    expected = codes_of(dlfp4.grouped_matmul(x, w.mT, ends, indices=indices, weights=weights)).tobytes()

    def work(number):
        found = [dlfp4.grouped_matmul(x, w.mT, ends, indices=indices, weights=weights) for _ in range(50)]
        return {codes_of(each).tobytes() for each in found}

    assert together(8, work) == [{expected}] * 8


LEVEL = """
import numpy as np, dlfp4
rng = np.random.default_rng(0)
ends, rows = np.array([1, 1, 9, 30]), np.arange(30)[::-1].copy()
for name in dlfp4.formats():
    w = dlfp4.quantize(rng.normal(size=(4, 128, 512)).astype("float32"), name)
    for dtype in ("float32", "bfloat16", "float16"):
        x = dlfp4.cast(rng.normal(size=(30, 512)).astype("float32"), dtype).to_numpy()
        first = 0
        got = dlfp4.grouped_matmul(x, w.mT, ends, indices=rows, out_dtype="float32").to_numpy()
        for expert, end in enumerate(ends):
            own = dlfp4.matmul(x[rows[first:end]], w[expert].mT, out_dtype="float32").to_numpy()
            assert got[first:end].tobytes() == own.tobytes(), (name, dtype, expert)
            first = end
print("fine")
"""


@pytest.mark.parametrize("level", LEVELS)
def test_levels(level):
    assert run_at(level, LEVEL) == "fine\n"


ONE_ELEMENT = """
import numpy as np, dlfp4
rng = np.random.default_rng(0)
for fx in ("int4_row", "uint4_row", "fp8_row", "mxfp4"):
    for fw in ("fp8_row", "fp8_1x128"):
        x = dlfp4.quantize(rng.normal(size=(4, 1)).astype("float32"), fx, pad=True)
        w = dlfp4.quantize(rng.normal(size=(4, 60, 1)).astype("float32"), fw, pad=True)
        got = dlfp4.grouped_matmul(x, w.mT, np.arange(1, 5)).to_numpy()
        for i in range(4):
            assert got[i : i + 1].tobytes() == dlfp4.matmul(x[i : i + 1], w[i].mT).to_numpy().tobytes(), (fx, fw, i)
print("fine")
"""


@pytest.mark.parametrize("level", LEVELS)
def test_lines_of_one_element(level):
    """Whose stride is any number, which chooses no other kernel."""
    assert run_at(level, ONE_ELEMENT) == "fine\n"


# ---- transposed stacks ---------------------------------------------------------------------------------------------


def test_a_transposed_stack():
    w = stack_of("nvfp4", 3, 48, 64)
    turned = w.mT
    assert (turned.shape, turned.axis, turned.ndim) == ((3, 64, 48), -2, 3)
    assert turned.mT.shape == w.shape
    assert (turned.dequantize().to_numpy() == w.dequantize().to_numpy().mT).all()
    out = poisoned((3, 64, 48), "float32")
    dlfp4.dequantize(turned, out=out)
    assert (out == w.dequantize().to_numpy().mT).all()
    assert (turned[1].dequantize().to_numpy() == w[1].mT.dequantize().to_numpy()).all()
    assert turned[1:].shape == (2, 64, 48)
    assert turned.prepare().shape == turned.to_device("cpu").shape == (3, 64, 48)
    assert "shape=(3, 64, 48)" in repr(turned)
    again = pickle.loads(pickle.dumps(turned))
    assert again.shape == (3, 64, 48)
    assert (again.dequantize().to_numpy() == turned.dequantize().to_numpy()).all()


REFUSES_TURNED = {
    "numpy": lambda q: q.to_numpy(),
    "layout": lambda q: q.with_scale_layout("128x4"),
    "to": lambda q: q.to("mxfp8_e4m3"),
    "part": lambda q: q[..., :16],
    "tuple": lambda q: q[0, :16],
    "proto": dlfp4.TensorProto.of,
    "join": lambda q: dlfp4.concatenate([q, q]),
    "torchao": lambda q: q.to_torchao(),
    "dot": lambda q: dlfp4.vecdot(q, q),
    "save": lambda q: dlfp4.checkpoints.save("never-written.safetensors", {"w": q}),
}


@pytest.mark.parametrize("name", REFUSES_TURNED)
def test_what_refuses_a_transposed_stack(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="stack"):
        REFUSES_TURNED[name](stack_of("mxfp4", 3, 64, 64).mT)


def test_stacks_that_are_not_transposed():
    with pytest.raises(ValueError, match="along its columns"):
        dlfp4.quantize(values((2, 32, 64)), "mxfp4", axis=-2).mT  # noqa: B018
    with pytest.raises(ValueError, match="two dimensions or more"):
        dlfp4.quantize(values((32,)), "mxfp4").mT  # noqa: B018


# ---- what is refused -----------------------------------------------------------------------------------------------

X, W = values((40, 64)), stack_of("mxfp4", 3, 32, 64)
ENDS_OF_3 = np.array([5, 6, 40], np.int32)
SUMS = {"indices": np.arange(40), "weights": np.ones(40, np.float32)}


REFUSED = {
    "a stack as it was quantized": ({"w": W}, ValueError, "pass w.mT"),
    "a matrix": ({"w": W[0].mT}, ValueError, r"expected \(experts, K, N\)"),
    "a vector": ({"x": X[0]}, ValueError, "reshape it"),
    "another K": ({"x": X[:, :32]}, ValueError, "K of w is 64"),
    "few offsets": ({"offsets": ENDS_OF_3[:2]}, ValueError, "each of the experts, 3 of them"),
    "a matrix of offsets": ({"offsets": ENDS_OF_3[None]}, ValueError, "each of the experts"),
    "offsets of floats": ({"offsets": ENDS_OF_3.astype("f4")}, TypeError, "int32 or int64"),
    "offsets that decrease": ({"offsets": np.array([5, 4, 40])}, ValueError, r"offsets\[1\] is 4, after 5"),
    "negative offsets": ({"offsets": np.array([-1, 4, 40])}, ValueError, r"offsets\[0\] is -1"),
    "offsets beyond": ({"offsets": np.array([5, 6, 41])}, ValueError, "there are 40 rows"),
    "offsets beyond no rows": ({"x": X[:0]}, ValueError, "there are 0 rows"),
    "offsets beyond, of no columns": ({"w": np.zeros((3, 64, 0), "f4"), "offsets": ENDS_OF_3 + 1}, ValueError,
                                      "there are 40 rows"),
    "offsets far beyond": ({"offsets": np.array([5, 6, 2**40])}, ValueError, "there are 40 rows"),
    "indices beyond": ({"indices": np.arange(1, 41)}, ValueError, r"indices\[39\] is 40"),
    "negative indices": ({"indices": np.arange(40) - 1}, ValueError, r"indices\[0\] is -1"),
    "indices of no tokens": ({"x": X[:0], "indices": np.arange(40)}, ValueError, "there are 0 tokens: expected"),
    "sums of no tokens": ({**SUMS, "tokens": 0}, ValueError, "there are 0 tokens"),
    "indices of floats": ({"indices": np.arange(40.0)}, TypeError, "int32 or int64"),
    "few indices": ({"indices": np.arange(39)}, ValueError, "there are 39 rows"),
    "weights alone": ({"weights": np.ones(40, "f4")}, ValueError, "pass indices"),
    "weights of float64": ({**SUMS, "weights": np.ones(40)}, TypeError, "float32"),
    "few weights": ({**SUMS, "weights": np.ones(39, "f4")}, ValueError, "each of the rows, 40 of them"),
    "tokens alone": ({"tokens": 3}, ValueError, "pass weights"),
    "few tokens": ({**SUMS, "tokens": 39}, ValueError, "there are 39 tokens"),
    "fewer than no tokens": ({**SUMS, "tokens": -1}, ValueError, "tokens=-1"),
    "tokens of a flag": ({**SUMS, "tokens": True}, TypeError, "expected an integer"),
    "rows of two numbers": ({"indices": np.arange(30), "weights": np.ones(30, "f4"), "tokens": 9}, ValueError,
                            "x has 40 rows, but indices has 30"),
    "results of integers": ({"out_dtype": "int8"}, TypeError, "expected one of"),
    "alpha of text": ({"alpha": "2"}, TypeError, "alpha"),
    "an unknown activation": ({"activation": "int4"}, ValueError, "activation='int4'"),
    "a stream": ({"stream": 1}, ValueError, "no streams"),
    "out of another shape": ({"out": np.empty((40, 31), "f4")}, ValueError, "out has shape"),
    "out that is x": ({"w": values((3, 64, 64)), "out": X}, ValueError, "overlaps"),
    "x of integers": ({"x": X.astype("i4")}, dlfp4.BackendError, "x has dtype int32"),
    "blocks along rows": ({"x": dlfp4.quantize(values((64, 64)), "mxfp4", axis=-2)}, dlfp4.BackendError,
                          "run across the sums"),
    "quantized twice": ({"x": dlfp4.quantize(X, "mxfp4"), "activation": "int8"}, dlfp4.BackendError,
                        "x is quantized already"),
    "integers by FP8": ({"w": stack_of("mxfp8_e4m3", 3, 32, 64).mT, "activation": "int8"}, dlfp4.BackendError,
                        "needs w to be"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    options, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        dlfp4.grouped_matmul(**{"x": X, "w": W.mT, "offsets": ENDS_OF_3, **options})


CUDA, OTHER, HOST = (2, 0), (2, 1), (1, 0)


@pytest.mark.parametrize(
    ("of_x", "of_offsets", "message"),
    [
        (OTHER, CUDA, r"x lies on cuda:1, w on cuda:0.*to_device\('cuda:1'\)"),
        (HOST, CUDA, r"x lies on cpu, w on cuda:0.*to_device\('cpu'\)"),
        (CUDA, HOST, r"offsets lie on cpu, the operands on cuda:0.*to_device\('cuda:0'\)"),
    ],
)
def test_what_lies_apart(of_x, of_offsets, message):
    """Host memory that claims to be a device's."""

    def on(device, array):
        return dlfp4.from_dlpack(Made(array, device=device).capsule)

    codes, scales = on(CUDA, np.zeros((2, 32, 64), np.uint8)), on(CUDA, np.zeros((2, 32, 1), np.float32))
    w = dlfp4.ScaledTensor.from_parts(codes, scales, format="fp8_row", shape=(2, 32, 64))
    x = on(of_x, np.zeros((4, 64), np.uint8)).view("float8_e4m3fn")
    with pytest.raises(dlfp4.BackendError, match=message):
        dlfp4.grouped_matmul(x, w.mT, on(of_offsets, np.array([1, 4], np.int32)))


@pytest.mark.parametrize("name", ["offsets", "indices", "weights"])
def test_out_shares_no_memory_with_what_says_where_rows_go(name):
    out = np.zeros((40, 32), np.float32)
    routing = {"offsets": ENDS_OF_3, **SUMS}
    given = routing[name]
    part = out.reshape(-1)[: given.size * given.itemsize // 4].view(given.dtype)
    part[:] = given
    with pytest.raises(ValueError, match="out overlaps an input"):
        dlfp4.grouped_matmul(X, W.mT, **{**routing, name: part}, out=out)
    assert part.tolist() == given.tolist()


def test_matmul_takes_no_stack():
    with pytest.raises(ValueError, match=r"expected \(..., M, K\) and \(K, N\)"):
        dlfp4.matmul(X, W.mT)


def test_indices_that_change_meanwhile_are_read_once():
    """A thread that writes to them makes errors or results of some of them, and no access beyond x."""
    code = """
import threading, numpy as np, dlfp4
w, x = dlfp4.quantize(np.ones((4, 32, 64), "f4"), "mxfp4"), np.ones((8, 64), "f4")
indices, ends, stop = np.zeros(4096, "i8"), np.full(4, 4096), threading.Event()
def change():
    while not stop.is_set():
        indices[:] = 2**40
        indices[:] = 0
thread = threading.Thread(target=change)
thread.start()
for _ in range(200):
    try:
        assert (dlfp4.grouped_matmul(x, w.mT, ends, indices=indices).to_numpy() == 64).all()
    except ValueError as error:
        assert "indices[" in str(error)
stop.set()
thread.join()
print("fine")
"""
    assert run_python(code) == "fine\n"
