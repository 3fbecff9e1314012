"""One call: the arrays and the plan of an operation, the custom call, and what devices make of it.

Operands and results are TensorProtos, and so is all that is known of them while a program is traced; arrays are the
buffers of these, in their order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from dlfp4._core import Buffer
from dlfp4.extents import count_elements
from dlfp4.frameworks.base import FP6, SUBBYTE
from dlfp4.jax import sharding
from dlfp4.jax.sharding import Division, Rule, Shapes
from dlfp4.proto import TensorProto, is_symbolic

Protos: TypeAlias = tuple[TensorProto, ...]
Options: TypeAlias = tuple[tuple[str, Any], ...]  # sorted by name, all of them hashable


def bytes_of(buffer: Buffer) -> tuple[int, ...]:
    """The shape of a packed buffer's bytes, where a row is whole bytes."""
    *rows, length = buffer.shape or (1,)
    bits = length * SUBBYTE[buffer.dtype.name]
    if bits % 8:
        raise ValueError(
            f"{buffer.dtype} of shape {buffer.shape}: JAX has no such type, and rows of {length} elements do not fill "
            f"bytes; pad them to a multiple of {8 // math.gcd(8, SUBBYTE[buffer.dtype.name])}"
        )
    return (*rows, bits // 8)


def arrays_of(proto: TensorProto) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """The shape and type of the array of each buffer: FP6, and what lies one a byte, are carried as uint8."""
    found = []
    for buffer in proto.buffers():
        name = buffer.dtype.name
        if not proto.packed:
            found.append((buffer.shape, np.dtype(np.uint8)))
        elif name in FP6:
            found.append((bytes_of(buffer), np.dtype(np.uint8)))
        else:
            found.append((buffer.shape, buffer.dtype))
    return found


def steps_of(proto: TensorProto) -> list[int]:
    """The bytes of each buffer, which in a batch lie one after another."""
    steps = []
    for buffer in proto.buffers():
        width = SUBBYTE.get(buffer.dtype.name, 8 * buffer.dtype.itemsize) if proto.packed else 8
        bits = count_elements(buffer.shape) * width
        if bits % 8:
            raise ValueError(
                f"vmap over {buffer.dtype} of shape {buffer.shape}, which do not fill bytes; pad them to an even number"
            )
        steps.append(bits // 8)
    return steps


def refuse_symbols(shape: tuple[Any, ...]) -> None:
    """TypeError for the symbolic dimensions of jax.export."""
    if any(map(is_symbolic, shape)):
        raise TypeError(
            f"an array of shape {shape}, with symbolic dimensions of jax.export: dlfp4.jax plans its calls for extents "
            f"that are known; export a program for each shape"
        )


@dataclass(frozen=True)
class Operation:
    """A row of the table: an operation that a compiled program calls.

    Parameters
    ----------
    name : str
        Of the handler.
    results : callable
        What it gives, of the TensorProtos of its operands and its options.
    plan : callable
        What its handler is told: of operands, results, options, and the number and steps of a batch.
    merged : callable
        The operands of the one call that does a batch of the first operand as rows of one tensor; None where a batch is
        not that.
    rule : callable
        How devices share a call, of operands, options and the shapes of arrays.
    shard : callable
        The program of a shard, of the call on it and what it is of.
    """

    name: str
    results: Callable[[Protos, dict[str, Any]], Protos]
    plan: Callable[[Protos, Protos, dict[str, Any], int, tuple[int, ...]], bytes]
    merged: Callable[[Protos, dict[str, Any], int], Protos | None]
    rule: Callable[[Protos, dict[str, Any], Shapes], Rule]
    shard: Callable[[Operation, dict[str, Any], Rule, Division], Callable[..., list[Any]]]

    @property
    def target(self) -> str:
        """The name of the custom call."""
        return f"dlfp4_{self.name}"


@functools.lru_cache(maxsize=4096)
def results_of(operation: Operation, operands: Protos, options: Options) -> Protos:
    """The results of an operation; a plan refuses what the kernels would."""
    results = operation.results(operands, dict(options))
    operation.plan(operands, results, dict(options), 1, ())
    return results


@functools.lru_cache(maxsize=4096)
def plan_of(
    operation: Operation, operands: Protos, options: Options, batch: int | None, batched: tuple[bool, ...]
) -> np.ndarray:
    """The plan of a call, as the attribute by which it travels."""
    results = results_of(operation, operands, options)
    steps: tuple[int, ...] = ()
    if batch is not None:
        of_operands = [step for proto in operands for step in steps_of(proto)]
        steps = (
            *(step if varies else 0 for step, varies in zip(of_operands, batched, strict=True)),
            *(step for proto in results for step in steps_of(proto)),
        )
    plan = operation.plan(operands, results, dict(options), 1 if batch is None else batch, steps)
    return np.frombuffer(plan, np.int64)


def results_with_batch(operation: Operation, params: dict[str, Any]) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """The shapes and types of a call's results."""
    leading = () if params["batch"] is None else (params["batch"],)
    results = results_of(operation, params["operands"], params["options"])
    return [((*leading, *shape), dtype) for proto in results for shape, dtype in arrays_of(proto)]


def rule_of(operation: Operation, arrays: Sequence[Any], params: dict[str, Any]) -> Rule:
    """How devices share a call."""
    operands, options = params["operands"], dict(params["options"])
    shapes = [array.shape for array in arrays], [shape for shape, _ in results_with_batch(operation, params)]
    if params["batch"] is None:
        return operation.rule(operands, options, shapes)
    return sharding.rule_of_batch(params["batch"], params["batched"], len(operands), shapes)


def call_handler(operation: Operation, *arrays: Any, **params: Any) -> list[Any]:
    """The custom call."""
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results_with_batch(operation, params)]
    plan = plan_of(operation, *(params[name] for name in ("operands", "options", "batch", "batched")))
    found: list[Any] = jax.ffi.ffi_call(operation.target, results)(*arrays, plan=plan)
    return found


def call_on_devices(operation: Operation, *arrays: Any, **params: Any) -> list[Any]:
    """The custom call, or one on each device."""
    rule = rule_of(operation, arrays, params)
    whole = functools.partial(call_handler, operation, **params)
    results: list[Any] = sharding.divided(rule, whole, functools.partial(operation.shard, operation, params, rule))(
        *arrays
    )
    return results


def shard_of(params: dict[str, Any], rule: Rule, division: Division) -> dict[str, Any]:
    """What a call on shards is told."""
    operands = zip(params["operands"], rule.shapes, strict=True)
    batch = params["batch"]
    return {
        **params,
        "operands": tuple(division.shard(proto, names) for proto, names in operands),
        "batch": None if batch is None else batch // division.parts(sharding.BATCH),
    }


def call_on_shard(
    operation: Operation, params: dict[str, Any], rule: Rule, division: Division
) -> Callable[..., list[Any]]:
    """The call on a device's part of the operands."""
    return functools.partial(call_handler, operation, **shard_of(params, rule, division))
