"""What products by experts cost: microseconds of rows that are routed at random, dlfp4 beside its peers.

    python benchmarks/bench_experts.py [--shapes 32x5760x2880] [--top 4] [--tokens 1,16,64,256,1024]
        [--formats nvfp4,mxfp4] [--threads 1,0] [--gpu] [--skew 0] [--json FILE]

A shape is experts x N x K. Each token of bfloat16 goes to `top` experts, chosen at random, or the first ones more often
(--skew). dlfp4 reads tokens by indices; what others need, rows in order, is made once before, and not counted, but for
"a call an expert", which is dlfp4.matmul for each expert that has rows. Results are bfloat16.

On the host the limit is a copy of as many bytes in all as the weights of those experts and the rows have. On a GPU
(--gpu) weights are prepared and cold, or of fp8_128x128 as they lie, with rows that are quantized to fp8_1x128 before:
each case walks over copies that exceed the caches, in CUDA graphs, and the floor is the longer of the times that the
memory (--bandwidth) and the tensor cores (--rate, twice that for FP8) need. Peers are PyTorch's grouped product of
bfloat16 and, on a GPU, that of FP8 with a scale a row, and Humming's (humming-kernels) of the same weights: by the
rows that dlfp4 multiplies, and of MXFP4 by rows of FP8 with a scale each as well.
"""

import argparse
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import harness
import ml_dtypes
import numpy as np
from bench_matmul_gpu import HUMMING, cold, make_cases, make_layer
from harness import Call, Case, Table, list_of, number

import dlfp4

PEERS = ("torch", "humming-kernels")
LAYERS = {**HUMMING, "fp8_128x128": {"quant_method": "fp8", "weight_block_size": [128, 128]}}  # of Humming


# ---- Work


@dataclass(frozen=True)
class Shape:
    """Of a stack of weights."""

    experts: int
    n: int
    k: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """32x5760x2880."""
        try:
            return cls(*map(int, text.split("x")))
        except (TypeError, ValueError):
            raise argparse.ArgumentTypeError(f"{text!r}: expected ExNxK, such as 32x5760x2880") from None

    def __str__(self) -> str:
        return f"{self.experts} experts of {self.n} x {self.k}"


@dataclass(frozen=True)
class Routing:
    """The token of each row, rows sorted by expert, and where those of experts end."""

    indices: Any
    ends: Any

    @property
    def busy(self) -> list[tuple[int, int, int]]:
        """Experts that have rows, and which."""
        starts = [0, *map(int, self.ends[:-1])]
        return [
            (e, first, int(end)) for e, (first, end) in enumerate(zip(starts, self.ends, strict=True)) if end > first
        ]


def route(shape: Shape, tokens: int, top: int, skew: float) -> Routing:
    """The best `top` of random scores."""
    scores = np.random.default_rng(tokens).normal(size=(tokens, shape.experts)) - skew * np.arange(shape.experts)
    chosen = np.argsort(-scores, axis=1)[:, :top].ravel()
    order = np.argsort(chosen, kind="stable")
    counts = np.bincount(chosen, minlength=shape.experts)
    return Routing((order // top).astype(np.int32), np.cumsum(counts).astype(np.int32))


@dataclass
class Group:
    """The same rows by each."""

    shape: Shape
    format: str
    tokens: int
    threads: int
    routing: Routing
    cases: dict[str, Any]
    floor: float | None = None  # microseconds

    @property
    def title(self) -> str:
        threads = f", {self.threads or 'all'} threads" if self.floor is None else ""
        return f"{self.format}, {self.shape}{threads}"

    def time_of(self, name: str) -> float | None:
        """Microseconds a call, of a case that there is."""
        case = self.cases.get(name)
        return case and case.median and case.median * (1e6 if isinstance(case, Case) else 1)

    def row(self, names: Sequence[str]) -> tuple[str, ...]:
        """A row of the table."""
        times = [self.time_of(name) for name in names]
        ours, peers = times[0], [time for time in times[1:] if time is not None]
        limit = self.floor or self.time_of("copy")
        rows = f"{len(self.routing.indices)} by {len(self.routing.busy)}"
        ratios = (ours and peers and min(peers) / ours, ours and limit and ours / limit)
        return (str(self.tokens), rows, *map(number, times), number(limit), *(number(each or None) for each in ratios))

    def record(self) -> dict[str, Any]:
        """A row of the JSON file."""
        return {
            "format": self.format,
            "shape": [self.shape.experts, self.shape.n, self.shape.k],
            "tokens": self.tokens,
            "threads": self.threads,
            "rows": len(self.routing.indices),
            "experts_with_rows": len(self.routing.busy),
            "microseconds": {name: self.time_of(name) for name in self.cases},
            "floor": self.floor,
            "problems": {name: case.problem for name, case in self.cases.items() if case.problem},
        }


def bytes_of(shape: Shape, nbytes: int, routing: Routing) -> int:
    """Of the weights that are read, and of rows and results."""
    return nbytes * len(routing.busy) // shape.experts + 2 * len(routing.indices) * (shape.n + shape.k)


# ---- On the host


def call_each(x: Any, experts: list[Any], busy: list[tuple[int, int, int]], out: Any) -> None:
    """dlfp4.matmul for each expert that has rows."""
    for expert, first, end in busy:
        dlfp4.matmul(x[first:end], experts[expert], out=out[first:end])


class HostWeights:
    """A stack in every form that the cases multiply."""

    cases = ("dlfp4", "a call an expert", "torch bf16")
    limit = "copy"

    def __init__(self, torch: Any, format: str, shape: Shape) -> None:
        rng = np.random.default_rng(1)
        plain = rng.standard_normal((shape.experts, shape.n, shape.k), dtype=np.float32)
        self.shape, self.format, self.torch = shape, format, torch
        self.quantized = dlfp4.quantize(plain, format)
        self.experts = [self.quantized[e].mT for e in range(shape.experts)]
        self.plain = torch if isinstance(torch, harness.Missing) else torch.from_numpy(plain).bfloat16()

    def group(self, tokens: int, threads: int, options: argparse.Namespace) -> Group:
        """Some tokens by each."""
        shape, torch = self.shape, self.torch
        routing = route(shape, tokens, options.top, options.skew)
        x = np.random.default_rng(2).standard_normal((tokens, shape.k)).astype(ml_dtypes.bfloat16)
        rows = x[routing.indices]
        outs = [np.empty((len(rows), shape.n), ml_dtypes.bfloat16) for _ in range(2)]
        octets = np.ones(bytes_of(shape, self.quantized.nbytes, routing) // 2, np.uint8)
        cases = {
            "dlfp4": Case("dlfp4", "f(x, w, e, indices=i, out=o)", f=dlfp4.grouped_matmul, x=x, w=self.quantized.mT,
                          e=routing.ends, i=routing.indices, o=outs[0]),
            "a call an expert": Case("a call an expert", "f(x, w, b, o)", f=call_each, x=rows, w=self.experts,
                                     b=routing.busy, o=outs[1]),
            "torch bf16": self.by_torch(torch, rows, routing),
            "copy": Case("copy", "f(o, x)", f=np.copyto, x=octets, o=octets.copy()),
        }  # fmt: skip
        return Group(shape, self.format, tokens, threads, routing, cases)

    def groups(self, options: argparse.Namespace) -> Iterator[Group]:
        """By so many threads, so many tokens."""
        for threads in options.threads:
            dlfp4.set_num_threads(threads)
            if not isinstance(self.torch, harness.Missing):
                self.torch.set_num_threads(threads or harness.usable_cores())
            for tokens in options.tokens:
                yield self.group(tokens, threads, options)

    def measure(self, group: Group, options: argparse.Namespace) -> None:
        """Time the cases in turn."""
        harness.measure(list(group.cases.values()), options.rounds, options.slice_ms)

    def by_torch(self, torch: Any, rows: Any, routing: Routing) -> Case:
        """PyTorch's product of bfloat16 weights."""
        if isinstance(torch, harness.Missing):
            return Case("torch bf16", "f()", f=torch)
        x = torch.from_numpy(rows.view(np.uint16)).view(torch.bfloat16)
        grouped = getattr(torch.nn.functional, "grouped_mm", harness.Missing("this PyTorch has none"))
        return Case("torch bf16", "f(x, w, offs=e)", f=grouped, x=x, w=self.plain.mT, e=torch.from_numpy(routing.ends))


# ---- On a GPU


class DeviceWeights:
    """A stack in every form, in as many copies as are cold."""

    cases = ("dlfp4", "a call an expert", "torch bf16", "torch fp8 rows", "Humming", "Humming fp8 x")
    limit = "floor"

    def __init__(self, torch: Any, format: str, shape: Shape) -> None:
        self.torch, self.format, self.shape = torch, format, shape
        size = (shape.experts, shape.n, shape.k)
        self.plain = cold(torch.randn(size, device="cuda", dtype=torch.bfloat16), 2 * math.prod(size))
        self.quantized = dlfp4.quantize(self.plain[0], format)
        self.nbytes, self.in_blocks = self.quantized.nbytes, format == "fp8_128x128"
        copies = cold(self.quantized, self.nbytes)
        self.prepared = [w.prepare() for w in copies]
        self.experts = [[w[e].prepare().mT for e in range(shape.experts)] for w in copies]
        self.fp8 = cold(self.plain[0].to(torch.float8_e4m3fn), math.prod(size))
        self.ones = torch.ones(shape.experts, shape.n, device="cuda")
        self.layers: dict[bool, list[Any]] = {}  # by whether rows are FP8

    def humming(self, fp8: bool) -> list[Any]:
        """Layers, made when they are first asked for."""
        if fp8 not in self.layers:
            rows = {"dtype": "float8e4m3", "group_size": 128 if self.in_blocks else 0} if fp8 else None
            layer = make_layer(self.torch, self.quantized, LAYERS[self.format], rows)
            self.layers[fp8] = cold(layer, self.nbytes)
        return self.layers[fp8]

    def group(self, tokens: int, options: argparse.Namespace) -> Group:
        """Some tokens by each."""
        torch, shape = self.torch, self.shape
        routing = route(shape, tokens, options.top, options.skew)
        x = torch.randn(tokens, shape.k, device="cuda", dtype=torch.bfloat16)
        indices, ends = (torch.from_numpy(each).cuda() for each in (routing.indices, routing.ends))
        starts = torch.nn.functional.pad(ends, (1, 0))
        rows = x[indices]
        rows8, ones = rows.to(torch.float8_e4m3fn), torch.ones(len(rows), device="cuda")
        given, given_rows = ((dlfp4.quantize(each, "fp8_1x128") if self.in_blocks else each) for each in (x, rows))
        out = torch.empty(len(rows), shape.n, device="cuda", dtype=torch.bfloat16)
        here = torch.cuda.current_stream

        def ours() -> list[Call]:
            return [
                lambda w=w: dlfp4.grouped_matmul(given, w.mT, ends, indices=indices, out=out, stream=here())
                for w in self.prepared
            ]

        def by_calls() -> list[Call]:
            return [lambda w=w: call_each(given_rows, w, routing.busy, out) for w in self.experts]

        def by_bfloat16() -> list[Call]:
            return [lambda w=w: torch._grouped_mm(rows, w.mT, offs=ends) for w in self.plain]

        def by_fp8() -> list[Call]:
            options = {"offs": ends, "out_dtype": torch.bfloat16}
            return [lambda w=w: torch._scaled_grouped_mm(rows8, w.mT, ones, self.ones, **options) for w in self.fp8]

        def by_humming(fp8: bool, x: Any, scales: Any = None) -> list[Call]:
            options = {"compute_config": {"gemm_type": "grouped_contiguous"}, "expert_layout": starts, "outputs": out}
            return [lambda layer=layer: layer(x, input_scale=scales, **options) for layer in self.humming(fp8)]

        makers = {
            "dlfp4": ours,
            "a call an expert": by_calls,
            "torch bf16": by_bfloat16,
            "torch fp8 rows": by_fp8,
            "Humming": lambda: by_humming(False, rows),
        }
        if self.in_blocks:
            blocks = given_rows.to_torch()
            makers["Humming"] = lambda: by_humming(True, blocks.data, blocks.scales)
        if self.format == "mxfp4":
            makers["Humming fp8 x"] = lambda: by_humming(True, rows8, ones[:, None])
        cases = make_cases(makers)
        moved = bytes_of(shape, self.nbytes, routing) / options.bandwidth / 1e3
        multiplied = 2 * len(rows) * shape.n * shape.k / options.rate / (2e6 if self.in_blocks else 1e6)
        return Group(shape, self.format, tokens, 0, routing, cases, max(moved, multiplied))

    def groups(self, options: argparse.Namespace) -> Iterator[Group]:
        """So many tokens."""
        return (self.group(tokens, options) for tokens in options.tokens)

    def measure(self, group: Group, options: argparse.Namespace) -> None:
        """Time graphs in turn."""
        cases = list(group.cases.values())
        harness.capture_each(self.torch, cases)
        harness.replay_in_turns(self.torch, cases, options.rounds)


# ---- The run


def measure(options: argparse.Namespace) -> tuple[Table, list[Group]]:
    """All groups; a stack is gone when the next one comes."""
    torch = harness.load("torch")
    made: Any = DeviceWeights if options.gpu else HostWeights
    table = Table(("tokens", "rows", *made.cases, made.limit, "best peer / dlfp4", f"dlfp4 / {made.limit}"))
    groups = []
    for format, shape in itertools.product(options.formats, options.shapes):
        weights = made(torch, format, shape)
        for group in weights.groups(options):
            weights.measure(group, options)
            for case in group.cases.values():
                case.release()
            table.sections.setdefault(f"{group.title}, microseconds", []).append(group.row(made.cases))
            groups.append(group)
        del weights
        if options.gpu:
            torch.cuda.empty_cache()
    return table, groups


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    harness.add_arguments(parser)
    parser.set_defaults(rounds=11, slice_ms=1.0)
    parser.add_argument("--shapes", type=list_of(Shape.parse), default="32x5760x2880", help="ExNxK: %(default)s")
    parser.add_argument("--top", type=int, default=4, help="experts of a token: %(default)s")
    parser.add_argument("--tokens", type=list_of(int), default="1,16,64,256,1024", help="%(default)s")
    parser.add_argument("--formats", type=list_of(str), default="nvfp4,mxfp4", help="%(default)s")
    parser.add_argument("--threads", type=list_of(int), default="1,0", help="on the host, 0 is all cores: %(default)s")
    parser.add_argument("--skew", type=float, default=0.0, help="how much less each next expert is liked: %(default)s")
    parser.add_argument("--gpu", action="store_true", help="on a GPU instead of the host")
    parser.add_argument("--bandwidth", type=float, default=4695.0, help="GB/s read: %(default)s")
    parser.add_argument("--rate", type=float, default=800.0, help="TFLOP/s of bfloat16: %(default)s")
    options = parser.parse_args()
    if options.gpu and (isinstance(harness.load("torch"), harness.Missing) or not dlfp4.cuda_available()):
        parser.error("--gpu needs PyTorch and a CUDA device")
    return options


def main() -> None:
    """Measure, print, and write what was asked for."""
    options = parse_arguments()
    machine = harness.describe_machine(PEERS)
    print("\n".join(harness.machine_lines(machine)))
    table, groups = measure(options)
    table.print()
    print(
        "\n".join(
            sorted({f"{case.label}: {case.problem}" for g in groups for case in g.cases.values() if case.problem})
        )
    )
    if options.json:
        harness.write_json(options.json, machine, [group.record() for group in groups])


if __name__ == "__main__":
    main()
