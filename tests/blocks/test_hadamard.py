"""The random Hadamard transform of 16: quantize(hadamard=) gives the bytes of quantizing what NumPy transformed, and
dequantize what NumPy transforms back; products of two that were transformed alike; refusals; what carries the signs."""

import copy
import pickle

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints

from ..support.block_reference import FORMATS, INPUTS, divides, make
from ..support.levels import CODEC_LEVELS, run_at
from ..support.reference import parts_of

pytestmark = pytest.mark.arithmetic

F = np.float32
FLOATS = ["float32", "bfloat16", "float16"]
SIGNS = (1, -1, -1, 1, 1, 1, -1, 1, -1, -1, -1, 1, 1, -1, 1, -1)
SHAPE = (128, 256)


def butterfly(x):
    """H16 / 4 of the sixteens of the last axis, in float32 and in the order of the rule; NaN is the quiet positive."""
    v = (x.astype(F) * F(0.25)).reshape(*x.shape[:-1], -1, 16).copy()
    with np.errstate(invalid="ignore", over="ignore"):
        for step in (1, 2, 4, 8):
            pairs = v.reshape(*v.shape[:-1], 16 // (2 * step), 2, step)
            v = np.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], -2).reshape(
                v.shape
            )
    return np.where(np.isnan(v), np.array(0x7FC00000, np.uint32).view(F), v).reshape(x.shape)


def transform(x, signs=SIGNS, axis=-1):
    x = np.asarray(x, F)
    if axis == -2:
        return transform(x.T, signs).T
    return butterfly(x * np.resize(np.array(signs, F), x.shape[-1]))


def transform_back(y, signs=SIGNS, axis=-1):
    y = np.asarray(y, F)
    if axis == -2:
        return transform_back(y.T, signs).T
    values = butterfly(y) * np.resize(np.array(signs, F), y.shape[-1])
    return np.where(np.isnan(values), np.array(0x7FC00000, np.uint32).view(F), values)


def octets(q):
    return [part.copy().reshape(-1).view("uint8").to_numpy().tobytes() for part in parts_of(q)]


def test_the_reference_is_the_matrix():
    h = np.array([[1]])
    while len(h) < 16:
        h = np.block([[h, h], [h, -h]])
    x = np.random.default_rng(0).integers(-99, 99, (5, 16)).astype(F)
    assert (transform(x) == x @ np.diag(SIGNS) @ h / 4).all()
    assert (transform_back(transform(x)) == x).all()


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize(
    "name", ["nvfp4", "nvfp4_16x16", "mxfp4", "mxfp8_e4m3", "fp8_e4m3", "fp8_1x128", "fp8_128x128"]
)
def test_hard_inputs(name, kind, axis):
    x = make(kind, SHAPE)
    q = dlfp4.quantize(x, name, axis=axis, hadamard=SIGNS)
    expected = dlfp4.quantize(transform(x, axis=axis), name, axis=axis)
    assert octets(q) == octets(expected)
    assert q.hadamard == SIGNS
    assert expected.hadamard is None
    with np.errstate(invalid="ignore", over="ignore"):
        back = transform_back(expected.dequantize().to_numpy(), axis=axis)
    assert q.dequantize().to_numpy().tobytes() == np.ascontiguousarray(back).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name, axis, dtype):
    x = make("normal", SHAPE, dtype)
    assert divides(SHAPE, name, axis)
    q = dlfp4.quantize(x, name, axis=axis, hadamard=SIGNS)
    expected = dlfp4.quantize(transform(x, axis=axis), name, axis=axis)
    assert octets(q) == octets(expected)
    back = transform_back(expected.dequantize().to_numpy(), axis=axis)
    assert q.dequantize(dtype).to_numpy().tobytes() == np.ascontiguousarray(back.astype(dtype)).tobytes()


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_e4m3", "mxfp4_16"])
def test_strides_and_padding(name):
    x = make("normal", (40, 300))[::2, ::3]  # (20, 100): neither dense nor whole blocks
    padded = np.zeros((20, 128 if name == "mxfp8_e4m3" else 112), F)
    padded[:, :100] = x
    q = dlfp4.quantize(x, name, pad=True, hadamard=SIGNS)
    expected = dlfp4.quantize(transform(padded), name)
    assert octets(q) == octets(expected)
    back = transform_back(expected.dequantize().to_numpy())[:, :100]
    assert q.dequantize().to_numpy().tobytes() == back.tobytes()
    columns = dlfp4.quantize(x.T, name, axis=-2, pad=True, hadamard=SIGNS)
    assert columns.dequantize().to_numpy().T.tobytes(order="C") == back.tobytes()


@pytest.mark.parametrize("per", ["row", "matrix"])
def test_global_scales_of_parts(per):
    x = make("normal", (3, 16, 64))
    q = dlfp4.quantize(x, "nvfp4", hadamard=SIGNS, recipe=dlfp4.Recipe(global_scale_per=per))
    expected = dlfp4.quantize(transform(x), "nvfp4", recipe=dlfp4.Recipe(global_scale_per=per))
    assert octets(q) == octets(expected)
    back = transform_back(expected.dequantize().to_numpy())
    assert q.dequantize().to_numpy().tobytes() == back.tobytes()


def test_both_axes():
    x = make("normal", SHAPE)
    for q in dlfp4.quantize(x, "nvfp4", axis=(-1, -2), hadamard=7):
        alone = dlfp4.quantize(x, "nvfp4", axis=q.axis, hadamard=7)
        assert octets(q) == octets(alone)
        assert q.hadamard == alone.hadamard


def test_outliers_are_spread():
    x = make("normal", SHAPE)
    x[::16, 5::16] = 40
    plain, rotated = (dlfp4.quantize(x, "nvfp4", hadamard=signs) for signs in (None, SIGNS))
    assert float(rotated.global_scale) < float(plain.global_scale) / 2


# ---- Signs


def test_a_seed_draws_signs():
    x = np.ones((1, 16), F)
    drawn = {seed: dlfp4.quantize(x, "nvfp4", hadamard=seed).hadamard for seed in (0, 1, 2**64 - 1)}
    assert len(set(drawn.values())) == 3
    assert all(set(signs) <= {-1, 1} and len(signs) == 16 for signs in drawn.values())
    assert drawn[1] == dlfp4.TensorProto((1, 16), format="nvfp4", hadamard=1).hadamard
    assert dlfp4.quantize(x, "nvfp4", hadamard=np.int64(1)).hadamard == drawn[1]
    assert dlfp4.quantize(x, "nvfp4", hadamard=np.array(drawn[1])).hadamard == drawn[1]


@pytest.mark.parametrize("bad", [-1, 2**64, (1,) * 15, (0,) * 16, "x", True, 1.5, [1.0] * 16])
def test_bad_signs(bad):
    with pytest.raises(ValueError, match="hadamard="):
        dlfp4.quantize(np.ones((1, 16), F), "nvfp4", hadamard=bad)


def test_lines_that_are_no_sixteens():
    with pytest.raises(ValueError, match="lines of 100 elements"):
        dlfp4.quantize(np.ones((2, 100), F), "fp8_1x128", hadamard=SIGNS)


def test_out_has_the_signs():
    x = make("normal", SHAPE)
    q = dlfp4.quantize(np.zeros_like(x), "nvfp4", hadamard=SIGNS)
    assert octets(dlfp4.quantize(x, "nvfp4", hadamard=SIGNS, out=q)) == octets(
        dlfp4.quantize(x, "nvfp4", hadamard=SIGNS)
    )
    with pytest.raises(ValueError, match="hadamard"):
        dlfp4.quantize(x, "nvfp4", out=q)


# ---- What carries them


def carriers(q, folder):
    yield q.mT.mT
    yield q.to_device("cpu")
    yield copy.copy(q)
    yield pickle.loads(pickle.dumps(q, 5))
    yield q.with_scale_layout("128x4").with_scale_layout("linear")
    yield q.prepare()
    proto = dlfp4.TensorProto.of(q)
    assert proto.hadamard == q.hadamard
    assert proto != dlfp4.TensorProto(q.shape, format=q.format)
    yield proto.unflatten(proto.flatten(q))
    yield dlfp4.ScaledTensor.from_parts(q.data, q.scales, q.global_scale, format=q.format, hadamard=q.hadamard)
    checkpoints.save(folder / "q.safetensors", {"w": q})
    yield checkpoints.load(folder / "q.safetensors")["w"]


def test_what_carries_the_signs(tmp_path):
    q = dlfp4.quantize(make("normal", (64, 128)), "nvfp4", hadamard=SIGNS)
    for number, carried in enumerate(carriers(q, tmp_path)):
        assert carried.hadamard == SIGNS, number
        assert carried.dequantize().to_numpy().tobytes() == q.dequantize().to_numpy().tobytes(), number
    part = q[16:32, 32:96]
    assert part.hadamard == SIGNS
    assert part.dequantize().to_numpy().tobytes() == q.dequantize().to_numpy()[16:32, 32:96].tobytes()
    assert dlfp4.TensorProto.of(q).allocate().hadamard == SIGNS


def test_codes_without_values():
    """`to`, `concatenate` and `stack` rename codes and scales of what was transformed, and keep the signs."""
    q = dlfp4.quantize(make("normal", (64, 128)), "mxfp4", hadamard=SIGNS)
    plain = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format=q.format)
    for name in ("nvfp4", "mxfp8_e4m3", "fp8_1x128"):
        moved = q.to(name)
        assert octets(moved) == octets(plain.to(name))
        assert (moved.hadamard, moved.receipt) == (SIGNS, plain.to(name).receipt)
    for joined, values in (
        (dlfp4.concatenate([q, q]), np.concatenate([q.dequantize().to_numpy()] * 2)),
        (dlfp4.concatenate([q, q], axis=1), np.concatenate([q.dequantize().to_numpy()] * 2, 1)),
        (dlfp4.stack([q, q]), np.stack([q.dequantize().to_numpy()] * 2)),
    ):
        assert joined.hadamard == SIGNS
        assert joined.receipt.is_exact
        assert joined.dequantize().to_numpy().tobytes() == values.tobytes()
    with pytest.raises(ValueError, match="signs of their Hadamard transforms"):
        dlfp4.concatenate([q, plain])


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_row", "int4_row"])
def test_slices_between_groups(name, axis):
    """Also where blocks have no borders: what was transformed together stays together."""
    x = make("normal", (48, 48))
    q = dlfp4.quantize(x, name, axis=axis, hadamard=SIGNS)
    values = q.dequantize().to_numpy()
    for key in (np.s_[:, 16:48], np.s_[:, 32:]):
        key = key if axis == -1 else key[::-1]
        assert q[key].dequantize().to_numpy().tobytes() == values[key].tobytes()
    for key in (np.s_[:, 8:24], np.s_[:, :24], np.s_[:, 1:]):
        with pytest.raises(
            ValueError, match=r"took at a time: groups of 16 along axis -\d have borders at multiples of 16"
        ):
            q[key if axis == -1 else key[::-1]]
    for key in (np.s_[5:5], np.s_[:, 7:7], np.s_[:1, 7:7]):
        assert q[key].dequantize().to_numpy().tobytes() == b""


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("target", ["nvfp4", "mxfp4", "mxfp8_e4m3", "int4_g32", "nvidia"])
@pytest.mark.parametrize("source", ["nvfp4", "mxfp4", "mxfp8_e4m3"])
def test_ends_of_lines_in_other_formats(source, target, axis):
    """Behind the end of lines that are completed lies a part of what was transformed: without it the end is lost."""
    x = make("normal", (64, 33)) if axis == -1 else make("normal", (33, 64))
    q = dlfp4.quantize(x, source, axis=axis, pad=True, hadamard=SIGNS)
    result = q.to(target)
    assert (result.shape, result.hadamard) == (x.shape, SIGNS)
    before, after = (each.dequantize().to_numpy() for each in (q, result))
    assert np.abs(after - before).max() < 0.7  # as for what is not transformed; half of the end was 1.7 off
    lines = (48, 64) if axis == -2 else (64, 48)
    plain = dlfp4.ScaledTensor.from_parts(q.data, q.scales, q.global_scale, format=source, axis=axis, shape=lines)
    assert octets(result) == octets(plain.to(target))
    with pytest.raises(ValueError, match=r"zeros that complete its lines, which fp8_row does not store: .*dequantize"):
        q.to("fp8_row")


def test_others_do_not_know_it():
    q = dlfp4.quantize(make("normal", (64, 128)), "mxfp4", hadamard=SIGNS)
    for write in (checkpoints.to_ggml, lambda q: checkpoints.split_parts({"w.weight": q}, "modelopt")):
        with pytest.raises(ValueError, match=r"Hadamard transform, which (ggml|modelopt) does not know"):
            write(q)
    assert "hadamard=(1, -1" in repr(q)


# ---- Products


def test_products_of_values():
    """Transforms alike cancel each other; a transform on one side is undone."""
    x, w = make("normal", (8, 128)), make("normal", (16, 128), seed=1)
    rotated = [dlfp4.quantize(each, "nvfp4", hadamard=SIGNS) for each in (x, w)]
    other = dlfp4.quantize(w, "nvfp4", hadamard=3)
    plain = dlfp4.quantize(w, "nvfp4")
    for a, b in ((rotated[0], rotated[1]), (x, rotated[1]), (rotated[0], other), (rotated[0], plain)):
        values = [each.dequantize().to_numpy() if isinstance(each, dlfp4.ScaledTensor) else each for each in (a, b)]
        exact = values[0].astype(np.float64) @ values[1].astype(np.float64).T
        bound = 1e-5 * (np.abs(values[0]) @ np.abs(values[1]).T)
        assert (np.abs(dlfp4.matmul(a, b.mT).to_numpy() - exact) < bound).all()
        assert (np.abs(dlfp4.vecdot(a, b[:8]).to_numpy() - exact.diagonal()[:8]) < bound.diagonal()[:8]).all()


def is_product(found, a, b):
    """Whether a matrix is the product of what two operands decode to, up to the rounding of sums."""
    a, b = (each.dequantize().to_numpy().astype(np.float64) for each in (a, b))
    return (np.abs(found.to_numpy() - a @ b) <= 1e-5 * (np.abs(a) @ np.abs(b))).all()


@pytest.mark.parametrize("of_b", [-1, -2])
@pytest.mark.parametrize("of_a", [-1, -2])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_e4m3"])
def test_products_over_other_axes(name, of_a, of_b):
    """Transforms cancel in sums over the groups that were transformed, and in no others."""
    a, b = make("normal", (32, 64)), make("normal", (64, 96), seed=1)
    a, b = dlfp4.quantize(a, name, axis=of_a, hadamard=SIGNS), dlfp4.quantize(b, name, axis=of_b, hadamard=SIGNS)
    assert is_product(dlfp4.matmul(a, b), a, b)
    stack = dlfp4.quantize(make("normal", (2, 96, 64), seed=2), name, hadamard=SIGNS)
    found = dlfp4.grouped_matmul(a, stack.mT, np.array([16, 32], np.int32)).to_numpy()
    rows, matrices = a.dequantize().to_numpy(), stack.dequantize().to_numpy()
    expected = np.concatenate([rows[:16] @ matrices[0].T, rows[16:] @ matrices[1].T])
    assert np.abs(found - expected).max() < 1e-3


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3"])
def test_products_of_lines_that_end_within_a_group(name):
    """What lies behind the end, in the zeros that complete a line, belongs to no sum."""
    a, b = (dlfp4.quantize(make("normal", (8, 33), seed=seed), name, pad=True, hadamard=SIGNS) for seed in range(2))
    assert is_product(dlfp4.matmul(a, b.mT), a, b.mT)
    values = [each.dequantize().to_numpy() for each in (a, b)]
    assert np.abs(dlfp4.vecdot(a, b).to_numpy() - (values[0] * values[1]).sum(-1)).max() < 1e-5
    stack = dlfp4.quantize(make("normal", (1, 8, 33), seed=1), name, pad=True, hadamard=SIGNS)
    found = dlfp4.grouped_matmul(a, stack.mT, np.array([8], np.int32)).to_numpy()
    assert np.abs(found - values[0] @ stack.dequantize().to_numpy()[0].T).max() < 1e-4


# ---- Levels

PROGRAM = """
import hashlib, numpy as np, dlfp4
digest = hashlib.sha256()
for dtype in ("float32", "bfloat16", "float16"):
    x = dlfp4.cast(np.random.default_rng(0).standard_normal((96, 256)).astype("float32"), dtype)
    for name in ("nvfp4", "mxfp8_e4m3", "fp8_1x128", "nvfp4_16x16"):
        for axis in (-1, -2):
            if axis == -2 and name == "fp8_1x128":
                continue
            q = dlfp4.quantize(x, name, axis=axis, hadamard=5)
            for part in (q.data, q.scales, q.dequantize(dtype)):
                digest.update(part.copy().reshape(-1).view("uint8").to_numpy())
print(dlfp4.cpu_isa(), digest.hexdigest())
"""


@pytest.mark.parametrize("level", [level for level in CODEC_LEVELS if level != "scalar"])
def test_levels_agree(level):
    assert run_at(level, PROGRAM).split() == [level, run_at("scalar", PROGRAM).split()[1]]
