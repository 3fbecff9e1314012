"""ScaledTensors in Arrow: every format through IPC and Parquet, whose memory it is, and what is refused."""

import gc

import ml_dtypes
import numpy as np
import pytest

import dlfp4

from ..support.capsules import run_python
from ..support.reference import raw_bytes

pa = pytest.importorskip("pyarrow")
from dlfp4 import arrow  # noqa: E402

X = np.random.default_rng(0).standard_normal((2, 64, 128)).astype(np.float32)


def tensors():
    for name in dlfp4.formats():
        yield from dlfp4.quantize(X, name, axis=(-1, -2))
    yield dlfp4.quantize(X[:, :3, :50], "mxfp4", pad=True, scale_layout="aiter", recipe="rocm")
    yield dlfp4.quantize(X, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="matrix"))
    yield dlfp4.quantize(X[0, :1], "nvfp4", recipe=dlfp4.Recipe(global_scale_per="row"))  # whose shape is (1,)
    yield dlfp4.quantize(X, "mxfp4", hadamard=7)
    yield dlfp4.quantize(X[0], "mxfp8_e4m3").mT  # strided parts
    yield dlfp4.quantize(X[0], "nvfp4")[:, :64]
    yield dlfp4.quantize(X[0, :0], "mxfp4")
    for rows in (1, 5, 6):  # zero points of 4 bits that end within a byte, and that do not
        q, zeros = dlfp4.quantize(X[0, :rows, :32], "int4_g32"), np.arange(1, rows + 1, dtype=np.uint8)
        zeros = zeros.reshape(rows, 1).view(ml_dtypes.uint4)
        yield dlfp4.ScaledTensor.from_parts(q.data, q.scales, format="int4_g32", zero_points=zeros)


def same(a, b):
    described = ("format", "axis", "shape", "scale_layout", "hadamard")
    assert [getattr(a, name) for name in described] == [getattr(b, name) for name in described]
    for name in ("data", "scales", "global_scale", "encode_scale", "zero_points", "biases"):
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None), name
        assert one is None or (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one is None or raw_bytes(one.copy()) == raw_bytes(other.copy()), name


def through_ipc(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_file(sink.getvalue()).read_all()


def through_parquet(table, path):
    from pyarrow import parquet

    parquet.write_table(table, path)
    return parquet.read_table(path)


def test_every_tensor_comes_back(tmp_path):
    made = list(tensors())
    table = pa.table({"w": arrow.array([*made, None])})
    for got in (table, through_ipc(table), through_parquet(table, tmp_path / "w.parquet")):
        assert got.schema.field("w").type == arrow.ScaledTensorType()
        (chunk,) = got["w"].chunks
        for *back, null in (chunk.to_tensors(), got["w"].to_pylist()):
            assert null is None
            for q, again in zip(made, back, strict=True):
                same(q, again)
    for q, again in zip(made[3:5], chunk[3:5].to_tensors(), strict=True):
        same(q, again)


def test_the_memory_is_arrows_and_lives_as_long():
    q = dlfp4.quantize(X, "mxfp8_e4m3")
    whole = arrow.array([q, q])
    before = pa.total_allocated_bytes()
    back = whole.to_tensors()[1]
    assert pa.total_allocated_bytes() - before < q.data.nbytes  # nothing was copied on the way
    octets = whole.storage.field("data").field("bytes").buffers()[2]
    assert octets.address + q.data.nbytes == back.data.data_ptr
    assert back.data.readonly
    del whole, octets
    gc.collect()
    same(q, back)


def test_what_is_not_aligned_is_copied():
    odd = dlfp4.quantize(X[0, :1, :32], "mxfp4")  # whose scale is one byte, and moves those that follow
    wide = dlfp4.quantize(X[0], "fp8_row")
    for q, again in zip((odd, wide), arrow.array([odd, wide]).to_tensors(), strict=True):
        same(q, again)
        assert again.scales.data_ptr % again.scales.dtype.itemsize == 0


def test_a_prepared_weight_is_stored_as_it_was():
    q = dlfp4.quantize(X[0], "nvfp4")
    (back,) = arrow.array([q.prepare()]).to_tensors()
    same(q, back)


@pytest.mark.parametrize("value", [X, "nvfp4", 1.0], ids=lambda value: type(value).__name__)
def test_others_are_refused(value):
    with pytest.raises(TypeError, match=rf"{type(value).__name__}: expected a dlfp4\.ScaledTensor or None"):
        arrow.array([value])


def damaged(part, **changes):
    """An array of one tensor, one part of which says or has something else, or is not there."""
    stored = arrow.array([dlfp4.quantize(X[0], "nvfp4")]).storage.to_pylist()
    stored[0][part] = {**stored[0][part], **changes} if changes else None
    return array_of(stored)


def array_of(stored):
    return pa.ExtensionArray.from_storage(
        arrow.ScaledTensorType(), pa.array(stored, arrow.ScaledTensorType().storage_type)
    )


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("data", {}, "without its data"),
        ("scales", {}, "without its scales"),
        ("data", {"bytes": b"123"}, "data has 3 bytes, which are not"),
        ("data", {"shape": [64, 64]}, "data has 4096 bytes, which are not"),
        ("scales", {"dtype": "float32"}, "scales has 512 bytes, which are not"),
        ("scales", {"shape": [-1, -512]}, "scales has 512 bytes, which are not"),
        ("data", {"shape": None}, "data has 4096 bytes, which are not"),
        ("data", {"shape": [64, None]}, "data has 4096 bytes, which are not"),
        ("data", {"dtype": None}, "data has 4096 bytes, which are not"),
        ("data", {"dtype": "float7"}, "data has 4096 bytes, which are not"),
        ("data", {"bytes": None}, "data has 0 bytes, which are not"),
    ],
    ids=str,
)
def test_damaged_arrays_are_refused(part, changes, said):
    with pytest.raises(ValueError, match=said):
        damaged(part, **changes).to_tensors()


@pytest.mark.parametrize(
    "changes", [{"format": None}, {"axis": None}, {"axis": 3}, {"scale_layout": None}, {"hadamard": [1]}], ids=str
)
def test_damaged_descriptions_are_refused(changes):
    (stored,) = arrow.array([dlfp4.quantize(X[0], "nvfp4")]).storage.to_pylist()
    with pytest.raises(ValueError, match=next(iter(changes))):
        array_of([{**stored, **changes}]).to_tensors()


@pytest.mark.parametrize("middle", [-64, 1 << 40, 5000])
def test_offsets_outside_of_the_bytes_are_refused(middle):
    storage = arrow.array([dlfp4.quantize(X[0], "nvfp4")] * 2).storage
    data = storage.field("data")
    offsets = np.array([0, middle, 8192], np.int64)
    octets = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2, [None, pa.py_buffer(offsets.tobytes()), data.field("bytes").buffers()[2]]
    )
    data = pa.StructArray.from_arrays([data.field("dtype"), data.field("shape"), octets], fields=list(data.type))
    fields = [data if field.name == "data" else storage.field(field.name) for field in storage.type]
    stored = pa.StructArray.from_arrays(fields, fields=list(storage.type))
    with pytest.raises(ValueError, match=r"offset|data has 5000 bytes"):
        pa.ExtensionArray.from_storage(arrow.ScaledTensorType(), stored).to_tensors()


def test_another_storage_is_refused():
    with pytest.raises(ValueError, match="by another version of dlfp4"):
        arrow.ScaledTensorType.__arrow_ext_deserialize__(pa.int8(), b"")


def test_without_the_module_arrow_reads_the_parts(tmp_path):
    path = tmp_path / "w.arrow"
    table = pa.table({"w": arrow.array([dlfp4.quantize(X[0], "nvfp4")])})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    program = f"""
import pyarrow as pa
w = pa.ipc.open_file({str(path)!r}).read_all()["w"]
print(w[0]["format"].as_py(), len(w[0]["data"]["bytes"].as_py()))
import dlfp4.arrow
(q,) = pa.ipc.open_file(pa.memory_map({str(path)!r})).read_all()["w"].to_pylist()
print(q.format, q.shape)
"""
    assert run_python(program).split("\n")[:2] == ["nvfp4 4096", "nvfp4 (64, 128)"]
