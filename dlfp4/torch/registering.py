"""``torch.ops.dlfp4.*``: an operation of PyTorch for each row of the table, with a kernel, a fake and an out= form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

import dlfp4
from dlfp4 import _core
from dlfp4._core import Buffer, ScaledTensor, Tensor, asarray
from dlfp4.frameworks.base import SUBBYTE
from dlfp4.operations import OPERATIONS, REQUIRED, Argument, Operation, recipe_of_text
from dlfp4.proto import TensorProto
from dlfp4.torch import stable
from dlfp4.torch.batching import register_batching
from dlfp4.torch.gradients import is_at_once, register_gradient
from dlfp4.torch.products import repeated
from dlfp4.torch.representing import (
    PAIRS,
    Parts,
    UnknownError,
    describe,
    described,
    number_of,
    numbers,
    outline,
    outline_part,
    share,
)

LIBRARY = torch.library.Library("dlfp4", "DEF")
DEVICES = ("CPU", "CUDA")

# ---- Schemas

TYPES = MappingProxyType(
    {
        "operand": "Tensor",
        "quantized": "Tensor",
        "vector": "Tensor",
        "scale": "Tensor?",
        "text": "str",
        "backend": "str",
        "dtype": "str",
        "recipe": "str",
        "flag": "bool",
        "number": "float",
        "integer": "SymInt",
        "index": "int",
        "count": "SymInt",
        "axes": "int[]",
        "signs": "int[]",
    }
)
# What goes with the tensor of an operand: names, types and defaults.
PARTS = MappingProxyType(
    {
        "operand": (("type", "str", ""),),
        "quantized": (
            ("scales", "Tensor?", None),
            ("global_scale", "Tensor?", None),
            ("type", "str", ""),
            ("shape", "SymInt[]?", None),
            ("offsets", "Tensor?", None),
        ),
        "vector": (),
        "scale": (),
    }
)


class Parameter(NamedTuple):
    """A parameter of a schema: its name, what PyTorch calls its type, its default."""

    name: str
    kind: str
    default: Any = REQUIRED

    def __str__(self) -> str:
        if self.default is REQUIRED:
            return f"{self.kind} {self.name}"
        default = list(self.default) if isinstance(self.default, tuple) else self.default
        return f"{self.kind} {self.name}={default!r}"


def parameters_of(row: Operation) -> list[Parameter]:
    """Tensors, constants without a default, the parts of the last operand, of the others, and all other constants: in
    this order a usual call is short.
    """
    required = [each for each in row.tensors if each.kind != "scale"]
    parts = [
        Parameter(f"{each.name}_{name}", kind, default)
        for each in reversed(required)
        for name, kind, default in PARTS[each.kind]
    ]
    return [
        *(Parameter(each.name, TYPES[each.kind]) for each in required),
        *(constant(each) for each in row.constants if each.default is REQUIRED),
        *parts,
        *(Parameter(each.name, TYPES[each.kind], None) for each in row.tensors if each.kind == "scale"),
        *(constant(each) for each in row.constants if each.default is not REQUIRED),
    ]


def constant(argument: Argument) -> Parameter:
    """The parameter of a constant."""
    optional = "?" if argument.default is None else ""
    return Parameter(argument.name, TYPES[argument.kind] + optional, argument.default)


# ---- Calls


class Call:
    """How an operation is called: where its arguments lie among those of the schema, and what is done with them."""

    def __init__(self, row: Operation) -> None:
        self.row = row
        self.eager: Callable[..., Any] = getattr(dlfp4, row.name)
        self.parameters = parameters_of(row)
        self.defaults = tuple(each.default for each in self.parameters)
        self.places = {each.name: place for place, each in enumerate(self.parameters)}
        self.plans: dict[Any, Plan] = {}
        self.is_list = row.name == "quantize"
        self.operand_places = [(each.name, each.kind, self._places_of(each)) for each in row.tensors]
        self.constant_places = [(each.name, each.kind, self.places[each.name]) for each in row.constants]

    def _places_of(self, argument: Argument) -> tuple[int, ...]:
        """Where the parts of an operand lie, in the order of Parts's fields; -1 for what it does not have."""
        names = [argument.name, *(f"{argument.name}_{field}" for field in Parts._fields[1:])]
        return tuple(self.places.get(name, -1) for name in names)

    def schema(self, overload: str = "") -> str:
        """The operation as PyTorch's schemas say it."""
        parameters = ", ".join(map(str, self.parameters))
        several = "[]" if self.is_list else ""
        if overload:
            return f"{self.row.name}.{overload}({parameters}, *, Tensor(a!){several} out) -> ()"
        return f"{self.row.name}({parameters}) -> Tensor{several}"

    def values(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """All arguments: PyTorch leaves out trailing ones that have their default."""
        return args + self.defaults[len(args) :]

    def operands(self, values: tuple[Any, ...]) -> dict[str, Parts | None]:
        """The operands among the values, by name."""
        found: dict[str, Parts | None] = {}
        for name, _, places in self.operand_places:
            parts: list[Any] = [values[place] if place >= 0 else None for place in places]
            data, scales, unit, said, shape, offsets = parts
            found[name] = None if data is None else Parts(data, scales, unit, said or "", shape, offsets)
        return found

    def constants(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """The constants by name."""
        return {name: values[place] for name, _, place in self.constant_places}

    def result(self, values: tuple[Any, ...]) -> TensorProto:
        """What the operation gives: the row's one description, which kernels and fakes share."""
        protos = {
            name: None if operand is None else describe(operand) for name, operand in self.operands(values).items()
        }
        return self.row.result(**protos, **self.constants(values))

    def specs(self, values: tuple[Any, ...]) -> Specs:
        """The shape and type of each part of the result in PyTorch."""
        return specs_of(self.result(values))

    def allocate(self, x: torch.Tensor, specs: Specs) -> Any:
        """Memory for a result, beside the first operand."""
        made = [torch.empty(shape, dtype=dtype, device=x.device) for shape, dtype in specs]
        return made if self.is_list else made[0]

    def key(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """By what calls are known that repeat."""
        return tuple([facts_of(value) for value in args])

    def recall(self, args: tuple[Any, ...]) -> Plan:
        """What follows from the shapes and types of tensors, and from constants: found once for calls that repeat."""
        key = self.key(args)
        plan = self.plans.get(key)
        if plan is None:
            if len(self.plans) >= MOST_PLANS:
                self.plans.clear()
            plan = self.plans[key] = self.plan(self.values(args))
        return plan

    def plan(self, values: tuple[Any, ...]) -> Plan:
        """What follows from a call's arguments, without looking whether it is known."""
        proto = self.result(values)
        constants = {name: CONSTANTS.get(kind, as_it_is)(values[place]) for name, kind, place in self.constant_places}
        return Plan(proto, specs_of(proto), constants)

    def check(self, values: tuple[Any, ...], proto: TensorProto | None = None, out: Any = None) -> None:
        """Have the eager function refuse what it refuses of memory, as far as extents are known; nothing is computed.

        `out` is memory for a result, which `proto` describes. Constants may be of types that schemas do not take.
        """
        try:
            operands = {name: None if x is None else outline(x) for name, x in self.operands(values).items()}
            given = {name: number_of(value) for name, value in self.constants(values).items()}
            known = None if proto is None else replace(proto, shape=numbers(proto.shape))
            memory = {} if known is None else {"out": self.share_result(known, values, out, outline_part)}
        except UnknownError:
            return
        constants = {
            name: CONSTANTS.get(kind, as_it_is)(given[name])
            if is_of(self.parameters[place].kind, given[name])
            else given[name]
            for name, kind, place in self.constant_places
        }
        self.eager(**operands, **constants, **memory)

    def refuse_constants(self, args: tuple[Any, ...]) -> None:
        """Where constants are of types that schemas do not take, let the eager function say what it expects instead."""
        values = self.values(args)
        if not all(is_of(each.kind, value) for each, value in zip(self.parameters, values, strict=True)):
            self.check(values)

    def run(self, plan: Plan, values: tuple[Any, ...], out: Any) -> None:
        """Call the eager function on shared memory."""
        operands = {
            name: None if operand is None else plan.share(name, operand)
            for name, operand in self.operands(values).items()
        }
        self.eager(**operands, **plan.constants, out=self.share_result(plan.proto, values, out))

    def share_result(
        self, proto: TensorProto, values: tuple[Any, ...], out: Any, take: Callable[[torch.Tensor], Tensor] = asarray
    ) -> Any:
        """The memory for a result as the eager function takes it."""
        parts = out if self.is_list else [out]
        buffers = proto.buffers()
        if len(parts) != len(buffers):
            names = ", ".join(buffer.name for buffer in buffers)
            raise ValueError(f"out has {len(parts)} tensors; {self.row.name} gives {len(buffers)}: {names}")
        if not proto.is_quantized:
            return share_buffer(take(parts[0]), buffers[0], proto.packed)
        pairs = zip(parts, buffers, strict=True)
        made = proto._assemble({buffer.name: share_buffer(take(part), buffer, True) for part, buffer in pairs})
        return made[::-1] if isinstance(made, tuple) and values[self.places["axis"]][0] == -2 else made


def is_of(kind: str, value: Any) -> bool:
    """Whether a value is of the type that a schema calls so."""
    expected = EXPECTED.get(kind.removesuffix("?"))
    return expected is None or isinstance(value, expected) or (value is None and kind.endswith("?"))


EXPECTED: MappingProxyType[str, Any] = MappingProxyType(
    {"str": str, "bool": (bool, np.bool_), "float": Real, "int": Integral, "SymInt": Integral}
)

Specs = list[tuple[tuple[Any, ...], torch.dtype]]
MOST_PLANS = 1024


class Plan:
    """What is known of a call but for its memory: the description of the result, and constants as eager functions take
    them. Quantized operands, once checked, are compared with what was checked.
    """

    __slots__ = ("constants", "known", "proto", "specs")

    def __init__(self, proto: TensorProto, specs: Specs, constants: dict[str, Any]) -> None:
        self.proto, self.specs, self.constants = proto, specs, constants
        self.known: dict[str, ScaledTensor] = {}

    def share(self, name: str, operand: Parts) -> Any:
        """An operand as the eager function takes it."""
        if operand.scales is None or operand.offsets is not None:
            return share(operand)
        known = self.known.get(name)
        made = None if known is None else _core._share_like(known, operand.data, operand.scales, operand.global_scale)
        if made is None:
            found: Any = share(operand)
            if isinstance(found, ScaledTensor):  # else the eager function says what it is
                self.known[name] = _core._hollow_scaled(found)
            made = found
        return made


def facts_of(value: Any) -> Any:
    """Of an argument, what a result's description may depend on."""
    if isinstance(value, torch.Tensor):
        if value.dtype == PAIRS:
            return value.shape, PAIRS, value.stride()
        return value.shape, value.dtype
    return _core._constant_of(value)


def specs_of(proto: TensorProto) -> Specs:
    """Shape and type of each part of a result in PyTorch. Quantized FP4 is bytes: what torch.export stores has no pairs
    (2.13).
    """
    specs = [described(buffer, proto.packed) for buffer in proto.buffers()]
    return [(shape, torch.uint8 if proto.is_quantized and dtype == PAIRS else dtype) for shape, dtype in specs]


def as_it_is(value: Any) -> Any:
    """Of constants that eager functions take as schemas have them."""
    return value


def axes_of(axis: list[int]) -> int | tuple[int, ...]:
    """One axis, or several."""
    return axis[0] if len(axis) == 1 else tuple(axis)


def seed_of(seed: int | None) -> int | None:
    """A seed: schemas have signed integers, seeds have none."""
    return None if seed is None else seed % 2**64


def backend_of(name: str) -> str:
    """A backend. The default of schemas is no name that functions pass: PyTorch leaves out trailing arguments that have
    their default, and compiled graphs give them by their names, which costs half a microsecond each.
    """
    return name or "auto"


CONSTANTS: MappingProxyType[str, Callable[[Any], Any]] = MappingProxyType(
    {"recipe": recipe_of_text, "axes": axes_of, "integer": seed_of, "backend": backend_of}
)


def share_buffer(part: Tensor, buffer: Buffer, packed: bool) -> Tensor:
    """A piece of a result as a Tensor of its elements."""
    name = buffer.dtype.name
    if part.dtype.name != "uint8" or name == "uint8":
        return part
    return part.view(name) if packed or name not in SUBBYTE else _core._as_padded(part, name)


# ---- Registration


def register(row: Operation) -> Call:
    """Define an operation, and give it its kernels, their fakes and the out= form."""
    call = Call(row)

    def kernel(*args: Any) -> Any:
        plan = call.recall(args)
        out = call.allocate(args[0], plan.specs)
        call.run(plan, call.values(args), out)
        return out

    if row.name == "matmul":
        kernel = repeated(call, kernel)

    def kernel_out(*args: Any, out: Any) -> None:
        call.run(call.recall(args), call.values(args), out)
        torch.autograd.graph.increment_version(out)

    def fake(*args: Any) -> Any:
        values = call.values(args)
        check_values(call, values)
        specs = call.specs(values)
        call.check(values)
        return call.allocate(args[0], specs)

    def fake_out(*args: Any, out: Any) -> None:
        values = call.values(args)
        check_values(call, values, out)
        proto = call.result(values)
        specs_of(proto)  # refuses what PyTorch has no shape for
        call.check(values, proto, out)

    is_in_c = False
    for overload, real, imagined in (("", kernel, fake), ("out", kernel_out, fake_out)):
        LIBRARY.define(call.schema(overload))
        name = f"{row.name}.{overload}".rstrip(".")
        if name == "matmul" and stable.register(call, real, DEVICES):
            is_in_c = True
        else:
            for device in DEVICES:
                LIBRARY.impl(name, real, device)
        torch.library.register_fake(f"dlfp4::{name}", imagined, lib=LIBRARY)
    differentiable = register_gradient(call, kernel, LIBRARY)
    if is_in_c:
        stable.register_gradient(row.name, differentiable, is_at_once, DEVICES)
    register_batching(call, LIBRARY)
    return call


def check_values(call: Call, values: tuple[Any, ...], out: Any = None) -> None:
    """BackendError where some tensors are on "meta" and others not: PyTorch then takes the fake, whose result would be
    memory that nothing was written to.
    """
    outs = out if isinstance(out, list) else [out]
    named = [*zip(call.places, values, strict=True), *(("out", each) for each in outs)]
    places = {name: value.device for name, value in named if isinstance(value, torch.Tensor)}
    empty = [name for name, device in places.items() if device.type == "meta"]
    if empty and len(empty) < len(places):
        name, device = next(item for item in places.items() if item[0] not in empty)
        raise dlfp4.BackendError(
            f"{call.row.name}: {' and '.join(empty)} on 'meta' without values, but {name} on {device}: load the "
            f"values, or move all tensors to one device"
        )


def register_autocast(device: str) -> None:
    """Cast the float32 operands of products as those of torch.matmul are, and nothing else: scales stay as they are."""
    for name, operands in (("matmul", "ab"), ("grouped_matmul", "xw")):
        register_cast(name, [CALLS[name].places[operand] for operand in operands], device)


def register_cast(name: str, places: list[int], device: str) -> None:
    """Cast the arguments at some places, where they are float32."""
    key = getattr(torch._C.DispatchKey, f"Autocast{device}")
    op = getattr(torch.ops.dlfp4, name)

    def kernel(*args: Any) -> Any:
        given = list(args)
        for place in places:
            if given[place].dtype == torch.float32:
                given[place] = given[place].to(torch.get_autocast_dtype(device.lower()))
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return op(*given)

    LIBRARY.impl(name, kernel, f"Autocast{device}")


CALLS = MappingProxyType({name: register(row) for name, row in OPERATIONS.items()})
for each in DEVICES:
    register_autocast(each)
