"""PyTorch's tensors that are not what their memory says, its subclasses, and memory that it takes away."""

import numpy as np
import pytest

import dlfp4

from ..support.capsules import flushed_subnormals, framework
from ..support.reference import raw_bytes


def conjugate(torch):
    return torch.randn(4, dtype=torch.complex64).conj()


def negated(torch):
    return torch.randn(4, dtype=torch.complex64).conj().imag  # a float32 view with the neg bit


def wants_grad(torch):
    return torch.randn(4, requires_grad=True)


def negated_subclass(torch):
    """Which PyTorch's own `__dlpack__` hands out without a word."""
    return negated(torch).as_subclass(type("Sub", (type("Base", (torch.Tensor,), {}),), {}))


def a_parameter(torch):
    return torch.nn.Parameter(torch.randn(4))


REFUSED = [
    (conjugate, ".resolve_conj()"),
    (negated, ".resolve_neg()"),
    (wants_grad, ".detach()"),
    (negated_subclass, ".resolve_neg()"),
    (a_parameter, ".detach()"),
]
ENTRIES = {
    "from_dlpack": dlfp4.from_dlpack,
    "asarray": dlfp4.asarray,
    "borrowed": lambda x: dlfp4.cast(x, "bfloat16"),  # ops read their input through the C exchange API
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(("make", "remedy"), REFUSED)
def test_torch_tensors_that_are_not_what_their_memory_says(make, remedy, entry):
    tensor = make(framework("torch"))
    with pytest.raises(BufferError) as refusal:
        ENTRIES[entry](tensor)
    assert remedy in str(refusal.value)
    solved = getattr(tensor, remedy.strip(".()"))()
    if entry != "borrowed" or not solved.is_complex():
        ENTRIES[entry](solved)


DIFFERENTIABLE = [
    "float64", "float32", "float16", "bfloat16", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
]  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_gradient_is_asked_for_in_every_type_that_may_have_one(name):
    torch = framework("torch")
    plain = torch.zeros(4, 16, dtype=torch.uint8).view(getattr(torch, name))
    assert dlfp4.from_dlpack(plain).data_ptr == plain.data_ptr()
    with pytest.raises(BufferError, match=r"requires_grad bit is set.*call \.detach\(\) first"):
        dlfp4.from_dlpack(plain.requires_grad_())


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "complex64", "complex128"])
def test_a_negation_is_asked_for_in_every_type_that_may_have_one(name):
    torch = framework("torch")
    plain = torch.ones(4, dtype=getattr(torch, name))
    with pytest.raises(BufferError, match=r"is_neg bit is set.*call \.resolve_neg\(\) first"):
        dlfp4.from_dlpack(torch._neg_view(plain))
    assert dlfp4.from_dlpack(torch._neg_view(plain).resolve_neg()).to_numpy()[0] == -1


def test_a_plain_tensor_is_taken_after_a_refused_one():
    """The refusal must not be remembered for the type."""
    torch = framework("torch")
    for make, _ in REFUSED:
        with pytest.raises(BufferError):
            dlfp4.from_dlpack(make(torch))
        plain = torch.randn(4)
        assert dlfp4.from_dlpack(plain).data_ptr == plain.data_ptr()


def test_torch_subclasses_answer_for_themselves():
    """They inherit torch's exchange table, so the exact type decides whether it may be used."""
    torch = framework("torch")
    asked = []

    class Secret(torch.Tensor):
        def __dlpack__(self, **kwargs):
            asked.append(kwargs)
            return super().__dlpack__(**kwargs)

    plain = torch.randn(4)
    dlfp4.from_dlpack(plain)
    tensor = dlfp4.from_dlpack(plain.as_subclass(Secret))
    assert len(asked) == 1
    assert tensor.data_ptr == plain.data_ptr()


@pytest.mark.parametrize("wrap", ["Parameter", "Buffer", "subclass"])
def test_harmless_torch_subclasses(wrap):
    torch = framework("torch")
    plain = torch.randn(2, 3)
    wrapped = {
        "Parameter": lambda: torch.nn.Parameter(plain, requires_grad=False),
        "Buffer": lambda: torch.nn.Buffer(plain),
        "subclass": lambda: plain.as_subclass(type("Sub", (torch.Tensor,), {})),
    }[wrap]()
    for entry in (dlfp4.from_dlpack, dlfp4.asarray):
        tensor = entry(wrapped)
        assert tensor.data_ptr == plain.data_ptr()
        assert tensor.to_numpy().tobytes() == plain.numpy().tobytes()


def give_other_storage(source):
    source.set_(framework("torch").zeros(1000))


def assign_data(source):
    source.data = framework("torch").zeros(1000)


def grow(source):
    source.resize_(1 << 20)


def give_storage_back(source):
    source.untyped_storage().resize_(0)


@pytest.mark.parametrize("change", [give_other_storage, assign_data, grow, give_storage_back])
def test_memory_that_torch_took_away_is_never_read(change):
    """PyTorch frees or exchanges memory under every view of it; what is gone is refused, by name, at each use."""
    torch = framework("torch")
    source = torch.arange(1000, dtype=torch.float32) + 1
    tensor = dlfp4.from_dlpack(source)
    part = tensor[10:20]
    assert part.tolist() == list(range(11, 21))
    change(source)
    for view in (tensor, part):
        for use in (view.to_numpy, view.copy, view.tolist, view.__dlpack__, lambda v=view: dlfp4.cast(v, "bfloat16")):
            with pytest.raises(BufferError, match="import it again"):
                use()
    assert (tensor.shape, part.shape) == ((1000,), (10,))


def test_pairs_and_single_elements_that_torch_took_away_are_never_read():
    """What is empty has no memory that could be taken."""
    torch = framework("torch")
    pairs = torch.zeros(4, 8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    single, none = torch.ones(64), torch.ones(64)
    gone = [dlfp4.from_dlpack(x) for x in (pairs, single[9:10])]
    empty = dlfp4.from_dlpack(none)[5:5]
    for x in (pairs, single, none):
        x.untyped_storage().resize_(0)
    for tensor in gone:
        for use in (tensor.copy, tensor.__dlpack__, lambda t=tensor: dlfp4.cast(t, "float32")):
            with pytest.raises(BufferError, match="import it again"):
                use()
    assert (empty.to_numpy().tolist(), empty.copy().tolist()) == ([], [])


@pytest.mark.parametrize("part", ["data", "scales", "global_scale"])
def test_parts_that_torch_took_away_are_never_read(part):
    torch = framework("torch")
    parts = {"data": torch.zeros(4, 64, dtype=torch.uint8), "scales": torch.zeros(4, 8, dtype=torch.uint8)}
    parts["global_scale"] = torch.ones(())
    q = dlfp4.ScaledTensor.from_parts(*parts.values(), format="nvfp4")
    parts[part].set_()
    uses = [lambda: dlfp4.dequantize(q), lambda: dlfp4.vecdot(q, q)]
    if part != "global_scale":  # which is only written, where x has none
        uses += [lambda: dlfp4.matmul(np.ones((2, 128), "float32"), q.mT)]
    if part == "scales":
        uses += [lambda: q.with_scale_layout("128x4")]
    for use in (*uses, lambda: dlfp4.quantize(np.ones((4, 128), "float32"), "nvfp4", out=q)):
        with pytest.raises(BufferError, match="import it again"):
            use()


def test_memory_that_is_gone_overlaps_nothing():
    """What lies there now is another tensor's: the error is that the first one's is gone."""
    torch = framework("torch")
    memory = torch.arange(1024, dtype=torch.float32)

    def borrowed(elements):
        part = memory[:elements]
        tensor = dlfp4.from_dlpack(part)
        part.set_()
        return tensor

    scale = memory[7]
    parts = torch.zeros(4, 64, dtype=torch.uint8), torch.zeros(4, 8, dtype=torch.uint8), scale
    q = dlfp4.ScaledTensor.from_parts(*parts, format="nvfp4")
    scale.set_()
    given = dlfp4.quantize(memory.reshape(4, 256), "mxfp4")
    half = dlfp4.ScaledTensor.from_parts(
        memory[:64].view(torch.uint8).reshape(4, 64), given.scales[:, :4], format="mxfp4"
    )
    for use in (
        lambda: dlfp4.quantize(memory[:512].reshape(4, 128), "nvfp4", out=q),
        lambda: dlfp4.cast(memory[4:20], "float32", out=borrowed(16)),
        lambda: dlfp4.dequantize(half, out=borrowed(512).reshape((4, 128))),
        lambda: dlfp4.matmul(memory[:512].reshape(4, 128), half.mT, out=borrowed(16).reshape((4, 4))),
    ):
        with pytest.raises(BufferError, match="import it again"):
            use()


HAND_ON = {
    "to_numpy": lambda tensor: tensor.to_numpy(),
    "capsule": np.from_dlpack,
    "view": lambda tensor: tensor.reshape((1 << 10, 1 << 10)).to_numpy(),
}


@pytest.mark.parametrize("change", [give_other_storage, assign_data])
@pytest.mark.parametrize("way", HAND_ON)
def test_what_was_handed_on_keeps_its_memory(way, change):
    torch = framework("torch")
    source = torch.arange(1 << 20, dtype=torch.float32) + 1
    before = source.numpy().tobytes()
    array = HAND_ON[way](dlfp4.from_dlpack(source))
    change(source)
    litter = [torch.full((1 << 20,), 7.0) for _ in range(4)]  # whoever freed the storage sees it written over
    assert array.tobytes() == before
    assert len(litter) == 4


@pytest.mark.parametrize("change", ["resize_(500)", "t_()", "add_(1)"])
def test_changes_that_leave_the_memory_are_no_matter(change):
    torch = framework("torch")
    source = torch.arange(1000, dtype=torch.float32) + 1
    head = dlfp4.from_dlpack(source)[:400]
    {"resize_(500)": lambda: source.resize_(500), "t_()": source.t_, "add_(1)": lambda: source.add_(1)}[change]()
    assert head.to_numpy().tobytes() == source[:400].numpy().tobytes()


def test_a_tensor_that_became_another():
    torch = framework("torch")

    class Other(torch.Tensor):
        """A class with rules of its own."""

    x = torch.arange(1.0, 9.0)
    tensor = dlfp4.from_dlpack(x)
    x.__class__ = Other
    for use in (tensor.to_numpy, tensor.to_torch, tensor.__dlpack__, lambda: dlfp4.cast(tensor, "bfloat16")):
        with pytest.raises(BufferError, match=r"has become a .*Other .* import it again"):
            use()
    assert dlfp4.from_dlpack(x.detach()).to_numpy().tolist() == list(range(1, 9))


def test_parameters():
    """Also what becomes one, as PyTorch's lazy parameters do."""
    torch = framework("torch")
    x = torch.arange(1.0, 9.0)
    tensor = dlfp4.from_dlpack(x)
    x.__class__ = torch.nn.Parameter
    x.mul_(2)
    for held in (tensor, dlfp4.from_dlpack(torch.nn.Parameter(x, requires_grad=False))):
        assert (held.tolist(), held.data_ptr) == ([2.0 * i for i in range(1, 9)], x.data_ptr())
    with pytest.raises(BufferError, match=r"requires_grad bit is set.*call \.detach\(\) first"):
        dlfp4.from_dlpack(torch.nn.Parameter(torch.ones(3)))


def test_subnormals_where_pytorch_flushes_them():
    """In the scales of a whole tensor, too, and in numbers that are given."""
    torch = framework("torch")
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)) * 1e-36
    large, half = np.full((4, 64), 1e30, np.float32), np.full((4, 64), 1e15, np.float32)
    tiny = dlfp4.ScaledTensor.from_parts(np.full((4, 64), 0x38, np.uint8), 1e-40, format="fp8_e4m3")

    def run():
        results = []
        for name in ("nvfp4", "fp8_e4m3", "mxfp4"):
            q = dlfp4.quantize(x, name)
            parts = [part for part in (q.data, q.scales, q.global_scale, q.dequantize()) if part is not None]
            results += [raw_bytes(part) for part in parts]
        q = dlfp4.quantize(x, "nvfp4", global_scale=5e-39)
        results += [raw_bytes(q.data), raw_bytes(q.scales), raw_bytes(q.global_scale)]
        results += [
            raw_bytes(dlfp4.matmul(half, half.T, alpha=1e-40)),
            raw_bytes(dlfp4.grouped_matmul(half, half[None].swapaxes(1, 2), np.array([4]), alpha=1e-40)),
        ]
        return [*results, raw_bytes(dlfp4.vecdot(tiny, large)), raw_bytes(dlfp4.matmul(large, tiny.mT))]

    expected = run()
    with flushed_subnormals(torch):
        flushed = run()
    assert flushed == expected
    assert all(any(expected[k]) for k in (3, -4, -3, -2, -1))
