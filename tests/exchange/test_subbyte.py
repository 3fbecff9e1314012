"""FP4, FP6 and 4-bit integers: packed, padded and in the x2 dialect, in and out, against a bit-by-bit model."""

import itertools
import math
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dlfp4

from ..support import capsules
from ..support.capsules import (
    DTYPES,
    PADDED,
    SUBBYTE,
    Made,
    Managed,
    compact,
    element_codes,
    framework,
    pack_codes,
    random_bytes,
)
from .test_views import meaningful

REFUSALS = (BufferError, ValueError)
FP4 = "float4_e2m1fn"

# ---- the model: what a code means, in plain Python -----------------------------------------------------------------

LAYOUT = {"float4_e2m1fn": (2, 1), "float6_e2m3fn": (2, 3), "float6_e3m2fn": (3, 2)}  # exponent and mantissa bits


def decode(code, dtype):
    """The value of one code; the float formats have neither Inf nor NaN."""
    bits = DTYPES[dtype][1]
    if dtype == "uint4":
        return code
    if dtype == "int4":
        return code - 16 if code & 8 else code
    exponent_bits, mantissa_bits = LAYOUT[dtype]
    sign = -1.0 if code >> (bits - 1) else 1.0
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = code & (1 << mantissa_bits) - 1
    bias = (1 << (exponent_bits - 1)) - 1
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits)


def byte_count(shape, dtype):
    return -(-math.prod(shape) * DTYPES[dtype][1] // 8)


def packed_made(shape, dtype, seed=0, **fields):
    """A packed, compact capsule of random bytes (spare bits set too), and the codes it holds."""
    memory = random_bytes(max(byte_count(shape, dtype), 1), seed)
    made = Made(memory, dtype=dtype, shape=shape, strides=compact(shape), **fields)
    return made, element_codes(memory, DTYPES[dtype][1], shape, compact(shape))


def padded_made(shape, dtype, *, clean=True):
    """A padded capsule; unless `clean`, with garbage in the high bits."""
    memory, mask = random_bytes(math.prod(shape)).reshape(shape), (1 << DTYPES[dtype][1]) - 1
    memory &= mask if clean else 255
    return Made(memory, dtype=dtype, flags=PADDED), [int(byte) & mask for byte in memory.ravel()]


def codes_of(tensor):
    return np.ascontiguousarray(tensor.to_numpy()).view(np.uint8).ravel().tolist()


def flat(nested):
    return [x for part in nested for x in flat(part)] if isinstance(nested, list) else [nested]


def test_the_model_knows_the_published_values():
    assert [decode(c, FP4) for c in range(8)] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert math.copysign(1, decode(8, FP4)) == -1
    assert (decode(31, "float6_e2m3fn"), decode(31, "float6_e3m2fn")) == (7.5, 28)
    assert (decode(1, "float6_e2m3fn"), decode(1, "float6_e3m2fn")) == (2**-3, 2**-4)
    assert pack_codes([1, 2, 3], 4) == bytes([0x21, 0x03])
    e0, e1, e2, e3 = 0b110101, 0b011011, 0b101110, 0b010011
    assert pack_codes([e0, e1, e2, e3], 6) == bytes(
        [(e0 | e1 << 6) & 255, (e1 >> 2 | e2 << 4) & 255, e2 >> 4 | e3 << 2]
    )


# ---- packed --------------------------------------------------------------------------------------------------------

SHAPES = [(4,), (3, 5), (7,), (2, 3, 4), (1,), (), (0,), (3, 0), (1, 1, 9)]


@pytest.mark.parametrize("dtype", SUBBYTE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("versioned", [True, False])
def test_packed_import(dtype, shape, versioned):
    made, codes = packed_made(shape, dtype, versioned=versioned)
    tensor = dlfp4.from_dlpack(made.capsule)
    assert (tensor.shape, tensor.packed, np.dtype(tensor.dtype).name) == (shape, True, dtype)
    assert (tensor.nbytes, tensor.size) == (byte_count(shape, dtype), math.prod(shape))
    if tensor.size:
        assert (tensor.strides, tensor.data_ptr) == (compact(shape), made.memory.ctypes.data)
    array = tensor.to_numpy()
    assert (array.dtype, array.shape) == (np.dtype(dtype), shape)
    assert codes_of(tensor) == codes  # so the high bits are zero too
    assert array.astype(np.float32).ravel().tolist() == [decode(c, dtype) for c in codes]
    assert flat(tensor.tolist()) == [decode(c, dtype) for c in codes]


@pytest.mark.parametrize("dtype", SUBBYTE)
@pytest.mark.parametrize("version", [(1, 3), None], ids=str)
def test_packed_export(dtype, version):
    made, _ = packed_made((3, 5), dtype)
    managed = Managed(dlfp4.from_dlpack(made.capsule).__dlpack__(max_version=version))
    assert (managed.shape, managed.strides, managed.dtype) == ((3, 5), (5, 1), (*DTYPES[dtype], 1))
    assert (managed.data, managed.byte_offset) == (made.memory.ctypes.data, 0)
    if version:
        assert managed.flags == 0
    assert managed.bytes(len(made.memory)) == made.memory.tobytes()


@pytest.mark.parametrize("dtype", SUBBYTE)
def test_to_numpy_of_packed_is_a_copy(dtype):
    made, _ = packed_made((4, 4), dtype)
    tensor = dlfp4.from_dlpack(made.capsule)
    assert not np.shares_memory(tensor.to_numpy(), made.memory)
    assert tensor.to_numpy().flags.writeable
    with pytest.raises(BufferError, match=r"(?i)pack"):
        tensor.to_numpy(copy=False)


@settings(max_examples=200, deadline=None)
@given(
    dtype=st.sampled_from(SUBBYTE),
    dims=st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), max_size=3),
    versioned=st.booleans(),
)
def test_strided_packed_memory(dtype, dims, versioned):
    """Element (i, j) lies at bit (i*stride_i + j*stride_j)*b, wherever that is."""
    shape, strides = tuple(n for n, _ in dims), tuple(s for _, s in dims)
    memory = random_bytes(256)
    made = Made(memory, dtype=dtype, shape=shape, strides=strides, data=memory.ctypes.data + 128, versioned=versioned)
    tensor = dlfp4.from_dlpack(made.capsule)
    codes = element_codes(memory, DTYPES[dtype][1], shape, strides, start=1024)
    assert codes_of(tensor) == codes
    assert codes_of(tensor.copy()) == codes


@pytest.mark.parametrize("dtype", SUBBYTE)
def test_byte_offset_of_packed(dtype):
    memory = random_bytes(16)
    made = Made(memory, dtype=dtype, shape=(8,), byte_offset=3)
    assert codes_of(dlfp4.from_dlpack(made.capsule)) == element_codes(memory, DTYPES[dtype][1], (8,), (1,), start=24)


@pytest.mark.parametrize("dtype", SUBBYTE)
@pytest.mark.parametrize("shape", [(3, 5), (4, 4), (1,)], ids=str)
def test_copy_of_packed_zeroes_the_spare_bits(dtype, shape):
    made, codes = packed_made(shape, dtype)
    for copied in (
        dlfp4.from_dlpack(made.capsule).copy(),
        dlfp4.from_dlpack(packed_made(shape, dtype)[0].capsule, copy=True),
    ):
        assert (copied.packed, copied.strides) == (True, compact(shape))
        managed = Managed(copied.__dlpack__(max_version=(1, 3)))
        assert managed.bytes(copied.nbytes) == pack_codes(codes, DTYPES[dtype][1])


# ---- views of packed memory ----------------------------------------------------------------------------------------


def test_fp4_of_3_by_5_is_8_bytes():
    made, codes = packed_made((3, 5), FP4)
    tensor = dlfp4.from_dlpack(made.capsule)
    assert (tensor.nbytes, len(made.memory)) == (8, 8)
    with pytest.raises(BufferError, match=r"(?i)copy"):
        tensor[1]  # element 5 is a high nibble
    assert codes_of(tensor[2]) == codes[10:]
    assert tensor[2].data_ptr == tensor.data_ptr + 5
    assert codes_of(tensor.copy()[::2]) == codes[:5] + codes[10:]


@settings(max_examples=300, deadline=None)
@given(dtype=st.sampled_from(SUBBYTE), data=st.data())
def test_slices_of_packed(dtype, data):
    """A view that starts on a byte is right; one that does not is refused with the remedy."""
    shape = data.draw(st.sampled_from([(12,), (3, 5), (4, 8), (2, 3, 4)]))
    made, codes = packed_made(shape, dtype)
    index = data.draw(st.tuples(*(st.integers(0, n - 1) | st.slices(n) for n in shape)))
    numbers = np.arange(math.prod(shape)).reshape(shape)[index]
    tensor = dlfp4.from_dlpack(made.capsule)
    if numbers.size and int(numbers.flat[0]) * DTYPES[dtype][1] % 8:
        with pytest.raises(BufferError, match=r"(?i)copy"):
            tensor[index]
    else:
        view = tensor[index]
        assert view.shape == numbers.shape
        assert codes_of(view) == [codes[i] for i in numbers.ravel()]
        if numbers.size:
            assert view.data_ptr == tensor.data_ptr + int(numbers.flat[0]) * DTYPES[dtype][1] // 8
            assert codes_of(dlfp4.from_dlpack(view)) == [codes[i] for i in numbers.ravel()]


@pytest.mark.parametrize("dtype", SUBBYTE)
def test_reshape_and_transpose_of_packed(dtype):
    made, codes = packed_made((4, 6), dtype)
    tensor = dlfp4.from_dlpack(made.capsule)
    numbers = np.arange(24).reshape(4, 6)
    for view, picked in ((tensor.reshape((3, 8)), numbers), (tensor.T, numbers.T), (tensor.mT, numbers.T)):
        assert view.data_ptr == tensor.data_ptr
        assert codes_of(view) == [codes[i] for i in picked.ravel()]
    assert tensor.T.strides == (1, 6)


def test_item_of_packed():
    made, codes = packed_made((4,), FP4)
    tensor = dlfp4.from_dlpack(made.capsule)
    assert (tensor[2].item(), float(tensor[2])) == (decode(codes[2], FP4),) * 2
    assert type(tensor[0].item()) is float


# ---- padded --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SUBBYTE)
@pytest.mark.parametrize("shape", [(4,), (3, 5), (1,)], ids=str)
def test_padded_import_and_export(dtype, shape):
    made, codes = padded_made(shape, dtype)
    tensor = dlfp4.from_dlpack(made.capsule)
    assert (tensor.packed, tensor.nbytes, tensor.strides) == (False, math.prod(shape), compact(shape))
    assert np.shares_memory(tensor.to_numpy(), made.memory)
    assert codes_of(tensor) == codes
    assert flat(tensor.tolist()) == [decode(c, dtype) for c in codes]
    managed = Managed(tensor.__dlpack__(max_version=(1, 3)))
    assert (managed.flags, managed.dtype, managed.shape) == (PADDED, (*DTYPES[dtype], 1), shape)
    assert managed.data == made.memory.ctypes.data


@pytest.mark.parametrize("dtype", SUBBYTE)
def test_high_bits_of_padded_are_ignored(dtype):
    made, codes = padded_made((3, 5), dtype, clean=False)
    tensor = dlfp4.from_dlpack(made.capsule)
    assert flat(tensor.tolist()) == [decode(c, dtype) for c in codes]
    assert tensor[1, 1].item() == decode(codes[6], dtype)  # any element of a padded tensor can be had


@pytest.mark.parametrize("dtype", SUBBYTE)
def test_numpy_arrays_are_padded_and_shared(dtype):
    array = capsules.random_array((3, 5), dtype)
    for view in (array, array[1:, ::2], array.T, array[::-1]):
        tensor = dlfp4.asarray(view)
        assert (tensor.packed, tensor.shape, tensor.data_ptr) == (False, view.shape, view.ctypes.data)
        assert codes_of(tensor) == np.ascontiguousarray(view).view(np.uint8).ravel().tolist()
        assert np.shares_memory(tensor.to_numpy(), array)
    array.view(np.uint8)[0, 0] = 2
    assert dlfp4.asarray(array)[0, 0].item() == decode(2, dtype)


@pytest.mark.parametrize("dtype", SUBBYTE)
@pytest.mark.parametrize("shape", [(3, 5), (8,), (2, 2, 3)], ids=str)
def test_pack_and_unpack(dtype, shape):
    made, codes = padded_made(shape, dtype, clean=False)
    packed = dlfp4.pack(dlfp4.from_dlpack(made.capsule))
    managed = Managed(packed.__dlpack__(max_version=(1, 3)))
    assert (packed.packed, packed.shape, packed.nbytes) == (True, shape, byte_count(shape, dtype))
    assert managed.bytes(packed.nbytes) == pack_codes(codes, DTYPES[dtype][1])
    unpacked = dlfp4.unpack(packed)
    assert (unpacked.packed, unpacked.shape) == (False, shape)
    assert unpacked.to_numpy().view(np.uint8).ravel().tolist() == codes


# ---- the x2 dialect ------------------------------------------------------------------------------------------------


def stride_1_dimension(shape, strides):
    """The last dimension of stride 1, of empty tensors the last; None where there is none."""
    ones = [k for k, s in enumerate(strides) if s == 1] if math.prod(shape) else range(len(shape))
    return (list(ones) or [None])[-1]


def to_logical(shape, strides):
    """The rule of the dialect: pairs to elements. None: refused."""
    d = stride_1_dimension(shape, strides)
    if d is None:
        return None
    scale = range(len(shape))
    return tuple(shape[k] * (1 + (k == d)) for k in scale), tuple(strides[k] * (1 + (k != d)) for k in scale)


def to_pairs(shape, strides):
    """The inverse; it needs an even extent there and even strides elsewhere."""
    d = stride_1_dimension(shape, strides)
    if d is None or shape[d] % 2:
        return None
    if math.prod(shape) and any(s % 2 for k, s in enumerate(strides) if k != d):
        return None
    scale = range(len(shape))
    return tuple(shape[k] // (1 + (k == d)) for k in scale), tuple(strides[k] // (1 + (k != d)) for k in scale)


def disputed(shape, strides):
    """Strides of one element, or of none at all, mean nothing: a refusal that hangs on them may be spared."""
    return 1 in shape or 0 in shape


def outcome(call):
    """(result, None), or (None, the refusal)."""
    try:
        return call(), None
    except REFUSALS as refusal:
        return None, refusal


def pairs_made(shape, strides, **fields):
    memory = random_bytes(512)
    fields = {"strides": strides, "data": memory.ctypes.data + 256, **fields}
    return Made(memory, dtype=FP4, lanes=2, shape=shape, **fields)


@st.composite
def layouts(draw, even=False):
    """Random shapes and strides, most of them with a dimension of stride 1."""
    ndim = draw(st.integers(0, 4))
    shape = draw(st.tuples(*[st.sampled_from([1, 2, 2, 3, 4, 4, 0])] * ndim))
    stride = st.sampled_from([1, 1, 2, 2, 4, 6, 8, 0, 3, -2, -3])
    return shape, draw(st.tuples(*[stride] * ndim))


@settings(max_examples=400, deadline=None)
@given(layout=layouts(), versioned=st.booleans())
def test_x2_to_logical(layout, versioned):
    shape, strides = layout
    made, expected = pairs_made(shape, strides, versioned=versioned), to_logical(shape, strides)
    tensor, refusal = outcome(lambda: dlfp4.from_dlpack(made.capsule))
    if refusal:
        assert expected is None, refusal
        assert ("stride" if shape else "rank 0") in str(refusal)
        assert made.untouched
        return
    if expected is None:
        assert disputed(shape, strides)
        return
    assert tensor.shape == expected[0]
    assert codes_of(tensor) == element_codes(made.memory, 4, *expected, start=2048)
    assert meaningful(tensor.shape, tensor.strides) == meaningful(*expected)


@settings(max_examples=400, deadline=None)
@given(layout=layouts(), dialect=st.booleans())
def test_logical_to_x2(layout, dialect):
    shape, strides = layout
    memory = random_bytes(512)
    made = Made(memory, dtype=FP4, shape=shape, strides=strides, data=memory.ctypes.data + 256)
    tensor, expected = dlfp4.from_dlpack(made.capsule), to_pairs(shape, strides)
    capsule, refusal = outcome(lambda: tensor.x2(dialect).__dlpack__(max_version=(1, 3)))
    if refusal:
        assert dialect
        assert expected is None or to_logical(*expected) != (shape, strides) or disputed(shape, strides), refusal
        return
    managed = Managed(capsule)
    if not dialect:
        assert (managed.shape, managed.dtype) == (shape, (17, 4, 1))
        return
    if expected is None:
        assert disputed(shape, strides)
        return
    assert (managed.shape, managed.dtype) == (expected[0], (17, 4, 2))
    assert meaningful(managed.shape, managed.strides) == meaningful(*expected)
    assert managed.data == memory.ctypes.data + 256 or not tensor.size
    back = dlfp4.from_dlpack(capsule)
    assert (back.shape, meaningful(back.shape, back.strides)) == (shape, meaningful(shape, strides))


@settings(max_examples=200, deadline=None)
@given(layout=layouts())
def test_x2_goes_back_as_it_came(layout):
    shape, strides = layout
    if to_logical(shape, strides) is None or not shape:
        return
    made = pairs_made(shape, strides)
    managed = Managed(dlfp4.from_dlpack(made.capsule).x2().__dlpack__(max_version=(1, 3)))
    assert (managed.shape, managed.dtype) == (shape, (17, 4, 2))
    assert meaningful(managed.shape, managed.strides) == meaningful(shape, strides)


@pytest.mark.parametrize(
    ("pairs", "logical"),
    [
        (((3, 4), (4, 1)), ((3, 8), (8, 1))),
        (((4, 3), (1, 4)), ((8, 3), (1, 8))),  # the dimension of stride 1 need not be the last
        (((3, 1), (1, 1)), ((3, 2), (2, 1))),  # one pair a row, as `view` and safetensors have it
        (((3, 1), (1, 3)), ((6, 1), (1, 6))),  # one row, transposed
        (((1, 1), (1, 1)), ((1, 2), (2, 1))),
        (((2, 0), (0, 1)), ((2, 0), (0, 1))),
        (((4, 0), (1, 1)), ((4, 0), (2, 1))),
        (((2, 3, 0), (3, 1, 1)), ((2, 3, 0), (6, 2, 1))),
        (((0, 4), (4, 1)), ((0, 8), (8, 1))),
        (((2, 3), (8, 1)), ((2, 6), (16, 1))),  # gaps between the rows
        (((3, 2), (0, 1)), ((3, 4), (0, 1))),
    ],
    ids=str,
)
def test_x2_by_hand(pairs, logical):
    assert to_logical(*pairs) == logical
    tensor = dlfp4.from_dlpack(pairs_made(*pairs).capsule)
    assert tensor.shape == logical[0]
    assert meaningful(tensor.shape, tensor.strides) == meaningful(*logical)


def test_x2_of_rank_0():
    """Two elements without a dimension to count them along."""
    made = pairs_made((), ())
    with pytest.raises(BufferError, match=r"rank 0 .* reshape it to \(1,\) first"):
        dlfp4.from_dlpack(made.capsule)
    assert made.untouched


@pytest.mark.parametrize("stride", [2**59, 2**60, 2**63 - 1, -(2**63)])
def test_strides_that_mean_nothing_are_of_any_size_in_pairs(stride):
    for shape, strides, logical in (
        ((1, 4), (stride, 1), (1, 8)),
        ((4, 1, 2), (2, stride, 1), (4, 1, 4)),
        ((3, 2, 0), (stride, stride, stride), (3, 2, 0)),
    ):
        tensor = dlfp4.from_dlpack(Made(random_bytes(8), dtype=FP4, lanes=2, shape=shape, strides=strides).capsule)
        assert tensor.shape == logical
        assert tensor.strides == compact(logical) or not tensor.size


@pytest.mark.parametrize(("shape", "strides"), [((2, 4), (2**60, 1)), ((2, 4), (-(2**62), 1)), ((2**61,), (1,))])
def test_pairs_that_cannot_be_counted_as_elements(shape, strides):
    made = Made(random_bytes(8), dtype=FP4, lanes=2, shape=shape, strides=strides)
    with pytest.raises(BufferError, match="overflow when pairs are counted"):
        dlfp4.from_dlpack(made.capsule)


@pytest.mark.parametrize("shape", list(itertools.product((0, 1, 2, 3, 4), repeat=3)), ids=str)
def test_pairs_come_back_under_their_shape_or_are_refused(shape):
    """In every order of the dimensions; the rule is one for both directions."""
    codes = np.random.default_rng(0).integers(0, 8, shape, np.uint8)
    whole = dlfp4.pack(codes.view(ml_dtypes.float4_e2m1fn))
    for tensor in (whole, whole.T, whole.mT, whole.T.mT):
        capsule, refusal = outcome(lambda tensor=tensor: tensor.x2().__dlpack__(max_version=(1, 3)))
        if refusal:
            assert re.search(r"; (call \.copy\(\) first|pad that to an even extent, or reshape it)$", str(refusal))
            assert whole.shape[-1] % 2 or tensor is not whole  # rows of whole pairs always go
        else:
            back = dlfp4.from_dlpack(capsule)
            assert (back.shape, back.dtype) == (tensor.shape, tensor.dtype)
            assert back.to_numpy().tobytes() == tensor.to_numpy().tobytes()


def test_x2_with_null_strides():
    made = pairs_made((3, 4), None)
    tensor = dlfp4.from_dlpack(made.capsule)
    assert (tensor.shape, tensor.strides) == ((3, 8), (8, 1))


def test_x2_is_remembered_through_views_and_can_be_changed():
    made = pairs_made((4, 4), (4, 1))
    tensor = dlfp4.from_dlpack(made.capsule)
    assert tensor.shape == (4, 8)
    assert Managed(tensor.__dlpack__(max_version=(1, 3))).dtype == (17, 4, 1)
    tensor = tensor.x2()
    for view, shape in ((tensor[1:], (3, 4)), (tensor.T, (4, 4)), (tensor.reshape((2, 16)), (2, 8))):
        assert (Managed(view.__dlpack__(max_version=(1, 3))).dtype, view.nbytes % 4) == ((17, 4, 2), 0)
        assert Managed(view.__dlpack__(max_version=(1, 3))).shape == shape
    plain = Managed(tensor.x2(False).__dlpack__(max_version=(1, 3)))
    assert (plain.dtype, plain.shape, plain.data) == ((17, 4, 1), (4, 8), tensor.data_ptr)
    again = Managed(tensor.x2(False).x2().__dlpack__(max_version=(1, 3)))
    assert (again.dtype, again.shape, again.data) == ((17, 4, 2), (4, 4), tensor.data_ptr)
    assert tensor.x2().shape == tensor.x2(False).shape == (4, 8)
    for made in (dlfp4.cast(tensor, FP4), tensor.copy(), dlfp4.pack(tensor)):  # nobody asked for pairs of these
        assert Managed(made.__dlpack__(max_version=(1, 3))).dtype == (17, 4, 1)


@pytest.mark.parametrize("extent", [2, 3])
def test_odd_strides_have_no_x2(extent):
    made = Made(capsules.random_bytes(16), shape=(extent, 4), strides=(5, 1), code=17, bits=4)
    with pytest.raises(REFUSALS, match="5"):
        dlfp4.from_dlpack(made.capsule).x2().__dlpack__(max_version=(1, 3))


def test_odd_extents_have_no_x2():
    made, _ = packed_made((3, 5), FP4)
    with pytest.raises(REFUSALS, match="5"):
        dlfp4.from_dlpack(made.capsule).x2().__dlpack__(max_version=(1, 3))


def test_pairs_that_a_view_cuts_have_no_x2():
    """The view keeps the dialect, and is refused when it is handed out."""
    made, _ = packed_made((4, 8), FP4)
    view = dlfp4.from_dlpack(made.capsule).x2()[:, :3]
    with pytest.raises(BufferError, match="3, which is odd"):
        view.__dlpack__(max_version=(1, 3))
    assert Managed(view.x2(False).__dlpack__(max_version=(1, 3))).shape == (4, 3)


@pytest.mark.parametrize("dtype", ["float32", "float6_e2m3fn", "uint8"])
def test_only_fp4_has_an_x2(dtype):
    with pytest.raises((*REFUSALS, TypeError), match=dtype):
        dlfp4.empty((4, 4), dtype).x2().__dlpack__(max_version=(1, 3))


# ---- frameworks ----------------------------------------------------------------------------------------------------


def torch_fp4(torch, shape):
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip(f"PyTorch {torch.__version__} has no float4_e2m1fn_x2")
    data = torch.from_numpy(random_bytes(math.prod(shape)).reshape(shape))
    return data, data.view(torch.float4_e2m1fn_x2)


@pytest.mark.parametrize("shape", [(8,), (3, 4), (2, 3, 5)], ids=str)
def test_torch_round_trip(shape):
    torch = framework("torch")
    data, pairs = torch_fp4(torch, shape)
    for tensor in (dlfp4.from_dlpack(pairs), dlfp4.asarray(pairs)):
        assert tensor.shape == (*shape[:-1], shape[-1] * 2)
        assert (np.dtype(tensor.dtype).name, tensor.packed, tensor.data_ptr) == (FP4, True, data.data_ptr())
        assert codes_of(tensor) == element_codes(data.numpy(), 4, tensor.shape, tensor.strides)
        for back in (torch.from_dlpack(tensor), tensor.to_torch()):
            assert (back.dtype, tuple(back.shape)) == (torch.float4_e2m1fn_x2, shape)
            assert back.data_ptr() == data.data_ptr()
            assert back.view(torch.uint8).numpy().tobytes() == data.numpy().tobytes()


def test_torch_takes_what_never_was_torchs():
    torch = framework("torch")
    torch_fp4(torch, (2,))
    made, _ = packed_made((4, 6), FP4)
    tensor = dlfp4.from_dlpack(made.capsule)
    for back in (tensor.to_torch(), torch.from_dlpack(tensor), torch.from_dlpack(tensor.x2())):
        assert (back.dtype, tuple(back.shape), back.data_ptr()) == (torch.float4_e2m1fn_x2, (4, 3), tensor.data_ptr)


def test_torch_transposed_fp4():
    torch = framework("torch")
    data, pairs = torch_fp4(torch, (3, 4))
    tensor = dlfp4.from_dlpack(pairs.T)
    assert (tensor.shape, tensor.strides) == ((8, 3), (1, 8))
    assert codes_of(tensor) == element_codes(data.numpy(), 4, (8, 3), (1, 8))


@pytest.mark.parametrize("shape", [(6,), (3, 5), (4, 4)], ids=str)
def test_jax_fp4(shape):
    """JAX exports FP4 packed, with garbage in an odd count's spare nibble."""
    jnp = framework("jax.numpy")
    codes = (random_bytes(math.prod(shape)) & 15).tolist()
    values = [decode(c, FP4) for c in codes]
    array = jnp.array(np.array(values, np.float32).reshape(shape)).astype(jnp.float4_e2m1fn)
    for entry in (dlfp4.asarray, dlfp4.from_dlpack):
        tensor = entry(array)
        assert (tensor.shape, np.dtype(tensor.dtype).name) == (shape, FP4)
        assert codes_of(tensor) == codes
        assert flat(tensor.tolist()) == values


@pytest.mark.parametrize("dtype", [FP4, "float6_e2m3fn", "float6_e3m2fn"])
def test_tvm_ffi_takes_packed(dtype):
    """The one framework that carries packed FP4 and FP6: in and out, same memory."""
    tvm_ffi = framework("tvm_ffi")
    made, codes = packed_made((4, 8), dtype)
    tensor = dlfp4.from_dlpack(made.capsule)
    there = tvm_ffi.from_dlpack(tensor)
    assert tuple(there.shape) == (4, 8)
    back = dlfp4.from_dlpack(there)
    assert (back.data_ptr, np.dtype(back.dtype).name, codes_of(back)) == (tensor.data_ptr, dtype, codes)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda t: t[:, :3], "side by side along dimension 1, of extent 3, which is odd; pad that to an even extent"),
        (lambda t: t[0, :3], "side by side along dimension 0, of extent 3, which is odd; pad that to an even extent"),
        (lambda t: t[:, :4], r"rows of strides \(5, 1\) start within a byte, .*; call .copy\(\) first"),
        (lambda t: t[:, ::2], r"no dimension of strides \(5, 2\) has stride 1; call .copy\(\) first"),
    ],
    ids=["odd", "an odd vector", "within a byte", "apart"],
)
def test_why_there_are_no_pairs(make, said):
    with pytest.raises(ValueError, match=said):
        make(dlfp4.empty((2, 5), "float4_e2m1fn")).x2()
