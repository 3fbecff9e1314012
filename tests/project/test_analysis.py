"""dlfp4.analysis: errors by naive loops, formats side by side, global scales; what is refused."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import analysis


def values(shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_t(4, size=shape).astype(np.float32)


def naive(x, decoded):
    """SNR, the mean and the largest."""
    x, noise = x.astype(np.float64), x.astype(np.float64) - decoded
    return 10 * math.log10((x**2).sum() / (noise**2).sum()), (noise**2).mean(), np.abs(noise).max()


@pytest.mark.parametrize(
    ("name", "shape", "axis"),
    [("nvfp4", (6, 64), -1), ("mxfp4", (3, 5, 96), -1), ("fp8_128x128", (200, 300), -1), ("mxfp8_e4m3", (64, 10), -2),
     ("nvfp4", (2, 3, 24, 16), -2), ("fp8_row", (7, 40), -1), ("fp8_e4m3", (9, 33), -1), ("mxfp4", (64,), -1)],
    ids=str,
)  # fmt: skip
def test_error(name, shape, axis):
    x = values(shape)
    q = dlfp4.quantize(x, name, axis=axis, pad=True)
    decoded = q.dequantize().to_numpy().astype(np.float64)
    found = analysis.error(x, q)
    assert (found.snr, found.mse, found.largest) == pytest.approx(naive(x, decoded), rel=1e-12)
    squares = (x - decoded) ** 2
    assert squares[found.place] == squares.max()
    np.testing.assert_allclose(found.by_row, squares.mean(axis=-1), rtol=1e-12)
    np.testing.assert_allclose(found.by_channel, squares.mean(axis=tuple(range(x.ndim - 1))), rtol=1e-12)
    assert found.counts.sum() == x.size
    assert found.edges[0] == (x - decoded).min()
    assert found.edges[-1] == (x - decoded).max()
    rows = squares.reshape(-1, shape[-1])
    lines = rows if axis == -1 else rows.T
    height, width = q.format.block_in(*lines.shape)
    for (row, column), mean in np.ndenumerate(found.by_block):
        block = lines[row * height : (row + 1) * height, column * width : (column + 1) * width]
        assert mean == pytest.approx(block.mean(), rel=1e-12)
    assert found.by_block.shape == (-(-lines.shape[0] // height), -(-lines.shape[1] // width))


def test_errors_of_blocks_lie_as_their_scales():
    """Blocks along columns run on from one matrix to the next, as those of quantize do."""
    shape = 2, 24, 32
    for axis, place in itertools.product((-1, -2), np.ndindex(shape)):
        x = np.ones(shape, np.float32)
        usual = dlfp4.quantize(x, "nvfp4", axis=axis, global_scale=1.0)
        x[place] = 100
        q = dlfp4.quantize(x, "nvfp4", axis=axis, global_scale=1.0)
        changed = q.scales.to_numpy().view(np.uint8) != usual.scales.to_numpy().view(np.uint8)
        by_block = analysis.error(x, q).by_block
        assert changed.sum() == 1
        assert by_block.shape == changed.shape
        assert by_block[changed] > 2 * by_block[~changed].max()


@pytest.mark.parametrize("name", dlfp4.formats())
def test_errors_of_what_has_no_elements(name):
    for shape, axis in (((3, 0), -1), ((0,), -1), ((0, 128), -1), ((0, 128), -2), ((2, 0, 128), -2)):
        x = np.ones(shape, np.float32)
        found = analysis.error(x, dlfp4.quantize(x, name, axis=axis, pad=True))
        assert math.isnan(found.mse)
        assert (found.snr, found.largest, found.counts.sum(), found.by_block.size) == (math.inf, 0, 0, 0)


@pytest.mark.parametrize("noise", [[1e31] * 3, [-1e31] * 2, [1, 1 + 2**-52], [1e-300] * 2, [0.0, -0.0], [5e-324, 0]])
def test_histograms_of_errors_near_to_each_other(noise):
    """There are edges on both sides of each, and none twice."""
    found = analysis.error(np.array(noise), np.zeros(len(noise)))
    assert found.counts.sum() == len(noise)
    assert (np.diff(found.edges) > 0).all()
    assert found.edges[0] <= min(noise) <= max(noise) <= found.edges[-1]


def test_errors_beyond_all_numbers():
    """Without a warning, which is an error here."""
    huge = analysis.error(np.array([1e300]), np.array([-1e300]))
    assert (huge.mse, huge.largest) == (math.inf, 2e300)
    infinite = analysis.error(np.array([np.inf, 1]), np.array([np.inf, 1]))
    assert math.isnan(infinite.snr)
    assert (infinite.place, infinite.counts.sum()) == ((0,), 1)


def test_error_of_plain_values():
    x = values((4, 8))
    rounded = x.astype(ml_dtypes.bfloat16)
    found = analysis.error(x, rounded)
    assert found.by_block is None
    assert (found.snr, found.mse, found.largest) == pytest.approx(naive(x, rounded.astype(np.float64)), rel=1e-12)
    exact = analysis.error(rounded, rounded)
    assert (exact.snr, exact.mse, exact.largest) == (math.inf, 0, 0)
    assert analysis.error(np.zeros((2, 2)), np.ones((2, 2))).snr == -math.inf
    assert analysis.error(np.float32(3), np.float32(2)).mse == 1
    nothing = analysis.error(np.zeros((0, 3)), np.zeros((0, 3)))
    assert (math.isnan(nothing.mse), nothing.largest, nothing.place) == (True, 0, ())


def test_what_is_not_finite_stays_in_its_place():
    x = values((4, 32))
    decoded = x.copy()
    decoded[1, 5] = np.nan
    found = analysis.error(x, decoded)
    assert math.isnan(found.mse)
    assert np.isnan(found.by_row).tolist() == [False, True, False, False]
    assert np.flatnonzero(np.isnan(found.by_channel)).tolist() == [5]
    assert found.counts.sum() == x.size - 1


def test_an_error_prints_its_numbers_alone():
    found = analysis.error(np.ones((64, 128)), np.zeros((64, 128)))
    assert repr(found) == "Error(snr=0.0, mse=1.0, largest=1.0, place=(0, 0))"
    assert found == found  # not by arrays, whose comparison has no truth value


def test_shapes_differ():
    with pytest.raises(ValueError, match=r"x has shape \(2, 3\) and q \(3, 2\)"):
        analysis.error(np.zeros((2, 3)), np.zeros((3, 2)))


def test_the_sample_of_a_small_tensor_is_all_of_it():
    x = dlfp4.asarray(values((64, 128)))
    q = dlfp4.quantize(x, "nvfp4")
    assert analysis.signal_to_noise(x, q) == pytest.approx(analysis.error(x, q).snr, rel=1e-12)


@pytest.mark.parametrize("bits", [0x7F800001, 0xFFC00000, 0x7F800000])
def test_the_ratio_of_what_is_not_finite_does_not_warn(bits):
    """A NaN that signals, a quiet one, an infinity."""
    x = values((64, 64))
    x.view(np.uint32)[3, 5] = bits
    assert not np.isfinite(analysis.signal_to_noise(dlfp4.asarray(x), dlfp4.quantize(x, "mxfp8_e5m2")))


def test_compare():
    tensors = {"first": values((40, 128)), "second": values((16, 96), 1)}
    found = analysis.compare(tensors, ["nvfp4", "mxfp4", dlfp4.formats()["fp8_e4m3"]], [None, "nvidia"])
    ways = [("nvfp4", ""), ("mxfp4", ""), ("mxfp4", "nvidia"), ("fp8_e4m3", "")]
    assert {(row.format, row.recipe) for row in found.rows} >= set(ways)
    for row in found.rows:
        q = dlfp4.quantize(tensors[row.tensor], row.format, recipe=row.recipe or None, pad=True)
        error = analysis.error(tensors[row.tensor], q)
        assert (row.snr, row.mse, row.largest, row.nbytes) == (error.snr, error.mse, error.largest, q.nbytes)
        assert row.bits == 8 * q.nbytes / tensors[row.tensor].size
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(found.ways())
    assert len(set(map(len, lines))) == 1


def test_tables_and_plot(tmp_path):
    pytest.importorskip("rich", reason="rich is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    found = analysis.compare({"first": values((40, 128)), "second": values((16, 96), 1)}, ["nvfp4", "mxfp4"])
    assert found.summary().row_count == len(found.ways())
    narrow = found.tables(width=40)
    assert sum(len(table.columns) - 1 for table in narrow) == len(found.ways())
    assert all(table.row_count == 2 for table in narrow)
    found.plot(tmp_path / "plot.png", title="two")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_compare_with_tensors_of_nothing_and_of_nan():
    """An empty one has no bits an element, and takes none from others; one of NaN has no place in an order."""
    x = values((32, 64))
    broken = x.copy()
    broken[3, 5] = np.nan
    for order in (("x", "broken", "zero"), ("zero", "broken", "x"), ("broken", "x", "zero")):
        found = analysis.compare({name: {"x": x, "broken": broken, "zero": x * 0}[name] for name in order}, "mxfp4")
        assert str(found).split()[-3:] == ["nan"] * 3
    alone = str(analysis.compare({"x": x}, "mxfp4"))
    assert alone.split()[-6] == "mxfp4"
    with_nothing = str(analysis.compare({"nothing": x[:0], "x": x}, "mxfp4"))
    assert with_nothing.split()[-6:-3] == alone.split()[-6:-3]
    assert str(analysis.compare(x[:0], "mxfp4")).split()[-5] == "nan"


def test_compare_takes_one_tensor_and_all_formats():
    found = analysis.compare(values((128, 128)))
    assert [row.format for row in found.rows] == list(dlfp4.formats())
    assert {row.tensor for row in found.rows} == {"x"}


def test_compare_takes_one_format_and_one_recipe():
    (row,) = analysis.compare(values((32, 64)), "mxfp4", "nvidia").rows
    assert (row.format, row.recipe) == ("mxfp4", "nvidia")
    (row,) = analysis.compare(values((32, 64)), dlfp4.formats()["mxfp4"], dlfp4.Recipe(scale_rule="even")).rows
    assert "even" in row.recipe


def test_recipes_that_a_format_does_not_take_are_told():
    found = analysis.compare(values((32, 64)), ["nvfp4", "mxfp4"], [dlfp4.Recipe(scale_rule="even")])
    assert [row.format for row in found.rows] == ["mxfp4"]
    (((format, _), reason),) = found.refused.items()
    assert format == "nvfp4"
    assert "scale_rule" in reason
    with pytest.raises(ValueError, match="nothing to compare: nvfp4"):
        analysis.compare(values((32, 64)), ["nvfp4"], [dlfp4.Recipe(scale_rule="even")])
    with pytest.raises(ValueError, match="nothing to compare"):
        analysis.compare({}, ["nvfp4"])
    with pytest.raises(ValueError, match="nvfp5"):
        analysis.compare(values((32, 64)), ["nvfp5"])


@pytest.mark.parametrize(
    ("formats", "recipes", "words"),
    [
        (["nvfp4", "nvfp5"], ["modelopt"], "format='nvfp5': expected one of"),
        (["nvfp4"], [None, "modelpot"], "recipe='modelpot': expected None, .*did you mean 'modelopt'"),
        (["nvfp4"], [None, 3], "recipe=3: expected None, a dlfp4.Recipe"),
    ],
)
def test_misspelt_names_are_not_among_what_is_refused(formats, recipes, words):
    with pytest.raises(ValueError, match=words):
        analysis.compare(values((32, 64)), formats, recipes)


def test_calibrate():
    batches = [values((32, 64), seed) for seed in range(3)]
    largest = analysis.calibrate(batches, "largest")
    whole = np.concatenate(batches)
    assert largest == float(dlfp4.quantize(whole, "nvfp4").global_scale.to_numpy())
    clipped = analysis.calibrate(iter(batches), "percentile", percentile=99)
    assert clipped == pytest.approx(float(np.percentile(np.abs(whole), 99)) / 2688, rel=1e-6)
    assert analysis.calibrate(batches, "percentile", percentile=100) == largest
    best = analysis.calibrate(batches)

    def squared(scale):
        return analysis.error(whole, dlfp4.quantize(whole, "nvfp4", global_scale=scale)).mse

    assert squared(best) == min(squared(float(np.float32(largest * 2 ** (k / 16)))) for k in range(-16, 17))
    assert squared(best) < squared(largest)
    assert analysis.calibrate(np.zeros((2, 32), np.float32), "largest") == float(
        dlfp4.quantize(np.zeros((2, 32), np.float32), "nvfp4").global_scale.to_numpy()
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "mxfp4"}, "mxfp4 has no global scale; expected one of nvfp4"),
        ({"format": "nothing"}, "format='nothing': expected one of"),
        ({"recipe": dlfp4.Recipe(global_scale_per="row")}, "has a global scale for each row; calibrate finds one"),
        ({"recipe": "modelpot"}, "did you mean 'modelopt'"),
        ({"method": "best"}, "method='best'"),
        ({"percentile": 101}, "percentile=101"),
        ({"percentile": None}, "percentile=None; expected a number from 0 to 100"),
    ],
)
def test_calibrate_refuses(options, words):
    with pytest.raises(ValueError, match=words):
        analysis.calibrate(values((2, 32)), **options)


@pytest.mark.parametrize("method", ["mse", "largest", "percentile"])
@pytest.mark.parametrize("wrong", [np.nan, -np.inf, 1e39])
def test_calibrate_refuses_what_is_not_finite(method, wrong):
    x = values((2, 32)).astype(np.float64)
    x[1, 3] = wrong
    with pytest.raises(ValueError, match="x has NaN, infinities or numbers beyond float32"):
        analysis.calibrate(x, method)


def test_of_equal_scales_the_largest_magnitudes_is_taken():
    zeros = np.zeros((2, 32), np.float32)
    assert analysis.calibrate(zeros) == analysis.calibrate(zeros, "largest")


def test_calibrate_needs_tensors():
    with pytest.raises(ValueError, match="no tensors"):
        analysis.calibrate([])


@pytest.mark.parametrize("bins", [None, 0, -1, 2.5, True, 2**20 + 1, 2**63, "auto", [0.0, 1.0]])
def test_bins_are_a_positive_integer(bins):
    with pytest.raises(ValueError, match=r"bins=.*; expected an integer from 1 to 1048576"):
        analysis.error(np.ones(3), np.zeros(3), bins=bins)
