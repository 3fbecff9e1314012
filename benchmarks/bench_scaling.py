"""What block scaling costs: GB/s on the float side, dlfp4 beside its peers and beside a plain copy.

    python benchmarks/bench_scaling.py [--only TEXT] [--sizes 4Ki,1Mi,64Mi] [--threads 1,0] [--crowded] [--json FILE]

A square matrix is quantized along its rows, its columns, or both at once, and dequantized. dlfp4 writes into memory
that it was given; the peers have no such argument. The limit is `np.copyto` of as many bytes in all as are read and
written; NVFP4 reads its input twice where the scale of the tensor is not given; with a scale a row it reads a row, then
finds it in a cache. "ours / best" is the fastest peer's
time over ours, "ours / limit" the copy's time over ours: more is better. "/ rows" is the time over that of rows.
"/ plain" is the speed beside that of the plain format, timed in the same rounds: fp8_row beside fp8_e4m3, mxfp8_32x32
beside mxfp8_e4m3, integers beside NVFP4, which has as many bits; four over six, a scale a row, a scale a matrix of a
stack of eight, scales as e8m0 and Hadamard beside the format without. DLFP4_ISA=avx2 shows another level.

Peers: torchao as it is; torchao through torch.compile, which has no float8_e8m0fnu here, so that MX takes the rule
rceil, and scales as bytes; NumPy with ml_dtypes; ggml in NumPy (its package gguf); fouroversix as its own reference in
PyTorch (without CUDA it installs by `SKIP_CUDA_BUILD=1 pip install --no-build-isolation fouroversix`). torchao's
columns are the rows of a transposed copy. From 16 Mi elements on only torchao is measured, and only along rows.

With --crowded one thread is timed by the processor's time, for machines on which others work.
"""

import argparse
import itertools
import time
from dataclasses import dataclass, replace
from typing import Any

import harness
import ml_dtypes
import numpy as np
from harness import LARGE, Case, list_of, number, parse_size
from scaling_peers import ELEMENTS, Torchao, four_over_six_case, ggml_case, numpy_case

import dlfp4

PEERS = ("numpy", "ml_dtypes", "torch", "torchao", "gguf", "fouroversix")
COLUMNS = ("torchao", "compiled", "NumPy", "ggml", "fouroversix")
FORMATS = (
    "nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "mxfp8_32x32", "fp8_e4m3", "fp8_row", "fp8_1x128", "fp8_128x128",
    "int4_g32", "uint4_g128",
)  # fmt: skip
ALONE = ("mxfp8_32x32", "int4_g32", "uint4_g128")  # which no peer here makes
AXES: dict[str, Any] = {"": -1, " columns": -2, " both": (-1, -2)}
# What quantize is told beside the format. The given scale is one for normal random numbers.
GIVEN, ROWS, HADAMARD, FOUR_OVER_SIX = ", scale given", ", a scale a row", ", Hadamard", ", four over six"
MATRICES, POWERS = ", a scale a matrix", ", e8m0 scales"
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    GIVEN: {"global_scale": 0.002},
    ROWS: {"recipe": dlfp4.Recipe(global_scale_per="row")},
    HADAMARD: {"hadamard": 1},
    FOUR_OVER_SIX: {"recipe": dlfp4.Recipe(four_over_six="mean_squared")},
    MATRICES: {"recipe": dlfp4.Recipe(global_scale_per="matrix")},
    POWERS: {"recipe": dlfp4.Recipe(scale_dtype="float8_e8m0fnu")},
}
STACK = 8  # matrices of MATRICES

PLAIN = {"fp8_row": "fp8_e4m3", "mxfp8_32x32": "mxfp8_e4m3", "int4_g32": "nvfp4", "uint4_g128": "nvfp4"}


@dataclass(frozen=True)
class Task:
    """A format, a type, which way, and a key of VARIANTS."""

    format: str
    dtype: str
    back: bool = False
    variant: str = ""

    @property
    def name(self) -> str:
        return self.format + self.variant

    @property
    def title(self) -> str:
        return f"{self.name} -> {self.dtype}" if self.back else f"{self.dtype} -> {self.name}"

    @property
    def plain(self) -> "Task | None":
        """What it is compared with, where it is more than a plain format."""
        format = PLAIN.get(self.format, self.format)
        variant = "" if self.variant != GIVEN else GIVEN
        other = replace(self, format=format, variant=variant)
        return None if other == self else other

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of quantize."""
        return VARIANTS[self.variant]

    @property
    def unit(self) -> float | None:
        """The scale of the tensor, where it is given."""
        return self.options.get("global_scale")

    @property
    def reads(self) -> int:
        """How often quantizing reads the whole tensor: twice where it has to find a scale of all of it."""
        return 2 if self.format in ("nvfp4", "fp8_e4m3") and self.variant not in (GIVEN, ROWS) else 1


@dataclass
class Group(harness.Comparison):
    """One task along some axis at one size on some threads: ours, the copy, and the peers by column."""

    task: Task
    along: str
    plain: Case | None

    @property
    def title(self) -> str:
        return self.task.title + self.along

    def speed(self, case: Case) -> float | None:
        """GB/s on the float side, which counts once."""
        return case.median and np.dtype(dtype_of(self.task.dtype)).itemsize * self.elements / case.median / 1e9

    def record(self, what: str) -> dict[str, Any]:
        """With the plain format's time over ours, where there is one."""
        return super().record(what) | {"ours_over_plain": self.plain and self.plain.ratio(self.ours)}


def dtype_of(name: str) -> np.dtype[Any]:
    """A float type of NumPy or ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name))


FLOATS = ("float32", "bfloat16")
BOTH_WAYS = (False, True)
SPECIAL = (
    ("nvfp4", ROWS), ("nvfp4", MATRICES), ("nvfp4", HADAMARD), ("mxfp8_e4m3", HADAMARD),
    ("fp8_1x128", POWERS), ("fp8_128x128", POWERS),
)  # fmt: skip
TASKS = [
    *(Task("nvfp4", dtype, variant=variant) for variant in (GIVEN, FOUR_OVER_SIX) for dtype in FLOATS),
    *(
        Task(name, dtype, back, variant)
        for name, variant in SPECIAL
        for back, dtype in itertools.product(BOTH_WAYS, FLOATS)
    ),
    *(Task(name, dtype, back) for back, name, dtype in itertools.product(BOTH_WAYS, FORMATS, FLOATS)),
]


# ---- The cases


def matrix(elements: int, dtype: str) -> Any:
    """Normal random numbers in a square, or twice as wide as high."""
    rows = 1 << (elements.bit_length() - 1) // 2
    block = np.random.default_rng(1).standard_normal(min(elements, 1 << 20)).astype(dtype_of(dtype))
    return np.resize(block, (rows, elements // rows))


def our_case(task: Task, x: Any, axis: Any) -> tuple[Case, int]:
    """The case, and how many bytes it reads and writes."""
    x = x.reshape(STACK, -1, x.shape[1]) if task.variant == MATRICES else x
    source = dlfp4.asarray(x)
    q = dlfp4.quantize(source, task.format, axis=axis, **task.options)
    parts = q if isinstance(q, tuple) else (q,)
    small = sum(part.nbytes for part in parts)
    if task.back:
        out = dlfp4.empty(x.shape, x.dtype)
        return Case("dlfp4", "f(q, t, out=o)", f=dlfp4.dequantize, q=q, t=x.dtype, o=out), x.nbytes + small
    names = {"f": dlfp4.quantize, "x": source, "n": task.format, "a": axis, "v": task.options, "o": q}
    return Case("dlfp4", "f(x, n, axis=a, out=o, **v)", **names), task.reads * x.nbytes + small


def peer_cases(torchao: Torchao, gguf: Any, task: Task, x: Any, along: str) -> dict[str, Case]:
    """All who can do it, by column."""
    if task.variant == FOUR_OVER_SIX and not along and x.size < LARGE:
        return {"fouroversix": four_over_six_case(torchao, x)}
    if task.format in ALONE or task.variant in (HADAMARD, FOUR_OVER_SIX, MATRICES, POWERS):
        return {}
    if task.variant == ROWS and (task.back or along):
        return {}
    if along:
        if task.back or x.size >= LARGE:
            return {}
        return {"torchao": torchao.columns_case(task.format, x, along == " both", task.unit)}
    name = task.format if task.variant == GIVEN else task.name
    cases: dict[str, Case | None] = {
        "torchao": torchao.case(name, x, task.back, task.unit, compiled=False),
        "compiled": torchao.case(name, x, task.back, task.unit, compiled=True),
    }
    if x.size < LARGE and name in ELEMENTS:
        cases["NumPy"] = numpy_case(task.format, x, task.back, task.unit)
        cases["ggml"] = ggml_case(gguf, task.format, x, task.back)
    return {name: case for name, case in cases.items() if case}


def measure(torchao: Torchao, gguf: Any, task: Task, elements: int, threads: int, options: Any) -> list[Group]:
    """One task along each axis, all libraries in turn."""
    dlfp4.set_num_threads(threads)
    torchao.set_threads(threads)
    x, groups = matrix(elements, task.dtype), []
    for along, axis in AXES.items():
        if (task.back and axis == (-1, -2)) or (along and task.variant == MATRICES):
            continue
        ours, moved = our_case(task, x, axis)
        octets = np.ones(moved // 2, np.uint8)
        limit = Case("copy", "f(o, x)", f=np.copyto, x=octets, o=octets.copy())
        peers = peer_cases(torchao, gguf, task, x, along)
        wanted = {name: case for name, case in peers.items() if name in options.peers}
        plain = our_case(task.plain, x, axis)[0] if task.plain else None
        groups.append(
            Group(task, along, plain, elements=elements, threads=threads, ours=ours, limit=limit, peers=wanted)
        )
    timed = [case for group in groups for case in (group.plain, group.ours, group.limit, *group.peers.values())]
    cases = [case for case in timed if case]
    rounds = harness.rounds_of(options, elements)
    harness.measure(cases, rounds, options.slice_ms)
    for case in cases:
        case.release()
    return groups


# ---- The results


def row_of(group: Group, rows: Group) -> tuple[str, ...]:
    """A group as a row of the table."""

    def cell(case: Case | None) -> str:
        if case and case.problem:
            return "no"
        return number(group.speed(case) if case else None)

    best = group.best
    return (
        f"  {group.title}",
        cell(group.ours),
        *(cell(group.peers.get(name)) for name in COLUMNS),
        number(best.ratio(group.ours) if best else None),
        cell(group.limit),
        number(group.limit.ratio(group.ours)),
        number(group.ours.ratio(rows.ours)) if group.along else "",
        number(group.plain.ratio(group.ours)) if group.plain else "",
    )


def section_of(group: Group) -> str:
    """The title of the section that it belongs to."""
    return f"{group.elements:,} elements, {harness.on_threads(group.threads)}, GB/s on the float side"


def square(text: str) -> int:
    """A size that every format's blocks divide."""
    elements = parse_size(text)
    if elements < 4096 or elements & (elements - 1):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a power of two from 4Ki on")
    return elements


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description="Speed of block scaling on the CPU.")
    harness.add_arguments(parser)
    parser.set_defaults(rounds=41, slice_ms=1.0)
    parser.add_argument("--sizes", type=list_of(square), default="4Ki,1Mi,64Mi", help="elements (default: %(default)s)")
    parser.add_argument("--threads", type=list_of(int), default="1", help="0 is all cores (default: %(default)s)")
    parser.add_argument(
        "--peers", type=lambda text: text.split(","), default=",".join(COLUMNS), help="columns (default: %(default)s)"
    )
    parser.add_argument("--crowded", action="store_true", help="time one thread by the processor's time")
    parser.add_argument("--list", action="store_true", help="print the tasks and stop")
    options = parser.parse_args()
    tasks = [task for task in TASKS if options.only in task.title]
    if not tasks:
        parser.error(f"no task has {options.only!r} in its title")
    if options.list:
        print("\n".join(task.title for task in tasks))
        return

    if options.crowded:
        if options.threads != [1]:
            parser.error("--crowded needs --threads 1: a thread's time says nothing of others'")
        Case.clock = staticmethod(time.thread_time)
    torchao, gguf = Torchao(), harness.load("gguf")
    machine = harness.describe_machine(PEERS)
    print("\n".join(harness.machine_lines(machine)))
    results: list[Group] = []
    table = harness.Table(("<", "dlfp4", *COLUMNS, "ours / best", "copy", "ours / limit", "/ rows", "/ plain"))
    for elements, threads, task in itertools.product(options.sizes, options.threads, tasks):
        groups = measure(torchao, gguf, task, elements, threads, options)
        for group in groups:
            table.sections.setdefault(section_of(group), []).append(row_of(group, groups[0]))
        results += groups
    table.print()
    harness.print_problems(results)
    if options.json:
        harness.write_json(options.json, machine, [group.record("task") for group in results])


if __name__ == "__main__":
    main()
