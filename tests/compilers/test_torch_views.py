"""Views, slices, joins and copies of ``dlfp4.torch.ScaledTensor``: which values they have, and whose memory."""

import copy
import importlib
import io
import pickle
from contextlib import nullcontext

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
    with pytest.raises(
        NotImplementedError, match=r"elements have no strides.* compiled graph: take it before, or .*clone"
    ):
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


def test_a_parameter_made_by_its_type():
    """As accelerate makes one."""
    q = dt.quantize(values(32, 64), "nvfp4")
    made = type(q)(q, requires_grad=False)
    assert isinstance(made, torch.nn.Parameter)
    assert (made.requires_grad, parts_of(made)) == (False, parts_of(q))
    assert made.data_ptr() == q.data_ptr() == q.elements.data_ptr()
    with pytest.raises(TypeError, match=r"expected a ScaledTensor\. State dicts have its parts"):
        type(q)(values(32, 64), requires_grad=False)


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


def test_columns_that_end_within_a_byte_are_not_taken_apart():
    target = dt.quantize(values(2, 32, 5), "int4_row", pad=True).mT
    with pytest.raises(ValueError, match="cannot be copied into"):
        target.copy_(dt.quantize(values(2, 5, 32), "int4_row", axis=-2))
