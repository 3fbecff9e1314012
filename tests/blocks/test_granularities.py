"""Scales of other types and other parts: float32 scales stored as bfloat16, float16 or e8m0; global scales of rows, and
of the matrices of a stack. A row or a matrix gives the bytes that it gives alone."""

import itertools
import pickle

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints

from ..products.test_matmul import wide
from ..support import block_reference as reference
from ..support import capsules
from ..support.block_reference import FORMATS, FP8, INPUTS, LINES, WHOLE, make, same
from ..support.reference import native_cast, parts_of, raw_bytes

F = np.float32
FLOATS = ["float32", "bfloat16", "float16"]
NARROW = ["bfloat16", "float16", "float8_e8m0fnu"]
ROWS, MATRICES = dlfp4.Recipe(global_scale_per="row"), dlfp4.Recipe(global_scale_per="matrix")


def parts(q):
    return [(part.shape, part.dtype.name, raw_bytes(part)) for part in parts_of(q)]


# ---- types of scales -----------------------------------------------------------------------------------------------


def narrow(name, scale_dtype):
    """A recipe, and what the reference takes for it."""
    pow2 = True if scale_dtype == "float8_e8m0fnu" else None
    return dlfp4.Recipe(scale_dtype=scale_dtype, pow2=pow2), {"scale_dtype": scale_dtype, "pow2": pow2}


@pytest.mark.parametrize("scale_dtype", NARROW)
@pytest.mark.parametrize("name", FP8)
def test_scales_of_other_types(name, scale_dtype):
    recipe, options = narrow(name, scale_dtype)
    for kind, axis in itertools.product(INPUTS, (-1, -2)):
        x = make(kind, (40, 300))
        q = dlfp4.quantize(x, name, recipe=recipe, axis=axis)
        expected = reference.quantize(x, name, axis, **options)
        stored = native_cast(expected.stored_scales(), scale_dtype)
        assert native_cast(stored, "float32").tobytes() == expected.stored_scales().tobytes()  # exact
        assert (q.scales.shape, q.scales.dtype.name, raw_bytes(q.scales)) == (
            stored.shape,
            scale_dtype,
            stored.tobytes(),
        )
        assert raw_bytes(q.data) == expected.data()[1], (kind, axis)
        for dtype in FLOATS:
            assert raw_bytes(q.dequantize(dtype)) == reference.values_of(expected, x.shape, dtype).tobytes()


@pytest.mark.parametrize("scale_dtype", NARROW)
@pytest.mark.parametrize("name", FP8)
def test_they_are_what_their_float32_ones_are(name, scale_dtype):
    """In products, files, protos and pickles, and where the result is given."""
    recipe, _ = narrow(name, scale_dtype)
    x = make("normal", (64, 256))
    q = dlfp4.quantize(x, name, recipe=recipe)
    wide = dlfp4.ScaledTensor.from_parts(q.data, dlfp4.cast(q.scales, "float32"), format=name)
    a = make("normal", (3, 256))
    assert dlfp4.matmul(a, q.mT).tolist() == dlfp4.matmul(a, wide.mT).tolist()
    assert dlfp4.vecdot(q, x).tolist() == dlfp4.vecdot(wide, x).tolist()
    proto = dlfp4.TensorProto.of(q)
    assert (proto.scale_dtype, eval(repr(proto), {"TensorProto": dlfp4.TensorProto})) == (scale_dtype, proto)
    assert proto.unflatten(proto.flatten(q)).scales.data_ptr == q.scales.data_ptr
    assert same(dlfp4.quantize(x, name, recipe=recipe, out=proto.allocate()), q)
    assert parts(pickle.loads(pickle.dumps(q))) == parts(q)
    if name not in WHOLE and FORMATS[name].block[0] == 1:
        assert raw_bytes(q[:1].scales) == raw_bytes(q.scales[:1])
    both = dlfp4.quantize(x, name, recipe=recipe, axis=(-1, -2))
    assert same(both[0], q)
    with pytest.raises(ValueError, match="out's scales have dtype float32"):
        dlfp4.quantize(x, name, recipe=recipe, out=wide)


@pytest.mark.parametrize(
    ("scale_dtype", "least"), [("float32", 2.0**-149), ("bfloat16", 2.0**-133), ("float16", 2.0**-24)]
)
@pytest.mark.parametrize("name", FP8)
def test_scales_of_what_is_tiny_are_never_zero(name, scale_dtype, least):
    """Zeros under a scale of zero would be NaN."""
    x = np.zeros((2, 128), F)
    x[:, 0] = 1e-44
    q = dlfp4.quantize(x, name, recipe=dlfp4.Recipe(divide=True, scale_dtype=scale_dtype))
    assert (native_cast(q.scales.to_numpy(), "float32") == F(least)).all()
    values = q.dequantize().to_numpy()
    assert not values[:, 1:].any()
    assert (np.abs(values[:, 0] - x[:, 0]) <= 448 * least).all()


@pytest.mark.parametrize("scale_dtype", NARROW)
def test_files_keep_the_type(scale_dtype, tmp_path):
    recipe, _ = narrow("fp8_128x128", scale_dtype)
    q = dlfp4.quantize(make("normal", (256, 300)), "fp8_128x128", recipe=recipe)
    checkpoints.save(tmp_path / "w.safetensors", {"w": q})
    assert parts(checkpoints.load(tmp_path / "w.safetensors")["w"]) == parts(q)


@pytest.mark.parametrize("name", ["fp8_1x128", "fp8_128x128"])
def test_e8m0_scales_are_exact_both_ways(name):
    """As DeepSeek-V3.1 stores them: as e8m0, as its bytes, or as float32 powers of two."""
    x = make("scaled blocks", (256, 384))
    q = dlfp4.quantize(x, name, recipe=dlfp4.Recipe(scale_dtype="float8_e8m0fnu", pow2=True))
    plain = dlfp4.quantize(x, name)
    assert raw_bytes(q.data) == raw_bytes(plain.data)
    assert dlfp4.cast(q.scales, "float32").tolist() == plain.scales.tolist()
    octets = dlfp4.ScaledTensor.from_parts(q.data, np.frombuffer(raw_bytes(q.scales), np.uint8).reshape(q.scales.shape),
                                           format=name)  # fmt: skip
    assert octets.scales.dtype.name == "float8_e8m0fnu"
    assert raw_bytes(octets.dequantize()) == raw_bytes(plain.dequantize())


# ---- global scales of rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", [*INPUTS, "one row huge"])
def test_each_row_as_if_alone(kind, dtype):
    x = make("normal" if kind == "one row huge" else kind, (7, 2080), dtype)
    if kind == "one row huge":
        x[3] = native_cast(x[3].astype(F) * F(1e30 if dtype != "float16" else 1e3), dtype)
    q = dlfp4.quantize(x, "nvfp4", recipe=ROWS)
    alone = [reference.quantize(x[i : i + 1], "nvfp4") for i in range(len(x))]
    assert (q.global_scale.shape, q.scales.shape) == ((7,), (7, 130))
    assert raw_bytes(q.global_scale) == b"".join(one.global_scale.tobytes() for one in alone)
    assert raw_bytes(q.scales) == b"".join(one.stored_scales().tobytes() for one in alone)
    assert raw_bytes(q.data) == b"".join(one.data()[1] for one in alone)
    for target in FLOATS:
        values = [reference.values_of(one, (1, 2080), target) for one in alone]
        assert raw_bytes(q.dequantize(target)) == b"".join(value.tobytes() for value in values)


@pytest.mark.parametrize("shape", [(5, 16), (1, 48), (33, 1, 2048), (2, 3, 4112), (300, 64)])
def test_rows_of_any_shape_and_stride(shape):
    x = make("lognormal", shape)
    flat = x.reshape(-1, shape[-1])
    expected = [dlfp4.quantize(row[None], "nvfp4") for row in flat]
    for given in (x, np.asfortranarray(x), np.repeat(x, 2, -1)[..., ::2]):
        q = dlfp4.quantize(given, "nvfp4", recipe=ROWS)
        assert (q.shape, q.global_scale.shape) == (shape, (len(flat),))
        for name in ("data", "scales", "global_scale"):
            assert raw_bytes(getattr(q, name)) == b"".join(raw_bytes(getattr(one, name)) for one in expected)
        assert same(dlfp4.quantize(given, "nvfp4", recipe=ROWS, out=q), q)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fp8_row", {}), ("int4_row", {}), ("nvfp4", {"recipe": ROWS}), ("nvfp4", {"hadamard": 3}),
        ("mxfp8_e4m3", {"hadamard": 3}), ("fp8_1x128", {"hadamard": 3}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(272, 4700), (144, 640)])
def test_wide_columns_are_the_rows_of_the_transpose(shape, name, options, dtype):
    """Wider than the tiles in which columns are read, whose last ones are narrower."""
    x = native_cast(np.random.default_rng(2).standard_normal(shape).astype(F) * 3, dtype)
    x[5, 700 % shape[1]] = np.inf
    columns = dlfp4.quantize(x, name, axis=-2, pad=True, **options)
    rows = dlfp4.quantize(np.ascontiguousarray(x.T), name, pad=True, **options)
    expected = rows.dequantize().to_numpy()
    assert np.ascontiguousarray(columns.dequantize().to_numpy().T).tobytes() == expected.tobytes()


def test_columns_are_the_rows_of_the_transpose():
    x = make("lognormal", (64, 40))
    q, turned = (dlfp4.quantize(t, "nvfp4", recipe=ROWS, axis=axis) for t, axis in ((x, -2), (x.T, -1)))
    assert same(q, turned)
    assert q.global_scale.shape == (40,)
    assert raw_bytes(q.dequantize()) == np.ascontiguousarray(turned.dequantize().to_numpy().T).tobytes()
    assert same(q, turned.mT)
    assert raw_bytes(turned.mT.dequantize()) == raw_bytes(q.dequantize())
    both = dlfp4.quantize(make("normal", (64, 48)), "nvfp4", recipe=ROWS, axis=(-1, -2))
    assert [each.global_scale.shape for each in both] == [(64,), (48,)]
    proto = dlfp4.TensorProto.of(both)
    assert [buffer.name for buffer in proto.buffers() if "global" in buffer.name] == [
        "global_scale", "columnwise_global_scale",
    ]  # fmt: skip
    for one, other in zip(proto.unflatten(proto.flatten(both)), both, strict=True):
        assert same(one, other)


@pytest.mark.parametrize("layout", ["128x4", "8x4"])
def test_rows_under_layouts(layout):
    x = make("lognormal", (130, 80))
    q = dlfp4.quantize(x, "nvfp4", recipe=ROWS, scale_layout=layout)
    plain = dlfp4.quantize(x, "nvfp4", recipe=ROWS)
    assert same(q, plain.with_scale_layout(layout))
    assert raw_bytes(q.dequantize()) == raw_bytes(plain.dequantize())


def test_given_scales_of_rows():
    x = make("normal", (6, 64))
    given = np.geomspace(1e-3, 1e3, 6).astype(F)
    for form in (given, given[:, None], dlfp4.asarray(given)):
        q = dlfp4.quantize(x, "nvfp4", global_scale=form)
        for i in range(6):
            one = dlfp4.quantize(x[i : i + 1], "nvfp4", global_scale=float(given[i]))
            assert raw_bytes(q.data[i : i + 1]) == raw_bytes(one.data)
            assert raw_bytes(q.scales[i : i + 1]) == raw_bytes(one.scales)
        assert q.global_scale.tolist() == given.tolist()
        again = dlfp4.ScaledTensor.from_parts(q.data, q.scales, form, format="nvfp4")
        assert raw_bytes(again.dequantize()) == raw_bytes(q.dequantize())


# ---- global scales of matrices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_16x16"])
def test_each_matrix_as_if_alone(name):
    x = make("normal", (5, 32, 96)) * np.geomspace(1e-6, 1e6, 5).astype(F)[:, None, None]
    for dtype in FLOATS:
        stack = native_cast(x, dtype)
        q = dlfp4.quantize(stack, name, recipe=MATRICES)
        assert q.global_scale.shape == (5,)
        values = q.dequantize().to_numpy()
        for e in range(5):
            one = dlfp4.quantize(stack[e], name)
            assert same(q[e], one)
            assert q[e].global_scale.shape == ()
            assert values[e].tobytes() == raw_bytes(one.dequantize())
        assert same(q[1:3], dlfp4.quantize(stack[1:3], name, recipe=MATRICES))
        for layout in ("128x4", "8x4"):
            tiled = dlfp4.quantize(stack, name, recipe=MATRICES, scale_layout=layout)
            assert same(tiled, q.with_scale_layout(layout))
            assert same(dlfp4.quantize(stack, name, recipe=MATRICES, scale_layout=layout, out=tiled), tiled)


def test_given_scales_of_matrices():
    x, given = make("normal", (2, 3, 16, 32)), np.geomspace(1e-2, 1e2, 6).astype(F)
    for form in (given, given.reshape(2, 3)):
        q = dlfp4.quantize(x, "nvfp4", global_scale=form)
        assert (q.global_scale.tolist(), q[1].global_scale.tolist()) == (given.tolist(), given[3:].tolist())
        one = dlfp4.quantize(x[1, 2], "nvfp4", global_scale=float(given[5]))
        assert same(q[1, 2], one)
        again = dlfp4.ScaledTensor.from_parts(q.data, q.scales, form, format="nvfp4", shape=q.shape)
        assert same(again, q)


@pytest.mark.parametrize("shape", [(3, 4, 0), (3, 0, 32), (0, 4, 32)])
@pytest.mark.parametrize("address", [None, 2**64 - 64])
def test_matrices_without_elements_may_lie_anywhere(shape, address):
    made = capsules.Made(np.zeros(1, F), data=address, shape=shape)
    q = dlfp4.quantize(made.capsule, "nvfp4", recipe=MATRICES)
    assert q.global_scale.tolist() == [dlfp4.quantize(np.zeros((4, 0), F), "nvfp4").global_scale.item()] * shape[0]
    assert q.data.size == q.scales.size == 0


def test_stochastic_draws_go_by_the_place_in_the_stack():
    x = np.full((3, 16, 64), 1.3, F)
    recipe = dlfp4.Recipe(rounding="stochastic", global_scale_per="matrix")
    q = dlfp4.quantize(x, "nvfp4", recipe=recipe, seed=5)
    assert raw_bytes(q.data) == raw_bytes(dlfp4.quantize(x, "nvfp4", rounding="stochastic", seed=5).data)


# ---- what both have in common --------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [ROWS, MATRICES], ids=["row", "matrix"])
def test_protos_pickles_files(recipe, tmp_path):
    for shape in ((3, 16, 64), (1, 1, 16)):  # of one row, and of one matrix, the global scale is (1,)
        x = make("lognormal", shape)
        q = dlfp4.quantize(x, "nvfp4", recipe=recipe)
        proto = dlfp4.TensorProto.of(q)
        assert proto == dlfp4.TensorProto.of(proto.allocate())
        assert proto.buffers()[2].shape == q.global_scale.shape
        assert same(dlfp4.quantize(x, "nvfp4", recipe=recipe, out=proto.allocate()), q)
        assert parts(proto.unflatten(proto.flatten(q))) == parts(q)
        assert parts(pickle.loads(pickle.dumps(q))) == parts(q)
        checkpoints.save(tmp_path / "w.safetensors", {"w": q})
        assert parts(checkpoints.load(tmp_path / "w.safetensors")["w"]) == parts(q)
    x = make("normal", (3, 16, 64))
    with pytest.raises(ValueError, match="global scale has shape"):
        dlfp4.quantize(x, "nvfp4", out=dlfp4.quantize(x, "nvfp4", recipe=recipe))


@pytest.mark.parametrize("m", [1, 3, 40])
def test_products_of_rows(m):
    """Each of a's rows and of w's has its own scale, at magnitudes far apart; by dots, by lines and by panels."""
    of_rows = np.geomspace(1e-3, 1e3, 40).astype(F)[:, None]
    w = dlfp4.quantize(make("normal", (40, 320)) * of_rows, "nvfp4", recipe=ROWS)
    a = dlfp4.quantize(make("normal", (m, 320), seed=1) * of_rows[:m], "nvfp4", recipe=ROWS)
    fp8 = dlfp4.quantize(make("normal", (m, 320), seed=2) * of_rows[:m], "fp8_row")
    x = make("normal", (m, 320), seed=3)
    for left in (a, fp8, x, native_cast(x, "bfloat16")):
        exact = wide(left) if isinstance(left, dlfp4.ScaledTensor) else left.astype(np.float64)
        got = dlfp4.matmul(left, w.mT, out_dtype="float32").to_numpy()
        bound = 321 * 2.0**-24 * (abs(exact) @ abs(wide(w)).T)
        assert (abs(got - exact @ wide(w).T) <= bound).all()
        got = dlfp4.vecdot(left, w[:m]).to_numpy()
        bound = 321 * 2.0**-24 * (abs(exact) * abs(wide(w)[:m])).sum(-1)
        assert (abs(got - (exact * wide(w)[:m]).sum(-1)) <= bound).all()


def test_products_with_stacks():
    x = make("normal", (3, 4, 64)) * np.geomspace(1e-3, 1e3, 3).astype(F)[:, None, None]
    a = dlfp4.quantize(x, "nvfp4", recipe=MATRICES)
    w = dlfp4.quantize(make("normal", (8, 64)), "nvfp4")
    got, exact = dlfp4.matmul(a, w.mT, out_dtype="float32").to_numpy(), wide(a) @ wide(w).T
    assert (abs(got - exact) <= 65 * 2.0**-24 * (abs(wide(a)) @ abs(wide(w)).T)).all()


MISTAKES = [
    ("nvfp4", {"scale_dtype": "bfloat16"}, {}, "nvfp4 has no use"),
    ("fp8_row", {"scale_dtype": "float8_e8m0fnu"}, {}, "pass pow2=True"),
    ("fp8_e4m3", {"scale_dtype": "float8_e8m0fnu"}, {}, "pass pow2=True"),
    ("fp8_e4m3", {"scale_dtype": "bfloat16"}, {"global_scale": 0.5}, "leave one of them out"),
    ("mxfp8_e4m3", {"global_scale_per": "row"}, {}, "mxfp8_e4m3 has no use"),
    ("nvfp4_16x16", {"global_scale_per": "row"}, {}, "spans 16 lines"),
    ("nvfp4", {"global_scale_per": "matrix"}, {}, "needs a stack"),
    ("nvfp4", {"global_scale_per": "row"}, {"global_scale": 0.5}, "is one number"),
    ("nvfp4", {"global_scale_per": "row"}, {"global_scale": np.ones(5, F)}, r"expected \(32,\)"),
    ("nvfp4", {}, {"global_scale": np.ones(5, F)}, r"expected one number, or \(32,\)"),
    ("nvfp4", {}, {"global_scale": np.ones(32, F), "axis": (-1, -2)}, "one axis at a time"),
    ("nvfp4", {}, {"global_scale": np.zeros(32, F)}, "positive, finite"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "recipe", "options", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(name, recipe, options, message):
    with pytest.raises(ValueError, match=message):
        dlfp4.quantize(np.ones((32, 64), F), name, recipe=dlfp4.Recipe(**recipe), **options)


def test_recipes_name_what_they_take():
    for wrong in ({"scale_dtype": "float8_e5m2"}, {"global_scale_per": "column"}):
        with pytest.raises(ValueError, match="expected"):
            dlfp4.Recipe(**wrong)
    assert [name for name in FORMATS if dlfp4.formats()[name].scales_lines] == LINES
