"""Transposed stacks of weights on a GPU, and what products by experts say there."""

import numpy as np
import pytest

import dlfp4

from ..products.test_grouped_matmul import stack_of, values

pytestmark = pytest.mark.gpu
CUDA = "cuda:0"


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_128x128"])
def test_transposed_stacks(name):
    w = stack_of(name, 3, 128, 256)
    expected = w.dequantize().to_numpy()
    there = w.to_device(CUDA)
    for stack in (there, there.prepare()):
        turned = stack.mT
        assert (turned.shape, turned.scale_layout) == ((3, 256, 128), stack.scale_layout)
        assert (turned.dequantize().to_device("cpu").to_numpy() == expected.mT).all()
        assert (turned.mT.dequantize().to_device("cpu").to_numpy() == expected).all()
        assert (turned.to_device("cpu").dequantize().to_numpy() == expected.mT).all()
    assert there.mT.prepare().scale_layout == there.prepare().scale_layout
    assert (there.mT[1].dequantize().to_device("cpu").to_numpy() == expected[1].T).all()


def test_products_by_experts_say_what_to_call():
    w, x, ends = stack_of("mxfp4", 3, 32, 64), values((40, 64)), np.array([5, 6, 40], np.int32)
    there = [dlfp4.asarray(each).to_device(CUDA) for each in (x, ends)]
    with pytest.raises(dlfp4.BackendError, match="call matmul for each expert"):
        dlfp4.grouped_matmul(there[0], w.to_device(CUDA).mT, there[1])
    with pytest.raises(dlfp4.BackendError, match="offsets lie on cpu"):
        dlfp4.grouped_matmul(there[0], w.to_device(CUDA).mT, ends)
