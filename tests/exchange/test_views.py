"""Views: slices, transposes, reshapes and reinterpretations share memory and agree with numpy; the rest is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dlfp4

from ..support import capsules
from ..support.capsules import framework, random_array

VALUE_TYPES = [name for name, (_, bits) in capsules.DTYPES.items() if bits >= 8]
WRONG = (BufferError, ValueError)


def meaningful(shape, strides):
    """The strides that a reader can notice: those of more than one step, in a tensor that holds something."""
    return [s for n, s in zip(shape, strides, strict=True) if n > 1] if math.prod(shape) else []


def check_same(tensor, array):
    """Shape, strides, place and values are numpy's."""
    assert type(tensor) is dlfp4.Tensor
    assert (tensor.shape, tensor.ndim, tensor.size) == (array.shape, array.ndim, array.size)
    assert np.dtype(tensor.dtype) == array.dtype
    assert tensor.nbytes == array.nbytes
    strides = tuple(s // array.itemsize for s in array.strides)
    assert meaningful(tensor.shape, tensor.strides) == meaningful(array.shape, strides)
    if array.size:
        assert tensor.data_ptr == array.ctypes.data
    assert tensor.to_numpy().tobytes() == array.tobytes()


# ---- attributes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", VALUE_TYPES)
def test_attributes(dtype):
    array = random_array((3, 1, 4), dtype)
    tensor = dlfp4.asarray(array)
    check_same(tensor, array)
    assert (tensor.strides, len(tensor), tensor.readonly) == ((4, 4, 1), 3, False)
    assert all(type(n) is int for n in (*tensor.shape, *tensor.strides, tensor.ndim, tensor.size, tensor.nbytes))
    assert type(tensor.shape) is type(tensor.strides) is tuple
    assert isinstance(tensor.dtype, np.dtype)
    assert str(tensor.device) == "cpu"


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ((-1, 2), ValueError),
        ((2, -(1 << 70)), ValueError),
        ((1,) * 65, ValueError),
        ((1 << 62,), MemoryError),
        ((1 << 70,), MemoryError),
        ((1 << 40, 1 << 40), MemoryError),
        ((0, 1 << 70), MemoryError),
        ((2, 1.5), TypeError),
        (None, TypeError),
    ],
    ids=str,
)
def test_shapes_that_memory_cannot_have(shape, error):
    for name in ("float4_e2m1fn", "float32"):
        with pytest.raises(error):
            dlfp4.empty(shape, name)


@pytest.mark.parametrize(("dtype", "bits"), [(n, b) for n, (_, b) in capsules.DTYPES.items()])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (7,), (2, 3, 4), (0, 4)], ids=str)
def test_empty_and_nbytes(dtype, bits, shape):
    tensor = dlfp4.empty(shape, dtype)
    assert (tensor.shape, np.dtype(tensor.dtype).name, tensor.readonly) == (shape, dtype, False)
    assert tensor.nbytes == -(-math.prod(shape) * bits // 8)
    assert tensor.packed or bits >= 8
    assert tensor.strides == capsules.compact(shape) or not tensor.size
    assert tensor.data_ptr % 64 == 0
    padded = dlfp4.empty(shape, dtype, packed=False)
    assert padded.nbytes == math.prod(shape) * max(bits // 8, 1)
    assert not padded.packed or bits >= 8


def test_strides_of_empty_arrays_mean_nothing():
    """Also those that are no multiples of the item size, as of the bytes of an empty matrix that count as integers."""
    array = np.lib.stride_tricks.as_strided(np.zeros(0, np.int32), (3, 0), (1, 4))
    assert dlfp4.asarray(array).shape == (3, 0)
    assert dlfp4.cast(array.view(np.float32), "float16").shape == (3, 0)


def test_empty_refuses_bad_arguments():
    with pytest.raises(TypeError, match="dtype 'float5' is not one that dlfp4 carries"):
        dlfp4.empty((2,), "float5")
    with pytest.raises((ValueError, BufferError), match="toaster"):
        dlfp4.empty((2,), "float32", device="toaster")
    for shape in ("ab", 2.5, (2, None)):
        with pytest.raises(TypeError, match=r"shape=.*expected an integer"):
            dlfp4.empty(shape, "float32")


def test_shapes_beyond_memory_are_told_from_empty_ones():
    with pytest.raises(MemoryError, match=r"^shape .* has more elements than memory can hold"):
        dlfp4.empty((2**40, 2**20), "float32")
    with pytest.raises(MemoryError, match="is empty, but its other extents count more elements than memory can hold"):
        dlfp4.empty((2**40, 0, 2**40), "float32")
    assert dlfp4.empty((2**40, 0, 2**10), "float32").size == 0


@pytest.mark.parametrize("pair", [("cpu", 0), (1, 0, 0), (1,), ()], ids=str)
def test_pairs_that_are_no_devices(pair):
    with pytest.raises(TypeError, match=r"expected a DLPack pair of integers, \(type, id\), or a string"):
        dlfp4.empty((2,), "float32", device=pair)


def test_device_by_its_name():
    for text in ("cuda:3", "cpu", "cuda_host", "opencl:1"):
        device = dlfp4.Device(text)
        assert str(device) == text
        assert eval(repr(device), {"Device": dlfp4.Device}) == device
    assert dlfp4.Device("cuda:3") == dlfp4.Device("cuda", 3)
    for arguments in (("cuda:x",), ("cuda:",), ("cuda:1", 1), ("gpu",)):
        with pytest.raises(ValueError, match=r"Device\('cuda', 0\)"):
            dlfp4.Device(*arguments)


@pytest.mark.parametrize("pair", [(2.9, 0.7), (1, 0.0), (float("inf"), 0), (1, "0")], ids=str)
def test_pairs_of_what_is_no_integer(pair):
    assert dlfp4.Device("cuda") != pair
    with pytest.raises(TypeError, match="expected a DLPack pair of integers"):
        dlfp4.empty((2,), "float32", device=pair)


def test_repr_is_metadata_only():
    """No element is read: the memory may be on a device, or unreachable."""
    nowhere = capsules.Made(data=4096, shape=(1000, 3), device=(2, 1))
    for tensor in (dlfp4.from_dlpack(nowhere.capsule), dlfp4.empty((1000, 3), "float4_e2m1fn")):
        text = repr(tensor)
        assert len(text) < 300
        for said in ("1000", "3", np.dtype(tensor.dtype).name, str(tensor.device)):
            assert said in text


def test_len_and_iteration():
    array = random_array((3, 4))
    tensor = dlfp4.asarray(array)
    assert (len(tensor), len(tensor[:0])) == (3, 0)
    assert [row.to_numpy().tobytes() for row in tensor] == [row.tobytes() for row in array]
    for act in (len, iter):
        with pytest.raises(TypeError, match="0-d"):
            act(tensor[0, 0])


def test_no_truth_and_no_search():
    tensor = dlfp4.asarray(np.array([[0.0, 3.0]], np.float32))
    for act in (bool, lambda t: not t[0, 0], lambda t: 3.0 in t):
        with pytest.raises(TypeError, match="to_numpy"):
            act(tensor)


SCALARS = {"float32": 1.5, "float64": -2.25, "int8": -7, "uint64": 2**64 - 1, "bool": True, "bfloat16": 3.0,
           "complex64": 1 + 2j, "float8_e4m3fn": 448.0, "float8_e8m0fnu": 2.0**-127, "int64": -(2**63)}  # fmt: skip


@pytest.mark.parametrize(("dtype", "value"), SCALARS.items())
def test_item_float_and_tolist(dtype, value):
    import ml_dtypes  # noqa: F401  (registers the names)

    for shape in ((), (1,), (1, 1)):
        tensor = dlfp4.asarray(np.full(shape, value, dtype))
        item = tensor.item()
        assert (item, type(item)) == (value, type(value))
        nested = tensor.tolist()
        for _ in shape:
            (nested,) = nested
        assert (nested, type(nested)) == (value, type(value))
        if not isinstance(value, complex):
            assert float(tensor) == float(value)


@pytest.mark.parametrize("dtype", ["float32", "int16", "bool", "bfloat16", "float8_e5m2", "float4_e2m1fn"])
def test_tolist_of_a_view(dtype):
    array = random_array((3, 4), dtype)[::2, ::-1]
    expected = [[float(x) for x in row] for row in array]
    assert [[float(x) for x in row] for row in dlfp4.asarray(array).tolist()] == expected
    assert dlfp4.asarray(array[:0]).tolist() == []
    assert dlfp4.asarray(array[:, :0]).tolist() == [[], []]


def test_item_of_many():
    tensor = dlfp4.asarray(random_array((2, 2)))
    with pytest.raises(ValueError, match=r"4|size|\(2, 2\)"):
        tensor.item()
    with pytest.raises((TypeError, ValueError)):
        float(tensor)


# ---- slicing -------------------------------------------------------------------------------------------------------

BASE = np.arange(1, 1 + 5 * 6 * 7, dtype=np.int32).reshape(5, 6, 7)


@settings(max_examples=400, deadline=None)
@given(
    index=hnp.basic_indices(BASE.shape, min_dims=0, max_dims=6, allow_newaxis=True, allow_ellipsis=True),
    dtype=st.sampled_from(["int32", "uint8", "float64"]),
)
def test_slicing_is_numpys(index, dtype):
    array = BASE.astype(dtype)
    expected = array[index] if isinstance(array[index], np.ndarray) else array[(*np.index_exp[index], ...)]
    check_same(dlfp4.asarray(array)[index], expected)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_slicing_a_slice_is_numpys(data):
    array, tensor = BASE, dlfp4.asarray(BASE)
    for _ in range(3):
        index = data.draw(hnp.basic_indices(array.shape, min_dims=1, max_dims=5, allow_newaxis=True))
        if isinstance(array[index], np.ndarray):
            array, tensor = array[index], tensor[index]
    check_same(tensor, array)


@settings(max_examples=100, deadline=None)
@given(slices=st.tuples(*[st.slices(8) | st.builds(slice, *[st.none() | st.integers(-20, 20)] * 2)] * 3))
def test_slices_beyond_the_ends(slices):
    check_same(dlfp4.asarray(BASE)[slices], BASE[slices])


def test_huge_slice_bounds():
    tensor = dlfp4.asarray(BASE)
    for index in (slice(-(10**30), 10**30), slice(None, None, 10**30), slice(10**30, None, -(10**18))):
        check_same(tensor[index], BASE[index])


def test_slices_share_memory_both_ways():
    array = BASE.copy()
    view = dlfp4.asarray(array)[1:4, ::-2, 3]
    array[1, 5, 3] = -99
    seen = view.to_numpy()
    assert seen[0, 0] == -99
    seen[2, 2] = -77
    assert array[3, 1, 3] == -77


BAD_INDICES = [
    *((i, IndexError) for i in (5, -6, (0, 6), (0, 0, -8), (0, 0, 0, 0), (..., ...), 10**30)),
    (slice(None, None, 0), ValueError),
    *((i, (TypeError, IndexError)) for i in (1.0, "a", [0, 1], (0, [1]), np.array([0, 1]), slice(1.0), len)),
]


@pytest.mark.parametrize(("index", "error"), BAD_INDICES, ids=lambda value: str(value)[:30])
def test_bad_indices(index, error):
    with pytest.raises(error):
        dlfp4.asarray(BASE)[index]


@pytest.mark.parametrize("index", [[0, 1], np.array([0, 1]), BASE > 0, 1.0], ids=["list", "array", "mask", "float"])
def test_what_no_view_can_say_is_named(index):
    with pytest.raises(TypeError, match=r"a Tensor takes integers, slices.*index \.to_numpy"):
        dlfp4.asarray(BASE)[index]


def test_out_of_range_says_the_numbers():
    with pytest.raises(IndexError, match=r"(?s)9.*6"):
        dlfp4.asarray(BASE)[0, 9]


def test_index_objects():
    class Two:
        def __index__(self):
            return 2

    check_same(dlfp4.asarray(BASE)[Two(), np.int64(1) :], BASE[2, 1:])


# ---- transposes and reshapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn", "bfloat16"])
def test_transposes(dtype):
    array = random_array((2, 3, 4), dtype)
    tensor = dlfp4.asarray(array)
    check_same(tensor.mT, array.mT)
    check_same(tensor[1].T, array[1].T)
    check_same(tensor[1].T.T, array[1])
    check_same(tensor.mT[:, ::-1].mT, array.mT[:, ::-1].mT)


def test_transposes_of_too_few_dimensions():
    with pytest.raises(WRONG):
        _ = dlfp4.asarray(random_array((4,))).mT


LAYOUTS = {
    "rows": BASE,
    "strided": BASE[:, ::2],
    "gaps": BASE[..., :4],
    "reversed": BASE[::-1],
    "transposed": BASE.T,
    "one": BASE[:1, :, :1],
    "broadcast": np.broadcast_to(BASE[0, 0], (6, 7)),
    "empty": BASE[:0],
}


def reshape_in_place(array, shape):
    """numpy's own answer to "without a copy": the view, or None."""
    result = array.reshape(shape)
    return result if np.shares_memory(result, array) or not array.size else None


def splits(size):
    """Shapes of `size` elements: a chain of divisors, with some 1 and perhaps one -1."""

    @st.composite
    def draw_shape(draw):
        rest, shape = size, []
        while rest > 1 and len(shape) < 5:
            n = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
            shape.append(n)
            rest //= n
        return (*shape, rest)

    return draw_shape()


@settings(max_examples=300, deadline=None)
@given(data=st.data(), layout=st.sampled_from([name for name in LAYOUTS if name != "empty"]))
def test_reshape_is_numpys(data, layout):
    array = LAYOUTS[layout]
    shape = data.draw(splits(array.size))
    made = capsules.Made(array)
    expected = reshape_in_place(array, shape)
    if expected is not None:
        check_same(dlfp4.from_dlpack(made.capsule).reshape(shape), expected)
    else:
        with pytest.raises(WRONG, match="copy"):
            dlfp4.from_dlpack(made.capsule).reshape(shape)


def test_reshape_details():
    tensor = dlfp4.asarray(BASE)
    check_same(tensor.reshape((-1, 7)), BASE.reshape(-1, 7))
    check_same(tensor.reshape([30, 7]), BASE.reshape(30, 7))
    check_same(tensor[0, 0, 0].reshape((1, 1)), BASE[:1, 0, :1])
    check_same(tensor[0, 0, :1].reshape(()), BASE[0, 0, 0, ...])
    for shape in ((0,), (3, 0), (0, 10**9)):
        assert tensor[:0].reshape(shape).shape == shape
    for rows in (2, 3):
        with pytest.raises(BufferError, match="needs a copy"):
            tensor[0, :rows, :5].reshape(-1)
    turned = dlfp4.asarray(BASE[0, ::-1, ::-1])[:, None]
    assert turned.reshape(-1).strides == (-1,)
    assert turned.reshape(-1).tolist() == BASE[0].ravel()[::-1].tolist()
    apart = dlfp4.from_dlpack(capsules.Made(random_array((8,)), shape=(1,), strides=(5,)).capsule)
    assert apart.reshape((1, 1)).strides == (1, 1)


def test_reshape_of_nothing_to_great_extents():
    empty = dlfp4.asarray(BASE)[:0]
    assert empty.reshape((2**62, 0)).strides == (1, 1)
    for shape in ((2**63, 0), (0, 2**70), (0, 2**40, 2**40), (2**40, 2**40, 0)):
        with pytest.raises(ValueError, match=r"reshape|counted"):
            empty.reshape(shape)


def test_no_more_dimensions_than_the_importer_takes():
    tensor = dlfp4.asarray(BASE)
    assert dlfp4.from_dlpack(tensor[(None,) * (65_535 - BASE.ndim)]).ndim == 65_535
    for grow in (lambda: tensor[(None,) * 65_533], lambda: tensor.reshape((1,) * 70_000 + (BASE.size,))):
        with pytest.raises(ValueError, match="65535 at most"):
            grow()


@pytest.mark.parametrize("shape", [(5,), (-1, 4), (-1, -1), (-2, 105), (2**32, 2**32), (210, 0), (1.5,), "ab"], ids=str)
def test_reshape_refusals(shape):
    with pytest.raises((ValueError, TypeError)):
        dlfp4.asarray(BASE).reshape(shape)


def test_reshape_refusal_says_the_shapes():
    with pytest.raises(ValueError, match=r"(?s)5.*6.*7.*4.*4|4.*4.*5.*6.*7"):
        dlfp4.asarray(BASE).reshape((4, 4))


# ---- reinterpretation ----------------------------------------------------------------------------------------------

PAIRS = [
    ("float32", "uint8"), ("float32", "float16"), ("float64", "int32"), ("int16", "uint16"), ("bfloat16", "uint8"),
    ("complex64", "float32"), ("float8_e4m3fn", "uint8"), ("float8_e8m0fnu", "int8"), ("bool", "uint8"),
]  # fmt: skip


@pytest.mark.parametrize(("wide", "narrow"), PAIRS)
def test_view_and_back(wide, narrow):
    array = random_array((3, 4), wide)
    tensor = dlfp4.asarray(array)
    check_same(tensor.view(narrow), array.view(narrow))
    check_same(tensor.view(narrow).view(wide), array)
    rows = tensor[::2].view(narrow)  # gaps between the rows are no obstacle
    check_same(rows, array[::2].view(narrow))
    check_same(rows.view(wide), array[::2])


def test_view_follows_the_dimension_of_stride_1():
    array = random_array((3, 4))
    tensor = dlfp4.asarray(array).T  # (4, 3), of strides (1, 4)
    seen = tensor.view("uint8")
    assert (seen.shape, seen.strides, seen.data_ptr) == ((16, 3), (1, 16), array.ctypes.data)
    assert seen.to_numpy().tobytes() == array.view(np.uint8).T.tobytes()
    check_same(seen.view("float32"), array.T)


def test_view_of_one_byte_a_row_is_along_the_row():
    octets = np.arange(20, dtype=np.uint8).reshape(5, 4)
    column = dlfp4.asarray(octets).view("int32")
    assert (column.shape, column.view("uint8").shape, column.view("float4_e2m1fn").shape) == ((5, 1), (5, 4), (5, 8))
    assert column.view("uint8").tolist() == octets.tolist()
    pairs = dlfp4.asarray(octets[:, :1].copy()).view("float4_e2m1fn")
    assert (pairs.shape, pairs.strides) == ((5, 2), (2, 1))
    assert dlfp4.asarray(np.asfortranarray(octets)[:, :1]).view("float4_e2m1fn").shape == (10, 1)  # as they lie
    assert dlfp4.empty((8, 1), "float4_e2m1fn").view("uint8").shape == (4, 1)  # no whole byte a row
    assert dlfp4.empty((8, 1), "uint8").view("uint16").shape == (4, 1)
    for strided in (octets[:1, ::2], octets[:3, ::2], np.broadcast_to(octets[:1, :1], (1, 3))):
        with pytest.raises(ValueError, match="stride 1"):  # whatever the number of rows
            dlfp4.asarray(strided).view("float4_e2m1fn")


def test_view_takes_any_name_of_a_type():
    import ml_dtypes

    tensor = dlfp4.asarray(capsules.random_bytes(8))
    for name in ("float8_e4m3fn", ml_dtypes.float8_e4m3fn, np.dtype(ml_dtypes.float8_e4m3fn)):
        assert np.dtype(tensor.view(name).dtype) == np.dtype(ml_dtypes.float8_e4m3fn)
    torch = capsules.framework("torch")
    assert np.dtype(tensor.view(torch.float8_e4m3fn).dtype) == np.dtype(ml_dtypes.float8_e4m3fn)
    jnp = capsules.framework("jax.numpy")
    assert np.dtype(tensor.view(jnp.float8_e4m3fn).dtype) == np.dtype(ml_dtypes.float8_e4m3fn)


def test_view_shares_memory_both_ways():
    array = random_array((3, 4))
    seen = dlfp4.asarray(array).view("uint8").to_numpy()
    seen[1, 4:8] = np.float32(2.5).view(np.uint32).reshape(1).view(np.uint8)
    assert array[1, 1] == 2.5
    array[2, 3] = 7
    assert seen[2, 12:].tobytes() == np.float32(7).tobytes()


@pytest.mark.parametrize(("dtype", "bits"), [("float4_e2m1fn", 4), ("float6_e2m3fn", 6), ("float6_e3m2fn", 6)])
@pytest.mark.parametrize("shape", [(12,), (5, 6), (2, 3, 3)], ids=str)
def test_view_bytes_as_packed_and_back(dtype, bits, shape):
    array = capsules.random_bytes(math.prod(shape)).reshape(shape)
    packed = dlfp4.asarray(array).view(dtype)
    assert packed.shape == (*shape[:-1], shape[-1] * 8 // bits)
    assert (packed.packed, packed.data_ptr, packed.nbytes) == (True, array.ctypes.data, array.nbytes)
    assert packed.strides == capsules.compact(packed.shape)
    codes = capsules.element_codes(array.tobytes(), bits, packed.shape, packed.strides)
    assert list(packed.to_numpy().view(np.uint8).ravel()) == codes
    check_same(packed.view("uint8"), array)


def test_view_of_strided_rows_as_packed():
    array = capsules.random_bytes(60).reshape(5, 12)
    packed = dlfp4.asarray(array)[::2, :6].view("float4_e2m1fn")
    assert (packed.shape, packed.strides) == ((3, 12), (48, 1))
    assert list(packed.to_numpy().view(np.uint8).ravel()) == capsules.element_codes(
        array[::2, :6].tobytes(), 4, (36,), (1,)
    )
    check_same(packed.view("uint8"), array[::2, :6])


def test_view_of_padded_as_bytes():
    array = random_array((3, 4), "float4_e2m1fn")
    tensor = dlfp4.asarray(array)
    assert not tensor.packed
    check_same(tensor.view("uint8"), array.view(np.uint8))


REFUSED_VIEWS = {
    "length does not divide": (lambda: dlfp4.asarray(capsules.random_bytes(6)), "float32"),
    "fp6 does not divide": (lambda: dlfp4.asarray(capsules.random_bytes(8)), "float6_e2m3fn"),
    "odd count of fp4": (lambda: dlfp4.asarray(capsules.random_bytes(4)).view("float4_e2m1fn")[:7], "uint8"),
    "odd row stride": (lambda: dlfp4.asarray(capsules.random_bytes(30).reshape(3, 10))[:, :8], "float32"),
    "nothing of stride 1": (lambda: dlfp4.asarray(capsules.random_bytes(16))[::2], "float16"),
    "scalar to narrow": (lambda: dlfp4.asarray(random_array((1,)))[0], "uint8"),
}


@pytest.mark.parametrize("why", REFUSED_VIEWS)
def test_view_refusals(why):
    make, dtype = REFUSED_VIEWS[why]
    tensor = make()
    with pytest.raises(WRONG, match=rf"{dtype}|stride"):
        tensor.view(dtype)


def test_view_of_an_unknown_type():
    with pytest.raises(TypeError, match="dtype 'float5' is not one that dlfp4 carries"):
        dlfp4.asarray(BASE).view("float5")


# ---- numpy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", VALUE_TYPES)
def test_to_numpy_shares(dtype):
    array = random_array((3, 4), dtype)[:, ::2]
    tensor = dlfp4.asarray(array)
    for seen in (tensor.to_numpy(), tensor.to_numpy(copy=False), np.asarray(tensor)):
        assert np.shares_memory(seen, array)
        assert seen.dtype == array.dtype
        assert seen.tobytes() == array.tobytes()
    copied = tensor.to_numpy(copy=True)
    assert not np.shares_memory(copied, array)
    assert (copied.flags.writeable, copied.tobytes()) == (True, array.tobytes())


def test_array_protocol():
    array = random_array((3, 4))
    tensor = dlfp4.asarray(array)
    assert not np.shares_memory(np.array(tensor), array)
    assert np.asarray(tensor, dtype=np.float64).tolist() == array.astype(np.float64).tolist()
    assert np.shares_memory(np.asarray(tensor, copy=False), array)
    with pytest.raises(ValueError, match="copy"):
        np.asarray(tensor, dtype=np.float64, copy=False)


def test_copy_owns_its_memory():
    array = random_array((4, 6))
    for view in (array, array[::2, ::-1], array.T, array[1, 2, ...], array[:0]):
        made = capsules.Made(view, flags=capsules.READ_ONLY)
        copied = dlfp4.from_dlpack(made.capsule).copy()
        assert (copied.shape, copied.to_numpy().tobytes()) == (view.shape, view.tobytes())
        assert not copied.readonly
        if view.size:
            assert not np.shares_memory(copied.to_numpy(), array)
            assert copied.data_ptr % 64 == 0


def test_buffers():
    data = bytearray(random_array((12,)).tobytes())
    tensor = dlfp4.asarray(memoryview(data).cast("f", (3, 4)))
    assert (tensor.shape, np.dtype(tensor.dtype).name) == ((3, 4), "float32")
    assert tensor.to_numpy().tobytes() == bytes(data)
    data[0:4] = np.float32(9).tobytes()
    assert tensor[0, 0].item() == 9
    check_same(dlfp4.asarray(data), np.frombuffer(data, np.uint8))
    check_same(dlfp4.asarray(memoryview(data)[::2]), np.frombuffer(data, np.uint8)[::2])


def test_packed_views_that_share_one_byte():
    """One of them runs backwards and ends within the byte in which the other ends."""
    codes = np.random.default_rng(1).integers(0, 256, 1 << 8, dtype=np.uint8)
    memory = dlfp4.asarray(codes).view("float4_e2m1fn")
    x, out = memory[510:254:-1], memory[0:256]
    assert (x.shape, out.shape) == ((256,), (256,))
    before = codes.copy()
    with pytest.raises(ValueError, match="overlap"):
        dlfp4.pack(x, out=out)
    assert (codes == before).all()


@pytest.mark.parametrize("shape", [(1 << 62,), (1 << 40, 1 << 20)], ids=str)
def test_more_elements_than_bytes_can_be_counted(shape):
    """By strides of 0 NumPy describes them."""
    with pytest.raises(BufferError, match="has more elements than memory can hold"):
        dlfp4.asarray(np.broadcast_to(np.ones(1, np.uint8), shape))
    assert dlfp4.asarray(np.broadcast_to(np.ones(1, np.uint8), (1 << 59,))).nbytes == 1 << 59


def test_booleans_are_no_indices():
    for index in (True, False, (False,)):
        with pytest.raises(TypeError, match="takes integers"):
            dlfp4.asarray(np.arange(4.0))[index]


def test_padded_elements_as_those_of_another_width():
    padded = dlfp4.asarray(np.arange(6, dtype=np.uint8).reshape(2, 3).view("float4_e2m1fn"))
    bits = padded.view("int2")
    assert (bits.shape, bits.packed) == ((2, 12), True)


def test_strides_of_extents_of_one_are_free():
    torch = framework("torch")
    x = np.arange(8.0).reshape(2, 4)
    made = capsules.Made(x, shape=(2, 1, 4), strides=(4, 77, 1))
    assert dlfp4.from_dlpack(made.capsule).reshape((8,)).tolist() == x.reshape(-1).tolist()
    assert dlfp4.asarray(np.zeros((4, 8), np.uint8)[:, ::3][:, :1]).view("float4_e2m1fn").shape == (4, 2)
    row = dlfp4.asarray(np.arange(16, dtype=np.float32).reshape(4, 4)[::-1][:1])
    shared = row.to_torch(copy=False)
    assert (shared.data_ptr(), shared.tolist()) == (row.data_ptr, [[12, 13, 14, 15]])
    assert isinstance(shared, torch.Tensor)


# ---- strides that mean nothing


@pytest.mark.parametrize(
    ("shape", "strides", "settled"),
    [
        ((1, 4), (-(2**62), 1), (4, 1)),
        ((4, 1, 2), (2, 77, 1), (2, 2, 1)),
        ((1, 1, 1), (5, -6, 2**62), (1, 1, 1)),
        ((0, 3), (-1, 2**62), (3, 1)),
        ((3, 0, 2), (2**62, 2**62, -(2**63)), (2, 2, 1)),
        ((4, 1), (2, 9), (2, 1)),
        ((1, 3), (7, 2), (6, 2)),
    ],
    ids=str,
)
def test_strides_that_mean_nothing_leave_as_row_major(shape, strides, settled):
    made = capsules.Made(capsules.random_array((64,)), shape=shape, strides=strides)
    tensor = dlfp4.from_dlpack(made.capsule)
    views = [tensor, tensor[...], tensor.reshape(shape) if 0 in shape or shape[-1] != 1 else tensor]
    for view in views:
        assert capsules.Managed(view.__dlpack__(max_version=(1, 3))).strides == settled
        assert capsules.Managed(view.__dlpack__()).strides == settled


def test_steps_through_them_do_not_overflow():
    """However far the strides of a producer and the steps of a slice reach."""
    for shape in ((1, 4), (0, 4), (4, 0)):
        made = capsules.Made(capsules.random_array((64,)), shape=shape, strides=(2**62, 1))
        tensor = dlfp4.from_dlpack(made.capsule)
        for step in (2, 2**62, -(2**62)):
            stepped = tensor[::step, ::step]
            assert stepped.shape == np.empty(shape)[::step, ::step].shape
            free = [n for n, extent in enumerate(stepped.shape) if 0 in shape or extent == 1]
            assert all(0 <= stepped.strides[n] <= 4 for n in free)


def test_one_row_transposed_is_one_row_when_it_comes_back():
    """A trailing extent of 1 says whether elements lie along it: that survives views, and pairs."""
    row = dlfp4.asarray(np.arange(8, dtype=np.uint8)[None])
    assert row.view("float4_e2m1fn").T.shape == row.T.view("float4_e2m1fn").shape == (16, 1)
    assert row.T.T.view("float4_e2m1fn").shape == (1, 16)
    pairs = capsules.Managed(row.T.view("float4_e2m1fn").x2().__dlpack__(max_version=(1, 3)))
    assert pairs.shape == (8, 1)
    assert pairs.strides[0] == 1 != pairs.strides[1]
    assert dlfp4.from_dlpack(pairs.capsule).shape == (16, 1)
    single = capsules.Managed(row.T.view("float4_e2m1fn").__dlpack__(max_version=(1, 3)))
    assert (single.shape, single.strides) == ((16, 1), (1, 1))


def test_an_extent_of_one_beside_turned_lines_has_the_stride_of_its_place():
    assert dlfp4.from_dlpack(np.arange(4.0)[None, ::-1]).strides == (4, -1)
    assert dlfp4.from_dlpack(np.arange(8.0).reshape(4, 2)[None, :, ::-1]).strides == (8, 2, -1)


def test_matrices_without_elements_are_compact():
    out = dlfp4.empty((3, 0, 2), "float32")
    made = dlfp4.matmul(np.zeros((3, 0, 4), "float32"), np.zeros((4, 2), "float32"), out=out)
    assert made.shape == (3, 0, 2)
