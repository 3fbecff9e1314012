"""Results in parts of packed tensors, on the host and a GPU: other elements keep their bits of the bytes they share."""

import ctypes

import numpy as np
import pytest

import dlfp4

from ..support.reference import BITS, codes_of, host_bytes, of_codes, raw_bytes

FP4 = "float4_e2m1fn"
DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
PARTS = {
    "a row": ((3, 5), lambda t: t[0]),
    "an element": ((8,), lambda t: t[4]),
    "a run": ((12,), lambda t: t[4:7]),
    "a long run": ((300,), lambda t: t[:289]),
    "a long run from within": ((300,), lambda t: t[4:257]),
    "a run of a run": ((13,), lambda t: t[4:][:3]),
    "another shape of a run": ((2, 12), lambda t: t[0, :4][:3].reshape((3, 1))),
    "columns": ((2, 8), lambda t: t[:, :3]),
    "a column": ((5, 8), lambda t: t[:, 4:5]),
    "long rows": ((3, 160), lambda t: t[:, 4:103]),
    "rows of rows": ((2, 3, 12), lambda t: t[:, 1:, :5]),
    "every fourth, backwards": ((3, 32), lambda t: t[:, 28:3:-4]),
}
SCATTERED = {
    "a transposed part": ((3, 3, 3), lambda t: t[0].T),
    "every other": ((12,), lambda t: t[4:9:2]),
    "backwards": ((12,), lambda t: t[8:3:-1]),
    "columns, transposed": ((8, 8), lambda t: t[:, 4:7].T),
}
SMALL = [FP4, "float6_e2m3fn", "int4", "uint2"]


def whole_and_part(name, shape, part):
    """The codes of a tensor, others for a part of it, and all of them after that part was written."""
    codes = np.arange(1, np.prod(shape) + 1).reshape(shape) % 3 + 1
    written = codes.copy()
    view = part(dlfp4.asarray(written)).to_numpy()
    view[...] = 3 - view % 3
    return of_codes(codes, name), of_codes(view.copy(), name), written.tolist()


def pack_into_part(name, shape, part, device):
    codes, values, written = whole_and_part(name, shape, part)
    whole = dlfp4.pack(codes).to_device(device)
    dlfp4.pack(dlfp4.asarray(values).to_device(device), out=part(whole))
    assert codes_of(dlfp4.unpack(whole.to_device("cpu"))).tolist() == written


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("which", PARTS)
@pytest.mark.parametrize("name", SMALL)
def test_elements_beside_a_part_stay(name, which, device):
    pack_into_part(name, *PARTS[which], device)


@pytest.mark.parametrize("which", SCATTERED)
@pytest.mark.parametrize("name", SMALL)
def test_elements_between_those_of_a_part_stay(name, which):
    pack_into_part(name, *SCATTERED[which], "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e3m2fn"])
def test_casts_leave_what_lies_beside(name, device):
    """Long enough for the kernels of contiguous runs, whose rest ends within a byte."""
    ones = dlfp4.asarray(np.ones(1001, np.float32)).to_device(device)
    whole = dlfp4.asarray(np.full(BITS[name] * 256, 0xFF, np.uint8)).to_device(device).view(name)
    dlfp4.cast(ones, name, out=whole[:1001])
    raw = np.frombuffer(host_bytes(whole), np.uint8)
    bits = np.unpackbits(raw, bitorder="little")
    expected = np.frombuffer(host_bytes(dlfp4.cast(np.ones(1001, np.float32), name)), np.uint8)
    end = 1001 * BITS[name]
    assert np.array_equal(bits[:end], np.unpackbits(expected, bitorder="little")[:end])
    assert bits[end:].all()


@pytest.mark.parametrize("device", DEVICES)
def test_the_last_byte_of_a_part_stays(device):
    whole = dlfp4.asarray(np.full(8, 0xFF, np.uint8)).to_device(device).view(FP4)
    dlfp4.cast(dlfp4.asarray(np.ones(15, np.float32)).to_device(device), FP4, out=dlfp4.from_dlpack(whole[:15]))
    assert host_bytes(whole)[-1] == 0xF2


def test_the_last_byte_of_what_is_no_part_is_completed():
    own = dlfp4.empty(15, FP4)
    ctypes.memset(own.data_ptr, 0xFF, own.nbytes)
    assert raw_bytes(dlfp4.cast(np.ones(15, np.float32), FP4, out=own))[-1] == 0x02
