"""Files that nobody would write: refused at once, by a ValueError with a short message."""

import json
import struct
import time

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
    with pytest.raises(ValueError, match="no safetensors file, or damaged") as caught:
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


def test_global_scales_of_many_dimensions(tmp_path):
    q = dlfp4.quantize(np.ones((4, 32), np.float32), "nvfp4")
    for convention in (None, "modelopt", "compressed-tensors"):
        parts, metadata = checkpoints.joining.split({"w.weight": q}, convention)
        (name,) = [name for name, part in parts.items() if part.dtype == np.float32 and part.size == 1]
        many = dlfp4._core._restore_tensor(bytes(4), (1,) * 70, "float32", False, False)
        safetensors.write(tmp_path / "x", parts | {name: many}, metadata)
        with pytest.raises(ValueError, match=r"dimensions|global"):
            checkpoints.load(tmp_path / "x")


def test_names_that_imply_many_files(tmp_path):
    for number in range(300):
        (tmp_path / f"{number}-1-of-99999.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"and \d+ more, which the names of its other files imply"):
        models.find(tmp_path)


# ---- GGUF


def text(name):
    return struct.pack("<Q", len(name)) + name


def head(tensors=0, fields=0, order="<"):
    return b"GGUF" + struct.pack(f"{order}IQQ", 3, tensors, fields)


def field(kind, content):
    return text(b"key") + struct.pack("<I", kind) + content


def array(kind, count, content=b""):
    return field(9, struct.pack("<IQ", kind, count) + content)


def nested(levels):
    return field(9, b"".join([struct.pack("<IQ", 9, 1)] * levels) + struct.pack("<IQ", 0, 0))


def info(*shape):
    return text(b"w") + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + bytes(12)


KIND = {
    "empty": head(),
    "in the other order": head(order=">"),
    "values": head(fields=3) + field(8, text(b"abc")) + field(10, bytes(8)) + array(4, 3, bytes(12)),
    "texts": head(fields=1) + array(8, 2, text(b"a") + text(b"b")),
    "arrays of arrays": head(fields=1) + nested(3),
    "a tensor": head(tensors=1) + info(3, 5, 7, 9),
}
WRONG = {
    "nothing": (b"", "4 bytes are to follow, and 0 are left"),
    "another file": (b"PK\x03\x04" + bytes(100), "does not begin with GGUF"),
    "many tensors": (head(tensors=2**60), "more than fit in it"),
    "many fields": (head(fields=2**60), "more than fit in it"),
    "a long name": (head(fields=1) + struct.pack("<Q", 2**63) + bytes(99), "bytes are to follow"),
    "a long text": (head(fields=1) + field(8, struct.pack("<Q", 2**62)), "bytes are to follow"),
    "many numbers": (head(fields=1) + array(0, 2**62), "bytes are to follow"),
    "many wide numbers": (head(fields=1) + array(12, 2**63 - 1), "bytes are to follow"),
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
    with pytest.raises(ValueError, match=match):
        checked(tmp_path, content)
    pytest.importorskip("gguf")
    with pytest.raises(ValueError, match="is no GGUF file, or damaged"):
        checkpoints.convert_model(tmp_path / "x.gguf", tmp_path / "y.safetensors", "dlfp4")
