"""What an operation costs inside a compiler: microseconds a call, eager dlfp4 beside torch.ops.dlfp4, compiled code and
a custom_op.

    python benchmarks/bench_compiled.py [--device cuda]

The small product is nearly all price of the call; the large one shows what is left of it. "in a graph" is what each
further operation of a compiled graph costs: the time of a graph of nine of them less that of a graph of one, by eight.
PyTorch's own functions stand beside: its product of the decoded weight, memory for the result, and a sum into memory
that is given, which on a GPU is little but a launch.
"""

import argparse
import statistics
from typing import Any

import harness
import torch
from harness import Case

import dlfp4
import dlfp4.torch as dt
from dlfp4.operations import Encoding

PEERS = ("torch",)
SHAPES = {"small": (1, 64, 16), "large": (4, 1024, 1024)}  # M, K, N
CHAIN = 8


def parts_of(q: dlfp4.ScaledTensor) -> dt.Parts:
    """A ScaledTensor as the operand of an operation."""
    unit = None if q.global_scale is None else q.global_scale.to_torch()
    return dt.Parts(q.data.to_torch(), q.scales.to_torch(), unit, str(Encoding.of(q)))


@torch.library.custom_op("dlfp4_bench::product", mutates_args=())
def product(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    """The least that a custom_op costs: nothing is multiplied."""
    return x.new_empty(1)


@product.register_fake
def _(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    return x.new_empty(1)


def repeated(count: int) -> Any:
    """A compiled graph of several products, none of which can be left out."""

    def function(x: torch.Tensor, w: dt.Parts) -> list[torch.Tensor]:
        return [dt.matmul(x, w, alpha=1.0 + k) for k in range(count)]

    return torch.compile(function, fullgraph=True)


def cases(name: str, device: str) -> list[Case]:
    """The same product by each way."""
    rows, depth, columns = SHAPES[name]
    x = torch.randn(rows, depth, device=device).bfloat16()
    q = dlfp4.quantize(torch.randn(columns, depth, device=device), "nvfp4").prepare()
    w, b = parts_of(q.mT), q.mT
    decoded = torch.randn(columns, depth, device=device).bfloat16()
    y = torch.zeros(rows, columns, device=device).bfloat16()
    op = torch.ops.dlfp4.matmul
    one, several = repeated(1), repeated(1 + CHAIN)
    return [
        Case("dlfp4.matmul", "f(x, b)", f=dlfp4.matmul, x=x, b=b),
        Case("torch.ops.dlfp4.matmul", "f(x, *w)", f=op, x=x, w=w[:4]),
        Case("dlfp4.torch.matmul", "f(x, w)", f=dt.matmul, x=x, w=w),
        Case("a compiled graph of 1", "f(x, w)", f=one, x=x, w=w),
        Case(f"a compiled graph of {1 + CHAIN}", "f(x, w)", f=several, x=x, w=w),
        Case("a custom_op that multiplies nothing", "f(x, *w)", f=product, x=x, w=w[:3]),
        Case("torch.nn.functional.linear", "f(x, w)", f=torch.nn.functional.linear, x=x, w=decoded),
        Case("torch.empty_like of the result", "f(y)", f=torch.empty_like, y=y),
        Case("torch.add into memory that is given", "f(y, y, out=y)", f=torch.add, y=y),
    ]


def in_graph(one: Case, several: Case) -> float | None:
    """What each further operation of a compiled graph costs."""
    if not (one.seconds and several.seconds):
        return None
    return statistics.median((b - a) / CHAIN for a, b in zip(one.seconds, several.seconds, strict=True))


def rows_of(cases: list[Case]) -> list[tuple[str, ...]]:
    """Each case beside the eager call, and what an operation in a graph costs."""
    eager, _, _, one, several, *_ = cases
    rows = [
        (case.label, harness.number(micro(case.median)), harness.number(case.ratio(eager)), case.problem)
        for case in cases
    ]
    each = in_graph(one, several)
    ratio = each / eager.median if each is not None and eager.median else None
    return [*rows, ("each further operation in a graph", harness.number(micro(each)), harness.number(ratio), "")]


def micro(seconds: float | None) -> float | None:
    """Microseconds."""
    return None if seconds is None else seconds * 1e6


def main() -> None:
    """Time all, and print a table with a section for each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: then what the host does, not the device")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dlfp4.set_num_threads(1)
    table = harness.Table(("<call", "µs", "/ eager", "<"))
    jax_rows = harness.load("compiled_jax")
    theirs = {} if isinstance(jax_rows, harness.Missing) else {n: jax_rows.cases(n, arguments.device) for n in SHAPES}
    with torch.inference_mode():
        made = {name: cases(name, arguments.device) for name in SHAPES}
        everything = [case for each in (*made.values(), *theirs.values()) for case in each]
        harness.measure(everything, arguments.rounds, 5)
    for name, (rows, depth, columns) in SHAPES.items():
        what = f"{name}: {{}} {rows}x{depth} by NVFP4 {depth}x{columns}, {arguments.device}"
        table.sections[f"PyTorch, {what.format('bfloat16')}"] = rows_of(made[name])
        if name in theirs:
            table.sections[f"JAX, {what.format('float32')}"] = jax_rows.rows_of(theirs[name])
    print("\n".join(harness.machine_lines(harness.describe_machine((*PEERS, "jax")))))
    table.print()


if __name__ == "__main__":
    main()
