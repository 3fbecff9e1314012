"""Runs over whole models: how one is continued, what stops it, and who runs it."""

import concurrent.futures
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.checkpoints import quantizing

from ..support.command_line import command_line
from ..support.models import SHARDS, contents

# ---- A run that was ended


def test_finished_files_are_kept(model, target, monkeypatch):
    checkpoints.quantize_model(model, target, "mxfp4")
    before = contents(target)
    stamps = {name: (target / name).stat().st_ino for name in SHARDS}
    (target / SHARDS[1]).unlink()
    (target / SHARDS[2]).write_bytes(b"damaged")
    told = []
    outcomes = checkpoints.quantize_model(model, target, "mxfp4", report=lambda *what: told.append(what))
    assert (target / SHARDS[0]).stat().st_ino == stamps[SHARDS[0]]
    assert contents(target) == before
    assert len(told) == 7  # of two files
    assert len(outcomes) == 11
    assert all(isinstance(outcome.shape, tuple) for outcome in outcomes)


def test_a_killed_run_leaves_no_half_file_and_is_continued(model, target, tmp_path):
    checkpoints.quantize_model(model, tmp_path / "whole", "mxfp4")
    program = (
        "import os, signal, sys; from dlfp4 import checkpoints\n"
        "def report(name, done, total):\n"
        "    if done == 6: os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoints.quantize_model(sys.argv[1], sys.argv[2], 'mxfp4', report=report)"
    )
    killed = subprocess.run([sys.executable, "-P", "-c", program, model, target], check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert {path.name for path in target.iterdir()} == {SHARDS[0], ".dlfp4.json"}  # 4 tensors, then 2 of the next
    inode = (target / SHARDS[0]).stat().st_ino
    checkpoints.quantize_model(model, target, "mxfp4")
    assert (target / SHARDS[0]).stat().st_ino == inode
    assert contents(target) == contents(tmp_path / "whole")


@pytest.fixture
def fused(tmp_path, monkeypatch):
    """A folder whose gate and up lie in two files, in the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for name in ("gate", "up"):
        tensors = {f"layers.0.mlp.{name}_proj.weight": np.ones((64, 64), np.float32)}
        checkpoints.save(tmp_path / "model" / f"{name}.safetensors", tensors)
    return tmp_path / "model"


def test_a_run_is_continued_by_another_spelling_of_the_paths(fused):
    parts = fused.with_name("parts")
    checkpoints.quantize_model("model", "parts", "nvfp4", convention="modelopt")
    before = contents(parts)
    (parts / "up.safetensors").unlink()
    checkpoints.quantize_model(fused, parts, "nvfp4", convention="modelopt")
    assert contents(parts) == before
    cut = parts.with_name("cut")
    cut.mkdir()
    tensors = checkpoints.load(parts, join=False)
    for number in range(2):
        of_file = {name: x for name, x in tensors.items() if name.endswith("_scale") == number}
        checkpoints.save(cut / f"{number}.safetensors", of_file)
    checkpoints.convert_model("cut", "out", "compressed-tensors")
    inode = (fused.with_name("out") / "0.safetensors").stat().st_ino
    checkpoints.convert_model(cut, "../" + fused.parent.name + "/out", "compressed-tensors")
    assert (fused.with_name("out") / "0.safetensors").stat().st_ino == inode


@pytest.mark.parametrize("entry", ["text", {}, {"outcomes": 3}, {"outcomes": [3]}, {"outcomes": [{"name": "w"}]}])
def test_a_damaged_book_is_named(model, target, entry):
    checkpoints.quantize_model(model, target, "mxfp4")
    book = json.loads((target / ".dlfp4.json").read_text())
    stamp = {"is": book["files"][SHARDS[0]]["is"]} if isinstance(entry, dict) else {}
    book["files"][SHARDS[0]] = stamp | entry if stamp else entry
    (target / ".dlfp4.json").write_text(json.dumps(book))
    with pytest.raises(ValueError, match=r"\.dlfp4\.json is damaged .*; name a new folder, or remove this one"):
        checkpoints.quantize_model(model, target, "mxfp4")


@pytest.mark.parametrize("options", [{"format": "mxfp4"}, {"exclude": ["re:.*down_proj"]}, {"convention": "modelopt"}])
def test_a_folder_of_other_options_is_left_alone(model, target, options):
    checkpoints.quantize_model(model, target, "nvfp4")
    before = contents(target)
    with pytest.raises(ValueError, match="was made from another model, by another dlfp4 or with other options"):
        checkpoints.quantize_model(model, target, **({"format": "nvfp4"} | options))
    os.utime(model / SHARDS[0], (1, 1))
    with pytest.raises(ValueError, match="was made from another model"):
        checkpoints.quantize_model(model, target, "nvfp4")
    assert contents(target) == before


# ---- What stops a run


@pytest.mark.parametrize("format", ["nvfp4", "fp8_128x128"])
def test_the_model_itself_and_folders_of_others_are_left_alone(model, target, format):
    before = contents(model)
    link = model.parent / "link"
    link.symlink_to(model)
    for place in (model, link, model / "more" / ".."):
        with pytest.raises(ValueError, match="holds the model itself"):
            checkpoints.quantize_model(model, place, format)
    target.mkdir()
    (target / "precious").write_text("")
    with pytest.raises(ValueError, match="out has other files, precious"):
        checkpoints.quantize_model(model, target, format)
    with pytest.raises(NotADirectoryError, match="precious"):
        checkpoints.quantize_model(model, target / "precious", format)
    with pytest.raises(FileNotFoundError, match=re.escape(str(target / "no"))):
        checkpoints.quantize_model(model, target / "no" / "out", format)
    assert contents(model) == before
    assert set(contents(target)) == {"precious"}


@pytest.mark.parametrize("name", ["x.gguf", "x.json", ".gguf", "x.safetensors.index.json"])
def test_files_are_called_as_what_they_are(model, tmp_path, name):
    """Nothing would read them again."""
    for work in (quantizing.quantize_model, checkpoints.convert_model):
        with pytest.raises(ValueError, match=r"would be a safetensors file, and its name .*; end it in \.safetensors"):
            work(model / SHARDS[0], tmp_path / name, "nvfp4" if work is quantizing.quantize_model else "dlfp4")
    for source in (model / SHARDS[0], model):
        with pytest.raises(ValueError, match=r"x\.txt would not be read as a GGUF file again.* does not end in \.gguf"):
            checkpoints.convert_model(source, tmp_path / "x.txt", "gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def make(work, source, target):
    if work == "quantize":
        return checkpoints.quantize_model(source, target, "nvfp4")
    return checkpoints.convert_model(source, target, "dlfp4")


@pytest.mark.parametrize("work", ["quantize", "convert"])
def test_a_list_of_files_may_spell_their_folder_in_several_ways(fused, target, work):
    fused.with_name("link").symlink_to(fused)
    for number, first in enumerate(("model", "link", "model/../model")):
        out = target.with_name(f"{target.name}{number}")
        make(work, [f"{first}/gate.safetensors", fused / "up.safetensors"], out)
        assert set(contents(out)) == {"gate.safetensors", "up.safetensors", "model.safetensors.index.json"}
        assert len(checkpoints.load(out)) == 2


@pytest.mark.parametrize("work", ["quantize", "convert"])
def test_a_folder_is_made_of_one_folder(fused, target, work):
    other = fused.with_name("other")
    other.mkdir()
    (fused / "up.safetensors").rename(other / "up.safetensors")
    for second in (other / "up.safetensors", fused / ".." / "other" / "up.safetensors", "other/up.safetensors"):
        with pytest.raises(ValueError, match=r"up\.safetensors: not in .*model, where the first file lies, "):
            make(work, [fused / "gate.safetensors", second], target)
    assert not target.exists()
    (fused / "up.safetensors").symlink_to(other / "up.safetensors")  # as the cache of Hugging Face has them
    make(work, [fused / "gate.safetensors", "model/up.safetensors"], target)
    assert len(checkpoints.load(target)) == 2


def test_a_model_that_is_quantized_already_is_not_given_two_conventions(model, target):
    config = {"quantization_config": {"quant_method": "fp8"}}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config.json says that the model is quantized already, by 'fp8'"):
        checkpoints.quantize_model(model, target, "nvfp4", convention="modelopt")
    assert not target.exists()
    checkpoints.quantize_model(model, target, "nvfp4")
    assert json.loads((target / "config.json").read_text()) == config


def test_two_parts_of_one_name_in_two_files(tmp_path, target):
    model = tmp_path / "model"
    model.mkdir()
    checkpoints.save(model / "1.safetensors", {"up_proj.weight": np.ones((32, 32), np.float32)})
    checkpoints.save(model / "2.safetensors", {"up_proj.weight_packed": np.ones(3, np.uint8)})
    with pytest.raises(ValueError, match=r"up_proj.weight_packed is stored twice, in .*1.safetensors and in .*2"):
        checkpoints.quantize_model(model, target, "mxfp4", convention="compressed-tensors")
    assert not target.exists()


def test_a_full_disk_names_the_file_and_leaves_the_old_ones(model, target):
    """Files may grow to 60 kB: enough for the first of these, not for a kept embedding."""
    checkpoints.save(target, {"old": np.ones(3)})
    before = target.read_bytes()
    program = (
        "import resource, sys; from dlfp4 import checkpoints\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try: checkpoints.quantize_model(*sys.argv[1:], 'nvfp4')\n"
        "except OSError as error: print(error.filename)"
    )
    for source, place, wrong in ((model / SHARDS[0], target, target), (model, f"{target}s", f"{target}s/{SHARDS[0]}")):
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, source, place],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert done.stdout.strip() == str(wrong)
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir() if path.name.endswith(".tmp")] == []
    assert os.listdir(f"{target}s") == [".dlfp4.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(model, target):
    target.mkdir(0o500)
    with pytest.raises(PermissionError, match="out"):
        checkpoints.quantize_model(model, target, "nvfp4")


def test_an_interrupt_leaves_the_old_file(model, target):
    checkpoints.save(target, {"old": np.ones(3)})
    before = target.read_bytes()

    def interrupt(name, done, total):
        raise KeyboardInterrupt

    for source, place in ((model / SHARDS[0], target), (model, target.with_name("folder"))):
        with pytest.raises(KeyboardInterrupt):
            checkpoints.quantize_model(source, place, "nvfp4", report=interrupt)
    assert target.read_bytes() == before
    assert [path.name for path in target.with_name("folder").iterdir()] == [".dlfp4.json"]


def test_what_a_file_lacks_is_named_with_the_file(model, target):
    (model / SHARDS[1]).write_bytes((model / SHARDS[1]).read_bytes()[:-5])
    with pytest.raises(ValueError, match=SHARDS[1]):
        checkpoints.quantize_model(model, target, "nvfp4")
    (model / SHARDS[1]).unlink()
    with pytest.raises(ValueError, match=f"names files that are not there: {SHARDS[1]}"):
        checkpoints.quantize_model(model, target, "nvfp4")
    assert not target.exists()


def test_a_configuration_that_is_none(model, target):
    (model / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        checkpoints.quantize_model(model, target, "nvfp4", convention="modelopt")
    assert not target.exists()


def test_memory_holds_two_files_at_most(tmp_path):
    """Six files of 48 MB; what is read of a mapped file counts, too."""
    program = (
        "import resource, sys; from dlfp4 import checkpoints\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10\n"
        "checkpoints.quantize_model(sys.argv[1] + '/0.safetensors', sys.argv[2] + '.file', 'nvfp4')\n"
        "before = peak()\n"
        "checkpoints.quantize_model(sys.argv[1], sys.argv[2], 'nvfp4')\n"
        "print(peak() - before)"
    )
    (tmp_path / "model").mkdir()
    for number in range(6):
        weight = np.full((4096, 6144), number + 1, ml_dtypes.bfloat16)
        checkpoints.save(tmp_path / "model" / f"{number}.safetensors", {f"layers.{number}.up_proj.weight": weight})
    command = [sys.executable, "-P", "-c", program, tmp_path / "model", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) < 48 << 20  # beyond one file and its result


# ---- Executors


def check_executor(executor, model, target):
    """The same files, a task each."""
    told = []
    options = {"convention": "modelopt", "recipe": dlfp4.Recipe(rounding="toward_zero")}
    outcomes = checkpoints.quantize_model(
        model, target, "nvfp4", **options, executor=executor, report=lambda *x: told.append(x)
    )
    alone = target.with_name("alone")
    assert outcomes == checkpoints.quantize_model(model, alone, "nvfp4", **options) or any(
        np.isnan(outcome.snr) for outcome in outcomes
    )
    assert contents(target) == contents(alone)
    assert sorted(name for name, _, _ in told) == SHARDS
    assert [numbers for _, *numbers in told] == [[1, 3], [2, 3], [3, 3]]


def test_threads(model, target):
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        check_executor(executor, model, target)


def test_processes(model, target):
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        check_executor(executor, model, target)


def test_a_fault_in_a_task_comes_out(model, target, monkeypatch):
    def fail(tensor, choice, job):
        raise ValueError(f"{job.source}: {choice.name} is broken")

    monkeypatch.setattr(quantizing, "quantized", fail)
    with (
        concurrent.futures.ThreadPoolExecutor(1) as executor,
        pytest.raises(ValueError, match=rf"{SHARDS[0]}: model.layers.0.mlp.\w+_proj.weight is broken"),
    ):
        checkpoints.quantize_model(model, target, "nvfp4", executor=executor)
    assert [path.name for path in target.iterdir()] == [".dlfp4.json"]


# ---- On the command line


def test_files_at_once(model, target, tmp_path):
    options = ("--format", "nvfp4", "--convention", "modelopt")
    done = command_line("quantize", model, "-o", target, *options, "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[1] for line in done.stderr.splitlines()) == SHARDS
    assert command_line("quantize", model, "-o", tmp_path / "alone", *options).returncode == 0
    assert contents(target) == contents(tmp_path / "alone")


KILLED = """
import os, sys, time
from dlfp4.checkpoints import commands

if __name__ == "__main__":
    with commands.workers(2) as executor:
        executor.submit(abs, -1).result()  # a worker is there
        executor.submit(time.sleep, 600)
        os.kill(os.getpid(), int(sys.argv[1]))
"""


def run_program(folder, text, *arguments, **options):
    """A program's run in a folder. Its pipes end once nobody holds them, no worker either."""
    program = folder / "program.py"
    program.write_text(text)
    command = [sys.executable, "-P", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder, **options)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_killed_command(tmp_path, number):
    done = run_program(tmp_path, KILLED, str(int(number)))
    assert done.returncode == -number, done.stderr


INTERRUPTED = """
import os, signal, sys, time
from dlfp4.checkpoints import commands

def work(seconds):
    time.sleep(seconds)
    return os.getpid()

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where the tests run in the background
    try:
        with commands.workers(2) as executor:
            seen = set()
            while len(seen) < 2:  # until both workers are there
                seen.update(executor.map(work, (0.1, 0.1)))
            executor.submit(time.sleep, 600)  # the other waits for work
            time.sleep(1)
            os.killpg(0, signal.SIGINT)
            time.sleep(600)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def test_an_interrupt_ends_workers_without_a_word(tmp_path):
    """As Ctrl-C, which a terminal sends to the command and to its workers."""
    done = run_program(tmp_path, INTERRUPTED, start_new_session=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


IGNORED = """
import os, signal
from dlfp4.checkpoints import commands

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with commands.workers(2) as executor:
        executor.submit(abs, -1).result()  # a worker is there
        os.killpg(0, signal.SIGINT)
        print(executor.submit(abs, -2).result())
"""


def test_workers_ignore_an_interrupt_that_the_command_ignores(tmp_path):
    """As commands do that a shell starts with `&`, or nohup."""
    done = run_program(tmp_path, IGNORED, start_new_session=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_command_line(model, target):
    done = command_line("quantize", model, "-o", target, "--format", "nvfp4", "--convention", "compressed-tensors")
    assert done.returncode == 0, done.stderr
    assert "not carried over, as they hold other weights: pytorch_model.bin" in done.stdout
    assert f"{target}: 6 of 11 tensors quantized" in done.stdout.splitlines()[-1]
    assert checkpoints.load(target)["model.layers.0.mlp.up_proj.weight"].format == "nvfp4"
    again = command_line("quantize", model, "-o", target, "--format", "mxfp4", "--convention", "compressed-tensors")
    assert again.returncode == 1
    assert "was made from another model" in again.stderr
    assert "Traceback" not in again.stderr
