"""Quantize the weights of a model, file by file.

A plan says for each file of the model which tensors are quantized. A file is then a task of its own, which any executor
runs: it maps the source, quantizes a tensor while the one before is written, and puts the new file in place once it is
whole.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

import dlfp4
from dlfp4 import Recipe, ScaledTensor, Tensor, TensorProto
from dlfp4._core import _find_format
from dlfp4.analysis import signal_to_noise
from dlfp4.checkpoints import configs, folders, joining, models, native, safetensors
from dlfp4.checkpoints.conventions import check_convention
from dlfp4.checkpoints.folders import Outcome, Report, Tick
from dlfp4.checkpoints.models import Files, ModelPath, Shard
from dlfp4.checkpoints.names import errors_of
from dlfp4.checkpoints.selection import (
    Choice,
    check_included,
    choose,
    described,
    quantize_chosen,
    recipe_of,
    shared_global_scale,
)
from dlfp4.files import as_path
from dlfp4.formats import FLOATS, Format, RecipeName, offset_parts

ONE_BY_ONE = "compressed-tensors"  # whose loaders have other modules for these experts than the model's own files
LLAMA_4 = re.compile(r"(.*\bfeed_forward\.experts\.)(gate_up_proj|down_proj)")


@dataclass(frozen=True)
class Job(folders.Job):
    """One file to quantize.

    Attributes
    ----------
    choices : dict of str to Choice
        For each tensor of the file.
    format : str
        To quantize to.
    recipe : Recipe or str, optional
        How to round.
    convention : str, optional
        How the parts are stored.
    elsewhere : dict of str to str
        The files of tensors that are fused with those of this file, and lie in others.
    """

    choices: dict[str, Choice]
    format: str
    recipe: Recipe | RecipeName | None
    convention: str | None
    elsewhere: dict[str, str]

    def without_places(self) -> Self:
        """The same with the names of files alone."""
        elsewhere = {name: Path(path).name for name, path in self.elsewhere.items()}
        return replace(super().without_places(), elsewhere=elsewhere)


def quantize_model(
    source: ModelPath,
    target: str | os.PathLike[str],
    format: str | Format,
    *,
    convention: str | None = None,
    include: str | Sequence[str] | None = (),
    exclude: str | Sequence[str] | None = (),
    include_embeddings: bool = False,
    include_heads: bool = False,
    include_routers: bool = False,
    axis: int | None = None,
    recipe: Recipe | RecipeName | None = None,
    executor: Executor | None = None,
    report: Report | None = None,
) -> list[Outcome]:
    """Quantize the weights of a model's linear layers, and write the model with all that belongs to it.

    A file becomes a file. A folder becomes a folder: safetensors files of the same names, their index, ``config.json``
    with the ``quantization_config`` that loaders of the convention look for (and ``hf_quant_config.json`` for
    ModelOpt), and copies of all other files but weights. In memory are at most one file of the model and its result.

    Layers that engines multiply by as by one matrix, such as gate and up, or query, key and value, share a global
    scale. Stacks of Llama-4's experts become matrices in compressed-tensors' convention, as its loaders look for them.

    Each file appears whole or not at all, the configuration last. Where a run was ended, the same call continues it:
    finished files are kept. Nothing that a folder held before is written over.

    Parameters
    ----------
    source : path-like
        A safetensors file; or the folder of a model, or its index.
    target : path-like
        A file for a file, a folder for a folder, and never those of `source`.
    format, recipe
        As :func:`dlfp4.quantize` takes them.
    convention : str, optional
        How the parts are stored; see :func:`split_parts`. By default as :func:`save` stores them, which other loaders
        do not know.
    include, exclude, include_embeddings, include_heads, include_routers, axis
        Which tensors: :func:`dlfp4.checkpoints.selection.choose` says it. All others are kept, and what is already
        quantized keeps its bytes.
    executor : concurrent.futures.Executor, optional
        Runs a task for each file, with the same result: a ``ProcessPoolExecutor``, Dask's ``Client.get_executor()``,
        mpi4py's ``MPIPoolExecutor``. Its workers must see the same paths. By default one file is done after the other,
        with all threads of dlfp4.
    report : callable, optional
        Called with a name, how many are done and how many there are: tensors, or files where there is an executor.

    Returns
    -------
    list of Outcome
        One per tensor, in the order of the files.

    Raises
    ------
    ValueError
        A file is damaged or missing; options do not go together; a pattern matches nothing, or one of `include` only
        what is kept all the same; `target` is a file of the model, or a folder of other contents. Told before any work.
    OSError
        A file cannot be read or written.

    Examples
    --------
    >>> import dlfp4.checkpoints, numpy as np, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source, target = os.path.join(folder, "model.safetensors"), os.path.join(folder, "quantized.safetensors")
    ...     dlfp4.checkpoints.save(source, {"up_proj.weight": np.ones((64, 64), np.float32), "ids": np.arange(3)})
    ...     for outcome in dlfp4.checkpoints.quantize_model(source, target, "nvfp4"):
    ...         print(outcome.name, outcome.format or outcome.reason)
    up_proj.weight nvfp4
    ids int64: not float32, bfloat16 or float16
    """
    chosen = _find_format(format)
    folders.check_callers(executor, report)
    files, place = models.find(source), as_path("target", target)
    whole = models.is_folder(source)
    folders.check_place(files, place, whole=whole)
    # Options that do not go together are refused before the work.
    dlfp4.quantize(dlfp4.empty((1, 0, 128), "float32"), chosen, recipe=recipe)
    shards = models.read(source)
    with errors_of(models.named(source)):
        choices = choose_all(
            shards,
            chosen,
            convention=convention,
            include=include,
            exclude=exclude,
            include_embeddings=include_embeddings,
            include_heads=include_heads,
            include_routers=include_routers,
            axis=axis,
        )
    targets = [place / path.name if whole else place for path in files.shards]
    jobs = plan(files.shards, targets, choices, chosen.name, recipe, convention)
    sizes = {job.target: planned_sizes(job) for job in jobs}
    models.check_names(Files(place, tuple(map(Path, sizes))), sizes)
    if not whole:
        done = folders.run(jobs, work, executor=executor, report=report)
        return [outcome for _, outcomes in done for outcome in outcomes]
    config = folders.read_config(files)
    check_config(config, jobs, files.folder)
    needed = {target: sum(of_tensors.values()) for target, of_tensors in sizes.items()}
    results = folders.make(files, place, jobs, work, executor=executor, report=report, sizes=needed)
    outcomes = [outcome for each in results.values() for outcome in each]
    folders.write_index(files, place, sizes)
    return configs.write(place, configured(config, jobs[0], outcomes), outcomes, config)


# ---- The plan


def choose_all(
    shards: Sequence[Shard],
    format: Format,
    *,
    convention: str | None,
    include: str | Sequence[str] | None,
    **options: Any,
) -> list[dict[str, Choice]]:
    """The choices for the tensors of each file, made for all of them together."""
    if convention is not None:
        check_convention(convention)
    members = [parts_of(shard, convention)[0] for shard in shards]
    tensors = {name: x for each in members for name, x in each.items()}
    choices = choose(tensors, format, convention=convention, include=include, **options)
    kept = {name: choice.reason for name, choice in choices.items() if not choice.quantized}
    check_included(include, choices.keys() - kept.keys(), kept)
    return [{name: choices[name] for name in each} for each in members]


def plan(
    sources: Sequence[Path],
    targets: Sequence[Path],
    choices: Sequence[dict[str, Choice]],
    format: str,
    recipe: Recipe | RecipeName | None,
    convention: str | None,
) -> list[Job]:
    """A job for each file."""
    paths = {name: str(path) for path, of_file in zip(sources, choices, strict=True) for name in of_file}
    jobs = []
    for source, target, of_file in zip(sources, targets, choices, strict=True):
        fused = [name for choice in of_file.values() for name in choice.fused if name not in of_file]
        elsewhere = {name: paths[name] for name in fused}
        jobs.append(Job(str(source), str(target), tuple(of_file), of_file, format, recipe, convention, elsewhere))
    return jobs


def parts_of(shard: Shard, convention: str | None) -> tuple[dict[str, Tensor | ScaledTensor], dict[str, str]]:
    """The tensors of a file and its metadata; parts of other conventions stay the parts that they are."""
    metadata = {key: text for key, text in shard.metadata.items() if key != native.KEY}
    if native.KEY not in shard.metadata and convention == ONE_BY_ONE:
        return apart(shard.tensors), metadata
    return dict(joining.described(shard)), metadata


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor | ScaledTensor]:
    """The tensors of a file, each of Llama-4's experts by itself, as compressed-tensors' loaders look for them.

    The stacks are (experts, in, out), and hold gate before up.
    """
    found: dict[str, Tensor | ScaledTensor] = {}
    for name, x in tensors.items():
        stack = LLAMA_4.fullmatch(name)
        if not stack or x.ndim != 3 or x.dtype.name not in FLOATS:
            found[name] = x
            continue
        start, own = stack.groups()
        rows = x.shape[2] // 2
        for number in range(len(x)):
            expert = x[number].mT
            halves = {"gate_proj": expert[:rows], "up_proj": expert[rows:]} if own == "gate_up_proj" else {own: expert}
            found |= {f"{start}{number}.{each}.weight": half for each, half in halves.items()}
    return found


def planned_sizes(job: Job) -> dict[str, int]:
    """The bytes of each tensor that the new file will hold, by name."""
    tensors, _ = parts_of(models.read_file(job.source), job.convention)
    return {name: part.nbytes for name, part in lay_out(job, tensors)[0].items()}


def lay_out(job: Job, tensors: Mapping[str, Tensor | ScaledTensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The parts that the new file will hold, without their data, and the metadata that describes them."""
    outlines: dict[tuple[str, tuple[int, ...], int], ScaledTensor] = {}  # one for all alike: some have to be packed
    planned: dict[str, Tensor | ScaledTensor] = {}
    for name, x in tensors.items():
        choice = job.choices[name]
        key = (*described(x), choice.axis)
        if choice.quantized and key not in outlines:
            outlines[key] = outline(x, job, choice)
        planned[name] = outlines[key] if choice.quantized else x
    with errors_of(job.source):
        return joining.split(planned, job.convention)


def check_config(config: Mapping[str, Any] | None, jobs: Sequence[Job], folder: Path) -> None:
    """ValueError where a configuration would have to name two conventions."""
    quantizes = any(choice.quantized for job in jobs for choice in job.choices.values())
    found = configs.find_method(config, folder) if jobs[0].convention is not None and quantizes else None
    if found:
        raise ValueError(
            f"{found[0]} says that the model is quantized already, by {found[1]!r}, and loaders take one convention; "
            "convert the model instead, or leave out the convention"
        )


def configured(config: Mapping[str, Any] | None, job: Job, outcomes: Sequence[Outcome]) -> dict[str, Mapping[str, Any]]:
    """The configuration files of the new model, by name."""
    if job.convention is None:
        return {} if config is None else {folders.CONFIG: config}
    return configs.files_of(configs.facts_of(job.convention, outcomes, config), config)


# ---- The work


def work(job: Job, tick: Tick = folders.no_tick) -> list[Outcome]:
    """Quantize one file."""
    tensors, metadata = parts_of(models.read_file(job.source), job.convention)
    layout, description = lay_out(job, tensors)
    outcomes = []
    units = GlobalScales(job, tensors)
    left = set(layout)
    with safetensors.writing(job.target, layout, metadata | description) as put:
        for name, tensor in tensors.items():
            choice = replace(job.choices[name], global_scale=units.of(job.choices[name]))
            result = quantized(tensor, choice, job) if choice.quantized else tensor
            with errors_of(job.source):
                parts = joining.split({name: result}, job.convention)[0]
            for part in parts.keys() & left:  # a mark of the whole file comes with each tensor
                put(part, parts[part])
            left.difference_update(parts)  # "-=" would copy what is left
            outcomes.append(judge(choice, tensor, result))
            tick(name)
    return outcomes


def quantized(tensor: Any, choice: Choice, job: Job) -> ScaledTensor:
    """One tensor, quantized; ValueError names it, where the convention does not hold its values."""
    try:
        return quantize_chosen(tensor, choice, job.format, convention=job.convention, recipe=job.recipe)
    except ValueError as error:
        raise ValueError(f"{job.source}: {choice.name}: {error}; exclude it, or take another format") from error


class GlobalScales:
    """The global scales that tensors of a file have in common with those with which engines fuse them."""

    def __init__(self, job: Job, tensors: Mapping[str, Any]) -> None:
        self.job, self.tensors = job, tensors
        self.found: dict[tuple[str, ...], float] = {}

    def of(self, choice: Choice) -> float | None:
        """The global scale; None for what is fused with nothing."""
        if not choice.fused:
            return None
        if choice.fused not in self.found:
            members = (self.take(name) for name in choice.fused)
            self.found[choice.fused] = shared_global_scale(members, self.job.format, self.job.recipe)
        return self.found[choice.fused]

    def take(self, name: str) -> Any:
        """A tensor of this file or another."""
        if name in self.tensors:
            return self.tensors[name]
        return models.read_file(self.job.elsewhere[name]).tensors[name]


def outline(tensor: Any, job: Job, choice: Choice) -> ScaledTensor:
    """What quantizing will give, in memory that is neither written nor read."""
    turned = choice.axis == -2 and job.convention is not None
    shape = (*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2]) if turned else tensor.shape
    along = turned or choice.axis == -1
    format = _find_format(job.format)
    recipe = recipe_of(tensor, format, job.convention, job.recipe)
    made = TensorProto(
        shape,
        format=format,
        rowwise=along,
        columnwise=not along,
        scale_dtype=recipe.scale_dtype,
        global_scale_per=recipe.global_scale_per,
    ).allocate()
    assert isinstance(made, ScaledTensor)
    unit = None if made.global_scale is None else np.ones(made.global_scale.shape, np.float32)
    # Few, and looked at by conventions that store powers of two.
    scales = np.ones(made.scales.shape, made.scales.dtype) if format.kind == "largest" else made.scales
    offsets: dict[str, Any] = {name: np.full(part.shape, 8, part.dtype) for name, part in offset_parts(made).items()}
    return ScaledTensor.from_parts(made.data, scales, unit, format=format, axis=made.axis, shape=shape, **offsets)


# ---- What became of a tensor


def judge(choice: Choice, tensor: Tensor | ScaledTensor, result: Tensor | ScaledTensor) -> Outcome:
    """The outcome of one tensor."""
    kind = tensor.format.name if isinstance(tensor, ScaledTensor) else tensor.dtype.name
    start = (choice.name, tensor.shape, kind)
    if isinstance(tensor, ScaledTensor) or not isinstance(result, ScaledTensor):
        return Outcome(*start, "", tensor.nbytes, tensor.nbytes, math.nan, choice.reason)
    snr = signal_to_noise(tensor.mT if result.shape != tensor.shape else tensor, result)
    told = configs.has_pow2_scales(result), configs.is_symmetric(result)
    return Outcome(*start, result.format.name, tensor.nbytes, result.nbytes, snr, choice.reason, *told)
