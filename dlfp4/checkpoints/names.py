"""Names of tensors: what their components say about the parts of quantized ones."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Words in the last component of a name that make a float tensor a part of a quantized one. "biases" are MLX's.
AUXILIARY = re.compile(
    r"scale|zero|(^|_)zp|absmax|amax|amin|quant|codebook|centroid|(^|_)lut|g_idx|smooth|(^|_)(biases|scb|su|sv|meta)$",
    re.IGNORECASE,
)
SHOWN = 3  # names in a message


def last(name: str) -> str:
    """The last component of a name."""
    return name.rpartition(".")[2]


def module_of(name: str) -> str:
    """The module that holds a tensor."""
    return name.rpartition(".")[0]


def is_part(name: str) -> bool:
    """Whether a tensor is called as scales, zero points and the like are."""
    return bool(AUXILIARY.search(last(name)))


def listed(names: Iterable[str]) -> str:
    """The first of the names, and how many there are if there are more."""
    every = list(names)
    return ", ".join(every[:SHOWN]) + (f", … ({len(every)})" if len(every) > SHOWN else "")
