"""ScaledTensors of plain tensors: ``quantize``, whose gradients pass straight through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, TypedDict, Unpack, overload

import torch

from dlfp4.suggest import did_you_mean
from dlfp4.torch import functions
from dlfp4.torch.gradients import is_differentiated
from dlfp4.torch.representing import Parts
from dlfp4.torch.scaled_tensor import Axis, ScaledTensor

if TYPE_CHECKING:
    from dlfp4._core import _Rounding, _ScaleLayout
    from dlfp4.formats import Format, Recipe, RecipeName


class Quantize(torch.autograd.Function):  # type: ignore[misc]
    """Tensors quantized along some axes of one, which gets the sum of their gradients."""

    @staticmethod
    def forward(
        x: torch.Tensor, axes: tuple[Axis, ...], format: str, options: Mapping[str, Any]
    ) -> tuple[ScaledTensor, ...]:
        """Quantize."""
        return encode(x, axes, format, options)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ARG004
        """The gradients of what was quantized."""
        return sum(gradients[1:], gradients[0]), None, None, None


class QuantizeEagerly(Quantize):
    """The same with more rules, with which Dynamo takes no Function."""

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        """How many results there are."""
        context.count = len(output)

    @staticmethod
    def jvp(context: Any, tangent: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        """The derivative of what was quantized, for each axis."""
        tangents: tuple[torch.Tensor, ...] = (tangent,) * context.count
        return tangents

    @staticmethod
    def vmap(info: Any, dims: Any, x: torch.Tensor, *_: Any) -> Never:
        """Of a batch, for of what is the same for all of it PyTorch calls forward."""
        raise NotImplementedError(
            f"torch.func.vmap of derivatives through quantize, of a batch of shape {tuple(x.shape)}: there is no batch "
            f"of quantized tensors; call it for one after the other, or vmap what does not quantize"
        )


def encode(
    x: torch.Tensor, axes: tuple[Axis, ...], format: str, options: Mapping[str, Any]
) -> tuple[ScaledTensor, ...]:
    """The values quantized along each axis; each tensor has memory of its own, into which others may be copied."""
    made = functions.quantize_to_bytes(functions.arguments_of_quantize(x, format, list(axes), **options))
    results = tuple(assembled(parts, x.dtype) for parts in made)
    for q in results[1:]:
        if q.global_scale is not None and q.global_scale is results[0].global_scale:
            q.global_scale = torch.clone(q.global_scale)
    return results


def assembled(parts: Parts, dtype: torch.dtype) -> ScaledTensor:
    """The tensor of what the operations give."""
    named = {"elements": parts.data, "scales": parts.scales, "global_scale": parts.global_scale}
    named["offsets"] = parts.offsets
    return ScaledTensor(named, parts.type, tuple(parts.shape), dtype)


class Options(TypedDict, total=False):
    """What :func:`quantize` passes on."""

    recipe: Recipe | RecipeName | None
    global_scale: float | torch.Tensor | None
    rounding: _Rounding | None
    seed: int | None
    scale_layout: _ScaleLayout
    pad: bool
    hadamard: Sequence[int] | int | None


NAMES = tuple(Options.__annotations__)


def check_options(options: Mapping[str, Any]) -> None:
    """TypeError for an option that there is not, by the name of the function that users call."""
    for name in options:
        if name not in NAMES:
            raise TypeError(f"quantize() got an unexpected keyword argument {name!r}{did_you_mean(name, NAMES)}")


@overload
def quantize(
    x: torch.Tensor,
    format: Format | str,
    *,
    axis: Axis = -1,
    out: ScaledTensor | None = None,
    **options: Unpack[Options],
) -> ScaledTensor: ...
@overload
def quantize(
    x: torch.Tensor,
    format: Format | str,
    *,
    axis: tuple[Axis, ...],
    out: tuple[ScaledTensor, ...] | None = None,
    **options: Unpack[Options],
) -> tuple[ScaledTensor, ...]: ...
def quantize(
    x: torch.Tensor,
    format: Format | str,
    *,
    axis: Axis | tuple[Axis, ...] = -1,
    out: ScaledTensor | tuple[ScaledTensor, ...] | None = None,
    **options: Unpack[Options],
) -> ScaledTensor | tuple[ScaledTensor, ...]:
    """Quantize a tensor to a block-scaled format; gradients pass straight through.

    Parameters
    ----------
    x : torch.Tensor
        ``(..., K)`` of float32, bfloat16, float16 or float64, on the host or a CUDA device.
    format : Format or str
        A row of :func:`dlfp4.formats`.
    axis : int or tuple of int
        Blocks run along -1, the rows, or -2, the columns; a tuple gives a result for each.
    out : ScaledTensor or tuple of ScaledTensor, optional
        The result of an earlier call, which is overwritten; without a gradient.
    **options
        `recipe`, `global_scale`, `rounding`, `seed`, `scale_layout`, `pad` and `hadamard`, as of
        :func:`dlfp4.quantize`.

    Returns
    -------
    ScaledTensor
        Of x's shape and dtype, with the bytes of :func:`dlfp4.quantize`; or a tuple, for a tuple
        of axes. Where `x` requires a gradient, that of the result is x's.

    Raises
    ------
    ValueError, TypeError
        As :func:`dlfp4.quantize`.
    RuntimeError
        Under ``torch.jit.trace``.

    Examples
    --------
    >>> import torch, dlfp4.torch
    >>> x = torch.ones(2, 32, requires_grad=True)
    >>> dlfp4.torch.quantize(x, "nvfp4").dequantize().sum().backward()
    >>> x.grad.unique()
    tensor([1.])
    """
    check_options(options)
    if torch.jit.is_tracing():
        raise RuntimeError(
            "torch.jit.trace would keep what the traced function quantizes as a constant: quantize before, or use "
            "torch.export"
        )
    if out is not None:
        functions.quantize(x, format, axis=axis, out=out, **options)
        return out
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    # Dynamo takes an autograd.Function for more than the operations in it.
    follow = Quantize if torch.compiler.is_compiling() else QuantizeEagerly
    make = follow.apply if isinstance(x, torch.Tensor) and is_differentiated(x) else encode
    made: tuple[ScaledTensor, ...] = make(x, axes, functions.format_name(format), options)
    return made if isinstance(axis, (tuple, list)) else made[0]
