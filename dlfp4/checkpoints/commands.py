"""``python -m dlfp4 quantize``, ``convert`` and ``inspect``: progress, what became of the tensors, what was found."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any

import dlfp4
from dlfp4.checkpoints import folders, inspection, models
from dlfp4.checkpoints.converting import convert_model
from dlfp4.checkpoints.folders import Outcome, Report
from dlfp4.checkpoints.models import Files
from dlfp4.checkpoints.names import listed
from dlfp4.checkpoints.quantizing import quantize_model
from dlfp4.checkpoints.roles import FLAG
from dlfp4.parsing import printable
from dlfp4.tables import in_columns

# Arguments of the functions as their messages have them: flags, patterns that are missing, values.
FLAGS = re.compile(rf"\b{FLAG}(embeddings|heads|routers)\b")
INCLUDE = re.compile(r"; include(?= names it)")
VALUES = re.compile(r"\b(include|exclude|recipe|axis)=(?=['\"\d-])")


def in_options(message: str) -> str:
    """A message of the functions in the words of the command line, which has options for their arguments."""
    named = FLAGS.sub(r"--include-\1", INCLUDE.sub("; --include", message))
    return VALUES.sub(r"--\1 ", named)


def quantize(source: str, target: str, *, jobs: int, **options: Any) -> int:
    """Call :func:`quantize_model`, show progress and the outcomes, and return the exit status."""
    work = partial(quantize_model, source, target, **options)
    return show("quantizing", work, source, lambda done: [*table(done), ""], target, sum_up, jobs)


def convert(source: str, target: str, *, convention: str, jobs: int) -> int:
    """Call :func:`convert_model`, show progress and the outcomes, and return the exit status."""
    work = partial(convert_model, source, target, convention)
    return show("converting", work, source, lambda _: [], target, count, jobs)


def show(
    what: str,
    work: Callable[..., list[Outcome]],
    source: str,
    before: Callable[[Sequence[Outcome]], list[str]],
    target: str,
    total: Callable[[Sequence[Outcome]], str],
    jobs: int,
) -> int:
    """Do the work, print what became of the tensors, and return the exit status."""
    try:
        with workers(jobs) as executor, progress(what) as report:
            outcomes = work(report=report, executor=executor)
        left = left_over(models.find(source)) if models.is_folder(source) else []
    except BrokenExecutor as error:
        print(f"{error} The same command continues where this one ended.", file=sys.stderr)
        return 1
    except (OSError, ValueError, ModuleNotFoundError) as error:
        print(printable(in_options(str(error))), file=sys.stderr)
        return 1
    lines = [*before(outcomes), *reasons(outcomes), *left, f"{target}: {total(outcomes)}"]
    print("\n".join(map(printable, lines)))
    return 0


@contextlib.contextmanager
def workers(jobs: int) -> Iterator[Executor | None]:
    """Processes for so many files at once, which share the processor's cores; None for one file at a time."""
    if jobs < 2:
        yield None
        return
    threads = max(1, dlfp4.get_num_threads() // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=prepare_worker, initargs=(threads,)) as executor:
        yield executor


def prepare_worker(threads: int) -> None:
    """Give a process its share of the cores, and end it with the command: executors leave theirs waiting for ever where
    the command is killed. Ctrl-C reaches all processes of a terminal, and ends this one without a word, unless the
    command ignores it, as a shell has it do in the background.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    dlfp4.set_num_threads(threads)
    Thread(target=end_with, args=(parent_process(),), daemon=True).start()


def end_with(command: Any) -> None:
    """Wait for a process to end, and end this one, in the middle of its work as well."""
    command.join()
    os._exit(1)


def count(outcomes: Sequence[Outcome]) -> str:
    """How many tensors have which format."""
    formats = Counter(outcome.format for outcome in outcomes if outcome.format)
    quantized = ", ".join(f"{number} {format}" for format, number in formats.items()) or "none quantized"
    return f"{len(outcomes)} tensors, {quantized}"


def inspect(source: str, *, as_json: bool) -> int:
    """Print what :func:`dlfp4.checkpoints.inspect` finds; the exit status is 1 where something is flagged."""
    try:
        findings = inspection.inspect(source)
    except (OSError, ValueError) as error:
        print(printable(str(error)), file=sys.stderr)
        return 1
    print(findings.as_json() if as_json else findings)
    return int(bool(findings.flags))


def left_over(files: Files) -> list[str]:
    """Lines that name what is not carried over: files of weights, indices of those, and what is no file."""
    what = {
        "they hold other weights": folders.left_out(files),
        "they are indices of other weights": folders.indices_left_out(files),
        "they are not regular files": folders.no_files(files),
    }
    return [f"not carried over, as {reason}: {listed(names)}" for reason, names in what.items() if names]


@contextlib.contextmanager
def progress(what: str) -> Iterator[Report]:
    """Show what is done by rich's progress bar on a terminal, if it is installed; otherwise by a line each."""
    if not (sys.stderr.isatty() and find_spec("rich")):
        yield lambda name, done, total: print(printable(f"[{done}/{total}] {name}"), file=sys.stderr)
        return
    rich, console = import_module("rich.progress"), import_module("rich.console")
    with rich.Progress(console=console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda _name, done, total: bar.update(task, completed=done, total=total)


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """One line per tensor of two dimensions or more; smaller ones are only counted."""
    rows = [("tensor", "shape", "from", "to", "bytes", "bytes after", "SNR dB")]
    for outcome in (outcome for outcome in outcomes if len(outcome.shape) > 1):
        shape, snr = "x".join(map(str, outcome.shape)), f"{outcome.snr:.2f}" if outcome.format else ""
        sizes = f"{outcome.before:,}", f"{outcome.after:,}"
        rows.append((outcome.name, shape, outcome.dtype, outcome.format or "kept", *sizes, snr))
    return in_columns(rows, left=4)


def reasons(outcomes: Sequence[Outcome]) -> list[str]:
    """Why tensors were kept, and what there is to say about others: a line for each reason, with some names."""
    named: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if outcome.reason:
            named.setdefault((outcome.format or "kept", outcome.reason), []).append(outcome.name)
    return [f"{what}: {in_options(reason)}: {listed(names)}" for (what, reason), names in named.items()]


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
