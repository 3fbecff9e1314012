"""Checkpoints of others: made here byte by byte as their exporters do, decoded by a formula that knows no dlfp4."""

import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.checkpoints import join_parts, split_parts
from dlfp4.checkpoints.selection import Choice, quantize_chosen
from dlfp4.spellings import CONVENTIONS, SPELLINGS

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
N, K = 48, 128


@pytest.fixture
def generator():
    return np.random.default_rng(7)


def fp4(generator, *shape):
    """Random bytes, two elements each, and what they decode to: the low nibble first."""
    packed = generator.integers(0, 256, shape, np.uint8)
    return packed, np.stack([E2M1[packed & 15], E2M1[packed >> 4]], -1).reshape(*shape[:-1], -1)


def fp8(generator, *shape):
    codes = generator.integers(0, 0x7E, shape, np.uint8).view(ml_dtypes.float8_e4m3fn)
    return codes, codes.astype(np.float32)


def exponents(generator, *shape):
    """e8m0 bytes and their values."""
    octets = generator.integers(110, 140, shape, np.uint8)
    return octets, np.exp2(octets.astype(np.float32) - 127)


def positive(generator, *shape):
    return generator.uniform(0.01, 2, shape).astype(np.float32)


def assert_joined(parts, name, format, expected, kept=()):
    """The parts become one tensor of that name, which shares their memory and decodes to the expected values."""
    joined = join_parts(parts)
    assert joined.keys() == {name, *kept}
    q = joined[name]
    assert (q.format, q.shape, q.axis, q.scale_layout) == (format, expected.shape, -1, "linear")
    np.testing.assert_array_equal(q.dequantize().to_numpy(), expected)
    assert q.data.data_ptr in {part.ctypes.data for part in parts.values() if isinstance(part, np.ndarray)}
    return q


@pytest.mark.parametrize("leading", [(), (3,)], ids=["matrix", "experts"])
def test_nvfp4_of_modelopt(generator, leading):
    packed, values = fp4(generator, *leading, N, K // 2)
    scales, decoded = fp8(generator, *leading, N, K // 16)
    unit = positive(generator)
    parts = {
        "up.weight": packed,
        "up.weight_scale": scales,
        "up.weight_scale_2": unit,
        "up.input_scale": positive(generator),
    }
    expected = values * np.repeat(decoded * unit, 16, -1)
    q = assert_joined(parts, "up.weight", "nvfp4", expected, {"up.input_scale"})
    assert float(q.global_scale) == float(unit)


def test_nvfp4_of_compressed_tensors_has_the_reciprocal_global_scale(generator):
    packed, values = fp4(generator, N, K // 2)
    scales, decoded = fp8(generator, N, K // 16)
    unit = positive(generator, 1)
    parts = {"up.weight_packed": packed, "up.weight_scale": scales, "up.weight_global_scale": unit}
    assert_joined(parts, "up.weight", "nvfp4", values * np.repeat(decoded * (np.float32(1) / unit), 16, -1))


@pytest.mark.parametrize(
    ("data", "scales", "name", "container"),
    [
        ("up.weight", "up.weight_scale", "up.weight", "uint8"),
        ("up.weight_packed", "up.weight_scale", "up.weight", "uint8"),
        ("up.weight", "up.scale", "up.weight", "int8"),
    ],
    ids=["modelopt", "compressed-tensors", "deepseek-v4"],
)
def test_mxfp4(generator, data, scales, name, container):
    packed, values = fp4(generator, N, K // 2)
    octets, decoded = exponents(generator, N, K // 32)
    for stored in (octets, octets.view(ml_dtypes.float8_e8m0fnu)):
        assert_joined(
            {data: packed.view(container), scales: stored}, name, "mxfp4", values * np.repeat(decoded, 32, -1)
        )


@pytest.mark.parametrize("dot", "_.")
def test_mxfp4_of_gpt_oss(generator, dot):
    experts, groups = 3, K // 32
    packed, values = fp4(generator, experts, N, groups, 16)
    octets, decoded = exponents(generator, experts, N, groups)
    expected = (values * decoded[..., None]).reshape(experts, N, K)
    name = "mlp.experts.gate_up_proj"
    bias = {f"{name}_bias": positive(generator, experts, N)}
    parts = {f"{name}{dot}blocks": packed, f"{name}{dot}scales": octets} | bias
    assert_joined(parts, name, "mxfp4", expected, bias)


def test_mxfp8(generator):
    codes, values = fp8(generator, N, K)
    octets, decoded = exponents(generator, N, K // 32)
    parts = {"up.weight": codes, "up.weight_scale": octets}
    assert_joined(parts, "up.weight", "mxfp8_e4m3", values * np.repeat(decoded, 32, -1))


@pytest.mark.parametrize("shape", [(), (1,)])
def test_fp8_with_one_scale(generator, shape):
    codes, values = fp8(generator, N, K)
    scale = positive(generator, *shape)
    assert_joined({"up.weight": codes, "up.weight_scale": scale}, "up.weight", "fp8_e4m3", values * scale)


@pytest.mark.parametrize("shape", [(256, 384), (200, 300), (2, 128, 256)])
@pytest.mark.parametrize("suffix", ["_scale_inv", "_scale"])
def test_fp8_in_tiles(generator, shape, suffix):
    codes, values = fp8(generator, *shape)
    scales = positive(generator, *shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    whole = np.repeat(np.repeat(scales, 128, -2), 128, -1)[..., : shape[-2], : shape[-1]]
    assert_joined({"up.weight": codes, f"up.weight{suffix}": scales}, "up.weight", "fp8_128x128", values * whole)


def test_tiles_of_modelopt_and_of_qwen(generator):
    codes, values = fp8(generator, 256, 384)
    scales = positive(generator, 2, 3)
    whole = np.repeat(np.repeat(scales, 128, 0), 128, 1)
    assert_joined({"w": codes, "w_scale": scales.reshape(2, 1, 3, 1)}, "w", "fp8_128x128", values * whole)
    half = scales.astype(ml_dtypes.bfloat16)
    whole = np.repeat(np.repeat(half.astype(np.float32), 128, 0), 128, 1)
    assert_joined({"w": codes, "w_scale_inv": half}, "w", "fp8_128x128", values * whole)


def test_what_follows_no_convention_stays(generator):
    packed, _ = fp4(generator, N, K // 2)
    experts, _ = fp4(generator, 3, N, K // 2)
    codes, _ = fp8(generator, N, K)
    scales, _ = fp8(generator, N, K // 16)
    octets, _ = exponents(generator, N, K // 32)
    left_alone = [
        {"w": packed, "w_scale": scales},  # no global scale
        {"w": packed, "w_scale": scales, "w_scale_2": positive(generator, 3)},  # of a matrix
        {"w": experts, "w_scale": np.stack([scales] * 3), "w_scale_2": positive(generator, 2)},  # of three
        {"w": packed, "w_scale": scales, "w_scale_2": np.float64(1)},
        {"w": packed, "w_scale": octets[:-1]},
        {"w": packed, "w_scale": octets.astype(np.float32)},
        {"w": packed.astype(np.int32), "w_scale": octets},
        {"w": packed[0], "w_scale": octets[0]},
        {"w": codes.astype(np.float32), "w_scale": octets},
        {"w_blocks": packed, "w_scales": octets},
        {"input_scale": positive(generator), "output_scale": positive(generator)},
        {"q.weight": packed, "q.weight_scale": octets, "q.comfy_quant": np.zeros(3, np.uint8)},
        {"w_packed": packed, "w_scale": octets, "w": octets},  # the name is taken
    ]
    for parts in left_alone:
        joined = join_parts(parts)
        assert list(joined) == list(parts)
        assert all(isinstance(tensor, dlfp4.Tensor) for tensor in joined.values())


def test_fp8_without_its_scales_is_told(tmp_path, generator):
    codes, _ = fp8(generator, N, K)
    scales = positive(generator, 7, 1)
    other = {"up.weight": codes, "up.weight_scale": positive(generator)}
    for parts, message in (
        ({"w": codes, "w_scale": scales}, r"w \(w_scale is left\)"),
        ({"down.weight": codes, "down.scale_of_weight": scales}, r"down.weight \(down.scale_of_weight is left\)"),
        ({"w": codes[None].repeat(2, 0), "w_scale": positive(generator, 2, 1, 1)}, r"w \(w_scale is left\)"),
        ({"down.weight": codes} | other, r"down.weight \(none is there\)"),
        ({"w": codes, "w_scale": positive(generator), "w_scale_inv": positive(generator)}, "w_scale, w_scale_inv are"),
        ({f"{k}.weight": codes for k in range(9)} | other, " and 6 more"),
    ):
        with pytest.warns(checkpoints.UnscaledWarning, match=f"FP8 without its scales, .*{message}") as told:
            joined = join_parts(parts)
        assert told[0].filename == __file__
        assert all(isinstance(joined[name], dlfp4.Tensor) for name in parts if name not in other)
        checkpoints.save(tmp_path / "a.safetensors", parts)
        with pytest.warns(checkpoints.UnscaledWarning, match=message) as told:
            checkpoints.load(tmp_path / "a.safetensors")
        assert told[0].filename == __file__


def test_products_of_fp8_without_its_scales_are_told(generator):
    """Each of them, of views and copies as well; not those of a tensor that got scales, nor of the caller's own."""
    codes = dlfp4.asarray(fp8(generator, N, K)[0])
    with pytest.warns(checkpoints.UnscaledWarning):
        w = join_parts({"w": codes, "w_scale": positive(generator, 7, 1)})["w"]
    x = np.ones((4, K), np.float32)
    products = {
        "matmul": lambda w: dlfp4.matmul(x, w.mT),
        "of a slice": lambda w: dlfp4.matmul(x, w[:16].mT),
        "of a copy": lambda w: dlfp4.matmul(x, w.copy().mT),
        "grouped": lambda w: dlfp4.grouped_matmul(x, w.reshape(1, *w.shape).mT, np.array([4], np.int32)),
        "vecdot": lambda w: dlfp4.vecdot(w, w),
    }
    for product in products.values():
        for _ in range(2):
            with pytest.warns(checkpoints.UnscaledWarning, match="multiplies it as it is") as told:
                product(w)
            assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for product in products.values():
            product(codes)
        dlfp4.matmul(x, dlfp4.ScaledTensor.from_parts(w, np.ones((), np.float32), format="fp8_e4m3").mT)
        dlfp4.matmul(x, dlfp4.cast(w, "float32").mT)


def test_fp8_that_has_no_scales_anywhere_is_what_it_is(generator):
    codes, _ = fp8(generator, N, K)
    parts = {"w.weight": codes, "w.input_scale": positive(generator), "w_scale": codes, "v": codes}
    assert join_parts(parts).keys() == parts.keys()


@pytest.mark.parametrize("further", ["_scale_2", "_global_scale", "_zero_point", "_scale_inv"])
def test_further_parts_say_that_it_is_something_else(generator, further):
    packed, _ = fp4(generator, N, K // 2)
    octets, _ = exponents(generator, N, K // 32)
    for data in ("", "_packed"):
        parts = {f"w{data}": packed, "w_scale": octets, f"w{further}": positive(generator)}
        joined = join_parts(parts)
        assert joined.keys() == parts.keys()
        assert not any(isinstance(x, dlfp4.ScaledTensor) for x in joined.values())


def test_a_global_scale_comes_back_bit_for_bit(generator):
    """Of 17 % of all numbers, no reciprocal leads back to the same one."""
    numbers = np.float32(1) + generator.integers(0, 1 << 23, 500).astype(np.float32) * np.float32(2**-23)
    assert (np.float32(1) / (np.float32(1) / numbers) != numbers).sum() > 50
    packed, _ = fp4(generator, N, K // 2)
    scales, _ = fp8(generator, N, K // 16)
    for number in numbers:
        parts = {"w_packed": packed, "w_scale": scales, "w_global_scale": np.array([number])}
        q = join_parts(parts)["w"]
        assert q.global_scale.item() == np.float32(1) / number
        back = split_parts({"w": q}, "compressed-tensors")
        assert back["w_global_scale"].shape == (1,)
        assert back["w_global_scale"].to_numpy().tobytes() == number.tobytes()


def test_an_encode_scale_is_given_instead_of_a_decode_scale():
    parts = np.zeros((2, 8), np.uint8), np.zeros((2, 1), np.uint8)
    q = dlfp4.ScaledTensor.from_parts(*parts, format="nvfp4", encode_scale=3)
    assert (q.encode_scale.item(), q.global_scale.item()) == (3, np.float32(1 / 3))
    assert dlfp4.ScaledTensor.from_parts(*parts, 3, format="nvfp4").encode_scale is None
    with pytest.raises(ValueError, match="global_scale and encode_scale are both given"):
        dlfp4.ScaledTensor.from_parts(*parts, 1, format="nvfp4", encode_scale=1)
    with pytest.raises(TypeError, match="encode_scale has dtype float64"):
        dlfp4.ScaledTensor.from_parts(*parts, format="nvfp4", encode_scale=np.ones(1))
    with pytest.raises(ValueError, match="mxfp4_16 has no"):
        dlfp4.ScaledTensor.from_parts(*parts, format="mxfp4_16", encode_scale=1)


def test_mlx_groups_of_nan():
    """They have a scale of NaN and any codes, which are not looked at."""
    values = np.random.default_rng(0).standard_normal((1, 128), np.float32)
    values[0, 100] = np.nan
    q = dlfp4.quantize(values, "uint4_g32")
    q.data.view("uint8").to_numpy()[0, 48:] = 0x99
    back = join_parts(split_parts({"w.weight": q}, "mlx"))["w.weight"]
    assert isinstance(back, dlfp4.ScaledTensor)
    assert np.allclose(back.dequantize(), q.dequantize(), rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize("convention", ["mlx", None])
def test_mlx_has_no_global_scale(convention):
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    choice = Choice("w", True)
    q = quantize_chosen(x, choice, "nvfp4", convention=convention)
    if convention is None:
        with pytest.raises(ValueError, match=r"w has a global scale of .*, but mlx stores none; quantize with global_"):
            split_parts({"w": q}, "mlx")
        return
    back = join_parts(split_parts({"w.weight": q}, "mlx"))["w.weight"]
    np.testing.assert_array_equal(back.dequantize().to_numpy(), q.dequantize().to_numpy())


def test_one_scale_has_the_shape_that_loaders_want(generator):
    q = dlfp4.quantize(np.ones((4, 64), np.float32), "fp8_e4m3")
    for convention, shape in (("compressed-tensors", (1,)), ("modelopt", ()), ("deepseek", ())):
        (scale,) = (part for name, part in split_parts({"w": q}, convention).items() if "scale" in name)
        assert scale.shape == shape


def test_order_and_quantized_tensors_are_kept(generator):
    packed, _ = fp4(generator, N, K // 2)
    octets, _ = exponents(generator, N, K // 32)
    q = dlfp4.quantize(np.ones((2, 32), np.float32), "mxfp4")
    parts = {"a": packed, "w_scales": octets, "q": q, "w_blocks": packed.reshape(N, K // 32, 16), "z": octets}
    joined = join_parts(parts)
    assert list(joined) == ["a", "q", "w", "z"]
    assert joined["q"] is q


def test_as_many_tensors_as_large_models_have(generator):
    """What looked through all of them for each would take hours."""
    packed, values = fp4(generator, 1, 16)
    octets, decoded = exponents(generator, 1, 1)
    joined = join_parts({f"{k}{end}": part for k in range(20_000) for end, part in (("", packed), ("_scale", octets))})
    assert list(joined) == [str(k) for k in range(20_000)]
    np.testing.assert_array_equal(joined["19999"].dequantize().to_numpy(), values * decoded)


def test_state_dict_of_pytorch_is_shared(generator):
    torch = pytest.importorskip("torch")
    packed, values = fp4(generator, N, K // 2)
    scales, decoded = fp8(generator, N, K // 16)
    state = {
        "weight": torch.from_numpy(packed),
        "weight_scale": torch.from_numpy(scales.view(np.uint8)).view(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(0.5),
    }
    q = join_parts(state)["weight"]
    assert [q.data.data_ptr, q.scales.data_ptr] == [state["weight"].data_ptr(), state["weight_scale"].data_ptr()]
    np.testing.assert_array_equal(q.dequantize().to_numpy(), values * np.repeat(decoded * np.float32(0.5), 16, -1))


def test_global_scales_without_a_reciprocal_are_refused():
    x = np.linspace(-1e-36, 1e-36, 256, dtype=np.float32).reshape(4, 64)
    q = dlfp4.quantize(x, "nvfp4")
    split_parts({"w": q}, "compressed-tensors")
    q = dlfp4.ScaledTensor.from_parts(q.data, q.scales, np.float32(1e-39), format="nvfp4")
    with pytest.raises(ValueError, match="w has a global scale whose reciprocal is inf"):
        split_parts({"w": q}, "compressed-tensors")
    again = join_parts(split_parts({"w": q}, "modelopt"))["w"]
    np.testing.assert_array_equal(again.dequantize().to_numpy(), q.dequantize().to_numpy())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(N, 1), (N,), (2, N, 1)])
def test_fp8_with_a_scale_a_row(generator, dtype, shape):
    leading = shape[:-2] if len(shape) > 2 else ()
    codes, values = fp8(generator, *leading, N, K)
    scales = positive(generator, *shape).astype(dtype)
    rows = scales.astype(np.float32).reshape(*leading, N, 1)
    parts = {"up.weight": codes, "up.weight_scale": scales}
    q = assert_joined(parts, "up.weight", "fp8_row", values * rows)
    stored = split_parts({"up.weight": q}, "compressed-tensors")["up.weight_scale"]
    assert (stored.dtype, stored.shape) == (np.dtype(dtype), (*leading, N, 1))
    stored = split_parts({"up.weight": q}, "modelopt")["up.weight_scale"]
    assert (stored.dtype, stored.shape) == (np.dtype(dtype), (*leading, N))
    assert stored.to_numpy().tobytes() == scales.tobytes()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 1), (3, 1, 1)])
def test_experts_with_a_global_scale_each(generator, shape):
    packed, values = fp4(generator, 3, N, K // 2)
    scales, decoded = fp8(generator, 3, N, K // 16)
    units = positive(generator, *shape)
    each = np.broadcast_to(units.reshape(-1, 1, 1), (3, 1, 1))
    parts = {"w": packed, "w_scale": scales, "w_scale_2": units}
    q = assert_joined(parts, "w", "nvfp4", values * np.repeat(decoded * each, 16, -1))
    back = split_parts({"w": q}, "modelopt")["w_scale_2"]
    assert back.shape == ((3,) if units.size > 1 else ())
    parts = {"w_packed": packed, "w_scale": scales, "w_global_scale": units}
    q = assert_joined(parts, "w", "nvfp4", values * np.repeat(decoded * (1 / each), 16, -1))
    assert split_parts({"w": q}, "compressed-tensors")["w_global_scale"].to_numpy().tobytes() == units.tobytes()
    turned = {"w": packed.swapaxes(1, 2).copy(), "w_weight_scale": scales.swapaxes(1, 2).copy()}
    joined = join_parts(turned | {"w_weight_scale_2": units})["w"]
    np.testing.assert_array_equal(joined.dequantize().to_numpy(), values * np.repeat(decoded * each, 16, -1))
    back = split_parts({"w": joined}, "llama-4")
    for name, part in turned.items():
        assert back[name].to_numpy().tobytes() == part.tobytes()


@pytest.mark.parametrize("container", ["float32", "bfloat16", "float8_e8m0fnu", "uint8"])
@pytest.mark.parametrize("shape", [(2, 3), (200, 3)])
def test_scales_of_deepseek_that_are_powers_of_two(generator, container, shape):
    codes, values = fp8(generator, 200, 300)
    octets, decoded = exponents(generator, *shape)
    scales = octets if container == "uint8" else octets.view(ml_dtypes.float8_e8m0fnu).astype(container)
    expected = values * np.repeat(np.repeat(decoded, 128 if shape[0] == 2 else 1, 0), 128, 1)[:200, :300]
    format = "fp8_128x128" if shape[0] == 2 else "fp8_1x128"
    q = assert_joined({"w.weight": codes, "w.weight_scale_inv": scales}, "w.weight", format, expected)
    if shape[0] == 2:
        back = split_parts({"w.weight": q}, "deepseek")["w.weight_scale_inv"]
        assert back.view("uint8").to_numpy().tobytes() == scales.tobytes()
        back = split_parts({"w.weight": q}, "deepseek-v4")["w.scale"]
        assert back.dtype.name == "float8_e8m0fnu"
        assert back.view("uint8").to_numpy().tobytes() == octets.tobytes()
        again = assert_joined({"w.weight": codes, "w.scale": back.to_numpy()}, "w.weight", format, expected)
        assert again.scales.dtype.name == "float8_e8m0fnu"


def test_scales_that_a_convention_cannot_store(generator):
    x = generator.normal(size=(256, 256)).astype(np.float32)
    q = dlfp4.quantize(x, "fp8_128x128", recipe=dlfp4.Recipe(pow2=False))
    with pytest.raises(ValueError, match="w has scales that are not powers of two, but e8m0 stores them"):
        split_parts({"w": q}, "deepseek-v4")
    q = dlfp4.quantize(x, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="row"))
    with pytest.raises(ValueError, match="w has a global scale per row, but modelopt stores one per matrix"):
        split_parts({"w": q}, "modelopt")
    with pytest.raises(ValueError, match="w has a global scale, but mlx stores none"):
        split_parts({"w": q}, "mlx")


# ---- And back

STORED = [
    ("modelopt", "nvfp4", {"w": "uint8", "w_scale": "float8_e4m3fn", "w_scale_2": "float32"}),
    ("modelopt", "mxfp4", {"w": "uint8", "w_scale": "uint8"}),
    ("modelopt", "mxfp8_e4m3", {"w": "float8_e4m3fn", "w_scale": "uint8"}),
    ("modelopt", "fp8_e4m3", {"w": "float8_e4m3fn", "w_scale": "float32"}),
    ("compressed-tensors", "nvfp4", {"w_packed": "uint8", "w_scale": "float8_e4m3fn", "w_global_scale": "float32"}),
    ("compressed-tensors", "mxfp4", {"w_packed": "uint8", "w_scale": "uint8"}),
    ("compressed-tensors", "mxfp8_e5m2", {"w": "float8_e5m2", "w_scale": "uint8"}),
    ("compressed-tensors", "fp8_128x128", {"w": "float8_e4m3fn", "w_scale": "float32"}),
    ("gpt-oss", "mxfp4", {"w_blocks": "uint8", "w_scales": "uint8"}),
    ("deepseek", "fp8_128x128", {"w": "float8_e4m3fn", "w_scale_inv": "float32"}),
]


@pytest.mark.parametrize("shape", [(128, 256), (2, 128, 128)])
@pytest.mark.parametrize(("convention", "format", "types"), STORED)
def test_conventions_are_written_and_read(tmp_path, generator, convention, format, types, shape):
    q = dlfp4.quantize(generator.normal(size=shape).astype(np.float32) / 8, format)
    bias = generator.normal(size=3)
    parts = split_parts({"w": q, "bias": bias}, convention)
    assert {name: part.dtype.name for name, part in parts.items()} == types | {"bias": "float64"}
    assert parts["w" if "w" in parts else next(iter(parts))].data_ptr == q.data.data_ptr
    checkpoints.save(tmp_path / "a.safetensors", {"w": q, "bias": bias}, convention=convention)
    loaded = checkpoints.load(tmp_path / "a.safetensors")
    assert list(loaded) == ["w", "bias"]
    back = loaded["w"]
    assert (back.format, back.shape) == (format, shape)
    for part in ("data", "scales"):
        same = (getattr(tensor, part).reshape(-1).view("uint8").to_numpy() for tensor in (back, q))
        np.testing.assert_array_equal(*same)
    if q.global_scale is not None:  # two divisions, each half a unit off at most
        assert float(back.global_scale) == pytest.approx(float(q.global_scale), rel=2**-23)


def test_the_page_has_a_row_of_each_convention():
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    rows = page.split("| stored by |")[1].split("\n\n")[0].splitlines()[2:]
    said = "\n".join(row.split("|")[1] for row in rows).lower().replace("-", " ")
    assert len(rows) > len(CONVENTIONS)
    assert [name for name in CONVENTIONS if name.replace("-", " ") not in said] == []


SWAPPED = ("comfyui", "nvfp4")  # whose nibbles are


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("format", dlfp4.formats())
def test_a_convention_stores_a_format_or_says_what_it_stores(generator, convention, format):
    unit = 1.0 if convention == "mlx" and dlfp4.formats()[format].has_global_scale else None
    q = dlfp4.quantize(generator.normal(size=(256, 256)).astype(np.float32), format, global_scale=unit)
    stored = [name for spelling in SPELLINGS if spelling.convention == convention for name in spelling.formats]
    if format not in stored:
        with pytest.raises(ValueError, match=f"w: {convention} stores no {format}; it has {', '.join(stored)}"):
            split_parts({"w": q}, convention)
        return
    parts = split_parts({"w": q}, convention)
    back = join_parts(parts)["w"]
    np.testing.assert_array_equal(back.data.view("uint8").to_numpy(), q.data.view("uint8").to_numpy())
    copied = convention in ("llama-4", "gptq", "awq") or format.startswith("int4") or (convention, format) == SWAPPED
    assert (q.data.data_ptr in {part.data_ptr for part in parts.values()}) != copied


def test_gpt_oss_has_an_axis_of_blocks(generator):
    q = dlfp4.quantize(generator.normal(size=(2, 4, 96)).astype(np.float32), "mxfp4")
    parts = split_parts({"down_proj": q}, "gpt-oss")
    assert {name: part.shape for name, part in parts.items()} == {
        "down_proj_blocks": (2, 4, 3, 16),
        "down_proj_scales": (2, 4, 3),
    }


@pytest.mark.parametrize("convention", ["modelopt", "compressed-tensors"])
def test_no_global_scale_is_stored_as_one(generator, convention):
    packed, _ = fp4(generator, N, K // 2)
    scales, _ = fp8(generator, N, K // 16)
    q = dlfp4.ScaledTensor.from_parts(packed, scales, format="nvfp4")
    back = join_parts(split_parts({"w": q}, convention))["w"]
    assert float(back.global_scale) == 1
    np.testing.assert_array_equal(back.dequantize().to_numpy(), q.dequantize().to_numpy())


def test_square_blocks_are_stored_as_rows(generator):
    q = dlfp4.quantize(generator.normal(size=(32, 64)).astype(np.float32), "nvfp4_16x16")
    back = join_parts(split_parts({"w": q}, "modelopt"))["w"]
    assert back.format == "nvfp4"
    np.testing.assert_array_equal(back.dequantize().to_numpy(), q.dequantize().to_numpy())


@pytest.mark.parametrize(
    ("convention", "shape", "options", "message"),
    [
        ("onnx", (4, 64), {"format": "nvfp4"}, "convention='onnx': expected one of modelopt, compressed-tensors"),
        ("", (4, 64), {"format": "mxfp4"}, "convention='': expected one of"),
        ("gpt-oss", (4, 64), {"format": "nvfp4"}, "w: gpt-oss stores no nvfp4; it has mxfp4"),
        ("modelopt", (4, 64), {"format": "mxfp6_e2m3"}, "w: modelopt stores no mxfp6_e2m3"),
        (
            "modelopt",
            (32, 64),
            {"format": "nvfp4", "axis": -2},
            "w is .*axis=-2.* stores blocks along axis -1",
        ),
        ("modelopt", (32, 64), {"format": "mxfp8_e4m3", "axis": -2}, "stores blocks along axis -1"),
        ("modelopt", (4, 64), {"format": "nvfp4", "scale_layout": "128x4"}, "call .with_scale_layout"),
        ("modelopt", (4, 40), {"format": "nvfp4", "pad": True}, "matrices of whole blocks"),
        ("modelopt", (64,), {"format": "nvfp4"}, "matrices of whole blocks"),
        ("deepseek", (2, 100, 128), {"format": "fp8_128x128"}, "matrices of whole blocks"),
    ],
)
def test_what_a_convention_does_not_store(convention, shape, options, message):
    q = dlfp4.quantize(np.ones(shape, np.float32), **options)
    with pytest.raises(ValueError, match=message):
        split_parts({"w": q}, convention)


@pytest.mark.parametrize(
    ("convention", "format", "shape", "found"),
    [
        ("modelopt", "nvfp4_16x16", (16, 32), "nvfp4"),
        ("compressed-tensors", "int4_row", (3, 128), "int4_g128"),
        ("compressed-tensors", "int4_row", (3, 256), "int4_row"),
        ("compressed-tensors", "fp8_row", (1, 256), "fp8_e4m3"),
        ("compressed-tensors", "fp8_row", (0, 128), "fp8_128x128"),
        ("compressed-tensors", "fp8_row", (0, 256), "fp8_row"),
        ("modelopt", "fp8_row", (0, 128), "fp8_row"),
    ],
)
def test_of_two_formats_with_the_same_parts_the_first_comes_back(generator, convention, format, shape, found):
    """With the same values, as docs/checkpoints.md says."""
    q = dlfp4.quantize(generator.normal(size=shape).astype(np.float32), format)
    again = join_parts(split_parts({"w.weight": q}, convention))["w.weight"]
    assert (again.format, again.shape) == (found, shape)
    np.testing.assert_array_equal(again.dequantize().to_numpy(), q.dequantize().to_numpy())
    parts = (split_parts({"w.weight": each}, convention) for each in (q, again))
    ours, theirs = ({name: (part.shape, part.to_numpy().tobytes()) for name, part in each.items()} for each in parts)
    assert ours == theirs or found == "fp8_e4m3"  # whose one scale is stored without a second dimension


def test_two_of_one_name():
    q = dlfp4.quantize(np.ones((4, 64), np.float32), "nvfp4")
    with pytest.raises(ValueError, match="w_scale would be stored twice"):
        split_parts({"w": q, "w_scale": np.ones(1)}, "modelopt")


def test_two_tensors_of_one_name_are_both_kept():
    """The parts of the second one stay parts."""
    octets = np.arange(64, dtype=np.uint8).reshape(4, 16)
    parts = {
        "w_packed": octets,
        "w_scale": np.full((4, 1), 127, np.uint8),
        "w_blocks": octets.reshape(4, 1, 16),
        "w_scales": np.full((4, 1), 128, np.uint8),
    }
    joined = checkpoints.join_parts(parts)
    assert {name: type(x).__name__ for name, x in joined.items()} == {
        "w": "ScaledTensor",
        "w_blocks": "Tensor",
        "w_scales": "Tensor",
    }


@pytest.mark.parametrize(
    "parts",
    [
        {"x": np.ones((4, 32), np.uint8)[:, ::2], "x_scale": np.ones(7, np.float32)},
        {"x_blocks": np.ones((4, 4, 16), np.uint8)[:, ::2], "x_scales": np.ones((4, 2), np.uint8)},
        {"x": np.ones((0, 3), np.uint8), "x_scale": np.ones(3, np.float32)},
    ],
    ids=["rows apart", "blocks apart", "nothing"],
)
def test_bytes_that_are_no_elements_stay(parts):
    joined = checkpoints.join_parts(parts | {"w": np.ones(3, np.float32)})
    assert list(joined) == [*parts, "w"]


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 0), (2, 3, 0), (2, 0, 64)])
def test_tensors_of_nothing(shape):
    """In every form that others have."""
    q = dlfp4.quantize(np.ones(shape, np.float32), "mxfp4")
    for convention in ("modelopt", "gpt-oss"):
        (joined,) = checkpoints.join_parts(checkpoints.split_parts({"w": q}, convention)).values()
        assert joined.shape == shape
    assert checkpoints.from_ggml(checkpoints.to_ggml(q), "mxfp4", shape).shape == shape
    rows = (int(np.prod(shape[:-1])), shape[-1])
    held = dlfp4.ScaledTensor.from_parts(q.data.view("uint8").to_numpy(), q.scales.to_numpy(), format="mxfp4")
    assert held.shape == rows


@pytest.mark.parametrize(
    "parts",
    [
        {"w": np.zeros((256, 256), np.uint8), "w_scale": np.ones((2, 3, 2, 3), np.float32)},
        {"w": np.zeros((4, 12), np.uint8), "w_scale": np.zeros((4, 1), np.uint8)},
    ],
    ids=["no squares", "no blocks"],
)
def test_scales_of_no_convention_stay(parts):
    assert join_parts(parts).keys() == parts.keys()


def test_a_part_belongs_to_one_tensor():
    shapes = {"w": (32, 512), "w_scale": (32, 32), "w_scale_scale": (32, 2)}
    joined = join_parts({name: np.zeros(shape, np.uint8) for name, shape in shapes.items()})
    assert {name: type(x).__name__ for name, x in joined.items()} == {"w": "ScaledTensor", "w_scale_scale": "Tensor"}


def test_a_missing_global_scale_is_stored_as_one():
    q = dlfp4.quantize(np.ones((4, 32), np.float32), "nvfp4")
    q = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format="nvfp4")
    part = split_parts({"w": q}, "modelopt")["w_scale_2"]
    assert (part.shape, part.item()) == ((), 1.0)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp8_e4m3", "fp8_e4m3"])
@pytest.mark.parametrize("convention", ["modelopt", "compressed-tensors", "dlfp4", "comfyui"])
def test_a_mark_of_comfyui_does_not_outlive_its_parts(tmp_path, format, convention):
    """Beside the parts of another convention it would say that they lie otherwise than they do."""
    q = dlfp4.quantize(np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32), format)
    first, second, third = (tmp_path / f"{name}.safetensors" for name in "abc")
    checkpoints.save(first, {"up.weight": q}, convention="comfyui")
    assert checkpoints.load(first).keys() == {"up.weight"}
    checkpoints.convert_model(first, second, convention)
    loaded = checkpoints.load(second)
    assert loaded.keys() == {"up.weight"}
    assert loaded["up.weight"].dequantize().to_numpy().tobytes() == q.dequantize().to_numpy().tobytes()
    checkpoints.convert_model(second, third, "comfyui")
    before, after = checkpoints.load(first, join=False), checkpoints.load(third, join=False)
    assert before.keys() == after.keys()
    for name, part in before.items():
        assert part.to_numpy().tobytes() == after[name].to_numpy().tobytes()


@pytest.mark.parametrize("format", ["nvfp4", "mxfp8_e4m3"])
@pytest.mark.parametrize("shape", [(2, 128, 64), (3, 5, 64), (1, 1, 128), (2, 2, 16, 32)])
def test_stacks_of_comfyui(generator, format, shape):
    """The scales of a stack are tiled as those of one matrix."""
    q = dlfp4.quantize(generator.normal(size=shape).astype(np.float32), format)
    (joined,) = join_parts(split_parts({"up.weight": q}, "comfyui")).values()
    assert joined.shape == shape
    np.testing.assert_array_equal(joined.dequantize().to_numpy(), q.dequantize().to_numpy())


@pytest.mark.parametrize("shape", [(32, 0), (0, 128), (0, 0)])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_matrices_without_elements(convention, shape):
    """They come back, or stay the parts that they are."""
    formats = {format for spelling in SPELLINGS if spelling.convention == convention for format in spelling.formats}
    for format in sorted(formats):
        parts = split_parts({"up.weight": dlfp4.quantize(np.zeros(shape, np.float32), format)}, convention)
        joined = join_parts(parts)
        quantized = [x.shape for x in joined.values() if isinstance(x, dlfp4.ScaledTensor)]
        # Without rows AWQ's parts look like GPTQ's.
        assert quantized == [shape] or joined.keys() == parts.keys() or convention == "awq"
