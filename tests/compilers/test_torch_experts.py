"""grouped_matmul as an operation of PyTorch: bytes of eager calls, PyTorch's own checks, gradients, compiled."""

import importlib

import pytest

import dlfp4
from dlfp4.operations import Encoding

from ..support.capsules import framework
from ..support.torch_tensors import randn

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
quantize = importlib.import_module("dlfp4.torch.functions").quantize  # parts, of which dt.quantize makes a tensor
ops = torch.ops.dlfp4
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.(script|trace)` is deprecated:DeprecationWarning")


EXPERTS, N, K, TOKENS, ROUTED = 3, 32, 64, 6, 10
STACK = randn(EXPERTS, N, K)
X, ROWS = randn(TOKENS, K, seed=1), randn(ROUTED, K, seed=2)
ENDS = torch.tensor([4, 4, 9], dtype=torch.int32)  # the last row belongs to none
INDICES = torch.tensor([5, 0, 1, 1, 2, 3, 5, 0, 2, 2**40])
WEIGHTS = torch.linspace(-1, 2, ROUTED)
SUMS = {"indices": INDICES, "weights": WEIGHTS}
CALLS = {"rows": {}, "gathered": {"indices": INDICES}, "sums": SUMS, "sums of rows": {**SUMS, "tokens": TOKENS}}
W = quantize(STACK, "mxfp4")


def operand(name):
    return ROWS if name in ("rows", "sums of rows") else X


def dense(x, w, name, weights=WEIGHTS, alpha=1.0):
    """The same by PyTorch's own operations, of a w (E, K, N) of floats."""
    routed, tokens = int(ENDS[-1]), INDICES[: int(ENDS[-1])]
    rows = x[:routed] if name in ("rows", "sums of rows") else x[tokens]
    own = torch.bucketize(torch.arange(routed), ENDS, right=True)
    made = alpha * torch.einsum("rk,rkn->rn", rows, w[own])
    if not name.startswith("sums"):
        return torch.cat([made, torch.zeros(ROUTED - routed, N)])
    return torch.zeros(TOKENS, N).index_add(0, tokens, made * weights[:routed, None])


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "fp8_row"])
def test_bytes_of_eager_calls(format, name):
    x, options = operand(name), CALLS[name]
    q = dlfp4.quantize(STACK, format)
    expected = dlfp4.grouped_matmul(x, q.mT, ENDS, **options).to_torch()
    for w in (
        quantize(STACK, format).mT,
        dt.ScaledTensor.from_dlfp4(q).mT,
        dt.ScaledTensor.from_dlfp4(q).transpose(1, 2),
    ):
        for _ in range(2):  # the second call compares with what was checked
            assert torch.equal(dt.grouped_matmul(x, w, ENDS, **options), expected)
        out = torch.empty_like(expected)
        assert dt.grouped_matmul(x, w, ENDS, out=out, **options) is out
        assert torch.equal(out, expected)


ACTIVATIONS = [{"activation": name} for name in ("int8", "fp8_1x128", "mxfp8", "fp8_row")]


def test_options_and_quantized_rows():
    q, w = dlfp4.quantize(STACK, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="matrix")), quantize(
        STACK, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="matrix"))  # fmt: skip
    for options in ({"alpha": 0.5}, {"out_dtype": torch.bfloat16}, *ACTIVATIONS):
        expected = dlfp4.grouped_matmul(ROWS, q.mT, ENDS, **options).to_torch()
        assert torch.equal(dt.grouped_matmul(ROWS, w.mT, ENDS, **options), expected)
    expected = dlfp4.grouped_matmul(dlfp4.quantize(ROWS, "nvfp4"), q.mT, ENDS).to_torch()
    assert torch.equal(dt.grouped_matmul(quantize(ROWS, "nvfp4"), w.mT, ENDS), expected)
    assert torch.equal(dt.grouped_matmul(dt.quantize(ROWS, "nvfp4"), w.mT, ENDS), expected)
    plain = dt.grouped_matmul(ROWS, STACK.mT, ENDS)
    assert torch.equal(plain, dlfp4.grouped_matmul(ROWS, STACK.mT, ENDS).to_torch())


def test_encodings_of_transposed_stacks():
    turned = W.mT
    assert turned.type == "mxfp4/turned"
    assert Encoding.parse(turned.type) == Encoding("mxfp4", -2, turned=True)
    assert turned.mT.type == W.type
    assert torch.equal(dt.dequantize(turned), dt.dequantize(W).mT)
    with pytest.raises(ValueError, match="may cross"):
        _ = quantize(randn(2, 32, 32), "mxfp4", axis=-2).mT


TESTS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name):
    w = W.mT
    parts = (w.data.view(torch.uint8), ENDS, w.scales.view(torch.uint8), *w[2:])
    options = {key: value for key, value in CALLS[name].items() if key != "weights"}
    if name.startswith("sums"):
        options["weights"] = WEIGHTS.clone().requires_grad_()
    x = operand(name).clone().requires_grad_()
    found = torch.library.opcheck(ops.grouped_matmul.default, (x, *parts), options, test_utils=TESTS)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", CALLS)
def test_gradients(name):
    stack = dt.dequantize(W.mT)
    x, weights = operand(name).clone().requires_grad_(), WEIGHTS.clone().requires_grad_()
    options = {**CALLS[name], **({"weights": weights} if name.startswith("sums") else {})}
    plain = stack.clone().requires_grad_()
    for w in (W.mT, plain):
        made = dt.grouped_matmul(x, w, ENDS, alpha=0.5, **options)
        own = dense(x, stack if w is not plain else plain, name, weights, 0.5)
        assert torch.allclose(made, own, atol=1e-4)
        grad = randn(*made.shape, seed=7)
        leaves = [leaf for leaf in (x, weights if options.get("weights") is weights else None,
                                    plain if w is plain else None) if leaf is not None]  # fmt: skip
        for a, b in zip(torch.autograd.grad(made, leaves, grad), torch.autograd.grad(own, leaves, grad), strict=True):
            assert torch.allclose(a, b, atol=1e-3), name


@pytest.mark.parametrize("name", CALLS)
def test_gradients_beside_what_is_not_finite(name):
    """Rows of no expert may be any memory, and those of one expert are nothing to the weights of another."""
    has_rows, summed = name in ("rows", "sums of rows"), name.startswith("sums")
    x, stack, weights = operand(name).clone(), STACK.mT.contiguous(), WEIGHTS.clone()
    x[0 if has_rows else INDICES[0]] = torch.inf
    weights[9] = torch.nan
    if has_rows:
        x[9] = torch.nan
    leaves = [leaf.requires_grad_() for leaf in (x, stack, *[weights][:summed])]
    made = dt.grouped_matmul(x, stack, ENDS, **{**CALLS[name], **({"weights": weights} if summed else {})})
    grad = randn(*made.shape, seed=7)
    grad[0 if summed else 9] = torch.nan
    of_x, of_w, *of_weights = torch.autograd.grad(made, leaves, grad)
    assert not of_w[1].any()
    assert not has_rows or not of_x[9].any()
    assert not summed or of_weights[0][9] == 0
    assert name != "rows" or (of_w[2].isfinite().all() and of_x.isfinite().all())


@pytest.mark.parametrize("tokens", [None, 0])
def test_gradients_of_no_tokens(tokens):
    """To which no row is routed, whatever the indices of rows beyond the last expert's say."""
    x = (randn(4, 64) if tokens == 0 else torch.empty(0, 64)).requires_grad_()
    stack, weights = STACK.mT.clone().requires_grad_(), randn(4).requires_grad_()
    nobody, indices = torch.zeros(len(ENDS), dtype=torch.int32), torch.full((4,), 9)
    for options in (
        ({"weights": weights, "tokens": tokens}, {}) if tokens is None else ({"weights": weights, "tokens": 0},)
    ):
        made = dt.grouped_matmul(x, stack, nobody, indices=indices, **options)
        leaves = (x, stack, weights) if "weights" in options else (x, stack)
        for leaf, found in zip(leaves, torch.autograd.grad(made.sum(), leaves), strict=True):
            assert torch.equal(found, torch.zeros_like(leaf))


@pytest.mark.parametrize("name", CALLS)
def test_forward_derivatives_and_second_ones(name):
    stack = dt.dequantize(W.mT)
    x, summed = operand(name), name.startswith("sums")

    def ours(x, w, weights):
        return dt.grouped_matmul(x, w, ENDS, **{**CALLS[name], **({"weights": weights} if summed else {})})

    def theirs(x, w, weights):
        return dense(x, w, name, weights)

    at, along = (x, stack, WEIGHTS), (randn(*x.shape, seed=3), randn(*stack.shape, seed=4), randn(ROUTED, seed=5))
    for a, b in zip(torch.func.jvp(ours, at, along), torch.func.jvp(theirs, at, along), strict=True):
        assert torch.allclose(a, b, atol=1e-2)

    def second(f):
        return torch.func.grad(lambda x: torch.func.grad(lambda x: f(x, stack, WEIGHTS).pow(2).sum())(x).pow(2).sum())(
            x
        )

    assert torch.allclose(second(ours), second(theirs), rtol=1e-3, atol=1)


def test_compiled():
    w, q = W.mT, dt.quantize(STACK, "mxfp4")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x, weights):
        up = dt.grouped_matmul(x, w, ENDS, indices=INDICES)
        other = dt.grouped_matmul(x, q.mT, ENDS, indices=INDICES)
        return (up + other).relu(), dt.grouped_matmul(ROWS, w, ENDS, indices=INDICES, weights=weights, tokens=TOKENS)

    x, weights = X.clone().requires_grad_(), WEIGHTS.clone().requires_grad_()
    up, down = layer(x, weights)
    one = dlfp4.grouped_matmul(X, dlfp4.asarray(q).mT, ENDS, indices=INDICES).to_torch()
    assert torch.equal(up.detach(), (one + one).relu())
    assert torch.equal(down.detach(), dt.grouped_matmul(ROWS, w, ENDS, **CALLS["sums of rows"]))
    (up.sum() + down.sum()).backward()
    assert x.grad.shape == X.shape
    assert weights.grad.shape == WEIGHTS.shape


def test_vmap_and_autocast():
    batch = torch.stack([ROWS, 2 * ROWS])
    made = torch.func.vmap(lambda x: dt.grouped_matmul(x, W.mT, ENDS))(batch)
    assert torch.equal(made, torch.stack([dt.grouped_matmul(x, W.mT, ENDS) for x in batch]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = dt.grouped_matmul(ROWS, W.mT, ENDS)
    assert torch.equal(y, dt.grouped_matmul(ROWS.bfloat16(), W.mT, ENDS))


def test_refusals_are_those_of_eager_calls():
    with pytest.raises(ValueError, match=r"pass w\.mT"):
        dt.grouped_matmul(ROWS, W, ENDS)
    with pytest.raises(ValueError, match=r"offsets\[1\] is 1, after 4"):
        dt.grouped_matmul(ROWS, W.mT, torch.tensor([4, 1, 9]))
    with pytest.raises(ValueError, match="pass indices"):
        dt.grouped_matmul(ROWS, W.mT, ENDS, weights=WEIGHTS)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp8_e4m3"])
def test_grouped_mm_of_pytorch(format):
    """Models multiply by quantized experts as by others, with a gradient for rows."""
    q = dt.quantize(STACK, format).to(torch.bfloat16)
    x = ROWS.bfloat16().requires_grad_()
    made = torch.nn.functional.grouped_mm(x, q.mT, offs=ENDS)
    assert torch.equal(made, dlfp4.grouped_matmul(x.detach(), dlfp4.quantize(STACK, format).mT, ENDS).to_torch())
    grad = randn(ROUTED, N, seed=9).bfloat16()
    made.backward(grad)
    own = torch.bucketize(torch.arange(9), ENDS, right=True)
    expected = torch.einsum("rn,rnk->rk", grad[:9].float(), q.dequantize().float()[own])
    assert torch.allclose(x.grad[:9].float(), expected, rtol=2e-2, atol=0.2)
    with pytest.raises(NotImplementedError, match=r"call \.dequantize"):
        torch.nn.functional.grouped_mm(x.detach(), q.mT[0], offs=ENDS)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "fp8_row", "mxfp8_e4m3"])
def test_grouped_mm_of_blocks_along_columns(format):
    """Of a stack (E, K, N) that was quantized as it lies, as `quantize_` leaves the experts of gpt-oss."""
    q = dt.quantize(STACK.mT.contiguous(), format, axis=-2)
    made = torch.nn.functional.grouped_mm(ROWS, q, offs=ENDS)
    assert torch.equal(made, dt.grouped_matmul(ROWS, q.dequantize(), ENDS))
