"""What activations times quantized weights cost on a GPU: microseconds, dlfp4 beside its peers.

    python benchmarks/bench_matmul_gpu.py [--fp8] [--shapes 4096x4096,...] [--m 1,16,...] [--formats nvfp4,...]
        [--json FILE]

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

With --fp8 both sides are FP8 as they lie: x in blocks of 1x128 by w in blocks of 128x128 ("blocks"), one scale a tensor
("tensor"), and a scale a row by a scale a column ("rows"). x is quantized before, but for the column "quantizing",
where dlfp4.matmul quantizes bfloat16 on the way. Peers multiply the same codes and scales: PyTorch's scaled_mm, and,
where it has them, its fast sums, which stay in the tensor cores. The floor counts operations at --fp8-rate.
"""

import argparse
import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
from harness import Call, GraphCase, Table, list_of, number

import dlfp4
from dlfp4.engines import cuda, cuda_fp8
from dlfp4.engines.problem import Problem
from dlfp4.formats import ACTIVATIONS

PACKAGES = ("torch", "humming-kernels")
SHAPES = "4096x4096,14336x4096,4096x14336,8192x8192"
ROWS = "1,8,16,32,64,128,256,1024,2048,4096"
FP8_SHAPES = "7168x4096,4096x7168,2112x7168,24576x1536,7168x16384"
FP8_ROWS = "1,16,64,128,512,1024,4096"
COLD_BYTES = 300e6
# Of Humming's layers, which take the same parts as checkpoints have.
HUMMING = {
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "nvfp4"},
    "mxfp4": {"quant_method": "mxfp4"},
    "mxfp8_e4m3": {"quant_method": "modelopt", "quant_algo": "mxfp8"},
    "fp8_e4m3": {"quant_method": "fp8"},
}


class Columns(NamedTuple):
    """What a table shows beside dlfp4 in turns, and each alone; it gives the ratio of the fastest of some peers."""

    peers: tuple[str, ...]
    alone: tuple[str, ...]
    rivals: tuple[str, ...]


CODES = Columns(
    ("x quantized", "cuBLAS", "fp8 tensor", "fp8 rows", "Humming", "decode"),
    ("x quantized", "cuBLAS", "Humming"),
    ("cuBLAS",),
)
FP8 = Columns(*(("quantizing", "torch", "fast sums"),) * 2, rivals=("torch", "fast sums"))


class Pair(NamedTuple):
    """Formats of x and w, and what PyTorch calls the granularity of their scales."""

    x: str
    w: str
    scaling: tuple[str, str]
    has_fast_sums: bool = True


PAIRS = {
    "blocks": Pair("fp8_1x128", "fp8_128x128", ("BlockWise1x128", "BlockWise128x128"), has_fast_sums=False),
    "tensor": Pair("fp8_e4m3", "fp8_e4m3", ("TensorWise", "TensorWise")),
    "rows": Pair("fp8_row", "fp8_row", ("RowWise", "RowWise")),
}


def warmed(calls: Sequence[Call]) -> Sequence[Call]:
    """The calls, each on another copy of a weight, of which one was made: what it needs is loaded."""
    calls[0]()
    return calls


def cold(x: Any, nbytes: int) -> list[Any]:
    """So many copies that no cache holds them."""
    return [x, *(copy.deepcopy(x) for _ in range(math.ceil(COLD_BYTES / nbytes)))]


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
        self.quantized = cold(quantized, self.nbytes)
        self.prepared = [each.prepare() for each in self.quantized]
        self.bfloat16 = cold(plain, 2 * plain.numel())
        self.fp8 = cold(plain.to(self.torch.float8_e4m3fn), plain.numel())
        self.layers: list[Any] = []

    def group(self, rows: int, options: argparse.Namespace) -> "Group":
        """Some rows by each."""
        return make_group(self.torch, self, rows, options)

    def humming(self) -> list[Any]:
        """Layers, made when they are first asked for."""
        if not self.layers:
            self.layers = cold(make_layer(self.torch, self.quantized[0], HUMMING[self.format]), self.nbytes)
        return self.layers


def make_layer(torch: Any, w: Any, weights: dict[str, Any], activations: dict[str, Any] | None = None) -> Any:
    """A Humming layer over the parts of a weight or of experts' stack, for bfloat16 or quantized activations."""
    from humming.layer import HummingLayer

    *experts, n, k = w.shape
    layer = HummingLayer(
        shape_n=n,
        shape_k=k,
        num_experts=experts[0] if experts else None,
        weight_config=dict(weights),
        input_config=activations,
        torch_dtype=torch.bfloat16,
    ).cuda()
    parts = w.to_torch()
    codes, scales = parts.data, parts.scales
    if w.data.dtype.name == "float4_e2m1fn":
        codes = w.data.view("uint8").to_torch()
    if w.scales.dtype.name == "float8_e8m0fnu":
        scales = w.scales.view("uint8").to_torch()
    tensors = {"weight": codes, "weight_scale_inv" if "weight_block_size" in weights else "weight_scale": scales}
    if parts.global_scale is not None:
        tensors["weight_scale_2"] = parts.global_scale.expand(*experts or [1])
    layer.load_from_tensors({name: each.reshape(getattr(layer, name).shape) for name, each in tensors.items()})
    layer.transform()
    return layer


@dataclass
class Group:
    """One M: ours by each tactic and as `auto` chooses, and the peers by column."""

    name: str
    shape: tuple[int, int]
    rows: int
    columns: Columns
    auto: GraphCase
    tactics: dict[str, GraphCase]
    peers: dict[str, GraphCase]
    floor: float

    @property
    def title(self) -> str:
        return f"{self.name} {self.shape[0]} x {self.shape[1]}, microseconds"

    @property
    def cases(self) -> list[GraphCase]:
        return [self.auto, *self.tactics.values(), *self.peers.values()]

    @property
    def best(self) -> tuple[str, float | None]:
        """The fastest tactic and its time."""
        timed = {name: case.median for name, case in self.tactics.items() if case.median is not None}
        name = min(timed, key=lambda each: timed[each] or 0.0, default="-")
        return name, timed.get(name)

    def rival(self, time_of: Callable[[GraphCase], float | None]) -> float | None:
        """The time of the fastest of the peers that count."""
        times = [time_of(self.peers[name]) for name in self.columns.rivals]
        return min((time for time in times if time is not None), default=None)


def make_cases(makers: dict[str, Callable[[], Sequence[Call]]]) -> dict[str, GraphCase]:
    """A case of each, whose calls are loaded when they are captured."""
    return {name: GraphCase(name, lambda make=make: warmed(make())) for name, make in makers.items()}


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

    problem = Problem(dlfp4.asarray(x), weights.prepared[0].mT, np.dtype("bfloat16"))
    names = cuda.tactics(problem) if weights.prepared[0].scale_layout == "prepared" else ()
    peers: dict[str, Callable[[], Sequence[Call]]] = {
        "x quantized": lambda: by("auto", weights.prepared, quantized),
        "cuBLAS": by_cublas,
        "fp8 tensor": lambda: by_fp8(one, one),
        "fp8 rows": lambda: by_fp8(*ones),
        "Humming": by_humming,
        "decode": lambda: by("torch", weights.quantized),
    }
    moved = weights.nbytes + 2 * rows * (n + k)
    return Group(
        weights.format,
        weights.shape,
        rows,
        CODES,
        make_cases({"auto": lambda: by("auto", weights.prepared)})["auto"],
        make_cases({name: lambda name=name: by_tactic(name) for name in names}),
        make_cases(peers),
        max(moved / options.bandwidth / 1e3, 2 * rows * n * k / options.rate / 1e6),
    )


# ---- FP8 by FP8


@dataclass
class Fp8Weights:
    """One weight in FP8, in as many copies as are cold."""

    torch: Any
    name: str
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        plain = self.torch.randn(self.shape, device="cuda", dtype=self.torch.bfloat16)
        quantized = dlfp4.quantize(plain, PAIRS[self.name].w)
        self.nbytes = quantized.nbytes
        self.quantized = cold(quantized, self.nbytes)

    def group(self, rows: int, options: argparse.Namespace) -> Group:
        """Some rows by each."""
        torch, pair, (n, k) = self.torch, PAIRS[self.name], self.shape
        x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
        q, out = dlfp4.quantize(x, pair.x), torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
        here, y = torch.cuda.current_stream, dlfp4.asarray(out)

        def ours(a: Any = q, **given: Any) -> list[Call]:
            return [lambda w=w: dlfp4.matmul(a, w.mT, out=out, stream=here(), **given) for w in self.quantized]

        def by_tactic(tactic: str) -> list[Call]:
            problems = [Problem(q, w.mT, np.dtype("bfloat16"), stream=here()) for w in self.quantized]
            return [lambda p=p: cuda_fp8.run(p, tactic, y) for p in problems]

        def quantizing() -> list[Call]:
            names = [name for name, format in ACTIVATIONS.items() if format == pair.x]
            if not names:
                raise ValueError(f"no activation of matmul is {pair.x}")
            return ours(x, activation=names[0])

        def by_torch(sums_are_fast: bool) -> list[Call]:
            if sums_are_fast and not pair.has_fast_sums:
                raise ValueError(f"scales of {self.name} multiply sums outside of tensor cores")
            return [scaled_mm(torch, q, w, pair.scaling, sums_are_fast) for w in self.quantized]

        taken = dlfp4.backends(q, self.quantized[0].mT)["cuda_fp8"] is None
        names = cuda_fp8.tactics(Problem(q, self.quantized[0].mT, np.dtype("bfloat16"))) if taken else ()
        moved = self.nbytes + q.nbytes + 2 * rows * n
        return Group(
            f"{pair.x} by {pair.w}",
            self.shape,
            rows,
            FP8,
            make_cases({"auto": ours})["auto"],
            make_cases({name: lambda name=name: by_tactic(name) for name in names}),
            make_cases(
                {"quantizing": quantizing, "torch": lambda: by_torch(False), "fast sums": lambda: by_torch(True)}
            ),
            max(moved / options.bandwidth / 1e3, 2 * rows * n * k / options.fp8_rate / 1e6),
        )


def scaled_mm(torch: Any, x: Any, w: Any, scaling: tuple[str, str], sums_are_fast: bool) -> Call:
    """PyTorch's product of the same codes and scales: the public function, where this PyTorch has it."""
    a, b = x.data.to_torch(), w.data.to_torch().t()
    of_a, of_b = scales_of_rows(x, scaling[0]), scales_of_rows(w, scaling[1]).t()
    options = {"use_fast_accum": sums_are_fast}
    functional = torch.nn.functional
    if not hasattr(functional, "scaled_mm"):
        return lambda: torch._scaled_mm(a, b, of_a, of_b, out_dtype=torch.bfloat16, **options)
    kinds = [getattr(functional.ScalingType, name) for name in scaling]
    return lambda: functional.scaled_mm(a, b, of_a, kinds[0], of_b, kinds[1], output_dtype=torch.bfloat16, **options)


def scales_of_rows(q: Any, scaling: str) -> Any:
    """Scales of (lines, blocks of K) in the strides that cuBLAS reads, one of all lines as it is."""
    if scaling == "BlockWise128x128":
        return q.with_scale_layout("cublas_128x128").scales.to_torch()
    scales = q.scales.to_torch()
    if scaling == "BlockWise1x128":
        return scales.t().contiguous().t()
    return scales.reshape(-1, 1) if scaling == "RowWise" else scales


# ---- The run


def measure(torch: Any, group: Group, rounds: int) -> None:
    """Time all cases in turn, but for tactics that the first round shows to be more than twice as slow as the best."""
    harness.capture_each(torch, group.cases)
    harness.replay_in_turns(torch, group.cases, 1)
    best = group.best[1]
    for case in group.tactics.values():
        if best is not None and (case.median or 0.0) > 2 * best:
            case.graph = None
    harness.replay_in_turns(torch, group.cases, rounds - 1)


def measure_alone(torch: Any, group: Group, seconds: float) -> None:
    """One case after the other, with time to cool, so that all begin alike."""
    for case in (group.auto, *(group.peers[name] for name in group.columns.alone)):
        time.sleep(seconds / 2)
        case.replay_alone(torch, seconds)


def fill_alone(table: Table, group: Group) -> None:
    auto, rival = group.auto.alone, group.rival(lambda case: case.alone)
    table.sections.setdefault(f"{group.title}, each alone", []).append((
        str(group.rows), number(auto), *(number(group.peers[name].alone) for name in group.columns.alone),
        number(auto and rival and rival / auto),
    ))  # fmt: skip


def fill_table(table: Table, group: Group) -> None:
    auto, (name, best), rival = group.auto.median, group.best, group.rival(lambda case: case.median)
    table.sections.setdefault(group.title, []).append((
        str(group.rows), number(auto), number(best), name,
        *(number(group.peers[peer].median) for peer in group.columns.peers), number(group.floor),
        number(auto and rival and rival / auto), number(auto and auto / group.floor),
    ))  # fmt: skip


def record(group: Group) -> dict[str, Any]:
    """A row of the JSON file."""
    return {
        "format": group.name,
        "n": group.shape[0],
        "k": group.shape[1],
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
    parser.add_argument("--fp8", action="store_true", help="FP8 by FP8, instead of bfloat16 by weights of --formats")
    parser.add_argument("--shapes", type=parse_shapes, help=f"NxK, with commas (default: {SHAPES}; {FP8_SHAPES})")
    parser.add_argument("--m", type=list_of(int), help=f"rows of activations (default: {ROWS}; {FP8_ROWS})")
    parser.add_argument("--pairs", type=list_of(str), default=",".join(PAIRS), help="of --fp8 (default: %(default)s)")
    formats = f"of {', '.join(HUMMING)} (default: %(default)s)"
    parser.add_argument("--formats", type=list_of(str), default="nvfp4,mxfp4", help=formats)
    parser.add_argument("--rounds", type=int, default=11, help="interleaved repeats (default: %(default)s)")
    parser.add_argument("--alone-from", type=int, default=1024, help="rows of the second table (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each of its cases (default: %(default)s)")
    parser.add_argument("--bandwidth", type=float, default=4695.0, help="GB/s read (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=900.0, help="TFLOP/s of bfloat16 (default: %(default)s)")
    parser.add_argument("--fp8-rate", type=float, default=1600.0, help="TFLOP/s of FP8 (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    options = parser.parse_args()
    options.shapes = options.shapes or parse_shapes(FP8_SHAPES if options.fp8 else SHAPES)
    options.m = options.m or list_of(int)(FP8_ROWS if options.fp8 else ROWS)
    for option, given, known in (("--formats", options.formats, HUMMING), ("--pairs", options.pairs, PAIRS)):
        unknown = set(given) - set(known)
        if unknown:
            parser.error(f"{option}: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
    if isinstance(harness.load("torch"), harness.Missing) or not dlfp4.cuda_available():
        parser.error("needs PyTorch and a CUDA device")
    return options


def make_groups(torch: Any, options: argparse.Namespace) -> Iterator[Group]:
    """Each M of each weight; a weight is gone when the next one comes."""
    make: Any = Fp8Weights if options.fp8 else Weights
    for name in options.pairs if options.fp8 else options.formats:
        for shape in options.shapes:
            weights = make(torch, name, shape)
            for rows in options.m:
                yield weights.group(rows, options)
            del weights
            torch.cuda.empty_cache()


def main() -> None:
    options = parse_arguments()
    torch = harness.load("torch")
    machine = harness.describe_machine(PACKAGES)
    print(torch.cuda.get_device_name(), f"CUDA {torch.version.cuda},", *harness.machine_lines(machine), sep="\n")
    columns = FP8 if options.fp8 else CODES
    ratio = f"{columns.rivals[0] if len(columns.rivals) == 1 else 'best peer'} / dlfp4"
    table = Table(("M", "dlfp4", "best tactic", "<its name", *columns.peers, "floor", ratio, "dlfp4 / floor"))
    alone = Table(("M", "dlfp4", *columns.alone, ratio))
    results, problems = [], dict[str, str]()
    for group in make_groups(torch, options):
        measure(torch, group, options.rounds)
        fill_table(table, group)
        if group.rows >= options.alone_from:
            measure_alone(torch, group, options.seconds)
            fill_alone(alone, group)
        results.append(record(group))
        problems = {f"{group.name}, {case.label}": case.problem for case in group.cases if case.problem} | problems
        del group
    table.print()
    if alone.sections:
        alone.print()
    for label, problem in problems.items():
        print(f"{label}: {problem}")
    if options.json:
        harness.write_json(options.json, machine, results)


if __name__ == "__main__":
    main()
