"""How ComfyUI marks quantized layers: by a tensor of JSON beside the weight, or by JSON in the file's metadata.

The mark says how a layer's bytes are meant; names and types of the parts are those of NVIDIA ModelOpt. FP4 has the even
element in the high nibble, and the scales of NVFP4 and MXFP8 lie in the layout "128x4". Source: ComfyUI's
``QUANTIZATION.md`` and files written by comfy-kitchen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

import dlfp4
from dlfp4 import ScaledTensor, Tensor
from dlfp4.checkpoints.names import last, module_of
from dlfp4.parsing import MOST_BYTES, parse_json

KEY = "_quantization_metadata"  # in the metadata of a file
MARK = "comfy_quant"  # a tensor of the module that holds the weight
FORMATS = {
    "nvfp4": "nvfp4",
    "mxfp8": "mxfp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}
NAMES = {format: name for name, format in FORMATS.items()}
# Further fields say that the weight was rotated or is otherwise more than codes and scales.
HARMLESS = {"format", "full_precision_matrix_mult"}


def find_marks(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> dict[str, str]:
    """The format of each marked layer by dlfp4's name; "" for a mark that is not understood."""
    fields = parse(metadata[KEY]) if KEY in metadata else {}
    for name, x in tensors.items():
        if last(name) == MARK:
            fields[module_of(name)] = parse_tensor(x)
    return {layer: format_of(found) for layer, found in fields.items()}


def parse(text: str) -> dict[str, Any]:
    """The layers of the metadata; ValueError where it is not as ComfyUI writes it."""
    content = parse_json(text.encode(), f"the metadata under {KEY!r}")
    layers = content.get("layers") if isinstance(content, dict) else None
    if not isinstance(layers, dict):
        raise ValueError(f"the metadata under {KEY!r} has no object of layers")
    return layers


def as_text(layers: Mapping[str, Any]) -> str:
    """Layers as the metadata has them; the inverse of :func:`parse`."""
    return json.dumps({"layers": layers})


def left(text: str, tensors: Mapping[str, Any]) -> str:
    """The marks of those layers that are not quantized anew, whose parts another convention may store."""
    anew = {module_of(name) for name, x in tensors.items() if isinstance(x, ScaledTensor)}
    layers = parse(text)
    return text if anew.isdisjoint(layers) else as_text({name: layers[name] for name in layers if name not in anew})


def parse_tensor(x: Any) -> Any:
    """What a mark says; None where it is no JSON, or has more dimensions than NumPy's arrays."""
    mark = dlfp4.asarray(x)
    try:
        return parse_json(mark.to_device("cpu").to_numpy().tobytes(), MARK) if mark.nbytes <= MOST_BYTES else None
    except (BufferError, ValueError):
        return None


def format_of(fields: Any) -> str:
    """The format of a mark, or ""."""
    if not isinstance(fields, dict) or not fields.keys() <= HARMLESS or not isinstance(fields.get("format"), str):
        return ""
    return FORMATS.get(fields["format"], "")


def mark_of(name: str) -> str:
    """The name of the tensor that marks the module of a weight; weights of the model itself lie in none."""
    module = module_of(name)
    return f"{module}.{MARK}" if module else MARK


def make_mark(format: str) -> Tensor:
    """The tensor that marks a layer."""
    return dlfp4.asarray(np.frombuffer(json.dumps({"format": NAMES[format]}).encode(), np.uint8).copy())
