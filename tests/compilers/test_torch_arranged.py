"""Products on whose way PyTorch arranges dimensions anew: those of codes, eager, in inference mode and compiled."""

import copy
import importlib
import io

import pytest

import dlfp4

from ..support.capsules import framework
from ..support.torch_tensors import randn

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
decoders = [importlib.import_module(f"dlfp4.torch.{name}") for name in ("scaled_tensor", "multiplying")]
F = torch.nn.functional


X, X3, X4 = randn(8, 64), randn(3, 8, 64, seed=1), randn(2, 4, 8, 64, seed=2)
Y, BIAS = randn(8, 32, seed=3), randn(32, seed=4)
# Of rows X, a weight q (32, 64) and a stack s (4, 32, 64): a call, and what it is by plain products.
EQUATIONS = {
    "bk,nk->bn": (lambda q, s: (X, q), lambda q, s: X @ q.mT),
    "bk,kn->bn": (lambda q, s: (X, q.mT), lambda q, s: X @ q.mT),
    "nk,bk->bn": (lambda q, s: (q, X), lambda q, s: X @ q.mT),
    "nk,bk->nb": (lambda q, s: (q, X), lambda q, s: q @ X.mT),
    "bn,nk->bk": (lambda q, s: (Y, q), lambda q, s: Y @ q),
    "abk,nk->abn": (lambda q, s: (X3, q), lambda q, s: X3 @ q.mT),
    "...k,nk->...n": (lambda q, s: (X4, q), lambda q, s: X4 @ q.mT),
    "ebk,enk->ebn": (lambda q, s: (X4[0], s), lambda q, s: torch.bmm(X4[0], s.mT)),
    "bk,enk->ben": (lambda q, s: (X, s), lambda q, s: torch.stack([X @ w.mT for w in s], 1)),
    "bk,hdk->bhd": (lambda q, s: (X, q.view(4, 8, 64)), lambda q, s: (X @ q.mT).view(8, 4, 8)),
}
CALLS = {
    name: (lambda q, s, name=name, of=of: torch.einsum(name, *of(q, s)), by) for name, (of, by) in EQUATIONS.items()
}
CALLS |= {
    "tensordot": (lambda q, s: torch.tensordot(X3, q, dims=([2], [1])), lambda q, s: X3 @ q.mT),
    "rows apart": (lambda q, s: F.linear(X3.transpose(0, 1), q), lambda q, s: (X3 @ q.mT).transpose(0, 1)),
    "rows apart, by a layer": (
        lambda q, s: F.linear(X3.transpose(0, 1), q, BIAS),
        lambda q, s: (X3 @ q.mT).transpose(0, 1) + BIAS,
    ),
    "a weight by stacks": (lambda q, s: q @ X3.mT, lambda q, s: (X3 @ q.mT).mT),
    "stacks": (lambda q, s: X4[0] @ s.mT, lambda q, s: torch.bmm(X4[0], s.mT)),
    "rows by a stack": (lambda q, s: X @ s.mT, lambda q, s: torch.stack([X @ w.mT for w in s])),
    "stacks of stacks": (lambda q, s: X4 @ s.mT, lambda q, s: torch.stack([torch.bmm(x, s.mT) for x in X4])),
    "stacks of repeats": (
        lambda q, s: X4 @ s[:2].view(2, 1, 32, 64).mT,
        lambda q, s: torch.stack([x @ w.mT for x, w in zip(X4, s, strict=False)]),
    ),
    "addbmm": (lambda q, s: torch.addbmm(Y, X4[0], s.mT), lambda q, s: torch.bmm(X4[0], s.mT).sum(0) + Y),
    "addmv": (lambda q, s: torch.addmv(BIAS, q, X[0], beta=2), lambda q, s: X[0] @ q.mT + 2 * BIAS),
}


@pytest.fixture
def undecoded(monkeypatch):
    """Fails where values are made of a tensor."""

    def refuse(q, dtype):
        raise AssertionError(f"{q} was decoded")

    for module in decoders:
        monkeypatch.setattr(module, "decode", refuse)


@pytest.mark.usefixtures("undecoded")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["nvfp4", "mxfp6_e2m3", "fp8_row", "uint4_g32"])
def test_products_of_codes(name, call):
    q, s = dt.quantize(randn(32, 64, seed=5), name), dt.quantize(randn(4, 32, 64, seed=6), name)
    made, expected = CALLS[call][0], CALLS[call][1](q, s)
    assert torch.equal(made(q, s), expected)
    with torch.inference_mode():
        assert torch.equal(made(q, s), expected)


@pytest.mark.parametrize(
    ("call", "dynamic"), [("bk,enk->ben", True), ("rows apart", True), ("stacks of stacks", False)]
)
def test_compiled(call, dynamic):
    q, s = dt.quantize(randn(32, 64, seed=5), "nvfp4"), dt.quantize(randn(4, 32, 64, seed=6), "nvfp4")
    torch._dynamo.reset()
    compiled = torch.compile(CALLS[call][0], fullgraph=True, backend="aot_eager", dynamic=dynamic)
    assert torch.equal(compiled(q, s), CALLS[call][1](q, s))


def test_gradients():
    """Of rows, and of weights that were quantized straight through."""
    w = randn(4, 32, 64, seed=6)
    for multiply in (lambda x, w: torch.einsum("bk,enk->ben", x, w), lambda x, w: x @ w.mT):
        found = [each.clone().requires_grad_() for each in (X, w)]
        wanted = [each.clone().requires_grad_() for each in (X, dt.quantize(w, "nvfp4").dequantize())]
        (multiply(found[0], dt.quantize(found[1], "nvfp4")) ** 2).sum().backward()
        (multiply(*wanted) ** 2).sum().backward()
        for made, expected in zip(found, wanted, strict=True):
            assert torch.allclose(made.grad, expected.grad, rtol=1e-4, atol=1e-2)


def test_what_is_arranged_has_products_alone():
    s = dt.quantize(randn(4, 32, 64, seed=6), "nvfp4")
    for arranged, values in (
        (s.permute(1, 0, 2), s.dequantize().permute(1, 0, 2)),
        (s[0].expand(3, 32, 64), s[0].dequantize().expand(3, 32, 64)),
        (s[:1].expand(3, 32, 64).transpose(0, 2), s[:1].dequantize().expand(3, 32, 64).transpose(0, 2)),
    ):
        assert torch.equal(arranged.dequantize(), values)
        for refused in (
            lambda x=arranged: x + 1,
            lambda x=arranged: torch.exp(x),
            lambda x=arranged: x.contiguous() + 1,
            lambda x=arranged: dt.matmul(X, x.mT),
            lambda x=arranged, values=values: dt.dequantize(x, out=values),
        ):
            with pytest.raises(NotImplementedError, match=r"arranged as .*call .*\.dequantize\(\) for the values"):
                refused()
        for refused in (copy.copy, copy.deepcopy, lambda x: torch.save(x, io.BytesIO())):
            with pytest.raises(NotImplementedError, match=r"arranged as .* what it was made of, or its \.dequantize"):
                refused(arranged)
        with pytest.raises(BufferError, match=r"their scales; \.dequantize\(\) gives its values"):
            dlfp4.asarray(arranged)
    with pytest.raises(NotImplementedError, match=r"by matrices of which .*call \.dequantize\(\)"):
        torch.einsum("ebk,enk->bn", X4[0], s)  # a sum over matrices and within them


def test_values_of_what_is_arranged():
    """By the method and by the function, in every type, with their gradient."""
    s = dt.quantize(randn(4, 32, 64, seed=6).bfloat16(), "nvfp4")
    arranged = s.permute(1, 0, 2)
    for dtype in ("float16", torch.float64):
        assert torch.equal(arranged.dequantize(dtype), s.dequantize(dtype).permute(1, 0, 2))
    assert torch.equal(dt.dequantize(arranged), s.dequantize("float32").permute(1, 0, 2))
    for decode in (dt.dequantize, lambda q: q.dequantize()):
        master = randn(32, 64).requires_grad_()
        decode(dt.quantize(master, "nvfp4").expand(3, 32, 64)).sum().backward()
        assert torch.equal(master.grad, torch.full((32, 64), 3.0))
    with pytest.raises(NotImplementedError, match=r"call \.dequantize\(\) before it is put in a line"):
        dt.dequantize(s[0].mT.reshape(-1))


def test_other_words_for_views():
    q, s = dt.quantize(randn(32, 64, seed=5), "nvfp4"), dt.quantize(randn(4, 32, 64, seed=6), "nvfp4")
    assert torch.equal(q[None].squeeze().dequantize(), q.dequantize())
    assert torch.equal(q[None, None].squeeze((0, 1)).dequantize(), q.dequantize())
    assert torch.equal(torch.index_select(s, 0, torch.tensor([2, 0])).dequantize(), s.dequantize()[[2, 0]])
    with pytest.raises(NotImplementedError, match="numbers of matrices"):
        torch.index_select(s, 1, torch.tensor([2, 0]))
    for made, part in zip(torch.unsafe_split(q, 16), q.dequantize().split(16), strict=True):
        assert torch.equal(made.dequantize(), part)
