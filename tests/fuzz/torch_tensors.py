"""A target of dlfp4.torch.ScaledTensor: views of views, copies, joined ones, and what is written to them.

The model is an array of the values, of which NumPy makes the same views; whatever shares memory there, shares it here.
"""

import copy
import importlib
import io
import math
import pickle
from dataclasses import dataclass

import calls
import numpy as np
import torch

import dlfp4

dt = importlib.import_module("dlfp4.torch")
REFUSALS = (BufferError, IndexError, NotImplementedError, TypeError, ValueError)
MOST = 12  # tensors at a time
BORDERS = [0, 1, 2, 16, 32, 64, 128]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@dataclass
class Held:
    """A tensor, and the values that it has to have."""

    tensor: dt.ScaledTensor
    values: np.ndarray

    def check(self):
        assert isinstance(self.tensor, dt.ScaledTensor), type(self.tensor)
        assert tuple(self.tensor.shape) == self.values.shape, (self.tensor, self.values.shape)
        if not self.values.size and self.tensor.global_scale is not None:  # whose number says of what they are
            return
        if not (self.tensor.turned and self.tensor.dim() > 2 and self.tensor.axis == -1):  # which the package has not
            assert self.tensor.axis == self.tensor.to_dlfp4().axis
        found = self.tensor.dequantize(torch.float32).numpy()
        assert np.array_equal(found, self.values, equal_nan=True), self.tensor

    def copied(self, tensor):
        return Held(tensor, self.values.copy())


def made(rng, shape=None, name=None):
    """A tensor of any format."""
    shape = calls.shape_of(rng, rng.choice([1, 2, 2, 2, 3, 3, 4])) if shape is None else shape
    try:
        q = calls.quantized(rng, shape, name)
    except ValueError:
        return made(rng)
    tensor = dt.ScaledTensor.from_dlfp4(q, rng.choice(DTYPES))
    return Held(tensor, q.dequantize().to_numpy().copy())


def refused_by_both(function, eager):
    """A step; what PyTorch's tensor refuses the package's has to refuse as well, but a cut within a byte: PyTorch's has
    bytes for zero points of 4 bits.
    """
    try:
        return function()
    except REFUSALS as error:
        if "lie two a byte" in str(error):
            raise
        try:
            eager()
        except REFUSALS:
            raise error from None
        raise AssertionError(f"the package's tensor takes what PyTorch's refuses: {error!r}") from error


# ---- Views


def border(rng, extent):
    return rng.choice([None, *BORDERS, extent, -1, -16, 200])


def sliced(held, rng):
    """Slices and matrices."""
    key = []
    for place in range(rng.randrange(held.values.ndim + 1)):
        if place < held.values.ndim - 2 and rng.random() < 0.5:
            key.append(rng.randrange(-1, max(1, held.values.shape[place])))
        else:
            key.append(slice(border(rng, held.values.shape[place]), border(rng, held.values.shape[place])))
    if rng.random() < 0.2:
        key.insert(0, ...)
    key, whole = tuple(key), held.tensor
    if held.values[key].size and sum(each not in (..., slice(None)) for each in key) == 1:
        tensor = refused_by_both(lambda: whole[key], lambda: whole.to_dlfp4()[key])
    else:  # PyTorch takes one dimension after the other
        tensor = whole[key]
    return Held(tensor, held.values[key])


def turned(held, rng):
    """The last two dimensions exchanged."""
    if held.values.ndim < 2:
        raise ValueError("one dimension")
    ways = [lambda q: q.mT, lambda q: q.transpose(-1, -2), lambda q: q.permute(*range(q.dim() - 2), -1, -2)]
    if held.values.ndim == 2:
        ways += [lambda q: q.t(), lambda q: q.T]
    return Held(rng.choice(ways)(held.tensor), held.values.swapaxes(-1, -2))


def same(held, rng):
    """The tensor over the same memory."""
    ways = [
        lambda q: q.detach(),
        lambda q: q.data,
        lambda q: q.view(q.shape),
        lambda q: q.contiguous(),
        lambda q: q if q.lent else dt.ScaledTensor.from_dlfp4(q.to_dlfp4()),
        lambda q: q if q.lent else dt.ScaledTensor.__tensor_unflatten__(
            {name: getattr(q, name) for name in q.__tensor_flatten__()[0]},
            q.__tensor_flatten__()[1], q.shape, q.stride(),
        ),
        lambda q: torch.as_strided(q, q.shape, q.stride(), 0),
    ]  # fmt: skip
    tensor = rng.choice(ways)(held.tensor)
    return held if tensor is held.tensor else Held(tensor, held.values)


def reshaped(held, rng):
    """Leading dimensions joined or taken apart, one more, one less."""
    *leading, length = held.values.shape
    count = math.prod(leading)
    shapes = [(count, length), (1, *held.values.shape), (*leading, 1, length), (-1, length), (count * length,)]
    shapes += [(2, count // 2, length)] if count % 2 == 0 else []
    shape = rng.choice(shapes)
    if -1 in shape and not length:
        shape = shapes[0]
    way = rng.choice([lambda q: q.view(shape), lambda q: q.reshape(shape)])
    tensor = way(held.tensor)
    if not isinstance(tensor, dt.ScaledTensor):  # a line, to be put back
        tensor = tensor.view(held.values.shape)
        return Held(tensor, held.values)
    return Held(tensor, held.values.reshape(shape))


def squeezed(held, rng):
    if rng.random() < 0.5:
        return Held(held.tensor.unsqueeze(0), held.values[None])
    return Held(held.tensor.squeeze(0), held.values[0] if held.values.shape[0] == 1 else held.values)


def divided(held, rng):
    """One of some parts."""
    dim = rng.randrange(-held.values.ndim, held.values.ndim)
    extent = held.values.shape[dim]
    how = rng.randrange(5)
    if how == 0 and dim % held.values.ndim == 0 and held.values.ndim > 2:
        many, others = held.tensor.unbind(0), list(held.values)
    elif how == 1:
        first = rng.choice([each for each in BORDERS if each <= extent])
        sizes = [first, extent - first]
        many, others = held.tensor.split(sizes, dim), np.split(held.values, [first], dim)
    elif how == 2:
        first = rng.choice([each for each in BORDERS if each <= extent])
        many = [held.tensor.narrow(dim, first, extent - first)]
        others = np.split(held.values, [first], dim)[1:]
    else:
        size = rng.choice([each for each in BORDERS if each])
        many = held.tensor.split(size, dim)
        others = np.split(held.values, range(size, extent, size), dim)
    assert len(many) == len(others), (len(many), len(others))
    place = rng.randrange(len(many)) if many else None
    return held if place is None else Held(many[place], others[place])


# ---- Copies


def saved(q):
    file = io.BytesIO()
    torch.save({"q": q}, file)
    file.seek(0)
    return torch.load(file)["q"]


def copied(held, rng):
    """A copy in memory of its own."""
    ways = [
        torch.clone,
        copy.deepcopy,
        lambda q: pickle.loads(pickle.dumps(q)),
        saved,
        lambda q: q.to(rng.choice(DTYPES), copy=True),
        lambda q: torch.empty_like(q).copy_(q),
        lambda q: torch.zeros_like(q).copy_(q),
        lambda q: q.new_empty(q.shape).copy_(q),
        lambda q: q.new_zeros(q.shape).copy_(q),
    ]
    return held.copied(rng.choice(ways)(held.tensor))


def joined(held, rng):
    """Several as one, without a rounding."""
    if held.values.ndim < 2:
        raise ValueError("one dimension")
    dim = rng.randrange(-held.values.ndim, held.values.ndim)
    many = [held]
    for _ in range(rng.randrange(1, 3)):
        shape = list(held.values.shape)
        if rng.random() < 0.4:
            shape[dim] = rng.choice([1, 16, 32, 128])
        many.append(held if rng.random() < 0.5 else variant_of(held, rng, shape))
    tensors, values = [each.tensor for each in many], [each.values for each in many]
    if rng.random() < 0.3 and len({each.values.shape for each in many}) == 1:
        return Held(torch.stack(tensors), np.stack(values))
    return Held(torch.cat(tensors, dim), np.concatenate(values, dim))


def variant_of(held, rng, shape):
    """A tensor of the same format and orientation, of any values."""
    q = held.tensor
    shape = (*shape[:-2], shape[-1], shape[-2]) if q.turned else tuple(shape)
    x = calls.values(rng, shape)
    unit = {} if q.global_scale is None or q.global_scale.dim() else {"global_scale": q.global_scale}
    new = dt.quantize(torch.from_numpy(x), q.format, axis=q.encoding.axis, pad=True, **unit)
    values = new.dequantize(torch.float32).numpy().copy()
    return Held(new.mT, values.swapaxes(-1, -2)) if q.turned else Held(new, values)


def numbered(held, rng):
    """Copies of some matrices of a stack."""
    numbers = torch.tensor(
        [rng.randrange(max(1, held.values.shape[0])) for _ in range(rng.randrange(4))], dtype=torch.int64
    )
    tensor = held.tensor[numbers] if rng.random() < 0.5 else held.tensor.index_select(0, numbers)
    return Held(tensor, held.values[numbers.numpy()])


VIEWS = [sliced, sliced, sliced, turned, same, reshaped, squeezed, divided, copied, joined, numbered]


# ---- Writes


def write(held, rng, given):
    """A copy into a tensor: its own memory and that of all its views, or a refusal, and nothing."""
    shape = list(held.values.shape)
    source = rng.choice([lambda: rng.choice(given), lambda: variant_of(held, rng, shape), lambda: copied(held, rng)])()
    before, address = held.tensor.form, held.tensor.data_ptr()
    try:
        with torch.no_grad():
            held.tensor.copy_(source.tensor)
    except RuntimeError as error:
        if "refer to a single memory location" not in str(error):
            raise
        raise ValueError("memory that overlaps") from error
    values = source.values.copy()
    if held.tensor.data_ptr() == address and held.tensor.form == before:
        held.values[...] = values
    else:  # other parts: former views keep what they have
        held.values = values


# ---- Products and modules


def multiplied(held, rng):
    """The bytes of the package's product, whoever is asked for it."""
    q = held.tensor
    x = torch.from_numpy(calls.values(rng, (rng.choice([1, 2, 17]), held.values.shape[-1]), is_finite=True))
    x = x.to(rng.choice([torch.float32, torch.bfloat16, torch.float16]))
    if q.dim() != 2 and q.dim() != 3:
        return
    if q.dim() == 3:
        many = x.expand(q.shape[0], *x.shape)
        assert same_bits(torch.bmm(many, q.mT), torch.stack([x @ each.mT for each in q]) if len(q) else None)
        return
    ways = [
        lambda: torch.nn.functional.linear(x, q),
        lambda: x @ q.mT,
        lambda: torch.mm(x, q.t()),
        lambda: dt.matmul(x, q.mT),
    ]
    with rng.choice([torch.no_grad, torch.enable_grad, torch.inference_mode])():
        found = rng.choice(ways)()
    assert same_bits(found, torch.from_dlpack(dlfp4.matmul(x, q.to_dlfp4().mT)))


def same_bits(found, expected):
    """Whether two tensors are equal, bit for bit, but for NaNs."""
    return expected is None or (
        found.dtype == expected.dtype and torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
    )


def kind_of(q):
    """What a layer's weight and one that it loads have in common."""
    return q.form, q.scales.dtype, None if q.global_scale is None else q.global_scale.shape


def loaded(held, rng):
    """A layer whose weight goes through a state dict, by the names of a convention."""
    rows, columns = held.values.shape
    others = [name for name in dlfp4.checkpoints.CONVENTIONS if name != "mlx"]  # whose bits real codes tell, not any
    convention = rng.choice([None, *others])
    options = {"format": held.tensor.format, "convention": convention, "bias": rng.random() < 0.5}
    layer, other = (dt.Linear(columns, rows, **options) for _ in range(2))
    if not held.values.size or held.tensor.turned or kind_of(layer.weight) != kind_of(held.tensor):
        raise ValueError("another form than such a layer's")
    layer.weight = torch.nn.Parameter(held.tensor, requires_grad=False)
    state = layer.state_dict()
    other.load_state_dict(state, assign=rng.random() < 0.5)
    if convention is None:
        Held(other.weight, held.values).check()
    elif np.abs(held.values).max() < 1e30:  # some store reciprocals, or biases that may be larger than values
        near = {"rtol": 1e-5, "atol": 1e-5 * np.abs(held.values).max()}
        assert np.allclose(other.weight.dequantize().numpy(), held.values, **near), convention


# ---- The target


def shares_memory(view, q):
    """Whether codes of one lie among those of another: as of plain tensors, some shapes are views and others copies."""
    first = q.elements.data_ptr()
    extents = zip(q.elements.shape, q.elements.stride(), strict=True)
    return first <= view.elements.data_ptr() < first + 1 + sum((extent - 1) * stride for extent, stride in extents)


def tensors(rng):
    """Steps in any order."""
    held, steps = [made(rng)], 0
    for _ in range(rng.randrange(3, 14)):
        each = rng.choice(held)
        try:
            if rng.random() < 0.25:
                write(each, rng, held)
            elif rng.random() < 0.2:
                (loaded if each.values.ndim == 2 and rng.random() < 0.3 else multiplied)(each, rng)
            else:
                view = rng.choice(VIEWS)(each, rng)
                if not isinstance(view.tensor, dt.ScaledTensor):  # on the way to a product
                    continue
                held.append(view if shares_memory(view.tensor, each.tensor) else view.copied(view.tensor))
                held[-1].check()
        except REFUSALS:
            continue
        steps += 1
        if len(held) > MOST or rng.random() < 0.1:
            del held[: rng.randrange(len(held))]
        for one in held:
            one.check()
    return steps > 2


TARGETS = {"torch_tensors": tensors}
