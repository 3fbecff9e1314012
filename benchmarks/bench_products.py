"""What dot products and matrix products cost on the CPU, dlfp4 beside PyTorch, NumKong and ggml.

    python benchmarks/bench_products.py [--only TEXT] [--sizes 256,4Ki,64Ki,1Mi] [--columns 1,8,64,512] [--threads 1]
        [--ggml FOLDER] [--scaling] [--json FILE]

Dots: nanoseconds a call, from Python, of two vectors in memory that a benchmark keeps in the caches where it fits; a
peer's row is its own product of the same type, or where it has none (FP4, scales) the nearest one, which is named.
Products: GFLOP/s of a [N, K] weight, 4096 x 4096, by so many columns (rows of the activations), into memory that dlfp4
was given. Every product stands beside PyTorch's of bfloat16, which is not quantized; FP8 beside PyTorch's and NumKong's
of e4m3 by e4m3; int8 activations, and FP4 by FP4, beside PyTorch's plain int8, NumKong's plain int4 and ggml's of the
same weight, whose activations it rounds to int8 (q8_0). The limit is `np.copyto` of as many bytes in all as the weight
and the activations have. "ours / best" is the fastest peer's time over ours, "ours / limit" the copy's: more is better.

With --scaling, in place of all that, products on one thread and on each other number of --threads, in the same rounds:
"a core" is the time on one thread over that on n, over n, so that 1 is perfect. "copy" says the same of a copy by
dlfp4 of as many bytes, which shows what memory gives.

ggml is called through the shared libraries of the package llama-cpp-python, which pip compiles for this processor, of
libggml-python, whose wheels are for AVX2, or of the folder that --ggml names.
"""

import argparse
import functools
import itertools
from dataclasses import dataclass, field
from typing import Any

import harness
import ml_dtypes
import numpy as np
from harness import Case, list_of, number, parse_size
from product_peers import (
    Ggml,
    numkong_case,
    set_threads,
    torch_case,
    torch_float8_case,
    torch_int8_case,
)

import dlfp4

PEERS = ("torch", "numkong", "llama-cpp-python", "libggml-python")
COLUMNS = ("torch bf16", "torch e4m3", "torch int8", "NumKong", "ggml")
WEIGHT = 4096  # rows and columns of the weight
PRODUCT = "f(a, w, out=o, activation=t)"

# Type or format, and what NumKong multiplies instead or as well.
DOTS = {
    "float4_e2m1fn": "int4",
    "nvfp4": "int4",
    "mxfp4": "int4",
    "float6_e2m3fn": "e2m3",
    "float6_e3m2fn": "e3m2",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "mxfp8_e4m3": "e4m3",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "int8": "int8",
    "int4": "int4",
}


@dataclass(frozen=True)
class Task:
    """A weight's format, the activation, and the option that goes with it."""

    weight: str
    activation: str
    option: str | None = None

    @property
    def title(self) -> str:
        return f"{self.weight} x {self.activation}" + (f", activation={self.option}" if self.option else "")

    @property
    def is_integer(self) -> bool:
        """Multiplied as integers by us, and so beside the integers of others."""
        return self.option == "int8" or self.activation in ("nvfp4", "mxfp4")


MATMULS = (
    Task("nvfp4", "bfloat16"),
    Task("mxfp4", "bfloat16"),
    Task("nvfp4", "float32"),
    Task("nvfp4", "nvfp4"),
    Task("mxfp4", "mxfp4"),
    Task("nvfp4", "bfloat16", "int8"),
    Task("mxfp4", "bfloat16", "int8"),
    Task("fp8_e4m3", "bfloat16"),
    Task("fp8_1x128", "bfloat16"),
    Task("fp8_128x128", "fp8_1x128"),
    Task("mxfp8_e4m3", "bfloat16"),
    Task("mxfp6_e2m3", "bfloat16"),
)


# ---- Dots


@dataclass(kw_only=True)
class Dot(harness.Comparison):
    """The product of two vectors: ours, the copy of one, and NumKong's."""

    name: str

    @property
    def title(self) -> str:
        return f"{self.name}, NumKong {DOTS[self.name]}"

    @property
    def section(self) -> str:
        return f"dot of {self.elements:,}, ns"

    def speed(self, case: Case) -> float | None:
        """Elements a nanosecond."""
        return case.median and self.elements / case.median / 1e9

    def row(self) -> tuple[str, ...]:
        """A row of the table."""
        peer = self.peers["NumKong"]
        times = (number(case.median and case.median * 1e9) for case in (self.ours, peer))
        ratios = (number(case.ratio(self.ours)) for case in (peer, self.limit))
        return (f"  {self.title}", *times, number(self.speed(self.ours)), *ratios)


def vector(name: str, elements: int) -> Any:
    """Random elements of a type or a format."""
    rng = np.random.default_rng(1)
    if name.startswith("int"):
        x = rng.integers(-8, 8, elements).astype(getattr(ml_dtypes, name, name))
        return dlfp4.pack(x) if name == "int4" else x
    x = rng.standard_normal(elements).astype(np.float32)
    return dlfp4.quantize(x, name) if name in dlfp4.formats() else dlfp4.cast(x, name)


def numkong_dot(numkong: Any, name: str, elements: int) -> Case:
    """The same type's dot there."""
    if isinstance(numkong, harness.Missing):
        return Case("NumKong", "f()", f=numkong)
    values = np.random.default_rng(1).uniform(-4, 4, elements).astype(np.float32)
    x, y = numkong.astype(values, name), numkong.astype(values, name)
    return Case("NumKong", "f(x, y)", f=numkong.dot, x=x, y=y)


def make_dot(numkong: Any, name: str, elements: int) -> Dot:
    """One type or format."""
    x, y = vector(name, elements), vector(name, elements)
    ours = Case("dlfp4", "f(x, y)", f=dlfp4.dot, x=x, y=y)
    peers = {"NumKong": numkong_dot(numkong, DOTS[name], elements)}
    limit = copy_case(2 * x.nbytes)
    return Dot(name=name, elements=elements, threads=1, ours=ours, limit=limit, peers=peers)


# ---- Matrix products


@dataclass(kw_only=True)
class Product(harness.Comparison):
    """One weight by activations of so many columns."""

    task: Task
    columns: int
    others: tuple[str, ...] = field(default=COLUMNS)

    @property
    def title(self) -> str:
        return self.task.title

    @property
    def section(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads or 'all'} threads"
        return f"weight [{WEIGHT}, {WEIGHT}] by {self.columns} columns, {threads}, GFLOP/s"

    def speed(self, case: Case) -> float | None:
        """Floating-point operations a nanosecond, two for a product and its sum."""
        return case.median and 2.0 * WEIGHT * WEIGHT * self.columns / case.median / 1e9

    def row(self) -> tuple[str, ...]:
        """A row of the table."""
        peers = (number(self.speed(self.peers[name])) if name in self.peers else "-" for name in self.others)
        best, torch = self.best, self.peers["torch bf16"]
        ratios = (best.ratio(self.ours) if best else None, torch.ratio(self.ours), self.limit.ratio(self.ours))
        return (f"  {self.title}", number(self.speed(self.ours)), *peers, *map(number, ratios))


def copy_case(octets: int) -> Case:
    """A plain copy that reads and writes so many bytes in all."""
    source = np.ones(max(1, octets // 2), np.uint8)
    return Case("copy", "f(o, x)", f=np.copyto, x=source, o=source.copy())


@functools.cache
def weight_of(name: str) -> dlfp4.ScaledTensor:
    """Normal random numbers in a format."""
    return dlfp4.quantize(np.random.default_rng(1).standard_normal((WEIGHT, WEIGHT)).astype(np.float32), name)


def peers_of(libs: dict[str, Any], task: Task, x: Any) -> dict[str, Case]:
    """Who has a product near to ours, by column."""
    rows, torch = len(x), libs["torch"]
    peers = {"torch bf16": torch_case(torch, rows, WEIGHT)}
    if task.is_integer:
        peers["torch int8"] = torch_int8_case(torch, rows, WEIGHT)
        peers["NumKong"] = numkong_case(libs["numkong"], "int4", rows, WEIGHT)
        peers["ggml"] = libs["ggml"].case(task.weight, x, weight_of(task.weight))
    if task.weight in ("fp8_e4m3", "mxfp8_e4m3"):
        peers["torch e4m3"] = torch_float8_case(torch, rows, WEIGHT)
        peers["NumKong"] = numkong_case(libs["numkong"], "e4m3", rows, WEIGHT)
    if task.weight == "mxfp6_e2m3":
        peers["NumKong"] = numkong_case(libs["numkong"], "e2m3", rows, WEIGHT)
    return peers


def activations(columns: int) -> Any:
    """Normal random numbers."""
    return np.random.default_rng(2).standard_normal((columns, WEIGHT)).astype(np.float32)


def our_call(task: Task, x: Any) -> tuple[dict[str, Any], int]:
    """What PRODUCT names, and the bytes of both operands."""
    w = weight_of(task.weight)
    scaled = task.activation in dlfp4.formats()
    a = dlfp4.quantize(x, task.activation) if scaled else dlfp4.cast(x, task.activation)
    out = dlfp4.empty((len(x), WEIGHT), "float32")
    return {"f": dlfp4.matmul, "a": a, "w": w.mT, "o": out, "t": task.option}, w.nbytes + a.nbytes


def make_product(libs: dict[str, Any], task: Task, columns: int, threads: int) -> Product:
    """One weight by activations of so many columns."""
    x = activations(columns)
    call, octets = our_call(task, x)
    return Product(
        task=task,
        columns=columns,
        elements=WEIGHT * WEIGHT,
        threads=threads,
        ours=Case("dlfp4", PRODUCT, **call),
        limit=copy_case(octets),
        peers=peers_of(libs, task, x),
    )


# ---- Threads


class OnThreads(Case):
    """A call of dlfp4's on so many threads, whatever other cases of the round have."""

    def __init__(self, threads: int, statement: str, **names: Any) -> None:
        super().__init__(f"{threads} thread{'s' * (threads > 1)}", statement, **names)
        self.threads = threads

    def prepare(self, slice_seconds: float) -> None:
        """As any case."""
        dlfp4.set_num_threads(self.threads)
        super().prepare(slice_seconds)

    def run(self) -> None:
        """As any case."""
        dlfp4.set_num_threads(self.threads)
        super().run()


@dataclass(kw_only=True)
class Scaling(Product):
    """The same product, and a copy, on one thread (`ours`, `limit`) and on others, by number."""

    products: dict[int, OnThreads]
    copies: dict[int, OnThreads]

    @property
    def section(self) -> str:
        return f"weight [{WEIGHT}, {WEIGHT}] by {self.columns} columns, GFLOP/s"

    def row(self) -> tuple[str, ...]:
        """A row of the table."""
        cells = [f"  {self.title}", number(self.speed(self.ours))]
        for threads, case in self.products.items():
            ratios = self.ours.ratio(case), self.limit.ratio(self.copies[threads])
            cells += [number(self.speed(case)), *(number(ratio and ratio / threads) for ratio in ratios)]
        return tuple(cells)


def scaling_columns(threads: list[int]) -> tuple[str, ...]:
    """The titles of its table."""
    of_each = ((f"{count} threads", "a core", "copy") for count in threads)
    return ("<", "1 thread", *(title for titles in of_each for title in titles))


def make_scaling(task: Task, columns: int, threads: list[int]) -> Scaling:
    """One weight by activations of so many columns, on each number of threads."""
    call, octets = our_call(task, activations(columns))
    source = np.ones(octets // 2, np.uint8)
    copy = {"f": dlfp4.cast, "x": source, "t": "uint8", "o": source.copy()}
    products = {count: OnThreads(count, PRODUCT, **call) for count in (1, *threads)}
    copies = {count: OnThreads(count, "f(x, t, out=o)", **copy) for count in (1, *threads)}
    return Scaling(
        task=task,
        columns=columns,
        elements=WEIGHT * WEIGHT,
        threads=1,
        ours=products.pop(1),
        limit=copies.pop(1),
        products=products,
        copies=copies,
        peers={case.label: case for case in products.values()},
    )


# ---- The run


def measure(group: Dot | Product, options: Any) -> Dot | Product:
    """Ours, the copy and the peers in turn."""
    rounds = max(5, options.rounds // 4) if isinstance(group, Product) else options.rounds
    cases = [group.ours, group.limit, *group.peers.values()]
    if isinstance(group, Scaling):
        cases += group.copies.values()
    harness.measure(cases, rounds, options.slice_ms)
    for case in cases:
        case.release()
    return group


def make_groups(options: Any, libs: dict[str, Any]) -> Any:
    """All that is asked for, one at a time."""
    dlfp4.set_num_threads(1)
    for elements in options.sizes:
        for name in DOTS:
            if options.only in f"dot {name}":
                yield make_dot(libs["numkong"], name, elements)
    for threads in options.threads:
        dlfp4.set_num_threads(threads)
        set_threads(libs["torch"], libs["ggml"], threads)
        for columns in options.columns:
            for task in MATMULS:
                if options.only in f"matmul {task.title}":
                    yield make_product(libs, task, columns, threads)


def make_scaling_groups(options: Any) -> Any:
    """The same with --scaling."""
    for columns, task in itertools.product(options.columns, MATMULS):
        if options.only in f"matmul {task.title}":
            yield make_scaling(task, columns, options.threads)


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description="Speed of dot products and matrix products on the CPU.")
    harness.add_arguments(parser)
    parser.set_defaults(rounds=41, slice_ms=1.0)
    parser.add_argument("--sizes", type=list_of(parse_size), default="256,4Ki,64Ki,1Mi", help="of dots: %(default)s")
    parser.add_argument("--columns", type=list_of(int), default="1,8,64,512", help="of matmuls: %(default)s")
    parser.add_argument("--threads", type=list_of(int), default="1", help="of matmuls, 0 is all cores: %(default)s")
    parser.add_argument("--ggml", metavar="FOLDER", default="", help="of ggml's shared libraries")
    parser.add_argument("--scaling", action="store_true", help="matmuls on one thread and on others in the same rounds")
    options = parser.parse_args()
    if options.scaling:
        counts = {threads or harness.usable_cores() for threads in options.threads} - {1}
        options.threads = sorted(counts) or parser.error("--scaling needs --threads with other numbers than 1")
    machine = harness.describe_machine(PEERS)
    print("\n".join(harness.machine_lines(machine)))
    libs = {"torch": harness.load("torch"), "numkong": harness.load("numkong"), "ggml": Ggml(options.ggml)}
    tables = {
        Dot: harness.Table(("<", "dlfp4", "NumKong", "Gelem/s", "ours / peer", "ours / limit")),
        Product: harness.Table(("<", "dlfp4", *COLUMNS, "ours / best", "ours / bf16", "ours / limit")),
        Scaling: harness.Table(scaling_columns(options.threads)),
    }
    groups: list[Dot | Product] = []
    for group in make_scaling_groups(options) if options.scaling else make_groups(options, libs):
        groups.append(measure(group, options))
        tables[type(group)].sections.setdefault(group.section, []).append(group.row())
    for table in tables.values():
        if table.sections:
            table.print()
    if not groups:
        parser.error(f"no group has {options.only!r} in its title")
    harness.print_problems(groups)
    if options.json:
        harness.write_json(options.json, machine, [group.record("product") for group in groups])


if __name__ == "__main__":
    main()
