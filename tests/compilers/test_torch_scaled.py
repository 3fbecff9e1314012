"""``dlfp4.torch.ScaledTensor``: parts, products and gradients of a quantized tensor in PyTorch."""

import copy
import importlib
import io
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes  # noqa: F401  (whose types numpy then knows)
import numpy as np
import pytest

import dlfp4

from ..support.capsules import framework
from ..support.torch_tensors import FORMATS, parts_of, same, values

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
ScaledTensor = dt.ScaledTensor

F = torch.nn.functional


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("format", FORMATS)
def test_to_and_from_dlfp4_without_a_copy(format, axis):
    ours = dlfp4.quantize(values(128, 256), format, axis=axis)
    q = ScaledTensor.from_dlfp4(ours)
    assert (q.shape, q.dtype, q.format, q.axis) == ((128, 256), torch.bfloat16, format, axis)
    assert q.elements.data_ptr() == ours.data.data_ptr
    assert q.scales.data_ptr() == ours.scales.data_ptr
    back = dlfp4.asarray(q)
    assert isinstance(back, dlfp4.ScaledTensor)
    assert (back.data.data_ptr, back.scales.data_ptr) == (ours.data.data_ptr, ours.scales.data_ptr)
    assert (back.shape, back.axis, back.format) == (ours.shape, axis, format)
    want = ours.dequantize("bfloat16").to_torch()
    assert torch.equal(q.dequantize(), want)
    assert torch.equal(dlfp4.dequantize(q, "bfloat16").to_torch(), want)
    turned = q.mT
    assert (turned.shape, turned.axis) == ((256, 128), -3 - axis)
    assert torch.equal(turned.dequantize(torch.float32), ours.dequantize().to_torch().mT)
    assert turned.to_dlfp4().axis == turned.axis
    assert same(turned, ours.mT)


@pytest.mark.parametrize("format", FORMATS)
def test_quantize_gives_the_bytes_of_dlfp4(format):
    x = values(128, 256)
    q = dt.quantize(x, format)
    assert same(q, dlfp4.quantize(x, format))
    rows, columns = dt.quantize(x, format, axis=(-1, -2))
    both = dlfp4.quantize(x, format, axis=(-1, -2))
    assert same(rows, both[0])
    assert same(columns, both[1])


def test_options_of_quantize():
    x = values(64, 128)
    options = {"recipe": dlfp4.Recipe(divide=True), "hadamard": 5, "scale_layout": "128x4"}
    q = dt.quantize(x, "nvfp4", **options)
    ours = dlfp4.quantize(x, "nvfp4", **options)
    assert same(q, ours)
    assert q.encoding.hadamard == ours.hadamard
    assert torch.equal(q.dequantize(), ours.dequantize("bfloat16").to_torch())
    assert same(dt.quantize(x, "nvfp4", global_scale=2.0), dlfp4.quantize(x, "nvfp4", global_scale=2.0))
    with pytest.raises(ValueError, match="expected one of"):
        dt.quantize(x, "nvfp5")


@pytest.mark.parametrize("format", FORMATS)
def test_products(format):
    x, w, bias = values(3, 256), values(128, 256, seed=1), values(128, seed=2)
    ours = dlfp4.quantize(w, format)
    q = ScaledTensor.from_dlfp4(ours)
    want = dlfp4.matmul(x, ours.mT).to_torch()
    assert torch.equal(x @ q.mT, want)
    assert torch.equal(torch.mm(x, q.t()), want)
    assert torch.equal(F.linear(x, q), want)
    assert torch.equal(F.linear(x, q, bias), want + bias)
    assert torch.equal(torch.addmm(bias, x, q.mT, alpha=2), dlfp4.matmul(x, ours.mT, alpha=2).to_torch() + bias)
    assert torch.equal(F.linear(x[0], q), want[0])
    assert torch.equal(F.linear(x.repeat(2, 1, 1), q, bias)[1], want + bias)
    assert torch.equal(dlfp4.matmul(x, q.mT).to_torch(), want)
    assert torch.equal(dt.matmul(x, q.mT), want)
    with torch.inference_mode():
        assert torch.equal(F.linear(x, q, bias), want + bias)
        assert torch.equal(torch.matmul(x[None], q.mT)[0], want)
    crossed = x.expand(2, 3, 256)  # rows that do not follow one another: PyTorch repeats the weight
    assert torch.equal(F.linear(crossed, q)[1], want)


def test_products_of_two_quantized_tensors():
    x, w = values(4, 64), values(32, 64, seed=1)
    a, b = (dlfp4.quantize(each, "nvfp4") for each in (x, w))
    product = torch.mm(ScaledTensor.from_dlfp4(a), ScaledTensor.from_dlfp4(b).mT)
    assert torch.equal(product, dlfp4.matmul(a, b.mT, out_dtype="bfloat16").to_torch())
    assert torch.equal(torch.mv(ScaledTensor.from_dlfp4(b), x[0]), dlfp4.matmul(x[:1], b.mT).to_torch()[0])


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp6_e2m3", "fp8_row", "mxfp8_32x32", "fp8_e4m3"])
def test_matrices_by_their_numbers(format):
    """As models take the experts of each token, and multiply by them in a batch."""
    options = [{}] + [{"recipe": dlfp4.Recipe(global_scale_per=per)} for per in ("matrix", "row") if format == "nvfp4"]
    for each in options:
        q, x = dt.quantize(values(3, 32, 64), format, **each), values(4, 64, seed=1)
        for numbers in ([2, 0, 2, -1], [1]):
            taken = q[torch.tensor(numbers)]
            assert (taken.shape, taken.format) == ((len(numbers), 32, 64), q.format)
            assert torch.equal(taken.dequantize(), q.dequantize()[numbers])
            assert torch.equal(q.mT[torch.tensor(numbers)].dequantize(), q.dequantize().mT[numbers])
            assert taken.to_dlfp4().shape == taken.shape
            product = torch.bmm(taken, x[: len(numbers), :, None])
            assert torch.equal(product, torch.stack([q[k] @ x[i, :, None] for i, k in enumerate(numbers)]))
    n = torch.tensor([2, 0, 2, -1])
    compiled = torch.compile(lambda q, n, x: torch.bmm(q[n], x), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, n, x[..., None]), torch.bmm(q[n], x[..., None]))
    for indices in (torch.tensor([True, False, True]), (slice(None), torch.tensor([0])), torch.tensor([[0, 1]])):
        with pytest.raises(NotImplementedError, match="numbers of matrices"):
            q[indices]
    with pytest.raises(IndexError, match="out of bounds"):
        q[torch.tensor([3])]
    if "32x32" not in format and format != "fp8_e4m3":  # whose blocks run along neither axis
        with pytest.raises(NotImplementedError, match="numbers of matrices"):
            dt.quantize(values(3, 32, 64), format, axis=-2)[n]


def test_stacks():
    w, x = values(3, 32, 64), values(3, 5, 64)
    q = dt.quantize(w, "nvfp4")
    ours = dlfp4.quantize(w, "nvfp4")
    for k, part in enumerate(q.unbind()):
        assert same(part, ours[k])
        assert same(q[k], ours[k])
        assert torch.equal(torch.bmm(x, q.mT)[k], x[k] @ q[k].mT)
        assert torch.equal(
            torch.baddbmm(x[..., :32], x, q.mT, beta=2, alpha=0.5)[k], 2 * x[k, :, :32] + x[k] @ q[k].mT * 0.5
        )
        added = torch.baddbmm(x[..., :32], x, q.mT, alpha=0.3)[k]  # rounded once, as of matrices
        assert torch.equal(added, torch.addmm(x[k, :, :32], x[k], q[k].mT, alpha=0.3))
        assert torch.equal(q.transpose(1, 2)[k].dequantize(), q[k].dequantize().mT)
    assert same(q[1:], ours[1:])
    assert torch.equal(q.mT.dequantize(), q.dequantize().mT)
    assert torch.equal(q[torch.tensor(2)].dequantize(), q[2].dequantize())
    each = dt.quantize(w, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="matrix"))
    assert same(each[1], dlfp4.quantize(w, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="matrix"))[1])
    turned = dlfp4.asarray(q.mT)
    assert turned.shape == (3, 64, 32)
    assert torch.equal(turned.dequantize().to_torch(), ours.dequantize().to_torch().mT)


def test_straight_through_what_was_joined():
    x = values(64, 64, dtype=torch.float32).requires_grad_()
    w = torch.cat([dt.quantize(x, "mxfp4"), dt.quantize(2 * x, "mxfp4")])
    F.linear(values(3, 64, dtype=torch.float32), w).sum().backward()
    assert torch.allclose(x.grad, 3 * values(3, 64, dtype=torch.float32).sum(0).expand(64, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_short_names_of_types(name, dtype):
    """As of dlfp4's own functions."""
    q = dt.quantize(values(64, 64), "nvfp4")
    for found in (q.dequantize(name), dt.dequantize(q, name), q.mT.dequantize(name).mT):
        assert found.dtype is dtype
        assert torch.equal(found, q.dequantize(dtype))


def test_refusals_say_what_to_do():
    q = dt.quantize(values(64, 64), "nvfp4")
    for call in (
        lambda: q + 1,
        lambda: q.sum(),
        lambda: torch.exp(q),
        lambda: torch.cat([q, values(64, 64)]),
        lambda: q[0],
    ):
        with pytest.raises(NotImplementedError, match=r"dequantize\(\)"):
            call()
    with pytest.raises(ValueError, match="multiples of 16 columns"):
        q[:, 8:]
    for call in (lambda: q.to(torch.int8), lambda: q.dequantize("int8"), lambda: dt.dequantize(q, torch.int8)):
        with pytest.raises(
            TypeError, match=r"decodes to torch\.float32, .*; for another type call .dequantize\(\)\.to\("
        ):
            call()
    with pytest.raises(BufferError, match=r"dlfp4\.asarray takes it whole"):
        dlfp4.from_dlpack(q)
    with pytest.raises(NotImplementedError, match=r"dlfp4\.torch\.quantize"):
        q.copy_(values(64, 64))
    with pytest.raises(NotImplementedError, match="copy its values"):
        values(64, 64).copy_(q)
    with pytest.raises(ValueError, match="format mxfp4, not nvfp4"):
        q.copy_(dt.quantize(values(64, 64), "mxfp4"))
    with pytest.raises(TypeError, match=r"expected a dlfp4\.ScaledTensor"):
        ScaledTensor.from_dlfp4(values(2, 2))
    for function in (lambda x: dt.quantize(x, "mxfp4"), lambda x: dt.cast(x, "float32"), dt.pack, dt.unpack):
        with pytest.raises(TypeError, match=r"take its \.elements or \.scales, or \.dequantize\(\) it"):
            function(q)
    for x in (values(2, 32), dt.Parts(values(2, 32))):
        with pytest.raises(TypeError, match=r"q is a plain .*; expected a ScaledTensor, from quantize"):
            dt.dequantize(x)
    for function in (lambda x: dlfp4.quantize(x, "mxfp4"), lambda x: dlfp4.cast(x, "float32"), dlfp4.pack):
        with pytest.raises(TypeError, match=r"several tensors: take one of its parts, or \.dequantize\(\) it"):
            function(q)
    stack = dt.quantize(values(3, 32, 64), "mxfp4")
    ends = torch.tensor([1, 2, 3])
    for options in ({"offsets": [1, 2, 3]}, {"offsets": None}, {"indices": [0, 1, 2]}, {"weights": [1.0, 1.0, 1.0]}):
        with pytest.raises(TypeError, match=rf"{next(iter(options))} is .*expected a torch\.Tensor"):
            dt.grouped_matmul(values(3, 64), stack.mT, **{"offsets": ends} | options)
    with pytest.raises(TypeError, match=r"global_scale is of type str; expected a torch\.Tensor"):
        dt.quantize(values(32, 64), "nvfp4", global_scale="1")
    unit = np.float32(0.5)
    assert same(
        dt.quantize(values(32, 64), "nvfp4", global_scale=unit),
        dlfp4.quantize(values(32, 64), "nvfp4", global_scale=0.5),
    )
    with pytest.raises(TypeError, match=r"Within torch\.func\.vmap, .*call its \.dequantize"):
        torch.func.vmap(dt.dequantize)(stack)


@pytest.mark.parametrize("dtype", ["uint4", "int4"])
@pytest.mark.parametrize("axis", [-1, -2])
def test_zero_points_that_end_within_a_byte(axis, dtype):
    plain = dlfp4.quantize(np.ones((5, 32) if axis == -1 else (32, 5), np.float32), "int4_g32", axis=axis)
    zeros = np.arange(5).reshape(5, 1).astype(dlfp4.empty(0, dtype).dtype)
    q = dlfp4.ScaledTensor.from_parts(plain.data, plain.scales, format="int4_g32", axis=axis, zero_points=zeros)
    back = ScaledTensor.from_dlfp4(q).to_dlfp4()
    assert back.zero_points.dtype == dtype.replace("4", "8")
    assert back.dequantize().tolist() == q.dequantize().tolist()


@pytest.mark.parametrize(("name", "dtype"), [("zero_points", "uint4"), ("zero_points", "int8"), ("biases", "float32")])
def test_zero_points_and_biases(name, dtype):
    base = dlfp4.quantize(values(64, 128), "uint4_g32")
    numbers = np.random.default_rng(0).integers(0, 16, (64, 4)).astype(np.dtype(dtype))
    ours = dlfp4.ScaledTensor.from_parts(base.data, base.scales, format="uint4_g32", **{name: numbers})
    q, x = ScaledTensor.from_dlfp4(ours, torch.float32), values(3, 128, dtype=torch.float32)
    assert q.form == f"uint4_g32/offsets={dtype}"
    assert q.offsets.data_ptr() == getattr(ours, name).data_ptr
    assert q.offsets.shape == (64, 2 if dtype == "uint4" else 4)  # those of 4 bits lie two a byte
    want = ours.dequantize().to_torch()
    assert torch.equal(q.dequantize(), want)
    for made in (dlfp4.asarray(q), dlfp4.asarray(pickle.loads(pickle.dumps(q))), dlfp4.asarray(copy.deepcopy(q))):
        assert np.array_equal(getattr(made, name).to_numpy(), numbers)
    assert torch.equal(F.linear(x, q), dlfp4.matmul(x, ours.mT).to_torch())
    assert torch.equal(q[:, 64:].dequantize(), want[:, 64:])
    if dtype == "uint4":
        with pytest.raises(ValueError, match="cut between pairs of blocks"):
            q[:, 32:]
    assert torch.equal(q.mT[64:].dequantize(), want.mT[64:])
    assert torch.equal(torch.compile(F.linear, fullgraph=True, backend="aot_eager")(x, q), F.linear(x, q))
    x.requires_grad_()
    F.linear(x, q).sum().backward()
    assert torch.allclose(x.grad, want.sum(0).expand(3, 128), rtol=1e-4, atol=1e-4)
    parts = q.__dlfp4_parts__()
    with pytest.raises(TypeError, match="came without zero points or biases"):
        dt.dequantize(parts._replace(offsets=None))


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("format", FORMATS)
def test_float64_is_a_type_to_count_as(format, axis):
    q = dt.quantize(values(128, 256), format, axis=axis)
    wide = q.to(torch.float64)
    assert parts_of(wide) == parts_of(q)
    decoded = q.dequantize(torch.float32).double()
    assert torch.equal(wide.dequantize(), decoded)
    x, bias = values(3, 256, dtype=torch.float64).requires_grad_(), values(128, dtype=torch.float64)
    assert torch.equal(F.linear(x, wide), F.linear(x, decoded))
    assert torch.allclose(F.linear(x, wide, bias), torch.addmm(bias, x, decoded.mT), rtol=1e-12)
    assert torch.equal(x @ q.mT, x @ decoded.mT)  # x decides, as in other products
    torch.autograd.gradcheck(lambda x: F.linear(x, wide), (x[:1].detach().requires_grad_(),), fast_mode=True)
    torch._dynamo.reset()  # of other formats, which have the same code
    compiled = torch.compile(lambda x, w: F.linear(x, w, bias), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x, wide), F.linear(x, decoded, bias), rtol=1e-12)
    with torch.inference_mode():
        assert torch.equal(F.linear(x, wide), F.linear(x, decoded))
    assert F.linear(values(3, 256), wide).dtype == torch.bfloat16
    assert dt.quantize(values(128, 256, dtype=torch.float64), format).dtype == torch.float64


def test_bytes_are_those_of_the_parts():
    for q in (dt.quantize(values(32, 64), "nvfp4"), dt.quantize(values(32, 64), "uint4_g32").mT):
        ours = [part for part in (q.elements, q.scales, q.global_scale, q.offsets) if part is not None]
        assert q.nbytes == sum(part.numel() * part.element_size() for part in ours)


def test_what_is_dlfp4s_own_is_named_with_the_remedy():
    x, w = values(3, 64, dtype=torch.float32), dlfp4.quantize(values(32, 64), "nvfp4")
    ends = torch.tensor([3])
    for name, call in {
        "a": lambda: dt.matmul(w, x.mT), "b": lambda: dt.matmul(x, w.mT), "q": lambda: dt.dequantize(w),
        "w": lambda: dt.grouped_matmul(x, dlfp4.stack([w]).mT, ends), "out": lambda: dt.quantize(x, "nvfp4", out=w),
        "x": lambda: dt.cast(w, "float32"),
    }.items():  # fmt: skip
        remedy = rf"got a dlfp4\.ScaledTensor; pass dlfp4\.torch\.ScaledTensor\.from_dlfp4\({name}\)"
        with pytest.raises(TypeError, match=rf"^{name}: expected a torch\.Tensor or what quantize returns, {remedy}"):
            call()
    with pytest.raises(TypeError, match=r"^b: .*got a dlfp4\.Tensor; pass b\.to_torch\(\)"):
        dt.matmul(x, dlfp4.asarray(values(64, 32)))
    with pytest.raises(TypeError, match=r"^quantize\(\) got an unexpected .* 'sed'; did you mean 'seed'\?"):
        dt.quantize(x, "nvfp4", sed=1)


def test_gradient_of_x_by_the_decoded_weight():
    w = torch.nn.Parameter(dt.quantize(values(32, 64, dtype=torch.float32), "nvfp4"), requires_grad=False)
    x = values(3, 64, dtype=torch.float32).requires_grad_()
    bias = torch.zeros(32, requires_grad=True)
    out = F.linear(x, w, bias)
    gradient = values(3, 32, dtype=torch.float32)
    out.backward(gradient)
    assert torch.allclose(x.grad, gradient @ w.dequantize(), rtol=1e-5, atol=1e-5)
    assert torch.equal(bias.grad, gradient.sum(0))


def test_straight_through_to_the_master():
    master = torch.nn.Parameter(values(32, 64, dtype=torch.float32))
    x, gradient = values(3, 64, dtype=torch.float32), values(3, 32, dtype=torch.float32)
    F.linear(x, dt.quantize(master, "nvfp4")).backward(gradient)
    assert torch.allclose(master.grad, gradient.mT @ x, rtol=1e-6, atol=1e-6)
    master.grad = None
    rows, columns = dt.quantize(master, "mxfp8_e4m3", axis=(-1, -2))
    (rows.dequantize() * 2 + columns.dequantize()).sum().backward()
    assert torch.equal(master.grad, torch.full((32, 64), 3.0))


FOLLOWED = {
    "matmul": (lambda w, x: dt.matmul(x, w.mT, alpha=2.0), lambda w, x: 2 * (x @ w.mT)),
    "matmul, the weight first": (lambda w, x: dt.matmul(w, x.mT), lambda w, x: w @ x.mT),
    "matmul, rounded": (lambda w, x: dt.matmul(x, w.mT, activation="int8"), lambda w, x: x @ w.mT),
    "vecdot": (lambda w, x: dt.vecdot(x[0], w), lambda w, x: (x[0] * w).sum(-1)),
    "dot": (lambda w, x: dt.dot(x[0], w[:1].reshape(64)), lambda w, x: (x[0] * w[0]).sum()),
    "grouped_matmul": (
        lambda w, x: dt.grouped_matmul(x, w.view(2, 16, 64).mT, torch.tensor([1, 3])),
        lambda w, x: torch.cat([x[:1] @ w[:16].mT, x[1:] @ w[16:].mT]),
    ),
    "dequantize": (lambda w, x: dt.dequantize(w) @ x.mT, lambda w, x: w @ x.mT),
}


# Functorch's jvp, and what AOTAutograd differentiates, import decompositions that PyTorch itself scripts.
SCRIPTS = pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")


@SCRIPTS
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by Dynamo, which does
@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("name", FOLLOWED)
def test_functions_give_the_master_its_gradient(name, compiles):
    """Straight through, as operators do."""
    call, by_values = FOLLOWED[name]
    found = [values(*shape, dtype=torch.float32).requires_grad_() for shape in ((32, 64), (3, 64))]
    decoded = dt.quantize(found[0].detach(), "nvfp4").dequantize()
    wanted = [decoded.requires_grad_(), found[1].detach().clone().requires_grad_()]

    def loss(master, x):
        return call(dt.quantize(master, "nvfp4"), x).square().sum() / 2

    torch._dynamo.reset()
    made = (torch.compile(loss, fullgraph=True, backend="aot_eager") if compiles else loss)(*found)
    expected = by_values(*wanted).square().sum() / 2
    made.backward()
    expected.backward()
    tolerance = 0.05 if "rounded" in name else 1e-4
    for own, other in zip(found, wanted, strict=True):
        assert torch.allclose(own.grad, other.grad, rtol=tolerance, atol=tolerance * other.grad.abs().max().item())


@SCRIPTS
def test_a_gradient_of_codes_is_not_dropped():
    """Forward, of a weight that itself requires one, and where memory for the result is given."""
    w = dt.quantize(values(32, 64, dtype=torch.float32), "nvfp4")
    x = values(3, 64, dtype=torch.float32)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(w.dequantize(), torch.ones(32, 64))
        product = dt.matmul(x, dt.quantize(dual, "nvfp4").mT)
        tangent = torch.autograd.forward_ad.unpack_dual(product).tangent
    assert torch.allclose(tangent, x.sum(1, keepdim=True).expand(3, 32), atol=1e-4)
    for activation in (None, "int8"):
        layer = dt.Linear(64, 32, format="nvfp4", activation=activation).requires_grad_(True)
        layer(x).sum().backward()
        assert torch.allclose(layer.weight.grad, x.sum(0).expand(32, 64), atol=1e-4)
    for call in (
        lambda out: dt.matmul(x, layer.weight.mT, out=out[:3, :32]),
        lambda out: dt.dequantize(layer.weight, out=out),
    ):
        with pytest.raises(RuntimeError, match="has no gradient, and an argument requires one: omit `out=`"):
            call(torch.empty(32, 64))
        with torch.no_grad():
            call(torch.empty(32, 64))


def test_the_method_and_the_function_take_the_same_types():
    w = dt.quantize(values(32, 64, dtype=torch.float32), "nvfp4")
    for dtype in ("float32", "bfloat16", torch.float16, torch.float64):
        assert same_values(dt.dequantize(w, dtype), w.dequantize(dtype))
    assert dt.dequantize(w.bfloat16()).dtype == torch.float32
    for call in (w.dequantize, lambda dtype: dt.dequantize(w, dtype)):
        with pytest.raises(TypeError, match=r"a ScaledTensor decodes to torch\.float32"):
            call("float8_e4m3fn")


def same_values(a, b):
    return a.dtype == b.dtype and torch.equal(a, b)


@SCRIPTS
def test_straight_through_forward_and_by_samples():
    """Derivatives of a master along a tangent, and those of each of a batch; of a batch of masters there are none."""
    x, w, along = (values(*shape, dtype=torch.float32, seed=k) for k, shape in enumerate(((3, 64), (32, 64), (32, 64))))

    def product(w, x=x):
        return F.linear(x, dt.quantize(w, "nvfp4"))

    value, tangent = torch.func.jvp(product, (w,), (along,))
    assert torch.equal(value, product(w))
    assert torch.allclose(tangent, x @ along.mT, rtol=1e-5, atol=1e-5)
    with torch.autograd.forward_ad.dual_level():
        rows, columns = dt.quantize(torch.autograd.forward_ad.make_dual(w, along), "mxfp8_e4m3", axis=(-1, -2))
        made = rows.dequantize(torch.bfloat16), columns.dequantize()
        found = [torch.autograd.forward_ad.unpack_dual(each).tangent for each in made]
    assert torch.equal(found[0], along.bfloat16())
    assert torch.equal(found[1], along)

    def loss(w, x):
        return product(w, x).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x[:, None])
    assert torch.allclose(each, torch.stack([torch.func.grad(loss)(w, row[None]) for row in x]), rtol=1e-5, atol=1e-3)
    assert torch.func.jacfwd(product)(w).shape == (3, 32, 32, 64)
    with pytest.raises(NotImplementedError, match=r"there is no batch of quantized tensors"):
        torch.func.vmap(torch.func.grad(lambda w: product(w).sum()))(torch.stack([w, w]))


def test_autocast_multiplies_in_its_type():
    q, x = dt.quantize(values(32, 64), "nvfp4"), values(3, 64, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = F.linear(x, q)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, F.linear(x.bfloat16(), q))


def test_threads_share_a_weight():
    q, x = dt.quantize(values(64, 128), "nvfp4"), values(3, 128)
    want = F.linear(x, q)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: F.linear(x, q), range(64)))
    assert all(torch.equal(each, want) for each in results)


def test_files_take_it(tmp_path):
    from dlfp4 import checkpoints

    q = dt.quantize(values(32, 64), "nvfp4")
    checkpoints.save(tmp_path / "own.safetensors", {"w": q})
    checkpoints.save(tmp_path / "modelopt.safetensors", {"w.weight": q}, convention="modelopt")
    assert same(q, checkpoints.load(tmp_path / "own.safetensors")["w"])
    assert same(q, checkpoints.load(tmp_path / "modelopt.safetensors")["w.weight"])


def test_importing_dlfp4_imports_no_torch():
    program = "import sys, dlfp4, dlfp4.operations; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", program], check=True)


def test_no_matrices():
    none = dt.quantize(values(0, 32, 64), "nvfp4")
    product = torch.bmm(values(0, 5, 64), none.mT)
    assert (product.shape, product.dtype) == ((0, 5, 32), torch.bfloat16)
    assert none[torch.tensor([], dtype=torch.int64)].shape == (0, 32, 64)
    for format in ("fp8_row", "nvfp4"):
        file = io.BytesIO()
        torch.save(ScaledTensor.from_dlfp4(dlfp4.quantize(np.ones((0, 64), np.float32), format)), file)
        file.seek(0)
        assert torch.load(file).shape == (0, 64)


def test_transposed_stacks_to_and_from_dlfp4():
    ours = dlfp4.quantize(values(2, 16, 64), "nvfp4").mT
    q = ScaledTensor.from_dlfp4(ours)
    assert (q.turned, q.axis, q.shape) == (True, -2, (2, 64, 16))
    assert same(q.mT, ours.mT)
    assert torch.equal(ScaledTensor.from_dlfp4(q.to_dlfp4()).dequantize(), q.dequantize())


@pytest.mark.parametrize("format", [name for name, row in dlfp4.formats().items() if row.block and row.block[1]])
def test_rotated_weights_multiply_as_in_dlfp4(format):
    """Their transposes, too, whose scales lie the other way around."""
    q = dt.quantize(values(64, 256).float(), format, hadamard=7)
    x, ours = values(3, 256, seed=1).float(), q.to_dlfp4()
    for w, other in ((q, ours), (q[:, 128:], ours[:, 128:])):
        want = dlfp4.matmul(x[:, : w.shape[1]], other.mT).to_torch()
        assert torch.equal(F.linear(x[:, : w.shape[1]], w), want)
        assert torch.equal(dt.matmul(x[:, : w.shape[1]], w.mT), want)
        assert torch.equal(w.mT.dequantize(), w.dequantize().mT)
