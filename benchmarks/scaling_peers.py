"""The other libraries that bench_scaling.py measures, and NumPy as one would write it by hand.

Each gives a Case for quantizing a matrix along its rows, or for the way back, or None where it has no such function.
Rules differ in details from dlfp4's (tests/checkpoints/test_torchao.py lists torchao's); the work is the same.
"""

import logging
from typing import Any

import harness
import ml_dtypes
import numpy as np
from harness import Case, Missing

import dlfp4
from dlfp4 import checkpoints

# Element type, largest value and its exponent, block.
ELEMENTS = {
    "nvfp4": ("float4_e2m1fn", 6.0, 2, 16),
    "mxfp4": ("float4_e2m1fn", 6.0, 2, 32),
    "mxfp6_e2m3": ("float6_e2m3fn", 7.5, 2, 32),
    "mxfp8_e4m3": ("float8_e4m3fn", 448.0, 8, 32),
    "fp8_128x128": ("float8_e4m3fn", 448.0, 8, 128),
}
FP8_BLOCKS = {"fp8_e4m3": (0, 0), "fp8_row": (1, 0), "fp8_1x128": (1, 128), "fp8_128x128": (128, 128)}  # 0: all
E4M3, E8M0 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e8m0fnu)
F = np.float32


# ---- NumPy


def numpy_pack(codes: Any, bits: int) -> Any:
    """FP4: two elements a byte; FP6: four in three."""
    if bits == 4:
        return codes[..., ::2] | codes[..., 1::2] << 4
    if bits == 8:
        return codes
    a, b, c, d = (codes[..., i::4] for i in range(4))
    return np.stack([a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2], -1)


def numpy_unpack(octets: Any, bits: int) -> Any:
    """The codes of each block again, one a byte."""
    if bits == 8:
        return octets
    if bits == 4:
        codes = np.stack([octets & 15, octets >> 4], -1)
        return codes.reshape(*octets.shape[:-1], -1)
    a, b, c = (octets[..., i] for i in range(3))
    codes = np.stack([a & 63, (a >> 6 | b << 2) & 63, (b >> 4 | c << 4) & 63, c >> 2], -1)
    return codes.reshape(*octets.shape[:-2], -1)


def numpy_scales(magnitude: Any, name: str, unit: float | None) -> tuple[Any, Any]:
    """Of blocks with these largest magnitudes, and what to multiply their elements by."""
    _, largest, exponent, _ = ELEMENTS[name]
    if name == "fp8_128x128":
        return magnitude / F(largest), F(largest) / magnitude
    if name == "nvfp4":
        whole = F(magnitude.max() / F(2688) if unit is None else unit)
        scales = (magnitude / (F(6) * whole)).astype(E4M3)
        return scales, F(1) / (scales.astype(F) * whole)
    power = np.frexp(magnitude)[1] - 1 - exponent
    return (power + 127).astype(np.uint8).view(E8M0), np.ldexp(F(1), -power)


def numpy_quantize(x: Any, name: str, unit: float | None) -> tuple[Any, Any]:
    """Scales and packed elements; `unit` is NVFP4's scale of the tensor, where it is given."""
    element, largest, _, length = ELEMENTS[name]
    axes: tuple[int, ...]
    if name == "fp8_128x128":
        lines, length = (min(length, extent) for extent in x.shape)
        blocks, axes = x.astype(F).reshape(x.shape[0] // lines, lines, -1, length), (1, 3)
    else:
        blocks, axes = x.astype(F).reshape(x.shape[0], -1, length), (2,)
    scales, multiplier = numpy_scales(np.abs(blocks).max(axes, keepdims=True), name, unit)
    codes = np.clip(blocks * multiplier, -largest, largest).astype(element).view(np.uint8)
    return scales, numpy_pack(codes, ml_dtypes.finfo(element).bits)


def numpy_dequantize(scales: Any, octets: Any, name: str, dtype: Any, unit: float) -> Any:
    """The blocks again."""
    element, _, _, _ = ELEMENTS[name]
    values = numpy_unpack(octets, ml_dtypes.finfo(element).bits).view(element).astype(F)
    return (values * (scales.astype(F) * F(unit))).astype(dtype)


def numpy_case(name: str, x: Any, back: bool, unit: float | None) -> Case:
    """A case of the two functions above."""
    if not back:
        return Case("NumPy", "f(x, n, u)", f=numpy_quantize, x=x, n=name, u=unit)
    scales, octets = numpy_quantize(x, name, 1.0)
    return Case("NumPy", "f(s, o, n, t, u)", f=numpy_dequantize, s=scales, o=octets, n=name, t=x.dtype, u=1.0)


# ---- ggml


def ggml_case(gguf: Any, name: str, x: Any, back: bool) -> Case | None:
    """ggml's formats in NumPy, as its package gguf has them: no NVFP4 but from it, and float32 only."""
    if name not in ("mxfp4", "nvfp4") or x.dtype != F or (name == "nvfp4" and not back):
        return None
    if isinstance(gguf, Missing):
        return Case("ggml", "f()", f=gguf)
    kind = gguf.GGMLQuantizationType[name.upper()]
    if not back:
        return Case("ggml", "f(x, k)", f=gguf.quantize, x=x, k=kind)
    blocks = checkpoints.to_ggml(dlfp4.quantize(x, name)).to_numpy()
    return Case("ggml", "f(b, k)", f=gguf.dequantize, b=blocks, k=kind)


# ---- torchao


class Torchao:
    """torchao's functions on the host, as they are and compiled."""

    def __init__(self) -> None:
        logging.disable(logging.CRITICAL)  # of what torchao cannot load, and how PyTorch fails to compile
        self.torch = harness.load("torch")
        self.mx = harness.load("torchao.prototype.mx_formats.mx_tensor")
        self.nv = harness.load("torchao.prototype.mx_formats.nvfp4_tensor")
        self.fp8 = harness.load("torchao.quantization.quant_primitives")

    @property
    def missing(self) -> Missing | None:
        return next((part for part in (self.torch, self.mx, self.nv, self.fp8) if isinstance(part, Missing)), None)

    def set_threads(self, threads: int) -> None:
        """For PyTorch and for what it compiles; 0: all cores."""
        if self.missing:
            return
        count = threads or harness.usable_cores()
        self.torch.set_num_threads(count)
        harness.load("torch._inductor.config").cpp.threads = count
        self.torch.compiler.reset()

    def tensor(self, x: Any) -> Any:
        if x.dtype == F:
            return self.torch.from_numpy(x)
        return self.torch.from_numpy(x.view(np.int16)).view(self.torch.bfloat16)

    def element(self, name: str) -> Any:
        names = {"mxfp4": self.torch.float4_e2m1fn_x2, "mxfp6_e2m3": "fp6_e2m3", "mxfp8_e4m3": self.torch.float8_e4m3fn}
        return names[name]

    def quantize(self, name: str, rule: str) -> Any:
        """A function of a matrix and NVFP4's scale of the tensor (None: to be found)."""
        if name == "nvfp4, a scale a row":

            def quantize(x: Any, unit: Any) -> Any:
                unit = self.nv.per_tensor_amax_to_scale(x.abs().amax(1, keepdim=True))
                return self.nv.nvfp4_quantize(x, 16, unit)

        elif name == "nvfp4":

            def quantize(x: Any, unit: Any) -> Any:
                unit = self.nv.per_tensor_amax_to_scale(x.abs().max()) if unit is None else unit
                return self.nv.nvfp4_quantize(x, 16, unit)

        elif name in FP8_BLOCKS:

            def quantize(x: Any, unit: Any) -> Any:
                block = [min(size or extent, extent) for size, extent in zip(FP8_BLOCKS[name], x.shape, strict=True)]
                scales = self.fp8._choose_scale_float8(x, block)
                return scales, self.fp8._quantize_affine_float8(x, scales)

        else:
            element, mode = self.element(name), self.mx.ScaleCalculationMode[rule.upper()]

            def quantize(x: Any, unit: Any) -> Any:
                return self.mx.to_mx(x, element, 32, mode)

        return quantize

    def dequantize(self, name: str, dtype: Any) -> Any:
        """A function of scales, elements and NVFP4's scale of the tensor."""
        if name == "nvfp4":

            def dequantize(scales: Any, data: Any, unit: Any) -> Any:
                return self.nv.NVFP4Tensor(data, scales, 16, dtype, unit).dequantize(dtype)

        elif name in FP8_BLOCKS:

            def dequantize(scales: Any, data: Any, unit: Any) -> Any:
                return self.fp8._dequantize_affine_float8(data, scales, dtype)

        else:
            element = self.element(name)

            def dequantize(scales: Any, data: Any, unit: Any) -> Any:
                return self.mx.to_dtype(data, scales, element, 32, dtype)

        return dequantize

    def case(self, name: str, x: Any, back: bool, unit: float | None, compiled: bool) -> Case:
        """Rows, or the way back.

        PyTorch compiles no float8_e8m0fnu for the host: there it gets scales as bytes, and the rule `rceil`, whose
        scales it does not view as that type between two steps.
        """
        label = "compiled" if compiled else "torchao"
        if self.missing:
            return Case(label, "f()", f=self.missing)
        f: Any = self.quantize(name, "rceil" if compiled else "floor")
        tensor, given = self.tensor(x), None if unit is None else self.torch.tensor(unit)
        if not back:
            f = self.torch.compile(f, dynamic=False) if compiled else f
            return Case(label, "f(x, u)", f=f, x=tensor, u=given)
        given = self.torch.tensor(0.01)
        scales, data = f(tensor, given)
        scales = scales.view(self.torch.uint8) if scales.dtype == self.torch.float8_e8m0fnu else scales
        f = self.dequantize(name, tensor.dtype)
        f = self.torch.compile(f, dynamic=False) if compiled else f
        return Case(label, "f(s, d, u)", f=f, s=scales, d=data, u=given)

    def columns_case(self, name: str, x: Any, both: bool, unit: float | None) -> Case:
        """Along columns, which are the rows of the transpose; and along rows too."""
        if self.missing:
            return Case("torchao", "f()", f=self.missing)
        tensor, given = self.tensor(x), None if unit is None else self.torch.tensor(unit)
        statement = "f(x, u), f(x.T.contiguous(), u)" if both else "f(x.T.contiguous(), u)"
        return Case("torchao", statement, f=self.quantize(name, "floor"), x=tensor, u=given)


# ---- fouroversix


def four_over_six_case(torchao: Torchao, x: Any) -> Case:
    """NVFP4 by the smaller of two mean squared errors; on the host the package has its reference alone."""
    reference, utils = harness.load("fouroversix.quantize.pytorch.reference"), harness.load("fouroversix.utils")
    missing = next((part for part in (torchao.missing, reference, utils) if isinstance(part, Missing)), None)
    if missing:
        return Case("fouroversix", "f()", f=missing)
    f, rule = reference.quantize_to_fp4, utils.ScaleRule.mse
    names = {"f": f, "x": torchao.tensor(x), "r": rule}
    return Case("fouroversix", "f(x, scale_rule=r, use_blackwell_scale_layout=False)", **names)
