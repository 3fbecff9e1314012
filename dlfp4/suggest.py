"""The name that a caller may have meant, for error messages about unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """A suffix for an error message about an unknown name: the nearest name, or "" where none is near."""
    near = difflib.get_close_matches(given, list(names), 1) if isinstance(given, str) else ()
    return f"; did you mean {near[0]!r}?" if near else ""
