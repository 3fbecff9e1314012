"""The weights of a module quantized in place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from dlfp4 import _core
from dlfp4.arguments import check_layer, check_named, format_of
from dlfp4.checkpoints.roles import NO_WEIGHT, WEIGHT
from dlfp4.checkpoints.selection import (
    Choice,
    check_included,
    choose,
    is_transposed,
    options_of,
    quantize_chosen,
    without_flag,
)
from dlfp4.engines.problem import exact_types_of
from dlfp4.torch.from_values import quantize
from dlfp4.torch.linear import Linear
from dlfp4.torch.names import forget_marker, name_parts, quantized_in
from dlfp4.torch.scaled_tensor import ScaledTensor, element_of, turn

if TYPE_CHECKING:
    from dlfp4 import ScaledTensor as Scaled
    from dlfp4.formats import Activation, Format, Recipe, RecipeName

Place = tuple[torch.nn.Module, str]  # of a parameter: the module that has it, and its name there


def quantize_(
    module: torch.nn.Module,
    format: Format | str,
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    recipe: Recipe | RecipeName | None = None,
    prepare: bool = True,
    activation: Activation | None = None,
    convention: str | None = None,
) -> torch.nn.Module:
    """Quantize the weights of a module's linear layers in place.

    Each becomes a frozen parameter, a :class:`ScaledTensor`. A ``torch.nn.Linear`` becomes a :class:`Linear`; other
    modules stay as they are, and multiply by the new weight: fused projections, experts' stacks ``(E, N, K)``,
    transposed layers. Layers that engines multiply by as by one matrix, such as query, key and value, share a global
    scale, as in files.

    Parameters
    ----------
    module : torch.nn.Module
        On the host or on CUDA devices, with weights of float32, bfloat16 or float16. On "meta" weights become quantized
        ones without values, for ``load_state_dict(state, assign=True)`` to bring.
    format, recipe
        As :func:`dlfp4.quantize` takes them.
    include, exclude : str or sequence of str, optional
        Patterns of the names of parameters; :func:`dlfp4.checkpoints.selection.choose`, which decides for files as
        well, documents what they match, and what is never quantized, whatever the patterns: embeddings, heads, routers,
        norms. The weight of an ``Embedding`` or ``EmbeddingBag`` is kept whatever its name, and a parameter of `module`
        itself that is not called a weight unless `include` names it. A head that is to be quantized all the same is
        given as `module` by itself.
    prepare : bool
        Bring weights on CUDA devices into the order of dlfp4's kernels; see :meth:`dlfp4.ScaledTensor.prepare`:
        matrices, and stacks of such with a multiple of 128 rows. Prepared weights can be divided only between blocks of
        128 rows, so FSDP cannot shard them. With activation "fp8_1x128" or "fp8_row", whose kernels read weights as
        they lie, they are left so.
    activation : {"int8", "fp8_1x128", "mxfp8", "fp8_row"}, optional
        How layers round x; see :class:`Linear`.
    convention : str, optional
        The convention whose names ``state_dict`` uses for the parts of the weights, one of
        ``dlfp4.checkpoints.CONVENTIONS``; what it cannot store is not quantized.

    Returns
    -------
    torch.nn.Module
        `module` itself.

    Raises
    ------
    ValueError
        An unknown format, activation or convention; a pattern matches nothing, or an `include` pattern matches only
        tensors that are never quantized; no weight is left to quantize; a layer cannot round its inputs by `activation`
        for such weights ("int8" is for FP4 in blocks, "mxfp8" for K in multiples of 32). The module is then as it was.
    TypeError
        `module` is not a module, or a pattern is not a string.

    Examples
    --------
    >>> import torch, dlfp4.torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    >>> dlfp4.torch.quantize_(model, "nvfp4", exclude="2")[0].weight.format
    'nvfp4'
    """
    check_named(activation)
    prepares = _core._parse_flag(prepare, "prepare")
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is of type {type(module).__name__}; expected a torch.nn.Module")
    tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    given = {name: described(tensor) for name, tensor in tensors.items()}
    choices = choose(
        given,
        format,
        convention=convention,
        include=include,
        exclude=exclude,
        roles=roles_in(module, named=bool(include)),
    )
    chosen = one_each(tensors, choices)
    check_included(include, *by_name(tensors, choices, chosen))
    if not chosen:
        reasons = "; ".join(f"{choice.name}: {without_flag(choice.reason)}" for choice in list(choices.values())[:3])
        reasons = reasons or "it has no parameters"
        named: Any = {"convention": convention, "include": "re:.*", "roles": roles_in(module, named=True)}
        helps = bool(given) and any(choice.quantized for choice in choose(given, format, **named).values())
        remedy = "; name some in include" if helps else ""
        raise ValueError(f"no weight of {type(module).__name__} is quantized to {format} ({reasons}){remedy}")
    places = places_of(module)
    for name in chosen:
        if any(type(owner) is torch.nn.Linear for owner, _ in places[id(tensors[name])]):
            check_layer(activation, _core._find_format(format), tensors[name].shape[-1], name)
    how: dict[str, Any] = {"format": format, "convention": convention, "recipe": recipe}
    turned = {name for name, choice in chosen.items() if lies_across(tensors[name], choice, convention)}
    sources = {name: tensors[name].detach() for name in chosen}
    sources |= {name: sources[name].mT for name in turned}
    along = {name: replace(choice, axis=-1) if name in turned else choice for name, choice in chosen.items()}
    real = {name: choice for name, choice in along.items() if not sources[name].is_meta}
    made = {name: quantize_chosen(sources[name], choice, **how) for name, choice in real.items()}
    shared = with_shared_scales(sources, made, real, how)
    for name, choice in along.items():
        if name in shared:
            weight = as_weight(shared[name], tensors[name].dtype, prepares and reads_prepared(activation))
        else:
            weight = promised(sources[name], choice, **how)
        parameter = torch.nn.Parameter(turn(weight) if name in turned else weight, requires_grad=False)
        for place in places[id(tensors[name])]:
            put(place, parameter, activation, convention)
    module.register_load_state_dict_pre_hook(forget_marker)
    return module


def described(tensor: torch.Tensor) -> Any:
    """A tensor as the selection takes it: one that is quantized already by its elements."""
    if not isinstance(tensor, ScaledTensor):
        return tensor
    return element_of(tensor.format), tuple(tensor.shape)


def roles_in(module: torch.nn.Module, *, named: bool) -> dict[str, str]:
    """What a module's tensors are that are no weights, as the modules that own them tell.

    A parameter of `module` itself has a name without a module before it, from which in a file nothing follows: here it
    is judged as those of the modules within are.
    """
    found = {} if named else {name: NO_WEIGHT for name in module._parameters if not WEIGHT.match(name)}
    found |= {name: "buffer" for name, _ in module.named_buffers()}
    for path, owner in module.named_modules(remove_duplicate=False):
        if isinstance(owner, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            found[f"{path}.weight".removeprefix(".")] = "embedding"
    return found


def one_each(tensors: Mapping[str, torch.Tensor], choices: Mapping[str, Choice]) -> dict[str, Choice]:
    """The parameters to quantize, each by one of its names; a tied one where all of its names are chosen."""
    kept = {id(tensors[name]) for name, choice in choices.items() if not choice.quantized}
    first: dict[int, str] = {}
    for name in choices:
        first.setdefault(id(tensors[name]), name)
    return {name: choices[name] for number, name in first.items() if number not in kept}


def by_name(
    tensors: Mapping[str, torch.Tensor], choices: Mapping[str, Choice], chosen: Collection[str]
) -> tuple[set[str], dict[str, str]]:
    """All names of the parameters to quantize, and why each other tensor is kept."""
    quantized = {id(tensors[name]) for name in chosen}
    names = {name for name, tensor in tensors.items() if id(tensor) in quantized}
    others = {name: choice.reason for name, choice in choices.items() if name not in names}
    return names, {name: without_flag(reason) or "tied to one that is kept" for name, reason in others.items()}


def places_of(module: torch.nn.Module) -> dict[int, list[Place]]:
    """Where each parameter is: a tied one in several modules."""
    places: dict[int, list[Place]] = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((owner, name))
    return places


def with_shared_scales(
    tensors: Mapping[str, torch.Tensor],
    made: Mapping[str, Scaled],
    chosen: Mapping[str, Choice],
    how: Mapping[str, Any],
) -> dict[str, Scaled]:
    """The tensors, of which those that are fused have the largest of the global scales that each would have alone.
    Zeros have no say, as in files: their own scale, 1, is far above that of any weight, which would vanish under it.
    """
    shared = dict(made)
    for name, choice in chosen.items():
        units = {other: made[other].global_scale for other in choice.fused if other in made}
        if any(unit is None or unit.ndim for unit in units.values()):
            continue
        numbers = {other: unit.item() for other, unit in units.items() if unit is not None}
        if len(set(numbers.values())) < 2:
            continue
        largest = max(number for other, number in numbers.items() if tensors[other].any())
        if numbers[name] != largest:
            shared[name] = quantize_chosen(tensors[name].detach(), replace(choice, global_scale=largest), **how)
    return shared


def lies_across(x: torch.Tensor, choice: Choice, convention: str | None) -> bool:
    """Whether a tensor is quantized as its transpose: as conventions store it, and stacks of experts, which kernels
    multiply by where blocks follow one another in the rows of an expert.
    """
    return is_transposed(choice, convention) or (x.dim() > 2 and choice.axis == -2)


def reads_prepared(activation: Activation | None) -> bool:
    """Whether kernels multiply such activations by prepared weights: what 16-bit floats hold exactly."""
    format = format_of(activation)
    return format is None or exact_types_of(_core._find_format(format)) != ("float32",)


def block_rows(format: str) -> int:
    """Rows of a block of weights that are prepared; 0 of formats that are not."""
    return _core._size_of_prepared(format, 1, 1)[3]


def as_weight(q: Scaled, dtype: torch.dtype, prepare: bool) -> ScaledTensor:
    """The quantized tensor as PyTorch's; of a stack that is prepared each matrix is whole blocks, to be taken out."""
    lines = q.shape[-2 if q.axis == -1 else -1]
    if prepare and (q.ndim == 2 or (q.ndim == 3 and lines % max(1, block_rows(q.format.name)) == 0)):
        q = q.prepare()
    return ScaledTensor.from_dlfp4(q, dtype)


def promised(
    x: torch.Tensor, choice: Choice, format: Format | str, convention: str | None, recipe: Any
) -> ScaledTensor:
    """What a tensor on "meta" is to become: parts without values, there as well."""
    options = options_of(x, choice, _core._find_format(format), convention, recipe)
    made: ScaledTensor = quantize(x, format, **options)
    return made


def renew_references(layer: Linear) -> None:
    """Bring the layer's own forward to who keeps the former one: accelerate, which calls it between its hooks."""
    for name, kept in list(vars(layer).items()):
        if getattr(kept, "__func__", None) is torch.nn.Linear.forward:
            setattr(layer, name, MethodType(Linear.forward, layer))


def put(place: Place, weight: torch.nn.Parameter, activation: Activation | None, convention: str | None) -> None:
    """A parameter in its place; a linear layer becomes one of ours, and keeps its hooks and attributes."""
    owner, name = place
    names_parts = bool(quantized_in(owner))
    setattr(owner, name, weight)
    if type(owner) is torch.nn.Linear:
        owner.__class__ = Linear
        owner.activation = activation
        renew_references(owner)
    if not names_parts:
        name_parts(owner, convention)
