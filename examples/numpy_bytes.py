"""Raw FP4 and FP6 bytes from a file: map them, view them as elements, read values; nothing is copied before that."""

import tempfile
from pathlib import Path

import numpy as np

import dlfp4

SHAPE = (4, 32)

with tempfile.TemporaryDirectory() as folder:
    for dtype in ("float4_e2m1fn", "float6_e2m3fn"):
        path = Path(folder) / f"{dtype}.bin"
        values = np.linspace(-6, 6, num=SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)
        dlfp4.cast(values, dtype).view("uint8").to_numpy().tofile(path)

        mapped = np.memmap(path, dtype=np.uint8, mode="r").reshape(SHAPE[0], -1)
        tensor = dlfp4.asarray(mapped).view(dtype)  # (4, bytes a row) of uint8 become (4, 32) elements
        print(f"{path.name}: {mapped.shape} bytes -> {tensor!r}, shared: {tensor.data_ptr == mapped.ctypes.data}")

        rows = tensor[1:3]  # a view, still packed and read-only
        array = rows.to_numpy()  # one element a byte, of ml_dtypes' type: the copy
        print(f"rows 1 and 2 as {array.dtype}: {array.shape}, {array.nbytes} bytes, first four {array[0, :4]}\n")
