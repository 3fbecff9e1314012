"""What is in an sdist and a wheel, and what must not be: `python tests/project/check_dist.py FOLDER`."""

import re
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IN_WHEEL = re.compile(
    r"dlfp4/(\w+/)*(\w+\.py|_core\.pyi|_core\.[\w-]+\.so|py\.typed)|dlfp4/include/dlfp4/\w+\.h(pp)?|dlfp4-.*\.dist-info/.*"
    r"|dlfp4/lib/(libdlfp4\.so(\.\d+\.\d+)?|cmake/dlfp4/\w+(-\w+)?\.cmake|pkgconfig/dlfp4\.pc)"
    r"|dlfp4/src/(rules|gpu|(codecs|blocks|products)/cuda)/\w+\.(h|def|cuh|cu)"
)
NEEDED = {
    "dlfp4/_core.pyi",
    "dlfp4/py.typed",
    "dlfp4/lib/libdlfp4.so",
    "dlfp4/lib/cmake/dlfp4/dlfp4Config.cmake",
    "dlfp4/lib/pkgconfig/dlfp4.pc",
    *(f"dlfp4/include/dlfp4/{path.name}" for path in ROOT.glob("include/dlfp4/*")),
    *(
        f"dlfp4/{path.relative_to(ROOT)}"
        for folder in ("rules", "gpu", "codecs/cuda", "blocks/cuda", "products/cuda")  # for NVRTC
        for end in ("h", "def", "cuh", "cu")
        for path in ROOT.glob(f"src/{folder}/*.{end}")
    ),
}
SOURCES = [f"{folder}/**/*{end}"
           for folder in ("dlfp4", "src", "include", "cmake", "bindings", "tests", "benchmarks", "examples")
           for end in (".py", ".pyi", ".pyx", ".pxi", ".pxd", ".c", ".h", ".hpp", ".def", ".cpp", ".cu", ".cuh",
                       ".cmake", ".in", ".txt", ".rs", ".toml")]  # fmt: skip


def names_in(dist):
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as in_wheel, tarfile.open(sdist) as in_sdist:
        return set(in_wheel.namelist()), {name.partition("/")[2] for name in in_sdist.getnames()}


in_wheel, in_sdist = names_in(Path(sys.argv[1]))
sources = {str(path.relative_to(ROOT)) for pattern in SOURCES for path in ROOT.glob(pattern)}
problems = {
    "in the wheel, but not of it": {name for name in in_wheel if not IN_WHEEL.fullmatch(name)},
    "missing in the wheel": (NEEDED | {name for name in sources if re.match(r"dlfp4/.*\.py$", name)}) - in_wheel,
    "missing in the sdist": (sources | {"LICENSE", "README.md", "CMakeLists.txt", "tests/constraints.txt"}) - in_sdist,
    "junk in the sdist": {name for name in in_sdist if re.search(r"(^|/)\.|\.so$|\.pyc$|_core\.c$|^build", name)},
}
for problem, names in problems.items():
    if names:
        print(f"{problem}: {', '.join(sorted(names))}")
sys.exit(any(problems.values()))
