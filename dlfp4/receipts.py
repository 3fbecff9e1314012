"""What became of the blocks of a tensor that was brought to other scales without going through the original floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Receipt:
    """How exactly a tensor's values came over, in ``ScaledTensor.receipt``.

    Attributes
    ----------
    blocks : int
        Blocks of the tensors that were given.
    exact : int
        Those that decode to the same float32 numbers as before.
    largest_error : float
        Of the others: the largest change of an element over the largest magnitude of its block, before; 0 where all are
        exact.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> q = dlfp4.quantize(np.ones((2, 64), "float32"), "mxfp4")
    >>> q.to("nvfp4").receipt
    Receipt(blocks=4, exact=4, largest_error=0.0)
    """

    blocks: int
    exact: int
    largest_error: float

    @property
    def is_exact(self) -> bool:
        """Whether every block is."""
        return self.exact == self.blocks


def all_exact(blocks: int) -> Receipt:
    """Of codes and scales that were moved and renamed alone."""
    return Receipt(blocks, blocks, 0.0)


def receipt_of(errors: Array) -> Receipt:
    """Of blocks with an error each."""
    wrong = errors > 0
    return Receipt(errors.size, errors.size - int(np.count_nonzero(wrong)), float(errors.max(initial=0)))


def sum_up(receipts: list[Receipt]) -> Receipt:
    """Of several tensors together."""
    blocks, exact = (sum(getattr(each, field) for each in receipts) for field in ("blocks", "exact"))
    return Receipt(blocks, exact, max((each.largest_error for each in receipts), default=0.0))


def relative_errors(before: Array, after: Array) -> Array:
    """The error of each row: its largest change over its largest magnitude.

    Equal rows, NaN included, and empty ones have 0; a row in which a NaN or an infinity came or went has infinity.
    """
    change, size = measure(before, after, max(1, before.shape[-1]))
    found: Array = divide(change, size).max(-1, initial=0)
    return found


def measure(before: Array, after: Array, length: int) -> tuple[Array, Array]:
    """The largest change and the largest magnitude of each so many elements of rows; the last may be fewer."""
    with np.errstate(all="ignore"):
        change = np.abs(before - after)
        size = np.abs(before)
    unknown = ~np.isfinite(change)
    if unknown.any():
        equal = (before == after) | (np.isnan(before) & np.isnan(after))
        change = np.where(equal, 0, np.where(unknown, np.inf, change))
        size = np.where(np.isfinite(size), size, 0)
    return largest_of(change, length), largest_of(size, length)


def largest_of(values: Array, length: int) -> Array:
    """The largest of each so many columns."""
    rows, columns = values.shape
    if columns % length == 0:
        found: Array = values.reshape(rows, columns // length, length).max(-1, initial=0)
        return found
    return np.maximum.reduceat(values, np.arange(0, columns, length), axis=1)


def divide(change: Array, size: Array) -> Array:
    """Errors of blocks from their largest changes and magnitudes."""
    with np.errstate(all="ignore"):
        error: Array = np.where(change == 0, 0, change / size.astype(np.float64))
    return error


def join_lines(values: Array, lines: int) -> Array:
    """The largest of so many rows each."""
    if lines <= 1 or not len(values):
        return values
    return np.maximum.reduceat(values, np.arange(0, len(values), lines), axis=0)
