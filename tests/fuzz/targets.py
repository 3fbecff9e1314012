"""What is run on random cases: each target makes one case of a random generator, and says whether dlfp4 took it.

A target lets through what is wrong: an exception of another type than the documented, a wrong value, a deleter that ran
twice or never. What kills or hangs the process is seen by run.py.
"""

import importlib
import io
import json
import pickle
import pickletools
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path

import capsules
import makers
import numpy as np
import scaled
import shared

import dlfp4
from dlfp4 import checkpoints

warnings.simplefilter("ignore")

REFUSALS = (BufferError, TypeError, ValueError)
FOLDER = tempfile.TemporaryDirectory(prefix="dlfp4-fuzz-")


# ---- Capsules


def capsule(rng):
    """A DLTensor of any fields: an exception and an untouched capsule, or the elements that the description names."""
    fields = makers.fields_of_capsule(rng)
    made = capsules.Made(**fields["made"])
    knows = fields["made"].get("version", (1, 3))[0] == 1 or not fields["made"]["versioned"]
    last = int(fields["made"]["deleter"])
    try:
        tensor = dlfp4.from_dlpack(made.capsule)
    except REFUSALS:
        assert made.deleted == (0 if knows else last), f"refused, deleted {made.deleted} times"
        tensor = None
    else:
        check_elements(tensor, fields)
        use(
            tensor, rng, is_there=makers.lies_inside(fields) and tensor.size < 1 << 16
        )  # by strides of 0 it may be huge
    is_taken, tensor = tensor is not None, None
    made.drop()
    assert made.deleted == last, f"deleted {made.deleted} times"
    assert not capsules.STRAY
    return is_taken


def check_elements(tensor, fields):
    """Extents and an address that can be; and all elements, where they lie in the memory that was given."""
    assert min(tensor.shape, default=0) >= 0, tensor.shape
    assert tensor.size == 0 or tensor.data_ptr != 0, "elements at NULL"
    described = makers.described_elements(fields)
    if described is None:
        return
    shape, codes = described
    assert tensor.shape == shape, (tensor.shape, shape)
    bits = fields["bits"]
    plain = dlfp4.unpack(tensor) if bits < 8 else tensor
    got = np.ascontiguousarray(plain.to_numpy()).tobytes()
    step = max(1, bits // 8)
    found = [int.from_bytes(got[k : k + step], "little") & (1 << bits) - 1 for k in range(0, len(got), step)]
    assert found == codes, (found[:8], codes[:8])


def use(tensor, rng, is_there):
    """Views and exports of a tensor, and operations on one whose memory is there."""
    pending = [tensor]
    for _ in range(rng.randrange(6)):
        step = rng.choice(VIEWS if not is_there else VIEWS + READS)
        try:
            made = step(pending[-1], rng)
        except (*REFUSALS, IndexError, MemoryError):
            continue
        if isinstance(made, dlfp4.Tensor):
            pending.append(made)


def through_torch(tensor, rng):
    """To PyTorch and back: the same description, or a refusal on the way."""
    if find_spec("torch") is None or tensor.device.type != "cpu":
        return None
    import torch

    there = rng.choice([torch.from_dlpack, dlfp4.Tensor.to_torch])(tensor)
    back = dlfp4.from_dlpack(there)
    assert (back.shape, back.dtype) == (tensor.shape, tensor.dtype)
    return back


VIEWS = [
    lambda tensor, rng: tensor.T,
    lambda tensor, rng: tensor.mT,
    lambda tensor, rng: tensor[makers.index(rng, tensor.ndim)],
    lambda tensor, rng: tensor.reshape(makers.shape_of_size(rng, tensor.size)),
    lambda tensor, rng: tensor.view(rng.choice(makers.NAMES)),
    lambda tensor, rng: tensor.x2(rng.random() < 0.5),
    lambda tensor, rng: tensor.__dlpack__(max_version=rng.choice([None, (0, 8), (1, 0), (1, 3)])),
    lambda tensor, rng: dlfp4.from_dlpack(tensor.__dlpack__(max_version=(1, 3))),
    lambda tensor, rng: tensor.nbytes,
]
READS = [
    lambda tensor, rng: tensor.copy(),
    lambda tensor, rng: dlfp4.asarray(tensor.to_numpy()),
    lambda tensor, rng: repr(tensor),
    lambda tensor, rng: pickle.loads(pickle.dumps(tensor, protocol=rng.randrange(6))),
    lambda tensor, rng: dlfp4.cast(tensor, rng.choice(makers.NAMES)),
    lambda tensor, rng: dlfp4.quantize(tensor, rng.choice(list(dlfp4.formats())), pad=True).dequantize(),
    through_torch,
]


# ---- Arrays of NumPy


def array(rng):
    """A view of any strides within memory between pages that cannot be touched: the same elements by every way."""
    given = makers.array(rng)
    try:
        tensor = dlfp4.asarray(given)
    except REFUSALS:
        return False
    assert tensor.shape == given.shape
    assert np.ascontiguousarray(tensor.to_numpy()).tobytes() == np.ascontiguousarray(given).tobytes()
    assert codes_of(tensor.copy().to_numpy()) == codes_of(given)
    use(tensor, rng, is_there=True)
    return True


def codes_of(elements):
    """The bytes of elements, without the spare bits of those below 8 bits."""
    octets = np.frombuffer(np.ascontiguousarray(elements).tobytes(), np.uint8)
    bits = capsules.DTYPES[elements.dtype.name][1]
    return (octets & (1 << bits) - 1).tobytes() if bits < 8 else octets.tobytes()


# ---- Files


def safetensors(rng):
    """The bytes of a file, changed: ValueError, or tensors that can be read."""
    content = makers.changed_file(rng, rng.choice(SAFETENSORS))
    try:
        tensors = checkpoints.load(content, join=rng.random() < 0.7)
    except ValueError as error:
        tensors, said = None, str(error)
        if len(said) > 20_000:
            raise AssertionError(f"a message of {len(said)} characters") from error
    for tensor in (tensors or {}).values():
        read(tensor)
    try:
        checkpoints.inspect(content)
    except ValueError:
        return False
    if rng.random() < 0.05:
        quantize_file(rng, content)
    return tensors is not None


def quantize_file(rng, content):
    """What lies in a file: ValueError, or a file that can be read."""
    path = Path(FOLDER.name, "changed.safetensors")
    target = path.with_name("quantized.safetensors")
    path.write_bytes(content)
    try:
        checkpoints.read_metadata(path)
        checkpoints.quantize_model(path, target, rng.choice(list(dlfp4.formats())), include=["*"])
    except ValueError:
        return
    for tensor in checkpoints.load(target).values():
        read(tensor)


def read(x):
    """Every element."""
    values = x.dequantize() if isinstance(x, dlfp4.ScaledTensor) else x
    if values.ndim <= 64:  # NumPy has no more
        np.ascontiguousarray(values.to_numpy()).tobytes()


def gguf(rng):
    """The same of GGUF, which lies in a file."""
    path = Path(FOLDER.name, "changed.gguf")
    path.write_bytes(makers.changed_bytes(rng, rng.choice(GGUF), 400))
    try:
        checkpoints.convert_model(path, path.with_suffix(".safetensors"), "dlfp4")
    except ValueError:
        return False
    return True


# What each convention is to store; None: dlfp4's own.
STORED = {
    None: ["nvfp4", "mxfp6_e3m2", "uint4_g32"], "modelopt": ["nvfp4", "fp8_row"],
    "compressed-tensors": ["nvfp4", "uint4_g32"], "gpt-oss": ["mxfp4"], "deepseek": ["fp8_128x128"],
    "deepseek-v4": ["mxfp8_32x32"], "llama-4": ["nvfp4"], "mlx": ["mxfp4", "uint4_g32"], "quark": ["mxfp8_e4m3"],
    "stable-diffusion": ["fp8_e4m3"], "comfyui": ["nvfp4"], "gptq": ["uint4_g32"], "awq": ["uint4_g32"],
}  # fmt: skip


def originals():
    """Files of all conventions."""
    x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    assert STORED.keys() == {None, *checkpoints.CONVENTIONS}
    path = Path(FOLDER.name, "original.safetensors")
    for convention, names in STORED.items():
        for name in names:
            tensors = {"a.weight": dlfp4.quantize(x, name, pad=True), "b": x[0]}
            checkpoints.save(path, tensors, {"k": "v"}, convention=convention)
            yield path.read_bytes()


SAFETENSORS = list(originals())


def gguf_originals():
    """One file, if there is the package."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        return
    folder = Path(FOLDER.name)
    checkpoints.save(folder / "x.safetensors", {"a.weight": dlfp4.quantize(np.ones((8, 64), np.float32), "nvfp4")})
    checkpoints.convert_model(folder / "x.safetensors", folder / "x.gguf", "gguf")
    yield (folder / "x.gguf").read_bytes()


GGUF = list(gguf_originals())


# ---- Pickles


class Restricted(pickle.Unpickler):
    """It takes what a Tensor and a ScaledTensor are made by."""

    allowed = frozenset({
        ("dlfp4._core", "_restore_tensor"), ("dlfp4._core", "_restore_scaled"), ("dlfp4._core", "_restore_turned"),
        ("builtins", "bytearray"), ("__builtin__", "bytearray"), ("_codecs", "encode"),
    })  # fmt: skip

    def find_class(self, module, name):
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


# What Python's own unpickler raises of damaged streams, beside the refusals.
OF_PICKLE = (pickle.UnpicklingError, EOFError, IndexError, AttributeError, KeyError, MemoryError, OverflowError,
             UnicodeError, ImportError, LookupError)  # fmt: skip


def pickled(rng):
    """A pickle with changed bytes."""
    original = rng.choice(PICKLES)
    stream = makers.changed_bytes(rng, original, len(original))
    if reserves_memory(stream):
        return False
    try:
        found = Restricted(io.BytesIO(stream)).load()
    except (*REFUSALS, *OF_PICKLE):
        return False
    if isinstance(found, (dlfp4.Tensor, dlfp4.ScaledTensor)):
        read(found)
    return True


def reserves_memory(stream):
    """Whether it names a place of the memo for which Python's own unpickler reserves gigabytes."""
    try:
        return any(
            code.name in ("LONG_BINPUT", "PUT") and place > 1000 for code, place, _ in pickletools.genops(stream)
        )
    except (ValueError, OverflowError):
        return False


def restored(rng):
    """The functions that pickles call, with other arguments."""
    rebuild, given = rng.choice(REDUCED)
    given = list(given)
    for _ in range(rng.randrange(1, 4)):
        given[rng.randrange(len(given))] = makers.value(rng)
    try:
        found = rebuild(*given)
    except (*REFUSALS, OverflowError):
        return False
    if found.size if isinstance(found, dlfp4.Tensor) else found.data.size:
        read(found)
    return True


def objects():
    """Tensors of every kind."""
    x = np.random.default_rng(0).normal(size=(2, 4, 64)).astype(np.float32)
    yield from (
        dlfp4.asarray(x),
        dlfp4.cast(x, "float4_e2m1fn").x2(),
        dlfp4.cast(x, "float6_e3m2fn"),
        dlfp4.asarray(b"a"),
    )
    for format in ("nvfp4", "mxfp8_e4m3", "fp8_row", "int4_g32", "uint4_g64"):
        q = dlfp4.quantize(x, format)
        yield from (q, q.mT)


PICKLES = [pickle.dumps(x, protocol=protocol) for x in objects() for protocol in (2, 4, 5)]
REDUCED = [x.__reduce_ex__(4)[:2] for x in objects()]


# ---- Arguments

OF_FUNCTIONS = (MemoryError, IndexError, ImportError, dlfp4.BackendError, dlfp4.DriverError)  # beside the refusals


def arguments(rng):
    """A public function with any arguments: what it documents to raise, or a result."""
    function, given, named = makers.call(rng)
    try:
        function(*given, **named)
    except (*REFUSALS, *OF_FUNCTIONS):
        return False
    return True


# ---- JSON


def texts(rng):
    """Changed JSON in the place of a model's index: other bytes, or other values."""
    index = {"weight_map": {"a": "a.safetensors"}, "metadata": {"total_size": 3}}
    if rng.random() < 0.5:
        makers.change_json(rng, index)
        content = json.dumps(index).encode()
    else:
        content = json.dumps(index).encode()
        content = makers.changed_bytes(rng, content, len(content))
    path = Path(FOLDER.name, "model.safetensors.index.json")
    path.write_bytes(content)
    try:
        checkpoints.models.read_index(path)
    except ValueError:
        return False
    return True


def of_framework(module, name):
    """A target of a file that imports a framework, for which the processes of other targets do not wait."""
    return lambda rng: importlib.import_module(module).TARGETS[name](rng)


OF_FRAMEWORKS = {
    "torch": "in_torch", "torch_batches": "in_torch", "torch_tensors": "torch_tensors",
    "jax": "in_jax", "jax_batches": "in_jax",
}  # fmt: skip
TARGETS = {
    "capsules": capsule, "arrays": array, "safetensors": safetensors, "pickles": pickled, "restored": restored,
    "arguments": arguments, "texts": texts, **scaled.TARGETS, **shared.TARGETS,
}  # fmt: skip
if GGUF:
    TARGETS["gguf"] = gguf
for name, module in OF_FRAMEWORKS.items():
    # By PyTorch eager functions multiply what the host's kernels do not, and JAX's do.
    if find_spec(name.partition("_")[0]) and find_spec("torch"):
        TARGETS[name] = of_framework(module, name)


def finish():
    """At the end of a process."""
    assert not capsules.STRAY, capsules.STRAY
    FOLDER.cleanup()
