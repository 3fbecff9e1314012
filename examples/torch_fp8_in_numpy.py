"""FP8 and bfloat16 of PyTorch as NumPy arrays over the same memory, which `Tensor.numpy()` refuses."""

import numpy as np
import torch

import dlfp4

for dtype in (torch.float8_e4m3fn, torch.bfloat16):
    tensor = torch.tensor([0.5, 1.0, -2.0, 448.0]).to(dtype)
    array = dlfp4.from_dlpack(tensor).to_numpy()
    print(f"{tensor.dtype} -> numpy {array.dtype}: {array}, shared: {array.ctypes.data == tensor.data_ptr()}")

    array[0] = 16  # what one side writes, the other reads
    print(f"after array[0] = 16, PyTorch has {tensor.float().tolist()}")

    back = dlfp4.asarray(np.sort(array)).to_torch()
    print(f"np.sort(array) back in PyTorch: {back.dtype}, {back.float().tolist()}\n")
