"""What a conversion must give: an independent reference of the rules, hard inputs for it, and ways to look at codes.

A type's values are those that ml_dtypes decodes; no rule is shared with the library. Magnitudes of one sign are in the
order of their codes, so that a code is an index: rounding compares with the midpoint of two neighbours, which float64
holds exactly for all types of at most 32 bits.
"""

import functools
import os

import ml_dtypes
import numpy as np

BITS = {
    "float8_e3m4": 8, "float8_e4m3": 8, "float8_e4m3b11fnuz": 8, "float8_e4m3fn": 8, "float8_e4m3fnuz": 8,
    "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8, "float6_e2m3fn": 6, "float6_e3m2fn": 6,
    "float4_e2m1fn": 4, "bfloat16": 16, "float16": 16, "float32": 32, "float64": 64,
    "int4": 4, "uint4": 4, "int2": 2, "uint2": 2,
}  # fmt: skip
FLOATS = [name for name in BITS if "int" not in name]
LOW = [name for name in FLOATS if BITS[name] <= 8]
WIDE = [name for name in FLOATS if BITS[name] > 8]
FLOATS_BELOW_8 = [name for name in FLOATS if BITS[name] < 8]
SUBBYTE = [name for name in BITS if BITS[name] < 8]
PAIRS = [(source, target) for source in FLOATS for target in FLOATS if source != target]
ROUNDINGS = ["nearest_even", "nearest_away", "toward_zero"]


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def codes_of(x):
    """The code of each element, in the integer type of its width; of an array or of a dlfp4 Tensor."""
    array = x if isinstance(x, np.ndarray) else x.to_numpy()
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def of_codes(codes, name):
    """The array of that type with those codes."""
    dtype = dtype_of(name)
    return np.asarray(codes).astype(f"u{dtype.itemsize}").view(dtype)


def all_codes(name):
    """Every code of a type of at most 16 bits."""
    return of_codes(np.arange(1 << BITS[name]), name)


def native_cast(array, name):
    """NumPy's and ml_dtypes' own conversion, without their warnings of overflow and NaN."""
    with np.errstate(all="ignore"):
        return array.astype(dtype_of(name))


class Codec:
    """One floating-point type: its codes in order, its special codes, and the reference that rounds to it."""

    def __init__(self, name):
        self.name, self.dtype, self.bits = name, dtype_of(name), BITS[name]
        self.unsigned = name == "float8_e8m0fnu"
        self.fnuz = name.endswith("fnuz")
        self.sign = 0 if self.unsigned else 1 << (self.bits - 1)
        one_sign = self.bits - (not self.unsigned)
        if self.bits <= 16:
            self.values = native_cast(of_codes(np.arange(1 << one_sign), name), "float64")
            self.largest = int(np.flatnonzero(np.isfinite(self.values))[-1])
            self.infinity = int(np.argmax(self.values == np.inf)) if np.inf in self.values else None
            self.finite_codes = np.isfinite(native_cast(all_codes(name), "float64"))
            self.has_nan = bool(np.isnan(native_cast(all_codes(name), "float64")).any())
            self.values[self.largest + 1 :] = np.nan
        else:
            self.largest, self.infinity, self.has_nan = 0x7F7FFFFF, 0x7F800000, True
        self.nan = self.sign if self.fnuz else {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000}.get(name)
        if self.nan is None and self.has_nan:
            quiet = {"float8_e3m4": 0x78, "float8_e4m3": 0x7C, "float8_e5m2": 0x7E, "float8_e8m0fnu": 0xFF}
            self.nan = quiet.get(name, 0x7F)

    def is_finite(self, codes):
        return self.finite_codes[codes]
