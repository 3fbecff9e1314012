"""int4 and uint4 in groups: zero points and biases, and what becomes of them wherever a tensor goes."""

import copy
import itertools
import pickle

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import ScaledTensor, TensorProto, checkpoints
from dlfp4.formats import offset_parts

from ..support.block_reference import INTEGERS, make, same
from ..support.levels import CODEC_LEVELS, digests_at
from ..support.reference import dtype_of, native_cast, raw_bytes

F = np.float32
FLOATS = ["float32", "bfloat16", "float16"]
ZERO_POINTS = {"uint4": (0, 16), "int4": (-8, 8), "uint8": (0, 120), "int8": (-100, 100)}
LENGTHS = {"int4_g32": 32, "uint4_g64": 64, "uint4_g128": 128, "int4_row": 256, "uint4_row": 256}


def random_parts(name, lines=24, length=256, scales="float32", **offsets):
    """Codes, scales, and zero points or biases of the given type, all as NumPy arrays."""
    rng = np.random.default_rng([lines, length, len(name)])
    blocks = length // min(LENGTHS[name], length)
    element = dlfp4.formats()[name].element
    parts = {
        "data": rng.integers(0, 16, (lines, length)).astype(np.uint8).view(element),
        "scales": native_cast(rng.normal(size=(lines, blocks)).astype(F), scales),
    }
    for kind, dtype in offsets.items():
        if kind == "zero_points":
            values = rng.integers(*ZERO_POINTS[dtype], (lines, blocks)).astype(dtype_of(dtype))
        else:
            values = native_cast(rng.normal(size=(lines, blocks)).astype(F), dtype)
        parts[kind] = values
    return parts


def values_of(parts, dtype="float32"):
    """What the parts decode to by the formula, in float32."""
    codes, scales = (native_cast(parts[kind], "float32") for kind in ("data", "scales"))
    spread = codes.shape[1] // scales.shape[1]
    scales = np.repeat(scales, spread, 1)
    if "zero_points" in parts:
        codes = codes - np.repeat(parts["zero_points"].astype(F), spread, 1)
    product = codes * scales
    if "biases" in parts:
        product = product + np.repeat(native_cast(parts["biases"], "float32"), spread, 1)
    return native_cast(product, dtype)


OFFSETS = [{}, *({"zero_points": dtype} for dtype in ZERO_POINTS), *({"biases": dtype} for dtype in FLOATS)]
SOME = [{"zero_points": "uint4"}, {"zero_points": "int8"}, {"biases": "bfloat16"}]


# ---- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
def test_values_by_the_formula(offsets):
    for name, scales, target in itertools.product(LENGTHS, FLOATS, FLOATS):
        parts = random_parts(name, scales=scales, **offsets)
        expected = values_of(parts, target)
        q = ScaledTensor.from_parts(**parts, format=name)
        assert raw_bytes(q.dequantize(target)) == expected.tobytes()
        across = ScaledTensor.from_parts(**parts, format=name, axis=-2)  # stored transposed, as all of 4 bits
        assert raw_bytes(across.dequantize(target)) == np.ascontiguousarray(expected.T).tobytes()
        assert raw_bytes(q.mT.dequantize(target)) == np.ascontiguousarray(expected.T).tobytes()


AT_A_LEVEL = """
import json, hashlib
import numpy as np, ml_dtypes
import dlfp4
from reference import raw_bytes

rng = np.random.default_rng(0)
found = {}
# Infinities, and NaN of either sign, with what they carry, quiet and signalling.
special = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC54321, 0x7F800001, 0xFF8FFFFF], np.uint32).view(np.float32)

def with_special(x, share):
    return np.where(rng.random(x.shape) < share, special[rng.integers(0, len(special), x.shape)], x)

for name, block in (("int4_g32", 32), ("uint4_g128", 128), ("uint4_row", None)):
    for lines, length in ((1, 128), (7, 384), (70, 256), (3, 4096)):
        shape = (lines, length // (block or length))
        codes = rng.integers(0, 256, (lines, length // 2), dtype=np.uint8)
        scales = (rng.normal(size=shape) * 2.0 ** rng.integers(-130, 120, shape)).astype(np.float32)
        scales[0, 0] = rng.choice([np.nan, np.inf, 0, 1])
        scales[1:] = with_special(scales[1:], 0.03)
        biases = with_special(rng.normal(size=shape).astype(np.float32), 0.1)
        zeros = rng.integers(0, 16, shape).astype(ml_dtypes.uint4)
        for kind, offsets in (("zeros", {"zero_points": zeros}), ("biases", {"biases": biases})):
            q = dlfp4.ScaledTensor.from_parts(codes, scales, format=name, **offsets)
            for dtype in ("float32", "bfloat16", "float16"):
                out = dlfp4.empty((length, lines), dtype).T
                dlfp4.dequantize(q, out=out)
                assert raw_bytes(out.copy()) == raw_bytes(q.dequantize(dtype))
                key = f"{name} {lines}x{length} {kind} {dtype}"
                found[key] = hashlib.sha256(raw_bytes(q.dequantize(dtype))).hexdigest()
print(dlfp4.cpu_isa())
print(json.dumps(found))
"""


@pytest.mark.parametrize("level", CODEC_LEVELS[:-1])
def test_levels_equal_scalar(level):
    assert digests_at(level, AT_A_LEVEL) == digests_at("scalar", AT_A_LEVEL)


def test_the_difference_is_exact_and_nothing_is_contracted():
    """8 - 15 is -7 before it is multiplied; the product is rounded before the bias is added."""
    scale = np.array([[1 + 2.0**-23]], F)
    code = np.full((1, 32), 15, ml_dtypes.uint4)
    q = ScaledTensor.from_parts(code, scale, format="uint4_g32", biases=-F(15) * scale)
    assert not q.dequantize().to_numpy().any()
    q = ScaledTensor.from_parts(code, scale, format="uint4_g32", zero_points=np.full((1, 1), 8, np.uint8))
    assert (q.dequantize().to_numpy() == 7 * scale).all()


def test_products_hold_to_float64():
    rng = np.random.default_rng(1)
    for name, offsets in itertools.product(LENGTHS, SOME):
        parts = random_parts(name, **offsets)
        q, right = ScaledTensor.from_parts(**parts, format=name), values_of(parts).astype(np.float64)
        other = dlfp4.quantize(right.astype(F), "int4_row")
        for rows in (1, 3, 40):
            a = rng.normal(size=(rows, 256)).astype(F)
            exact, magnitude = a.astype(np.float64) @ right.T, abs(a) @ abs(right.T)
            got = dlfp4.matmul(a, q.mT).to_numpy()
            assert (abs(got - exact) <= 257 * 2.0**-24 * magnitude).all()
        for left in (q, other):
            of_left = left.dequantize().to_numpy().astype(np.float64)
            bound = 257 * 2.0**-24 * (abs(of_left) * abs(right)).sum(-1)
            assert (abs(dlfp4.vecdot(left, q).to_numpy() - (of_left * right).sum(-1)) <= bound).all()


# ---- quantize ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INTEGERS)
def test_blocks_that_are_not_finite_are_nan_and_others_are_not_harmed(name):
    x = make("normal", (6, 256))
    x[1, 7], x[2, 200], x[4] = np.nan, -np.inf, 0
    values = dlfp4.quantize(x, name).dequantize().to_numpy()
    length = dlfp4.formats()[name].block[1] or 256
    broken = np.zeros(x.shape, bool)
    for line, place in ((1, 7), (2, 200)):
        broken[line, place // length * length : (place // length + 1) * length] = True
    assert np.array_equal(np.isnan(values), broken)
    assert not values[4].any()


@pytest.mark.parametrize("scale_dtype", FLOATS)
def test_a_block_of_zeros_has_the_last_place_of_1(scale_dtype):
    q = dlfp4.quantize(np.zeros((1, 32), F), "int4_g32", recipe=dlfp4.Recipe(scale_dtype=scale_dtype))
    assert float(q.scales.item()) == float(ml_dtypes.finfo(scale_dtype).eps)


def test_stochastic_rounding_is_right_on_average_and_goes_by_the_seed():
    x = np.tile(np.linspace(-6, 7, 128, dtype=F), (512, 1))
    x[:, 0] = 7.5  # every scale is 1
    one, other, again = (
        dlfp4.quantize(x, "int4_g128", rounding="stochastic", seed=seed).dequantize().to_numpy() for seed in (1, 2, 1)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert abs(one.mean(0) - x[0])[1:].max() < 0.12
    assert (abs(one - x) < 1).all()


@pytest.mark.parametrize("name", INTEGERS)
def test_what_does_not_fill_blocks_or_bytes_is_refused_or_completed(name):
    x = make("normal", (4, 161))
    with pytest.raises(ValueError, match=r"does not divide.*pad=True"):
        dlfp4.quantize(x, name)
    q = dlfp4.quantize(x, name, pad=True)
    block = dlfp4.formats()[name].block[1] or 2
    assert (q.shape, q.data.shape) == ((4, 161), (4, -(-161 // block) * block))
    assert (
        not ScaledTensor.from_parts(q.data, q.scales, format=name, **offset_parts(q))
        .dequantize()
        .to_numpy()[:, 161:]
        .any()
    )


@pytest.mark.parametrize(
    "options",
    [{"pow2": True}, {"scale_dtype": "float8_e8m0fnu"}, {"keeps_negative_zero": False}, {"scale_floor": 1.0}],
    ids=str,
)
def test_options_of_floats_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        dlfp4.quantize(np.ones((1, 32), F), "int4_g32", recipe=dlfp4.Recipe(**options))
    with pytest.raises(ValueError, match=r"mlx.*int4_g32"):
        dlfp4.quantize(np.ones((1, 32), F), "int4_g32", recipe="mlx")


@pytest.mark.parametrize("name", INTEGERS)
def test_the_hadamard_transform_is_undone(name):
    x = make("normal", (16, 256))
    for axis in (-1, -2):
        q = dlfp4.quantize(x if axis == -1 else x.T.copy(), name, axis=axis, hadamard=5)
        values = q.dequantize().to_numpy()
        assert q.hadamard is not None
        assert abs((values if axis == -1 else values.T) - x).max() < 1
        assert (dlfp4.quantize(x, name).data.to_numpy() != (q if axis == -1 else q.mT).data.to_numpy()).any()


# ---- from parts ----------------------------------------------------------------------------------------------------


def test_parts_that_do_not_fit_are_refused():
    codes, scales = np.zeros((4, 64), ml_dtypes.uint4), np.ones((4, 2), F)
    zeros = np.zeros((4, 2), np.uint8)

    def make_of(**options):
        return ScaledTensor.from_parts(codes, scales, **{"format": "uint4_g32"} | options)

    with pytest.raises(ValueError, match="zero_points and biases are both given"):
        make_of(zero_points=zeros, biases=scales)
    with pytest.raises(ValueError, match=r"zero_points has shape \(4, 3\).*needs \(4, 2\)"):
        make_of(zero_points=np.zeros((4, 3), np.uint8))
    with pytest.raises(TypeError, match="zero_points has dtype int32; expected one of uint4"):
        make_of(zero_points=zeros.astype(np.int32))
    with pytest.raises(TypeError, match="biases has dtype uint8; expected one of float32"):
        make_of(biases=zeros)
    with pytest.raises(ValueError, match="mxfp4 does not"):
        ScaledTensor.from_parts(
            np.zeros((4, 32), np.uint8), np.zeros((4, 2), np.uint8), format="mxfp4", zero_points=zeros
        )
    with pytest.raises(ValueError, match="scale_layout='cublas_1x128'"):
        dlfp4.quantize(np.ones((128, 128), F), "int4_g128", scale_layout="cublas_1x128")


def test_memory_is_shared_and_zero_points_of_a_byte_stay():
    parts = random_parts("uint4_g64", zero_points="uint8")
    octets = dlfp4.pack(parts["data"]).view("uint8").to_numpy()
    q = ScaledTensor.from_parts(octets, parts["scales"], format="uint4_g64", zero_points=parts["zero_points"])
    pointers = q.data.data_ptr, q.scales.data_ptr, q.zero_points.data_ptr
    assert pointers == tuple(part.ctypes.data for part in (octets, parts["scales"], parts["zero_points"]))
    assert (q.zero_points.dtype, q.biases) == (np.uint8, None)


# ---- everywhere ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets", OFFSETS[1:], ids=str)
def test_they_go_where_the_tensor_goes(offsets, tmp_path):
    (kind,) = offsets
    parts = random_parts("uint4_g64", **offsets)
    q = ScaledTensor.from_parts(**parts, format="uint4_g64")
    assert f"{kind}={offsets[kind]}" in repr(q)
    assert q.nbytes == q.data.nbytes + q.scales.nbytes + getattr(q, kind).nbytes
    for again in (pickle.loads(pickle.dumps(q)), pickle.loads(pickle.dumps(q, 5)), copy.deepcopy(q)):
        assert same(again, q)
    assert same(q.mT.mT, q)
    assert same(q.to_device("cpu"), q)
    back = ScaledTensor.from_parts(**q.to_numpy()._asdict(), format="uint4_g64")
    assert same(back, q)
    proto = TensorProto.of(q)
    assert {proto: 1}[TensorProto.of(proto.allocate())] == 1
    assert [buffer.name for buffer in proto.buffers()] == ["data", "scales", kind]
    assert same(proto.unflatten(proto.flatten(q)), q)
    path = tmp_path / "model.safetensors"
    checkpoints.save(path, {"w": q, "v": q.mT})
    loaded = checkpoints.load(path)
    assert same(loaded["w"], q)
    assert same(loaded["v"], q.mT)


@pytest.mark.parametrize("offsets", OFFSETS[1:], ids=str)
def test_slices_and_joins(offsets):
    whole = random_parts("uint4_g64", 25, 192, **offsets)  # rows of three zero points: odd ones start within a byte
    q, values = ScaledTensor.from_parts(**whole, format="uint4_g64"), values_of(whole)
    (kind,) = offsets
    for rows, columns in ((slice(2, 8), slice(64, 192)), (slice(1, 2), slice(None)), (slice(3, None), slice(0, 64))):
        part = q[rows, columns]
        assert raw_bytes(part.dequantize()) == np.ascontiguousarray(values[rows, columns]).tobytes()
    assert raw_bytes(q.mT[:, 2:4].dequantize()) == np.ascontiguousarray(values.T[:, 2:4]).tobytes()
    for axis in (0, 1):
        joined = dlfp4.concatenate([q, q, q], axis)
        assert joined.receipt.is_exact
        assert getattr(joined, kind).dtype.name == offsets[kind]
        assert raw_bytes(joined.dequantize()) == np.concatenate([values] * 3, axis).tobytes()
    stacked = dlfp4.stack([q, q])
    assert raw_bytes(stacked.dequantize()) == np.stack([values] * 2).tobytes()
    assert raw_bytes(dlfp4.concatenate([q.mT, q.mT]).dequantize()) == np.concatenate([values.T] * 2).tobytes()
    bare = ScaledTensor.from_parts(whole["data"], whole["scales"], format="uint4_g64")
    with pytest.raises(ValueError, match=r"differ in zero points or biases: .* and none; quantize them alike"):
        dlfp4.concatenate([q, bare])


def test_protos_of_what_has_none():
    bare = ScaledTensor.from_parts(np.zeros((4, 64), ml_dtypes.uint4), np.ones((4, 2), F), format="uint4_g32")
    proto = TensorProto.of(bare)
    assert (proto.zero_points, len(proto.buffers())) == ("none", 2)
    usual = TensorProto.of(dlfp4.quantize(np.ones((4, 64), F), "uint4_g32"))
    assert usual == TensorProto((4, 64), format="uint4_g32", zero_points="uint8")
    assert usual.zero_points is None
    with pytest.raises(ValueError, match="zero_points differs"):
        usual.flatten(bare)
    with pytest.raises(ValueError, match="mxfp4 has none"):
        TensorProto((4, 64), format="mxfp4", zero_points="uint4")
    with pytest.raises(ValueError, match="one of them, or neither"):
        TensorProto((4, 64), format="int4_g32", zero_points="uint4", biases="float32")


def test_out_has_the_zero_points_that_quantize_makes():
    x = make("normal", (5, 96))
    out = TensorProto((5, 96), format="uint4_g32").allocate()
    assert same(dlfp4.quantize(x, "uint4_g32", out=out), dlfp4.quantize(x, "uint4_g32"))
    for options in ({"zero_points": "none"}, {"zero_points": "uint4"}, {"biases": "float32"}):
        other = TensorProto((5, 96), format="uint4_g32", **options).allocate()
        with pytest.raises(ValueError, match="the result uint8 zero points"):
            dlfp4.quantize(x, "uint4_g32", out=other)


# ---- to ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ["g32", "g64", "g128", "row"])
def test_int4_and_uint4_are_renamed(block):
    x = make("normal", (12, 256))
    q, u = (dlfp4.quantize(x, f"{element}_{block}") for element in ("int4", "uint4"))
    assert same(q.to(u.format), u)
    assert same(u.to(q.format), q)
    assert q.to(u.format).receipt.is_exact
    finer = q.to("uint4_g32")
    assert finer.receipt.is_exact
    assert raw_bytes(finer.dequantize()) == raw_bytes(q.dequantize())


@pytest.mark.parametrize("dtype", ["uint4", "uint8"])
def test_zero_points_are_renamed_too(dtype):
    parts = random_parts("uint4_g128", zero_points=dtype)
    q = ScaledTensor.from_parts(**parts, format="uint4_g128")
    for target in ("int4_g128", "int4_g32", "uint4_g64"):
        other = q.to(target)
        assert other.receipt.is_exact
        assert raw_bytes(other.dequantize()) == values_of(parts).tobytes()
        assert raw_bytes(other.to("uint4_g32").dequantize()) == values_of(parts).tobytes()
    bare = ScaledTensor.from_parts(parts["data"], parts["scales"], format="uint4_g128")
    assert raw_bytes(bare.to("int4_g128").dequantize()) == raw_bytes(bare.dequantize())


def test_what_is_not_exact_is_told():
    parts = random_parts("uint4_g64", biases="float16")
    q = ScaledTensor.from_parts(**parts, format="uint4_g64")
    assert q.to("uint4_g32").receipt.is_exact
    for target in ("int4_g64", "nvfp4", "fp8_1x128", "mxfp8_e4m3"):
        other = q.to(target)
        error = abs(other.dequantize().to_numpy() - values_of(parts)).reshape(24, 4, 64).max(-1)
        largest = abs(values_of(parts)).reshape(24, 4, 64).max(-1)
        assert np.isclose((error / largest).max(), other.receipt.largest_error)
    for name in ("nvfp4", "mxfp4", "fp8_row"):
        other = dlfp4.quantize(values_of(parts), name).to("int4_g32")
        assert 0 < other.receipt.largest_error < 0.3
