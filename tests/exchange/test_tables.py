"""C exchange tables of producers that no file of ours knows, made up here: each type's own table is asked, what it
refuses is refused in words, and all else goes through the protocol. Each test has a process of its own: dlfp4 keeps the
tables of types for ever."""

import pytest

from ..support import capsules

HEAD = """
import ctypes, gc
import numpy as np
import capsules, dlfp4

OURS = capsules.exchange_api(dlfp4.Tensor)
KEPT = []

def hand_out(x, out):
    x.asked += 1
    return OURS.managed_tensor_from_py_object_no_sync(x.tensor, out)

def make_type(hand_out=hand_out, lend=None, **members):
    table = capsules.DLPackExchangeAPI()
    table.header.version.major, table.header.version.minor = 1, 3
    table.managed_tensor_from_py_object_no_sync = capsules.FromPyObject(hand_out)
    if lend is not None:
        table.dltensor_from_py_object_no_sync = capsules.BorrowPyObject(lend)
    KEPT.append(table)

    class Array:
        def __init__(self, values, dtype="int64"):
            self.tensor, self.asked, self.capsules = dlfp4.asarray(np.array(values, dtype)), 0, 0

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

        def __dlpack__(self, **options):
            self.capsules += 1
            return self.tensor.__dlpack__(**options)

    return type("Array", (Array,), {"__dlpack_c_exchange_api__": capsules.table_capsule(table), **members})

def asked(x):
    "How often the table and the protocol were asked."
    return x.asked, x.capsules

def refusal(x, entry=dlfp4.from_dlpack):
    try:
        entry(x)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


def run(code):
    return capsules.run_python(HEAD + code)


def test_each_type_has_its_own_table():
    """Whatever was met before; the table of the second is asked through the second's function."""
    assert (
        run("""
def hand_out_twice(x, out):
    x.asked += 10
    return OURS.managed_tensor_from_py_object_no_sync(x.tensor, out)

first, second, third = make_type(), make_type(hand_out_twice), make_type()
for kind, times in ((first, 1), (second, 10), (third, 1), (second, 10), (first, 1), (third, 1)):
    for entry in (dlfp4.from_dlpack, dlfp4.asarray, lambda x: dlfp4.cast(x, "int64")):
        x = kind([3, 1, 4])
        y = entry(x)
        assert y.tolist() == [3, 1, 4] and asked(x) == (times, 0), (y, asked(x))
print("done")
""")
        == "done\n"
    )


def test_types_beyond_those_that_there_is_room_for():
    """They go through the protocol, as if they had no table, and those before them keep theirs."""
    assert (
        run("""
kinds = [make_type() for _ in range(40)]
for _ in range(2):
    ways = []
    for k, kind in enumerate(kinds):
        x = kind([k, 7])
        assert dlfp4.from_dlpack(x).tolist() == [k, 7]
        ways.append(asked(x))
    served = ways.count((1, 0))
    assert served >= 8 and ways == [(1, 0)] * served + [(0, 1)] * (40 - served), ways
print("done")
""")
        == "done\n"
    )


def test_our_table_tells_the_stream_of_the_first_producer_that_has_one():
    assert (
        run("""
def tell(kind, index, out):
    out[0] = 0x700 + index
    return 0

kinds = make_type(), make_type(), make_type()
KEPT[1].current_work_stream = capsules.WorkStream(tell)
KEPT[2].current_work_stream = capsules.WorkStream(lambda kind, index, out: 1 / 0)
for kind in kinds:
    assert dlfp4.from_dlpack(kind([1])).tolist() == [1]
stream = ctypes.c_void_p(77)
for device, expected in (((2, 3), 0x703), ((13, 0), 0x700), ((1, 0), None), ((10, 0), None)):
    assert OURS.current_work_stream(*device, ctypes.byref(stream)) == 0 and stream.value == expected, device
print("done")
""")
        == "done\n"
    )


def test_a_subclass_goes_through_the_protocol():
    """The inherited table promises nothing for it."""
    assert (
        run("""
kind = make_type()
sub = type("Sub", (kind,), {})
x, y = sub([5, 6]), kind([5, 6])
for each, expected in ((x, (0, 1)), (y, (1, 0))):
    assert dlfp4.from_dlpack(each).tolist() == [5, 6] and asked(each) == expected, asked(each)
print("done")
""")
        == "done\n"
    )


@pytest.mark.parametrize("status", [-1, 1, 0])
@pytest.mark.parametrize("module", ["unknown", "cupy"])  # whose file has no words for refusals
def test_a_refusal_without_a_reason(module, status):
    """Also a table that says that all is well, and hands out nothing."""
    said = run(f"""
kind = make_type(lambda x, out: {status}, __module__={module!r})
print(refusal(kind([1])))
print(refusal(kind([1]), lambda x: dlfp4.cast(x, "int8")))
""")
    assert said == f"BufferError: {module}.Array cannot be exchanged: its exchange table gave no reason\n" * 2


def test_a_tables_own_exception_comes_through():
    """Ours refuses what is no Tensor by a TypeError."""
    said = run("""
kind = make_type()
kind.__dlpack_c_exchange_api__ = dlfp4.Tensor.__dlpack_c_exchange_api__
print(refusal(kind([1])))
print(dlfp4.from_dlpack(np.ones(2)).tolist())  # nothing of it is left
""")
    assert said.startswith("TypeError: ")
    assert said.endswith("\n[1.0, 1.0]\n")


def test_nothing_is_lent_where_nothing_would_keep_it():
    """A table that lends is asked for a managed tensor, which owns its memory, where no file says what keeps a loan."""
    assert (
        run("""
def lend(x, out):
    raise AssertionError

for module in ("unknown", "cupy"):  # a framework whose file has neither keeper nor refusals
    kind = make_type(lend=lend, __module__=module)
    x = kind([8, 9])
    y = dlfp4.from_dlpack(x)
    assert asked(x) == (1, 0)
    del x
    gc.collect()
    assert y.tolist() == [8, 9]
print("done")
""")
        == "done\n"
    )
