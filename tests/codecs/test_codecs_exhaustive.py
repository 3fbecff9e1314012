"""All 2^32 float32 patterns into each type of at most 8 bits, both ways to saturate, and into those of 16: minutes for
each level.

The expected codes are ml_dtypes' own, pattern for pattern (saturate=False), and what the rules of clamping make of them
(saturate=True): nothing is sampled or inferred. `DLFP4_EXHAUSTIVE=float8_e4m3fn,float4_e2m1fn` takes these types alone;
`DLFP4_ISA` names the level.
"""

import os
import time

import numpy as np
import pytest

import dlfp4

from ..support.reference import LOW, OLD_E8M0, codec, codes_of, dtype_of, packed_bytes, raw_bytes

pytestmark = [pytest.mark.slow, pytest.mark.arithmetic]

CHUNK = 1 << 22
# first and one past the last pattern, negative, NaN
RANGES = [
    (0, 0x7F800001, False, False),
    (0x7F800001, 0x80000000, False, True),
    (0x80000000, 0xFF800001, True, False),
    (0xFF800001, 1 << 32, True, True),
]
CHOSEN = os.environ.get("DLFP4_EXHAUSTIVE", "").replace(",", " ").split() or LOW


def clamped(target, negative, nan):
    """The saturated code of an input of that sign and kind, by the code that ml_dtypes gave it."""
    table = np.arange(256, dtype=np.uint8)
    if nan:  # is what ml_dtypes says, where the type has one
        return table if target.has_nan else np.full_like(table, target.largest)
    if target.unsigned and negative:
        return np.full_like(table, target.nans[0])
    largest = target.largest | (target.sign if negative else 0)
    return np.where(target.is_finite(table), table, np.uint8(largest))


def saturated(target, patterns, codes, table):
    """The codes with saturate=True from those without."""
    expected = table[codes]
    if target.unsigned and patterns[0] < 0x800000:  # ml_dtypes: +-0 is NaN, all between 2^-127 and 2^-126 goes up
        low = patterns < 0x800000
        expected[low] = patterns[low] >= 0x600000
    elif target.unsigned:
        expected[patterns == 0x80000000] = 0
    return expected


def differences(got, expected, patterns):
    wrong = np.flatnonzero(got != expected)
    return len(wrong), [f"0x{patterns[i]:08X}: {got[i]:#x}, not {expected[i]:#x}" for i in wrong[:3]]


class Tally:
    def __init__(self, target):
        self.target, self.seen, self.wrong, self.examples = target, 0, {False: 0, True: 0}, []
        self.wrong_packed = 0  # chunks
        self.native, self.out = np.empty(CHUNK, target.dtype), np.empty(CHUNK, target.dtype)

    def add(self, patterns, table):
        count, values = len(patterns), patterns.view(np.float32)
        np.copyto(self.native[:count], values, casting="unsafe")
        expected = codes_of(self.native[:count])
        for saturate in (False, True):
            self.out.view(np.uint8)[:count] = 0x55
            dlfp4.cast(values, self.target.dtype, saturate=saturate, out=self.out[:count])
            if saturate:
                expected = saturated(self.target, patterns, expected, table)
            got = codes_of(self.out[:count])
            if not np.array_equal(got, expected):
                number, examples = differences(got, expected, patterns)
                self.wrong[saturate] += number
                self.examples += [f"saturate={saturate} {example}" for example in examples]
            if self.target.bits < 8:  # kernels that pack are others
                packed = dlfp4.cast(values, self.target.dtype, saturate=saturate)
                self.wrong_packed += raw_bytes(packed) != packed_bytes(expected, self.target.bits)
        self.seen += count


@pytest.fixture
def one_thread():
    dlfp4.set_num_threads(1)
    yield
    dlfp4.set_num_threads(0)


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.usefixtures("one_thread")
def test_every_float32(name):
    if name == "float8_e8m0fnu" and OLD_E8M0:
        pytest.skip("this ml_dtypes sends ties of float8_e8m0fnu to the even code")
    target, started = codec(name), time.perf_counter()
    tally, count = Tally(target), np.arange(CHUNK, dtype=np.uint32)
    with np.errstate(all="ignore"):
        for first, last, negative, nan in RANGES:
            table = clamped(target, negative, nan)
            for start in range(first, last, CHUNK):
                tally.add(count[: min(CHUNK, last - start)] + np.uint32(start), table)
    seconds = time.perf_counter() - started
    print(
        f"\n{name} {dlfp4.cpu_isa()}: {tally.seen} patterns, mismatches {tally.wrong}, "
        f"packed chunks {tally.wrong_packed}, {seconds:.0f} s"
    )
    assert tally.seen == 1 << 32
    assert tally.wrong == {False: 0, True: 0}, tally.examples[:10]
    assert tally.wrong_packed == 0


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.usefixtures("one_thread")
def test_every_float32_in_16_bits(name):
    """Bytes as ml_dtypes' and numpy's own: rounding, infinities and what NaNs keep of their payloads."""
    expected, got = np.empty(CHUNK, dtype_of(name)), np.empty(CHUNK, dtype_of(name))
    count, wrong, examples = np.arange(CHUNK, dtype=np.uint32), 0, []
    for start in range(0, 1 << 32, CHUNK):
        patterns = count + np.uint32(start)
        with np.errstate(all="ignore"):
            np.copyto(expected, patterns.view(np.float32), casting="unsafe")
        got.view(np.uint8)[:] = 0x55
        dlfp4.cast(patterns.view(np.float32), got.dtype, out=got)
        number, some = differences(got.view(np.uint16), expected.view(np.uint16), patterns)
        wrong, examples = wrong + number, examples + some
    print(f"\n{name} {dlfp4.cpu_isa()}: {1 << 32} patterns, {wrong} mismatches")
    assert wrong == 0, examples[:10]
