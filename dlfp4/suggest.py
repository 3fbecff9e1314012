"""The name that a caller may have meant, for error messages about unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """A suffix for an error message about an unknown name: the nearest name, or "" where none is near."""
    known = list(names)
    near = difflib.get_close_matches(given, known, len(known) or 1) if isinstance(given, str) else ()
    if not near:
        return ""
    best = max(near, key=lambda name: (likeness(str(given), name), -known.index(name)))  # of equal ones the first
    return f"; did you mean {best!r}?"


def likeness(given: str, name: str) -> float:
    """How much of the two is the same, from 0 to 1."""
    return difflib.SequenceMatcher(None, name, given).ratio()
