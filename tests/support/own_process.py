"""Functions of test files in a process of their own, which may end, be signalled, or have other libraries."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_apart(module, function, *arguments, **options):
    """What a process says that calls a function of a module of the tests with texts."""
    # The installed package first: beside the tests lies one without a core.
    code = f"import sys, dlfp4; sys.path.insert(0, {str(ROOT)!r}); "
    code += f"from {module} import {function} as f; f(*sys.argv[1:])"
    command = [sys.executable, "-P", "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, **options)
