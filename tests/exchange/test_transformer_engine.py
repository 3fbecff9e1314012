"""TransformerEngine's quantized tensors by `asarray`: objects with the attributes that its classes have, filled as its
kernels fill them. TransformerEngine itself needs a GPU and its own build, and is not run here.
"""

import numpy as np
import pytest

import dlfp4

from ..support.block_reference import make

torch = pytest.importorskip("torch")


def theirs(kind, **attributes):
    """An object of a class of that name, from their package."""
    return type(kind, (), {"__module__": "transformer_engine.pytorch.tensor", **attributes})()


def padded(scales, whole=(128, 4)):
    """Scales as their kernels allocate them, with garbage beyond the last."""
    result = torch.full([-(-size // tile) * tile for size, tile in zip(scales.shape, whole, strict=True)], 0x55)
    result = result.to(torch.uint8)
    result[: scales.shape[0], : scales.shape[1]] = scales
    return result


def octets(part):
    return torch.from_numpy(part.view("uint8").to_numpy(copy=True))


def assert_same(found, expected):
    assert (found.format, found.shape, found.axis) == (expected.format, expected.shape, expected.axis)
    assert found.dequantize().to_numpy().tobytes() == expected.dequantize().to_numpy().tobytes()


def their_nvfp4(x, recipe="transformer-engine", swizzled=False, rows=True, columns=False):
    q, across = (dlfp4.quantize(each, "nvfp4", recipe=recipe) for each in (x, np.ascontiguousarray(x.T)))
    layout = (
        (lambda s: octets(s.with_scale_layout("128x4").scales)) if swizzled else (lambda s: padded(octets(s.scales)))
    )
    amax = torch.from_numpy(np.abs(x).max(keepdims=True).reshape(1))
    return theirs(
        "NVFP4Tensor",
        _rowwise_data=octets(q.data) if rows else None,
        _rowwise_scale_inv=layout(q) if rows else None,
        _amax_rowwise=amax if rows else None,
        _columnwise_data=octets(across.data) if columns else None,
        _columnwise_scale_inv=layout(across) if columns else None,
        _amax_columnwise=amax if columns else None,
        _fp4_dtype="DType.kFloat4E2M1",
        _with_gemm_swizzled_scales=swizzled,
    )


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("shape", [(64, 96), (208, 256)])
def test_nvfp4(shape, swizzled):
    x = make("normal", shape)
    tensor = their_nvfp4(x, swizzled=swizzled, columns=True)
    q = dlfp4.asarray(tensor, copy=False)
    assert_same(q, dlfp4.quantize(x, "nvfp4", recipe="transformer-engine"))
    assert q.data.data_ptr == tensor._rowwise_data.data_ptr()
    assert q.scales.data_ptr == tensor._rowwise_scale_inv.data_ptr()
    q = dlfp4.asarray(their_nvfp4(x, swizzled=swizzled, rows=False, columns=True))
    assert_same(q, dlfp4.quantize(x, "nvfp4", recipe="transformer-engine", axis=-2))


def test_global_scales_of_rows_and_of_zeros():
    x = make("normal", (32, 64))
    expected = dlfp4.quantize(x, "nvfp4", recipe=dlfp4.Recipe(global_scale_per="row"))
    tensor = their_nvfp4(x, recipe=dlfp4.Recipe(global_scale_per="row"), columns=False)
    tensor._amax_rowwise = torch.from_numpy(np.abs(x).max(1))
    assert_same(dlfp4.asarray(tensor), expected)
    zeros = dlfp4.asarray(their_nvfp4(np.zeros((16, 32), np.float32)))
    assert float(zeros.global_scale) == 1
    assert not zeros.dequantize().to_numpy().any()


@pytest.mark.parametrize(("name", "element"), [("mxfp8_e4m3", "kFloat8E4M3"), ("mxfp8_e5m2", "kFloat8E5M2")])
def test_mxfp8(name, element):
    x = make("normal", (96, 160))
    rows, columns = (dlfp4.quantize(x, name, axis=axis) for axis in (-1, -2))
    both = {
        "_rowwise_data": octets(rows.data),
        "_rowwise_scale_inv": padded(octets(rows.scales)),
        "_columnwise_data": octets(columns.data),
        "_columnwise_scale_inv": padded(octets(columns.scales), (4, 128)),
        "_fp8_dtype": f"DType.{element}",
    }
    assert_same(dlfp4.asarray(theirs("MXFP8TensorStorage", **both)), rows)
    assert_same(dlfp4.asarray(theirs("MXFP8Tensor", **both | {"_rowwise_data": None})), columns)
    with pytest.raises(ValueError, match="expected kFloat8E4M3 or kFloat8E5M2"):
        dlfp4.asarray(theirs("MXFP8Tensor", **both | {"_fp8_dtype": "DType.kByte"}))
    with pytest.raises(ValueError, match=r"20 scales; expected \(128, 8\), whole tiles"):
        dlfp4.asarray(theirs("MXFP8Tensor", **both | {"_rowwise_scale_inv": torch.zeros(4, 5, dtype=torch.uint8)}))
    with pytest.raises(ValueError, match="neither rows nor columns"):
        dlfp4.asarray(theirs("MXFP8Tensor", **both | {"_rowwise_data": None, "_columnwise_data": None}))


def test_fp8():
    x = make("normal", (48, 80))
    q = dlfp4.quantize(x, "fp8_e5m2")
    parts = {
        "_fp8_dtype": "DType.kFloat8E5M2",
        "_scale_inv": torch.tensor([float(q.scales)]),
        "_transpose_invalid": False,
    }
    found = dlfp4.asarray(theirs("Float8Tensor", _data=octets(q.data), _transpose=None, **parts))
    assert_same(found, q)
    turned = theirs("Float8Tensor", _data=None, _transpose=octets(q.data).T.contiguous(), **parts)
    assert dlfp4.asarray(turned).dequantize().to_numpy().tobytes() == q.dequantize().to_numpy().tobytes()
    with pytest.raises(ValueError, match="has no data"):
        dlfp4.asarray(theirs("Float8Tensor", _data=None, _transpose=None, **parts))


def test_others_are_told():
    with pytest.raises(TypeError, match=r"TransformerEngine's GroupedTensor .* NVFP4Tensor, MXFP8Tensor, Float8Tensor"):
        dlfp4.asarray(theirs("GroupedTensor"))
