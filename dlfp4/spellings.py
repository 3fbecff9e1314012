"""How checkpoints name and store the parts of quantized tensors: a row for each way.

Sources: the exporters of NVIDIA ModelOpt, compressed-tensors (llm-compressor), AMD Quark and ComfyUI; openai/gpt-oss,
deepseek-ai, mlx. Most pack FP4 with the even element in the low nibble and keep scales in rows, as dlfp4 does. They
differ in names, containers and the meaning of the global scale; what else differs is a column of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WEIGHT = ".weight"


@dataclass(frozen=True)
class Spelling:
    """One way to store a quantized tensor: a part is named by a stem and the suffix given here.

    Attributes
    ----------
    convention : str
        The name that :func:`dlfp4.checkpoints.split_parts` takes; "" marks a spelling that is only read.
    formats : tuple of str
        The formats stored this way. Where two look alike, the first is assumed on reading.
    data, scales, global_scale : str
        Suffixes of the parts; a `global_scale` of "" means that there is none.
    name : str
        Suffix of the tensor's own name.
    words : str
        The integers that hold the data; "": uint8 for elements below 8 bits, the element type for others.
    scale_words : str
        The type of scales of one byte; "": uint8 for powers of two, else their own type.
    one : tuple of int
        The shape of a single scale.
    flat_rows : bool
        One scale a row is stored as (N,), not as (N, 1). Both are read.
    held_scales : str
        The type in which loaders hold float scales, to which quantizing rounds them; "": float32, "weights": that of
        the weights, in which loaders multiply.
    per_matrix : bool
        Stacks of experts have a global scale for each matrix.
    encodes : bool
        The stored global scale is the reciprocal of the decode scale.
    splits_blocks : bool
        The data has a separate axis for the blocks: (..., K / 32, 16).
    across : bool
        Matrices are stored transposed, (..., K / 2, N), and packed along their rows all the same.
    high_first : bool
        The even element is in the high nibble.
    scale_layout : str
        Of the stored scales.
    packing : str
        How 4-bit integers lie in words: a row of ``checkpoints.integers.PACKINGS``; "" of all other elements.
    further : tuple of str
        Suffixes of their parts beside data and scales, some of which may be absent.
    """

    convention: str
    formats: tuple[str, ...]
    data: str = ""
    scales: str = "_scale"
    global_scale: str = ""
    name: str = ""
    words: str = ""
    scale_words: str = ""
    one: tuple[int, ...] = ()
    flat_rows: bool = False
    held_scales: Literal["", "weights", "bfloat16", "float16"] = ""
    per_matrix: bool = False
    encodes: bool = False
    splits_blocks: bool = False
    across: bool = False
    high_first: bool = False
    scale_layout: Literal["linear", "128x4"] = "linear"
    packing: str = ""
    further: tuple[str, ...] = ()

    def stem(self, name: str) -> str:
        """What the names of the parts of a tensor begin with."""
        return name.removesuffix(self.name)

    def parts(self, stem: str, whole: str = "") -> tuple[str, ...]:
        """The names of data, scales and what is beside them; `whole` is the tensor's own name if not the usual one."""
        data = stem if self.name and whole == stem else stem + self.data
        further = (self.global_scale,) if self.global_scale else self.further
        return (data, stem + self.scales, *(stem + suffix for suffix in further))


FP4 = ("nvfp4", "nvfp4_16x16")
MXFP8 = ("mxfp8_e4m3", "mxfp8_e5m2")
FP8 = ("fp8_e4m3", "fp8_e5m2")
ROWS = ("fp8_row", "fp8_row_e5m2")
BYTES = (*MXFP8, *FP8)
TILES = ("fp8_128x128", "fp8_128x128_e5m2")
GROUPS = ("uint4_g32", "uint4_g64", "uint4_g128")
INT4 = ("int4_g32", "int4_g64", "int4_g128", "int4_row", *GROUPS, "uint4_row")
# torchao's parts, which its own writer names so; whether scales are in the order of matrix kernels, their shape tells.
TORCHAO = ("._weight_qdata", "._weight_scale", "._weight_per_tensor_scale", WEIGHT)
LONE = (*TORCHAO[:2], "", WEIGHT)
SPELLINGS: tuple[Spelling, ...] = (
    Spelling("modelopt", FP4, global_scale="_scale_2", per_matrix=True),
    # Before all with one scale a tensor: that of one block has two dimensions.
    Spelling("compressed-tensors", TILES, held_scales="bfloat16"),
    Spelling("modelopt", ("mxfp4", *BYTES, *ROWS), flat_rows=True),
    Spelling("compressed-tensors", FP4, "_packed", global_scale="_global_scale", one=(1,), encodes=True),
    Spelling("compressed-tensors", ("mxfp4",), "_packed"),
    Spelling("compressed-tensors", (*BYTES, *ROWS), one=(1,), held_scales="bfloat16"),
    Spelling("gpt-oss", ("mxfp4",), "_blocks", "_scales", splits_blocks=True),
    Spelling("", ("mxfp4",), ".blocks", ".scales", splits_blocks=True),  # gpt-oss in the names of OpenAI's own files
    Spelling("deepseek", (*TILES[:1], "fp8_e4m3"), scales="_scale_inv"),
    Spelling("", ("fp8_1x128", "mxfp8_32x32", "mxfp8_e4m3"), scales="_scale_inv"),
    Spelling("deepseek-v4", ("mxfp4",), WEIGHT, ".scale", name=WEIGHT, words="int8", scale_words="float8_e8m0fnu"),
    Spelling("deepseek-v4", ("mxfp8_32x32",), WEIGHT, ".scale", name=WEIGHT, scale_words="float8_e8m0fnu"),
    Spelling("deepseek-v4", ("fp8_128x128",), WEIGHT, ".scale", name=WEIGHT, scale_words="float8_e8m0fnu"),
    Spelling("llama-4", FP4, scales="_weight_scale", global_scale="_weight_scale_2", per_matrix=True, across=True),
    Spelling(
        "mlx", ("mxfp4", "nvfp4", "mxfp8_e4m3"), WEIGHT, ".scales", name=WEIGHT, words="uint32", scale_words="uint8"
    ),
    Spelling("quark", ("mxfp4", *MXFP8)),
    Spelling("stable-diffusion", FP8, WEIGHT, ".scale_weight", name=WEIGHT),
    Spelling("comfyui", ("nvfp4",), global_scale="_scale_2", high_first=True, scale_layout="128x4"),
    Spelling("comfyui", ("mxfp8_e4m3",), scale_layout="128x4"),
    Spelling("comfyui", FP8),
    Spelling("", ("nvfp4",), *TORCHAO),
    Spelling("", ("nvfp4",), *TORCHAO, scale_layout="128x4"),
    Spelling("", ("nvfp4", "mxfp4", *BYTES, *ROWS), *LONE),
    Spelling("", ("nvfp4", "mxfp4", *MXFP8), *LONE, scale_layout="128x4"),
    Spelling(
        "compressed-tensors", INT4, "_packed", held_scales="weights", packing="compressed-tensors",
        further=("_shape", "_zero_point", "_g_idx"),
    ),
    Spelling(
        "gptq", (*GROUPS, "uint4_row"), ".qweight", ".scales", name=WEIGHT, held_scales="float16", packing="gptq",
        further=(".qzeros", ".g_idx"),
    ),
    Spelling(
        "awq", (*GROUPS, "uint4_row"), ".qweight", ".scales", name=WEIGHT, held_scales="float16", packing="awq",
        further=(".qzeros",),
    ),
    Spelling(
        "mlx", GROUPS, WEIGHT, ".scales", name=WEIGHT, held_scales="weights", packing="mlx", further=(".biases",)
    ),
)  # fmt: skip
CONVENTIONS = tuple(dict.fromkeys(spelling.convention for spelling in SPELLINGS if spelling.convention))
