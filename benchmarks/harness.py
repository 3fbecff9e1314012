"""What the benchmarks share: the clock, the machine's description, tables.

How a call is timed. Each case is a Python statement whose names are bound as locals of a loop that `timeit` compiles,
so every library is called from the same bytecode, with its result dropped at once. All cases run in turn, a short
slice of calls each, round after round: a change of clock or a busy neighbour then meets all of them alike. A slice
begins with some calls that are not timed, since other cases ran before it. A figure is the median over rounds, a ratio
the median of each round's ratio, and a spread the middle half of the rounds. Nothing is subtracted: the loop around an
empty statement is a case of its own, shown with the results.
"""

import argparse
import datetime
import importlib
import importlib.metadata
import json
import math
import os
import platform
import random
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EMPTY_LOOP = "pass"
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20}
Call = Callable[[], Any]


class Case:
    """One statement to time; `names` are what it refers to.

    A case that does not run (a peer that is not installed, an exchange that a library refuses) has a `problem` instead
    of samples. `clock` is what slices are timed by.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, label: str, statement: str, **names: Any) -> None:
        self.label = label
        self.statement = statement
        self.seconds: list[float] = []  # a call, by round
        self.problem = next((str(n) for n in names.values() if isinstance(n, Missing)), "")
        # Bound one by one in the timed function itself: locals, not globals.
        setup = "; ".join(f"{name} = _names[{name!r}]" for name in names) or EMPTY_LOOP
        self._timer = timeit.Timer(statement, setup, timer=self.clock, globals={"_names": names})
        self._calls = 1

    def prepare(self, slice_seconds: float) -> None:
        """Run it once, and choose how many calls make a slice."""
        if self.problem:
            return
        try:
            self._timer.timeit(2)
            once = self._timer.timeit(1)
        except Exception as error:  # noqa: BLE001 (a library's refusal is a result, and may be of any type)
            self.problem = f"{type(error).__name__}: {error}".splitlines()[0]
            return
        if once < slice_seconds:  # else one call is a slice
            once = min(self._timer.timeit(10) for _ in range(5)) / 10
            self._calls = max(20, round(slice_seconds / once))

    def run(self) -> None:
        """Time one slice, after a few calls that bring code and data back into the caches."""
        if not self.problem:
            self._timer.timeit(self._calls // 4)
            self.seconds.append(self._timer.timeit(self._calls) / self._calls)

    def release(self) -> None:
        """Let go of what the statement refers to; the samples stay."""
        self._timer = timeit.Timer(EMPTY_LOOP)

    @property
    def median(self) -> float | None:
        """Seconds a call."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """Seconds a call, between which the middle half of the rounds lies."""
        if len(self.seconds) < 2:
            return None
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return low, high

    def ratio(self, other: "Case") -> float | None:
        """This case's time over another's, taken round by round."""
        if not (self.seconds and other.seconds):
            return None
        return statistics.median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))


@dataclass(kw_only=True)
class Comparison:
    """Our case at one size on some threads beside a copy of as many bytes and the peers, by column."""

    elements: int
    threads: int
    ours: Case
    limit: Case
    peers: dict[str, Case] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What is compared."""
        raise NotImplementedError

    def speed(self, case: Case) -> float | None:
        """GB/s, of the side that the benchmark counts."""
        raise NotImplementedError

    @property
    def best(self) -> Case | None:
        """The fastest peer."""
        timed = [case for case in self.peers.values() if case.median is not None]
        return min(timed, key=lambda case: case.median or 0.0, default=None)

    def record(self, what: str) -> dict[str, Any]:
        """A row of the JSON file; `what` is the key of the title."""
        cases = {"dlfp4": self.ours, "copy": self.limit, **self.peers}
        return {
            what: self.title,
            "elements": self.elements,
            "threads": self.threads,
            "seconds": {name: case.median for name, case in cases.items()},
            "middle_half": {name: case.spread for name, case in cases.items()},
            "gigabytes_per_second": {name: self.speed(case) for name, case in cases.items()},
            "problems": {name: case.problem for name, case in cases.items() if case.problem},
            "ours_over_best_peer": self.best and self.best.ratio(self.ours),
            "ours_over_limit": self.limit.ratio(self.ours),
        }


LARGE = 1 << 24  # elements from which there are fewer rounds


def rounds_of(options: argparse.Namespace, elements: int) -> int:
    """How many rounds a group of so many elements has."""
    return max(3, options.rounds // 8) if elements >= LARGE else int(options.rounds)


def on_threads(count: int) -> str:
    """On how many threads, in words; 0 is all cores."""
    return "all cores" if count == 0 else f"{count} thread{'s' * (count > 1)}"


def print_problems(groups: Iterable[Comparison]) -> None:
    """Why cases did not run, each reason once, with the first group that has it."""
    reasons: dict[str, str] = {}
    for group in groups:
        for case in (group.ours, group.limit, *group.peers.values()):
            if case.problem:
                reasons.setdefault(f"{case.label}: {case.problem}", group.title)
    for reason, title in reasons.items():
        print(f"\nno: {reason} ({title})")


@dataclass(frozen=True)
class Missing:
    """A library that cannot be imported, or an attribute of it: cases that name it say so instead of running."""

    reason: str

    def __getattr__(self, name: str) -> "Missing":
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> "Missing":
        return self

    def __str__(self) -> str:
        return self.reason


def load(module: str) -> Any:
    """A module, or what stands for one that cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        return Missing("not installed" if isinstance(error, ModuleNotFoundError) else f"does not import: {error}")


def measure(cases: Sequence[Case], rounds: int, slice_ms: float) -> float:
    """Time all cases in turn, `rounds` times. Returns the empty loop's median, in seconds a pass."""
    empty = Case("empty loop", EMPTY_LOOP)
    everything = [empty, *cases]
    for case in everything:
        case.prepare(slice_ms / 1e3)
    for _ in range(rounds):
        for case in everything:
            case.run()
    return statistics.median(empty.seconds)


# ---- On a GPU

SHORTEST = 1000.0  # microseconds of a graph: what its launch and the events cost does not count then


@dataclass
class GraphCase:
    """Calls of equal work on the device, captured in a CUDA graph whose replays are timed.

    `make` runs on the stream of the capture: it runs what it returns, so that all is compiled and loaded.
    """

    label: str
    make: Callable[[], Sequence[Call]]
    problem: str = ""
    microseconds: list[float] = field(default_factory=list)  # a call, by round
    alone: float | None = None  # a call, at the clock that the case keeps by itself
    graph: Any = None
    calls: Sequence[Call] = ()  # what they read has to outlive the graph

    def capture(self, torch: Any) -> None:
        """Make the calls and capture them so often that they take SHORTEST, or find the problem."""
        stream = torch.cuda.Stream()
        try:
            with torch.cuda.stream(stream):
                calls = self.make()
                graph = capture_all(torch, calls)
                while (once := time_on_device(torch, graph.replay)) < SHORTEST:
                    calls = list(calls) * max(2, math.ceil(SHORTEST / once))
                    del graph
                    graph = capture_all(torch, calls)
        except Exception as error:  # noqa: BLE001 (a library's refusal is a result, and may be of any type)
            self.problem = f"{type(error).__name__}: {error}".splitlines()[0]
            torch.cuda.synchronize()
            return
        self.graph, self.calls = graph, calls

    def replay(self, torch: Any) -> None:
        """One round."""
        if self.graph is not None:
            self.microseconds.append(time_on_device(torch, self.graph.replay) / len(self.calls))

    def replay_alone(self, torch: Any, seconds: float) -> None:
        """One replay after another: the median of the second half of them, by when the clock has settled."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        while self.graph is not None and time.perf_counter() < end:
            times.append(time_on_device(torch, self.graph.replay) / len(self.calls))
        self.alone = statistics.median(times[len(times) // 2 :]) if times else None

    def release(self) -> None:
        """Let go of the graph, and of what its calls hold."""
        self.graph, self.calls, self.make = None, (), list

    @property
    def median(self) -> float | None:
        """Microseconds a call."""
        return statistics.median(self.microseconds) if self.microseconds else None


def capture_each(torch: Any, cases: Iterable[GraphCase]) -> None:
    """Graphs of all cases, each replayed once, which loads it."""
    for case in cases:
        case.capture(torch)
        case.replay(torch)
        case.microseconds.clear()


def replay_in_turns(torch: Any, cases: Sequence[GraphCase], rounds: int) -> None:
    """Each round has another order: a case that follows a busy one finds the device at a lower clock."""
    order = random.Random(0)
    for _ in range(rounds):
        for case in order.sample(cases, len(cases)):
            case.replay(torch)


def capture_all(torch: Any, calls: Sequence[Call]) -> Any:
    """A graph of the calls, on the current stream, that was replayed once, which loads it."""
    torch.cuda.current_stream().synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run_all(calls)
    graph.replay()
    return graph


def run_all(calls: Iterable[Call]) -> None:
    """Each result is dropped before the next call, which may take its memory."""
    for call in calls:
        call()


def time_on_device(torch: Any, work: Call) -> float:
    """Microseconds between events before and after `work` on the current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


# ---- The machine


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_machine(packages: Iterable[str]) -> dict[str, Any]:
    """What a figure depends on: processor, instruction set, versions, date; a peer that is missing has version None."""
    import dlfp4

    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("dlfp4", *packages):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "cpu": cpu_model(),
        "isa": dlfp4.cpu_isa(),
        "cores": usable_cores(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.date.today().isoformat(),
        "versions": versions,
    }


def machine_lines(machine: dict[str, Any]) -> list[str]:
    """The description as a header of plain lines."""
    versions = ", ".join(f"{name} {version or '-'}" for name, version in machine["versions"].items())
    hardware = f"{machine['cpu']}, {machine['cores']} cores, dlfp4 kernels: {machine['isa']}, {machine['system']}"
    return [f"{hardware}, load {machine['load']}, {machine['date']}", versions]


# ---- Results


def number(value: float | None, digits: int = 3) -> str:
    """A cell."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.{digits}g}"


@dataclass
class Table:
    """Rows of text in sections; a column whose title starts with ``<`` is aligned to the left."""

    columns: tuple[str, ...]
    sections: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)

    def print(self) -> None:
        """With rich on a terminal, where it is installed; else as plain columns."""
        rich = load("rich.table") if sys.stdout.isatty() else Missing("not a terminal")
        if isinstance(rich, Missing):
            self._print_plain()
        else:
            self._print_rich(rich)

    def _print_rich(self, rich: Any) -> None:
        table = rich.Table()
        for column in self.columns:
            table.add_column(column.lstrip("<"), justify="left" if column.startswith("<") else "right", no_wrap=True)
        for title, rows in self.sections.items():
            table.add_row(f"[bold]{title}[/bold]")
            for row in rows:
                table.add_row(*(cell.replace("[", r"\[") for cell in row))
            table.add_section()
        load("rich").print(table)

    def _print_plain(self) -> None:
        titles = tuple(column.lstrip("<") for column in self.columns)
        everything = [titles, *(row for rows in self.sections.values() for row in rows)]
        widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
        self._print_row(titles, widths)
        for title, rows in self.sections.items():
            print(f"\n{title}")
            for row in rows:
                self._print_row(row, widths)

    def _print_row(self, row: tuple[str, ...], widths: list[int]) -> None:
        cells = zip(row, widths, self.columns, strict=True)
        print("  ".join(f"{c:<{w}}" if title.startswith("<") else f"{c:>{w}}" for c, w, title in cells).rstrip())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that all benchmarks take."""
    parser.add_argument(
        "--rounds", type=int, default=301, help="interleaved repeats of every case (default: %(default)s)"
    )
    parser.add_argument(
        "--slice-ms", type=float, default=0.3, help="length of one repeat in milliseconds (default: %(default)s)"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only the groups whose title contains TEXT")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the machine and all figures to FILE")


def parse_size(text: str) -> int:
    """16, 4Ki, 64Mi."""
    digits = text.rstrip("KMi")
    try:
        return int(digits) * UNITS[text[len(digits) :]]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number with nothing, Ki or Mi after it") from None


def list_of(parse: Callable[[str], int]) -> Callable[[str], list[int]]:
    """A parser of numbers with commas between them."""
    return lambda text: [parse(part) for part in text.split(",")]


def write_json(path: Path, machine: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """All figures with the machine that they were measured on."""
    path.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
