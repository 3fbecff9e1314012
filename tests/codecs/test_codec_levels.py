"""Each level of instruction sets converts as the scalar kernels do, bit by bit; one that is not there is refused."""

import ctypes
import re
from pathlib import Path

import pytest

import dlfp4

from ..support.levels import CODEC_LEVELS, LEVELS, available_levels, digests_at, python_at, require

pytestmark = pytest.mark.arithmetic

CPUINFO = Path("/proc/cpuinfo")

# ---- equal bits ----------------------------------------------------------------------------------------------------

# Prints a digest for each conversion: all pairs, packed and padded on either side, all modes; a long run and short ones
# that start anywhere, of 0 to 130 elements in one mode, of some lengths in the others.
DIGESTS = """
import hashlib, json
import numpy as np
import dlfp4
import reference
from capsules import Made
from reference import BITS, FLOATS, ROUNDINGS

dlfp4.set_num_threads(1)
MODES = [(r, s) for r in [*ROUNDINGS, "stochastic"] for s in (False, True)]

def places(name):
    return (True, False) if BITS[name] < 8 else (False,)

def codes_for(name):
    if BITS[name] <= 8:
        return np.random.default_rng(1).integers(0, 1 << BITS[name], 5003, dtype=np.uint8)
    if BITS[name] == 16:
        return np.arange(1 << 16, dtype=np.uint16)
    values = [reference.hard_values(target, name) for target in reference.LOW]
    return reference.codes_of(np.concatenate([*values, reference.random_codes(name, 5003)]))

def memory_of(codes, name, packed):
    if packed:
        return np.frombuffer(reference.packed_bytes(codes, BITS[name]), np.uint8)
    garbage = 0xFF & ~((1 << BITS[name]) - 1) if BITS[name] < 8 else 0
    return (codes | codes.dtype.type(garbage)).view(np.uint8)

def size_of(count, name, packed):
    return -(-count * BITS[name] // 8) if packed else count * (-(-BITS[name] // 8))

def tensor_of(memory, count, name, packed):
    if not packed:
        return memory[:size_of(count, name, False)].view(reference.dtype_of(name))
    return dlfp4.from_dlpack(Made(memory, dtype=name, shape=(count,), strides=(1,)).capsule)

def convert(memory, start, count, source, packed, target, packs, options):
    size = size_of(count, target, packs)
    source = tensor_of(memory[start:] if count else memory, count, source, packed)
    out = reference.misaligned(size + 2, count % 61, 0xA5)
    result = tensor_of(out[1:], count, target, packs)
    dlfp4.cast(source, target, out=result, **options)
    assert out[0] == out[-1] == 0xA5
    return out.tobytes()

def digest(source, packed, target, packs, rounding, saturate):
    options = {"rounding": rounding, "saturate": saturate, "seed": 9 if rounding == "stochastic" else None}
    codes = CODES[source]
    memory = memory_of(codes, source, packed)
    found = hashlib.sha256(convert(memory, 0, len(codes), source, packed, target, packs, options))
    every = rounding == "nearest_even" and saturate
    for count in range(131) if every else (1, 15, 33, 63, 129):
        start = count % 7 * (3 if packed else max(BITS[source] // 8, 1))
        found.update(convert(memory, start, count, source, packed, target, packs, options))
    return found.hexdigest()

CODES = {name: codes_for(name) for name in FLOATS}
print(dlfp4.cpu_isa())
print(json.dumps({
    f"{source}{' packed' * packed} to {target}{' packed' * packs}, {rounding}, saturate={saturate}":
        digest(source, packed, target, packs, rounding, saturate)
    for source in FLOATS for packed in places(source) for target in FLOATS for packs in places(target)
    for rounding, saturate in MODES
}))
"""


@pytest.fixture(scope="module")
def scalar():
    return digests_at("scalar", DIGESTS)


@pytest.mark.parametrize("level", CODEC_LEVELS[:-1])
def test_equal_to_scalar(level, scalar):
    found = digests_at(level, DIGESTS)
    assert len(found) == 18 * 18 * 10
    wrong = [conversion for conversion in scalar if found[conversion] != scalar[conversion]]
    assert not wrong, f"{len(wrong)} of {len(found)}: {wrong[:10]}"


def test_digests_tell_modes_and_types_apart(scalar):
    assert len(set(scalar.values())) > 1000
    nearest = [scalar[f"float32 to float4_e2m1fn packed, {rounding}, saturate=True"] for rounding in
               ("nearest_even", "nearest_away", "toward_zero", "stochastic")]  # fmt: skip
    assert len(set(nearest)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("level", CODEC_LEVELS)
@pytest.mark.parametrize("file", ["test_codecs.py", "test_rounding.py", "test_cast_layouts.py", "test_cast_api.py"])
def test_each_level_passes_the_other_tests(level, file):
    require(level)
    done = python_at(level, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name(file)))
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


# ---- which level ---------------------------------------------------------------------------------------------------


def level_of(setting):
    done = python_at(setting, "-c", "import dlfp4; print(dlfp4.cpu_isa())")
    return done.stdout.strip()


# What Linux calls the features that each level is made of.
AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vbmi", "avx2", "fma", "bmi2"}
AVX512_BF16 = AVX512 | {"avx512_vnni", "avx512_bf16"}
FLAGS = {
    "amx": AVX512_BF16 | {"amx_tile", "amx_bf16"},
    "avx512_bf16": AVX512_BF16,
    "avx512": AVX512,
    "avx2": {"avx2", "fma", "bmi2"},
    "neon": {"asimd"},
    "scalar": set(),
}


def test_every_level_is_tested():
    rows = re.findall(r"^dlfp4_add_level\((\w+)", (Path(__file__).parents[2] / "CMakeLists.txt").read_text(), re.M)
    assert LEVELS == list(FLAGS) == rows


@pytest.fixture
def flags():
    """What the operating system says of the processor."""
    if not CPUINFO.exists():
        pytest.skip(f"no {CPUINFO}")
    lines = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in CPUINFO.read_text().splitlines() if ":" in line)
    found = set((lines.get("flags") or lines["Features"]).split())
    return found if may_use_tiles(found) else found - {"amx_tile"}


ARCH_PRCTL, GET_PERMISSIONS, REQUEST_PERMISSION, TILE_DATA = 158, 0x1022, 0x1023, 18


def may_use_tiles(flags):
    """Whether Linux, or the container, gives a process the tiles that the processor has."""
    return "amx_tile" in flags and ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0


def test_every_level_of_this_processor_is_there(flags):
    assert available_levels() == [level for level in LEVELS if FLAGS[level] <= flags]
    assert level_of("") == available_levels()[0]  # empty: as if it were not set


PERMITTED = f"""
import ctypes, sys

def has_tiles():
    permissions = ctypes.c_uint64()
    assert ctypes.CDLL(None).syscall({ARCH_PRCTL}, {GET_PERMISSIONS}, ctypes.byref(permissions)) == 0
    return bool(permissions.value >> {TILE_DATA} & 1)

library = ctypes.CDLL(sys.argv[1])
library.dlfp4_isa()
first = has_tiles()
library.dlfp4_set_isa(b"amx")
print(first, has_tiles())
"""


def test_the_system_is_asked_for_tiles_where_they_are_wanted():
    """A process that forces another level has signals' frames without them."""
    require("amx")
    (library,) = Path(dlfp4.get_library_dir()).glob("libdlfp4.so.*")
    asked = {level: python_at(level, "-c", PERMITTED, library).stdout.split() for level in ("amx", "avx2", "")}
    assert asked == {"amx": ["True", "True"], "avx2": ["False", "True"], "": ["True", "True"]}


def assert_refused(level):
    done = python_at(level, "-c", "import dlfp4; print(dlfp4.cpu_isa())")
    assert done.returncode == 1, f"exit code {done.returncode}: {done.stdout} {done.stderr}"
    error = done.stderr.strip().splitlines()[-1]
    assert error.startswith(("ImportError:", "RuntimeError:"))
    assert "DLFP4_ISA" in error
    assert level in error
    assert "scalar" in error.replace(level, "")  # what there is


@pytest.mark.parametrize("level", ["nonsense", "AVX512", "scalar ", "avx51", "avx5122"])
def test_an_unknown_level_is_refused(level):
    assert_refused(level)


@pytest.mark.parametrize("level", LEVELS)
def test_a_missing_level_is_refused(level):
    if level in available_levels():
        assert level_of(level) == level
    else:
        assert_refused(level)
