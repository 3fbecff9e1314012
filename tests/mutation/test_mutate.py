"""The mutation check itself: which mutants it makes, how one file holds all of them, and what it says of each."""

import shutil
import subprocess
import sys

import pytest

from . import mutate

HEADER = """\
// a < b
#if defined(__CUDA_ARCH__)
int device(int x) { return x + 9; }
#endif
inline int f(int a, const int &b) {
  const char *name = "a + b";
  if (a > 7) return -a;
  return a < b ? a : b;
}
"""


def test_mutants_of_a_header():
    found = {(m.line, m.after) for m in mutate.mutants_of("f.h", HEADER)}
    assert found == {
        (7, "if (a >= 7) return -a;"),
        (7, "if (a <= 7) return -a;"),
        (7, "if (a > (7 + 1)) return -a;"),
        (7, "if (a > (7 - 1)) return -a;"),
        (7, "if (true) return -a;"),
        (7, "if (false) return -a;"),
        (7, "if (a > 7) return a;"),
        (8, "return a >= b ? a : b;"),  # not <=, which is the same
        (8, "return a < b != true ? a : b;"),
    }


PART = '''\
def f(a, b):
    """if a < b: no code"""
    found = []
    if not a and b is not None:   # a + b
        found.append(a)
    while (b < 10 or
           a > 20):
        b += 3
        break
    for k in range(a + 1):
        found.append(k)
    total = "1 + 1" if a else len(found) - 2
    if b == 99:
        raise ValueError
    return found, total, b
'''


def outcome(text, number, *arguments):
    scope = {"MUTANT": number}
    exec(text, scope)
    try:
        return scope["f"](*arguments)
    except ValueError:
        return "refused"


def test_mutants_of_a_part_are_chosen_by_their_numbers():
    text, made = mutate.with_all_mutants("f.pxi", 5, PART)
    for a, b in ((0, 0), (0, 9), (2, 10), (3, 99)):
        assert outcome(text, 0, a, b) == outcome(PART, 0, a, b)
        for number, mutant in enumerate(made, 5):
            if mutant.new:  # the same change, made by hand
                alone = PART[: mutant.start] + mutant.new + PART[mutant.end :]
                assert outcome(text, number, a, b) == outcome(alone, 0, a, b), mutant
    numbers = {m.after: number for number, m in enumerate(made, 5)}
    removed = [m.before for m in made if m.after == "pass"]
    assert removed == [
        "found = []", "found.append(a)", "b += 3", "break", "found.append(k)",
        'total = "1 + 1" if a else len(found) - 2', "raise ValueError", "return found, total, b",
    ]  # fmt: skip
    assert outcome(text, next(n for n, m in enumerate(made, 5) if m.before == "raise ValueError"), 0, 99) == (
        [0, 0],
        0,
        99,
    )
    assert outcome(text, numbers["for k in range(a + (1 + 1)):"], 0, 99) == "refused"
    assert outcome(text, numbers['total = "1 + 1" if a else len(found) + 2'], 0, 10) == ([0, 0], 4, 10)


def test_mutants_of_comprehensions_and_of_lines_that_go_on():
    part = """\
def f(a):
    found = [item for item in range(a) if item in (1, 2)]
    total = len(found) + \\
        a
    return found, total
"""
    text, made = mutate.with_all_mutants("f.pxi", 1, part)
    numbers = {m.after: number for number, m in enumerate(made, 1)}
    assert outcome(text, 0, 3) == ([1, 2], 5)
    assert outcome(text, numbers["found = [item for item in range(a) if item not in (1, 2)]"], 3) == ([0], 4)
    assert outcome(text, numbers["total = len(found) - \\"], 3) == ([1, 2], -1)
    assert not [after for after in numbers if "for item not in" in after]


def test_mutants_that_change_nothing_are_still_made():
    """Each has a reason, and none is left of a line that is no longer there."""
    made = {(m.file, m.before, m.after) for file in mutate.FILES for m in all_of(file)}
    for mutant, reason in mutate.known().items():
        assert mutant in made
        assert len(reason) > 10, mutant


def all_of(file):
    return mutate.with_all_mutants(file, 1)[1] if file.endswith(".pxi") else mutate.mutants_of(file)


LINE = "return change < kFloatInfinity ? change : unknown"


@pytest.mark.arithmetic  # of compiled code
def test_what_becomes_of_mutants(tmp_path):
    """Of one line, in a copy of the tree: some that tests notice, one that they cannot, one that does not compile."""
    tree = tmp_path / "tree"
    shutil.copytree(mutate.ROOT, tree, ignore=shutil.ignore_patterns(*mutate.LEFT_OUT))
    (tree / "tests/mutation/equivalent.txt").write_text("# none\n")
    header = tree / "src/rules/changes.h"
    text = header.read_text()
    header.write_text(text.replace(LINE, f"static_assert(sizeof(int) ==\n 4);{LINE}"))
    number = text.count("\n", 0, text.index(LINE)) + 1
    command = [sys.executable, "-P", str(tree / "tests/mutation/mutate.py"), "src/rules/changes.h", "--jobs", "1"]
    command += ["--lines", str(number), str(number + 1), "--tests", "tests/rules/test_sums.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    *survivor, counts = done.stdout.splitlines()
    assert survivor == [
        f"src/rules/changes.h:{number + 1}",
        f"  - 4);{LINE};",
        f"  + 4);{LINE.replace('<', '<=')};",
    ]
    assert counts.startswith(
        "src/rules/changes.h: 6 made, 3 did not compile, 0 equivalent, 2 killed, 0 hung, 1 survived, "
    )
