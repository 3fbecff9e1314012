"""Files that nobody would write: refused at once, by a ValueError with a short message."""

import json
import struct
import sys
import time

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.checkpoints import models, safetensors
from dlfp4.checkpoints.gguf_headers import check_header
from dlfp4.parsing import MOST, MOST_BYTES, parse_json, parse_object, shown

LARGE = 2_000_000  # bytes; the sums and products of so much text once took minutes


def file_of(header):
    return struct.pack("<Q", len(header)) + header


def entry(shape="[]", offsets="[0,0]", dtype='"U8"'):
    return f'{{"w":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}'


def repeated(text):
    """A list of the text, without its brackets."""
    return ",".join([text] * (LARGE // (len(text) + 1)))


def listed(text):
    return f"[{repeated(text)}]"


NUMBERS = repeated("9223372036854775807")
HEADERS = {
    "large extents": entry(shape=f"[{NUMBERS}]"),
    "zeros behind large extents": entry(shape=f"[{NUMBERS},0]"),
    "extents of 1": entry(shape=listed("1")),
    "lists in a shape": entry(shape="[" * 500 + "]" * 500),
    "a long offset": entry(offsets="[0," + "9" * LARGE + "]"),
    "many offsets": entry(offsets=f"[{NUMBERS}]"),
    "a long type": entry(dtype=json.dumps("F" * LARGE)),
    "a type of many lists": entry(dtype=listed("[]")),
    "a long name": json.dumps({"w" * LARGE: 1}),
    "lists in lists": "[" * LARGE,
    "objects in objects": '{"a":' * (LARGE // 5),
    "empty lists": listed("[]"),
    "empty objects": listed("{}"),
    "equal names": "{" + repeated('"w":1') + "}",
    "metadata of lists": '{"__metadata__":{"a":' + listed("[]") + "}}",
    "metadata of numbers": '{"__metadata__":{' + repeated('"a":1') + "}}",
    "spaces": " " * LARGE,
    "a number without end": "1" * LARGE,
    "a text": json.dumps("a" * LARGE),
    "a text without end": '"' + "\\u0000" * (LARGE // 6),
}


SECONDS = 5  # of the processor, in which any of these files is refused ten times


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_hostile_headers(header):
    start = time.process_time()
    with pytest.raises(ValueError, match="not a safetensors file, or is damaged") as caught:
        checkpoints.load(file_of(header.encode()))
    assert time.process_time() - start < SECONDS
    assert len(str(caught.value)) < 2000


def test_extents_are_counted_before_they_are_multiplied_and_numbers_do_not_grow(monkeypatch):
    """Either keeps the work in proportion to the file, where the other one is not there."""
    for most in (safetensors.MOST_DIMS, LARGE):
        monkeypatch.setattr(safetensors, "MOST_DIMS", most)
        test_hostile_headers(HEADERS["large extents"])


@pytest.mark.parametrize("mark", MOST)
def test_texts_of_too_many_parts_are_not_parsed(mark, monkeypatch):
    monkeypatch.setitem(MOST, mark, 3)
    text = {b"{": b"[{},{},{},{}]", b"[": b"[[],[],[]]", b",": b"[1,2,3,4,5]"}[mark]
    with pytest.raises(ValueError, match=r"the text has \d times '.', 3 are allowed"):
        parse_json(text, "the text")


def test_texts_that_are_too_long_are_not_parsed():
    with pytest.raises(ValueError, match=f"the text has {MOST_BYTES + 1} bytes of JSON"):
        parse_json(b" " * (MOST_BYTES + 1), "the text")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"", "the text is not JSON"),
        (b"\xff", "the text is not JSON: .*utf-8"),
        (b"[" * 100_000, "the text is not JSON: .*recursion"),
        (b'{"a": 1, "b": 2, "a": 3}', "the text is not JSON: 'a' comes twice"),
        (b'{"a": {"b": 2, "b": 3}}', "the text is not JSON: 'b' comes twice"),
        (b"[]", "the text is a JSON list, expected an object"),
        (b"9" * 5000, "the text is not JSON: .*4300"),
    ],
)
def test_objects_of_text(text, match):
    with pytest.raises(ValueError, match=match):
        parse_object(text, "the text")


def test_values_are_shown_in_a_line():
    nested = []
    for _ in range(100_000):
        nested = [nested]
    for value in (nested, "x" * 10**6, list(range(10**6)), {str(k): k for k in range(10**6)}, 10**4000):
        assert len(shown(value)) < 500
    assert shown([1, "two"]) == "[1, 'two']"


@pytest.mark.parametrize("key", ["shape", "values"])
def test_descriptions_of_many_dimensions(key):
    """In the metadata of files that dlfp4 wrote."""
    q = dlfp4.quantize(np.ones((4, 32), np.float32), "nvfp4")
    tensors, description = checkpoints.joining.split({"w": q}, None)
    fields = json.loads(description["dlfp4"])
    described = fields["tensors"]["w"]
    described["shape"] = [1] * 70_000 if key == "shape" else described["shape"]
    described |= {"encode_scale": {"shape": [1] * 70, "values": [(1.0).hex()]}} if key == "values" else {}
    with pytest.raises(ValueError, match="w is"):
        checkpoints.native.join(tensors, json.dumps(fields))


LONG = "x" * LARGE


DESCRIPTIONS = {
    "a long format": ("format", LONG),
    "a format in a list": ("format", [LONG]),
    "formats of numbers": ("format", [0] * LARGE),
    "a long axis": ("axis", LONG),
    "many axes": ("axis", [0] * LARGE),
    "a large axis": ("axis", int("9" * 4300)),
    "a long layout": ("scale_layout", LONG),
    "a layout in a list": ("scale_layout", [LONG]),
    "signs in a text": ("hadamard", LONG),
    "many signs": ("hadamard", [1] * LARGE),
    "a large seed": ("hadamard", int("9" * 4300)),
    "many extents": ("shape", [1] * 60_000),
    "a shape in a text": ("shape", LONG),
    "a global scale in a text": ("global_scale", LONG),
    "an encode scale in a text": ("encode_scale", LONG),
    "a long value": ("encode_scale", {"shape": [1], "values": [LONG]}),
    "a value of many digits": ("encode_scale", {"shape": [1], "values": ["0x1." + "0" * 20 + "1" * LARGE]}),
    "many values": ("encode_scale", {"shape": [LARGE // 8], "values": ["0x1p0"] * (LARGE // 8)}),
    "zero points of a long type": ("zero_points", LONG),
    "a long field": (LONG, 0),
}


@pytest.mark.parametrize(("key", "value"), DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_descriptions_of_any_length_have_short_messages(key, value):
    q = dlfp4.quantize(np.ones((4, 32), np.float32), "nvfp4")
    tensors, metadata = checkpoints.joining.split({"w": q}, None)
    fields = json.loads(metadata["dlfp4"])
    fields["tensors"]["w"][key] = value
    tensors |= {"w_zero_points": q.scales}
    description = json.dumps(fields)
    start = time.process_time()
    with pytest.raises(ValueError, match=r"^w is") as caught:
        checkpoints.native.join(tensors, description)
    assert time.process_time() - start < SECONDS
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("part", ["w", "w_scale", "w_scale_2"])
def test_names_of_any_length_have_short_messages(part):
    q = dlfp4.quantize(np.ones((4, 32), np.float32), "nvfp4")
    tensors, metadata = checkpoints.joining.split({LONG: q}, None)
    del tensors[LONG + part[1:]]
    with pytest.raises(ValueError, match=r"^'xx.*\.\.\..*xx' is .* not there") as caught:
        checkpoints.native.join(tensors, metadata["dlfp4"])
    assert len(str(caught.value)) < 2000


def test_indices_with_long_names_have_short_messages(tmp_path):
    place = tmp_path / "model.safetensors.index.json"
    checkpoints.save(tmp_path / "a", {LONG: np.zeros(1)})
    for places, said in (
        ({"w": LONG}, "names files that are not there: 'xx"),
        ({"w": LONG + "/../.."}, "expected the name of a file beside the index"),
        ({"w": "a"}, "w is missing in .*; 'xx.*xx' of .* is not in the index"),
        ({LONG + "y": "a"}, "'xx.*xxy' is missing in .*; 'xx.*xx' of .* is not in the index"),
    ):
        place.write_text(json.dumps({"weight_map": places}))
        with pytest.raises(ValueError, match=said) as caught:
            checkpoints.load(tmp_path)
        assert len(str(caught.value)) < 2000


def test_a_warning_of_long_names_is_short():
    tensors = {f"{LONG}.{number}.weight": dlfp4.empty((4, 4), "float8_e4m3fn") for number in range(5)}
    tensors |= {f"{name}_scale": dlfp4.empty((7,), "float32") for name in tensors}
    with pytest.warns(checkpoints.UnscaledWarning, match="and 2 more") as caught:
        checkpoints.join_parts(tensors)
    assert len(str(caught[0].message)) < 2000


def test_global_scales_of_many_dimensions(tmp_path):
    q = dlfp4.quantize(np.ones((4, 32), np.float32), "nvfp4")
    for convention in (None, "modelopt", "compressed-tensors"):
        parts, metadata = checkpoints.joining.split({"w.weight": q}, convention)
        (name,) = [name for name, part in parts.items() if part.dtype == np.float32 and part.size == 1]
        many = dlfp4._core._restore_tensor(bytes(4), (1,) * 70, "float32", False, False)
        safetensors.write(tmp_path / "x", parts | {name: many}, metadata)
        with pytest.raises(ValueError, match=r"dimensions|global"):
            checkpoints.load(tmp_path / "x")


@pytest.mark.parametrize("ndim", [33, 61, 64])
def test_encode_scales_of_many_dimensions_are_saved(tmp_path, ndim):
    """NumPy's arrays have at most 64, but not all that it does with them."""
    q = dlfp4.quantize(np.ones((4, 32), np.float32), "nvfp4")
    parts = checkpoints.split_parts({"w": q}, "compressed-tensors")
    parts["w_global_scale"] = parts["w_global_scale"].reshape((1,) * ndim)
    checkpoints.save(tmp_path / "x", parts)
    checkpoints.save(tmp_path / "y", checkpoints.load(tmp_path / "x"))
    assert checkpoints.load(tmp_path / "y")["w"].encode_scale.shape == (1,) * ndim


MANY = 66  # dimensions; NumPy's arrays have at most 64


def deep(x):
    """The same elements in many dimensions."""
    return dlfp4.asarray(x).reshape((*[1] * (MANY - x.ndim), *x.shape))


@pytest.mark.parametrize(
    ("convention", "format"),
    [("modelopt", "nvfp4"), ("compressed-tensors", "nvfp4"), ("compressed-tensors", "uint4_g32"), ("gptq", "uint4_g32"),
     ("awq", "uint4_g32"), ("mlx", "uint4_g32"), ("mlx", "mxfp4"), ("gpt-oss", "mxfp4"), ("deepseek", "fp8_128x128"),
     ("deepseek-v4", "mxfp4"), ("llama-4", "nvfp4"), ("comfyui", "nvfp4"), ("stable-diffusion", "fp8_e4m3")],
)  # fmt: skip
def test_parts_of_many_dimensions_are_named(tmp_path, convention, format):
    parts = checkpoints.split_parts({"l.weight": dlfp4.quantize(np.ones((128, 128), np.float32), format)}, convention)
    parts.pop("scaled_fp8", None)
    mark = parts.pop("l.comfy_quant", None)
    for some in (*([name] for name in parts), list(parts)):
        given = {name: deep(part) if name in some else part for name, part in parts.items()}
        given |= {} if mark is None else {"l.comfy_quant": mark}
        safetensors.write(tmp_path / "x", given, {})
        for call in (checkpoints.load, checkpoints.inspect, lambda x: checkpoints.convert_model(x, f"{x}2", "dlfp4")):
            with pytest.raises(ValueError, match=f"^({'|'.join(some)}) has 66 dimensions; .* have at most 64"):
                call(tmp_path / "x")
        assert checkpoints.load(tmp_path / "x", join=False).keys() == given.keys()


def test_no_convention_stores_many_dimensions():
    q = dlfp4.quantize(dlfp4.asarray(np.ones((4, 32), np.float32)).reshape((*[1] * 64, 4, 32)), "mxfp4")
    with pytest.raises(ValueError, match="w has 66 dimensions"):
        checkpoints.split_parts({"w": q}, "modelopt")


def test_a_mark_of_many_dimensions_is_not_understood(tmp_path):
    parts = checkpoints.split_parts({"l.weight": dlfp4.quantize(np.ones((128, 128), np.float32), "nvfp4")}, "comfyui")
    safetensors.write(tmp_path / "x", parts | {"l.comfy_quant": deep(parts["l.comfy_quant"])}, {})
    assert checkpoints.load(tmp_path / "x").keys() == parts.keys()


@pytest.mark.parametrize(
    "shape",
    [np.array([np.inf, 32], np.float32), np.array([np.nan, 32], np.float32), np.array([8, 32], np.float64),
     np.array([8 + 1j, 32], np.complex64), np.array([8, 32], np.uint64), np.array([8, -32]), np.array([32]),
     np.array([], np.int64)],
    ids=str,
)  # fmt: skip
def test_shapes_that_are_none_leave_the_parts(tmp_path, shape):
    parts = checkpoints.split_parts(
        {"l.weight": dlfp4.quantize(np.ones((8, 32), np.float32), "int4_g32")}, "compressed-tensors"
    )
    checkpoints.save(tmp_path / "x", parts | {"l.weight_shape": shape})
    assert checkpoints.load(tmp_path / "x").keys() == parts.keys()
    assert checkpoints.inspect(tmp_path / "x").groups[0].tensors == 1


@pytest.mark.parametrize("dtype", ["bool", "int64", "complex64"])
def test_scales_of_activations_that_are_no_floats(tmp_path, dtype):
    parts = checkpoints.split_parts({"l.weight": dlfp4.quantize(np.ones((8, 32), np.float32), "nvfp4")}, "modelopt")
    checkpoints.save(tmp_path / "x", parts | {"l.input_scale": np.ones((), dtype)})
    words = f"l.input_scale: l.input_global_scale would be the reciprocal of a scale of {dtype}; expected floats"
    with pytest.raises(ValueError, match=words):
        checkpoints.convert_model(tmp_path / "x", tmp_path / "y", "compressed-tensors")


def test_a_scale_of_activations_of_many_dimensions(tmp_path):
    parts = checkpoints.split_parts({"l.weight": dlfp4.quantize(np.ones((8, 32), np.float32), "nvfp4")}, "modelopt")
    safetensors.write(tmp_path / "x", parts | {"l.input_scale": deep(np.full((), 0.25, np.float32))}, {})
    checkpoints.convert_model(tmp_path / "x", tmp_path / "y", "compressed-tensors")
    scale = checkpoints.load(tmp_path / "y")["l.input_global_scale"]
    assert (scale.shape, scale.item()) == ((1,), 4)


def test_names_that_imply_many_files(tmp_path):
    for number in range(300):
        (tmp_path / f"{number}-1-of-99999.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"and \d+ more, which the names of its other files imply"):
        models.find(tmp_path)


@pytest.mark.parametrize("extent", [2**59, 2**60, 2**62])
@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "int4_g32", "fp8_128x128", "fp8_row"])
def test_empty_weights_beyond_memory_are_kept(tmp_path, extent, format):
    shapes = {"m.up_proj.weight": [0, extent], "n.up_proj.weight": [extent, 0], "n.experts.w1": [extent // 32, 0, 32]}
    entries = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    path = tmp_path / "x"
    path.write_bytes(file_of(json.dumps(entries).encode()))
    outcomes = checkpoints.quantize_model(path, tmp_path / "y", format)
    assert all(bool(each.format) == (extent == 2**59) for each in outcomes), outcomes
    assert extent == 2**59 or all("NumPy has no arrays" in each.reason for each in outcomes)
    assert checkpoints.load(tmp_path / "y").keys() == shapes.keys()


@pytest.mark.parametrize("shape", [[0, 2**62], [2**62, 0], [0, 2**63 - 1]])
def test_empty_tensors_beyond_memory_and_gguf(tmp_path, shape):
    pytest.importorskip("gguf")
    for code, readable in (("F32", False), ("BF16", False), ("I8", True)):
        entry = {"dtype": code, "shape": shape, "data_offsets": [0, 0]}
        (tmp_path / "x").write_bytes(file_of(json.dumps({"w": entry}).encode()))
        if readable:
            checkpoints.convert_model(tmp_path / "x", tmp_path / "y.gguf", "gguf")
            checkpoints.convert_model(tmp_path / "y.gguf", tmp_path / "z", "dlfp4")
            assert checkpoints.load(tmp_path / "z")["w"].shape == tuple(shape)
            continue
        with pytest.raises(ValueError, match=r"x: w: it is empty, and of shape .* NumPy, by which GGUF files are read"):
            checkpoints.convert_model(tmp_path / "x", tmp_path / "y.gguf", "gguf")


# ---- Work in proportion to the file


def steps_of(call):
    """How many functions a call calls, those written in C and generators' turns included."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


EMPTY = np.zeros(0, np.float32)
FP8, PACKED = np.zeros((0, 0), ml_dtypes.float8_e4m3fn), np.zeros((0, 0), np.uint8)
CROWDS = {  # so many tensors in one module
    "scales": lambda n: {f"m.a{k}weight_scale": EMPTY for k in range(n)},
    "FP8 and scales": lambda n: {f"m.a{k}": FP8 for k in range(n)} | {f"m.scale{k}": EMPTY for k in range(n)},
    "packed data": lambda n: {f"m.a{k}_packed": PACKED for k in range(n)} | {f"m.b{k}": EMPTY for k in range(n)},
    "words": lambda n: {f"m.{k}.qweight": np.zeros((0, 0), np.int32) for k in range(n)},
    "codes": lambda n: {f"m.a{k}": PACKED for k in range(n)} | {f"m.b{k}": EMPTY for k in range(n)},
}


@pytest.mark.filterwarnings("ignore::dlfp4.checkpoints.UnscaledWarning")
@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_twice_as_many_tensors_are_twice_the_work(tmp_path, crowd):
    calls = (
        checkpoints.load,
        checkpoints.inspect,
        lambda path: checkpoints.quantize_model(path, tmp_path / "out", "nvfp4"),
        lambda path: checkpoints.convert_model(path, tmp_path / "out", "modelopt"),
    )
    for call in calls:
        steps = []
        for count in (100, 200, 400):
            path = tmp_path / str(count)
            checkpoints.save(path, crowd(count))
            steps.append(steps_of(lambda call=call, path=path: call(path)))
        few, more, most = steps
        assert most - more < 2.2 * (more - few), steps


def test_names_of_many_words_are_kept_for_their_length(tmp_path):
    """Expressions and joined words would take minutes."""
    longest = checkpoints.roles.LONGEST_NAME
    codes = {"m.weight": np.zeros((4, 8), np.uint8)}
    for text in ("w_", "embed", "lora_", "w1."):
        name = f"m.{text * (200_000 // len(text))}-"
        path = tmp_path / "x"
        checkpoints.save(
            path, codes | {name: np.ones((4, 32), np.float32), "m" * longest: np.ones((4, 32), np.float32)}
        )
        outcomes = {each.name: each for each in checkpoints.quantize_model(path, tmp_path / "out", "nvfp4")}
        said = f"its name has {len(name)} characters, and only names of at most {longest} are looked at"
        assert outcomes[name].reason == said
        assert outcomes["m" * longest].format == "nvfp4"


def test_messages_tell_of_some_parts_alone(tmp_path):
    """Where names of data are the beginnings of many others."""
    stem = "a" * 200
    parts = {f"{stem}{k}_scale": EMPTY for k in range(1000)}
    checkpoints.save(tmp_path / "x", {stem[:length]: FP8 for length in range(1, 200)} | parts)
    with pytest.warns(checkpoints.UnscaledWarning, match=r" and 997 more are left\).* and 196 more$") as caught:
        checkpoints.load(tmp_path / "x")
    assert len(str(caught[0].message)) < 5000
    packed = {f"m.{stem[:length]}_packed": PACKED for length in range(1, 200)}
    checkpoints.save(tmp_path / "x", packed | {f"m.{name}": x for name, x in parts.items()})
    assert max(len(flag.detail) for flag in checkpoints.inspect(tmp_path / "x").flags) < 2000


# ---- GGUF


def text(name):
    return struct.pack("<Q", len(name)) + name


def head(tensors=0, fields=0, order="<"):
    return b"GGUF" + struct.pack(f"{order}IQQ", 3, tensors, fields)


def field(kind, content, name=b"key"):
    return text(name) + struct.pack("<I", kind) + content


def alignment(number, kind=4):
    return field(kind, struct.pack("<I", number), b"general.alignment")


def array(kind, count, content=b""):
    return field(9, struct.pack("<IQ", kind, count) + content)


def nested(levels):
    return field(9, b"".join([struct.pack("<IQ", 9, 1)] * levels) + struct.pack("<IQ", 0, 0))


def info(*shape, kind=0, offset=0, name=b"w"):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def at_offset(offset, *fields, data=0):
    """A file of a tensor of eight numbers of a byte, that many bytes behind the padded header."""
    content = head(1, len(fields)) + b"".join(fields) + info(8, kind=24, offset=offset)
    return content + bytes(-len(content) % 64) + bytes(data)


KIND = {
    "empty": head(),
    "in the other order": head(order=">"),
    "values": head(fields=3) + field(8, text(b"abc")) + field(10, bytes(8)) + array(4, 3, bytes(12)),
    "texts": head(fields=1) + array(8, 2, text(b"a") + text(b"b")),
    "arrays of arrays": head(fields=1) + nested(3),
    "a tensor": head(tensors=1) + info(3, 5, 7, 9),
    "a tensor at an offset": at_offset(32, data=64),
    "an empty tensor at the end": at_offset(64, alignment(64), data=64),
    "another alignment": at_offset(8, alignment(8), data=64),
    "a field with a name as long": at_offset(32, field(10, bytes(8), b"general.alignments"[1:]), data=64),
}
WRONG = {
    "nothing": (b"", "4 bytes should follow, but 0 are left"),
    "another file": (b"PK\x03\x04" + bytes(100), "does not begin with GGUF"),
    "many tensors": (head(tensors=2**60), "more than fit in it"),
    "many fields": (head(fields=2**60), "more than fit in it"),
    "a long name": (head(fields=1) + struct.pack("<Q", 2**63) + bytes(99), "bytes should follow"),
    "a long text": (head(fields=1) + field(8, struct.pack("<Q", 2**62)), "bytes should follow"),
    "many numbers": (head(fields=1) + array(0, 2**62), "bytes should follow"),
    "many wide numbers": (head(fields=1) + array(12, 2**63 - 1), "bytes should follow"),
    "many texts": (head(fields=1) + array(8, 2**61), "an array says that it has"),
    "many arrays": (head(fields=1) + array(9, 2**61), "an array says that it has"),
    "deep arrays": (head(fields=1) + nested(1000), "nested more than 4 times"),
    "an unknown type": (head(fields=1) + field(13, bytes(9)), "a value has type 13"),
    "an array of an unknown type": (head(fields=1) + array(99, 1, bytes(9)), "a value has type 99"),
    "many dimensions": (
        head(tensors=1) + text(b"w") + struct.pack("<I", 2**32 - 1) + bytes(99),
        "dimensions, expected 4",
    ),
    "large extents": (head(tensors=1) + info(2**40, 2**40), "more elements than memory can hold"),
    "an offset that wraps": (
        at_offset(2**64 - 128, data=64),
        f"'w' begins at byte {2**64 - 128} of the data, which has",
    ),
    "an offset behind the end": (at_offset(128, alignment(64), data=64), "byte 128 of the data, which has 64 bytes"),
    "an offset without data": (head(1) + info(8, offset=32), "byte 32 of the data, which has 0 bytes"),
    "an offset off the alignment": (at_offset(8, data=64), "'w' begins at byte 8 .* a multiple of 32"),
    "an offset off another alignment": (at_offset(32, alignment(64), data=64), "byte 32 .* a multiple of 64"),
    "an alignment of 0": (at_offset(0, alignment(0), data=64), "general.alignment is 0, expected a power of two"),
    "an alignment of 48": (at_offset(0, alignment(48), data=64), "is 48, expected a power of two"),
    "a signed alignment": (at_offset(0, alignment(32, 5), data=64), "general.alignment has type 5, expected 4"),
    "a long name of a tensor": (
        head(1) + info(8, offset=1, name=b"w" * LARGE),
        "'www.*www' begins at byte 1 of the data",
    ),
    "cut": (head(tensors=1) + info(3, 5)[:-1] + b"", "more than fit|are left"),
}


def checked(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with open(tmp_path / "x.gguf", "rb") as file:
        check_header(file, len(content))


@pytest.mark.parametrize("content", KIND.values(), ids=KIND)
def test_headers_of_gguf(tmp_path, content):
    checked(tmp_path, content)


@pytest.mark.parametrize(("content", "match"), WRONG.values(), ids=WRONG)
def test_wrong_headers_of_gguf(tmp_path, content, match):
    with pytest.raises(ValueError, match=match) as caught:
        checked(tmp_path, content)
    assert len(str(caught.value)) < 2000
    pytest.importorskip("gguf")
    with pytest.raises(ValueError, match="is not a GGUF file, or is damaged"):
        checkpoints.convert_model(tmp_path / "x.gguf", tmp_path / "y.safetensors", "dlfp4")


def convert(tmp_path, content):
    pytest.importorskip("gguf")
    (tmp_path / "x.gguf").write_bytes(content)
    checkpoints.convert_model(tmp_path / "x.gguf", tmp_path / "y.safetensors", "dlfp4")
    return checkpoints.load(tmp_path / "y.safetensors")


def tensors_of(*infos, data=b""):
    """A file of such tensors."""
    content = head(len(infos), 1) + field(8, text(b"x"), b"general.architecture") + b"".join(infos)
    return content + bytes(-len(content) % 32) + data


@pytest.mark.parametrize("behind", [0, 32, 64, 96])
def test_tensors_of_gguf_that_overlap(tmp_path, behind):
    """The first has 72 bytes, 64 bytes behind the beginning of the data."""
    infos = info(72, kind=24, offset=64, name=b"a"), info(8, kind=24, offset=64 + behind, name=b"b")
    numbers = [number % 100 for number in range(200)]
    for each in (infos, infos[::-1]):
        if behind == 96:
            loaded = convert(tmp_path, tensors_of(*each, data=bytes(numbers)))
            assert (loaded["a"].tolist(), loaded["b"].tolist()) == (numbers[64:136], numbers[160:168])
        else:
            with pytest.raises(
                ValueError, match=r"not a GGUF file, or is damaged: '[ab]' begins at byte \d+, and '[ab]' ends"
            ):
                convert(tmp_path, tensors_of(*each, data=bytes(numbers)))


def test_empty_tensors_of_gguf_overlap_with_nothing(tmp_path):
    infos = info(8, kind=24, name=b"a"), info(0, kind=24, name=b"b")
    assert convert(tmp_path, tensors_of(*infos, data=bytes(32)))["b"].shape == (0,)


def test_gguf_in_the_other_order_of_bytes(tmp_path):
    """bfloat16 comes from the package as bytes, which would be read in the wrong order."""
    name = struct.pack(">Q", 1) + b"w"
    content = head(1, order=">") + name + struct.pack(">IQIQ", 1, 8, 30, 0)
    with pytest.raises(ValueError, match=r"the order of bytes of another machine; gguf-convert-endian"):
        convert(tmp_path, content + bytes(-len(content) % 32) + bytes(16))


@pytest.mark.parametrize(
    ("kind", "number"), [(0, b"\0\0\0\x3f"), (1, b"\0\x38"), (30, b"\0\x3f")], ids=["F32", "F16", "BF16"]
)
def test_global_scales_of_gguf(tmp_path, kind, number):
    """0.5, in each type that float32 holds."""
    infos = info(64, 1, kind=40, name=b"a.weight"), info(1, kind=kind, offset=64, name=b"a.scale")
    loaded = convert(tmp_path, tensors_of(*infos, data=bytes([0x38] * 4 + [0x22] * 32).ljust(64, b"\0") + number))
    assert loaded["a.weight"].global_scale.item() == 0.5
    assert loaded.keys() == {"a.weight"}


@pytest.mark.parametrize(("kind", "said"), [(24, "I8"), (28, "F64"), (2, "Q4_0"), (8, "Q8_0")])
def test_global_scales_of_gguf_that_are_no_floats(tmp_path, kind, said):
    infos = info(64, 1, kind=40, name=b"a.weight"), info(32, kind=kind, offset=64, name=b"a.scale")
    with pytest.raises(ValueError, match=f"a.weight: its global scale a.scale is of type {said}; expected one of F32"):
        convert(tmp_path, tensors_of(*infos, data=bytes(64 + 32 * 8)))


def test_what_is_called_as_a_global_scale_beside_other_types(tmp_path):
    infos = info(8, kind=24, name=b"a.weight"), info(8, kind=24, offset=32, name=b"a.scale")
    assert convert(tmp_path, tensors_of(*infos, data=bytes(range(64))))["a.scale"].tolist() == [*range(32, 40)]
