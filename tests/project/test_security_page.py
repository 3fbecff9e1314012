"""The table of promises in SECURITY.md: each is held by tests, and those that it names are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGETS = re.compile(r'^ *TARGETS\["(\w+)"\] = |"(\w+)": \w+,', re.M)  # of tests/fuzz, by their names


def rows():
    """What is given, what is promised, what holds it."""
    table = (ROOT / "SECURITY.md").read_text().split("| Given |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def names_in(place):
    """The tests of a file, or the targets of fuzzing."""
    if place == "tests/fuzz":
        text = "".join((ROOT / place / name).read_text() for name in ("targets.py", "scaled.py", "shared.py"))
        return {name for pair in TARGETS.findall(text) for name in pair if name}
    return {name for path in ROOT.glob(place) for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)}


def test_promises_are_held_by_tests_that_exist():
    table = rows()
    assert len(table) > 15
    for given, _, held in table:
        places = re.findall(r"`(tests/[^`]+)`(?: \(([^)]*)\))?", held)
        assert places, given
        for place, named in places:
            assert list(ROOT.glob(place)), (given, place)
            names = re.findall(r"`(\w+)`", named)
            assert place.endswith(".cpp") or names_in(place), (given, place)
            assert names_in(place) >= set(names), (given, set(names) - names_in(place))


def test_every_target_of_fuzzing_holds_a_promise():
    named = {name for *_, held in rows() for name in re.findall(r"`(\w+)`", held)}
    assert names_in("tests/fuzz") >= {"capsules", "gguf"}
    assert names_in("tests/fuzz") <= named
