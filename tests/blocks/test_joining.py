"""concatenate and stack: parts side by side, under one scale of the whole tensor, with no value silently wrong."""

import itertools

import numpy as np
import pytest

import dlfp4

from ..support.block_reference import FORMATS, LINES, TWO_LEVEL
from .test_transcode import values

F = np.float32
WHOLE = [name for name in FORMATS if FORMATS[name].block is None]
BLOCKS = [name for name in FORMATS if name not in (*WHOLE, *LINES)]
NORMAL = np.random.default_rng(8).standard_normal((4, 256, 384)).astype(F)


def errors(before, after):
    """Of rows of 16: the largest change over the largest magnitude."""
    before, after = (x.astype(np.float64).reshape(-1, 16) for x in (before, after))
    size = np.abs(before).max(-1)
    change = np.abs(before - after).max(-1)
    return np.where(change == 0, 0, change / np.where(size, size, 1))


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("along", [0, 1, -1])
@pytest.mark.parametrize("name", BLOCKS)
def test_matrices(name, along, axis):
    """Under one global scale nothing changes."""
    whole = dlfp4.quantize(NORMAL[0], name, axis=axis)
    parts = [whole[:128], whole[128:]] if along == 0 else [whole[:, :128], whole[:, 128:256], whole[:, 256:]]
    q = dlfp4.concatenate(parts, along)
    assert (q.shape, q.format, q.axis, q.scale_layout) == (whole.shape, name, axis, "linear")
    assert values(q).tobytes() == values(whole).tobytes()
    assert q.data.to_numpy().tobytes() == whole.data.to_numpy().tobytes()
    assert q.scales.to_numpy().tobytes() == whole.scales.to_numpy().tobytes()
    assert q.receipt.is_exact
    assert q.receipt.blocks == sum(dlfp4.concatenate([part]).receipt.blocks for part in parts)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("lines", [1, 5, 16, 33])
def test_incomplete_squares_are_counted(lines, axis):
    """As `to` counts them, whose receipt has the blocks of the tensor as well."""
    x = NORMAL[0, :lines, :64] if axis == -1 else NORMAL[0, :64, :lines]
    q = dlfp4.quantize(np.ascontiguousarray(x), "nvfp4_16x16", axis=axis, pad=True)
    expected = dlfp4.Receipt(-(-lines // 16) * 4, -(-lines // 16) * 4, 0.0)
    assert dlfp4.concatenate([q]).receipt == q.to("nvfp4").receipt == expected


@pytest.mark.parametrize("name", BLOCKS)
def test_stacks_of_stacks(name):
    """Along every axis, such as gate and up of all experts."""
    x = NORMAL
    unit = {"global_scale": 1 / 512} if name in TWO_LEVEL else {}
    for along, pieces in ((0, (x[:1], x[1:])), (1, (x[:, :128], x[:, 128:])), (2, (x[..., :128], x[..., 128:]))):
        q = dlfp4.concatenate([dlfp4.quantize(np.ascontiguousarray(piece), name, **unit) for piece in pieces], along)
        assert q.shape == x.shape
        assert values(q).tobytes() == values(dlfp4.quantize(x, name, **unit)).tobytes()
    for along in (0, -1):
        pieces = (x[:1], x[1:]) if along == 0 else (x[..., :128], x[..., 128:])
        q = dlfp4.concatenate([dlfp4.quantize(np.ascontiguousarray(p), name, axis=-2, **unit) for p in pieces], along)
        assert values(q).tobytes() == values(dlfp4.quantize(x, name, axis=-2, **unit)).tobytes()


@pytest.mark.parametrize("name", LINES)
def test_lines_that_have_one_scale(name):
    """They are joined as they are, and none is made longer."""
    q = dlfp4.concatenate([dlfp4.quantize(NORMAL[0, :100], name), dlfp4.quantize(NORMAL[0, 100:], name)])
    assert values(q).tobytes() == values(dlfp4.quantize(NORMAL[0], name)).tobytes()
    stacked = dlfp4.stack([dlfp4.quantize(x, name) for x in NORMAL])
    assert values(stacked[1]).tobytes() == values(dlfp4.quantize(NORMAL[1], name)).tobytes()
    with pytest.raises(ValueError, match="one scale for each line"):
        dlfp4.concatenate([dlfp4.quantize(x, name) for x in NORMAL[:2]], 1)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", LINES)
def test_longer_lines_under_equal_scales(name, axis):
    """Parts of one tensor, that were cut apart."""
    whole = dlfp4.quantize(NORMAL[0], name, axis=axis)
    parts, along = ([whole[:, :130], whole[:, 130:]], 1) if axis == -1 else ([whole[:130], whole[130:]], 0)
    q = dlfp4.concatenate(parts, along)
    assert values(q).tobytes() == values(whole).tobytes()
    assert (q.scales.shape, q.receipt.is_exact) == (whole.scales.shape, True)


def test_lines_of_four_bits_end_at_bytes():
    q = dlfp4.quantize(NORMAL[0, :, :33], "int4_row", pad=True)
    with pytest.raises(ValueError, match=r"33 columns to join.*multiples of 2"):
        dlfp4.concatenate([q, q], 1)


def test_other_types_of_scales():
    q = dlfp4.quantize(NORMAL[0], "fp8_1x128", recipe=dlfp4.Recipe(scale_dtype="bfloat16"))
    with pytest.raises(ValueError, match="the type of their scales: bfloat16 and float32; quantize them alike"):
        dlfp4.concatenate([q, dlfp4.quantize(NORMAL[1], "fp8_1x128")])
    assert values(dlfp4.concatenate([q, q])).tobytes() == 2 * values(q).tobytes()


def test_vectors_and_ragged_ends():
    x = NORMAL[0, 0]
    q = dlfp4.concatenate([dlfp4.quantize(x[:128], "mxfp4"), dlfp4.quantize(x[128:], "mxfp4")])
    assert values(q).tobytes() == values(dlfp4.quantize(x, "mxfp4")).tobytes()
    x = NORMAL[0, :, :300]
    q = dlfp4.concatenate([dlfp4.quantize(x[:, :256], "fp8_128x128"), dlfp4.quantize(x[:, 256:], "fp8_128x128")], 1)
    assert values(q).tobytes() == values(dlfp4.quantize(x, "fp8_128x128")).tobytes()
    q = dlfp4.concatenate([dlfp4.quantize(x[:128], "fp8_128x128"), dlfp4.quantize(x[128:200], "fp8_128x128")])
    assert values(q).tobytes() == values(dlfp4.quantize(x[:200], "fp8_128x128")).tobytes()
    x = NORMAL[0, :32, :72]
    parts = [
        dlfp4.quantize(x[:, :64], "nvfp4", global_scale=1.0),
        dlfp4.quantize(x[:, 64:], "nvfp4", global_scale=1.0, pad=True),
    ]
    q = dlfp4.concatenate(parts, 1)
    assert values(q).tobytes() == values(dlfp4.quantize(x, "nvfp4", global_scale=1.0, pad=True)).tobytes()


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_16x16", "mxfp4", "fp8_e4m3", "fp8_row", "uint4_row", "int4_g32"])
def test_what_is_joined_shares_no_memory(name):
    """Also the scales that all have, and what is made of one tensor."""
    other = 8 * NORMAL[1:3]
    for join in (
        lambda q: dlfp4.concatenate([q]),
        lambda q: dlfp4.concatenate([q, q]),
        lambda q: dlfp4.concatenate([q, q], -1),
        lambda q: dlfp4.concatenate([q, q[..., :0]], -1),
        lambda q: dlfp4.concatenate([q[1], q[1]]),
        lambda q: dlfp4.stack([q]),
        lambda q: dlfp4.stack([q, q]),
        lambda q: dlfp4.stack([q[0], q[0]]),
    ):
        q = dlfp4.quantize(NORMAL[:2], name)
        joined = join(q)
        before = values(joined).tobytes()
        dlfp4.quantize(other, name, out=q)
        assert values(joined).tobytes() == before


@pytest.mark.parametrize("name", BLOCKS)
def test_stack(name):
    parts = [dlfp4.quantize(x, name) for x in NORMAL]
    q = dlfp4.stack(parts)
    assert q.shape == NORMAL.shape
    assert q.receipt.is_exact
    for k, part in enumerate(parts):
        assert values(q[k]).tobytes() == values(part).tobytes()
    if name in TWO_LEVEL:
        assert q.global_scale.tolist() == [part.global_scale.item() for part in parts]
    across = dlfp4.stack([dlfp4.quantize(x, name, axis=-2) for x in NORMAL[:2]])
    assert (across.shape, across.axis) == ((2, 256, 384), -2)


# ---- Global scales


def powers_apart(name, axis=-1):
    """gate and up whose global scales differ by a power of two."""
    x = NORMAL[0]
    return [dlfp4.quantize(x, name, axis=axis), dlfp4.quantize(x * F(4), name, axis=axis)]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", TWO_LEVEL)
def test_ratios_that_are_powers_of_two_are_exact(name, axis):
    gate, up = powers_apart(name, axis)
    ratio = up.global_scale.item() / gate.global_scale.item()
    assert ratio == 4
    for parts in ([gate, up], [up, gate], [gate, up, gate]):
        q = dlfp4.concatenate(parts, 0 if axis == -1 else 1)
        assert q.receipt.is_exact
        assert q.receipt.largest_error == 0
        expected = np.concatenate([values(part) for part in parts], 0 if axis == -1 else 1)
        assert values(q).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", TWO_LEVEL)
@pytest.mark.parametrize("ratio", [2.14, 1.0000001, 0.3, 700.0, 1e-4, 1e6])
def test_no_value_is_silently_wrong(name, ratio):
    """gate and up under global scales of any ratio: what the receipt says is what comes out."""
    gate, up = dlfp4.quantize(NORMAL[0], name), dlfp4.quantize(NORMAL[1] * F(ratio), name)
    q = dlfp4.concatenate([gate, up])
    before, after = np.concatenate([values(gate), values(up)]), values(q)
    found = errors(before, after)
    if name == "nvfp4":
        assert q.receipt.blocks == found.size
        assert q.receipt.exact == (found == 0).sum()
    assert q.receipt.largest_error == pytest.approx(found.max(), rel=1e-5)
    assert q.receipt.exact >= q.receipt.blocks // 2  # of one of the two
    assert len({part.global_scale.item() for part in (q[:256], q[256:])}) == 1
    if 1e-4 < ratio < 1e4 and name == "nvfp4":
        assert found.max() <= 2.0**-4 + 1e-6


def test_the_best_global_scale_of_all():
    """No other global scale keeps more blocks exact."""
    rng = np.random.default_rng(2)
    for seed in range(5):
        sizes = [F(2.0**k * 1.3 ** (seed * k)) for k in range(3)]
        x = [rng.standard_normal((16 * (k + 1), 64)).astype(F) * size for k, size in enumerate(sizes)]
        parts = [dlfp4.quantize(each, "nvfp4") for each in x]
        q = dlfp4.concatenate(parts)
        before = np.concatenate([values(part) for part in parts])
        for part, power in itertools.product(parts, range(-6, 7)):
            unit = part.global_scale.item() * 2.0**power
            scales = [dlfp4.cast(p.scales, "float32").to_numpy() * F(p.global_scale.item() / unit) for p in parts]
            other = [dlfp4.ScaledTensor.from_parts(p.data, dlfp4.cast(s, "float8_e4m3fn"), unit, format="nvfp4")
                     for p, s in zip(parts, scales, strict=True)]  # fmt: skip
            after = np.concatenate([values(each) for each in other])
            assert (errors(before, after) == 0).sum() <= q.receipt.exact


def test_scales_beyond_e4m3():
    """Blocks whose scales leave E4M3's normal numbers get new codes, so that they do not vanish."""
    small = dlfp4.quantize(NORMAL[0] * F(2.0**-15), "nvfp4")
    large = dlfp4.quantize(np.tile(NORMAL[1], (4, 1)), "nvfp4")
    q = dlfp4.concatenate([small, large])
    before = values(small)
    kept = values(q[:256])
    assert np.abs(kept - before).max() <= np.abs(before).max() * 0.26
    rescaled = dlfp4.cast(small.scales, "float32").to_numpy() * F(small.global_scale.item() / q.global_scale.item())
    naive = dlfp4.ScaledTensor.from_parts(
        small.data, dlfp4.cast(rescaled, "float8_e4m3fn"), q.global_scale, format="nvfp4"
    )
    assert ((kept - before) ** 2).sum() < ((values(naive) - before) ** 2).sum()
    found = errors(np.concatenate([before, values(large)]), values(q))
    assert q.receipt.largest_error == pytest.approx(found.max(), rel=1e-5)


def test_no_global_scale_counts_as_one():
    q = dlfp4.quantize(NORMAL[0], "nvfp4", global_scale=1.0)
    bare = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format="nvfp4")
    parts = [bare, q]
    assert values(dlfp4.concatenate(parts)).tobytes() == np.concatenate([values(q), values(q)]).tobytes()
    assert dlfp4.concatenate([bare, bare]).global_scale is None


@pytest.mark.parametrize("name", WHOLE)
def test_one_scale_a_tensor(name):
    first, second = dlfp4.quantize(NORMAL[0], name), dlfp4.quantize(NORMAL[1] * F(3), name)
    q = dlfp4.concatenate([first, second])
    before, after = np.concatenate([values(first), values(second)]), values(q)
    assert q.scales.item() == max(first.scales.item(), second.scales.item())
    assert after[256:].tobytes() == before[256:].tobytes()
    error = np.abs(after - before)[:256].max() / np.abs(before[:256]).max()
    assert (q.receipt.blocks, q.receipt.exact) == (2, 1)
    assert q.receipt.largest_error == pytest.approx(error, rel=1e-5)
    assert error < 2.0**-3
    same = dlfp4.concatenate([first, first], -1)
    assert same.receipt.is_exact
    assert values(same).tobytes() == np.concatenate([values(first), values(first)], 1).tobytes()


# ---- Global scales of rows and of matrices


def per(unit, x, name="nvfp4", **options):
    return dlfp4.quantize(x, name, recipe=dlfp4.Recipe(global_scale_per=unit), **options)


SIZES = np.array([1, 7, 0.3, 100], F).reshape(4, 1, 1)


@pytest.mark.parametrize("along", [0, 1])
def test_rows_keep_their_global_scales(along):
    """Of stacks as well, between whose matrices rows are put, and beside tensors that have one, or none."""
    x = NORMAL * SIZES
    parts = [per("row", x), dlfp4.quantize(x * F(3), "nvfp4"), dlfp4.quantize(x, "nvfp4", recipe="mlx", global_scale=1)]
    q = dlfp4.concatenate(parts, along)
    assert values(q).tobytes() == np.concatenate([values(part) for part in parts], along).tobytes()
    assert (q.global_scale.shape, q.receipt.is_exact) == ((12 * 256,), True)


def test_columns_keep_their_global_scales():
    parts = [per("row", NORMAL[0], axis=-2), per("row", NORMAL[1] * F(5), axis=-2)]
    q = dlfp4.concatenate(parts, 1)
    assert values(q).tobytes() == np.concatenate([values(part) for part in parts], 1).tobytes()
    assert q.global_scale.tolist() == [unit for part in parts for unit in part.global_scale.tolist()]


@pytest.mark.parametrize("axis", [-1, -2])
def test_longer_lines_under_equal_global_scales(axis):
    q = per("row", NORMAL[0], axis=axis)
    parts, along = ([q[:, :128], q[:, 128:]], 1) if axis == -1 else ([q[:128], q[128:]], 0)
    joined = dlfp4.concatenate(parts, along)
    assert values(joined).tobytes() == values(q).tobytes()
    assert joined.global_scale.tolist() == q.global_scale.tolist()
    with pytest.raises(ValueError, match="one global scale for each line, and the tensors' differ"):
        dlfp4.concatenate([q, per("row", NORMAL[1], axis=axis)], along)


@pytest.mark.parametrize("name", TWO_LEVEL)
def test_experts_keep_their_global_scales(name):
    x = NORMAL * SIZES
    whole, one = per("matrix", x, name), dlfp4.quantize(x[1:3], name)
    assert dlfp4.concatenate([whole[:1], whole[1:]]).global_scale.tolist() == whole.global_scale.tolist()
    q = dlfp4.concatenate([whole, one])
    assert values(q).tobytes() == values(whole).tobytes() + values(one).tobytes()
    assert q.global_scale.tolist() == whole.global_scale.tolist() + 2 * [one.global_scale.item()]
    stacked = dlfp4.stack([whole, whole])
    assert (stacked.shape, stacked.global_scale.shape) == ((2, *x.shape), (8,))
    assert values(stacked).tobytes() == 2 * values(whole).tobytes()
    assert stacked[1].global_scale.tolist() == whole.global_scale.tolist()


@pytest.mark.parametrize("name", TWO_LEVEL)
def test_stacks_keep_their_global_scales(name):
    """They become those of their matrices; along columns, where blocks run through the stack, there is one."""
    first, second = dlfp4.quantize(NORMAL[:1], name), dlfp4.quantize(NORMAL[1:] * F(3), name)
    q = dlfp4.concatenate([first, second])
    assert q.receipt.is_exact
    assert values(q).tobytes() == values(first).tobytes() + values(second).tobytes()
    assert q.global_scale.tolist() == [first.global_scale.item()] + 3 * [second.global_scale.item()]
    stacked = dlfp4.stack([second, dlfp4.quantize(NORMAL[:3], name)])
    assert (stacked.receipt.is_exact, stacked.global_scale.shape) == (True, (6,))
    across = [dlfp4.quantize(x, name, axis=-2) for x in (NORMAL[:2], NORMAL[2:] * F(4))]
    assert dlfp4.concatenate(across).global_scale.shape == ()


@pytest.mark.parametrize("shape", [(0, 64, 128), (2, 0, 128), (2, 64, 0)])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_32x32", "int4_g32", "fp8_e4m3", "fp8_row"])
def test_nothing(name, shape):
    q = dlfp4.quantize(np.zeros(shape, F), name)
    for along in range(3):
        joined = dlfp4.concatenate([q, q], along)
        assert joined.shape == np.concatenate([values(q)] * 2, along).shape
        assert joined.receipt.blocks == (2 if name == "fp8_e4m3" and shape[along] else q.scales.size)
    if name == "nvfp4":
        rows, matrices = (per(part, np.zeros(shape, F)) for part in ("row", "matrix"))
        assert dlfp4.concatenate([rows, rows]).shape == (2 * shape[0], *shape[1:])
        assert dlfp4.concatenate([matrices, matrices]).global_scale.shape == (2 * shape[0],)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("along", [0, 1, -1])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_empty_adds_nothing(name, along, axis):
    """Neither elements nor a scale, wherever it stands."""
    q = dlfp4.quantize(NORMAL[0] / 1000, name, axis=axis)
    empty = dlfp4.quantize(NORMAL[0, :0] if along == 0 else NORMAL[0, :, :0], name, axis=axis)
    for given in ([q, empty], [empty, q], [empty, q, empty]):
        joined = dlfp4.concatenate(given, along)
        assert values(joined).tobytes() == values(q).tobytes()
        assert joined.receipt == dlfp4.concatenate([q]).receipt
    nothing = dlfp4.concatenate([empty, empty], along)
    assert (nothing.shape, nothing.axis) == (empty.shape, axis)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [*((name, None) for name in WHOLE), *itertools.product(TWO_LEVEL, (None, "modelopt", "compressed-tensors"))],
)
def test_zeros_choose_no_scale(name, recipe):
    """Their own, 1 or so, is far above that of any weight, which would be rounded to it."""
    q, zero = (dlfp4.quantize(x, name, recipe=recipe) for x in (NORMAL[0] / 100000, -0 * NORMAL[0]))
    for given, part in (([q, zero], slice(0, 256)), ([zero, q], slice(256, 512)), ([zero, q, zero], slice(256, 512))):
        joined = dlfp4.concatenate(given)
        assert joined.receipt.is_exact
        assert values(joined[part]).tobytes() == values(q).tobytes()
        assert np.count_nonzero(values(joined)) == np.count_nonzero(values(q))
    if name in TWO_LEVEL:
        assert dlfp4.concatenate([q, zero])[256:].scales.view("uint8").tolist() == zero.scales.view("uint8").tolist()


@pytest.mark.parametrize("name", TWO_LEVEL)
def test_nan_is_no_zero(name):
    """A block of NaN may have zeros as codes."""
    block = np.full((256, 384), np.nan, F)
    joined = dlfp4.concatenate([dlfp4.quantize(x, name) for x in (NORMAL[0] / 1000, block)])
    assert np.isnan(values(joined)[256:]).all()
    assert np.isfinite(values(joined)[:256]).all()


def test_rows_are_stacked():
    parts = [per("row", x) for x in NORMAL[:2] * SIZES[:2]]
    q = dlfp4.stack([*parts, dlfp4.quantize(NORMAL[2], "nvfp4")])
    assert values(q).tobytes() == b"".join(values(dlfp4.quantize(NORMAL[2], "nvfp4")) if k == 2 else values(parts[k])
                                           for k in range(3))  # fmt: skip
    assert (q.global_scale.shape, q[1].global_scale.tolist()) == ((3 * 256,), parts[1].global_scale.tolist())


@pytest.mark.parametrize("name", TWO_LEVEL)
@pytest.mark.parametrize("along", [1, 2, -1])
def test_gate_and_up_of_experts(name, along):
    """Each expert is joined as if it were alone."""
    gate, up = per("matrix", NORMAL * SIZES, name), per("matrix", NORMAL[::-1] * SIZES, name)
    q = dlfp4.concatenate([gate, up], along)
    alone = [dlfp4.concatenate([gate[k], up[k]], along - 1 if along > 0 else -1) for k in range(4)]
    assert values(q).tobytes() == b"".join(values(each).tobytes() for each in alone)
    assert q.global_scale.tolist() == [each.global_scale.item() for each in alone]
    assert (q.receipt.blocks, q.receipt.exact) == tuple(
        sum(getattr(each.receipt, field) for each in alone) for field in ("blocks", "exact")
    )
    assert q.receipt.exact < q.receipt.blocks
    same = dlfp4.concatenate([gate, gate], along)
    assert same.receipt.is_exact
    assert values(same).tobytes() == np.concatenate([values(gate)] * 2, along).tobytes()


def encoded(q, encode_scale):
    return dlfp4.ScaledTensor.from_parts(q.data, q.scales, format="nvfp4", shape=q.shape, encode_scale=encode_scale)


def test_encode_scales_stay():
    """Of 17 % of all numbers no reciprocal leads back to the same bits."""
    numbers = np.array([1234.567, 1.7e3, 3.3, 0.9], F)
    experts = [encoded(dlfp4.quantize(x, "nvfp4"), number) for x, number in zip(NORMAL, numbers, strict=True)]
    q = dlfp4.stack(experts)
    assert q.encode_scale.tolist() == numbers.tolist()
    assert q.global_scale.tolist() == [each.global_scale.item() for each in experts]
    assert dlfp4.concatenate([q, q]).encode_scale.tolist() == 2 * numbers.tolist()
    assert dlfp4.concatenate([experts[0], experts[0]]).encode_scale.item() == numbers[0]
    assert dlfp4.concatenate(experts[:2]).encode_scale is None
    assert dlfp4.concatenate([q, dlfp4.stack([dlfp4.quantize(x, "nvfp4") for x in NORMAL])]).encode_scale is None
    for k in range(4):
        assert (q[k].encode_scale.shape, q[k].encode_scale.item()) == ((), numbers[k])
    assert q[1:3].encode_scale.tolist() == numbers[1:3].tolist()
    assert q[:, :, 128:].encode_scale.tolist() == numbers.tolist()
    for joined in (dlfp4.concatenate([q]), dlfp4.concatenate([experts[0], experts[0]])):
        assert joined.encode_scale.data_ptr not in {each.encode_scale.data_ptr for each in (q, experts[0])}


def test_encode_scales_of_longer_rows_stay():
    numbers = np.linspace(1, 3, 256, dtype=F)
    q = encoded(dlfp4.quantize(NORMAL[0], "nvfp4"), numbers)
    joined = dlfp4.concatenate([q[:, :128], q[:, 128:]], 1)
    assert joined.encode_scale.tolist() == numbers.tolist()
    assert values(joined).tobytes() == values(q).tobytes()


# ---- Mistakes


def test_mistakes():
    q = dlfp4.quantize(NORMAL[0], "nvfp4")
    for wrong, error, message in (
        ([], ValueError, "empty"),
        (q, TypeError, "in a list"),
        (None, TypeError, "tensors is of type NoneType; expected several ScaledTensors, in a list"),
        (np.array(3), TypeError, "tensors is of type ndarray; expected several ScaledTensors, in a list"),
        ([q, NORMAL[0]], TypeError, "quantize it"),
        ([q, dlfp4.quantize(NORMAL[0], "mxfp4")], ValueError, r"\.to\('nvfp4'\)"),
        ([q, dlfp4.quantize(NORMAL[0], "nvfp4", axis=-2)], ValueError, "the axis of their blocks: -1 and -2; quantize"),
        ([q, dlfp4.quantize(NORMAL, "nvfp4")], ValueError, "differ in rank: 2 and 3; index the larger one"),
        ([q, q[:, :128]], ValueError, "but along axis 0"),
    ):
        with pytest.raises(error, match=message):
            dlfp4.concatenate(wrong)
    with pytest.raises(ValueError, match="2 dimensions"):
        dlfp4.concatenate([q, q], 2)
    with pytest.raises(TypeError, match="axis=None is of type NoneType; expected an integer"):
        dlfp4.concatenate([q, q], None)
    with pytest.raises(ValueError, match=r"differ; expected equal ones$"):
        dlfp4.stack([q, q[:128]])
    ragged = dlfp4.quantize(NORMAL[0, :, :300], "fp8_128x128")
    with pytest.raises(ValueError, match="end at multiples of 128"):
        dlfp4.concatenate([ragged, ragged], 1)
    with pytest.raises(ValueError, match="end at multiples of 128"):
        dlfp4.stack([dlfp4.quantize(NORMAL[0, :100], "fp8_128x128")] * 2)
    stack = dlfp4.quantize(NORMAL, "nvfp4", axis=-2)
    with pytest.raises(ValueError, match="axis 0 or -1"):
        dlfp4.concatenate([stack, stack], 1)


def test_global_scales_near_the_largest():
    """Products of scales that float32 does not hold are compared all the same, without a warning."""
    q = dlfp4.quantize(NORMAL[0], "nvfp4")
    large, larger = (
        dlfp4.ScaledTensor.from_parts(q.data, q.scales, 2.0**power, format="nvfp4") for power in (120, 121)
    )
    joined = dlfp4.concatenate([large, larger])
    assert joined.receipt.exact == joined.receipt.blocks


def test_layouts_become_linear():
    q = dlfp4.quantize(NORMAL[0], "mxfp8_e4m3", scale_layout="128x4")
    joined = dlfp4.concatenate([q, q.with_scale_layout("linear")])
    assert joined.scale_layout == "linear"
    assert values(joined).tobytes() == np.concatenate([values(q), values(q)]).tobytes()
