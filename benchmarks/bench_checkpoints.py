"""What quantizing a model costs beside copying its file.

    python benchmarks/bench_checkpoints.py [--size 1Gi] [--rounds 7] [--folder DIR] [--json FILE]

A model of bfloat16 matrices in one file, by default of 1 GiB, is copied by `cp` and quantized by
`checkpoints.quantize_model`, in turn. Both write a new file, and both read what the first round has brought into
memory. Each runs twice, and the second run counts: where a file is longer than the one that was removed for it, a
virtual machine that gives free memory back to its host waits for pages, and that is no case's own. `cp` returns before
its file is on the disk, `quantize_model` when its file is: the column "and sync" is `cp` with a `sync` of the file.
"ours / cp" is the median of each round's ratio: less is better.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from harness import Table, describe_machine, machine_lines, number, parse_size, write_json

from dlfp4 import checkpoints

ROWS, COLUMNS = 4096, 4096  # of a matrix: 32 MiB
CASES = (
    ("nvfp4", "modelopt"),
    ("nvfp4", "compressed-tensors"),
    ("mxfp4", "compressed-tensors"),
    ("mxfp8_e4m3", "compressed-tensors"),
    ("fp8_128x128", "deepseek"),
)


def write_model(path: Path, size: int) -> None:
    """A model of random weights: one matrix under many names, as their values do not matter."""
    weight = (np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32) * 0.02).astype(ml_dtypes.bfloat16)
    layers = range(max(1, size // weight.nbytes))
    checkpoints.save(path, {f"model.layers.{layer}.mlp.up_proj.weight": weight for layer in layers}, {"format": "pt"})


def seconds(work: Callable[[], Any], made: Path) -> float:
    """How long it takes to make a file, which is removed before."""
    made.unlink(missing_ok=True)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spread(values: list[float]) -> str:
    """The median, and between which values the middle half lies."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{number(middle)} ({number(low)}-{number(high)})"


def measure(folder: Path, size: int, rounds: int) -> list[dict[str, Any]]:
    """The seconds of each case, round by round."""
    source, copy, target = folder / "model.safetensors", folder / "copy.safetensors", folder / "quantized.safetensors"
    write_model(source, size)
    plain = ["cp", str(source), str(copy)]
    synced = ["sh", "-c", 'cp "$1" "$2" && sync "$2"', "sh", str(source), str(copy)]
    works: dict[str, tuple[Callable[[], Any], Path]] = {
        "cp": (lambda: subprocess.run(plain, check=True), copy),
        "cp and sync": (lambda: subprocess.run(synced, check=True), copy),
    }
    for format, convention in CASES:
        works[f"{format}, {convention}"] = (
            lambda format=format, convention=convention: checkpoints.quantize_model(
                source, target, format, convention=convention
            ),
            target,
        )
    found: dict[str, list[float]] = {label: [] for label in works}
    for _ in range(rounds + 1):
        for label, (work, made) in works.items():
            seconds(work, made)
            found[label].append(seconds(work, made))
    return [{"case": label, "seconds": values[1:]} for label, values in found.items()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size", type=parse_size, default="1024Mi", help="of the model, in bytes (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="repeats of every case (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the files lie (default: the folder for temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the machine and all figures to FILE")
    options = parser.parse_args()
    machine = describe_machine(["dlfp4", "numpy", "ml_dtypes"])
    print("\n".join(machine_lines(machine)))
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = measure(Path(folder), options.size, options.rounds)
    copied = {label: result["seconds"] for result in results if (label := result["case"]).startswith("cp")}
    table = Table(("<", "seconds", "ours / cp", "ours / cp and sync"))
    rows = table.sections.setdefault(f"{options.size >> 20} MiB, load {load:.1f} before", [])
    for result in results:
        ratios = [
            "" if result["case"] in copied
            else number(statistics.median(a / b for a, b in zip(result["seconds"], copied[label], strict=True)))
            for label in copied
        ]  # fmt: skip
        rows.append((result["case"], spread(result["seconds"]), *ratios))
    table.print()
    if options.json:
        write_json(options.json, machine, results)


if __name__ == "__main__":
    main()
