"""A linear layer whose weight is quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

import torch

from dlfp4 import _core
from dlfp4.arguments import check_layer, check_named
from dlfp4.checkpoints.conventions import find_spelling
from dlfp4.torch import functions
from dlfp4.torch.names import name_parts
from dlfp4.torch.scaled_tensor import ScaledTensor, as_they_lie, checked_dtype
from dlfp4.torch.views import blank

if TYPE_CHECKING:
    from dlfp4.formats import Activation, Format


class Linear(torch.nn.Linear):  # type: ignore[misc]  # to mypy PyTorch's types are Any
    """``x @ weight.mT + bias`` with a quantized weight, which is not trained.

    :func:`quantize_` makes it of a ``torch.nn.Linear``. Made by its constructor it has a weight of zeros, for
    ``load_state_dict`` to fill.

    Parameters
    ----------
    in_features, out_features : int
        K and N of the weight ``(N, K)``.
    format : Format or str
        A row of :func:`dlfp4.formats`, whose blocks divide K.
    bias : bool
        Whether the layer has a bias.
    activation : {"int8", "fp8_1x128", "mxfp8", "fp8_row"}, optional
        How x is rounded on the way to the product; see :func:`dlfp4.matmul`.
    convention : str, optional
        The convention whose names ``state_dict`` uses for the parts of the weight, one of
        ``dlfp4.checkpoints.CONVENTIONS``. Default: dlfp4's own names, which are those of ModelOpt.
    device : device, optional
        Where the parameters lie.
    dtype : torch.dtype, optional
        float32, bfloat16, float16 or float64: of the bias, and what the weight counts as.

    Raises
    ------
    ValueError
        The blocks do not divide the weight, or those of `activation` K; the convention does not store the format; there
        is no such `activation`, or it is "int8" and the format is not FP4 in blocks.

    Examples
    --------
    >>> import torch, dlfp4.torch
    >>> layer = dlfp4.torch.Linear(64, 8, format="nvfp4")
    >>> sorted(layer.state_dict())
    ['bias', 'weight', 'weight_scale', 'weight_scale_2']
    >>> layer(torch.ones(2, 64)).shape
    torch.Size([2, 8])
    """

    activation: Activation | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        format: Format | str,
        bias: bool = True,
        activation: Activation | None = None,
        convention: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_named(activation)
        chosen = _core._find_format(format)
        if convention is not None:
            find_spelling(chosen, convention)
        check_features(in_features, out_features, chosen)
        check_layer(activation, chosen, in_features, "the weight")
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features, self.activation = in_features, out_features, activation
        kind = checked_dtype(torch.get_default_dtype() if dtype is None else dtype)
        weight = blank((out_features, in_features), chosen.name, kind, device)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        made = torch.zeros(out_features, dtype=kind, device=device) if bias else None
        self.bias = None if made is None else torch.nn.Parameter(made)
        name_parts(self, convention)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, in x's type."""
        weight, bias = self.weight, self.bias
        is_wide = x.dtype is torch.float64
        is_plain = type(weight) is not ScaledTensor or torch.jit.is_tracing()  # distributed, or replaced
        if self.activation is None and (is_wide or is_plain):
            return torch.nn.functional.linear(x, weight, bias)
        is_whole = torch.compiler.is_compiling() or weight.requires_grad
        turned = weight.mT if is_whole else as_they_lie(weight).mT  # which spares a dispatch
        product = functions.matmul(x.float() if is_wide else x, turned, activation=self.activation)
        product = product.double() if is_wide else product
        if bias is None:
            return product
        return product + (bias if bias.dtype is product.dtype else bias.to(product.dtype))  # autocast has it so

    def __prepare_scriptable__(self) -> Never:
        """What ``torch.jit.script`` asks of a module, and of those within."""
        raise NotImplementedError(
            f"torch.jit.script of {self!r}: TorchScript has no form for a quantized weight; torch.jit.trace, "
            f"torch.export and torch.compile have"
        )

    def extra_repr(self) -> str:
        """What ``print`` shows of the layer."""
        weight = self.weight
        kind = f", format={weight.format!r}" if isinstance(weight, ScaledTensor) else ""
        activation = "" if self.activation is None else f", activation={self.activation!r}"
        return f"{super().extra_repr()}{kind}{activation}"


def check_features(in_features: int, out_features: int, format: Format) -> None:
    """ValueError where blocks of a format do not divide a weight, which a layer does not complete with zeros."""
    if _core._divides((out_features, in_features), format, -1):
        return
    lines, length = format.block_in(1, 2)  # a row of half bytes ends on a whole one
    also = f", and out_features one of {lines}" if lines > 1 else ""
    raise ValueError(
        f"in_features={in_features}, out_features={out_features}: the weight does not divide into blocks of {format}; "
        f"choose in_features that is a multiple of {length}{also}"
    )
