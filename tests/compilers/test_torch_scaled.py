"""``dlfp4.torch.ScaledTensor``: parts, views, copies, products and gradients of a quantized tensor in PyTorch."""

import copy
import importlib
import io
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import ml_dtypes  # noqa: F401  (whose types numpy then knows)
import numpy as np
import pytest

import dlfp4

from ..support.capsules import framework

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
ScaledTensor = dt.ScaledTensor

F = torch.nn.functional
# One of each kind: two levels of scales, powers of two below 8 bits and of bytes, squares, a scale a line, one scale,
# integers with zero points.
FORMATS = ("nvfp4", "mxfp6_e2m3", "mxfp8_e4m3", "nvfp4_16x16", "fp8_128x128", "fp8_row", "fp8_e4m3", "uint4_g32")


def values(*shape, dtype=torch.bfloat16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def parts_of(q):
    """Bytes of all parts."""
    ours = q.to_dlfp4()
    parts = (ours.data, ours.scales, ours.global_scale, ours.zero_points, ours.biases)
    return [None if part is None else (part.shape, bytes_of(part)) for part in parts]


def bytes_of(part):
    whole = part.copy()
    return whole.reshape(-1).view("uint8").to_numpy().tobytes() if whole.ndim else whole.to_numpy().tobytes()


def same(q, ours):
    """Whether a tensor has the codes and scales of dlfp4's."""
    return parts_of(q) == parts_of(ScaledTensor.from_dlfp4(ours)) and q.axis == ours.axis


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


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("format", FORMATS)
def test_slices_on_borders_of_blocks(format, axis):
    ours = dlfp4.quantize(values(256, 256), format, axis=axis)
    q = ScaledTensor.from_dlfp4(ours)
    for key in (np.s_[:128], np.s_[128:], np.s_[:, 128:], np.s_[:, :128], np.s_[128:, 128:]):
        assert same(q[key], ours[key])
        assert same(q.mT[key[::-1] if isinstance(key, tuple) else np.s_[:, key]], ours[key].mT)
    first, second = q.split(128)
    assert first.elements.untyped_storage().data_ptr() == q.elements.untyped_storage().data_ptr()
    assert same(second, ours[128:])
    assert [part.shape[0] for part in q.split([128, 128], 0)] == [128, 128]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("format", FORMATS)
def test_joined_by_cat_and_stack(format, axis):
    """Codes and scales side by side, as dlfp4 joins them; no value changes."""
    options = {"global_scale": 0.01} if format in ("nvfp4", "nvfp4_16x16", "fp8_e4m3") else {}
    ours = [dlfp4.quantize(values(128, 256, seed=seed), format, axis=axis, **options) for seed in range(2)]
    pair = [ScaledTensor.from_dlfp4(each) for each in ours]
    lines = -2 if axis == -1 else -1  # along the other dimension lines that have one scale each become longer
    for dim in (-2, -1) if format != "fp8_row" else (lines,):
        made = torch.cat(pair, dim)
        assert same(made, dlfp4.concatenate(ours, dim))
        assert torch.equal(made.dequantize(), torch.cat([q.dequantize() for q in pair], dim))
        across = torch.cat([q.mT for q in pair], -3 - dim)
        assert across.turned
        assert same(across, dlfp4.concatenate(ours, dim).mT)
    assert torch.cat([pair[0], pair[1].bfloat16().float()], lines).dtype == torch.float32
    if axis == -1:
        stacked = torch.stack(pair)
        assert same(stacked, dlfp4.stack(ours))
        assert [parts_of(each) for each in stacked.unbind()] == [parts_of(each) for each in pair]
        assert torch.equal(torch.stack([q.mT for q in pair]).dequantize(), stacked.dequantize().mT)


def test_what_cannot_be_joined():
    pair = [dt.quantize(values(64, 64, seed=seed), "nvfp4") for seed in range(2)]
    with pytest.raises(ValueError, match=r"scales of their own, and under one .* rounded.*dlfp4\.concatenate"):
        torch.cat(pair)
    with pytest.raises(NotImplementedError, match=r"only along a new first one, 0"):
        torch.stack(pair, -1)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"within a trace.*join the tensors before"):
        torch.compile(lambda a: torch.cat([a, a]).dequantize(), fullgraph=True, backend="eager")(pair[0])
    with pytest.raises(ValueError, match="differ in format"):
        torch.cat([pair[0], dt.quantize(values(64, 64), "mxfp4")])


def test_straight_through_what_was_joined():
    x = values(64, 64, dtype=torch.float32).requires_grad_()
    w = torch.cat([dt.quantize(x, "mxfp4"), dt.quantize(2 * x, "mxfp4")])
    F.linear(values(3, 64, dtype=torch.float32), w).sum().backward()
    assert torch.allclose(x.grad, 3 * values(3, 64, dtype=torch.float32).sum(0).expand(64, -1), rtol=1e-5, atol=1e-5)


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
    with pytest.raises(TypeError, match=r"decodes to torch\.float32"):
        q.to(torch.int8)
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


def test_views_and_shapes():
    q = dt.quantize(values(6, 64), "nvfp4")
    stack = q.view(2, 3, 64)
    assert torch.equal(stack[1].dequantize(), q[3:].dequantize())
    assert torch.equal(q.view(-1).dequantize(), q.dequantize().view(-1))
    for x in (q, stack, dt.quantize(values(6, 64), "mxfp8_e4m3"), dt.quantize(values(6, 64), "fp8_e4m3")):
        assert parts_of(x.view(-1).view(x.shape)) == parts_of(x)
    with pytest.raises(NotImplementedError, match="the last dimension stays"):
        q.view(-1).view(-1, 8)
    with pytest.raises(NotImplementedError, match="the last dimension stays"):
        q[:0].view(-1).view(0, 8)
    assert q.unsqueeze(0).squeeze(0).shape == q.shape
    for across in (
        dt.quantize(torch.ones(1, 64), "mxfp4", axis=-2, pad=True),
        dt.quantize(torch.ones(1, 64), "fp8_row", axis=-2),
    ):
        with pytest.raises(NotImplementedError, match="beside another one where blocks run along columns"):
            across.squeeze(0)
    assert q.contiguous() is q or same(q.contiguous(), q.to_dlfp4())
    with pytest.raises(NotImplementedError, match="the last dimension stays"):
        q.view(3, 128)
    assert repr(q) == ("ScaledTensor(shape=(6, 64), format='nvfp4', dtype=torch.bfloat16, device='cpu')")


def test_views_in_inference_mode():
    q, x = dt.quantize(values(6, 64), "nvfp4"), values(2, 64)
    stack = q.view(2, 3, 64)
    with torch.inference_mode():
        views = {
            "a slice": q[3:], "a matrix": stack[1], "a shape": q.view(2, 3, 64)[1], "each": stack.unbind()[1],
            "split": q.split(3)[1], "transposed": q[3:].t().t(), "detached": q[3:].detach(),
        }  # fmt: skip
        for what, view in views.items():
            assert torch.equal(F.linear(x, view), F.linear(x, q)[:, 3:]), what
        assert torch.equal(torch.as_strided(q, (6, 64), (64, 1), 0).dequantize(), q.dequantize())
    assert torch.equal(F.linear(x.requires_grad_(), views["a slice"]), F.linear(x, q)[:, 3:])
    with pytest.raises(NotImplementedError, match="elements have no strides"):
        torch.as_strided(q, (3, 64), (64, 1), 0)


def test_memory_of_squares_in_a_line():
    """FSDP keeps a shard so; what it is stays unknown."""
    q = dt.quantize(values(32, 64), "nvfp4_16x16")
    line = q.view(-1)
    assert line.shape == (32 * 64,)
    assert line.detach().view(32, 64).elements.data_ptr() == q.elements.data_ptr()
    assert repr(line).endswith("in a line")
    with pytest.raises(NotImplementedError, match="across blocks"):
        line + 1


MATRICES = dlfp4.Recipe(global_scale_per="matrix")
OTHERS = {  # of the same shape, with parts that are not those of the target
    "granularity": (lambda: dt.quantize(values(2, 64, 128, seed=3) * 5, "nvfp4", recipe=MATRICES), "nvfp4"),
    "hadamard": (lambda: dt.quantize(values(2, 64, 128, seed=3), "nvfp4", hadamard=5), "nvfp4"),
    "scale type": (
        lambda: dt.quantize(values(2, 64, 128), "fp8_row", recipe=dlfp4.Recipe(scale_dtype="bfloat16")), "fp8_row",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_copies_of_other_parts_reach_all_or_nothing(what):
    make, format = OTHERS[what]
    source, first = make(), dt.quantize(values(2, 64, 128), format)
    for view in (torch.Tensor.detach, lambda q: q.data, lambda q: q.mT.mT, lambda q: q.view(2, 64, 128)):
        parameter = torch.nn.Parameter(first.clone(), requires_grad=False)
        with pytest.raises(ValueError, match="cannot be copied into a view"):
            view(parameter).copy_(source)
        assert parts_of(parameter) == parts_of(first)
    with torch.no_grad():
        held = parameter.detach()
        parameter.copy_(source)
    assert parts_of(parameter) == parts_of(source)
    assert torch.equal(parameter.dequantize(), source.dequantize())
    assert torch.equal(held.dequantize(), first.dequantize())  # no mixture of both
    parameter.data.copy_(source)
    assert parts_of(parameter) == parts_of(source)


SLICES = {
    "rows": lambda q: q[:32], "columns": lambda q: q[:, 64:], "columns of a transpose": lambda q: q.mT[:64],
    "rows in a shape": lambda q: q.view(2, 32, 128)[1], "split": lambda q: q.split(32)[0].detach(),
}  # fmt: skip


@pytest.mark.parametrize("where", SLICES)
@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "fp8_e4m3", "fp8_row", "int4_g32"])
def test_copies_into_slices_keep_what_lies_beside(format, where):
    """Also where both have one scale."""
    q, cut = dt.quantize(values(64, 128), format), SLICES[where]
    has_one = format in ("nvfp4", "fp8_e4m3") or (format == "fp8_row" and "columns" in where)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            whole = q.clone()
            part, before = cut(whole), whole.dequantize()
            own = part.dequantize()
            source = dt.quantize(torch.full_like(own, 9.0), format, axis=part.axis)
            with pytest.raises(ValueError, match="into a view") if has_one else nullcontext():
                part.copy_(source)
            expected = own if has_one else source.dequantize()
            assert torch.equal(cut(whole).dequantize(), expected)
            assert (whole.dequantize() != before).sum() <= part.numel()
            cut(whole).copy_(part.clone())  # of the same scales
            assert torch.equal(cut(whole).dequantize(), expected)
            new = torch.zeros_like(q)
            cut(new).copy_(source)
            assert torch.equal(cut(new).dequantize(), source.dequantize())


def test_several_in_a_line():
    """As DistributedDataParallel sends them: each comes out as it went in, and nothing else does."""
    q, square, x = dt.quantize(values(6, 64), "nvfp4"), dt.quantize(values(32, 64), "nvfp4_16x16"), values(3, 5)
    several = [q, square, square.mT, x]
    line = torch.cat([each.reshape(-1) for each in several])
    assert line.shape == (sum(each.numel() for each in several),)
    first = 0
    for each in several:
        found = line.narrow(0, first, each.numel()).view(each.shape)
        assert torch.equal(found, x) if each is x else parts_of(found) == parts_of(each)
        first += each.numel()
    for wrong in (lambda: line[1:65], lambda: line.view(1, -1), lambda: line * 2, lambda: torch.cat([line, line]) + 1):
        with pytest.raises(NotImplementedError, match="across blocks"):
            wrong()


def test_another_dtype_leaves_the_parts_alone():
    q = dt.quantize(values(32, 64), "nvfp4")
    wide = q.to(torch.float32)
    assert (wide.dtype, q.dtype) == (torch.float32, torch.bfloat16)
    assert parts_of(wide) == parts_of(q)
    assert wide.dequantize().dtype == torch.float32
    module = torch.nn.Module()
    module.register_parameter("w", torch.nn.Parameter(q, requires_grad=False))
    module.half()
    assert module.w.dtype == torch.float16
    assert isinstance(module.w, torch.nn.Parameter)
    assert parts_of(module.w) == parts_of(q)


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


def test_a_parameter_made_by_its_type():
    """As accelerate makes one."""
    q = dt.quantize(values(32, 64), "nvfp4")
    made = type(q)(q, requires_grad=False)
    assert isinstance(made, torch.nn.Parameter)
    assert (made.requires_grad, parts_of(made)) == (False, parts_of(q))
    assert made.data_ptr() == q.data_ptr() == q.elements.data_ptr()
    with pytest.raises(TypeError, match=r"expected a ScaledTensor\. State dicts have its parts"):
        type(q)(values(32, 64), requires_grad=False)


def test_bytes_are_those_of_the_parts():
    for q in (dt.quantize(values(32, 64), "nvfp4"), dt.quantize(values(32, 64), "uint4_g32").mT):
        ours = [part for part in (q.elements, q.scales, q.global_scale, q.offsets) if part is not None]
        assert q.nbytes == sum(part.numel() * part.element_size() for part in ours)


def test_averages_leave_equal_weights_alone():
    own, other = ([dt.quantize(values(32, 64), "nvfp4"), values(4, dtype=torch.float32, seed=k)] for k in (1, 2))
    before, expected = parts_of(own[0]), torch.lerp(own[1], other[1], 0.25)
    torch._foreach_lerp_(own, other, 0.25)
    assert parts_of(own[0]) == before
    assert torch.equal(own[1], expected)
    torch._foreach_lerp_(own[:1], other[:1], 0.25)
    for odd in (values(32, 64), dt.quantize(values(32, 64, seed=1), "nvfp4"), dt.quantize(values(32, 64), "mxfp4")):
        with pytest.raises(NotImplementedError, match="only equal ones have an average"):
            torch._foreach_lerp_(own[:1], [odd], 0.25)
        with pytest.raises(NotImplementedError, match="only equal ones have an average"):
            torch._foreach_lerp_([odd], own[:1], 0.25)


def test_copies():
    q = dt.quantize(values(32, 64), "nvfp4")
    for made in (q.clone(), copy.deepcopy(q), copy.copy(q), pickle.loads(pickle.dumps(q)), q.detach(), q.to("cpu")):
        assert type(made) is ScaledTensor
        assert parts_of(made) == parts_of(q)
    assert q.clone().elements.data_ptr() != q.elements.data_ptr()
    target = torch.empty_like(q)
    assert target.copy_(q) is target
    assert parts_of(target) == parts_of(q)
    assert not torch.zeros_like(q).dequantize().any()
    shared = q.new_zeros((64, 64))
    assert shared.shape == (64, 64)
    assert not shared.dequantize().any()
    turned = copy.deepcopy(q.mT)
    assert torch.equal(turned.dequantize(), q.dequantize().mT)


def test_copies_keep_what_was_set_on_the_tensor():
    w = torch.nn.Parameter(dt.quantize(values(32, 64), "nvfp4"))
    w.note, w.grad = ["mine", w], values(32, 64)
    made = copy.deepcopy(w)
    assert isinstance(made, torch.nn.Parameter)
    assert made.requires_grad
    assert made.note == ["mine", made]  # a cycle, which the memo ends
    assert made.note is not w.note
    assert torch.equal(made.grad, w.grad)
    assert made.grad is not w.grad
    w.note = "mine"
    made = pickle.loads(pickle.dumps(w))
    assert (type(made), isinstance(made, torch.nn.Parameter)) == (ScaledTensor, True)
    assert (made.requires_grad, made.note) == (True, "mine")
    two = copy.deepcopy([w, w.detach()])
    assert two[0].elements.data_ptr() == two[1].elements.data_ptr() != w.elements.data_ptr()
    with pytest.raises(RuntimeError, match=r"copy its \.detach"):
        copy.deepcopy(dt.quantize(values(32, 64).requires_grad_(), "nvfp4"))


def test_copies_and_pickles_leave_an_order_that_is_not_the_tensors(monkeypatch):
    """As of prepared weights, which only a GPU makes: another layout stands in for theirs."""
    scaled = importlib.import_module("dlfp4.torch.scaled_tensor")

    def without_tiles(q):
        return ScaledTensor.from_dlfp4(scaled.restore(q).with_scale_layout("linear"), q.dtype)

    monkeypatch.setattr(scaled, "plain", without_tiles)
    q = torch.nn.Parameter(dt.quantize(values(32, 64), "nvfp4", scale_layout="128x4"), requires_grad=False)
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    for made in (copy.deepcopy(q), pickle.loads(pickle.dumps(q)), torch.load(file)):
        assert (made.form, made.encoding.scale_layout) == ("nvfp4", "linear")
        assert torch.equal(made.dequantize(), q.dequantize())
    q.share_memory_()
    assert q.encoding.scale_layout == "linear"


def test_data_and_memory_of_processes():
    q, other = dt.quantize(values(32, 64), "nvfp4"), dt.quantize(values(64, 64), "mxfp8_e4m3")
    assert q.data.elements.data_ptr() == q.elements.data_ptr()
    w = torch.nn.Parameter(q, requires_grad=False)
    w.data = other
    assert (w.shape, w.format) == ((64, 64), "mxfp8_e4m3")
    assert isinstance(w, torch.nn.Parameter)
    assert same(w, other.to_dlfp4())
    with pytest.raises(TypeError, match=r"quantize it first, by dlfp4\.torch\.quantize"):
        w.data = values(64, 64)
    want = w.dequantize()
    assert not w.is_shared()
    assert w.share_memory_().is_shared()
    assert torch.equal(w.dequantize(), want)
    address = w.elements.data_ptr()
    assert w.share_memory_().elements.data_ptr() == address


def test_torch_save_and_load():
    q = dt.quantize(values(32, 64), "nvfp4", hadamard=3)
    module = torch.nn.Module()
    module.register_buffer("b", q)
    module.register_parameter("w", torch.nn.Parameter(q.mT, requires_grad=False))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file)  # weights_only
    assert parts_of(loaded["b"]) == parts_of(q)
    assert loaded["b"].encoding == q.encoding
    assert torch.equal(loaded["w"].dequantize(), q.dequantize().mT)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.b.copy_(dt.quantize(values(32, 64, seed=7), "nvfp4", hadamard=3))
    other.load_state_dict(loaded)
    assert parts_of(other.b) == parts_of(q)


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


# Functorch's jvp imports decompositions that PyTorch itself scripts.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
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


def test_encode_scales_of_experts_are_sliced():
    q = dlfp4.quantize(np.ones((4, 16, 32), np.float32), "nvfp4")
    numbers = np.array([1234.567, 3.3, 0.9, 2.0], np.float32)
    q = dlfp4.ScaledTensor.from_parts(q.data, q.scales, format="nvfp4", shape=q.shape, encode_scale=numbers)
    experts = dlfp4.torch.ScaledTensor.from_dlfp4(q)
    assert experts[1:3].encode_scale.tolist() == numbers[1:3].tolist()
    assert (experts[2].encode_scale.shape, experts[2].encode_scale.item()) == ((), numbers[2])


def test_transformed_lines_are_cut_between_groups():
    q = dt.quantize(values(48, 48, dtype=torch.float32), "fp8_row", hadamard=3)
    assert torch.equal(q[:, 16:].dequantize(), q.dequantize()[:, 16:])
    with pytest.raises(ValueError, match="multiples of 16 columns"):
        q[:, 8:24]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(
    "name", ["nvfp4", "mxfp8_32x32", "fp8_e4m3", "fp8_row", "fp8_128x128", "int4_row", "uint4_g32"]
)
def test_nothing_is_a_tensor_too(name, axis):
    q = dt.quantize(values(256, 128, dtype=torch.float32), name, axis=axis)
    for key in (np.s_[5:5], np.s_[256:], np.s_[:, 7:7], np.s_[:, 128:]):
        assert q[key].dequantize().shape == q.dequantize()[key].shape
        assert dlfp4.asarray(q[key]).scales.shape == dlfp4.asarray(q)[key].scales.shape


def test_nothing_of_a_stack():
    """Wherever it is taken, with lines that end with whole blocks."""
    ours = dlfp4.quantize(values(2, 3, 40, dtype=torch.float32), "mxfp8_e4m3", pad=True)
    q = ScaledTensor.from_dlfp4(ours)
    for key in (np.s_[:, 1:1], np.s_[:, :, 8:8], np.s_[2:], np.s_[2:, 1:2], np.s_[:0, :, :8]):
        assert same(q[key], ours[key])
    assert same(q[:0].view(0, 40), ours[:0])
    with pytest.raises(NotImplementedError, match="the last dimension stays"):
        q[:, :, :0].view(5, 0)


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


@pytest.mark.parametrize("format", ["nvfp4", "fp8_e4m3", "mxfp4"])
def test_what_is_made_of_tensors_has_memory_of_its_own(format):
    """Also for the scale that all have."""
    q, other = (dt.quantize(values(3, 16, 64, seed=seed) * 4**seed, format) for seed in (0, 1))
    for make in (
        lambda q: torch.cat([q, q]),
        lambda q: torch.cat([q, q[:0]]),
        lambda q: torch.stack([q[0], q[0]]),
        lambda q: q[torch.tensor([2, 0])],
        lambda q: q[0][:, :32].reshape(-1),
    ):
        source = q.clone()
        made = make(source)
        before = made.dequantize()
        source.copy_(other)
        assert torch.equal(made.dequantize(), before)


def test_tensors_along_two_axes_have_memory_of_their_own():
    x, other = values(32, 64), values(32, 64, seed=1) * 8
    rows, columns = dt.quantize(x, "nvfp4", axis=(-1, -2))
    before = columns.dequantize()
    rows.copy_(dt.quantize(other, "nvfp4"))
    assert torch.equal(columns.dequantize(), before)
    for options in ({"axis": (-1, -2)}, {"axis": (-2, -1)}, {"axis": (-1, -2), "hadamard": 3}):
        given = dt.quantize(x, "nvfp4", **options)
        assert dt.quantize(other, "nvfp4", **options, out=given) is given
        for q, ours in zip(given, dlfp4.quantize(other, "nvfp4", **options), strict=True):
            assert same(q, ours)


def test_transposed_stacks_to_and_from_dlfp4():
    ours = dlfp4.quantize(values(2, 16, 64), "nvfp4").mT
    q = ScaledTensor.from_dlfp4(ours)
    assert (q.turned, q.axis, q.shape) == (True, -2, (2, 64, 16))
    assert same(q.mT, ours.mT)
    assert torch.equal(ScaledTensor.from_dlfp4(q.to_dlfp4()).dequantize(), q.dequantize())


def test_columns_that_end_within_a_byte_are_not_taken_apart():
    target = dt.quantize(values(2, 32, 5), "int4_row", pad=True).mT
    with pytest.raises(ValueError, match="cannot be copied into"):
        target.copy_(dt.quantize(values(2, 5, 32), "int4_row", axis=-2))


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
