"""Each level of instruction sets quantizes and dequantizes as the scalar kernels do, bit by bit, and touches no byte
past either end of its memory."""

import pytest

import dlfp4

from ..support.levels import CODEC_LEVELS, digests_at, run_at

pytestmark = pytest.mark.arithmetic

# ---- levels --------------------------------------------------------------------------------------------------------

# Prints a digest for each format, input type, axis and recipe: shapes that fill vectors and shapes that do not, rows
# that lie next to each other, apart, and across.
DIGESTS = """
import functools, hashlib, itertools, json
import numpy as np
import dlfp4
import reference
from dlfp4.formats import RECIPES as NAMED
from reference import native_cast, parts_of, raw_bytes

dlfp4.set_num_threads(1)
NAMES = list(dlfp4.formats())
SHAPES = [(1, 16), (2, 32), (5, 128), (16, 16), (33, 129), (40, 96), (129, 35)]
RECIPES = {"power": ["ocp", "nvidia", "aiter", "transformer-engine-rocm", dlfp4.Recipe("ceil", "toward_zero")],
           "two_level": [None, dlfp4.Recipe(rounding="nearest_away", keeps_negative_zero=False),
                         dlfp4.Recipe(four_over_six="mean_absolute"),
                         dlfp4.Recipe(four_over_six="mean_squared", largest_scale=448, rounding="nearest_zero"),
                         dlfp4.Recipe(four_over_six="mean_squared")],
           "largest": [None, dlfp4.Recipe(rounding="toward_zero", pow2=True, eps=1.0), dlfp4.Recipe(pow2=False),
                       dlfp4.Recipe(scale_dtype="bfloat16", pow2=False), dlfp4.Recipe(scale_dtype="float16")]}
INTEGERS = [None, dlfp4.Recipe(rounding="toward_zero", eps=1.0), dlfp4.Recipe(scale_dtype="bfloat16"),
            dlfp4.Recipe(scale_dtype="float16", rounding="nearest_away")]
ALONE = [dlfp4.Recipe(global_scale_per="row")]   # of two levels in blocks of one line
TARGETS = ["float32", "bfloat16", "float16"]
TURNS = itertools.count()  # each case takes another way to lay out its input, and another type of what comes back

def recipes_of(format):
    keys = {format.kind, f"{format.kind} of {format.element}"}
    if format.has_integers:
        return INTEGERS
    return [*RECIPES[format.kind], *(name for name in NAMED if keys & set(NAMED[name]))]

@functools.cache  # each serves hundreds of cases
def inputs(shape, dtype):
    rng = np.random.default_rng([len(dtype), *shape])
    blocks = np.ldexp(1.0, np.repeat(rng.integers(-149, 122, (shape[0], -(-shape[1] // 16))), 16, 1)[:, :shape[1]])
    values = rng.normal(size=shape), rng.integers(-16, 17, shape) * blocks, rng.choice([0.0, -0.0], shape)
    broken = np.where(rng.random(shape) < 0.01, rng.choice([np.nan, -np.nan, np.inf], shape), values[1])
    bits = rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return [views(native_cast(value.astype(np.float32), dtype)) for value in (*values, broken, bits)]

def views(x):
    apart = np.zeros((x.shape[0], x.shape[1] + 3), x.dtype)
    apart[:, 1:-2] = x
    return x, apart[:, 1:-2], np.asfortranarray(x), x[::-1, ::-1]

def digest(name, dtype, axis, recipe):
    found = hashlib.sha256()
    for shape in SHAPES:
        for ways in inputs(shape, dtype):
            view = ways[next(TURNS) % 4]
            for q in dlfp4.quantize(view, name, axis=axis, recipe=recipe, pad=True):
                for part in parts_of(q):
                    found.update(raw_bytes(part))
                found.update(raw_bytes(q.dequantize(TARGETS[next(TURNS) % 3])))
    return found.hexdigest()

print(dlfp4.cpu_isa())
print(json.dumps({
    f"{name} of {dtype}, axes {axis}, recipe {number}": digest(name, dtype, axis, recipe)
    for name in NAMES for dtype in ("float32", "bfloat16", "float16") for axis in ((-1,), (-2,), (-1, -2))
    for number, recipe in enumerate([*recipes_of(dlfp4.formats()[name]), *ALONE * (name == "nvfp4")])
}))
"""


@pytest.fixture(scope="module")
def scalar():
    return digests_at("scalar", DIGESTS)


@pytest.mark.parametrize("level", CODEC_LEVELS[:-1])
def test_levels_equal_scalar(level, scalar):
    found = digests_at(level, DIGESTS)
    assert found.keys() == scalar.keys()
    assert {case.split(" of ")[0] for case in found} == set(dlfp4.formats())
    wrong = [case for case in scalar if found[case] != scalar[case]]
    assert not wrong, f"{len(wrong)} of {len(found)}: {wrong[:10]}"


# ---- guard pages ---------------------------------------------------------------------------------------------------

GUARDED = """
import ctypes
import numpy as np
import dlfp4
from reference import Guarded, native_cast

X, DATA, SCALES, BACK = (Guarded(1 << 16) for _ in range(4))

def place(guarded, array, right):
    memory = guarded.flush(array.nbytes, right).view(array.dtype).reshape(array.shape)
    memory[...] = array
    return memory

def octets(tensor):
    return np.frombuffer((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr), np.uint8).copy()

def run(name, shape, dtype, axis, right, recipe=None):
    values = native_cast(np.random.default_rng(1).normal(size=shape), dtype)
    q = dlfp4.quantize(values, name, axis=axis, recipe=recipe, pad=True)
    data = place(DATA, octets(q.data), right).reshape(q.data.shape[0], -1)
    scales = place(SCALES, octets(q.scales), right).view(q.scales.dtype).reshape(q.scales.shape)
    zeros = {} if q.zero_points is None else {"zero_points": q.zero_points.copy()}
    out = dlfp4.ScaledTensor.from_parts(data, scales, q.global_scale, format=name, axis=axis, shape=shape, **zeros)
    data[...] = 0
    dlfp4.quantize(place(X, values, right), name, axis=axis, recipe=recipe, pad=True, out=out)
    assert data.tobytes() == octets(q.data).tobytes()
    for target in ("float32", "bfloat16", "float16"):
        back = place(BACK, native_cast(np.zeros(shape), target), right)
        dlfp4.dequantize(out, target, out=back)
        assert back.tobytes() == octets(q.dequantize(target)).tobytes()

dlfp4.set_num_threads(1)
done = 0
for name in dlfp4.formats():
    for shape in ((1, 1), (1, 16), (3, 17), (16, 31), (2, 32), (5, 33), (3, 65), (17, 16), (33, 3), (16, 130), (65, 7)):
        for dtype in ("float32", "bfloat16", "float16"):
            for axis in (-1, -2):
                for right in (False, True):
                    run(name, shape, dtype, axis, right)
                    if name == "nvfp4" and shape[axis] > 1 and shape[-3 - axis] > 1:
                        run(name, shape, dtype, axis, right, dlfp4.Recipe(global_scale_per="row"))
                    done += 1
print(done)
"""


@pytest.mark.parametrize("level", CODEC_LEVELS)
def test_no_byte_past_either_end(level):
    assert int(run_at(level, GUARDED)) == len(dlfp4.formats()) * 11 * 3 * 2 * 2
