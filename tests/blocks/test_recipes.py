"""Named recipes and the options that they are made of: byte for byte what each project's own code makes, where that
installs on a CPU, else what its formula says in NumPy, written from the source that is named."""

import importlib
from typing import get_args

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4.formats import RECIPES, RecipeName, find_recipe

from ..support import block_reference
from ..support.block_reference import FORMATS, FP8, INPUTS, MX, TWO_LEVEL, make, tiles_of
from ..support.reference import codec, codes_of, native_cast, raw_bytes, unpacked_codes

pytestmark = pytest.mark.arithmetic

F = np.float32
FLOATS = ["float32", "bfloat16", "float16"]
E4M3 = ml_dtypes.float8_e4m3fn
MOST = np.finfo(F).max
# What projects do with what is not finite differs, and is theirs; see test_blocks_that_are_not_finite.
FINITE = [kind for kind in INPUTS if kind not in ("NaN", "infinite", "any bits")]


def finite_inputs(shape, dtype, kinds=tuple(FINITE)):
    """Every kind of hard input as float32 values and as the array of its type, with ties of FP4, powers of two,
    subnormals of the type itself and largest elements times powers of two."""
    rng = np.random.default_rng(5)
    ties = rng.choice([0, 0.25, -0.25, 0.75, -0.75, 1.25, 1.75, -1.75, 2.5, -2.5, 3.5, -3.5, 5, -5, 6, -6], shape)
    ties[:, ::16] = 6
    powers = np.ldexp(rng.choice([-1.0, 1.0], shape), rng.integers(-10, 10, shape))
    huge_row = rng.normal(size=shape)
    huge_row[0] *= 2.0**12
    arrays = {kind: make(kind, shape, dtype) for kind in kinds}
    for name, values in (("ties", ties), ("powers of two", powers), ("one row huge", huge_row), ("tiny", ties * 1e-37)):
        arrays[name] = native_cast(values.astype(F), dtype)
    least = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    arrays["subnormal in its type"] = native_cast((rng.integers(-9, 10, shape) * least).astype(F), dtype)
    largest = np.resize([6.0, 448.0, 57344.0], (shape[0], 1)) * np.ldexp(1.0, rng.integers(-12, 1, (shape[0], 1)))
    arrays["largest of an element"] = native_cast((rng.choice([-1, 1], shape) * largest).astype(F), dtype)
    for name, x in arrays.items():
        values = native_cast(x, "float32")
        if np.isfinite(values).all():
            yield name, x, values


def package(name):
    return pytest.importorskip(name, reason=f"{name} is not installed")


def test_type_checkers_know_all_recipes():
    assert get_args(RecipeName) == tuple(RECIPES)


def assert_same(q, scales, codes, what):
    """Scales and codes, one a byte, of a result whose blocks run along rows."""
    ours = np.frombuffer(raw_bytes(q.scales), np.uint32 if q.scales.dtype == F else np.uint8)
    theirs = scales.astype(F).view(np.uint32) if q.scales.dtype == F else scales
    wrong = np.flatnonzero(ours != theirs.ravel())
    assert not len(wrong), f"{what}: {len(wrong)} of {len(ours)} scales: {ours[wrong[:4]]}, {theirs.ravel()[wrong[:4]]}"
    bits = 4 if q.data.dtype.name in ("float4_e2m1fn", "int4") else 8
    found = unpacked_codes(raw_bytes(q.data), bits, codes.size)
    wrong = np.flatnonzero(found != codes.ravel())
    assert not len(wrong), f"{what}: {len(wrong)} codes: {found[wrong[:4]]}, not {codes.ravel()[wrong[:4]]}"


def fp4(scaled, rounding="nearest_even"):
    return codec("float4_e2m1fn").round(scaled, rounding)


def without_negative_zeros(codes, sign=8):
    return np.where(codes == sign, 0, codes).astype(np.uint8)


def blocks_of(values, length):
    """Blocks of rows, and their largest magnitudes."""
    blocks = values.reshape(values.shape[0], -1, length)
    return blocks, np.abs(blocks).max(-1)


def rounded_to(values, dtype):
    """float32 values rounded to a type and back."""
    return native_cast(native_cast(values.astype(F), dtype), "float32")


def e4m3(values):
    return np.minimum(values, F(448)).astype(F).astype(E4M3)


# ---- TransformerEngine ---------------------------------------------------------------------------------------------


BY_TRANSFORMER_ENGINE = [(name, "transformer-engine") for name in (*TWO_LEVEL, *MX, *FP8)]


@pytest.mark.parametrize(("name", "recipe"), [*BY_TRANSFORMER_ENGINE, *((name, "flashinfer") for name in MX)])
def test_transformer_engine(name, recipe):
    """NVFP4 by s = e4m3(a * (G / 6)) and 1 / (s / G), MX scales rounded up, FP8 by max / a: the rules that
    block_reference.py says; FlashInfer's MX formats are the same."""
    options = {"rule": "rceil"} if name in MX else {}
    shape = (72, 200) if FORMATS[name].block not in (None, (1, None)) and name in FP8 else (64, 192)
    for dtype in FLOATS:
        inputs = {kind: x for kind, x, _ in finite_inputs(shape, dtype)}
        inputs |= {kind: make(kind, shape, dtype) for kind in ("NaN", "infinite", "any bits")}
        inputs["all NaN"] = native_cast(np.full(shape, np.nan, F), dtype)
        for x in inputs.values():
            block_reference.assert_equal(
                dlfp4.quantize(x, name, recipe=recipe), block_reference.quantize(x, name, **options)
            )


# ---- NVFP4 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_flashinfer_nvfp4(dtype):
    """vLLM's ref_nvfp4_quant, which FlashInfer's tests use: SF = e4m3(G * (a * (1/6))), scaled by 1 / (SF * (1/G))."""
    for kind, x, values in finite_inputs((48, 160), dtype):
        blocks, largest = blocks_of(values, 16)
        amax = largest.max()
        with np.errstate(all="ignore"):
            encode = F(1) if amax == 0 else np.minimum(F(2688) / amax, MOST)
            stored = e4m3(np.minimum(encode * (largest * F(1 / 6)), MOST))
            factor = np.minimum(F(1) / (stored.astype(F) * (F(1) / encode)), MOST)
            scaled = blocks * np.where(stored.astype(F) == 0, F(0), factor)[..., None]
        q = dlfp4.quantize(x, "nvfp4", recipe="flashinfer")
        assert_same(q, codes_of(stored), fp4(scaled), (kind, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_modelopt_nvfp4(dtype):
    """NVFP4QTensor.quantize: a / (6 g), zeros as 1.0, at least 2^-9; x / (s g), a sign where x < 0."""
    for kind, x, values in finite_inputs((48, 160), dtype):
        blocks, largest = blocks_of(values, 16)
        amax = largest.max()
        with np.errstate(all="ignore"):
            decode = F(1) if amax == 0 else np.maximum(amax / F(2688), F(1) / MOST)
            wanted = np.minimum(largest / (F(6) * decode), MOST)
            stored = np.maximum(e4m3(np.where(largest == 0, F(1), wanted)), E4M3(2.0**-9))
            scaled = blocks / (stored.astype(F) * decode)[..., None] + F(0)
        q = dlfp4.quantize(x, "nvfp4", recipe="modelopt")
        assert_same(q, codes_of(stored), fp4(scaled), (kind, dtype))


def compressed_tensors(x, dtype):
    """calculate_qparams and _quantize of compressed-tensors, restated: codes, scales and the global encode scale."""
    blocks, largest = blocks_of(native_cast(x, "float32"), 16)
    tiny = F(float(ml_dtypes.finfo(dtype).tiny))
    with np.errstate(all="ignore"):
        encode = rounded_to(rounded_to(F(1) / np.maximum(largest.max(), tiny), dtype) * F(2688), dtype)[()]
        encode = encode if np.isfinite(encode) else F(1)
        stored = e4m3(encode * rounded_to(largest / F(6), dtype))
        stored = np.where(stored.astype(F) == 0, E4M3(0.125), stored)
        scaled = blocks / (stored.astype(F) / encode)[..., None] + F(0)
    return fp4(scaled), codes_of(stored), encode


@pytest.mark.parametrize("dtype", FLOATS)
def test_compressed_tensors_nvfp4(dtype):
    for kind, x, _ in finite_inputs((48, 160), dtype):
        codes, scales, encode = compressed_tensors(x, dtype)
        q = dlfp4.quantize(x, "nvfp4", recipe="compressed-tensors")
        assert_same(q, scales, codes, (kind, dtype))
        with np.errstate(all="ignore"):
            assert q.global_scale.to_numpy() == np.maximum(F(1) / encode, F(1) / MOST), (kind, dtype)


def test_compressed_tensors_by_its_own_code():
    """The restatement above, and MXFP4, against the package."""
    package("compressed_tensors")
    torch = package("torch")
    quantization = importlib.import_module("compressed_tensors.quantization")
    helpers = importlib.import_module("compressed_tensors.quantization.utils.helpers")
    forward = importlib.import_module("compressed_tensors.quantization.lifecycle.forward")
    args = quantization.QuantizationArgs(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True,
        scale_dtype=torch.float8_e4m3fn, zp_dtype=torch.float8_e4m3fn,
    )  # fmt: skip
    for dtype in ("float32", "bfloat16"):
        for kind, x, values in finite_inputs((32, 64), dtype):
            w = torch.from_numpy(values.copy()).to(getattr(torch, dtype))
            blocks = w.reshape(32, 4, 16)
            low, high = blocks.amin(-1), blocks.amax(-1)
            encode = helpers.generate_gparam(low.min(), high.max())
            scale, _ = helpers.calculate_qparams(low, high, args, global_scale=encode)
            scaled = forward.quantize(w, scale, torch.zeros_like(scale), args, global_scale=encode)
            codes = codes_of(scaled.float().numpy().astype(ml_dtypes.float4_e2m1fn))
            ours, scales, found = compressed_tensors(x, dtype)
            assert found == encode.float().item(), (kind, dtype)
            assert (scales == codes_of(scale.float().numpy().astype(E4M3))).all(), (kind, dtype)
            assert (without_negative_zeros(ours.reshape(32, 64)) == without_negative_zeros(codes)).all(), (kind, dtype)


# ---- four over six -------------------------------------------------------------------------------------------------


def four_over_six(tiles, largest_scale, squared, rounding="nearest_even"):
    """TransformerEngine's quantize_4over6_nvfp4.cuh, of (groups of lines, lines, blocks, elements): codes, scales, g.
    Errors are added up one after the other; those of a square's lines, then, one line after the other."""
    reach, largest = F(6 * largest_scale), np.abs(tiles).max((1, 3))
    amax = largest.max()
    with np.errstate(all="ignore"):
        encode = F(1) if amax == 0 else np.minimum(reach / amax, MOST)
        wanted = largest / F(6) * encode
        candidates = []
        for expansion in (1, 1.5):
            stored = e4m3(np.minimum(wanted * F(expansion), MOST)).astype(F)
            factor = np.minimum(F(1) / (stored * (F(1) / encode)), MOST)
            codes = fp4(tiles * factor[:, None, :, None], rounding)
            elements = native_cast(codes.view(ml_dtypes.float4_e2m1fn), "float32")
            error = elements * stored[:, None, :, None] * amax / reach - tiles
            error = error * error if squared else np.abs(error)
            total = np.zeros(largest.shape, F)
            for line in range(error.shape[1]):
                of_line = np.zeros(largest.shape, F)
                for k in range(error.shape[3]):
                    of_line = of_line + error[:, line, :, k]
                total = total + of_line
            candidates.append((total, codes, stored))
        (six, *of_six), (four, *of_four) = candidates
        codes, stored = (
            np.where((four < six)[(slice(None), None, slice(None), None) if a.ndim == 4 else ...], b, a)
            for a, b in zip(of_six, of_four, strict=True)
        )
        decode = F(1) if amax == 0 else np.maximum(amax / reach, F(1) / MOST)
    return codes, codes_of(stored.astype(E4M3)), decode


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_16x16"])
@pytest.mark.parametrize("largest_scale", [256, 448])
@pytest.mark.parametrize("error", ["mean_absolute", "mean_squared"])
def test_four_over_six(error, largest_scale, name):
    recipe = dlfp4.Recipe(four_over_six=error, largest_scale=largest_scale)
    group = FORMATS[name].block[0]
    for dtype in FLOATS:
        for kind, x, values in finite_inputs((48, 208), dtype):
            for axis in (-1, -2):
                lines = values if axis == -1 else np.ascontiguousarray(values.T)
                tiles = lines.reshape(len(lines) // group, group, -1, 16)
                codes, scales, decode = four_over_six(tiles, largest_scale, error == "mean_squared")
                q = dlfp4.quantize(x, name, recipe=recipe, axis=axis)
                assert q.global_scale.to_numpy() == decode, (kind, dtype, axis)
                assert_same(q, np.repeat(scales, group, 0), codes, (kind, dtype, axis))


def test_four_over_six_chooses_both_and_is_closer():
    x = make("normal", (128, 512))
    six, default = dlfp4.Recipe(four_over_six="mean_squared", largest_scale=448), dlfp4.quantize(x, "nvfp4")
    q = dlfp4.quantize(x, "nvfp4", recipe=six)
    changed = (codes_of(q.scales) != codes_of(default.scales)).mean()
    assert 0.2 < changed < 0.8
    errors = [((t.dequantize().to_numpy() - x) ** 2).mean() for t in (q, default)]
    assert errors[0] < 0.95 * errors[1]


def test_four_over_six_with_other_roundings_and_a_given_scale():
    x = make("normal", (32, 128))
    tiles = x.reshape(32, 1, -1, 16)
    for rounding in ("nearest_zero", "toward_zero"):
        codes, scales, decode = four_over_six(tiles, 256, False, rounding)
        recipe = dlfp4.Recipe(four_over_six="mean_absolute", rounding=rounding)
        assert_same(dlfp4.quantize(x, "nvfp4", recipe=recipe), scales, codes, rounding)
        again = dlfp4.quantize(x, "nvfp4", recipe=recipe, global_scale=float(decode))
        assert (codes_of(again.scales) == scales).mean() > 0.9  # but where an ulp of G decides


def test_four_over_six_goes_with_no_other_order():
    x = np.ones((16, 16), F)
    for options in ({"divide": True}, {"scale_order": "block_first"}, {"rounding": "stochastic"}):
        with pytest.raises(ValueError, match="four_over_six has an order"):
            dlfp4.Recipe(four_over_six="mean_squared", **options)
    with pytest.raises(ValueError, match="largest_scale is for four_over_six"):
        dlfp4.Recipe(largest_scale=448)
    recipe = dlfp4.Recipe(four_over_six="mean_squared")
    with pytest.raises(ValueError, match="stochastic"):
        dlfp4.quantize(x, "nvfp4", recipe=recipe, rounding="stochastic", seed=1)
    for name in ("mxfp4", "fp8_e4m3"):
        with pytest.raises(ValueError, match=r"four_over_six=.*no use"):
            dlfp4.quantize(np.ones((32, 32), F), name, recipe=recipe)


# ---- MX ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_ggml_mxfp4(dtype):
    """gguf's own quantize: its nibbles are element i and i + 16 of a block."""
    quants = package("gguf.quants")
    kinds = importlib.import_module("gguf").GGMLQuantizationType
    for kind, x, values in finite_inputs((32, 128), dtype):
        with np.errstate(all="ignore"):
            theirs = quants.quantize(values, kinds.MXFP4).reshape(-1, 17)
        nibbles = np.concatenate([theirs[:, 1:] & 15, theirs[:, 1:] >> 4], 1)
        largest = np.abs(values).reshape(-1, 32).max(-1)
        held = (largest >= 2.0**-125) & (largest <= 2.0**127)  # beyond, its bytes wrap around and its logarithm rounds
        q = dlfp4.quantize(x, "mxfp4", recipe="ggml")
        scales = np.frombuffer(raw_bytes(q.scales), np.uint8)
        codes = unpacked_codes(raw_bytes(q.data), 4, values.size).reshape(-1, 32)
        assert (scales == theirs[:, 0])[held].all(), (kind, dtype)
        assert (codes == nibbles)[held].all(), (kind, dtype)


MLX = [("mxfp4", "mxfp4", 32, 4), ("mxfp8_e4m3", "mxfp8", 32, 8), ("nvfp4", "nvfp4", 16, 4)]


@pytest.mark.parametrize(("name", "mode", "length", "bits"), MLX)
@pytest.mark.parametrize("dtype", FLOATS)
def test_mlx(dtype, name, mode, length, bits):
    """mx.quantize on its CPU backend; its NVFP4 has no global scale, its e8m0 bytes wrap around below 0, and float16
    loses bits of quotients that are subnormal in it, which dlfp4 keeps."""
    mx = package("mlx.core")
    options = {"global_scale": 1.0} if mode == "nvfp4" else {}
    most = 2600 if mode == "nvfp4" else MOST
    least = float(ml_dtypes.finfo(FORMATS[name].element).max) * 2.0**-14 if dtype == "float16" else 2.0**-117
    for kind, x, values in finite_inputs((32, 128), dtype):
        largest = np.abs(values).reshape(-1, length).max(-1)
        held = (largest == 0) | ((largest >= least) & (largest <= most))
        packed, scales = mx.quantize(
            mx.array(values).astype(getattr(mx, dtype)), group_size=length, bits=bits, mode=mode
        )[:2]
        q = dlfp4.quantize(x, name, recipe="mlx", **options)
        theirs = unpacked_codes(np.array(packed).tobytes(), bits, values.size).reshape(-1, length)
        ours = unpacked_codes(raw_bytes(q.data), bits, values.size).reshape(-1, length)
        assert (np.frombuffer(raw_bytes(q.scales), np.uint8) == np.array(scales).ravel())[held].all(), (kind, dtype)
        assert (ours == theirs)[held].all(), (kind, dtype)


@pytest.mark.parametrize("recipe", ["deepseek", "modelopt", "aiter", "compressed-tensors"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_other_mxfp4(dtype, recipe):
    """DeepGEMM's per_token_cast_to_fp4; ModelOpt's MXFP4QTensor (which gives zeros a sign of its own); AITER's
    dynamic_mxfp4_quant and compressed-tensors' generate_mx_scales, whose exponents are of a rounded up from 1.75."""
    for kind, x, values in finite_inputs((32, 128), dtype):
        blocks, largest = blocks_of(values, 32)
        if recipe == "deepseek":
            largest = np.maximum(largest, F(1e-4))
        mantissa, exponent = np.frexp(largest.astype(np.float64))  # of a mantissa in [1/2, 1)
        power = exponent - 3 + (mantissa > 0.75) if recipe in ("deepseek", "modelopt") else exponent - 3
        if recipe in ("aiter", "compressed-tensors"):
            power = (((largest.view(np.uint32) + np.uint32(0x200000)) >> 23).astype(int) - 127) - 2
        power = np.clip(np.where(largest == 0, -127, power), -127, 127)
        with np.errstate(all="ignore"):
            scaled = blocks * np.ldexp(F(1), -power)[..., None]
        codes = fp4(scaled, "nearest_zero" if recipe in ("deepseek", "modelopt") else "nearest_even")
        if recipe == "deepseek":
            codes = without_negative_zeros(codes)
        if recipe == "compressed-tensors":
            codes = np.where(scaled == 0, 0, codes)
        q = dlfp4.quantize(x, "mxfp4", recipe=recipe)
        assert_same(q, (power + 127).astype(np.uint8), codes, (kind, dtype))


# ---- FP8 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp8_1x128", "fp8_1x128_e5m2", "fp8_128x128", "fp8_row", "fp8_e4m3"])
@pytest.mark.parametrize("recipe", ["deepseek", "deepseek-ue8m0"])
def test_deepseek_fp8(recipe, name):
    """act_quant of DeepSeek-V3.1's kernels: s = max(a, 1e-4) / 448, as a power of two rounded up; x / s.
    The last blocks are incomplete."""
    element, block = FORMATS[name].element, FORMATS[name].block
    most = F(float(ml_dtypes.finfo(element).max))
    for dtype in FLOATS:
        for kind, x, values in finite_inputs((140, 208), dtype):
            tiles = tiles_of(values, block)
            largest = np.abs(tiles).max((1, 3))
            scale = np.maximum(largest, F(1e-4)) / most
            if recipe == "deepseek-ue8m0":
                mantissa, exponent = np.frexp(scale)
                scale = np.ldexp(F(1), exponent - (mantissa == 0.5))
            codes = codec(element).round(tiles / scale[:, None, :, None])
            codes = codes.reshape(codes.shape[0] * codes.shape[1], -1)[: values.shape[0], : values.shape[1]]
            assert_same(dlfp4.quantize(x, name, recipe=recipe), scale, codes, (kind, dtype))


# Every granularity of float8 that compressed-tensors has.
STRATEGIES = {
    "fp8_e4m3": {"strategy": "tensor"},
    "fp8_row": {"strategy": "channel"},
    "fp8_1x128": {"strategy": "group", "group_size": 128},
    "fp8_128x128": {"strategy": "block", "block_structure": [128, 128]},
}


def one_level_of_compressed_tensors(values, dtype, name):
    """calculate_qparams and _quantize, restated: scales and codes, of quotients in the input's type. Scales of zero are
    its eps."""
    lines, length = FORMATS[name].block or values.shape
    tiles = values.reshape(values.shape[0] // lines, lines, -1, length or values.shape[1])
    largest = F(448) if "fp8" in name else F(7.5)
    scales = rounded_to(np.abs(tiles).max((1, 3)) / largest, dtype)
    scales = np.where(scales == 0, F(float(ml_dtypes.finfo(dtype).eps)), scales)
    scaled = rounded_to(tiles / scales[:, None, :, None], dtype) + F(0)
    if "fp8" in name:
        return scales, codec("float8_e4m3fn").round(scaled).reshape(values.shape)
    return scales, (np.rint(scaled).clip(-8, 7).astype(np.int8) & 15).astype(np.uint8).reshape(values.shape)


def zeros_and_less(shape, dtype):
    """Rows and tiles of zeros of both signs, of the least numbers, and of one outlier."""
    x = make("normal", shape, "float32")
    least = F(float(ml_dtypes.finfo(dtype).smallest_subnormal))
    x[:128, :128], x[:128, 128:], x[128], x[130:140] = 0, -0.0, -0.0, least * F(3)
    x[140], x[141] = least, F(float(ml_dtypes.finfo(dtype).max))
    yield "zeros and less", native_cast(x, dtype), native_cast(native_cast(x, dtype), "float32")
    for kind, number in (("zeros", 0.0), ("negative zeros", -0.0), ("the least", least)):
        x = np.full(shape, number, F)
        yield kind, native_cast(x, dtype), x


@pytest.mark.parametrize("name", [*STRATEGIES, "int4_g32", "int4_row"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_compressed_tensors_of_one_level(dtype, name):
    shape = (256, 256)
    for kind, x, values in (*finite_inputs(shape, dtype), *zeros_and_less(shape, dtype)):
        scales, codes = one_level_of_compressed_tensors(values, dtype, name)
        q = dlfp4.quantize(x, name, recipe="compressed-tensors")
        assert_same(q, scales, codes, (kind, dtype))
        across = dlfp4.quantize(x.T, name, recipe="compressed-tensors", axis=-2)
        assert raw_bytes(across.mT.dequantize()) == raw_bytes(q.dequantize()), (kind, dtype)


def test_quotients_of_two_types_of_16_bits():
    """PyTorch divides a bfloat16 by a float16 in float32: quotients are rounded once."""
    x = make("normal", (64, 256), "bfloat16")
    for dtype in ("float16", "float32", "bfloat16"):
        recipe = dlfp4.Recipe(divide=True, scale_order="input_type", scale_dtype=dtype)
        q = dlfp4.quantize(x, "fp8_row", recipe=recipe)
        scaled = native_cast(x, "float32") / native_cast(q.scales.to_numpy(), "float32")
        scaled = scaled if dtype == "float16" else rounded_to(scaled, "bfloat16")
        assert raw_bytes(q.data) == codec("float8_e4m3fn").round(scaled).tobytes(), dtype


@pytest.mark.parametrize("name", STRATEGIES)
def test_compressed_tensors_fp8_by_its_own_code(name):
    """The restatement above against what the package's compressor stores."""
    package("compressed_tensors")
    torch = package("torch")
    quantization = importlib.import_module("compressed_tensors.quantization")
    helpers = importlib.import_module("compressed_tensors.quantization.utils.helpers")
    storage = importlib.import_module("compressed_tensors.compressors.naive_quantized.base")
    args = quantization.QuantizationArgs(num_bits=8, type="float", symmetric=True, **STRATEGIES[name])
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=args)
    lines, length = FORMATS[name].block or (256, 256)
    for dtype in FLOATS:
        for kind, _, values in (*finite_inputs((256, 256), dtype), *zeros_and_less((256, 256), dtype)):
            w = torch.from_numpy(values.copy()).to(getattr(torch, dtype))
            tiles = w.reshape(256 // lines, lines, -1, length or 256)
            scale, zero_point = helpers.calculate_qparams(tiles.amin((1, 3)), tiles.amax((1, 3)), args)
            scales, codes = one_level_of_compressed_tensors(values, dtype, name)
            assert (scale.float().numpy() == scales).all(), (kind, dtype)
            stored = {"weight": w, "weight_scale": scale, "weight_zero_point": zero_point}
            if name == "fp8_e4m3":
                stored = {part: x if part == "weight" else x.reshape(1) for part, x in stored.items()}
            found = storage.FloatQuantizationCompressor.compress(stored, scheme)["weight"]
            assert (found.view(torch.uint8).numpy() == codes).all(), (kind, dtype)


def test_orders_that_float32_scales_do_not_have():
    x = np.ones((32, 128), F)
    for options in ({"scale_order": "block_first", "divide": True}, {"scale_order": "input_type"},
                    {"scale_order": "input_type", "divide": True, "pow2": True}):  # fmt: skip
        for name in ("fp8_e4m3", "fp8_row", "fp8_1x128"):
            with pytest.raises(ValueError, match=r"has scale_order=.*take 'input_type' alone, with divide=True"):
                dlfp4.quantize(x, name, recipe=dlfp4.Recipe(**options))


def test_quotients_of_zeros_and_the_least_numbers():
    """Without eps: a scale is never zero, and a block of zeros has 1."""
    x = np.zeros((3, 128), F)
    x[1, 7], x[2] = 2.0**-149, 2.0**-149 * np.arange(128)
    q = dlfp4.quantize(x, "fp8_1x128", recipe=dlfp4.Recipe(divide=True))
    assert q.scales.to_numpy().ravel().tolist() == [1, 2.0**-149, 2.0**-149]
    assert q.dequantize().to_numpy()[1].tolist() == x[1].tolist()
    for dtype, least in (("bfloat16", 2.0**-133), ("float16", 2.0**-24)):
        q = dlfp4.quantize(x, "fp8_1x128", recipe=dlfp4.Recipe(divide=True, scale_dtype=dtype))
        assert dlfp4.cast(q.scales, "float32").to_numpy().ravel().tolist() == [1, least, least]


@pytest.mark.parametrize("name", ["mxfp4", "fp8_e4m3", "fp8_row", "fp8_1x128", "int4_g32", "uint4_row"])
def test_an_eps_of_negative_zero_is_none(name):
    x = make("normal", (16, 128))
    parts = [
        [raw_bytes(q.data), raw_bytes(q.scales)]
        for q in (dlfp4.quantize(x, name, recipe=dlfp4.Recipe(eps=eps)) for eps in (0.0, -0.0))
    ]
    assert parts[0] == parts[1]


# ---- options -------------------------------------------------------------------------------------------------------


def takes(name, recipe):
    """Whether a format takes a named recipe."""
    try:
        find_recipe(dlfp4.formats()[name], recipe)
    except ValueError:
        return False
    return True


LINE_BY_LINE = ("nvfp4", *(name for name in MX if FORMATS[name].block[0] == 1))  # whose blocks are NaN as a whole


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_blocks_that_are_not_finite(recipe, dtype):
    """Whatever the recipe, they are NaN, and others are as if these were not there."""
    x = make("normal", (16, 256), dtype)
    broken = x.copy()
    broken[3, 37], broken[9, 1], broken[11] = np.nan, -np.inf, np.nan
    for name in (name for name in LINE_BY_LINE if takes(name, recipe)):
        options = {"global_scale": 0.01} if name == "nvfp4" else {}
        length = FORMATS[name].block[1]
        clean = dlfp4.quantize(x, name, recipe=recipe, **options).dequantize().to_numpy()
        found = dlfp4.quantize(broken, name, recipe=recipe, **options).dequantize().to_numpy()
        nan = np.zeros(x.shape, bool)
        nan[11] = True
        for i, j in ((3, 37), (9, 1)):
            nan[i, j // length * length : (j // length + 1) * length] = True
        assert np.isnan(found).tolist() == nan.tolist(), name
        assert found[~nan].tobytes() == clean[~nan].tobytes(), name


def test_scale_floors():
    x = np.zeros((3, 32), F)
    x[0], x[1, 0] = 6, 2.0**-20
    q = dlfp4.quantize(x, "mxfp4", recipe=dlfp4.Recipe(scale_floor=2.0**-10, zero_scale=5))
    assert codes_of(q.scales).ravel().tolist() == [127, 117, 5]
    with pytest.raises(ValueError, match=r"scale_floor=0\.3 is not a value of float8_e8m0fnu"):
        dlfp4.quantize(x, "mxfp4", recipe=dlfp4.Recipe(scale_floor=0.3))


@pytest.mark.parametrize("name", ["mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "nvfp4"])
def test_what_rounds_to_zero_may_lose_its_sign(name):
    x = make("cauchy", (64, 192))
    x[0, :32] = -0.0
    for axis in (-1, -2):
        kept = dlfp4.quantize(x, name, axis=axis)
        q = dlfp4.quantize(x, name, axis=axis, recipe=dlfp4.Recipe(rounds_to_negative_zero=False))
        assert raw_bytes(q.scales) == raw_bytes(kept.scales)
        bits = {"float4_e2m1fn": 4, "float6_e2m3fn": 6}.get(FORMATS[name].element, 8)
        before, after = (unpacked_codes(raw_bytes(t.data), bits, x.size) for t in (kept, q))
        assert (before == 1 << (bits - 1)).any()
        assert after.tolist() == without_negative_zeros(before, 1 << (bits - 1)).tolist()


def test_names_that_a_format_has_no_rule_of():
    x = np.ones((32, 128), F)
    for name, recipe in (("mxfp8_e4m3", "ggml"), ("fp8_1x128", "aiter"), ("nvfp4", "deepseek"), ("mxfp6_e2m3", "mlx")):
        with pytest.raises(ValueError, match=f"recipe='{recipe}' is for .*{name} takes "):
            dlfp4.quantize(x, name, recipe=recipe)
    for name, recipe, message in (
        (
            "mxfp8_e5m2",
            "mlx",
            r"nvfp4 formats and mx formats of float4_e2m1fn and float8_e4m3fn; mxfp8_e5m2 takes ocp, nv",
        ),
        (
            "int4_g32",
            "deepseek",
            r"mx formats of float4_e2m1fn and FP8 formats; int4_g32 takes compressed-tensors: name",
        ),
        ("mxfp6_e2m3", "compressed-tensors", r"mx formats of float4_e2m1fn and FP8 formats and integers; mxfp6_e2m3"),
    ):
        with pytest.raises(ValueError, match=message):
            dlfp4.quantize(x, name, recipe=recipe)


def test_a_recipe_shows_what_differs():
    """A call that makes it."""
    assert repr(dlfp4.Recipe()) == "Recipe()"
    recipe = dlfp4.Recipe(scale_rule="ceil", eps=0.5, keeps_negative_zero=False)
    assert repr(recipe) == "Recipe(scale_rule='ceil', eps=0.5, keeps_negative_zero=False)"
    assert eval(repr(recipe), {"Recipe": dlfp4.Recipe}) == recipe
    with pytest.raises(ValueError, match=r"recipe=Recipe\(eps=0\.5\) has eps=0\.5, for which nvfp4 has no use"):
        dlfp4.quantize(np.ones((16, 16), F), "nvfp4", recipe=dlfp4.Recipe(eps=0.5))
