"""Gradients of products in float64, by PyTorch, which those of the operations are held against."""

import calls
import numpy as np
import torch


def product(call, operands, change):
    """The result of operands, which went through `change` as alpha does."""
    options = call.options
    alpha = 1.0 if options.get("alpha") is None else change(options["alpha"])
    if call.name in ("dot", "vecdot"):
        axis = options.get("axis", -1)
        return (operands["a"].movedim(axis, -1) * operands["b"].movedim(axis, -1)).sum(-1)
    if call.name == "matmul":
        return alpha * (operands["a"] @ operands["b"])
    return alpha * grouped(call, operands)


def grouped(call, operands):
    """Row by row."""
    x, w, weights = operands["x"], operands["w"], operands.get("weights")
    ends, indices = (call.tensors.get(name) for name in ("offsets", "indices"))
    places = range(x.shape[0]) if indices is None else indices.tolist()
    adds, gathers = weights is not None, indices is not None and "tokens" not in call.options
    count = call.options.get("tokens", x.shape[0]) if adds else len(places)
    made = [x.new_zeros(w.shape[-1]) for _ in range(count)]
    for expert, (begin, end) in enumerate(zip([0, *ends.tolist()], ends.tolist(), strict=False)):
        for row in range(begin, end):
            own = x[places[row] if gathers else row] @ w[expert]
            place = places[row] if adds else row
            made[place] = made[place] + (own * weights[row] if adds else own)
    return torch.stack(made) if made else x.new_zeros((0, w.shape[-1]))


def of_product(call, names, gradient, change):
    """What a gradient of the result is for some operands."""
    values = {name: x for name, x in call.tensors.items() if name not in ("offsets", "indices")}
    operands = {name: change(torch.from_numpy(calls.decoded(x))) for name, x in values.items()}
    given = [operands[name].requires_grad_() for name in names]
    result = product(call, operands, change) + 0 * sum(each.sum() for each in given)  # which no row may be of
    made = torch.autograd.grad(result, given, change(torch.from_numpy(np.asarray(gradient))))
    return [each.numpy() for each in made]


def check(call, names, gradient, found):
    """Whether they are so, but for what types and sums lose; of operands that the type of the result holds."""
    most = float(calls.limits_of(gradient.dtype).max) / 1e4
    if not all((np.abs(calls.decoded(x)) < most).all() for name, x in call.tensors.items() if name != "offsets"):
        return
    wide = gradient.astype(np.float64)
    wanted, sizes = (of_product(call, names, wide, change) for change in (lambda x: x, abs))
    for name, own, size, made in zip(names, wanted, sizes, found, strict=True):
        x = call.tensors[name]
        assert (made.shape, made.dtype) == (x.shape, x.dtype), (name, made.shape, made.dtype, x.shape, x.dtype)
        limits = [calls.limits_of(dtype) for dtype in (x.dtype, gradient.dtype)]
        near = np.abs(made.astype(np.float64) - own) <= 64 * max(float(each.eps) for each in limits) * size + 1e-6
        assert (near | (size > min(float(each.max) for each in limits) / 1e4)).all(), (name, made, own)
