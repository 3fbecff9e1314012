"""What a caller does wrong: the exception, and that it says what came, what was expected and what to do."""

import re
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import dlfp4
from dlfp4 import frameworks
from dlfp4.checkpoints import selection

from ..support.capsules import DEVICES, PADDED, Made, framework, random_array, random_bytes
from ..support.reference import raw_bytes

X = random_array((1, 64))
TENSOR = dlfp4.asarray(X)
W = dlfp4.quantize(random_array((32, 64), seed=1), "nvfp4")
NO_FLAG = "copy=1: expected True, False or None"
RECORDS = np.frombuffer(random_bytes(60), "u1,f4")

MISTAKES = {
    # ---- exchange
    "a flag that is a number": (lambda: dlfp4.from_dlpack(X, copy=1), ValueError, NO_FLAG),
    "the same by asarray": (lambda: dlfp4.asarray(X, copy=1), ValueError, NO_FLAG),
    "the same on the way out": (lambda: TENSOR.__dlpack__(copy=1), ValueError, NO_FLAG),
    "the same to NumPy": (lambda: TENSOR.to_numpy(copy=0), ValueError, "copy=0: expected True, False or None"),
    "another type without a copy": (
        lambda: dlfp4.asarray(X, dtype="float16", copy=False),
        BufferError,
        "float32 to float16 needs a copy, which copy=False forbids",
    ),
    "another device without a copy": (
        lambda: dlfp4.from_dlpack(TENSOR, device="cuda:0", copy=False),
        BufferError,
        "the data lies on cpu; moving it to cuda:0 needs a copy, which copy=False forbids",
    ),
    "a stream for the host": (
        lambda: TENSOR.to_device("cpu", stream=3),
        ValueError,
        "stream=3: to_device waits for the copy, so it takes no stream; pass None",
    ),
    "strides that are no items": (
        lambda: dlfp4.asarray(RECORDS["f1"]),
        BufferError,
        "strides (5,) are not multiples of the item size 4; DLPack counts strides in items: call "
        "numpy.ascontiguousarray first",
    ),
    "a device of no type": (lambda: dlfp4.Device("gpu"), ValueError, "type 'gpu' is unknown; expected one of cpu,"),
    "a device before the first": (lambda: dlfp4.Device("cuda", -1), ValueError, "index -1 of 'cuda': expected 0 to"),
    "a device of half a pair": (
        lambda: dlfp4.from_dlpack(X, device=(1,)),
        TypeError,
        "(1,): expected a DLPack pair of integers, (type, id), or a string such as 'cuda:0'",
    ),
    "a device that is a number": (
        lambda: dlfp4.from_dlpack(X, device=1.5),
        TypeError,
        "device 1.5 is of type float; expected a string such as 'cpu' or 'cuda:0', or a DLPack pair",
    ),
    "a tensor of nothing": (dlfp4.Tensor, TypeError, "is made by dlfp4.from_dlpack, dlfp4.asarray or dlfp4.empty"),
    "bytes in columns": (
        lambda: dlfp4.ScaledTensor.from_parts(
            np.asfortranarray(random_array((8, 64), dtype="uint8")), W.scales.view("uint8"), format="nvfp4"
        ),
        BufferError,
        "data has strides (1, 8): its bytes must lie side by side along the last dimension; call .copy() first",
    ),
    "a number for a type": (lambda: dlfp4.cast(X, 3), TypeError, "dtype 3 is not one that dlfp4 carries; expected one"),
    "a scaled one of nothing": (dlfp4.ScaledTensor, TypeError, "made by dlfp4.quantize or ScaledTensor.from_parts"),
    "a device beyond DLPack's": (lambda: dlfp4.Device("cuda", 2**40), ValueError, f"index {2**40} of 'cuda': expected"),
    "a device of a fraction": (lambda: dlfp4.Device("cuda", 1.5), TypeError, "index=1.5 is of type float; expected"),
    "a device that is no name": (lambda: dlfp4.Device(None), TypeError, "type None is of type NoneType; expected a"),
    "streams in an array": (
        lambda: TENSOR.__dlpack__(stream=np.arange(3)),
        TypeError,
        "stream=array([0, 1, 2]) is of type ndarray; expected an integer",
    ),
    "the type of a stream": (
        lambda: TENSOR.__dlpack__(stream=int),
        TypeError,
        "stream=<class 'int'>: expected None or an integer",
    ),
    "a shape in an array": (
        lambda: dlfp4.TensorProto(np.arange(3), "float32"),
        TypeError,
        "shape=array([0, 1, 2]) is of type ndarray; expected an integer",
    ),
    "the type of a shape": (
        lambda: dlfp4.TensorProto(int, "float32"),
        TypeError,
        "shape=<class 'int'> is of type type; expected an integer",
    ),
    "a device of no number": (
        lambda: dlfp4.from_dlpack(X, device=(99, 0)),
        ValueError,
        "DLPack device type 99 is unknown; expected one of 1 (cpu), 2 (cuda), 3 (cuda_host), ",
    ),
    "a quantized one to share": (
        lambda: dlfp4.from_dlpack(W),
        TypeError,
        "a ScaledTensor is several tensors: take its .data or .scales, or .dequantize() it",
    ),
    "a gap in a list": (
        lambda: dlfp4.asarray([1, None]),
        TypeError,
        "this list has an element of type NoneType; expected numbers, integers of at most 64 bits",
    ),
    "a word in a list": (lambda: dlfp4.asarray([1.5, "two"]), TypeError, "this list has an element of type str; "),
    "a number beyond all types": (
        lambda: dlfp4.asarray((1, 2**70)),
        TypeError,
        "this tuple has an element of type int; expected numbers, integers of at most 64 bits",
    ),
    "global scales of nothing": (
        lambda: dlfp4.ScaledTensor.from_parts(W.data, W.scales, np.ones(3, np.float32), format="nvfp4"),
        ValueError,
        "global_scale has shape (3,); expected one number, or (32,), one a line of blocks, for nvfp4 of shape (32, 64)",
    ),
    "a list of types": (lambda: dlfp4.cast(X, ["float32"]), TypeError, "dtype ['float32'] is of type list;"),
    "an array of three parts": (lambda: np.asarray(W), TypeError, "a ScaledTensor is not an array"),
    "a product by NumPy": (lambda: X @ W.mT, TypeError, "dlfp4.matmul(x, w.mT) for a product"),
    # ---- operations
    "memory of elements that meet": (
        lambda: dlfp4.cast(random_array((4, 16)), "float32", out=as_strided(np.zeros(19, np.float32), (4, 16), (4, 4))),
        ValueError,
        "out has strides (1, 1) for shape (4, 16): elements may share memory",
    ),
    "memory of one element": (
        lambda: dlfp4.matmul(X, W.mT, out=np.broadcast_to(np.float32(0), (1, 32)).view()),
        BufferError,
        "out is read-only",
    ),
    "a factor beyond float32": (lambda: dlfp4.matmul(X, W.mT, alpha=1e39), ValueError, "alpha=1e+39 is beyond float32"),
    "a factor beyond all floats": (
        lambda: dlfp4.matmul(X, W.mT, alpha=10**400),
        ValueError,
        "is beyond float32, which holds numbers up to 3.4e38",
    ),
    "a scale beyond float32": (
        lambda: dlfp4.ScaledTensor.from_parts(W.data, W.scales, 1e300, format="nvfp4"),
        ValueError,
        "global_scale=1e+300 is beyond float32",
    ),
    "pairs apart": (
        lambda: dlfp4.vecdot(X, X[:, :32]),
        ValueError,
        "a of shape (1, 64) has 64 elements along axis -1, b of shape (1, 32) has 32; both need the same number",
    ),
    "a matrix for a vector": (lambda: dlfp4.dot(X, X), ValueError, "dot takes two vectors; for more dimensions call"),
    "an axis beyond all": (
        lambda: dlfp4.vecdot(X, X, 2),
        ValueError,
        "axis=2 of a, which has 2 dimensions; expected -2 to 1",
    ),
    "an axis to join beyond all": (
        lambda: dlfp4.concatenate([W, W], -3),
        ValueError,
        "axis=-3: the tensors have 2 dimensions; expected -2 to 1",
    ),
    "integers of 32 bits to sum": (
        lambda: dlfp4.dot(np.ones(4, "int32"), np.ones(4, "int32")),
        TypeError,
        "or ScaledTensors. Convert others first, floats by dlfp4.cast",
    ),
    "a number for a matrix": (
        lambda: dlfp4.matmul(np.float32(1), W.mT),
        ValueError,
        "a has shape () and b (64, 32); expected (..., M, K) and (K, N)",
    ),
    "a vector for a matrix": (
        lambda: dlfp4.matmul(X, X[0]),
        ValueError,
        "a has shape (1, 64) and b (64,); expected (..., M, K) and (K, N): for a vector b pass b.reshape(-1, 1)",
    ),
    "a stack for a matrix": (
        lambda: dlfp4.matmul(X[None], X[None]),
        ValueError,
        "and b (1, 1, 64); expected (..., M, K) and (K, N): stacks of matrices are for grouped_matmul",
    ),
    "a weight as it was quantized": (
        lambda: dlfp4.matmul(X, W),
        ValueError,
        "K is 64 and 32; expected (..., M, K) and (K, N), for a weight w of (N, K) pass w.mT",
    ),
    "no such backend": (
        lambda: dlfp4.matmul(X, W.mT, backend="blas"),
        ValueError,
        "backend='blas': expected 'auto' or one of cpu, cuda, cuda_fp8, torch, scaled_mm, flashinfer",
    ),
    "no such activation": (
        lambda: dlfp4.matmul(X, W.mT, activation="int4"),
        ValueError,
        "activation='int4': expected None or one of 'int8', 'fp8_1x128', 'mxfp8', 'fp8_row'",
    ),
    "a factor that is a word": (
        lambda: dlfp4.matmul(X, W.mT, alpha="2"),
        TypeError,
        "alpha='2' is of type str; expected a number",
    ),
    "a factor that is a type": (
        lambda: dlfp4.matmul(X, W.mT, alpha=int),
        TypeError,
        "alpha=<class 'int'> is of type type; expected a number",
    ),
    "a factor that is a day": (
        lambda: dlfp4.matmul(X, W.mT, alpha=np.datetime64("2020-01-01")),
        TypeError,
        "is of type datetime64; expected a number",
    ),
    "a result of integers": (
        lambda: dlfp4.matmul(X, W.mT, out_dtype="int8"),
        TypeError,
        "a result of int8 was asked for, by out_dtype or out; expected one of float32, bfloat16, float16",
    ),
    "no such rounding": (
        lambda: dlfp4.cast(X, "float4_e2m1fn", rounding="up"),
        ValueError,
        "rounding='up': expected one of nearest_even, nearest_away, toward_zero, nearest_zero, stochastic; "
        '"up" is for casts to float8_e8m0fnu',
    ),
    "chance without a seed": (
        lambda: dlfp4.cast(X, "float4_e2m1fn", rounding="stochastic"),
        ValueError,
        "seed=None with rounding='stochastic': stochastic rounding needs a seed",
    ),
    "bytes to pack": (
        lambda: dlfp4.pack(X),
        TypeError,
        "float32 fills its bytes; pack and unpack take types below 8 bits: cast it to one first, by dlfp4.cast; bytes",
    ),
    "integers to quantize": (
        lambda: dlfp4.quantize(X.astype("int32"), "nvfp4"),
        TypeError,
        "int32 is not block-scaled: expected float64, float32, bfloat16 or float16; convert it first, with its own",
    ),
    "integers to round": (
        lambda: dlfp4.matmul(X.astype("int32"), W.mT, activation="fp8_1x128"),
        TypeError,
        "activation='fp8_1x128' rounds floats, and a has dtype int32; expected one of float64, float32,",
    ),
    "unsigned offsets": (
        lambda: dlfp4.grouped_matmul(X, dlfp4.stack([W]).mT, np.array([1], "uint32")),
        TypeError,
        "offsets has dtype uint32; expected int32 or int64: convert it with its own library",
    ),
    "a layout that is a number": (
        lambda: dlfp4.quantize(X, "nvfp4", scale_layout=128),
        TypeError,
        "scale_layout=128 is of type int; expected a string",
    ),
    "the same of parts": (
        lambda: dlfp4.ScaledTensor.from_parts(W.data, W.scales, 1.0, format="nvfp4", scale_layout=["linear"]),
        TypeError,
        "scale_layout=['linear'] is of type list; expected a string",
    ),
    "an axis by name": (
        lambda: dlfp4.quantize(X, "nvfp4", axis="rows"),
        TypeError,
        "axis='rows' is of type str; expected an integer",
    ),
    "a number to write to": (
        lambda: dlfp4.quantize(X, "nvfp4", out=3),
        TypeError,
        "out is of type int; expected a ScaledTensor, as quantize returns it",
    ),
    "a plain tensor to dequantize": (
        lambda: dlfp4.dequantize(TENSOR),
        TypeError,
        "q is of type Tensor; expected a ScaledTensor, from quantize or ScaledTensor.from_parts",
    ),
    "integers of blocks": (
        lambda: W.dequantize("int8"),
        TypeError,
        "dtype=int8: block-scaled tensors dequantize to float32, bfloat16 or float16",
    ),
    "memory of another type": (
        lambda: dlfp4.dequantize(W, out=np.empty((32, 64))),
        TypeError,
        "out has dtype float64: block-scaled tensors dequantize to float32, bfloat16 or float16",
    ),
    "no such order of weights": (
        lambda: dlfp4.shuffle_weight(X, "zigzag"),
        ValueError,
        "layout='zigzag': expected 'aiter'",
    ),
    # ---- models
    "parts joined or not": (
        lambda: dlfp4.checkpoints.load(b"", join="no"),
        TypeError,
        "join='no' is of type str; expected True or False",
    ),
    "heads included or not": (
        lambda: selection.choose({}, "nvfp4", include_heads="no"),
        TypeError,
        "include_heads='no' is of type str; expected True or False",
    ),
    "a model without a name": (
        lambda: dlfp4.checkpoints.load("model\0"),
        ValueError,
        "the model is 'model\\x00'; expected a name without NUL characters",
    ),
    "formats that are none": (
        lambda: dlfp4.analysis.compare(X, 3.5),
        ValueError,
        "format=3.5: expected one of nvfp4, ",
    ),
    "what was never quantized": (
        lambda: dlfp4.analysis.signal_to_noise(X, X),
        TypeError,
        "q is of type ndarray; expected a ScaledTensor, as quantize gives it",
    ),
    "another one quantized": (
        lambda: dlfp4.analysis.signal_to_noise(X, W),
        ValueError,
        "x has shape (1, 64) and q (32, 64); expected the same",
    ),
    "recipes that are none": (
        lambda: dlfp4.analysis.compare(X, "nvfp4", 3.5),
        ValueError,
        "recipe=3.5: expected None, a dlfp4.Recipe or one of ocp, ",
    ),
    # ---- parts
    "data of another type": (
        lambda: dlfp4.ScaledTensor.from_parts(X, W.scales, format="nvfp4"),
        TypeError,
        "data has dtype float32; expected float4_e2m1fn, or its bytes as uint8",
    ),
    "scales of another type, which are no bytes": (
        lambda: dlfp4.ScaledTensor.from_parts(np.zeros((4, 64), "u1"), np.ones((4, 1), "f8"), format="fp8_row"),
        TypeError,
        "scales has dtype float64; expected float32",
    ),
    "blocks along the first axis": (
        lambda: dlfp4.quantize(X, "nvfp4", axis=0),
        ValueError,
        "axis=0: blocks run along -1, the last axis, or -2, the others as one",
    ),
    # ---- the machine
    "threads below none": (lambda: dlfp4.set_num_threads(-1), ValueError, "threads=-1: expected 0 to 4096"),
    "threads beyond all": (lambda: dlfp4.set_num_threads(2**70), ValueError, f"threads={2**70}: expected 0 to 4096"),
    "threads by name": (
        lambda: dlfp4.set_num_threads("two"),
        TypeError,
        "threads='two' is of type str; expected an integer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_is_named(mistake):
    action, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=re.escape(message)):
        action()


def test_threads_stay_as_they_were_after_a_refusal(threads):
    threads(2)
    for wrong in (-1, 2**70, "two"):
        with pytest.raises((ValueError, TypeError)):
            threads(wrong)
    assert dlfp4.get_num_threads() == 2


@pytest.mark.parametrize(
    "scale", [ml_dtypes.bfloat16(0.5), np.float16(0.5), np.float64(0.5), Decimal("0.5"), Fraction(1, 2)]
)
def test_scales_are_any_numbers(scale):
    expected = dlfp4.quantize(X, "nvfp4", global_scale=0.5)
    q = dlfp4.quantize(X, "nvfp4", global_scale=scale)
    assert (q.global_scale.item(), raw_bytes(q.data)) == (0.5, raw_bytes(expected.data))


def test_axes_are_a_tuple_or_a_list():
    x = random_array((32, 64))
    by_tuple, by_list = (dlfp4.quantize(x, "mxfp4", axis=axis) for axis in ((-1, -2), [-1, -2]))
    assert [raw_bytes(q.scales) for q in by_list] == [raw_bytes(q.scales) for q in by_tuple]


# ---- memory that is not only the caller's

FP4 = "float4_e2m1fn"


@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_immutable_arrays_are_not_written_to(name):
    framework(name)
    array = frameworks.framework(name).make(np.zeros((1, 32), np.float32), False, "cpu")
    before = np.asarray(array).tolist()
    message = "out has the memory of an array that never changes"
    with pytest.raises(BufferError, match=message):
        dlfp4.cast(X[:, :32], "float32", out=array)
    with pytest.raises(BufferError, match=message):
        dlfp4.dequantize(dlfp4.quantize(X[:, :32], "mxfp4"), out=array)
    with pytest.raises(BufferError, match=message):
        dlfp4.matmul(X, W.mT, out=array)
    tensor = dlfp4.from_dlpack(array)
    values = tensor.to_numpy()
    versions = ((1, 3),) if tensor.readonly else (None, (1, 3))  # as JAX says itself, from 0.12 on
    for held in (
        *(tensor, tensor.T, tensor[:, 1:], values, values[:, 1:]),
        *(dlfp4.from_dlpack(tensor.__dlpack__(max_version=version)) for version in versions),
    ):
        with pytest.raises(BufferError, match=message):
            dlfp4.cast(np.ones(held.shape, np.float32), "float32", out=held)
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 1
    assert np.asarray(array).tolist() == before
    assert dlfp4.from_dlpack(values).readonly == tensor.readonly  # others share it as they do the array itself


@pytest.mark.parametrize("steps", [(1, 0), (0, 1), (1, 1), (2, 1), (3, 1), (5, 2), (1, 4), (-1, 3), (-5, -2)], ids=str)
def test_strides_that_meet(steps):
    """The rule, for two dimensions of 4 and 3 elements, against the places themselves."""
    places = [steps[0] * i + steps[1] * j for i in range(4) for j in range(3)]
    block = np.zeros(64, np.float32)
    out = as_strided(block[20:], (4, 3), (4 * steps[0], 4 * steps[1]))
    values = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    if len(set(places)) == 12:
        dlfp4.cast(values, "float32", out=out)
        assert [block[20 + place] for place in places] == values.ravel().tolist()
    else:
        with pytest.raises(ValueError, match="elements may share memory"):
            dlfp4.cast(values, "float32", out=out)
        assert not block.any()


# ---- what has no memory, or other memory than it seems


@pytest.mark.parametrize("entry", [dlfp4.from_dlpack, dlfp4.asarray, lambda x: dlfp4.quantize(x, "mxfp4")])
@pytest.mark.parametrize(("kind", "remedy"), [("sparse", r"\.to_dense\(\)"), ("meta", r"\.to_empty\(")])
def test_torch_tensors_without_memory(kind, remedy, entry):
    torch = framework("torch")
    whole = torch.arange(64.0).reshape(2, 32)
    tensor = whole.to_sparse() if kind == "sparse" else whole.to("meta")
    with pytest.raises(BufferError, match=rf"torch\.Tensor cannot be exchanged: .*{remedy}"):
        entry(tensor)


def test_one_field_of_records_is_a_view():
    field = RECORDS["f0"]
    tensor = dlfp4.asarray(field)
    assert (tensor.strides, tensor.data_ptr) == ((5,), field.ctypes.data)
    assert tensor.tolist() == field.tolist()


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_pair_cannot_be_padded(lanes):
    """The flag says that each element fills a byte, two lanes that two share one."""
    memory = random_bytes(12)
    made = Made(memory, dtype="float4_e2m1fn", lanes=lanes, flags=PADDED, shape=(3, 4), strides=(4, 1))
    if lanes == 1:
        tensor = dlfp4.from_dlpack(made.capsule)
        assert (tensor.shape, tensor.packed) == ((3, 4), False)
        return
    with pytest.raises(BufferError, match="padded") as refusal:
        dlfp4.from_dlpack(made.capsule)
    assert "lanes" in str(refusal.value)
    assert made.deleted == 0


def test_a_capsule_of_a_part_is_a_part():
    """The element beside it in the last byte stays."""
    memory = dlfp4.asarray(np.full(8, 0x55, np.uint8)).view("float4_e2m1fn")
    part = dlfp4.from_dlpack(memory[:3].__dlpack__(max_version=(1, 3)))
    dlfp4.cast(np.zeros(3, np.float32), "float4_e2m1fn", out=part)
    assert memory.view("uint8").tolist() == [0x00, 0x50] + 6 * [0x55]


def test_a_capsule_keeps_what_a_loan_does_not():
    torch = framework("torch")
    x = torch.arange(1.0, 5.0)
    tensor = dlfp4.from_dlpack(x)
    capsule = tensor.__dlpack__(max_version=(1, 3))
    del tensor
    x.data = torch.zeros(4)
    assert dlfp4.from_dlpack(capsule).tolist() == [1, 2, 3, 4]


def test_packed_parts_that_share_a_byte():
    memory = dlfp4.empty(8, "float4_e2m1fn")
    with pytest.raises(ValueError, match="overlap"):
        dlfp4.cast(memory[:3], "float4_e2m1fn", out=memory[2:5])
    with pytest.raises(ValueError, match="overlap"):
        dlfp4.cast(memory, "float4_e2m1fn", out=memory)


def test_one_of_a_stack_is_taken_by_an_integer():
    q = dlfp4.quantize(np.ones((2, 4, 32), np.float32), "mxfp4")
    for index in (None, 0.0, True):
        with pytest.raises(TypeError, match="for one tensor of a stack, an integer"):
            q[index]


@pytest.mark.parametrize("given", [{}, {"out": np.zeros((3, 32), np.float32)}], ids=["allocated", "out"])
def test_pinned_memory_has_no_stream(given):
    pinned = dlfp4.from_dlpack(Made(X[:, :32].copy(), device=(DEVICES["cuda_host"], 0)).capsule)
    with pytest.raises(ValueError, match="host memory has no streams"):
        dlfp4.matmul(pinned, dlfp4.quantize(np.eye(32, dtype=np.float32), "mxfp4").mT, stream=1, **given)


def test_empty_tensors_that_numpy_cannot_count():
    made = Made(np.zeros(1, np.float32), shape=(2**62, 2**62, 0), strides=(1, 1, 1))
    with pytest.raises(BufferError, match=r"NumPy has no array of shape .*reshape\(\(0,\)\)"):
        dlfp4.from_dlpack(made.capsule).to_numpy()


NAMES = np.array(["nvfp4", "mxfp4"])  # which no comparison makes true or false
NAMED = {
    "scale_rule": lambda: dlfp4.Recipe(scale_rule=NAMES),
    "scale_dtype": lambda: dlfp4.Recipe(scale_dtype=NAMES),
    "four_over_six": lambda: dlfp4.Recipe(four_over_six=NAMES),
    "largest_scale": lambda: dlfp4.Recipe(largest_scale=NAMES),
    "rounding": lambda: dlfp4.cast(X, "float8_e8m0fnu", rounding=NAMES),
    "scale_layout": lambda: W.with_scale_layout(NAMES),
    "layout": lambda: dlfp4.shuffle_weight(X, NAMES),
    "backend": lambda: dlfp4.matmul(X, W.mT, backend=NAMES),
    "convention": lambda: dlfp4.checkpoints.split_parts({"w": W}, NAMES),
    "axis": lambda: dlfp4.checkpoints.selection.choose({"up.weight": X}, "nvfp4", axis=NAMES),
    "method": lambda: dlfp4.analysis.calibrate(X, NAMES),
    "global_scale_per": lambda: dlfp4.TensorProto((4, 64), format="nvfp4", global_scale_per=NAMES),
    "zero_points": lambda: dlfp4.TensorProto((4, 64), format="uint4_g32", zero_points=NAMES),
    "scale_dtype of a proto": lambda: dlfp4.TensorProto((4, 64), format="fp8_row", scale_dtype=NAMES),
}


@pytest.mark.parametrize("name", NAMED)
def test_arrays_are_no_names(name):
    with pytest.raises(ValueError, match=rf"^{name.split()[0]}=array\(.*expected"):
        NAMED[name]()


def test_arrays_are_no_layouts():
    for given in (NAMES, ["linear"]):
        with pytest.raises(TypeError, match=r"scale_layout.*expected (a )?str"):
            dlfp4.TensorProto((4, 64), format="nvfp4", scale_layout=given)
        with pytest.raises(TypeError, match=r"scale_layout.*expected (a )?str"):
            dlfp4.quantize(X, "nvfp4", scale_layout=given)
