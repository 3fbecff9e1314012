"""``python -m dlfp4 info | config | matrix | quantize | convert | inspect | bench``."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import dlfp4
from dlfp4 import checkpoints, config, frameworks, matrix
from dlfp4.checkpoints import commands, converting
from dlfp4.formats import RECIPES

# What is done to models.
MODELS: dict[str, Callable[..., int]] = {
    "quantize": commands.quantize,
    "convert": commands.convert,
    "inspect": commands.inspect,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dlfp4", description=dlfp4.__doc__)
    parsers = parser.add_subparsers(dest="command")
    parsers.add_parser("info", help="show how dlfp4 was built, and what this machine has")
    flags = parsers.add_parser("config", help="print the flags for compiling and linking C and C++ against libdlfp4")
    for name, what in (("cflags", "for compilers"), ("libs", "for linkers"), ("cmakedir", "CMake's dlfp4_DIR")):
        flags.add_argument(f"--{name}", action="append_const", dest="names", const=name, help=what)
    tried = parsers.add_parser("matrix", help="try every installed framework and element type, both ways")
    tried.add_argument("--json", action="store_true", help="print JSON instead of a table")
    tried.add_argument("--framework", action="append", choices=frameworks.NAMES, help="only this one (repeatable)")
    tried.add_argument(
        "--dtype", action="append", choices=matrix.ROWS, metavar="DTYPE", help="only this one (repeatable)"
    )
    add_quantize(parsers.add_parser("quantize", help="quantize the weights of a model"))
    add_convert(parsers.add_parser("convert", help="store a quantized model by another convention"))
    looked = parsers.add_parser("inspect", help="show how a model is quantized, and flag what breaks inference engines")
    looked.add_argument("source", metavar="MODEL", help="a safetensors file, or the folder of a model")
    looked.add_argument("--json", action="store_true", dest="as_json", help="print JSON instead of a table")
    bench = parsers.add_parser("bench", help="run the benchmarks of a source checkout")
    bench.add_argument("name", nargs="*", help="such as `exchange` for bench_exchange.py; default: all")
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    if options.command == "info":
        dlfp4.show_config()
        return 0
    if options.command == "config":
        found = config.build_flags()
        # On one line, as pkg-config prints it: `eval` would take a second one for a command.
        print(*(found[name] for name in options.names or found), sep=" " if options.names else "\n")
        return 0
    if options.command == "bench":
        return run_benchmarks(options.name)
    if options.command in MODELS:
        return MODELS[options.command](**{name: value for name, value in vars(options).items() if name != "command"})
    report = matrix.matrix(options.framework or frameworks.NAMES, options.dtype or matrix.ROWS)
    print(matrix.as_json(report) if options.json else matrix.as_text(report))
    return int(any(cell.outcome in (matrix.Outcome.WRONG, matrix.Outcome.CRASHED) for cell in report.cells))


def add_quantize(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``quantize``, by the names that :func:`dlfp4.checkpoints.quantize_model` gives them."""
    add_places(parser, "a safetensors file, or the folder of a model")
    parser.add_argument(
        "--format", required=True, choices=dlfp4.formats(), metavar="NAME", help=", ".join(dlfp4.formats())
    )
    parser.add_argument("--recipe", choices=RECIPES, help="how scales and elements are rounded; default: the format's")
    patterns = "a module such as lm_head, a shell pattern, or re: and a regular expression (repeatable)"
    for name, what in (("include", "only"), ("exclude", "no")):
        parser.add_argument(
            f"--{name}", action="append", default=[], metavar="NAME", help=f"{what} tensors with such names: {patterns}"
        )
    for name in ("embeddings", "heads", "routers"):
        parser.add_argument(f"--include-{name}", action="store_true", help=f"quantize {name}, too")
    parser.add_argument(
        "--axis",
        type=int,
        choices=(-1, -2),
        help="the axis that is summed over in stacks of experts: -1 for (experts, out, in), -2 for (experts, in, out); "
        "default: inferred from their shapes",
    )
    parser.add_argument(
        "--convention",
        choices=checkpoints.CONVENTIONS,
        help="the project whose storage convention to use; default: that of dlfp4.checkpoints.save",
    )


def add_convert(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``convert``."""
    add_places(parser, "a safetensors file, the folder of a model, or a GGUF file")
    parser.add_argument(
        "--to",
        dest="convention",
        required=True,
        choices=converting.TARGETS,
        metavar="CONVENTION",
        help=", ".join(converting.TARGETS),
    )


def add_places(parser: argparse.ArgumentParser, what: str) -> None:
    """Where a model lies, and where the new one shall lie."""
    parser.add_argument("source", metavar="MODEL", help=what)
    where = "where to write: a file for a file, a folder for a folder"
    parser.add_argument("-o", "--output", dest="target", required=True, metavar="OUTPUT", help=where)
    jobs = "how many files of a folder to work on at once, each in its own process (default: 1)"
    parser.add_argument("--jobs", type=one_or_more, default=1, metavar="N", help=jobs)


def one_or_more(text: str) -> int:
    """A number of jobs; argparse says which argument is wrong, and shows it."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def run_benchmarks(names: list[str]) -> int:
    """Run benchmark scripts beside the package, one process each, and return the first exit status that is not 0."""
    folder = Path(dlfp4.__file__).parents[1] / "benchmarks"
    scripts = {path.stem.removeprefix("bench_"): path for path in sorted(folder.glob("bench_*.py"))}
    unknown = [name for name in names if name not in scripts]
    if not scripts:
        print(f"No benchmarks at {folder}: they live in the source tree; run this from a checkout.", file=sys.stderr)
        return 1
    if unknown:
        print(f"No benchmark named {', '.join(unknown)}; there are: {', '.join(scripts)}.", file=sys.stderr)
        return 1
    statuses = [subprocess.run([sys.executable, scripts[name]], check=False).returncode for name in names or scripts]
    return next((status for status in statuses if status), 0)


class OutputLost(Exception):  # noqa: N818 (not an error of the program)
    """The output could not be written. This is no OSError, because argparse ignores those."""


class Output(io.TextIOWrapper):
    """Standard output that raises :class:`OutputLost` when writing fails."""

    def write(self, text: str) -> int:
        """Write text, or raise :class:`OutputLost`."""
        try:
            return super().write(text)
        except OSError as error:
            raise OutputLost from error

    def flush(self) -> None:
        """Flush what is buffered, or raise :class:`OutputLost`."""
        try:
            super().flush()
        except OSError as error:
            raise OutputLost from error


def run() -> int:
    """Run :func:`main` with a terminal, a pipe or a file as output, and return the exit status.

    Characters that the output cannot encode are escaped. A closed pipe and Ctrl-C end the program quietly, with the
    statuses that shells use for them, 141 and 130. Other failures to write, such as a full disk, are reported in one
    line.
    """
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper):
        encoding, by_lines = sys.stdout.encoding, sys.stdout.line_buffering
        sys.stdout = Output(sys.stdout.detach(), encoding, "backslashreplace", line_buffering=by_lines)
    try:
        try:
            status = main()
        finally:  # argparse prints, then raises SystemExit
            sys.stdout.flush()
    except OutputLost as lost:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes the rest there at exit
        if isinstance(lost.__cause__, BrokenPipeError):
            return 141
        print(f"python -m dlfp4: the output could not be written: {lost.__cause__}", file=sys.stderr)
        return 74  # EX_IOERR
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(run())
