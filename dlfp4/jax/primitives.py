"""The operations as JAX primitives: what they give, how they batch, and how they become calls of our XLA handlers.

An operation is a row of ``OPERATIONS``. Its operands and results are TensorProtos, and so is all that is known of them
while a program is traced; arrays are the buffers of these, in their order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from dlfp4 import _core, operations
from dlfp4._core import Buffer
from dlfp4.frameworks.base import SUBBYTE
from dlfp4.frameworks.jax import FP6
from dlfp4.jax import sharding
from dlfp4.jax.sharding import Division, Rule, Shapes
from dlfp4.proto import TensorProto

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
        bits = math.prod(buffer.shape) * width
        if bits % 8:
            raise ValueError(
                f"vmap over {buffer.dtype} of shape {buffer.shape}, which do not fill bytes; pad them to an even number"
            )
        steps.append(bits // 8)
    return steps


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


def call(operation: Operation, operands: Protos, arrays: Sequence[Any], **options: Any) -> list[Any]:
    """Run an operation on arrays, or trace it: the arrays of its results."""
    params = {
        "operands": operands,
        "options": tuple(sorted(options.items())),
        "batch": None,
        "batched": (False,) * len(arrays),
    }
    return bind(operation, vary_alike(arrays), params)


def bind(operation: Operation, arrays: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A call of a primitive. Its program is among what it is told, since JAX looks there for what is shared among
    devices.
    """
    program = program_of(operation, tuple(params.items()))
    results: list[Any] = PRIMITIVES[operation.name].bind(*arrays, program=program, **params)
    return results


@functools.lru_cache(maxsize=4096)
def program_of(operation: Operation, params: tuple[tuple[str, Any], ...]) -> Any:
    """What a call does, as a jaxpr."""
    told = dict(params)
    own = [array for proto in told["operands"] for array in arrays_of(proto)]
    arrays = [
        jax.ShapeDtypeStruct((told["batch"], *shape) if varies else shape, dtype)
        for (shape, dtype), varies in zip(own, told["batched"], strict=True)
    ]
    return jax.make_jaxpr(functools.partial(call_on_devices, operation, **told))(*arrays)


def vary_alike(arrays: Sequence[Any]) -> Sequence[Any]:
    """Within a shard_map, operands as varying along the same axes of the mesh, as primitives require."""
    varying = [frozenset(jax.typeof(array).manual_axis_type.varying) for array in arrays]
    axes: frozenset[str] = frozenset().union(*varying)
    return [
        array if own == axes else jax.lax.pcast(array, tuple(axes - own), to="varying")
        for array, own in zip(arrays, varying, strict=True)
    ]


# ---- The primitives


def results_with_batch(operation: Operation, params: dict[str, Any]) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """The shapes and types of a call's results."""
    leading = () if params["batch"] is None else (params["batch"],)
    results = results_of(operation, params["operands"], params["options"])
    return [((*leading, *shape), dtype) for proto in results for shape, dtype in arrays_of(proto)]


def describe_results(operation: Operation, *given: Any, **params: Any) -> list[Any]:
    """What a call gives, for JAX: sharded where types say so, and varying within a shard_map, as the operands are."""
    like = given[0]
    rule = rule_of(operation, given, params).on(like.sharding.mesh)
    division = sharding.divide(rule, like.sharding.mesh, given)
    return [
        like.update(shape=shape, dtype=dtype, weak_type=False, sharding=like.sharding.update(spec=division.spec(dims)))
        for (shape, dtype), dims in zip(results_with_batch(operation, params), rule.results, strict=True)
    ]


@functools.lru_cache(maxsize=4096)
def compiled(operation: Operation, params: tuple[tuple[str, Any], ...]) -> Callable[..., list[Any]]:
    """The program of a call outside of any other."""
    program: Callable[..., list[Any]] = jax.jit(functools.partial(PRIMITIVES[operation.name].bind, **dict(params)))
    return program


def run(operation: Operation, *arrays: Any, **params: Any) -> list[Any]:
    """A call outside of any program."""
    return compiled(operation, tuple(params.items()))(*arrays)


def call_handler(operation: Operation, *arrays: Any, **params: Any) -> list[Any]:
    """The custom call."""
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results_with_batch(operation, params)]
    plan = plan_of(operation, *(params[name] for name in ("operands", "options", "batch", "batched")))
    found: list[Any] = jax.ffi.ffi_call(operation.target, results)(*arrays, plan=plan)
    return found


def run_program(*arrays: Any, program: Any, **_: Any) -> list[Any]:
    """The program of a call, which becomes part of another."""
    results: list[Any] = jaxpr_as_fun(program)(*arrays)
    return results


def run_on_cuda(*arrays: Any, **params: Any) -> list[Any]:
    """The same on CUDA devices, for which kernels are loaded by now: handlers cannot compile them."""
    for device in jax.local_devices(backend="cuda"):
        _core._load_kernels(device.local_hardware_id)
    return run_program(*arrays, **params)


def multiply_on_cuda(*arrays: Any, operands: Protos, options: Options, batch: int | None, **params: Any) -> list[Any]:
    """A product of decoded operands, by XLA's own."""
    told, (a, b) = dict(options), operands
    if told["activation"] is not None:
        raise ValueError(f"activation={told['activation']!r} is of hosts; leave it out on CUDA devices")
    split, dtype = len(a.buffers()), told["out_dtype"]
    varies = [any(some) for some in (params["batched"][:split], params["batched"][split:])]
    left, right = (
        jax.vmap(functools.partial(decode, proto, dtype))(some) if is_batched else decode(proto, dtype, some)
        for proto, some, is_batched in zip(operands, (arrays[:split], arrays[split:]), varies, strict=True)
    )
    del batch, b
    right = right.mT if told["turned"] else right
    return [(told["alpha"] * jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)).astype(dtype)]


def decode(proto: TensorProto, dtype: str, arrays: Sequence[Any]) -> Any:
    """The values of an operand, a matrix."""
    if proto.format is not None:
        (values,) = call(DEQUANTIZE, (proto,), arrays, dtype=dtype)
        return values.reshape(-1, proto.shape[-1])
    (values,) = call(
        CONVERT, (proto,), arrays, dtype=dtype, packed=True, rounding="nearest_even", saturate=True, seed=None
    )
    return values


def rule_of(operation: Operation, arrays: Sequence[Any], params: dict[str, Any]) -> Rule:
    """How devices share a call."""
    operands, options = params["operands"], dict(params["options"])
    shapes = [array.shape for array in arrays], [shape for shape, _ in results_with_batch(operation, params)]
    if params["batch"] is None:
        return operation.rule(operands, options, shapes)
    return sharding.rule_of_batch(params["batch"], params["batched"], len(operands), shapes)


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
    """The same call."""
    return functools.partial(call_handler, operation, **shard_of(params, rule, division))


def to_front(array: Any, dim: Any, is_batched: bool, size: int, batch: int | None) -> Any:
    """An operand of a batch of batches with both in front, as one."""
    if dim is None:
        if not is_batched:
            return array
        return jax.numpy.broadcast_to(array, (size, *array.shape)).reshape(size * array.shape[0], *array.shape[1:])
    moved = jax.numpy.moveaxis(array, dim, 0)
    if batch is None:
        return moved
    if not is_batched:
        moved = jax.numpy.broadcast_to(moved[:, None], (size, batch, *moved.shape[1:]))
    return moved.reshape(size * batch, *moved.shape[2:])


def batch_call(
    operation: Operation, arrays: Sequence[Any], dims: Sequence[Any], **told: Any
) -> tuple[list[Any], list[int]]:
    """A batch in one call: as rows of one tensor where that is the same, else tensor by tensor in the handler."""
    params = {name: value for name, value in told.items() if name != "program"}
    (size,) = {array.shape[dim] for array, dim in zip(arrays, dims, strict=True) if dim is not None}
    batch, batched = params["batch"], params["batched"]
    moved = [to_front(*each, size, batch) for each in zip(arrays, dims, batched, strict=True)]
    varies = tuple(dim is not None or was for dim, was in zip(dims, batched, strict=True))
    merged = merge(operation, params, size, varies)
    if merged is not None:
        results = call_merged(operation, merged, moved, params["options"])
    else:
        whole = size * (1 if batch is None else batch)
        results = bind(operation, moved, {**params, "batch": whole, "batched": varies})
    leading = (size,) if batch is None else (size, batch)
    own = [shape for shape, _ in results_with_batch(operation, {**params, "batch": None})]
    return [result.reshape(*leading, *shape) for result, shape in zip(results, own, strict=True)], [0] * len(own)


def merge(operation: Operation, params: dict[str, Any], size: int, varies: tuple[bool, ...]) -> Protos | None:
    """The operands of one call without a batch, where all of the first operand and nothing else varies."""
    count = len(arrays_of(params["operands"][0]))
    if params["batch"] is not None or varies != (True,) * count + (False,) * (len(varies) - count):
        return None
    return operation.merged(params["operands"], dict(params["options"]), size)


def call_merged(operation: Operation, operands: Protos, arrays: Sequence[Any], options: Options) -> list[Any]:
    """A call of merged operands."""
    shapes = [shape for proto in operands for shape, _ in arrays_of(proto)]
    fitted = [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]
    return call(operation, operands, fitted, **dict(options))


def refuse_to_differentiate(operation: Operation, *_: Any, **__: Any) -> Any:
    """Of quantize, when it is not told what becomes of the derivative; the others have got constants."""
    raise TypeError(
        f"dlfp4.jax.{operation.name} gives codes, which have no derivative: quantize with straight_through=True, or "
        f"keep what is quantized out of what is differentiated, by jax.lax.stop_gradient"
    )


def make_primitive(operation: Operation) -> Primitive:
    """The primitive of a row."""
    primitive = Primitive(operation.target)
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(run, operation))
    primitive.def_abstract_eval(functools.partial(describe_results, operation))
    ad.primitive_jvps[primitive] = functools.partial(refuse_to_differentiate, operation)
    batching.primitive_batchers[primitive] = functools.partial(batch_call, operation)
    mlir.register_lowering(primitive, mlir.lower_fun(run_program, multiple_results=True))
    on_cuda = multiply_on_cuda if operation.name == "matmul" else run_on_cuda
    mlir.register_lowering(primitive, mlir.lower_fun(on_cuda, multiple_results=True), platform="cuda")
    return primitive


# ---- The table


def with_rows(proto: TensorProto, size: int) -> TensorProto:
    """The TensorProto of several such tensors, one after another, as one."""
    shape = (size, *proto.shape) if proto.format is None else (size * math.prod(proto.shape[:-1]), proto.shape[-1])
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


def converted(operands: Protos, options: dict[str, Any]) -> Protos:
    """Of cast, pack and unpack."""
    return (operations.OPERATIONS["cast"].result(operands[0], **options),)


def merge_converted(operands: Protos, options: dict[str, Any], size: int) -> Protos | None:
    """Elements are by themselves, but for those that chance rounds by their number."""
    return None if options["rounding"] == "stochastic" else (with_rows(operands[0], size),)


def described_quantized(operands: Protos, options: dict[str, Any]) -> Protos:
    """What quantize gives, for each axis in its order."""
    axes = options["axes"]
    _core._check_axes(axes)
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
    """The same, with scales as the kernels write them."""
    return tuple(replace(proto, scale_dtype=None) for proto in described_quantized(operands, options))


def plan_quantize(
    operands: Protos, results: Protos, options: dict[str, Any], count: int, steps: tuple[int, ...]
) -> bytes:
    """See plans.pxi."""
    given = operands[1].shape if len(operands) > 1 else None
    return _core._plan_quantize(operands[0], results, options, given, count, steps)


def merge_quantized(operands: Protos, options: dict[str, Any], size: int) -> Protos | None:
    """Rows with scales of their own."""
    if len(operands) > 1 or options["seed"] is not None or not all(map(has_own_rows, quantized(operands, options))):
        return None
    rows, length = operands[0].shape
    return (replace(operands[0], shape=(size * rows, length)),)


def dequantized(operands: Protos, options: dict[str, Any]) -> Protos:
    """Of dequantize."""
    return (operations.OPERATIONS["dequantize"].result(operands[0], **options),)


def merge_dequantized(operands: Protos, options: dict[str, Any], size: int) -> Protos | None:
    """Rows with scales of their own."""
    del options
    return (with_rows(operands[0], size),) if has_own_rows(operands[0]) else None


def multiplied(operands: Protos, options: dict[str, Any]) -> Protos:
    """Of matmul, as a matrix."""
    a, b = operands
    rows = TensorProto((math.prod(a.shape[:-1]), a.shape[-1]), "float32")
    columns = TensorProto(b.shape[::-1] if options["turned"] else b.shape, "float32")
    return (operations.OPERATIONS["matmul"].result(rows, columns, **options),)


def merge_multiplied(operands: Protos, options: dict[str, Any], size: int) -> Protos | None:
    """Rows of a."""
    del options
    a, b = operands
    return (replace(a, shape=(size * a.shape[0], a.shape[1])), b) if a.format is None else None


def summed(operands: Protos, options: dict[str, Any]) -> Protos:
    """Of dot and vecdot, of operands that fit."""
    plan_vecdot(operands, (), options, 1, ())
    return (operations.OPERATIONS["vecdot"].result(*operands, **options),)


def plan_convert(
    operands: Protos, results: Protos, options: dict[str, Any], count: int, steps: tuple[int, ...]
) -> bytes:
    """See plans.pxi."""
    return _core._plan_convert(operands[0], results[0], options, count, steps)


def plan_dequantize(
    operands: Protos, results: Protos, options: dict[str, Any], count: int, steps: tuple[int, ...]
) -> bytes:
    """See plans.pxi."""
    del options
    return _core._plan_dequantize(operands[0], results[0], count, steps)


def plan_matmul(
    operands: Protos, results: Protos, options: dict[str, Any], count: int, steps: tuple[int, ...]
) -> bytes:
    """See plans.pxi."""
    a, b = operands
    return _core._plan_matmul(a, b, results[0], options, count, steps)


def plan_vecdot(
    operands: Protos, results: Protos, options: dict[str, Any], count: int, steps: tuple[int, ...]
) -> bytes:
    """See plans.pxi."""
    del results
    a, b = operands
    return _core._plan_vecdot(a, b, options["axis"], count, steps)


def never_merged(operands: Protos, options: dict[str, Any], size: int) -> Protos | None:  # noqa: ARG001
    """Tensor by tensor."""
    return None


# ---- On several devices


def rule_of_convert(operands: Protos, options: dict[str, Any], shapes: Shapes) -> Rule:
    """Elements are by themselves, but for those that chance rounds by their number."""
    if options["rounding"] == "stochastic":
        return sharding.rule_of_one(len(operands), shapes)
    return sharding.rule_of_elements(shapes)


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


def rule_of_dequantize(operands: Protos, options: dict[str, Any], shapes: Shapes) -> Rule:
    """Lines and blocks are by themselves."""
    del options
    return sharding.rule_of_rows(operands[0], 1, shapes, sharding.pieces(operands[0]))


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


def rule_of_vecdot(operands: Protos, options: dict[str, Any], shapes: Shapes) -> Rule:
    """Operands are gathered."""
    del options
    return sharding.rule_of_one(len(operands), shapes)


OPERATIONS = (
    Operation("convert", converted, plan_convert, merge_converted, rule_of_convert, call_on_shard),
    Operation("quantize", quantized, plan_quantize, merge_quantized, rule_of_quantize, quantize_shard),
    Operation("dequantize", dequantized, plan_dequantize, merge_dequantized, rule_of_dequantize, call_on_shard),
    Operation("matmul", multiplied, plan_matmul, merge_multiplied, rule_of_matmul, multiply_shard),
    Operation("vecdot", summed, plan_vecdot, never_merged, rule_of_vecdot, call_on_shard),
)
CONVERT, QUANTIZE, DEQUANTIZE, MATMUL, VECDOT = OPERATIONS
PRIMITIVES = {operation.name: make_primitive(operation) for operation in OPERATIONS}

for _platform in ("cpu", "CUDA"):
    for _name, _stages in _core._xla_handlers(_platform).items():
        jax.ffi.register_ffi_target(f"dlfp4_{_name}", _stages, platform=_platform)
