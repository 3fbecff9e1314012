"""ScaledTensor.to: codes and scales in another format, against float64 values; every e8m0 byte, every code."""

import itertools

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.targets import CONVENTIONS

from ..support.block_reference import FORMATS, INPUTS, make
from ..support.capsules import DEVICES, Made
from ..support.levels import CODEC_LEVELS, available_levels, digests_at
from ..support.reference import BITS, native_cast, of_codes, raw_bytes

F = np.float32
NAMES = list(FORMATS)
E8M0 = np.arange(256, dtype=np.uint8)


def values(q):
    return q.dequantize().to_numpy()


def exact_values(codes, scales, element, scale, length, unit=1.0):
    """float64: codes (lines, K) one a byte, scales (lines, K / length)."""
    with np.errstate(all="ignore"):
        decoded = native_cast(of_codes(codes, element), "float64").reshape(codes.shape)
        worth = native_cast(of_codes(scales, scale), "float64").reshape(scales.shape) * unit
        return decoded * np.repeat(worth, length, 1)


def packed(codes):
    return codes[:, ::2] | codes[:, 1::2] << 4


def mxfp4(codes, scales, **options):
    return dlfp4.ScaledTensor.from_parts(packed(codes), scales, format="mxfp4", **options)


def block_errors(before, after, length, lines=1):
    """The largest change of each block over its largest magnitude."""
    with np.errstate(all="ignore"):
        same = (before == after) | (np.isnan(before) & np.isnan(after))
        change = np.where(same, 0, np.abs(before.astype(np.float64) - after))
        change = np.where(np.isfinite(change), change, np.inf)
        size = np.where(np.isfinite(before), np.abs(before), 0).astype(np.float64)
    rows, columns = before.shape
    lines, length = lines or rows, length or columns
    pad = ((0, -rows % lines), (0, -columns % length))

    def largest(x):
        x = np.pad(x, pad)
        return x.reshape(x.shape[0] // lines, lines, x.shape[1] // length, length).max((1, 3))

    change, size = largest(change), largest(size)
    return np.where(change == 0, 0, change / np.where(size, size, np.nan))


def assert_receipt(q, result):
    """It tells what came out."""
    lines, length = q.format.block or (0, 0)
    before, after = (values(each).reshape(-1, q.shape[-1]) for each in (q, result))
    if q.axis == -2:
        before, after = before.T, after.T
    found = block_errors(before, after, length, lines)
    receipt = result.receipt
    assert (receipt.blocks, receipt.exact) == (found.size, (found == 0).sum())
    assert receipt.largest_error == pytest.approx(found.max(initial=0), rel=1e-5)
    return found


# ---- MXFP4: every scale with every code


ALL_CODES = np.tile(np.arange(16, dtype=np.uint8), 2)[None]
EVERY = mxfp4(np.repeat(ALL_CODES, 256, 0), E8M0[:, None])
EVERY_VALUE = exact_values(np.repeat(ALL_CODES, 256, 0), E8M0[:, None], "float4_e2m1fn", "float8_e8m0fnu", 32)


def same_numbers(found, expected):
    return (
        (found == expected) & (np.signbit(found) == np.signbit(expected)) | np.isnan(found) & np.isnan(expected)
    ).all()


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4_16"])
def test_mxfp4_to_wider_elements_is_always_exact(name):
    q = EVERY.to(name)
    assert q.receipt == dlfp4.Receipt(256, 256, 0.0)
    with np.errstate(over="ignore"):
        assert same_numbers(values(q), EVERY_VALUE.astype(F))
    assert np.repeat(E8M0, q.scales.shape[1]).tolist() == q.scales.view("uint8").to_numpy().reshape(-1).tolist()
    if name == "mxfp4_16":
        assert q.data.data_ptr == EVERY.data.data_ptr
    else:
        assert q.scales.data_ptr == EVERY.scales.data_ptr


def test_every_window_of_powers_is_exact_in_nvfp4():
    """E4M3 has 18 powers of two; with NaN beside them."""
    numbers = native_cast(of_codes(np.arange(1, 127, dtype=np.uint8), "float8_e4m3fn"), "float64")
    powers = numbers[np.frexp(numbers)[0] == 0.5]
    assert len(powers) == 18
    for first in range(255 - 17):
        scales = np.array([*range(first, first + 18), 255], np.uint8)[:, None]
        q = mxfp4(np.repeat(ALL_CODES, 19, 0), scales)
        result = q.to("nvfp4")
        assert result.receipt == dlfp4.Receipt(19, 19, 0.0), first
        assert result.data.data_ptr == q.data.data_ptr
        unit = float(result.global_scale)
        codes = result.scales.view("uint8").to_numpy()
        exact = exact_values(np.repeat(ALL_CODES, 19, 0), codes, "float4_e2m1fn", "float8_e4m3fn", 16, unit)
        expected = exact_values(np.repeat(ALL_CODES, 19, 0), scales, "float4_e2m1fn", "float8_e8m0fnu", 32)
        assert same_numbers(exact, expected)
        with np.errstate(over="ignore"):
            assert same_numbers(values(result), expected.astype(F))


def test_mxfp4_of_every_scale_to_nvfp4():
    """As many blocks as one global scale can serve; the others are told."""
    result = EVERY.to("nvfp4")
    found = assert_receipt(EVERY, result)
    assert (result.receipt.exact, (found == 0).sum()) == (19, 19)
    assert np.isnan(values(result)[255]).all()


def test_blocks_with_infinities_that_become_nan_are_told():
    """4 * 2**127 and more is infinite in float32; no scale of NVFP4 serves that beside small blocks."""
    scales = np.array([[100], [100], [254]], np.uint8)
    q = mxfp4(np.repeat(ALL_CODES, 3, 0), scales)
    result = q.to("nvfp4")
    found = assert_receipt(q, result)
    assert np.isinf(values(q)[2]).any()
    assert np.isnan(values(result)[2]).all()
    assert (result.receipt.exact, result.receipt.largest_error) == (2, np.inf), found


@pytest.mark.parametrize("axis", [-1, -2])
def test_errors_are_those_of_the_blocks_that_were_given(axis):
    """Lines of a square are chosen anew one by one, and their changes are small beside its largest element."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((64, 64)) * 2.0 ** rng.integers(-12, -6, (64, 1) if axis == -1 else (1, 64))
    q = dlfp4.quantize(x.astype(F), "nvfp4_16x16", axis=axis)
    result = q.to("mlx")  # without a global scale, so that small scales are coarse
    found = assert_receipt(q, result)
    assert found.shape == (4, 4)
    assert not result.receipt.is_exact


def test_zero_blocks_do_not_choose_the_global_scale():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (64, 32), dtype=np.uint8)
    codes[:48] &= 8  # zeros of both signs
    scales = np.full((64, 1), 0, np.uint8)
    scales[48:, 0] = rng.integers(110, 128, 16)
    q = mxfp4(codes, scales)
    result = q.to("nvfp4")
    assert result.receipt.is_exact
    assert same_numbers(values(result), values(q))
    empty = mxfp4(codes[:48], rng.integers(0, 255, (48, 1), dtype=np.uint8)).to("nvfp4")
    assert empty.receipt.is_exact


def test_blocks_beyond_the_window_find_other_codes():
    """{2, 4, 6} at a power below the least is {1, 2, 3} at the least: exact; {0.5} at one above is {1}, …"""
    codes = np.zeros((38, 32), np.uint8)
    codes[:] = np.tile(np.arange(16), 2)
    codes[18] = np.resize([4, 6, 7, 12, 0], 32)  # 2, 4, 6, -2
    codes[19] = np.resize([1, 2, 3, 5], 32)  # 0.5, 1, 1.5, 3
    scales = np.array([*range(100, 118), 99, 118, *range(100, 118)], np.uint8)[:, None]
    q = mxfp4(codes, scales)
    result = q.to("nvfp4")
    assert result.receipt.is_exact
    assert same_numbers(values(result), values(q))


def test_the_rest_has_the_least_error():
    """No E4M3 scale, tried by force, gives a block a smaller squared error."""
    rng = np.random.default_rng(3)
    scales = np.concatenate([np.resize(np.arange(103, 121), 60), rng.integers(98, 104, 40)]).astype(np.uint8)
    q = mxfp4(rng.integers(0, 16, (100, 32), dtype=np.uint8), scales[:, None])
    result = q.to("nvfp4")
    assert_receipt(q, result)
    before, after = values(q).reshape(-1, 16).astype(np.float64), values(result).reshape(-1, 16)
    unit = float(result.global_scale)
    grid = native_cast(of_codes(np.arange(16, dtype=np.uint8), "float4_e2m1fn"), "float64")
    worth = native_cast(of_codes(np.arange(127, dtype=np.uint8), "float8_e4m3fn"), "float64") * unit
    best = np.full(len(before), np.inf)
    for scale in worth:
        errors = np.abs(before[..., None] - grid * scale).min(-1)
        best = np.minimum(best, (errors**2).sum(-1))
    got = ((before - after) ** 2).sum(-1)
    assert (got <= best * 1.05 + 1e-300).all()
    assert (got <= best * 1.0000001 + 1e-300).mean() > 0.97


def test_mxfp4_to_fp8_in_squares():
    """Powers of two, exact where the range of a square allows: 15 powers, whatever the codes."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 16, (256, 256), dtype=np.uint8)
    scales = rng.integers(100, 115, (256, 8), dtype=np.uint8)
    q = mxfp4(codes, scales)
    for name in ("fp8_128x128", "fp8_1x128", "fp8_e4m3"):
        result = q.to(name)
        assert result.receipt.is_exact
        assert same_numbers(values(result), values(q))
        found = result.scales.to_numpy().astype(np.float64)
        assert (np.frexp(found)[0] == 0.5).all()
    scales[200, 3] = 60
    wide = mxfp4(codes, scales)
    result = wide.to("fp8_128x128")
    found = assert_receipt(wide, result)
    assert (result.receipt.exact, (found == 0).sum()) == (256 * 8 - 1,) * 2


# ---- NVFP4


def test_nvfp4_of_powers_of_two_to_mx_and_back():
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 16, (64, 64), dtype=np.uint8)
    powers = np.array([8 * k for k in range(1, 15)], np.uint8)  # of E4M3: 2**-6 to 2**7
    scales = np.repeat(rng.choice(powers, (64, 2)), 2, 1)
    q = dlfp4.ScaledTensor.from_parts(packed(codes), scales, 2.0**-20, format="nvfp4")
    for name in ("mxfp4", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp4_16"):
        result = q.to(name)
        assert result.receipt == dlfp4.Receipt(64 * 4, 64 * 4, 0.0)
        assert same_numbers(values(result) + 0.0, values(q) + 0.0)
        back = result.to("nvfp4")
        assert back.receipt.is_exact
        assert same_numbers(values(back) + 0.0, values(q) + 0.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", [2.0**-9, 0.0123])
def test_nvfp4_of_every_scale(name, unit):
    """Every E4M3 code with every FP4 code, blocks of one tensor."""
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 16, (128, 128), dtype=np.uint8)
    codes[:, ::16] &= 7
    scales = np.resize(np.arange(127, dtype=np.uint8), (128, 8))
    q = dlfp4.ScaledTensor.from_parts(packed(codes), scales, unit, format="nvfp4")
    assert_receipt(q, q.to(name))


def test_less_error_than_one_rule():
    """MX scales are those of the rule "floor" or "rceil", whichever fits a block."""
    q = dlfp4.quantize(make("normal", (64, 256)), "nvfp4")
    exact = values(q).reshape(-1, 32).astype(np.float64)
    for name in ("mxfp4", "mxfp8_e4m3", "mxfp6_e3m2"):
        got = ((values(q.to(name)).reshape(-1, 32) - exact) ** 2).sum(-1)
        for rule in ("floor", "rceil"):
            other = values(dlfp4.quantize(values(q), name, recipe=dlfp4.Recipe(scale_rule=rule)))
            assert (got <= ((other.reshape(-1, 32) - exact) ** 2).sum(-1) + 1e-30).all()
        by_recipe = q.to(name, recipe="nvidia")
        assert same_numbers(values(by_recipe), values(dlfp4.quantize(values(q), name, recipe="nvidia")))
        assert_receipt(q, by_recipe)


# ---- Every format to every format


@pytest.mark.parametrize(("source", "target"), list(itertools.product(NAMES, NAMES)))
def test_receipts_of_every_pair(source, target):
    q = dlfp4.quantize(make("normal", (128, 256)), source)
    result = q.to(target)
    assert (result.shape, result.format, result.axis, result.device) == (q.shape, target, -1, q.device)
    assert_receipt(q, result)
    if source == target:
        assert result.data.data_ptr == q.data.data_ptr
        assert result.receipt.is_exact
    # Rounding a second time is not worse than a first time would be on such values.
    assert result.receipt.largest_error <= (0.26 if BITS[FORMATS[target].element] == 4 else 0.13)


@pytest.mark.parametrize(("source", "target"), [
    ("mxfp4", "nvfp4"), ("mxfp4", "mxfp8_e4m3"), ("mxfp4", "fp8_128x128"), ("nvfp4", "mxfp4"), ("nvfp4", "mxfp8_e4m3"),
    ("nvfp4", "fp8_e4m3"), ("mxfp8_e4m3", "mxfp4"), ("mxfp8_e4m3", "nvfp4"), ("mxfp8_e4m3", "fp8_1x128"),
    ("fp8_128x128", "mxfp8_e4m3"), ("fp8_e4m3", "fp8_1x128"), ("fp8_e4m3", "nvfp4"), ("mxfp6_e2m3", "mxfp8_e4m3"),
    ("nvfp4_16x16", "nvfp4"), ("nvfp4", "nvfp4_16x16"),
])  # fmt: skip
def test_columns_and_stacks(source, target):
    x = make("normal", (2, 128, 128))
    for axis in (-1, -2):
        q = dlfp4.quantize(x, source, axis=axis)
        result = q.to(target)
        assert (result.shape, result.axis) == (q.shape, axis)
        assert_receipt(q, result)
        flat = dlfp4.quantize(x.reshape(256, 128), source, axis=axis).to(target)
        assert values(result).tobytes() == values(flat).tobytes()
        assert result.receipt == flat.receipt
    q = dlfp4.quantize(x, source)
    part = q[1]
    assert values(part.to(target)).shape == (128, 128)
    assert_receipt(part, part.to(target))


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp4_16", "nvfp4"])
def test_shapes_that_do_not_divide(name):
    q = dlfp4.quantize(make("normal", (16, 72)), "mxfp4", pad=True)
    assert_receipt(q, q.to(name))
    assert q.to(name).receipt.is_exact
    q = dlfp4.quantize(make("normal", (16, 48)), "nvfp4", global_scale=2.0**-9)
    assert values(q.to("mxfp4")).shape == (16, 48)
    assert_receipt(q, q.to("mxfp4"))
    for shape in ((0, 64), (16, 0)):
        result = dlfp4.quantize(np.zeros(shape, F), "mxfp4").to(name)
        assert (result.shape, result.receipt) == (shape, dlfp4.Receipt(0, 0, 0.0))


def test_fp8_of_powers_of_two_to_mxfp8_shares_codes():
    q = dlfp4.quantize(make("normal", (256, 256)), "fp8_128x128", recipe=dlfp4.Recipe(pow2=True))
    result = q.to("mxfp8_e4m3")
    assert result.receipt.is_exact
    assert result.data.data_ptr == q.data.data_ptr
    assert same_numbers(values(result), values(q))


def test_mxfp8_that_was_mxfp4_comes_back():
    """Through wider elements and back, with the same values; NVFP4 too."""
    q = dlfp4.quantize(make("normal", (64, 256)), "mxfp4")
    for name in ("mxfp8_e4m3", "mxfp8_e5m2", "fp8_128x128", "fp8_e4m3"):
        wide = q.to(name)
        assert wide.receipt.is_exact
        for target in ("mxfp4", "nvfp4"):
            back = wide.to(target)
            assert back.receipt.is_exact, (name, target)
            assert same_numbers(values(back), values(q))


@pytest.mark.parametrize("kind", list(INPUTS))
def test_hard_inputs(kind):
    x = make(kind, (128, 128))
    for source, target in itertools.product(["mxfp4", "nvfp4", "mxfp8_e4m3", "fp8_128x128"], NAMES):
        q = dlfp4.quantize(x, source)
        result = q.to(target)
        if np.isfinite(values(q)).all():
            assert_receipt(q, result)


def moved(q, device):
    """The tensor in memory that other libraries call theirs, and the CPU reads."""
    octets = [np.frombuffer(raw_bytes(part), np.uint8).reshape(len(part), -1) for part in (q.data, q.scales)]
    parts = [dlfp4.from_dlpack(Made(part, device=(DEVICES[device], 0)).capsule) for part in octets]
    return dlfp4.ScaledTensor.from_parts(*parts, q.global_scale, format=q.format)


@pytest.mark.parametrize("device", ["cuda_host", "rocm_host", "tpu_host"])
def test_all_memory_that_the_host_reads(device):
    x = make("normal", (64, 256))
    for name, target in (("mxfp8_e4m3", "nvfp4"), ("nvfp4", "mxfp6_e2m3"), ("mxfp4", "nvfp4")):
        q = dlfp4.quantize(x, name)
        there = moved(q, device)
        assert there.device.type == device
        np.testing.assert_array_equal(values(there.to(target)), values(q.to(target)))
        expected = dlfp4.matmul(x, q.mT).to_numpy()
        for backend in ("cpu", "auto"):
            np.testing.assert_array_equal(dlfp4.matmul(x, there.mT, backend=backend).to_numpy(), expected)
    given = [dlfp4.quantize(x * size, "nvfp4") for size in (1, 1.37)]
    joined = dlfp4.concatenate([moved(q, device) for q in given])
    np.testing.assert_array_equal(values(joined), values(dlfp4.concatenate(given)))


# ---- Conventions and recipes


def test_conventions():
    mx, nv = dlfp4.quantize(make("normal", (64, 256)), "mxfp4"), dlfp4.quantize(make("normal", (64, 256)), "nvfp4")
    wide = dlfp4.quantize(make("normal", (64, 256)), "mxfp8_e4m3")
    becomes = {
        "modelopt": ("mxfp4", "nvfp4", "mxfp8_e4m3"),
        "compressed-tensors": ("mxfp4", "nvfp4", "mxfp8_e4m3"),
        "gpt-oss": ("mxfp4", "mxfp4", "mxfp4"),
        "deepseek": ("fp8_128x128", "fp8_128x128", "fp8_128x128"),
        "ggml": ("mxfp4", "nvfp4", "mxfp4"),
        "mlx": ("mxfp4", "nvfp4", "mxfp8_e4m3"),
        "torchao": ("mxfp4", "nvfp4", "mxfp8_e4m3"),
        "deepseek-v4": ("mxfp4", "mxfp4", "mxfp8_32x32"),
        "llama-4": ("nvfp4", "nvfp4", "nvfp4"),
        "quark": ("mxfp4", "mxfp4", "mxfp8_e4m3"),
        "stable-diffusion": ("fp8_e4m3", "fp8_e4m3", "fp8_e4m3"),
        "comfyui": ("nvfp4", "nvfp4", "mxfp8_e4m3"),
    }
    assert becomes.keys() | {"gptq", "awq"} == CONVENTIONS.keys()  # which take what is uint4 already
    for convention, names in becomes.items():
        for q, name in zip((mx, nv, wide), names, strict=True):
            result = q.to(convention)
            assert result.format == name
            assert_receipt(q, result)
    for convention in ("modelopt", "compressed-tensors", "gpt-oss"):
        checkpoints.split_parts({"w": mx.to(convention)}, convention)
    assert checkpoints.to_ggml(wide.to("ggml")).shape == (64, 136)


@pytest.mark.parametrize("convention", ["modelopt", "compressed-tensors", "quark", "mlx", "comfyui"])
@pytest.mark.parametrize("format", ["mxfp6_e2m3", "mxfp6_e3m2"])
def test_what_a_convention_lacks_becomes_its_widest(convention, format):
    q = dlfp4.quantize(make("normal", (64, 256)), format)
    result = q.to(convention)
    assert result.format == "mxfp8_e4m3"
    assert result.receipt.is_exact
    np.testing.assert_array_equal(values(result), values(q))


def test_mlx_alone_has_biases_and_no_global_scale():
    assert [name for name, row in CONVENTIONS.items() if row.has_biases] == ["mlx"]
    assert {name: row.without_global_scale for name, row in CONVENTIONS.items() if row.without_global_scale} == {
        "mlx": ("nvfp4",)
    }


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_what_a_convention_stores_stays(convention):
    for name in CONVENTIONS[convention].formats:
        unit = 1.0 if (convention, name) == ("mlx", "nvfp4") else None
        q = dlfp4.quantize(make("normal", (64, 256)), name, global_scale=unit)
        result = q.to(convention)
        assert result.format == name
        assert result.data.data_ptr == q.data.data_ptr


@pytest.mark.parametrize("convention", ["ggml", "torchao"])
def test_squares_of_nvfp4_become_nvfp4_exactly(convention):
    q = dlfp4.quantize(np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32), "nvfp4_16x16")
    result = q.to(convention)
    assert result.format == "nvfp4"
    assert result.receipt.exact == result.receipt.blocks
    np.testing.assert_array_equal(result.dequantize().to_numpy(), q.dequantize().to_numpy())


@pytest.mark.parametrize("power", [-10, -3, 0, 2])
def test_mlx_has_no_global_scale(power):
    q = dlfp4.quantize(make("normal", (64, 256)), "nvfp4", global_scale=2.0**power)
    result = q.to("mlx")
    assert result.global_scale is None
    assert_receipt(q, result)
    if power == 0:
        assert result.receipt.is_exact
    q = dlfp4.quantize(make("normal", (64, 256)), "nvfp4").to("mlx")
    assert q.receipt.largest_error < 0.26


def test_recipes():
    q = dlfp4.quantize(make("normal", (64, 256)), "mxfp4")
    for recipe in ("nvidia", dlfp4.Recipe(scale_rule="ceil")):
        result = q.to(recipe)
        assert result.format == "mxfp4"
        assert same_numbers(values(result), values(dlfp4.quantize(values(q), "mxfp4", recipe=recipe)))
        assert_receipt(q, result)
    with pytest.raises(ValueError, match="two recipes"):
        q.to("nvidia", recipe="ocp")
    for wrong in ("nvfp5", "mlxx"):
        with pytest.raises(ValueError, match=r"expected a format .*, a convention .* or a recipe"):
            q.to(wrong)


def test_other_layouts():
    q = dlfp4.quantize(make("normal", (64, 256)), "mxfp4", scale_layout="128x4")
    result = q.to("nvfp4")
    assert result.scale_layout == "linear"
    assert result.receipt.is_exact
    assert same_numbers(values(result), values(q))


def test_receipt():
    receipt = dlfp4.quantize(np.ones((2, 64), F), "mxfp4").to("nvfp4").receipt
    assert repr(receipt) == "Receipt(blocks=4, exact=4, largest_error=0.0)"
    with pytest.raises(AttributeError):
        receipt.exact = 3
    assert dlfp4.quantize(np.ones((2, 64), F), "mxfp4").receipt is None


@pytest.mark.parametrize("per", ["row", "matrix"])
@pytest.mark.parametrize("target", ["mxfp4", "mxfp8_e4m3", "fp8_e4m3", "fp8_128x128", "nvfp4_16x16", "mlx"])
def test_global_scales_of_rows_and_matrices(per, target):
    x = make("normal", (3, 128, 128)) * np.array([1, 3, 0.1], F).reshape(3, 1, 1)
    q = dlfp4.quantize(x, "nvfp4", recipe=dlfp4.Recipe(global_scale_per=per))
    assert q.global_scale.ndim == 1
    assert_receipt(q, q.to(target))
    assert q.to("nvfp4").global_scale.shape == q.global_scale.shape


@pytest.mark.parametrize("target", ["nvfp4", "mxfp4", "mxfp8_32x32", "fp8_e4m3", "fp8_128x128", "mlx", "torchao"])
def test_squares_with_a_global_scale_for_each_matrix(target):
    """As `stack` makes them of matrices of squares."""
    x = make("normal", (3, 128, 128)) * np.array([1, 3, 0.1], F).reshape(3, 1, 1)
    q = dlfp4.stack([dlfp4.quantize(matrix, "nvfp4_16x16") for matrix in x])
    assert q.global_scale.shape == (3,)
    result = q.to(target)
    assert_receipt(q, result)
    assert result.receipt.blocks == 3 * 8 * 8
    if result.format == "nvfp4" and target != "mlx":
        assert result.receipt.is_exact
        assert result.global_scale.tolist() == q.global_scale.tolist()


def test_squares_stay_squares():
    x = make("normal", (2, 32, 64)) * np.array([1, 3], F).reshape(2, 1, 1)
    q = dlfp4.quantize(x, "nvfp4_16x16", recipe=dlfp4.Recipe(global_scale_per="matrix"))
    same = q.to("nvfp4_16x16")
    assert same.global_scale.tolist() == q.global_scale.tolist()
    assert (same.receipt.blocks, same.receipt.is_exact) == (16, True)
    again = q.to("nvidia")
    assert (again.format, again.global_scale.shape) == ("nvfp4_16x16", ())
    assert_receipt(q, again)
    number = np.array([1234.567, 3.3], F)
    encoded = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format=q.format, shape=q.shape, encode_scale=number)
    assert encoded.to("nvfp4").encode_scale.tolist() == number.tolist()


# ---- What is rounded


@pytest.mark.parametrize("kind", ["normal", "few mantissas", "infinite", "largest"])
@pytest.mark.parametrize("target", ["mxfp4", "mxfp4_16", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_32x32"])
@pytest.mark.parametrize("source", ["nvfp4", "fp8_128x128", "fp8_row", "int4_g32"])
def test_scales_of_powers_have_the_smaller_error(source, target, kind):
    """Of the rules that round the scale down and that keep the largest element, each block has the better one."""
    q = dlfp4.quantize(make(kind, (70, 160)), source, pad=True)
    exact, found = values(q), values(q.to(target))
    lines, length = dlfp4.formats()[target].block

    def squares(decoded):
        with np.errstate(all="ignore"):
            errors = np.nan_to_num((exact.astype(np.float64) - decoded) ** 2, nan=0, posinf=np.inf)
        errors = np.pad(errors, ((0, -70 % lines), (0, -160 % length)))
        return errors.reshape(-1, lines, errors.shape[1] // length, length).sum((1, 3))

    rules = [squares(values(dlfp4.quantize(exact, target, recipe=rule, pad=True))) for rule in ("ocp", "nvidia")]
    np.testing.assert_allclose(squares(found), np.minimum(*rules), rtol=1e-12)


TO_EACH = """
import hashlib, json
import numpy as np
import dlfp4
from reference import parts_of, raw_bytes

rng = np.random.default_rng(1)
x = rng.standard_normal((70, 160)).astype(np.float32) * np.ldexp(np.float32(1), rng.integers(-9, 9, (70, 1)))
x[3, :40], x[5, 7] = 0, 3e38

def digest(q):
    found = hashlib.sha256(repr(q.receipt).encode())
    for part in parts_of(q):
        found.update(raw_bytes(part))
    return found.hexdigest()

print(dlfp4.cpu_isa())
sources = {name: dlfp4.quantize(x, name, pad=True) for name in dlfp4.formats()}
print(json.dumps({f"{name} to {to}": digest(q.to(to)) for name, q in sources.items() for to in (*sources, "mlx")}))
"""


@pytest.mark.arithmetic
def test_levels_give_the_same():
    expected, tried = digests_at("scalar", TO_EACH), 0
    for level in CODEC_LEVELS[:-1]:
        if level in available_levels():
            assert digests_at(level, TO_EACH) == expected
            tried += 1
    assert tried or available_levels() == ["scalar"]


@pytest.mark.parametrize("source", ["fp8_e4m3", "nvfp4"])
def test_parts_of_a_large_matrix_make_one_receipt(source):
    """Of the one block of a tensor, and of many, more rows than are taken at a time."""
    q = dlfp4.quantize(make("normal", (700, 1024)), source)
    for target in ("mxfp4", "fp8_1x128", "fp8_e5m2"):
        assert_receipt(q, q.to(target))
