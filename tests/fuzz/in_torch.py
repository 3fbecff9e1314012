"""A target of dlfp4.torch's operations: the bytes of the package's own, whatever strides memory has, or its refusals.

The same under autograd, whose gradients are those of decoded operands, and of batches under torch.func.vmap.
"""

import contextlib
import importlib
from random import Random

import calls
import derivatives
import numpy as np
import torch
from calls import FLOATS, PRODUCTS, outcome
from capsules import DTYPES

import dlfp4

dt = importlib.import_module("dlfp4.torch")
functions = importlib.import_module("dlfp4.torch.functions")
PAIRS = torch.float4_e2m1fn_x2
OWN = {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name) and DTYPES[name][1] >= 8}


# ---- Operands


def bits_of(name):
    return DTYPES[name][1]


def ends_on_bytes(shape, name):
    """Whether rows of packed elements are whole bytes, as PyTorch counts them."""
    return bits_of(name) >= 8 or (len(shape) > 0 and shape[-1] * bits_of(name) % 8 == 0)


def octets_of(x):
    """The bytes of a Tensor, in order."""
    whole = x.copy()
    whole = whole.reshape(-1) if whole.ndim else whole.reshape((1,))
    return whole.view("uint8").to_numpy().reshape(-1)


def plain(rng, x, strides):
    """A Tensor of PyTorch, or Parts of what it has no type for; of any strides, "own" ones of what it has types for, or
    "none".
    """
    x = dlfp4.asarray(x)
    name, shape = x.dtype.name, x.shape
    if bits_of(name) < 8 and x.packed:
        shape = (*shape[:-1], shape[-1] * bits_of(name) // 8)
    found = torch.empty(shape, dtype=OWN.get(name, torch.uint8))
    if found.numel():
        found.reshape(-1).view(torch.uint8)[:] = torch.from_numpy(octets_of(x).copy())
    if bits_of(name) < 8 and x.packed:
        found = with_strides(rng, found, keeps_rows=True) if strides == "any" else found
        return found.view(PAIRS) if name == "float4_e2m1fn" and rng.random() < 0.7 else dt.Parts(found, type=name)
    if strides == "any" or (strides == "own" and name in OWN):
        found = with_strides(rng, found)
    if name in OWN:
        return found
    return dt.Parts(found, type=f"{name}/padded" if bits_of(name) < 8 else name)


def with_strides(rng, x, keeps_rows=False):
    """The same elements elsewhere: within larger memory, between others, or with dimensions in another order."""
    how = rng.random()
    if how < 0.5 or not x.dim() or not x.numel():
        return x
    if how < 0.65 and not keeps_rows:
        order = rng.sample(range(x.dim()), x.dim())
        back = [order.index(dim) for dim in range(x.dim())]
        return x.permute(order).contiguous().permute(back)
    step, unit = (1, 3) if keeps_rows else (rng.choice([1, 1, 2, 3]), 1)  # rows of FP6 are in steps of 3 bytes
    cuts = [(rng.randrange(3) * unit, extent * step) for extent in x.shape]
    whole = torch.zeros([(first + count + unit) // unit * unit for first, count in cuts], dtype=x.dtype)
    view = whole[tuple(slice(first, first + count, step) for first, count in cuts)]
    view.copy_(x)
    return view


def for_torch(rng, x, strides):
    """An operand as PyTorch has it; None of what it cannot hold."""
    if isinstance(x, dlfp4.ScaledTensor):
        found = dt.ScaledTensor.from_dlfp4(x, rng.choice([torch.float32, torch.bfloat16, torch.float16]))
        return found if strides != "none" and rng.random() < 0.6 else found.__dlfp4_parts__()
    if isinstance(x, dlfp4.Tensor) and x.packed and not ends_on_bytes(x.shape, x.dtype.name):
        return None
    return plain(rng, x, strides)


def options_for(rng, options):
    """Types as PyTorch's."""
    return {
        name: OWN[value] if name in ("dtype", "out_dtype") and value in OWN and rng.random() < 0.5 else value
        for name, value in options.items()
    }


# ---- Results


def check(expected, found):
    """Whether a result is what the package gives."""
    if isinstance(expected, tuple):
        assert len(expected) == len(found)
        for pair in zip(expected, found, strict=True):
            check(*pair)
    elif isinstance(expected, dlfp4.ScaledTensor):
        check_parts(expected, found)
    else:
        shape, dtype = described(expected)
        assert (tuple(found.shape), found.dtype) == (shape, dtype), (found.shape, found.dtype, shape, dtype)
        assert octets(found).tobytes() == octets_of(expected).tobytes(), "other bytes"


def octets(x):
    """The bytes of a tensor, in order."""
    if x.dtype == PAIRS:
        x = x.view(torch.uint8)
    return x.detach().reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy()


def described(x):
    """Shape and type in PyTorch of what is as a Tensor."""
    name, shape = x.dtype.name, x.shape
    if bits_of(name) < 8 and x.packed:
        shape = (*shape[:-1], shape[-1] * bits_of(name) // 8)
        return shape, PAIRS if name == "float4_e2m1fn" else torch.uint8
    return shape, OWN.get(name, torch.uint8)


def parts_of(q):
    """The parts of a tensor of the package."""
    return q.data, q.scales, q.global_scale, q.zero_points if q.biases is None else q.biases


def check_parts(q, found):
    """The same of codes and scales."""
    if isinstance(found, dt.ScaledTensor):
        assert (tuple(found.shape), found.format, found.axis) == (q.shape, q.format.name, q.axis)
        found = found.__dlfp4_parts__()
    given = (found.data, found.scales, found.global_scale, found.offsets)
    for name, part, own in zip(("data", "scales", "global_scale", "offsets"), parts_of(q), given, strict=True):
        assert (part is None) == (own is None), name
        if part is not None:
            shape, dtype = described(part)
            assert tuple(own.shape) == shape, (name, own.shape, shape)
            assert own.dtype in (dtype, torch.uint8), (name, own.dtype, dtype)
            assert octets(own).tobytes() == octets_of(part).tobytes(), f"other {name}"


def can_hold(result):
    """Whether PyTorch counts the bytes of a result."""
    if isinstance(result, tuple):
        return all(map(can_hold, result))
    part = result.data if isinstance(result, dlfp4.ScaledTensor) else result
    return not part.packed or ends_on_bytes(part.shape, part.dtype.name)


# ---- Memory for results


def memory_for(rng, expected):
    """Memory for a result twice, as PyTorch has it and as the package does, of which some does not fit."""
    (shape, dtype), name = described(expected), expected.dtype.name
    is_low = name not in OWN
    if not is_low and rng.random() < 0.15:
        shape = rng.choice([(*shape, 1), shape[1:], (*shape[:-1], 7)])
    if not is_low and rng.random() < 0.1:
        dtype = rng.choice([torch.float32, torch.bfloat16, torch.float64, torch.int32])
    old = torch.full(shape, 85, dtype=torch.uint8).to(torch.uint8 if dtype == PAIRS else dtype)
    seed = rng.getrandbits(32)
    given, other = (with_strides(Random(seed), old.clone(), keeps_rows=is_low) for _ in range(2))
    eager = dlfp4.asarray(other)
    if is_low:
        eager = eager.view(name) if expected.packed else None
    return given.view(dtype), eager, whole_of(given), whole_of(other)


def whole_of(x):
    """All memory that a tensor is a view of."""
    return x if x._base is None else x._base


def into_memory(rng, call, tensors, options, expected):
    """The out= form: the same bytes in the same places, or the same refusal."""
    if isinstance(expected, (tuple, dlfp4.ScaledTensor)):
        into_quantized(rng, call, tensors, options, expected)
        return
    given, eager, memory, other = memory_for(rng, expected)
    if eager is None:
        return
    for name in ("dtype", "out_dtype"):
        if name in options and call.name != "cast" and rng.random() < 0.5:  # memory says it as well
            del call.options[name], options[name]
    _, refusal = outcome(lambda: call.eager(out=eager))
    found, refused = outcome(lambda: run(call, tensors, options, out=given))
    check_refusal(refusal, refused)
    if refusal is None:
        assert found is given
    assert octets(memory).tobytes() == octets(other).tobytes(), "memory differs"


def into_quantized(rng, call, tensors, options, expected):
    """The same of what is quantized, into what was quantized before."""
    x = tensors["x"]
    module = functions if rng.random() < 0.5 else dt
    made = call_of(call, module, tensors | {"x": torch.zeros_like(x)}, options)
    assert call_of(call, module, tensors, options, out=made) is made
    check(expected, made)


# ---- Calls


def call_of(call, module, tensors, options, **more):
    return calls.Call(call.name, call.tensors, options).run(module, tensors, **more)


def run(call, tensors, options, **more):
    return call_of(call, dt, tensors, options, **more)


def check_refusal(expected, found):
    """Whether two calls were refused alike."""
    assert type(expected) is type(found), f"{expected!r}, and by PyTorch {found!r}"


def same_memory(x, given):
    """A plain operand as the package sees PyTorch's."""
    return dlfp4.asarray(given) if isinstance(x, (np.ndarray, dlfp4.Tensor)) and type(given) is torch.Tensor else x


def is_unheld(expected, refusal, refused):
    """Whether a call is refused for its result, whose bytes PyTorch cannot count, whatever else is wrong."""
    if refusal is None and not can_hold(expected):
        assert isinstance(refused, ValueError), refused
        return True
    return refusal is not None and any(said in str(refused) for said in ("no axis along which bytes", "end on bytes"))


MODES = (contextlib.nullcontext, contextlib.nullcontext, torch.no_grad, torch.inference_mode)


def operations(rng):
    """A call, with or without memory for its result."""
    call = calls.call_of(rng)
    strides = "own" if call.name in PRODUCTS else "any"  # products may be summed in the order of strides
    tensors = {name: for_torch(rng, x, strides) for name, x in call.tensors.items()}
    if any(x is None for x in tensors.values()):
        return False
    options = options_for(rng, call.options)
    if call.name in PRODUCTS:
        call.tensors = {name: same_memory(x, tensors[name]) for name, x in call.tensors.items()}
    followed = follow(rng, call, tensors)
    expected, refusal = outcome(call.eager)
    with rng.choice(MODES)() if not followed else contextlib.nullcontext():
        found, refused = outcome(lambda: run(call, tensors, options))
        if is_unheld(expected, refusal, refused):
            return False
        check_refusal(refusal, refused)
        if refusal is not None:
            return False
        check(expected, found)
        if not followed and rng.random() < 0.4:
            into_memory(rng, call, tensors, options, expected)
    if followed:
        check_gradients(rng, call, tensors, found)
    return True


# ---- Gradients


def is_float(x):
    """Whether autograd may follow an operand, and a gradient has its type."""
    return type(x) is torch.Tensor and str(x.dtype).removeprefix("torch.") in FLOATS


def follow(rng, call, tensors):
    """Have autograd follow some operands of products; whether there are any."""
    if call.name not in PRODUCTS or rng.random() < 0.6:
        return False
    names = [name for name, x in tensors.items() if is_float(x) and rng.random() < 0.7]
    for name in names:
        tensors[name] = tensors[name].detach().requires_grad_()
    return bool(names)


def check_gradients(rng, call, tensors, found):
    """Those of the product of decoded operands."""
    assert found.requires_grad
    gradient = np.random.default_rng(rng.getrandbits(32)).normal(size=tuple(found.shape)).astype(as_numpy(found).dtype)
    found.backward(torch.from_dlpack(dlfp4.asarray(gradient)))
    names = [name for name, x in tensors.items() if is_float(x) and x.requires_grad]
    derivatives.check(call, names, gradient, [as_numpy(tensors[name].grad) for name in names])


def as_numpy(x):
    """A tensor of floats, bfloat16 among them."""
    return dlfp4.asarray(x.detach()).to_numpy()


# ---- Batches


def leaves_of(x):
    """The tensors of an operand, and the function that makes it of such."""
    if isinstance(x, torch.Tensor):
        return [x], lambda given: given[0]
    fields = [name for name, part in zip(x._fields, x, strict=True) if isinstance(part, torch.Tensor)]
    return [getattr(x, name) for name in fields], lambda given: x._replace(**dict(zip(fields, given, strict=True)))


def bytewise(x):
    """A tensor that PyTorch can stack."""
    return x.view(torch.uint8) if x.dtype == PAIRS else x


def batched(rng, operands, is_first):
    """Operands of one kind as a batch: its tensors with their dimensions, and the function that makes one of them. The
    batch `is_first` where sums have the order of strides, which it would change, or bytes follow one another.
    """
    pieces, makers = zip(*map(leaves_of, operands), strict=True)
    found, dims = [], []
    for number, each in enumerate(zip(*pieces, strict=True)):
        is_free = not is_first and type(operands[0]) is torch.Tensor and each[0].dtype != PAIRS
        dim = rng.randrange(each[0].dim() + 1) if is_free else 0
        if number and len({octets(one).tobytes() for one in each}) == 1 and rng.random() < 0.5:
            dim = None
        found.append(each[0] if dim is None else torch.stack(list(map(bytewise, each)), dim).view(each[0].dtype))
        dims.append(dim)
    return found, dims, makers[0]


def batches(rng):
    """A call under torch.func.vmap: the bytes of one after another, of products nearly."""
    call = calls.call_of(rng)
    size = rng.choice([1, 2, 3])
    names = [name for name in call.tensors if rng.random() < 0.6] or list(call.tensors)[:1]
    many = calls.variants_of(rng, call, names, size)
    fixed = {name: for_torch(rng, x, "none") for name, x in call.tensors.items()}
    if any(x is None for x in fixed.values()):
        return False
    flat, dims, makers = [], [], {}
    for name in names:
        found, own, make = batched(rng, [for_torch(rng, each.tensors[name], "none") for each in many], name == "w")
        makers[name] = slice(len(flat), len(flat) + len(found)), make
        flat += found
        dims += own

    def one(*given):
        made = {name: make(list(given[place])) for name, (place, make) in makers.items()}
        return tensors_of(call_of(call, functions, fixed | made, call.options))

    expected = [outcome(each.eager) for each in many]
    refusal = next((error for _, error in expected if error is not None), None)
    found, refused = outcome(lambda: torch.func.vmap(one, in_dims=tuple(dims))(*flat))
    if is_unheld(expected[0][0], refusal, refused):
        return False
    check_refusal(refusal, refused)
    if refusal is not None:
        return False
    for number, ((wanted, _), each) in enumerate(zip(expected, many, strict=True)):
        check_one(each, wanted, [bytewise(part)[number].view(part.dtype) for part in found])
    return True


def tensors_of(result):
    """All tensors of a result."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dt.Parts):
        return [part for part in (*result[:3], result.offsets) if part is not None]
    return [part for each in result for part in tensors_of(each)]


def check_one(call, expected, found):
    """A result of the batch."""
    if isinstance(expected, dlfp4.Tensor):
        (own,) = found
        if call.name == "matmul":
            assert calls.is_near(call, as_numpy(own), expected), (own, expected)
        else:
            check(expected, own)
        return
    results = expected if isinstance(expected, tuple) else (expected,)
    parts = [part for q in results for part in parts_of(q) if part is not None]
    assert [octets(part).tobytes() for part in found] == [octets_of(part).tobytes() for part in parts]


TARGETS = {"torch": operations, "torch_batches": batches}
