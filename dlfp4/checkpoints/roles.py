"""What the tensors of a model are, as names, element types and shapes tell: what is already quantized, what is a linear
layer's weight, and how a weight is stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dlfp4.checkpoints.names import is_part, last, module_of
from dlfp4.extents import count_elements
from dlfp4.formats import FLOATS

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]  # the element type and the shape of each tensor
Orientation = tuple[str, Literal[-1, -2]]  # what is worth saying about a weight, and the axis of its blocks


LONGEST_NAME = 1000  # characters; those of real models have some 150
FLAG = "include_"  # what the flags of `choose` begin with


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


def holds_codes(name: str, dtype: str, shape: tuple[int, ...]) -> bool:
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
NO_WEIGHT = "not called a weight; include names it"
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

    def __init__(
        self, shapes: Shapes, flags: Mapping[str, bool], axis: int | None, roles: Mapping[str, str] | None = None
    ) -> None:
        # Of longer names the expressions here would take time that grows with their square.
        self.shapes = {name: each for name, each in shapes.items() if len(name) <= LONGEST_NAME}
        self.flags, self.axis = flags, axis
        self.roles = roles or {}  # what is known of tensors whose names do not tell it
        self.stems: dict[tuple[str, str], str] = {}  # quantized data by its module, and its name there
        self.largest: dict[str, str] = {}  # the largest quantized data of a module
        for name in self.shapes:
            if holds_codes(name, *shapes[name]):
                self.note(name)
        self.embeddings = {
            shape for name, (_, shape) in self.shapes.items() if len(shape) == 2 and self.role_of(name) == "embedding"
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
        if name not in self.shapes:
            return f"its name has {len(name)} characters, and only names of at most {LONGEST_NAME} are looked at"
        dtype, shape = self.shapes[name]
        if holds_codes(name, dtype, shape):
            return f"{dtype}: already quantized, or not a weight"
        if dtype not in FLOATS:
            return f"{dtype}: not float32, bfloat16 or float16"
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
            return f"{len(shape)} dimension{'s' if len(shape) != 1 else ''}: not a matrix"
        what = self.role_of(name) or self.role_by_shape(name)
        options = {role.what: role.option for role in ROLES}
        if what:
            option = options.get(what, "")
            if self.flags.get(option):
                return ""
            return f"{what}; {FLAG}{option} quantizes it" if option else what
        if len(shape) == 3 and "expert" not in name and not self.partner_of(name) and not named:
            return "3 dimensions, and not called experts; include names it"
        if module_of(name) and not WEIGHT.match(last(name)) and not named:
            return NO_WEIGHT
        return ""

    def role_of(self, name: str) -> str:
        """What a tensor does other than a linear layer's weight, as its name tells or `roles`; "" for nothing."""
        for row in ROLES:
            if row.holds(name) and not (row.option == "routers" and self.is_gated(name)):
                return row.what
        return self.roles.get(name, "")

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

    def orient(self, name: str) -> Orientation:
        """The choice to quantize a tensor, along the axis over which its product sums."""
        shape = self.shapes[name][1]
        if len(shape) == 3:
            return self.orient_experts(name)
        if IN_OUT.search(name) or (self.is_transposed and GPT_2.search(name)):
            return "stored as (in, out): blocks run along axis -2", -2
        return "", -1

    def orient_experts(self, name: str) -> Orientation:
        """A stack of experts, by `axis`, by the stack that multiplies its result, or by its biases."""
        axis = self.axis or self.axis_by_partner(name) or self.axis_by_bias(name)
        if axis == -2:
            return "experts stored as (experts, in, out): blocks run along axis -2", -2
        if axis is None:
            return "taken as (experts, out, in); axis=-2 if it is (experts, in, out)", -1
        return "", -1

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
