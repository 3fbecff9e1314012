"""The name that a caller may have meant, for the refusal of one that nothing has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """What to add to the refusal of a name: the nearest one, or nothing where none is near."""
    near = difflib.get_close_matches(given, list(names), 1) if isinstance(given, str) else ()
    return f"; did you mean {near[0]!r}?" if near else ""
