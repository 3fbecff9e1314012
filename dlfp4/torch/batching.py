"""``torch.func.vmap`` of the operations: in one call where a batch is a dimension like others, else one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from dlfp4 import _core
from dlfp4.extents import count_elements
from dlfp4.formats import find_recipe
from dlfp4.operations import Encoding, recipe_of_text, text_of_recipe
from dlfp4.torch.representing import PAIRS, matrix_of, without_pairs

if TYPE_CHECKING:
    from dlfp4.torch.registering import Call, Specs

Dims = Mapping[str, int | None]
OPS = torch.ops.dlfp4


def front(x: torch.Tensor, dim: int | None) -> torch.Tensor:
    """A tensor with its batch before all other dimensions, or as it is without one."""
    return x if dim is None else x.movedim(dim, 0)


# ---- In one call; None where a rule does not know how


def batch_codec(call: Call, named: dict[str, Any], dims: Dims, size: int) -> Any:  # noqa: ARG001
    """Element by element. Stochastic rounding counts elements."""
    x = front(named["x"], dims["x"])
    if x.dim() < 2 or named.get("seed") is not None:
        return None
    return getattr(OPS, call.row.name)(*(named | {"x": x}).values()), 0


def batch_quantize(call: Call, named: dict[str, Any], dims: Dims, size: int) -> Any:  # noqa: ARG001
    """Lines after lines; a global scale of a tensor becomes one of each matrix."""
    format = _core._find_format(named["format"])
    x = front(named["x"], dims["x"])
    is_simple = named["axis"] in ([-1], (-1,)) and named["seed"] is None and named["scale_layout"] == "linear"
    if not is_simple or format.block is None or x.dim() < 2 or dims["global_scale"] is not None:
        return None
    rows = x.reshape(size, count_elements(x.shape[1:-1]), x.shape[-1])
    chosen = find_recipe(format, recipe_of_text(named["recipe"]))
    if rows.shape[1] % format.block[0] or chosen.global_scale_per == "matrix":
        return None
    shared = format.has_global_scale and named["global_scale"] is not None
    if shared and named["global_scale"].numel() != 1:
        return None
    if format.has_global_scale and not shared and chosen.global_scale_per == "tensor":
        chosen = replace(chosen, global_scale_per="matrix")
    made = OPS.quantize(*(named | {"x": rows, "recipe": text_of_recipe(chosen)}).values())
    parts = [split(part, size) for part in made[:2]] + list(made[2:])
    if chosen.global_scale_per == "row" or not format.has_global_scale:
        parts[2:] = [split(part, size) for part in parts[2:]]
    elif shared:  # for `out_dims` PyTorch reads beyond numbers that have no batch (2.13)
        parts[2:] = [part.expand(size, *part.shape) for part in parts[2:]]
    return parts, [0] * len(parts)


def split(part: torch.Tensor, size: int) -> torch.Tensor:
    """The rows of all as those of each."""
    return (
        part.reshape(size, -1, *part.shape[1:])
        if part.numel()
        else part.new_empty(size, part.shape[0] // max(size, 1), *part.shape[1:])
    )


def batch_dequantize(call: Call, named: dict[str, Any], dims: Dims, size: int) -> Any:  # noqa: ARG001
    """Rows of all at once."""
    encoding = Encoding.parse(named["q_type"])
    format = _core._find_format(encoding.format)
    is_simple = encoding.axis == -1 and encoding.scale_layout == "linear" and format.block is not None
    unit = named["q_global_scale"]
    if not is_simple or None in (dims["q"], dims["q_scales"]) or named["q_offsets"] is not None:
        return None
    if unit is not None and unit.numel() != (1 if dims["q_global_scale"] is None else size):
        return None
    data, scales = (front(without_pairs(named[name]), dims[name]) for name in ("q", "q_scales"))
    shape = tuple(named["q_shape"] or matrix_of(data[0], encoding))
    height, _ = format.block or (1, None)
    if data.shape[1] % height:  # blocks would cross from one to the next
        return None
    given = {
        "q": data.flatten(0, 1),
        "q_scales": scales.flatten(0, 1),
        "q_global_scale": unit if unit is None or dims["q_global_scale"] is None else unit.reshape(size),
        "q_shape": (size, data.shape[1], shape[-1]),
    }
    return OPS.dequantize(*(named | given).values()).reshape(size, *shape), 0


def batch_matmul(call: Call, named: dict[str, Any], dims: Dims, size: int) -> Any:  # noqa: ARG001
    """Rows of all at once, by one plain or quantized b."""
    if (
        dims["a"] is None
        or named["a_scales"] is not None
        or any(dims[name] is not None for name in dims if name != "a")
    ):
        return None
    return OPS.matmul(*(named | {"a": front(named["a"], dims["a"])}).values()), 0


def batch_grouped(call: Call, named: dict[str, Any], dims: Dims, size: int) -> Any:  # noqa: ARG001
    """Each routing is one of its own."""
    return None


def batch_vecdot(call: Call, named: dict[str, Any], dims: Dims, size: int) -> Any:  # noqa: ARG001
    """Plain operands broadcast."""
    if named["a_scales"] is not None or named["b_scales"] is not None or named["a_type"] or named["b_type"]:
        return None
    operands = [front(named[name], dims[name]) for name in "ab"]
    ranks = [x.dim() - (dims[name] is not None) for x, name in zip(operands, "ab", strict=True)]
    axis = named.get("axis", -1)
    if axis >= 0 and ranks[0] != ranks[1]:
        return None
    for k, name in enumerate("ab"):
        if dims[name] is not None:
            missing = max(ranks) - ranks[k]
            operands[k] = operands[k].reshape(size, *(1,) * missing, *operands[k].shape[1:])
    return OPS.vecdot(*operands, axis=axis - ranks[0] if axis >= 0 else axis), 0


def knows_none(call: Call, named: dict[str, Any], dims: Dims, size: int) -> Any:  # noqa: ARG001
    """Of an operation without a rule."""
    return None


RULES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "cast": batch_codec,
        "pack": batch_codec,
        "unpack": batch_codec,
        "quantize": batch_quantize,
        "dequantize": batch_dequantize,
        "dot": batch_vecdot,
        "vecdot": batch_vecdot,
        "matmul": batch_matmul,
        "grouped_matmul": batch_grouped,
    }
)


# ---- One by one


def of_one(value: Any, dim: int | None, k: int = 0) -> Any:
    """An argument of one call of the batch; of an empty batch, what it would be."""
    if dim is None:
        return value
    shape = value.shape
    return value.select(dim, k) if shape[dim] else value.new_empty(shape[:dim] + shape[dim + 1 :])


def of_none(call: Call, x: torch.Tensor, specs: Specs) -> Any:
    """The results of an empty batch, by those of one call, beside its first operand."""
    made = [x.new_empty((0, *shape), dtype=dtype) for shape, dtype in specs]
    return (made, [0] * len(made)) if call.is_list else (made[0], 0)


MOST_CHECKED = 1024


def is_among(key: tuple[Any, ...], checked: set[Any]) -> bool:
    """Whether a call was checked before; what has a compiler's symbols is not remembered."""
    try:
        return key in checked
    except TypeError:
        return False


def remember(key: tuple[Any, ...], checked: set[Any]) -> None:
    """Have it among those that were checked."""
    if len(checked) >= MOST_CHECKED:
        checked.clear()
    try:
        checked.add(key)
    except TypeError:
        return


def one_by_one(op: Any, values: tuple[Any, ...], dims: tuple[int | None, ...], size: int) -> Any:
    """A call for each of the batch."""
    results = [op(*map(of_one, values, dims, (k,) * len(values))) for k in range(size)]
    if isinstance(results[0], torch.Tensor):
        return stacked(results), 0
    parts = [stacked(list(each)) for each in zip(*results, strict=True)]
    return parts, [0] * len(parts)


def stacked(parts: list[torch.Tensor]) -> torch.Tensor:
    """Results as a batch; PyTorch copies no FP4, but its bytes."""
    made = torch.stack([without_pairs(part) for part in parts])
    return made.view(PAIRS) if parts[0].dtype == PAIRS else made


def register_batching(call: Call, library: torch.library.Library) -> None:
    """Give an operation its rule for vmap; without one it goes one by one."""
    name = call.row.name
    rule: Callable[..., Any] = RULES.get(name, knows_none)
    op = getattr(OPS, name)
    checked: set[Any] = set()  # what was asked of one call of a batch

    def batched(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        values = call.values(args)
        dims = tuple(dim if isinstance(dim, int) else None for dim in in_dims) + (None,) * (len(values) - len(args))
        names = tuple(call.places)
        key = dims, *call.key(args)
        if not info.batch_size or not is_among(key, checked):
            each = tuple(map(of_one, values, dims))
            specs = call.specs(each)  # as kernels do, which a rule does not: to it a batch is a dimension like others
            call.check(each)
            if not info.batch_size:
                return of_none(call, each[0], specs)
            remember(key, checked)
        found = rule(call, dict(zip(names, values, strict=True)), dict(zip(names, dims, strict=True)), info.batch_size)
        return one_by_one(op, values, dims, info.batch_size) if found is None else found

    torch.library.register_vmap(f"dlfp4::{name}", batched, lib=library)
