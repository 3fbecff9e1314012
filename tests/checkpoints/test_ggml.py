"""ggml's blocks: every byte has its place, both ways, and ggml's own Python package decodes the same values."""

import numpy as np
import pytest

import dlfp4
from dlfp4.checkpoints import from_ggml, to_ggml

# format: elements and bytes of a block, groups in it
BLOCKS = {"mxfp4": (32, 17, 1), "nvfp4": (64, 36, 4)}
SHAPES = [(64,), (1, 192), (5, 128), (2, 3, 64), (0, 64)]


def random_blocks(format, shape, seed=0):
    """Any bytes at all, in the shape in bytes of a GGUF tensor."""
    elements, nbytes, _ = BLOCKS[format]
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (*shape[:-1], shape[-1] // elements * nbytes), np.uint8)


def codes_of(q):
    """The element codes of a rowwise FP4 tensor, one an item."""
    packed = q.data.view("uint8").to_numpy()
    return np.stack([packed & 15, packed >> 4], -1).reshape(-1, q.shape[-1])


def codes_of_blocks(blocks, format):
    """Scales and element codes, from the layout of ggml-common.h, block by block."""
    elements, nbytes, groups = BLOCKS[format]
    scales, codes = [], []
    for block in blocks.reshape(-1, nbytes):
        scales += block[:groups].tolist()
        for group in block[groups:].reshape(groups, elements // groups // 2):
            codes += (group & 15).tolist() + (group >> 4).tolist()
    return scales, codes


@pytest.mark.parametrize("format", BLOCKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_byte_both_ways(format, shape):
    blocks = random_blocks(format, shape)
    q = from_ggml(blocks, format, shape)
    assert (q.format, q.shape, q.axis) == (format, shape, -1)
    scales, codes = codes_of_blocks(blocks, format)
    assert q.scales.view("uint8").to_numpy().reshape(-1).tolist() == scales
    assert codes_of(q).reshape(-1).tolist() == codes
    back = to_ggml(q)
    assert (back.dtype, back.shape) == (np.uint8, blocks.shape)
    np.testing.assert_array_equal(back.to_numpy(), blocks)


@pytest.mark.parametrize("format", BLOCKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_quantized_tensors_go_and_come_back(format, shape):
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    q = dlfp4.quantize(x, format)
    back = from_ggml(to_ggml(q), format, shape, global_scale=q.global_scale)
    np.testing.assert_array_equal(back.dequantize().to_numpy(), q.dequantize().to_numpy())
    for layout in ("128x4", "8x4"):
        np.testing.assert_array_equal(to_ggml(q.with_scale_layout(layout)).to_numpy(), to_ggml(q).to_numpy())


@pytest.mark.parametrize("format", BLOCKS)
def test_ggml_decodes_the_same(format):
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[format.upper()]
    assert gguf.GGML_QUANT_SIZES[kind] == BLOCKS[format][:2]
    blocks = random_blocks(format, (40, 512), seed=2)
    bytewise = blocks.reshape(-1, BLOCKS[format][1])
    groups = BLOCKS[format][2]
    # ggml has no NaN, and no sign of a scale; NumPy warns where a product leaves float32.
    bytewise[:, :groups] = np.minimum(bytewise[:, :groups], 0xFC) if format == "mxfp4" else bytewise[:, :groups] % 0x7F
    q = from_ggml(blocks, format, (40, 512))
    np.testing.assert_array_equal(q.dequantize().to_numpy(), gguf.dequantize(blocks, kind))


def test_blocks_that_ggml_made():
    gguf = pytest.importorskip("gguf")
    x = np.random.default_rng(3).normal(size=(16, 256)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.MXFP4  # the package does not quantize to NVFP4
    blocks = gguf.quantize(x, kind)
    q = from_ggml(blocks, "mxfp4", x.shape)
    np.testing.assert_array_equal(q.dequantize().to_numpy(), gguf.dequantize(blocks, kind))
    np.testing.assert_array_equal(
        q.scales.view("uint8").to_numpy(), dlfp4.quantize(x, "mxfp4").scales.view("uint8").to_numpy()
    )


def test_global_scale_is_apart():
    q = from_ggml(random_blocks("nvfp4", (4, 64)) & 0x77, "nvfp4", (4, 64), global_scale=0.5)
    plain = from_ggml(to_ggml(q), "nvfp4", (4, 64))
    np.testing.assert_array_equal(q.dequantize().to_numpy(), plain.dequantize().to_numpy() / 2)
    with pytest.raises(ValueError, match="mxfp4 has no global scale"):
        from_ggml(random_blocks("mxfp4", (4, 64)), "mxfp4", (4, 64), global_scale=0.5)


def test_memory_of_others():
    blocks = random_blocks("nvfp4", (4, 128))
    expected = from_ggml(blocks, "nvfp4", (4, 128)).data.view("uint8").to_numpy()
    read_only = np.frombuffer(blocks.tobytes(), np.uint8)
    for given in (bytes(blocks.tobytes()), read_only, dlfp4.asarray(blocks)):
        np.testing.assert_array_equal(from_ggml(given, "nvfp4", (4, 128)).data.view("uint8").to_numpy(), expected)


@pytest.mark.parametrize(
    ("blocks", "format", "shape", "error", "message"),
    [
        (np.zeros(17, np.uint8), "q4_0", (32,), ValueError, "ggml has no blocks of q4_0, only of mxfp4 and nvfp4"),
        (np.zeros(17, np.int8), "mxfp4", (32,), TypeError, "blocks have dtype int8; expected uint8"),
        (
            np.zeros(17, np.uint8),
            "mxfp4",
            (2, 32),
            ValueError,
            r"17 bytes of blocks for shape \(2, 32\); mxfp4 needs 34, 17",
        ),
        (np.zeros(18, np.uint8), "nvfp4", (32,), ValueError, "blocks of nvfp4 need a last axis in multiples of 64"),
        (np.zeros(17, np.uint8), "mxfp4", (), ValueError, r"shape \(\)"),
        *(
            (np.zeros(size, np.uint8), format, shape, ValueError, r"^shape=\(.*-.*\): expected extents from 0$")
            for size, shape in ((0, (-1, 32)), (0, (0, -64)), (0, (-1, 0)), (17, (-1, -32)), (36, (-1, -64)))
            for format in BLOCKS
        ),
    ],
)
def test_blocks_that_do_not_fit(blocks, format, shape, error, message):
    with pytest.raises(error, match=message):
        from_ggml(blocks, format, shape)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((4, 64), {"format": "mxfp8_e4m3"}, "ggml has no blocks of mxfp8_e4m3"),
        ((4, 48), {"format": "nvfp4"}, "last axis in multiples of 64"),
        ((4, 40), {"format": "mxfp4", "pad": True}, "last axis in multiples of 32"),
        ((64, 64), {"format": "nvfp4", "axis": -2}, "ggml's blocks run along the last axis"),
    ],
)
def test_tensors_that_ggml_cannot_hold(shape, options, message):
    with pytest.raises(ValueError, match=message):
        to_ggml(dlfp4.quantize(np.ones(shape, np.float32), **options))
