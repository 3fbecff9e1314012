"""Names of tensors: what their components say about the parts of quantized ones, and how messages have them."""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from dlfp4.parsing import brief

# Words in the last component of a name that make a float tensor a part of a quantized one. "biases" are MLX's.
AUXILIARY = re.compile(
    r"scale|zero|(^|_)zp|absmax|amax|amin|quant|codebook|centroid|(^|_)lut|g_idx|smooth|(^|_)(biases|scb|su|sv|meta)$",
    re.IGNORECASE,
)
# Layers whose products engines compute as one, under one global scale.
FUSED = (("gate_proj", "up_proj"), ("w1", "w3"), ("gate", "up"), ("q_proj", "k_proj", "v_proj"), ("wq", "wk", "wv"))
# What engines call those of them whose names they change.
FUSED_NAMES = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
}
# What files of transformers' models have expert by expert, and its classes as a stack: the matrices of each, in order.
EXPERTS = {
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")),
    "down_proj": (("down_proj",), ("w2",)),
}
ALL_EXPERTS = re.compile(r"(.*\.)?experts(?=\.)")  # the module that engines have for them, in the name of a part of it
SHOWN = 3  # names in a message


def last(name: str) -> str:
    """The last component of a name."""
    return name.rpartition(".")[2]


def module_of(name: str) -> str:
    """The module that holds a tensor."""
    return name.rpartition(".")[0]


def fused_with(name: str) -> dict[str, str]:
    """The names of the layers that engines fuse with that one, and its own, by their components; empty for none."""
    parts = name.split(".")
    for at in range(len(parts) - 1, -1, -1):
        for group in FUSED:
            if parts[at] in group:
                return {other: ".".join([*parts[:at], other, *parts[at + 1 :]]) for other in group}
    return {}


def fused_module(module: str) -> str:
    """What engines call the layer that a module becomes a part of when they fuse it; itself for others."""
    parent, own = module_of(module), last(module)
    return f"{parent}.{FUSED_NAMES[own]}".removeprefix(".") if own in FUSED_NAMES else module


def experts_of(name: str) -> str:
    """The module of all experts that a name lies in; "" for none."""
    found = ALL_EXPERTS.match(name)
    return found[0] if found else ""


def is_part(name: str) -> bool:
    """Whether a tensor is called as scales, zero points and the like are."""
    return bool(AUXILIARY.search(last(name)))


def listed(names: Iterable[str], tell: Callable[[str], str] = brief) -> str:
    """The first of the names, each as `tell` has it, and how many more there are."""
    every = list(names)
    return ", ".join(map(tell, every[:SHOWN])) + (f" and {len(every) - SHOWN} more" if len(every) > SHOWN else "")


def first_of(texts: Iterable[str]) -> str:
    """The same of parts of a message, whatever their length."""
    return listed(texts, str)


class Beginnings:
    """Names, of which those with a given beginning are found without a look at the others."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(names)

    def find(self, start: str) -> list[str]:
        """The names that begin so."""
        first = end = bisect_left(self.names, start)
        while end < len(self.names) and self.names[end].startswith(start):
            end += 1
        return self.names[first:end]


@contextlib.contextmanager
def errors_of(what: str) -> Iterator[None]:
    """A ValueError begins with what it is about: a tensor, or a file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error
