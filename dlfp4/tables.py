"""Tables as text."""

from __future__ import annotations

from collections.abc import Sequence


def in_columns(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """The lines of a table, whose columns are as wide as their widest cell: so many of them, by default all, start at
    the left, the others end at the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    kept = len(widths) if left is None else left
    ways = [str.ljust if number < kept else str.rjust for number in range(len(widths))]
    lines = [[way(cell, width) for way, cell, width in zip(ways, row, widths, strict=True)] for row in rows]
    return ["  ".join(line).rstrip() for line in lines]
