"""Mutation check of the tests: makes small faults in sources, one at a time, and says which of them no test notices.

Files of src/rules are compiled anew for each mutant: a .cpp file alone, a header with all of tests/rules/rules.cpp,
which takes a second. The core's .pxi files are built once, with all of their mutants: DLFP4_MUTANT says which one runs.
That build replaces the dlfp4 of the environment, so leave it to `nox -s mutants`. Mutants that change nothing are in
equivalent.txt.
"""

import argparse
import concurrent.futures
import importlib
import itertools
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
# By files of their own; test_sums.py has the other headers.
TESTED = ["numerics", "scaling", "layouts", "sums", "block_keys", "matrix", "walk"]
PARTS = ["exchange/importer", "exchange/describe", "exchange/exchange", "tensor/strides"]
FILES = [
    *(f"src/rules/{name}.h" for name in (*TESTED, "hadamard", "changes", "grid", "operand", "encode_rule")),
    *(f"src/rules/{name}.cpp" for name in ("matrix", "operand", "walk")),
    *(f"dlfp4/core/{name}.pxi" for name in PARTS),
]
EXCHANGE = [
    "hostile",
    "subbyte",
    "views",
    "abi",
    "pitfalls",
    "pickling",
    "arrow",
    "lifetime",
    "torch_memory",
    "torch_tensors",
    "tables",
    "transformer_engine",
    "frameworks",
]
PROJECT = ["mistakes", "ease", "extents"]
KILLERS = [
    *(f"tests/exchange/test_{name}.py" for name in EXCHANGE),
    *(f"tests/project/test_{name}.py" for name in PROJECT),
    "tests/gpu/test_current_streams.py",  # by a driver of its own
    "tests/fuzz",
]
LEFT_OUT = ("build", "dist", "*.so", "__pycache__", ".*")

SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "+", "/": "*",
    "//": "*", "%": "*", "<<": ">>", ">>": "<<", "&&": "||", "||": "&&", "&": "|", "|": "&", "^": "|",
    "+=": "-=", "-=": "+=", "*=": "+=", "|=": "&=", "&=": "|=", "and": "or", "or": "and",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in",
    "true": "false", "false": "true", "True": "False", "False": "True",
}  # fmt: skip
OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}
OPERATOR = re.compile(
    r"(?<= )(?:<=|>=|==|!=|<<|>>|&&|\|\||//|[-+*|&]=|[-<>+*/%&|^]|and|or|is not|is|not in|in)(?= |$)"
    r"|\b(?:true|false|True|False)\b"
)
LOOP = re.compile(r"\bfor [\w, ]+ \Z")  # before its "in", which compares nothing
LEAST_OR_MOST = re.compile(r"(?<![\w.])(?=(([\w.\[\]]+) [<>]=? ([\w.\[\]]+) \? (?:\2 : \3|\3 : \2)\b))")
NUMBER = re.compile(r"(?<![\w.])(?:0x[\da-fA-F]+|\d+)(?:u|U|l|L)*(?![\w.])")
FLOAT = re.compile(r"(?<![\w.])(?:\d+\.\d+(?:e-?\d+)?|0x1p\d+)f?(?![\w.])")
NEGATION = re.compile(
    r"(?<![\w)\]])(?:(?<![\w)\]] )|(?<=return ))(?:-(?=[A-Za-z_(])|!(?=[\w(]))|(?<!is )\bnot (?!in\b)"
)
# Of the core's files: what is mutated as a whole, and the expressions of other lines. Constants of enums are neither.
STATEMENT = re.compile(
    r"((?!(?:cdef|for|with|if|elif|while|def|class) |[A-Z_]+ =|return$)"
    r"(?:raise .*|return .*|break|continue|[\w.\[\] +-]+ [-+*|&]?= .*|[\w.]+\(.*\)))$",
    re.DOTALL,
)
EXPRESSION = re.compile(
    r"(?:(?:if|elif|while) (.*):|for \w+ in range\(([^,]*)\):|cdef \w+ [*]?\w+ = ((?:(?!, \w+(?: =|$)).)*))$", re.DOTALL
)


class Mutant(NamedTuple):
    file: str
    line: int  # from 1
    start: int  # the change, in the file's text
    end: int
    new: str
    before: str  # the line, without indentation, and what becomes of it
    after: str


def mutant_at(file, text, start, end, new, shown=None):
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    lines = text[first:last], text[first:start] + (new if shown is None else shown) + text[end:last]
    return Mutant(file, text.count("\n", 0, start) + 1, start, end, new, *(" ".join(line.split()) for line in lines))


def blank(found):
    """Spaces for a comment, quotes for a string."""
    return re.sub(r"[^\n]", '"' if '"' in found.group()[:2] else " ", found.group())


def only_code(text, suffix):
    """The text without comments, strings, lines of the preprocessor and what CUDA's compiler alone sees; as long."""
    if suffix == ".pxi":
        return re.sub(r'#[^\n]*|f?""".*?"""|[fb]?"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)
    text = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", blank, text, flags=re.S)
    text = re.sub(r"^#if.*CUDA.*\n(?:.*\n)*?#(?:else|endif)", blank, text, flags=re.M)
    return re.sub(r"^ *#.*|static_assert\(.*", blank, text, flags=re.M)


def changes_of(code):
    """(start, end, new text) of each change of an operator, a constant or a sign within a piece of code."""
    least_or_most = [found.span(1) for found in LEAST_OR_MOST.finditer(code)]
    for found in OPERATOR.finditer(code):
        old = found.group()
        if old == "in" and LOOP.search(code, 0, found.start()):
            continue
        if not any(start <= found.start() < end for start, end in least_or_most):  # where equal ones are the same
            yield *found.span(), SWAPS[old]
        if old in OPPOSITE:
            yield *found.span(), OPPOSITE[old]
    for found in NUMBER.finditer(code):
        yield *found.span(), f"({found.group()} + 1)"
        yield *found.span(), f"({found.group()} - 1)"
    for found in FLOAT.finditer(code):
        yield *found.span(), f"({found.group()} * 2 + 0x1p-149f)"
    for found in NEGATION.finditer(code):
        yield *found.span(), ""


def statements_of(code):
    """The same of C++ for conditions, choices, and statements that are left out."""
    for found in re.finditer(r"\bif (?:constexpr )?(\()", code):
        depths = itertools.accumulate((letter == "(") - (letter == ")") for letter in code[found.start(1) :])
        end = found.end() + next(place for place, depth in enumerate(depths) if depth == 0)
        yield found.start(1), end, "(true)"
        yield found.start(1), end, "(false)"
    for found in re.finditer(r" \? ", code):
        yield *found.span(), " != true ? "
    for found in re.finditer(
        r"(?<=[;{})])\s*\n\s*((?!return|const|using|typedef|if |case |default)[^\s;{}][^;{}]*;)", code
    ):
        if not re.match(r"(?!else|throw|delete)[\w:<>]+ [\w*&]+(?: =|[,;[{(])", found.group(1)):  # a declaration
            yield *found.span(1), ";"


def mutants_of(file, text=None):
    """All mutants of a C++ file."""
    text = text or (ROOT / file).read_text()
    code = only_code(text, ".h")
    return [mutant_at(file, text, *change) for change in sorted({*changes_of(code), *statements_of(code)})]


def logical_lines(code):
    """Where each line starts, without its indentation, and ends; lines go on within brackets and behind a backslash."""
    start, depth = 0, 0
    for place, letter in enumerate(code):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "\n" and depth == 0 and code[place - 1] != "\\":
            line = code[start:place].rstrip()
            yield start + len(line) - len(line.lstrip()), start + len(line)
            start = place + 1


def with_all_mutants(file, first, text=None):
    """The text of a .pxi file in which MUTANT chooses among all mutants, numbered from `first`; and these."""
    text = text or (ROOT / file).read_text()
    code, made, pieces, done = only_code(text, ".pxi"), [], [], 0

    def number(*change):
        made.append(mutant_at(file, text, *change))
        return first + len(made) - 1

    for start, end in logical_lines(code):
        line = code[start:end]
        whole = STATEMENT.match(line)
        part = whole or EXPRESSION.match(line)
        if not part:
            continue
        low, high = (start + place for place in part.span(part.lastindex))
        changes = [] if line.startswith("raise ") or line == "return 0" else sorted(set(changes_of(code[low:high])))
        choices = [
            (number(low + at, low + to, new), text[low : low + at] + new + text[low + to : high])
            for at, to, new in changes
        ]
        if whole:
            choices.insert(0, (number(start, end, "", "pass"), "pass"))
            chain = [f"if MUTANT == {chosen}: {new}" for chosen, new in choices]
            indent = "\n" + " " * (start - text.rfind("\n", 0, start) - 1)
            new = f"{indent}el".join([*chain, f"se: {text[low:high]}"])
        else:
            truth = "not not " if line.startswith(("if", "elif", "while")) else ""  # one type, also without the GIL
            if line.startswith(("if", "elif")):
                choices += [(number(low, high, new), new) for new in ("True", "False")]
            chosen = "".join(f"{truth}({new}) if MUTANT == {chosen} else " for chosen, new in choices)
            new = f"({chosen}{truth}({text[low:high]}))" if choices else text[low:high]
        pieces += [text[done:low], new]
        done = high
    return "".join([*pieces, text[done:]]), made


def build(folder, files):
    """Install, in place of dlfp4, a copy with all mutants of its .pxi files; these."""
    made = []
    for file in files:
        text, more = with_all_mutants(file, len(made) + 1)
        (folder / file).write_text(text)
        made += more
    core = folder / "dlfp4/_core.pyx"
    chooser = 'cdef int MUTANT = int(__import__("os").environ.get("DLFP4_MUTANT", "0"))\n'
    core.write_text(re.sub(r"^include", chooser + "include", core.read_text(), count=1, flags=re.M))
    command = [sys.executable, "-m", "pip", "install", "-q", "--force-reinstall", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-Ccmake.define.DLFP4_CUDA=OFF", str(folder)], check=True)
    return made


def begin(folders):
    """Start a worker: a copy of the tree is its own, and what tests import is there already."""
    os.chdir(folders.get())
    os.environ["DLFP4_RULES_OBJECTS"] = os.path.join(os.getcwd(), "objects")  # so that only what changes is compiled
    os.makedirs(os.environ["DLFP4_RULES_OBJECTS"], exist_ok=True)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # which take as long to load as a test to fail
    for name in ("pytest", "numpy", "ml_dtypes"):
        importlib.import_module(name)


def run_test(test, seconds):
    """What becomes of a test, in a process of its own, which may crash or never end: "", "failed" or "hung"."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(seconds)
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        status = 1
        try:
            status = importlib.import_module("pytest").main(["-xq", "-pno:cacheprovider", test])
        finally:
            os._exit(status)
    status = os.waitpid(pid, 0)[1]
    return (
        "" if status == 0 else "hung" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else "failed"
    )


def result_of(mutant, number, limits):
    """What becomes of a mutant by tests and the seconds that each may take; `number` chooses that of a .pxi file."""
    os.environ["DLFP4_MUTANT"] = str(number)
    path, text = Path(mutant.file), (ROOT / mutant.file).read_text()
    if not number:
        path.write_text(text[: mutant.start] + mutant.new + text[mutant.end :])
    found = next(filter(None, (run_test(test, seconds) for test, seconds in limits.items())), "survived")
    if not number:
        path.write_text(text)
    if found == "failed" and ".new.o']' returned non-zero" in Path("log").read_text(errors="replace"):
        return "did not compile"
    return found.replace("failed", "killed")


def find_limits(pool, file, tests):
    """The tests in the order in which mutants meet them, the file's own first and then the quickest, with the seconds
    that each may take: many mutants of loops never end.
    """
    took = {}
    for test in tests:
        started = time.monotonic()
        if pool.submit(run_test, test, 3600).result():
            sys.exit(f"{file}: the tests fail without a mutant")
        took[test] = time.monotonic() - started
    order = sorted(tests, key=lambda test: (test != tests[0], took[test]))
    return {test: 5 + int(5 * took[test]) for test in order}


def known():
    """The mutants that change nothing: file, line, mutated line; and why, of each."""
    lines = (line.split(" | ") for line in EQUIVALENT.read_text().splitlines() if line and line[0] != "#")
    return {tuple(part.replace("\\|", "|") for part in parts[:3]): parts[3] for parts in lines}


def check(pool, file, tests, made):
    """Print the survivors among a file's mutants, which are (number, mutant), and the counts; how many survived."""
    started = time.monotonic()
    limits = find_limits(pool, file, tests)
    equivalent = known()
    fresh = [(number, m) for number, m in made if (m.file, m.before, m.after) not in equivalent]
    answers = [pool.submit(result_of, mutant, number, limits) for number, mutant in fresh]
    counts = Counter(made=len(made), equivalent=len(made) - len(fresh))
    for (_, mutant), answer in zip(fresh, answers, strict=True):
        counts[answer.result()] += 1
        if answer.result() == "survived":
            print(f"{file}:{mutant.line}\n  - {mutant.before}\n  + {mutant.after}", flush=True)
    kinds = ("made", "did not compile", "equivalent", "killed", "hung", "survived")
    said = ", ".join(f"{counts[what]} {what}" for what in kinds)
    print(f"{file}: {said}, {time.monotonic() - started:.0f} s", flush=True)
    return counts["survived"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--lines", type=int, nargs="+", help="mutants of these lines alone")
    parser.add_argument("--tests", nargs="+", help="what kills mutants, in place of the usual tests")
    options = parser.parse_args()
    survived = 0
    with tempfile.TemporaryDirectory() as tmp:
        folders = multiprocessing.SimpleQueue()
        for number in range(options.jobs):
            shutil.copytree(ROOT, Path(tmp) / str(number), ignore=shutil.ignore_patterns(*LEFT_OUT))
            folders.put(Path(tmp) / str(number))
        parts = [file for file in options.files if file.endswith(".pxi")]
        numbered = list(enumerate(build(Path(tmp) / "0", parts) if parts else [], 1))
        with concurrent.futures.ProcessPoolExecutor(options.jobs, initializer=begin, initargs=(folders,)) as pool:
            for file in options.files:
                stem, tests = Path(file).stem, [f"tests/rules/test_{name}.py" for name in TESTED]
                tests.sort(key=lambda path: (stem if stem in TESTED else "sums") not in path)
                made = numbered if file in parts else [(0, mutant) for mutant in mutants_of(file)]
                made = [
                    (n, m) for n, m in made if m.file == file and (options.lines is None or m.line in options.lines)
                ]
                survived += check(pool, file, options.tests or (KILLERS if file in parts else tests), made)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
