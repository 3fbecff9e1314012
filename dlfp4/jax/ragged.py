"""Products of floats whose rows are divided into groups, by XLA.

``jax.lax.ragged_dot`` takes no batch of which an operand has no part, as ``jax.vmap`` of a product by the same weights
makes them, and derivatives do. A primitive around it takes them one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from dlfp4.jax import sharding


def by_rows(x: Any, w: Any, sizes: Any) -> Any:
    """Rows (R, K) by the matrices of their groups, (E, K, N), the first `sizes[0]` by the first one: (R, N)."""
    return bind("rows", x, w, sizes)


def by_groups(x: Any, y: Any, sizes: Any) -> Any:
    """The transposes of each group's rows (R, K) by its rows of (R, N): (E, K, N)."""
    return bind("groups", x, y, sizes)


def bind(kind: str, *arrays: Any) -> Any:
    """A call of the primitive."""
    return RAGGED.bind(*sharding.vary_alike(arrays), kind=kind)


# ---- The primitive


def multiply_rows(x: Any, w: Any, sizes: Any) -> Any:
    """by_rows, without a batch."""
    return jax.lax.ragged_dot(x, w, sizes, precision=jax.lax.Precision.HIGHEST)


def multiply_groups(x: Any, y: Any, sizes: Any) -> Any:
    """by_groups, without a batch."""
    stack = jax.ShapeDtypeStruct((sizes.shape[0], x.shape[1], y.shape[1]), y.dtype)
    (made,) = jax.linear_transpose(lambda w: multiply_rows(x, w, sizes), stack)(y)
    return made


PROGRAMS: Mapping[str, Callable[..., Any]] = MappingProxyType({"rows": multiply_rows, "groups": multiply_groups})


def run_program(a: Any, b: Any, sizes: Any, *, kind: str) -> Any:
    """What the primitive does."""
    return PROGRAMS[kind](a, b, sizes)


def describe_result(a: Any, b: Any, sizes: Any, *, kind: str) -> Any:
    """Of a's type; within a shard_map it varies as operands do."""
    shape = (a.shape[0], b.shape[2]) if kind == "rows" else (sizes.shape[0], a.shape[1], b.shape[1])
    whole = a.sharding.update(spec=PartitionSpec(*(None for _ in shape)))
    return a.update(shape=shape, weak_type=False, sharding=whole)


def differentiate(primals: Sequence[Any], tangents: Sequence[Any], *, kind: str) -> tuple[Any, Any]:
    """Linear in each of both."""
    a, b, sizes = primals
    of_a, of_b, _ = tangents
    terms = [] if type(of_a) is ad.Zero else [bind(kind, of_a, b, sizes)]
    terms += [] if type(of_b) is ad.Zero else [bind(kind, a, of_b, sizes)]
    return bind(kind, a, b, sizes), sum(terms[1:], terms[0])


def transpose(made: Any, a: Any, b: Any, sizes: Any, *, kind: str) -> tuple[Any, Any, None]:
    """Of what is linear in a or in b."""
    is_of_a = ad.is_undefined_primal(a)
    if type(made) is ad.Zero:
        found = None
    elif is_of_a:
        found = by_rows(made, b.mT, sizes) if kind == "rows" else by_rows(b, made.mT, sizes)
    else:
        found = by_groups(a, made, sizes) if kind == "rows" else by_rows(a, made, sizes)
    return (found, None, None) if is_of_a else (None, found, None)


def batch(arrays: Sequence[Any], dims: Sequence[int | None], *, kind: str) -> tuple[Any, int]:
    """One after another."""
    varying = [jnp.moveaxis(array, dim, 0) for array, dim in zip(arrays, dims, strict=True) if dim is not None]

    def one(given: Sequence[Any]) -> Any:
        own = iter(given)
        return bind(kind, *(array if dim is None else next(own) for array, dim in zip(arrays, dims, strict=True)))

    return jax.lax.map(one, varying), 0


RAGGED = Primitive("dlfp4_ragged_dot")
RAGGED.def_impl(jax.jit(run_program, static_argnames="kind"))
RAGGED.def_abstract_eval(describe_result)
ad.primitive_jvps[RAGGED] = differentiate
ad.primitive_transposes[RAGGED] = transpose
batching.primitive_batchers[RAGGED] = batch
mlir.register_lowering(RAGGED, mlir.lower_fun(run_program, multiple_results=False))
