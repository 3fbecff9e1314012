"""Which backend and tactic multiplies fastest: measured on the caller's problem, kept in a file.

A choice belongs to a key: what the operands are, N and K, the bucket of M, the candidates, the device, the version of
dlfp4. Keys of tuning and of look-up are made by one function.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from dlfp4 import _core
from dlfp4._core import (
    _ON_CUDA,
    BackendError,
    DriverError,
    ScaledTensor,
    Tensor,
    _bucket_of_rows,
    asarray,
    cast,
    cpu_isa,
    get_num_threads,
)
from dlfp4.caches import keep_text, load_text
from dlfp4.engines.clocks import Clock, clock_at
from dlfp4.engines.problem import Backend, Operand, Problem, decode, describe, name_of
from dlfp4.files import as_path, check_place
from dlfp4.formats import FLOATS
from dlfp4.parsing import parse_object

if TYPE_CHECKING:
    from dlfp4._core import Device

Pair: TypeAlias = tuple[Backend, str]  # and its tactic

SHORTEST = 16  # elements that are stored and summed of the shortest lines
COLD_BYTES = 256 << 20  # more than any cache holds
MOST_COPIES = 64  # of small operands, which then stay in the cache
FILE_FORMAT, FILE_VERSION = "dlfp4 autotune", 1
# Relative size of half a step of a result, half the smallest step, and the largest finite value.
ROUNDING = {
    name: (float(limits.eps) / 2, float(limits.smallest_subnormal) / 2, float(limits.max))
    for name, limits in ((name, ml_dtypes.finfo(name)) for name in FLOATS)  # type: ignore[no-untyped-call]
}


class Key(NamedTuple):
    """What a choice depends on."""

    op: str
    a: str
    b: str
    result: str
    n: int
    k: int
    rows: int
    candidates: tuple[str, ...]
    device: str
    version: str


class Choice(NamedTuple):
    """A backend's name and its tactic, and what it took."""

    backend: str
    tactic: str
    microseconds: float


CHOICES: dict[Key, Choice] = {}  # of the process: loaded from files and measured
LOCK = threading.RLock()  # one thread measures at a time
WARNED: set[Path] = set()
CURRENT: ContextVar[Path | None] = ContextVar("dlfp4.autotune", default=None)  # the file to keep choices in


@contextlib.contextmanager
def autotune(cache: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Let :func:`matmul` measure which backend and tactic is fastest, and remember it.

    Inside the context, in the thread that entered it, each product for which there is no choice yet is run by every
    candidate that supports it, checked, timed, and the fastest one is kept, in this process and in a file. Outside,
    ``matmul(backend="auto")`` and products by a backend's name use the choices that this process has loaded or
    measured, in all threads; what has none takes the first of :func:`backends`. A process that only wants the choices
    of earlier ones enters the context once around nothing. A choice that the process has already is neither measured
    nor written again; of two processes that write at the same moment, one's may be measured again later.

    Parameters
    ----------
    cache : path, optional
        The file. Default: ``autotune.json`` in the user's cache folder of dlfp4, for which platformdirs must be
        installed.

    Raises
    ------
    ImportError
        `cache` is not given, and platformdirs is not installed.
    OSError
        `cache` is a folder, a device, a pipe or a socket.
    TypeError
        `cache` is not a path.
    BackendError
        By matmul: no candidate's result is within the error bound.

    Warns
    -----
    RuntimeWarning
        The file is not a cache of this version of the format, or other users may write to it: it is ignored and left as
        it is. Or it cannot be written. Choices hold for this process.

    Notes
    -----
    A choice is made for operands of the same formats, dtypes and layouts, equal N and K, M in the same bucket (each M
    up to 16, then four buckets between powers of two), the same candidates, device (name of the GPU; model,
    instruction set and threads of the CPU) and version of dlfp4.

    Operands are copied until they exceed all caches (256 MiB, at most 64 copies), and calls walk over the copies. On
    CUDA devices graphs of such calls are timed, by PyTorch or CuPy if either is there; otherwise single calls. Figures
    are medians of nine rounds in which all candidates take turns. All that takes as long as about ten products by each
    candidate on the host, or about two hundred on a device, and two in float64. A product that is captured in a graph
    is not measured.

    Before it is timed, a candidate writes to memory full of NaN, and every element is held to the error bound of
    matmul against the float64 product of the decoded operands. A tactic whose launch fails with :class:`DriverError` is
    passed over; other exceptions are the caller's.

    Examples
    --------
    >>> import numpy as np, dlfp4, tempfile
    >>> w = dlfp4.quantize(np.eye(32, dtype="float32"), "mxfp4")
    >>> with tempfile.TemporaryDirectory() as folder, dlfp4.autotune(f"{folder}/choices.json"):
    ...     y = dlfp4.matmul(np.ones((2, 32), "float32"), w.mT)
    """
    path = default_path() if cache is None else as_path("cache", cache)
    if path.exists():
        check_place(path)
    with LOCK:
        CHOICES.update(read(path) or {})
    token = CURRENT.set(path)
    try:
        yield
    finally:
        CURRENT.reset(token)


def default_path() -> Path:
    """In the user's cache folder, where the system has it."""
    try:
        import platformdirs
    except ImportError as error:
        raise ImportError(
            "autotune() asks platformdirs where to keep its file; install platformdirs, or pass cache=path"
        ) from error
    return Path(platformdirs.user_cache_path("dlfp4")) / "autotune.json"


# ---- What matmul asks


def is_idle() -> bool:
    """Whether there are neither choices nor a context that would measure some."""
    return CURRENT.get() is None and not CHOICES


def choose(problem: Problem, rows: Sequence[Backend]) -> Pair:
    """The backend and tactic for a problem: the measured ones, else the first."""
    if is_idle():
        return rows[0], rows[0].tactics(problem)[0]
    path = CURRENT.get()
    pairs = [(row, tactic) for row in rows for tactic in row.tactics(problem)]
    is_rounded = problem.activation is not None  # misses the bound, as it may
    if len(pairs) == 1 or is_rounded or problem.a.shape[-1] == 0:
        return pairs[0]
    key = key_of(problem, pairs)
    found = CHOICES.get(key)
    if found is None and path is not None and not _core._is_captured(problem.a, problem.stream):
        found = find(problem, pairs, key, path)
    if found is None:
        return pairs[0]
    return next(pair for pair in pairs if (pair[0].name, pair[1]) == (found.backend, found.tactic))


def find(problem: Problem, pairs: Sequence[Pair], key: Key, path: Path) -> Choice:
    """Measure, unless another thread just did."""
    with LOCK:
        if key not in CHOICES:
            CHOICES[key] = measure(problem, pairs)
            write(path, key)
        return CHOICES[key]


def key_of(problem: Problem, pairs: Sequence[Pair]) -> Key:
    """The key of a problem, of tuning and of look-up."""
    return Key(
        op="matmul",
        a=describe_layout(problem.a),
        b=describe_layout(problem.b),
        result=name_of(problem.dtype),
        n=problem.b.shape[1],
        k=problem.b.shape[0],
        rows=_bucket_of_rows(problem.rows),
        candidates=tuple(f"{row.name}:{tactic}" for row, tactic in pairs),
        device=device_name(problem.device),
        version=_core.__version__,
    )


def describe_layout(x: Operand) -> str:
    """What an operand is and how it lies."""
    if isinstance(x, ScaledTensor):
        return f"{describe(x)} axis {x.axis} {x.scale_layout}"
    if x.ndim < 2:
        return f"{describe(x)} vector"
    steps = [stride for stride, extent in zip(x.strides[-2:], x.shape[-2:], strict=True) if extent > 1]
    order = "rows" if x.strides[-1] == 1 else "columns" if 1 in steps else "strided"
    return f"{describe(x)} {order}"


def device_name(device: Device) -> str:
    """What runs the kernels."""
    if device.type in _ON_CUDA:
        return gpu_name(device.index)
    return f"{cpu_name()}, {cpu_isa()}, threads: {get_num_threads()}"


@cache
def gpu_name(index: int) -> str:
    """Of a CUDA device."""
    return _core._cuda_device_name(index)


@cache
def cpu_name() -> str:
    """The processor's name as the system tells it."""
    import platform

    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# ---- Measuring


def measure(problem: Problem, pairs: Sequence[Pair]) -> Choice:
    """The fastest of the candidates that run and whose results are right."""
    out = _core._allocate_result(problem.a, problem.shape, problem.dtype, None)
    with clock_at(out.device, out) as clock:
        problem = problem._replace(stream=clock.stream)
        right = passing(problem, pairs, out, clock)
        copies = cold_copies(problem)
        times = clock.measure([[caller(pair, each, out) for each in copies] for pair in right])
    best = min(range(len(right)), key=times.__getitem__)
    row, tactic = right[best]
    return Choice(row.name, tactic, round(times[best], 3))


def caller(pair: Pair, problem: Problem, out: Tensor) -> Any:
    """A call without arguments."""
    row, tactic = pair
    return lambda: row.run(problem, tactic, out)


def passing(problem: Problem, pairs: Sequence[Pair], out: Tensor, clock: Clock) -> list[Pair]:
    """The candidates that launch and write every element within the bound; BackendError if there are none."""
    expected, bound = expect(problem, clock)
    nothing = asarray(np.full(out.shape, np.nan, np.float32)).to_device(out.device)
    right, reasons = [], []
    for row, tactic in pairs:
        cast(nothing, out.dtype, out=out, stream=problem.stream)
        try:
            row.run(problem, tactic, out)
        except DriverError as error:  # this tactic does not run on this device
            reasons.append(f"{row.name}:{tactic}: {error}")
            continue
        wrong = count_wrong(clock.float64(out).reshape(expected.shape), expected, bound, problem.dtype.name)
        if wrong:
            reasons.append(f"{row.name}:{tactic}: {wrong} of {out.size} elements are not within the error bound")
        else:
            right.append((row, tactic))
    if not right:
        raise BackendError(
            "autotune: no candidate gives a correct result for these operands:\n  " + "\n  ".join(reasons)
        )
    return right


def expect(problem: Problem, clock: Clock) -> tuple[Any, Any]:
    """The product in float64, and how far float32 sums may be from it: max(K, 16) * 2**-24 * sum(abs(a * b)).

    Factors, products and sums below 2**-126 may count as zero: see :func:`dlfp4.matmul`.
    """
    a, b = (clock.float64(decode(x, clock.stream)) for x in (problem.a, problem.b))
    a = a.reshape(-1, a.shape[-1])
    bound = (abs(a) @ abs(b)) * (max(b.shape[0], SHORTEST) * 2.0**-24)
    bound += (abs(a).sum(1).reshape(-1, 1) + abs(b).sum(0)) * 2.0**-126 + b.shape[0] * 2.0**-123
    return (a @ b) * problem.alpha, bound * abs(problem.alpha)


def count_wrong(got: Any, expected: Any, bound: Any, result: str) -> int:
    """How many elements are neither within the bound, nor infinite or NaN as they should be."""
    relative, smallest, largest = ROUNDING[result]
    limit = bound + abs(expected) * relative + (smallest + 2.0**-126)  # tensor cores may flush subnormals
    right = abs(got - expected) <= limit
    right |= (got != got) & (expected != expected)  # noqa: PLR0124 (NaN, in any library's arrays)
    right |= (abs(got) == float("inf")) & (got * expected > 0) & (abs(expected) + limit >= largest)
    return int((~right).sum())


def cold_copies(problem: Problem) -> list[Problem]:
    """The problem on so many copies of its operands that each finds the caches full of the others."""
    count = min(-(-COLD_BYTES // max(problem.a.nbytes + problem.b.nbytes, 1)), MOST_COPIES)
    return [problem, *(problem._replace(a=twin(problem.a), b=twin(problem.b)) for _ in range(count - 1))]


def twin(x: Operand) -> Operand:
    """The same in other memory, which lies as x does: copies have rows that follow one another."""
    if isinstance(x, ScaledTensor):
        if x.axis == -2 and x.ndim == 2:
            return twin(x.mT).mT
        return x.with_scale_layout("linear").prepare() if x.scale_layout == "prepared" else copy.deepcopy(x)
    return x.mT.copy().mT if x.ndim > 1 and x.strides[-1] != 1 else x.copy()


# ---- The file


def read(path: Path) -> dict[Key, Choice] | None:
    """The choices in a file; None, with a warning, where it is no cache."""
    try:
        return parse(load_text(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        warn_once(
            path,
            f"{path} is not a cache of autotune() ({type(error).__name__}: {error}) and is ignored; delete it, or give "
            f"another cache",
        )
        return None


def parse(text: bytes) -> dict[Key, Choice]:
    """The choices that a file holds; ValueError, TypeError or KeyError where something is amiss."""
    content = parse_object(text, "the file")
    if (content["format"], content["version"]) != (FILE_FORMAT, FILE_VERSION):
        raise ValueError(f"format {content['format']!r}, version {content['version']!r}")
    return dict(map(parse_entry, content["choices"]))


def parse_entry(entry: dict[str, Any]) -> tuple[Key, Choice]:
    """A key with its choice, which is among the key's candidates."""
    fields = entry["key"]
    key = Key(**fields | {"candidates": tuple(fields["candidates"])})
    choice = Choice(**{name: entry[name] for name in Choice._fields})
    if f"{choice.backend}:{choice.tactic}" not in key.candidates:
        raise ValueError(f"{choice.backend}:{choice.tactic} is not among the candidates {', '.join(key.candidates)}")
    return key, choice


def warn_once(path: Path, message: str) -> None:
    """That a file is not used."""
    if path not in WARNED:
        WARNED.add(path)
        warnings.warn(message, RuntimeWarning, stacklevel=5)


def write(path: Path, key: Key) -> None:
    """Add a choice to what the file now holds, which other processes write to as well; leave other files alone."""
    held = read(path)
    if held is None:
        return
    held[key] = CHOICES[key]
    entries = [{"key": each._asdict(), **choice._asdict()} for each, choice in held.items()]
    content = {"format": FILE_FORMAT, "version": FILE_VERSION, "choices": entries}
    if (error := keep_text(path, json.dumps(content, indent=1).encode() + b"\n")) is not None:
        warn_once(path, f"{path} cannot be written ({error}): choices hold for this process; give another cache")
