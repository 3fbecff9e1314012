"""The peers of matrix products: the nearest product of each library, by PyTorch, NumKong and ggml."""

import ctypes
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import Case, Missing

import dlfp4
from dlfp4 import checkpoints

# ---- PyTorch


def torch_case(torch: Any, rows: int, weight: int) -> Case:
    """Its bfloat16 product, of a weight that is not quantized."""
    if isinstance(torch, Missing):
        return Case("torch bf16", "f()", f=torch)
    x, w = (torch.randn(n, weight).to(torch.bfloat16) for n in (rows, weight))
    return Case("torch bf16", "f(x, w)", f=torch.matmul, x=x, w=w.T)


def torch_int8_case(torch: Any, rows: int, weight: int) -> Case:
    """Its product of int8, without any scale."""
    if isinstance(torch, Missing):
        return Case("torch int8", "f()", f=torch)
    x, w = (torch.randint(-127, 128, (n, weight), dtype=torch.int8) for n in (rows, weight))
    return Case("torch int8", "f(x, w)", f=torch._int_mm, x=x, w=w.T)


def torch_float8_case(torch: Any, rows: int, weight: int) -> Case:
    """Its product of float8_e4m3fn with a scale for each tensor; the activations are float8 too."""
    if isinstance(torch, Missing):
        return Case("torch e4m3", "f()", f=torch)
    x, w = (torch.randn(n, weight).to(torch.float8_e4m3fn) for n in (rows, weight))
    one = torch.tensor(1.0)
    return Case("torch e4m3", "f(x, w, s, s, out_dtype=t)", f=torch._scaled_mm, x=x, w=w.T, s=one, t=torch.bfloat16)


# ---- NumKong


def numkong_case(numkong: Any, name: str, rows: int, weight: int) -> Case:
    """Its product of one type, without scales, by a matrix that it has packed beforehand."""
    if isinstance(numkong, Missing):
        return Case("NumKong", "f()", f=numkong)
    rng = np.random.default_rng(1)
    x, w = (numkong.astype(rng.uniform(-4, 4, (n, weight)).astype(np.float32), name) for n in (rows, weight))
    return Case("NumKong", "f(x, w)", f=numkong.dots_packed, x=x, w=numkong.dots_pack(w))


# ---- ggml

POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t


class InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("mem_size", SIZE), ("mem_buffer", POINTER), ("no_alloc", ctypes.c_bool))


# Function, result, arguments: of libggml-base, then of libggml-cpu.
BASE = (
    ("ggml_init", POINTER, (InitParams,)),
    ("ggml_nbytes", SIZE, (POINTER,)),
    ("ggml_new_tensor_2d", POINTER, (POINTER, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)),
    ("ggml_mul_mat", POINTER, (POINTER, POINTER, POINTER)),
    ("ggml_new_graph", POINTER, (POINTER,)),
    ("ggml_build_forward_expand", None, (POINTER, POINTER)),
    ("ggml_backend_alloc_ctx_tensors_from_buft", POINTER, (POINTER, POINTER)),
    ("ggml_backend_buft_name", ctypes.c_char_p, (POINTER,)),
    ("ggml_backend_tensor_set", None, (POINTER, POINTER, SIZE, SIZE)),
    ("ggml_backend_graph_compute", ctypes.c_int, (POINTER, POINTER)),
    ("ggml_backend_cpu_buffer_type", POINTER, ()),
    ("ggml_backend_reg_dev_get", POINTER, (POINTER, SIZE)),
    ("ggml_backend_reg_get_proc_address", POINTER, (POINTER, ctypes.c_char_p)),
)
CPU = (
    ("ggml_backend_cpu_init", POINTER, ()),
    ("ggml_backend_cpu_reg", POINTER, ()),
    ("ggml_backend_cpu_set_n_threads", None, (POINTER, ctypes.c_int)),
)
FLOAT32, TYPES = 0, {"mxfp4": 39, "nvfp4": 40}  # of ggml_type


def bind(library: ctypes.CDLL, functions: Any) -> dict[str, Callable[..., Any]]:
    """Functions by name, with their types."""
    bound = {}
    for name, result, arguments in functions:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        bound[name] = function
    return bound


# Packages with ggml's shared libraries, and in which of their folders; the first that is installed counts.
GGML = {"llama_cpp": "lib", "libggml": "lib64"}


def find_ggml(folder: str) -> Path | None:
    """The folder of ggml's shared libraries: the one named, or that of a package."""
    if folder:
        return Path(folder)
    for name, inside in GGML.items():
        package = importlib.util.find_spec(name)
        if package and package.origin:
            return Path(package.origin).parent / inside
    return None


class Ggml:
    """ggml's product on the host, called through its shared libraries."""

    def __init__(self, folder: str) -> None:
        self.problem: Missing | None = None
        self.threads = 1
        place = find_ggml(folder)
        if place is None:
            self.problem = Missing(
                "no ggml library: install llama-cpp-python or libggml-python, or name its folder by --ggml"
            )
            return
        try:
            base = ctypes.CDLL(str(place / "libggml-base.so"), ctypes.RTLD_GLOBAL)
            self.f = bind(base, BASE) | bind(ctypes.CDLL(str(place / "libggml-cpu.so")), CPU)
        except (OSError, AttributeError) as error:
            self.problem = Missing(str(error))
            return
        self.backend = self.f["ggml_backend_cpu_init"]()
        self.plain = self.f["ggml_backend_cpu_buffer_type"]()

    def repacking(self) -> Any:
        """Memory in which ggml stores weights in the order of its fastest kernels; None where it has none."""
        registry = self.f["ggml_backend_cpu_reg"]()
        address = self.f["ggml_backend_reg_get_proc_address"](registry, b"ggml_backend_dev_get_extra_bufts")
        if not address:
            return None
        device = self.f["ggml_backend_reg_dev_get"](registry, 0)
        types = ctypes.CFUNCTYPE(ctypes.POINTER(POINTER), POINTER)(address)(device)
        index = 0
        while types[index]:
            if self.f["ggml_backend_buft_name"](types[index]) == b"CPU_REPACK":
                return types[index]
            index += 1
        return None

    def context(self) -> Any:
        """Room for the descriptions of some tensors, not for their elements."""
        return self.f["ggml_init"](InitParams(1 << 20, None, True))

    def fill(self, tensor: Any, data: Any) -> None:
        """Write all elements of a tensor."""
        if self.f["ggml_nbytes"](tensor) != data.nbytes:
            raise ValueError(f"ggml's tensor has {self.f['ggml_nbytes'](tensor)} bytes, ours {data.nbytes}")
        self.f["ggml_backend_tensor_set"](tensor, data.ctypes.data, 0, data.nbytes)

    def product(self, name: str, x: Any, weight: Any, repacks: bool) -> Callable[[], Any]:
        """A function that multiplies x, float32, by a ScaledTensor's transpose."""
        lines, length = weight.shape
        of_weight, of_rows = self.context(), self.context()
        w = self.f["ggml_new_tensor_2d"](of_weight, TYPES[name], length, lines)
        memory = self.repacking() if repacks else None
        self.f["ggml_backend_alloc_ctx_tensors_from_buft"](of_weight, memory or self.plain)
        rows = self.f["ggml_new_tensor_2d"](of_rows, FLOAT32, length, len(x))
        result, graph = self.f["ggml_mul_mat"](of_rows, w, rows), self.f["ggml_new_graph"](of_rows)
        self.f["ggml_build_forward_expand"](graph, result)
        self.f["ggml_backend_alloc_ctx_tensors_from_buft"](of_rows, self.plain)
        self.fill(w, checkpoints.to_ggml(weight).to_numpy())
        self.fill(rows, x)
        return functools.partial(self.f["ggml_backend_graph_compute"], self.backend, graph)

    def case(self, name: str, x: Any, weight: dlfp4.ScaledTensor) -> Case:
        """The product of a weight that both have, with activations that ggml rounds to q8_0; MXFP4 repacked."""
        if self.problem:
            return Case("ggml", "f()", f=self.problem)
        self.f["ggml_backend_cpu_set_n_threads"](self.backend, self.threads)
        return Case("ggml", "f()", f=self.product(name, x, weight, repacks=name == "mxfp4"))


def set_threads(torch: Any, ggml: Ggml, threads: int) -> None:
    """For all peers that have threads; 0: all cores."""
    count = threads or harness.usable_cores()
    torch.set_num_threads(count)
    ggml.threads = count
