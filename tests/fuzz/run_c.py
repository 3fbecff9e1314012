"""The fuzz targets of the C API, by libFuzzer: programs fuzz_*, which clang builds with DLFP4_FUZZERS=ON, one by one.

    python tests/fuzz/run_c.py BUILD [--seconds 60] [--only TARGET] [--case HEX] [--corpus FOLDER]

Inputs that once failed are in corpus_c.txt, and come first. `--only TARGET --case HEX` runs one input alone. A corpus
that is kept makes the next run go on where this one ends.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus_c.txt")
# A file of the calls is small, whatever it says; a case that takes seconds hangs.
OPTIONS = ("-max_len=128", "-len_control=0", "-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1")
MOST_FAULTS = 5  # of a target, before it is left


def corpus(target):
    """The inputs of a target that once failed."""
    lines = (line.partition("#")[0].split() for line in CORPUS.read_text().splitlines())
    return [bytes.fromhex(data) for name, data in filter(None, lines) if name == target]


def call(program, folder, *arguments):
    """Run libFuzzer in a folder, without a GPU; its exit status and what it said."""
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [program, *OPTIONS, f"-artifact_prefix={folder}/", *map(str, arguments)],
        env=env, cwd=folder, check=False, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def run_inputs(program, folder, inputs):
    """Run some inputs, each once."""
    paths = [folder / f"known-{number}" for number in range(len(inputs))]
    for path, data in zip(paths, inputs, strict=True):
        path.write_bytes(data)
    return call(program, folder, *paths) if paths else (0, "")


def input_that_failed(folder):
    """The last one that libFuzzer has left behind, in hex."""
    left = sorted(folder.glob("*-*"), key=lambda path: path.stat().st_mtime)
    left = [path for path in left if not path.name.startswith("known-")]
    return left[-1].read_bytes().hex() if left else "?"


def report_in(said):
    """What a sanitizer or the target says of a fault, and which of our functions were under way."""
    wanted = re.compile(r"ERROR: |runtime error: |^dlfp4: |^ *#\d+ .* (in|void) (dlfp4|fuzz)")
    lines = [line[:300] for line in said.splitlines() if wanted.search(line)]
    return "\n".join(lines[:12]) or said[-2000:]


def fuzz(program, seconds, kept):
    """All of a target: how many cases there were, and what failed."""
    target, faults, cases = program.name.removeprefix("fuzz_"), [], 0
    with tempfile.TemporaryDirectory(prefix="dlfp4-fuzz-") as name:
        folder = Path(name)
        status, said = run_inputs(program, folder, corpus(target))
        if status:
            faults.append(f"an input of {CORPUS.name} fails again\n{report_in(said)}")
        grown = (kept or folder) / target
        grown.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        while (left := seconds - (time.monotonic() - start)) >= 1 and len(faults) < MOST_FAULTS:
            status, said = call(program, folder, f"-max_total_time={int(left)}", grown)
            counted = re.search(r"number_of_executed_units: (\d+)", said)
            cases += int(counted[1]) if counted else 0
            if status:
                faults.append(f"--only {target} --case {input_that_failed(folder)}\n{report_in(said)}")
        took = time.monotonic() - start
    print(
        f"{target:<12}{cases:>12,} cases {cases / max(took, 1e-9):>9,.0f}/s {len(faults):>3} faults", *faults, sep="\n"
    )
    sys.stdout.flush()
    return cases, len(faults)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder with the programs")
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--only", help="one target")
    parser.add_argument("--case", type=bytes.fromhex, help="run this input alone")
    parser.add_argument("--corpus", type=Path, help="folder that keeps what was found to reach more of the code")
    options = parser.parse_args()
    programs = sorted(options.build.resolve().glob(f"fuzz_{options.only or '*'}"))
    if not programs:
        parser.error(
            f"no program fuzz_{options.only or '*'} in {options.build}; build with -DDLFP4_FUZZERS=ON by clang"
        )
    if options.case is not None:
        with tempfile.TemporaryDirectory(prefix="dlfp4-fuzz-") as folder:
            status, said = run_inputs(programs[0], Path(folder), [options.case])
        print(said)
        return status
    kept = options.corpus and options.corpus.resolve()
    outcomes = [fuzz(program, options.seconds / len(programs), kept) for program in programs]
    cases, faults = map(sum, zip(*outcomes, strict=True))
    print(f"{cases:,} cases of the C API, {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
