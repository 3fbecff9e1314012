"""Names and containers of quantized weights in the state dicts of modules, as checkpoints have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import dlfp4
from dlfp4.checkpoints import comfyui, conventions, native
from dlfp4.checkpoints.names import EXPERTS
from dlfp4.formats import FLOATS, offset_parts
from dlfp4.frameworks.torch import element_name
from dlfp4.torch.distributing import divided, gathered, is_divided, without_values
from dlfp4.torch.joining import blocks_rounded
from dlfp4.torch.representing import without_pairs
from dlfp4.torch.scaled_tensor import ScaledTensor, like, plain, present, restore, turn
from dlfp4.torch.views import blank_part, one_by_one, sizes_of, unit_of

if TYPE_CHECKING:
    from dlfp4 import ScaledTensor as Scaled

OWN = native.NAMES  # of the parts, where there is no convention
MARK = comfyui.MARK


def name_parts(module: torch.nn.Module, convention: str | None) -> None:
    """Let a module's state dicts have the parts of its own quantized tensors by the names of a convention.

    It loads those of every convention that is known, and whole ScaledTensors.
    """
    if convention is not None:
        conventions.check_convention(convention)
    module.register_state_dict_post_hook(partial(split, convention))
    module.register_load_state_dict_pre_hook(partial(join, convention))
    setattr(module, PartNames.PLACE, PartNames())


class PartNames:
    """The names that a module's state dict has had for the parts of its tensors, as attributes.

    ``torch.distributed.checkpoint.state_dict`` looks each name of a state dict up among the attributes of its module.
    It asks ``_fqn_modifiers()`` of modules whose hooks change names where else an attribute is: it is here.
    """

    PLACE = "_fqn_modifiers"

    def __call__(self) -> dict[str, str]:
        """By name, the module's attribute that has it as an attribute."""
        return dict.fromkeys(vars(self), self.PLACE)


def quantized_in(module: torch.nn.Module) -> dict[str, ScaledTensor]:
    """A module's own quantized parameters and buffers."""
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return {name: tensor for name, tensor in own if isinstance(tensor, ScaledTensor)}


def divided_in(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A module's own quantized parameters that are over several processes."""
    return {name: tensor for name, tensor in module.named_parameters(recurse=False) if is_divided(tensor)}


# ---- Out


def split(convention: str | None, module: torch.nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Called when a module has put its tensors into a state dict: quantized ones become their parts."""
    for name in quantized_in(module):
        whole = state.pop(prefix + name, None)
        if whole is not None:
            parts = split_one(prefix + name, whole, convention)
            state.update(parts)
            vars(getattr(module, PartNames.PLACE)).update((part.removeprefix(prefix), None) for part in parts)


def split_one(name: str, q: ScaledTensor, convention: str | None) -> dict[str, torch.Tensor]:
    """The parts of one tensor; a transposed one is stored as it lies, one on "meta" as zeros would be."""
    source = plain(turn(q) if q.turned else q)
    if convention is not None:
        real = with_memory(source) if source.is_meta else source
        parts = conventions.split_parts({name: restore(real)}, convention)
        return {part: tensor.to_torch().to(source.device) for part, tensor in parts.items()}
    parts = own_parts(source, q.turned)
    return {part: parts[kind] for kind, part in own_names(name, source).items()}


def with_memory(q: ScaledTensor) -> ScaledTensor:
    """A tensor of zeros on the host in the place of one without values."""
    return like(q, {name: blank_part(name, part.shape, part.dtype, "cpu") for name, part in present(q).items()})


def own_names(name: str, q: ScaledTensor) -> dict[str, str]:
    """What the parts of a tensor are called where there is no convention: as in dlfp4's own files."""
    zero_points, biases = offset_names(name)
    names = dict(zip(("elements", "scales", "global_scale"), OWN.parts(name), strict=True))
    names["offsets"] = biases if q.encoding.offsets in FLOATS else zero_points
    return {kind: part for kind, part in names.items() if kind in present(q)}


def offset_names(name: str) -> list[str]:
    """What its zero points and its biases are called there."""
    return [f"{name}_{kind}" for kind in native.OFFSETS]


def own_parts(q: ScaledTensor, turned: bool) -> dict[str, torch.Tensor]:
    """The parts of a tensor by kind where there is no convention. Those of a stack that stands for its transpose are
    matrices one by one: in files two dimensions are blocks along the columns of all.
    """
    parts = present(q)
    if turned and q.dim() > 2:
        lines = parts["elements"].shape[0]
        for kind, part in parts.items():
            if part.dim() == 2 and part.shape[0] == lines:
                parts[kind] = part.unflatten(0, q.shape[:-1])
    return parts


# ---- In


def join(
    convention: str | None,
    module: torch.nn.Module,
    state: dict[str, Any],
    prefix: str,
    metadata: Any,  # noqa: ARG001  (a place among arguments)
    strict: bool,  # noqa: ARG001
    missing: list[str],
    unexpected: list[str],  # noqa: ARG001
    errors: list[str],
) -> None:
    """Called before a module takes its tensors from a state dict: parts become quantized tensors.

    Of a tensor without parts PyTorch sees one name missing. Safetensors' ``load_model``, which looks for all that its
    file has left out of tied weights, has to see the others, too. Of parts that do not fit PyTorch would compare the
    shape of codes with that of values: such a tensor stays what it is, and `errors` says why.
    """
    for name, own in {**quantized_in(module), **divided_in(module)}.items():
        key = prefix + name
        given = state.get(key)
        is_whole = isinstance(given, ScaledTensor) or is_divided(given)
        if is_whole and given is not own:  # which set_model_state_dict adds where parts have other names
            continue
        if given is not None and not is_whole:
            state[key] = gathered(given)  # codes, which set_model_state_dict divides as it does what it knows
        target = without_values(own)
        found = join_one(key, prefix, state, target) or join_experts(key, prefix, state, target)
        if found is not None:
            whole, parts = found
            for part in parts:
                del state[part]
            state[key] = divided(whole, own)
        elif not is_whole:
            expected = split_one(key, target, convention)
            missing += [part for part in expected if part != key and part not in state]
            if told := why_unfit(key, state, expected, target):
                errors.append(told)
                for part in own_parts_in(key, state) | (expected.keys() & state.keys()):
                    del state[part]
                state[key] = own
    state.pop(prefix + MARK, None)
    forget_marker(module, state)


def own_parts_in(key: str, state: Mapping[str, Any]) -> set[str]:
    """The names in a state dict that our own parts of a tensor have, of whatever format."""
    return {*OWN.parts(key), *offset_names(key)} & state.keys()


def why_unfit(key: str, state: Mapping[str, Any], expected: Mapping[str, torch.Tensor], target: ScaledTensor) -> str:
    """How the parts of a tensor differ from those that were expected, and what to do; "" where there are no codes."""
    codes = state.get(key)
    if (
        not isinstance(codes, torch.Tensor)
        or key not in expected
        or (codes.dtype.is_floating_point and codes.itemsize > 1)
    ):
        return ""
    names = dict.fromkeys([*expected, *sorted(own_parts_in(key, state))])
    pairs = {name: (in_words(state.get(name)), in_words(expected.get(name))) for name in names}
    told = "; ".join(f"{name} is {own}, expected {other}" for name, (own, other) in pairs.items() if own != other)
    return told and (
        f"{told}, for {target.format} of shape {tuple(target.shape)}: quantize the layer as the weight was, by the "
        f"same format and recipe, or load a ScaledTensor as {key}"
    )


def in_words(part: Any) -> str:
    """The type and the shape of a part."""
    if not isinstance(part, torch.Tensor):
        return "absent" if part is None else f"a {type(part).__name__}"
    return f"{element_name(part.dtype)} {tuple(part.shape)}"


def forget_marker(module: torch.nn.Module, state: dict[str, Any], *_: Any) -> None:  # noqa: ARG001
    """Called before a model loads: what says that a file is "stable-diffusion"'s is no module's."""
    state.pop(conventions.MARKER, None)


def join_one(
    key: str, prefix: str, state: Mapping[str, Any], target: ScaledTensor
) -> tuple[ScaledTensor, list[str]] | None:
    """The tensor of its parts, by our own names or those of a convention, and their names."""
    is_marked = prefix + MARK in state  # as ComfyUI's, whose parts may look like ours, and lie in another order
    own = None if is_marked else join_own(key, state, target)
    return own or join_by_convention(key, prefix, state, target)


def join_own(key: str, state: Mapping[str, Any], target: ScaledTensor) -> tuple[ScaledTensor, list[str]] | None:
    """The tensor of parts that look as the target's own do, and their names."""
    source = plain(turn(target) if target.turned else target)
    names, own = own_names(key, source), own_parts(source, target.turned)
    parts = {
        kind: without_pairs(state[part]) for kind, part in names.items() if isinstance(state.get(part), torch.Tensor)
    }
    if len(parts) < len(names) or own_parts_in(key, state) - {*names.values()}:  # beside which codes mean others
        return None
    if all((part.shape, part.dtype) == (own[kind].shape, own[kind].dtype) for kind, part in parts.items()):
        made = like(source, {kind: part.flatten(0, -2) if part.dim() > 2 else part for kind, part in parts.items()})
        return turn(made) if target.turned else made, list(names.values())
    columns = join_columns(parts, source) if target.turned and target.dim() > 2 else None
    return None if columns is None else (columns, list(names.values()))


def join_columns(parts: Mapping[str, torch.Tensor], source: ScaledTensor) -> ScaledTensor | None:
    """The stack (experts, in, out) of parts as our own files have them, with blocks along its columns."""
    shape, encoding = tuple(turn(source).shape), replace(source.encoding, axis=-2)
    scale = element_name(source.scales.dtype)
    sizes = sizes_of(shape, encoding, False, scale, unit_of(source))
    if any((tuple(part.shape), part.dtype) != sizes[kind] for kind, part in parts.items()):
        return None
    return one_by_one(ScaledTensor(parts, str(encoding), shape, source.dtype))


def join_experts(
    key: str, prefix: str, state: Mapping[str, Any], target: ScaledTensor
) -> tuple[ScaledTensor, list[str]] | None:
    """The stack of matrices that files have expert by expert, as transformers stacks them, and the names of parts."""
    for names in EXPERTS.get(key.removeprefix(prefix), ()):
        if target.dim() == 3 and any(part.startswith(f"{prefix}0.{names[0]}.") for part in state):
            return stack_experts(key, [f"{prefix}{{}}.{name}." for name in names], state, target)
    return None


def stack_experts(
    key: str, places: Sequence[str], state: Mapping[str, Any], target: ScaledTensor
) -> tuple[ScaledTensor, list[str]] | None:
    """The same, of matrices whose modules have such names with an expert's number; None where one is absent."""
    experts, parts = [], []
    for number, expert in enumerate(plain(turn(target) if target.turned else target).unbind()):
        matrices = []
        for place, matrix in zip(places, expert.chunk(len(places)), strict=True):
            module = place.format(number)
            found = join_one(f"{module}weight", module, state, matrix)
            if found is None:
                return None
            matrices.append(restore(found[0]))
            parts += [*found[1], *({module + MARK} & state.keys())]
        experts.append(unrounded(dlfp4.concatenate(matrices), key))
    made = ScaledTensor.from_dlfp4(unrounded(dlfp4.stack(experts), key), target.dtype)
    return turn(made) if target.turned else made, parts


def unrounded(q: Scaled, key: str) -> Scaled:
    """Joined tensors; ValueError where a scale that they had to share has changed some."""
    if rounded := blocks_rounded(q):
        raise ValueError(
            f"{key}: its matrices have scales of their own in the file, and together they have one, by which "
            f"{rounded} would be rounded: quantize to a format with scales of blocks or rows, gate and up with one "
            f"global scale, as python -m dlfp4 quantize does; or load a ScaledTensor as {key}"
        )
    return q


def join_by_convention(
    key: str, prefix: str, state: Mapping[str, Any], target: ScaledTensor
) -> tuple[ScaledTensor, list[str]] | None:
    """The tensor of parts as some convention stores it, in the target's format where several look alike."""
    found = {
        name: conventions.named(name, part.detach())
        for name, part in state.items()
        if name.startswith(prefix) and type(part) in (torch.Tensor, torch.nn.Parameter)
    }
    for each in conventions.find_joins(found, comfyui.find_marks(found, {})):
        if each.name == key:
            own = replace(each.spelling, formats=(target.format,))
            assembled = conventions.assemble([found[part] for part in each.parts], own)
            q = each.tensor if assembled is None else assembled
            made = with_unit(ScaledTensor.from_dlfp4(by_rows(q, target.format), target.dtype), target)
            return turn(made) if target.turned else made, list(each.parts)
    return None


def with_unit(q: ScaledTensor, target: ScaledTensor) -> ScaledTensor:
    """A tensor with a global scale of one where a convention has none, as MLX, and the target has one: state dicts have
    it among the parts that they look for.
    """
    if q.global_scale is None and target.global_scale is not None:
        q.global_scale = torch.ones(target.global_scale.shape, device=q.device)
    return q


def by_rows(q: Scaled, format: str) -> Scaled:
    """Integers of one group a row, where the target has rows with a scale each: their files are the same."""
    own = dlfp4.formats()[format]
    is_one = q.format.element == own.element and q.scales.ndim == 2 and q.scales.shape[1] == 1
    if not is_one or not own.scales_lines or q.format.scales_lines:
        return q
    return dlfp4.ScaledTensor.from_parts(q.data, q.scales, format=own, shape=q.shape, **offset_parts(q))
