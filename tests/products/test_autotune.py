"""autotune on the host: what may win, what is kept and looked up, and files that are no caches."""

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import dlfp4
from dlfp4 import _core
from dlfp4.engines.problem import Backend
from dlfp4.formats import ACTIVATIONS

from ..support.capsules import Made, framework
from .test_matmul import assert_product, values

matmul, autotune = (importlib.import_module(f"dlfp4.{name}") for name in ("matmul", "autotune"))
CPU = matmul.BACKENDS[0]
N, K = 48, 64
W = dlfp4.quantize(values((N, K), 1), "nvfp4")


class Tactics:
    """A backend on the host whose tactics are functions of (problem, out); it counts the calls of each."""

    def __init__(self, **tactics):
        self.tactics = tactics
        self.calls = dict.fromkeys(tactics, 0)

    def row(self, name="fake"):
        return Backend(name, lambda: None, lambda problem, machine: None, lambda problem: tuple(self.tactics), self.run)

    def run(self, problem, tactic, out):
        self.calls[tactic] += 1
        self.tactics[tactic](problem, out)


def right(problem, out):
    CPU.run(problem, "default", out)


def slow(problem, out):
    time.sleep(2e-3)
    right(problem, out)


def wrong(problem, out):
    """One element off by more than the bound."""
    right(problem, out)
    array = out.to_numpy()
    array.flat[-1] += 1e-3 * max(1, abs(array.flat[-1]))


def incomplete(problem, out):
    """As a kernel without its tail; what was in memory may well be right."""
    rows = out.to_numpy()
    kept = rows[-1].copy()
    right(problem, out)
    rows[-1] = kept


def fails(problem, out):
    raise dlfp4.DriverError("launching a kernel: CUDA_ERROR_INVALID_VALUE (1)")


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(autotune, "CHOICES", {})
    monkeypatch.setattr(autotune, "WARNED", set())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "choices.json"


@pytest.fixture
def use(monkeypatch):
    """Makes backends the only ones."""

    def replace(**backends):
        monkeypatch.setattr(matmul, "BACKENDS", tuple(tactics.row(name) for name, tactics in backends.items()))

    return replace


def multiply(rows=3, **options):
    x = values((rows, K))
    out = dlfp4.matmul(x, W.mT, **options)
    assert_product(out, x, W.mT)
    return out


def winners():
    return {(key.rows, choice.backend, choice.tactic) for key, choice in autotune.CHOICES.items()}


# ---- who wins


def test_the_fastest_wins(use, path):
    use(fake=Tactics(slow=slow, slower=lambda *given: (slow(*given), slow(*given))), other=Tactics(right=right))
    with dlfp4.autotune(path):
        multiply()
    assert winners() == {(3, "other", "right")}


@pytest.mark.parametrize("bad", [wrong, incomplete, lambda problem, out: None], ids=["wrong", "incomplete", "nothing"])
def test_a_wrong_tactic_does_not_win(use, path, bad):
    tactics = Tactics(bad=bad, good=slow)
    use(fake=tactics)
    with dlfp4.autotune(path):
        multiply()
    assert winners() == {(3, "fake", "good")}
    assert tactics.calls["bad"] == 1  # checked, never timed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_results_of_every_type_are_checked(use, path, dtype):
    use(fake=Tactics(right=right, slow=slow))
    with dlfp4.autotune(path):
        dlfp4.matmul(values((3, K)), W.mT, out_dtype=dtype, alpha=-0.5)
    assert winners() == {(3, "fake", "right")}


def test_nan_and_infinity_are_right_where_they_belong(use, path):
    use(fake=Tactics(right=right, slow=slow))
    x = values((4, K))
    x[0, 0], x[1, 1], x[2, 2:4] = np.nan, np.inf, (-1e35, 3e35)
    with dlfp4.autotune(path):
        dlfp4.matmul(x, W.mT, out_dtype="float16")
    assert winners() == {(4, "fake", "right")}


def test_sums_below_normal_numbers_may_count_as_zero(use, path):
    """As levels that multiply in bfloat16 have them, however large alpha makes what was lost."""

    def flushes(problem, out):
        out.to_numpy()[:] = 0

    use(fake=Tactics(flushes=flushes, slow=slow))
    x, w = (values(shape).astype("float32") * np.float32(2.0**-66) for shape in ((3, K), (N, K)))
    with dlfp4.autotune(path):
        dlfp4.matmul(x, dlfp4.quantize(w, "nvfp4").mT, alpha=2.0**100)
    assert winners() == {(3, "fake", "flushes")}


def test_a_failed_launch_is_passed_over(use, path):
    use(fake=Tactics(fails=fails, good=right))
    with dlfp4.autotune(path):
        multiply()
    assert winners() == {(3, "fake", "good")}


def test_other_exceptions_are_the_callers(use, path):
    def raises(problem, out):
        raise RuntimeError("out of something")

    use(fake=Tactics(good=right, raises=raises))
    with dlfp4.autotune(path), pytest.raises(RuntimeError, match="out of something"):
        multiply()
    assert not autotune.CHOICES


def test_nobody_is_right(use, path):
    use(fake=Tactics(fails=fails, wrong=wrong))
    with (
        dlfp4.autotune(path),
        pytest.raises(dlfp4.BackendError, match=r"(?s)fake:fails: launching a kernel.*fake:wrong: 1 of 144 elements"),
    ):
        multiply()


def test_one_candidate_is_not_measured(use, path):
    only = Tactics(right=right)
    use(fake=only)
    with dlfp4.autotune(path):
        multiply()
    assert only.calls == {"right": 1}
    assert not path.exists()


def test_rounded_activations_are_not_measured(use, path):
    use(fake=Tactics(fails=lambda problem, out: None, wrong=wrong))
    with dlfp4.autotune(path):
        dlfp4.matmul(values((3, K)), W.mT, activation="int8")
    assert not autotune.CHOICES


@pytest.mark.parametrize("activation", ["fp8_1x128", "mxfp8", "fp8_row"])
def test_activations_in_a_format_are_measured_as_the_tensors_that_they_become(use, path, activation):
    use(first=Tactics(slow=slow, right=right))
    x = values((3, K))
    with dlfp4.autotune(path):
        got = dlfp4.matmul(x, W.mT, activation=activation)
    assert winners() == {(3, "first", "right")}
    (key,) = autotune.CHOICES
    q = dlfp4.quantize(x, ACTIVATIONS[activation])
    assert key.a == autotune.describe_layout(q)
    assert (got.to_numpy() == dlfp4.matmul(q, W.mT).to_numpy()).all()


def test_activations_in_pinned_memory(use, path):
    use(first=Tactics(slow=slow, right=right))
    a = dlfp4.from_dlpack(Made(values((3, K)), device=(3, 0)).capsule)
    with dlfp4.autotune(path):
        assert_product(dlfp4.matmul(a, W.mT), a, W.mT)
    assert winners() == {(3, "first", "right")}


def test_sums_of_nothing_are_not_measured(use, path):
    use(first=Tactics(slow=slow, right=right))
    with dlfp4.autotune(path):
        out = dlfp4.matmul(np.ones((2, 0), np.float32), np.ones((0, 3), np.float32))
    assert out.tolist() == [[0.0] * 3] * 2
    assert not winners()


def test_a_backend_by_name_has_its_tactics_measured(use, path):
    use(fast=Tactics(right=right), fake=Tactics(slow=slow, right=right))
    with dlfp4.autotune(path):
        multiply(backend="fake")
    assert winners() == {(3, "fake", "right")}


# ---- keys


def test_bucket():
    assert [_core._bucket_of_rows(m) for m in (1, 2, 15, 16, 17, 32, 33, 129, 256, 257, 4096, 4097)] == [
        *(1, 2, 15, 16, 20, 32, 40, 160, 256, 320, 4096, 5120)
    ]


def test_rows_in_turn(use, path):
    """Each bucket is measured once, and each M of it uses that choice."""
    tactics = Tactics(good=right, other=slow)
    use(fake=tactics)
    measured = []
    with dlfp4.autotune(path):
        for rows in (256, 4096, 17, 4097, 3, 256, 225):
            before = len(autotune.CHOICES)
            multiply(rows)
            measured.append(len(autotune.CHOICES) > before)
    assert measured == [True, True, True, True, True, False, False]
    assert {each.rows for each in autotune.CHOICES} == {256, 4096, 20, 5120, 3}
    before = dict(tactics.calls)
    for rows in (256, 4096, 17, 4097, 3, 256, 225, 18, 5000):
        multiply(rows)
    assert sum(tactics.calls.values()) == sum(before.values()) + 9


def test_rows_in_turn_by_real_backends(path):
    framework("torch")
    with dlfp4.autotune(path):
        for rows in (256, 4096, 17, 4097, 3, 256, 225):
            multiply(rows)
    able = [name for name, reason in dlfp4.backends(values((3, K)), W.mT).items() if reason is None]
    assert len(autotune.CHOICES) == 5
    assert {choice.backend for choice in autotune.CHOICES.values()} <= set(able)


def test_what_a_choice_depends_on(use, path):
    use(fake=Tactics(good=right, other=slow))
    x, bf16 = values((3, K)), dlfp4.cast(values((3, K)), "bfloat16")
    mxfp4, tiled = dlfp4.quantize(values((N, K), 1), "mxfp4"), W.with_scale_layout("128x4")
    problems = [(x, W), (bf16, W), (x, mxfp4), (x, tiled), (np.asfortranarray(x), W), (dlfp4.quantize(x, "nvfp4"), W)]
    with dlfp4.autotune(path):
        for count, (a, w) in enumerate(problems, 1):
            for _ in range(2):
                dlfp4.matmul(a, w.mT, out_dtype="float32")
                assert len(autotune.CHOICES) == count
        dlfp4.matmul(x, W.mT, out_dtype="float16")
    assert len({key._replace(a="", b="", result="") for key in autotune.CHOICES}) == 1
    (key,) = {key for key in autotune.CHOICES if key.result == "float16"}
    assert (key.op, key.n, key.k, key.rows, key.version) == ("matmul", N, K, 3, dlfp4.__version__)
    assert key.candidates == ("fake:good", "fake:other")
    assert dlfp4.cpu_isa() in key.device


def test_copies_lie_as_the_operands_do():
    x = values((6, K))
    w8 = dlfp4.quantize(values((N, K), 1), "mxfp8_e4m3")
    for operand in (x, np.asfortranarray(x), x[0]):
        tensor = dlfp4.asarray(operand)
        other = autotune.twin(tensor)
        assert (other.strides, other.tolist()) == (tensor.strides, tensor.tolist())
        assert other.data_ptr != tensor.data_ptr
    for operand in (W, W.mT, w8, w8.mT, W.with_scale_layout("128x4").mT):
        other = autotune.twin(operand)
        assert (other.data.strides, other.scales.strides) == (operand.data.strides, operand.scales.strides)
        assert (other.axis, other.scale_layout, other.shape) == (operand.axis, operand.scale_layout, operand.shape)
        assert other.dequantize().tolist() == operand.dequantize().tolist()
        assert other.data.data_ptr != operand.data.data_ptr


# ---- the file


def test_choices_are_kept(use, path, monkeypatch):
    use(fake=Tactics(other=slow, good=right))
    with dlfp4.autotune(path):
        multiply()
    content = json.loads(path.read_text())
    (entry,) = content["choices"]
    assert (entry["backend"], entry["tactic"], entry["key"]["rows"]) == ("fake", "good", 3)
    monkeypatch.setattr(autotune, "CHOICES", {})
    later = Tactics(other=slow, good=right)
    use(fake=later)
    multiply()
    assert later.calls == {"other": 1, "good": 0}  # the first guess: nothing was loaded
    with dlfp4.autotune(path):
        pass
    multiply()
    assert later.calls == {"other": 1, "good": 1}
    with dlfp4.autotune(path):
        multiply()
    assert later.calls == {"other": 1, "good": 2}


def test_other_candidates_have_other_choices(use, path):
    use(fake=Tactics(other=slow, good=right))
    with dlfp4.autotune(path):
        multiply()
        fewer = Tactics(other=slow, new=right)
        use(fake=fewer)
        multiply()
    assert winners() == {(3, "fake", "good"), (3, "fake", "new")}
    assert len(json.loads(path.read_text())["choices"]) == 2


CACHES = {
    "empty": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "another program's": b'{"version": 1, "algorithms": {}}',
    "a later version": b'{"format": "dlfp4 autotune", "version": 2, "choices": []}',
    "no key": b'{"format": "dlfp4 autotune", "version": 1, "choices": [{"backend": "cpu"}]}',
    "no entries": b'{"format": "dlfp4 autotune", "version": 1, "choices": [7]}',
    "other fields": b'{"format": "dlfp4 autotune", "version": 1, "choices": [{"key": {"candidates": []}}]}',
}


def autotune_twice(path):
    for rows in (3, 4):
        with dlfp4.autotune(path):
            multiply(rows)


@pytest.mark.parametrize("content", CACHES.values(), ids=CACHES)
def test_what_is_no_cache_is_left_alone(use, path, content):
    path.write_bytes(content)
    use(fake=Tactics(other=slow, good=right))
    with pytest.warns(RuntimeWarning, match=r"choices\.json is not a cache of autotune\(\).*delete it") as seen:
        autotune_twice(path)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert path.read_bytes() == content
    assert winners() == {(3, "fake", "good"), (4, "fake", "good")}


def test_a_choice_that_is_no_candidate(use, path):
    use(fake=Tactics(other=slow, good=right))
    with dlfp4.autotune(path):
        multiply()
    path.write_text(path.read_text().replace('"tactic": "good"', '"tactic": "best"'))
    with pytest.warns(RuntimeWarning, match="fake:best is not among the candidates"), dlfp4.autotune(path):
        pass


def test_a_folder_that_cannot_be_written(use, tmp_path):
    (tmp_path / "file").write_text("")
    use(fake=Tactics(other=slow, good=right))
    with pytest.warns(RuntimeWarning, match="NotADirectoryError"), dlfp4.autotune(tmp_path / "file" / "choices.json"):
        multiply()
    assert winners() == {(3, "fake", "good")}


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs a folder that even root cannot write to")
def test_a_file_that_cannot_be_written(use):
    use(fake=Tactics(other=slow, good=right))
    with pytest.warns(RuntimeWarning, match=r"/proc/choices\.json cannot be written .*give another cache") as seen:
        autotune_twice(Path("/proc/choices.json"))
    assert len(seen) == 1


def test_files_are_replaced_at_once(use, path, monkeypatch):
    """A process that ends while it writes leaves what was there."""
    use(fake=Tactics(other=slow, good=right))
    with dlfp4.autotune(path):
        multiply()
        before = path.read_bytes()

        def ends(*given):
            raise KeyboardInterrupt

        monkeypatch.setattr("os.replace", ends)
        with pytest.raises(KeyboardInterrupt):
            multiply(4)
    assert path.read_bytes() == before


PROCESS = """
import sys, numpy as np, dlfp4
from dlfp4.engines.problem import Backend
import importlib
matmul, autotune = (importlib.import_module(f"dlfp4.{name}") for name in ("matmul", "autotune"))
cpu = matmul.BACKENDS[0]
measured = []
row = Backend("fake", lambda: None, lambda p, m: None, lambda p: ("one", "two"), lambda p, t, out: cpu.run(p, t, out))
matmul.BACKENDS = (row,)
w = dlfp4.quantize(np.eye(64, dtype="float32"), "mxfp4")
for rows in map(int, sys.argv[2].split(",")):
    with dlfp4.autotune(sys.argv[1]):
        before = len(autotune.CHOICES)
        dlfp4.matmul(np.ones((rows, 64), "float32"), w.mT)
        measured += [rows] * (len(autotune.CHOICES) > before)
print(*measured)
"""


def start(path, rows):
    command = [sys.executable, "-P", "-W", "error", "-c", PROCESS, str(path), ",".join(map(str, rows))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes(path):
    """Each reads what the other wrote; neither ever sees half a file, which would be a warning and so an error."""
    both = [start(path, rows) for rows in ((1, 2, 3, 4, 5, 6), (4, 5, 6, 7, 8, 9))]
    outputs = [process.communicate() for process in both]
    assert [errors for _, errors in outputs] == ["", ""]
    held = {entry["key"]["rows"] for entry in json.loads(path.read_text())["choices"]}
    assert held <= set(range(1, 10))
    third = start(path, range(1, 10))
    output, errors = third.communicate()
    assert errors == ""
    assert {int(rows) for rows in output.split()} == set(range(1, 10)) - held


@pytest.mark.parametrize("cache", [3, [], b"choices.json"])
def test_what_is_no_path(cache):
    with pytest.raises(TypeError, match=r"cache is of type .*; expected a path"), dlfp4.autotune(cache):
        pass


def test_default_path(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert autotune.default_path().name == "autotune.json"
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.raises(ImportError, match="pass cache=path"), dlfp4.autotune():
        pass


# ---- threads


def test_other_threads_do_not_measure(use, path):
    tactics = Tactics(other=slow, good=right)
    use(fake=tactics)
    with dlfp4.autotune(path):
        thread = threading.Thread(target=multiply)
        thread.start()
        thread.join()
        assert not autotune.CHOICES
        multiply()
    thread = threading.Thread(target=multiply)
    before = tactics.calls["good"]
    thread.start()
    thread.join()
    assert tactics.calls["good"] == before + 1


def test_threads_measure_once(use, path):
    tactics = Tactics(other=slow, good=right)
    use(fake=tactics)
    errors = []

    def work():
        try:
            with dlfp4.autotune(path):
                multiply()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert tactics.calls["other"] == 1 + 9  # a check and the rounds of one measurement
    assert len(autotune.CHOICES) == 1


def test_contexts_end(use, path):
    use(fake=Tactics(other=slow, good=right))
    with pytest.raises(ZeroDivisionError), dlfp4.autotune(path):
        1 / 0  # noqa: B018
    multiply()
    assert not autotune.CHOICES


def test_what_was_multiplied_before_is_measured_too(use, path):
    first, second = Tactics(right=slow), Tactics(right=right)
    use(first=first, second=second)
    multiply()  # idle: the best guess alone is remembered
    assert second.calls["right"] == 0
    with dlfp4.autotune(path):
        multiply()
    assert second.calls["right"] > 0


def test_choices_that_others_have_written_stay(use, path):
    key = autotune.Key("matmul", "a", "b", "float32", 1, 1, 1, ("cpu:default",), "other", "0")
    mine = key._replace(device="mine")
    for each in (key, mine):
        autotune.CHOICES.clear()  # as of another process
        autotune.CHOICES[each] = autotune.Choice("cpu", "default", 1.0)
        autotune.write(path, each)
    assert set(autotune.read(path)) == {key, mine}


def test_choices_depend_on_the_number_of_threads(threads):
    names = set()
    for count in (1, 2):
        threads(count)
        names.add(autotune.device_name(dlfp4.Device("cpu")))
    assert len(names) == 2
