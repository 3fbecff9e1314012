"""with_scale_layout and shuffle_weight put every byte where the libraries that define a layout put it, by reshapes and
transposes as those libraries have them; padding is written; every way back gives the same bytes."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import dlfp4

from ..support import block_reference as reference
from ..support.block_reference import BYTEWISE, FORMATS, FP8, MX, RECIPES, TWO_LEVEL, make, same
from ..support.capsules import framework
from ..support.reference import BITS, codes_of, raw_bytes

F = np.float32
LAYOUTS = ["128x4", "8x4", "aiter"]
ONE_BYTE_SCALES = [*TWO_LEVEL, *MX]
MATRICES = [(1, 1), (128, 4), (129, 5), (127, 3), (8, 4), (9, 17), (256, 8), (300, 9), (32, 33), (5, 400), (1000, 2)]


def padded(matrix, rows, columns, fill):
    """Completed to multiples of `rows` and `columns`."""
    extents = [-(-extent // step) * step for extent, step in zip(matrix.shape, (rows, columns), strict=True)]
    result = np.full(extents, fill, np.uint8)
    result[: matrix.shape[0], : matrix.shape[1]] = matrix
    return result


def tiled(matrix, layout, fill=0):
    """A matrix of scales, a row a line, in a layout."""
    if layout == "linear":
        return matrix.copy()
    rows, columns = {"128x4": (128, 4), "8x4": (8, 4), "aiter": (256, 8)}[layout]
    whole = padded(matrix, rows, columns, fill)
    r, c = whole.shape
    if layout == "128x4":  # as torchao's to_blocked: in a tile, four rows that are 32 apart share 16 bytes
        order = whole.reshape(r // 128, 4, 32, c // 4, 4).transpose(0, 3, 2, 1, 4)
    elif layout == "8x4":  # tile after tile
        order = whole.reshape(r // 8, 8, c // 4, 4).transpose(0, 2, 1, 3)
    else:  # as AITER's e8m0_shuffle
        order = whole.reshape(r // 32, 2, 16, c // 8, 2, 4).transpose(0, 3, 5, 2, 4, 1)
    return np.ascontiguousarray(order).reshape(r, c)


def scaled(name, matrix, axis=-1, layout="linear", fill=0):
    """A ScaledTensor with these scales, of which a row is a line's or that of lines that share it, in a layout."""
    group, block = FORMATS[name].block
    lines, length = matrix.shape[0] * (1 if FORMATS[name].repeats else group), matrix.shape[1] * block
    codes = np.resize(np.arange(251, dtype=np.uint8), (lines, length * BITS[FORMATS[name].element] // 8))
    bytewise_columns = name in BYTEWISE and axis == -2
    data = np.ascontiguousarray(codes.T) if bytewise_columns else codes
    scales = np.ascontiguousarray(matrix.T) if bytewise_columns and layout == "linear" else tiled(matrix, layout, fill)
    shape = (lines, length) if axis == -1 else (length, lines)
    return dlfp4.ScaledTensor.from_parts(
        data, scales, 0.5 if name in TWO_LEVEL else None, format=name, axis=axis, scale_layout=layout, shape=shape
    )


def random_scales(name, shape, seed=0):
    rows = -(-shape[0] // 16) * 16 if FORMATS[name].repeats else shape[0]
    return np.random.default_rng([seed, *shape]).integers(0, 256, (rows, shape[1]), dtype=np.uint8)


def assert_scales(q, name, matrix, axis, layout, fill=0):
    """Type, shape and bytes, those of the padding too."""
    expected = tiled(matrix, layout, fill)
    if layout == "linear" and axis == -2 and name in BYTEWISE:
        expected = np.ascontiguousarray(matrix.T)
    assert (q.scale_layout, q.scales.shape, q.scales.dtype.name) == (layout, expected.shape, FORMATS[name].scale)
    got = np.frombuffer(raw_bytes(q.scales), np.uint8).reshape(expected.shape)
    wrong = np.argwhere(got != expected)
    assert not len(wrong), f"{name} {axis} {layout}: {len(wrong)} of {got.size} differ, first at {wrong[0]}"


def assert_rest_is_shared(q, source):
    kind = (source.format, source.axis, source.shape, source.data.data_ptr)
    assert (q.format, q.axis, q.shape, q.data.data_ptr) == kind
    assert (q.global_scale is None) == (source.global_scale is None)
    if source.global_scale is not None:
        assert q.global_scale.data_ptr == source.global_scale.data_ptr


# ---- where scales lie ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ways_to_say_where_a_scale_lies(layout):
    """Offsets as formulas, which the other tests use, and these transposes."""
    for shape in MATRICES:
        matrix = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
        for fill in (0, 127):
            assert reference.arrange(matrix, layout, fill).tolist() == tiled(matrix, layout, fill).tolist()


def test_offsets_written_out():
    """Scale (i, j) of a matrix of two tiles each way."""
    offsets = {
        "128x4": {(1, 0): 16, (32, 0): 4, (0, 3): 3, (0, 4): 512, (128, 0): 1024, (255, 7): 2047},
        "8x4": {(1, 0): 4, (7, 3): 31, (0, 4): 32, (8, 0): 64, (255, 7): 2047},
        "aiter": {(1, 0): 4, (16, 0): 1, (0, 1): 64, (0, 4): 2, (32, 0): 256, (255, 7): 2047},
    }
    for layout, places in offsets.items():
        for place, offset in places.items():
            matrix = np.zeros((256, 8), np.uint8)
            matrix[place] = 1
            q = scaled("mxfp4", matrix).with_scale_layout(layout)
            assert (layout, place, raw_bytes(q.scales).index(1)) == (layout, place, offset)


@pytest.mark.parametrize("name", ONE_BYTE_SCALES)
@pytest.mark.parametrize("axis", [-1, -2])
def test_from_each_layout_to_each(name, axis):
    for number, shape in enumerate(MATRICES):
        matrix = random_scales(name, shape, number)
        for source, target in itertools.product(["linear", *LAYOUTS], repeat=2):
            before = scaled(name, matrix, axis, source, fill=0xA5)  # padding that must not travel
            q = before.with_scale_layout(target)
            if source == target:
                assert q is before
                continue
            assert_scales(q, name, matrix, axis, target)
            assert_rest_is_shared(q, before)
            assert_scales(q.with_scale_layout("linear"), name, matrix, axis, "linear")


def test_a_large_matrix():
    matrix = random_scales("mxfp8_e4m3", (5000, 333))
    for axis, layout in itertools.product((-1, -2), LAYOUTS):
        q = scaled("mxfp8_e4m3", matrix, axis).with_scale_layout(layout)
        assert_scales(q, "mxfp8_e4m3", matrix, axis, layout)
        assert_scales(q.with_scale_layout("linear"), "mxfp8_e4m3", matrix, axis, "linear")


@pytest.mark.parametrize("name", ["nvfp4", "mxfp6_e2m3", "mxfp8_e5m2"])
def test_scales_of_any_strides(name):
    """As a file or a slice may hold them; the source stays as it is."""
    wide = random_scales(name, (140, 33))
    wide.flags.writeable = False
    before = wide.copy()
    data = np.zeros((70, 11 * FORMATS[name].block[1] * BITS[FORMATS[name].element] // 8), np.uint8)
    for scales in (wide[::2, 1:23:2], wide[::-2, 21:0:-2], wide[:70, 3:14], wide.T[:11, 70:].T):
        q = dlfp4.ScaledTensor.from_parts(data, scales, format=name)
        for layout in LAYOUTS:
            assert_scales(q.with_scale_layout(layout), name, np.ascontiguousarray(scales), -1, layout)
    assert (wide == before).all()


@pytest.mark.parametrize("layout", ["128x4", "8x4", "aiter"])
def test_tiles_have_no_gaps(layout):
    q = dlfp4.quantize(make("normal", (256, 256)), "mxfp4", scale_layout=layout)
    raw = q.scales.view("uint8").to_numpy()
    for name, scales in (
        ("in a wider buffer", np.concatenate([raw, raw], axis=1)[:, : raw.shape[1]]),
        ("by columns", np.asfortranarray(raw)),
        ("backwards", raw[::-1].copy()[::-1]),
        ("flat, with gaps", np.repeat(raw.ravel(), 2)[::2]),
    ):
        with pytest.raises(BufferError, match=rf"tiles of '{layout}' follow one another without gaps; call .copy()"):
            dlfp4.ScaledTensor.from_parts(q.data, scales, format="mxfp4", scale_layout=layout)
        held = dlfp4.ScaledTensor.from_parts(q.data, scales.copy("C"), format="mxfp4", scale_layout=layout)
        assert raw_bytes(held.dequantize()) == raw_bytes(q.dequantize()), name


def test_leading_dimensions_count_as_lines():
    x = make("normal", (3, 5, 7, 96))
    for name, layout in itertools.product(["nvfp4", "mxfp4", "mxfp8_e4m3"], LAYOUTS):
        for axis in (-1, -2):
            q = dlfp4.quantize(x, name, axis=axis, pad=True)
            matrix = reference.quantize(x, name, axis).scales
            result = q.with_scale_layout(layout)
            assert_scales(result, name, matrix, axis, layout)
            assert result.shape == x.shape
            assert same(result.with_scale_layout("linear"), q)


@pytest.mark.parametrize("name", ONE_BYTE_SCALES)
def test_empty_tensors(name):
    for shape, axis, layout in itertools.product([(0, 64), (32, 0), (0, 0)], (-1, -2), LAYOUTS):
        x = np.empty(shape, F)
        linear, direct = (dlfp4.quantize(x, name, axis=axis, scale_layout=other) for other in ("linear", layout))
        q = linear.with_scale_layout(layout)
        assert (q.scales.shape, q.scales.size) == (direct.scales.shape, 0)
        assert q.with_scale_layout("linear").scales.shape == linear.scales.shape


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantize_gives_what_a_conversion_gives(layout, recipe):
    """But for the padding of AITER's layout, which is the recipe's byte."""
    fill = 127 if (layout, recipe) == ("aiter", "transformer-engine-rocm") else None
    for shape, axis in itertools.product([(40, 96), (300, 160)], (-1, -2)):
        x = make("one-hot", shape)
        for name in MX:
            options = {"recipe": recipe, "axis": axis, "pad": True}
            q = dlfp4.quantize(x, name, **options)
            assert same(dlfp4.quantize(x, name, scale_layout=layout, **options), q.with_scale_layout(layout, fill=fill))


@pytest.mark.parametrize("name", ONE_BYTE_SCALES)
def test_values_stay(name):
    x = make("normal", (48, 128))
    for axis in (-1, -2):
        q = dlfp4.quantize(x, name, axis=axis, pad=True)
        for layout in LAYOUTS:
            assert raw_bytes(q.with_scale_layout(layout, fill=255).dequantize()) == raw_bytes(q.dequantize())


def test_of_a_transpose():
    for name in ONE_BYTE_SCALES:
        q = dlfp4.quantize(make("normal", (64, 96)), name, axis=-2)
        for layout in LAYOUTS:
            result = q.mT.with_scale_layout(layout)
            assert (result.axis, result.shape) == (-1, (96, 64))
            assert raw_bytes(result.scales) == raw_bytes(q.with_scale_layout(layout).scales)
            back = q.with_scale_layout(layout).mT.with_scale_layout("linear")
            assert codes_of(back.scales).tolist() == codes_of(q.mT.scales).tolist()
            assert codes_of(back.data).tolist() == codes_of(q.mT.data).tolist()


# ---- padding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", [0, 1, 127, 255, np.uint8(127), True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_fill_is_written(layout, fill):
    for name, axis in itertools.product(["nvfp4", "mxfp4", "mxfp8_e4m3"], (-1, -2)):
        matrix = random_scales(name, (33, 5))
        q = scaled(name, matrix, axis).with_scale_layout(layout, fill=fill)
        assert_scales(q, name, matrix, axis, layout, int(fill))
        assert same(q.with_scale_layout("linear", fill=fill), scaled(name, matrix, axis))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_fill_it_is_zero(layout):
    """Whatever the recipe was: the tensor does not know it. Fresh memory is not zero for long."""
    q = dlfp4.quantize(make("normal", (5, 64)), "mxfp4", recipe="transformer-engine-rocm")
    matrix = np.frombuffer(raw_bytes(q.scales), np.uint8).reshape(5, 2)
    for _ in range(20):
        assert_scales(q.with_scale_layout(layout, fill=255), "mxfp4", matrix, -1, layout, 255)
        assert_scales(q.with_scale_layout(layout), "mxfp4", matrix, -1, layout)


def test_nothing_is_padded_where_it_fits():
    matrix = random_scales("mxfp4", (256, 8))
    for layout in LAYOUTS:
        q = scaled("mxfp4", matrix).with_scale_layout(layout, fill=0xA5)
        assert sorted(raw_bytes(q.scales)) == sorted(matrix.tobytes())


@pytest.mark.parametrize("fill", [-1, 256, 1000])
def test_fills_that_are_no_byte(fill):
    with pytest.raises(ValueError, match=f"fill={fill}"):
        dlfp4.quantize(np.ones((1, 32), F), "mxfp4").with_scale_layout("aiter", fill=fill)


@pytest.mark.parametrize("fill", [1.0, "0", [0]])
def test_fills_that_are_no_number(fill):
    with pytest.raises(TypeError):
        dlfp4.quantize(np.ones((1, 32), F), "mxfp4").with_scale_layout("aiter", fill=fill)


# ---- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["", "4x128", "128X4", "blocked", "linear ", None, 3])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_e4m3", "fp8_1x128"])
def test_unknown_layouts(name, layout):
    q = dlfp4.quantize(np.ones((16, 128), F), name)
    with pytest.raises(ValueError, match="128x4"):
        q.with_scale_layout(layout)


@pytest.mark.parametrize("name", FP8)
def test_float32_scales_have_one_layout(name):
    q = dlfp4.quantize(make("normal", (130, 300)), name)
    assert q.with_scale_layout("linear") is q
    for layout in LAYOUTS:
        with pytest.raises(ValueError, match="linear"):
            q.with_scale_layout(layout)


# ---- weights -------------------------------------------------------------------------------------------------------


def shuffled(octets):
    """As AITER's shuffle_weight with layout (16, 16): 16 rows of 16 bytes after another."""
    n, k = octets.shape
    return np.ascontiguousarray(octets.reshape(n // 16, 16, k // 32, 2, 16).transpose(0, 2, 3, 1, 4)).reshape(n, k)


WEIGHTS = [(16, 32), (16, 96), (48, 32), (64, 160), (256, 1024)]


def random_bytes(shape):
    return np.random.default_rng(shape).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("shape", WEIGHTS, ids=str)
def test_shuffled_bytes(shape):
    octets = random_bytes(shape)
    assert reference.shuffled_weight(octets).tolist() == shuffled(octets).tolist()
    for dtype in (np.uint8, np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu):
        w = octets.view(dtype)
        result = dlfp4.shuffle_weight(w)
        assert (result.shape, result.dtype) == (shape, w.dtype)
        assert raw_bytes(result) == shuffled(octets).tobytes()
        back = dlfp4.unshuffle_weight(result)
        assert (back.shape, back.dtype) == (shape, w.dtype)
        assert raw_bytes(back) == octets.tobytes()
        assert raw_bytes(dlfp4.shuffle_weight(dlfp4.unshuffle_weight(w))) == octets.tobytes()


def test_a_byte_of_a_weight():
    octets = np.zeros((32, 64), np.uint8)
    octets[17, 37] = 1
    assert raw_bytes(dlfp4.shuffle_weight(octets)).index(1) == 16 * 64 + 2 * 256 + 16 + 5


@pytest.mark.parametrize("shape", WEIGHTS, ids=str)
def test_shuffled_elements(shape):
    """Packed FP4 is shuffled by its bytes; the shape counts elements."""
    octets = random_bytes(shape)
    w = dlfp4.asarray(octets).view("float4_e2m1fn")
    assert w.shape == (shape[0], 2 * shape[1])
    result = dlfp4.shuffle_weight(w)
    assert (result.shape, result.dtype) == (w.shape, w.dtype)
    assert raw_bytes(result) == shuffled(octets).tobytes()
    assert raw_bytes(dlfp4.unshuffle_weight(result, layout="aiter")) == octets.tobytes()


def test_of_what_was_quantized():
    q = dlfp4.quantize(make("normal", (64, 256)), "mxfp4", recipe="rocm")
    octets = np.frombuffer(raw_bytes(q.data), np.uint8).reshape(64, 128)
    assert raw_bytes(dlfp4.shuffle_weight(q.data)) == shuffled(octets).tobytes()
    assert raw_bytes(q.data) == octets.tobytes()


def test_weights_of_any_strides():
    octets = random_bytes((96, 256))
    octets.flags.writeable = False
    for view in (octets[::2, :64], octets[:48, ::2], octets.T[:32, :96], octets[::-1, 31::-1]):
        result = dlfp4.shuffle_weight(view)
        assert raw_bytes(result) == shuffled(np.ascontiguousarray(view)).tobytes()
        assert raw_bytes(dlfp4.unshuffle_weight(view[:, :])) == raw_bytes(
            dlfp4.unshuffle_weight(np.ascontiguousarray(view))
        )
        assert raw_bytes(dlfp4.unshuffle_weight(result)) == np.ascontiguousarray(view).tobytes()


def test_pytorchs_pairs_stay_pairs():
    torch = framework("torch")
    octets = random_bytes((32, 64))
    pairs = torch.from_numpy(octets).view(torch.float4_e2m1fn_x2)
    result = torch.from_dlpack(dlfp4.shuffle_weight(pairs))
    assert (result.dtype, tuple(result.shape)) == (torch.float4_e2m1fn_x2, (32, 64))
    assert result.view(torch.uint8).numpy().tolist() == shuffled(octets).tolist()


@pytest.mark.parametrize("function", [dlfp4.shuffle_weight, dlfp4.unshuffle_weight])
@pytest.mark.parametrize("shape", [(15, 32), (24, 32), (16, 16), (16, 33), (1, 1)], ids=str)
def test_weights_that_do_not_divide(function, shape):
    with pytest.raises(ValueError, match=r"\({}, {}\).*16.*32".format(*shape)):
        function(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("function", [dlfp4.shuffle_weight, dlfp4.unshuffle_weight])
def test_weights_that_are_none(function):
    with pytest.raises(ValueError, match=r"\(16, 32\)"):  # FP4: 32 elements are 16 bytes
        function(dlfp4.asarray(np.zeros((16, 16), np.uint8)).view("float4_e2m1fn"))
    for shape in ((512,), (1, 16, 32)):
        with pytest.raises(ValueError, match="two dimensions"):
            function(np.zeros(shape, np.uint8))
    for layout in ("linear", "aiter ", None):
        with pytest.raises(ValueError, match="'aiter'"):
            function(np.zeros((16, 32), np.uint8), layout)
    with pytest.raises(TypeError):
        function([["a"] * 32] * 16)


# ---- layouts that engines keep in memory -----------------------------------------------------------------------------

ENGINES = {  # the multiples that rows and columns are padded to
    "n32k4": (32, 4),
    "deepgemm": (4, 4),
    "cublas_1x128": (4, 1),
    "cublas_128x128": (1, 4),
}


def as_engines_have(matrix, layout, fill=0):
    """By reshapes and transposes: AITER's shuffle for gfx1250, DeepGEMM's packing into int32 columns, cuBLAS's
    transposed or padded float32."""
    r, c = ENGINES[layout]
    extents = [-(-extent // step) * step for extent, step in zip(matrix.shape, (r, c), strict=True)]
    whole = np.full((extents[0], extents[1] * matrix.itemsize), fill, np.uint8).view(matrix.dtype)
    whole[: matrix.shape[0], : matrix.shape[1]] = matrix
    if layout == "n32k4":
        tiles = whole.reshape(extents[0] // 32, 32, extents[1] // 4, 4)
        return np.ascontiguousarray(tiles.transpose(0, 2, 1, 3)).reshape(extents)
    if layout == "deepgemm":
        words = np.ascontiguousarray(whole).view(np.int32)  # four bytes of a row
        return np.ascontiguousarray(words.T).view(np.uint8)
    return np.ascontiguousarray(whole.T if layout == "cublas_1x128" else whole)


@pytest.mark.parametrize("layout", ["n32k4", "deepgemm"])
@pytest.mark.parametrize("name", ONE_BYTE_SCALES)
@pytest.mark.parametrize("axis", [-1, -2])
def test_engines_layouts_of_bytes(layout, name, axis):
    for number, shape in enumerate(MATRICES):
        if FORMATS[name].block[0] > 1 and not FORMATS[name].repeats:
            continue
        matrix = random_scales(name, shape, number)
        linear = scaled(name, matrix, axis)
        for fill in (0, 127):
            q = linear.with_scale_layout(layout, fill=fill)
            expected = as_engines_have(matrix, layout, fill)
            assert (q.scale_layout, q.scales.shape) == (layout, expected.shape)
            assert raw_bytes(q.scales) == expected.tobytes()
            for other in ("linear", *LAYOUTS, "n32k4", "deepgemm"):
                assert_scales_are(q.with_scale_layout(other).with_scale_layout("linear"), linear)
        again = dlfp4.ScaledTensor.from_parts(
            q.data, expected.ravel(), q.global_scale, format=name, axis=axis, scale_layout=layout, shape=q.shape
        )
        assert_scales_are(again.with_scale_layout("linear"), linear)


def assert_scales_are(q, expected):
    assert q.scales.shape == expected.scales.shape
    assert raw_bytes(q.scales) == raw_bytes(expected.scales)


FLOAT_LAYOUTS = [(name, "cublas_1x128" if "1x128" in name else "cublas_128x128") for name in FP8 if "128" in name]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(("name", "layout"), FLOAT_LAYOUTS)
def test_engines_layouts_of_floats(name, layout, axis):
    for shape in ((1, 1), (5, 300), (256, 384), (130, 128), (1000, 257)):
        linear = dlfp4.quantize(make("normal", shape), name, axis=axis)
        scales = linear.scales.to_numpy().T if axis == -2 else linear.scales.to_numpy()
        q = linear.with_scale_layout(layout)
        expected = as_engines_have(np.ascontiguousarray(scales), layout)
        assert (q.scales.shape, q.scales.dtype) == (expected.shape, np.float32)
        assert raw_bytes(q.scales) == expected.tobytes()
        assert_scales_are(q.with_scale_layout("linear"), linear)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *FLOAT_LAYOUTS,
        *itertools.product(["nvfp4", "nvfp4_16x16", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3"], ["n32k4", "deepgemm"]),
    ],
)
def test_all_operations_read_and_write_engines_layouts(name, layout, axis):
    x = make("normal", (160, 384))
    linear = dlfp4.quantize(x, name, axis=axis)
    q = dlfp4.quantize(x, name, axis=axis, scale_layout=layout)
    assert raw_bytes(q.scales) == raw_bytes(linear.with_scale_layout(layout).scales)
    assert raw_bytes(q.data) == raw_bytes(linear.data)
    again = dlfp4.quantize(
        x, name, axis=axis, scale_layout=layout, out=dlfp4.quantize(-x, name, axis=axis, scale_layout=layout)
    )
    assert raw_bytes(again.scales) == raw_bytes(q.scales)
    values = linear.dequantize().to_numpy()
    assert q.dequantize().to_numpy().tobytes() == values.tobytes()
    assert q.mT.dequantize().to_numpy().tobytes() == np.ascontiguousarray(values.T).tobytes()
    for rows in (1, 3, 40):
        given = make("normal", (rows, 384 if axis == -1 else 160), seed=1)
        for weight, same_weight in ((q.mT, linear.mT),) if axis == -1 else ((q, linear),):
            product = dlfp4.matmul(given, weight).to_numpy()
            np.testing.assert_allclose(product, dlfp4.matmul(given, same_weight).to_numpy(), rtol=1e-5, atol=1e-4)
    if axis == -1:
        np.testing.assert_allclose(dlfp4.vecdot(q, q).to_numpy(), (values.astype(np.float64) ** 2).sum(-1), rtol=1e-5)
    assert q.to("mxfp4").dequantize().tolist() == linear.to("mxfp4").dequantize().tolist()
    proto = dlfp4.TensorProto.of(q)
    assert proto.scale_layout == layout
    assert proto.unflatten(proto.flatten(q)).dequantize().to_numpy().tobytes() == values.tobytes()


def test_engines_layouts_that_a_format_has_not():
    x = make("normal", (128, 128))
    for name, layout, message in (
        ("fp8_1x128", "deepgemm", "one byte"),
        ("mxfp4", "cublas_1x128", "for float32 scales of 1x128"),
        ("fp8_row", "cublas_1x128", "of 1x128 blocks; fp8_row has one scale a line"),
        ("fp8_1x128", "cublas_128x128", "for float32 scales of 128x128"),
        ("fp8_128x128", "cublas_1x128", "for float32 scales of 1x128"),
        ("fp8_e4m3", "cublas_1x128", "has one scale"),
    ):
        with pytest.raises(ValueError, match=message):
            dlfp4.quantize(x, name, scale_layout=layout)


def test_deepgemm_as_its_own_tensors():
    """int32 of shape (M, K / 128 / 4), columns first, each aligned to 16 bytes."""
    q = dlfp4.quantize(make("normal", (131, 512)), "mxfp8_e4m3", scale_layout="deepgemm")
    words = q.scales.to_numpy().view(np.int32).T[:131]
    assert (words.shape, words.strides) == ((131, 4), (4, 4 * 132))
    linear = q.with_scale_layout("linear").scales.view("uint8").to_numpy()
    assert (words.copy().view(np.uint8) == linear).all()


@pytest.mark.parametrize("axis", [-1, -2])
def test_deepgemm_of_fp8(axis):
    """FP8 with power-of-two scales of a byte, as DeepGEMM takes it."""
    x = make("normal", (160, 1024))
    recipe = dlfp4.Recipe(scale_dtype="float8_e8m0fnu", pow2=True)
    linear = dlfp4.quantize(x, "fp8_1x128", recipe=recipe, axis=axis)
    q = dlfp4.quantize(x, "fp8_1x128", recipe=recipe, axis=axis, scale_layout="deepgemm")
    assert q.scales.dtype.name == "float8_e8m0fnu"
    assert raw_bytes(q.scales) == raw_bytes(linear.with_scale_layout("deepgemm").scales)
    assert_scales_are(q.with_scale_layout("linear"), linear)
    assert q.dequantize().tolist() == linear.dequantize().tolist()
    with pytest.raises(ValueError, match="four bytes"):
        linear.with_scale_layout("cublas_1x128")
