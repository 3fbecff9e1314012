"""Tensors to save, and files that are made by hand."""

import json

import ml_dtypes
import numpy as np


def octets(tensor):
    """The bytes of a compact tensor, in order."""
    return tensor.reshape(-1).view("uint8").to_numpy().tobytes()


def values(shape, dtype="float32", seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=shape).astype(getattr(ml_dtypes, dtype, dtype))


def make_file(header, data=b""):
    """A file with a header of (dtype, shape, start, stop) rows, of any object, or of bytes."""
    if isinstance(header, dict):
        header = {
            name: {"dtype": row[0], "shape": row[1], "data_offsets": row[2:]} if isinstance(row, tuple) else row
            for name, row in header.items()
        }
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data
