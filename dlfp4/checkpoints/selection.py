"""Which tensors of a model are quantized, along which axis, and why the others are kept.

Only the weights of linear layers are quantized by default, as their names and shapes tell them. What is already
quantized, in a convention known here or not, is kept with all that belongs to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Literal

import numpy as np

import dlfp4
from dlfp4 import Recipe, ScaledTensor, Tensor
from dlfp4._core import _buffers_of, _find_format, _parse_flag
from dlfp4.checkpoints.conventions import (
    as_it_comes_back,
    caution,
    check_mapping,
    find_spelling,
    scales_shape,
    why_no_stack,
)
from dlfp4.checkpoints.names import fused_with, is_part, last, module_of
from dlfp4.extents import count_elements
from dlfp4.formats import FLOATS, Format, find_recipe
from dlfp4.frameworks.base import is_row_major
from dlfp4.suggest import did_you_mean, is_one_of

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]  # the element type and the shape of each tensor

FLAG = "include_"  # what the flags of `choose` begin with
GPT_OSS = "gpt-oss"  # whose experts were (experts, in, out), and are stored as (experts, out, in)
TURNING = ("gptq",)  # whose loaders take layers that were stored as (in, out)


@dataclass(frozen=True)
class Choice:
    """What is to become of one tensor.

    Parameters
    ----------
    name : str
        Of the tensor.
    quantized : bool
        Whether it is to be quantized.
    reason : str
        Why it is kept; of a quantized one, what is worth saying about it, such as an unusual axis, or "".
    axis : int
        The axis along which its blocks run, -1 or -2: the one over which products with it sum.
    fused : tuple of str
        The tensors, itself among them, that engines multiply by as by one matrix, such as gate and up. They are to have
        one global scale.
    global_scale : float, optional
        That scale, once it is known.
    """

    name: str
    quantized: bool
    reason: str = ""
    axis: Literal[-1, -2] = -1
    fused: tuple[str, ...] = ()
    global_scale: float | None = None


def choose(
    tensors: Mapping[str, Any],
    format: str | Format,
    *,
    convention: str | None = None,
    include: str | Sequence[str] | None = (),
    exclude: str | Sequence[str] | None = (),
    include_embeddings: bool = False,
    include_heads: bool = False,
    include_routers: bool = False,
    axis: int | None = None,
) -> dict[str, Choice]:
    """Choose the tensors of a model to quantize; by default, the weights of its linear layers alone.

    Names, element types and shapes decide, and no data is read. Embeddings, output heads, routers of experts, norms,
    biases, convolutions, positional tables and what is already quantized are kept. So is what the format or the
    convention cannot hold.

    Parameters
    ----------
    tensors : mapping of str to object
        All tensors of the model, of all its files: anything with ``dtype`` and ``shape``, or pairs of the two. A
        part whose weight lies in another file is recognised only where both are given.
    format : str or Format
        A row of :func:`dlfp4.formats`.
    convention : str, optional
        Keep what it cannot store; see :func:`dlfp4.checkpoints.split_parts`. Without `include`, also keep what its
        loaders do not look for, such as stacks of experts where they know layers alone.
    include, exclude : str or sequence of str
        Patterns of names. A tensor may be quantized if its name matches one of `include` (an empty `include` matches
        all) and none of `exclude`. ``lm_head`` or ``mlp.gate`` matches where these are whole components of the name;
        a pattern with ``*``, ``?`` or ``[`` matches the name, or the name of a module that holds the tensor; what
        follows ``re:`` is a regular expression for the beginning of either. Each pattern must match something.
    include_embeddings, include_heads, include_routers : bool
        Quantize these, too.
    axis : {-1, -2}, optional
        The axis over which products with stacks of experts sum: -1 for (experts, out, in), -2 for (experts, in, out).
        By default the shapes of the stacks that belong together tell it. Who says it names the stacks.

    Returns
    -------
    dict of str to Choice
        One for each tensor, in the same order.

    Raises
    ------
    ValueError
        A pattern matches nothing or is no regular expression, the format or the convention is unknown, the convention
        does not store the format, or `axis` is none.
    TypeError
        A pattern is no string.

    Examples
    --------
    >>> from dlfp4.checkpoints import selection
    >>> shapes = {"lm_head.weight": ("bfloat16", (512, 64)), "layers.0.up_proj.weight": ("bfloat16", (128, 64))}
    >>> for choice in selection.choose(shapes, "nvfp4").values():
    ...     print(choice.name, choice.quantized, choice.reason or "-")
    lm_head.weight False output head; include_heads quantizes it
    layers.0.up_proj.weight True -
    """
    if not is_one_of(axis, (None, -1, -2)):
        raise ValueError(f"axis={axis!r}: expected None, -1 (experts, out, in) or -2 (experts, in, out)")
    check_mapping("tensors", tensors, "tensors")
    chosen = _find_format(format)
    if convention is not None:
        find_spelling(chosen, convention)
    shapes = {name: described(x) for name, x in tensors.items()}
    included, excluded = as_patterns("include", include), as_patterns("exclude", exclude)
    wanted, unwanted = find_matches("include", included, shapes), find_matches("exclude", excluded, shapes)
    order = -2 if axis is None and convention == GPT_OSS else axis
    flags = {"embeddings": include_embeddings, "heads": include_heads, "routers": include_routers}
    model = Model(shapes, {name: _parse_flag(flag, FLAG + name) for name, flag in flags.items()}, order)
    choices = {}
    for name, x in tensors.items():
        reason = (
            f"already {x.format}" if isinstance(x, ScaledTensor)
            else model.why_quantized(name) or why_excluded(name, included, wanted, unwanted)
            or model.why_no_weight(name, named=bool(included))
        )  # fmt: skip
        choice = Choice(name, False, reason) if reason else model.orient(name)
        choice = fit(choice, shapes[name][1], chosen, convention)
        choice = choice if included else look_for(choice, len(shapes[name][1]), convention, axis is not None)
        choices[name] = with_caution(choice, chosen, convention)
    if has_unit(chosen, convention):
        flat = {name for name, (_, shape) in shapes.items() if len(shape) == 2}
        return {name: replace(choice, fused=fused_among(choice, choices, flat)) for name, choice in choices.items()}
    return choices


def quantize_chosen(
    x: Any,
    choice: Choice,
    format: str | Format,
    *,
    convention: str | None = None,
    recipe: Any = None,
) -> ScaledTensor:
    """Quantize one chosen tensor along its axis.

    Conventions store blocks along the last axis. For them a matrix stored as (in, out) is transposed, so the result
    has the shape (..., out, in). It has the values that come back from where it is stored.
    """
    chosen = _find_format(format)
    options = options_of(x, choice, chosen, convention, recipe)
    if is_transposed(choice, convention):
        x = dlfp4.asarray(x).mT
    q: ScaledTensor = dlfp4.quantize(x, chosen, **options)
    return q if convention is None else as_it_comes_back(q, find_spelling(chosen, convention))


def options_of(x: Any, choice: Choice, format: Format, convention: str | None, recipe: Any) -> dict[str, Any]:
    """What :func:`dlfp4.quantize` is given for a chosen tensor, of which only element type and shape are asked."""
    own = recipe_of(x, format, convention, recipe)
    options: dict[str, Any] = {"recipe": own, "axis": -1 if is_transposed(choice, convention) else choice.axis}
    if choice.global_scale is not None and own.global_scale_per == "tensor":
        options["global_scale"] = choice.global_scale
    elif format.has_global_scale and not has_unit(format, convention):
        options["global_scale"] = 1.0  # there is no place for another one
    return options


def without_flag(reason: str) -> str:
    """A reason, for callers whose own caller has no such flags of :func:`choose` as it names."""
    return reason.partition(f"; {FLAG}")[0]


def is_transposed(choice: Choice, convention: str | None) -> bool:
    """Whether a chosen tensor is stored as its transpose."""
    return convention is not None and choice.axis == -2


# ---- One global scale for several tensors


def has_unit(format: Format, convention: str | None) -> bool:
    """Whether tensors have a global scale, and the convention has a place for it."""
    return format.has_global_scale and (convention is None or bool(find_spelling(format, convention).global_scale))


def recipe_of(x: Any, format: Format, convention: str | None, recipe: Any) -> Recipe:
    """The recipe for a tensor, with the scales that the convention's loaders hold where the recipe does not say it."""
    dtype, shape = described(x)
    found = find_recipe(format, recipe)
    if len(shape) < 3 and found.global_scale_per == "matrix":  # which says of stacks that they have several
        return replace(found, global_scale_per="tensor")
    if convention is None:
        return found
    spelling = find_spelling(format, convention)
    if format.kind == "largest" and spelling.held_scales and found.scale_dtype is None:
        type_of_scales: Any = dtype if spelling.held_scales == "weights" else spelling.held_scales
        return replace(found, scale_dtype=type_of_scales)
    if len(shape) > 2 and format.has_global_scale and spelling.per_matrix and found.global_scale_per == "tensor":
        return replace(found, global_scale_per="matrix")
    return found


def fused_among(choice: Choice, choices: Mapping[str, Choice], matrices: Collection[str]) -> tuple[str, ...]:
    """The chosen matrices that are fused with this one, itself among them; empty where there are no others."""
    names = fused_with(choice.name).values() if choice.quantized and choice.name in matrices else ()
    members = tuple(name for name in names if name in matrices and choices[name].quantized)
    return members if len(members) > 1 else ()


def shared_global_scale(tensors: Iterable[Any], format: str | Format, recipe: Any = None) -> float:
    """The global scale of the tensor that needs the largest one, as :func:`dlfp4.quantize` would choose it."""
    largest = max(largest_magnitude(dlfp4.asarray(x)) for x in tensors)
    block = np.zeros((16, 16), np.float32)
    block[0, 0] = largest
    one = replace(find_recipe(_find_format(format), recipe), global_scale_per="tensor")
    unit = dlfp4.quantize(block, format, recipe=one).global_scale
    return 1.0 if unit is None else float(unit.item())


# By element type: unsigned integers of its size, and the bits of infinity.
BITS: Mapping[str, tuple[Any, int]] = {
    "float32": (np.uint32, 0x7F800000),
    "bfloat16": (np.uint16, 0x7F80),
    "float16": (np.uint16, 0x7C00),
}
CHUNK = 1 << 18  # elements, whose bits lie in the cache


def largest_magnitude(x: Tensor) -> float:
    """The largest finite magnitude, found by the bits: those of finite numbers are in the numbers' order."""
    integers, infinity = BITS[x.dtype.name]
    line = (x if is_row_major(x) else x.copy()).reshape(-1)
    found = 0
    for start in range(0, line.size, CHUNK):
        bits = line[start : start + CHUNK].view(integers).to_numpy() & (np.iinfo(integers).max >> 1)
        top = int(bits.max())
        found = max(found, top if top < infinity else int(bits[bits < infinity].max(initial=0)))
    return float(np.array([found], integers).view(x.dtype)[0])


def described(x: Any) -> tuple[str, tuple[int, ...]]:
    """The name of the element type, and the shape."""
    if isinstance(x, ScaledTensor):
        return x.format.element.name, x.shape
    dtype, shape = x if isinstance(x, tuple) else (x.dtype, x.shape)
    return str(getattr(dtype, "name", dtype)).removeprefix("torch."), tuple(shape)


def fit(choice: Choice, shape: tuple[int, ...], format: Format, convention: str | None) -> Choice:
    """The choice, or the word that its format or convention does not hold a tensor of that shape."""
    if not choice.quantized:
        return choice
    turned = shape if choice.axis == -1 else (*shape[:-2], shape[-1], shape[-2])
    if convention and scales_shape(format, turned) is None:
        return replace(choice, quantized=False, reason=f"{convention} holds no {format} of shape {shape}")
    short = format.kind == "largest" and not format.has_integers  # whose last blocks may be
    length = 1 if format.block is None or short else format.block[1] or 1
    try:
        _buffers_of(shape, format, choice.axis, "linear", False)
    except ValueError:
        fits = False
    else:
        fits = turned[-1] % length == 0
    if fits:
        return choice
    return replace(
        choice,
        quantized=False,
        reason=f"{turned[-1]} elements along axis {choice.axis} are no whole blocks of {format}",
    )


def with_caution(choice: Choice, format: Format, convention: str | None) -> Choice:
    """The choice, and what a loader makes of the tensor without a word."""
    word = caution(choice.name, format, convention) if choice.quantized else ""
    return replace(choice, reason="; ".join(filter(None, (choice.reason, word)))) if word else choice


def look_for(choice: Choice, ndim: int, convention: str | None, names_stacks: bool) -> Choice:
    """The choice, or the word that loaders of its convention do not look for the parts of such a tensor."""
    if not choice.quantized or convention is None:
        return choice
    reason = why_unloadable(choice, ndim, convention, names_stacks)
    return replace(choice, quantized=False, reason=f"{reason}; include names it") if reason else choice


def why_unloadable(choice: Choice, ndim: int, convention: str, names_stacks: bool) -> str:
    """Why loaders of the convention would leave the values of a tensor to chance; "" where they do not."""
    if convention == GPT_OSS:
        return "" if ndim == 3 else f"{GPT_OSS} has quantized experts alone"
    if ndim == 3:
        return "" if names_stacks else why_no_stack(convention)
    if choice.axis == -2 and convention not in TURNING:
        return f"stored as (in, out), which loaders of {convention} do not expect"
    if module_of(choice.name) and last(choice.name) != "weight":
        return f"no weight of a module, which loaders of {convention} look for"
    return ""


# ---- Patterns of names


def as_patterns(option: str, given: Any) -> tuple[str, ...]:
    """One pattern, several or none; TypeError for what is no string."""
    if given is None or isinstance(given, str):
        return () if given is None else (given,)
    patterns = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"{option}={given!r}: expected a pattern of names as a string, or several in a list")
    return patterns


def find_matches(option: str, patterns: Iterable[str], names: Collection[str]) -> set[str]:
    """The names that match one of the patterns; ValueError for a pattern that matches none, such as a misspelt one."""
    found: set[str] = set()
    for pattern in patterns:
        matches = as_test(option, pattern)
        matched = {name for name in names if matches(name)}
        if not matched:
            components = {component for name in names for component in name.split(".")}
            near = did_you_mean(pattern, [*components, *names])
            some = ", ".join(islice(names, 3))
            raise ValueError(f"{option}={pattern!r} matches no tensor of the model; its names are like {some}{near}")
        found |= matched
    return found


def as_test(option: str, pattern: str) -> Callable[[str], bool]:
    """Whether a name matches the pattern."""
    if pattern.startswith("re:"):
        try:
            expression = re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise ValueError(f"{option}={pattern!r} is no regular expression: {error}") from None
        return lambda name: any(expression.match(each) for each in (name, name.rpartition(".")[0]))
    if any(character in pattern for character in "*?["):
        return lambda name: any(fnmatchcase(each, pattern) for each in paths(name))
    return lambda name: f".{pattern.strip('.')}." in f".{name}."


def paths(name: str) -> list[str]:
    """The name, and the names of the modules that hold the tensor."""
    components = name.split(".")
    return [".".join(components[:stop]) for stop in range(len(components), 0, -1)]


def why_excluded(name: str, include: Sequence[str], wanted: set[str], unwanted: set[str]) -> str:
    """Why the patterns keep a tensor, or "" where they do not."""
    if name in unwanted:
        return "excluded"
    return "not included" if include and name not in wanted else ""


# ---- What is already quantized

# Parts beside a float weight by which it is more than its values; scales of activations and of the KV cache are not.
OF_WEIGHTS = (
    "scale", "scales", "scale_inv", "scale_2", "global_scale", "scale_weight", "zero", "zeros", "zero_point", "qzeros",
    "pre_quant_scale",
)  # fmt: skip
# Integers that are no weights: masks, positions, counters.
COUNTERS = re.compile(r"bias|mask|ids|index|indices_table|tracked|position", re.IGNORECASE)
PACKED = re.compile(r"^(int|uint|float)[2468](_\w+)?$|^(u?int32|u?int16)$")
LEAVES = re.compile(r"^_?(q?weight|w_q|qdata|kernel|codes|packed|data)", re.IGNORECASE)  # names of a layer's data
DATA = re.compile(r"_(packed|blocks|qdata|qweight|weight|codes|data|elements)$")  # what data adds to its tensor's name


def is_packed(name: str, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor holds codes: integers, FP8 or smaller, in a matrix that is no mask or table of positions."""
    return len(shape) > 1 and bool(PACKED.match(dtype)) and not COUNTERS.search(last(name))


# ---- What is a linear layer's weight


@dataclass(frozen=True)
class Role:
    """Tensors that are kept for what they do, as components of their names tell.

    Attributes
    ----------
    what : str
        In the words of the summary.
    pattern : re.Pattern
        Searched in the name.
    option : str
        What `choose` calls the flag that quantizes them: ``include_`` and this; "" where there is none.
    within : bool
        Searched in the name within the innermost numbered layer alone: models are called so, too (ConvBERT, RoBERTa
        with ``prelayernorm``).
    """

    what: str
    pattern: re.Pattern[str]
    option: str = ""
    within: bool = False

    def holds(self, name: str) -> bool:
        """Whether a tensor of that name does this."""
        return bool(self.pattern.search(within_layer(name) if self.within else name))


def role(what: str, components: str, option: str = "", *, within: bool = False) -> Role:
    """A row of ROLES; the expression is for one whole component of the name."""
    return Role(what, re.compile(rf"(^|\.)({components})(\.|$)", re.IGNORECASE), option, within)


def within_layer(name: str) -> str:
    """The name from the component that holds the innermost numbered layer, such as ``layers.0.mlp``."""
    parts = name.split(".")
    numbers = [at for at, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[max(numbers[-1] - 1, 0) :]) if numbers else name


# All of a head is kept, what comes before its last matrix included (BERT's cls.predictions.transform, RoBERTa's
# lm_head.dense), though transformers' quantizers keep the output embedding and the model's last module alone, and
# ModelOpt `lm_head`, `output_layer`, `proj_out` and `output`.
ROLES = (
    role("bias", r"(\w+_)?bias(es)?$"),
    role("positional table", r"w?pos(ition)?(al)?_?(emb|enc|table|bias)\w*|wpe|rel(ative)?_(pos|att)\w*"),
    role("positional table", r"rotary\w*|\w*freqs?"),
    role("output head", r"(\w*_)?head|embed_out|output_layer|unembed\w*|cls|classifier|score|qa_outputs", "heads"),
    role("output head", r"^(model\.)?(output|proj_out)\.weight$|final_layer", "heads"),
    role("embedding", r"\w*embed\w*|\w*embd\w*|\w*_emb|emb|wte|shared\.weight$|\w*codebook\w*", "embeddings"),
    # CTRL's, DETR's queries, Flux's.
    role("embedding", r"^transformer\.w\.weight$|quer(y|ies)_feat\w*|(img|txt|time|vector|guidance)_in", "embeddings"),
    # Of diffusion models: from the embedding of time to scales and shifts for all tokens. One vector goes in, so four
    # bits save no time. diffusers calls some of them norms.
    role("modulation by an embedding", r"\w*modulation\w*|(\w+_)?mod|adaln\w*|time_projection", "embeddings"),
    role("router of experts", r"\w*router\w*|\w*gate_inp\w*|gate|\w*expert_gate|wg|switch", "routers"),
    role("norm", r"(?!norm_attn_norm)\w*norm\w*|ln(_?(\d+|f|post|pre))?|layer_?norm\w*", within=True),
    role("convolution", r"(\w*_)?s?conv\w*", within=True),
    role("adapter", r"(\w*_)?lora_\w+|\w+_lora"),
    role("recurrent weight", r"weight_([ih]h|hr)(_l\d+)?(_reverse)?"),
    # Into which MTP layers of DeepSeek's and GLM's take what is predicted: engines have no other linear layer for it.
    role("projection that engines do not quantize", r"eh_proj"),
    role("token", r"\w*_tokens?(\.weight)?$|no_object_pointer$"),
)  # fmt: skip
# Last components by which the weight of a linear layer is called; a bare name says nothing against it.
WEIGHT = re.compile(
    r"^(\w*weight|kernel|w(\d|_?(q|k|v|o|i|in|out|up|gate|down))?|v1|wi_\d|\w*_proj|\w*(fc|linear|dense)\d?"
    r"|[^.]*experts?)$"
)
# Stacks of experts of which the second multiplies what the first gives.
PAIRS = (
    ("gate_up_proj", "down_proj"), ("up_proj", "down_proj"), ("gate_proj", "down_proj"), ("w1", "w2"), ("w3", "w2"),
    ("wi", "wo"), ("input_linear", "output_linear"),
)  # fmt: skip
PARTNERS: dict[str, tuple[str, ...]] = {}
for _up, _down in PAIRS:
    PARTNERS[_up] = (_down,)
    PARTNERS[_down] = (*PARTNERS.get(_down, ()), _up)
DOWN = re.compile(rf"(^|\.)({'|'.join({down for _, down in PAIRS})})(\.|$)")
# Stored as (in, out): Flax's, Gemma 3's, X-CLIP's and DBRX's.
IN_OUT = re.compile(r"(^|\.)(kernel|mm_input_projection_weight|prompts_visual_projection|experts\.mlp\.w2)$")
PROJECTION = re.compile(r"(^|\.)(text|visual|vision|audio)_projection(\.|$)")
GPT_2 = re.compile(r"(^|\.)(c_attn|q_attn|c_fc|c_proj)\.weight$")


class Model:
    """All names, element types and shapes of a model, and what they say about each other."""

    def __init__(self, shapes: Shapes, flags: Mapping[str, bool], axis: int | None) -> None:
        self.shapes, self.flags, self.axis = shapes, flags, axis
        self.stems: dict[tuple[str, str], str] = {}  # quantized data by its module, and its name there
        self.largest: dict[str, str] = {}  # the largest quantized data of a module
        for name in shapes:
            if is_packed(name, *shapes[name]):
                self.note(name)
        self.embeddings = {
            shape for name, (_, shape) in shapes.items() if len(shape) == 2 and self.role_of(name) == "embedding"
        }
        self.is_transposed = self.find_transposed()

    # ---- Already quantized

    def note(self, name: str) -> None:
        """Remember quantized data by what the names of its other parts begin with, and where it is the largest."""
        module, own = module_of(name), last(name)
        for stem in {own, DATA.sub("", own)}:
            self.stems.setdefault((module, stem), name)
        largest = self.largest.get(module)
        if largest is None or count_elements(self.shapes[name][1]) > count_elements(self.shapes[largest][1]):
            self.largest[module] = name

    def why_quantized(self, name: str) -> str:
        """Why a tensor counts as already quantized, or as a part of what is; "" where it does not."""
        dtype, shape = self.shapes[name]
        if is_packed(name, dtype, shape):
            return f"{dtype}: already quantized, or no weight"
        if dtype not in FLOATS:
            return f"{dtype}: no float32, bfloat16 or float16"
        if is_part(name):
            return "part of a quantized tensor"
        owner = self.owner_of(name)
        if owner:
            return f"part of the quantized {owner}"
        scales = self.scales_of(name)
        return f"has {scales} beside it: already quantized" if scales else ""

    def owner_of(self, name: str) -> str:
        """The quantized tensor beside a float tensor, or in the module above, to which it belongs; "" for none."""
        module = module_of(name)
        for place in (module, module_of(module)) if module else ("",):
            owner = self.by_stem(place, last(name)) if place == module else ""
            owner = owner or self.by_size(place, name)
            if owner:
                return owner
        return ""

    def by_stem(self, module: str, own: str) -> str:
        """Quantized data in the module from whose name, with or without its suffix, the tensor's name is made."""
        tokens = own.split("_")
        stems = ("_".join(tokens[:stop]) for stop in range(len(tokens), 0, -1))
        return next((found for stem in stems if (found := self.stems.get((module, stem)))), "")

    def by_size(self, module: str, name: str) -> str:
        """The data of a quantized layer in the module, to which whatever in it is too small for a weight belongs."""
        data = self.largest.get(module, "")
        if not data or not module:
            return ""
        count, codes = (count_elements(self.shapes[each][1]) for each in (name, data))
        is_layer = module == module_of(name) and bool(LEAVES.match(last(data)))
        return data if is_layer or 2 * count <= codes else ""

    def scales_of(self, name: str) -> str:
        """A scale or zero point of the weight itself, stored beside it; "" for none."""
        if self.role_of(name):
            return ""
        module, own = module_of(name), last(name)
        beside = [f"{own}.absmax", *(f"{own}_{suffix}" for suffix in OF_WEIGHTS)]
        if own in ("weight", "kernel", "w", "W_q"):
            beside += OF_WEIGHTS
        names = (f"{module}.{each}" if module else each for each in beside)
        return next((other for other in names if other in self.shapes), "")

    # ---- Roles

    def why_no_weight(self, name: str, *, named: bool) -> str:
        """Why a float tensor is no linear layer's weight, or is kept all the same; "" where neither holds."""
        shape = self.shapes[name][1]
        if len(shape) not in (2, 3):
            return f"{len(shape)} dimension{'s' if len(shape) != 1 else ''}: no matrix"
        what = self.role_of(name) or self.role_by_shape(name)
        options = {role.what: role.option for role in ROLES}
        if what:
            option = options[what]
            if self.flags.get(option):
                return ""
            return f"{what}; {FLAG}{option} quantizes it" if option else what
        if len(shape) == 3 and "expert" not in name and not self.partner_of(name) and not named:
            return "3 dimensions, and not called experts; include names it"
        if module_of(name) and not WEIGHT.match(last(name)) and not named:
            return "not called a weight; include names it"
        return ""

    def role_of(self, name: str) -> str:
        """What a tensor does other than a linear layer's weight, as its name tells; "" where it tells nothing."""
        for row in ROLES:
            if row.holds(name) and not (row.option == "routers" and self.is_gated(name)):
                return row.what
        return ""

    def role_by_shape(self, name: str) -> str:
        """An output head is a matrix outside the layers in an embedding's shape, which CLIP's projections may have."""
        inside = any(component.isdigit() for component in name.split("."))
        shape = self.shapes[name][1]
        if inside or PROJECTION.search(name):
            return ""
        return "output head" if shape in self.embeddings and shape[0] >= 2 * shape[1] else ""

    def is_gated(self, name: str) -> bool:
        """Whether a tensor called a gate is that of a gated layer: one beside it has the same shape, such as `up`."""
        module, own = module_of(name), last(name)
        parent = module_of(module)
        if last(module) != "gate":
            return False
        return any(
            self.shapes.get(f"{parent}.{other}.{own}".removeprefix("."), ("", ()))[1] == self.shapes[name][1]
            for other in ("up", "fc", "fc1", "up_proj", "value", "w1", "w3", "in", "h_to_4h")
        )

    # ---- The axis over which products sum

    def orient(self, name: str) -> Choice:
        """The choice to quantize a tensor, along the axis over which its product sums."""
        shape = self.shapes[name][1]
        if len(shape) == 3:
            return self.orient_experts(name)
        if IN_OUT.search(name) or (self.is_transposed and GPT_2.search(name)):
            return Choice(name, True, "stored as (in, out): blocks run along axis -2", -2)
        return Choice(name, True)

    def orient_experts(self, name: str) -> Choice:
        """A stack of experts, by `axis`, by the stack that multiplies its result, or by its biases."""
        axis = self.axis or self.axis_by_partner(name) or self.axis_by_bias(name)
        if axis == -2:
            return Choice(name, True, "experts stored as (experts, in, out): blocks run along axis -2", -2)
        if axis is None:
            return Choice(name, True, "taken as (experts, out, in); axis=-2 if it is (experts, in, out)")
        return Choice(name, True)

    def partner_of(self, name: str) -> str:
        """The stack beside `gate_up_proj` that takes its result, `down_proj`, or the other way; "" for none."""
        parts = name.split(".")
        for at, component in enumerate(parts):
            for other in PARTNERS.get(component, ()):
                found = ".".join([*parts[:at], other, *parts[at + 1 :]])
                if len(self.shapes.get(found, ("", ()))[1]) == 3:
                    return found
        return ""

    def axis_by_partner(self, name: str) -> int | None:
        """By shapes: up is (E, H, nI) and down (E, I, H) in one order, (E, nI, H) and (E, H, I) in the other."""
        partner = self.partner_of(name)
        if not partner:
            return None
        up, down = (partner, name) if DOWN.search(name) else (name, partner)
        (a, b), (c, d) = (self.shapes[each][1][-2:] for each in (up, down))
        rows, columns = a == d and b in (c, 2 * c), b == c and a in (d, 2 * d)
        return None if rows == columns else -2 if rows else -1

    def axis_by_bias(self, name: str) -> int | None:
        """A bias is as long as the axis that remains."""
        shape = self.shapes[name][1]
        for suffix in ("_bias", ".bias"):
            bias = self.shapes.get(name.removesuffix(".weight") + suffix, ("", ()))[1]
            if bias and shape[-1] != shape[-2] and bias[-1] in shape[-2:]:
                return -2 if bias[-1] == shape[-1] else -1
        return None

    def find_transposed(self) -> bool:
        """Whether the matrices that GPT-2 names are stored as (in, out), as its own are: their biases tell."""
        named = [name for name, (_, shape) in self.shapes.items() if len(shape) == 2 and GPT_2.search(name)]
        votes = [self.axis_by_bias(name) for name in named]
        return -2 in votes and -1 not in votes
