"""Quantize the weights of a safetensors file: ``python -m dlfp4 quantize``."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import dlfp4
from dlfp4 import Recipe, ScaledTensor, Tensor, checkpoints
from dlfp4._core import _find_format
from dlfp4.checkpoints import native, safetensors
from dlfp4.checkpoints.selection import Choice, choose, quantize_chosen
from dlfp4.files import check_place
from dlfp4.formats import Format, RecipeName
from dlfp4.frameworks.base import is_row_major

SHOWN = 3  # names beside a reason
CHUNK = 1 << 20  # elements compared at a time: float64 copies of a whole embedding would take gigabytes


@dataclass(frozen=True)
class Outcome:
    """What became of one tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    format: str  # "" where it was kept
    before: int  # bytes
    after: int
    snr: float  # dB; NaN where it was kept
    reason: str = ""  # why it was kept, or what there is to say about it


def quantize_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: str | Format,
    *,
    recipe: Recipe | RecipeName | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    include_embeddings: bool = False,
    include_heads: bool = False,
    include_routers: bool = False,
    axis: int | None = None,
    convention: str | None = None,
    track: Callable[[list[str]], Iterable[str]] = iter,
) -> list[Outcome]:
    """Quantize the weights of the linear layers of a safetensors file into another file.

    :func:`dlfp4.checkpoints.selection.choose` decides which tensors these are. All others are kept, and what is
    already quantized keeps its bytes. The results are held in memory until the file is written.

    Parameters
    ----------
    source, target : path-like
        The files; they may be the same.
    format, recipe
        As :func:`dlfp4.quantize` takes them.
    include, exclude, include_embeddings, include_heads, include_routers, axis
        As :func:`dlfp4.checkpoints.selection.choose` takes them.
    convention : str, optional
        See :func:`dlfp4.checkpoints.save`.
    track : callable
        ``track(names)`` iterates over the names, and may show progress.

    Returns
    -------
    list of Outcome
        One per tensor, in the order of the file.

    Raises
    ------
    ValueError
        The file is damaged, the format is unknown, the recipe or convention does not go with it, or a pattern
        matches nothing.
    """
    chosen = _find_format(format)
    check_place(Path(target))
    tensors, metadata = read_parts(source)
    # Options that do not go together are refused before the work.
    dlfp4.quantize(dlfp4.empty((0, 128), "float32"), chosen, recipe=recipe)
    try:
        choices = choose(
            tensors,
            chosen,
            convention=convention,
            include=include,
            exclude=exclude,
            include_embeddings=include_embeddings,
            include_heads=include_heads,
            include_routers=include_routers,
            axis=axis,
        )
    except ValueError as error:
        raise ValueError(f"{os.fspath(source)}: {error}") from error
    if convention is not None:
        checkpoints.split_parts({name: x for name, x in tensors.items() if isinstance(x, ScaledTensor)}, convention)
    outcomes = []
    for name in track(list(tensors)):
        tensor, choice = tensors[name], choices[name]
        if choice.quantized:
            tensors[name] = quantize_chosen(tensor, choice, chosen, convention=convention, recipe=recipe)
        outcomes.append(judge(choice, tensor, tensors[name]))
    checkpoints.save(target, tensors, metadata, convention=convention)
    return outcomes


def read_parts(source: str | os.PathLike[str]) -> tuple[dict[str, Tensor | ScaledTensor], dict[str, str]]:
    """The tensors of a file and its metadata; parts of other conventions stay the parts that they are."""
    parts, metadata = safetensors.read(source)
    description = metadata.pop(native.KEY, None)
    if description is None:
        return dict(parts), metadata
    try:
        return native.join(parts, description), metadata
    except ValueError as error:
        raise ValueError(f"{os.fspath(source)}: {error}") from error


def judge(choice: Choice, tensor: Tensor | ScaledTensor, result: Tensor | ScaledTensor) -> Outcome:
    """The outcome of one tensor."""
    kind = tensor.format.name if isinstance(tensor, ScaledTensor) else tensor.dtype.name
    start = (choice.name, tensor.shape, kind)
    if isinstance(tensor, ScaledTensor) or not isinstance(result, ScaledTensor):
        return Outcome(*start, "", tensor.nbytes, tensor.nbytes, math.nan, choice.reason)
    turned = tensor.mT if result.shape != tensor.shape else tensor
    snr = signal_to_noise(turned, result)
    return Outcome(*start, result.format.name, tensor.nbytes, result.nbytes, snr, choice.reason)


def signal_to_noise(x: Tensor, q: ScaledTensor) -> float:
    """The ratio in dB: ``10 log10(sum(x**2) / sum((x - q)**2))``; infinite where they are equal."""
    flat = x if is_row_major(x) else x.copy()
    values, decoded = flat.reshape(-1), q.dequantize().reshape(-1)
    signal = noise = 0.0
    for start in range(0, values.size, CHUNK):
        exact = values[start : start + CHUNK].to_numpy().astype(np.float64)
        error = exact - decoded[start : start + CHUNK].to_numpy()
        signal, noise = signal + float(exact @ exact), noise + float(error @ error)
    ratio = signal / noise if noise else math.inf
    return 10 * math.log10(ratio) if ratio else -math.inf


# ---- On the command line


def run(source: str, target: str, **options: Any) -> int:
    """Call :func:`quantize_file`, show progress and the outcomes, and return the exit status."""
    try:
        outcomes = quantize_file(source, target, track=progress, **options)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join([*table(outcomes), "", *reasons(outcomes), f"{target}: {sum_up(outcomes)}"]))
    return 0


def progress(names: list[str]) -> Iterator[str]:
    """Yield the names behind rich's progress bar on a terminal, if it is installed; otherwise print a line each."""
    if sys.stderr.isatty() and find_spec("rich"):
        rich, console = import_module("rich.progress"), import_module("rich.console")
        yield from rich.track(names, "quantizing", console=console.Console(stderr=True), transient=True)
        return
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] {name}", file=sys.stderr)
        yield name


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """One line per tensor of two dimensions or more; smaller ones are only counted."""
    rows = [("tensor", "shape", "from", "to", "bytes", "bytes after", "SNR dB")]
    for outcome in (outcome for outcome in outcomes if len(outcome.shape) > 1):
        shape, snr = "x".join(map(str, outcome.shape)), f"{outcome.snr:.2f}" if outcome.format else ""
        sizes = f"{outcome.before:,}", f"{outcome.after:,}"
        rows.append((outcome.name, shape, outcome.dtype, outcome.format or "kept", *sizes, snr))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    template = "  ".join(f"{{:{'>' if number > 3 else '<'}{width}}}" for number, width in enumerate(widths))
    return [template.format(*row).rstrip() for row in rows]


def reasons(outcomes: Sequence[Outcome]) -> list[str]:
    """Why tensors were kept, and what there is to say about others: a line for each reason, with some names."""
    named: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if outcome.reason:
            named.setdefault((outcome.format or "kept", outcome.reason), []).append(outcome.name)
    return [
        f"{what}: {reason}: {', '.join(names[:SHOWN])}" + (f", … ({len(names)})" if len(names) > SHOWN else "")
        for (what, reason), names in named.items()
    ]


def sum_up(outcomes: Sequence[Outcome]) -> str:
    """How much was quantized, and how well."""
    # A ratio of NaN, from NaN or infinity in the tensor, counts as the worst.
    quantized = sorted(
        (outcome for outcome in outcomes if outcome.format), key=lambda each: (not math.isnan(each.snr), each.snr)
    )
    before, after = (sum(getattr(outcome, field) for outcome in outcomes) for field in ("before", "after"))
    text = f"{len(quantized)} of {len(outcomes)} tensors quantized, {before:,} -> {after:,} bytes"
    if quantized:
        median, worst = quantized[len(quantized) // 2], quantized[0]
        text += f", SNR {median.snr:.1f} dB (median), {worst.snr:.1f} dB ({worst.name})"
    return text
