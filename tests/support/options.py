"""Calls that take options of several kinds, and objects that are none: dlfp4's functions and a framework's own say
the same of them.
"""

import pytest

import dlfp4

# By what is wrong in it: a call of a library's, with a plain x, a quantized w of its own, and the wrong object.
TAKING = {
    "rounding of cast": lambda lib, x, w, wrong: lib.cast(x, "float8_e4m3fn", rounding=wrong),
    "seed of cast": lambda lib, x, w, wrong: lib.cast(x, "float8_e4m3fn", rounding="stochastic", seed=wrong),
    "format": lambda lib, x, w, wrong: lib.quantize(x, wrong),
    "axis": lambda lib, x, w, wrong: lib.quantize(x, "nvfp4", axis=wrong),
    "dtype": lambda lib, x, w, wrong: lib.dequantize(w, wrong),
    "alpha": lambda lib, x, w, wrong: lib.matmul(x, w.mT, alpha=wrong),
    "activation": lambda lib, x, w, wrong: lib.matmul(x, w.mT, activation=wrong),
    "axis of vecdot": lambda lib, x, w, wrong: lib.vecdot(x, w, wrong),
}


def refused_alike(call, library, x, w, own, wrong):
    """What a library raises of a wrong object: the same as dlfp4 does; `own` is the library's form of w."""
    with pytest.raises((TypeError, ValueError)) as expected:
        call(dlfp4, x, w, wrong)
    with pytest.raises(type(expected.value)) as found:
        call(library, x, own, wrong)
    assert str(found.value) == str(expected.value)
    return found.value
