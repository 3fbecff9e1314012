"""What tensors made of others have in common: to PyTorch they are tensors, but memory is their parts' alone."""

from __future__ import annotations

from typing import Any, Never

import torch

from dlfp4 import Tensor


class Memoryless(torch.Tensor):  # type: ignore[misc]  # to mypy PyTorch's types are Any
    """A tensor without memory of its own, for which PyTorch would give out a null pointer: whoever wants to read it is
    refused.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl
    __dlpack_c_exchange_api__ = Tensor.__dlpack_c_exchange_api__  # which refuses what is no Tensor of dlfp4

    def __dlpack__(self, *arguments: Any, **options: Any) -> Never:
        raise BufferError(
            f"{self!r} cannot be exchanged as one tensor: its codes mean nothing without their scales; "
            f"dlfp4.asarray takes it whole, .dequantize() gives its values"
        )

    def __dlpack_device__(self) -> Never:
        self.__dlpack__()

    def numpy(self, *, force: bool = False) -> Never:
        """Refused."""
        raise NotImplementedError(f"{self!r} has no form in NumPy; call .dequantize() for the values")

    def __array__(self, *arguments: Any, **options: Any) -> Never:
        self.numpy()

    def tolist(self) -> Never:
        """Refused."""
        raise NotImplementedError(f"{self!r} as a list: call .dequantize() for the values")

    def storage(self) -> Never:
        """Refused; not by NotImplementedError, after which safetensors would read at ``data_ptr()`` as many bytes as
        the values have.
        """
        raise RuntimeError(
            f"{self!r} has no storage of its own, its parts have: a module's state_dict() names them for files"
        )
