"""Tensors of PyTorch."""

from .capsules import framework

torch = framework("torch")


def randn(*shape, seed=0):
    """The same normal random numbers in every test."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
