"""Slices of ScaledTensors share memory, decode to the slice of the values, and serve wherever a tensor does."""

import itertools
import pickle

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.formats import offset_parts

from ..support.block_reference import FORMATS, make
from .test_transcode import values

NAMES = list(FORMATS)
NORMAL = np.random.default_rng(5).standard_normal((3, 256, 384)).astype("float32")


def quantized(name, x, axis=-1, **options):
    return dlfp4.quantize(x, name, axis=axis, **options)


KEYS = [
    np.s_[:128],
    np.s_[128:],
    np.s_[-128:],
    np.s_[:, :128],
    np.s_[:, 128:256],
    np.s_[..., -256:],
    np.s_[128:256, 256:],
    np.s_[:, :],
    np.s_[...],
    np.s_[128:128],
    np.s_[:, 5:3],
    np.s_[:1000],
    np.s_[0:128, ..., 128:],
]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", NAMES)
def test_values_are_the_slice_of_the_values(name, axis):
    x = NORMAL[0]
    q = quantized(name, x, axis)
    whole = values(q)
    for key in KEYS:
        part = q[key]
        assert (part.shape, part.format, part.axis) == (whole[key].shape, q.format, axis)
        assert values(part).tobytes() == np.ascontiguousarray(whole[key]).tobytes(), key


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", NAMES)
def test_memory_is_shared(name, axis):
    q = quantized(name, NORMAL[0], axis)
    base, size = q.data.data_ptr, q.data.nbytes
    part = q[128:, 128:256]
    assert base < part.data.data_ptr < base + size
    for mine, whole in ((part.scales, q.scales), (part.global_scale, q.global_scale)):
        if whole is None:
            assert mine is None
        elif whole.ndim == 0:
            assert mine.data_ptr == whole.data_ptr
        else:
            assert whole.data_ptr <= mine.data_ptr < whole.data_ptr + whole.nbytes


@pytest.mark.parametrize("name", NAMES)
def test_finest_borders(name):
    """Each block can be cut out alone, and nothing between blocks."""
    block = FORMATS[name].block
    q = quantized(name, NORMAL[0])
    whole = values(q)
    if block is None or block[1] is None:
        step = 1 if q.data.dtype.itemsize * q.data.size == q.data.nbytes else 2  # elements of a byte
        assert (values(q[3:4, 6 : 6 + step]) == whole[3:4, 6 : 6 + step]).all()
        return
    lines, length = block
    for row in {0, lines, 256 - lines}:
        for column in {0, length, 384 - length}:
            key = np.s_[row : row + lines, column : column + length]
            assert values(q[key]).tobytes() == whole[key].tobytes()
    for wrong in (np.s_[:, 1:], np.s_[:, : length - 1], np.s_[:, length // 2 : length]):
        with pytest.raises(ValueError, match=rf"multiples of {length} columns, and at the end, 384"):
            q[wrong]
    if lines > 1:
        with pytest.raises(ValueError, match=rf"multiples of {lines} rows, and at the end, 256"):
            q[1:]
    with pytest.raises(ValueError, match=rf"multiples of {length} rows"):
        quantized(name, NORMAL[0], -2)[1:]


@pytest.mark.parametrize("name", NAMES)
def test_stacks(name):
    q = quantized(name, NORMAL)
    whole = values(q)
    for key in (np.s_[1], np.s_[-1], np.s_[1:], np.s_[1:2], np.s_[1, 128:, :128], np.s_[..., 128:256], np.s_[2, ...],
                np.s_[:, :, 256:], np.s_[1:2, 128:], np.s_[3:], np.s_[-1, :128], np.s_[1:, ..., :128]):  # fmt: skip
        assert q[key].shape == whole[key].shape
        assert values(q[key]).tobytes() == np.ascontiguousarray(whole[key]).tobytes(), key
    with pytest.raises(BufferError, match=r"slice each tensor of the stack, q\[k\]"):
        q[:, :128]
    with pytest.raises(IndexError):
        q[3]
    with pytest.raises(TypeError, match="not a stack along dimension 1"):
        q[0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_stacks_with_blocks_along_columns(name):
    """Columns run through the whole stack: it can be cut where blocks end."""
    q = quantized(name, NORMAL, -2)
    whole = values(q)
    for key in (np.s_[1], np.s_[1:], np.s_[0, 128:, 128:], np.s_[..., :128]):
        assert values(q[key]).tobytes() == np.ascontiguousarray(whole[key]).tobytes(), key


def test_leading_dimensions():
    x = NORMAL.reshape(3, 2, 128, 384)
    q = dlfp4.quantize(x, "nvfp4")
    whole = values(q)
    for key in (np.s_[1, 1], np.s_[1, :1], np.s_[0, 1, 16:32, 16:], np.s_[1:, :, :], np.s_[2, 1:2, 5:]):
        assert values(q[key]).tobytes() == np.ascontiguousarray(whole[key]).tobytes()
    for key in (np.s_[:, 1], np.s_[:, :, 3:], np.s_[1:, :1]):
        with pytest.raises(BufferError, match="do not follow one another"):
            q[key]


def test_vectors():
    q = dlfp4.quantize(NORMAL[0, 0], "nvfp4")
    assert values(q[16:48]).tobytes() == values(q)[16:48].tobytes()
    with pytest.raises(TypeError, match="not a stack"):
        q[3]


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3"])
@pytest.mark.parametrize("axis", [-1, -2])
def test_incomplete_last_blocks(name, axis):
    """Zeros that complete the last block go with it."""
    x = NORMAL[0, :72, :72]
    q = quantized(name, x, axis, pad=True)
    whole = values(q)
    for key in (np.s_[32:, 32:], np.s_[64:, 64:], np.s_[:32, :32], np.s_[64:], np.s_[:, 64:]):
        part = q[key]
        assert values(part).tobytes() == np.ascontiguousarray(whole[key]).tobytes()
        assert part[...].nbytes == part.nbytes
    with pytest.raises(ValueError, match="cut through blocks"):
        q[:70] if axis == -2 else q[:, :70]


@pytest.mark.parametrize("axis", [-1, -2])
def test_short_last_blocks(axis):
    q = quantized("fp8_128x128", NORMAL[0, :200, :300], axis)
    whole = values(q)
    for key in (np.s_[128:, 256:], np.s_[:, 128:], np.s_[128:200, 128:300]):
        assert values(q[key]).tobytes() == np.ascontiguousarray(whole[key]).tobytes()


# ---- slices serve wherever a tensor does -----------------------------------------------------------------------------


def parts_of_parts(q):
    """Rows, columns, both, and slices of slices."""
    yield q[128:]
    yield q[:, 128:]
    yield q[:, 128:256]
    yield q[128:, 128:][:, 128:256]


@pytest.mark.parametrize("name", NAMES)
def test_products(name):
    q = quantized(name, NORMAL[0])
    for w in parts_of_parts(q):
        exact = values(w).astype(np.float64)
        for rows in (1, 3, 40):
            x = NORMAL[1, :rows, : w.shape[1]]
            bound = np.abs(x).astype(np.float64) @ np.abs(exact.T) * w.shape[1] * 2.0**-24
            error = np.abs(dlfp4.matmul(x, w.mT).to_numpy() - x.astype(np.float64) @ exact.T)
            assert (error <= bound + 1e-30).all()
        sums = dlfp4.vecdot(w, w).to_numpy()
        assert np.allclose(sums, (exact**2).sum(-1), rtol=1e-5)
    across = quantized(name, NORMAL[0], -2)[:, 128:256]
    assert np.allclose(
        dlfp4.matmul(NORMAL[1, :4, :256], across), NORMAL[1, :4, :256] @ values(across), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", NAMES)
def test_all_that_takes_tensors(name, axis, tmp_path):
    q = quantized(name, NORMAL[0], axis)
    for part in parts_of_parts(q):
        expected = values(part).tobytes()
        assert values(pickle.loads(pickle.dumps(part))).tobytes() == expected
        checkpoints.save(tmp_path / "part.safetensors", {"w": part})
        assert values(checkpoints.load(tmp_path / "part.safetensors")["w"]).tobytes() == expected
        assert values(part.mT).tobytes() == np.ascontiguousarray(values(part).T).tobytes()
        proto = dlfp4.TensorProto.of(part)
        assert values(proto.unflatten(proto.flatten(part))).tobytes() == expected
        assert part.dequantize("bfloat16").to_numpy().tobytes() == part.dequantize().to_numpy().astype(
            part.dequantize("bfloat16").dtype).tobytes()  # fmt: skip
        if q.scales.dtype.itemsize == 1:
            swizzled = part.with_scale_layout("128x4")
            assert values(swizzled).tobytes() == expected
            assert values(swizzled.with_scale_layout("linear")).tobytes() == expected
        again = dlfp4.ScaledTensor.from_parts(
            part.data,
            part.scales,
            part.global_scale,
            format=name,
            axis=axis,
            shape=part.shape,
            **offset_parts(part),
        )
        assert values(again).tobytes() == expected


def test_conventions_and_ggml_take_slices(tmp_path):
    q = dlfp4.quantize(NORMAL[0], "nvfp4")
    for part in parts_of_parts(q):
        for convention in ("modelopt", "compressed-tensors"):
            joined = checkpoints.join_parts(checkpoints.split_parts({"w": part}, convention))["w"]
            assert joined.data.to_numpy().tobytes() == part.data.to_numpy().tobytes()
            assert joined.scales.to_numpy().tobytes() == part.scales.to_numpy().tobytes()
        back = checkpoints.from_ggml(checkpoints.to_ggml(part), "nvfp4", part.shape, global_scale=part.global_scale)
        assert values(back).tobytes() == values(part).tobytes()
    q = dlfp4.quantize(NORMAL[0], "mxfp4")
    for part in parts_of_parts(q):
        (joined,) = checkpoints.join_parts(checkpoints.split_parts({"w": part}, "gpt-oss")).values()
        assert values(joined).tobytes() == values(part).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_slices_are_written_to(name):
    """`out` may be a slice; nothing around it changes, but for the global scale, which all share."""
    q = quantized(name, NORMAL[0])
    options = {"global_scale": q.global_scale} if q.global_scale is not None else {}
    part, rest = q[128:, 128:256], q[:128]
    before = values(rest).tobytes(), values(q[128:, 256:]).tobytes()
    dlfp4.quantize(NORMAL[1][128:, 128:256] / 2, name, out=part, **options)
    expected = dlfp4.quantize(NORMAL[1][128:, 128:256] / 2, name, **options)
    assert values(part).tobytes() == values(expected).tobytes()
    if FORMATS[name].block is not None and FORMATS[name].block[1] is not None:
        assert (values(rest).tobytes(), values(q[128:, 256:]).tobytes()) == before


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes():
    q = dlfp4.quantize(NORMAL[0], "nvfp4")
    with pytest.raises(ValueError, match="step of 2"):
        q[::2]
    with pytest.raises(ValueError, match="step of -1"):
        q[::-1]
    with pytest.raises(ValueError, match=r"with_scale_layout\('linear'\)"):
        q.with_scale_layout("128x4")[:128]
    with pytest.raises(IndexError, match="3 indices"):
        q[:, :, :]
    with pytest.raises(IndexError, match="one ellipsis"):
        q[..., ...]
    for wrong in (None, 1.0, True, "a", [1], np.array([1, 2])):
        with pytest.raises(TypeError, match="takes slices on block borders"):
            q[wrong]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_a_tensor_too(name, axis):
    """Between any two elements, with parts that belong together."""
    q = dlfp4.quantize(make("normal", (256, 128)), name, axis=axis)
    for key in (np.s_[5:5], np.s_[256:], np.s_[:, 7:7], np.s_[:, 128:]):
        part = q[key]
        assert part.dequantize().to_numpy().shape == q.dequantize().to_numpy()[key].shape
        again = pickle.loads(pickle.dumps(part))
        assert (again.shape, again.scales.shape) == (part.shape, part.scales.shape)
        assert dlfp4.TensorProto.of(part).allocate().scales.shape == part.scales.shape


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_has_whole_blocks(name, axis):
    """What is empty may be cut within a block, and has the memory that such a tensor has."""
    q = quantized(name, NORMAL[0, :130, :130], axis, pad=True)
    for key in (np.s_[5:5, 3:7], np.s_[3:7, 5:5], np.s_[:0, 1:130], np.s_[1:130, :0]):
        part = q[key]
        made = dlfp4.TensorProto.of(part).allocate()
        again = pickle.loads(pickle.dumps(part))
        for each in (made, again):
            assert (each.shape, each.data.shape, each.scales.shape) == (part.shape, part.data.shape, part.scales.shape)


@pytest.mark.parametrize("per", ["tensor", "row", "matrix"])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "fp8_row", "fp8_128x128", "uint4_g32"])
def test_nothing_of_a_stack(name, per):
    """Rows need not follow one another where there is nothing of them."""
    x = NORMAL[:, :64, :128]
    if name != "nvfp4" and per != "tensor":
        pytest.skip("it has no global scale")
    recipe = None if per == "tensor" else dlfp4.Recipe(global_scale_per=per)
    q = dlfp4.quantize(x, name, recipe=recipe)
    cuts = [slice(None), slice(0), slice(1, 1), slice(1), slice(1, 2), slice(5, 2)]
    empty = [key for key in itertools.product(cuts, cuts, cuts) if not x[key].size]
    assert len(empty) > 100
    for key in [*empty, np.s_[1, 0:0], np.s_[1, 3:5, 0:0], np.s_[:0, ..., 3:7]]:
        part, pad = q[key], name in ("nvfp4", "mxfp4", "uint4_g32")
        own = None if part.ndim < 3 and per == "matrix" else recipe
        expected = dlfp4.quantize(x[key].copy(), name, recipe=own, pad=pad)
        assert part.shape == x[key].shape
        assert (part.data.shape, part.scales.shape) == (expected.data.shape, expected.scales.shape)
        if name == "nvfp4":
            assert part.global_scale.size == expected.global_scale.size, key
        assert pickle.loads(pickle.dumps(part)).shape == part.shape


@pytest.mark.parametrize("axis", [-1, -2])
def test_nothing_was_transformed(axis):
    q = dlfp4.quantize(NORMAL[0], "fp8_row", axis=axis, hadamard=7)
    for key in (np.s_[5:5, 3:7], np.s_[3:7, 5:5]):
        again = pickle.loads(pickle.dumps(q[key]))
        assert (again.shape, again.hadamard) == (q[key].shape, q.hadamard)
