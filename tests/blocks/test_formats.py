"""A row of formats.def is all that a format takes: the table says what the file says, each operation agrees with
float64 at every level, and a row that no kernel could serve does not compile."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import dlfp4

from ..support.levels import CODEC_LEVELS, LEVELS, digests_at

pytestmark = pytest.mark.arithmetic

ROOT = Path(__file__).resolve().parents[2]
RULES = {"TWO_LEVEL": "two_level", "POWER": "power", "LARGEST": "largest"}


def test_the_table_says_what_the_file_says():
    rows = re.findall(
        r"^DLFP4_BLOCK_FORMAT\((.*)\)$", (ROOT / "src" / "rules" / "formats.def").read_text(), re.MULTILINE
    )
    found = dlfp4.formats()
    assert len(rows) == len(found)
    for number, row in enumerate(rows):
        name, element, lines, length, scale, rule, repeats = row.split(", ")
        format = found[name]
        assert (format.number, format.element.name, format.scale.name) == (number, element, scale)
        assert format.block == ((int(lines), int(length) or None) if int(lines) else None)
        assert (format.kind, format.repeats_scales) == (RULES[rule], repeats == "1")


CHECKS = [(level, check) for level in CODEC_LEVELS for check in ("quantize", "dequantize")]
CHECKS += [(level, check) for level in LEVELS for check in ("dot", "matmul")]


@pytest.mark.parametrize(("level", "check"), CHECKS)
def test_every_format_agrees_with_float64(level, check):
    """See float64.py."""
    found = digests_at(level, f"import float64\nfloat64.run({check!r})")
    assert found.keys() == dlfp4.formats().keys()
    wrong = {name: cases[:5] for name, cases in found.items() if cases}
    assert not wrong


# ---- rows that are none --------------------------------------------------------------------------------------------

NO_ROWS = {
    "int8, 1, 32, float8_e8m0fnu, POWER, 0": "elements that are floats of 4, 6 or 8 bits",
    "float16, 1, 32, float8_e8m0fnu, POWER, 0": "elements that are floats of 4, 6 or 8 bits",
    "float4_e2m1fn, 1, 8, float8_e8m0fnu, POWER, 0": "1 to 128 lines of 16 to 128 elements, powers of two",
    "float8_e4m3fn, 1, 48, float8_e8m0fnu, POWER, 0": "1 to 128 lines of 16 to 128 elements, powers of two",
    "float8_e4m3fn, 1, 256, float32, LARGEST, 0": "1 to 128 lines of 16 to 128 elements, powers of two",
    "float4_e2m1fn, 1, 32, float8_e4m3fn, POWER, 0": "float8_e8m0fnu of elements from 2 on for POWER",
    "float4_e2m1fn, 1, 32, bfloat16, TWO_LEVEL, 0": "a float8 for TWO_LEVEL",
    "float8_e4m3fn, 1, 128, float8_e8m0fnu, LARGEST, 0": "float32 for LARGEST",
    "int4, 1, 32, float8_e8m0fnu, POWER, 0": "integers are scaled by LARGEST, in blocks of one line",
    "uint4, 128, 128, float32, LARGEST, 0": "integers are scaled by LARGEST, in blocks of one line",
    "float8_e4m3fn, 0, 0, float8_e8m0fnu, POWER, 0": "one scale for the whole tensor, or for a line, comes by LARGEST",
    "float8_e4m3fn, 1, 0, float8_e8m0fnu, POWER, 0": "one scale for the whole tensor, or for a line, comes by LARGEST",
    "float8_e4m3fn, 2, 0, float32, LARGEST, 0": "a block is 0 x 0, 1 x 0",
    "float6_e2m3fn, 1, 128, float32, LARGEST, 0": "blocks by LARGEST may be incomplete",
    "float8_e4m3fn, 1, 128, float32, LARGEST, 1": "only what lines share can be repeated",
}


@pytest.mark.skipif(not shutil.which("c++"), reason="c++ is not on PATH")
@pytest.mark.parametrize("row", NO_ROWS)
def test_a_row_that_no_kernel_serves_stops_the_build(row, tmp_path):
    for path in (ROOT / "src" / "rules").glob("*.*"):
        shutil.copy(path, tmp_path)
    with (tmp_path / "formats.def").open("a") as table:
        table.write(f"DLFP4_BLOCK_FORMAT(none, {row})\n")
    command = ["c++", "-std=c++17", "-fsyntax-only", "-I", ROOT / "include", "-x", "c++", tmp_path / "block_keys.h"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "formats.def, none: " in done.stderr
    assert NO_ROWS[row] in done.stderr
