"""The operations of JAX programs, a row each: results by :mod:`dlfp4.operations`, plans by the core."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from dlfp4 import _core, operations
from dlfp4.extents import count_elements
from dlfp4.jax import sharding
from dlfp4.jax.calls import Operation, Protos, call_handler, call_on_shard, shard_of
from dlfp4.jax.sharding import Division, Rule, Shapes
from dlfp4.proto import TensorProto


def with_rows(proto: TensorProto, size: int) -> TensorProto:
    """The TensorProto of several such tensors, one after another, as one."""
    shape = (size, *proto.shape) if proto.format is None else (size * count_elements(proto.shape[:-1]), proto.shape[-1])
    return replace(proto, shape=shape)


def has_own_rows(proto: TensorProto) -> bool:
    """Whether each row of a quantized tensor is by itself, so that tensors can follow one another."""
    block = None if proto.format is None else proto.format.block
    return (
        block is not None
        and block[0] == 1
        and proto.rowwise
        and proto.scale_layout == "linear"
        and not (proto.format is not None and proto.format.has_global_scale and proto.global_scale_per != "row")
    )


# ---- Cast, pack, unpack


def converted(operands: Protos, options: dict[str, Any]) -> Protos:
    """Of cast, pack and unpack."""
    return (operations.OPERATIONS["cast"].result(operands[0], **options),)


def plan_convert(
    operands: Protos, results: Protos, options: dict[str, Any], count: int, steps: tuple[int, ...]
) -> bytes:
    """The plan of a cast, of packing or of unpacking, as the handler reads it."""
    return _core._plan_convert(operands[0], results[0], options, count, steps)


def merge_converted(operands: Protos, options: dict[str, Any], size: int) -> Protos | None:
    """Elements are by themselves, but for those that chance rounds by their number."""
    return None if options["rounding"] == "stochastic" else (with_rows(operands[0], size),)


def rule_of_convert(operands: Protos, options: dict[str, Any], shapes: Shapes) -> Rule:
    """Elements are by themselves, but for those that chance rounds by their number."""
    if options["rounding"] == "stochastic":
        return sharding.rule_of_one(len(operands), shapes)
    return sharding.rule_of_elements(shapes)


# ---- Quantize


def described_quantized(operands: Protos, options: dict[str, Any]) -> Protos:
    """What quantize gives, for each axis in its order."""
    axes = options["axes"]
    told = {name: value for name, value in options.items() if name not in ("axes", "measured")}
    unit = operands[1] if len(operands) > 1 and not options.get("measured") else None
    told["recipe"] = operations.text_of_recipe(options["recipe"])
    whole = operations.OPERATIONS["quantize"].result(operands[0], unit, axis=axes, **told)
    assert whole.format is not None
    return tuple(
        replace(
            whole,
            rowwise=axis == -1,
            columnwise=axis == -2,
            pad=whole.pad and not _core._divides(whole.shape, whole.format, axis),
        )
        for axis in axes
    )


def quantized(operands: Protos, options: dict[str, Any]) -> Protos:
    """What quantize gives, with scales as the kernels write them."""
    return tuple(replace(proto, scale_dtype=None) for proto in described_quantized(operands, options))


def plan_quantize(
    operands: Protos, results: Protos, options: dict[str, Any], count: int, steps: tuple[int, ...]
) -> bytes:
    """The plan of quantizing along the axes of the results, as the handler reads it."""
    given = operands[1].shape if len(operands) > 1 else None
    return _core._plan_quantize(operands[0], results, options, given, count, steps)


def merge_quantized(operands: Protos, options: dict[str, Any], size: int) -> Protos | None:
    """Rows with scales of their own."""
    if len(operands) > 1 or options["seed"] is not None or not all(map(has_own_rows, quantized(operands, options))):
        return None
    rows, length = operands[0].shape
    return (replace(operands[0], shape=(size * rows, length)),)


def rule_of_quantize(operands: Protos, options: dict[str, Any], shapes: Shapes) -> Rule:
    """Lines and blocks are by themselves, but for those that chance rounds by their number."""
    proto, *others = quantized(operands, options)
    needs_all = options["seed"] is not None or (options["hadamard"] is not None and is_measured(operands, proto))
    if others or needs_all or proto.global_scale_per == "matrix":
        return sharding.rule_of_one(len(operands), shapes)
    rule = sharding.rule_of_rows(operands[0], len(operands), shapes, sharding.pieces(proto))
    return replace(rule, measured=is_measured(operands, proto))


def is_measured(operands: Protos, proto: TensorProto) -> bool:
    """Whether a scale of the whole tensor is found in it."""
    assert proto.format is not None
    has_scale = proto.format.block is None or (proto.format.has_global_scale and proto.global_scale_per == "tensor")
    return has_scale and len(operands) == 1


def quantize_shard(
    operation: Operation, params: dict[str, Any], rule: Rule, division: Division
) -> Callable[..., list[Any]]:
    """The same call, told the largest magnitude of all shards where that decides the scale of the tensor."""
    local = shard_of(params, rule, division)
    axes = tuple(axis for name in "ik" for axis in division.axes.get(name, ()))
    (x, *_) = local["operands"]
    if not axes or not is_measured(params["operands"], quantized(params["operands"], dict(params["options"]))[0]):
        return functools.partial(call_handler, operation, **local)
    local["operands"] = (x, TensorProto((1,), x.dtype))
    local["options"] = tuple(sorted({**dict(local["options"]), "measured": True}.items()))
    local["batched"] = (False, False)

    def program(array: Any) -> list[Any]:
        largest = jnp.max(jnp.where(jnp.isfinite(array), abs(array), 0), initial=0)
        return call_handler(operation, array, jax.lax.pmax(largest, axes).reshape(1), **local)

    return program


# ---- Dequantize


def dequantized(operands: Protos, options: dict[str, Any]) -> Protos:
    """Of dequantize."""
    return (operations.OPERATIONS["dequantize"].result(operands[0], **options),)


def plan_dequantize(
    operands: Protos, results: Protos, options: dict[str, Any], count: int, steps: tuple[int, ...]
) -> bytes:
    """The plan of decoding a quantized tensor, as the handler reads it."""
    del options
    return _core._plan_dequantize(operands[0], results[0], count, steps)


def merge_dequantized(operands: Protos, options: dict[str, Any], size: int) -> Protos | None:
    """Rows with scales of their own."""
    del options
    return (with_rows(operands[0], size),) if has_own_rows(operands[0]) else None


def rule_of_dequantize(operands: Protos, options: dict[str, Any], shapes: Shapes) -> Rule:
    """Lines and blocks are by themselves."""
    del options
    return sharding.rule_of_rows(operands[0], 1, shapes, sharding.pieces(operands[0]))


# ---- Matrix products


def multiplied(operands: Protos, options: dict[str, Any]) -> Protos:
    """Of matmul, as a matrix."""
    a, b = operands
    rows = TensorProto((count_elements(a.shape[:-1]), a.shape[-1]), "float32")
    columns = TensorProto(b.shape[::-1] if options["turned"] else b.shape, "float32")
    return (operations.OPERATIONS["matmul"].result(rows, columns, **options),)


def plan_matmul(
    operands: Protos, results: Protos, options: dict[str, Any], count: int, steps: tuple[int, ...]
) -> bytes:
    """The plan of a matrix product, as the handler reads it."""
    a, b = operands
    return _core._plan_matmul(a, b, results[0], options, count, steps)


def merge_multiplied(operands: Protos, options: dict[str, Any], size: int) -> Protos | None:
    """Rows of a."""
    del options
    a, b = operands
    if a.format is None:
        return replace(a, shape=(size * a.shape[0], a.shape[1])), b
    return (with_rows(a, size), b) if has_own_rows(a) else None


def rule_of_matmul(operands: Protos, options: dict[str, Any], shapes: Shapes) -> Rule:
    """Rows, columns, and parts of sums."""
    a, b = operands
    return sharding.rule_of_product(a, b, options["turned"], shapes)


def multiply_shard(
    operation: Operation, params: dict[str, Any], rule: Rule, division: Division
) -> Callable[..., list[Any]]:
    """The same call; sums over a part of K are added up in float32."""
    local = shard_of(params, rule, division)
    axes = division.axes.get(rule.summed)
    if axes is None:
        return functools.partial(call_handler, operation, **local)
    options = dict(local["options"])
    local["options"] = tuple(sorted({**options, "out_dtype": "float32"}.items()))

    def program(*arrays: Any) -> list[Any]:
        (part,) = call_handler(operation, *arrays, **local)
        return [jax.lax.psum(part, axes).astype(options["out_dtype"])]

    return program


# ---- Products by experts


def multiplied_by_experts(operands: Protos, options: dict[str, Any]) -> Protos:
    """Of grouped_matmul."""
    del operands
    return (TensorProto((options["results"], options["columns"]), options["out_dtype"]),)


def plan_grouped(
    operands: Protos, results: Protos, options: dict[str, Any], count: int, steps: tuple[int, ...]
) -> bytes:
    """The plan of a product by experts, as the handler reads it."""
    return _core._plan_grouped(operands[0], operands[1], results[0], options, count, steps)


def rule_of_one_call(operands: Protos, options: dict[str, Any], shapes: Shapes) -> Rule:
    """Operands are gathered."""
    del options
    return sharding.rule_of_one(len(operands), shapes)


# ---- Sums of products


def summed(operands: Protos, options: dict[str, Any]) -> Protos:
    """Of dot and vecdot, of operands that fit."""
    results = (operations.OPERATIONS["vecdot"].result(*operands, **options),)
    plan_vecdot(operands, results, options, 1, ())
    return results


def plan_vecdot(
    operands: Protos, results: Protos, options: dict[str, Any], count: int, steps: tuple[int, ...]
) -> bytes:
    """The plan of sums of products along an axis, as the handler reads it."""
    del results
    a, b = operands
    return _core._plan_vecdot(a, b, options["axis"], count, steps)


def never_merged(operands: Protos, options: dict[str, Any], size: int) -> Protos | None:  # noqa: ARG001
    """Tensor by tensor."""
    return None


# ---- The table

OPERATIONS = (
    Operation("convert", converted, plan_convert, merge_converted, rule_of_convert, call_on_shard),
    Operation("quantize", quantized, plan_quantize, merge_quantized, rule_of_quantize, quantize_shard),
    Operation("dequantize", dequantized, plan_dequantize, merge_dequantized, rule_of_dequantize, call_on_shard),
    Operation("matmul", multiplied, plan_matmul, merge_multiplied, rule_of_matmul, multiply_shard),
    Operation("vecdot", summed, plan_vecdot, never_merged, rule_of_one_call, call_on_shard),
    Operation("grouped_matmul", multiplied_by_experts, plan_grouped, never_merged, rule_of_one_call, call_on_shard),
)
CONVERT, QUANTIZE, DEQUANTIZE, MATMUL, VECDOT, GROUPED = OPERATIONS
