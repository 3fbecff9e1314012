"""What converting elements costs: GB/s on the wider side, dlfp4 beside its peers and beside a plain copy.

    python benchmarks/bench_codecs.py [--only TEXT] [--sizes 4Ki,1Mi,64Mi] [--threads 1,0] [--json FILE]

Every library writes into memory that it was given. The limit of a pair is `np.copyto` of as many bytes in all as the
pair reads and writes. "ours / best" is the fastest peer's time over ours, "ours / limit" the copy's time over ours:
more is better. With 16 elements the table shows nanoseconds a call instead.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import harness
import ml_dtypes
import numpy as np
from harness import Case, list_of, number, parse_size

import dlfp4

PEERS = ("numpy", "ml_dtypes", "torch", "numkong", "numba")
COLUMNS = ("torch", "NumKong", "ml_dtypes", "numba")
SMALL = 16  # elements of a call whose cost, not its speed, is of interest

NUMKONG_NAMES = {
    "float64": "float64",
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "float6_e2m3fn": "e2m3",
    "float6_e3m2fn": "e3m2",
}


@dataclass(frozen=True)
class Side:
    """A type and how its elements lie in memory."""

    name: str
    packed: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(getattr(ml_dtypes, self.name, self.name))

    @property
    def bits(self) -> int:
        """Of memory, for one element."""
        info = ml_dtypes.finfo(self.dtype)
        return info.bits if self.packed else 8 * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name} packed" if self.packed else self.name


FLOAT32, FLOAT64, FLOAT16, BFLOAT16 = map(Side, ("float32", "float64", "float16", "bfloat16"))
E4M3, E5M2, E4M3FNUZ, E8M0 = map(Side, ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"))
E2M3, E3M2, E2M1 = map(Side, ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"))
E2M3_PACKED, E3M2_PACKED, E2M1_PACKED = (Side(side.name, True) for side in (E2M3, E3M2, E2M1))

PAIRS = [
    *((FLOAT32, side) for side in (E4M3, E5M2, E4M3FNUZ, E8M0, E2M3, E2M3_PACKED, E3M2_PACKED, E2M1, E2M1_PACKED)),
    *((side, FLOAT32) for side in (E4M3, E5M2, E4M3FNUZ, E8M0, E2M3, E2M3_PACKED, E3M2_PACKED, E2M1, E2M1_PACKED)),
    *((side, E4M3) for side in (BFLOAT16, FLOAT16, FLOAT64)),
    *((E4M3, side) for side in (BFLOAT16, FLOAT16, FLOAT64)),
    (BFLOAT16, E2M1_PACKED),
    (E2M1_PACKED, BFLOAT16),
    (E4M3, E5M2),
    (E2M1_PACKED, E4M3),
    (E4M3, E2M1_PACKED),
    (E2M1, E2M1_PACKED),
    (E2M1_PACKED, E2M1),
    (E2M3, E2M3_PACKED),
    (E2M3_PACKED, E2M3),
    (FLOAT32, BFLOAT16),
    (BFLOAT16, FLOAT32),
    (FLOAT32, FLOAT16),
    (FLOAT16, FLOAT32),
]


@dataclass
class Group(harness.Comparison):
    """One pair at one size on some threads: ours, the copy that moves as many bytes, and the peers by column."""

    src: Side
    dst: Side

    @property
    def title(self) -> str:
        return f"{self.src} -> {self.dst}"

    def speed(self, case: Case) -> float | None:
        """GB/s on the side that is wider in memory."""
        return case.median and max(self.src.bits, self.dst.bits) / 8 * self.elements / case.median / 1e9


# ---- The peers


class Numba:
    """Loops over packed FP4, as one writes them in an afternoon, compiled on one thread or many."""

    def __init__(self) -> None:
        self.numba = harness.load("numba")
        self.compiled: dict[tuple[str, bool], Any] = {}

    def function(self, name: str, parallel: bool) -> Any:
        """One of the loops below, compiled; `harness.Missing` without numba."""
        if isinstance(self.numba, harness.Missing):
            return self.numba
        key = name, parallel
        if key not in self.compiled:
            loops = {"decode": decode_loop(self.numba.prange), "encode": encode_loop(self.numba.prange)}
            self.compiled[key] = self.numba.njit(parallel=parallel)(loops[name])
        return self.compiled[key]


def decode_loop(prange: Any) -> Callable[..., None]:
    """Packed FP4 to float32."""
    table = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)

    def decode(codes: Any, out: Any) -> None:
        for i in prange(codes.size):
            out[2 * i] = table[codes[i] & 15]
            out[2 * i + 1] = table[codes[i] >> 4]

    return decode


def encode_loop(prange: Any) -> Callable[..., None]:
    """float32 to packed FP4: the code counts the midpoints passed. NaN becomes 0."""

    def encode(x: Any, out: Any) -> None:
        for i in prange(out.size):
            byte = 0
            for j in range(2):
                value = x[2 * i + j]
                a = abs(value)
                code = (a > 0.25) + (a >= 0.75) + (a > 1.25) + (a >= 1.75) + (a > 2.5) + (a >= 3.5) + (a > 5.0)
                byte |= (code | (8 if value < 0 else 0)) << (4 * j)
            out[i] = byte

    return encode


class Libraries:
    """What the cases call."""

    def __init__(self) -> None:
        self.torch = harness.load("torch")
        self.numkong = harness.load("numkong")
        self.numba = Numba()

    def set_threads(self, threads: int) -> None:
        """0: all cores."""
        dlfp4.set_num_threads(threads)
        self.torch.set_num_threads(threads or harness.usable_cores())

    def torch_case(self, src: Side, dst: Side, x: Any) -> Case | None:
        types = [getattr(self.torch, side.name, None) for side in (src, dst)]
        if src.packed or dst.packed or None in types:
            return None
        if isinstance(self.torch, harness.Missing):
            return Case("torch", "f()", f=self.torch)
        raw = self.torch.from_numpy(x.view(f"u{src.dtype.itemsize}").copy())
        return Case("torch", "o.copy_(x)", x=raw.view(types[0]), o=self.torch.empty(x.size, dtype=types[1]))

    def numkong_case(self, src: Side, dst: Side, x: Any) -> Case | None:
        names = [NUMKONG_NAMES.get(side.name) for side in (src, dst)]
        if src.packed or dst.packed or None in names or src == dst:
            return None
        if isinstance(self.numkong, harness.Missing):
            return Case("NumKong", "f()", f=self.numkong)
        own = x if src.name in ("float32", "float64", "float16") else self.numkong.astype(x.astype("f4"), names[0])
        out = self.numkong.zeros((x.size,), dtype=names[1])
        return Case("NumKong", "f(x, t, out=o)", f=self.numkong.astype, x=own, t=names[1], o=out)

    def ml_dtypes_case(self, src: Side, dst: Side, x: Any) -> Case | None:
        if src.packed or dst.packed:
            return None
        out = np.empty(x.size, dst.dtype)
        return Case("ml_dtypes", "f(o, x, casting='unsafe')", f=np.copyto, x=x, o=out)

    def numba_case(self, src: Side, dst: Side, x: Any, threads: int) -> Case | None:
        bytes_of_pairs = np.zeros(x.size // 2, np.uint8)
        if (src, dst) == (FLOAT32, E2M1_PACKED):
            return Case("numba", "f(x, o)", f=self.numba.function("encode", threads != 1), x=x, o=bytes_of_pairs)
        if (src, dst) == (E2M1_PACKED, FLOAT32):
            f, out = self.numba.function("decode", threads != 1), np.empty(x.size, np.float32)
            return Case("numba", "f(x, o)", f=f, x=bytes_of_pairs, o=out)
        return None


# ---- The cases


def values(side: Side, elements: int) -> Any:
    """Normal random numbers in a type, one element a byte or more, without NaN."""
    block = np.random.default_rng(1).standard_normal(min(elements, 1 << 20)).astype(np.float32)
    if side.name == E8M0.name:
        block = np.abs(block)
    return np.resize(block.astype(side.dtype), elements)


def make_group(libs: Libraries, pair: tuple[Side, Side], elements: int, threads: int, peers: list[str]) -> Group:
    """All who convert the pair, of the peers those that are wanted."""
    src, dst = pair
    x = values(src, elements)
    source = dlfp4.pack(x) if src.packed else dlfp4.asarray(x)
    out = dlfp4.empty((elements,), dst.dtype, packed=dst.packed)
    if src.name != dst.name:
        ours = Case("dlfp4", "f(x, t, out=o)", f=dlfp4.cast, x=source, t=dst.dtype, o=out)
    else:
        ours = Case("dlfp4", "f(x, out=o)", f=dlfp4.pack if dst.packed else dlfp4.unpack, x=source, o=out)
    moved = np.ones((src.bits + dst.bits) * elements // 16, np.uint8)
    limit = Case("copy", "f(o, x)", f=np.copyto, x=moved, o=moved.copy())
    group = Group(src, dst, elements=elements, threads=threads, ours=ours, limit=limit)
    candidates = {
        "torch": libs.torch_case(src, dst, x),
        "NumKong": libs.numkong_case(src, dst, x),
        "ml_dtypes": libs.ml_dtypes_case(src, dst, x),
        "numba": libs.numba_case(src, dst, x, threads),
    }
    group.peers = {name: case for name, case in candidates.items() if case and name in peers}
    return group


def measure(libs: Libraries, pair: tuple[Side, Side], elements: int, threads: int, options: Any) -> Group:
    """One pair, all libraries in turn."""
    libs.set_threads(threads)
    group = make_group(libs, pair, elements, threads, options.peers)
    cases = [group.ours, group.limit, *group.peers.values()]
    harness.measure(cases, harness.rounds_of(options, elements), options.slice_ms)
    for case in (group.ours, group.limit, *group.peers.values()):
        case.release()
    return group


# ---- The results


def row_of(group: Group) -> tuple[str, ...]:
    """A pair as a row of the table."""

    def cell(case: Case | None) -> str:
        if case is None or case.median is None:
            return "-"
        return number(case.median * 1e9 if group.elements == SMALL else group.speed(case))

    best = group.best
    return (
        f"  {group.title}",
        cell(group.ours),
        *(cell(group.peers.get(name)) for name in COLUMNS),
        number(best and best.ratio(group.ours)),
        cell(group.limit),
        number(group.limit.ratio(group.ours)),
    )


def section_of(group: Group) -> str:
    """The title of the section that it belongs to."""
    unit, what = ("ns a call", "calls of ") if group.elements == SMALL else ("GB/s on the wider side", "")
    return f"{what}{group.elements:,} elements, {harness.on_threads(group.threads)}, {unit}"


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description="Speed of conversions between element types on the CPU.")
    harness.add_arguments(parser)
    parser.set_defaults(rounds=41, slice_ms=1.0)
    parser.add_argument("--sizes", type=list_of(parse_size), default="16,4Ki,1Mi,64Mi", help="elements: %(default)s")
    parser.add_argument("--threads", type=list_of(int), default="1,0", help="0 is all cores (default: %(default)s)")
    parser.add_argument(
        "--peers", type=lambda text: text.split(","), default=",".join(COLUMNS), help="columns (default: %(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="print the pairs and stop")
    options = parser.parse_args()
    pairs = [pair for pair in PAIRS if options.only in f"{pair[0]} -> {pair[1]}"]
    if not pairs:
        parser.error(f"no pair has {options.only!r} in its title")
    if options.list:
        print("\n".join(f"{src} -> {dst}" for src, dst in pairs))
        return

    libs = Libraries()
    machine = harness.describe_machine(PEERS)
    print("\n".join(harness.machine_lines(machine)))
    groups = []
    table = harness.Table(("<", "dlfp4", *COLUMNS, "ours / best", "copy", "ours / limit"))
    for elements in options.sizes:
        for threads in options.threads if elements != SMALL else options.threads[:1]:
            for pair in pairs:
                groups.append(measure(libs, pair, elements, threads, options))
                table.sections.setdefault(section_of(groups[-1]), []).append(row_of(groups[-1]))
    table.print()
    harness.print_problems(groups)
    if options.json:
        harness.write_json(options.json, machine, [group.record("pair") for group in groups])


if __name__ == "__main__":
    main()
