"""Some hundred random cases of each target, always the same, and the cases that once failed: see run.py for more."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import dlfp4
from dlfp4 import analysis, checkpoints

RUN = Path(__file__).with_name("run.py")
HEADER = Path(__file__).parents[2] / "include/dlfp4/dlfp4.h"


def run(*options):
    command = [sys.executable, "-P", str(RUN), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=os.environ)
    return done.returncode, done.stdout + done.stderr


def test_random_cases():
    status, said = run("--most", "60", "--seconds", "300")
    assert status == 0, said
    assert said.count(" 0 faults") > 9, said


def test_a_fault_is_reported_with_its_number(tmp_path):
    """A target that fails at certain numbers, in a copy of the folder: that of its corpus comes first."""
    (tmp_path / "run.py").write_text(RUN.read_text())
    (tmp_path / "corpus.txt").write_text("fails 3 0\nanother 0 3\nfails 3 8  # planted\n")
    (tmp_path / "targets.py").write_text(
        "def fails(rng):\n"
        "    assert rng.random() < 0.9, 'planted'\n"
        "    return True\n"
        "TARGETS, finish = {'fails': fails}, lambda: None\n"
    )
    command = [sys.executable, "-P", str(tmp_path / "run.py"), "--seconds", "60", "--most", "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert "planted" in done.stdout
    found = re.findall(r"--only fails --seed (\d+) --case (\d+):", done.stdout)
    assert found == [("3", "8"), ("0", "7"), ("0", "10"), ("0", "13"), ("0", "35")]
    case = ("--only", "fails", "--seed", "3", "--case", "8")
    again = subprocess.run([*command, *case], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "planted" in again.stderr


def sources(pattern):
    """The text of the targets."""
    return "".join(path.read_text() for path in RUN.parent.glob(pattern) if path.name != Path(__file__).name)


def test_every_function_of_the_c_api_is_called():
    declared = set(re.findall(r"^DLFP4_API [\w *]*?\b(dlfp4_\w+)\(", HEADER.read_text(), re.M))
    assert len(declared) > 25
    called = set(re.findall(r"\b(dlfp4_\w+)\(", sources("*.cpp") + sources("*.h")))
    assert declared - called == set()


def takes_arguments(function):
    return inspect.isroutine(function) and bool(inspect.signature(function).parameters)


def test_every_function_of_the_package_is_called():
    """With any arguments, or any contents of a file; autotune, which is given the name of one, has tests of its own."""
    modules = {"dlfp4": dlfp4, "checkpoints": checkpoints, "analysis": analysis}
    known = {f"{place}.{name}" for place, module in modules.items() for name in module.__all__
             if takes_arguments(getattr(module, name))}  # fmt: skip
    assert len(known) > 25
    text = sources("*.py")
    missing = {name for name in known if not re.search(rf"\b{re.escape(name)}\b", text)}
    assert missing == {"dlfp4.autotune"}
