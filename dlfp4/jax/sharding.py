"""How a call is divided over devices: what stays sharded, what is gathered first, what is summed after.

Dimensions are products of factors, as Shardy has them: a dimension of so many pieces of so many elements. The pieces
may be sharded, if the shards are equal; a piece (the elements of a block) stays whole. The program of a shard is the
same call on smaller tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dlfp4.extents import count_elements
from dlfp4.formats import ROTATED_LENGTH
from dlfp4.proto import TensorProto

Dim: TypeAlias = tuple[str, ...]  # the factors of a dimension, the outermost first
Dims: TypeAlias = tuple[Dim, ...]  # of an array
Names: TypeAlias = tuple[str, ...]  # the factor that divides each dimension of a tensor
BATCH = "batch"  # the factor of the tensors of a batch


@dataclass(frozen=True)
class Rule:
    """How the dimensions of a call's arrays go together.

    Parameters
    ----------
    operands, results : tuple
        The dimensions of each array.
    sizes : dict
        Of each factor. Those that are numbers stay whole.
    shapes : tuple
        Which factor divides each dimension of each operand, a tensor.
    summed : str
        The factor over which results are summed; "" for none.
    measured : bool
        Shards need the largest magnitude of all, which only the host's kernels take.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: dict[str, int]
    shapes: tuple[Names, ...]
    summed: str = ""
    measured: bool = False

    def on(self, mesh: Mesh) -> Rule:
        """The rule without factors that do not divide evenly over a mesh.

        Shardy would give such a factor a part of an axis, which JAX has no word for.
        """
        sizes = dict(self.sizes)
        is_whole = mesh.empty or (self.measured and platform_of(mesh) != "cpu")

        def settle(dim: Dim) -> Dim:
            if dim[0].isdigit() or not (is_whole or self.sizes[dim[0]] % mesh.size):
                return dim
            name = str(len(sizes))
            sizes[name] = count_elements(self.sizes[factor] for factor in dim)
            return (name,)

        operands, results = (
            tuple(tuple(map(settle, dims)) for dims in arrays) for arrays in (self.operands, self.results)
        )
        used = dict.fromkeys(name for dims in (*operands, *results) for dim in dims for name in dim)  # in their order
        return replace(
            self,
            operands=operands,
            results=results,
            sizes={name: sizes[name] for name in used},
            summed=self.summed if self.summed in used else "",
        )

    def written(self) -> tuple[str, dict[str, Any]]:
        """The rule in Shardy's notation, with the kinds of factors, and the sizes of those that are no dimension."""
        letters = {name: chr(ord("a") + number) for number, name in enumerate(self.sizes)}

        def write(dims: Dims) -> str:
            words = [" ".join(letters[name] for name in dim) for dim in dims]
            return " ".join(f"({word})" if len(word) > 1 else word for word in words)

        alone = {dim[0] for dims in (*self.operands, *self.results) for dim in dims if len(dim) == 1}
        text = " -> ".join(", ".join(map(write, arrays)) for arrays in (self.operands, self.results))
        return text, {
            "need_replication_factors": tuple(letters[name] for name in self.sizes if name.isdigit()),
            "reduction_factors": (letters[self.summed],) if self.summed else (),
            **{letters[name]: size for name, size in self.sizes.items() if name not in alone},
        }


def platform_of(mesh: Any) -> str:
    """The platform of a mesh's devices; that of the process, of a mesh without devices."""
    is_abstract = isinstance(mesh, jax.sharding.AbstractMesh)
    platform: str = jax.default_backend() if is_abstract else mesh.devices.flat[0].platform
    return platform


@dataclass
class Factors:
    """Collects the factors of dimensions; `counts` has the pieces of those that may be sharded, 0 for none."""

    counts: dict[str, int]
    sizes: dict[str, int] = field(default_factory=dict)

    def dim(self, size: int, name: str = "") -> Dim:
        """A dimension, divided by a factor or whole."""
        count = self.counts.get(name, 0)
        if not count or size % count:
            return (self.whole(size),)
        self.sizes[name] = count
        return (name,) if size == count else (name, self.whole(size // count))

    def whole(self, size: int) -> str:
        """A factor that stays whole."""
        name = str(len(self.sizes))
        self.sizes[name] = size
        return name

    def dims(self, shape: Sequence[int], names: Names) -> Dims:
        """The dimensions of an array, of which the first have names."""
        return tuple(self.dim(size, names[number] if number < len(names) else "") for number, size in enumerate(shape))


# ---- The rules


def pieces(proto: TensorProto) -> tuple[int, int]:
    """Into how many pieces the lines of a quantized matrix, and their length, may be divided; 0 where not at all."""
    if len(proto.shape) != 2 or not proto.rowwise or proto.scale_layout != "linear" or proto.pad:
        return 0, 0
    assert proto.format is not None
    rows, length = proto.shape
    if proto.format.block is None:
        return rows, length if proto.hadamard is None else length // ROTATED_LENGTH
    group, block = proto.format.block
    along = 0 if block is None or length % block or proto.global_scale_per == "row" else length // block
    return (0 if rows % group else rows // group), along


Shapes: TypeAlias = tuple[list[tuple[int, ...]], list[tuple[int, ...]]]  # of the arrays of operands and of results


def rule_of_rows(proto: TensorProto, operands: int, shapes: Shapes, counts: tuple[int, int]) -> Rule:
    """Of quantize and dequantize, of matrices: lines and blocks are by themselves."""
    factors = Factors(dict(zip("ik", counts, strict=True)))
    of_operands, of_results = (tuple(factors.dims(shape, ("i", "k")) for shape in some) for some in shapes)
    names: tuple[Names, ...] = (("i", "k")[: len(proto.shape)], ("i",))
    return Rule(of_operands, of_results, factors.sizes, names[:operands])


def rule_of_elements(shapes: Shapes) -> Rule:
    """Of casts: elements are by themselves, but for those of rows of bytes."""
    ((given,), (made,)) = shapes
    names = tuple(f"d{number}" for number in range(len(given)))
    factors = Factors({name: size * (size == other) for name, size, other in zip(names, given, made, strict=True)})
    return Rule((factors.dims(given, names),), (factors.dims(made, names),), factors.sizes, (names,))


def rule_of_product(a: TensorProto, b: TensorProto, turned: bool, shapes: Shapes) -> Rule:
    """Of matmul: rows and columns stay sharded, and sums over parts of K are added up."""
    rows, of_a = (a.shape[0], a.shape[-1]) if a.format is None else pieces(a)
    columns, of_b = (b.shape[1], b.shape[0]) if b.format is None else pieces(b) if turned else (0, 0)
    factors = Factors({"m": rows, "n": columns, "k": math.gcd(of_a, of_b) if of_a and of_b else 0})
    names_of_b = ("n", "k") if turned else ("k", "n")
    split = len(a.buffers())
    dims = [factors.dims(shape, ("m", "k") if number < split else names_of_b) for number, shape in enumerate(shapes[0])]
    results = tuple(factors.dims(shape, ("m", "n")) for shape in shapes[1])
    summed = "k" if "k" in factors.sizes else ""
    return Rule(tuple(dims), results, factors.sizes, (("m", "k"), names_of_b), summed=summed)


def rule_of_batch(batch: int, batched: tuple[bool, ...], operands: int, shapes: Shapes) -> Rule:
    """Of a batch in one call: its tensors are by themselves."""
    factors = Factors({BATCH: batch})
    given = tuple(
        factors.dims(shape, (BATCH,) if varies else ()) for shape, varies in zip(shapes[0], batched, strict=True)
    )
    made = tuple(factors.dims(shape, (BATCH,)) for shape in shapes[1])
    return Rule(given, made, factors.sizes, ((),) * operands)


def rule_of_one(operands: int, shapes: Shapes) -> Rule:
    """Of a call that is not divided."""
    factors = Factors({})
    given, made = (tuple(factors.dims(shape, ()) for shape in some) for some in shapes)
    return Rule(given, made, factors.sizes, ((),) * operands)


# ---- A call, divided


@dataclass(frozen=True)
class Division:
    """Along which axes of a mesh each factor is divided.

    Parameters
    ----------
    mesh : Mesh
        Of devices.
    axes : dict
        The names of axes, by factor.
    """

    mesh: Mesh
    axes: dict[str, tuple[str, ...]]

    def parts(self, name: str) -> int:
        """How many shards a factor has."""
        return count_elements(self.mesh.shape[axis] for axis in self.axes.get(name, ()))

    def spec(self, dims: Dims) -> PartitionSpec:
        """Of an array."""
        return PartitionSpec(*(self.axes.get(dim[0]) for dim in dims))

    def shard(self, proto: TensorProto, names: Names) -> TensorProto:
        """A tensor's shard."""
        parts = [self.parts(names[number]) if number < len(names) else 1 for number in range(len(proto.shape))]
        return replace(proto, shape=tuple(size // part for size, part in zip(proto.shape, parts, strict=True)))


def divide(rule: Rule, mesh: Any, given: Sequence[Any], made: Sequence[Any] = ()) -> Division:
    """The division that operands have, and results are asked to have, as far as shards are equal."""
    axes: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for array, dims in zip((*given, *made), (*rule.operands, *rule.results), strict=False):
        spec = array.sharding.spec if isinstance(array.sharding, NamedSharding) else ()
        for entry, dim in zip(spec, dims, strict=False):
            wanted = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
            parts = count_elements(mesh.shape[axis] for axis in wanted)
            is_free = dim[0] not in axes and not dim[0].isdigit() and taken.isdisjoint(wanted)
            if wanted and is_free and rule.sizes[dim[0]] % parts == 0:
                axes[dim[0]] = wanted
                taken.update(wanted)
    return Division(mesh, axes)


def divided(rule: Rule, whole: Callable[..., Any], of_shards: Callable[[Division], Callable[..., Any]]) -> Any:
    """A call that XLA divides: `whole` on one device, else the program that `of_shards` makes."""
    call = custom_partitioning(whole)

    def partition(mesh: Mesh, given: Sequence[Any], made: Sequence[Any]) -> tuple[Any, ...]:
        settled = rule.on(mesh)
        division = divide(settled, mesh, given, made)
        shardings = [
            [NamedSharding(mesh, division.spec(dims)) for dims in arrays]
            for arrays in (settled.results, settled.operands)
        ]
        return mesh, of_shards(division), shardings[0], tuple(shardings[1])

    call.def_partition(partition, sharding_rule=lambda mesh, *_: rule.on(mesh).written())
    return call


def vary_alike(arrays: Sequence[Any]) -> Sequence[Any]:
    """Within a shard_map, operands as varying along the same axes of the mesh, as primitives require."""
    varying = [frozenset(jax.typeof(array).manual_axis_type.varying) for array in arrays]
    axes: frozenset[str] = frozenset().union(*varying)
    return [
        array if own == axes else jax.lax.pcast(array, tuple(axes - own), to="varying")
        for array, own in zip(arrays, varying, strict=True)
    ]
