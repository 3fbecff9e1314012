"""What ScaledArrays are, as a text: `jax.export` keeps it with the programs that take and give them."""

from __future__ import annotations

import json

import jax.export

from dlfp4._core import ScaledTensor
from dlfp4.jax.scaled_array import ScaledArray
from dlfp4.parsing import parse_object, shown
from dlfp4.proto import OPTION_DEFAULTS, TensorProto

VERSION = 1
OWN = ("version", "shape", "format", "device", "is_transposed")  # beside TensorProto's options
WHAT = "the text of a ScaledArray in this exported program"


def text_of(structure: tuple[TensorProto, bool]) -> bytes:
    """The structure of a ScaledArray's pytree as JSON; options are left out where they are the default."""
    proto, is_transposed = structure
    assert proto.format is not None
    own = (VERSION, proto.shape, proto.format.name, str(proto.device), is_transposed)
    return json.dumps({**dict(zip(OWN, own, strict=True)), **dict(proto._options())}).encode()


def structure_of(text: bytes) -> tuple[TensorProto, bool]:
    """The structure that such JSON describes; ValueError for a text that is damaged, or of another version."""
    said = parse_object(text, WHAT)
    if said.get("version") != VERSION:
        raise ValueError(f"{WHAT} has version {shown(said.get('version'))}; this dlfp4 reads version {VERSION}")
    odd = [name for name in (*OWN, *said) if (name in OWN) != (name in said) and name not in OPTION_DEFAULTS]
    if odd:
        raise ValueError(f"{WHAT} is damaged: {shown(odd)} absent or unknown")
    shape, is_transposed = said["shape"], said["is_transposed"]
    if not isinstance(shape, list) or not isinstance(is_transposed, bool):
        raise ValueError(f"{WHAT} is damaged: shape {shown(shape)}, is_transposed {shown(is_transposed)}")
    options = {name: said[name] for name in said if name in OPTION_DEFAULTS}
    try:
        proto = TensorProto(tuple(shape), format=said["format"], device=said["device"], **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{WHAT} is damaged: {error}") from error
    return proto, is_transposed


# A ScaledTensor comes back as the ScaledArray of its arrays: it is one only where arrays have values.
for _kind in (ScaledArray, ScaledTensor):
    jax.export.register_pytree_node_serialization(
        _kind,
        serialized_name=f"dlfp4.{_kind.__name__}",
        serialize_auxdata=text_of,
        deserialize_auxdata=structure_of,
        from_children=ScaledArray.tree_unflatten,
    )
