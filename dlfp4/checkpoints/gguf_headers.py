"""The header of a GGUF file, walked before the ``gguf`` package reads it: that believes the lengths and offsets it
finds. It would go on for ever at a wrong length, and its offsets wrap.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

from dlfp4.extents import BEYOND, bounded_product
from dlfp4.parsing import shown

MAGIC = b"GGUF"
UINT32, STRING, ARRAY = 4, 8, 9  # types of values
ALIGNMENT = b"general.alignment"  # the field that says of what the tensors' offsets are multiples
DEFAULT_ALIGNMENT = 32
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of the others
MOST_DIMS = 4  # GGML_MAX_DIMS
MOST_LEVELS = 4  # of arrays in arrays
SHORTEST_FIELD, SHORTEST_TENSOR = 13, 24  # bytes of an entry
MOST_BYTES = 1 << 30  # of a header; vocabularies take some megabytes


def in_words(name: bytes) -> str:
    """The name of a tensor for a message."""
    return shown(name.decode(errors="replace"))


def check_header(file: BinaryIO, size: int) -> None:
    """ValueError unless every length and offset in the header of a file of `size` bytes fits the file."""
    Walk(file, size).check()


class Walk:
    """A place in the header; each step is checked against what is left.

    Parameters
    ----------
    file : file
        At its beginning.
    size : int
        Its bytes.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.left, self.order = file, min(size, MOST_BYTES), "<"
        self.unread = size - self.left
        self.alignment = DEFAULT_ALIGNMENT

    def check(self) -> None:
        """Walk to the end of the header."""
        if self.take(4) != MAGIC:
            raise ValueError(f"it does not begin with {MAGIC.decode()}")
        version = self.take(4)
        if version[:2] == b"\0\0":  # a small number, in the other order of bytes
            self.order = ">"
        tensors, fields = self.number("Q"), self.number("Q")
        if tensors * SHORTEST_TENSOR + fields * SHORTEST_FIELD > self.left:
            raise ValueError(f"it says that it has {tensors} tensors and {fields} fields, more than fit in it")
        for _ in range(fields):
            self.check_field()
        last = max((self.check_tensor() for _ in range(tensors)), default=(0, b""))
        self.check_within(*last)

    def check_field(self) -> None:
        """A field: its name, the type of its value, and the value."""
        length = self.number("Q")
        if length != len(ALIGNMENT):
            self.skip(length)
            self.skip_value(self.number("I"), 0)
            return
        name, kind = self.take(length), self.number("I")
        if name == ALIGNMENT:
            self.alignment = self.read_alignment(kind)
        else:
            self.skip_value(kind, 0)

    def read_alignment(self, kind: int) -> int:
        """The value of that field."""
        if kind != UINT32:
            raise ValueError(f"{ALIGNMENT.decode()} has type {kind}, expected {UINT32}")
        found = self.number("I")
        if found.bit_count() != 1:
            raise ValueError(f"{ALIGNMENT.decode()} is {found}, expected a power of two")
        return found

    def check_tensor(self) -> tuple[int, bytes]:
        """A tensor: its name, its shape, its type, and where its data lies; the last and the first of these."""
        name = self.take(self.number("Q"))
        self.check_shape()
        self.take(4)
        offset = self.number("Q")
        if offset % self.alignment:
            raise ValueError(
                f"{in_words(name)} begins at byte {offset} of the data, expected a multiple of {self.alignment}"
            )
        return offset, name

    def check_within(self, offset: int, name: bytes) -> None:
        """ValueError where a tensor begins behind the end of the file; the data begins behind the header."""
        padding = -self.file.tell() % self.alignment
        size = max(self.left + self.unread - padding, 0)
        if offset > size:
            raise ValueError(f"{in_words(name)} begins at byte {offset} of the data, which has {size} bytes")

    def check_shape(self) -> None:
        """That of a tensor."""
        rank = self.number("I")
        if rank > MOST_DIMS:
            raise ValueError(f"a tensor has {rank} dimensions, expected {MOST_DIMS} at most")
        shape = [self.number("Q") for _ in range(rank)]
        if bounded_product(shape) == BEYOND:
            raise ValueError(f"a tensor of shape {shape} has more elements than memory can hold")

    def skip_value(self, kind: int, level: int) -> None:
        """A value of a type; an array says the type of its values, and how many there are."""
        if kind == STRING:
            self.skip_string()
        elif kind == ARRAY:
            if level == MOST_LEVELS:
                raise ValueError(f"arrays are nested more than {MOST_LEVELS} times")
            kind, count = self.number("I"), self.number("Q")
            if kind in SIZES:
                self.skip(count * SIZES[kind])
            elif count * 8 > self.left:
                raise ValueError(f"an array says that it has {count} values, more than fit in the file")
            else:
                for _ in range(count):
                    self.skip_value(kind, level + 1)
        else:
            self.skip(self.size_of(kind))

    def size_of(self, kind: int) -> int:
        """The bytes of a number."""
        if kind not in SIZES:
            raise ValueError(
                f"a value has type {kind}, expected one of {STRING}, {ARRAY}, {', '.join(map(str, SIZES))}"
            )
        return SIZES[kind]

    def skip_string(self) -> None:
        """A string, after its length."""
        self.skip(self.number("Q"))

    def number(self, code: str) -> int:
        """An unsigned number, by its code for `struct`."""
        (found,) = struct.unpack(self.order + code, self.take(struct.calcsize(self.order + code)))
        return int(found)

    def take(self, count: int) -> bytes:
        """The next bytes."""
        self.skip(count, move=False)
        return self.file.read(count)

    def skip(self, count: int, *, move: bool = True) -> None:
        """Go on by so many bytes."""
        if count > self.left:
            raise ValueError(f"{count} bytes should follow, but {self.left} are left")
        self.left -= count
        if move:
            self.file.seek(count, 1)
