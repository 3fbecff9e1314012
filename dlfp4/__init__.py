"""Zero-copy interchange of FP4, FP6 and FP8 tensors between frameworks, over DLPack 1.3."""

from dlfp4._core import (
    Device,
    DriverError,
    Tensor,
    __version__,
    asarray,
    cast,
    cpu_isa,
    cuda_available,
    empty,
    from_dlpack,
    get_num_threads,
    pack,
    set_num_threads,
    unpack,
)
from dlfp4.config import get_include, show_config
from dlfp4.frameworks.numpy import register_dlpack_dtypes

__all__ = [
    "Device",
    "DriverError",
    "Tensor",
    "__version__",
    "asarray",
    "cast",
    "cpu_isa",
    "cuda_available",
    "empty",
    "from_dlpack",
    "get_include",
    "get_num_threads",
    "pack",
    "set_num_threads",
    "show_config",
    "unpack",
]

register_dlpack_dtypes()
