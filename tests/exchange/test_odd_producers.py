"""Producers that lie about themselves, give no capsules or raise: exceptions of the right type, or the right values."""

import ctypes
import re

import numpy as np
import pytest

from ..support import capsules

# ---- classes that lie about themselves


def test_a_metaclass_with_bases_of_its_own():
    """Its attribute is no list of types, nor of those that the object's memory is laid out for."""
    import dlfp4

    torch = capsules.framework("torch")
    for bases in ((5,), (torch.Tensor,), None):

        class Lying(type):
            __mro__ = property(lambda cls, bases=bases: bases and (cls, *bases))

        class Strange(capsules.Producer, metaclass=Lying):
            __dlpack_c_exchange_api__ = None

        made = capsules.Made()
        assert dlfp4.from_dlpack(Strange(made)).to_numpy().tobytes() == made.memory.tobytes()


@pytest.mark.parametrize("length", [1, 2, 1000])
def test_a_circle_of_exchange_tables(length):
    """Tables of other versions that point to each other for ever: the protocol serves instead."""
    import dlfp4

    headers = [capsules.DLPackExchangeAPIHeader(capsules.DLPackVersion(2, 0)) for _ in range(length)]
    for header, other in zip(headers, headers[1:] + headers[:1], strict=True):
        header.prev_api = ctypes.addressof(other)

    class Strange(capsules.Producer):
        __dlpack_c_exchange_api__ = capsules.table_capsule(headers[0])

    made = capsules.Made()
    assert dlfp4.from_dlpack(Strange(made)).to_numpy().tobytes() == made.memory.tobytes()


@pytest.mark.parametrize("kind", ["no capsule", "another capsule", "another version", "no functions"])
def test_an_exchange_table_that_is_none(kind):
    """The protocol serves instead."""
    import datetime

    import dlfp4

    table = capsules.DLPackExchangeAPI(capsules.DLPackExchangeAPIHeader(capsules.DLPackVersion(1, 3)))
    if kind == "another version":
        table.header.version.major = 2
        table.managed_tensor_from_py_object_no_sync = capsules.FromPyObject(lambda x, out: -1)
    offered = {"no capsule": table, "another capsule": datetime.datetime_CAPI}

    class Strange(capsules.Producer):
        __dlpack_c_exchange_api__ = offered.get(kind) or capsules.table_capsule(table)

    made = capsules.Made()
    assert dlfp4.from_dlpack(Strange(made)).to_numpy().tobytes() == made.memory.tobytes()


# ---- not a capsule at all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 3, "dltensor", b"dltensor", (), len, np.float32(1)], ids=repr)
def test_dlpack_returns_no_capsule(value):
    import dlfp4

    with pytest.raises(TypeError, match=f"an object of type {type(value).__name__}; expected a capsule"):
        dlfp4.from_dlpack(capsules.Producer(value))


def test_dlpack_returns_a_foreign_capsule():
    import datetime

    import dlfp4

    with pytest.raises((TypeError, BufferError), match="datetime"):  # names the capsule that came
        dlfp4.from_dlpack(capsules.Producer(datetime.datetime_CAPI))


@pytest.mark.parametrize("value", [None, 3, "text", len, [1.0, 2.0]], ids=str)
def test_not_a_producer(value):
    import dlfp4

    with pytest.raises(TypeError, match=type(value).__name__):
        dlfp4.from_dlpack(value)


@pytest.mark.parametrize("device", [None, 1, "cpu", (), (1,), ("a", "b"), (1, 0, 0)], ids=str)
def test_malformed_device_of_a_producer(device):
    import dlfp4

    made = capsules.Made()
    with pytest.raises(TypeError, match=re.escape(f"returned {device!r}; expected (device_type, device_id)")):
        dlfp4.from_dlpack(capsules.Producer(made, device))
    assert made.untouched


def test_the_capsules_own_device_is_the_true_one():
    import dlfp4

    made = capsules.Made()
    tensor = dlfp4.from_dlpack(capsules.Producer(made, (2**40, 0)))
    assert (str(tensor.device), tensor.to_numpy().tobytes()) == ("cpu", made.memory.tobytes())


def test_a_producer_without_copy_is_asked_for_the_newest_version():
    """Only so can NumPy say that memory is read-only."""
    import dlfp4

    array = np.arange(8.0)
    array.flags.writeable = False

    class Producer:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, *, stream=None, max_version=None):
            return array.__dlpack__(max_version=max_version)

    for copy in (None, False):
        tensor = dlfp4.from_dlpack(Producer(), copy=copy)
        assert (tensor.readonly, tensor.data_ptr) == (True, array.ctypes.data)


@pytest.mark.parametrize("at", ["dlpack", "device"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError, MemoryError, BufferError, ValueError])
def test_a_producers_exception_propagates(error, at):
    import dlfp4

    made = capsules.Made()
    thrown = error("stopped halfway")
    with pytest.raises(error, match="stopped halfway") as caught:
        dlfp4.from_dlpack(capsules.RaisingProducer(thrown, made=made, at=at))
    assert caught.value is thrown
    assert made.untouched
    made.drop()
    assert made.deleted == 1
