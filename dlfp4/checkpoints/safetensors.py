"""The safetensors file format: a header in JSON, then the tensors' bytes, which are mapped and not read.

This module implements the format without the ``safetensors`` package (0.8): the package's NumPy side copies what it
reads and has no FP4, FP6 or FP8, its PyTorch side has no FP6, and its writer takes no FP6. Files go both ways between
the two.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import sys
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from queue import SimpleQueue
from typing import Any, Self

import dlfp4
from dlfp4 import Tensor
from dlfp4.extents import BEYOND, bounded_product
from dlfp4.files import as_path, open_file, replacing
from dlfp4.frameworks import base
from dlfp4.parsing import MOST_BYTES, parse_object, shown

DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F4": "float4_e2m1fn", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
CODES = {name: code for code, name in DTYPES.items()}
LENGTH = 8  # bytes of the field in front of the header that holds the header's length
MAX_HEADER = MOST_BYTES
MOST_DIMS = 65535  # of a Tensor
METADATA = "__metadata__"
ZIP = b"PK\x03\x04"  # how the files of torch.save begin
ALIGNMENT = 64  # bytes: the data is aligned to it, like memory that dlfp4 allocates
# Without a reservation, a file larger than memory can be mapped. The mmap module names this flag from 3.13 on.
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
# Before 3.13, each mapping keeps a file descriptor, and a model of many files may exceed the limit.
UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


def item_bits(dtype: str) -> int:
    """Bits of an element in a file, where elements below 8 bits are packed."""
    return base.SUBBYTE.get(dtype) or 8 * base.dtype_of(dtype).itemsize


# ---- Reading


@dataclass(frozen=True)
class Entry:
    """One tensor as the header describes it; its bytes are [start, stop) of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Map a file: its tensors as they are stored, and the metadata of its header.

    The mapping is private to the process. Tensors are writable, so that PyTorch can share them, but writes never reach
    the file. A tensor that is not aligned to its element size is copied.

    Raises
    ------
    ValueError
        The file is not a safetensors file, or is damaged; the message says what is wrong with it.
    """
    with open_file(as_path("path", path)) as file:
        size = os.fstat(file.fileno()).st_size
        if size < LENGTH:
            raise ValueError(f"{path} is not a safetensors file: it has {size} bytes, expected at least {LENGTH}")
        flags, protection = mmap.MAP_PRIVATE | MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        memory = mmap.mmap(file.fileno(), size, flags=flags, prot=protection, **UNTRACKED)
    return make_views(memory, str(path))


def read_bytes(content: bytes | bytearray | memoryview) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The same from the bytes of a file, whose memory the tensors share.

    Raises
    ------
    ValueError
        The bytes are not a safetensors file, or are damaged, or do not lie one after another.
    """
    view = memoryview(content)
    if view.nbytes < LENGTH:
        raise ValueError(f"the bytes are not a safetensors file: {view.nbytes} of them, expected at least {LENGTH}")
    try:
        memory = view.cast("B")
    except TypeError as error:
        raise ValueError(
            f"the bytes of the memoryview of shape {view.shape} and strides {view.strides} do not lie one after "
            f"another, as those of a file do; give bytes(view)"
        ) from error
    return make_views(memory, "the content")


def make_views(memory: mmap.mmap | memoryview, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors in the memory of a file, and the metadata; messages call the file `what`."""
    try:
        entries, metadata, start = parse(memory)
        data = dlfp4.asarray(memory)[start:]
        return {entry.name: make_view(data, entry) for entry in entries}, metadata
    except ValueError as error:
        if bytes(memory[: len(ZIP)]) == ZIP:
            raise ValueError(
                f"{what} is a zip archive, as torch.save writes them; expected safetensors: read it by torch.load, and "
                f"give its tensors to dlfp4.checkpoints.save"
            ) from error
        raise ValueError(f"{what} is not a safetensors file, or is damaged: {error}") from error


def parse(memory: mmap.mmap | memoryview) -> tuple[list[Entry], dict[str, str], int]:
    """The checked header of a mapped file: entries in the header's order, metadata, and where the data starts."""
    length, rest = int.from_bytes(memory[:LENGTH], "little"), len(memory) - LENGTH
    if length > min(rest, MAX_HEADER):
        raise ValueError(f"it says that its header has {length} bytes, {rest} are there and {MAX_HEADER} allowed")
    header = parse_object(bytes(memory[LENGTH : LENGTH + length]), "its header")
    metadata = header.pop(METADATA, None)
    if metadata is None:  # MLX writes null
        metadata = {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"{METADATA} is not an object of strings")
    entries = [parse_entry(name, fields) for name, fields in header.items()]
    check_coverage(entries, rest - length)
    return entries, metadata, LENGTH + length


def is_sizes(value: object) -> bool:
    """Whether a value of the header is a list of integers from 0, below 2**63, and not more than a tensor has."""
    if not isinstance(value, list) or len(value) > MOST_DIMS:
        return False
    return all(type(size) is int and 0 <= size < 1 << 63 for size in value)


def parse_entry(name: str, fields: Any) -> Entry:
    """One tensor's entry; ValueError where its size does not agree with its type and shape."""
    if not isinstance(fields, dict) or not {"dtype", "shape", "data_offsets"} <= fields.keys():
        raise ValueError(f"{shown(name)} is not an object with dtype, shape and data_offsets")
    code, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise ValueError(f"{shown(name)} has dtype {shown(code)}, expected one of {', '.join(DTYPES)}")
    if not is_sizes(shape):
        raise ValueError(
            f"{shown(name)} has shape {shown(shape)}, expected at most {MOST_DIMS} integers from 0, below 2**63"
        )
    if not is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{shown(name)} has data_offsets {shown(offsets)}, expected [start, stop]")
    elements, taken = bounded_product(shape), offsets[1] - offsets[0]
    bits = elements * item_bits(DTYPES[code])
    if bits != 8 * taken:
        size = f"{bits} bits" if elements < BEYOND else "more than memory has"
        given = f"{code} of shape {shown(shape)}, {size}"
        raise ValueError(f"{shown(name)} is {given}, but its data_offsets hold {taken} bytes")
    return Entry(name, DTYPES[code], tuple(shape), offsets[0], offsets[1])


def check_coverage(entries: list[Entry], size: int) -> None:
    """ValueError unless every byte of the data belongs to exactly one tensor, as the format requires."""
    reached = 0
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.stop)):
        if entry.start != reached:
            raise ValueError(f"{shown(entry.name)} starts at byte {entry.start} of the data, expected {reached}")
        if entry.stop > size:
            raise ValueError(f"{shown(entry.name)} ends at byte {entry.stop} of the data, which has {size} bytes")
        reached = entry.stop
    if reached != size:
        raise ValueError(f"the data has {size} bytes, its tensors take {reached}")


def make_view(data: Tensor, entry: Entry) -> Tensor:
    """One tensor in the mapped data."""
    octets = data[entry.start : entry.stop]
    if octets.data_ptr % max(1, item_bits(entry.dtype) // 8):
        octets = octets.copy()  # writers that do not pad the header make such files
    try:
        return octets.view(entry.dtype).reshape(entry.shape)
    except (BufferError, ValueError, OverflowError) as error:
        raise ValueError(f"{shown(entry.name)} cannot be a tensor: {error}") from error


# ---- Writing


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file straight from the tensors' memory; it replaces `path` once it is complete.

    Raises
    ------
    ValueError
        A tensor has a type or a size that the format cannot hold, or a name that it reserves.
    TypeError
        The metadata is not strings.
    """
    with writing(path, tensors, metadata) as put:
        for name, tensor in tensors.items():
            put(name, tensor)


@contextlib.contextmanager
def writing(
    path: str | os.PathLike[str], layout: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> Iterator[Callable[[str, Tensor], None]]:
    """A file whose tensors are handed over one by one, in any order, and written while the next is made.

    Parameters
    ----------
    path : path-like
        It is replaced once the file is complete.
    layout : mapping of str to Tensor
        What will be handed over: types and shapes count, data does not.
    metadata : mapping of str to str
        For the header.

    Yields
    ------
    callable
        ``put(name, tensor)``. The tensor's memory must not change until the end.
    """
    others = [pair for pair in metadata.items() if not all(isinstance(text, str) for text in pair)]
    if others:
        raise TypeError(f"metadata has {dict(others)!r}: the format holds strings only; use json.dumps for the rest")
    for key, text in metadata.items():
        check_text(f"metadata has {shown(key)}", key)
        check_text(f"metadata has {shown(text)} under {shown(key)}", text)
    for name, tensor in layout.items():
        check_storable(name, tensor)
    # Larger elements come first, so that every tensor is aligned to its element size.
    order = sorted(layout, key=lambda name: (-item_bits(layout[name].dtype.name), name))
    header = make_header(layout, order, metadata)
    missing = dict(zip(order, accumulate((layout[name].nbytes for name in order), initial=len(header)), strict=False))
    size = len(header) + sum(tensor.nbytes for tensor in layout.values())
    with replacing(as_path("path", path), size=size) as file, Background(file.fileno()) as background:
        background.write(memoryview(header), 0)

        def put(name: str, tensor: Tensor) -> None:
            check_storable(name, tensor)
            planned = layout[name]
            if (tensor.dtype, tensor.shape) != (planned.dtype, planned.shape):
                raise ValueError(f"{name} is {tensor.dtype} {tensor.shape}, planned as {planned.dtype} {planned.shape}")
            background.write(octets_of(compact(tensor)), missing.pop(name))

        yield put
        if missing:
            raise ValueError(f"{', '.join(missing)} of the file's layout did not come")
        background.finish()


class Background:
    """Writes to a file in a thread of its own, so that the disk works while the processor does.

    Only what is written in C passes between the threads: a signal whose handler raises may leave a lock of
    ``threading`` or ``concurrent.futures`` taken for good, and the end would wait for it.

    Parameters
    ----------
    descriptor : int
        Of the file.
    """

    AHEAD = 256 << 20  # bytes that may wait to be written
    SYNC = 64 << 20  # bytes after which the disk is made to begin
    PIECE = 1 << 30  # bytes; Linux writes no more than 2 GiB at a time

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.asked: SimpleQueue[tuple[memoryview, int] | None] = SimpleQueue()
        self.done: SimpleQueue[BaseException | None] = SimpleQueue()
        self.ended: SimpleQueue[None] = SimpleQueue()
        self.waiting: deque[int] = deque()  # bytes of each call that is not known to be done
        self.ahead = self.unsynced = 0
        self.is_started = self.is_cancelled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.is_cancelled = True
        self.asked.put(None)
        if self.is_started:
            self.ended.get()

    def write(self, octets: memoryview, start: int) -> None:
        """Write bytes at a position, soon; OSError of an earlier call is raised here."""
        if not self.is_started:
            start_new_thread(self.work, ())
            self.is_started = True
        self.asked.put((octets, start))
        self.waiting.append(len(octets))
        self.ahead += len(octets)
        self.wait(self.AHEAD)

    def finish(self) -> None:
        """Wait until all is written."""
        self.wait(-1)

    def wait(self, most: int) -> None:
        """Wait until no more bytes than that are to be written, with -1 until no call is left."""
        while self.waiting and self.ahead > most:
            error = self.done.get()
            self.ahead -= self.waiting.popleft()
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # whose traceback has this frame

    def work(self) -> None:
        """What the thread does until None comes."""
        try:
            while (asked := self.asked.get()) is not None:
                self.done.put(None if self.is_cancelled else self.attempt(*asked))
                del asked  # the tensor's memory is free while the next one is waited for
        finally:
            self.ended.put(None)

    def attempt(self, octets: memoryview, start: int) -> BaseException | None:
        """Write, and return what is raised."""
        try:
            self.write_now(octets, start)
        except BaseException as error:  # noqa: BLE001 (raised where the call is waited for)
            return error
        return None

    def write_now(self, octets: memoryview, start: int) -> None:
        """Write bytes at a position."""
        done = 0
        while done < len(octets):
            done += os.pwrite(self.descriptor, octets[done : done + self.PIECE], start + done)
        self.unsynced += len(octets)
        if self.unsynced >= self.SYNC:
            self.unsynced = 0
            os.fdatasync(self.descriptor)


def check_storable(name: str, tensor: Tensor) -> None:
    """ValueError or TypeError where a file cannot hold a tensor of that name, type and size."""
    if not isinstance(name, str):
        raise TypeError(f"a tensor is named {name!r}; expected a string")
    if name == METADATA:
        raise ValueError(f"a tensor cannot be named {METADATA}: the format has another use for it")
    check_text(f"a tensor is named {shown(name)}", name)
    dtype = tensor.dtype.name
    if dtype not in CODES:
        raise ValueError(f"{name}: safetensors has no {dtype}; save the bits with .view('uint8')")
    if dtype in base.SUBBYTE and not tensor.packed:
        raise ValueError(f"{name}: {dtype} with one element a byte cannot be saved; call dlfp4.pack first")
    if tensor.size * item_bits(dtype) % 8:
        raise ValueError(f"{name}: {tensor.size} elements of {dtype} do not fill whole bytes; pad the last axis")


def check_text(what: str, text: str) -> None:
    """ValueError, which begins with `what`, where UTF-8 does not hold a text: it has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what}, and has a character that UTF-8 does not hold, {text[error.start]!a}") from error


def compact(tensor: Tensor) -> Tensor:
    """A tensor whose memory is what the file must hold: itself, or a copy of one with gaps or on a device."""
    if tensor.device.type != "cpu":
        tensor = tensor.to_device("cpu")
    return tensor if base.is_row_major(tensor) else tensor.copy()


def octets_of(tensor: Tensor) -> memoryview:
    """The memory of a compact tensor."""
    return tensor.reshape(-1).view("uint8").to_numpy(copy=False).data


def make_header(tensors: Mapping[str, Tensor], order: list[str], metadata: Mapping[str, str]) -> bytes:
    """The header, preceded by its length; names in the order of `tensors`, data in that of `order`."""
    stops = dict(zip(order, accumulate(tensors[name].nbytes for name in order), strict=True))
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    for name, tensor in tensors.items():
        offsets = [stops[name] - tensor.nbytes, stops[name]]
        header[name] = {"dtype": CODES[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH + len(text)) % ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise ValueError(f"the header takes {len(text)} bytes, {MAX_HEADER} are allowed; save fewer tensors in a file")
    return len(text).to_bytes(LENGTH, "little") + text
