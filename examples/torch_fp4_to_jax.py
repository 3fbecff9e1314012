"""FP4 from PyTorch to JAX and back: PyTorch counts pairs of elements, JAX single ones, dlfp4 knows both."""

import jax.numpy as jnp
import torch

import dlfp4

# Two FP4 elements a byte, low four bits first: 0x21 is 0.5 (code 1), then 1.0 (code 2).
raw = torch.tensor([[0x21, 0x43], [0x65, 0x87]], dtype=torch.uint8)
pairs = raw.view(torch.float4_e2m1fn_x2)

tensor = dlfp4.from_dlpack(pairs)  # shares PyTorch's memory
print(f"PyTorch {tuple(pairs.shape)} {pairs.dtype} -> {tensor!r}, shared: {tensor.data_ptr == pairs.data_ptr()}")

array = tensor.to_jax()  # JAX imports FP4 only by a copy, which happens here
print(f"JAX     {array.shape} {array.dtype}\n{array.astype(jnp.float32)}")

back = dlfp4.from_dlpack(array).to_torch()  # shares JAX's memory, in pairs again
print(f"PyTorch {tuple(back.shape)} {back.dtype}, same bytes: {torch.equal(back.view(torch.uint8), raw)}")
