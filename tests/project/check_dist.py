"""What is in an sdist and a wheel, and what must not be: `python tests/project/check_dist.py FOLDER`."""

import io
import re
import sys
import tarfile
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[2]
IN_WHEEL = re.compile(
    r"dlfp4/(\w+/)*(\w+\.py|_core\.pyi|_core\.[\w-]+\.so|py\.typed)|dlfp4/include/dlfp4/\w+\.h(pp)?|dlfp4-.*\.dist-info/.*"
    r"|dlfp4/lib/(libdlfp4\.so(\.\d+\.\d+)?|cmake/dlfp4/\w+(-\w+)?\.cmake|pkgconfig/dlfp4\.pc)"
    r"|dlfp4/src/(rules|gpu|(codecs|blocks|products)/cuda)/\w+\.(h|def|cuh|cu)"
    r"|dlfp4\.libs/libgomp-[\w.-]+"  # the one library that not every Linux has
)
PLATFORM = re.compile(r"-cp3\d+-cp3\d+t?-manylinux_2_\d+_(x86_64|aarch64)\.whl")
MEGABYTES = 30
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
LICENSES = {"LICENSE", "NOTICE", "licenses/GPL-3.0.txt", "licenses/GCC-exception-3.1.txt"}


def libraries(archive, name):
    """The name by which others load a shared library, and the libraries that it loads."""
    tags = list(ELFFile(io.BytesIO(archive.read(name))).get_section_by_name(".dynamic").iter_tags())
    soname = {tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"}
    return soname, {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}


(wheel,), (sdist,) = (Path(sys.argv[1]).glob(pattern) for pattern in ("*.whl", "*.tar.gz"))
with tarfile.open(sdist) as archive:
    in_sdist = {name.partition("/")[2] for name in archive.getnames()}
with zipfile.ZipFile(wheel) as archive:
    in_wheel = {name for name in archive.namelist() if not name.endswith("/")}
    (library,) = (name for name in in_wheel if re.fullmatch(r"dlfp4/lib/libdlfp4\.so\.\d+\.\d+", name))
    (extension,) = (name for name in in_wheel if name.startswith("dlfp4/_core.c"))
    (info,) = {name.partition("/")[0] for name in in_wheel if ".dist-info/" in name}
    soname, needed = libraries(archive, library)
    used = libraries(archive, extension)[1]
    (bill,) = (archive.read(name).decode() for name in in_wheel if name.startswith(f"{info}/sboms/"))  # PEP 770
grafted = {Path(name).name for name in in_wheel if name.startswith("dlfp4.libs/")}
sources = {str(path.relative_to(ROOT)) for pattern in SOURCES for path in ROOT.glob(pattern)}
problems = {
    "in the wheel, but not of it": {name for name in in_wheel if not IN_WHEEL.fullmatch(name)},
    "missing in the wheel": (NEEDED | {name for name in sources if re.match(r"dlfp4/.*\.py$", name)}) - in_wheel,
    "licences missing in the wheel": LICENSES - {name.removeprefix(f"{info}/licenses/") for name in in_wheel},
    "grafted, but not in the bill of materials": {name for name in grafted if name.partition("-")[0] not in bill},
    "the library, renamed": {Path(library).name} ^ soname,  # C programs and the extension know it by its name
    "not loaded by the extension": soname - used,
    "not loaded from the wheel": grafted - needed,
    "not for every Linux": set() if PLATFORM.search(wheel.name) else {wheel.name},
    f"more than {MEGABYTES} MB": {wheel.name} if wheel.stat().st_size > MEGABYTES * 1e6 else set(),
    "missing in the sdist": (sources | LICENSES | {"README.md", "CMakeLists.txt", "tests/constraints.txt"}) - in_sdist,
    "junk in the sdist": {name for name in in_sdist if re.search(r"(^|/)\.|\.so$|\.pyc$|_core\.c$|^build", name)},
}
for problem, names in problems.items():
    if names:
        print(f"{problem}: {', '.join(sorted(names))}")
sys.exit(any(problems.values()))
