"""What a type checker makes of the public API: checked by mypy, never run.

A call that must be refused carries an ignore, of which mypy says so when it is not needed.
"""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
from typing_extensions import CapsuleType

import dlfp4


class OldProducer:
    def __dlpack__(self, stream: object = None) -> object:
        return stream

    def __dlpack_device__(self) -> tuple[int, None]:
        return 1, None


def interchange(array: npt.NDArray[np.float32], capsule: CapsuleType, scalar: type[np.float32]) -> None:
    tensor = dlfp4.from_dlpack(array)
    assert_type(tensor, dlfp4.Tensor)
    assert_type(dlfp4.from_dlpack(capsule), dlfp4.Tensor)
    assert_type(dlfp4.from_dlpack(OldProducer(), device="cpu", copy=True), dlfp4.Tensor)
    assert_type(dlfp4.from_dlpack(tensor, device=("cuda", 0)), dlfp4.Tensor)  # type: ignore[arg-type]
    dlfp4.from_dlpack([1.0])  # type: ignore[arg-type]
    dlfp4.from_dlpack(x=array)  # type: ignore[call-arg]
    dlfp4.from_dlpack(b"bytes")  # type: ignore[arg-type]

    assert_type(dlfp4.asarray(b"bytes"), dlfp4.Tensor)
    assert_type(dlfp4.asarray(memoryview(b"bytes"), dtype="uint8", copy=None), dlfp4.Tensor)
    assert_type(dlfp4.asarray(array, dtype=np.dtype("float16")), dlfp4.Tensor)
    assert_type(dlfp4.asarray(array, dtype=scalar), dlfp4.Tensor)
    dlfp4.asarray(array, dtype=8)  # type: ignore[arg-type]
    assert_type(dlfp4.asarray([[1.0, 2.0]]), dlfp4.Tensor)
    dlfp4.asarray(1.0)  # type: ignore[arg-type]

    assert_type(dlfp4.empty(3, "float4_e2m1fn"), dlfp4.Tensor)
    assert_type(dlfp4.empty((np.int64(2), 3), "float6_e2m3fn", device=(1, 0), packed=False), dlfp4.Tensor)
    dlfp4.empty(2.5, "float32")  # type: ignore[arg-type]
    dlfp4.Tensor()  # type: ignore[call-arg]


def attributes(tensor: dlfp4.Tensor) -> None:
    assert_type(tensor.shape, tuple[int, ...])
    assert_type(tensor.strides, tuple[int, ...])
    assert_type(tensor.ndim, int)
    assert_type(tensor.size, int)
    assert_type(tensor.nbytes, int)
    assert_type(tensor.dtype, np.dtype[Any])
    assert_type(tensor.device, dlfp4.Device)
    assert_type(tensor.packed, bool)
    assert_type(tensor.readonly, bool)
    assert_type(tensor.data_ptr, int)
    tensor.shape = (1,)  # type: ignore[misc]


def views(tensor: dlfp4.Tensor) -> None:
    assert_type(tensor.T, dlfp4.Tensor)
    assert_type(tensor.mT, dlfp4.Tensor)
    assert_type(tensor[0], dlfp4.Tensor)
    assert_type(tensor[..., None, 1:-1], dlfp4.Tensor)
    assert_type(tensor.reshape(-1), dlfp4.Tensor)
    assert_type(tensor.reshape((2, -1)), dlfp4.Tensor)
    assert_type(tensor.view("uint8"), dlfp4.Tensor)
    assert_type(tensor.x2(), dlfp4.Tensor)
    assert_type(tensor.x2(False), dlfp4.Tensor)
    tensor["name"]  # type: ignore[index]
    tensor[[0, 1]]  # type: ignore[index]
    assert_type(tensor.reshape(2, -1), dlfp4.Tensor)


def ways_out(tensor: dlfp4.Tensor) -> None:
    assert_type(tensor.copy(), dlfp4.Tensor)
    assert_type(tensor.to_device("cuda:1"), dlfp4.Tensor)
    assert_type(tensor.to_device(tensor.device), dlfp4.Tensor)
    assert_type(tensor.to_numpy(copy=False), npt.NDArray[Any])
    assert_type(np.asarray(tensor), npt.NDArray[Any])
    np.from_dlpack(tensor)
    assert_type(len(tensor), int)
    assert_type(float(tensor), float)
    assert_type(tensor.__dlpack_device__(), tuple[int, int])
    assert_type(tensor.__dlpack__(stream=None, max_version=(1, 3), dl_device=(1, 0), copy=False), CapsuleType)
    tensor.to_device("cpu", stream=1)  # type: ignore[arg-type]


def operations(tensor: dlfp4.Tensor, array: npt.NDArray[np.float32]) -> None:
    assert_type(dlfp4.cast(array, "float4_e2m1fn"), dlfp4.Tensor)
    assert_type(dlfp4.cast(tensor, np.float32, rounding="stochastic", seed=7, packed=False, out=array), dlfp4.Tensor)
    dlfp4.cast(array, "float4_e2m1fn", rounding="upward")  # type: ignore[arg-type]
    assert_type(dlfp4.pack(tensor), dlfp4.Tensor)
    assert_type(dlfp4.unpack(tensor, out=array), dlfp4.Tensor)


def products(array: npt.NDArray[np.float32], tensor: dlfp4.Tensor) -> None:
    weight = dlfp4.quantize(array, "mxfp4").prepare()
    assert_type(weight, dlfp4.ScaledTensor)
    assert_type(dlfp4.backends(array, weight.mT), dict[str, str | None])
    with dlfp4.autotune("choices.json"):
        assert_type(dlfp4.matmul(tensor, weight.mT, alpha=2, out=array, backend="cpu"), dlfp4.Tensor)
        assert_type(dlfp4.grouped_matmul(tensor, weight.mT, array, indices=array, tokens=4), dlfp4.Tensor)
        assert_type(dlfp4.matmul(tensor, weight.mT, activation="mxfp8"), dlfp4.Tensor)
    with dlfp4.autotune(Path("choices.json")), dlfp4.autotune():
        dlfp4.matmul(array, weight.mT, activation="int4")  # type: ignore[arg-type]
    dlfp4.autotune(b"choices.json")  # type: ignore[arg-type]


def parts(q: dlfp4.ScaledTensor, array: Any) -> None:
    assert_type(q.to_numpy().scales, Any)
    print(q.to_torch().biases)  # type: ignore[union-attr]
    print(q.to_like(array).zero_points)  # type: ignore[union-attr]
    other = dlfp4.jax.quantize(array, "nvfp4")
    assert_type(dlfp4.dequantize(q, "bfloat16"), dlfp4.Tensor)
    assert_type(dlfp4.dequantize(other), dlfp4.Tensor)
    assert_type(dlfp4.concatenate([q, other]), dlfp4.ScaledTensor)
    assert_type(dlfp4.analysis.signal_to_noise(array, other), float)
    dlfp4.dequantize(1.0)  # type: ignore[arg-type]


def inside_jax(array: Any, weight: dlfp4.ScaledTensor) -> None:  # arrays are Any: JAX is optional
    q = dlfp4.jax.quantize(array, "nvfp4", recipe="modelopt", straight_through=True)
    assert_type(q, dlfp4.jax.ScaledArray)
    assert_type(dlfp4.jax.quantize(array, "nvfp4", axis=(-1, -2)), tuple[dlfp4.jax.ScaledArray, ...])
    assert_type(q.mT, dlfp4.jax.ScaledArray)
    assert_type(q.shape, tuple[int, ...])
    assert_type(q.proto, dlfp4.TensorProto)
    assert_type(q.to_tensor(), dlfp4.ScaledTensor)
    assert_type(dlfp4.jax.ScaledArray.from_tensor(weight), dlfp4.jax.ScaledArray)
    dlfp4.jax.matmul(array, q.mT, alpha=2, out_dtype="bfloat16")
    dlfp4.jax.matmul(array, q.mT, activation="int4")  # type: ignore[arg-type]
    dlfp4.jax.grouped_matmul(array, q.mT, array, indices=array, weights=array, tokens=4)
    dlfp4.jax.dequantize(array.T, "float16")
    dlfp4.jax.quantize(array, "nvfp4", axis=1)  # type: ignore[call-overload]


def machine() -> None:
    device = dlfp4.Device("cuda", 1)
    assert_type(device.type, str)
    assert_type(device.index, int)
    assert_type(device == "cuda:1", bool)
    assert_type(dlfp4.cpu_isa(), str)
    assert_type(dlfp4.cuda_available(), bool)
    assert_type(dlfp4.get_num_threads(), int)
    dlfp4.set_num_threads(0)
    dlfp4.set_num_threads("2")  # type: ignore[arg-type]
    error: RuntimeError = dlfp4.DriverError("message")
    raise error
