"""quantize gives the bytes of the plain-NumPy reference of block_reference.py: every format, recipe and scale rule,
every kind of input, shape and stride; refusals; where results lie, and that nothing else is written."""

import ml_dtypes
import numpy as np
import pytest

import dlfp4

from ..support import block_reference as reference
from ..support.block_reference import (
    BYTEWISE,
    FLOAT_SCALED,
    FORMATS,
    FP8,
    INPUTS,
    INTEGERS,
    MX,
    RECIPES,
    RULES,
    TWO_LEVEL,
    WHOLE,
    assert_equal,
    divides,
    make,
    same,
)
from ..support.reference import BITS, ROUNDINGS, codes_of, native_cast, raw_bytes, unpacked_codes

pytestmark = pytest.mark.arithmetic

FLOAT_ELEMENTS = [name for name in FORMATS if name not in INTEGERS]  # test_integers.py has the others
F = np.float32
FLOATS = ["float32", "bfloat16", "float16"]
SUBBYTE = [name for name in FORMATS if name not in BYTEWISE]
LAYOUTS = ["128x4", "8x4", "aiter"]


def recipe_of(rule=None, rounding="nearest_even", **options):
    return dlfp4.Recipe(scale_rule=rule, rounding=rounding, **options)


# ---- the reference itself ------------------------------------------------------------------------------------------


def test_the_reference_by_hand():
    """NVFP4: A = 12, so G = 224 and scales are in units of 12 / 2688; MX: exponents as on paper."""
    x = np.zeros((1, 32), F)
    x[0, :4], x[0, 16:18] = [12, -6, 3, 0.5], [2, -1]
    q = reference.quantize(x, "nvfp4")
    assert (float(q.global_scale), q.scales.tolist()) == (float(F(12) / F(2688)), [[0x7E, 0x69]])  # 448, 72 of 74.67
    assert (q.codes[0, :4].tolist(), q.codes[0, 16:18].tolist()) == ([7, 13, 3, 0], [7, 13])
    for name, scale, codes in (
        ("mxfp4", 128, [7, 0xD, 3, 0]),  # 12 = 1.5 * 2**3, less 2: in units of 2 it is 6, -3, 1.5, 0.25
        ("mxfp6_e2m3", 128, [28, 32 | 20, 12, 2]),
        ("mxfp6_e3m2", 126, [30, 32 | 26, 22, 12]),
        ("mxfp8_e4m3", 122, [0x7C, 0xF4, 0x6C, 0x58]),
    ):
        q = reference.quantize(x, name)
        assert (name, q.scales.tolist(), q.codes[0, :4].tolist()) == (name, [[scale]], codes)


@pytest.mark.parametrize("name", FORMATS)
def test_the_reference_decodes_to_what_was_encoded(name):
    """Within half a step of the element type at the block's largest magnitude."""
    x = make("normal", (32, 256))
    back = reference.values_of(reference.quantize(x, name, **({"rule": "rceil"} if name in MX else {})), x.shape)
    largest = np.abs(reference.tiles_of(x, FORMATS[name].block)).max((1, 3))
    if FORMATS[name].repeats:
        largest = np.repeat(largest, FORMATS[name].block[0], 0)
    largest = reference.spread(largest, x.shape, name)
    if name in INTEGERS:
        step = (1 + 2.0**-18) / 7.5
    else:
        step = 2.0 ** -reference.MANTISSA[FORMATS[name].element] * (1.14 if name in TWO_LEVEL else 1)
    assert (np.abs(back - x) <= largest * step / 2).all()


def test_the_order_of_nvfp4s_operations_shows():
    """bfloat16 meets ties of the scales often enough to tell the rule's order from the one that divides first, so that
    equal bytes mean the same order."""
    differ = []
    for seed in range(60):
        x = make("normal", (16, 512), "bfloat16", seed)
        expected = reference.quantize(x, "nvfp4")
        largest = np.abs(native_cast(x, "float32")).reshape(16, 32, 16).max(-1)
        other = np.minimum(largest / F(6) / (largest.max() / F(2688)), F(448)).astype(ml_dtypes.float8_e4m3fn)
        differ.append((codes_of(other) != expected.scales).mean())
        assert_equal(dlfp4.quantize(x, "nvfp4"), expected)
    assert 0.0005 < np.mean(differ) < 0.005


# ---- equal to it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", FORMATS)
def test_inputs(name, kind):
    for dtype in FLOATS:
        x = make(kind, (48, 160) if FORMATS[name].kind != "largest" else (200, 300), dtype)
        for axis in (-1, -2):
            pad = not divides(x.shape, name, axis)
            assert_equal(dlfp4.quantize(x, name, axis=axis, pad=pad), reference.quantize(x, name, axis))


def borderline(name):
    """Blocks whose largest magnitudes are where scale rules and roundings turn, and their neighbours."""
    rng = np.random.default_rng(7)
    turns = np.array([1, 1.0625, 1.125, 1.25, 1.5, 1.75, 1.875, 1.9375, 1.96875], F)
    turns = np.concatenate([turns, np.nextafter(turns, F(0)), np.nextafter(turns, F(4))])
    with np.errstate(over="ignore", under="ignore"):
        largest = np.ldexp(turns[:, None], np.arange(-150, 128)[None]).ravel()
    largest = np.unique(largest[np.isfinite(largest)])
    largest = np.resize(largest, -(-len(largest) // 128) * 128)  # whole squares of any format
    with np.errstate(under="ignore"):
        x = largest[:, None] * (rng.integers(-64, 65, (len(largest), 32)) / 64).astype(F)
    x[np.arange(len(x)), rng.integers(0, 32, len(x))] = largest * rng.choice([F(-1), F(1)], len(x))
    return x


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MX)
def test_scale_rules_and_roundings(name, rule, rounding):
    x = borderline(name)
    expected = reference.quantize(x, name, rule=rule, rounding=rounding)
    assert_equal(dlfp4.quantize(x, name, recipe=recipe_of(rule, rounding)), expected)
    assert_equal(dlfp4.quantize(x, name, recipe=recipe_of(rule), rounding=rounding), expected)
    expected = reference.quantize(x.T, name, -2, rule=rule, rounding=rounding)
    assert_equal(dlfp4.quantize(x.T, name, axis=-2, recipe=recipe_of(rule, rounding)), expected)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MX)
def test_named_recipes(name, recipe, kind):
    for dtype in FLOATS:
        x = make(kind, (64, 96), dtype)
        for axis in (-1, -2):
            expected = reference.quantize(x, name, axis, **RECIPES[recipe])
            assert_equal(dlfp4.quantize(x, name, recipe=recipe, axis=axis), expected)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", TWO_LEVEL + FP8)
def test_roundings_of_other_formats(name, rounding):
    for kind in ("few mantissas", "normal", "zeros"):
        x = make(kind, (48, 256))
        for keeps in (True, False):
            expected = reference.quantize(x, name, rounding=rounding, keeps_negative_zero=keeps)
            recipe = recipe_of(rounding=rounding, keeps_negative_zero=keeps)
            assert_equal(dlfp4.quantize(x, name, recipe=recipe), expected)


@pytest.mark.parametrize("eps", [0.0, 3.0, 1e30])
@pytest.mark.parametrize("pow2", [False, True, None])
@pytest.mark.parametrize("name", FP8)
def test_float32_scales(name, pow2, eps):
    for kind in ("normal", "scaled blocks", "zeros", "largest", "subnormal", "NaN", "infinite"):
        x = make(kind, (130, 300))
        for axis in (-1, -2):
            expected = reference.quantize(x, name, axis, pow2=pow2, eps=eps)
            assert_equal(dlfp4.quantize(x, name, axis=axis, recipe=recipe_of(pow2=pow2, eps=eps)), expected)


def test_zeros_are_as_each_recipe_has_them():
    x = np.array([[0.0, -0.0] * 16, [-1e-3, -0.0] + [4.0] * 30], F)
    ocp = dlfp4.quantize(x, "mxfp4")
    early = dlfp4.quantize(x, "mxfp4", recipe="transformer-engine-rocm")
    assert raw_bytes(ocp.scales) == bytes([0, 127])
    assert raw_bytes(early.scales) == bytes([127, 127])
    assert raw_bytes(ocp.data)[:17] == b"\x80" * 16 + b"\x88"
    assert raw_bytes(early.data)[:17] == b"\x00" * 16 + b"\x08"  # what rounds to zero has a sign, what is zero has none
    nvfp4 = dlfp4.quantize(x[:, :16], "nvfp4")
    assert (raw_bytes(nvfp4.scales)[0], raw_bytes(nvfp4.data)[:8]) == (0, b"\x80" * 8)


@pytest.mark.parametrize("magnitude", [7e-36, 1e-37, 1e-41, 2.0**-149])
@pytest.mark.parametrize("name", TWO_LEVEL)
def test_tiny_tensors_decode_to_what_they_were(name, magnitude):
    """Where the encode scale is clamped, the stored decode scale undoes it all the same; so does a given one."""
    x = np.full((16, 32), magnitude, F)
    for given in (None, 2.0**-149):
        q = dlfp4.quantize(x, name, global_scale=given)
        assert float(q.global_scale.to_numpy()) >= 2.0**-128
        assert_equal(q, reference.quantize(x, name, global_scale=given))
        assert abs(q.dequantize().to_numpy() - x).max() <= max(x[0, 0] / 8, 6 * 2.0**-138)  # or its scale rounds to 0


def test_blocks_that_are_not_finite_leave_others_alone():
    x = make("normal", (16, 128))
    broken = x.copy()
    broken[3, 37], broken[9, 1], broken[9, 100] = np.nan, -np.inf, np.inf
    for name in ("nvfp4", *[name for name in MX if FORMATS[name].block[0] == 1]):
        length = FORMATS[name].block[1]
        clean, q = dlfp4.quantize(x, name, global_scale=None if name in MX else 0.5), None
        q = dlfp4.quantize(broken, name, global_scale=None if name in MX else 0.5)
        back, before = q.dequantize().to_numpy(), clean.dequantize().to_numpy()
        nan = np.zeros(x.shape, bool)
        for i, j in ((3, 37), (9, 1), (9, 100)):
            nan[i, j // length * length : (j // length + 1) * length] = True
        assert np.isnan(back).tolist() == nan.tolist()
        assert back[~nan].tobytes() == before[~nan].tobytes()
        codes = unpacked_codes(raw_bytes(q.data), BITS[FORMATS[name].element], x.size).reshape(x.shape)
        assert not codes[nan].any()
        assert set(codes_of(q.scales)[nan[:, ::length]].tolist()) == {0xFF if name in MX else 0x7F}


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_global_scale_is_of_the_finite_elements(axis, dtype, bad):
    """Also of the largest one, which lies in the block of one that is not finite."""
    x = make("normal", (48, 4096)).astype(dtype)
    x[17, 1000] = x[31, 72] = 0
    x[17, 1001] = 50
    expected = dlfp4.quantize(x, "nvfp4", axis=axis).global_scale
    x[17, 1000] = x[31, 72] = bad
    assert float(dlfp4.quantize(x, "nvfp4", axis=axis).global_scale) == float(expected) > 49 / 2688


# ---- shapes --------------------------------------------------------------------------------------------------------

SHAPES = [
    (1, 16), (16,), (1, 32), (96,), (1, 1), (3, 5), (1, 128), (16, 48), (17, 33), (32, 32), (31, 64), (7, 3, 65),
    (64, 31), (130, 257), (2, 3, 4, 5, 6), (32, 3221), (1481, 677), (2333, 32), (8, 32, 1024), (16, 8, 4, 512),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape):
    x = make("normal", shape)
    for name in FORMATS:
        for axis in (-1, -2) if len(shape) > 1 else (-1,):
            fits = divides(shape, name, axis)
            q = dlfp4.quantize(x, name, axis=axis, pad=not fits)
            assert q.shape == shape
            assert_equal(q, reference.quantize(x, name, axis))
            if fits:
                assert same(dlfp4.quantize(x, name, axis=axis, pad=True), q)


@pytest.mark.parametrize("name", FORMATS)
def test_a_large_matrix(name):
    x = make("cauchy", (1024, 2048), "bfloat16")
    both = dlfp4.quantize(x, name, axis=(-1, -2))
    for q, axis in zip(both, (-1, -2), strict=True):
        assert_equal(q, reference.quantize(x, name, axis))


@pytest.mark.parametrize("name", FORMATS)
def test_every_width(name):
    """Rows that end anywhere within a vector, and columns that begin anywhere."""
    for k in range(1, 140):
        x = make("normal", (3, k))
        assert_equal(dlfp4.quantize(x, name, pad=True), reference.quantize(x, name))
        x = make("normal", (k, 3))
        assert_equal(dlfp4.quantize(x, name, axis=-2, pad=True), reference.quantize(x, name, -2))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(0,), (0, 32), (16, 0), (0, 0), (2, 0, 128), (128, 3, 0)], ids=str)
def test_empty_tensors(shape, name):
    for dtype in FLOATS:
        x = np.empty(shape, dtype=native_cast(np.zeros(1), dtype).dtype)
        for axis in (-1, -2) if len(shape) > 1 else (-1,):
            q = dlfp4.quantize(x, name, axis=axis, pad=not divides(shape, name, axis))
            assert q.shape == shape
            assert_equal(q, reference.quantize(x, name, axis))
            assert q.dequantize().shape == shape


@pytest.mark.parametrize("name", [*TWO_LEVEL, *MX])
@pytest.mark.parametrize(
    ("shape", "axis"), [((32, 3221), -1), ((1481, 677), -1), ((64, 31), -1), ((2333, 32), -2), ((31, 64), -2)], ids=str
)
def test_what_does_not_divide_is_refused(shape, axis, name):
    x = np.zeros(shape, F)
    block = FORMATS[name].block[1]
    with pytest.raises(ValueError, match=r"pad=True") as error:
        dlfp4.quantize(x, name, axis=axis)
    for part in (str(shape), str(block), name):
        assert part in str(error.value)
    with pytest.raises(ValueError, match=r"pad=True"):
        dlfp4.quantize(x, name, axis=(-1, -2))
    assert dlfp4.quantize(x, name, axis=axis, pad=True).shape == shape


@pytest.mark.parametrize("name", FP8)
def test_blocks_with_float32_scales_may_be_short(name):
    for shape in ((32, 3221), (1481, 677)):
        x = make("normal", shape)
        for axis in (-1, -2):
            assert_equal(dlfp4.quantize(x, name, axis=axis), reference.quantize(x, name, axis))


# ---- both directions, strides, layouts -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FORMATS)
def test_both_axes_at_once(name, dtype):
    for shape in ((128, 256), (33, 70), (5, 32, 64)):
        x = make("normal", shape, dtype)
        options = {"pad": True, "scale_layout": "linear" if name in FLOAT_SCALED else "128x4"}
        rows, columns = (dlfp4.quantize(x, name, axis=axis, **options) for axis in (-1, -2))
        for axis in ((-1, -2), (-2, -1)):
            both = dlfp4.quantize(x, name, axis=axis, **options)
            assert type(both) is tuple
            assert [q.axis for q in both] == list(axis)
            assert same(both[axis.index(-1)], rows)
            assert same(both[axis.index(-2)], columns)
        (alone,) = dlfp4.quantize(x, name, axis=(-2,), **options)
        assert same(alone, columns)


@pytest.mark.parametrize("name", FORMATS)
def test_columns_are_the_rows_of_the_transpose(name):
    x = make("normal", (128, 384))
    columns, rows = dlfp4.quantize(x, name, axis=-2), dlfp4.quantize(x.T, name)
    assert codes_of(columns.dequantize().to_numpy().T).tolist() == codes_of(rows.dequantize()).tolist()
    if name in SUBBYTE:
        assert same(columns, rows)
    else:
        assert codes_of(columns.data).T.tolist() == codes_of(rows.data).tolist()
        assert codes_of(columns.scales).T.tolist() == codes_of(rows.scales).tolist()


VIEWS = {
    "transposed": lambda a: a.swapaxes(1, 2),
    "reversed": lambda a: a[::-1, :, ::-1],
    "every second": lambda a: a[:, ::2, ::2],
    "rows apart": lambda a: a[:, :, 3:163],
    "offset": lambda a: a.reshape(-1)[7 : 7 + 64 * 160].reshape(64, 160),
    "leading transposed": lambda a: a.swapaxes(0, 1),
    "all transposed": lambda a: a.T,
    "broadcast rows": lambda a: np.broadcast_to(a[0, 0], (32, a.shape[2])),
    "broadcast columns": lambda a: np.broadcast_to(a[:, :, :1], (*a.shape[:2], 64)),
    "one column": lambda a: a[:, :, 5:6],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", FORMATS)
def test_strided_inputs(name, view):
    for dtype in FLOATS:
        x = VIEWS[view](make("normal", (4, 32, 320), dtype))
        for axis in (-1, -2):
            assert_equal(dlfp4.quantize(x, name, axis=axis, pad=True), reference.quantize(x, name, axis))
        both = dlfp4.quantize(x, name, axis=(-1, -2), pad=True)
        assert_equal(both[1], reference.quantize(x, name, -2))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*TWO_LEVEL, *MX])
def test_scale_layouts(name, layout):
    for shape in ((16, 32), (160, 352), (272, 64), (3, 7, 100)):
        x = make("normal", shape)
        for axis in (-1, -2):
            q = dlfp4.quantize(x, name, axis=axis, scale_layout=layout, pad=True)
            assert_equal(q, reference.quantize(x, name, axis), layout)


def test_padding_of_the_aiter_layout_is_the_recipes_zero_scale():
    x = make("normal", (40, 96))
    for recipe, fill in (("ocp", 0), ("nvidia", 0), ("transformer-engine-rocm", 127)):
        for layout in LAYOUTS:
            expected = reference.quantize(x, "mxfp4", **RECIPES[recipe])
            q = dlfp4.quantize(x, "mxfp4", recipe=recipe, scale_layout=layout)
            assert_equal(q, expected, layout, fill if layout == "aiter" else 0)


# ---- a given global scale ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 0.0123, 3e-7, 7.5e5, 2.0**-140, 3e38])
@pytest.mark.parametrize("name", [*TWO_LEVEL, *WHOLE])
def test_given_global_scales(name, scale):
    for kind in ("normal", "scaled blocks", "zeros", "NaN"):
        x = make(kind, (32, 128))
        for axis in (-1, -2):
            expected = reference.quantize(x, name, axis, global_scale=scale)
            for given in (scale, F(scale), np.array(scale, F), dlfp4.asarray(np.array(scale, F))):
                q = dlfp4.quantize(x, name, axis=axis, global_scale=given)
                assert_equal(q, expected)


def test_the_found_global_scale_can_be_given_again():
    """Where the reciprocal of g is G: not so for all of them, as both are rounded."""
    x = make("normal", (64, 256))
    x[0, 0] = 8 * 2688 / 2688
    q = dlfp4.quantize(x, "nvfp4")
    assert q.global_scale.item() == F(8) / F(2688)
    again = dlfp4.quantize(x, "nvfp4", global_scale=q.global_scale)
    assert_equal(again, reference.quantize(x, "nvfp4", global_scale=F(8) / F(2688)))


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, 1e-50, 1e300])
def test_global_scales_that_are_none(scale):
    with pytest.raises(ValueError, match="global_scale"):
        dlfp4.quantize(np.ones((1, 16), F), "nvfp4", global_scale=scale)


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in (*TWO_LEVEL, *WHOLE)])
def test_formats_without_a_global_scale_take_none(name):
    with pytest.raises(ValueError, match=f"{name}.*global_scale"):
        dlfp4.quantize(np.ones((128, 128), F), name, global_scale=1.0)


# ---- stochastic rounding -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOAT_ELEMENTS)
def test_stochastic_rounding_draws_by_seed_and_place(name):
    """The same as casting what was scaled, line by line as it is stored; so it lies between its neighbours too."""
    for axis in (-1, -2):
        for shape in ((64, 128), (33, 70)):
            x = make("normal", shape)
            expected = reference.quantize(x, name, axis)
            scaled = np.ascontiguousarray(expected.scaled)
            cast = dlfp4.cast(scaled, FORMATS[name].element, rounding="stochastic", seed=99, packed=False)
            q = dlfp4.quantize(x, name, axis=axis, rounding="stochastic", seed=99, pad=True)
            assert_equal(q, expected._replace(codes=codes_of(cast)))


@pytest.mark.parametrize("name", FLOAT_ELEMENTS)
def test_stochastic_rounding_is_right_on_average(name):
    values = np.random.default_rng(3).uniform(-1, 1, 128).astype(F)
    values[[0, 16, 32, 48, 64, 80, 96, 112]] = 1
    x = np.broadcast_to(values, (4096, 128))
    back = dlfp4.quantize(x, name, rounding="stochastic", seed=1).dequantize().to_numpy().astype(np.float64)
    step = np.ptp(back, 0)
    assert (step[values != 1] > 0).mean() > 0.9
    tolerance = 5 * step / 2 / np.sqrt(len(x)) + 1e-7
    mean = back.mean(0)
    clamped = np.abs(values) > np.abs(back).max()  # beyond what the element type holds in its scale's units
    assert (np.abs(mean - values) <= tolerance)[~clamped].all()
    assert clamped.mean() < 0.2


def test_stochastic_rounding_needs_a_seed():
    x = np.ones((1, 32), F)
    recipe = dlfp4.Recipe(rounding="stochastic")
    for options in ({"rounding": "stochastic"}, {"recipe": recipe}):
        with pytest.raises(ValueError, match="seed"):
            dlfp4.quantize(x, "mxfp4", **options)
    assert same(
        dlfp4.quantize(x, "mxfp4", recipe=recipe, seed=3), dlfp4.quantize(x, "mxfp4", rounding="stochastic", seed=3)
    )
    for seed in (-1, 2**64):
        with pytest.raises((ValueError, OverflowError)):
            dlfp4.quantize(x, "mxfp4", rounding="stochastic", seed=seed)


def test_seeds_differ():
    x = make("normal", (64, 64))
    results = {raw_bytes(dlfp4.quantize(x, "nvfp4", rounding="stochastic", seed=s).data) for s in (0, 1, 2**32, 2**63)}
    assert len(results) == 4


# ---- threads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_threads_change_nothing(name, threads):
    options = {"pad": True, "scale_layout": "linear" if name in FLOAT_SCALED else "aiter"}
    for shape in ((500, 700), (3, 100_001), (100_001, 3)):
        x = make("cauchy", shape)
        results, back = [], []
        for count in (1, 2, 3):
            threads(count)
            results.append(
                [
                    *dlfp4.quantize(x, name, axis=(-1, -2), **options),
                    dlfp4.quantize(x, name, axis=-2, rounding="stochastic", seed=5, **options),
                    dlfp4.quantize(x, name, rounding="stochastic", seed=5, **options),
                ]
            )
            back.append([raw_bytes(q.dequantize()) for q in results[-1]])
        assert back[0] == back[1] == back[2]
        for other in results[1:]:
            assert all(same(a, b) for a, b in zip(results[0], other, strict=True))
