"""What this build of dlfp4 is and what machine it runs on."""

import os
import platform
import sys
from importlib import metadata

from dlfp4 import frameworks
from dlfp4._core import __version__, cpu_isa, cuda_available, cuda_image, get_num_threads


def get_include() -> str:
    """The folder to give a C or C++ compiler for ``#include <dlfp4/dlpack.h>`` and ``<dlfp4/dlfp4.h>``."""
    package = os.path.dirname(__file__)
    installed = os.path.join(package, "include")
    # An editable install leaves the headers where they are written, beside the package.
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(package), "include")


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
