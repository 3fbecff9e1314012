"""Files that cannot be saved, or are damaged: the fault is named, and nothing is left behind."""

import json
import os
import re
import sys
import time

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.checkpoints import safetensors

from ..support.files import make_file, octets, values
from ..support.reference import parts_of

X = np.ones((4, 64), np.float32)


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
        (dlfp4.empty((3, 5), "float4_e2m1fn"), "15 elements of float4_e2m1fn do not fill whole bytes"),
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


@pytest.mark.parametrize("convention", [None, "modelopt"])
def test_names_that_are_no_text(path, convention):
    """Such as os.fsdecode makes of bytes that are not UTF-8."""
    for tensors, metadata, message in (
        (
            {"w\udcff": X},
            {},
            r"^a tensor is named 'w\\udcff', and has a character that UTF-8 does not hold, '\\udcff'$",
        ),
        ({"w": X, "\ud800q": dlfp4.quantize(X, "nvfp4")}, {}, r"^a tensor is named '\\ud800q"),
        ({"w": X}, {"k\udcff": "v"}, r"^metadata has 'k\\udcff', and has a character"),
        ({"w": X}, {"k": "v\udcff"}, r"^metadata has 'v\\udcff' under 'k', and has a character"),
    ):
        with pytest.raises(ValueError, match=message):
            checkpoints.save(path, tensors, metadata, convention=convention)
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
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is not a safetensors file.*{message}"):
        checkpoints.load(path)
    with pytest.raises(ValueError, match=message):
        checkpoints.read_metadata(path)


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
        ({"shape": [1], "values": ["0x1p1000"]}, "has the value '0x1p1000', which is not a float32 number"),
        ({"shape": [1], "values": ["0x1.0000001p+0"]}, "which is not a float32 number"),
        ({"shape": [2], "values": ["0x1p+0", "0x1p+0"]}, r"its encode scale \[1\.0, 1\.0\]; expected each"),
        ({"shape": [1], "values": ["0x1p-2"]}, r"its global scale is \[.*\], and its encode scale \[0\.25\]; expected"),
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda unit: unit * 8, "expected each to be the reciprocal of the other"),
        (lambda unit: unit * np.float32(np.nan), "expected each to be the reciprocal of the other"),
        (lambda unit: np.full(5, np.nan, np.float32), r"global_scale has shape \(5,\)"),
        (lambda unit: np.array(7), "global_scale has dtype int64"),
        (lambda unit: unit.view(np.uint32), "global_scale has dtype uint32"),
    ],
    ids=["another", "NaN", "too many", "integers", "its bits"],
)
def test_a_global_scale_beside_its_reciprocal(path, change, message):
    """Of compressed-tensors' files, saved by dlfp4: the metadata has the reciprocal."""
    checkpoints.save(path, {"w": dlfp4.quantize(values((16, 64)), "nvfp4")}, convention="compressed-tensors")
    checkpoints.save(path, checkpoints.load(path))
    tensors, metadata = safetensors.read(path)
    damaged = dlfp4.asarray(np.array(change(tensors["w_scale_2"].to_numpy())))
    safetensors.write(path, tensors | {"w_scale_2": damaged}, metadata)
    with pytest.raises(ValueError, match=f"w is not what the metadata says: .*{message}"):
        checkpoints.load(path)


def save_zero_points(path, dtype):
    """A file of a tensor with such zero points; its tensors and its metadata."""
    q = dlfp4.quantize(values((4, 64)), "uint4_g32")
    zeros = np.arange(8).reshape(4, 2).astype(dtype)
    q = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format=q.format, zero_points=zeros)
    checkpoints.save(path, {"w": q})
    return safetensors.read(path)


@pytest.mark.parametrize(
    ("dtype", "stored", "number", "message"),
    [
        ("uint4", np.uint8, 200, "it has the zero point 200; expected 0 to 15, as uint4 has"),
        ("uint4", np.uint8, 16, "it has the zero point 16; expected 0 to 15"),
        ("uint4", np.int8, -1, "are of int8; as they are described they are 'uint4', which is stored as 'uint8'"),
        ("uint4", np.float32, 2.5, "are of float32; .* 'uint4', which is stored as 'uint8'"),
        ("uint4", np.float32, np.nan, "are of float32; .* 'uint4', which is stored as 'uint8'"),
        ("int4", np.int8, 8, "it has the zero point 8; expected -8 to 7, as int4 has"),
        ("int4", np.int8, -9, "it has the zero point -9; expected -8 to 7"),
        ("int4", np.uint8, 1, "are of uint8; .* 'int4', which is stored as 'int8'"),
        ("int8", np.uint8, 1, "are of uint8; .* 'int8', which is stored as 'int8'"),
    ],
)
def test_zero_points_of_another_type_or_range(path, dtype, stored, number, message):
    dtype = getattr(ml_dtypes, dtype, dtype)
    tensors, metadata = save_zero_points(path, dtype)
    changed = tensors["w_zero_points"].to_numpy().astype(stored)
    changed[-1, -1] = number
    safetensors.write(path, tensors | {"w_zero_points": dlfp4.asarray(changed)}, metadata)
    with pytest.raises(ValueError, match=f"w is not what the metadata says: .*{message}"):
        checkpoints.load(path)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint4", "int4"])
def test_every_zero_point_that_a_type_has(path, dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    limits = ml_dtypes.iinfo(dtype)
    zeros = np.resize(np.arange(limits.min, limits.max + 1), (128, 2)).astype(dtype)
    q = dlfp4.quantize(values((128, 64)), "uint4_g32")
    q = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format=q.format, zero_points=zeros)
    checkpoints.save(path, {"w": q})
    again = checkpoints.load(path)["w"]
    assert again.zero_points.dtype == dtype.name
    assert again.zero_points.tolist() == zeros.tolist()


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
        with pytest.raises(ValueError, match="is not a safetensors file"):
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
            for part in parts_of(x) if isinstance(x, dlfp4.ScaledTensor) else [x]:
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
        ({"global_scale": True}, "w is described with global_scale True, expected false"),
        ({"global_scale": 0}, "w is described with global_scale 0, expected false"),
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


@pytest.mark.parametrize("order", [("w", "w_scale"), ("w_scale", "w")])
def test_a_part_that_is_described_as_a_tensor(path, order):
    shapes = {"w": [32, 512], "w_scale": [32, 32]}
    described = {
        name: {"format": "mxfp4", "shape": shapes[name], "axis": -1, "scale_layout": "linear"} for name in order
    }
    parts = {"w": (32, 256), "w_scale": (32, 16), "w_scale_scale": (32, 1)}
    tensors = {name: dlfp4.asarray(np.full(shape, 17, np.uint8)) for name, shape in parts.items()}
    safetensors.write(path, tensors, {"dlfp4": json.dumps({"version": 1, "tensors": described})})
    with pytest.raises(ValueError, match=r"w_scale: described as a tensor, and as a part|w_scale is described as"):
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
    with pytest.raises(ValueError, match="a is not a safetensors file, or is damaged: 'w' cannot be a tensor"):
        checkpoints.load(tmp_path / "a")


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        checkpoints.load(tmp_path / "nothing")


def test_a_plain_tensor_where_a_global_scale_would_be(tmp_path):
    path = tmp_path / "model.safetensors"
    plain = np.array([1, 2], np.float32)
    checkpoints.save(path, {"w": dlfp4.quantize(np.ones((4, 64), np.float32), "mxfp4"), "w_scale_2": plain})
    loaded = checkpoints.load(path)
    assert loaded["w_scale_2"].tolist() == [1, 2]
    assert loaded["w"].global_scale is None
    q = dlfp4.quantize(np.ones((4, 64), np.float32), "nvfp4")
    without = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format="nvfp4")
    checkpoints.save(path, {"w": without, "w_scale_2": plain})
    loaded = checkpoints.load(path)
    assert loaded["w_scale_2"].tolist() == [1, 2]
    assert loaded["w"].global_scale is None
    checkpoints.save(path, {"w": without})
    assert checkpoints.load(path)["w"].global_scale is None


@pytest.mark.parametrize("convention", [None, "compressed-tensors"])
def test_a_global_scale_that_is_missing(path, convention):
    """Without it the values would be some hundred times larger."""
    checkpoints.save(path, {"w": dlfp4.quantize(values((16, 64)), "nvfp4")}, convention=convention)
    checkpoints.save(path, checkpoints.load(path))
    tensors, metadata = safetensors.read(path)
    del tensors["w_scale_2"]
    safetensors.write(path, tensors, metadata)
    with pytest.raises(
        ValueError, match=r"w is not what the metadata says: its global scale, w_scale_2, is not there; .*join=False"
    ):
        checkpoints.load(path)


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
