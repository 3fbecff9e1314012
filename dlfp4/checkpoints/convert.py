"""Quantize the weights of a safetensors file: ``python -m dlfp4 quantize``."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

import dlfp4
from dlfp4 import Recipe, ScaledTensor, Tensor, checkpoints
from dlfp4._core import _buffers_of, _find_format
from dlfp4.checkpoints.conventions import find_spelling, scales_shape
from dlfp4.files import check_place
from dlfp4.formats import FLOATS, Format

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


def quantize_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: str | Format,
    *,
    recipe: Recipe | Literal["ocp", "nvidia", "rocm"] | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    convention: str | None = None,
    track: Callable[[list[str]], Iterable[str]] = iter,
) -> list[Outcome]:
    """Quantize the float matrices of a safetensors file along their last axis into another file.

    Tensors of two or three dimensions in float32, bfloat16 or float16 are quantized if their rows divide into the
    format's blocks (the last block of FP8 may be smaller) and the convention, if any, can store them. All other tensors
    are kept. The results are held in memory until the file is written.

    Parameters
    ----------
    source, target : path-like
        The files; they may be the same.
    format, recipe
        As :func:`dlfp4.quantize` takes them.
    include, exclude : sequence of str
        Shell patterns of names. A tensor is chosen if its name matches one of `include` (an empty `include` matches
        all) and none of `exclude`. Every pattern in `include` must match a name in the file.
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
        The file is damaged, the format is unknown, the recipe or convention does not go with it, or a pattern in
        `include` matches nothing.
    """
    chosen = _find_format(format)
    check_place(Path(target))
    tensors = checkpoints.load(source)
    # Options that do not go together are refused before the work.
    dlfp4.quantize(dlfp4.empty((0, 128), "float32"), chosen, recipe=recipe)
    if convention is not None:
        find_spelling(chosen, convention)
        checkpoints.split_parts({name: x for name, x in tensors.items() if isinstance(x, ScaledTensor)}, convention)
    check_patterns(include, tensors, source)
    outcomes = []
    for name in track(list(tensors)):
        tensor = tensors[name]
        result: Tensor | ScaledTensor = tensor
        wanted = matches(name, include or ["*"]) and not matches(name, exclude)
        if wanted and isinstance(tensor, Tensor) and fits(tensor, chosen, convention):
            result = tensors[name] = dlfp4.quantize(tensor, chosen, recipe=recipe)
        outcomes.append(judge(name, tensor, result))
    checkpoints.save(target, tensors, checkpoints.read_metadata(source), convention=convention)
    return outcomes


def check_patterns(patterns: Iterable[str], names: Collection[str], source: str | os.PathLike[str]) -> None:
    """ValueError for a pattern that matches no name, before hours of work miss the intended tensors."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            some = ", ".join(islice(names, 3))
            raise ValueError(f"include={pattern!r} matches no tensor of {os.fspath(source)}; its names are like {some}")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def fits(tensor: Tensor, format: Format, convention: str | None) -> bool:
    """Whether a tensor is a float matrix, or a stack of them, that the format and the convention, if any, take."""
    if tensor.ndim not in (2, 3) or tensor.dtype.name not in FLOATS:
        return False
    if convention and scales_shape(format, tensor.shape) is None:
        return False
    try:
        _buffers_of(tensor.shape, format, -1, "linear", False)
    except ValueError:
        return False
    return True


def judge(name: str, tensor: Tensor | ScaledTensor, result: Tensor | ScaledTensor) -> Outcome:
    """The outcome of one tensor."""
    if isinstance(tensor, ScaledTensor):
        return Outcome(name, tensor.shape, tensor.format.name, "", tensor.nbytes, tensor.nbytes, math.nan)
    if not isinstance(result, ScaledTensor):
        return Outcome(name, tensor.shape, tensor.dtype.name, "", tensor.nbytes, tensor.nbytes, math.nan)
    snr = signal_to_noise(tensor, result)
    return Outcome(name, tensor.shape, tensor.dtype.name, result.format.name, tensor.nbytes, result.nbytes, snr)


def signal_to_noise(x: Tensor, q: ScaledTensor) -> float:
    """The ratio in dB: ``10 log10(sum(x**2) / sum((x - q)**2))``; infinite where they are equal."""
    values, decoded = x.reshape(-1), q.dequantize().reshape(-1)
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
    print("\n".join([*table(outcomes), "", f"{target}: {sum_up(outcomes)}"]))
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
