"""What dot products and matrix products cost on the CPU, dlfp4 beside NumKong and PyTorch.

    python benchmarks/bench_products.py [--only TEXT] [--sizes 256,4Ki,64Ki,1Mi] [--columns 1,8,64,512] [--threads 1]
        [--json FILE]

Dots: nanoseconds a call, from Python, of two vectors in memory that a benchmark keeps in the caches where it fits; a
peer's row is its own product of the same type, or where it has none (FP4, scales) the nearest one, which is named.
Products: GFLOP/s of a [N, K] weight, 4096 x 4096, by so many columns (rows of the activations). The reference is
PyTorch's bfloat16 product. "ours / peer" is the peer's time over ours: more is better.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import harness
import ml_dtypes
import numpy as np
from harness import Case, list_of, number, parse_size

import dlfp4

PEERS = ("torch", "numkong")
WEIGHT = 4096  # rows and columns of the weight

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

# Weight, activation, and the option that goes with it.
MATMULS = [
    ("nvfp4", "bfloat16", None),
    ("mxfp4", "bfloat16", None),
    ("nvfp4", "nvfp4", None),
    ("mxfp4", "mxfp4", None),
    ("nvfp4", "bfloat16", "int8"),
    ("mxfp4", "bfloat16", "int8"),
    ("mxfp8_e4m3", "bfloat16", None),
    ("fp8_e4m3", "bfloat16", None),
    ("nvfp4", "float32", None),
]


@dataclass
class Group:
    """One product at one size: ours, the peer, and what the peer multiplies."""

    title: str
    section: str
    operations: float  # of a call: products, or floating-point operations
    ours: Case
    peer: Case
    peer_name: str

    def speed(self, case: Case) -> float | None:
        """Operations a nanosecond."""
        return case.median and self.operations / case.median / 1e9


def vector(name: str, elements: int) -> Any:
    """Random elements of a type or a format."""
    rng = np.random.default_rng(1)
    if name.startswith("int"):
        x = rng.integers(-8, 8, elements).astype(getattr(ml_dtypes, name, name))
        return dlfp4.pack(x) if name == "int4" else x
    x = rng.standard_normal(elements).astype(np.float32)
    return dlfp4.quantize(x, name) if name in dlfp4.formats() else dlfp4.cast(x, name)


def numkong_case(libs: Any, name: str, elements: int) -> Case:
    """The same type's dot there."""
    if isinstance(libs, harness.Missing):
        return Case(name, "f()", f=libs)
    x = np.random.default_rng(1).uniform(-4, 4, elements).astype(np.float32)
    return Case(name, "f(x, x)", f=libs.dot, x=libs.astype(x, name))


def dot_group(numkong: Any, name: str, elements: int) -> Group:
    """One type or format."""
    x, y = vector(name, elements), vector(name, elements)
    ours = Case("dlfp4", "f(x, y)", f=dlfp4.dot, x=x, y=y)
    peer = numkong_case(numkong, DOTS[name], elements)
    return Group(name, f"dot of {elements:,}, ns", elements, ours, peer, f"NumKong {DOTS[name]}")


def matmul_group(torch: Any, task: tuple[str, str, str | None], columns: int, threads: int) -> Group:
    """One weight by activations of so many columns."""
    name, activation, option = task
    rng = np.random.default_rng(1)
    w = dlfp4.quantize(rng.standard_normal((WEIGHT, WEIGHT)).astype(np.float32), name)
    x = rng.standard_normal((columns, WEIGHT)).astype(np.float32)
    a = dlfp4.quantize(x, activation) if activation in dlfp4.formats() else dlfp4.cast(x, activation)
    out = dlfp4.empty((columns, WEIGHT), "float32")
    ours = Case("dlfp4", "f(a, w, out=o, activation=t)", f=dlfp4.matmul, a=a, w=w.mT, o=out, t=option)
    if isinstance(torch, harness.Missing):
        peer = Case("torch", "f()", f=torch)
    else:
        weight, rows = (torch.randn(n, WEIGHT).to(torch.bfloat16) for n in (WEIGHT, columns))
        peer = Case("torch", "f(x, w)", f=torch.matmul, x=rows, w=weight.T)
    title = f"{name} x {activation}" + (f", activation={option}" if option else "")
    section = f"weight [{WEIGHT}, {WEIGHT}] by {columns} columns, {threads or 'all'} threads, GFLOP/s"
    return Group(title, section, 2.0 * WEIGHT * WEIGHT * columns, ours, peer, "PyTorch bfloat16")


def row_of(group: Group) -> tuple[str, ...]:
    """A product as a row of the table."""
    dots = group.section.startswith("dot")

    def cell(case: Case) -> str:
        return number(case.median and case.median * 1e9 if dots else group.speed(case))

    rate = number(group.speed(group.ours)) if dots else "-"
    ratio = number(group.peer.ratio(group.ours))
    return (f"  {group.title}", cell(group.ours), rate, cell(group.peer), ratio, group.peer_name)


def record_of(group: Group) -> dict[str, Any]:
    """A product as a row of the JSON file."""
    return {
        "product": group.title,
        "section": group.section,
        "seconds": {"dlfp4": group.ours.median, group.peer_name: group.peer.median},
        "middle_half": {"dlfp4": group.ours.spread, group.peer_name: group.peer.spread},
        "giga_operations_per_second": group.speed(group.ours),
        "problems": {case.label: case.problem for case in (group.ours, group.peer) if case.problem},
        "ours_over_peer": group.peer.ratio(group.ours),
    }


def measure(group: Group, options: Any) -> Group:
    """Ours and the peer in turn."""
    slow = group.operations > 1e8
    harness.measure([group.ours, group.peer], max(3, options.rounds // 8) if slow else options.rounds, options.slice_ms)
    for case in (group.ours, group.peer):
        case.release()
    return group


def make_groups(options: Any) -> Any:
    """All that is asked for, one at a time."""
    numkong, torch = harness.load("numkong"), harness.load("torch")
    dlfp4.set_num_threads(1)
    for elements in options.sizes:
        for name in DOTS:
            if options.only in f"dot {name}":
                yield dot_group(numkong, name, elements)
    for threads in options.threads:
        dlfp4.set_num_threads(threads)
        torch.set_num_threads(threads or harness.usable_cores())
        for columns in options.columns:
            for task in MATMULS:
                if options.only in f"matmul {task[0]} x {task[1]}":
                    yield matmul_group(torch, task, columns, threads)


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description="Speed of dot products and matrix products on the CPU.")
    harness.add_arguments(parser)
    parser.set_defaults(rounds=41, slice_ms=1.0)
    parser.add_argument("--sizes", type=list_of(parse_size), default="256,4Ki,64Ki,1Mi", help="of dots: %(default)s")
    parser.add_argument("--columns", type=list_of(int), default="1,8,64,512", help="of matmuls: %(default)s")
    parser.add_argument("--threads", type=list_of(int), default="1", help="of matmuls, 0 is all cores: %(default)s")
    options = parser.parse_args()
    machine = harness.describe_machine(PEERS)
    print("\n".join(harness.machine_lines(machine)))
    table = harness.Table(("<", "dlfp4", "Gelem/s", "peer", "ours / peer", "<the peer"))
    groups = []
    for group in make_groups(options):
        groups.append(measure(group, options))
        table.sections.setdefault(group.section, []).append(row_of(group))
    table.print()
    if options.json:
        harness.write_json(options.json, machine, [record_of(group) for group in groups])


if __name__ == "__main__":
    main()
