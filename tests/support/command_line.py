"""`python -m dlfp4`, as a user calls it."""

import subprocess
import sys


def command_line(*arguments):
    """The process, once it has ended."""
    command = [sys.executable, "-P", "-m", "dlfp4", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
