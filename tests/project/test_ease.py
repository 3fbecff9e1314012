"""What users write, and see: objects like those that came in, values in repr, names and flags of arguments, numbers
that are no tensors yet, the package itself."""

import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import frameworks

from ..support import capsules

FP4 = "float4_e2m1fn"


def values(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# ---- objects like those that came in

LIKE = [
    name for name in frameworks.NAMES if name not in ("cupy", "pyarrow", "numkong")
]  # a GPU; one dimension; no FP4, and no way to be made of float32


@pytest.mark.parametrize("name", [*LIKE, "numkong"])
def test_to_like_gives_an_object_of_the_framework(name):
    framework = frameworks.framework(name)
    if missing := framework.missing():
        pytest.skip(f"{name}: {missing}")
    if framework.make is None:
        pytest.skip(f"{name} hands no arrays out")
    x = framework.make(values((4, 16)), False, "cpu")
    tensor = dlfp4.asarray(values((2, 64), 1), copy=True)
    like = tensor.to_like(x)
    assert type(like) is type(x)
    assert framework.read(like).tobytes() == values((2, 64), 1).tobytes()


def test_to_like_shares_memory():
    tensor = dlfp4.cast(values((4, 16)), "bfloat16")
    torch = capsules.framework("torch")
    assert tensor.to_like(torch.ones(2)).data_ptr() == tensor.data_ptr
    assert tensor.to_like(np.ones(2)).ctypes.data == tensor.data_ptr
    assert tensor.to_like(tensor) is tensor


def test_to_like_speaks_the_frameworks_idiom():
    torch = capsules.framework("torch")
    fp4 = dlfp4.cast(values((4, 16)), FP4)
    parameter = torch.nn.Parameter(torch.ones(2))
    for x in (torch.ones(2), parameter, torch.ones(2, requires_grad=True) * 2):
        like = fp4.to_like(x)
        assert (like.dtype, tuple(like.shape)) == (torch.float4_e2m1fn_x2, (4, 8))
    assert fp4.to_like(np.ones(2)).dtype == ml_dtypes.float4_e2m1fn
    jax = capsules.framework("jax")
    assert fp4.to_like(jax.numpy.ones(2)).dtype == jax.numpy.float4_e2m1fn


def test_our_own_tensors_are_taken_as_they_are():
    tensor = dlfp4.asarray(values((4, 16)))
    assert dlfp4.asarray(tensor) is tensor
    assert dlfp4.asarray(tensor, dtype="float32", copy=False) is tensor


def test_to_like_of_our_own():
    tensor, q = dlfp4.cast(values((4, 16)), FP4), dlfp4.quantize(values((2, 32)), "mxfp4")
    assert tensor.to_like(q) is tensor


def test_to_like_of_what_lies_nowhere():
    jax = capsules.framework("jax")
    tensor = dlfp4.asarray(values((4, 16)), copy=True)
    gone = jax.numpy.ones(2)
    gone.delete()
    with pytest.raises(BufferError, match="cannot say where it lies"):
        tensor.to_like(gone)
    torch = capsules.framework("torch")
    with pytest.raises(BufferError, match=r"this torch\.Tensor cannot say where it lies: Unknown device type meta"):
        tensor.to_like(torch.ones(2, device="meta"))


def test_scaled_tensors_give_their_parts_alike():
    torch = capsules.framework("torch")
    for name in ("nvfp4", "mxfp8_e4m3"):
        q = dlfp4.quantize(values((4, 64)), name)
        data, scales, unit = q.to_like(torch.ones(2))
        assert (data.data_ptr(), scales.data_ptr()) == (q.data.data_ptr, q.scales.data_ptr)
        assert (unit is None) == (q.global_scale is None)
        assert q.to_like(np.ones(1))._fields == ("data", "scales", "global_scale")


@pytest.mark.parametrize("stranger", [{}, 1.0, "cpu", None], ids=repr)
def test_to_like_of_what_no_framework_has(stranger):
    for tensor in (dlfp4.empty((2,), "float32"), dlfp4.quantize(values((2, 32)), "mxfp4")):
        with pytest.raises(TypeError, match=r"belongs to no framework that dlfp4 knows.*numpy, torch, jax"):
            tensor.to_like(stranger)


# ---- what is shown


def test_repr_has_values_and_what_they_are():
    assert repr(dlfp4.cast([[0.5, -6], [1, 3]], FP4)) == (
        "Tensor([[ 0.5, -6. ],\n        [ 1. ,  3. ]],\n"
        "       shape=(2, 2), dtype=float4_e2m1fn, device='cpu', packed=True)"
    )
    assert repr(dlfp4.asarray(np.array(2.5))) == "Tensor(2.5, shape=(), dtype=float64, device='cpu')"
    assert repr(dlfp4.asarray(np.arange(3))) == "Tensor([0, 1, 2], shape=(3,), dtype=int64, device='cpu')"
    assert repr(dlfp4.empty((0, 3), "int4")) == "Tensor([], shape=(0, 3), dtype=int4, device='cpu', packed=True)"
    padded = dlfp4.asarray(np.array([1, -6], ml_dtypes.float4_e2m1fn))
    assert repr(padded) == "Tensor([ 1., -6.], shape=(2,), dtype=float4_e2m1fn, device='cpu', packed=False)"
    assert "strides=(1, 2)" in repr(dlfp4.asarray(np.eye(2)).T)


@pytest.mark.parametrize(
    "dtype", ["float32", "int64", "complex64", "bool", "bfloat16", FP4, "float6_e2m3fn", "float8_e8m0fnu"]
)
@pytest.mark.parametrize("shape", [(2000,), (40, 50), (7, 9, 100), (3, 3, 1000), (100, 2, 10)], ids=str)
def test_repr_abbreviates_as_numpy_does(dtype, shape):
    array = capsules.random_array(shape, dtype)
    tensor = dlfp4.asarray(array)
    tensor = dlfp4.pack(tensor) if dtype in capsules.SUBBYTE else tensor
    numbers = array.astype(float) if array.dtype.isbuiltin != 1 else array
    shown = np.array2string(numbers, separator=", ", prefix="Tensor(")
    gap = "\n       " if "\n" in shown else " "
    assert repr(tensor).startswith(f"Tensor({shown},{gap}shape={shape}, dtype={dtype}")


def test_repr_follows_numpys_options():
    with np.printoptions(precision=2, threshold=4, edgeitems=1):
        assert repr(dlfp4.asarray(np.arange(10) / 3)).startswith("Tensor([0., ..., 3.], shape=(10,)")


def test_repr_of_much_reads_little():
    """Half a terabyte that nobody has memory for, where every page is one: the edges alone are read."""
    row = dlfp4.asarray(np.arange(2**20, dtype=np.float32))
    wide = dlfp4.asarray(np.broadcast_to(row.to_numpy(), (2**19, 2**20)))
    assert "1.048575e+06" in repr(wide)
    odd = dlfp4.pack(dlfp4.asarray(np.ones((1001, 1001), ml_dtypes.float4_e2m1fn)))
    assert (
        repr(odd) == "Tensor(shape=(1001, 1001), dtype=float4_e2m1fn, device='cpu', packed=True)"
    )  # no edge on a byte
    many = dlfp4.asarray(np.zeros((20,) * 5, np.uint8))
    assert repr(many) == f"Tensor(shape={(20,) * 5}, dtype=uint8, device='cpu')"


def test_repr_reads_no_memory_of_a_device():
    made = capsules.Made(capsules.random_array((4,)), device=(2, 0))
    assert repr(dlfp4.from_dlpack(made.capsule)) == "Tensor(shape=(4,), dtype=float32, device='cuda:0')"


def test_repr_of_memory_that_is_gone_does_not_raise():
    torch = capsules.framework("torch")
    x = torch.ones(4)
    tensor = dlfp4.from_dlpack(x)
    assert "1., 1." in repr(tensor)
    x.untyped_storage().resize_(0)
    assert repr(tensor) == "Tensor(shape=(4,), dtype=float32, device='cpu')"
    data, scales = torch.zeros(1, 16, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8)
    q = dlfp4.ScaledTensor.from_parts(data, scales, format="mxfp4")
    assert "0., 0." in repr(q)
    scales.untyped_storage().resize_(0)
    assert repr(q) == "ScaledTensor(shape=(1, 32), format='mxfp4', device='cpu')"


def test_repr_of_scaled_tensors():
    q = dlfp4.quantize(np.full((1, 32), 3, np.float32), "mxfp4")
    assert repr(q).endswith("shape=(1, 32), format='mxfp4', device='cpu')")
    assert repr(q).startswith("ScaledTensor([[3., 3.")
    large = dlfp4.quantize(values((64, 128)), "mxfp4")
    assert repr(large) == "ScaledTensor(shape=(64, 128), format='mxfp4', device='cpu')"
    with pytest.raises(ValueError, match=r"^b is ScaledTensor\(shape=\(1, 32\), format='mxfp4', device='cpu'\), with"):
        dlfp4.vecdot(values((1, 32)), q, axis=0)


def test_formats_print_as_a_table():
    table = dlfp4.formats()
    lines = str(table).splitlines()
    assert lines == repr(table).splitlines()
    assert lines[0].split() == ["format", "element", "block", "scale", "global", "scale"]
    assert [line.split()[0] for line in lines[1:]] == list(table)
    assert lines[1].split() == ["nvfp4", FP4, "1x16", "float8_e4m3fn", "float32"]
    assert "nvfp4" in table
    assert table["nvfp4"] == "nvfp4"
    assert table.get("none") is None
    with pytest.raises(TypeError):
        table["mine"] = table["nvfp4"]


# ---- arguments


def test_reshape_takes_extents_one_by_one():
    tensor = dlfp4.asarray(values((4, 6)))
    assert tensor.reshape(2, 12).shape == tensor.reshape((2, 12)).shape == tensor.reshape([2, 12]).shape == (2, 12)
    assert tensor.reshape(-1).shape == (24,)
    assert tensor.reshape(3, -1, 2).shape == (3, 4, 2)
    assert tensor[:1, :1].reshape(()).shape == ()
    with pytest.raises(TypeError, match=r"shape=2\.5 is of type float"):
        tensor.reshape(2.5, 2)
    with pytest.raises(TypeError, match="needs extents"):
        tensor.reshape()


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("fp4", FP4), ("e2m1", FP4), ("float4_e2m1fn_x2", FP4), ("e2m3", "float6_e2m3fn"), ("e3m2", "float6_e3m2fn"),
        ("e5m2", "float8_e5m2"), ("e8m0", "float8_e8m0fnu"), ("bf16", "bfloat16"), ("fp16", "float16"),
        ("fp32", "float32"), ("half", "float16"),
    ],
)  # fmt: skip
def test_element_types_by_what_people_call_them(alias, name):
    assert dlfp4.empty((2,), alias).dtype.name == name


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("e4m3", "did you mean float8_e4m3fn .* or float8_e4m3"),
        ("fp8", "did you mean float8_e4m3fn or float8_e5m2"),
        ("fp6", "did you mean float6_e2m3fn or float6_e3m2fn"),
        ("mxfp4", r"a block-scaled format, whose elements are float4_e2m1fn: quantize\(x, 'mxfp4'\)"),
        ("nvfp4", "a block-scaled format"),
        ("flaot32", "did you mean 'float32'"),
        ("float8_e4m3f", "did you mean 'float8_e4m3fn?'"),
        ("torch.bfloat", "did you mean 'bfloat16'"),
        ("e4m3fnuz", "did you mean 'float8_e4m3fnuz'"),
        ("e3m4", "did you mean 'float8_e3m4'"),
        ("float4", "did you mean 'float4_e2m1fn'"),
        ("nf4", "bcomplex32$"),
    ],
)
def test_element_types_that_are_none_say_what_was_meant(wrong, hint):
    for call in (dlfp4.empty, lambda _, dtype: dlfp4.cast(values((2,)), dtype)):
        with pytest.raises(TypeError, match=hint):
            call((2,), wrong)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda x: dlfp4.quantize(x, "nvpf4"), "nvfp4"),
        (lambda x: dlfp4.quantize(x, "mxfp4", recipe="nvida"), "nvidia"),
        (lambda x: dlfp4.quantize(x, "mxfp4", scale_layout="128x8"), "128x4"),
        (lambda x: dlfp4.quantize(x, "mxfp4", rounding="nearest"), "nearest_even"),
        (lambda x: dlfp4.cast(x, "float16", rounding="to_zero"), "toward_zero"),
        (lambda x: dlfp4.empty((2,), "float32", device="cdua"), "cuda"),
        (lambda x: dlfp4.matmul(x, x.T, backend="tortch"), "torch"),
        (lambda x: dlfp4.quantize(x, "mxfp8"), "mxfp8_e4m3"),
    ],
)
def test_other_names_that_are_none(call, hint):
    with pytest.raises(ValueError, match=f"did you mean '{hint}'"):
        call(values((32, 32)))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("xpu", "DLPack's name is 'oneapi'"),
        ("mps:0", "DLPack's name is 'metal'"),
        ("meta", "has no memory"),
        ("mtia", ""),
    ],
)
def test_devices_of_other_libraries_are_not_misspelt(name, told):
    """`torch.device` takes these names; DLPack has others, or no such device."""
    for device in (name, capsules.framework("torch").device(name)):
        with pytest.raises(ValueError, match=f"is unknown.*{told}") as caught:
            dlfp4.empty((2,), "float32", device=device)
        assert "did you mean" not in str(caught.value)


def test_what_is_no_misspelt_name():
    """It is a name of something else: a device, an integer of another length."""
    q = dlfp4.quantize(values((2, 32)), "mxfp4")
    for call in (lambda: q.to("cpu"), lambda: dlfp4.quantize(values((2, 32)), "int8"), lambda: dlfp4.Device("hpu")):
        with pytest.raises(ValueError, match="expected") as caught:
            call()
        assert "did you mean" not in str(caught.value)


FLAGS = {
    "saturate": lambda flag: dlfp4.cast(values((2, 32)), FP4, saturate=flag),
    "packed": lambda flag: dlfp4.cast(values((2, 32)), FP4, packed=flag),
    "packed of empty": lambda flag: dlfp4.empty((2,), FP4, packed=flag),
    "pad": lambda flag: dlfp4.quantize(values((2, 32)), "mxfp4", pad=flag),
    "enable": lambda flag: dlfp4.empty((2,), FP4).x2(flag),
    "requires_grad": lambda flag: dlfp4.TensorProto((2,), "float32", requires_grad=flag),
    "rowwise": lambda flag: dlfp4.TensorProto((32, 32), format="mxfp4", rowwise=flag, columnwise=True),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_booleans(name):
    """ "no" would be true."""
    for right in (True, False, np.True_, np.bool_(False)):
        FLAGS[name](right)
    for wrong in ("no", 1, 0, None, [], np.int8(1)):
        with pytest.raises(TypeError, match=f"{name.split()[0]}=.* is of type .*; expected True or False"):
            FLAGS[name](wrong)


# ---- quantized tensors of other libraries


class Form:
    """Another library's form of a ScaledTensor."""

    def __init__(self, q):
        self.q = q

    def __dlfp4_scaled__(self, copy=None):
        return self.q


def with_biases(x):
    q = dlfp4.quantize(x, "int4_g32")
    biases = np.arange(q.scales.size, dtype=np.float32).reshape(q.scales.shape)
    return dlfp4.ScaledTensor.from_parts(q.data, q.scales, format="int4_g32", biases=biases)


QUANTIZED = {
    "nvfp4": lambda x: dlfp4.quantize(x, "nvfp4"),
    "columns": lambda x: dlfp4.quantize(x, "mxfp8_e4m3", axis=-2),
    "rotated": lambda x: dlfp4.quantize(x, "nvfp4", hadamard=3),
    "swizzled": lambda x: dlfp4.quantize(x, "mxfp4", scale_layout="128x4"),
    "zero points": lambda x: dlfp4.quantize(x, "uint4_g32"),
    "biases": with_biases,
    "transposed stack": lambda x: dlfp4.quantize(np.stack([x, x + 1]), "mxfp4").mT,
}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_forms_of_quantized_tensors_are_taken_whole(kind):
    """What they are is shared or copied with all that belongs to it."""
    q = QUANTIZED[kind](values((128, 128)))
    for copy in (None, False):
        assert dlfp4.asarray(Form(q), copy=copy) is q
    copied = dlfp4.asarray(Form(q), copy=True)
    assert copied.dequantize().tolist() == q.dequantize().tolist()
    facts = ("format", "axis", "shape", "scale_layout", "hadamard")
    assert [getattr(copied, fact) for fact in facts] == [getattr(q, fact) for fact in facts]
    for name in ("data", "scales", "global_scale", "zero_points", "biases"):
        part, other = getattr(q, name), getattr(copied, name)
        assert (part is None) == (other is None)
        assert part is None or part.data_ptr != other.data_ptr, name


def test_forms_of_quantized_tensors_have_no_other_type():
    with pytest.raises(TypeError, match=r"dtype='float32': Form is a quantized tensor.*\.dequantize\(dtype\)"):
        dlfp4.asarray(Form(QUANTIZED["nvfp4"](values((4, 64)))), dtype="float32")


# ---- numbers that are no tensors yet


def test_lists_are_taken_as_numpy_takes_them():
    for given in ([[1.0, 2.5], [3, 4]], ((1, 2), (3, 4)), [True, False], [], [[]], [1 + 2j]):
        tensor = dlfp4.asarray(given)
        assert tensor.dtype == np.asarray(given).dtype
        assert tensor.tolist() == np.asarray(given).tolist()
    assert dlfp4.cast([0.3, -5, 100], FP4).tolist() == [0.5, -4, 6]
    assert dlfp4.cast([1, 2, 3], FP4).tolist() == dlfp4.asarray([1, 2, 3], dtype="fp4").tolist() == [1, 2, 3]
    assert dlfp4.asarray([True, 2.5], dtype="bfloat16").tolist() == [1, 2.5]
    for dtype in (None, "float64", "float32", "int64"):
        with pytest.raises(BufferError, match="a list of numbers has no memory to share"):
            dlfp4.asarray([1.0], dtype=dtype, copy=False)


@pytest.mark.parametrize("wrong", [[[1, 2], [3]], ["a", "b"], [None], [{}], [b"x"]], ids=repr)
def test_lists_of_something_else(wrong):
    for call in (dlfp4.asarray, lambda x: dlfp4.cast(x, "float32"), lambda x: dlfp4.quantize(x, "mxfp4")):
        with pytest.raises(TypeError, match=r"this list (is not an array: |has an element of type \w+; )expected num"):
            call(wrong)


def test_a_list_is_no_result():
    with pytest.raises(TypeError, match="out is of type list"):
        dlfp4.cast(values((2,)), "float32", out=[0.0, 0.0])
    with pytest.raises(TypeError, match="out is of type list"):
        dlfp4.dequantize(dlfp4.quantize(values((1, 32)), "mxfp4"), out=[[0.0] * 32])


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "fp8_e4m3", "fp8_1x128"])
def test_quantize_rounds_float64_once(name):
    """Every value lies close beside a tie of float32, where two roundings would differ."""
    x = values((4, 128)).astype(np.float64) * (1 + 2.0**-24 + 2.0**-40)
    for given in (x, np.asfortranarray(x), np.tile(x, (1, 2))[:, ::2].copy()[:, :128], x[None].repeat(2, 0)):
        once = given.astype(np.float32)
        q, expected = dlfp4.quantize(given, name), dlfp4.quantize(once, name)
        for part in ("data", "scales", "global_scale"):
            ours, theirs = getattr(q, part), getattr(expected, part)
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert ours.to_numpy().tobytes() == theirs.to_numpy().tobytes()


def test_quantize_takes_lists():
    rows = [[0.5 * k for k in range(32)], [3] * 32]
    assert dlfp4.quantize(rows, "mxfp4").dequantize().tolist() == (
        dlfp4.quantize(np.array(rows, np.float32), "mxfp4").dequantize().tolist()
    )
    assert dlfp4.quantize([list(range(32))], "mxfp8_e4m3").shape == (1, 32)
    with pytest.raises(TypeError, match="int64 is not block-scaled"):
        dlfp4.quantize(np.arange(32), "mxfp4")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dequantize_gives_what_out_holds(dtype):
    q = dlfp4.quantize(values((4, 64)), "nvfp4")
    out = dlfp4.empty((4, 64), dtype)
    assert dlfp4.dequantize(q, out=out).dtype == out.dtype
    assert out.to_numpy().tobytes() == dlfp4.dequantize(q, dtype).to_numpy().tobytes()
    assert dlfp4.dequantize(q).dtype == np.float32
    for wrong in ("float32", "bfloat16", "float16"):
        if wrong != dtype:
            with pytest.raises(TypeError, match=f"out has dtype {dtype}"):
                dlfp4.dequantize(q, wrong, out=out)
    with pytest.raises(TypeError, match="block-scaled tensors dequantize to"):
        dlfp4.dequantize(q, out=dlfp4.empty((4, 64), "float64"))


BACK = [
    *((to, name) for to in ("to_numpy", "to_torch", "to_jax") for name in ("nvfp4", "nvfp4_16x16", "mxfp4")),
    *((to, name) for to in ("to_numpy", "to_torch", "to_jax") for name in ("mxfp8_e5m2", "fp8_e4m3", "fp8_128x128")),
    ("to_numpy", "mxfp6_e2m3"),  # PyTorch takes no FP6, JAX hands none out
]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(("to", "name"), BACK)
def test_parts_come_back(to, name, axis):
    """from_parts takes what the to_* methods give."""
    capsules.framework(to.removeprefix("to_"))
    q = dlfp4.quantize(values((64, 128)), name, axis=axis)
    back = dlfp4.ScaledTensor.from_parts(*getattr(q, to)(), format=name, axis=axis)
    assert (back.shape, back.format, back.axis) == (q.shape, q.format, q.axis)
    assert back.dequantize().to_numpy().tobytes() == q.dequantize().to_numpy().tobytes()


# ---- the package


def run(code):
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_checkpoints_are_there_when_they_are_asked_for():
    code = "import sys, dlfp4; print('dlfp4.checkpoints' in sys.modules, 'checkpoints' in dir(dlfp4)"
    assert run(f"{code}, dlfp4.checkpoints.load.__name__)") == "False True load"
    assert run("from dlfp4 import checkpoints; print(checkpoints.__name__)") == "dlfp4.checkpoints"
    with pytest.raises(AttributeError, match="module 'dlfp4' has no attribute 'checkpoint'"):
        dlfp4.checkpoint  # noqa: B018


def test_refusals_are_public():
    assert issubclass(dlfp4.RefusedError, BufferError)
    assert "RefusedError" in dlfp4.__all__
    torch = capsules.framework("torch")
    with pytest.raises(dlfp4.RefusedError, match="PyTorch cannot take float6_e2m3fn") as caught:
        dlfp4.empty((4, 4), "float6_e2m3fn").to_torch()
    sent = pickle.loads(pickle.dumps(caught.value))
    assert (str(sent), sent.framework, sent.remedy) == (str(caught.value), "PyTorch", caught.value.remedy)
    with pytest.raises(dlfp4.RefusedError, match="negative strides"):
        torch.from_dlpack(dlfp4.asarray(np.arange(4.0)[::-1]))


def test_sizes_count_what_is_owned():
    own = dlfp4.empty((1000,), "float32")
    view, borrowed = own[10:], dlfp4.asarray(np.zeros(1000, np.float32))
    assert sys.getsizeof(own) - sys.getsizeof(view) in range(4000, 4000 + 65)
    assert sys.getsizeof(borrowed) == sys.getsizeof(view)
    deep = dlfp4.asarray(np.zeros((1,) * 20, np.float32))
    assert sys.getsizeof(deep) - sys.getsizeof(view) == 2 * 20 * 8
    assert sys.getsizeof(dlfp4.quantize(values((64, 64)), "mxfp4")) < 1000  # its parts are objects of their own
