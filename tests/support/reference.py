"""What a conversion must give: an independent reference of the rules, hard inputs for it, and ways to look at codes.

A type's values are those that ml_dtypes decodes; no rule is shared with the library. Magnitudes of one sign are in the
order of their codes, so that a code is an index: rounding compares with the midpoint of two neighbours, which float64
holds exactly for all types of at most 32 bits.
"""

import ctypes
import functools
import mmap

import ml_dtypes
import numpy as np

import dlfp4

BITS = {
    "float8_e3m4": 8, "float8_e4m3": 8, "float8_e4m3b11fnuz": 8, "float8_e4m3fn": 8, "float8_e4m3fnuz": 8,
    "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8, "float6_e2m3fn": 6, "float6_e3m2fn": 6,
    "float4_e2m1fn": 4, "bfloat16": 16, "float16": 16, "float32": 32, "float64": 64,
    "int4": 4, "uint4": 4, "int2": 2, "uint2": 2,
}  # fmt: skip
FLOATS = [name for name in BITS if "int" not in name]
LOW = [name for name in FLOATS if BITS[name] <= 8]
WIDE = [name for name in FLOATS if BITS[name] > 8]
FLOATS_BELOW_8 = [name for name in FLOATS if BITS[name] < 8]
SUBBYTE = [name for name in BITS if BITS[name] < 8]
PAIRS = [(source, target) for source in FLOATS for target in FLOATS if source != target]
ROUNDINGS = ["nearest_even", "nearest_away", "toward_zero", "nearest_zero"]

# The rule is that of ml_dtypes 0.6; 0.5 sent ties of float8_e8m0fnu to the even code.
OLD_E8M0 = float(np.array([3], np.float32).astype(ml_dtypes.float8_e8m0fnu)[0]) == 2


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def codes_of(x):
    """The code of each element, in the integer type of its width; of an array or of a dlfp4 Tensor."""
    array = x if isinstance(x, np.ndarray) else x.to_numpy()
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def of_codes(codes, name):
    """The array of that type with those codes."""
    dtype = dtype_of(name)
    return np.asarray(codes).astype(f"u{dtype.itemsize}").view(dtype)


def all_codes(name):
    """Every code of a type of at most 16 bits, over and over where there are few: loops and their tails see them."""
    return of_codes(np.resize(np.arange(1 << BITS[name]), max(1 << BITS[name], 1027)), name)


def native_cast(array, name):
    """NumPy's and ml_dtypes' own conversion, without their warnings of overflow and NaN."""
    if name == "float8_e8m0fnu" and OLD_E8M0:
        return of_codes(codec(name).round(array, saturate=False), name)
    with np.errstate(all="ignore"):
        if "float8_e8m0fnu" in (name, array.dtype.name) and array.dtype.itemsize == dtype_of(name).itemsize:
            array = array.astype(np.float32)  # which holds both; ml_dtypes knows no way between them
        return array.astype(dtype_of(name))


# ---- the reference -------------------------------------------------------------------------------------------------


class Codec:
    """One type of at most 32 bits: its values in the order of its codes, and the rounding to them."""

    def __init__(self, name):
        self.name, self.dtype, self.bits = name, dtype_of(name), BITS[name]
        self.unsigned, self.fnuz = name == "float8_e8m0fnu", name.endswith("fnuz")
        self.sign = 0 if self.unsigned else 1 << (self.bits - 1)
        with np.errstate(all="ignore"):
            ends = np.array([np.nan, -np.nan, np.inf], np.float32).astype(self.dtype)
        self.nans = codes_of(ends[:2])  # of a positive and of a negative NaN, as ml_dtypes has them
        self.has_nan = bool(np.isnan(ends[:2].astype(np.float64)).all())
        self.infinity = int(codes_of(ends)[2]) if np.isinf(ends.astype(np.float64))[2] else None
        if self.bits == 32:
            self.largest, self.beyond = 0x7F7FFFFF, 2.0**128
        else:
            values = native_cast(of_codes(np.arange(self.sign or 256), name), "float64")
            self.largest = int(np.flatnonzero(np.isfinite(values))[-1])
            step = values[self.largest] - values[self.largest - 1]
            self.beyond = values[self.largest] * 2 if self.unsigned else values[self.largest] + step
            self.values = np.append(values[: self.largest + 1], self.beyond)

    def is_finite(self, codes):
        return np.isfinite(native_cast(of_codes(codes, self.name), "float64"))

    def value(self, codes):
        """The magnitude of a code, `beyond` for the one after the largest."""
        if self.bits < 32:
            return self.values[np.minimum(codes, self.largest + 1)]
        finite = np.minimum(codes, self.largest).astype(np.uint32).view(np.float32).astype(np.float64)
        return np.where(codes > self.largest, self.beyond, finite)

    def floor(self, magnitude):
        """The code of the largest value that is not greater (the first one, where none is)."""
        if self.bits < 32:
            return np.maximum(np.searchsorted(self.values, magnitude, side="right") - 1, 0)
        near = native_cast(magnitude, "float32")
        codes = near.view(np.uint32).astype(np.int64) - (near.astype(np.float64) > magnitude)
        return np.where(magnitude >= self.beyond, self.largest + 1, np.minimum(codes, self.largest))

    def rounds_up(self, magnitude, low, rounding, saturate):
        middle = (self.value(low) + self.value(low + 1)) / 2
        if rounding == "toward_zero":
            return np.zeros(low.shape, bool)
        if rounding == "up":
            return magnitude > self.value(low)
        if rounding == "nearest_zero":
            up = magnitude > middle
        elif rounding == "nearest_away" or self.unsigned:
            up = magnitude >= middle
        else:
            up = (magnitude > middle) | ((magnitude == middle) & (low % 2 == 1))
        if self.unsigned and not saturate and rounding == "nearest_even":
            up |= (low == 0) & (magnitude > 2.0**-127)  # ml_dtypes takes all of the lowest binade up
        return up

    def round(self, x, rounding="nearest_even", *, saturate=True, up=None):
        """The codes of float64 values; `up` decides in place of a rounding mode, given magnitudes and codes below."""
        x = native_cast(np.asarray(x), "float64")
        negative, magnitude = np.signbit(x), np.where(np.isnan(x), 0, np.abs(x))
        low = self.floor(magnitude)
        inexact = magnitude > self.value(low)
        decided = up(magnitude, low) if up else self.rounds_up(magnitude, low, rounding, saturate)
        codes = low + (inexact & decided)
        sign = np.where(negative & ~((codes == 0) & self.fnuz), self.sign, 0)
        clamps = (saturate and self.bits <= 8) or not self.has_nan
        clamped = np.isfinite(x) if rounding == "toward_zero" and not clamps else clamps
        beyond = self.nans[negative.astype(int)] if self.infinity is None else self.infinity | sign
        codes = np.where(codes > self.largest, np.where(clamped, self.largest | sign, beyond), codes | sign)
        if self.unsigned:
            codes = self._without_sign(x, codes, saturate)
        nans = self.nans[negative.astype(int)] if self.has_nan or not saturate else self.largest
        return np.where(np.isnan(x), nans, codes).astype(f"u{self.dtype.itemsize}")

    def _without_sign(self, x, codes, saturate):
        codes = np.where(x < 0, self.nans[0], codes)
        return np.where(x == 0, 0 if saturate else self.nans[0], codes)


@functools.cache
def codec(name):
    return Codec(name)


# ---- stochastic rounding -------------------------------------------------------------------------------------------


def philox(counter, key):
    """Four words for each column of counters."""
    c, k = [np.asarray(word, np.uint64) for word in counter], [int(word) for word in key]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [q >> np.uint64(32) ^ c[1] ^ np.uint64(k[0]), q & low, p >> np.uint64(32) ^ c[3] ^ np.uint64(k[1]), p & low]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def draws(seed, count, depth=0):
    """32 random bits of each element; `depth` counts the words of one element."""
    index = np.arange(count, dtype=np.uint64)
    block = index // np.uint64(4)
    zero = np.zeros_like(block)
    words = philox([block, zero, zero + np.uint64(depth), zero], [seed % 2**32, seed >> 32])
    return np.choose((index % np.uint64(4)).astype(np.intp), words)


def drawn(values, name, seed, saturate):
    target, random = codec(name), draws(seed, len(values))

    def up(magnitude, low):
        with np.errstate(invalid="ignore", divide="ignore"):
            fraction = (magnitude - target.value(low)) / (target.value(low + 1) - target.value(low))
        return random < np.floor(np.where(np.isfinite(fraction), fraction, 0) * 2.0**32)

    return target.round(values, "stochastic", saturate=saturate, up=up)


# ---- inputs --------------------------------------------------------------------------------------------------------

SPECIAL = np.array(
    [0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000,
     0x7F7FFFFE, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FC12345, 0x7FFFFFFF], np.uint32
)  # fmt: skip
SPECIAL = np.concatenate([SPECIAL, SPECIAL | np.uint32(1 << 31)]).view(np.float32)  # subnormals, ends, Inf, NaN


def turning_points(name, most=3000):
    """Values of a type and the midpoints between them (some of the many of a wide type), and where it ends."""
    target = codec("float32" if name == "float64" else name)
    codes = np.unique(np.linspace(0, target.largest, most).astype(np.int64))
    low, high = target.value(codes), target.value(codes + 1)
    return np.unique(np.concatenate([low, (low + high) / 2, high, [target.beyond * 2]]))


def hard_values(name, source="float32"):
    """float32 or float64 inputs of a conversion to `name`: its turning points, their neighbours, special values."""
    points = native_cast(turning_points(name), source)
    with np.errstate(over="ignore", under="ignore"):
        near = [np.nextafter(points, dtype_of(source).type(towards)) for towards in (-np.inf, np.inf)]
    if source == "float64":  # what float32 cannot tell from a tie
        near += [points * (1 + 2.0**-26), points * (1 - 2.0**-26)]
    values = np.concatenate([points, *near])
    return np.concatenate([values, -values, native_cast(SPECIAL, source)])


def random_codes(name, count, seed=0):
    """Any bit patterns of a type, NaN and Inf among them."""
    rng = np.random.default_rng([seed, count])
    dtype = dtype_of(name)
    codes = rng.integers(0, 1 << BITS[name], count, dtype=np.uint64)
    return codes.astype(f"u{dtype.itemsize}").view(dtype)


# ---- memory --------------------------------------------------------------------------------------------------------


def packed_bytes(codes, bits):
    """Codes side by side, little-endian, spare bits zero."""
    codes = np.ascontiguousarray(codes).view(np.uint8).ravel()
    return np.packbits(np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :bits], bitorder="little").tobytes()


def unpacked_codes(raw, bits, count):
    """The inverse, for `count` elements."""
    bits_of = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")[: count * bits].reshape(count, bits)
    return np.packbits(bits_of, axis=1, bitorder="little").ravel()


def parts_of(q):
    """All parts of a block-scaled tensor that there are."""
    names = ("data", "scales", "global_scale", "encode_scale", "zero_points", "biases")
    return [part for part in (getattr(q, name) for name in names) if part is not None]


def raw_bytes(tensor):
    """All bytes of a compact dlfp4 Tensor, spare bits included."""
    return ctypes.string_at(tensor.data_ptr, tensor.nbytes) if tensor.nbytes else b""


def host_bytes(tensor):
    """The same of any producer's memory, wherever it lies."""
    return raw_bytes(dlfp4.from_dlpack(tensor, device="cpu").copy())


def expected_bytes(codes, name, packed):
    """What compact memory with those codes must hold."""
    return packed_bytes(codes, BITS[name]) if packed and BITS[name] < 8 else codes.tobytes()


def misaligned(nbytes, offset, fill=0):
    """Bytes that start `offset` past a multiple of 64."""
    block = np.full(nbytes + 128, fill, np.uint8)
    start = -block.ctypes.data % 64 + offset
    return block[start : start + nbytes]


class Guarded:
    """Bytes with no memory on either side."""

    def __init__(self, room):
        page = mmap.PAGESIZE
        inner = -(-room // page) * page
        self.map = mmap.mmap(-1, inner + 2 * page)
        whole = np.frombuffer(self.map, np.uint8)
        self.inner = whole[page : page + inner]
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for start in (whole.ctypes.data, whole.ctypes.data + page + inner):
            assert protect(ctypes.c_void_p(start), ctypes.c_size_t(page), 0) == 0

    def flush(self, size, right):
        """Its last bytes, or its first."""
        return self.inner[len(self.inner) - size :] if right else self.inner[:size]
