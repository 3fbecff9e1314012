"""JSON of files that nobody vouches for: limits come before all work, and messages stay short and in their line."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from typing import Any

MOST_BYTES = 100_000_000  # the limit of the safetensors library for a header
# How often a text of that size may have these: a header of the shortest entries has fewer. A list or an object takes
# many times the memory of its two characters.
MOST = {b"{": 1 << 21, b"[": 1 << 22, b",": 1 << 24}
SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 200
SHORT.maxlist = SHORT.maxtuple = SHORT.maxdict = 16


def shown(value: object) -> str:
    """A value for a message, in a line."""
    return SHORT.repr(value)


def brief(name: str) -> str:
    """A name from a file for a message: as it is, unless it is long or would leave the line."""
    return name if len(name) <= SHORT.maxstring and name.isprintable() else shown(name)


def printable(line: str) -> str:
    """A line with names of others in it for a terminal, which takes some characters for orders, or for a line's end."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def parse_json(text: bytes, what: str) -> Any:
    """What a text says; ValueError, which begins with `what`, where it is not JSON, names something twice, or is beyond
    all that is ever written.

    Numbers have at most 4300 digits, and lists some hundred levels: Python's own limits.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"{what} has {len(text)} bytes of JSON, {MOST_BYTES} are allowed")
    for mark, most in MOST.items():
        if text.count(mark) > most:
            raise ValueError(f"{what} has {text.count(mark)} times {mark.decode()!r}, {most} are allowed")
    try:
        return json.loads(text.decode(), object_pairs_hook=as_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON: {error}") from error


def parse_object(text: bytes, what: str) -> dict[str, Any]:
    """The same of a text that has to be an object."""
    content = parse_json(text, what)
    if not isinstance(content, dict):
        raise ValueError(f"{what} is a JSON {type(content).__name__}, expected an object")
    return content


def as_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dictionary; ValueError for a repeated name, which would hide one of two values."""
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{shown(name)} comes twice")
    return found
