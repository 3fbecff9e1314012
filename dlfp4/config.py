"""What this build of dlfp4 is and what machine it runs on."""

import platform
import sys
from importlib import metadata

from dlfp4 import frameworks
from dlfp4._core import __version__, cpu_isa, cuda_available, cuda_image, get_num_threads
from dlfp4.files import get_include


def show_config() -> None:
    """Print versions, the instruction set of the kernels, threads, CUDA, and the frameworks that are installed."""
    threads = get_num_threads()
    rows = {
        "dlfp4": __version__,
        "python": f"{sys.version.split()[0]} on {platform.system()} {platform.machine()}",
        "numpy, ml_dtypes": f"{metadata.version('numpy')}, {metadata.version('ml_dtypes')}",
        "kernels": f"{cpu_isa()}, {threads} thread{'s' * (threads != 1)}",
        "CUDA driver": "found, with a device" if cuda_available() else "no driver or no device",
        "CUDA kernels": cuda_image() or "none in this build",
        "headers": get_include(),
        "frameworks": ", ".join(name for name in frameworks.NAMES if frameworks.framework(name).installed()),
    }
    for name, value in rows.items():
        print(f"{name:18}{value}")
