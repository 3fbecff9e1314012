"""Tensors without memory: what an operation refuses of real tensors it refuses of meta and fake ones, in the same
words, and what it gives has the same shapes, types and strides.
"""

import importlib
import itertools
import re

import pytest

import dlfp4
from dlfp4.operations import Encoding, Prepared

from ..support.capsules import framework

torch = framework("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext  # noqa: E402
from torch.utils._python_dispatch import _disable_current_modes  # noqa: E402

dt = importlib.import_module("dlfp4.torch")
F = importlib.import_module("dlfp4.torch.functions")
Recipe = dlfp4.Recipe

FORMATS = ("nvfp4", "nvfp4_16x16", "mxfp4", "mxfp6_e2m3", "mxfp8_e5m2", "fp8_e4m3", "fp8_row", "fp8_1x128", "uint4_row")
DTYPES = [getattr(torch, name) for name in (
    "float32", "float64", "bfloat16", "int8", "int32", "uint8", "bool", "complex64", "float8_e4m3fn", "float8_e8m0fnu",
)]  # fmt: skip


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def on_meta(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype, device="meta")


def linear(make, x=(2, 64), **options):
    return dt.matmul(make(*x), dt.quantize(make(32, 64), "nvfp4").mT, **options)


def by_experts(make, **options):
    w = dt.quantize(make(2, 32, 64), "nvfp4")
    return dt.grouped_matmul(make(2, 64), w.mT, make(2, dtype=torch.int32), **options)


def routed(make, rows=2, index=torch.int32, weight=torch.float32, **options):
    return by_experts(make, indices=make(rows, dtype=index), weights=make(rows, dtype=weight), **options)


def into(make, old, new, **options):
    """Quantize into memory of an earlier call; each is a format and options."""
    (format, made), (other, asked) = old, new
    return dt.quantize(make(128, 256), other, out=dt.quantize(make(128, 256), format, **made), **asked, **options)


def broken(make, name, **parts):
    """Values of a quantized tensor of which some parts are wrong."""
    q = F.quantize(make(128, 128), name)
    return dt.dequantize(q._replace(**{part: change(getattr(q, part)) for part, change in parts.items()}))


CODECS = {
    **{f"{x} to {y}": lambda make, x=x, y=y: dt.cast(make(2, 8, dtype=x), y) for x, y in itertools.product(
        DTYPES, ("float32", "float8_e8m0fnu", "float4_e2m1fn", "int8", "complex64", "nvfp4"))},
    **{f"{shape} to {name}, packed={packed}": lambda make, of=(shape, name, packed): dt.cast(
        make(*of[0]), of[1], packed=of[2]) for shape, name, packed in itertools.product(
        ((), (3,), (0,), (3, 5)), ("float4_e2m1fn", "float6_e3m2fn"), (True, False))},
    **{f"{options} to {name}": lambda make, of=(options, name): dt.cast(make(2, 8), of[1], **of[0])
       for options, name in itertools.product(
        ({"rounding": "up"}, {"rounding": "wrong"}, {"rounding": 3}, {"rounding": "stochastic"}, {"seed": 3},
         {"rounding": "stochastic", "seed": 2**64 - 1}), ("float8_e8m0fnu", "float8_e4m3fn"))},
    **{f"{function.__name__} {kind} in {dtype}": lambda make, of=(function, kind, dtype): of[0](
        dt.Parts(make(2, 6, dtype=of[2]), type=of[1])) for function, kind, dtype in itertools.product(
        (dt.pack, dt.unpack), ("", "float6_e2m3fn", "float4_e2m1fn/padded", "float8_e3m4", "nvfp4", "nothing"),
        (torch.uint8, torch.float32))},
    **{f"into {dtype}": lambda make, dtype=dtype: dt.cast(make(2, 8), "float8_e4m3fn", out=make(2, 8, dtype=dtype))
       for dtype in DTYPES},
    "into another shape": lambda make: dt.cast(make(2, 8), "float32", out=make(2, 7)),
    "into a transpose": lambda make: dt.cast(make(2, 8), "float32", out=make(8, 2).mT),
    "into one number": lambda make: dt.cast(make(2, 8), "float32", out=make(1, 8).expand(2, 8)),
    "into other bytes": lambda make: dt.cast(make(2, 8), "float6_e2m3fn", out=make(2, 8, dtype=torch.uint8)),
    "into bytes": lambda make: dt.cast(make(2, 8), "float4_e2m1fn", out=make(2, 4, dtype=torch.uint8)),
}  # fmt: skip
OPTIONS = (
    {"axis": -2}, {"axis": (-1, -2)}, {"axis": 0}, {"axis": ()}, {"axis": (-1, -1)}, {"axis": 1.5},
    {"scale_layout": "128x4"}, {"scale_layout": "aiter"}, {"scale_layout": "wrong"}, {"scale_layout": 3},
    {"recipe": "modelopt"}, {"recipe": "deepseek"}, {"recipe": "ocp"}, {"recipe": "wrong"}, {"recipe": 3},
    *({"recipe": Recipe(**recipe)} for recipe in (
        {"scale_rule": "even"}, {"pow2": True}, {"zero_scale": 200}, {"scale_order": "input_type"},
        {"scale_floor": 0.3}, {"scale_dtype": "bfloat16"}, {"scale_dtype": "float8_e8m0fnu"},
        {"four_over_six": "mean_absolute"}, {"global_scale_per": "row"}, {"global_scale_per": "matrix"},
    )),
    {"rounding": "stochastic"}, {"rounding": "stochastic", "seed": 3}, {"seed": 3}, {"rounding": "up"},
    {"hadamard": 3}, {"hadamard": (1,) * 15}, {"hadamard": (2,) * 16}, {"hadamard": 3, "axis": (-1, -2)},
    {"pad": None}, {"global_scale": 0.5}, {"global_scale": "a"},
)  # fmt: skip
UNITS = {
    "one": ((), torch.float32), "several": ((3,), torch.float32), "of rows": ((128,), torch.float32),
    "of matrices": ((2,), torch.float32), "integers": ((), torch.int32), "float64": ((1,), torch.float64),
}  # fmt: skip
QUANTIZE = {
    **{f"{name} with {options}": lambda make, of=(name, options): dt.quantize(make(128, 256), of[0], **of[1])
       for name, options in itertools.product((*FORMATS, "nvfp5"), OPTIONS)},
    **{f"{name} of {shape}, {options}": lambda make, of=(name, shape, options): dt.quantize(
        make(*of[1]), of[0], **of[2]) for name, shape, options in itertools.product(
        FORMATS, ((), (0,), (31,), (0, 32), (33, 17), (2, 64, 128)), ({}, {"axis": -2}, {"pad": True}))},
    **{f"{name} of {dtype}": lambda make, of=(name, dtype): dt.quantize(make(128, 128, dtype=of[1]), of[0])
       for name, dtype in itertools.product(("nvfp4", "fp8_row"), DTYPES)},
    **{f"{name} under scales, {units}, of {shape}": lambda make, of=(name, units, shape): dt.quantize(
        make(*of[2]), of[0], global_scale=make(*UNITS[of[1]][0], dtype=UNITS[of[1]][1]))
       for name, units, shape in itertools.product(
        ("nvfp4", "nvfp4_16x16", "fp8_e4m3", "mxfp4"), UNITS, ((128, 256), (2, 64, 256)))},
    **{f"into {old}, {new}": lambda make, of=(old, new): into(make, *of) for old, new in itertools.product(
        (("nvfp4", {}), ("mxfp4", {}), ("mxfp4", {"axis": -2}), ("nvfp4", {"hadamard": 3}), ("fp8_1x128", {})),
        (("nvfp4", {}), ("nvfp4", {"hadamard": 3}), ("mxfp4", {"scale_layout": "128x4"}), ("mxfp4", {"axis": -2}),
         ("nvfp4", {"recipe": Recipe(global_scale_per="row")}),
         ("fp8_1x128", {"recipe": Recipe(scale_dtype="bfloat16")})))},
    "a view of pairs": lambda make: dt.quantize(make(4, 64, 64).permute(1, 0, 2)[:, ::2], "nvfp4"),
}  # fmt: skip
VALUES = {
    **{f"{name} in {dtype}": lambda make, of=(name, dtype): dt.dequantize(dt.quantize(make(128, 128), of[0]), of[1])
       for name, dtype in itertools.product(FORMATS, ("bfloat16", "int8", "float4_e2m1fn", "nothing"))},
    **{f"{name} with {part} {what}": lambda make, of=(name, part, change): broken(make, of[0], **{of[1]: of[2]})
       for name, part, (what, change) in itertools.product(
        FORMATS, ("data", "scales"), {
            "absent": lambda part: None,
            "as floats": lambda part: torch.ones_like(part, dtype=torch.float64),
            "of one line": lambda part: part[:1] if part.dim() else part.reshape(1).expand(7),
        }.items()) if (part, what) != ("data", "absent")},
    **{f"{name} as {kind}": lambda make, of=(name, kind): broken(make, of[0], type=lambda _: of[1])
       for name, kind in itertools.product(
        FORMATS, ("nvfp4", "mxfp4/columns", "mxfp4/128x4", "nonsense", "float6_e2m3fn", "mxfp4/facts=1,2,3,4"))},
    **{f"{name} of shape {shape}": lambda make, of=(name, shape): broken(make, of[0], shape=lambda _: of[1])
       for name, shape in itertools.product(FORMATS, ((128, 64), (128,), (2, 64, 128), (), (-1, 128)))},
    **{f"into {dtype}": lambda make, dtype=dtype: dt.dequantize(
        dt.quantize(make(2, 64), "mxfp4"), "bfloat16", out=make(2, 64, dtype=dtype)) for dtype in DTYPES},
}  # fmt: skip
FACTORS = (*DTYPES, "nvfp4", "fp8_row", "uint4_g32")


def factor(make, kind, *shape):
    return dt.quantize(make(*shape), kind) if isinstance(kind, str) else make(*shape, dtype=kind)


PRODUCTS = {
    **{f"{call.__name__} {a} {b}": lambda make, of=(call, a, b): of[0](make, *of[1:]) for call, a, b in
       itertools.product((
           lambda make, a, b: dt.matmul(factor(make, a, 2, 64), factor(make, b, 32, 64).mT),
           lambda make, a, b: dt.vecdot(factor(make, a, 32, 64), factor(make, b, 32, 64)),
           lambda make, a, b: dt.matmul(factor(make, a, 0, 64), factor(make, b, 64, 64)),
           lambda make, a, b: dt.grouped_matmul(
               factor(make, a, 2, 64), factor(make, b, 2, 32, 64).mT, make(2, dtype=torch.int32)),
       ), FACTORS, FACTORS)},
    **{f"along {axis} of {shapes}": lambda make, of=(axis, shapes): dt.vecdot(
        make(*of[1][0]), dt.quantize(make(*of[1][1]), "mxfp4"), of[0]) for axis, shapes in itertools.product(
        (-1, 0, -2, 2, 70, "a", 1.5, None), (((4, 64), (4, 64)), ((64,), (64,)), ((2, 4, 64), (4, 64)), ((), (64,))))},
    **{f"{call.__name__} with {option}={value!r}": lambda make, of=(call, option, value): of[0](
        make, **{of[1]: of[2]}) for call, (option, values) in itertools.product((linear, by_experts), {
            "out_dtype": (*DTYPES, "float4_e2m1fn", "nothing", 3),
            "alpha": (0.5, True, "a", [1.0], 1e300, 1j),
            "activation": ("int8", "fp8_1x128", "mxfp8", "wrong", 3),
        }.items()) for value in values},
    **{f"{call.__name__} into {dtype}": lambda make, of=(call, dtype): of[0](make, out=make(2, 32, dtype=of[1]))
       for call, dtype in itertools.product((linear, by_experts), DTYPES)},
    **{f"by {name}": lambda make, name=name: linear(make, backend=name)
       for name in ("cpu", "cuda", "torch", "wrong", 3)},
    **{f"{activation} of {kind}": lambda make, of=(activation, kind): dt.matmul(
        make(2, 96), factor(make, of[1], 128, 96).mT, activation=of[0]) for activation, kind in itertools.product(
        ("int8", "fp8_1x128", "mxfp8", "fp8_row"), (torch.float32, "mxfp4", "fp8_1x128", "int4_g32"))},
    **{f"{activation} of 40": lambda make, activation=activation: dt.matmul(
        make(2, 40), make(40, 3), activation=activation) for activation in ("mxfp8", "fp8_1x128")},
    **{f"signs {first} and {second}": lambda make, of=(first, second): dt.matmul(
        dt.quantize(make(4, 64), "nvfp4", hadamard=of[0]), dt.quantize(make(32, 64), "nvfp4", hadamard=of[1]).mT)
       for first, second in itertools.product((None, 3, 5), (None, 3))},
    **{f"indices of {dtype}": lambda make, dtype=dtype: routed(make, index=dtype, tokens=4) for dtype in DTYPES},
    **{f"weights of {dtype}": lambda make, dtype=dtype: routed(make, weight=dtype) for dtype in DTYPES},
    **{f"{tokens!r} tokens of {rows}": lambda make, of=(tokens, rows): routed(make, of[1], tokens=of[0])
       for tokens, rows in itertools.product((2, -1, 2.0, "a", True), (2, 3)) if (tokens, rows) != (True, 2)},
    "into another shape": lambda make: linear(make, out=make(64)),
    "into one number": lambda make: linear(make, out=make(1, 32).expand(2, 32)),
    "blocks across": lambda make: dt.matmul(make(2, 64), dt.quantize(make(64, 64), "nvfp4")),
    "experts across": lambda make: dt.grouped_matmul(
        make(2, 64), dt.quantize(make(2, 64, 64), "nvfp4"), make(2, dtype=torch.int32)),
}  # fmt: skip
CALLS = {"codecs": CODECS, "quantize": QUANTIZE, "values": VALUES, "products": PRODUCTS}


def described(result):
    """What a result is, but for its values."""
    if isinstance(result, dt.ScaledTensor):
        parts = (result.elements, result.scales, result.global_scale, result.offsets)
        return str(result.encoding), *map(described, (torch.empty_like(result.dequantize()), *parts))
    if isinstance(result, tuple):
        return tuple(map(described, result))
    return None if result is None else (tuple(result.shape), result.dtype, result.stride())


def outcome(call, make):
    """What a call gives, or the exception that it raises."""
    try:
        return described(call(make))
    except (TypeError, ValueError, BufferError, dlfp4.BackendError) as refused:
        return type(refused), str(refused)


@pytest.mark.parametrize("kind", CALLS)
def test_what_kernels_refuse(kind):
    outcomes = {name: outcome(call, ones) for name, call in CALLS[kind].items()}
    refused = sum(isinstance(found[0], type) for found in outcomes.values() if found)
    assert len(outcomes) / 5 < refused < len(outcomes)
    for name, call in CALLS[kind].items():
        assert (name, outcome(call, on_meta)) == (name, outcomes[name])
    with FakeTensorMode():
        for name, call in list(CALLS[kind].items())[::3]:
            assert (name, outcome(call, ones)) == (name, outcomes[name])


# ---- Extents that are symbols


@pytest.fixture
def symbolic():
    """Makes fake tensors whose extents are symbols."""
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def make(*shape):
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(shape))
        with _disable_current_modes():
            return mode.from_tensor(torch.ones(shape), symbolic_context=context)

    with mode:
        yield make


def test_symbols_stand_for_what_they_were_made_of(symbolic):
    x, w = symbolic(6, 64), torch.ones(32, 64)
    refused = (
        lambda: dt.cast(x, "int8"),
        lambda: dt.cast(x, "float16", out=w.half()),
        lambda: dt.vecdot(x, w),
        lambda: dt.grouped_matmul(x, w[None].mT, torch.ones(2, dtype=torch.int32)),
        lambda: dt.matmul(x, w.mT, out_dtype="int8"),
    )
    for call in refused:
        with pytest.raises((TypeError, ValueError)):
            call()
    assert not x.fake_mode.shape_env.guards
    for product in (dt.matmul(x, w.mT), dt.matmul(x, dt.quantize(w, "nvfp4").mT), dt.cast(x, "float16")):
        assert product.shape[0].node.expr == x.shape[0].node.expr  # no number took its place


def test_extents_that_nobody_knows(symbolic):
    """They are left to the call itself."""
    extent = symbolic(2).fake_mode.shape_env.create_unbacked_symint()
    x = torch.empty(extent, 64)
    assert dt.matmul(x, torch.empty(64, 3), activation="mxfp8").shape[0].node.expr == extent.node.expr
    out = torch.empty(extent, 64, dtype=torch.float16)
    assert dt.cast(x, "float16", out=out) is out


# ---- Devices that are not here


def test_devices_are_told_apart():
    with FakeTensorMode():
        here, there = torch.ones(2, 64), torch.ones(2, 64, device="cuda")
        w = dt.quantize(torch.ones(32, 64, device="cuda"), "nvfp4")
        assert dt.matmul(there, w.mT).device == dt.dequantize(w).device == there.device
        stack = dt.quantize(torch.ones(2, 32, 64, device="cuda"), "nvfp4")
        offsets = torch.ones(2, dtype=torch.int32, device="cuda")
        assert dt.grouped_matmul(there, stack.mT, offsets).shape == (2, 32)
        assert dt.vecdot(there, there).device == there.device
        with pytest.raises(dlfp4.BackendError, match="a lies on cpu, b on cuda:0"):
            dt.vecdot(here, there)
        with pytest.raises(dlfp4.BackendError, match="offsets lie on cpu, the operands on cuda:0"):
            dt.grouped_matmul(there, stack.mT, offsets.cpu())
        with pytest.raises(TypeError, match="a result of int8 was asked for"):
            dt.matmul(there, w.mT, out_dtype="int8")


def test_what_is_described_cannot_be_read():
    made = dt.Parts(on_meta(2, 3)).__dlfp4_outline__()
    for read in (made.to_numpy, made.tolist, made.to_torch, made.__dlpack__):
        with pytest.raises(BufferError, match=re.escape("float32 tensor of shape (2, 3) is only described: it has no")):
            read()
    assert repr(made) == "Tensor(shape=(2, 3), dtype=float32, device='cpu')"


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "fp8_e4m3"])
def test_products_by_experts_of_prepared_stacks(name):
    """Which only a GPU makes; transposed, as products take them."""
    blocks, code_bytes, scale_bytes, _ = dlfp4._core._size_of_prepared(name, 4 * 256, 128)
    form = str(Encoding(name, scale_layout="prepared", prepared=Prepared(4 * 256, 128, 8, 1)))
    scales = on_meta() if name == "fp8_e4m3" else on_meta(blocks, scale_bytes, dtype=torch.uint8)
    unit = on_meta() if name == "nvfp4" else None
    data = on_meta(blocks, code_bytes, dtype=torch.uint8)
    w = dt.Parts(data, scales, unit, form, torch.Size((4, 256, 128)))
    ends = on_meta(4, dtype=torch.int32)
    y = dt.grouped_matmul(on_meta(64, 128, dtype=torch.bfloat16), w.mT, ends)
    assert (y.shape, y.dtype) == ((64, 256), torch.bfloat16)
    with pytest.raises(ValueError, match=r"\(64, 256\)"):
        dt.grouped_matmul(on_meta(64, 256, dtype=torch.bfloat16), w.mT, ends)
