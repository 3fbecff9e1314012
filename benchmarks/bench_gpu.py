"""What the CUDA kernels cost: GB/s on the device, microseconds of CPU time a call, dlfp4 beside its peers.

    python benchmarks/bench_gpu.py [--only TEXT] [--size 8192] [--json FILE]

On the device each case is captured in a CUDA graph of many calls, whose replays are timed by events, case after case,
round after round; a figure is the median. Outputs are given (`out=`); peers that cannot write into given memory
allocate inside the graph's pool, which costs no time in a replay.

Two limits stand beside each figure. "bytes": the time that this traffic takes at the speed of a copy within the device,
measured in the same run. "ops": the time that the kernel's instructions take to issue at four a cycle on each
multiprocessor. A kernel cannot be faster than either.

Peers: PyTorch, the same compiled (Triton kernels; it sums products as float32), torchao as it is and compiled. Rules
differ in details from dlfp4's (tests/checkpoints/test_torchao.py lists torchao's); the work is the same.
"""

import argparse
import itertools
import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import harness
from bench_scaling import AXES, FOUR_OVER_SIX, HADAMARD, ROWS, VARIANTS
from harness import Call, Case, GraphCase, Table, number
from scaling_peers import Torchao

import dlfp4

PACKAGES = ("torch", "triton", "torchao")
FORMATS = (
    "nvfp4", "nvfp4_16x16", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "mxfp8_32x32", "fp8_1x128", "fp8_128x128", "fp8_e4m3",
    "fp8_row",
)  # fmt: skip
# What is timed along rows and columns beside the plain formats.
VARIED = (
    ("nvfp4", ROWS), ("nvfp4", HADAMARD), ("mxfp4", HADAMARD), ("mxfp8_e4m3", HADAMARD), ("nvfp4", FOUR_OVER_SIX),
)  # fmt: skip
DOTS = {  # with the peers that have them
    "float32": ("torch", "torch.compile"),
    "bfloat16": ("torch", "torch.compile"),
    "float8_e4m3fn": ("torch.compile",),
    "float4_e2m1fn": (),
}
# Instructions of a warp for sixteen elements of each thread, as Nsight Compute counts them (smsp__inst_executed):
# bfloat16 to FP4 and NVFP4, and NVFP4 to bfloat16. Of both directions at once, each.
INSTRUCTIONS = {"cast": 155, "quantize": 240, "quantize both": 226, "dequantize": 222}


def device_case(label: str, run: Call) -> GraphCase:
    """A function that launches work on the current stream, after some calls that are not timed."""

    def make() -> list[Call]:
        for _ in range(3):
            run()
        return [run] * 4

    return GraphCase(label, make)


@dataclass
class Group:
    """One task: ours, the peers by column, and what it moves."""

    title: str
    bytes: int
    elements: int
    kind: str
    ours: GraphCase
    peers: dict[str, GraphCase] = field(default_factory=dict)

    @property
    def best(self) -> float | None:
        return min((case.median for case in self.peers.values() if case.median), default=None)


COLUMNS = ("torch", "torch.compile", "torchao", "torchao compiled")


def nbytes(*parts: Any) -> int:
    return sum(part.nbytes if hasattr(part, "nbytes") else part.numel() * part.element_size() for part in parts)


def layouts_of(x: Any) -> dict[str, Any]:
    """Of square x: the left half of wider rows, that from an odd column on, heads of 128 before tokens, columns."""
    size = len(x)
    wide = x.repeat(1, 2)
    return {
        "rows with gaps": wide[:, :size],
        "odd start": wide[:, 1 : size + 1],
        "heads": x.view(8, size // 8, size // 128, 128).transpose(1, 2),
        "transposed": x.t(),
    }


def cast_group(torch: Any, x: Any, target: str, layout: str = "") -> Group:
    """To row-major memory; to the same type it is a copy."""
    out = dlfp4.cast(x, target)
    source = str(x.dtype).split(".")[1]
    group = Group(
        f"{source} -> {target}{layout and ', strided: ' + layout}", nbytes(x, out), x.numel(), "cast",
        device_case("dlfp4", lambda: dlfp4.cast(x, target, out=out)),
    )  # fmt: skip
    if hasattr(torch, target):
        dtype, row_major = getattr(torch, target), torch.contiguous_format
        convert = (
            (lambda t: t.clone(memory_format=row_major))
            if x.dtype == dtype
            else (lambda t: t.to(dtype, memory_format=row_major))
        )
        compiled = torch.compile(convert, dynamic=False)
        group.peers = {
            "torch": device_case("torch", lambda: convert(x)),
            "torch.compile": device_case("torch.compile", lambda: compiled(x)),
        }
    return group


def back_group(torch: Any, x: Any, target: str) -> Group:
    codes = dlfp4.cast(x, target)
    name, out = str(x.dtype).split(".")[1], torch.empty_like(x)
    here = torch.cuda.current_stream
    group = Group(
        f"{target} -> {name}", nbytes(codes, out), x.numel(), "cast",
        device_case("dlfp4", lambda: dlfp4.cast(codes, name, out=out, stream=here())),
    )  # fmt: skip
    if hasattr(torch, target):
        held = torch.from_dlpack(codes)
        compiled = torch.compile(lambda t: t.to(x.dtype), dynamic=False)
        group.peers = {
            "torch": device_case("torch", lambda: held.to(x.dtype)),
            "torch.compile": device_case("torch.compile", lambda: compiled(held)),
        }
    return group


def quantize_group(torch: Any, torchao: Torchao, x: Any, name: str, along: str, given: Any, variant: str = "") -> Group:
    options = {"axis": AXES[along], **VARIANTS[variant], **({} if given is None else {"global_scale": given})}
    out = dlfp4.quantize(x, name, **options)
    results = out if isinstance(out, tuple) else (out,)
    finds_scale = given is None and variant != ROWS and name in ("nvfp4", "fp8_e4m3", "nvfp4_16x16")
    reads = 2 if finds_scale else 1
    source = str(x.dtype).split(".")[1]
    group = Group(
        f"{source} -> {name}{variant}{', scale given' * (given is not None)}{along}",
        reads * nbytes(x) + sum(q.nbytes for q in results), x.numel() * len(results), "quantize",
        device_case("dlfp4", lambda: dlfp4.quantize(x, name, out=out, **options)),
    )  # fmt: skip
    if not (torchao.missing or along or variant) and name in ("nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_128x128"):
        function = torchao.quantize(name, "floor")
        compiled = torch.compile(function, dynamic=False)
        group.peers = {
            "torchao": device_case("torchao", lambda: function(x, given)),
            "torchao compiled": device_case("torchao compiled", lambda: compiled(x, given)),
        }
    return group


def dequantize_group(torch: Any, torchao: Torchao, x: Any, name: str, along: str, variant: str = "") -> Group:
    q = dlfp4.quantize(x, name, axis=AXES[along], **VARIANTS[variant])
    out, dtype = torch.empty_like(x), str(x.dtype).split(".")[1]
    here = torch.cuda.current_stream
    group = Group(
        f"{name}{variant} -> {dtype}{along}", nbytes(q, out), x.numel(), "dequantize",
        device_case("dlfp4", lambda: dlfp4.dequantize(q, dtype, out=out, stream=here())),
    )  # fmt: skip
    if not (torchao.missing or along or variant) and name in ("nvfp4", "mxfp4", "mxfp8_e4m3"):
        unit = torch.tensor(0.01, device="cuda")
        made = torchao.quantize(name, "floor")(x, unit)
        function = torchao.dequantize(name, x.dtype)
        compiled = torch.compile(function, dynamic=False)
        group.peers = {
            "torchao": device_case("torchao", lambda: function(*made, unit)),
            "torchao compiled": device_case("torchao compiled", lambda: compiled(*made, unit)),
        }
    return group


def lines_of(x: Any) -> dict[str, tuple[Any, int]]:
    """Of a square matrix: its rows, short lines, its columns, each with the axis that is summed over."""
    return {"rows": (x, -1), "lines of 128": (x.reshape((-1, 128)), -1), "columns": (x, 0)}


def dot_group(torch: Any, title: str, a: Any, b: Any, axis: int = -1, peers: tuple[str, ...] = ()) -> Group:
    """Sums of products of two matrices' lines."""
    sums = torch.from_dlpack(dlfp4.vecdot(a, b, axis))
    group = Group(
        f"dot of {title}", nbytes(a, b, sums), math.prod(a.shape), "dot",
        device_case("dlfp4", lambda: dlfp4.vecdot(a, b, axis, out=sums)),
    )  # fmt: skip
    of_torch = [torch.from_dlpack(side) for side in (a, b)] if peers else []
    compiled = torch.compile(lambda a, b: (a.float() * b.float()).sum(axis), dynamic=False)
    calls = {
        "torch": lambda: torch.linalg.vecdot(*of_torch, dim=axis),
        "torch.compile": lambda: compiled(*of_torch),
    }
    group.peers = {label: device_case(label, calls[label]) for label in peers}
    return group


def dot_groups(torch: Any, size: int) -> list[Group]:
    groups = []
    x = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    y = x.flip(0)
    for name, peers in DOTS.items():
        others = lines_of(dlfp4.cast(y, name))
        for lines, (matrix, axis) in lines_of(dlfp4.cast(x, name)).items():
            groups.append(dot_group(torch, f"{name}, {lines}", matrix, others[lines][0], axis, peers))
    for name in ("nvfp4", "mxfp4", "mxfp8_e4m3"):
        q = dlfp4.quantize(x, name)
        groups += [
            dot_group(torch, name, q, dlfp4.quantize(y, name)),
            dot_group(torch, f"{name} by bfloat16", q, y),
        ]
    return groups


def other_float(x: Any) -> str:
    return "bfloat16" if x.element_size() == 4 else "float16"


def layout_groups(torch: Any, torchao: Torchao, x: Any, layout: str, given: Any) -> list[Group]:
    targets = (str(x.dtype).split(".")[1], other_float(x), "float8_e4m3fn", "float4_e2m1fn")
    groups = [cast_group(torch, x, target, layout) for target in targets]
    for name in ("nvfp4", "fp8_1x128"):
        group = quantize_group(torch, torchao, x, name, "", given if name == "nvfp4" else None)
        groups.append(replace(group, title=f"{group.title}, strided: {layout}", peers={}))
    return groups


def make_groups(torch: Any, torchao: Torchao, size: int) -> list[Group]:
    groups = []
    given = torch.tensor(0.002, device="cuda")
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn(size, size, device="cuda", dtype=dtype)
        for target in (other_float(x), "float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn"):
            groups += [cast_group(torch, x, target), back_group(torch, x, target)]
        for layout, view in layouts_of(x).items():
            groups += layout_groups(torch, torchao, view, layout, given)
        for name in FORMATS:
            for along in AXES:
                if along != " both" or name.startswith(("nvfp4", "mx")):
                    with_scale = given if name in ("nvfp4", "nvfp4_16x16", "fp8_e4m3") else None
                    groups.append(quantize_group(torch, torchao, x, name, along, with_scale))
            groups.append(dequantize_group(torch, torchao, x, name, ""))
            groups.append(dequantize_group(torch, torchao, x, name, " columns"))
        groups.append(quantize_group(torch, torchao, x, "nvfp4", "", None))
        for (name, variant), along in itertools.product(VARIED, ("", " columns")):
            with_scale = given if name == "nvfp4" and variant != ROWS else None
            groups.append(quantize_group(torch, torchao, x, name, along, with_scale, variant))
            groups.append(dequantize_group(torch, torchao, x, name, along, variant))
    small = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    for name in ("nvfp4", "mxfp4", "mxfp8_e4m3"):
        group = quantize_group(torch, torchao, small, name, "", given if name == "nvfp4" else None)
        group.title += " 64x4096"
        groups.append(group)
    return groups + dot_groups(torch, size)


def measure(torch: Any, groups: list[Group], rounds: int) -> float:
    """Time all cases in turn. Returns the device's copy in bytes a microsecond, both ways counted."""
    source = torch.randn(8192, 8192, device="cuda")
    target = torch.empty_like(source)
    copy = device_case("copy", lambda: target.copy_(source))
    cases = [copy, *(case for group in groups for case in (group.ours, *group.peers.values()))]
    for case in cases:
        case.capture(torch)
    for _ in range(rounds):
        for case in cases:
            case.replay(torch)
    assert copy.median is not None
    return 2 * nbytes(source) / copy.median


def instruction_limit(torch: Any, group: Group) -> float | None:
    """Microseconds to issue a group's instructions, on each of four schedulers one a cycle, where they were counted."""
    properties = torch.cuda.get_device_properties(0)
    clock = 1755e6  # Hz, an H200's boost under load: nvidia-smi -q -d CLOCK
    a_second = properties.multi_processor_count * 4 * 32 * clock
    count = INSTRUCTIONS.get(f"{group.kind} both" if group.title.endswith("both") else group.kind)
    return count and count / 16 * group.elements / a_second * 1e6


def device_table(torch: Any, groups: list[Group], copy: float) -> Table:
    columns = ("<on the device, microseconds", "dlfp4", "GB/s", *COLUMNS, "best / ours", "bytes", "ops", "bytes / ours")
    table = Table(columns)
    for group in groups:
        section = table.sections.setdefault(group.kind, [])
        ours = group.ours.median
        limit = group.bytes / copy
        section.append((
            group.title, number(ours) if ours else group.ours.problem[:60], number(ours and group.bytes / ours / 1e3),
            *(number(group.peers[c].median) if c in group.peers else "" for c in COLUMNS),
            number(group.best and ours and group.best / ours), number(limit),
            number(instruction_limit(torch, group)), number(ours and limit / ours),
        ))  # fmt: skip
    return table


def host_cases(torch: Any) -> list[Case]:
    """Calls whose work is next to nothing: what is timed is the CPU's part of a launch."""
    x = torch.randn(4, 64, device="cuda", dtype=torch.bfloat16)
    codes, bits = torch.empty(4, 64, device="cuda", dtype=torch.float8_e4m3fn), torch.float8_e4m3fn
    q = dlfp4.quantize(x, "mxfp4")
    own, into = dlfp4.from_dlpack(x), dlfp4.from_dlpack(codes)
    w = dlfp4.quantize(torch.randn(64, 64, device="cuda"), "mxfp4").prepare()
    names = {"x": x, "o": codes, "q": q, "d": dlfp4, "torch": torch, "b": bits, "own": own, "into": into, "w": w.mT}
    names["y"] = torch.empty(4, 64, device="cuda", dtype=torch.bfloat16)
    return [
        Case("dlfp4.cast(x, out=)", "d.cast(x, 'float8_e4m3fn', out=o)", **names),
        Case("dlfp4.cast(Tensor, out=Tensor)", "d.cast(own, 'float8_e4m3fn', out=into)", **names),
        Case("dlfp4.cast(x)", "d.cast(x, 'float8_e4m3fn')", **names),
        Case("dlfp4.quantize(x, out=)", "d.quantize(x, 'mxfp4', out=q)", **names),
        Case("dlfp4.quantize(x)", "d.quantize(x, 'mxfp4')", **names),
        Case("dlfp4.dequantize(q, out=)", "d.dequantize(q, 'bfloat16', out=x)", **names),
        Case("dlfp4.matmul(x, w.mT, out=)", "d.matmul(x, w, out=y)", **names),
        Case("dlfp4.matmul(Tensor, w.mT, out=)", "d.matmul(own, w, out=y)", **names),
        Case("dlfp4.from_dlpack(x)", "d.from_dlpack(x)", **names),
        Case("torch.add(x, 1, out=x)", "torch.add(x, 1, out=x)", **names),
        Case("o.copy_(x)", "o.copy_(x)", **names),
        Case("x.to(float8)", "x.to(b)", **names),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="tasks whose title has this text")
    parser.add_argument("--size", type=int, default=8192, help="of the square matrix (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=31, help="interleaved repeats (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    arguments = parser.parse_args()
    torch = harness.load("torch")
    if isinstance(torch, harness.Missing) or not dlfp4.cuda_available():
        parser.error("needs PyTorch and a CUDA device")
    groups = [g for g in make_groups(torch, Torchao(), arguments.size) if arguments.only in g.title]
    machine = harness.describe_machine(PACKAGES)
    print(torch.cuda.get_device_name(), f"CUDA {torch.version.cuda},", *harness.machine_lines(machine), sep="\n")
    copy = measure(torch, groups, arguments.rounds)
    print(f"copy within the device: {copy / 1e3:.0f} GB/s\n")
    device_table(torch, groups, copy).print()
    cases = host_cases(torch)
    harness.measure(cases, arguments.rounds, 0.3)
    table = Table(("<on the host, microseconds of CPU time", "a call"))
    table.sections["(4, 64) bfloat16"] = [(c.label, number(c.median and c.median * 1e6) + c.problem) for c in cases]
    print()
    table.print()
    if arguments.json:
        figures = {g.title: {c.label: c.microseconds for c in (g.ours, *g.peers.values())} for g in groups}
        arguments.json.write_text(json.dumps({"machine": machine, "copy": copy, "microseconds": figures}))


if __name__ == "__main__":
    main()
