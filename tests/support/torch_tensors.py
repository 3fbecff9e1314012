"""Tensors of PyTorch, and quantized ones compared with dlfp4's."""

import importlib

from .capsules import framework

torch = framework("torch")
ScaledTensor = importlib.import_module("dlfp4.torch").ScaledTensor


def randn(*shape, seed=0):
    """The same normal random numbers in every test."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# One of each kind: two levels of scales, powers of two below 8 bits and of bytes, squares, a scale a line, one scale,
# integers with zero points.
FORMATS = ("nvfp4", "mxfp6_e2m3", "mxfp8_e4m3", "nvfp4_16x16", "fp8_128x128", "fp8_row", "fp8_e4m3", "uint4_g32")


def values(*shape, dtype=torch.bfloat16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def parts_of(q):
    """Bytes of all parts."""
    ours = q.to_dlfp4()
    parts = (ours.data, ours.scales, ours.global_scale, ours.zero_points, ours.biases)
    return [None if part is None else (part.shape, bytes_of(part)) for part in parts]


def bytes_of(part):
    whole = part.copy()
    return whole.reshape(-1).view("uint8").to_numpy().tobytes() if whole.ndim else whole.to_numpy().tobytes()


def same(q, ours):
    """Whether a tensor has the codes and scales of dlfp4's."""
    return parts_of(q) == parts_of(ScaledTensor.from_dlfp4(ours)) and q.axis == ours.axis
