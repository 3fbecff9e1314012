"""What activations times quantized weights cost on a GPU: microseconds, dlfp4 beside its peers.

    python benchmarks/bench_matmul_gpu.py [--shapes 4096x4096,...] [--m 1,16,...] [--formats nvfp4,...] [--json FILE]

Weights are (N, K) and cold: each case walks over copies of its weight that exceed the caches, in a CUDA graph whose
replays are timed by events, case after case, round after round; a figure is the median. Activations are bfloat16 (M, K)
and stay where they are, results are bfloat16. Weights are prepared before; what the FP8 peers do to activations is not
counted either.

The floor is the longer of two times: that in which the memory delivers weights, scales, activations and results
(--bandwidth), and that of the operations at the rate of the tensor cores for bfloat16 (--rate). Both are an H200's
unless given.

A product of many rows runs at the limit of the device's power, and at the clock which the cases before it have left: in
turns, a case that needs less power gives clock to those that need more. From --alone-from rows on, a second table shows
each case by itself, replayed for --seconds without a pause, at the clock that its own power allows: what a program sees
that does its work one way.

"x quantized" is dlfp4 with activations in the format of the weight. Peers: cuBLAS (torch.mm of bfloat16 weights),
PyTorch's FP8 product with one scale a tensor and with one a row, and Humming (humming-kernels), which multiplies
bfloat16 by the same weights. "decode" is dlfp4's backend "torch": weights decoded at each call, then cuBLAS.
"""

import argparse
import copy
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import Call, GraphCase, Table, list_of, number

import dlfp4
from dlfp4.engines import cuda
from dlfp4.engines.problem import Problem

PACKAGES = ("torch", "humming-kernels")
SHAPES = "4096x4096,14336x4096,4096x14336,8192x8192"
ROWS = "1,8,16,32,64,128,256,1024,2048,4096"
COLD_BYTES = 300e6
PEERS = ("x quantized", "cuBLAS", "fp8 tensor", "fp8 rows", "Humming", "decode")
ALONE = ("x quantized", "cuBLAS", "Humming")
# Of Humming's layers, which take the same parts as checkpoints have.
HUMMING = {
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "nvfp4"},
    "mxfp4": {"quant_method": "mxfp4"},
    "mxfp8_e4m3": {"quant_method": "modelopt", "quant_algo": "mxfp8"},
    "fp8_e4m3": {"quant_method": "fp8"},
}


def warmed(calls: Sequence[Call]) -> Sequence[Call]:
    """The calls, each on another copy of a weight, of which one was made: what it needs is loaded."""
    calls[0]()
    return calls


@dataclass
class Weights:
    """One weight in every form that the cases multiply, in as many copies as are cold."""

    torch: Any
    format: str
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        plain = self.torch.randn(self.shape, device="cuda", dtype=self.torch.bfloat16)
        quantized = dlfp4.quantize(plain, self.format)
        self.nbytes = quantized.nbytes
        self.quantized = [quantized, *self.copies(quantized, self.nbytes)]
        self.prepared = [each.prepare() for each in self.quantized]
        self.bfloat16 = [plain, *self.copies(plain, 2 * plain.numel())]
        fp8 = plain.to(self.torch.float8_e4m3fn)
        self.fp8 = [fp8, *self.copies(fp8, fp8.numel())]
        self.layers: list[Any] = []

    def copies(self, x: Any, nbytes: int) -> list[Any]:
        """All but the first."""
        return [copy.deepcopy(x) for _ in range(math.ceil(COLD_BYTES / nbytes))]

    def humming(self) -> list[Any]:
        """Layers, made when they are first asked for."""
        if not self.layers:
            layer = make_layer(self.torch, self.quantized[0], self.format)
            self.layers = [layer, *self.copies(layer, self.nbytes)]
        return self.layers


def make_layer(torch: Any, w: Any, name: str) -> Any:
    """A Humming layer over the parts of a weight."""
    from humming.layer import HummingLayer

    n, k = w.shape
    layer = HummingLayer(shape_n=n, shape_k=k, weight_config=dict(HUMMING[name]), torch_dtype=torch.bfloat16).cuda()
    parts = w.to_torch()
    tensors = {"weight": parts.data, "weight_scale": parts.scales}
    if w.data.dtype.name == "float4_e2m1fn":
        tensors["weight"] = w.data.view("uint8").to_torch()
    if name.startswith("mx"):
        tensors["weight_scale"] = w.scales.view("uint8").to_torch()
    if parts.scales.ndim == 0:
        tensors["weight_scale"] = parts.scales.reshape(1)
    if parts.global_scale is not None:
        tensors["weight_scale_2"] = parts.global_scale.reshape(1)
    layer.load_from_tensors(tensors)
    layer.transform()
    return layer


@dataclass
class Group:
    """One M: ours by each tactic and as `auto` chooses, and the peers by column."""

    rows: int
    auto: GraphCase
    tactics: dict[str, GraphCase]
    peers: dict[str, GraphCase]
    floor: float

    @property
    def cases(self) -> list[GraphCase]:
        return [self.auto, *self.tactics.values(), *self.peers.values()]

    @property
    def best(self) -> tuple[str, float | None]:
        """The fastest tactic and its time."""
        timed = {name: case.median for name, case in self.tactics.items() if case.median is not None}
        name = min(timed, key=lambda each: timed[each] or 0.0, default="-")
        return name, timed.get(name)


def make_group(torch: Any, weights: Weights, rows: int, options: argparse.Namespace) -> Group:
    n, k = weights.shape
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
    x8, one = x.to(torch.float8_e4m3fn), torch.ones((), device="cuda")
    ones = torch.ones(rows, 1, device="cuda"), torch.ones(1, n, device="cuda")
    here = torch.cuda.current_stream
    quantized = dlfp4.quantize(x, weights.format)

    def by(backend: str, ws: Sequence[Any], a: Any = x) -> list[Call]:
        return [lambda w=w: dlfp4.matmul(a, w.mT, out=out, backend=backend, stream=here()) for w in ws]

    def by_tactic(tactic: str) -> list[Call]:
        a, y = dlfp4.asarray(x), dlfp4.asarray(out)
        problems = [Problem(a, w.mT, np.dtype("bfloat16"), stream=here()) for w in weights.prepared]
        return [lambda p=p: cuda.run(p, tactic, y) for p in problems]

    def by_fp8(*scales: Any) -> list[Call]:
        return [lambda w=w: torch._scaled_mm(x8, w.t(), *scales, out_dtype=torch.bfloat16) for w in weights.fp8]

    def by_humming() -> list[Call]:
        return [lambda layer=layer: layer(x, outputs=out) for layer in weights.humming()]

    def by_cublas() -> list[Call]:
        return [lambda w=w: torch.mm(x, w.t(), out=out) for w in weights.bfloat16]

    def cold(label: str, make: Callable[[], Sequence[Call]]) -> GraphCase:
        return GraphCase(label, lambda: warmed(make()))

    problem = Problem(dlfp4.asarray(x), weights.prepared[0].mT, np.dtype("bfloat16"))
    names = cuda.tactics(problem) if weights.prepared[0].scale_layout == "prepared" else ()
    makers: dict[str, Callable[[], Sequence[Call]]] = {
        "x quantized": lambda: by("auto", weights.prepared, quantized),
        "cuBLAS": by_cublas,
        "fp8 tensor": lambda: by_fp8(one, one),
        "fp8 rows": lambda: by_fp8(*ones),
        "Humming": by_humming,
        "decode": lambda: by("torch", weights.quantized),
    }
    moved = weights.nbytes + 2 * rows * (n + k)
    return Group(
        rows,
        cold("auto", lambda: by("auto", weights.prepared)),
        {name: cold(name, lambda name=name: by_tactic(name)) for name in names},
        {name: cold(name, make) for name, make in makers.items()},
        max(moved / options.bandwidth / 1e3, 2 * rows * n * k / options.rate / 1e6),
    )


def measure(torch: Any, group: Group, rounds: int) -> None:
    """Time all cases in turn, but for tactics that the first round shows to be more than twice as slow as the best.

    Each round has another order: a case that follows a busy one finds the device at a lower clock.
    """
    for case in group.cases:
        case.capture(torch)
        case.replay(torch)  # which loads the graph
        case.microseconds.clear()
        case.replay(torch)
    best = group.best[1]
    for case in group.tactics.values():
        if best is not None and (case.median or 0.0) > 2 * best:
            case.graph = None
    order = random.Random(0)
    for _ in range(rounds - 1):
        for case in order.sample(group.cases, len(group.cases)):
            case.replay(torch)


def measure_alone(torch: Any, group: Group, seconds: float) -> None:
    """One case after the other, with time to cool, so that all begin alike."""
    for case in (group.auto, *(group.peers[name] for name in ALONE)):
        time.sleep(seconds / 2)
        case.replay_alone(torch, seconds)


def fill_alone(table: Table, title: str, group: Group) -> None:
    auto, cublas = group.auto.alone, group.peers["cuBLAS"].alone
    table.sections.setdefault(title, []).append((
        str(group.rows), number(auto), *(number(group.peers[name].alone) for name in ALONE),
        number(auto and cublas and cublas / auto),
    ))  # fmt: skip


def fill_table(table: Table, title: str, group: Group) -> None:
    auto, (name, best), cublas = group.auto.median, group.best, group.peers["cuBLAS"].median
    table.sections.setdefault(title, []).append((
        str(group.rows), number(auto), number(best), name,
        *(number(group.peers[peer].median) for peer in PEERS), number(group.floor),
        number(auto and cublas and cublas / auto), number(auto and auto / group.floor),
    ))  # fmt: skip


def record(name: str, shape: tuple[int, int], group: Group) -> dict[str, Any]:
    """A row of the JSON file."""
    return {
        "format": name,
        "n": shape[0],
        "k": shape[1],
        "m": group.rows,
        "floor": group.floor,
        "microseconds": {case.label: case.median for case in group.cases},
        "rounds": {case.label: case.microseconds for case in group.cases},
        "alone": {case.label: case.alone for case in group.cases if case.alone is not None},
        "problems": {case.label: case.problem for case in group.cases if case.problem},
    }


def parse_shapes(text: str) -> list[tuple[int, int]]:
    """4096x14336: N and K."""
    try:
        return [(int(n), int(k)) for n, k in (shape.split("x") for shape in text.split(","))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NxK, such as 4096x14336") from None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=parse_shapes, default=SHAPES, help="NxK, with commas (default: %(default)s)")
    parser.add_argument("--m", type=list_of(int), default=ROWS, help="rows of activations (default: %(default)s)")
    parser.add_argument("--formats", default="nvfp4,mxfp4", help=f"of {', '.join(HUMMING)} (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="interleaved repeats (default: %(default)s)")
    parser.add_argument("--alone-from", type=int, default=1024, help="rows of the second table (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each of its cases (default: %(default)s)")
    parser.add_argument("--bandwidth", type=float, default=4695.0, help="GB/s read (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=900.0, help="TFLOP/s of bfloat16 (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    options = parser.parse_args()
    options.formats = options.formats.split(",")
    unknown = set(options.formats) - set(HUMMING)
    if unknown:
        parser.error(f"--formats: {', '.join(sorted(unknown))} is none of {', '.join(HUMMING)}")
    if isinstance(harness.load("torch"), harness.Missing) or not dlfp4.cuda_available():
        parser.error("needs PyTorch and a CUDA device")
    return options


def main() -> None:
    options = parse_arguments()
    torch = harness.load("torch")
    machine = harness.describe_machine(PACKAGES)
    print(torch.cuda.get_device_name(), f"CUDA {torch.version.cuda},", *harness.machine_lines(machine), sep="\n")
    table = Table(("M", "dlfp4", "best tactic", "<its name", *PEERS, "floor", "cuBLAS / dlfp4", "dlfp4 / floor"))
    alone = Table(("M", "dlfp4", *ALONE, "cuBLAS / dlfp4"))
    results, problems = [], {}
    for name in options.formats:
        for shape in options.shapes:
            weights = Weights(torch, name, shape)
            for rows in options.m:
                group = make_group(torch, weights, rows, options)
                title = f"{name} {shape[0]} x {shape[1]}, microseconds"
                measure(torch, group, options.rounds)
                fill_table(table, title, group)
                if rows >= options.alone_from:
                    measure_alone(torch, group, options.seconds)
                    fill_alone(alone, f"{title}, each alone", group)
                results.append(record(name, shape, group))
                problems |= {case.label: case.problem for case in group.cases if case.problem}
            del weights, group
            torch.cuda.empty_cache()
    table.print()
    if alone.sections:
        alone.print()
    for label, problem in problems.items():
        print(f"{label}: {problem}")
    if options.json:
        harness.write_json(options.json, machine, results)


if __name__ == "__main__":
    main()
