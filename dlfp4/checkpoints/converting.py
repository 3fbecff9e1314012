"""Convert models between the conventions of safetensors files, and to and from GGUF.

Codes and scales are renamed, and put into other containers. Only where a convention does not hold a format are they
transcoded (:meth:`dlfp4.ScaledTensor.to`), and the outcome says how exactly.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from dlfp4 import ScaledTensor, Tensor
from dlfp4.checkpoints import (
    activations,
    comfyui,
    configs,
    conventions,
    folders,
    gguf_files,
    joining,
    llama_cpp,
    models,
    native,
    safetensors,
)  # fmt: skip
from dlfp4.checkpoints.activations import Respelling, respelled
from dlfp4.checkpoints.folders import Outcome, Report, Tick
from dlfp4.checkpoints.models import Files, ModelPath, Shard
from dlfp4.checkpoints.names import errors_of
from dlfp4.checkpoints.roles import holds_codes
from dlfp4.files import as_path
from dlfp4.spellings import CONVENTIONS
from dlfp4.suggest import is_one_of

OWN = "dlfp4"
GGUF = "gguf"
DEEPSEEK, BLOCKS, WHOLE = "deepseek", "fp8_128x128", "fp8_e4m3"
ALIKE = "awq"  # whose loaders take groups of one length alone
SIGNED = "compressed-tensors"  # which stores integers with a sign without zero points
TARGETS = (OWN, *CONVENTIONS, GGUF)
Tensors = Mapping[str, Tensor | ScaledTensor]
Put = Callable[[str, Tensor | ScaledTensor], None]  # takes a tensor by its name; ValueError where it cannot
NO_CHANGES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Job(folders.Job):
    """One file to convert.

    Attributes
    ----------
    others : tuple of str
        Further files that hold parts of its tensors.
    convention : str
        To which they are converted.
    changes : dict of str to str
        Formats that become others, exactly, for the sake of the other tensors of the model.
    scales : dict of str to Respelling
        What becomes of scales of activations.
    """

    others: tuple[str, ...]
    convention: str
    changes: dict[str, str]
    scales: dict[str, Respelling]

    def without_places(self) -> Self:
        """The same with the names of files alone."""
        return replace(super().without_places(), others=tuple(Path(path).name for path in self.others))


def convert_model(
    source: ModelPath,
    target: str | os.PathLike[str],
    convention: str,
    *,
    executor: Executor | None = None,
    report: Report | None = None,
) -> list[Outcome]:
    """Store a quantized model as another convention stores it, on codes and scales.

    What is not quantized is copied. Quantized tensors of conventions that dlfp4 does not know are copied, too, as the
    parts that they are; a model of such tensors alone keeps its configuration. A folder becomes a folder, with index
    and configuration, as :func:`quantize_model` makes one.

    Parameters
    ----------
    source : path-like
        A safetensors file, the folder of a model or its index, or a GGUF file.
    target : path-like
        A file for a file, a folder for a folder, and never those of `source`; for "gguf" always a file.
    convention : str
        One of ``CONVENTIONS``; "dlfp4", as :func:`save` stores it; or "gguf", with NVFP4's global scale as
        ``NAME.scale``. To and from GGUF files, Llama, Mistral, Mixtral, Qwen2 and Qwen3 models, the latter two with
        experts or without, get the names that the other side has; Llama's, Mistral's and Mixtral's queries and keys
        get its order of rows, and experts are stacked or taken apart. What llama.cpp has in float32 alone is widened:
        vectors and routers. Other names stay.
    executor, report
        As :func:`quantize_model` takes them. GGUF files are one task, which is done here.

    Returns
    -------
    list of Outcome
        One per tensor. `format` is that of a quantized tensor, "" for others; where it is not the one that the tensor
        had, `reason` says how many of its blocks are exact, and the largest error of the others. It also says where
        the convention's loaders know no stacks of experts, or nothing else, and, to and from GGUF, what became of the
        name.

    Raises
    ------
    ValueError
        A file is damaged or missing; the convention is unknown or cannot hold a tensor; `target` is a folder of other
        contents.
    OSError
        A file cannot be read or written.

    Examples
    --------
    >>> import dlfp4.checkpoints, numpy as np, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source, target = os.path.join(folder, "modelopt.safetensors"), os.path.join(folder, "other.safetensors")
    ...     q = dlfp4.quantize(np.ones((64, 64), np.float32), "nvfp4")
    ...     dlfp4.checkpoints.save(source, {"up.weight": q}, convention="modelopt")
    ...     outcomes = dlfp4.checkpoints.convert_model(source, target, "compressed-tensors")
    ...     print(list(dlfp4.checkpoints.load(target, join=False)))
    ['up.weight_packed', 'up.weight_scale', 'up.weight_global_scale']
    """
    if not is_one_of(convention, TARGETS):
        raise ValueError(f"convention={convention!r}: expected one of {', '.join(TARGETS)}")
    folders.check_callers(executor, report)
    place = as_path("target", target)
    if convention == GGUF or gguf_files.is_gguf(source):
        folders.check_file(own_files(source), place, gguf=convention == GGUF)
        return convert_gguf(source, place, convention, report)
    files, whole = models.find(source), models.is_folder(source)
    folders.check_place(files, place, whole=whole)
    jobs, converts = plan(models.read(source), place, convention, whole=whole)
    if not whole:
        return [each for _, outcomes in folders.run(jobs, work, executor=executor, report=report) for each in outcomes]
    config = folders.read_config(files)
    without = configs.FILES if converts else ()
    results = folders.make(files, place, jobs, work, executor=executor, report=report, without=without)
    outcomes = [outcome for each in results.values() for outcome in each]
    sizes = {job.target: sizes_of(job.target) for job in jobs}
    models.check_names(Files(place, tuple(map(Path, sizes))), sizes)
    folders.write_index(files, place, sizes)
    written = configs.files_of(configs.facts_of(convention, outcomes, config), config)
    return configs.write(place, written, outcomes, config)


def sizes_of(path: str) -> dict[str, int]:
    """The bytes of each tensor of a file."""
    return {name: tensor.nbytes for name, tensor in safetensors.read(path)[0].items()}


# ---- Safetensors to safetensors


def plan(shards: Sequence[Shard], place: Path, convention: str, *, whole: bool) -> tuple[list[Job], bool]:
    """A job for each file, whose tensors are those whose data it holds, wherever their other parts lie; and whether any
    of them is quantized.
    """
    located = joining.located(shards, seen)
    tensors = dict(located.values())
    formats = [format for format in tensors.values() if format.name]
    if whole:
        check_alike({format.name for format in formats}, convention)
    changes = changes_of(formats, convention)
    scales = respelled(tensors, {name: each.name for name, each in tensors.items() if each.name}, convention)
    jobs = []
    for shard, others in zip(shards, others_of(shards), strict=True):
        own = [
            stored for stored in shard.tensors if stored in located and not (formats and is_mark(stored, convention))
        ]
        names = tuple(located[stored][0] for stored in own)
        target = place / Path(shard.path).name if whole else place
        own_scales = {name: scales[name] for name in names if name in scales}
        jobs.append(Job(shard.path, str(target), names, others, convention, changes, own_scales))
    return jobs, bool(formats)


def is_mark(name: str, convention: str) -> bool:
    """Whether a tensor only says that a file is stable diffusion's, and the new one is not."""
    return name == conventions.MARKER and convention != "stable-diffusion"


def others_of(shards: Sequence[Shard]) -> Iterator[tuple[str, ...]]:
    """For each file of a model, the others without which its tensors would not be joined as they are in the model."""
    places = [joining.places_of(shard) for shard in shards]
    for own in places:
        related = zip(shards, places, strict=True)
        yield tuple(shard.path for shard, others in related if others is not own and not own.isdisjoint(others))


def check_alike(formats: Collection[str], convention: str) -> None:
    """ValueError where a configuration has one length of groups for all layers, and they have several."""
    lengths = {configs.LENGTHS[format] for format in formats if format in configs.LENGTHS}
    if convention == ALIKE and len(lengths) > 1:
        raise ValueError(
            f"the model has {', '.join(sorted(formats))}, and a configuration of {ALIKE} has one length of groups for "
            f"all layers; convert it to gptq, or file by file"
        )


class Seen(NamedTuple):
    """What a plan has to know of a tensor: its format, "" where it is not quantized, and of integers without a sign
    whether their zero points are all 8.
    """

    name: str
    symmetric: bool


def seen(x: Tensor | ScaledTensor) -> Seen:
    """The facts about a tensor."""
    if not isinstance(x, ScaledTensor):
        return Seen("", symmetric=False)
    return Seen(x.format.name, x.format.element.name == "uint4" and configs.is_symmetric(x))


def changes_of(formats: Sequence[Seen], convention: str) -> dict[str, str]:
    """Formats that become others, exactly, where those of all tensors allow it.

    DeepSeek's configuration has one word for all: one scale a tensor becomes one a block where others have those.
    Without zero points, loaders of compressed-tensors take integers for experts as well, and kernels need not read
    them; engines that fuse layers want all of them alike.
    """
    if convention == DEEPSEEK and any(format.name == BLOCKS for format in formats):
        return {WHOLE: BLOCKS}
    unsigned = [format for format in formats if format.name.startswith("uint4")]
    if convention == SIGNED and all(format.symmetric for format in unsigned):
        return {format.name: format.name.removeprefix("u") for format in unsigned}
    return {}


def work(job: Job, tick: Tick = folders.no_tick) -> list[Outcome]:
    """Convert one file."""
    own = models.read_file(job.source)
    tensors: dict[str, Any] = joining.joined([own, *map(models.read_file, job.others)])
    outcomes, results = [], Results(job.convention)
    for name in job.names:
        how, x = job.scales.get(name), tensors.pop(name)
        if how is not None:
            with errors_of(f"{job.source}: {name}"):
                x = activations.stored(x, how)
        new_name = name if how is None else how.name
        outcomes.append(converted(new_name, x, job.convention, job.source, results.put, job.changes)[1])
        tick(name)
    metadata = {key: text for key, text in own.metadata.items() if key not in (native.KEY, comfyui.KEY)}
    with errors_of(job.source):
        results.write(job.target, metadata)
    return outcomes


class Results:
    """Tensors of a file to write, as a convention stores them: packing takes time, so each is packed once."""

    def __init__(self, convention: str) -> None:
        self.convention = convention
        self.parts: dict[str, Tensor] = {}
        self.own: dict[str, Tensor | ScaledTensor] = {}  # of dlfp4's convention, which describes all of them together

    def put(self, name: str, x: Tensor | ScaledTensor) -> None:
        """Add a tensor; ValueError where the convention does not hold it."""
        if self.convention == OWN:
            self.own[name] = x
        else:
            conventions.merge(self.parts, conventions.split_parts({name: x}, self.convention))

    def write(self, path: str, metadata: Mapping[str, str]) -> None:
        """Write the file."""
        own, description = joining.split(self.own, None)
        safetensors.write(path, self.parts | own, {**metadata, **description})


def converted(
    name: str,
    x: Tensor | ScaledTensor,
    convention: str,
    source: str,
    put: Put,
    changes: Mapping[str, str] = NO_CHANGES,
) -> tuple[Tensor | ScaledTensor, Outcome]:
    """A tensor that the convention holds, and what became of it; `put` has taken it."""
    if isinstance(x, ScaledTensor):
        x, outcome = renewed(name, x, convention, changes)
    else:
        word = why_kept(name, x, convention)
        outcome = Outcome(name, x.shape, x.dtype.name, "", x.nbytes, x.nbytes, math.nan, word)
    try:
        put(name, x)
    except ValueError as error:
        fault = f"{source}: {error}"
        if isinstance(x, ScaledTensor):
            return suited(x, convention, outcome, fault, put)
        raise ValueError(fault) from error
    return x, outcome


def renewed(name: str, x: ScaledTensor, convention: str, changes: Mapping[str, str]) -> tuple[ScaledTensor, Outcome]:
    """A quantized tensor in the format that the other tensors of the model ask for, and what there is to say."""
    told = configs.has_pow2_scales(x), configs.is_symmetric(x)
    word = conventions.caution(name, x.format, convention)
    outcome = Outcome(name, x.shape, x.format.name, x.format.name, x.nbytes, x.nbytes, math.nan, word, *told)
    if convention == OWN:
        return x, outcome
    outcome = replace(outcome, reason=conventions.why_unknown(len(x.shape), convention) or outcome.reason)
    x = x.with_scale_layout("linear")  # conventions lay scales out themselves
    other = changes.get(x.format.name)
    if other is not None and (x.ndim == 2 or x.format.has_integers):
        return transcoded(x, other, outcome)
    return x, outcome


def why_kept(name: str, x: Tensor, convention: str) -> str:
    """What there is to say about a tensor that is copied, or ""."""
    if holds_codes(name, x.dtype.name, x.shape):
        return "quantized in a way that is not converted"
    unknown = convention not in (OWN, *activations.INPUTS) and activations.is_scale(name)
    return f"a scale of activations, which loaders of {convention} do not know" if unknown else ""


def suited(q: ScaledTensor, convention: str, outcome: Outcome, fault: str, put: Put) -> tuple[ScaledTensor, Outcome]:
    """A tensor as the convention holds it, which `put` takes; `fault` says why it cannot stay as it is.

    Its values stay the same, or at least its elements have the same type: NVFP4 that MLX holds has no global scale.
    """
    try:
        result, outcome = transcoded(q, "ggml" if convention == GGUF else convention, outcome)
        put(outcome.name, result)
    except ValueError as error:
        raise ValueError(fault) from error
    receipt = result.receipt
    exact = receipt is None or receipt.exact == receipt.blocks
    if not exact and result.format.element != q.format.element:
        raise ValueError(
            f"{fault}; as {result.format} it would lose precision, which quantizing the model anew need not"
        )
    return result, outcome


def transcoded(q: ScaledTensor, target: str, outcome: Outcome) -> tuple[ScaledTensor, Outcome]:
    """A tensor in another format, and what became of it."""
    result = q.to(target)
    receipt = result.receipt
    said = f"from {q.format}"
    if receipt is not None:
        said += f": {receipt.exact} of {receipt.blocks} blocks exact, largest error {receipt.largest_error:.3g}"
    said = "; ".join(filter(None, (said, outcome.reason)))
    symmetric = configs.is_symmetric(result)
    return result, replace(outcome, format=result.format.name, after=result.nbytes, reason=said, symmetric=symmetric)


def check(name: str, x: Tensor | ScaledTensor, convention: str) -> None:
    """ValueError where a convention does not hold a tensor, which it names."""
    if convention not in (OWN, GGUF):
        conventions.split_parts({name: x}, convention)
    elif convention == GGUF:
        with errors_of(name):
            gguf_files.check(x)


# ---- GGUF


def own_files(source: ModelPath) -> Sequence[Path]:
    """The files that hold a model."""
    return [Path(models.named(source))] if gguf_files.is_gguf(source) else models.find(source).shards


def convert_gguf(source: ModelPath, target: Path, convention: str, report: Report | None) -> list[Outcome]:
    """Convert a model to or from a GGUF file."""
    tensors, facts = read_any(source)
    to_gguf, from_gguf = convention == GGUF, gguf_files.is_gguf(source)
    naming = None
    if to_gguf != from_gguf:
        naming = llama_cpp.naming(gguf_files.package(), facts, tensors, to_gguf=to_gguf)
        tensors = tensors if to_gguf else naming.apart(tensors)
    if any(isinstance(x, ScaledTensor) for x in tensors.values()):
        tensors = {name: x for name, x in tensors.items() if not is_mark(name, convention)}
    results: dict[str, Tensor | ScaledTensor] = {}
    outcomes = []
    for number, (name, x) in enumerate(tensors.items(), 1):
        result, outcome = converted(name, x, convention, models.named(source), partial(check, convention=convention))
        result_name, result, said = naming.rename(name, result) if naming else (name, result, "")
        results[result_name] = result
        outcomes.append(replace(outcome, reason="; ".join(filter(None, (outcome.reason, said)))))
        if report:
            report(name, number, len(tensors))
    if to_gguf:
        results = naming.together(results) if naming else results
        write_gguf(target, results, facts, naming.model if naming else None)
    else:
        parts, description = joining.split(results, None if convention == OWN else convention)
        safetensors.write(target, parts, {"format": "pt"} | description)
    return outcomes


def write_gguf(target: Path, tensors: Tensors, facts: dict[str, Any] | None, model: llama_cpp.Model | None) -> None:
    """Write a GGUF file; `facts` are those of a configuration, or the fields of another GGUF file."""
    if model is not None:
        return gguf_files.write(target, tensors, model.architecture, model.fields)
    config = facts or {}
    architecture = config.get("model_type", config.get("general.architecture", "unknown"))
    return gguf_files.write(target, tensors, str(architecture), {})


def read_any(source: ModelPath) -> tuple[Tensors, dict[str, Any] | None]:
    """The tensors of a model in any kind of file, and its configuration, or the fields of a GGUF file."""
    if gguf_files.is_gguf(source):
        return gguf_files.read(models.named(source))
    return joining.joined(models.read(source)), folders.read_config(models.find(source))
