"""How far quantized tensors are from what they were made of: errors, formats side by side, global scales.

``compare(x).summary()`` and ``.tables()`` need rich, ``.plot()`` matplotlib; all else needs NumPy alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from dlfp4._core import ScaledTensor, Tensor, _find_format, cast, quantize
from dlfp4._core import formats as all_formats
from dlfp4.extents import count_elements
from dlfp4.formats import Format, Recipe, RecipeName, check_recipe, find_recipe
from dlfp4.proto import own, own_scaled
from dlfp4.suggest import is_one_of
from dlfp4.tables import in_columns

if TYPE_CHECKING:
    from dlfp4._core import _Elements, _Quantized

__all__ = ["Comparison", "Error", "Row", "calibrate", "compare", "error", "signal_to_noise"]

Numbers = npt.NDArray[np.float64]
Method = Literal["largest", "percentile", "mse"]

SAMPLE = 1 << 16  # elements by which signal_to_noise judges: all of a large tensor take longer than quantizing it
BANDS = 4  # places from which the sample is taken
MOST_BINS = 1 << 20  # of a histogram
STEPS = 16  # of an octave of global scales, of which "mse" tries one on either side


# ---- One tensor


@dataclass(frozen=True, eq=False)
class Error:
    """How values differ from what they stand for; see :func:`error`. It prints its numbers, not its arrays.

    Attributes
    ----------
    snr : float
        The signal-to-noise ratio in dB, ``10 log10(sum(x**2) / sum((x - q)**2))``; infinite where all are equal.
    mse : float
        The mean of ``(x - q)**2``.
    largest : float
        The largest ``abs(x - q)``.
    place : tuple of int
        The index of that element; () for an empty tensor.
    by_row, by_channel : numpy.ndarray
        The mean of ``(x - q)**2`` over the last dimension, and over all others.
    by_block : numpy.ndarray or None
        The same for each block, (blocks across lines, blocks of a line), in the order of their scales; None where `q`
        is not a ScaledTensor.
    counts, edges : numpy.ndarray
        A histogram of ``x - q``: how many lie from an edge to the next.
    """

    snr: float
    mse: float
    largest: float
    place: tuple[int, ...]
    by_row: Numbers = field(repr=False)
    by_channel: Numbers = field(repr=False)
    by_block: Numbers | None = field(repr=False)
    counts: npt.NDArray[np.int64] = field(repr=False)
    edges: Numbers = field(repr=False)


def error(x: _Elements, q: _Elements | ScaledTensor | _Quantized, *, bins: int = 64) -> Error:
    """How far a quantized tensor is from the tensor that it was made from.

    Parameters
    ----------
    x : producer
        What was quantized.
    q : ScaledTensor or producer
        What became of it, of the same shape: its values are compared. ScaledTensors are those of dlfp4.torch and
        dlfp4.jax, too.
    bins : int
        How many bins the histogram has.

    Returns
    -------
    Error
        Computed in float64. A NaN or an infinity makes NaN of every figure that it enters; the histogram omits them.

    Raises
    ------
    ValueError
        Shapes differ, or `bins` is not an integer from 1 to 1048576.
    TypeError
        Elements are not floats.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> x = np.linspace(-1, 1, 64, dtype="float32").reshape(2, 32)
    >>> found = dlfp4.analysis.error(x, dlfp4.quantize(x, "mxfp4"))
    >>> round(found.snr, 1), found.by_block.shape
    (20.3, (2, 1))
    """
    given = own(q)
    values, decoded = numbers_of(x), numbers_of(given)
    check_shapes(values.shape, decoded.shape)
    check_bins(bins)
    with np.errstate(invalid="ignore", over="ignore"):  # the figures say what is not finite
        return error_of(values, decoded, given, bins)


def check_shapes(x: tuple[int, ...], q: tuple[int, ...]) -> None:
    """ValueError where they differ."""
    if x != q:
        raise ValueError(f"x has shape {x} and q {q}; expected the same")


def check_bins(bins: object) -> None:
    """ValueError for what is no number of them, or for more than memory should be asked for."""
    if not isinstance(bins, int) or isinstance(bins, bool) or not 1 <= bins <= MOST_BINS:
        raise ValueError(f"bins={bins!r}; expected an integer from 1 to {MOST_BINS}")


def error_of(values: Numbers, decoded: Numbers, q: Tensor | ScaledTensor, bins: int) -> Error:
    """The same of numbers, which are those of `q` decoded."""
    noise = values - decoded
    squares = np.square(noise)
    place = np.unravel_index(int(np.argmax(squares)), squares.shape) if squares.size else ()
    finite = noise[np.isfinite(noise)]
    counts, edges = np.histogram(finite, bins, range_of(finite, bins))
    return Error(
        snr=decibels(float(np.square(values).sum()), float(squares.sum())),
        mse=float(squares.mean()) if squares.size else math.nan,
        largest=float(abs(noise[place])) if squares.size else 0.0,
        place=tuple(map(int, place)),
        by_row=mean_over(squares, (-1,)),
        by_channel=mean_over(squares, tuple(range(squares.ndim - 1))),
        by_block=means_of_blocks(squares, q) if isinstance(q, ScaledTensor) else None,
        counts=counts.astype(np.int64),
        edges=edges.astype(np.float64),
    )


def numbers_of(x: _Elements | ScaledTensor) -> Numbers:
    """Values on the host."""
    values = values_of(x)
    there = values if values.device.type == "cpu" else values.to_device("cpu")
    wide = there if there.dtype.name in ("float64", "float32") else cast(there, "float32")
    return wide.to_numpy().astype(np.float64)


def values_of(x: _Elements | ScaledTensor) -> Tensor:
    """Values where they lie: of a quantized tensor, dlfp4's or another library's, in float32."""
    found: Tensor | ScaledTensor = own(x)
    return found.dequantize("float32") if isinstance(found, ScaledTensor) else found


def decibels(signal: float, noise: float) -> float:
    """The ratio of two sums of squares."""
    ratio = signal / noise if noise else math.inf
    return 10 * math.log10(ratio) if ratio else -math.inf


def mean_over(squares: Numbers, axes: tuple[int, ...]) -> Numbers:
    """Means, of a scalar itself; NaN of nothing."""
    if squares.ndim == 0:
        return squares
    count, sums = count_elements(squares.shape[axis] for axis in axes), np.asarray(squares.sum(axis=axes), np.float64)
    return sums / count if count else np.full_like(sums, math.nan)


def range_of(finite: Numbers, bins: int) -> tuple[float, float] | None:
    """That of a histogram, where values are too near to each other for edges between them; else None, NumPy's own."""
    if not finite.size:
        return None
    low, high = float(finite.min()), float(finite.max())
    room = bins * float(np.spacing(max(abs(low), abs(high))))
    fits = room < 0.5 if low == high else high - low > room
    return None if fits else (low - room, high + room)


def means_of_blocks(squares: Numbers, q: ScaledTensor) -> Numbers:
    """The mean of each block; the last ones of a line or a column may be smaller than the others."""
    # As quantize has them: matrices of a stack follow one another, and blocks along columns run on into the next.
    rows = squares.reshape(count_elements(squares.shape[:-1]), squares.shape[-1])
    lines = rows if q.axis == -1 else rows.T
    height, width = q.format.block_in(*lines.shape)
    rest = [(0, -extent % step) for extent, step in zip(lines.shape, (height, width), strict=True)]

    def sums(of: Numbers) -> Numbers:
        padded = np.pad(of, rest)
        rows, columns = padded.shape[0] // height, padded.shape[1] // width
        found: Numbers = padded.reshape(rows, height, columns, width).sum(axis=(1, 3))
        return found

    return sums(lines) / sums(np.ones_like(lines))


# ---- The same of a sample, for files


def signal_to_noise(x: _Elements, q: ScaledTensor | _Quantized) -> float:
    """The signal-to-noise ratio of a sample, found in less time than quantizing a large tensor takes.

    Parameters
    ----------
    x : producer
        What was quantized.
    q : ScaledTensor
        What it became, of x's shape; one of dlfp4.torch or dlfp4.jax, too.

    Returns
    -------
    float
        In dB, as by :func:`error`, from about 65536 elements in blocks here and there; from all of a small tensor.

    Raises
    ------
    ValueError
        Shapes differ.
    TypeError
        `q` is not a ScaledTensor.
    """
    quantized = own_scaled(q)
    if not isinstance(quantized, ScaledTensor):
        raise TypeError(f"q is of type {type(q).__name__}; expected a ScaledTensor, as quantize gives it")
    given = values_of(x)
    check_shapes(given.shape, quantized.shape)
    signal = noise = 0.0
    with np.errstate(invalid="ignore"):  # NaN and infinities, of which a ratio of NaN tells
        for values, decoded in sample(given, quantized):
            # Not `values @ values`: the threads of NumPy's BLAS would contend with those that quantize and write.
            signal, noise = signal + float(np.square(values).sum()), noise + float(np.square(values - decoded).sum())
    return decibels(signal, noise)


def sample(x: Tensor, q: ScaledTensor) -> Iterator[tuple[Numbers, Numbers]]:
    """Pairs of values and decoded ones: all of a small tensor, else of blocks here and there."""
    lines, length = (1, 1) if q.format.block is None else q.format.block_in(1, 1)
    if x.size <= SAMPLE or q.axis != -1 or (x.ndim > 2 and x.shape[-2] % lines):
        yield in_a_line(x), in_a_line(q.dequantize())
    elif x.ndim > 2:
        for k in spread(x.shape[0]):
            yield from sample(x[k], q[k])
    else:
        width = x.shape[1] if lines == 1 else length * -(-SAMPLE // (BANDS * lines * length))  # whole lines, or squares
        height = lines * -(-SAMPLE // (BANDS * lines * width))
        columns = spread(-(-x.shape[1] // width))
        for number, row in enumerate(spread(-(-x.shape[0] // height))):
            column = columns[number % len(columns)]
            part = slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)
            yield in_a_line(x[part]), in_a_line(q[part].dequantize())


def spread(count: int) -> list[int]:
    """Some of so many places, from the first to the last."""
    return sorted({(count - 1) * k // (BANDS - 1) for k in range(BANDS)})


def in_a_line(x: Tensor) -> Numbers:
    """The elements."""
    return x.to_numpy().astype(np.float64).reshape(-1)


# ---- Formats side by side


@dataclass(frozen=True)
class Row:
    """A tensor in a format: its name, bits an element and bytes with scales, and what :class:`Error` has of it."""

    tensor: str
    format: str
    recipe: str
    bits: float
    nbytes: int
    snr: float
    mse: float
    largest: float

    @property
    def way(self) -> str:
        """The format, and the recipe where one was asked for."""
        return f"{self.format} {self.recipe}".rstrip()


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` measured of each tensor in each format.

    Attributes
    ----------
    rows : tuple of Row
        Each tensor in each format by each recipe.
    refused : dict
        The reason why a format and a recipe do not go together, by their names.
    """

    rows: tuple[Row, ...]
    refused: Mapping[tuple[str, str], str]

    def ways(self) -> dict[str, list[Row]]:
        """The rows of each format and recipe."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.way, []).append(row)
        return found

    def __str__(self) -> str:
        head = ("format", "bits", "MB", "SNR median", "worst", "best")
        return "\n".join(in_columns([head, *(line_of(way, rows) for way, rows in self.ways().items())], left=1))

    def summary(self) -> Any:
        """A table of rich's: a row a format, with bits an element, megabytes, and the SNR of its tensors in dB."""
        table = new_table()
        for column in ("format", "bits a weight", "MB", "SNR median", "worst", "best"):
            table.add_column(column, justify="left" if column == "format" else "right")
        for way, rows in self.ways().items():
            table.add_row(*line_of(way, rows))
        return table

    def tables(self, width: int = 100) -> list[Any]:
        """Tables of rich's: a row a tensor, with SNR in dB and kilobytes in as many formats as `width` has room for."""
        ways, cell = self.ways(), 15
        tensors = dict.fromkeys(row.tensor for row in self.rows)
        step = max(1, (width - max(map(len, tensors), default=0)) // cell)
        made, names = [], list(ways)
        for start in range(0, len(names), step):
            table = new_table()
            table.add_column("tensor")
            shown = names[start : start + step]
            for way in shown:
                table.add_column(f"{way}\ndB      kB", justify="right", no_wrap=True)
            cells = {(row.tensor, row.way): f"{row.snr:.2f} {row.nbytes / 1e3:7.1f}" for row in self.rows}
            for name in tensors:
                table.add_row(name, *(cells.get((name, way), "") for way in shown))
            made.append(table)
        return made

    def plot(self, path: str | PathLike[str] | None = None, title: str = "") -> Any:
        """A matplotlib figure: the spread of the tensors' SNR and their total size, with a column for each format.

        Parameters
        ----------
        path : path, optional
            Where to save it, in the file format that its suffix names to matplotlib.
        title : str
            Above it.

        Returns
        -------
        matplotlib.figure.Figure
            Which no window shows.
        """
        from matplotlib.figure import Figure

        ways = self.ways()
        places = range(1, len(ways) + 1)
        figure = Figure(figsize=(12, 7), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        snrs = [[row.snr for row in rows if math.isfinite(row.snr)] for rows in ways.values()]
        upper.boxplot(snrs, widths=0.5, showfliers=False)
        for place, values in zip(places, snrs, strict=True):
            upper.plot([place] * len(values), values, ".", color="tab:blue", alpha=0.4)
        upper.set_ylabel("SNR of a tensor, dB")
        upper.grid(axis="y", alpha=0.3)
        upper.set_title(title)
        lower.bar(places, [sum(row.nbytes for row in rows) / 1e6 for rows in ways.values()], width=0.5)
        lower.set_ylabel("all tensors, MB")
        labels = [
            f"{way.replace('_', chr(10)).replace(' ', chr(10))}\n{bits_of(rows):.2f} bits" for way, rows in ways.items()
        ]
        lower.set_xticks(places, labels)
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure


def compare(
    x: _Elements | Mapping[str, _Elements],
    formats: Iterable[Format | str] | Format | str | None = None,
    recipes: Iterable[Recipe | RecipeName | None] | Recipe | RecipeName | None = None,
    *,
    axis: Literal[-1, -2] = -1,
) -> Comparison:
    """Compare formats and recipes: what each costs tensors in accuracy and saves in bytes.

    Parameters
    ----------
    x : producer, or mapping of str to producer
        Floats. Lines that do not divide into a format's blocks are completed with zeros, which count as bytes only.
    formats : str or Format, or iterable of these, optional
        Default: all of ``dlfp4.formats()``.
    recipes : Recipe, str or None, or iterable of these
        None is the format's own.
    axis : int
        The axis along which blocks run, as in :func:`dlfp4.quantize`.

    Returns
    -------
    Comparison
        It prints as a table.

    Raises
    ------
    ValueError
        A format or recipe is unknown, no format takes any of the recipes, or there is nothing to compare.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> x = np.random.default_rng(0).normal(size=(64, 128)).astype("float32")
    >>> found = dlfp4.analysis.compare({"w": x}, ["nvfp4", "mxfp4"])
    >>> [(row.format, row.bits) for row in found.rows]
    [('nvfp4', 4.50390625), ('mxfp4', 4.25)]
    """
    named: Mapping[str, _Elements] = x if isinstance(x, Mapping) else {"x": x}
    chosen = [_find_format(each).name for each in (all_formats() if formats is None else as_list(formats))]
    given: list[Any] = as_list(recipes)
    for recipe in given:
        if recipe is not None:
            check_recipe(recipe)
    rows: list[Row] = []
    refused: dict[tuple[str, str], str] = {}
    for name, tensor in named.items():
        for format in chosen:
            for recipe in given:
                label = label_of(recipe)
                try:
                    q = quantize(tensor, format, recipe=recipe, axis=axis, pad=True)
                except ValueError as reason:
                    if recipe is None:
                        raise
                    refused[format, label] = str(reason)
                    continue
                rows.append(measure(name, tensor, q, label))
    if not rows:
        reasons = "; ".join(f"{format} {label}: {reason}" for (format, label), reason in list(refused.items())[:3])
        raise ValueError(f"nothing to compare{': ' if reasons else ', x, formats or recipes are empty'}{reasons}")
    return Comparison(tuple(rows), refused)


def as_list(given: Any) -> list[Any]:
    """Several of something, or one; what cannot be several is told apart by who looks at it."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def label_of(recipe: Recipe | RecipeName | None) -> str:
    """A recipe in a table."""
    return "" if recipe is None else recipe if isinstance(recipe, str) else repr(recipe)


def measure(name: str, x: _Elements, q: ScaledTensor, recipe: str) -> Row:
    """A row."""
    found = error(x, q, bins=1)
    size = count_elements(q.shape)
    bits = 8 * q.nbytes / size if size else math.nan
    return Row(name, q.format.name, recipe, bits, q.nbytes, found.snr, found.mse, found.largest)


def bits_of(rows: Sequence[Row]) -> float:
    """Bits an element of all tensors."""
    size = sum(8 * row.nbytes / row.bits for row in rows if not math.isnan(row.bits))  # which an empty tensor's are
    return 8 * sum(row.nbytes for row in rows) / size if size else math.nan


def line_of(way: str, rows: Sequence[Row]) -> tuple[str, ...]:
    """A format's line of a table."""
    snrs = [row.snr for row in rows]
    unknown = any(map(math.isnan, snrs))  # of a tensor with NaN, whose place in an order is none
    shown = [math.nan] * 3 if unknown else [statistics.median(snrs), min(snrs), max(snrs)]
    return (
        way,
        f"{bits_of(rows):.3f}",
        f"{sum(row.nbytes for row in rows) / 1e6:.2f}",
        *(f"{snr:.2f}" for snr in shown),
    )


def new_table() -> Any:
    """An empty table of rich's."""
    from rich.table import Table

    return Table(box=None, header_style="bold", pad_edge=False)


# ---- Global scales


def calibrate(
    x: _Elements | Iterable[_Elements],
    method: Method = "mse",
    *,
    format: Format | str = "nvfp4",
    recipe: Recipe | RecipeName | None = None,
    percentile: float = 99.9,
) -> float:
    """A global scale for tensors like these, to be passed to ``quantize(x, format, global_scale=...)``.

    Parameters
    ----------
    x : producer, or iterable of producers
        Floats; for activations, those of several batches.
    method : {"mse", "largest", "percentile"}
        "largest": that of the largest magnitude, as :func:`dlfp4.quantize` finds it. "percentile": that of a magnitude
        which `percentile` of all do not pass; larger ones saturate. "mse": the one with the least squared error of all,
        of steps of a sixteenth of an octave around "largest", up to one octave away.
    format : str or Format
        One that has a global scale.
    recipe : Recipe or str, optional
        As in :func:`dlfp4.quantize`.
    percentile : float
        From 0 to 100, for that method.

    Returns
    -------
    float
        A decode scale: values are elements times the scales of blocks times this.

    Raises
    ------
    ValueError
        A format without global scale, a recipe with several, an unknown method, a percentile out of range, no tensors,
        or numbers that float32 does not hold: NaN, infinities and what is beyond its range.

    Examples
    --------
    >>> import numpy as np, dlfp4
    >>> x = np.random.default_rng(0).normal(size=(64, 128)).astype("float32")
    >>> scale = dlfp4.analysis.calibrate(x)
    >>> q = dlfp4.quantize(x, "nvfp4", global_scale=scale)
    >>> dlfp4.analysis.error(x, q).mse <= dlfp4.analysis.error(x, dlfp4.quantize(x, "nvfp4")).mse
    True
    """
    row = _find_format(format)
    if not row.has_global_scale:
        names = ", ".join(each.name for each in all_formats().values() if each.has_global_scale)
        raise ValueError(f"{row} has no global scale; expected one of {names}")
    if not is_one_of(method, ("mse", "largest", "percentile")):
        raise ValueError(f"method={method!r}; expected 'mse', 'largest' or 'percentile'")
    part: Any = percentile
    if not isinstance(part, Real) or not 0 <= float(part) <= 100:
        raise ValueError(f"percentile={part!r}; expected a number from 0 to 100")
    per = find_recipe(row, recipe).global_scale_per
    if per != "tensor":
        raise ValueError(f"recipe={recipe!r} has a global scale for each {per}; calibrate finds one for all tensors")
    given: Any = x if is_list(x) else (x,)
    tensors = [numbers_of(each) for each in given]
    if not tensors:
        raise ValueError("x has no tensors; pass one, or several in a list")
    magnitudes = np.concatenate([np.abs(each).reshape(-1) for each in tensors])
    if not magnitudes.max(initial=0) <= np.finfo(np.float32).max:
        raise ValueError(
            "x has NaN, infinities or numbers beyond float32, from which no scale can be computed; leave them out"
        )
    if method == "percentile" and magnitudes.size:
        return scale_of(float(np.percentile(magnitudes, percentile)), row, recipe)
    largest = scale_of(float(magnitudes.max(initial=0)), row, recipe)
    if method == "largest":
        return largest
    steps = sorted(range(-STEPS, STEPS + 1), key=abs)  # of equals the nearest to the largest magnitude's is taken
    tried = [float(np.float32(largest * 2.0 ** (step / STEPS))) for step in steps]
    return min(tried, key=lambda scale: squared_error(tensors, row, recipe, scale))


def is_list(x: Any) -> bool:
    """Whether it is of tensors, and none itself."""
    return isinstance(x, (list, tuple)) or (isinstance(x, Iterator) and not hasattr(x, "__dlpack__"))


def scale_of(magnitude: float, format: Format, recipe: Recipe | RecipeName | None) -> float:
    """What quantize finds for a tensor of that largest magnitude."""
    lines, length = format.block_in(1, 1)
    found = quantize(np.full((lines, length), magnitude, np.float32), format, recipe=recipe).global_scale
    assert found is not None
    return float(found.to_numpy())


def squared_error(
    tensors: Sequence[Numbers], format: Format, recipe: Recipe | RecipeName | None, scale: float
) -> float:
    """Of all tensors, quantized with one global scale."""
    total = 0.0
    for values in tensors:
        q = quantize(values.astype(np.float32), format, recipe=recipe, global_scale=scale, pad=True)
        total += float(np.square(values - numbers_of(q)).sum())
    return total
