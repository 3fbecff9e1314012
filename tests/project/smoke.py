"""Whether an installed dlfp4 works: run by path, away from the checkout, with nothing but its dependencies."""

import os
import sys

import ml_dtypes
import numpy as np

import dlfp4

values = np.array([[0.3, -5.0], [100.0, 0.5]], dtype=np.float32)
tensor = dlfp4.cast(values, "float4_e2m1fn")
assert (tensor.shape, tensor.nbytes, tensor.packed) == ((2, 2), 2, True), tensor
assert tensor.to_numpy().dtype == ml_dtypes.float4_e2m1fn
assert tensor.to_numpy().astype(np.float32).tolist() == [[0.5, -4.0], [6.0, 0.5]]
assert dlfp4.from_dlpack(tensor).data_ptr == tensor.data_ptr
assert dlfp4.from_dlpack(values).data_ptr == values.ctypes.data
assert os.path.isfile(os.path.join(dlfp4.get_include(), "dlfp4", "dlpack.h"))
assert os.path.dirname(dlfp4.__file__).startswith(sys.prefix), dlfp4.__file__
dlfp4.show_config()
