"""dot and vecdot on a GPU: the host's results, exactly for integers, FP4 and FP6, and else within the bound."""

import numpy as np
import pytest

import dlfp4

from ..products.test_products import EXACT, FLOATS, INTEGERS, at_the_ends, elements, special_products, tensor, wide
from ..support.block_reference import FORMATS
from ..support.reference import BITS, SUBBYTE, dtype_of, native_cast, of_codes

pytestmark = pytest.mark.gpu

CUDA = "cuda:0"
TYPES = [(n, p) for n in dict.fromkeys([*FLOATS, *INTEGERS]) for p in (False, True) if not p or n in SUBBYTE]
# Around steps, vectors, what a warp and a block sum, and segments.
LENGTHS = [0, 1, 7, 15, 16, 17, 31, 33, 129, 1000, 8191, 8193, 32768, 32771, 50021]


def on_cuda(x):
    return (x if isinstance(x, dlfp4.ScaledTensor | dlfp4.Tensor) else dlfp4.asarray(x)).to_device(CUDA)


def bits(result):
    return result.to_device("cpu").to_numpy().tobytes()


def assert_product(a, b, axis=-1, of_a=None, of_b=None, exact=False):
    """Device operands against float64 sums of their values: the bound, the shape, and the same bits again."""
    of_a, of_b = (wide(x.to_device("cpu")) if known is None else known for x, known in ((a, of_a), (b, of_b)))
    got = dlfp4.vecdot(a, b, axis)
    assert str(got.device) == CUDA
    assert bits(got) == bits(dlfp4.vecdot(a, b, axis))
    result = got.to_device("cpu").to_numpy()
    of_a, of_b = np.broadcast_arrays(of_a, of_b)
    expected, magnitudes = (of_a * of_b).sum(axis), np.abs(of_a * of_b).sum(axis)
    assert result.dtype == np.float32
    assert result.shape == expected.shape
    if exact:
        assert (result == expected.astype(np.float32)).all()
    else:
        assert (np.abs(result - expected) <= (of_a.shape[axis] + 1) * 2.0**-24 * magnitudes + 2.0**-126).all()


# ---- Types


@pytest.mark.parametrize(("name", "packed"), TYPES)
def test_every_type(name, packed):
    for length in LENGTHS:
        a, b = elements(name, length), elements(name, length, seed=1)
        on_device = (on_cuda(tensor(x, packed)) for x in (a, b))
        assert_product(*on_device, of_a=wide(a), of_b=wide(b), exact=name in EXACT)


@pytest.mark.parametrize(("name", "packed"), TYPES)
def test_offsets_and_tails(name, packed):
    """Lines that start anywhere: in the middle of a vector, of a step, of a word."""
    a, b = elements(name, 3000), elements(name, 3000, seed=1)
    left, right = on_cuda(tensor(a, packed)), on_cuda(tensor(b, packed))
    for first, count in ((8, 100), (16, 999), (24, 2000), (32, 2945), (64, 2100)):
        cut = slice(first, first + count)
        assert_product(left[cut], right[cut], of_a=wide(a[cut]), of_b=wide(b[cut]), exact=name in EXACT)
        assert_product(left[cut], right[:count], of_a=wide(a[cut]), of_b=wide(b[:count]), exact=name in EXACT)


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e3m2fn", "int4", "uint2"])
def test_one_side_packed_and_the_other_padded(name):
    a, b = elements(name, 5001), elements(name, 5001, seed=1)
    assert_product(on_cuda(dlfp4.pack(a)), on_cuda(b), of_a=wide(a), of_b=wide(b), exact=True)


@pytest.mark.parametrize("name", ["float4_e2m1fn", "int4", "uint4", "float6_e2m3fn"])
def test_high_bits_of_padded_elements_do_not_count(name):
    a, b = elements(name, 500), elements(name, 500, seed=1)
    noisy = (a.view(np.uint8) | 0xC0).view(a.dtype)
    assert_product(on_cuda(noisy), on_cuda(b), of_a=wide(a), of_b=wide(b), exact=True)


def test_every_pair_of_codes_of_small_types():
    for name in ("float4_e2m1fn", "int4", "uint4"):
        codes = np.arange(16, dtype=np.uint8)
        a, b = (of_codes(codes[x], name) for x in np.divmod(np.arange(256), 16))
        for k in range(256):  # each alone, so that no error hides another
            one = of_codes(np.zeros(256, np.uint8), name)
            one[k] = a[k]
            for packed in (True, False):
                got = dlfp4.dot(on_cuda(tensor(one, packed)), on_cuda(tensor(b, packed)))
                assert float(got.to_device("cpu")) == float(a[k]) * float(b[k])


@pytest.mark.parametrize("name", [name for name in FLOATS if BITS[name] <= 8])
def test_every_code(name):
    codes = of_codes(np.arange(1 << BITS[name], dtype=np.uint8), name)
    codes = codes[np.isfinite(codes.astype(np.float32))]
    one = native_cast(np.eye(codes.size, dtype=np.float32), name)
    for packed in {False, name in SUBBYTE}:
        got = dlfp4.vecdot(on_cuda(tensor(one, packed)), on_cuda(tensor(codes, packed)))
        assert (got.to_device("cpu").to_numpy() == codes.astype(np.float32)).all()


def test_pairs_of_types():
    for name, other in zip(FLOATS, FLOATS[3:] + FLOATS[:3], strict=True):
        for length in (64, 700, 33000):
            a, b = elements(name, (2, length)), elements(other, (2, length), seed=1)
            for packed in (False, True):
                on_device = (on_cuda(tensor(x, packed and n in SUBBYTE)) for x, n in ((a, name), (b, other)))
                assert_product(*on_device, of_a=wide(a), of_b=wide(b))


@pytest.mark.parametrize(
    ("a", "b"), [("float8_e8m0fnu", "float8_e8m0fnu"), ("float32", "int8"), ("int8", "int4"), ("float64", "float64")]
)
def test_types_without_products(a, b):
    with pytest.raises(TypeError, match="has no dot product of"):
        dlfp4.dot(on_cuda(np.zeros(4, dtype_of(a))), on_cuda(np.zeros(4, dtype_of(b))))


# ---- Formats


@pytest.mark.parametrize("length", [16, 48, 128, 4096, 40960])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name, length):
    x, y = elements("float32", (16, length)), elements("float32", (16, length), seed=1)
    a, b = (dlfp4.quantize(value, name, pad=True) for value in (x, y))
    assert_product(on_cuda(a), on_cuda(b), of_a=wide(a), of_b=wide(b))
    for other in ("float32", "bfloat16", "float16", "float8_e4m3fn"):
        activation = native_cast(y, other)
        assert_product(on_cuda(a), on_cuda(activation), of_a=wide(a), of_b=wide(activation))
        assert_product(on_cuda(activation), on_cuda(a), of_a=wide(activation), of_b=wide(a))


@pytest.mark.parametrize("layout", ["128x4", "8x4", "aiter"])
@pytest.mark.parametrize("name", [name for name in FORMATS if dlfp4.formats()[name].scale.itemsize == 1])
def test_scale_layouts(name, layout):
    x, y = elements("float32", (160, 480)), elements("float32", (160, 480), seed=1)
    a, b = dlfp4.quantize(x, name, scale_layout=layout), dlfp4.quantize(y, name)
    assert_product(on_cuda(a), on_cuda(b), of_a=wide(a), of_b=wide(b))
    assert_product(on_cuda(b), on_cuda(a), of_a=wide(b), of_b=wide(a))
    assert_product(on_cuda(a), on_cuda(native_cast(y, "bfloat16")), of_a=wide(a), of_b=wide(native_cast(y, "bfloat16")))


def test_two_formats():
    names = list(FORMATS)
    for name, other in zip(names, names[3:] + names[:3], strict=True):
        a, b = (dlfp4.quantize(elements("float32", (32, 256), seed), n) for seed, n in enumerate((name, other)))
        assert_product(on_cuda(a), on_cuda(b), of_a=wide(a), of_b=wide(b))


@pytest.mark.parametrize("name", FORMATS)
def test_incomplete_blocks(name):
    for length in (77, 8195, 33001):
        a, b = (dlfp4.quantize(elements("float32", (3, length), seed), name, pad=True) for seed in (0, 1))
        assert_product(on_cuda(a), on_cuda(b), of_a=wide(a), of_b=wide(b))


@pytest.mark.parametrize("name", FORMATS)
def test_columns(name):
    x, y = elements("float32", (64, 5)), elements("float32", (64, 5), seed=1)
    a, b = (dlfp4.quantize(value, name, axis=-2, pad=True) for value in (x, y))
    assert_product(on_cuda(a), on_cuda(b), -2, wide(a), wide(b))
    assert_product(on_cuda(a), on_cuda(y), 0, wide(a), wide(y))
    with pytest.raises(ValueError, match="with blocks along axis -2"):
        dlfp4.vecdot(on_cuda(a), on_cuda(b))


def test_batches_of_blocks():
    x, y = elements("float32", (2, 3, 4, 64)), elements("float32", (3, 1, 64), seed=1)
    a, b = dlfp4.quantize(x, "nvfp4"), dlfp4.quantize(y, "nvfp4")
    assert_product(on_cuda(a), on_cuda(b), of_a=wide(a), of_b=np.broadcast_to(wide(b), x.shape))


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp8_e4m3"])
def test_scales_at_the_ends(name):
    """Blocks of zeros stay zeros under the largest scales; the smallest do not vanish."""
    for value, x, expected in at_the_ends(name):
        ones = on_cuda(np.ones(128, np.float32))
        assert dlfp4.vecdot(ones, on_cuda(x)).to_device("cpu").tolist() == expected.tolist()
        if value == 0:
            assert dlfp4.vecdot(on_cuda(x), on_cuda(x)).to_device("cpu").tolist() == [0, 0]


# ---- Shapes


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float4_e2m1fn", "float32", "int8"])
def test_axes(name, axis):
    a, b = elements(name, (5, 6, 70)), elements(name, (5, 6, 70), seed=1)
    assert_product(on_cuda(a), on_cuda(b), axis, wide(a), wide(b), name in EXACT)
    if name in SUBBYTE:
        assert_product(on_cuda(dlfp4.pack(a)), on_cuda(dlfp4.pack(b)), axis, wide(a), wide(b), True)


@pytest.mark.parametrize(("name", "packed"), TYPES)
def test_short_lines(name, packed):
    """Lines for one lane to all of a warp, around each number of lanes; the last warp has some without a line."""
    for length in (1, 2, 31, 32, 33, 64, 65, 96, 128, 129, 256, 257, 512, 513, 1024, 1040):
        for lines in (1, 3, 31, 33, 258):
            a, b = elements(name, (lines, length)), elements(name, (lines, length), seed=1)
            on_device = (on_cuda(tensor(x, packed)) for x in (a, b))
            assert_product(*on_device, of_a=wide(a), of_b=wide(b), exact=name in EXACT)


@pytest.mark.parametrize("name", FORMATS)
def test_short_lines_of_blocks(name):
    for length in (32, 64, 128, 160, 256, 512, 1056):
        a, b = (dlfp4.quantize(elements("float32", (37, length), seed), name, pad=True) for seed in (0, 1))
        assert_product(on_cuda(a), on_cuda(b), of_a=wide(a), of_b=wide(b))


@pytest.mark.parametrize(("name", "packed"), TYPES)
def test_columns_are_summed_as_lines_are(name, packed):
    a, b = elements(name, (3, 200, 48)), elements(name, (3, 200, 48), seed=1)
    columns = (on_cuda(tensor(x, packed)) for x in (a, b))
    lines = (on_cuda(tensor(np.ascontiguousarray(x.swapaxes(1, 2)), packed)) for x in (a, b))
    got = dlfp4.vecdot(*columns, 1)
    assert got.shape == (3, 48)
    assert bits(got) == bits(dlfp4.vecdot(*lines))


def test_broadcasting():
    a, b = elements("bfloat16", (4, 1, 3, 33)), elements("bfloat16", (5, 1, 33), seed=1)
    assert_product(on_cuda(a), on_cuda(b), of_a=wide(a), of_b=wide(b))
    a, b = elements("int8", (4, 1, 3, 64)), elements("int8", (5, 1, 64), seed=1)
    assert_product(on_cuda(a), on_cuda(b), of_a=wide(a), of_b=wide(b), exact=True)


def test_packed_lines_that_start_within_a_byte():
    a, b = elements("float4_e2m1fn", (7, 33)), elements("float4_e2m1fn", (7, 33), seed=1)
    left, right = on_cuda(dlfp4.pack(a)), on_cuda(dlfp4.pack(b))
    assert_product(left, right, -1, wide(a), wide(b), True)
    assert_product(left.T, right.T, 0, wide(a).T, wide(b).T, True)


@pytest.mark.parametrize("step", [2, -1, -3])
@pytest.mark.parametrize("name", ["float8_e5m2", "float16", "int8", "float32"])
def test_strides_and_offsets(name, step):
    a, b = elements(name, (9, 300)), elements(name, (9, 300), seed=1)
    cut = np.s_[1::2, 3::step]
    assert_product(on_cuda(a)[cut], on_cuda(b)[cut], of_a=wide(a[cut]), of_b=wide(b[cut]), exact=name in EXACT)
    assert_product(on_cuda(a)[cut], on_cuda(b[cut].copy()), of_a=wide(a[cut]), of_b=wide(b[cut]), exact=name in EXACT)


def test_more_axes_than_a_kernel_knows():
    shape = (2,) * 14 + (3,)
    a, b = elements("bfloat16", shape), elements("bfloat16", shape, seed=1)
    left = on_cuda(np.ascontiguousarray(a.T)).T  # steps through memory the other way round: no two axes are one
    assert left.shape == shape
    assert_product(left, on_cuda(b), of_a=wide(a), of_b=wide(b))


def test_nothing():
    assert float(dlfp4.dot(on_cuda(np.zeros(0, np.int8)), on_cuda(np.zeros(0, np.int8))).to_device("cpu")) == 0
    x = on_cuda(np.zeros((3, 0), np.float32))
    assert dlfp4.vecdot(x, x).to_device("cpu").tolist() == [0, 0, 0]
    x = on_cuda(np.zeros((0, 4), np.float32))
    assert dlfp4.vecdot(x, x).shape == (0,)


def test_errors():
    x = np.zeros((2, 4), np.int8)
    with pytest.raises(dlfp4.BackendError, match=r"a lies on cuda:0, b on cpu; bring them together"):
        dlfp4.vecdot(on_cuda(x), x)
    with pytest.raises(dlfp4.BackendError, match=r"a lies on cpu, b on cuda:0"):
        dlfp4.vecdot(x, on_cuda(x))
    with pytest.raises(ValueError, match="both need the same number"):
        dlfp4.dot(on_cuda(x[0]), on_cuda(x[0, :3]))
    with pytest.raises(ValueError, match="do not broadcast: 2 is not 3"):
        dlfp4.vecdot(on_cuda(x), on_cuda(np.zeros((3, 4), np.int8)))
    with pytest.raises(ValueError, match="dot takes two vectors"):
        dlfp4.dot(on_cuda(x), on_cuda(x))


# ---- Numbers


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "bfloat16", "float16", "float32"])
def test_nan_and_infinity(name):
    for a, b, expected in special_products(name):
        for first in (0, 1):  # vectors, and elements
            got = dlfp4.dot(on_cuda(a)[first:], on_cuda(b)[first:]).to_device("cpu")
            np.testing.assert_equal(float(got), expected)


# Those whose scales say that a block holds none but NaNs, and whose blocks lie on one line each.
MARKED = [name for name in FORMATS if dlfp4.formats()[name].kind != "largest" and dlfp4.formats()[name].block[0] == 1]


@pytest.mark.parametrize("name", MARKED)
def test_nan_blocks(name):
    x = np.ones((4, 256), np.float32)
    x[1, 37], x[3, 255] = np.nan, np.inf
    q, one = (on_cuda(dlfp4.quantize(values, name)) for values in (x, np.ones((4, 256), np.float32)))
    for other in (one, on_cuda(np.ones(256, np.float32))):
        result = dlfp4.vecdot(other, q).to_device("cpu").to_numpy()
        assert np.isnan(result).tolist() == [False, True, False, True]


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_sums_that_float32_cannot_hold(name):
    """Products that overflow and cancel: float64 carries them."""
    a = native_cast(np.tile(np.float32([1e30, 1e30, 1, 0]), 64), name)
    b = native_cast(np.tile(np.float32([1e30, -1e30, 2, 0]), 64), name)
    for other in (b, b.astype(np.float32)):
        assert 0 <= float(dlfp4.dot(on_cuda(a), on_cuda(other)).to_device("cpu")) <= 128
        assert float(dlfp4.dot(on_cuda(a[2::4]), on_cuda(other[2::4])).to_device("cpu")) == 128


LARGEST = {
    "float4_e2m1fn": (0x77, 6, 2),
    "int4": (0x88, -8, 2),
    "uint4": (0xFF, 15, 2),
    "int2": (0xAA, -2, 4),
    "uint2": (0xFF, 3, 4),
    "int8": (0x80, -128, 1),
    "uint8": (0xFF, 255, 1),
    "float8_e4m3fn": (0x7E, 448, 1),
    "float8_e5m2": (0x7B, 57344, 1),
}


@pytest.mark.parametrize("name", LARGEST)
def test_many_of_the_largest(name):
    """2^26 elements: nothing wraps, whatever the kernel, and the last digit counts."""
    byte, value, in_byte = LARGEST[name]
    count = 1 << 26
    x = on_cuda(np.full(count // in_byte, byte, np.uint8)).view(name)
    assert x.shape == (count,)
    for cut in (slice(None), slice(8, count)):
        length = len(range(count)[cut])
        got = float(dlfp4.dot(x[cut], x[cut]).to_device("cpu"))
        assert got == np.float32(float(length) * value * value)


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float16"])
def test_long_sums_of_one_sign(name):
    x = on_cuda(native_cast(np.full(1 << 26, 1.1, np.float32), name))
    value = float(native_cast(np.float32([1.1]), name)[0])
    for cut in (slice(None), slice(1, None)):
        got = float(dlfp4.dot(x[cut], x[cut]).to_device("cpu"))
        assert abs(got / (value * value * x[cut].shape[0]) - 1) <= 2e-6


def test_long_lines_of_blocks():
    q = dlfp4.quantize(elements("float32", (2, 5_000_000)), "nvfp4", pad=True)
    r = dlfp4.quantize(elements("float32", (2, 5_000_000), seed=1), "mxfp4", pad=True)
    for a, b in ((q, q), (r, r), (q, r)):
        assert_product(on_cuda(a), on_cuda(b), of_a=wide(a), of_b=wide(b))


def test_more_elements_than_an_int_counts(torch):
    count = (1 << 31) + 96
    codes = torch.full((count // 2,), 0x88, dtype=torch.uint8, device="cuda")
    x = dlfp4.from_dlpack(codes).view("int4")
    assert x.shape == (count,)
    assert float(dlfp4.dot(x, x).to_device("cpu")) == np.float32(64.0 * count)


def test_a_line_is_summed_alike_in_any_batch():
    for name, length in (("float8_e4m3fn", 4096), ("bfloat16", 20000), ("float32", 100_000)):
        a, b = on_cuda(elements(name, (40, length))), on_cuda(elements(name, (40, length), seed=1))
        together = dlfp4.vecdot(a, b).to_device("cpu").tolist()
        assert together[3] == float(dlfp4.dot(a[3], b[3]).to_device("cpu"))
        assert together[7:9] == dlfp4.vecdot(a[7:9], b[7:9]).to_device("cpu").tolist()
    q = dlfp4.quantize(elements("float32", (600, 4096)), "nvfp4")
    first = bits(dlfp4.vecdot(on_cuda(q), on_cuda(q)))
    assert all(bits(dlfp4.vecdot(on_cuda(q), on_cuda(q))) == first for _ in range(5))


# ---- Streams and graphs


def test_torch(torch):
    a = torch.randn(4, 128, device="cuda").to(torch.float8_e4m3fn)
    expected = (a.float() * a.float()).sum(-1)
    assert torch.allclose(torch.from_dlpack(dlfp4.vecdot(a, a)), expected, rtol=1e-5)
    q = dlfp4.quantize(torch.randn(4, 128, device="cuda"), "nvfp4")
    values = wide(q.data.to_device("cpu"))
    assert_product(q.data, q.data, of_a=values, of_b=values, exact=True)


@pytest.mark.parametrize("length", [256, 1 << 20])
def test_nothing_waits(torch, length):
    x = torch.randn(16, length, device="cuda")
    q = dlfp4.quantize(x, "nvfp4")
    dlfp4.vecdot(x, q)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    dlfp4.vecdot(x, q)
    dlfp4.vecdot(q, q)
    dlfp4.vecdot(x, x)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


def test_operands_of_two_streams(torch):
    """The sum waits for both, and whoever takes it waits for the sum."""
    side = torch.cuda.Stream()
    a, b = (torch.zeros(1 << 20, device="cuda") for _ in range(2))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        b.fill_(3)
        late = dlfp4.from_dlpack(b)
    a.fill_(2)
    assert float(torch.from_dlpack(dlfp4.dot(a, late))) == 6 * (1 << 20)
    assert float(torch.from_dlpack(dlfp4.dot(late, a))) == 6 * (1 << 20)


@pytest.mark.parametrize("length", [256, 1 << 20])
def test_a_graph_replays_what_was_captured(torch, length):
    x, y = (torch.randn(4, length, device="cuda") for _ in range(2))
    q = dlfp4.quantize(x, "nvfp4")
    out = [torch.zeros(4, device="cuda") for _ in range(2)]
    torch.cuda.synchronize()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        held = dlfp4.ScaledTensor.from_parts(*q.to_torch(), format="nvfp4")
        with torch.cuda.graph(graph, stream=side):
            out[0].copy_(torch.from_dlpack(dlfp4.vecdot(x, y)))
            out[1].copy_(torch.from_dlpack(dlfp4.vecdot(held, y)))
    for seed in range(3):
        torch.manual_seed(seed)
        y.copy_(torch.randn(4, length, device="cuda"))
        for result in out:
            result.zero_()
        graph.replay()
        torch.cuda.synchronize()
        for result, a in zip(out, (x, q), strict=True):
            assert bits(dlfp4.from_dlpack(result)) == bits(dlfp4.vecdot(a, y))
