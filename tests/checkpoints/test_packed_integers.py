"""4-bit integers as compressed-tensors, GPTQ, AWQ and MLX pack them: read by the formulas of these projects, restated
in NumPy, and written again with the same bytes."""

import json
import tracemalloc
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import ScaledTensor, checkpoints
from dlfp4.checkpoints import conventions, converting, join_parts, models, split_parts
from dlfp4.checkpoints.integers import PACKINGS

from ..support.reference import native_cast, raw_bytes

N, K, GROUP = 48, 256, 64
F = np.float32


def pack(codes, order=range(8)):
    """Eight codes of the last axis to an int32, number order[i] in bits 4 i and up."""
    codes = codes.reshape((*codes.shape[:-1], -1, 8)).astype(np.uint32)
    return sum(codes[..., place] << np.uint32(4 * i) for i, place in enumerate(order)).astype(np.uint32).view(np.int32)


def drawn(scales="float16"):
    """Codes of 0 to 15, zero points, scales."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (N, K))
    zeros = rng.integers(0, 16, (N, K // GROUP))
    return codes, zeros, native_cast((rng.random((N, K // GROUP)) + 0.5).astype(F), scales)


def values(codes, zeros, scales):
    spread = [np.repeat(part.astype(F), K // part.shape[1], 1) for part in (zeros, scales)]
    return (codes.astype(F) - spread[0]) * spread[1]


def of_compressed_tensors(*, symmetric, scales="bfloat16"):
    codes, zeros, scale = drawn(scales=scales)
    parts = {"up.weight_packed": pack(codes), "up.weight_scale": scale, "up.weight_shape": np.array([N, K])}
    if symmetric:
        return parts, values(codes, np.full_like(zeros, 8), scale)
    packed = np.ascontiguousarray(pack(np.ascontiguousarray(zeros.T)).T)
    return parts | {"up.weight_zero_point": packed}, values(codes, zeros, scale)


def of_gptq(*, order=None):
    codes, zeros, scale = drawn()
    parts = {
        "up.qweight": np.ascontiguousarray(pack(codes).T),
        "up.qzeros": pack(np.ascontiguousarray(zeros.T) - 1 & 15),
        "up.scales": np.ascontiguousarray(scale.T),
        "up.g_idx": np.arange(K, dtype=np.int32) // GROUP if order is None else order,
    }
    return parts, values(codes, zeros, scale)


def of_awq():
    codes, zeros, scale = drawn()
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    parts = {
        "up.qweight": pack(np.ascontiguousarray(codes.T), order),
        "up.qzeros": pack(np.ascontiguousarray(zeros.T), order),
        "up.scales": np.ascontiguousarray(scale.T),
    }
    return parts, values(codes, zeros, scale)


CASES = {
    "Kimi-K2": ("compressed-tensors", "int4_g64", lambda: of_compressed_tensors(symmetric=True)),
    "asymmetric": ("compressed-tensors", "uint4_g64", lambda: of_compressed_tensors(symmetric=False)),
    "GPTQ": ("gptq", "uint4_g64", of_gptq),
    "AWQ": ("awq", "uint4_g64", of_awq),
}


def bytes_of(parts):
    return {
        name: (part.dtype.name, part.shape, np.ascontiguousarray(part).tobytes())
        for name, part in (
            (name, part if isinstance(part, np.ndarray) else part.to_numpy()) for name, part in parts.items()
        )
    }


@pytest.mark.parametrize("case", CASES)
def test_values_and_bytes(case, tmp_path):
    convention, format, make = CASES[case]
    parts, expected = make()
    (joined,) = join_parts(parts).items()
    name, q = joined
    assert (name, q.format, q.shape) == ("up.weight", format, (N, K))
    assert raw_bytes(q.dequantize()) == expected.tobytes()
    assert bytes_of(split_parts({name: q}, convention)) == bytes_of(parts)
    checkpoints.save(tmp_path / "model.safetensors", parts)
    loaded = checkpoints.load(tmp_path / "model.safetensors")
    assert raw_bytes(loaded["up.weight"].dequantize()) == expected.tobytes()
    findings = checkpoints.inspect(tmp_path / "model.safetensors")
    assert (findings.convention, findings.groups[0].format, findings.flags) == (convention, format, ())


@pytest.mark.parametrize("format", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_mlx(group, format):
    mx = pytest.importorskip("mlx.core", reason="MLX is not installed")
    x = np.random.default_rng(0).normal(size=(N, K)).astype(F)
    w, scales, biases = mx.quantize(mx.array(x).astype(getattr(mx, format)), group_size=group, bits=4)
    in_float32 = (part.astype(mx.float32) for part in (scales, biases))
    wide = mx.dequantize(w, *in_float32, group_size=group, bits=4)
    parts = {"w.weight": np.array(w)} | {
        f"w.{kind}": native_cast(np.array(part.astype(mx.float32)), format)
        for kind, part in (("scales", scales), ("biases", biases))
    }
    q = join_parts(parts)["w.weight"]
    assert (q.format, q.biases.dtype.name) == (f"uint4_g{group}", format)
    assert raw_bytes(q.dequantize()) == np.array(wide).tobytes()
    assert bytes_of(split_parts({"w.weight": q}, "mlx")) == bytes_of(parts)


@pytest.mark.parametrize("bits", [2, 8])
def test_mlx_of_other_bits_stays_in_parts(bits):
    """The shapes are those of other groups of 4 bits."""
    mx = pytest.importorskip("mlx.core", reason="MLX is not installed")
    rng = np.random.default_rng(0)
    for x in (rng.normal(size=(64, 512)), rng.uniform(-1, 1, size=(64, 512))):
        for group in (32, 64, 128):
            arrays = [np.array(part) for part in mx.quantize(mx.array(x.astype(F)), group_size=group, bits=bits)]
            parts = dict(zip(("w.weight", "w.scales", "w.biases"), arrays, strict=True))
            assert not any(isinstance(part, ScaledTensor) for part in join_parts(parts).values())
            for row in range(64):  # of a few groups each may have a code that looks like one of 4 bits
                some = {name: part[row : row + 1, : part.shape[1] // 2] for name, part in parts.items()}
                assert not any(isinstance(part, ScaledTensor) for part in join_parts(some).values())


def test_arbitrary_codes_come_back_from_mlx():
    """Their zero points say that they have 4 bits, where codes do not: not each group has a code 0."""
    rng = np.random.default_rng(0)
    codes = rng.integers(1, 16, (8, 256), dtype=np.uint8).astype(ml_dtypes.uint4)
    scales = native_cast(rng.normal(size=(8, 4)).astype(F), "bfloat16").astype(F)
    zeros = rng.integers(0, 16, (8, 4), dtype=np.uint8)
    q = ScaledTensor.from_parts(codes, scales, format="uint4_g64", zero_points=zeros)
    back = join_parts(split_parts({"w.weight": q}, "mlx"))["w.weight"]
    assert back.format == q.format
    assert back.dequantize().tolist() == q.dequantize().tolist()


def test_zero_points_become_biases_where_these_are_exact():
    mx = pytest.importorskip("mlx.core", reason="MLX is not installed")
    x = np.random.default_rng(0).normal(size=(N, K)).astype(F)
    q = dlfp4.quantize(x, "uint4_g64", recipe=dlfp4.Recipe(scale_dtype="bfloat16"))
    parts = split_parts({"w.weight": q}, "mlx")
    arrays = [mx.array(native_cast(part.to_numpy(), "float32")) for part in (parts["w.scales"], parts["w.biases"])]
    theirs = mx.dequantize(mx.array(parts["w.weight"].to_numpy()), *arrays, group_size=64, bits=4)
    assert raw_bytes(q.dequantize()) == np.array(theirs).tobytes()
    assert raw_bytes(join_parts(parts)["w.weight"].dequantize()) == raw_bytes(q.dequantize())
    zeros = np.full(q.scales.shape, 7, np.uint8)
    odd = ScaledTensor.from_parts(q.data, dlfp4.cast(q.scales, "float32"), format=q.format, zero_points=zeros)
    split_parts({"w.weight": ScaledTensor.from_parts(q.data, odd.scales, format=q.format, zero_points=zeros)}, "mlx")
    rough = ScaledTensor.from_parts(q.data, np.full(q.scales.shape, 1 / 3, F), format=q.format, zero_points=zeros)
    with pytest.raises(ValueError, match=r"w.weight: MLX stores biases of float32"):
        split_parts({"w.weight": rough}, "mlx")


def symmetric(scales, *, biased=True, rounded=""):
    """Codes under zero points of 8, or the biases that say the same."""
    codes, _, scale = drawn(scales=rounded or scales)
    scale = native_cast(scale.astype(F), scales)
    offsets = {"zero_points": np.full(scale.shape, 8, np.uint8)}
    if biased:
        offsets = {"biases": native_cast(-8 * scale.astype(F), scales)}
    return ScaledTensor.from_parts(codes.astype(ml_dtypes.uint4), scale, format="uint4_g64", **offsets)


def test_a_weight_that_mlx_does_not_hold_is_named(tmp_path):
    """float16 has no biases below -65504; of such weights MLX's own decoder makes infinities."""
    tensors = {"up.weight": np.ones((64, 64), np.float16), "down.weight": np.full((64, 64), 65000, np.float16)}
    checkpoints.save(tmp_path / "a", tensors)
    with pytest.raises(
        ValueError, match=r"a: down.weight: MLX stores biases of float16, .*; exclude it, or take another"
    ):
        checkpoints.quantize_model(tmp_path / "a", tmp_path / "b", "uint4_g64", convention="mlx")
    assert not (tmp_path / "b").exists()
    checkpoints.quantize_model(tmp_path / "a", tmp_path / "b", "uint4_g64", convention="mlx", exclude="down")


@pytest.mark.parametrize("scales", ["float16", "bfloat16", "float32"])
def test_biases_of_whole_scales_become_zero_points(scales):
    q = symmetric(scales, rounded="float16" if scales == "float32" else "")
    for convention in ("compressed-tensors", "gptq", "awq", "int4_g64"):
        for given in (q, q.mT):
            other = given.to(convention)
            assert other.receipt.is_exact
            assert (other.biases, other.axis) == (None, given.axis)
            assert raw_bytes(other.dequantize()) == raw_bytes(given.dequantize())
    assert q.to("gptq").zero_points.to_numpy().tobytes() == b"\x08" * (N * K // GROUP)
    assert q.to("int4_g64").zero_points is None
    assert q.to("mlx").biases is not None


def test_zero_points_of_long_scales_are_rounded_otherwise_which_is_told():
    """The product of a code and a scale is rounded, and so is its sum with the bias."""
    q = symmetric("float32")
    q = ScaledTensor.from_parts(q.data, q.scales.to_numpy() / 3, format=q.format, biases=q.scales.to_numpy() / 3 * -8)
    other = q.to("int4_g64")
    assert (other.biases, other.zero_points) == (None, None)
    assert raw_bytes(other.scales) == raw_bytes(q.scales)
    assert not other.receipt.is_exact
    assert other.receipt.largest_error < 1e-6


def test_other_biases_stay_biases():
    q = symmetric("float32", rounded="bfloat16")
    for change in (1.001, 2, -1, np.nan):
        biases = q.biases.to_numpy().copy()
        biases[3, 1] *= change
        other = ScaledTensor.from_parts(q.data, q.scales, format=q.format, biases=biases)
        assert other.to("gptq").biases is not None


def test_symmetric_codes_get_a_sign_where_all_of_a_model_are_symmetric(tmp_path):
    """transformers loads experts of compressed-tensors without zero points alone; fused layers are to be alike."""
    (tmp_path / "a").mkdir()
    names = [f"layers.0.{name}_proj.weight" for name in ("q", "k", "v")]
    given = {names[0]: symmetric("float16", biased=False), names[1]: symmetric("float16")}
    for name, q in given.items():
        checkpoints.save(tmp_path / "a" / f"{name}.safetensors", {name: q})
    (tmp_path / "a" / "config.json").write_text("{}")
    checkpoints.convert_model(tmp_path / "a", tmp_path / "b", "compressed-tensors")
    loaded = checkpoints.load(tmp_path / "b")
    scheme = json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
    assert scheme["weights"]["symmetric"]
    for name, q in given.items():
        assert (loaded[name].format, loaded[name].zero_points) == ("int4_g64", None)
        assert raw_bytes(loaded[name].dequantize()) == raw_bytes(q.dequantize())
    checkpoints.convert_model(tmp_path / "b", tmp_path / "c", "gptq")
    back = checkpoints.load(tmp_path / "c")
    for name, q in given.items():
        assert raw_bytes(back[name].data) == raw_bytes(q.data)
    checkpoints.save(tmp_path / "a" / "v.safetensors", {names[2]: join_parts(of_gptq()[0])["up.weight"]})
    checkpoints.convert_model(tmp_path / "a", tmp_path / "d", "compressed-tensors")
    assert {str(q.format) for q in checkpoints.load(tmp_path / "d").values()} == {"uint4_g64"}


def test_columns_in_an_order_of_their_own_stay_in_parts_and_are_named(tmp_path):
    order = np.random.default_rng(0).permutation(np.arange(K) // GROUP).astype(np.int32)
    parts, _ = of_gptq(order=order)
    assert bytes_of(join_parts(parts)) == bytes_of(parts)
    checkpoints.save(tmp_path / "model.safetensors", parts)
    assert checkpoints.inspect(tmp_path / "model.safetensors").convention == "gptq"
    parts.pop("up.g_idx")
    assert join_parts(parts)["up.weight"].format == "uint4_g64"


@pytest.mark.parametrize(
    "change",
    [
        {"up.weight_shape": np.array([N, K - 8])},
        {"up.weight_shape": None},
        {"up.weight_scale": np.ones((N, 5), F)},
        {"up.weight_packed": np.zeros((N, K // 8), np.int64)},
        {"up.weight_g_idx": np.zeros(K, np.int32)},
        {"up.weight_zero_point": np.zeros((N, K // GROUP), np.int8)},
        {"up.weight_zero_point": np.zeros((N // 8, K // GROUP + 1), np.int32)},
        {"up.weight_zero_point": np.zeros((N // 4, K // GROUP), np.int32)[:1]},
    ],
    ids=[
        "another shape",
        "no shape",
        "groups",
        "words",
        "order",
        "bytes of zero points",
        "zero points of more groups",
        "zero points of less rows",
    ],
)
def test_what_does_not_fit_stays_in_parts(change):
    parts = of_compressed_tensors(symmetric=True)[0] | change
    parts = {name: part for name, part in parts.items() if part is not None}
    assert not any(isinstance(part, ScaledTensor) for part in join_parts(parts).values())


@pytest.mark.parametrize("convention", ["compressed-tensors", "gptq", "awq", "mlx"])
def test_one_scale_for_all_stays_in_parts(convention):
    """As a scalar, of which there is no row."""
    parts = split_parts({"up.weight": dlfp4.quantize(np.ones((32, 64), np.float32), "uint4_g32")}, convention)
    for name, part in parts.items():
        if name.endswith(("_scale", ".scales", ".biases")):
            parts[name] = dlfp4.asarray(np.ones((), part.dtype))
    assert join_parts(parts).keys() == parts.keys()


def test_what_conventions_do_not_hold():
    codes, zeros, scales = drawn(scales="float32")
    q = ScaledTensor.from_parts(
        codes.astype(ml_dtypes.uint4), scales, format="uint4_g64", zero_points=zeros.astype(np.uint8) + np.uint8(1)
    )
    for convention, who in (("compressed-tensors", "compressed-tensors"), ("gptq", "GPTQ"), ("awq", "AWQ")):
        with pytest.raises(ValueError, match=f"up.weight: {who} stores zero points from 0 to 15"):
            split_parts({"up.weight": q}, convention)
    biased = ScaledTensor.from_parts(q.data, scales, format="uint4_g64", biases=scales)
    for convention in ("compressed-tensors", "gptq", "awq"):
        with pytest.raises(ValueError, match=r"stores zero points, and .* has biases"):
            split_parts({"up.weight": biased}, convention)
    with pytest.raises(ValueError, match="gptq stores no int4_g64; it has uint4_g32"):
        split_parts({"up.weight": q.to("int4_g64")}, "gptq")
    assert q.to("int4_g64").to("gptq").format == "uint4_g64"


@pytest.mark.parametrize(("convention", "format"), [("gptq", "uint4_g128"), ("awq", "uint4_g64"), ("mlx", "uint4_g32")])
def test_models(convention, format, tmp_path):
    """Quantized into a folder, converted to another convention and back: the same bytes; configurations name them."""
    rng = np.random.default_rng(0)
    model = {f"layers.0.{name}.weight": rng.normal(size=(64, 256)).astype(F) for name in ("up_proj", "down_proj")}
    (tmp_path / "made").mkdir()
    checkpoints.save(tmp_path / "made" / "model.safetensors", model)
    (tmp_path / "made" / "config.json").write_text("{}")
    checkpoints.quantize_model(tmp_path / "made", tmp_path / "one", format, convention=convention)
    config = json.loads((tmp_path / "one" / "config.json").read_text())["quantization_config"]
    assert (config["group_size"], config["bits"]) == (int(format.rpartition("g")[2]), 4)
    assert config.get("quant_method", "mlx") == convention
    loaded = checkpoints.load(tmp_path / "one")
    for name, x in model.items():
        assert loaded[name].format == format
        assert abs(loaded[name].dequantize().to_numpy() - x).max() < 0.3
    if convention == "mlx":
        return
    checkpoints.convert_model(tmp_path / "one", tmp_path / "two", "compressed-tensors")
    checkpoints.convert_model(tmp_path / "two", tmp_path / "three", convention)
    first, last = (tmp_path / folder / "model.safetensors" for folder in ("one", "three"))
    one, three = (checkpoints.load(path, join=False) for path in (first, last))
    assert bytes_of(one) == bytes_of(three)


def test_gptq_of_version_2_stays_in_parts(tmp_path):
    """Its configuration tells: zero points are stored as they are."""
    parts, _ = of_gptq()
    checkpoints.save(tmp_path / "model.safetensors", parts)
    assert isinstance(checkpoints.load(tmp_path)["up.weight"], ScaledTensor)
    config = {"quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert bytes_of(checkpoints.load(tmp_path)) == bytes_of(parts)
    assert [group.format for group in checkpoints.inspect(tmp_path).groups if group.convention] == ["int32"]


def packed_by_awq(monkeypatch):
    """The shapes of the tensors that AWQ's packing gets from now on."""
    shapes = []

    def write(q):
        shapes.append(q.shape)
        return PACKINGS["awq"].write(q)

    monkeypatch.setattr(conventions, "PACKINGS", {**PACKINGS, "awq": replace(PACKINGS["awq"], write=write)})
    return shapes


def test_plans_pack_one_tensor_of_a_shape(tmp_path, monkeypatch):
    calls = packed_by_awq(monkeypatch)
    shapes = [(64, 128), (64, 128), (128, 128), (64, 128)]
    tensors = {
        f"layers.{k}.proj.weight": np.random.default_rng(k).standard_normal(shape, dtype=np.float32)
        for k, shape in enumerate(shapes)
    }
    checkpoints.save(tmp_path / "a.safetensors", tensors)
    checkpoints.quantize_model(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "uint4_g64", convention="awq")
    assert sorted(calls) == sorted([*shapes, *2 * [(64, 128), (128, 128)]])  # each, and each shape in both plans


def test_conversions_pack_each_tensor_once(tmp_path, monkeypatch):
    shapes = [(64, 128), (128, 128), (64, 256)]
    tensors = {
        f"layers.{k}.proj.weight": dlfp4.quantize(np.ones(shape, F), "uint4_g64") for k, shape in enumerate(shapes)
    }
    checkpoints.save(tmp_path / "a.safetensors", tensors, convention="gptq")
    calls = packed_by_awq(monkeypatch)
    checkpoints.convert_model(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "awq")
    assert sorted(calls) == sorted(shapes)
    assert checkpoints.load(tmp_path / "b.safetensors").keys() == tensors.keys()


def test_a_tensor_of_two_names():
    q = dlfp4.quantize(np.ones((64, 128), np.float32), "uint4_g64")
    parts = checkpoints.split_parts({"a.weight": q, "b.weight": q}, "gptq")
    alone = checkpoints.split_parts({"b.weight": q}, "gptq")
    assert len(parts) == 2 * len(alone)
    for name, part in alone.items():
        assert part.to_numpy().tobytes() == parts[name].to_numpy().tobytes()


@pytest.mark.parametrize("inspects", [False, True], ids=["plans", "inspect"])
def test_few_packed_tensors_are_in_memory(tmp_path, inspects):
    """Such tensors are made anew, not mapped; a model of them may be larger than the memory."""
    count, shape = 12, (256, 2048)
    parts = split_parts({"up.weight": dlfp4.quantize(np.ones(shape, F), "uint4_g128")}, "gptq")
    paths = []
    for number in range(count):
        layer = {f"layers.{number}.{name}": part for name, part in parts.items()}
        paths.append(tmp_path / f"{number}.safetensors")
        checkpoints.save(paths[-1], layer)
    peaks = []
    for some in (paths[:2], paths):
        shards = models.read(some)
        tracemalloc.start()
        if inspects:
            checkpoints.inspect(some)
        else:
            converting.plan(shards, tmp_path / "out", "awq", whole=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + shape[0] * shape[1] // 2
