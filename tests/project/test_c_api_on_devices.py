"""The C API on a device: what it asks, and what it refuses before its driver."""

from ctypes import byref

import numpy as np
import pytest

import dlfp4

from ..support import c_api
from .test_c_api import C, routing, values

pytestmark = pytest.mark.arithmetic

THERE = c_api.DLDevice(2, 0)


def on_device(x):
    """An operand or tensor of the host's, described as one of a device's, whose memory nobody is to read."""
    if isinstance(x, dlfp4.ScaledTensor):
        result = c_api.describe_scaled(x)
        for part in result.kept.values():
            part.contents.device = THERE
        return result
    result = c_api.plain(x)
    result.kept.device = THERE
    return result


def tensor_on_device(x, **changed):
    return c_api.describe(x, device=THERE, **changed)


def fp8(*shape, name="fp8_1x128"):
    return dlfp4.quantize(values(*shape), name)


@pytest.mark.parametrize(
    "names",
    [
        *(("fp8_1x128", "fp8_128x128"), ("fp8_1x128_e5m2", "fp8_1x128"), ("fp8_row", "fp8_row")),
        ("fp8_e4m3", "fp8_e5m2"),
    ],
    ids="-".join,
)
def test_products_of_fp8_on_a_device_need_no_workspace(names):
    out = tensor_on_device(np.zeros((1027, 64), np.float32))
    a, b = fp8(1027, 384, name=names[0]), fp8(64, 384, name=names[1])
    assert C.matmul_workspace(on_device(a), on_device(b), out, None) == 0


def test_products_that_a_device_does_not_have():
    out, x, w = np.zeros((4, 64), np.float32), fp8(4, 256), fp8(64, 256)

    def status(a=x, b=w, out=out, **options):
        call = on_device(a), on_device(b), out if isinstance(out, c_api.DLTensor) else tensor_on_device(out)
        given = byref(c_api.MatmulOptions(alpha=1.0, **options))
        assert C.matmul_workspace(*call, given) == -1
        return C.matmul(*call, given, None, None)

    assert status(b=dlfp4.quantize(values(64, 256), "nvfp4")) == c_api.E_DTYPE
    assert status(a=values(4, 256)) == c_api.E_DTYPE
    assert status(b=dlfp4.quantize(values(64, 256), "mxfp8_e4m3")) == c_api.E_OPTION
    assert status(activation=1) == c_api.E_OPTION
    assert status(a=values(4, 256, dtype="float8_e4m3fn")) == c_api.E_OPTION  # scales of blocks on one side alone
    assert status(a=fp8(4, 0, name="fp8_row"), b=fp8(64, 0, name="fp8_row")) == c_api.E_SHAPE
    assert status(a=fp8(4, 24, name="fp8_row"), b=fp8(64, 24, name="fp8_row")) == c_api.E_SHAPE
    assert status(b=fp8(64, 128)) == c_api.E_SHAPE
    assert status(b=fp8(63, 256)) == c_api.E_SHAPE
    assert status(out=out.astype(np.float64)) == c_api.E_DTYPE
    assert status(out=np.zeros((64, 4), np.float32).T) == c_api.E_SHAPE
    assert status(out=tensor_on_device(out, data=out.ctypes.data + 2)) == c_api.E_SHAPE
    assert status(out=c_api.describe(out)) == c_api.E_DEVICE


def routing_on_device(**parts):
    result = routing(**parts)
    for part in result.kept.values():
        part.contents.device = THERE
    return result


def prepared_there(**members):
    """What dlfp4_prepare() would give for a stack of three (32, 64)."""
    facts = {"memory": 4096, "device": 0, "format": C.find_format(b"mxfp4"), "rows": 96, "columns": 64, "matrices": 1}
    return c_api.Prepared(**(facts | members))


@pytest.mark.parametrize("integer", [np.int32, np.int64])
@pytest.mark.parametrize("way", ["in order", "gathered", "added", "both"])
def test_workspaces_of_experts_on_a_device(way, integer):
    """Rows of tokens, with their scales, sums of weighted rows in float32, and with either the number of the next tile;
    nobody looks at what the numbers are."""
    gathers, adds = way in ("gathered", "both"), way in ("added", "both")
    tokens, rows, columns = 5, 9, 32
    parts = {"ends": np.array([7, -1, 40], integer)}
    if gathers or adds:
        parts["indices"] = np.full(rows, 99, integer)
    if adds:
        parts["weights"] = values(rows)
    out = tensor_on_device(np.zeros((tokens if adds else rows, columns), np.float32))
    lines = tokens if gathers else rows
    call = routing_on_device(**parts, gathers=gathers), out
    sums = (rows * columns * 4 if adds else 0) + (16 if gathers or adds else 0)
    w = on_device(fp8(3 * columns, 256))
    of_bytes = gathers * (rows * 256 + 12 * 2 * 4) + sums
    assert C.grouped_matmul_workspace(on_device(fp8(lines, 256)), w, *call, None) == of_bytes
    x = tensor_on_device(values(lines, 64, dtype="bfloat16"))
    bytes = gathers * rows * 64 * 2 + sums
    assert C.grouped_matmul_prepared_workspace(x, byref(prepared_there()), *call) == bytes
    if bytes:
        assert C.grouped_matmul(on_device(fp8(lines, 256)), w, *call, None, None, None) == c_api.E_OPTION
        for workspace, status in ((None, c_api.E_OPTION), (1008 + 8, c_api.E_SHAPE)):
            assert C.grouped_matmul_prepared(x, byref(prepared_there()), *call, 1, workspace, None) == status


def test_workspaces_of_sums_on_a_device():
    bytes_of_line = C.vecdot_workspace(1, 2**20)
    assert bytes_of_line > 0
    assert C.vecdot_workspace(7, 2**20) == 7 * bytes_of_line
    assert C.vecdot_workspace(1000, 64) == C.vecdot_workspace(0, 2**20) == 0
    for extents in ((-1, 64), (4, -1), (2**62, 2**20), (4, 2**63 - 1)):
        assert C.vecdot_workspace(*extents) == -1
    x = on_device(np.zeros((1, 2**20), np.float16))
    for workspace, status in ((None, c_api.E_OPTION), (4096 + 4, c_api.E_SHAPE)):
        assert C.vecdot(x, x, tensor_on_device(np.zeros(1, np.float32)), workspace, None) == status


def test_experts_that_a_device_does_not_have():
    x, w, out, ends = fp8(9, 256), fp8(96, 256), np.zeros((9, 32), np.float32), np.array([4, 4, 9])
    some = np.zeros(9, np.int64)

    def status(rows, x=x, w=w, out=out):
        call = on_device(x), on_device(w), rows, tensor_on_device(out)
        assert C.grouped_matmul_workspace(*call, None) == -1
        return C.grouped_matmul(*call, None, None, None)

    assert status(routing(ends=ends)) == c_api.E_DEVICE
    assert status(routing_on_device(ends=ends.astype(np.int16))) == c_api.E_DTYPE
    assert status(routing_on_device(ends=np.array([4, 9]))) == c_api.E_SHAPE
    assert status(routing_on_device(ends=ends, indices=some)) == c_api.E_OPTION
    assert status(routing_on_device(ends=ends, weights=values(9))) == c_api.E_OPTION
    assert status(routing_on_device(ends=np.zeros(6, np.int64)[::2])) == c_api.E_SHAPE
    assert status(None) == status(c_api.Routing()) == c_api.E_OPTION
    both = routing_on_device(ends=ends, indices=some, weights=values(9), gathers=1)
    assert status(both, out=np.zeros((8, 32), np.float32)) == c_api.E_SHAPE  # as many tokens of x as of out
    for name in ("nvfp4", "fp8_1x128_e5m2"):
        assert status(routing_on_device(ends=ends), w=dlfp4.quantize(values(96, 256), name)) == c_api.E_DTYPE


def test_prepared_weights_of_experts_that_do_not_fit():
    x, out, ends = values(9, 64, dtype="bfloat16"), np.zeros((9, 32), np.float32), np.array([4, 4, 9])

    def status(x=x, out=out, routed=None, **members):
        call = tensor_on_device(x), byref(prepared_there(**members)), routed or routing_on_device(ends=ends)
        call = *call, tensor_on_device(out)
        assert C.grouped_matmul_prepared_workspace(*call) == -1
        return C.grouped_matmul_prepared(*call, 1, None, None)

    assert status(device=1) == c_api.E_DEVICE
    assert status(matrices=2) == c_api.E_OPTION
    assert status(rows=64 * 3) == status(columns=56) == c_api.E_SHAPE
    assert status(x=values(9, 60, dtype="bfloat16")) == c_api.E_SHAPE
    assert status(x=values(9, 128, dtype="bfloat16")[:, ::2]) == c_api.E_SHAPE
    assert status(x=values(9, 64)) == status(x=values(9, 64, dtype="float16")) == c_api.E_DTYPE
    assert status(out=out.astype(np.float64)) == c_api.E_DTYPE
    assert status(routed=routing(ends=ends)) == c_api.E_DEVICE
    assert C.grouped_matmul_prepared(tensor_on_device(x), None, routing_on_device(ends=ends), tensor_on_device(out), 1,
                                     None, None) == c_api.E_OPTION  # fmt: skip
    here = c_api.describe(x), byref(prepared_there())
    for nowhere in (None, c_api.Routing()):  # before it is looked at where the tensors lie
        assert C.grouped_matmul_prepared(*here, nowhere, c_api.describe(out), 1, None, None) == c_api.E_OPTION
        apart = c_api.plain(x), on_device(fp8(96, 64)), nowhere, c_api.describe(out)
        assert C.grouped_matmul(*apart, None, None, None) == c_api.E_OPTION
    stack = prepared_there(matrices=3)
    square = tensor_on_device(np.zeros((9, 96), np.float32))
    assert C.matmul_prepared(tensor_on_device(x), byref(stack), square, 1, None) == c_api.E_OPTION


def test_nothing_is_multiplied_without_a_driver():
    """Where there are no rows or columns."""
    nothing = tensor_on_device(np.zeros((0, 64), np.float32))
    w, x = on_device(fp8(64, 256)), on_device(fp8(0, 256))
    assert C.matmul(x, w, nothing, None, None, None) == c_api.OK
    for part in x.kept.values():  # as other producers describe what is empty
        part.contents.data = None
    assert C.matmul(x, w, nothing, None, None, None) == c_api.OK
    of_x = tensor_on_device(values(0, 64, dtype="bfloat16"))
    whole = tensor_on_device(np.zeros((0, 96), np.float32))
    assert C.matmul_prepared(of_x, byref(prepared_there()), whole, 1, None) == c_api.OK


@pytest.mark.skipif(dlfp4.cuda_available(), reason="there is a CUDA device")
def test_without_a_driver_a_device_multiplies_nothing():
    out, ends = np.zeros((9, 32), np.float32), routing_on_device(ends=np.array([4, 4, 9]))
    call = on_device(fp8(9, 256)), on_device(fp8(32, 256)), tensor_on_device(out)
    assert C.matmul(*call, None, None, None) == c_api.E_CUDA_DRIVER
    call = on_device(fp8(9, 256)), on_device(fp8(96, 256)), ends, tensor_on_device(out)
    assert C.grouped_matmul(*call, None, None, None) == c_api.E_CUDA_DRIVER
    x = tensor_on_device(values(9, 64, dtype="bfloat16"))
    call = x, byref(prepared_there()), ends, tensor_on_device(out)
    assert C.grouped_matmul_prepared(*call, 1, None, None) == c_api.E_CUDA_DRIVER
