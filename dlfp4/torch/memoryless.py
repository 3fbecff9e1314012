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
        whole = "dlfp4.asarray takes it whole, " if hasattr(self, "__dlfp4_scaled__") else ""
        raise BufferError(
            f"{self!r} cannot be exchanged as one tensor: its codes mean nothing without their scales; "
            f"{whole}.dequantize() gives its values"
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise NotImplementedError(f"a copy of {self!r}: copy what it was made of, or its .dequantize()")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotImplementedError(f"{self!r} in a pickle or a file: save what it was made of, or its .dequantize()")

    def storage(self) -> Never:
        """Refused; not by NotImplementedError, after which safetensors would read at ``data_ptr()`` as many bytes as
        the values have.
        """
        raise RuntimeError(
            f"{self!r} has no storage of its own, its parts have: a module's state_dict() names them for files"
        )
