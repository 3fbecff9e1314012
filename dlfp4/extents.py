"""The product of extents: all Python of the library takes it here, all Cython in ``strides.pxi``."""

from __future__ import annotations

import math
from collections.abc import Iterable

BEYOND = 1 << 63  # more than any memory holds
FEW = 64  # extents that are multiplied at once, or shown in a message


def bounded_product(extents: Iterable[int]) -> int:
    """The product, or ``BEYOND`` where it is at least that.

    Numbers do not grow with the length of the list: the whole product of the extents in a hostile file would take
    minutes, which nothing can interrupt. A compiler's symbols are multiplied as they are; it checks them itself.
    """
    given = tuple(extents)
    found = math.prod(given[:FEW])
    for extent in given[FEW:]:
        found = min(found, BEYOND) * extent
    return found if is_symbol(found) else min(found, BEYOND)


def count_elements(shape: Iterable[int]) -> int:
    """The elements of a shape, 0 where one dimension is empty; ValueError where 63 bits do not hold their number."""
    extents = tuple(shape)
    found = bounded_product(extents)
    if not is_symbol(found) and found == BEYOND:
        raise ValueError(f"shape {listed(extents)} has more elements than memory can hold")
    return found


def is_symbol(extent: object) -> bool:
    """Whether it is a compiler's, which only passes for an int."""
    return not isinstance(extent, int)


def listed(shape: Iterable[object]) -> str:
    """A shape for a message; of many extents the first tell enough."""
    extents = tuple(shape)
    if len(extents) <= FEW:
        return str(extents)
    return f"({', '.join(map(str, extents[:FEW]))}, ...) of {len(extents)} extents"
