"""Random cases, each target in a process of its own: what kills, hangs or lies is reported with its number.

    python tests/fuzz/run.py [--seconds 60] [--seed 0] [--only TARGET] [--case NUMBER] [--most EXECUTIONS]

A case is made by its target's name, the seed and its number alone, so `--only TARGET --seed S --case N` runs it again.
Numbers that once failed are in corpus.txt, and come first.
"""

import argparse
import mmap
import random
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus.txt"
PATIENCE = 60  # seconds without a new case, after which a process hangs
COUNTS = struct.Struct("qqq")  # the position of the case under way; how many were taken, and how many refused
MOST_FAULTS = 5  # of a target, before it is left


@dataclass
class Outcome:
    """What became of a target."""

    name: str
    executions: int = 0
    taken: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def __str__(self):
        rate = self.executions / max(self.seconds, 1e-9)
        share = f"{self.taken:>12,} taken {self.executions - self.taken:>12,} refused"
        return f"{self.name:<12}{self.executions:>12,} cases {share} {rate:>9,.0f}/s {len(self.faults):>3} faults"


def corpus(name):
    """The cases of a target that once failed: seed, number."""
    lines = (line.partition("#")[0].split() for line in CORPUS.read_text().splitlines())
    return [(int(seed), int(number)) for target, seed, number in filter(None, lines) if target == name]


def nth_case(known, seed, position):
    """Seed and number of the case at a position: those that once failed come first."""
    return known[position] if 0 <= position < len(known) else (seed, position - len(known))


# ---- The process of a target


def case_of(name, seed, number):
    """The random numbers of a case."""
    return random.Random(f"{name} {seed} {number}")


def work(options):
    """Run cases, and say in the shared file which one is under way."""
    sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
    import targets

    run = targets.TARGETS[options.only]
    with open(options.counts, "r+b") as file:
        counts = mmap.mmap(file.fileno(), COUNTS.size)
    known = corpus(options.only)
    position, end = options.case, len(known) + options.most
    taken = refused = 0
    deadline = time.monotonic() + options.seconds
    while position < end and (position < len(known) or time.monotonic() < deadline):
        COUNTS.pack_into(counts, 0, position, taken, refused)
        if run(case_of(options.only, *nth_case(known, options.seed, position))):
            taken += 1
        else:
            refused += 1
        position += 1
    COUNTS.pack_into(counts, 0, -1, taken, refused)
    targets.finish()


# ---- The process that watches it


def run_target(outcome, seed, first, seconds, most):
    """Run a target from a position on; returns that of the case that failed, or None."""
    with tempfile.NamedTemporaryFile(prefix="dlfp4-fuzz-") as file, tempfile.TemporaryFile("w+") as errors:
        file.write(COUNTS.pack(first, 0, 0))
        file.flush()
        given = {
            "only": outcome.name,
            "seed": seed,
            "case": first,
            "seconds": seconds,
            "most": most,
            "counts": file.name,
        }
        command = [sys.executable, "-P", "-X", "faulthandler", __file__]
        command += [f"--{name}={value}" for name, value in given.items()]
        process = subprocess.Popen(command, stdout=errors, stderr=errors)
        hangs = watch(process, Path(file.name))
        position, taken, refused = COUNTS.unpack(Path(file.name).read_bytes())
        outcome.taken += taken
        outcome.executions += taken + refused
        if process.returncode == 0 and position < 0:
            return None
        seed, number = nth_case(corpus(outcome.name), seed, position)
        errors.seek(0)
        how = f"hangs for {PATIENCE} s" if hangs else f"exit status {process.returncode}"
        outcome.faults.append(f"--only {outcome.name} --seed {seed} --case {number}: {how}\n{errors.read()[-4000:]}")
        return position


def watch(process, counts):
    """Wait for the end of a process; whether it had to be ended, because it stayed at one case."""
    before, since = None, time.monotonic()
    while True:
        try:
            process.wait(1)
            return False
        except subprocess.TimeoutExpired:
            now = counts.read_bytes()
        if now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            process.kill()
            process.wait()
            return True


def fuzz(name, seed, seconds, most):
    """All of a target: what once failed, then new cases until the time is over."""
    outcome, start = Outcome(name), time.monotonic()
    first, end = 0, start + seconds
    while first is not None and time.monotonic() < end and len(outcome.faults) < MOST_FAULTS:
        failed = run_target(outcome, seed, first, end - time.monotonic(), most)
        first = None if failed is None else failed + 1
    outcome.seconds = time.monotonic() - start
    return outcome


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one target")
    parser.add_argument("--case", type=int, help="run this case alone, in this process")
    parser.add_argument("--most", type=int, default=2**62, help="executions of each target")
    parser.add_argument("--counts", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.counts:
        return work(options)
    sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
    import targets

    if options.case is not None:
        print(
            "taken" if targets.TARGETS[options.only](case_of(options.only, options.seed, options.case)) else "refused"
        )
        return 0
    names = [options.only] if options.only else list(targets.TARGETS)
    outcomes = []
    for name in names:
        outcomes.append(fuzz(name, options.seed, options.seconds / len(names), options.most))
        print(outcomes[-1], *outcomes[-1].faults, sep="\n", flush=True)
    total, faults = (
        sum(map(count, outcomes)) for count in (lambda each: each.executions, lambda each: len(each.faults))
    )
    print(f"{total:,} cases, {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
