"""Whether an argument is one of some names, and the name that a caller may have meant, for error messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable
from numbers import Real
from typing import Any

# Of four letters one may be wrong. Of three, each makes another name: who says "gpu" does not mean "cpu".
LEAST_LIKENESS = 0.75


def is_one_of(given: object, choices: Container[Any]) -> bool:
    """Whether an argument is one of some names, numbers or None. Arrays are none: they compare element by element."""
    return isinstance(given, (str, type(None), Real)) and given in choices


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """A suffix for an error message about an unknown name: the nearest name, or "" where none is near."""
    known = list(names)
    if not isinstance(given, str) or not 0 < len(given) <= 2 * max(map(len, known), default=0):
        return ""  # a text that is longer is like none, and of megabytes takes minutes to compare
    near = close_to(given, known)
    if not near:
        return ""
    best = max(near, key=lambda name: (likeness(str(given), name), -known.index(name)))  # of equal ones the first
    return f"; did you mean {best!r}?"


def close_to(given: str, known: list[str]) -> list[str]:
    """The names of which the given one is a word, such as "e3m4" of "float8_e3m4", or else those that look like it."""
    word = re.compile(rf"(?<![^\W_]){re.escape(given)}(?![^\W_])")
    return list(filter(word.search, known)) or difflib.get_close_matches(given, known, len(known), LEAST_LIKENESS)


def likeness(given: str, name: str) -> float:
    """How much of the two is the same, from 0 to 1."""
    return difflib.SequenceMatcher(None, name, given).ratio()
