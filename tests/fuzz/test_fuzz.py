"""Some hundred random cases of each target, always the same, and the cases that once failed: see run.py for more."""

import os
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("run.py")


def run(*options):
    command = [sys.executable, "-P", str(RUN), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=os.environ)
    return done.returncode, done.stdout + done.stderr


def test_random_cases():
    status, said = run("--most", "60", "--seconds", "300")
    assert status == 0, said
    assert said.count(" 0 faults") > 9, said


def test_a_fault_is_reported_with_its_number(tmp_path):
    """A target that fails at a certain number, in a copy of the folder."""
    for name in ("run.py", "corpus.txt"):
        (tmp_path / name).write_text(RUN.with_name(name).read_text())
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
    number = done.stdout.partition("--case ")[2].partition(":")[0]
    again = subprocess.run([*command, "--only", "fails", "--case", number], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "planted" in again.stderr
