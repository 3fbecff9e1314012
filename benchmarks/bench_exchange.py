"""What passing a tensor costs: nanoseconds a call, dlfp4 beside its peers.

    python benchmarks/bench_exchange.py [--only TEXT] [--json FILE]

Every group has one exchange by dlfp4 first and the same exchange by others below; "ours / it" is dlfp4's time over the
row's, and a target is the most that this ratio may be.
"""

import argparse
from dataclasses import dataclass, field
from typing import Any

import harness
import ml_dtypes
import numpy as np
from harness import Case

import dlfp4

SHAPE = (8, 16)
PEERS = ("numpy", "ml_dtypes", "torch", "apache-tvm-ffi", "numkong", "jax")
MAX_VERSION = (1, 3)


@dataclass
class Group:
    """One exchange: ours, the peers', and by peer's label the most that ours may take of the peer's time."""

    title: str
    ours: Case
    peers: list[Case]
    targets: dict[str, float] = field(default_factory=dict)


# ---- The cases


def calls(name: str, x: Any, *functions: tuple[str, Any]) -> list[Case]:
    """A case ``f(x)`` for each (label, function)."""
    return [Case(f"{label}({name})", "f(x)", f=function, x=x) for label, function in functions]


class Libraries:
    """The frameworks with a small tensor of each; what is not installed is `Missing` all the way down."""

    def __init__(self) -> None:
        self.torch = harness.load("torch")
        self.jax = harness.load("jax")
        self.tvm_ffi = harness.load("tvm_ffi")
        self.numkong = harness.load("numkong")
        zeros = self.torch.zeros
        self.array = np.zeros(SHAPE, np.float32)
        self.bf16 = zeros(SHAPE, dtype=self.torch.bfloat16)
        self.fp8 = zeros(SHAPE, dtype=self.torch.float8_e4m3fn)
        self.float32 = zeros(SHAPE, dtype=self.torch.float32)
        self.pairs = zeros(SHAPE, dtype=self.torch.uint8).view(self.torch.float4_e2m1fn_x2)
        self.jax_bf16 = self.jax.numpy.zeros(SHAPE, self.jax.numpy.bfloat16)
        # Of a tensor of its own: PyTorch hands out faster what another library already holds.
        self.tvm_bf16 = self.tvm_ffi.from_dlpack(zeros(SHAPE, dtype=self.torch.bfloat16))
        self.nk = self.numkong.zeros(SHAPE, dtype="float32")
        self.own = dlfp4.from_dlpack(self.array)

    def importers(self) -> list[tuple[str, Any]]:
        """Every library's from_dlpack."""
        return [
            ("tvm_ffi.from_dlpack", self.tvm_ffi.from_dlpack),
            ("np.from_dlpack", np.from_dlpack),
            ("numkong.from_dlpack", self.numkong.from_dlpack),
            ("torch.from_dlpack", self.torch.from_dlpack),
            ("jax.dlpack.from_dlpack", self.jax.dlpack.from_dlpack),
        ]


def import_groups(libs: Libraries) -> list[Group]:
    """from_dlpack of every producer."""
    targets = {
        "torch bfloat16": {"tvm_ffi.from_dlpack": 0.65},
        "torch float8_e4m3fn": {"tvm_ffi.from_dlpack": 0.65},
        "torch float32": {"tvm_ffi.from_dlpack": 0.95},
        "numpy float32": {"np.from_dlpack": 0.4},
        "own Tensor": dict.fromkeys((label for label, _ in libs.importers()), 1.0),
    }
    producers = {
        "torch bfloat16": libs.bf16,
        "torch float8_e4m3fn": libs.fp8,
        "torch float32": libs.float32,
        "torch FP4 pairs": libs.pairs,
        "numpy float32": libs.array,
        "own Tensor": libs.own,
        "tvm_ffi bfloat16": libs.tvm_bf16,
        "jax bfloat16": libs.jax_bf16,
    }
    groups = []
    for name, x in producers.items():
        (ours,) = calls(name, x, ("dlfp4.from_dlpack", dlfp4.from_dlpack))
        peers = calls(name, x, *libs.importers())
        limits = {f"{label}({name})": limit for label, limit in targets.get(name, {}).items()}
        groups.append(Group(f"Import: {name}", ours, peers, limits))
    own = next(group for group in groups if group.title.endswith("own Tensor"))
    for name in ("torch bfloat16", "torch float32", "numpy float32"):
        own.peers += calls(name, producers[name], ("dlfp4.from_dlpack", dlfp4.from_dlpack))
        own.targets[own.peers[-1].label] = 1.0
    return groups


def export_groups(libs: Libraries) -> list[Group]:
    """``__dlpack__`` with the capsule dropped unused, as the producer's share of an exchange."""
    producers = {
        "numkong": libs.nk,
        "numpy": libs.array,
        "tvm_ffi": libs.tvm_bf16,
        "torch": libs.float32,
        "jax": libs.jax_bf16,
    }
    forms = {
        "versioned": ("x.__dlpack__(max_version=v)", "__dlpack__(max_version=(1, 3))"),
        "legacy": ("x.__dlpack__()", "__dlpack__()"),
    }
    groups = []
    for form, (statement, shown) in forms.items():
        ours = Case(f"dlfp4 {shown}", statement, x=libs.own, v=MAX_VERSION)
        peers = [Case(f"{name} {shown}", statement, x=x, v=MAX_VERSION) for name, x in producers.items()]
        # The legacy call has no target of its own.
        targets = {f"numkong {shown}": 0.3} if form == "versioned" else {}
        groups.append(Group(f"Export: {form} capsule, dropped", ours, peers, targets))
        if form == "versioned":
            lent = Case(f"dlfp4 {shown} of PyTorch's", statement, x=dlfp4.from_dlpack(libs.float32), v=MAX_VERSION)
            peer = Case(f"numkong {shown}", statement, x=libs.nk, v=MAX_VERSION)
            groups.append(Group("Export: the same of a Tensor that borrows from PyTorch", lent, [peer], targets))
    return groups


def consumer_group(libs: Libraries) -> Group:
    """The others' importers with our Tensor, against the same with NumPy's array."""
    (ours,) = calls("own Tensor", libs.own, ("dlfp4.from_dlpack", dlfp4.from_dlpack))
    peers = []
    for importer in libs.importers():
        peers += calls("own Tensor", libs.own, importer) + calls("numpy float32", libs.array, importer)
    return Group("Consumers of our Tensor, and of NumPy's array", ours, peers)


def round_trip_groups(libs: Libraries) -> list[Group]:
    """There and back."""
    torch_back = {"g": libs.torch.from_dlpack, "x": libs.bf16}
    numpy_back = {"g": np.from_dlpack, "x": libs.array}
    return [
        Group(
            "Round trip: torch bfloat16",
            Case("torch.from_dlpack(dlfp4.from_dlpack(x))", "g(f(x))", f=dlfp4.from_dlpack, **torch_back),
            [
                Case("dlfp4.from_dlpack(x).to_torch()", "f(x).to_torch()", f=dlfp4.from_dlpack, x=libs.bf16),
                Case("torch.from_dlpack(tvm_ffi.from_dlpack(x))", "g(f(x))", f=libs.tvm_ffi.from_dlpack, **torch_back),
                Case("torch.from_dlpack(x)", "g(x)", **torch_back),
            ],
        ),
        Group(
            "Round trip: numpy float32",
            Case("dlfp4.from_dlpack(x).to_numpy()", "f(x).to_numpy()", f=dlfp4.from_dlpack, x=libs.array),
            [
                Case("np.from_dlpack(dlfp4.from_dlpack(x))", "g(f(x))", f=dlfp4.from_dlpack, **numpy_back),
                Case("np.from_dlpack(numkong.from_dlpack(x))", "g(f(x))", f=libs.numkong.from_dlpack, **numpy_back),
                Case("np.from_dlpack(x)", "g(x)", **numpy_back),
            ],
        ),
    ]


def view_groups(libs: Libraries) -> list[Group]:
    """asarray and views."""
    fp4 = np.zeros(SHAPE, ml_dtypes.float4_e2m1fn)
    raw = bytes(64)
    holders = {"dlfp4": libs.own, "numpy": libs.array, "numkong": libs.nk, "torch": libs.float32}
    groups = [
        Group(
            "asarray",
            Case("dlfp4.asarray(numpy float32)", "f(x)", f=dlfp4.asarray, x=libs.array),
            [
                *calls("own Tensor", libs.own, ("dlfp4.asarray", dlfp4.asarray)),
                *calls("torch bfloat16", libs.bf16, ("dlfp4.asarray", dlfp4.asarray)),
                *calls("ml_dtypes FP4", fp4, ("dlfp4.asarray", dlfp4.asarray)),
                *calls("bytes", raw, ("dlfp4.asarray", dlfp4.asarray)),
                *calls("numpy float32", libs.array, ("torch.as_tensor", libs.torch.as_tensor)),
                Case("np.frombuffer(bytes, uint8)", "f(x, t)", f=np.frombuffer, x=raw, t=np.dtype(np.uint8)),
            ],
        )
    ]
    for statement in ("x[2]", "x[2:6]", "x[2:6, 4:8]", "x.T"):
        ours, *peers = (Case(f"{name} {statement}", statement, x=x) for name, x in holders.items())
        groups.append(Group(f"View: {statement}", ours, peers))
    return groups


# ---- The results


def row_of(group: Group, case: Case) -> tuple[str, ...]:
    """One case as a row of the table."""
    if case.median is None or case.spread is None:
        return f"  {case.label}", "-", "", "", "", "", case.problem[:60]
    low, high = case.spread
    ratio = None if case is group.ours else group.ours.ratio(case)
    limit = group.targets.get(case.label)
    return (
        f"  {case.label}",
        f"{case.median * 1e9:,.0f}",
        f"{low * 1e9:,.0f}-{high * 1e9:,.0f}",
        "" if ratio is None else f"{ratio:.3g}",
        "" if limit is None else f"<= {limit:g}",
        "" if ratio is None or limit is None else "yes" if ratio <= limit else "NO",
        "",
    )


def summary(groups: list[Group]) -> str:
    """How many targets are reached, and which are not."""
    reached, missed = 0, []
    for group in groups:
        for peer in group.peers:
            ratio, limit = group.ours.ratio(peer), group.targets.get(peer.label)
            if limit is None or ratio is None:
                continue
            if ratio <= limit:
                reached += 1
            else:
                missed.append(f"{group.ours.label} is {ratio:.3g} x {peer.label}, target {limit:g}")
    return "\n  ".join([f"{reached} of {reached + len(missed)} targets reached", *missed])


def record_of(group: Group, case: Case) -> dict[str, Any]:
    """One case as a row of the JSON file."""
    return {
        "group": group.title,
        "call": case.label,
        "ns": case.median and case.median * 1e9,
        "middle_half_ns": case.spread and [seconds * 1e9 for seconds in case.spread],
        "ours_over_it": None if case is group.ours else group.ours.ratio(case),
        "target": group.targets.get(case.label),
        "problem": case.problem or None,
    }


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description="Cost of exchanging small CPU tensors, in ns a call.")
    harness.add_arguments(parser)
    options = parser.parse_args()

    libs = Libraries()
    groups = [
        *import_groups(libs),
        *export_groups(libs),
        *round_trip_groups(libs),
        consumer_group(libs),
        *view_groups(libs),
    ]
    groups = [group for group in groups if options.only in group.title]
    if not groups:
        parser.error(f"no group has {options.only!r} in its title")
    cases = {group.title: [group.ours, *group.peers] for group in groups}
    loop = harness.measure([case for row in cases.values() for case in row], options.rounds, options.slice_ms)

    machine = harness.describe_machine(PEERS)
    print("\n".join(harness.machine_lines(machine)))
    print(
        f"medians of {options.rounds} interleaved rounds; the loop around each call is included ({loop * 1e9:.0f} ns)\n"
    )
    table = harness.Table(("<call", "ns", "middle half", "ours / it", "target", "<reached", "<note"))
    for group in groups:
        table.sections[group.title] = [row_of(group, case) for case in cases[group.title]]
    table.print()
    print(f"\n{summary(groups)}")
    if options.json:
        harness.write_json(options.json, machine, [record_of(g, case) for g in groups for case in cases[g.title]])


if __name__ == "__main__":
    main()
