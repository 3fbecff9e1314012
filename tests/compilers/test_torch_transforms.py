"""The operations under autograd, torch.func, autocast, inference mode, traces and threads."""

import importlib
import re
import threading

import pytest

import dlfp4
from dlfp4.operations import OPERATIONS

from ..support.capsules import framework
from ..support.torch_tensors import randn

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
quantize = importlib.import_module("dlfp4.torch.functions").quantize  # parts, of which dt.quantize makes a tensor
ops = torch.ops.dlfp4
# Functorch's jvp imports decompositions that PyTorch itself scripts.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.(script|trace)` is deprecated:DeprecationWarning")
PAIRS = torch.float4_e2m1fn_x2


W = quantize(randn(32, 64), "nvfp4")
X = randn(3, 64, seed=1)


def comparable(x):
    return x.view(torch.uint8) if x.dtype == PAIRS else x


def check_equal(a, b):
    for x, y in zip(
        a if isinstance(a, (list, tuple)) else [a], b if isinstance(b, (list, tuple)) else [b], strict=True
    ):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        assert (
            comparable(x).contiguous().numpy().tobytes() == comparable(y).contiguous().numpy().tobytes()
            if (x.dtype in (torch.float32, torch.uint8, PAIRS))
            else torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))
        )


# ---- Gradients


def test_gradients_of_matmul():
    x, b = X.clone().requires_grad_(), randn(64, 8).requires_grad_()
    dense = dt.dequantize(W)
    weights = randn(3, 32, seed=2)
    (dt.matmul(x, W.mT, alpha=0.5) * weights).sum().backward()
    assert torch.allclose(x.grad, 0.5 * weights @ dense, atol=1e-5)
    dt.matmul(X, b).pow(2).sum().backward()
    assert torch.allclose(b.grad, X.mT @ (2 * (X @ b.detach())), atol=1e-3)
    row = X[0].clone().requires_grad_()
    dt.matmul(row, W.mT, out_dtype="bfloat16").sum().backward()
    assert torch.allclose(row.grad, dense.sum(0), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("rows", "depth", "columns"), [((3,), 8, 0), ((0,), 8, 2), ((2, 0), 0, 2), ((), 0, 0)])
def test_gradients_of_nothing(rows, depth, columns):
    a, b = randn(*rows, depth).requires_grad_(), randn(depth, columns).requires_grad_()
    for found, expected in zip(
        *(torch.autograd.grad(product(a, b).sum(), (a, b)) for product in (dt.matmul, torch.matmul)), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("activation", ["int8", "fp8_1x128", "mxfp8", "fp8_row"])
def test_gradients_pass_roundings_of_activations(activation):
    x, dense = X.clone().requires_grad_(), dt.dequantize(W)
    weights = randn(3, 32, seed=2)

    def product(x):
        return dt.matmul(x, W.mT, alpha=0.5, activation=activation)

    (product(x) * weights).sum().backward()
    assert torch.allclose(x.grad, 0.5 * weights @ dense, atol=1e-5)
    value, tangent = torch.func.jvp(product, (X,), (randn(3, 64, seed=5),))
    assert torch.equal(value, dlfp4.matmul(X, dlfp4.quantize(randn(32, 64), "nvfp4").mT, alpha=0.5,
                                           activation=activation).to_torch())  # fmt: skip
    assert torch.allclose(tangent, 0.5 * randn(3, 64, seed=5) @ dense.mT, atol=1e-4)
    batch = randn(5, 3, 64, seed=6)
    check_equal(torch.func.vmap(product)(batch), product(batch))


def test_gradients_of_sums():
    x, y = randn(2, 4).requires_grad_(), randn(4, seed=3).requires_grad_()
    (dt.vecdot(x, y) * torch.tensor([1.0, 2.0])).sum().backward()
    assert torch.allclose(x.grad, torch.tensor([[1.0], [2.0]]) * y.detach())
    assert torch.allclose(y.grad, x.detach()[0] + 2 * x.detach()[1])
    of_columns, tangent = torch.func.jvp(lambda y: dt.vecdot(y, x.detach().mT, 0), (y.detach(),), (y.detach(),))
    assert torch.allclose(of_columns, tangent)
    columns = x.detach().mT.clone().requires_grad_()
    (dt.vecdot(y.detach(), columns, 0) * torch.tensor([1.0, 2.0])).sum().backward()
    assert torch.allclose(columns.grad, y.detach()[:, None] * torch.tensor([1.0, 2.0]))
    q = quantize(X, "mxfp8_e4m3")
    z = X.clone().requires_grad_()
    dt.vecdot(z, q).sum().backward()
    assert torch.equal(z.grad, dt.dequantize(q))


@pytest.mark.parametrize("name", ["dot", "vecdot"])
def test_transforms_of_sums_with_a_quantized_tensor(name):
    """A slice that is made within is handed on whole, and hidden."""
    q, x = dt.quantize(randn(256), "nvfp4"), randn(128, seed=1)
    call = getattr(dt, name)
    values = q.dequantize()[128:]
    for operands in (lambda x: (x, q[128:]), lambda x: (q[128:], x)):
        gradient = torch.func.grad(lambda x, operands=operands: call(*operands(x)))
        assert torch.equal(gradient(x), values)
        assert torch.equal(torch.func.vmap(gradient)(torch.stack([x, 2 * x])), values.expand(2, -1))
        _, along = torch.func.jvp(lambda x, operands=operands: call(*operands(x)), (x,), (x,))
        assert torch.allclose(along, x @ values, rtol=1e-5)


def test_roundings_are_passed_straight_through():
    x = randn(4, 64).requires_grad_()
    g = randn(4, 64, seed=4)
    (dt.cast(x, "float16").float() * g).sum().backward()
    assert torch.allclose(x.grad, g, atol=1e-2)
    assert not dt.cast(x, "float4_e2m1fn").requires_grad
    assert not any(part.requires_grad for part in ops.quantize(x, "nvfp4"))
    with pytest.raises(RuntimeError, match=r"cast\(out=...\) has no gradient"):
        dt.cast(x, "float16", out=torch.empty(4, 64, dtype=torch.float16))
    with torch.no_grad():
        dt.cast(x, "float16", out=torch.empty(4, 64, dtype=torch.float16))


def f(x):
    return dt.matmul(x, W.mT).pow(2).sum()


def dense(x):
    return (x @ dt.dequantize(W).mT).pow(2).sum()


@pytest.mark.parametrize(
    "transform",
    [
        torch.func.grad,
        lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).pow(2).sum()),
        lambda f: lambda x: torch.func.jvp(f, (x,), (x + 1,)),
        lambda f: lambda x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, 2 * x])),
        lambda f: lambda x: torch.func.grad(lambda y: torch.func.vmap(f)(torch.stack([y, 2 * y])).sum())(x),
        lambda f: torch.func.jacrev(f),
        lambda f: torch.func.jacfwd(f),
    ],
    ids=["grad", "grad of grad", "jvp", "vmap of grad", "grad of vmap", "jacrev", "jacfwd"],
)
def test_transforms(transform):
    x = X[:1] / 8
    made, expected = transform(f)(x), transform(dense)(x)
    for a, b in zip(*((y if isinstance(y, tuple) else (y,)) for y in (made, expected)), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-3)


def test_forward_derivatives_of_the_others():
    x, y = randn(4, 8), randn(4, 8, seed=5)
    assert torch.equal(torch.func.jvp(lambda x: dt.cast(x, "bfloat16"), (x,), (y,))[1], y.bfloat16())
    assert torch.allclose(torch.func.jvp(dt.vecdot, (x, y), (y, x))[1], (x * x + y * y).sum(-1))


# ---- vmap: as a loop


CODES = randn(5, 2, 32)
V = quantize(randn(8, 32), "nvfp4")


def by_columns(x):
    return dt.Parts(*ops.quantize(x, "mxfp8_e4m3", axis=[-2], pad=True), None, "mxfp8_e4m3/columns")


CALLS = {
    "cast": lambda x: ops.cast(x, "float4_e2m1fn"),
    "cast, stochastic": lambda x: ops.cast(x, "float8_e5m2", "", "stochastic", True, True, 3),
    "cast, numbers": lambda x: ops.cast(x[0, 0], "bfloat16"),
    "pack": lambda x: ops.pack((x * 4).to(torch.uint8), "float4_e2m1fn/padded"),
    "unpack": lambda x: ops.unpack((x * 4).to(torch.uint8)[..., :24].contiguous(), "float6_e2m3fn"),
    "mxfp6": lambda x: ops.quantize(x, "mxfp6_e2m3"),
    "nvfp4": lambda x: ops.quantize(x, "nvfp4"),
    "nvfp4, given scale": lambda x: ops.quantize(x, "nvfp4", "", torch.tensor(0.25)),
    "nvfp4, rows": lambda x: ops.quantize(x, "nvfp4", recipe='{"global_scale_per": "row"}'),
    "nvfp4, one row": lambda x: ops.quantize(x[0], "nvfp4"),
    "fp8_row": lambda x: ops.quantize(x, "fp8_row"),
    "fp8_e4m3, by one": lambda x: ops.quantize(x, "fp8_e4m3"),
    "columns, by one": lambda x: ops.quantize(x, "mxfp4", axis=[-2], pad=True),
    "dequantize": lambda x: dt.dequantize(dt.Parts(*ops.quantize(x, "nvfp4"), type="nvfp4"), "bfloat16"),
    "dequantize, columns": lambda x: dt.dequantize(by_columns(x)),
    "matmul": lambda x: dt.matmul(x, V.mT),
    "matmul, row": lambda x: dt.matmul(x[1], V.mT),
    "matmul, both": lambda x: dt.matmul(x, dt.Parts(*ops.quantize(x, "nvfp4"), type="nvfp4").mT),
    "grouped_matmul": lambda x: dt.grouped_matmul(x, x[None].mT, torch.tensor([1])),
    "vecdot": lambda x: dt.vecdot(x, x[0]),
    "vecdot, rows": lambda x: dt.vecdot(x, x, 0),
    "dot": lambda x: dt.dot(x[0], x[1]),
    "dot, quantized": lambda x: dt.dot(x[0], dt.Parts(*ops.quantize(x[1], "mxfp4"), None, "mxfp4", (32,))),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_vmap(name):
    call = CALLS[name]
    each = [call(x) for x in CODES]
    if isinstance(each[0], list):
        each = [
            torch.stack([comparable(part) for part in parts]).view(parts[0].dtype) for parts in zip(*each, strict=True)
        ]
    else:
        each = torch.stack([comparable(part) for part in each]).view(each[0].dtype)
    for made in (torch.func.vmap(call)(CODES), torch.func.vmap(call, in_dims=1)(CODES.movedim(0, 1))):
        if name.startswith("matmul"):  # many rows may be summed in another order than few
            assert torch.allclose(made, each, atol=1e-5)
        else:
            check_equal(made, each)


@pytest.mark.parametrize("name", CALLS)
def test_vmap_of_none(name):
    made, expected = (torch.func.vmap(CALLS[name])(x) for x in (CODES[:0], CODES))
    made, expected = ([each] if isinstance(each, torch.Tensor) else each for each in (made, expected))
    for part, other in zip(made, expected, strict=True):
        assert (part.shape, part.dtype) == ((0, *other.shape[1:]), other.dtype)


def test_a_scale_that_all_share_is_that_of_each():
    """PyTorch reads beyond what has no batch, for `out_dims` (2.13)."""
    *_, units = torch.func.vmap(CALLS["nvfp4, given scale"], out_dims=-1)(CODES)
    assert units.tolist() == [0.25] * len(CODES)


REFUSED = {
    "dot of matrices": ((4, 32), lambda x: dt.dot(x, x)),
    "behind the last axis": ((32,), lambda x: dt.vecdot(x, x, 1)),
    "before the first axis": ((32,), lambda x: dt.vecdot(x, x, -2)),
    "lines that do not broadcast": ((4, 32), lambda x: dt.vecdot(x, x[:3])),
    "a number": ((), lambda x: dt.vecdot(x, x)),
    "a number for rows": ((), lambda x: dt.matmul(x, torch.ones(3, 4))),
    "sums of two lengths": ((4, 31), lambda x: dt.matmul(x, V.mT)),
    "blocks that do not divide": ((4, 33), lambda x: ops.quantize(x, "mxfp4")),
    "columns of a vector": ((32,), lambda x: ops.quantize(x, "mxfp4", axis=[-2])),
    "a recipe of others": ((4, 32), lambda x: ops.quantize(x, "mxfp4", recipe="deepseek-ue8m0")),
    "integers": ((4, 32), lambda x: dt.cast(x, "int8")),
    "a rounding": ((4, 32), lambda x: dt.cast(x, "float8_e4m3fn", rounding=3)),
}


@pytest.mark.parametrize("size", [3, 1, 0])
@pytest.mark.parametrize("name", REFUSED)
def test_vmap_refuses_what_calls_refuse(name, size):
    """A batch is no dimension of what is called: nothing is summed over it, and no message names it."""
    shape, call = REFUSED[name]
    with pytest.raises((TypeError, ValueError)) as expected:
        call(torch.ones(shape))
    for dim in range(len(shape) + 1):
        batch = torch.ones(*shape[:dim], size, *shape[dim:])
        with pytest.raises(type(expected.value), match=f"^{re.escape(str(expected.value))}$"):
            torch.func.vmap(call, dim)(batch)


@pytest.mark.parametrize("shape", [(3, 2, 0), (3, 0, 32), (3, 0, 0)], ids=str)
def test_vmap_of_nothing(shape):
    x = torch.empty(shape)
    made = torch.func.vmap(lambda x: ops.quantize(x, "mxfp8_e4m3"))(x)
    each = [ops.quantize(one, "mxfp8_e4m3") for one in x]
    assert [part.shape for part in made] == [(3, *part.shape) for part in each[0]]
    values = torch.func.vmap(lambda data, scales: ops.dequantize(data, scales, None, "mxfp8_e4m3"))(*made)
    assert values.shape == shape


@pytest.mark.parametrize("format", ["fp8_128x128", "mxfp8_32x32", "nvfp4_16x16"])
@pytest.mark.parametrize("rows", [2, 128])
def test_vmap_of_blocks_of_several_rows(rows, format):
    """Those of one tensor of the batch do not go on in the next one."""
    given = [quantize(randn(rows, 128, seed=seed), format, pad=True) for seed in range(3)]
    data, scales = (
        torch.stack([comparable(part) for part in parts]) for parts in zip(*(q[:2] for q in given), strict=True)
    )

    def decode(data, scales):
        return dt.dequantize(given[0]._replace(data=data, scales=scales))

    made = torch.func.vmap(decode)(data, scales.view(given[0].scales.dtype))
    check_equal(made, torch.stack([decode(q.data, q.scales) for q in given]))


def test_vmap_is_one_call():
    products = importlib.import_module("dlfp4.torch.products")
    known = products.KNOWN
    known.clear()
    products.KNOWN_IN_C.clear()
    torch.func.vmap(CALLS["matmul"])(CODES)
    assert [tuple(shape) for shape, *_ in known] == [(5, 2, 32)]


def test_products_that_repeat_are_compared_with_what_was_checked():
    """Other shapes, types, strides and constants are found anew; alike ones give the same bits from other memory."""
    other = quantize(randn(32, 64, seed=7), "nvfp4")
    for x in (X, X, 2 * X, X.bfloat16(), X.mT.contiguous().mT, X[:2]):
        for w in (W, other, other._replace(data=other.data.view(torch.uint8)), quantize(X, "mxfp8_e4m3")):
            for options in ({}, {"alpha": 0.5}, {"out_dtype": "float16"}):
                for _ in range(2):
                    y = dt.matmul(x, w.mT, **options)
                    q = importlib.import_module("dlfp4.torch.representing").share(w.mT)
                    check_equal(y.view(torch.uint8), dlfp4.matmul(x, q, **options).to_torch().view(torch.uint8))
    x = X.clone().requires_grad_()
    dt.matmul(x, W.mT).sum().backward()
    assert x.grad is not None
    with pytest.raises(ValueError, match="scales has shape"):
        dt.matmul(X, W._replace(scales=W.scales[:, :2]).mT)


# ---- Modes and traces


def test_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = dt.matmul(X, W.mT)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, dt.matmul(X.bfloat16(), W.mT))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        codes, *scales = quantize(X, "nvfp4")[:3]
        check_equal(ops.quantize(X, "nvfp4"), [codes.view(torch.uint8), *scales])
        assert dt.matmul(X.double().bfloat16(), W.mT, out_dtype="float32").dtype == torch.float32


def test_inference_mode():
    with torch.inference_mode():
        y = dt.matmul(X, quantize(randn(32, 64), "nvfp4").mT)
        assert y.is_inference()
        out = torch.empty_like(y)
        dt.matmul(X, W.mT, out=out)
    assert torch.equal(y, dt.matmul(X, W.mT))
    assert torch.equal(out, y)


@pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning")
def test_traces_record_the_operation():
    traced = torch.jit.trace(lambda x: dt.matmul(x, W.mT), (X,))
    assert "dlfp4::matmul" in str(traced.graph)
    assert torch.equal(traced(2 * X), dt.matmul(2 * X, W.mT))
    weight = dt.quantize(X, "nvfp4")
    layer = torch.nn.Linear(64, 3)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    x = torch.cat([X, 3 * X])
    assert torch.equal(torch.jit.trace(layer, (X,))(x), layer(x))
    for function in (
        lambda x: dt.matmul(x, weight.mT),
        lambda x: weight[:1].dequantize() + x.sum(),
        lambda x: dt.dequantize(dt.quantize(x, "mxfp4")),
        lambda x: dt.matmul(quantize(x, "nvfp4"), W.mT),
        lambda x: torch.nn.functional.linear(x, dt.quantize(x, "nvfp4")),
        lambda x: torch.nn.functional.linear(x, dt.quantize(x, "nvfp4", out=weight.clone())),
    ):
        with pytest.raises(RuntimeError, match=r"use torch\.export"):
            torch.jit.trace(function, (X,), check_trace=False)


def test_make_fx():
    make_fx = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx
    for mode in ("real", "symbolic"):
        graph = make_fx(lambda x, *w: dt.matmul(x, dt.Parts(*w, type="nvfp4/columns")), tracing_mode=mode)(X, *W[:3])
        assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [ops.matmul.default]
        assert torch.equal(graph(2 * X, *W[:3]), dt.matmul(2 * X, W.mT))


def test_threads():
    expected = [dt.matmul(k * X, W.mT) for k in range(8)]
    found = [None] * 8

    def work(k):
        for _ in range(20):
            found[k] = dt.matmul(k * X, W.mT)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    check_equal(found, expected)


def test_what_is_not_there_is_refused():
    with pytest.raises(TypeError, match=r"type 'float6_e2m3fn' of a tensor of torch\.float32"):
        dt.cast(dt.Parts(X, type="float6_e2m3fn"), "float32")
    with pytest.raises(ValueError, match="do not end on bytes"):
        dt.cast(randn(3, 5), "float6_e2m3fn")
    with pytest.raises(TypeError, match=r"[a-z]: expected a torch\.Tensor or what quantize returns, got ndarray"):
        dt.cast(X.numpy(), "float16")
    with pytest.raises(TypeError, match="came without scales"):
        dt.dequantize(dt.Parts(W.data, type="nvfp4"))
    assert set(CALLS) >= set(OPERATIONS) - {"quantize"}
