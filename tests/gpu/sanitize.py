"""Run the tests of every CUDA kernel under the four tools of compute-sanitizer, on a machine with a GPU.

    python -P tests/gpu/sanitize.py [TOOL ...] [-- ARGUMENTS OF PYTEST]

dlfp4, pytest and compute-sanitizer (of the CUDA toolkit) have to be installed. The exit status is 1 where a tool finds
something; CONTRIBUTING.md says what racecheck reports of the ring of blocks, which is none.
"""

import subprocess
import sys
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Of kernels alone: frameworks have reports of their own.
TESTS = ("ops", "formats", "granularities", "hadamard", "dots", "matmul", "activations", "fp8", "experts")
# The library asks for a context that a thread may not have: no error.
OPTIONS = ("--target-processes", "all", "--report-api-errors", "no", "--error-exitcode", "1")
# Barriers of a block of threads: experts' sums have eight for each of at most 24 warps.
OWN_OPTIONS = {"synccheck": ("--num-cuda-barriers", "256")}


def run(tool, arguments):
    """One tool over all files; whether it found nothing and the tests passed."""
    files = [Path(__file__).with_name(f"test_cuda_{name}.py") for name in TESTS]
    command = ["compute-sanitizer", "--tool", tool, *OPTIONS, *OWN_OPTIONS.get(tool, ())]
    command += [sys.executable, "-P", "-m", "pytest", "-q", "-m", "gpu and not slow", "-k", "not torch and not jax"]
    command += [*map(str, files), *arguments]
    return subprocess.run(command, check=False).returncode == 0


def main():
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    outcomes = {tool: run(tool, given[end + 1 :]) for tool in given[:end] or TOOLS}
    for tool, is_clean in outcomes.items():
        print(f"{tool:<12}{'nothing' if is_clean else 'found something, or a test failed'}")
    return int(not all(outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
