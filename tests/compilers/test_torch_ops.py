"""torch.ops.dlfp4: bytes equal to dlfp4's, fakes that describe them, PyTorch's own checks of operations."""

import importlib
import itertools
import re
import subprocess
import sys

import numpy as np
import pytest

import dlfp4
from dlfp4.operations import OPERATIONS, Encoding

from ..support.capsules import framework
from ..support.options import TAKING, refused_alike
from ..support.reference import raw_bytes

torch = framework("torch")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

dt = importlib.import_module("dlfp4.torch")
quantize = importlib.import_module("dlfp4.torch.functions").quantize  # parts, of which dt.quantize makes a tensor
ops = torch.ops.dlfp4

FORMATS = [name for name, row in dlfp4.formats().items() if row.element.name != "uint4"]  # which has zero points
AXES = (-1, -2, (-1, -2), (-2, -1))
SHAPE = (128, 256)  # whole blocks of every format


def randn(*shape, dtype="float32"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))


def as_bytes(x):
    """A tensor's bytes, in its logical order."""
    if x.dtype == torch.float4_e2m1fn_x2:
        return x.view(torch.uint8).numpy().tobytes()
    return (
        x.contiguous().view(torch.uint8).numpy().tobytes()
        if x.dim()
        else x.reshape(1).view(torch.uint8).numpy().tobytes()
    )


def parts_of(q):
    """The parts of a ScaledTensor as the operations have them."""
    unit = None if q.global_scale is None else q.global_scale.to_torch()
    data = q.data.view("uint8") if q.format.element.name.startswith(("float6", "int4")) else q.data
    return dt.Parts(data.to_torch(), q.scales.to_torch(), unit, str(Encoding.of(q)), q.shape)


def codes_of(parts):
    """The same with codes as bytes: PyTorch's checks cannot compare FP8 and FP4."""
    low = {field: part for field, part in zip(parts._fields[:2], parts[:2], strict=True) if part.dtype.itemsize == 1}
    return parts._replace(**{field: part.view(torch.uint8) for field, part in low.items()})


def check_same(parts, q):
    expected = parts_of(q)
    assert (parts.type, tuple(parts.shape)) == (expected.type, expected.shape)
    for part, other in zip(parts[:3], expected[:3], strict=True):
        assert (part is None) == (other is None)
        if part is not None:
            assert (part.shape, part.dtype, as_bytes(part)) == (other.shape, other.dtype, as_bytes(other))


FAKES = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
ALL = ("test_schema", *FAKES)  # which compares arguments before and after, and that not of FP8 and FP4
EAGER = ALL[:-1]  # without what takes a second


def opcheck(op, *args, tests=ALL, **kwargs):
    assert set(torch.library.opcheck(op, args, kwargs, test_utils=tests).values()) == {"SUCCESS"}


# ---- Bytes


@pytest.mark.parametrize("name", FORMATS)
def test_quantize_and_dequantize(name):
    x = randn(*SHAPE)
    for axis in AXES:
        made, expected = quantize(x, name, axis=axis), dlfp4.quantize(x, name, axis=axis)
        several = isinstance(axis, tuple)
        for parts, q in zip(made if several else (made,), expected if several else (expected,), strict=True):
            check_same(parts, q)
            assert torch.equal(dt.dequantize(parts, "bfloat16"), dlfp4.dequantize(q, "bfloat16").to_torch())


@pytest.mark.parametrize(
    "options",
    [
        {"scale_layout": "128x4", "pad": True},
        {"recipe": "modelopt"},
        {"recipe": dlfp4.Recipe(divide=True, zero_scale=0x38)},
        {"recipe": dlfp4.Recipe(global_scale_per="row")},
        {"global_scale": 0.5},
        {"global_scale": torch.tensor(0.5)},
        {"global_scale": torch.linspace(1, 2, 33)},
        {"rounding": "stochastic", "seed": 2**64 - 1},
        {"hadamard": 3},
        {"hadamard": (1, -1) * 8, "axis": (-2, -1)},
    ],
    ids=str,
)
def test_options_of_quantize(options):
    x = randn(48, 64) if "hadamard" in options else randn(33, 64)
    made, expected = quantize(x, "nvfp4", **options), dlfp4.quantize(x, "nvfp4", **options)
    for parts, q in zip(
        *((a if isinstance(a, tuple) and not isinstance(a, dt.Parts) else (a,)) for a in (made, expected)), strict=True
    ):
        check_same(parts, q)
        assert torch.equal(dt.dequantize(parts), q.dequantize().to_torch())
        if parts.data.dim() == 2 and len(q.shape) == 2:
            assert Encoding.parse(parts.mT.type) == Encoding.of(q.mT)


@pytest.mark.parametrize("shape", [(2, 4, 16, 128), (3, 5, 7), (0, 128), (4, 0)], ids=str)
def test_stacks_and_ragged_rows(shape):
    x = randn(*shape)
    parts, q = quantize(x, "mxfp8_e4m3", pad=True), dlfp4.quantize(x, "mxfp8_e4m3", pad=True)
    check_same(parts, q)
    assert dt.dequantize(parts).shape == x.shape


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float4_e2m1fn", "float6_e2m3fn", "float8_e3m4", "bfloat16"])
def test_cast_pack_and_unpack(name):
    x = randn(4, 64)
    made, expected = dt.cast(x, name), dlfp4.cast(x, name)
    assert as_bytes(made) == raw_bytes(expected)
    kind = "" if made.dtype != torch.uint8 else name
    assert torch.equal(dt.cast(dt.Parts(made, type=kind), torch.float32), dlfp4.cast(expected, "float32").to_torch())
    if dlfp4.asarray(expected).dtype.itemsize == 1 and name.startswith(("float4", "float6")):
        single = dt.unpack(dt.Parts(made, type=kind))
        assert as_bytes(single) == raw_bytes(dlfp4.unpack(expected)) == as_bytes(dt.cast(x, name, packed=False))
        assert as_bytes(dt.pack(dt.Parts(single, type=f"{name}/padded"))) == as_bytes(made)


def test_cast_rounds_as_it_is_asked_to():
    x = randn(4, 64)
    options = {"rounding": "stochastic", "seed": 7, "saturate": False}
    assert as_bytes(dt.cast(x, "float8_e5m2", **options)) == raw_bytes(dlfp4.cast(x, "float8_e5m2", **options))


@pytest.mark.parametrize("name", FORMATS)
def test_matmul(name):
    x, w = randn(3, 256, dtype="bfloat16"), dlfp4.quantize(randn(*SHAPE), name)
    expected = dlfp4.matmul(x, w.mT, alpha=0.5).to_torch()
    assert torch.equal(dt.matmul(x, parts_of(w).mT, alpha=0.5), expected)
    assert torch.equal(dt.matmul(x, parts_of(w.mT), alpha=0.5), expected)
    out = torch.empty_like(expected)
    assert dt.matmul(x, parts_of(w).mT, alpha=0.5, out=out) is out
    assert torch.equal(out, expected)
    if name != "fp8_row" and "_row" not in name:
        assert torch.equal(dt.matmul(parts_of(w), parts_of(w).mT), dlfp4.matmul(w, w.mT).to_torch())


@pytest.mark.parametrize("activation", ["fp8_1x128", "mxfp8", "fp8_row"])
def test_activations(activation):
    x, w = randn(3, 256, dtype="bfloat16"), dlfp4.quantize(randn(*SHAPE), "fp8_128x128")
    expected = dlfp4.matmul(x, w.mT, activation=activation).to_torch()
    assert expected.dtype == torch.bfloat16
    for _ in range(3):  # other work than that of a product that is known comes first
        assert torch.equal(dt.matmul(x, parts_of(w).mT, activation=activation), expected)
    assert torch.equal(dt.matmul(x.float(), parts_of(w).mT, activation=activation, out_dtype=torch.bfloat16), expected)
    out = torch.empty_like(expected)
    assert dt.matmul(x, parts_of(w).mT, activation=activation, out=out) is out
    assert torch.equal(out, expected)
    opcheck(ops.matmul.default, x, *codes_of(parts_of(w).mT), activation=activation)


def test_sums_of_products():
    q, x = dlfp4.quantize(randn(4, 64), "nvfp4"), randn(4, 64)
    pairs = dt.cast(x, "float4_e2m1fn")
    assert torch.equal(dt.vecdot(parts_of(q), x), dlfp4.vecdot(q, x).to_torch())
    assert torch.equal(dt.vecdot(pairs, pairs), dlfp4.vecdot(pairs, pairs).to_torch())
    assert torch.equal(dt.vecdot(x, x[0]), dlfp4.vecdot(x, x[0]).to_torch())
    assert torch.equal(dt.vecdot(x, x, axis=0), dlfp4.vecdot(x, x, axis=0).to_torch())
    assert torch.equal(dt.vecdot(x[:, :1], x[:, 0], axis=0), dlfp4.vecdot(x[:, :1], x[:, 0], axis=0).to_torch())
    for a, b, axis in ((x, x, 2), (x, x[0], -2), (x[0, 0], x[0, 0], -1)):
        with pytest.raises(ValueError, match=r"has \d dimensions|0-d") as refused:
            dt.vecdot(a, b, axis)
        with pytest.raises(ValueError, match=r"has \d dimensions|0-d") as eager:
            dlfp4.vecdot(a, b, axis)
        assert str(refused.value) == str(eager.value)
    assert torch.equal(dt.dot(x[0], x[1]), dlfp4.dot(x[0], x[1]).to_torch())


@pytest.mark.parametrize(
    ("shape", "per"), [((0, 32), "row"), ((4, 0, 32), "row"), ((0, 16, 32), "matrix"), ((4, 16, 0), "matrix")]
)
def test_nothing_has_no_address(shape, per):
    """PyTorch's tensors without elements: results, and the global scales of no lines."""
    q = dt.quantize(torch.empty(shape), "nvfp4", recipe=dlfp4.Recipe(global_scale_per=per))
    expected = dlfp4.quantize(np.empty(shape, np.float32), "nvfp4", recipe=dlfp4.Recipe(global_scale_per=per))
    assert (tuple(q.shape), tuple(q.global_scale.shape)) == (shape, expected.global_scale.shape)
    assert q.global_scale.tolist() == expected.global_scale.tolist()
    assert q.dequantize().shape == shape


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (2, 0, 3), (0, 3, 2), (3, 1), (1, 3), (3, 2, 1), (1, 1)])
def test_pairs_lie_along_the_dimension_that_importers_take(shape):
    octets = torch.zeros(shape, dtype=torch.uint8)
    for order in itertools.permutations(range(len(shape))):
        pairs = octets.view(torch.float4_e2m1fn_x2).permute(order)
        assert dt.unpack(pairs).shape == dlfp4.asarray(pairs).shape
    if shape[-1] < 2 or 0 in shape:
        apart = torch.empty_strided(shape, (7,) * len(shape), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        assert dt.unpack(apart).shape == dlfp4.asarray(apart).shape


def test_arguments_are_those_of_eager_calls():
    x = randn(64, 64)
    for seed in (0, 5, 1 << 63, (1 << 64) - 1, np.uint64(1 << 63)):
        options = {"rounding": "stochastic", "seed": seed}
        assert as_bytes(dt.cast(x, "float16", **options)) == raw_bytes(dlfp4.cast(x, "float16", **options))
    for seed in (-1, 1 << 64, (1 << 64) + 5):
        for call in (dt.cast, dt.quantize, dlfp4.cast):
            with pytest.raises(ValueError, match=r"from 0 to 2\*\*64 - 1"):
                call(x, "bfloat16" if call is not dt.quantize else "mxfp4", rounding="stochastic", seed=seed)
    for made, expected in zip(
        dt.quantize(x, "nvfp4", axis=[-1, -2]), dlfp4.quantize(x, "nvfp4", axis=(-1, -2)), strict=True
    ):
        check_same(parts_of(made.to_dlfp4()), expected)
    rows, columns = quantize(x, "nvfp4", axis=(-1, -2))
    for axis, out in ((-1, (rows, columns)), (-1, ()), ((-1, -2), rows), ((-1, -2), (rows, columns, rows))):
        with pytest.raises(ValueError, match=r"out has \d quantized tensors for \d axes"):
            quantize(x, "nvfp4", axis=axis, out=out)
    for call in (
        lambda out: dt.cast(x, "float16", out=out),
        lambda out: dt.dequantize(rows, out=out),
        lambda out: dt.matmul(x, rows.mT, out=out),
    ):
        with pytest.raises(TypeError, match=r"out is of type ndarray; expected a torch\.Tensor"):
            call(np.zeros((64, 64), np.float32))


def test_out_forms_write_and_say_so():
    x, out = randn(4, 64), torch.empty(4, 64, dtype=torch.float8_e4m3fn)
    version = out._version
    assert dt.cast(x, "float8_e4m3fn", out=out) is out
    assert out._version > version
    assert as_bytes(out) == raw_bytes(dlfp4.cast(x, "float8_e4m3fn"))
    big = randn(64, 64)
    for axis in ((-1,), (-1, -2), (-2, -1)):
        q = quantize(torch.zeros(64, 64), "nvfp4", axis=axis)
        assert quantize(big, "nvfp4", axis=axis, out=q) is q
        for parts, expected in zip(q, dlfp4.quantize(big, "nvfp4", axis=axis), strict=True):
            check_same(parts, expected)
    total = torch.empty(4)
    assert torch.equal(dt.vecdot(x, x, out=total), dlfp4.vecdot(x, x).to_torch())
    codes = torch.empty(4, 48, dtype=torch.uint8)
    assert as_bytes(dt.cast(x, "float6_e2m3fn", out=codes)) == raw_bytes(dlfp4.cast(x, "float6_e2m3fn"))


@pytest.mark.parametrize("encoding", [
    Encoding("nvfp4"), Encoding("mxfp4", -2, "128x4"), Encoding("mxfp4", hadamard=(1, -1) * 8),
    Encoding("nvfp4", -2, "prepared", None, (256, 512, 3, 1)),
], ids=str)  # fmt: skip
def test_encodings_are_constants_by_value(encoding):
    assert Encoding.parse(str(encoding)) == encoding
    assert hash(Encoding.parse(str(encoding))) == hash(encoding)


# ---- PyTorch's own checks


@pytest.mark.parametrize("name", dlfp4.formats())
def test_opcheck_of_formats(name):
    x, w = randn(32, 128), dt.quantize(randn(32, 128), name)
    q = codes_of(w.__dlfp4_parts__())
    opcheck(ops.quantize.default, x, name)
    opcheck(ops.dequantize.default, *q)
    opcheck(ops.matmul.default, randn(2, 128), *codes_of(w.mT.__dlfp4_parts__()))
    of_rows = randn(32, 128).requires_grad_()
    stack = codes_of(dt.quantize(randn(2, 32, 128), name).mT.__dlfp4_parts__())
    opcheck(ops.vecdot.default, of_rows, *q, tests=EAGER)
    opcheck(ops.grouped_matmul.default, of_rows, stack.data, torch.tensor([2, 32]), *stack[1:], tests=EAGER)
    block = dlfp4.formats()[name].block
    if block is None or block[0] == 1:  # a vector has no squares
        line = codes_of(dt.quantize(x[0], name).__dlfp4_parts__())
        opcheck(ops.dot.default, x[0].clone().requires_grad_(), *line, tests=EAGER)


def test_opcheck_of_codecs_and_sums():
    x = randn(4, 64)
    codes = dt.cast(x, "float4_e2m1fn", packed=False)
    for name in ("bfloat16", "float6_e2m3fn"):
        opcheck(ops.cast.default, x, name)
    opcheck(ops.pack.default, codes, "float4_e2m1fn/padded")
    opcheck(ops.unpack.default, dt.cast(x, "float4_e2m1fn"), tests=FAKES)
    opcheck(ops.vecdot.default, x, x.clone().requires_grad_())
    opcheck(ops.dot.default, x[0], x[1].clone().requires_grad_())
    stack = codes_of(dt.quantize(randn(2, 32, 64), "nvfp4").mT.__dlfp4_parts__())
    opcheck(ops.grouped_matmul.default, x.clone().requires_grad_(), stack.data, torch.tensor([1, 4]), *stack[1:])


def test_every_operation_has_a_function():
    assert OPERATIONS.keys() <= set(dt.__all__)


@pytest.mark.parametrize("name", OPERATIONS)
def test_opcheck_of_out_forms(name):
    x = randn(4, 64)
    q = codes_of(parts_of(dlfp4.quantize(x, "mxfp4")))
    args = {
        "cast": (x, "bfloat16"),
        "pack": (dt.cast(x, "float6_e2m3fn", packed=False), "float6_e2m3fn/padded"),
        "unpack": (dt.cast(x, "float6_e2m3fn"), "float6_e2m3fn"),
        "quantize": (x, "mxfp6_e2m3"),
        "dequantize": q,
        "dot": (x[0], x[1]),
        "vecdot": (x, x),
        "matmul": (x, x.mT),
        "grouped_matmul": (x, x[None].mT, torch.tensor([3])),
    }[name]
    op = getattr(ops, name)
    out = op(*args)
    opcheck(op.out, *args, out=[part.view(torch.uint8) for part in out] if name == "quantize" else out)


NEW_ROW = """
import dlfp4
from dlfp4 import operations
from dlfp4.proto import TensorProto

def halve(x, *, out=None):
    return dlfp4.cast(x, "float16", out=out)

dlfp4.halve = halve
described = lambda x: TensorProto(x.shape, "float16")
row = operations.Operation("halve", (operations.Argument("x", "operand"),), described)
operations.OPERATIONS = {**operations.OPERATIONS, "halve": row}

import torch
import dlfp4.torch

x, op = torch.randn(3, 4), torch.ops.dlfp4.halve
out = torch.empty_like(x, dtype=torch.float16)
op.out(x, out=out)
compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
for made in (op(x), out, compiled(x), torch.vmap(op)(x), torch.vmap(op, 1, 1)(x), op(x.clone().requires_grad_())):
    assert torch.equal(made, x.half())
assert set(torch.library.opcheck(op.default, (x,)).values()) == {"SUCCESS"}
"""


def test_a_new_operation_is_a_row():
    subprocess.run([sys.executable, "-P", "-c", NEW_ROW], check=True, timeout=300)


# ---- Shapes that do not fit: what has no memory is refused as what has

APART = {
    "sums of two lengths": lambda ones: dt.matmul(ones(2, 32), ones(31, 4)),
    "a vector for a matrix": lambda ones: dt.matmul(ones(2, 32), ones(32)),
    "a stack for a matrix": lambda ones: dt.matmul(ones(2, 32), ones(2, 32, 4)),
    "a number for rows": lambda ones: dt.matmul(ones(), ones(32, 4)),
    "a weight as it was quantized": lambda ones: dt.matmul(ones(2, 32), dt.quantize(ones(4, 32), "nvfp4")),
    "matrices for vectors": lambda ones: dt.dot(ones(2, 4), ones(2, 4)),
    "vectors of two lengths": lambda ones: dt.dot(ones(4), ones(5)),
    "lines of two lengths": lambda ones: dt.vecdot(ones(2, 4), ones(2, 1)),
    "lines that do not broadcast": lambda ones: dt.vecdot(ones(2, 4), ones(3, 4)),
    "rows in a stack": lambda ones: by_experts(ones, (2, 2, 32)),
    "one expert": lambda ones: dt.grouped_matmul(ones(2, 32), ones(32, 4), ones(2).int()),
    "experts of another length": lambda ones: by_experts(ones, (2, 64)),
    "offsets of other experts": lambda ones: by_experts(ones, (2, 32), 3),
    "weights of nobody": lambda ones: by_experts(ones, (2, 32), weights=ones(2)),
    "tokens of nobody": lambda ones: by_experts(ones, (2, 32), tokens=3),
    "weights of other rows": lambda ones: by_experts(ones, (2, 32), indices=ones(2).int(), weights=ones(3)),
    "indices in a matrix": lambda ones: by_experts(ones, (2, 32), indices=ones(2, 2).int()),
}


def by_experts(ones, shape, offsets=2, **options):
    weights = dt.quantize(ones(2, 4, 32), "nvfp4")
    return dt.grouped_matmul(ones(*shape), weights.mT, ones(offsets).int(), **options)


@pytest.mark.parametrize("case", APART)
def test_shapes_that_do_not_fit(case):
    with pytest.raises(ValueError, match=r"has|shapes|pass") as expected:
        APART[case](lambda *shape: torch.ones(shape))
    with pytest.raises(ValueError, match=f"^{re.escape(str(expected.value))}$"):
        APART[case](lambda *shape: torch.ones(shape, device="meta"))


# ---- Tensors of which some have no values

PARTLY = {
    "w": lambda x, w, offsets: dt.matmul(x, w.to("meta").mT),
    "x": lambda x, w, offsets: dt.matmul(x.to("meta"), w.mT),
    "out": lambda x, w, offsets: dt.matmul(x, w.mT, out=torch.empty(4, 8, device="meta")),
    "all but out": lambda x, w, offsets: dt.matmul(x.to("meta"), w.to("meta").mT, out=torch.empty(4, 8)),
    "offsets": lambda x, w, offsets: dt.grouped_matmul(
        x, dt.quantize(torch.ones(2, 8, 32), "mxfp4").mT, offsets.to("meta")
    ),
    "a vector": lambda x, w, offsets: dt.vecdot(x, x.to("meta")),
    "a gradient": lambda x, w, offsets: dt.matmul(x.requires_grad_(), w.to("meta").mT),
}


def stack_of_ones():
    return dt.quantize(torch.ones(2, 8, 32), "mxfp4")


@pytest.mark.parametrize("case", PARTLY)
def test_results_without_values_are_refused(case):
    """Where one tensor is on "meta" PyTorch calls the fake, whose result would be whatever memory held."""
    x, w = torch.ones(4, 32), dt.quantize(torch.ones(8, 32), "nvfp4")
    with pytest.raises(dlfp4.BackendError, match=r"on 'meta' without values, but .* on cpu: load the values"):
        PARTLY[case](x, w, torch.tensor([1, 4], dtype=torch.int32))


# ---- Options that are none: the words of dlfp4's own functions

WRONG = {"an array": np.array(["a", "b"]), "a list": ["a"], "a number": 3, "a tensor": torch.ones(2)}
TAKEN_BY = {
    **TAKING,
    "rounding": lambda lib, x, w, wrong: lib.quantize(x, "nvfp4", rounding=wrong),
    "scale_layout": lambda lib, x, w, wrong: lib.quantize(x, "nvfp4", scale_layout=wrong),
    "backend": lambda lib, x, w, wrong: lib.matmul(x, w.mT, backend=wrong),
}
RIGHT = [("seed of cast", "a number"), ("alpha", "a number")]


@pytest.mark.parametrize(("option", "what"), [pair for pair in itertools.product(TAKEN_BY, WRONG) if pair not in RIGHT])
def test_objects_that_are_no_options(option, what):
    call, wrong, x = TAKEN_BY[option], WRONG[what], randn(2, 64)
    w = dlfp4.quantize(randn(2, 64), "nvfp4")
    assert refused_alike(call, dt, x, w, dt.ScaledTensor.from_dlfp4(w), wrong).__cause__ is None


def test_more_objects_that_are_no_options():
    w = dt.quantize(randn(2, 64), "nvfp4")
    for wrong in WRONG.values():
        with pytest.raises(TypeError, match=r"recipe=.* is of type .*expected a name, or a dlfp4.Recipe"):
            dt.quantize(randn(2, 64), "nvfp4", recipe=wrong)
        with pytest.raises(ValueError, match=r"recipe=.*expected (None, a dlfp4.Recipe or one of|names)"):
            dt.quantize_(torch.nn.Linear(64, 8), "nvfp4", recipe=wrong)
        with pytest.raises(TypeError, match=r"dtype.*(expected a name|expected one of|a ScaledTensor decodes to)"):
            w.dequantize(wrong)
        with pytest.raises(TypeError, match=r"type=.* of Parts is of type .*expected a string"):
            dt.cast(dt.Parts(torch.zeros(4, dtype=torch.uint8), type=wrong), "float32")
        with pytest.raises(TypeError, match=r"type=.* of Parts is of type .*expected a string"):
            _ = dt.Parts(w.elements, w.scales, w.global_scale, wrong).mT
    with pytest.raises(ValueError, match="rounding=3: expected one of"):  # within transforms, which hide memory
        torch.func.vmap(lambda x: dt.cast(x, "float8_e4m3fn", rounding=3))(randn(2, 64))


@pytest.mark.parametrize("wrong", ["", "nvfp5", "nvfp5/columns", "float4_e2m1fn"])
def test_parts_with_scales_are_of_a_format(wrong):
    w = dt.quantize(randn(32, 64), "nvfp4")
    parts = dt.Parts(w.elements, w.scales, w.global_scale, wrong)
    for call in (
        lambda: parts.mT,
        lambda: dt.dequantize(parts),
        lambda: dt.matmul(randn(2, 32), parts),
        lambda: dt.vecdot(parts, randn(32, 64)),
    ):
        with pytest.raises(
            TypeError, match=f"type='{wrong}' of Parts with scales names no format; pass the tensor's .f"
        ):
            call()


def test_memory_whose_values_pytorch_negates():
    x = randn(4, 64)
    w, stack = dt.quantize(randn(4, 64), "nvfp4"), dt.quantize(randn(2, 4, 64), "nvfp4")
    for call, shape in (
        (lambda out: dt.matmul(x, w.mT, out=out), (4, 4)),
        (lambda out: dt.grouped_matmul(x, stack.mT, torch.tensor([1, 4]), out=out), (4, 4)),
        (lambda out: dt.dequantize(w, out=out), (4, 64)),
        (lambda out: dt.cast(x.half(), "float32", out=out), (4, 64)),
        (lambda out: dt.vecdot(x, w, out=out), (4,)),
    ):
        out = torch.zeros(shape, dtype=torch.complex64).conj().imag
        with pytest.raises(ValueError, match=r"out .* is_neg bit is set.* pass plain memory, such as torch\.empty"):
            call(out)
        call(out.resolve_neg())


@pytest.mark.parametrize("number", [1e300, np.float64(-1e300), 10**400], ids=["float", "float64", "int"])
def test_a_global_scale_beyond_float32(number):
    q = dt.quantize(randn(4, 64), "nvfp4")
    for quantize, options in ((dlfp4.quantize, {}), (dt.quantize, {}), (dt.quantize, {"out": q})):
        with pytest.raises(ValueError, match=r"global_scale=.*(beyond float32|a decode scale is a .*finite float32)"):
            quantize(randn(4, 64), "nvfp4", global_scale=number, **options)


@pytest.mark.parametrize("wrong", [None, 0, "no"])
def test_flags_are_true_or_false(wrong):
    """PyTorch's schemas take None and numbers for flags, and None for False."""
    calls = {
        "saturate": lambda x: dt.cast(x, "float8_e4m3fn", saturate=wrong),
        "packed": lambda x: dt.cast(x, "float4_e2m1fn", packed=wrong),
        "pad": lambda x: dt.quantize(x, "mxfp4", pad=wrong).elements,
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=f"{name}={wrong!r} is of type .*expected True or False"):
            call(torch.ones(2, 32))


@pytest.mark.parametrize(
    "name", ["floats", "codes", "codes across", "a vector", "out", "experts", "a layer", "F.linear"]
)
def test_operations_are_counted_as_of_floats(name):
    x, out = randn(4, 64), torch.empty(4, 32)
    w, stack = dt.quantize(randn(32, 64), "nvfp4"), dt.quantize(randn(2, 32, 64), "nvfp4")
    across = dt.quantize(randn(64, 4), "nvfp4", axis=-2).mT
    offsets = torch.tensor([2, 4], dtype=torch.int32)
    layer = dt.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 32)), "nvfp4")
    calls = {
        "floats": lambda: dt.matmul(x, w.mT, alpha=2.0),
        "codes": lambda: dt.matmul(dt.quantize(x, "nvfp4"), w.mT),
        "codes across": lambda: dt.matmul(across, w.mT),
        "a vector": lambda: [dt.matmul(row, w.mT) for row in x],
        "out": lambda: dt.matmul(x, w.mT, out=out),
        "experts": lambda: dt.grouped_matmul(x, stack.mT, offsets),
        "a layer": lambda: layer(x),
        "F.linear": lambda: torch.nn.functional.linear(x, w),
    }
    with FlopCounterMode(display=False) as counted:
        calls[name]()
    assert counted.get_total_flops() == 2 * 4 * 32 * 64
