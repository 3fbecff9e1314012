"""The operations as JAX primitives: how calls are bound, batched and lowered."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from dlfp4 import _core
from dlfp4.jax import sharding
from dlfp4.jax.calls import (
    Operation,
    Options,
    Protos,
    arrays_of,
    call_on_devices,
    refuse_symbols,
    results_of,
    results_with_batch,
    rule_of,
)
from dlfp4.jax.ragged import by_rows
from dlfp4.jax.table import CONVERT, DEQUANTIZE, OPERATIONS
from dlfp4.proto import TensorProto


def call(operation: Operation, operands: Protos, arrays: Sequence[Any], **options: Any) -> list[Any]:
    """Run an operation on arrays, or trace it: the arrays of its results."""
    told = tuple(sorted(options.items()))
    try:
        hash(told)
    except TypeError:  # of what is no constant, such as an array, of which this says what was expected
        results_of.__wrapped__(operation, operands, told)
        raise
    params = {
        "operands": operands,
        "options": told,
        "batch": None,
        "batched": (False,) * len(arrays),
    }
    return bind(operation, sharding.vary_alike(arrays), params)


def bind(operation: Operation, arrays: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A call of a primitive. Its program is among what it is told, since JAX looks there for what is shared among
    devices.
    """
    for array in arrays:
        refuse_symbols(array.shape)  # of a batch; those of operands were refused before
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


def describe_results(operation: Operation, *given: Any, **params: Any) -> list[Any]:
    """What a call gives, for JAX: sharded where types say so, and varying within a shard_map, as the operands are."""
    # An operand that lies on one device, beside others on a mesh, has a mesh without axes.
    like = next((each for each in given if not each.sharding.mesh.empty), given[0])
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


def run_program(*arrays: Any, program: Any, **_: Any) -> list[Any]:
    """The program of a call, which becomes part of another."""
    results: list[Any] = jaxpr_as_fun(program)(*arrays)
    return results


# ---- On CUDA


def run_on_cuda(*arrays: Any, **params: Any) -> list[Any]:
    """The same on CUDA devices, for which kernels are loaded by now: handlers cannot compile them."""
    for device in cuda_devices():
        _core._load_kernels(device.local_hardware_id)
    return run_program(*arrays, **params)


def cuda_devices() -> list[Any]:
    """Those of this process: none where a program is lowered for devices that are elsewhere."""
    try:
        found: list[Any] = jax.local_devices(backend="cuda")
    except RuntimeError:
        return []
    return found


def multiply_on_cuda(*arrays: Any, operands: Protos, options: Options, **params: Any) -> list[Any]:
    """A product of decoded operands, by XLA's own."""
    told, split = dict(options), len(operands[0].buffers())
    if told["activation"] is not None:
        raise ValueError(f"activation={told['activation']!r} is for the host only; omit it on CUDA devices")
    sides = (slice(split), slice(split, None))
    left, right = (
        decode_all(proto, told["out_dtype"], arrays[side], params["batched"][side])
        for proto, side in zip(operands, sides, strict=True)
    )
    right = right.mT if told["turned"] else right
    product = float(told["alpha"]) * jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)
    return [product.astype(told["out_dtype"])]


def multiply_groups_on_cuda(*arrays: Any, operands: Protos, options: Options, **params: Any) -> list[Any]:
    """A product by experts of decoded operands, by XLA's own."""
    told = dict(options)
    if told["activation"] is not None:
        raise ValueError(f"activation={told['activation']!r} is for the host only; omit it on CUDA devices")
    one = functools.partial(multiply_decoded_groups, operands, told)
    axes = tuple(0 if varies else None for varies in params["batched"])
    return [jax.vmap(one, in_axes=axes)(*arrays) if any(params["batched"]) else one(*arrays)]


def multiply_decoded_groups(operands: Protos, told: dict[str, Any], *arrays: Any) -> Any:
    """A product by experts of the arrays of one call, decoded."""
    of_x, of_w, *_ = operands
    of_rows, rest = len(of_x.buffers()), len(of_x.buffers()) + len(of_w.buffers())
    x = decode(of_x, told["out_dtype"], *arrays[:of_rows])
    w = decode(of_w, told["out_dtype"], *arrays[of_rows:rest])
    w = w if of_w.format is None else w.reshape(of_w.shape).mT
    ends, *routing = arrays[rest:]
    indices, weights = (*routing, None, None)[:2]
    tokens = told["results"] if told["adds"] else None
    product = multiply_groups(x, w, jnp.diff(ends, prepend=0), indices, weights, told["gathers"], tokens)
    return (float(told["alpha"]) * product).astype(told["out_dtype"])


def multiply_groups(
    x: Any, w: Any, sizes: Any, indices: Any | None, weights: Any | None, gathers: bool, tokens: int | None
) -> Any:
    """Rows of x by the matrices of their experts, or, of so many tokens, the weighted sums of these, by XLA."""
    count = x.shape[0] if indices is None else indices.shape[0]
    is_routed = jnp.arange(count) < jnp.sum(sizes)
    rows = rows_at(x, jnp.where(is_routed, indices, 0)) if gathers else x
    made = by_rows(rows, w, sizes)
    made = jnp.where(is_routed[:, None], made, 0)
    if weights is None or tokens is None:
        return made
    if tokens == 0:  # JAX has no transpose of a scatter into nothing (0.10)
        return jnp.zeros((0, made.shape[1]), made.dtype)
    scaled = made * jnp.where(is_routed, weights, 0)[:, None].astype(made.dtype)
    places = jnp.where(is_routed, indices, tokens)  # beyond the result, so that they are dropped
    return jnp.zeros((tokens, made.shape[1]), made.dtype).at[places].add(scaled, mode="drop")


def rows_at(x: Any, places: Any) -> Any:
    """Rows by their numbers; of a matrix without any, to which no row is routed, zeros."""
    return x[places] if x.shape[0] else jnp.zeros((places.shape[0], x.shape[1]), x.dtype)


def decode_all(proto: TensorProto, dtype: str, arrays: Sequence[Any], batched: Sequence[bool]) -> Any:
    """The values of an operand, or of a batch of them."""
    one = functools.partial(decode, proto, dtype)
    if not any(batched):
        return one(*arrays)
    return jax.vmap(one, in_axes=tuple(0 if varies else None for varies in batched))(*arrays)


def decode(proto: TensorProto, dtype: str, *arrays: Any) -> Any:
    """The values of an operand, a matrix."""
    if proto.format is not None:
        (values,) = call(DEQUANTIZE, (proto,), arrays, dtype=dtype)
        return values.reshape(-1, proto.shape[-1])
    (values,) = call(
        CONVERT, (proto,), arrays, dtype=dtype, packed=True, rounding="nearest_even", saturate=True, seed=None
    )
    return values


# ---- Batches


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


# ---- The primitives


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
    on_cuda = BY_XLA_ON_CUDA.get(operation.name, run_on_cuda)
    mlir.register_lowering(primitive, mlir.lower_fun(on_cuda, multiple_results=True), platform="cuda")
    return primitive


BY_XLA_ON_CUDA = {"matmul": multiply_on_cuda, "grouped_matmul": multiply_groups_on_cuda}
PRIMITIVES = {operation.name: make_primitive(operation) for operation in OPERATIONS}

for _platform in ("cpu", "CUDA"):
    for _name, _stages in _core._xla_handlers(_platform).items():
        jax.ffi.register_ffi_target(f"dlfp4_{_name}", _stages, platform=_platform)
